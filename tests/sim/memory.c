/* memory.c: each simulated GPU's memory, an arena at a fixed address, and pinned host memory.
 *
 * TLUA_SIM_MEMORY=bytes a GPU has (4 GB). Memory is filled with NaNs when it is allocated and when it is freed; behind
 * every allocation lie guard bytes, which are looked at when it is freed. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "runtime.h"

enum { HUGE_PAGE = 2 << 20, ALIGNMENT = 512, GUARD = 512, POISON_NEW = 0xff, GUARD_BYTE = 0xa5 };
static const uint16_t POISON_FREED = 0xffdb; /* a NaN in every floating type, too */

typedef struct allocation {
  char *base;
  size_t bytes;
  bool freeing; /* cudaFreeAsync was called */
  bool managed; /* block.c */
  sim_history *history;
} allocation;

typedef struct arena {
  char *base;
  allocation *list; /* by address */
  int count, room;
  size_t used;
  size_t extent; /* how much of it was ever allocated, in large pages */
  char *next;    /* where the last allocation ended: freed memory is used again as late as can be */
} arena;

static arena arenas[SIM_MAX_DEVICES];
static allocation *pinned;
static int pinned_count, pinned_room;

size_t sim_device_memory(void) {
  static size_t bytes;
  if (bytes == 0) bytes = (size_t)sim_setting("TLUA_SIM_MEMORY", 4ll << 30) / 4096 * 4096;
  return bytes;
}

char *sim_arena(int device, size_t *extent) {
  *extent = arenas[device].extent;
  return arenas[device].base;
}

static size_t rounded(size_t bytes) { return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

static bool open_arena(arena *a) {
  if (a->base != NULL) return true;
  void *wanted = (char *)0x200000000000 + ((size_t)(a - arenas) << 36);
  void *p = mmap(wanted, sim_device_memory(), PROT_NONE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
  if (p == MAP_FAILED)
    p = mmap(NULL, sim_device_memory(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) return false;
  madvise(p, sim_device_memory(), MADV_HUGEPAGE); /* closing and opening costs a page table's length */
  a->base = a->next = p;
  return true;
}

/* Index of the first allocation that ends behind p. */
static int find(const allocation *list, int count, const char *p) {
  int low = 0, high = count;
  while (low < high) {
    int middle = (low + high) / 2;
    if (list[middle].base + list[middle].bytes <= p) low = middle + 1;
    else high = middle;
  }
  return low;
}

static bool insert(allocation **list, int *count, int *room, int at, allocation new) {
  if (*count == *room) {
    int more = *room == 0 ? 64 : 2 * *room;
    allocation *grown = realloc(*list, sizeof **list * (size_t)more);
    if (grown == NULL) return false;
    *list = grown;
    *room = more;
  }
  memmove(*list + at + 1, *list + at, sizeof **list * (size_t)(*count - at));
  (*list)[at] = new;
  (*count)++;
  return true;
}

static void removed(allocation *list, int *count, int at) {
  (*count)--;
  memmove(list + at, list + at + 1, sizeof *list * (size_t)(*count - at));
}

static char *end_of(const allocation *a) { return a->base + rounded(a->bytes) + GUARD; }

/* The first gap of `room` bytes at or behind `from`; its place in the list through `at`. */
static char *gap(const arena *a, char *from, size_t room, int *at) {
  int i = 0;
  while (i < a->count && end_of(&a->list[i]) <= from) i++;
  char *p = i > 0 || from == a->base ? from : a->base;
  for (; i < a->count; i++) {
    if (p + room <= a->list[i].base) break;
    if (end_of(&a->list[i]) > p) p = end_of(&a->list[i]);
  }
  *at = i;
  return p + room <= a->base + sim_device_memory() ? p : NULL;
}

static cudaError_t allocate(void **out, size_t bytes, const char *function) {
  *out = NULL;
  if (bytes == 0) return cudaSuccess;
  arena *a = &arenas[sim_current_device()];
  if (!open_arena(a)) return sim_error(cudaErrorMemoryAllocation, "%s: the host has no room for an arena", function);
  int at;
  size_t room = rounded(bytes) + GUARD;
  char *p = bytes > sim_device_memory() ? NULL : gap(a, a->next, room, &at);
  if (p == NULL && bytes <= sim_device_memory()) p = gap(a, a->base, room, &at);
  if (p == NULL)
    return sim_error(cudaErrorMemoryAllocation, "%s: %zu bytes, %zu of %zu are in use", function, bytes, a->used,
                     sim_device_memory());
  if (!insert(&a->list, &a->count, &a->room, at, (allocation){.base = p, .bytes = bytes}))
    return cudaErrorMemoryAllocation;
  a->used += room;
  a->next = p + room;
  size_t extent = ((size_t)(p + room - a->base) + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
  if (extent > a->extent) {
    sim_close((int)(a - arenas));
    a->extent = extent < sim_device_memory() ? extent : sim_device_memory();
  }
  sim_open_also(1u << (a - arenas));
  sim_poison_new(p, bytes, room);
  if (sim_memory_allocated != NULL) sim_memory_allocated(p, bytes);
  *out = p;
  return cudaSuccess;
}

static allocation *live(const void *p, arena **where, int *at) {
  int device = sim_device_of(p);
  if (device < 0) return NULL;
  arena *a = &arenas[device];
  int i = find(a->list, a->count, p);
  if (i == a->count || (const char *)p < a->list[i].base) return NULL;
  if (where != NULL) *where = a;
  if (at != NULL) *at = i;
  return &a->list[i];
}

void sim_poison_new(char *p, size_t bytes, size_t room) {
  memset(p, POISON_NEW, bytes);
  memset(p + bytes, GUARD_BYTE, room - bytes);
}

void sim_poison_freed(char *p, size_t room) {
  for (size_t i = 0; i + 1 < room; i += 2) memcpy(p + i, &POISON_FREED, 2);
}

void sim_check_guard(const char *p, size_t bytes, size_t room, int device) {
  for (size_t i = bytes; i < room; i++)
    if ((unsigned char)p[i] != GUARD_BYTE) {
      sim_fault("out-of-bounds", "somebody wrote %zu bytes behind the end of the %zu bytes at %p of device %d",
                i - bytes, bytes, (const void *)p, device);
      return;
    }
}

static void check_guard(const allocation *m) {
  sim_check_guard(m->base, m->bytes, rounded(m->bytes) + GUARD, sim_device_of(m->base));
}

static void release(arena *a, int at) {
  allocation m = a->list[at];
  sim_open_also(1u << (a - arenas));
  check_guard(&m);
  if (m.managed) sim_drop_blocks(m.base, m.bytes);
  sim_poison_freed(m.base, rounded(m.bytes));
  if (sim_memory_freed != NULL) sim_memory_freed(m.base, m.bytes);
  sim_history_free(m.history);
  a->used -= rounded(m.bytes) + GUARD;
  removed(a->list, &a->count, at);
}

int sim_manage(const void *p) {
  allocation *m = live(p, NULL, NULL);
  if (m != NULL) m->managed = true;
  return m != NULL;
}

int sim_device_of(const void *p) {
  for (int i = 0; i < SIM_MAX_DEVICES; i++)
    if (arenas[i].base != NULL && (const char *)p >= arenas[i].base &&
        (const char *)p < arenas[i].base + sim_device_memory())
      return i;
  return -1;
}

int sim_allocation_of(const void *p, const void **base, size_t *bytes) {
  const allocation *m = live(p, NULL, NULL);
  if (m == NULL) return 0;
  if (base != NULL) *base = m->base;
  if (bytes != NULL) *bytes = m->bytes;
  return 1;
}

int sim_pinned_of(const void *p, const void **base, size_t *bytes) {
  int i = find(pinned, pinned_count, p);
  if (i == pinned_count || (const char *)p < pinned[i].base) return 0;
  if (base != NULL) *base = pinned[i].base;
  if (bytes != NULL) *bytes = pinned[i].bytes;
  return 1;
}

/* The last frees in streams, to tell why somebody finds no memory. */
static struct late_free {
  const char *base;
  size_t bytes;
  sim_moment when;
} late_frees[64];
static unsigned late_free_count;

static bool freed_in_another_stream(const char *p) {
  for (int i = 0; sim_running() != NULL && i < 64; i++) {
    const struct late_free *f = &late_frees[i];
    if (f->base != NULL && p >= f->base && p < f->base + f->bytes) return !sim_comes_after(f->when);
  }
  return false;
}

/* The allocation or, for what runs now, the block around an address. */
static bool memory_around(const char *p, const void **base, size_t *bytes) {
  const allocation *m = live(p, NULL, NULL);
  const sim_item *item = sim_running();
  if (m == NULL) return false;
  if (m->managed && item != NULL && item->work.lifetime == SIM_USES) return sim_block_of(p, base, bytes, NULL) != 0;
  *base = m->base;
  *bytes = m->bytes;
  return true;
}

cudaError_t sim_check_ranges(const char *name, int ranges, const sim_range *range) {
  for (int i = 0; i < ranges; i++) {
    const char *p = range[i].base;
    const void *base;
    size_t bytes;
    if (range[i].bytes == 0) continue;
    if (sim_device_of(p) < 0) {
      if (sim_pinned_of(p, &base, &bytes) && p + range[i].bytes <= (const char *)base + bytes) continue;
      sim_fault("not-device", "%s: %zu bytes at %p are neither device memory nor pinned", name, range[i].bytes,
                (const void *)p);
    } else if (!memory_around(p, &base, &bytes)) {
      if (freed_in_another_stream(p))
        sim_fault("stream-race",
                  "%s uses what cudaFreeAsync of another stream frees: nothing orders the two "
                  "(cudaStreamWaitEvent)",
                  name);
      else
        sim_fault("use-after-free", "%s: nothing is allocated at %p of device %d", name, (const void *)p,
                  sim_device_of(p));
    } else if (p + range[i].bytes > (const char *)base + bytes) {
      sim_fault("out-of-bounds", "%s: %zu bytes at %p reach over the end of the %zu bytes at %p of device %d", name,
                range[i].bytes, (const void *)p, bytes, base, sim_device_of(p));
    } else {
      continue;
    }
    return cudaErrorIllegalAddress;
  }
  return cudaSuccess;
}

void sim_touch_ranges(const sim_item *item) {
  for (int i = 0; i < item->work.ranges; i++) {
    const sim_range *r = &item->work.range[i];
    if (r->bytes == 0) continue;
    allocation *m = live(r->base, NULL, NULL);
    bool shadowed = m != NULL && sim_memory_touched != NULL && item->work.lifetime != SIM_BEGINS;
    if (m == NULL) m = &pinned[find(pinned, pinned_count, r->base)];
    sim_history **history = &m->history;
    const void *base = m->base;
    bool known = !m->managed || sim_block_of(r->base, &base, NULL, &history);
    size_t from = (size_t)((const char *)r->base - (const char *)base);
    if (known) sim_touch(history, item, from, from + r->bytes, r->writes != 0);
    if (shadowed) sim_memory_touched(r->base, r->bytes, item->work.lifetime == SIM_ENDS ? 2 : r->writes);
  }
}

/* What an allocator of blocks holds is its cache; the blocks in use count. */
int sim_report_memory(void) {
  int found = sim_report_blocks();
  for (int d = 0; d < SIM_MAX_DEVICES; d++)
    for (int i = 0; i < arenas[d].count; i++) {
      const allocation *m = &arenas[d].list[i];
      if (m->freeing) continue;
      sim_open_also(1u << d);
      check_guard(m);
      if (m->managed) continue;
      fprintf(stderr, "tlua-sim: leak: %zu bytes of device %d at %p\n", m->bytes, d, (void *)m->base);
      found++;
    }
  for (int i = 0; i < pinned_count; i++, found++)
    fprintf(stderr, "tlua-sim: leak: %zu pinned bytes at %p\n", pinned[i].bytes, (void *)pinned[i].base);
  return found;
}

/* ---- device memory ---- */

static cudaError_t allocate_now(void **p, size_t bytes) {
  cudaError_t e = sim_refuse_unsafe("cudaMalloc");
  return e == cudaSuccess ? allocate(p, bytes, "cudaMalloc") : e;
}

cudaError_t CUDARTAPI cudaMalloc(void **p, size_t bytes) { SIM_API(cudaErrorMemoryAllocation, allocate_now(p, bytes)); }

static cudaError_t free_now(void *p) {
  cudaError_t e = p == NULL ? cudaSuccess : sim_refuse_unsafe("cudaFree");
  if (e != cudaSuccess || p == NULL) return e;
  arena *a;
  int at;
  allocation *m = live(p, &a, &at);
  if (m == NULL || m->base != p || m->freeing) {
    sim_fault("bad-free", "cudaFree: %p is no allocation", p);
    return cudaErrorInvalidValue;
  }
  sim_wait_device((int)(a - arenas)); /* as cudaFree does */
  release(a, find(a->list, a->count, p));
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaFree(void *p) { SIM_API(cudaSuccess, free_now(p)); }

static void run_nothing(void *data, int device) { (void)data, (void)device; }

static cudaError_t allocate_async(void **p, size_t bytes, cudaStream_t handle) {
  struct CUstream_st *s;
  cudaError_t e = sim_stream_of(handle, &s);
  if (e != cudaSuccess) return e;
  if (s->device != sim_current_device())
    return sim_error(cudaErrorInvalidResourceHandle, "cudaMallocAsync: a stream of device %d, device %d is current",
                     s->device, sim_current_device());
  if (s->capture != NULL) return sim_error(cudaErrorNotSupported, "memory nodes of graphs are not modelled");
  e = allocate(p, bytes, "cudaMallocAsync");
  if (e == cudaErrorMemoryAllocation) {
    sim_wait_device(s->device); /* frees that were not reached yet */
    e = allocate(p, bytes, "cudaMallocAsync");
  }
  if (e != cudaSuccess || *p == NULL) return e;
  /* other streams must come after this place in the stream, as if the memory were written here */
  return sim_append(s,
                    &(sim_work){.name = "cudaMallocAsync",
                                .device = s->device,
                                .run = run_nothing,
                                .ranges = 1,
                                .range = &(sim_range){*p, bytes, 1},
                                .lifetime = SIM_BEGINS},
                    NULL);
}

cudaError_t CUDARTAPI cudaMallocAsync(void **p, size_t bytes, cudaStream_t stream) {
  SIM_API(cudaErrorMemoryAllocation, allocate_async(p, bytes, stream));
}

static void run_free(void *data, int device) {
  arena *a = &arenas[device];
  int at = find(a->list, a->count, *(char **)data);
  late_frees[late_free_count++ % 64] = (struct late_free){a->list[at].base, a->list[at].bytes, sim_now()};
  release(a, at);
}

static cudaError_t free_async(void *p, cudaStream_t handle) {
  struct CUstream_st *s;
  cudaError_t e = sim_stream_of(handle, &s);
  if (e != cudaSuccess || p == NULL) return e;
  arena *a;
  allocation *m = live(p, &a, NULL);
  if (m == NULL || m->base != p || m->freeing) {
    sim_fault("bad-free", "cudaFreeAsync: %p is no allocation", p);
    return cudaErrorInvalidValue;
  }
  if (a != &arenas[s->device])
    return sim_error(cudaErrorInvalidValue, "cudaFreeAsync: memory of device %d on a stream of device %d",
                     (int)(a - arenas), s->device);
  if (s->capture != NULL) return sim_error(cudaErrorNotSupported, "memory nodes of graphs are not modelled");
  m->freeing = true;
  sim_work w = {.name = "cudaFreeAsync",
                .device = s->device,
                .run = run_free,
                .data = &p,
                .bytes = sizeof p,
                .ranges = 1,
                .range = &(sim_range){p, m->bytes, 1}};
  return sim_append(s, &w, NULL);
}

cudaError_t CUDARTAPI cudaFreeAsync(void *p, cudaStream_t stream) { SIM_API(cudaSuccess, free_async(p, stream)); }

static cudaError_t memory_info(size_t *unused, size_t *total) {
  *total = sim_device_memory();
  *unused = *total - arenas[sim_current_device()].used;
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaMemGetInfo(size_t *unused, size_t *total) {
  SIM_API(cudaErrorUnknown, memory_info(unused, total));
}

/* ---- pinned memory ---- */

static cudaError_t allocate_pinned(void **out, size_t bytes, unsigned flags) {
  *out = NULL;
  cudaError_t e = sim_refuse_unsafe("cudaHostAlloc");
  if (e != cudaSuccess || bytes == 0) return e;
  if ((flags & ~(unsigned)(cudaHostAllocPortable | cudaHostAllocWriteCombined)) != 0)
    return sim_error(cudaErrorNotSupported, "cudaHostAlloc: flags %u are not modelled", flags);
  void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return cudaErrorMemoryAllocation;
  memset(p, POISON_NEW, bytes);
  if (!insert(&pinned, &pinned_count, &pinned_room, find(pinned, pinned_count, p),
              (allocation){.base = p, .bytes = bytes})) {
    munmap(p, bytes);
    return cudaErrorMemoryAllocation;
  }
  *out = p;
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaMallocHost(void **p, size_t bytes) {
  SIM_API(cudaErrorMemoryAllocation, allocate_pinned(p, bytes, 0));
}

cudaError_t CUDARTAPI cudaHostAlloc(void **p, size_t bytes, unsigned flags) {
  SIM_API(cudaErrorMemoryAllocation, allocate_pinned(p, bytes, flags));
}

static cudaError_t free_pinned(void *p) {
  cudaError_t e = p == NULL ? cudaSuccess : sim_refuse_unsafe("cudaFreeHost");
  if (e != cudaSuccess || p == NULL) return e;
  int at = find(pinned, pinned_count, p);
  if (at == pinned_count || pinned[at].base != p) {
    sim_fault("bad-free", "cudaFreeHost: %p is no pinned allocation", p);
    return cudaErrorInvalidValue;
  }
  for (int i = 0; i < sim_devices(); i++) sim_wait_device(i);
  at = find(pinned, pinned_count, p); /* host functions ran meanwhile, and other threads */
  munmap(p, pinned[at].bytes);
  sim_history_free(pinned[at].history);
  removed(pinned, &pinned_count, at);
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaFreeHost(void *p) { SIM_API(cudaSuccess, free_pinned(p)); }

static cudaError_t pointer_attributes(struct cudaPointerAttributes *attributes, const void *p) {
  memset(attributes, 0, sizeof *attributes);
  attributes->device = sim_device_of(p);
  if (attributes->device >= 0) {
    if (!sim_allocation_of(p, NULL, NULL)) return sim_error(cudaErrorInvalidValue, "%p is not allocated", p);
    attributes->type = cudaMemoryTypeDevice;
    attributes->devicePointer = (void *)p;
  } else if (sim_pinned_of(p, NULL, NULL)) {
    attributes->type = cudaMemoryTypeHost;
    attributes->device = sim_current_device();
    attributes->hostPointer = (void *)p;
  } else {
    attributes->type = cudaMemoryTypeUnregistered;
    attributes->device = -2; /* cudaInvalidDeviceId */
  }
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *p) {
  SIM_API(cudaErrorUnknown, pointer_attributes(attributes, p));
}
