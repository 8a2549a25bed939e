/* memory.c: allocators and accounting.
 *
 * Small objects come from thread-local free lists: a handle costs a few nanoseconds. Tensor bytes on the CPU come from a
 * process-wide cache of power-of-two-and-a-half size classes under one lock. Under AddressSanitizer both go straight to
 * malloc, so that it sees every use after free. */
#include "core/memory.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "backend/backend.h"
#include "core/tensor.h"

#if defined(__SANITIZE_ADDRESS__)
#define TL_POOLS 0
#else
#define TL_POOLS 1
#endif

/* ---- the failing-allocator harness ---- */

static atomic_llong fail_at = 0; /* 0 off; else how many allocations until one fails */
static atomic_llong made = 0;

int64_t tl_fail_allocation(int64_t k) {
  atomic_store(&fail_at, k);
  return atomic_exchange(&made, 0);
}

bool tl_allocation_fails(void) {
  if (__builtin_expect(atomic_load_explicit(&fail_at, memory_order_relaxed) == 0, 1)) return false;
  atomic_fetch_add(&made, 1);
  return atomic_fetch_sub(&fail_at, 1) == 1;
}

void *tl_host_alloc(size_t bytes) { return tl_allocation_fails() ? NULL : malloc(bytes == 0 ? 1 : bytes); }

void *tl_host_calloc(size_t n, size_t bytes) {
  return tl_allocation_fails() ? NULL : calloc(n == 0 ? 1 : n, bytes == 0 ? 1 : bytes);
}

void tl_host_free(void *p) { free(p); }

/* ---- small objects ---- */

#define SMALL_STEP 64
#define SMALL_CLASSES 17 /* 64 .. 1024 bytes, and 0 unused */

typedef struct small {
  struct small *next;
} small;

static TL_HOT_THREAD_LOCAL small *small_lists[SMALL_CLASSES];

static size_t small_class(size_t bytes) { return (bytes + SMALL_STEP - 1) / SMALL_STEP; }

void *tl_small_alloc(size_t bytes) {
  if (tl_allocation_fails()) return NULL;
  size_t c = small_class(bytes);
  if (!TL_POOLS || c >= SMALL_CLASSES) return malloc(bytes);
  small *s = small_lists[c];
  if (s == NULL) return malloc(c * SMALL_STEP);
  small_lists[c] = s->next;
  return s;
}

void tl_small_free(void *p, size_t bytes) {
  size_t c = small_class(bytes);
  if (!TL_POOLS || c >= SMALL_CLASSES) {
    free(p);
    return;
  }
  small *s = p;
  s->next = small_lists[c];
  small_lists[c] = s;
}

/* ---- accounting ---- */

#define DEVICES 18 /* the CPU, 16 accelerators, meta */

static struct {
  atomic_llong live, peak;
  atomic_llong limit; /* 0: the floor */
} accounts[DEVICES];

/* How far live bytes may grow beyond what a collection left. */
static struct {
  double factor;
  long long floor;
} garbage = {1.4, 32ll << 20};

static atomic_llong tensors;
static int collect_flag; /* WANT_COLLECTION, WANT_PAUSE */
enum { WANT_COLLECTION = 1, WANT_PAUSE = 2 };

/* What this thread has not told the others yet. Locked instructions cost more than a small operation: counts are handed
 * over once they matter (FLUSH bytes), when somebody asks, and at the thread's end. */
#define FLUSH (64 << 10)
static TL_HOT_THREAD_LOCAL struct {
  int64_t live; /* of the CPU */
  int64_t tensors;
} mine;

static int account_of(tl_device device) {
  return device == TL_CPU ? 0 : device == TL_META ? DEVICES - 1 : 1 + (device & 255) % (DEVICES - 2);
}

static long long limit_of(int a) {
  long long limit = atomic_load_explicit(&accounts[a].limit, memory_order_relaxed);
  return limit == 0 ? garbage.floor : limit;
}

static void add_live(int a, int64_t bytes) {
  long long live = atomic_fetch_add_explicit(&accounts[a].live, bytes, memory_order_relaxed) + bytes;
  if (bytes <= 0) return;
  long long peak = atomic_load_explicit(&accounts[a].peak, memory_order_relaxed);
  while (live > peak && !atomic_compare_exchange_weak(&accounts[a].peak, &peak, live)) {
  }
  if (live > limit_of(a)) __atomic_fetch_or(&collect_flag, WANT_COLLECTION, __ATOMIC_RELAXED);
}

static void flush(void) {
  if (mine.live != 0) add_live(0, mine.live);
  if (mine.tensors != 0) atomic_fetch_add_explicit(&tensors, mine.tensors, memory_order_relaxed);
  mine.live = mine.tensors = 0;
}

void tl_account(tl_device device, int64_t bytes) {
  if (device != TL_CPU) {
    add_live(account_of(device), bytes);
    return;
  }
  mine.live += bytes;
  if (mine.live > FLUSH || mine.live < -FLUSH) flush();
}

void tl_count_tensor(int delta) { mine.tensors += delta; }

const int *tl_collect_flag(void) { return &collect_flag; }

void tl_collected(void) {
  flush();
  for (int a = 0; a < DEVICES; a++) {
    long long next = (long long)((double)atomic_load(&accounts[a].live) * garbage.factor);
    atomic_store(&accounts[a].limit, next < garbage.floor ? garbage.floor : next);
  }
  __atomic_fetch_and(&collect_flag, ~WANT_COLLECTION, __ATOMIC_RELAXED);
}

void tl_garbage_limits(double *factor, double *floor) {
  const double former_factor = garbage.factor, former_floor = (double)garbage.floor;
  garbage.factor = *factor;
  garbage.floor = (long long)*floor;
  *factor = former_factor;
  *floor = former_floor;
}

void tl_request_pause(void) { __atomic_fetch_or(&collect_flag, WANT_PAUSE, __ATOMIC_RELAXED); }

bool tl_take_pause(void) {
  return (__atomic_fetch_and(&collect_flag, ~WANT_PAUSE, __ATOMIC_RELAXED) & WANT_PAUSE) != 0;
}

tl_status tl_memory(tl_device device, tl_memory_stats *stats) {
  const tl_backend *b;
  TL_TRY(tl_backend_open(device, &b));
  flush();
  int a = account_of(device);
  stats->live = (double)atomic_load(&accounts[a].live);
  stats->peak = (double)atomic_load(&accounts[a].peak);
  stats->cached = b->cached_bytes(device & 255);
  stats->soft_limit = (double)limit_of(a);
  stats->tensors = (double)atomic_load(&tensors);
  return TL_OK;
}

tl_status tl_memory_details_of(tl_device device, tl_memory_details *details) {
  const tl_backend *b;
  TL_TRY(tl_backend_open(device, &b));
  if (b->accelerator == NULL)
    return TL_FAIL(TL_ERR_DEVICE, "memory_summary", "the %s has no allocator of its own", b->name);
  return b->accelerator->memory(device & 255, details);
}

tl_status tl_reset_peak_memory(tl_device device) {
  const tl_backend *b;
  TL_TRY(tl_backend_open(device, &b));
  if (b->accelerator != NULL) b->accelerator->reset_peaks(device & 255);
  flush();
  int a = account_of(device);
  atomic_store(&accounts[a].peak, atomic_load(&accounts[a].live));
  return TL_OK;
}

tl_status tl_empty_cache(tl_device device) {
  const tl_backend *b;
  TL_TRY(tl_backend_open(device, &b));
  b->empty_cache(device & 255);
  return TL_OK;
}

void tl_thread_exit(void) {
  flush();
  tl_error_thread_exit();
  for (int c = 0; c < SMALL_CLASSES; c++)
    while (small_lists[c] != NULL) {
      small *s = small_lists[c];
      small_lists[c] = s->next;
      free(s);
    }
}

/* ---- CPU tensor memory ---- */

#define ALIGNMENT 64
#define HUGE_PAGE (2ull << 20)
#define HUGE_MIN (4ull << 20)
#define CPU_CLASSES 88             /* 64 << (c/2), times 1.5 for odd c: up to 2^49 bytes */
#define CACHE_LIMIT (256ull << 20) /* held for reuse at most */

static struct {
  pthread_mutex_t lock;
  small *free[CPU_CLASSES];
  size_t held;
} cache = {.lock = PTHREAD_MUTEX_INITIALIZER};

static size_t class_bytes(int c) {
  size_t base = (size_t)ALIGNMENT << (c / 2);
  return c % 2 ? base + base / 2 : base;
}

static int cpu_class(size_t bytes) {
  if (bytes <= ALIGNMENT) return 0;
  int log = 63 - __builtin_clzll((unsigned long long)(bytes - 1)); /* 2^log <= bytes-1 */
  int c = (log - 6) * 2;
  if (bytes <= class_bytes(c + 1)) return c + 1;
  return c + 2;
}

static size_t round_up(size_t n) { return (n + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

void tl_cpu_empty_cache(void) {
  pthread_mutex_lock(&cache.lock);
  for (int c = 0; c < CPU_CLASSES; c++)
    while (cache.free[c] != NULL) {
      small *s = cache.free[c];
      cache.free[c] = s->next;
      free(s);
    }
  cache.held = 0;
  pthread_mutex_unlock(&cache.lock);
}

/* Large matrices step through memory by rows: with 4 KB pages every row is a miss of the address cache, with huge pages
 * a product of 2048 x 2048 matrices is a tenth faster. Sizes from HUGE_MIN on are multiples of HUGE_PAGE. */
static void *fresh_block(size_t size) {
#ifdef MADV_HUGEPAGE
  if (TL_POOLS && size >= HUGE_MIN) {
    void *p = aligned_alloc(HUGE_PAGE, size);
    if (p != NULL) madvise(p, size, MADV_HUGEPAGE); /* only a hint: a refusal does not matter */
    return p;
  }
#endif
  return aligned_alloc(ALIGNMENT, size);
}

void *tl_cpu_alloc(size_t bytes) {
  if (tl_allocation_fails()) return NULL;
  int c = cpu_class(bytes);
  if (c >= CPU_CLASSES) return NULL;
  size_t size = TL_POOLS ? class_bytes(c) : round_up(bytes);
  small *s = NULL;
  if (TL_POOLS) {
    pthread_mutex_lock(&cache.lock);
    s = cache.free[c];
    if (s != NULL) {
      cache.free[c] = s->next;
      cache.held -= size;
    }
    pthread_mutex_unlock(&cache.lock);
  }
  if (s != NULL) return s;
  void *p = fresh_block(size);
  if (p == NULL) {
    tl_cpu_empty_cache();
    p = fresh_block(size);
  }
  return p;
}

void tl_cpu_free(void *p, size_t bytes) {
  int c = cpu_class(bytes);
  size_t size = class_bytes(c);
  if (TL_POOLS) {
    pthread_mutex_lock(&cache.lock);
    if (cache.held + size <= CACHE_LIMIT) {
      small *s = p;
      s->next = cache.free[c];
      cache.free[c] = s;
      cache.held += size;
      p = NULL;
    }
    pthread_mutex_unlock(&cache.lock);
  }
  free(p);
}

double tl_cpu_cached_bytes(void) { return (double)cache.held; }
