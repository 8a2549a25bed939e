/* work.c: the items that streams, events and graphs are made of, and the order they run in.
 *
 * An item runs only when somebody waits for it or for something after it. TLUA_SIM_SEED=0 (default) runs exactly what
 * is waited for, so that whatever else was submitted comes as late as can be; any other seed runs a random order that
 * the waits allow, with streams that are suddenly fast or slow. TLUA_SIM_TIMEOUT: seconds that a wait may see no progress
 * at all before it is called a deadlock (60). */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "runtime.h"

enum { QUEUE_LIMIT = 1024 }; /* like a GPU's: whoever submits more waits */

static struct {
  sim_item *first, *last; /* not done, in order of submission */
  int pending;
  sim_item **ready;
  int readies, room;
  uint64_t number, mark, round;
  uint64_t random;    /* state; 0: not random */
  long long patience; /* seconds without any progress */
  bool started;
} work;
static _Thread_local sim_item *running;

const sim_item *sim_running(void) { return running; }

void *sim_checked(void *p) {
  if (p == NULL) {
    fputs("tlua-sim: the host is out of memory\n", stderr);
    abort();
  }
  return p;
}

static uint64_t random_number(void) {
  work.random ^= work.random << 13;
  work.random ^= work.random >> 7;
  work.random ^= work.random << 17;
  return work.random;
}

static void start(void) {
  uint64_t seed = (uint64_t)sim_setting("TLUA_SIM_SEED", 0);
  work.random = seed == 0 ? 0 : seed * 0x9e3779b97f4a7c15u + 1;
  work.patience = sim_setting("TLUA_SIM_TIMEOUT", 60);
  work.started = true;
}

sim_item *sim_keep(sim_item *item) {
  if (item != NULL) item->refs++;
  return item;
}

static void *copied(const void *data, size_t bytes) {
  if (bytes == 0) return NULL;
  return memcpy(sim_checked(malloc(bytes)), data, bytes);
}

void sim_work_copy(sim_work *to, const sim_work *from) {
  *to = *from;
  to->data = copied(from->data, from->bytes);
  to->range = copied(from->range, sizeof *from->range * (size_t)from->ranges);
}

void sim_work_free(sim_work *w) {
  free(w->data);
  free(w->range);
  w->data = NULL;
  w->range = NULL;
}

void sim_drop(sim_item *item) {
  if (item == NULL || --item->refs > 0) return;
  sim_work_free(&item->work);
  free(item->needs);
  free(item->dependents);
  free(item);
}

void sim_replace(sim_item **slot, sim_item *item) {
  sim_item *old = *slot;
  *slot = sim_keep(item);
  sim_drop(old);
}

static void finish(sim_item *item);

static void becomes_ready(sim_item *item) {
  if (item->work.run == NULL && item->work.poll == NULL) {
    finish(item);
    return;
  }
  if (work.readies == work.room) {
    work.room = work.room == 0 ? 64 : 2 * work.room;
    work.ready = sim_checked(realloc(work.ready, sizeof *work.ready * (size_t)work.room));
  }
  work.ready[work.readies++] = item;
}

static void no_longer_ready(sim_item *item) {
  for (int i = 0; i < work.readies; i++)
    if (work.ready[i] == item) {
      work.ready[i] = work.ready[--work.readies];
      return;
    }
}

static void finish(sim_item *item) {
  double begin = 0;
  for (int i = 0; i < item->need_count; i++)
    if (item->needs[i]->finish > begin) begin = item->needs[i]->finish;
  item->finish = (begin > item->finish ? begin : item->finish) + item->work.seconds;
  item->done = true;
  sim_work_free(&item->work);
  if (item->previous != NULL) item->previous->next = item->next;
  else work.first = item->next;
  if (item->next != NULL) item->next->previous = item->previous;
  else work.last = item->previous;
  work.pending--;
  for (int i = 0; i < item->need_count; i++) sim_drop(item->needs[i]);
  item->need_count = 0;
  for (int i = 0; i < item->dependent_count; i++) {
    sim_item *dependent = item->dependents[i];
    if (--dependent->unmet == 0) becomes_ready(dependent);
    sim_drop(dependent);
  }
  item->dependent_count = 0;
  sim_drop(item); /* the list's */
}

static void add_need(sim_item *item, sim_item *need) {
  if (need == NULL) return;
  sim_clock_join(item, need);
  if (need->finish > item->finish) item->finish = need->finish;
  if (need->done) return;
  for (int i = 0; i < item->need_count; i++)
    if (item->needs[i] == need) return;
  item->needs[item->need_count++] = sim_keep(need);
  int n = need->dependent_count;
  if ((n & (n - 1)) == 0)
    need->dependents = sim_checked(realloc(need->dependents, sizeof *need->dependents * (size_t)(n == 0 ? 1 : 2 * n)));
  need->dependents[need->dependent_count++] = sim_keep(item);
  item->unmet++;
}

void sim_make_room(void) {
  if (work.pending < QUEUE_LIMIT) return;
  uint64_t enough = work.first->number + QUEUE_LIMIT / 2;
  while (work.first != NULL && work.first->number < enough) sim_wait(work.first);
}

sim_item *sim_submit(const sim_work *w, int needs, sim_item *const *need) {
  if (!work.started) start();
  sim_make_room();
  sim_item *item = sim_checked(calloc(1, sizeof *item));
  sim_work_copy(&item->work, w);
  item->number = ++work.number;
  item->refs = 2; /* the caller's and the list's */
  item->previous = work.last;
  if (work.last != NULL) work.last->next = item;
  else work.first = item;
  work.last = item;
  work.pending++;
  item->needs = sim_checked(calloc((size_t)needs + 1, sizeof *item->needs));
  sim_clock_start(item);
  for (int i = 0; i < needs; i++) add_need(item, need[i]);
  sim_pend(item);
  if (item->unmet == 0) becomes_ready(item);
  return item;
}

static void run_callback(void *data) {
  sim_item *item = data;
  item->work.run(item->work.data, item->work.device);
}

/* Returns whether it got done. */
static bool run(sim_item *item) {
  sim_keep(item);
  item->running = true;
  bool done = true;
  if (item->work.callback) {
    sim_pause(run_callback, item, true);
  } else {
    sim_unpend(item);
    unsigned devices = sim_peers(item->work.device);
    for (int i = 0; i < item->work.ranges; i++) {
      int device = sim_device_of(item->work.range[i].base);
      if (device >= 0) devices |= 1u << device;
    }
    sim_item *outer = running;
    running = item;
    if (sim_check_ranges(item->work.name, item->work.ranges, item->work.range) == cudaSuccess) {
      if (item->polled_before == 0) sim_touch_ranges(item);
      sim_open(devices);
      if (item->work.poll != NULL) done = item->work.poll(item->work.data, item->work.device) != 0;
      else item->work.run(item->work.data, item->work.device);
      item->polled_before++;
    }
    sim_close_pinned(item);
    running = outer;
  }
  item->running = false;
  if (done) {
    no_longer_ready(item);
    finish(item);
  }
  sim_drop(item);
  return done;
}

/* Marks what an item waits for, itself too. */
static void mark(sim_item *item) {
  if (item->done || item->marked == work.mark) return;
  item->marked = work.mark;
  for (int i = 0; i < item->need_count; i++) mark(item->needs[i]);
}

/* How fast a stream is just now, for a random order: changes from time to time. */
static uint64_t speed(const sim_item *item, uint64_t phase) {
  uint64_t x = phase * 0x9e3779b97f4a7c15u ^ ((uint64_t)item->work.lane + 1) * 0xbf58476d1ce4e5b9u;
  x ^= x >> 31;
  return x * 0x9e3779b97f4a7c15u;
}

/* The item to run next: only marked ones where `marked`; NULL if each was asked in this round. */
static sim_item *choose(bool marked, uint64_t phase) {
  sim_item *best = NULL;
  for (int i = 0; i < work.readies; i++) {
    sim_item *item = work.ready[i];
    if (item->running || item->polled == work.round || (marked && item->marked != work.mark)) continue;
    if (best == NULL) best = item;
    else if (work.random == 0 ? item->number < best->number : speed(item, phase) > speed(best, phase)) best = item;
  }
  return best;
}

static void sleep_a_little(void *nothing) {
  (void)nothing;
  nanosleep(&(struct timespec){0, 50000}, NULL);
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void blocked(const sim_item *target, double since) {
  if (now() - since < (double)work.patience) return;
  for (int i = 0; i < work.readies; i++)
    if (!work.ready[i]->running)
      sim_fault("deadlock", "device %d waits in vain for %s", work.ready[i]->work.device, work.ready[i]->work.name);
  sim_fault("deadlock", "the host waits in vain for %s of device %d", target->work.name, target->work.device);
  fflush(NULL);
  _exit(66);
}

void sim_wait(sim_item *target) {
  if (target == NULL || target->done) return;
  sim_keep(target);
  work.mark++;
  work.round++;
  mark(target);
  bool only_needed = work.random == 0 || random_number() % 2 == 0;
  uint64_t phase = work.random;
  double idle_since = 0;
  while (!target->done) {
    sim_item *item = choose(only_needed, phase);
    if (item == NULL && only_needed) item = choose(false, phase); /* a blocked collective may need another's */
    if (item == NULL) {
      if (idle_since == 0) idle_since = now();
      sim_pause(sleep_a_little, NULL, false);
      if (!target->done) blocked(target, idle_since);
      work.round++;
      work.mark++;
      mark(target);
      continue;
    }
    item->polled = work.round;
    if (run(item)) {
      work.round++;
      idle_since = 0;
    }
    if (work.random != 0 && random_number() % 8 == 0) phase = work.random;
  }
  sim_drop(target);
}

void sim_wait_device(int device) {
  for (bool any = true; any;) {
    any = false;
    for (sim_item *item = work.last; item != NULL && !any; item = item->previous)
      if (item->work.device == device) {
        any = true;
        sim_host_wait(item);
      }
  }
}

void sim_progress(sim_item *wanted) {
  if (wanted->done) return;
  if (work.random != 0 && random_number() % 4 == 0) return;
  work.mark++;
  work.round++;
  mark(wanted);
  sim_item *item = choose(true, work.random);
  if (item == NULL) sim_pause(sleep_a_little, NULL, false);
  else run(item);
}

static cudaError_t enqueue(cudaStream_t handle, sim_work *w) {
  struct CUstream_st *stream;
  cudaError_t e = sim_stream_of(handle, &stream);
  if (e != cudaSuccess) return e;
  if (stream->device != sim_current_device())
    return sim_error(cudaErrorInvalidResourceHandle, "%s: on a stream of device %d while device %d is current", w->name,
                     stream->device, sim_current_device());
  e = sim_check_ranges(w->name, w->ranges, w->range);
  if (e != cudaSuccess) return e;
  w->device = stream->device;
  w->seconds = 5e-6;
  return sim_append(stream, w, NULL);
}

cudaError_t sim_enqueue(cudaStream_t stream, const char *name, sim_work_fn *run_it, const void *data, size_t bytes,
                        int ranges, const sim_range *range) {
  SIM_API(cudaSuccess, enqueue(stream, &(sim_work){.name = name,
                                                   .run = run_it,
                                                   .data = (void *)data,
                                                   .bytes = bytes,
                                                   .ranges = ranges,
                                                   .range = (sim_range *)range}));
}

cudaError_t sim_enqueue_poll(cudaStream_t stream, const char *name, sim_poll_fn *poll, const void *data, size_t bytes,
                             int ranges, const sim_range *range) {
  SIM_API(cudaSuccess, enqueue(stream, &(sim_work){.name = name,
                                                   .poll = poll,
                                                   .data = (void *)data,
                                                   .bytes = bytes,
                                                   .ranges = ranges,
                                                   .range = (sim_range *)range}));
}
