/* ids.h: what kernels that follow stored ids share: rows by id (index.cu), ids in order (sort.cu). */
#ifndef TL_KERNELS_CUDA_IDS_H
#define TL_KERNELS_CUDA_IDS_H

#include "launch.h"

/* y (outer, m, bytes) = rows ids (m) of x (outer, n, bytes). A bad id gives zeros, and a report of kind `fault` unless
 * that is TL_CUDA_FAULT_NONE. */
tl_status tl_cuda_select_rows(const char *op, const void *x, int64_t outer, int64_t n, size_t bytes, int64_t m,
                              const int64_t *ids, void *y, int fault);

/* A key and a place in one number: the order of the numbers is the keys' order, equal keys in the places' order. */
typedef uint64_t gpu_pair;
#define GPU_NO_KEY UINT32_MAX /* pairs that are to be left out: they sort last */
static __device__ inline gpu_pair gpu_pair_of(uint32_t key, uint32_t place) { return (uint64_t)key << 32 | place; }
static __device__ inline uint32_t gpu_key(gpu_pair p) { return (uint32_t)(p >> 32); }
static __device__ inline uint32_t gpu_place(gpu_pair p) { return (uint32_t)p; }

/* add(load(place)) for pairs[first] and those behind it that have its key, in order, four loads at a time. */
template <typename T, typename L, typename A>
static __device__ inline void gpu_each_of_key(const gpu_pair *pairs, int64_t first, int64_t n, L load, A add) {
  const uint32_t key = gpu_key(pairs[first]);
  for (int64_t e = first;; e += 4) {
    bool in[4];
    T v[4];
#pragma unroll
    for (int k = 0; k < 4; k++) {
      const gpu_pair p = e + k < n ? pairs[e + k] : gpu_pair_of(GPU_NO_KEY, 0);
      in[k] = gpu_key(p) == key;
      v[k] = in[k] ? load(gpu_place(p)) : T();
    }
#pragma unroll
    for (int k = 0; k < 4; k++)
      if (in[k]) add(v[k]);
    if (!in[3]) return;
  }
}
/* Does a run of equal keys begin at pairs[i]? */
static __device__ inline bool gpu_key_begins(const gpu_pair *pairs, int64_t i) {
  const uint32_t key = gpu_key(pairs[i]);
  return key != GPU_NO_KEY && (i == 0 || gpu_key(pairs[i - 1]) != key);
}

/* Keys and places that pairs can hold. */
static inline bool tl_cuda_fits_pairs(int64_t keys, int64_t places) { return keys < UINT32_MAX && places < UINT32_MAX; }

/* n pairs and as much room to sort them. */
typedef struct tl_cuda_pairs {
  gpu_pair *at, *spare;
  int64_t n;
} tl_cuda_pairs;
tl_status tl_cuda_pairs_begin(const char *op, int64_t n, tl_cuda_pairs *p);
void tl_cuda_pairs_end(tl_cuda_pairs *p);
/* p->at holds them in order afterwards. */
tl_status tl_cuda_pairs_sort(const char *op, tl_cuda_pairs *p);
/* begin, pairs (ids[i], i), sort. Ids outside 0..limit-1 and `skip` get GPU_NO_KEY. */
tl_status tl_cuda_pairs_of_ids(const char *op, const int64_t *ids, int64_t n, int64_t limit, int64_t skip,
                               tl_cuda_pairs *p);

#endif
