/* nccl_comm.c: NCCL's ids and communicators, over shared memory.
 *
 * A unique id names a shared memory object with a slot for each rank. Ranks attach to it and wait for each other; the name
 * goes when the last one has come. A rank lives while it holds the lock on its byte of the object, which no way of dying
 * leaves behind. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "nccl_comm.h"

static _Thread_local char last_error[256];

ncclResult_t sim_nccl_refuse(ncclComm_t comm, ncclResult_t result, const char *function, const char *format, ...) {
  char text[200];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  sim_refuse(function, (int)result, "%s", text);
  snprintf(last_error, sizeof last_error, "%s: %s", function, text);
  if (comm != NULL) snprintf(comm->text, sizeof comm->text, "%s", last_error);
  return result;
}

double sim_nccl_seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

double sim_nccl_patience(void) { return (double)sim_setting("TLUA_SIM_NCCL_TIMEOUT", 60); }

static void nap(void) { nanosleep(&(struct timespec){0, 200000}, NULL); }

/* ---- ids ---- */

ncclResult_t ncclGetVersion(int *version) {
  if (version == NULL) return REFUSE(NULL, ncclInvalidArgument, "no place for the version");
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError: return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclInternalError: return "internal error - please report this issue to the NCCL developers";
    case ncclInvalidArgument: return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case ncclInvalidUsage: return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case ncclRemoteError: return "remote process exited or there was a network error";
    case ncclInProgress: return "NCCL operation in progress";
    default: return "unknown result code";
  }
}

const char *ncclGetLastError(ncclComm_t comm) { return sim_object_is(comm, MARK_COMM) ? comm->text : last_error; }

/* Names of objects that not every rank has joined yet: they must not outlive the process that made them. */
static char open_names[64][64];
static pid_t maker;

static void remove_names(void) {
  for (int i = 0; i < 64 && getpid() == maker; i++) /* not in a child */
    if (open_names[i][0] != 0) shm_unlink(open_names[i]);
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
  static _Atomic int made;
  if (id == NULL) return REFUSE(NULL, ncclInvalidArgument, "no place for the id");
  if (sim_call_fails(__func__)) return REFUSE(NULL, ncclSystemError, "fails on request (TLUA_SIM_FAIL)");
  memset(id, 0, sizeof *id);
  int n = atomic_fetch_add(&made, 1);
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  snprintf(id->internal, 64, "/tlua-nccl-%d-%d-%lx", (int)getpid(), n,
           (unsigned long)now.tv_sec * 1000003u + (unsigned long)now.tv_nsec);
  int file = shm_open(id->internal, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0 || ftruncate(file, sizeof(segment)) != 0)
    return REFUSE(NULL, ncclSystemError, "shared memory %s: %s", id->internal, strerror(errno));
  const uint32_t magic = MAGIC;
  bool written = pwrite(file, &magic, sizeof magic, 0) == (ssize_t)sizeof magic;
  close(file);
  if (!written) return REFUSE(NULL, ncclSystemError, "shared memory %s is full", id->internal);
  if (n == 0) atexit(remove_names);
  maker = getpid();
  memcpy(open_names[n % 64], id->internal, 64);
  return ncclSuccess;
}

/* ---- ranks that live ---- */

static bool lock_rank(const struct ncclComm *c, int rank, bool test) {
  struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = rank, .l_len = 1};
  if (fcntl(c->file, test ? F_OFD_GETLK : F_OFD_SETLK, &l) != 0) return false;
  return !test || l.l_type != F_UNLCK;
}

const char *sim_nccl_gone(const struct ncclComm *c, int rank) {
  int s = atomic_load(&c->shared->slots[rank].state);
  if (rank == c->rank) return NULL;
  if (s == LEFT) return "has left";
  if (s == ABORTED) return "has aborted";
  return s == JOINED && !lock_rank(c, rank, true) ? "is dead" : NULL;
}

void sim_nccl_look_at_peers(struct ncclComm *c) {
  double now = sim_nccl_seconds();
  if (now - c->looked_at < 0.005) return;
  c->looked_at = now;
  for (int r = 0; r < c->ranks; r++) {
    const char *why = sim_nccl_gone(c, r);
    if (why == NULL || strcmp(why, "has left") == 0 || atomic_load(&c->error) != ncclSuccess) continue;
    atomic_store(&c->error, ncclRemoteError);
    sim_nccl_refuse(c, ncclRemoteError, "NCCL", "rank %d %s", r, why);
  }
}

/* ---- joining ---- */

void sim_nccl_close(ncclComm_t c) {
  if (c->shared != NULL) munmap(c->shared, sizeof *c->shared);
  if (c->file >= 0) close(c->file);
  sim_object_destroy(c);
}

static ncclResult_t attach(ncclComm_t c, const ncclUniqueId *id) {
  snprintf(c->name, sizeof c->name, "%.63s", id->internal);
  if (strncmp(c->name, "/tlua-nccl-", 11) != 0)
    return REFUSE(NULL, ncclInvalidArgument, "the id does not come from ncclGetUniqueId");
  c->file = shm_open(c->name, O_RDWR | O_CLOEXEC, 0600);
  if (c->file < 0)
    return REFUSE(NULL, ncclInvalidArgument, "%s: %s (was the id used before?)", c->name, strerror(errno));
  void *p = mmap(NULL, sizeof(segment), PROT_READ | PROT_WRITE, MAP_SHARED, c->file, 0);
  if (p == MAP_FAILED) return REFUSE(NULL, ncclSystemError, "mmap: %s", strerror(errno));
  c->shared = p;
  int none = 0;
  if (!atomic_compare_exchange_strong(&c->shared->ranks, &none, c->ranks) && none != c->ranks)
    return REFUSE(NULL, ncclInvalidArgument, "rank %d says %d ranks, another one %d", c->rank, c->ranks, none);
  if (!lock_rank(c, c->rank, false) || atomic_load(&c->shared->slots[c->rank].state) != ABSENT)
    return REFUSE(NULL, ncclInvalidUsage, "rank %d joins twice", c->rank);
  c->shared->slots[c->rank].device = c->device;
  atomic_store(&c->shared->slots[c->rank].state, JOINED);
  if (atomic_fetch_add(&c->shared->joined, 1) + 1 == c->ranks) shm_unlink(c->name); /* nobody needs the name any more */
  return ncclSuccess;
}

static ncclResult_t check_devices(ncclComm_t c) {
  for (int i = 0; i < c->ranks; i++)
    for (int j = 0; j < i; j++)
      if (c->shared->slots[i].device == c->shared->slots[j].device)
        return sim_nccl_refuse(c, ncclInvalidUsage, "ncclCommInitRank", "ranks %d and %d are both on device %d", j, i,
                               c->shared->slots[i].device);
  c->ready = true;
  return ncclSuccess;
}

ncclResult_t sim_nccl_wait_for_all(ncclComm_t c) {
  double start = sim_nccl_seconds();
  while (atomic_load(&c->shared->joined) < c->ranks) {
    for (int r = 0; r < c->ranks; r++)
      if (sim_nccl_gone(c, r) != NULL)
        return sim_nccl_refuse(c, ncclRemoteError, "ncclCommInitRank", "rank %d %s", r, sim_nccl_gone(c, r));
    if (sim_nccl_seconds() - start > sim_nccl_patience()) {
      shm_unlink(c->name);
      sim_fault("nccl-hang", "ncclCommInitRank: rank %d of %d waits for %d others that do not join", c->rank, c->ranks,
                c->ranks - atomic_load(&c->shared->joined));
      return sim_nccl_refuse(c, ncclSystemError, "ncclCommInitRank", "others do not join");
    }
    nap();
  }
  return check_devices(c);
}

/* ---- communicators: calls ---- */

static ncclResult_t init_rank(ncclComm_t *comm, int ranks, const ncclUniqueId *id, int rank, bool blocking) {
  if (comm == NULL) return REFUSE(NULL, ncclInvalidArgument, "no place for the communicator");
  *comm = NULL;
  if (ranks < 1 || rank < 0 || rank >= ranks) return REFUSE(NULL, ncclInvalidArgument, "rank %d of %d", rank, ranks);
  if (ranks > MAX_RANKS) return REFUSE(NULL, ncclSystemError, "%d ranks: %d are modelled", ranks, MAX_RANKS);
  if (sim_call_fails("ncclCommInitRank")) return REFUSE(NULL, ncclSystemError, "fails on request (TLUA_SIM_FAIL)");
  if (sim_nccl_group.depth > 0 && (sim_nccl_group.calls > 0 || sim_nccl_group.joins == MAX_RANKS))
    return REFUSE(NULL, ncclInvalidUsage, "a group joins ranks or communicates, not both");
  ncclComm_t c = sim_object_create(MARK_COMM, sizeof *c);
  if (c == NULL) return ncclSystemError;
  c->rank = rank, c->ranks = ranks, c->file = -1;
  ncclResult_t r = cudaGetDevice(&c->device) == cudaSuccess ? attach(c, id) : ncclUnhandledCudaError;
  if (r == ncclSuccess && sim_nccl_group.depth > 0) {
    sim_nccl_group.join[sim_nccl_group.joins++] = (joining){.place = comm, .comm = c};
    *comm = c;
    return ncclSuccess;
  }
  if (r == ncclSuccess && !blocking) {
    atomic_store(&c->error, ncclInProgress);
    *comm = c;
    return ncclInProgress;
  }
  if (r == ncclSuccess) r = sim_nccl_wait_for_all(c);
  if (r == ncclSuccess) *comm = c;
  else sim_nccl_close(c);
  if (r != ncclSuccess && sim_nccl_group.depth > 0) sim_nccl_group.error = r;
  return r;
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank) {
  return init_rank(comm, ranks, &id, rank, true);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config) {
  if (config != NULL && (config->magic != 0xcafebeef || config->size != sizeof *config))
    return REFUSE(NULL, ncclInvalidArgument, "the config does not come from NCCL_CONFIG_INITIALIZER");
  return init_rank(comm, ranks, &id, rank, config == NULL || config->blocking != 0);
}

ncclResult_t ncclCommInitAll(ncclComm_t *comms, int ranks, const int *devices) {
  ncclUniqueId id;
  int before = 0;
  if (comms == NULL || ranks < 1) return REFUSE(NULL, ncclInvalidArgument, "no place for communicators");
  memset(comms, 0, (size_t)ranks * sizeof *comms);
  if (cudaGetDevice(&before) != cudaSuccess) return ncclUnhandledCudaError;
  ncclResult_t r = ncclGetUniqueId(&id), ended;
  ncclGroupStart();
  for (int i = 0; i < ranks && r == ncclSuccess; i++)
    r = cudaSetDevice(devices == NULL ? i : devices[i]) == cudaSuccess ? init_rank(&comms[i], ranks, &id, i, true)
                                                                       : ncclUnhandledCudaError;
  if (r != ncclSuccess) sim_nccl_group.error = r; /* those that joined must not wait */
  ended = ncclGroupEnd();
  cudaSetDevice(before);
  return r == ncclSuccess ? ended : r;
}

ncclResult_t sim_nccl_check(ncclComm_t c, const char *function) {
  if (sim_object_is(c, MARK_COMM)) return ncclSuccess;
  return sim_nccl_refuse(NULL, ncclInvalidArgument, function, "not a live communicator");
}

/* What was issued runs to its end (or gives up, where the communicator is aborted). */
static void drain(ncclComm_t c) {
  int before = 0;
  cudaGetDevice(&before);
  cudaSetDevice(c->device);
  if (atomic_load(&c->completed) < c->issued) cudaDeviceSynchronize();
  cudaSetDevice(before);
}

ncclResult_t ncclCommFinalize(ncclComm_t c) {
  ncclResult_t r = c == NULL ? ncclSuccess : sim_nccl_check(c, __func__);
  if (r == ncclSuccess && c != NULL) drain(c);
  return r;
}

static ncclResult_t leave(ncclComm_t c, const char *function, state how) {
  ncclResult_t r = sim_nccl_check(c, function);
  if (r != ncclSuccess) return r;
  if (how == ABORTED) atomic_store(&c->aborted, true);
  drain(c);
  if (!c->ready) shm_unlink(c->name);
  atomic_store(&c->shared->slots[c->rank].state, how);
  sim_nccl_close(c);
  return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t c) { return c == NULL ? ncclSuccess : leave(c, __func__, LEFT); }
ncclResult_t ncclCommAbort(ncclComm_t c) {
  sim_hang_on_request(__func__);
  return c == NULL ? ncclSuccess : leave(c, __func__, ABORTED);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *error) {
  ncclResult_t r = sim_nccl_check(c, __func__);
  if (r != ncclSuccess) return r;
  if (error == NULL) return REFUSE(c, ncclInvalidArgument, "no place for the error");
  if (!c->ready && atomic_load(&c->error) == ncclInProgress && atomic_load(&c->shared->joined) == c->ranks)
    atomic_store(&c->error, check_devices(c));
  else sim_nccl_look_at_peers(c);
  *error = (ncclResult_t)atomic_load(&c->error);
  return ncclSuccess;
}

static ncclResult_t give(ncclComm_t c, const char *function, int value, int *to) {
  ncclResult_t r = sim_nccl_check(c, function);
  if (r == ncclSuccess && to == NULL)
    return sim_nccl_refuse(c, ncclInvalidArgument, function, "no place for the number");
  if (r == ncclSuccess) *to = value;
  return r;
}

ncclResult_t ncclCommCount(const ncclComm_t c, int *n) { return give(c, __func__, c == NULL ? 0 : c->ranks, n); }
ncclResult_t ncclCommCuDevice(const ncclComm_t c, int *n) { return give(c, __func__, c == NULL ? 0 : c->device, n); }
ncclResult_t ncclCommUserRank(const ncclComm_t c, int *n) { return give(c, __func__, c == NULL ? 0 : c->rank, n); }
