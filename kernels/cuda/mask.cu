// mask.cu: the places of set flags, in row-major order: count the flags of each block's part, add the counts up, write.
#include "launch.h"
#include "warp.h"

enum {
  FLAGS = 8, /* that a thread looks at */
  PART = FLAGS * GPU_BLOCK
};

static __device__ int64_t flag_count(const uint8_t *flags, int64_t n, int64_t first) {
  int64_t count = 0;
  for (int k = 0; k < FLAGS; k++) count += first + k < n && flags[first + k] != 0;
  return count;
}

/* Thread t of a block has its flags t * FLAGS .. + FLAGS-1, so that threads stand in the order of their flags. */
static __device__ int64_t first_flag() { return (int64_t)blockIdx.x * PART + (int64_t)threadIdx.x * FLAGS; }

static __global__ void count_kernel(const uint8_t *flags, int64_t n, int64_t *counts) {
  const int64_t count = gpu_block_sum(flag_count(flags, n, first_flag()));
  if (threadIdx.x == 0) counts[blockIdx.x] = count;
}

/* Each count becomes the sum of those before it. One block. */
static __global__ void offsets_kernel(int64_t *counts, int64_t parts) {
  int64_t before = 0;
  for (int64_t first = 0; first < parts; first += GPU_BLOCK) {
    const int64_t i = first + threadIdx.x, count = i < parts ? counts[i] : 0;
    int64_t total;
    const int64_t sum = gpu_block_scan(count, gpu_sum(), &total);
    if (i < parts) counts[i] = before + sum - count;
    before += total;
  }
}

struct dims {
  int ndim;
  int64_t shape[TL_MAX_DIMS];
};

static __device__ void write_place(const dims &d, int64_t place, int64_t *out) {
#pragma unroll 1
  for (int i = d.ndim - 1; i >= 0; i--) {
    const int64_t line = (int64_t)((uint64_t)place / (uint64_t)d.shape[i]);
    out[i] = place - line * d.shape[i];
    place = line;
  }
}

static __global__ void places_kernel(const uint8_t *flags, int64_t n, const dims d, const int64_t *offsets,
                                     int64_t *out) {
  const int64_t first = first_flag(), count = flag_count(flags, n, first);
  int64_t total, to = offsets[blockIdx.x] - count + gpu_block_scan(count, gpu_sum(), &total);
#pragma unroll 1
  for (int k = 0; k < FLAGS && count > 0; k++) {
    if (first + k >= n || flags[first + k] == 0) continue;
    write_place(d, first + k, out + to * d.ndim);
    to++;
  }
}

TL_CUDA_ENTRY(nonzero)(const uint8_t *flags, int ndim, const int64_t *shape, int64_t *out) {
  const char *op = "nonzero";
  dims d = {ndim, {}};
  int64_t n = 1;
  for (int i = 0; i < ndim; i++) n *= d.shape[i] = shape[i];
  if (n == 0 || ndim == 0) return TL_OK;
  const int64_t parts = (n + PART - 1) / PART;
  const size_t bytes = (size_t)parts * sizeof(int64_t);
  int64_t *offsets = (int64_t *)tl_cuda_scratch(op, bytes);
  if (offsets == NULL) return TL_ERR_MEMORY;
  tl_status st = gpu_launch(op, count_kernel, (unsigned)parts, GPU_BLOCK, 0, flags, n, offsets);
  if (st == TL_OK) st = gpu_launch(op, offsets_kernel, 1, GPU_BLOCK, 0, offsets, parts);
  if (st == TL_OK) st = gpu_launch(op, places_kernel, (unsigned)parts, GPU_BLOCK, 0, flags, n, d, offsets, out);
  tl_cuda_scratch_free(offsets, bytes);
  return st;
}
