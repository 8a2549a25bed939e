/* queue.c: the thread that communicates. Collectives are carried out one after the other, each in three steps: the ranks
 * tell each other what they are about to do; what differs, or a rank that does not come, is an error on every rank; then
 * the transport moves the data. After a failure nothing more is tried. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "backend/plugin.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/tensor.h"
#include "dist/group.h"

#define MAX_STORAGES 2
#define MESSAGE 480

struct tl_work {
  tl_work *next;
  tl_collective collective;
  tl_storage *storages[MAX_STORAGES];
  bool done, abandoned; /* under the lock */
  int code;             /* of the failure, 0: none */
  char message[MESSAGE];
  /* the waiting thread's */
  tl_tensor *flat, *target;
  double scale;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static pthread_t thread;
static tl_work *first, **last = &first;
static bool stopping, broken;
static enum { STARTING, RUNNING, REFUSED } state;
static char reason[MESSAGE]; /* why the transport did not open, or what broke */
static int reason_code;
static tl_signature *signatures; /* by rank */
static bool *missing_ranks;

static const tl_transport *transport(void) { return tl_the_group.transport; }

const char *tl_collective_name(int kind) {
  static const char *const names[] = {"all_reduce", "broadcast", "all_gather", "reduce_scatter", "barrier"};
  return names[kind];
}

/* ---- waiting for the transport ---- */

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Polls a request. The first looks follow each other quickly; later ones leave the processor to those that compute. */
static tl_status finish(void *request, double deadline, bool *done) {
  *done = false;
  for (int looks = 0;; looks++) {
    TL_TRY(transport()->test(request, done));
    if (*done || now() > deadline) return TL_OK;
    if (looks < 200) sched_yield();
    else nanosleep(&(struct timespec){0, looks < 2000 ? 20000 : 200000}, NULL);
  }
}

/* ---- one collective ---- */

static const char *describe(const tl_signature *s, char *text, size_t bytes) {
  static const char *const ops[] = {"sum", "mean", "max", "min"};
  int n =
      snprintf(text, bytes, "%s of %lld %s", tl_collective_name(s->kind), (long long)s->count, tl_dtype_name(s->dtype));
  if (s->kind == TL_COLLECTIVE_BARRIER) snprintf(text, bytes, "barrier");
  else if (s->kind == TL_COLLECTIVE_BROADCAST) snprintf(text + n, bytes - (size_t)n, " from rank %d", s->root);
  else if (s->kind != TL_COLLECTIVE_ALL_GATHER) snprintf(text + n, bytes - (size_t)n, " (%s)", ops[s->op]);
  return text;
}

static tl_status nobody_came(void *request, const tl_signature *mine) {
  char what[96], who[160] = "";
  int count = transport()->missing(request, missing_ranks), used = 0;
  for (int r = 0; r < tl_the_group.size && used < (int)sizeof who - 16; r++)
    if (missing_ranks[r]) used += snprintf(who + used, sizeof who - (size_t)used, used == 0 ? "%d" : ", %d", r);
  return TL_FAIL(TL_ERR_STATE, tl_collective_name(mine->kind),
                 "rank%s %s did not come to collective %lld (%s) within %g s: dead, stuck, or on another path",
                 count == 1 ? "" : "s", who, (long long)mine->sequence, describe(mine, what, sizeof what),
                 tl_the_group.timeout);
}

/* Does every rank do the same? */
static tl_status agree(const tl_signature *mine, double deadline) {
  void *request = NULL;
  bool done;
  TL_TRY(transport()->exchange(mine, sizeof *mine, signatures, &request));
  TL_TRY(finish(request, deadline, &done));
  if (!done) {
    tl_status st = nobody_came(request, mine);
    transport()->cancel(request);
    return st;
  }
  for (int r = 0; r < tl_the_group.size; r++)
    if (memcmp(&signatures[r], &signatures[0], sizeof *mine) != 0) {
      char a[96], b[96];
      return TL_FAIL(TL_ERR_STATE, tl_collective_name(mine->kind),
                     "the ranks differ at collective %lld: rank 0 calls %s, rank %d calls %s",
                     (long long)mine->sequence, describe(&signatures[0], a, sizeof a), r,
                     describe(&signatures[r], b, sizeof b));
    }
  return TL_OK;
}

static tl_status carry_out(const tl_collective *c) {
  static int64_t sequence;
  tl_signature mine;
  memset(&mine, 0, sizeof mine); /* compared as bytes */
  mine.sequence = ++sequence;
  mine.count = c->count;
  mine.kind = c->kind;
  mine.op = c->op;
  mine.dtype = c->dtype;
  mine.root = c->root;
  double deadline = now() + tl_the_group.timeout;
  TL_TRY(agree(&mine, deadline));
  if (c->kind == TL_COLLECTIVE_BARRIER) return TL_OK; /* everybody came */
  void *request = NULL;
  bool done;
  TL_TRY(transport()->start(c, &request));
  TL_TRY(finish(request, deadline, &done));
  if (done) return TL_OK;
  transport()->cancel(request);
  return TL_FAIL(TL_ERR_STATE, tl_collective_name(c->kind),
                 "collective %lld did not end within %g s: a rank died in it", (long long)sequence,
                 tl_the_group.timeout);
}

static void drop(tl_work *w) {
  for (int i = 0; i < MAX_STORAGES; i++)
    if (w->storages[i] != NULL) tl_storage_drop(w->storages[i]);
  tl_host_free(w);
}

static void serve(tl_work *w) {
  tl_status st;
  if (broken)
    st = TL_FAIL(reason_code, tl_collective_name(w->collective.kind), "an earlier collective failed: %s", reason);
  else st = carry_out(&w->collective);
  pthread_mutex_lock(&lock);
  if (st != TL_OK) {
    const tl_error *e = tl_last_error();
    w->code = st;
    snprintf(w->message, sizeof w->message, "%s", e->message);
    if (!broken) {
      reason_code = st;
      snprintf(reason, sizeof reason, "%s: %s", e->op, e->message);
      /* the transport may still write: these bytes are never given back */
      for (int i = 0; i < MAX_STORAGES; i++) w->storages[i] = NULL;
    }
    broken = true;
  }
  w->done = true;
  bool abandoned = w->abandoned;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
  if (abandoned) drop(w);
}

/* ---- the thread ---- */

static tl_status open_transport(void) {
  int rank, size;
  TL_TRY(transport()->open(&rank, &size));
  tl_the_group.rank = rank;
  tl_the_group.size = size;
  signatures = tl_host_calloc((size_t)size, sizeof *signatures);
  missing_ranks = tl_host_calloc((size_t)size, sizeof *missing_ranks);
  if (signatures == NULL || missing_ranks == NULL)
    return TL_FAIL(TL_ERR_MEMORY, "dist.init", "no memory for %d ranks", size);
  return TL_OK;
}

static void announce(tl_status st) {
  pthread_mutex_lock(&lock);
  state = st == TL_OK ? RUNNING : REFUSED;
  if (st != TL_OK) {
    reason_code = st;
    snprintf(reason, sizeof reason, "%s", tl_last_error()->message);
  }
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
}

static void *run(void *unused) {
  (void)unused;
  tl_status st = open_transport();
  announce(st);
  while (st == TL_OK) {
    pthread_mutex_lock(&lock);
    while (first == NULL && !stopping) pthread_cond_wait(&changed, &lock);
    tl_work *w = first;
    if (w != NULL) {
      first = w->next;
      if (first == NULL) last = &first;
    }
    pthread_mutex_unlock(&lock);
    if (w == NULL) break;
    serve(w);
  }
  if (st == TL_OK) transport()->close(!broken);
  tl_host_free(signatures);
  tl_host_free(missing_ranks);
  signatures = NULL;
  missing_ranks = NULL;
  tl_thread_exit();
  return NULL;
}

tl_status tl_queue_start(void) {
  const char *why = "";
  tl_transport_plugin_fn *plugin =
      (tl_transport_plugin_fn *)tl_plugin_symbol("libtlua-mpi.so", "tl_transport_plugin", &why);
  if (plugin == NULL)
    return TL_FAIL(TL_ERR_DEVICE, "dist.init",
                   "%d ranks need MPI, which cannot be opened (%s): install openmpi-bin and "
                   "build tlua with libopenmpi-dev",
                   tl_the_group.size, why);
  tl_the_group.transport = plugin(TL_ABI, tl_plugin_host_table(), &why);
  if (transport() == NULL) return TL_FAIL(TL_ERR_DEVICE, "dist.init", "libtlua-mpi.so: %s", why);
  state = STARTING;
  stopping = broken = false;
  if (pthread_create(&thread, NULL, run, NULL) != 0)
    return TL_FAIL(TL_ERR_MEMORY, "dist.init", "no thread to communicate on");
  pthread_mutex_lock(&lock);
  while (state == STARTING) pthread_cond_wait(&changed, &lock);
  pthread_mutex_unlock(&lock);
  if (state == RUNNING) return TL_OK;
  pthread_join(thread, NULL);
  return TL_FAIL(reason_code, "dist.init", "%s", reason);
}

void tl_queue_stop(void) {
  pthread_mutex_lock(&lock);
  stopping = true;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
  pthread_join(thread, NULL);
}

/* ---- works ---- */

static tl_status new_work(const char *op, tl_work **out) {
  tl_work *w = tl_host_calloc(1, sizeof *w);
  if (w == NULL) return TL_FAIL(TL_ERR_MEMORY, op, "no memory for a collective");
  w->scale = 1;
  *out = w;
  return TL_OK;
}

tl_status tl_queue_add(const tl_collective *c, int storages, tl_storage *const *storage, tl_work **out) {
  tl_work *w = NULL;
  TL_TRY(new_work(tl_collective_name(c->kind), &w));
  w->collective = *c;
  for (int i = 0; i < storages; i++) {
    tl_storage_retain(storage[i]);
    w->storages[i] = storage[i];
  }
  pthread_mutex_lock(&lock);
  *last = w;
  last = &w->next;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
  *out = w;
  return TL_OK;
}

tl_status tl_queue_done(tl_work **out) {
  tl_work *w = NULL;
  tl_status st = new_work("collective", &w);
  if (st == TL_OK) w->done = true;
  *out = w;
  return st;
}

tl_status tl_work_finish(tl_work *w, tl_tensor *flat, double scale, tl_tensor *target) {
  w->flat = tl_hold(flat);
  w->target = tl_hold(target);
  w->scale = scale;
  return TL_OK;
}

bool tl_work_done(const tl_work *w) {
  pthread_mutex_lock(&lock);
  bool done = w->done;
  pthread_mutex_unlock(&lock);
  return done;
}

/* Until it is done, or Ctrl-C comes. */
static bool wait_done(tl_work *w) {
  pthread_mutex_lock(&lock);
  while (!w->done && !tl_interrupt_flag) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 50000000;
    if (until.tv_nsec >= 1000000000) until.tv_nsec -= 1000000000, until.tv_sec++;
    pthread_cond_timedwait(&changed, &lock, &until);
  }
  bool done = w->done;
  w->abandoned = !done;
  pthread_mutex_unlock(&lock);
  return done;
}

void tl_work_free(tl_work *w) {
  if (w == NULL) return;
  tl_tensor_free(w->flat);
  tl_tensor_free(w->target);
  pthread_mutex_lock(&lock);
  bool done = w->done;
  w->abandoned = true;
  pthread_mutex_unlock(&lock);
  if (done) drop(w);
}

static tl_status finish_here(tl_work *w) {
  if (w->code != TL_OK) return TL_FAIL(w->code, tl_collective_name(w->collective.kind), "%s", w->message);
  if (w->flat == NULL) return TL_OK;
  bool before = tl_set_grad_enabled(false);
  tl_status st = w->scale == 1 ? TL_OK : tl_mul_scalar_(w->flat, w->scale);
  if (st == TL_OK && w->target != NULL && w->target != w->flat) st = tl_copy_(w->target, w->flat);
  tl_set_grad_enabled(before);
  return st;
}

tl_status tl_work_wait(tl_work *w) {
  bool done = wait_done(w);
  tl_status st = done ? finish_here(w) : tl_interrupted("collective");
  tl_tensor_free(w->flat);
  tl_tensor_free(w->target);
  if (done) drop(w); /* else the thread does */
  return st;
}
