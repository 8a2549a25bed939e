/* channels.h: how blocks share the channels of (outer, channels, inner), for batch norm (norm.cu) and the parameters of
 * layer and group norm (row_norm.cu).
 *
 * A block has 1 << across neighbouring channels (several where inner is 1, so that threads read neighbours) and one of
 * `splits` parts of each one's outer * inner elements. The shape alone decides, so sums run in one order everywhere. */
#ifndef TL_KERNELS_CUDA_CHANNELS_H
#define TL_KERNELS_CUDA_CHANNELS_H

#include "warp.h"

typedef struct tl_cuda_channels {
  int64_t outer, channels, inner;
  int64_t part;   /* elements of a part */
  int64_t groups; /* of 1 << across channels */
  int64_t splits;
  int across;
} tl_cuda_channels;

static inline tl_cuda_channels tl_cuda_channels_of(int64_t outer, int64_t channels, int64_t inner) {
  /* blocks that fill any device; elements that a thread should have before parts are cut; parts that are added fast */
  enum { BLOCKS = 1024, LEAST = 16, MOST = 256 };
  if (inner == 0) outer = 0, inner = 1; /* no elements: positions are still divided by inner */
  tl_cuda_channels c = {outer, channels, inner, 0, 0, 1, 0};
  while (inner == 1 && c.across < 5 && (int64_t)1 << c.across < channels) c.across++;
  c.groups = (channels + ((int64_t)1 << c.across) - 1) >> c.across;
  const int64_t elements = outer * inner, most = elements / ((int64_t)(GPU_BLOCK >> c.across) * LEAST);
  c.splits = BLOCKS / (c.groups > 0 ? c.groups : 1);
  if (c.splits > most) c.splits = most;
  if (c.splits > MOST) c.splits = MOST;
  if (c.splits < 1) c.splits = 1;
  c.part = (elements + c.splits - 1) / c.splits;
  if (elements > 0) c.splits = (elements + c.part - 1) / c.part; /* no part is empty */
  return c;
}

static inline int64_t tl_cuda_channel_blocks(const tl_cuda_channels *c) { return c->groups * c->splits; }

/* Adding parts up: `lanes` threads, a power of 2 that a warp has room for, share a channel; threads come in whole
 * warps. */
typedef struct tl_cuda_part_sums {
  int lanes;
  int64_t threads;
} tl_cuda_part_sums;
static inline tl_cuda_part_sums tl_cuda_part_sums_of(const tl_cuda_channels *c) {
  tl_cuda_part_sums p = {1, 0};
  while (p.lanes < GPU_WARP && p.lanes < c->splits) p.lanes *= 2;
  p.threads = (c->channels * p.lanes + GPU_WARP - 1) / GPU_WARP * GPU_WARP;
  return p;
}
/* The sum of term(i) over the parts i; all threads of the warp call. */
template <typename F> static __device__ inline double gpu_part_sum(int64_t splits, int lane, int lanes, F term) {
  double sum = 0;
  for (int64_t i = lane; i < splits; i += lanes) sum += term(i);
  for (int d = lanes / 2; d > 0; d /= 2) sum += gpu_shuffle_xor(sum, d);
  return sum;
}

/* parts (splits, 2, channels), compute type: sums of g and of g (x - mean[k]) rstd[k], where k is o * step + channel /
 * per for element (o, channel, i). mean NULL: 0. rstd NULL: 1. */
tl_status tl_cuda_channel_sums(const char *op, const tl_cuda_channels *c, int dtype, const void *g, const void *x,
                               const void *mean, const void *rstd, int64_t step, int64_t per, void *parts);

#endif
