/* list.h: one launch over a list of tensors. The list lies in the kernel's parameters (at most 4 KB); a long one takes
 * several launches. Every entry has blocks of GPU_PIECE elements. */
#ifndef TL_KERNELS_CUDA_LIST_H
#define TL_KERNELS_CUDA_LIST_H

#include "element.h"
#include "warp.h"

enum { GPU_PIECE = 8192 };

template <typename E, int N> struct gpu_list {
  int count;
  int64_t slot;      /* blocks of the launches before */
  uint32_t block[N]; /* an entry's first block */
  int64_t n[N];
  E entry[N];
};

/* The entry that block b works on; the same for all threads. */
template <typename E, int N> static __device__ inline int gpu_find(const gpu_list<E, N> &list, uint32_t b) {
  int low = 0, high = list.count - 1;
#pragma unroll 1
  while (low < high) {
    int middle = (low + high + 1) / 2;
    if (list.block[middle] <= b) low = middle;
    else high = middle - 1;
  }
  return low;
}

static inline int64_t gpu_pieces(int64_t n) { return (n + GPU_PIECE - 1) / GPU_PIECE; }

/* fill(i, &entry) for the i of 0..n-1 that have elements (size(i)), run(list, blocks) for each launch. */
template <typename E, int N, typename S, typename F, typename R>
static inline tl_status gpu_each_list(int n, const S &size, const F &fill, const R &run) {
  static_assert(sizeof(gpu_list<E, N>) <= 3800, "kernel parameters");
  gpu_list<E, N> list = {};
  int64_t blocks = 0;
  for (int i = 0; i < n; i++) {
    if (size(i) == 0) continue;
    if (list.count == N || (list.count > 0 && blocks + gpu_pieces(size(i)) > INT32_MAX)) {
      TL_TRY(run(list, (unsigned)blocks));
      list.slot += blocks;
      list.count = 0;
      blocks = 0;
    }
    list.block[list.count] = (uint32_t)blocks;
    list.n[list.count] = size(i);
    fill(i, &list.entry[list.count]);
    list.count++;
    blocks += gpu_pieces(size(i));
  }
  return list.count > 0 ? run(list, (unsigned)blocks) : (tl_status)TL_OK;
}

#endif
