/* pinned.c: host memory that devices copy from and to by themselves. Allocating it costs milliseconds and stops every
 * stream: blocks are kept for ever, in classes of powers of two from a page on; small ones are cut from slabs. A freed
 * block rests until the copies that use it are done. */
#include <pthread.h>
#include <stdlib.h>

#include "backend/cuda/map.h"
#include "backend/cuda/memory.h"
#include "backend/cuda/stream.h"

#define PAGE_LOG 12
#define CLASSES 36 /* 4 KB << 35: more than any host has */
#define SLAB (1u << 20)
#define USES 4

typedef struct pinned {
  struct pinned *next; /* in the list of its class, or of those that rest */
  void *base;
  int class, uses;
  struct {
    int index;
    cudaStream_t stream;
    cudaEvent_t event;
  } use[USES];
} pinned;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pinned *ready[CLASSES];
static pinned *resting, **resting_end = &resting; /* oldest first */
static size_t resting_bytes, held;
static tl_map used;

static size_t class_bytes(int class) { return (size_t)1 << (PAGE_LOG + class); }

static int class_of(size_t bytes) {
  int class = 0;
  while (class < CLASSES && class_bytes(class) < bytes) class ++;
  return class;
}

static void forget_use(pinned *p, int i) {
  tl_cuda_give_event(p->use[i].index, p->use[i].event);
  p->use[i] = p->use[--p->uses];
}

/* Blocks whose copies are done are ready again; the oldest one is waited for if that is wanted. */
static void reap(bool wait) {
  while (resting != NULL) {
    pinned *p = resting;
    while (p->uses > 0) {
      if (wait) cudaEventSynchronize(p->use[0].event);
      else if (!tl_cuda_event_done(p->use[0].event)) return;
      forget_use(p, 0);
    }
    wait = false;
    resting = p->next;
    if (resting == NULL) resting_end = &resting;
    resting_bytes -= class_bytes(p->class);
    p->next = ready[p->class];
    ready[p->class] = p;
  }
}

/* Fresh memory as blocks of the class in its list. Called without the lock. */
static bool grow(int class) {
  size_t bytes = class_bytes(class) < SLAB / 4 ? SLAB : class_bytes(class);
  char *base = NULL;
  enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed; /* no stream order is meant for this call */
  cudaThreadExchangeStreamCaptureMode(&mode);
  cudaError_t e = cudaHostAlloc((void **)&base, bytes, cudaHostAllocPortable);
  cudaThreadExchangeStreamCaptureMode(&mode);
  if (e != cudaSuccess) {
    cudaGetLastError();
    return false;
  }
  pthread_mutex_lock(&lock);
  held += bytes;
  bool any = false;
  for (size_t at = 0; at < bytes; at += class_bytes(class)) {
    pinned *p = calloc(1, sizeof *p);
    if (p == NULL) break; /* the rest of the slab is never used */
    *p = (pinned){.next = ready[class], .base = base + at, .class = class};
    ready[class] = p;
    any = true;
  }
  pthread_mutex_unlock(&lock);
  return any;
}

static void *take(int class) {
  pthread_mutex_lock(&lock);
  if (ready[class] == NULL && !tl_cuda_recording()) reap(false);
  pinned *p = ready[class];
  if (p != NULL && tl_map_reserve(&used)) {
    ready[class] = p->next;
    tl_map_insert(&used, p->base, p);
  } else {
    p = NULL;
  }
  pthread_mutex_unlock(&lock);
  return p == NULL ? NULL : p->base;
}

void *tl_cuda_pinned_alloc(size_t bytes) {
  int class = class_of(bytes);
  if (tl_cuda_host->allocation_fails() || class >= CLASSES) return NULL;
  void *p = take(class);
  return p != NULL || !grow(class) ? p : take(class);
}

void tl_cuda_pinned_free(void *base) {
  pthread_mutex_lock(&lock);
  pinned *p = tl_map_remove(&used, base);
  if (p != NULL && p->uses == 0) {
    p->next = ready[p->class];
    ready[p->class] = p;
  } else if (p != NULL) {
    p->next = NULL;
    *resting_end = p;
    resting_end = &p->next;
    resting_bytes += class_bytes(p->class);
  }
  pthread_mutex_unlock(&lock);
}

/* One event a stream: the newest copy on it is done last. */
void tl_cuda_pinned_used(void *base, int index, cudaStream_t stream) {
  pthread_mutex_lock(&lock);
  pinned *p = tl_map_find(&used, base);
  int i = 0;
  while (p != NULL && i < p->uses && p->use[i].stream != stream) i++;
  if (p != NULL && i == USES) {
    cudaEventSynchronize(p->use[0].event);
    forget_use(p, 0);
    i--;
  }
  if (p != NULL && i == p->uses) {
    p->use[i].index = index;
    p->use[i].stream = stream;
    p->use[i].event = tl_cuda_take_event(index);
    if (p->use[i].event != NULL) p->uses++;
  }
  bool recorded = p != NULL && i < p->uses && cudaEventRecord(p->use[i].event, stream) == cudaSuccess;
  pthread_mutex_unlock(&lock);
  if (!recorded) cudaStreamSynchronize(stream); /* without an event: it is done now */
}

void tl_cuda_pinned_drain(size_t bytes) {
  pthread_mutex_lock(&lock);
  while (resting != NULL && resting_bytes >= bytes) reap(true);
  pthread_mutex_unlock(&lock);
}

double tl_cuda_pinned_bytes(void) {
  pthread_mutex_lock(&lock);
  double bytes = (double)held;
  pthread_mutex_unlock(&lock);
  return bytes;
}
