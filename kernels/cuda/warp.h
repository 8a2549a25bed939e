/* warp.h: values combined over a warp or a block, in an order that the shape of the block alone decides; 16-byte vectors.
 *
 * Blocks are one-dimensional, of whole warps. Every thread of the warp or block must call, and all get the result. */
#ifndef TL_KERNELS_CUDA_WARP_H
#define TL_KERNELS_CUDA_WARP_H

#include "launch.h"

#define GPU_ALL_LANES 0xffffffffu

/* ---- what to combine with: op(a, b), commutative ---- */

struct gpu_sum {
  template <typename T> __device__ T operator()(T a, T b) const { return a + b; }
};
/* nan wins */
struct gpu_largest {
  template <typename T> __device__ T operator()(T a, T b) const { return a > b || a != a ? a : b; }
};
struct gpu_smallest {
  template <typename T> __device__ T operator()(T a, T b) const { return a < b || a != a ? a : b; }
};

/* ---- exchange between lanes; overload both for a struct that is to be combined ---- */

template <typename T> static __device__ inline T gpu_shuffle_xor(T v, int mask) {
  return __shfl_xor_sync(GPU_ALL_LANES, v, mask);
}
template <typename T> static __device__ inline T gpu_shuffle_up(T v, int distance) {
  return __shfl_up_sync(GPU_ALL_LANES, v, distance);
}

static __device__ inline int gpu_lane() { return (int)(threadIdx.x % GPU_WARP); }
static __device__ inline int gpu_warp_of_block() { return (int)(threadIdx.x / GPU_WARP); }
static __device__ inline int gpu_warps() { return (int)(blockDim.x / GPU_WARP); }

/* Over groups of LANES neighbouring lanes (a power of 2), the whole warp unless said otherwise. */
template <int LANES = GPU_WARP, typename T, typename F> static __device__ inline T gpu_warp_reduce(T v, F op) {
#pragma unroll
  for (int d = LANES / 2; d > 0; d >>= 1) v = op(v, gpu_shuffle_xor(v, d));
  return v;
}

/* Over the block; `none` is what changes nothing. May be called again at once. */
template <typename T, typename F> static __device__ inline T gpu_block_reduce(T v, F op, T none) {
  __shared__ T part[GPU_WARP];
  v = gpu_warp_reduce(v, op);
  __syncthreads(); /* whoever called before has read its result */
  if (gpu_lane() == 0) part[gpu_warp_of_block()] = v;
  __syncthreads();
  v = gpu_lane() < gpu_warps() ? part[gpu_lane()] : none;
  return gpu_warp_reduce(v, op);
}
template <typename T> static __device__ inline T gpu_block_sum(T v) { return gpu_block_reduce(v, gpu_sum(), (T)0); }

/* Inclusive running value: thread i gets op over the values of threads 0 .. i. op need not commute. */
template <typename T, typename F> static __device__ inline T gpu_warp_scan(T v, F op) {
#pragma unroll
  for (int d = 1; d < GPU_WARP; d <<= 1) {
    T before = gpu_shuffle_up(v, d);
    if (gpu_lane() >= d) v = op(before, v);
  }
  return v;
}

/* The same over the block; *total becomes the last thread's value, for all threads. */
template <typename T, typename F> static __device__ inline T gpu_block_scan(T v, F op, T *total) {
  __shared__ T part[GPU_WARP];
  v = gpu_warp_scan(v, op);
  __syncthreads();
  if (gpu_lane() == GPU_WARP - 1) part[gpu_warp_of_block()] = v;
  __syncthreads();
  T sum = part[0], before = sum;
  for (int w = 1; w < gpu_warps(); w++) {
    if (w == gpu_warp_of_block()) before = sum;
    sum = op(sum, part[w]);
  }
  if (gpu_warp_of_block() > 0) v = op(before, v);
  *total = sum;
  return v;
}

/* What op makes of the values of the threads before this one, `none` for the first; op need not commute. */
template <typename T, typename F> static __device__ inline T gpu_block_before(T v, F op, T none, T *total) {
  __shared__ T part[GPU_WARP];
  v = gpu_warp_scan(v, op);
  T before = gpu_shuffle_up(v, 1);
  if (gpu_lane() == 0) before = none;
  __syncthreads();
  if (gpu_lane() == GPU_WARP - 1) part[gpu_warp_of_block()] = v;
  __syncthreads();
  T warps = none, sum = none;
  for (int w = 0; w < gpu_warps(); w++) {
    if (w == gpu_warp_of_block()) warps = sum;
    sum = op(sum, part[w]);
  }
  *total = sum;
  return op(warps, before);
}

/* ---- 16 bytes at once ---- */

template <typename T> struct alignas(16) gpu_vector {
  enum { N = 16 / sizeof(T) };
  T at[N];
};
/* Four neighbours, at most 16 bytes at a time. */
template <typename T> struct alignas(4 * sizeof(T) < 16 ? 4 * sizeof(T) : 16) gpu_quad { T at[4]; };
static inline bool gpu_aligned(const void *p) { return (uintptr_t)p % 16 == 0; }

#endif
