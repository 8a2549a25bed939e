/* walk.h: from the number of an element to where the operands have it. Divisions by the sizes are multiplications
 * (Granlund & Montgomery 1994), numbers are 32-bit: gpu_split cuts larger problems. */
#ifndef TL_KERNELS_CUDA_WALK_H
#define TL_KERNELS_CUDA_WALK_H

#include "launch.h"

#define GPU_MAX_INDEX 0x7fffffffll /* elements of one launch */

/* n / size for n < 2^31 */
struct gpu_divider {
  uint32_t size, multiplier, shift;
};

static inline gpu_divider gpu_divider_of(int64_t size) {
  gpu_divider d = {(uint32_t)size, 1, 0};
  while ((int64_t)1 << d.shift < size) d.shift++;
  d.multiplier = (uint32_t)((((uint64_t)1 << 32) * (((uint64_t)1 << d.shift) - (uint64_t)size)) / (uint64_t)size + 1);
  return d;
}

static __device__ inline uint32_t gpu_divide(const gpu_divider &d, uint32_t n) {
  return ((uint32_t)((uint64_t)n * d.multiplier >> 32) + n) >> d.shift;
}

/* Dims first .. first+ndim-1 of an iterator for N operands, strides in bytes. */
template <int N> struct gpu_walk {
  int ndim;
  gpu_divider size[TL_MAX_DIMS];
  int64_t stride[N][TL_MAX_DIMS];
};

template <int N> static inline gpu_walk<N> gpu_walk_of(const tl_iter *it, int first, int ndim) {
  gpu_walk<N> w = {};
  w.ndim = ndim;
  for (int d = 0; d < ndim; d++) {
    w.size[d] = gpu_divider_of(it->shape[first + d]);
    for (int o = 0; o < N && o < it->n; o++) w.stride[o][d] = it->op[o].stride[first + d];
  }
  return w;
}

/* at[o] = bytes from operand o's first element to its element i, for the first USED operands */
template <int USED, int N> static __device__ inline void gpu_offsets(const gpu_walk<N> &w, uint32_t i, int64_t *at) {
#pragma unroll
  for (int o = 0; o < USED; o++) at[o] = 0;
#pragma unroll 1
  for (int d = w.ndim - 1; d > 0; d--) {
    uint32_t rest = gpu_divide(w.size[d], i), index = i - rest * w.size[d].size;
#pragma unroll
    for (int o = 0; o < USED; o++) at[o] += (int64_t)index * w.stride[o][d];
    i = rest;
  }
#pragma unroll
  for (int o = 0; o < USED; o++) at[o] += (int64_t)i * w.stride[o][0];
}

/* Calls run(&part) for the halves of the halves of an iterator until each has at most `most` elements. Only the first
 * `dims` dims are cut. run gets where the part begins in the row-major order. */
template <typename F>
static inline tl_status gpu_split(const tl_iter *it, int dims, int64_t most, int64_t begin, const F &run) {
  if (it->numel <= most) return run(it, begin);
  int cut = 0; /* an outer dim: the parts follow each other */
  while (cut < dims && it->shape[cut] == 1) cut++;
  if (cut >= dims) return TL_FAIL(TL_ERR_UNSUPPORTED, "cuda", "more than 2^31 elements of one result");
  tl_iter part = *it;
  int64_t inner = it->numel / it->shape[cut], half = it->shape[cut] / 2;
  part.shape[cut] = half;
  part.numel = half * inner;
  TL_TRY(gpu_split(&part, dims, most, begin, run));
  for (int o = 0; o < it->n; o++)
    if (part.op[o].data != NULL) part.op[o].data += half * it->op[o].stride[cut];
  part.shape[cut] = it->shape[cut] - half;
  part.numel = part.shape[cut] * inner;
  return gpu_split(&part, dims, most, begin + half * inner, run);
}

#endif
