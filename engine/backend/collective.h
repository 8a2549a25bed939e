/* collective.h: an exchange between ranks, as those who carry it out see it: MPI for host memory, NCCL for a device's. */
#ifndef TL_BACKEND_COLLECTIVE_H
#define TL_BACKEND_COLLECTIVE_H

#include "tlua.h"

enum tl_collective_kind {
  TL_COLLECTIVE_ALL_REDUCE,
  TL_COLLECTIVE_BROADCAST,
  TL_COLLECTIVE_ALL_GATHER,
  TL_COLLECTIVE_REDUCE_SCATTER,
  TL_COLLECTIVE_BARRIER
};

/* Contiguous memory. count: elements of `send` (gather: of one rank's part; scatter: of the result). An all_reduce
 * and a broadcast work in place: recv is all there is. Mean has become sum. */
typedef struct tl_collective {
  int kind, op, dtype, root;
  int64_t count;
  const void *send;
  void *recv;
} tl_collective;

#endif
