/* pointwise.h: the two kernels that run a function of up to three operands over an iterator.
 *
 * flat_kernel    rows that lie contiguously or are one value (all of a contiguous tensor is a row), computed in float: 8
 *                elements a thread in 16-byte loads and stores. Their dtypes are known at run time only; the branch
 *                costs little next to memory.
 * strided_kernel everything else, an element at a time: transposes, unaligned views, double, int64.
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
  bool single[GPU_OPERANDS]; /* one value for all of a row */
  bool flat;                 /* fit for flat_kernel */
  bool adjacent; /* a thread's 8 elements are neighbours: 16 bytes of a 2-byte dtype; else two groups of 4 */
  int compute;
  uint32_t n;
  double p, q;
};

/* Parameters keep their fractions where integers are computed: clamp's bounds may be infinite. */
template <typename C> struct gpu_parameter { typedef double type; };
template <> struct gpu_parameter<float> { typedef float type; };
template <typename C> using gpu_parameter_t = typename gpu_parameter<C>::type;

static constexpr uint32_t GPU_GROUP = 4, GPU_TILE = GPU_BLOCK * 2 * GPU_GROUP;

/* Two groups of 4 elements; where b is right behind a, all 8 at once. */
template <typename T> static __device__ inline void load_groups(const char *a, const char *b, bool adjacent, float *v) {
  if (sizeof(T) == 2 && adjacent) {
    const gpu_vector<T> all = *(const gpu_vector<T> *)a;
#pragma unroll
    for (uint32_t k = 0; k < 2 * GPU_GROUP; k++) v[k] = gpu_load<float>(all.at[k % gpu_vector<T>::N]);
    return;
  }
  const gpu_quad<T> first = *(const gpu_quad<T> *)a, second = *(const gpu_quad<T> *)b;
#pragma unroll
  for (uint32_t k = 0; k < GPU_GROUP; k++) {
    v[k] = gpu_load<float>(first.at[k]);
    v[GPU_GROUP + k] = gpu_load<float>(second.at[k]);
  }
}

template <typename T> static __device__ inline void store_groups(char *a, char *b, bool adjacent, const float *v) {
  if (sizeof(T) == 2 && adjacent) {
    gpu_vector<T> all;
#pragma unroll
    for (uint32_t k = 0; k < 2 * GPU_GROUP; k++) all.at[k % gpu_vector<T>::N] = gpu_store<T>(v[k]);
    *(gpu_vector<T> *)a = all;
    return;
  }
  gpu_quad<T> first, second;
#pragma unroll
  for (uint32_t k = 0; k < GPU_GROUP; k++) {
    first.at[k] = gpu_store<T>(v[k]);
    second.at[k] = gpu_store<T>(v[GPU_GROUP + k]);
  }
  *(gpu_quad<T> *)a = first;
  *(gpu_quad<T> *)b = second;
}

/* What flat_kernel loads and stores. */
static inline bool gpu_flat_dtype(int dtype) {
  return dtype == TL_FLOAT32 || dtype == TL_FLOAT16 || dtype == TL_BFLOAT16 || dtype == TL_UINT8 || dtype == TL_BOOL;
}

static __device__ inline float flat_load_one(int dtype, const char *p) {
  switch (dtype) {
    case TL_FLOAT32: return *(const float *)p;
    case TL_FLOAT16: return gpu_load<float>(*(const __half *)p);
    case TL_BFLOAT16: return gpu_load<float>(*(const __nv_bfloat16 *)p);
    default: return (float)*(const uint8_t *)p;
  }
}

static __device__ inline void flat_store_one(int dtype, char *p, float v) {
  switch (dtype) {
    case TL_FLOAT32: *(float *)p = v; break;
    case TL_FLOAT16: *(__half *)p = gpu_store<__half>(v); break;
    case TL_BFLOAT16: *(__nv_bfloat16 *)p = gpu_store<__nv_bfloat16>(v); break;
    case TL_UINT8: *(uint8_t *)p = gpu_store<uint8_t>(v); break;
    default: *(gpu_bool *)p = gpu_store<gpu_bool>(v); break;
  }
}

/* F::run(in, p, q) is the function of INPUTS numbers. */
template <typename F, int INPUTS>
static __global__ void __launch_bounds__(GPU_BLOCK) flat_kernel(gpu_pointwise a, float p, float q) {
  const uint32_t whole = a.n / GPU_TILE;
#pragma unroll 1
  for (uint32_t tile = blockIdx.x; tile < whole; tile += gridDim.x) {
    const uint32_t i = tile * GPU_TILE + threadIdx.x * (a.adjacent ? 2 * GPU_GROUP : GPU_GROUP);
    const uint32_t j = i + (a.adjacent ? GPU_GROUP : GPU_TILE / 2);
    int64_t at[INPUTS + 1], next[INPUTS + 1];
    gpu_offsets<INPUTS + 1>(a.walk, i, at);
    gpu_offsets<INPUTS + 1>(a.walk, j, next);
    float v[INPUTS][2 * GPU_GROUP], y[2 * GPU_GROUP];
#pragma unroll
    for (int o = 0; o < INPUTS; o++) {
      const char *first = a.data[o + 1] + at[o + 1], *second = a.data[o + 1] + next[o + 1];
      const int dtype = a.dtype[o + 1];
      if (a.single[o + 1]) {
        float one = (float)a.constant[o + 1], two = one;
        if (a.data[o + 1] != NULL) one = flat_load_one(dtype, first), two = flat_load_one(dtype, second);
#pragma unroll
        for (uint32_t k = 0; k < GPU_GROUP; k++) v[o][k] = one, v[o][GPU_GROUP + k] = two;
        continue;
      }
      switch (dtype) {
        case TL_FLOAT32: load_groups<float>(first, second, a.adjacent, v[o]); break;
        case TL_FLOAT16: load_groups<__half>(first, second, a.adjacent, v[o]); break;
        case TL_BFLOAT16: load_groups<__nv_bfloat16>(first, second, a.adjacent, v[o]); break;
        default: load_groups<uint8_t>(first, second, a.adjacent, v[o]); break;
      }
    }
#pragma unroll
    for (uint32_t k = 0; k < 2 * GPU_GROUP; k++) {
      float in[INPUTS];
#pragma unroll
      for (int o = 0; o < INPUTS; o++) in[o] = v[o][k];
      y[k] = F::template run<float>(in, p, q);
    }
    char *first = a.data[0] + at[0], *second = a.data[0] + next[0];
    switch (a.dtype[0]) {
      case TL_FLOAT32: store_groups<float>(first, second, a.adjacent, y); break;
      case TL_FLOAT16: store_groups<__half>(first, second, a.adjacent, y); break;
      case TL_BFLOAT16: store_groups<__nv_bfloat16>(first, second, a.adjacent, y); break;
      case TL_UINT8: store_groups<uint8_t>(first, second, a.adjacent, y); break;
      default: store_groups<gpu_bool>(first, second, a.adjacent, y); break;
    }
  }
  /* what is left of the last tile: the block that would have had it */
  if (whole % gridDim.x != blockIdx.x) return;
#pragma unroll 1
  for (uint32_t i = whole * GPU_TILE + threadIdx.x; i < a.n; i += GPU_BLOCK) {
    int64_t at[INPUTS + 1];
    gpu_offsets<INPUTS + 1>(a.walk, i, at);
    float in[INPUTS];
#pragma unroll
    for (int o = 0; o < INPUTS; o++)
      in[o] =
          a.data[o + 1] == NULL ? (float)a.constant[o + 1] : flat_load_one(a.dtype[o + 1], a.data[o + 1] + at[o + 1]);
    flat_store_one(a.dtype[0], a.data[0] + at[0], F::template run<float>(in, p, q));
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

template <typename F, int INPUTS, typename C>
static inline tl_status gpu_strided(const char *name, const gpu_pointwise *a) {
  return gpu_launch(name, strided_kernel<F, INPUTS, C>, gpu_blocks(a->n), GPU_BLOCK, 0, *a, a->p, a->q);
}

template <typename F, int INPUTS> static inline tl_status gpu_floating(const char *name, const gpu_pointwise *a) {
  if (a->compute == TL_FLOAT64) return gpu_strided<F, INPUTS, double>(name, a);
  if (!a->flat) return gpu_strided<F, INPUTS, float>(name, a);
  return gpu_launch(name, flat_kernel<F, INPUTS>, gpu_blocks(a->n / (2 * GPU_GROUP)), GPU_BLOCK, 0, *a, a->p, a->q);
}

/* Can flat_kernel read (o = 0: write) groups of 4 of this operand? */
static inline bool gpu_grouped(const tl_iter *it, int o) {
  const tl_operand *x = &it->op[o];
  const int inner = it->ndim - 1;
  const int64_t size = (int64_t)tl_dtype_size(x->dtype);
  if (x->data == NULL) return true;
  if (!gpu_flat_dtype(x->dtype)) return false;
  if (x->stride[inner] == 0) return o > 0;
  bool fits = x->stride[inner] == size && gpu_aligned(x->data);
  for (int d = 0; d < inner; d++) fits = fits && x->stride[d] % (GPU_GROUP * size) == 0;
  return fits;
}

/* From an iterator of at most GPU_MAX_INDEX elements. */
static inline gpu_pointwise gpu_pointwise_of(const tl_iter *it, int compute, double p, double q) {
  gpu_pointwise a = {};
  const int inner = it->ndim - 1;
  a.walk = gpu_walk_of<GPU_OPERANDS>(it, 0, it->ndim);
  a.compute = compute;
  a.n = (uint32_t)it->numel;
  a.p = p;
  a.q = q;
  a.adjacent = inner == 0;
  a.flat = compute == TL_FLOAT32 && it->numel >= 8 * GPU_TILE && (inner == 0 || it->shape[inner] % GPU_GROUP == 0);
  for (int o = 0; o < it->n; o++) {
    const tl_operand *x = &it->op[o];
    a.data[o] = x->data;
    a.constant[o] = x->constant;
    a.dtype[o] = x->dtype;
    a.single[o] = x->data == NULL || x->stride[inner] == 0;
    a.flat = a.flat && gpu_grouped(it, o);
    if (!a.single[o] && tl_dtype_size(x->dtype) > 2) a.adjacent = false;
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
