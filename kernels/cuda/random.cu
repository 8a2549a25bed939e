// random.cu: filling tensors with the numbers of a Philox stream, dropout: bit for bit what kernels/cpu/random.c gives.
// Compiled without contraction of products and sums, as that file is.
//
// A thread computes one Philox block, which is four elements.
#include "list.h"
#include "walk.h"

#include "philox.h"

#include "backend/random.h"

struct filler {
  gpu_walk<1> walk;
  char *data;
  int kind, dtype;
  bool flat; // contiguous
  uint32_t n;
  uint64_t seed, offset; // offset: number of element 0
  float top;             // the largest uniform number
  double p, q;
};

// Element e of the part.
template <typename C> static __device__ inline void fill_one(const filler &f, uint32_t e, C v) {
  int64_t at = 0;
  if (f.flat) at = (int64_t)e * f.walk.stride[0][0];
  else gpu_offsets<1>(f.walk, e, &at);
  gpu_store_as<C>(f.dtype, f.data + at, v);
}

template <typename T> static __device__ inline void fill_four(const filler &f, uint32_t i, const float *v) {
  gpu_quad<T> q;
#pragma unroll
  for (int k = 0; k < 4; k++) q.at[k] = gpu_store<T>(v[k]);
  ((gpu_quad<T> *)f.data)[i] = q;
}

static __device__ inline float number(const filler &f, const tl_philox &b, const float *z, int k, float) {
  const float p = (float)f.p, q = (float)f.q;
  if (f.kind == TL_RANDOM_NORMAL) return p + q * z[k];
  if (f.kind == TL_RANDOM_BERNOULLI) return tl_unit_f32(b.word[k]) < p ? 1.0f : 0.0f;
  const float range = q - p, y = p + range * tl_unit_f32(b.word[k]);
  return y < f.top ? y : f.top;
}

static __device__ inline double number(const filler &f, const tl_philox &b, const float *z, int k, double top) {
  const double p = f.p, q = f.q;
  switch (f.kind) {
    case TL_RANDOM_NORMAL: return p + q * z[k];
    case TL_RANDOM_BERNOULLI: return tl_unit_f32(b.word[k]) < (float)p ? 1 : 0;
    case TL_RANDOM_INTEGER: { // without floating-point bias for ranges below 2^32
      const uint64_t range = (uint64_t)(q - p);
      return p + (range >> 32 == 0 ? (double)((uint64_t)b.word[k] * range >> 32)
                                   : floor((q - p) * ((double)b.word[k] * 0x1p-32)));
    }
    default: {
      const double y = p + (q - p) * tl_unit_f32(b.word[k]);
      return y < top || p == q ? y : top;
    }
  }
}

template <typename C> static __global__ void __launch_bounds__(GPU_BLOCK)
random_kernel(filler f, double top, const tl_cuda_random_base *base) {
  const uint64_t seed = f.seed ^ base->seed, offset = f.offset + base->offset;
  const uint32_t skip = (uint32_t)(offset % 4), blocks = (skip + f.n + 3) / 4;
#pragma unroll 1
  for (uint32_t i = blockIdx.x * GPU_BLOCK + threadIdx.x; i < blocks; i += gridDim.x * GPU_BLOCK) {
    const tl_philox b = tl_philox_block(seed, offset / 4 + i);
    float z[4] = {};
    if (f.kind == TL_RANDOM_NORMAL) {
      tl_normal_pair(b.word[0], b.word[1], &z[0], &z[1]);
      tl_normal_pair(b.word[2], b.word[3], &z[2], &z[3]);
    }
    const uint32_t e = 4 * i - skip; // wraps in the first block, where what lies before is left out
    if (sizeof(C) == sizeof(float) && f.flat && skip == 0 && e + 4 <= f.n && (uintptr_t)f.data % 16 == 0) {
      float v[4];
#pragma unroll
      for (int k = 0; k < 4; k++) v[k] = (float)number(f, b, z, k, (C)top);
      switch (f.dtype) {
        case TL_FLOAT32: fill_four<float>(f, i, v); break;
        case TL_FLOAT16: fill_four<__half>(f, i, v); break;
        default: fill_four<__nv_bfloat16>(f, i, v); break;
      }
      continue;
    }
#pragma unroll
    for (uint32_t k = 0; k < 4; k++)
      if (e + k < f.n) fill_one<C>(f, e + k, number(f, b, z, (int)k, (C)top));
  }
}

// The largest number of this dtype below `high`: rounding must not reach the excluded end.
static float below(int dtype, double high) {
  float f = nextafterf((float)high, -INFINITY);
  if ((double)(float)high < high) f = (float)high;
  if (dtype == TL_FLOAT32) return f;
  if (dtype == TL_FLOAT16) {
    __half_raw bits = __float2half_rn(f);
    if (__half2float(bits) > f) bits.x = (uint16_t)(f > 0 ? bits.x - 1 : bits.x + 1);
    return __half2float(bits);
  }
  __nv_bfloat16_raw bits = __float2bfloat16_rn(f);
  if (__bfloat162float(bits) > f) bits.x = (uint16_t)(f > 0 ? bits.x - 1 : bits.x + 1);
  return __bfloat162float(bits);
}

TL_CUDA_ENTRY(random)(int kind, const tl_iter *it, uint64_t seed, uint64_t offset, double p, double q) {
  if (it->numel == 0) return TL_OK;
  const int dtype = it->op[0].dtype;
  const bool narrow = tl_is_floating(dtype) && dtype != TL_FLOAT64 && kind != TL_RANDOM_INTEGER;
  float top = narrow && kind == TL_RANDOM_UNIFORM ? below(dtype, q) : 0;
  if (top < (float)p) top = (float)p; // nothing of this dtype lies between
  return gpu_split(it, it->ndim, GPU_MAX_INDEX - 4, 0, [=](const tl_iter *part, int64_t begin) {
    filler f = {};
    f.walk = gpu_walk_of<1>(part, 0, part->ndim);
    f.data = part->op[0].data;
    f.kind = kind;
    f.dtype = dtype;
    f.flat = part->ndim == 1;
    f.n = (uint32_t)part->numel;
    f.seed = seed;
    f.offset = offset + (uint64_t)begin;
    f.top = top;
    f.p = p;
    f.q = q;
    if (f.flat && f.walk.stride[0][0] != (int64_t)tl_dtype_size(dtype)) f.flat = false;
    const tl_cuda_random_base *base = tl_cuda_here()->random;
    unsigned grid = gpu_blocks(f.n / 4 + 1);
    if (narrow) return gpu_launch("random", random_kernel<float>, grid, GPU_BLOCK, 0, f, 0.0, base);
    return gpu_launch("random", random_kernel<double>, grid, GPU_BLOCK, 0, f, nextafter(q, -INFINITY), base);
  });
}

// ---- dropout ----

// y = x * scale where the number is at least p, else 0. A number is a multiple of 2^-24: it is below p exactly if its
// integer is below p * 2^24 rounded up.
template <typename T>
static __global__ void __launch_bounds__(GPU_BLOCK)
dropout_kernel(const T *x, T *y, int64_t n, uint64_t seed, uint64_t offset, const tl_cuda_random_base *base,
               uint32_t limit, gpu_compute_t<T> scale) {
  seed ^= base->seed;
  offset += base->offset;
  typedef gpu_compute_t<T> C;
  const int64_t skip = (int64_t)(offset % 4), blocks = (skip + n + 3) / 4;
  const bool vectors = skip == 0 && (uintptr_t)x % alignof(gpu_quad<T>) == 0 && (uintptr_t)y % alignof(gpu_quad<T>) == 0;
  GPU_LOOP(i, blocks) {
    const tl_philox b = tl_philox_block(seed, offset / 4 + (uint64_t)i);
    const int64_t e = 4 * i - skip;
    if (vectors && e + 4 <= n) {
      gpu_quad<T> v = ((const gpu_quad<T> *)x)[i];
#pragma unroll
      for (int k = 0; k < 4; k++) v.at[k] = gpu_store<T>(b.word[k] >> 8 < limit ? (C)0 : gpu_load<C>(v.at[k]) * scale);
      ((gpu_quad<T> *)y)[i] = v;
      continue;
    }
#pragma unroll
    for (int k = 0; k < 4; k++)
      if (e + k >= 0 && e + k < n)
        y[e + k] = gpu_store<T>(b.word[k] >> 8 < limit ? (C)0 : gpu_load<C>(x[e + k]) * scale);
  }
}

TL_CUDA_ENTRY(dropout)(int dtype, const void *x, void *y, int64_t n, uint64_t seed, uint64_t offset, double p) {
  if (n == 0) return TL_OK;
  const uint32_t limit = (uint32_t)ceil(p * 0x1p24);
  const double scale = p < 1 ? 1 / (1 - p) : 0;
  GPU_DISPATCH_FLOATING(dtype, T, {
    return gpu_launch("dropout", dropout_kernel<T>, gpu_blocks(n / 4 + 1), GPU_BLOCK, 0, (const T *)x, (T *)y, n, seed,
                      offset, tl_cuda_here()->random, limit, scale);
  })
  return TL_OK;
}
