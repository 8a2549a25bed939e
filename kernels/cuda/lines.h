/* lines.h: lines along the middle dim of a contiguous (outer, n, inner) array, for softmax and classification losses, and
 * the sums of exponentials over one.
 *
 * Line p = o * inner + i has its element c at o * n * inner + c * inner + i. Who works on a line depends on the shape: a
 * block for long rows, a warp for shorter ones, one thread where lines lie side by side (neighbouring threads then read
 * neighbouring elements) or are very short. */
#ifndef TL_KERNELS_CUDA_LINES_H
#define TL_KERNELS_CUDA_LINES_H

#include "element.h"
#include "formula.h"
#include "warp.h"

enum { LINES_SHORT = 16, LINES_LONG = 2048 }; /* rows up to SHORT get a thread, from LONG on a block */

/* ---- who works on a line: member `first` of `step`, combining values with all() ---- */

struct gpu_by_thread {
  static __device__ int first() { return 0; }
  static __device__ int step() { return 1; }
  static __device__ int64_t line() { return (int64_t)blockIdx.x * blockDim.x + threadIdx.x; }
  static __device__ int64_t lines() { return (int64_t)gridDim.x * blockDim.x; }
  template <typename T, typename F> static __device__ T all(T v, F, T) { return v; }
};
struct gpu_by_warp {
  static __device__ int first() { return gpu_lane(); }
  static __device__ int step() { return GPU_WARP; }
  static __device__ int64_t line() { return (int64_t)blockIdx.x * gpu_warps() + gpu_warp_of_block(); }
  static __device__ int64_t lines() { return (int64_t)gridDim.x * gpu_warps(); }
  template <typename T, typename F> static __device__ T all(T v, F op, T) { return gpu_warp_reduce(v, op); }
};
struct gpu_by_block {
  static __device__ int first() { return (int)threadIdx.x; }
  static __device__ int step() { return (int)blockDim.x; }
  static __device__ int64_t line() { return blockIdx.x; }
  static __device__ int64_t lines() { return gridDim.x; }
  template <typename T, typename F> static __device__ T all(T v, F op, T none) { return gpu_block_reduce(v, op, none); }
};

/* Lines that a block of GPU_BLOCK threads works on at once. */
static inline int64_t gpu_lines_of_block(int64_t n, int64_t inner) {
  if (inner > 1 || n <= LINES_SHORT) return GPU_BLOCK;
  return n < LINES_LONG ? GPU_BLOCK / GPU_WARP : 1;
}
/* Runs a statement with BY as who works on a line. */
#define GPU_DISPATCH_LINES(n, inner, BY, ...) \
  if ((inner) > 1 || (n) <= LINES_SHORT) {    \
    typedef gpu_by_thread BY;                 \
    __VA_ARGS__                               \
  } else if ((n) < LINES_LONG) {              \
    typedef gpu_by_warp BY;                   \
    __VA_ARGS__                               \
  } else {                                    \
    typedef gpu_by_block BY;                  \
    __VA_ARGS__                               \
  }

/* ---- a maximum and the sum of exp(x - maximum), in one pass (Milakov & Gimelshein 2018) ---- */

/* Of nothing, and of elements that are all -inf: (-inf, 0). nan does not count for the maximum but shows in the sum. */
template <typename C> struct gpu_exp_sum { C shift, sum; };

template <typename C> static __device__ inline gpu_exp_sum<C> gpu_shuffle_xor(gpu_exp_sum<C> v, int mask) {
  return {gpu_shuffle_xor(v.shift, mask), gpu_shuffle_xor(v.sum, mask)};
}

struct gpu_add_exp_sums {
  template <typename C> __device__ gpu_exp_sum<C> operator()(gpu_exp_sum<C> a, gpu_exp_sum<C> b) const {
    const C m = a.shift > b.shift ? a.shift : b.shift;
    if (m == -(C)INFINITY) return {m, a.sum + b.sum};
    return {m, a.sum * f_exp(a.shift - m) + b.sum * f_exp(b.shift - m)};
  }
};

template <typename C> static __device__ inline void gpu_add_exp(gpu_exp_sum<C> &v, C x) {
  if (x > v.shift) {
    v.sum = v.sum * f_exp(v.shift - x) + f_exp(x - x); /* nan for inf */
    v.shift = x;
  } else if (x != v.shift || x != -(C)INFINITY) {
    v.sum += f_exp(x - v.shift);
  }
}

/* Of the line at x, for all who work on it. A line of -inf gets shift 0 and sum 0. Rows are read 16 bytes at a time where
 * `vectors` says that they all start at such a boundary. */
template <typename BY, typename T>
static __device__ inline gpu_exp_sum<gpu_compute_t<T>> gpu_line_exp_sum(const T *x, int64_t n, int64_t inner,
                                                                        bool vectors) {
  typedef gpu_compute_t<T> C;
  gpu_exp_sum<C> v = {-(C)INFINITY, 0};
  if (vectors) {
    const gpu_vector<T> *xs = (const gpu_vector<T> *)x;
    for (int64_t k = BY::first(); k < n / gpu_vector<T>::N; k += BY::step()) {
      const gpu_vector<T> e = xs[k];
#pragma unroll
      for (int j = 0; j < gpu_vector<T>::N; j++) gpu_add_exp(v, gpu_load<C>(e.at[j]));
    }
  } else {
    for (int64_t c = BY::first(); c < n; c += BY::step()) gpu_add_exp(v, gpu_load<C>(x[c * inner]));
  }
  v = BY::all(v, gpu_add_exp_sums(), gpu_exp_sum<C>{-(C)INFINITY, 0});
  if (v.shift == -(C)INFINITY) v.shift = 0;
  return v;
}

#endif
