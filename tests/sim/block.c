/* block.c: the blocks that the plug-in's caching allocator cuts from what cudaMalloc gave, in stream order, so that each
 * is poisoned, guarded and watched as if it had an allocation of its own. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime.h"

typedef struct block {
  char *base;
  size_t room, bytes; /* what may be touched; guard bytes follow up to the room */
  sim_history *history;
} block;

static block *list; /* those in use, by address */
static int count, most;

static int find(const char *p) {
  int low = 0, high = count;
  while (low < high) {
    int middle = (low + high) / 2;
    if (list[middle].base + list[middle].room <= p) low = middle + 1;
    else high = middle;
  }
  return low;
}

int sim_block_of(const void *p, const void **base, size_t *bytes, sim_history ***history) {
  int i = find(p);
  if (i == count || (const char *)p < list[i].base) return 0;
  if (base != NULL) *base = list[i].base;
  if (bytes != NULL) *bytes = list[i].bytes;
  if (history != NULL) *history = &list[i].history;
  return 1;
}

void sim_drop_blocks(const char *from, size_t bytes) {
  int first = find(from), last = first;
  while (last < count && list[last].base < from + bytes) sim_history_free(list[last++].history);
  if (last > first) memmove(list + first, list + last, sizeof *list * (size_t)(count - last));
  count -= last - first;
}

int sim_report_blocks(void) {
  for (int i = 0; i < count; i++)
    fprintf(stderr, "tlua-sim: leak: a block of %zu bytes of device %d at %p\n", list[i].bytes,
            sim_device_of(list[i].base), (void *)list[i].base);
  return count;
}

static void insert(block new) {
  if (count == most) {
    most = most == 0 ? 256 : 2 * most;
    list = sim_checked(realloc(list, sizeof *list * (size_t)most));
  }
  int at = find(new.base);
  memmove(list + at + 1, list + at, sizeof *list * (size_t)(count - at));
  list[at] = new;
  count++;
}

static void run_change(void *data, int device) {
  block b = *(block *)data;
  int i = find(b.base); /* a replayed graph may meet a block here that was cut in another way */
  if (i < count && list[i].base == b.base) sim_check_guard(b.base, list[i].bytes, list[i].room, device);
  sim_drop_blocks(b.base, b.room);
  if (b.bytes > 0) insert(b);
  sim_poison_new(b.base, b.bytes > 0 ? b.bytes : b.room, b.room);
  if (sim_block_changed != NULL) sim_block_changed(b.base, b.room, b.bytes);
}

void sim_block(void *base, size_t room, size_t bytes, cudaStream_t handle) {
  sim_lock();
  struct CUstream_st *s;
  if (sim_stream_of(handle, &s) == cudaSuccess && sim_capture_works(s) && sim_manage(base)) {
    block b = {.base = base, .room = room, .bytes = bytes};
    sim_append(s,
               &(sim_work){.name = "the allocator",
                           .device = s->device,
                           .run = run_change,
                           .data = &b,
                           .bytes = sizeof b,
                           .ranges = 1,
                           .range = &(sim_range){base, room, 1},
                           .lifetime = bytes > 0 ? SIM_BEGINS : SIM_ENDS},
               NULL);
  }
  sim_unlock();
}

const char *sim_work_name(void) { return sim_running() == NULL ? "the host" : sim_running()->work.name; }
