/* block.c: the blocks that the plug-in's caching allocator cuts from what cudaMalloc gave, in stream order, so that the
 * life of a tensor is watched as if each had an allocation of its own. */
#include <string.h>

#include "runtime.h"

typedef struct change {
  void *base;
  size_t room, bytes;
} change;

static void run_change(void *data, int device) {
  (void)device;
  const change *c = data;
  if (c->bytes == 0) memset(c->base, 0xff, c->room);
  if (sim_block_changed != NULL) sim_block_changed(c->base, c->room, c->bytes);
}

void sim_block(void *base, size_t room, size_t bytes, cudaStream_t handle) {
  if (bytes > 0 && sim_block_changed == NULL) return; /* the garbage is there already */
  sim_lock();
  struct CUstream_st *stream;
  if (sim_stream_of(handle, &stream) == cudaSuccess) {
    change c = {base, room, bytes};
    sim_work w = {.name = "the allocator", .device = stream->device, .run = run_change, .data = &c, .bytes = sizeof c};
    sim_append(stream, &w, NULL);
  }
  sim_unlock();
}

const char *sim_work_name(void) { return sim_running() == NULL ? "the host" : sim_running()->work.name; }
