/* channels.h: how blocks share the channels of (outer, channels, inner), for batch norm (norm.cu) and the parameters of
 * layer and group norm (row_norm.cu).
 *
 * A block has 1 << across neighbouring channels (several where inner is 1, so that threads read neighbours) and one of
 * `splits` parts of each one's outer * inner elements. The shape alone decides, so sums run in one order everywhere. */
#ifndef TL_KERNELS_CUDA_CHANNELS_H
#define TL_KERNELS_CUDA_CHANNELS_H

#include "launch.h"

typedef struct tl_cuda_channels {
  int64_t outer, channels, inner;
  int64_t part;   /* elements of a part */
  int64_t groups; /* of 1 << across channels */
  int64_t splits;
  int across;
} tl_cuda_channels;

static inline tl_cuda_channels tl_cuda_channels_of(int64_t outer, int64_t channels, int64_t inner) {
  enum { BLOCKS = 1024, LEAST = 16 }; /* blocks that fill any device; elements a thread should have before parts are cut */
  tl_cuda_channels c = {outer, channels, inner, 0, 0, 1, 0};
  while (inner == 1 && c.across < 5 && (int64_t)1 << c.across < channels) c.across++;
  c.groups = (channels + ((int64_t)1 << c.across) - 1) >> c.across;
  const int64_t elements = outer * inner, most = elements / ((int64_t)(GPU_BLOCK >> c.across) * LEAST);
  c.splits = BLOCKS / (c.groups > 0 ? c.groups : 1);
  if (c.splits > most) c.splits = most;
  if (c.splits < 1) c.splits = 1;
  c.part = (elements + c.splits - 1) / c.splits;
  return c;
}

static inline int64_t tl_cuda_channel_blocks(const tl_cuda_channels *c) { return c->groups * c->splits; }

/* parts (splits, 2, channels), compute type: sums of g and of g (x - mean[k]) rstd[k], where k is o * step + channel / per
 * for element (o, channel, i). mean NULL: 0. rstd NULL: 1. */
tl_status tl_cuda_channel_sums(const char *op, const tl_cuda_channels *c, int dtype, const void *g, const void *x,
                               const void *mean, const void *rstd, int64_t step, int64_t per, void *parts);

#endif
