/* queue.c: the thread that communicates. Collectives are carried out one after the other, each in three steps: the ranks
 * tell each other what they are about to do; what differs, or a rank that does not come, is an error on every rank; then
 * the transport moves the data. After a failure nothing more is tried.
 *
 * Data of a device is moved by the device's own library. The thread only lets the ranks agree; the thread that works with
 * tensors starts the exchange when it comes by (tl_queue_progress) or waits for it, and this one watches how it goes. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "backend/plugin.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/tensor.h"
#include "dist/group.h"

#define MAX_STORAGES 2
#define MESSAGE 480

struct tl_work {
  tl_work *next;
  tl_work *next_agreed; /* of device works that are not launched */
  tl_device device;
  tl_collective collective;
  tl_storage *storages[MAX_STORAGES];
  bool done, abandoned;  /* under the lock; of a device's work: the ranks agree */
  bool launched, orphan; /* orphan: nobody waits, but the other ranks count on the launch */
  bool listed;           /* among the unlaunched */
  void *request;         /* of the launch */
  int code;              /* of the failure, 0: none */
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
static enum { STARTING, RUNNING, REFUSED, LOST } state; /* LOST: nobody waits for the ranks to meet any more */
static int64_t sequence;                                /* of the last collective */
static char reason[MESSAGE];                            /* why the transport did not open, or what broke */
static int reason_code;
static struct {               /* the device's library */
  const tl_accelerator *with; /* NULL: no tensor of a device yet */
  tl_device device;
  void *comm;
} device_comm;
static tl_work *unlaunched, **last_unlaunched = &unlaunched; /* the working thread's */
static struct watched {                                      /* under the lock: launched, not seen done */
  void *request;
  double deadline;
} * watched;
static int watched_count, watched_room;
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

static tl_status failed_before(const char *op) {
  return TL_FAIL(reason_code, op, "an earlier collective failed: %s", reason);
}

static void watch(void);

/* Until something changes, or a short while. Under the lock. */
static void wait_a_little(void) {
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_nsec += 50000000;
  if (until.tv_nsec >= 1000000000) until.tv_nsec -= 1000000000, until.tv_sec++;
  pthread_cond_timedwait(&changed, &lock, &until);
}

/* Polls a request, and what the device does meanwhile. The first looks follow each other quickly; later ones leave the
 * processor to those that compute. */
static tl_status finish(void *request, double deadline, bool *done) {
  *done = false;
  for (int looks = 0;; looks++) {
    TL_TRY(transport()->test(request, done));
    if (*done || now() > deadline) return TL_OK;
    if (looks >= 200 || looks % 32 == 31) watch();
    if (broken) return failed_before("collective");
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

static tl_status carry_out(tl_device device, const tl_collective *c) {
  static tl_signature mine;      /* of an exchange that was given up it may be read later */
  memset(&mine, 0, sizeof mine); /* compared as bytes */
  mine.sequence = ++sequence;
  mine.count = c->count;
  mine.kind = c->kind;
  mine.op = c->op;
  mine.dtype = c->dtype;
  mine.root = c->root;
  TL_TRY(agree(&mine, now() + tl_the_group.timeout));
  if (c->kind == TL_COLLECTIVE_BARRIER || device != TL_CPU) return TL_OK; /* everybody came */
  void *request = NULL;
  bool done;
  TL_TRY(transport()->start(c, &request));
  TL_TRY(finish(request, now() + tl_the_group.timeout, &done)); /* the last to come does not leave less time */
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
  tl_status st = broken ? failed_before(tl_collective_name(w->collective.kind)) : carry_out(w->device, &w->collective);
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

/* ---- watching the device's exchanges ---- */

static void *abort_comm(void *unused) {
  (void)unused;
  device_comm.with->comm_free(device_comm.comm, true);
  return NULL;
}

#define ABORT_SECONDS 10

/* Ends the device's exchanges: ncclCommAbort may hang like what it aborts; the process does not. */
static void end_exchanges(const char *why) {
  pthread_t aborting;
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += ABORT_SECONDS;
  if (pthread_create(&aborting, NULL, abort_comm, NULL) != 0 || pthread_timedjoin_np(aborting, NULL, &until) != 0) {
    fprintf(stderr, "tlua: rank %d: %s, and the exchange cannot be ended: the process ends\n", tl_the_group.rank, why);
    tl_dist_abort(1);
  }
  device_comm.comm = NULL;
}

static void give_up(const char *what) {
  pthread_mutex_lock(&lock);
  snprintf(reason, sizeof reason, "%s", what);
  reason_code = TL_ERR_STATE;
  broken = true;
  watched_count = 0;
  pthread_mutex_unlock(&lock);
  end_exchanges(what);
}

/* One look at what was launched. */
static void watch(void) {
  for (;;) {
    pthread_mutex_lock(&lock);
    bool any = watched_count > 0;
    struct watched oldest = any ? watched[0] : (struct watched){0};
    pthread_mutex_unlock(&lock);
    if (!any || device_comm.comm == NULL) return;
    bool done = false;
    tl_status st = device_comm.with->comm_done(device_comm.comm, oldest.request, &done);
    if (st == TL_OK && !done && now() > oldest.deadline)
      st = TL_FAIL(TL_ERR_STATE, "collective", "an exchange between devices did not end within %g s",
                   tl_the_group.timeout);
    if (st != TL_OK) {
      char text[MESSAGE];
      snprintf(text, sizeof text, "%s", tl_last_error()->message);
      give_up(text);
      return;
    }
    if (!done) return;
    pthread_mutex_lock(&lock);
    memmove(watched, watched + 1, (size_t)--watched_count * sizeof *watched);
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
  }
}

/* The next work. Meanwhile launched ones are watched. NULL: the end. */
static tl_work *next_work(void) {
  for (;;) {
    pthread_mutex_lock(&lock);
    while (first == NULL && !stopping && watched_count == 0) pthread_cond_wait(&changed, &lock);
    tl_work *w = first;
    if (w != NULL) {
      first = w->next;
      if (first == NULL) last = &first;
    }
    bool end = w == NULL && stopping;
    pthread_mutex_unlock(&lock);
    if (w != NULL || end) return w;
    watch();
    nanosleep(&(struct timespec){0, 1000000}, NULL);
  }
}

/* ---- the thread ---- */

static tl_status open_transport(void) {
  int rank, size, expected = tl_the_group.size;
  const tl_transport *with = transport();
  TL_TRY(with->open(&rank, &size));
  pthread_mutex_lock(&lock);
  bool lost = state == LOST;
  pthread_mutex_unlock(&lock);
  while (lost) pause(); /* the process is about to end */
  if (size != expected)
    return TL_FAIL(
        TL_ERR_STATE, "dist.init",
        "the launcher says that there are %d ranks, MPI knows of %d: use the mpirun that belongs to this MPI, "
        "or srun --mpi=pmix",
        expected, size);
  tl_the_group.rank = rank;
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
    tl_work *w = next_work();
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

/* MPI's plug-in. */
static tl_status find_mpi(void) {
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
  return TL_OK;
}

#define GRACE 1.0 /* seconds: a transport that watches the time itself says who is missing */

tl_status tl_queue_start(void) {
  if (transport() == NULL) TL_TRY(find_mpi());
  if (state == LOST)
    return TL_FAIL(TL_ERR_STATE, "dist.init", "the ranks did not meet before: this process cannot try again");
  state = STARTING;
  stopping = broken = false;
  sequence = 0;
  if (pthread_create(&thread, NULL, run, NULL) != 0)
    return TL_FAIL(TL_ERR_MEMORY, "dist.init", "no thread to communicate on");
  double deadline = now() + tl_the_group.timeout + GRACE;
  pthread_mutex_lock(&lock);
  while (state == STARTING && !tl_interrupt_flag && now() < deadline) wait_a_little();
  bool lost = state == STARTING;
  if (lost) state = LOST;
  pthread_mutex_unlock(&lock);
  if (lost) { /* MPI cannot be told to stop */
    pthread_detach(thread);
    TL_CHECK_INTERRUPT("dist.init");
    return TL_FAIL(TL_ERR_STATE, "dist.init", "not all of the %d ranks came within %g s", tl_the_group.size,
                   tl_the_group.timeout);
  }
  if (state == RUNNING) return TL_OK;
  pthread_join(thread, NULL);
  return TL_FAIL(reason_code, "dist.init", "%s", reason);
}

/* ---- the device's library ---- */

/* Rank 0's id goes round over the transport; all ranks come here at the same collective. */
static tl_status open_device(tl_device device) {
  if (device_comm.with != NULL && device_comm.device == device) return TL_OK;
  if (device_comm.with != NULL)
    return TL_FAIL(TL_ERR_UNSUPPORTED, "collective",
                   "a rank exchanges tensors of one device; this rank began with cuda:%d", device_comm.device & 255);
  const tl_accelerator *a = tl_backend_of(device)->accelerator;
  if (a == NULL) return TL_FAIL(TL_ERR_DEVICE, "collective", "tensors on \"meta\" have no data to exchange");
  const int64_t bytes = TL_COMM_ID;
  tl_tensor *id;
  TL_TRY(tl_empty(1, &bytes, TL_UINT8, TL_CPU, &id));
  tl_status st = tl_the_group.rank == 0 ? a->comm_id(tl_data(id)) : TL_OK;
  if (st == TL_OK) st = tl_broadcast_(id, 0, NULL);
  if (st == TL_OK) st = a->comm_new(device & 255, tl_data(id), tl_the_group.rank, tl_the_group.size, &device_comm.comm);
  tl_tensor_free(id);
  if (st != TL_OK) return st;
  device_comm.device = device;
  device_comm.with = a;
  return TL_OK;
}

static tl_status launch(tl_work *w) {
  TL_TRY(device_comm.with->comm_launch(device_comm.comm, &w->collective, &w->request));
  w->launched = true;
  if (device_comm.with->recording()) return TL_OK; /* nothing runs */
  pthread_mutex_lock(&lock);
  tl_status st = TL_OK;
  if (watched_count == watched_room) {
    int room = watched_room == 0 ? 16 : 2 * watched_room;
    struct watched *more = tl_host_alloc((size_t)room * sizeof *more);
    if (more == NULL) st = TL_FAIL(TL_ERR_MEMORY, "collective", "no memory to watch an exchange");
    else {
      if (watched_count > 0) memcpy(more, watched, (size_t)watched_count * sizeof *more);
      tl_host_free(watched);
      watched = more;
      watched_room = room;
    }
  }
  if (st == TL_OK) watched[watched_count++] = (struct watched){w->request, now() + tl_the_group.timeout};
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
  return st;
}

static tl_work *take_unlaunched(void) {
  tl_work *w = unlaunched;
  unlaunched = w->next_agreed;
  if (unlaunched == NULL) last_unlaunched = &unlaunched;
  w->listed = false;
  return w;
}

/* Launches device works in their order: those the ranks agreed on, up to `until` (NULL: as far as they go). */
static tl_status launch_agreed(const tl_work *until) {
  while (unlaunched != NULL) {
    tl_work *w = unlaunched;
    pthread_mutex_lock(&lock);
    bool agreed = w->done && w->code == TL_OK;
    pthread_mutex_unlock(&lock);
    if (!agreed && !(w->done && until != NULL)) return TL_OK;
    take_unlaunched();
    bool orphan = w->orphan, last_one = w == until;
    if (agreed) TL_TRY(launch(w));
    if (orphan && agreed) TL_TRY(device_comm.with->comm_order(device_comm.comm, w->request));
    if (orphan) drop(w);
    if (last_one) return TL_OK;
  }
  return TL_OK;
}

tl_status tl_queue_progress(void) { return launch_agreed(NULL); }

/* ---- works ---- */

static tl_status new_work(const char *op, tl_work **out) {
  tl_work *w = tl_host_calloc(1, sizeof *w);
  if (w == NULL) return TL_FAIL(TL_ERR_MEMORY, op, "no memory for a collective");
  w->scale = 1;
  *out = w;
  return TL_OK;
}

static void enqueue(tl_work *w) {
  pthread_mutex_lock(&lock);
  *last = w;
  last = &w->next;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
}

/* A step that is recorded runs later, on every rank alike: there is nothing to agree on now. */
static tl_status add_device(tl_work *w) {
  TL_TRY(open_device(w->device));
  if (device_comm.with->recording()) {
    w->done = true;
    return launch(w);
  }
  *last_unlaunched = w;
  last_unlaunched = &w->next_agreed;
  w->listed = true;
  enqueue(w);
  return tl_queue_progress();
}

tl_status tl_queue_add(tl_device device, const tl_collective *c, int storages, tl_storage *const *storage,
                       tl_work **out) {
  tl_work *w = NULL;
  TL_TRY(new_work(tl_collective_name(c->kind), &w));
  w->collective = *c;
  w->device = device;
  for (int i = 0; i < storages; i++) {
    tl_storage_retain(storage[i]);
    w->storages[i] = storage[i];
  }
  *out = w;
  if (device == TL_CPU) {
    enqueue(w);
    return TL_OK;
  }
  tl_status st = add_device(w);
  if (st != TL_OK && !w->listed) drop(w); /* never queued, or launched in vain */
  return st;
}

tl_status tl_queue_done(tl_work **out) {
  tl_work *w = NULL;
  tl_status st = new_work("collective", &w);
  if (st == TL_OK) w->done = true;
  *out = w;
  return st;
}

void tl_work_finish(tl_work *w, tl_tensor *flat, double scale, tl_tensor *target) {
  w->flat = tl_hold(flat);
  w->target = tl_hold(target);
  w->scale = scale;
}

bool tl_work_done(const tl_work *w) {
  pthread_mutex_lock(&lock);
  bool done = w->done;
  pthread_mutex_unlock(&lock);
  return done;
}

/* Until it is done, or Ctrl-C comes. Meanwhile device works that the ranks agreed on are launched: another rank may wait
 * for one of them before it comes to this. */
static tl_status wait_done(tl_work *w, bool *done) {
  tl_status st = TL_OK;
  pthread_mutex_lock(&lock);
  while (!w->done && !tl_interrupt_flag && st == TL_OK) {
    wait_a_little();
    if (unlaunched == NULL) continue;
    pthread_mutex_unlock(&lock);
    st = tl_queue_progress();
    pthread_mutex_lock(&lock);
  }
  *done = w->done;
  w->abandoned = !*done && w->device == TL_CPU;
  pthread_mutex_unlock(&lock);
  return st;
}

/* Nobody waits for w any more; `done` as its thread left it. */
static void let_go(tl_work *w, bool done) {
  tl_tensor_free(w->flat);
  tl_tensor_free(w->target);
  w->flat = w->target = NULL;
  if (w->listed) {
    w->orphan = true;
    return;
  }
  if (w->launched && device_comm.comm != NULL) device_comm.with->comm_order(device_comm.comm, w->request);
  if (done) drop(w); /* else the thread does */
}

void tl_work_free(tl_work *w) {
  if (w == NULL) return;
  pthread_mutex_lock(&lock);
  bool done = w->done;
  w->abandoned = w->device == TL_CPU;
  pthread_mutex_unlock(&lock);
  let_go(w, done);
}

static tl_status finish_here(tl_work *w) {
  if (w->device != TL_CPU && w->code == TL_OK) {
    if (!w->launched) TL_TRY(launch_agreed(w));
    if (broken) return failed_before(tl_collective_name(w->collective.kind));
    if (device_comm.comm != NULL)
      TL_TRY(device_comm.with->comm_order(device_comm.comm, w->request)); /* else it ended */
    w->launched = false;                                                  /* the request is used up */
  }
  if (w->code != TL_OK) return TL_FAIL(w->code, tl_collective_name(w->collective.kind), "%s", w->message);
  if (w->flat == NULL) return TL_OK;
  bool before = tl_set_grad_enabled(false);
  tl_status st = w->scale == 1 ? TL_OK : tl_mul_scalar_(w->flat, w->scale);
  if (st == TL_OK && w->target != NULL && w->target != w->flat) st = tl_copy_(w->target, w->flat);
  tl_set_grad_enabled(before);
  return st;
}

/* A failed work must not be launched any more. */
static void unlist(tl_work *w) {
  for (tl_work **at = &unlaunched; *at != NULL; at = &(*at)->next_agreed)
    if (*at == w) {
      w->listed = false;
      *at = w->next_agreed;
      if (*at == NULL) last_unlaunched = at;
      return;
    }
}

tl_status tl_work_wait(tl_work *w) {
  bool done;
  tl_status st = wait_done(w, &done);
  if (st == TL_OK) st = done ? tl_queue_progress() : tl_interrupted("collective");
  if (done && st == TL_OK) st = finish_here(w);
  if (!done && w->device == TL_CPU) {
    tl_tensor_free(w->flat);
    tl_tensor_free(w->target);
    w->flat = w->target = NULL;
    return st; /* its thread drops it */
  }
  if (!done) {
    let_go(w, false);
    return st;
  }
  if (w->device != TL_CPU) unlist(w);
  tl_tensor_free(w->flat);
  tl_tensor_free(w->target);
  drop(w);
  return st;
}

/* ---- the end ---- */

/* What nobody waited for: the other ranks count on it. */
static void launch_rest(void) {
  while (unlaunched != NULL && !broken && !tl_interrupt_flag && tl_queue_progress() == TL_OK) {
    pthread_mutex_lock(&lock);
    if (unlaunched != NULL && !unlaunched->done) wait_a_little();
    pthread_mutex_unlock(&lock);
  }
}

void tl_queue_stop(void) {
  if (device_comm.comm != NULL) launch_rest();
  pthread_mutex_lock(&lock);
  while (watched_count > 0 && !broken && !tl_interrupt_flag) wait_a_little();
  stopping = true;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
  pthread_join(thread, NULL); /* from now on nobody watches */
  while (unlaunched != NULL) {
    tl_work *w = take_unlaunched();
    if (w->orphan) drop(w);
  }
  if (device_comm.comm != NULL) {
    if (broken || watched_count > 0) { /* left by Ctrl-C */
      end_exchanges(broken ? reason : "interrupted");
    } else {
      tl_backend_of(device_comm.device)->synchronize(device_comm.device & 255);
      device_comm.with->comm_free(device_comm.comm, false);
    }
  }
  memset(&device_comm, 0, sizeof device_comm);
  watched_count = 0;
}
