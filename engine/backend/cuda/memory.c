/* memory.c: the caching allocator: device memory in segments, cut into blocks that are reused in stream order.
 *
 * After the design of PyTorch's: requests are rounded to 512 bytes; those up to 1 MB are cut from segments of 2 MB, those
 * below 10 MB from segments of 20 MB, larger ones get a segment of their own size (in steps of 2 MB). Each stream has its
 * own blocks: one that is freed goes to later work on its stream without waiting. A block that another stream used, too,
 * rests until events recorded there are done. Free neighbours merge. Free blocks are found in lists by size class
 * (eight for each power of two), so that a training loop that repeats itself never calls cudaMalloc again.
 *
 * A lock for each device guards all of it, and is never held over a call that waits for the device. */
#include "backend/cuda/memory.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/map.h"
#include "backend/cuda/stream.h"

#define UNIT 512
#define SMALL_MAX (1u << 20)
#define SMALL_SEGMENT (2u << 20)
#define LARGE_MIN (10u << 20)
#define LARGE_SEGMENT (20u << 20)
#define SEGMENT_STEP (2u << 20)
#define BINS 320
#define WORDS (BINS / 64)

typedef struct block {
  char *base;
  size_t bytes;
  struct arena *arena;
  struct block *before, *after; /* neighbours in the segment */
  struct block *next, *last;    /* in a free list; next: in the lists of waiting, kept and unused blocks, too */
  bool free;
  uint64_t born;      /* the device's count of allocations then */
  int users, pending; /* other streams that use it; events not done yet */
  cudaStream_t *user; /* [users] */
} block;

/* One stream's blocks of one kind of segment. */
typedef struct arena {
  struct arena *next;
  cudaStream_t stream;
  bool small;
  tl_cuda_pool *pool; /* NULL: not a graph's */
  block *bin[BINS];
  uint64_t filled[WORDS];
} arena;

typedef struct waiting {
  struct waiting *next;
  cudaEvent_t event;
  cudaStream_t stream;
  block *block;
} waiting;

typedef struct device {
  pthread_mutex_t lock;
  arena *arenas;
  tl_map used;    /* address -> block */
  block *spare;   /* block records to use again */
  waiting *queue; /* freed blocks whose events are not done, oldest first */
  waiting **end;
  block *kept;     /* freed, but a graph's replays touch them */
  int graphs;      /* pools that are alive */
  uint64_t count;  /* allocations so far */
  uint64_t frozen; /* blocks up to this one are kept while graphs > 0 */
  tl_cuda_pool *recording;
  size_t allocated, reserved, allocated_peak, reserved_peak;
  int64_t segments, mallocs, retries;
} device;

struct tl_cuda_pool {
  int index;
  cudaStream_t stream;
  block *kept; /* freed while it was recorded: whose they are is settled at the end */
};

/* The simulator (tests/sim) watches blocks, not only segments: in stream order, one holds garbage from now on, of which
 * `bytes` may be touched. On a GPU this is not there. */
extern void sim_block(void *base, size_t room, size_t bytes, cudaStream_t stream) __attribute__((weak));

static void watch(const block *b, size_t bytes) {
  if (sim_block != NULL) sim_block(b->base, b->bytes, bytes, b->arena->stream);
}

static device devices[TL_CUDA_DEVICES] = {[0 ... TL_CUDA_DEVICES - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER}};

/* ---- free lists ---- */

/* Units of 512 bytes: 0..15 have a class each, then eight classes for each power of two. */
static int bin_of(size_t bytes) {
  size_t units = bytes / UNIT;
  if (units < 16) return (int)units;
  int log = 63 - __builtin_clzll((unsigned long long)units);
  int bin = 16 + (log - 4) * 8 + (int)(units >> (log - 3) & 7);
  return bin < BINS ? bin : BINS - 1;
}

static void insert_free(block *b) {
  arena *a = b->arena;
  int bin = bin_of(b->bytes);
  b->free = true;
  b->last = NULL;
  b->next = a->bin[bin];
  if (b->next != NULL) b->next->last = b;
  a->bin[bin] = b;
  a->filled[bin / 64] |= 1ull << bin % 64;
}

static void remove_free(block *b) {
  arena *a = b->arena;
  int bin = bin_of(b->bytes);
  if (b->last != NULL) b->last->next = b->next;
  else a->bin[bin] = b->next;
  if (b->next != NULL) b->next->last = b->last;
  if (a->bin[bin] == NULL) a->filled[bin / 64] &= ~(1ull << bin % 64);
  b->free = false;
}

/* The smallest block of a list that is large enough. */
static block *best_of(block *list, size_t bytes) {
  block *best = NULL;
  for (block *b = list; b != NULL; b = b->next) {
    if (b->bytes == bytes) return b;
    if (b->bytes > bytes && (best == NULL || b->bytes < best->bytes)) best = b;
  }
  return best;
}

static block *find_free(const arena *a, size_t bytes) {
  int bin = bin_of(bytes);
  block *b = best_of(a->bin[bin], bytes);
  while (b == NULL && ++bin < BINS) {
    uint64_t left = a->filled[bin / 64] >> bin % 64;
    if (left == 0) bin = bin / 64 * 64 + 63; /* none in the rest of this word */
    else b = best_of(a->bin[bin += __builtin_ctzll(left)], bytes);
  }
  return b;
}

/* ---- blocks ---- */

static block *new_block(device *d) {
  block *b = d->spare;
  if (b == NULL) return calloc(1, sizeof *b);
  d->spare = b->next;
  memset(b, 0, sizeof *b);
  return b;
}

static void drop_block(device *d, block *b) {
  free(b->user);
  b->next = d->spare;
  d->spare = b;
}

static arena *arena_of(device *d, cudaStream_t stream, bool small, tl_cuda_pool *pool) {
  for (arena *a = d->arenas; a != NULL; a = a->next)
    if (a->stream == stream && a->small == small && a->pool == pool) return a;
  arena *a = calloc(1, sizeof *a);
  if (a == NULL) return NULL;
  *a = (arena){.next = d->arenas, .stream = stream, .small = small, .pool = pool};
  return d->arenas = a;
}

/* Takes `bytes` from a free block, which loses its tail if that is worth keeping. False: no host memory. */
static bool take(device *d, block *b, size_t bytes) {
  size_t rest = b->bytes - bytes;
  if (!tl_map_reserve(&d->used)) return false;
  block *tail = NULL;
  if (b->arena->small ? rest >= UNIT : rest > SMALL_MAX) {
    tail = new_block(d);
    if (tail == NULL) return false;
  }
  remove_free(b);
  if (tail != NULL) {
    *tail = (block){.base = b->base + bytes, .bytes = rest, .arena = b->arena, .before = b, .after = b->after};
    if (b->after != NULL) b->after->before = tail;
    b->after = tail;
    b->bytes = bytes;
    insert_free(tail);
  }
  b->born = ++d->count;
  tl_map_insert(&d->used, b->base, b);
  d->allocated += b->bytes;
  if (d->allocated > d->allocated_peak) d->allocated_peak = d->allocated;
  return true;
}

static void absorb(device *d, block *b, block *next) {
  b->bytes += next->bytes;
  b->after = next->after;
  if (b->after != NULL) b->after->before = b;
  drop_block(d, next);
}

/* A block that nobody uses any more joins its free neighbours. */
static void give(device *d, block *b) {
  watch(b, 0);
  d->allocated -= b->bytes;
  if (b->after != NULL && b->after->free) {
    block *next = b->after;
    remove_free(next);
    absorb(d, b, next);
  }
  if (b->before != NULL && b->before->free) {
    block *before = b->before;
    remove_free(before);
    absorb(d, before, b);
    b = before;
  }
  insert_free(b);
}

/* ---- blocks that other streams used ---- */

/* Events on the streams that used it. Where one cannot be made, that stream is waited for. */
static void queue_events(device *d, block *b) {
  int index = (int)(d - devices);
  for (int i = 0; i < b->users; i++) {
    waiting *w = malloc(sizeof *w);
    cudaEvent_t event = w == NULL ? NULL : tl_cuda_take_event(index);
    if (event == NULL || cudaEventRecord(event, b->user[i]) != cudaSuccess) {
      free(w);
      cudaStreamSynchronize(b->user[i]);
      continue;
    }
    *w = (waiting){.event = event, .stream = b->user[i], .block = b};
    if (d->queue == NULL) d->end = &d->queue;
    *d->end = w;
    d->end = &w->next;
    b->pending++;
  }
  free(b->user);
  b->user = NULL;
  b->users = 0;
  if (b->pending == 0) give(d, b);
}

/* Blocks whose events are done are free. A stream whose oldest event is not done has no later one that is. */
static void reap(device *d) {
  cudaStream_t busy = NULL;
  waiting **at = &d->queue;
  while (*at != NULL) {
    waiting *w = *at;
    if (w->stream == busy || !tl_cuda_event_done(w->event)) {
      busy = w->stream;
      at = &w->next;
      continue;
    }
    *at = w->next;
    tl_cuda_give_event((int)(d - devices), w->event);
    if (--w->block->pending == 0) give(d, w->block);
    free(w);
  }
  d->end = at;
}

/* ---- segments ---- */

static size_t segment_bytes(size_t bytes) {
  if (bytes <= SMALL_MAX) return SMALL_SEGMENT;
  if (bytes < LARGE_MIN) return LARGE_SEGMENT;
  return (bytes + SEGMENT_STEP - 1) / SEGMENT_STEP * SEGMENT_STEP;
}

/* Segments without a block in use leave the arenas, as a list; graphs keep theirs. */
static block *take_free_segments(device *d) {
  block *list = NULL;
  for (arena *a = d->arenas; a != NULL; a = a->next) {
    if (a->pool != NULL) continue;
    for (int bin = 0; bin < BINS; bin++)
      for (block *b = a->bin[bin], *next; b != NULL; b = next) {
        next = b->next;
        if (b->before != NULL || b->after != NULL) continue;
        remove_free(b);
        d->reserved -= b->bytes;
        d->segments--;
        b->next = list;
        list = b;
      }
  }
  return list;
}

/* cudaFree waits for all work of the device: not under the lock. */
static void free_segments(device *d, block *list) {
  for (block *b = list; b != NULL; b = b->next) cudaFree(b->base);
  pthread_mutex_lock(&d->lock);
  for (block *b = list, *next; b != NULL; b = next) {
    next = b->next;
    drop_block(d, b);
  }
  pthread_mutex_unlock(&d->lock);
}

void tl_cuda_empty_cache(int index) {
  device *d = &devices[index];
  if (d->recording != NULL) return; /* the runtime allows neither waiting nor freeing while a graph is recorded */
  tl_cuda_use(index);
  cudaDeviceSynchronize();
  pthread_mutex_lock(&d->lock);
  reap(d);
  block *list = take_free_segments(d);
  pthread_mutex_unlock(&d->lock);
  if (list != NULL) free_segments(d, list);
}

static void *fresh_segment(size_t bytes) {
  void *p = NULL;
  enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed; /* no stream order is meant for this call */
  cudaThreadExchangeStreamCaptureMode(&mode);
  if (cudaMalloc(&p, bytes) != cudaSuccess) {
    cudaGetLastError(); /* or the next launch would report it */
    p = NULL;
  }
  cudaThreadExchangeStreamCaptureMode(&mode);
  return p;
}

/* A new segment as a free block of the arena, for a request that found no block. Called with the lock, which is open
 * meanwhile. */
static block *grow(int index, device *d, arena *a, size_t bytes) {
  size_t size = segment_bytes(bytes);
  pthread_mutex_unlock(&d->lock);
  void *p = fresh_segment(size);
  bool retried = p == NULL;
  if (retried) {
    tl_cuda_empty_cache(index);
    p = fresh_segment(size);
  }
  pthread_mutex_lock(&d->lock);
  d->retries += retried;
  if (p == NULL) return NULL;
  block *b = new_block(d);
  if (b == NULL) {
    cudaFree(p);
    return NULL;
  }
  *b = (block){.base = p, .bytes = size, .arena = a};
  watch(b, 0);
  insert_free(b);
  d->mallocs++;
  d->segments++;
  d->reserved += size;
  if (d->reserved > d->reserved_peak) d->reserved_peak = d->reserved;
  return b;
}

/* ---- allocate and free ---- */

void *tl_cuda_alloc(int index, size_t bytes) {
  if (tl_cuda_host->allocation_fails() || bytes > SIZE_MAX / 2) return NULL;
  tl_cuda_use(index);
  cudaStream_t stream = tl_cuda_here()->stream;
  device *d = &devices[index];
  size_t size = bytes == 0 ? UNIT : (bytes + UNIT - 1) / UNIT * UNIT;
  pthread_mutex_lock(&d->lock);
  tl_cuda_pool *pool = d->recording != NULL && d->recording->stream == stream ? d->recording : NULL;
  if (d->queue != NULL && d->recording == NULL) reap(d);
  arena *a = arena_of(d, stream, size <= SMALL_MAX, pool);
  block *b = a == NULL ? NULL : find_free(a, size);
  if (b == NULL && a != NULL) b = grow(index, d, a, size);
  void *p = b != NULL && take(d, b, size) ? b->base : NULL;
  if (p != NULL) watch(b, bytes);
  pthread_mutex_unlock(&d->lock);
  return p;
}

/* Where a freed block goes: aside if replays may touch it, to the queue if other streams do, else to the free ones. */
static void settle(device *d, block *b) {
  if (d->graphs > 0 && b->born <= d->frozen && b->arena->pool == NULL) {
    b->next = d->kept;
    d->kept = b;
  } else if (b->users > 0) {
    queue_events(d, b);
  } else {
    give(d, b);
  }
}

void tl_cuda_free(int index, void *p) {
  device *d = &devices[index];
  pthread_mutex_lock(&d->lock);
  block *b = tl_map_remove(&d->used, p);
  if (b != NULL && d->recording != NULL && (b->arena->pool != d->recording || b->users > 0)) {
    b->next = d->recording->kept; /* recorded work may use it; and events cannot be asked now */
    d->recording->kept = b;
  } else if (b != NULL) {
    settle(d, b);
  }
  pthread_mutex_unlock(&d->lock);
}

void tl_cuda_record_stream(int index, void *p, void *stream) {
  device *d = &devices[index];
  pthread_mutex_lock(&d->lock);
  block *b = tl_map_find(&d->used, p);
  bool known = b == NULL || b->arena->stream == stream;
  for (int i = 0; !known && i < b->users; i++) known = b->user[i] == stream;
  if (!known) {
    cudaStream_t *user = realloc(b->user, (size_t)(b->users + 1) * sizeof(cudaStream_t));
    if (user != NULL) {
      b->user = user;
      b->user[b->users++] = stream;
    }
  }
  pthread_mutex_unlock(&d->lock);
}

/* ---- graphs ---- */

tl_cuda_pool *tl_cuda_pool_begin(int index) {
  tl_cuda_pool *pool = calloc(1, sizeof *pool);
  if (pool == NULL) return NULL;
  *pool = (tl_cuda_pool){.index = index, .stream = tl_cuda_here()->stream};
  device *d = &devices[index];
  pthread_mutex_lock(&d->lock);
  bool alone = d->recording == NULL;
  if (alone) {
    d->recording = pool;
    d->graphs++;
  }
  pthread_mutex_unlock(&d->lock);
  if (alone) return pool;
  free(pool);
  return NULL;
}

void tl_cuda_pool_end(tl_cuda_pool *pool) {
  device *d = &devices[pool->index];
  pthread_mutex_lock(&d->lock);
  d->recording = NULL;
  d->frozen = d->count;
  for (block *b = pool->kept, *next; b != NULL; b = next) {
    next = b->next;
    settle(d, b);
  }
  pool->kept = NULL;
  pthread_mutex_unlock(&d->lock);
}

/* All blocks of an arena become another one's. */
static void move_blocks(device *d, arena *from, arena *to) {
  for (int bin = 0; bin < BINS; bin++)
    while (from->bin[bin] != NULL) {
      block *b = from->bin[bin];
      remove_free(b);
      b->arena = to;
      insert_free(b);
    }
  for (size_t i = 0; i < d->used.room; i++) {
    block *b = d->used.at[i].key == NULL ? NULL : d->used.at[i].value;
    if (b != NULL && b->arena == from) b->arena = to;
  }
  for (waiting *w = d->queue; w != NULL; w = w->next)
    if (w->block->arena == from) w->block->arena = to;
}

/* Blocks of the pool, in use or not, join the stream's ordinary ones. */
static void dissolve(device *d, tl_cuda_pool *pool) {
  for (arena **at = &d->arenas, *a; (a = *at) != NULL;) {
    if (a->pool != pool) {
      at = &a->next;
      continue;
    }
    *at = a->next;
    arena *to = arena_of(d, a->stream, a->small, NULL);
    if (to != NULL) {
      move_blocks(d, a, to);
      free(a);
    } else { /* no memory for another record: this one serves */
      a->pool = NULL;
      a->next = d->arenas;
      d->arenas = a;
    }
    at = &d->arenas;
  }
}

void tl_cuda_pool_free(tl_cuda_pool *pool) {
  device *d = &devices[pool->index];
  pthread_mutex_lock(&d->lock);
  if (--d->graphs == 0) {
    block *kept = d->kept;
    d->kept = NULL;
    for (block *b = kept, *next; b != NULL; b = next) {
      next = b->next;
      settle(d, b);
    }
  }
  dissolve(d, pool);
  pthread_mutex_unlock(&d->lock);
  free(pool);
}

/* ---- statistics ---- */

double tl_cuda_cached_bytes(int index) {
  device *d = &devices[index];
  pthread_mutex_lock(&d->lock);
  double bytes = (double)(d->reserved - d->allocated);
  pthread_mutex_unlock(&d->lock);
  return bytes;
}

static void add_free_blocks(const device *d, tl_memory_details *out) {
  for (const arena *a = d->arenas; a != NULL; a = a->next)
    for (int bin = 0; bin < BINS; bin++)
      for (const block *b = a->bin[bin]; b != NULL; b = b->next) {
        out->free_blocks++;
        if ((double)b->bytes > out->largest_free) out->largest_free = (double)b->bytes;
      }
}

tl_status tl_cuda_memory_details(int index, tl_memory_details *out) {
  device *d = &devices[index];
  size_t there = 0, total = 0;
  tl_cuda_use(index);
  TL_CUDA_TRY("memory", cudaMemGetInfo(&there, &total));
  pthread_mutex_lock(&d->lock);
  *out = (tl_memory_details){
      .allocated = (double)d->allocated,
      .allocated_peak = (double)d->allocated_peak,
      .reserved = (double)d->reserved,
      .reserved_peak = (double)d->reserved_peak,
      .segments = (double)d->segments,
      .blocks = (double)d->used.count,
      .device_allocations = (double)d->mallocs,
      .retries = (double)d->retries,
      .device_free = (double)there,
      .device_total = (double)total,
  };
  add_free_blocks(d, out);
  pthread_mutex_unlock(&d->lock);
  out->pinned = tl_cuda_pinned_bytes();
  return TL_OK;
}

void tl_cuda_reset_peaks(int index) {
  device *d = &devices[index];
  pthread_mutex_lock(&d->lock);
  d->allocated_peak = d->allocated;
  d->reserved_peak = d->reserved;
  pthread_mutex_unlock(&d->lock);
}
