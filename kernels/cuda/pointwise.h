/* pointwise.h: the two kernels that run a function of up to three operands over an iterator.
 *
 * flat_kernel    operands that lie contiguously (or are one value), computed in float: 8 elements a thread in 16-byte
 *                loads and stores. Their dtypes are known at run time only; the branch costs little next to memory.
 * strided_kernel everything else, an element at a time: broadcasts, transposes, unaligned views, double, int64.
 *
 * One instance a function and path, not one a dtype as well: these files are compiled for every architecture. */
#ifndef TL_KERNELS_CUDA_POINTWISE_H
#define TL_KERNELS_CUDA_POINTWISE_H

#include "element.h"
#include "walk.h"
#include "warp.h"

#define GPU_OPERANDS 4

/* A checked problem of less than 2^31 elements; operand 0 is the output. */
struct gpu_pointwise {
  gpu_walk<GPU_OPERANDS> walk;
  char *data[GPU_OPERANDS]; /* NULL: the constant */
  double constant[GPU_OPERANDS];
  int dtype[GPU_OPERANDS];
  bool single[GPU_OPERANDS]; /* one value for all elements */
  bool flat;                 /* fit for flat_kernel */
  bool adjacent;             /* a thread's 8 elements are neighbours: 16 bytes of a 2-byte dtype; else two groups of 4 */
  int compute;
  uint32_t n;
  double p, q;
};

/* Parameters keep their fractions where integers are computed: clamp's bounds may be infinite. */
template <typename C> struct gpu_parameter { typedef double type; };
template <> struct gpu_parameter<float> { typedef float type; };
template <typename C> using gpu_parameter_t = typename gpu_parameter<C>::type;

static constexpr uint32_t GPU_GROUP = 4, GPU_TILE = GPU_BLOCK * 2 * GPU_GROUP;

template <typename T> struct alignas(4 * sizeof(T)) gpu_four {
  T at[GPU_GROUP];
};

/* Elements i .. i+3 and j .. j+3; where j = i + 4 all 8 lie side by side. */
template <typename T>
static __device__ inline void load_groups(const char *data, uint32_t i, uint32_t j, bool adjacent, float *v) {
  if (sizeof(T) == 2 && adjacent) {
    const gpu_vector<T> a = *(const gpu_vector<T> *)(data + (size_t)i * sizeof(T));
#pragma unroll
    for (uint32_t k = 0; k < 2 * GPU_GROUP; k++) v[k] = gpu_load<float>(a.at[k % gpu_vector<T>::N]);
    return;
  }
  const gpu_four<T> a = *(const gpu_four<T> *)(data + (size_t)i * sizeof(T));
  const gpu_four<T> b = *(const gpu_four<T> *)(data + (size_t)j * sizeof(T));
#pragma unroll
  for (uint32_t k = 0; k < GPU_GROUP; k++) {
    v[k] = gpu_load<float>(a.at[k]);
    v[GPU_GROUP + k] = gpu_load<float>(b.at[k]);
  }
}

template <typename T>
static __device__ inline void store_groups(char *data, uint32_t i, uint32_t j, bool adjacent, const float *v) {
  if (sizeof(T) == 2 && adjacent) {
    gpu_vector<T> a;
#pragma unroll
    for (uint32_t k = 0; k < 2 * GPU_GROUP; k++) a.at[k % gpu_vector<T>::N] = gpu_store<T>(v[k]);
    *(gpu_vector<T> *)(data + (size_t)i * sizeof(T)) = a;
    return;
  }
  gpu_four<T> a, b;
#pragma unroll
  for (uint32_t k = 0; k < GPU_GROUP; k++) {
    a.at[k] = gpu_store<T>(v[k]);
    b.at[k] = gpu_store<T>(v[GPU_GROUP + k]);
  }
  *(gpu_four<T> *)(data + (size_t)i * sizeof(T)) = a;
  *(gpu_four<T> *)(data + (size_t)j * sizeof(T)) = b;
}

/* What flat_kernel loads and stores. */
static inline bool gpu_flat_dtype(int dtype) {
  return dtype == TL_FLOAT32 || dtype == TL_FLOAT16 || dtype == TL_BFLOAT16 || dtype == TL_UINT8 || dtype == TL_BOOL;
}

static __device__ inline float flat_load_one(int dtype, const char *data, uint32_t i) {
  switch (dtype) {
    case TL_FLOAT32: return ((const float *)data)[i];
    case TL_FLOAT16: return gpu_load<float>(((const __half *)data)[i]);
    case TL_BFLOAT16: return gpu_load<float>(((const __nv_bfloat16 *)data)[i]);
    default: return (float)((const uint8_t *)data)[i];
  }
}

static __device__ inline void flat_store_one(int dtype, char *data, uint32_t i, float v) {
  switch (dtype) {
    case TL_FLOAT32: ((float *)data)[i] = v; break;
    case TL_FLOAT16: ((__half *)data)[i] = gpu_store<__half>(v); break;
    case TL_BFLOAT16: ((__nv_bfloat16 *)data)[i] = gpu_store<__nv_bfloat16>(v); break;
    case TL_UINT8: ((uint8_t *)data)[i] = gpu_store<uint8_t>(v); break;
    default: ((gpu_bool *)data)[i] = gpu_store<gpu_bool>(v); break;
  }
}

/* F::run(in, p, q) is the function of INPUTS numbers. */
template <typename F, int INPUTS>
static __global__ void __launch_bounds__(GPU_BLOCK) flat_kernel(gpu_pointwise a, float p, float q) {
  float single[INPUTS];
#pragma unroll
  for (int o = 0; o < INPUTS; o++) {
    single[o] = 0;
    if (a.data[o + 1] == NULL) single[o] = (float)a.constant[o + 1];
    else if (a.single[o + 1]) single[o] = flat_load_one(a.dtype[o + 1], a.data[o + 1], 0);
  }
  const uint32_t whole = a.n / GPU_TILE;
  for (uint32_t tile = blockIdx.x; tile < whole; tile += gridDim.x) {
    const uint32_t first = tile * GPU_TILE;
    const uint32_t i = first + threadIdx.x * (a.adjacent ? 2 * GPU_GROUP : GPU_GROUP);
    const uint32_t j = i + (a.adjacent ? GPU_GROUP : GPU_TILE / 2);
    float v[INPUTS][2 * GPU_GROUP], y[2 * GPU_GROUP];
#pragma unroll
    for (int o = 0; o < INPUTS; o++) {
      if (a.single[o + 1]) {
#pragma unroll
        for (uint32_t k = 0; k < 2 * GPU_GROUP; k++) v[o][k] = single[o];
        continue;
      }
      switch (a.dtype[o + 1]) {
        case TL_FLOAT32: load_groups<float>(a.data[o + 1], i, j, a.adjacent, v[o]); break;
        case TL_FLOAT16: load_groups<__half>(a.data[o + 1], i, j, a.adjacent, v[o]); break;
        case TL_BFLOAT16: load_groups<__nv_bfloat16>(a.data[o + 1], i, j, a.adjacent, v[o]); break;
        default: load_groups<uint8_t>(a.data[o + 1], i, j, a.adjacent, v[o]); break;
      }
    }
#pragma unroll
    for (uint32_t k = 0; k < 2 * GPU_GROUP; k++) {
      float in[INPUTS];
#pragma unroll
      for (int o = 0; o < INPUTS; o++) in[o] = v[o][k];
      y[k] = F::template run<float>(in, p, q);
    }
    switch (a.dtype[0]) {
      case TL_FLOAT32: store_groups<float>(a.data[0], i, j, a.adjacent, y); break;
      case TL_FLOAT16: store_groups<__half>(a.data[0], i, j, a.adjacent, y); break;
      case TL_BFLOAT16: store_groups<__nv_bfloat16>(a.data[0], i, j, a.adjacent, y); break;
      case TL_UINT8: store_groups<uint8_t>(a.data[0], i, j, a.adjacent, y); break;
      default: store_groups<gpu_bool>(a.data[0], i, j, a.adjacent, y); break;
    }
  }
  /* what is left of the last tile: the block that would have had it */
  if (whole % gridDim.x != blockIdx.x) return;
#pragma unroll 1
  for (uint32_t i = whole * GPU_TILE + threadIdx.x; i < a.n; i += GPU_BLOCK) {
    float in[INPUTS];
#pragma unroll
    for (int o = 0; o < INPUTS; o++)
      in[o] = a.single[o + 1] ? single[o] : flat_load_one(a.dtype[o + 1], a.data[o + 1], i);
    flat_store_one(a.dtype[0], a.data[0], i, F::template run<float>(in, p, q));
  }
}

template <typename F, int INPUTS, typename C>
static __global__ void __launch_bounds__(GPU_BLOCK)
strided_kernel(gpu_pointwise a, gpu_parameter_t<C> p, gpu_parameter_t<C> q) {
#pragma unroll 1
  for (uint32_t i = blockIdx.x * GPU_BLOCK + threadIdx.x; i < a.n; i += gridDim.x * GPU_BLOCK) {
    int64_t at[INPUTS + 1];
    gpu_offsets<INPUTS + 1>(a.walk, i, at);
    C in[INPUTS];
#pragma unroll
    for (int o = 0; o < INPUTS; o++)
      in[o] = a.data[o + 1] == NULL ? (C)a.constant[o + 1] : gpu_load_as<C>(a.dtype[o + 1], a.data[o + 1] + at[o + 1]);
    gpu_store_as<C>(a.dtype[0], a.data[0] + at[0], F::template run<C>(in, p, q));
  }
}

template <typename F, int INPUTS, typename C> static inline tl_status gpu_strided(const char *name, const gpu_pointwise *a) {
  return gpu_launch(name, strided_kernel<F, INPUTS, C>, gpu_blocks(a->n), GPU_BLOCK, 0, *a, a->p, a->q);
}

template <typename F, int INPUTS> static inline tl_status gpu_floating(const char *name, const gpu_pointwise *a) {
  if (a->compute == TL_FLOAT64) return gpu_strided<F, INPUTS, double>(name, a);
  if (!a->flat) return gpu_strided<F, INPUTS, float>(name, a);
  return gpu_launch(name, flat_kernel<F, INPUTS>, gpu_blocks(a->n / (2 * GPU_GROUP)), GPU_BLOCK, 0, *a, a->p, a->q);
}

/* From an iterator of at most GPU_MAX_INDEX elements. */
static inline gpu_pointwise gpu_pointwise_of(const tl_iter *it, int compute, double p, double q) {
  gpu_pointwise a = {};
  a.walk = gpu_walk_of<GPU_OPERANDS>(it, 0, it->ndim);
  a.compute = compute;
  a.n = (uint32_t)it->numel;
  a.p = p;
  a.q = q;
  a.adjacent = true;
  a.flat = compute == TL_FLOAT32 && it->ndim == 1 && it->numel >= 8 * GPU_TILE;
  for (int o = 0; o < it->n; o++) {
    const tl_operand *x = &it->op[o];
    a.data[o] = x->data;
    a.constant[o] = x->constant;
    a.dtype[o] = x->dtype;
    a.single[o] = x->data == NULL || x->stride[0] == 0;
    if (x->data == NULL) continue;
    int64_t size = (int64_t)tl_dtype_size(x->dtype);
    a.flat = a.flat && gpu_flat_dtype(x->dtype) && (a.single[o] ? o > 0 : x->stride[0] == size && gpu_aligned(x->data));
    if (!a.single[o] && size > 2) a.adjacent = false;
  }
  return a;
}

/* The parts of pointwise.cu, a file each, that know what a function computes. */
tl_status gpu_pointwise_unary(int fn, const gpu_pointwise *a);
tl_status gpu_pointwise_unary_grad(int fn, const gpu_pointwise *a);
tl_status gpu_pointwise_binary(int fn, const gpu_pointwise *a);
tl_status gpu_pointwise_binary_grad(int fn, const gpu_pointwise *a);
tl_status gpu_pointwise_integer(int fn, const gpu_pointwise *a);

static inline tl_status gpu_pointwise_missing(int fn, const gpu_pointwise *a) {
  return TL_FAIL(TL_ERR_UNSUPPORTED, "pointwise", "function %d does not compute in %s", fn,
                 a->compute == TL_FLOAT64   ? "float64"
                 : a->compute == TL_FLOAT32 ? "float32"
                                            : "int64");
}

#endif
