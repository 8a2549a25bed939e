/* group.h: the process group, for the files of this folder. */
#ifndef TL_DIST_GROUP_H
#define TL_DIST_GROUP_H

#include "dist/transport.h"

/* What a rank is about to do: equal on all ranks, or it is an error. */
typedef struct tl_signature {
  int64_t sequence, count;
  int32_t kind, op, dtype, root;
} tl_signature;

typedef struct tl_group {
  const tl_transport *transport; /* NULL: one rank */
  int rank, size, local_rank;
  double timeout; /* seconds */
} tl_group;

extern tl_group tl_the_group;

const char *tl_collective_name(int kind);

/* The communication thread (queue.c). Start-up and end: it opens and closes the transport. */
tl_status tl_queue_start(void);
void tl_queue_stop(void);
/* Queues a collective on memory of `device`. `storages` are kept until it is over. */
tl_status tl_queue_add(tl_device device, const tl_collective *c, int storages, tl_storage *const *storage,
                       tl_work **out);
/* Starts what the ranks agreed on meanwhile on their devices. Never waits. */
tl_status tl_queue_progress(void);
/* A work that is done already. */
tl_status tl_queue_done(tl_work **out);
/* What remains when a work is done: the waiting thread's part. *flat times `scale`, then copied to `target` unless both
 * are one or target is NULL. The work takes references. */
void tl_work_finish(tl_work *w, tl_tensor *flat, double scale, tl_tensor *target);

#endif
