/* nccl.c: NCCL over shared memory, so that ranks may be processes or threads. An operation is a state machine in a
 * stream's queue: whenever it is asked it moves the chunks that can move, and it is done when its last one has. Ranks tell
 * each other what they are about to do, so that operations that do not match are found; what waits too long for a rank
 * (TLUA_SIM_NCCL_TIMEOUT seconds, default 60) is a fault.
 *
 * A unique id names a shared memory object with a slot for each rank: the headers of its latest operations and a ring of
 * chunks that all others read, and a ring for each pair of sender and receiver. Collective operations all go the same way:
 * every rank streams what it gives to all others, chunk by chunk, and takes from every chunk what is its own. A rank lives
 * while it holds the lock on its byte of the object, which no way of dying leaves behind. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <nccl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "library.h"
#include "runtime.h"

enum {
  MAX_RANKS = 16,
  CHUNK = 1 << 15,      /* bytes */
  PAIR_CHUNK = 1 << 12, /* of a pair's ring */
  DEPTH = 4,            /* chunks of a ring */
  HEADERS = 8,          /* a rank is ahead of others by fewer operations than this */
  MARK_COMM = 0x4e43434d,
  MAGIC = 0x746c6e63
};

/* ---- what lies in shared memory ---- */

typedef enum kind { ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, SEND, RECEIVE } kind;
static const char *const kind_names[] = {"AllReduce",     "Reduce", "Broadcast", "AllGather",
                                         "ReduceScatter", "Send",   "Recv"};

typedef struct header {
  _Atomic uint64_t number; /* of the operation, from 1; written last */
  int32_t kind, type, op, root;
  uint64_t count;
} header;

typedef enum state { ABSENT, JOINED, LEFT, ABORTED } state;

typedef struct slot {
  _Atomic int state;
  int device;
  header headers[HEADERS];
  _Atomic uint64_t published, done;     /* chunks; collective operations */
  _Atomic uint64_t consumed[MAX_RANKS]; /* chunks of others */
  unsigned char ring[DEPTH][CHUNK];
} slot;

typedef struct pair {
  header headers[HEADERS];
  _Atomic uint64_t published, consumed, done;
  unsigned char ring[DEPTH][PAIR_CHUNK];
} pair;

typedef struct segment {
  uint32_t magic;
  _Atomic int ranks, joined; /* ranks: 0 until the first one tells */
  slot slots[MAX_RANKS];
  pair pairs[MAX_RANKS][MAX_RANKS]; /* [from][to] */
} segment;

/* ---- a communicator ---- */

struct ncclComm {
  uint64_t mark;
  int rank, ranks, device, file;
  segment *shared;
  char name[64];
  bool ready;
  _Atomic int error; /* ncclResult_t of the asynchronous kind */
  _Atomic bool aborted;
  uint64_t issued;            /* group items that were enqueued */
  _Atomic uint64_t completed; /* and done, in this order */
  uint64_t collectives, sent[MAX_RANKS], received[MAX_RANKS];
  double looked_at; /* when peers were last seen alive */
  char text[256];   /* of the last error */
};

static _Thread_local char last_error[256];

static ncclResult_t refuse(ncclComm_t comm, ncclResult_t result, const char *function, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
static ncclResult_t refuse(ncclComm_t comm, ncclResult_t result, const char *function, const char *format, ...) {
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
#define REFUSE(comm, result, ...) refuse((comm), (result), __func__, __VA_ARGS__)

static double seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double patience(void) { return (double)sim_setting("TLUA_SIM_NCCL_TIMEOUT", 60); }

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

/* Whether a rank takes part no more, in a word, or NULL. */
static const char *gone(const struct ncclComm *c, int rank) {
  int s = atomic_load(&c->shared->slots[rank].state);
  if (rank == c->rank) return NULL;
  if (s == LEFT) return "has left";
  if (s == ABORTED) return "has aborted";
  return s == JOINED && !lock_rank(c, rank, true) ? "is dead" : NULL;
}

/* Every few milliseconds: is a rank dead or aborted? One that has left has perhaps given all that is still needed. */
static void look_at_peers(struct ncclComm *c) {
  double now = seconds();
  if (now - c->looked_at < 0.005) return;
  c->looked_at = now;
  for (int r = 0; r < c->ranks; r++) {
    const char *why = gone(c, r);
    if (why == NULL || strcmp(why, "has left") == 0 || atomic_load(&c->error) != ncclSuccess) continue;
    atomic_store(&c->error, ncclRemoteError);
    refuse(c, ncclRemoteError, "NCCL", "rank %d %s", r, why);
  }
}

/* ---- joining ---- */

static void close_comm(ncclComm_t c) {
  if (c->shared != NULL) munmap(c->shared, sizeof *c->shared);
  if (c->file >= 0) close(c->file);
  sim_object_destroy(c);
}

static ncclResult_t attach(ncclComm_t c, const ncclUniqueId *id) {
  snprintf(c->name, sizeof c->name, "%.63s", id->internal);
  c->file = strncmp(c->name, "/tlua-nccl-", 11) == 0 ? shm_open(c->name, O_RDWR | O_CLOEXEC, 0600) : -1;
  if (c->file < 0) return REFUSE(NULL, ncclInvalidArgument, "the id is not one of ncclGetUniqueId, or was used before");
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
        return refuse(c, ncclInvalidUsage, "ncclCommInitRank", "ranks %d and %d are both on device %d", j, i,
                      c->shared->slots[i].device);
  c->ready = true;
  return ncclSuccess;
}

static ncclResult_t wait_for_all(ncclComm_t c) {
  double start = seconds();
  while (atomic_load(&c->shared->joined) < c->ranks) {
    for (int r = 0; r < c->ranks; r++)
      if (gone(c, r) != NULL) return refuse(c, ncclRemoteError, "ncclCommInitRank", "rank %d %s", r, gone(c, r));
    if (seconds() - start > patience()) {
      shm_unlink(c->name);
      sim_fault("nccl-hang", "ncclCommInitRank: rank %d of %d waits for %d others that do not join", c->rank, c->ranks,
                c->ranks - atomic_load(&c->shared->joined));
      return refuse(c, ncclSystemError, "ncclCommInitRank", "others do not join");
    }
    nap();
  }
  return check_devices(c);
}

/* ---- groups ---- */

typedef struct part {
  kind kind;
  ncclDataType_t type;
  ncclRedOp_t op;
  int root; /* or the peer */
  const void *from;
  void *to;
  uint64_t count;
  /* progress */
  uint64_t number, published, consumed, chunks;
  bool started, done, matched[MAX_RANKS];
} part;

typedef struct joining {
  ncclComm_t *place;
  ncclComm_t comm;
} joining;

typedef struct call {
  ncclComm_t comm;
  cudaStream_t stream;
  part part;
} call;

static _Thread_local struct {
  int depth, calls, room, joins;
  call *call;
  joining join[MAX_RANKS];
  ncclResult_t error;
} group;

static ncclResult_t end_group(void);

ncclResult_t ncclGroupStart(void) {
  if (group.depth++ == 0) {
    group.calls = group.joins = 0;
    group.error = ncclSuccess;
  }
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void) {
  if (group.depth == 0) return REFUSE(NULL, ncclInvalidUsage, "no ncclGroupStart before it");
  return --group.depth > 0 ? ncclSuccess : end_group();
}

/* ---- communicators: calls ---- */

static ncclResult_t init_rank(ncclComm_t *comm, int ranks, const ncclUniqueId *id, int rank, bool blocking) {
  if (comm == NULL) return REFUSE(NULL, ncclInvalidArgument, "no place for the communicator");
  *comm = NULL;
  if (ranks < 1 || rank < 0 || rank >= ranks) return REFUSE(NULL, ncclInvalidArgument, "rank %d of %d", rank, ranks);
  if (ranks > MAX_RANKS) return REFUSE(NULL, ncclSystemError, "%d ranks: %d are modelled", ranks, MAX_RANKS);
  if (sim_call_fails("ncclCommInitRank")) return REFUSE(NULL, ncclSystemError, "fails on request (TLUA_SIM_FAIL)");
  if (group.depth > 0 && (group.calls > 0 || group.joins == MAX_RANKS))
    return REFUSE(NULL, ncclInvalidUsage, "a group joins ranks or communicates, not both");
  ncclComm_t c = sim_object_create(MARK_COMM, sizeof *c);
  if (c == NULL) return ncclSystemError;
  c->rank = rank, c->ranks = ranks, c->file = -1;
  ncclResult_t r = cudaGetDevice(&c->device) == cudaSuccess ? attach(c, id) : ncclUnhandledCudaError;
  if (r == ncclSuccess && group.depth > 0) {
    group.join[group.joins++] = (joining){.place = comm, .comm = c};
    *comm = c;
    return ncclSuccess;
  }
  if (r == ncclSuccess && !blocking) {
    atomic_store(&c->error, ncclInProgress);
    *comm = c;
    return ncclInProgress;
  }
  if (r == ncclSuccess) r = wait_for_all(c);
  if (r == ncclSuccess) *comm = c;
  else close_comm(c);
  if (r != ncclSuccess && group.depth > 0) group.error = r;
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
  if (r != ncclSuccess) group.error = r; /* those that joined must not wait */
  ended = ncclGroupEnd();
  cudaSetDevice(before);
  return r == ncclSuccess ? ended : r;
}

static ncclResult_t check_comm(ncclComm_t c, const char *function) {
  if (sim_object_is(c, MARK_COMM)) return ncclSuccess;
  return refuse(NULL, ncclInvalidArgument, function, "not a live communicator");
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
  ncclResult_t r = c == NULL ? ncclSuccess : check_comm(c, __func__);
  if (r == ncclSuccess && c != NULL) drain(c);
  return r;
}

static ncclResult_t leave(ncclComm_t c, const char *function, state how) {
  ncclResult_t r = check_comm(c, function);
  if (r != ncclSuccess) return r;
  if (how == ABORTED) atomic_store(&c->aborted, true);
  drain(c);
  if (!c->ready) shm_unlink(c->name);
  atomic_store(&c->shared->slots[c->rank].state, how);
  close_comm(c);
  return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t c) { return c == NULL ? ncclSuccess : leave(c, __func__, LEFT); }
ncclResult_t ncclCommAbort(ncclComm_t c) { return c == NULL ? ncclSuccess : leave(c, __func__, ABORTED); }

ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *error) {
  ncclResult_t r = check_comm(c, __func__);
  if (r != ncclSuccess) return r;
  if (error == NULL) return REFUSE(c, ncclInvalidArgument, "no place for the error");
  if (!c->ready && atomic_load(&c->error) == ncclInProgress && atomic_load(&c->shared->joined) == c->ranks)
    atomic_store(&c->error, check_devices(c));
  else look_at_peers(c);
  *error = (ncclResult_t)atomic_load(&c->error);
  return ncclSuccess;
}

static ncclResult_t give(ncclComm_t c, const char *function, int value, int *to) {
  ncclResult_t r = check_comm(c, function);
  if (r == ncclSuccess && to == NULL) return refuse(c, ncclInvalidArgument, function, "no place for the number");
  if (r == ncclSuccess) *to = value;
  return r;
}

ncclResult_t ncclCommCount(const ncclComm_t c, int *n) { return give(c, __func__, c == NULL ? 0 : c->ranks, n); }
ncclResult_t ncclCommCuDevice(const ncclComm_t c, int *n) { return give(c, __func__, c == NULL ? 0 : c->device, n); }
ncclResult_t ncclCommUserRank(const ncclComm_t c, int *n) { return give(c, __func__, c == NULL ? 0 : c->rank, n); }

/* ---- numbers ---- */

static size_t type_size(int type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8: return 1;
    case ncclFloat16:
    case ncclBfloat16: return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32: return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64: return 8;
    default: return 0;
  }
}

static sim_type float_type(int type) {
  switch (type) {
    case ncclFloat16: return SIM_F16;
    case ncclBfloat16: return SIM_BF16;
    case ncclFloat32: return SIM_F32;
    case ncclFloat64: return SIM_F64;
    default: return SIM_NO_TYPE;
  }
}

/* Rounded to the type after every step, as the real kernels do; a nan wins a maximum. */
static void reduce_floats(sim_type type, int op, void *to, const void *x, size_t n) {
  for (size_t i = 0; i < n; i++) {
    double a = sim_load(type, to, (int64_t)i), b = sim_load(type, x, (int64_t)i), v;
    if (op == ncclProd) v = a * b;
    else if (op == ncclMax) v = a != a || a > b ? a : b;
    else if (op == ncclMin) v = a != a || a < b ? a : b;
    else v = a + b;
    sim_store(type, to, (int64_t)i, v);
  }
}

#define REDUCE_INTEGERS(type)                                                  \
  {                                                                            \
    type *a = to;                                                              \
    const type *b = x;                                                         \
    for (size_t i = 0; i < n; i++) {                                           \
      if (op == ncclMax) a[i] = a[i] > b[i] ? a[i] : b[i];                     \
      else if (op == ncclMin) a[i] = a[i] < b[i] ? a[i] : b[i];                \
      else if (op == ncclProd) a[i] = (type)((uint64_t)a[i] * (uint64_t)b[i]); \
      else a[i] = (type)((uint64_t)a[i] + (uint64_t)b[i]);                     \
    }                                                                          \
    break;                                                                     \
  }

static void reduce(int type, int op, void *to, const void *x, size_t n) {
  switch (type) {
    case ncclInt8: REDUCE_INTEGERS(int8_t)
    case ncclUint8: REDUCE_INTEGERS(uint8_t)
    case ncclInt32: REDUCE_INTEGERS(int32_t)
    case ncclUint32: REDUCE_INTEGERS(uint32_t)
    case ncclInt64: REDUCE_INTEGERS(int64_t)
    case ncclUint64: REDUCE_INTEGERS(uint64_t)
    default: reduce_floats(float_type(type), op, to, x, n);
  }
}

#define DIVIDE_INTEGERS(type)                                                             \
  for (size_t i = 0; i < n; i++) ((type *)to)[i] = (type)(((type *)to)[i] / (type)ranks); \
  break;

static void divide(int type, void *to, size_t n, int ranks) {
  switch (type) {
    case ncclInt8: DIVIDE_INTEGERS(int8_t)
    case ncclUint8: DIVIDE_INTEGERS(uint8_t)
    case ncclInt32: DIVIDE_INTEGERS(int32_t)
    case ncclUint32: DIVIDE_INTEGERS(uint32_t)
    case ncclInt64: DIVIDE_INTEGERS(int64_t)
    case ncclUint64: DIVIDE_INTEGERS(uint64_t)
    default:
      for (size_t i = 0; i < n; i++) {
        sim_type t = float_type(type);
        sim_store(t, to, (int64_t)i, sim_load(t, to, (int64_t)i) / ranks);
      }
  }
}

/* ---- headers ---- */

static void post(header *h, const part *p) {
  h->kind = (int32_t)p->kind, h->type = (int32_t)p->type, h->op = (int32_t)p->op, h->root = p->root;
  h->count = p->count;
  atomic_store(&h->number, p->number + 1);
}

static const char *type_name(int type) {
  static const char *const names[] = {"int8",   "uint8",   "int32",   "uint32",  "int64",
                                      "uint64", "float16", "float32", "float64", "bfloat16"};
  return type >= 0 && type < 10 ? names[type] : "?";
}

static void describe(char *text, size_t bytes, int k, int type, int op, int root, uint64_t count) {
  static const char *const ops[] = {" sum", " prod", " max", " min", " avg"};
  bool reduces = k == ALL_REDUCE || k == REDUCE || k == REDUCE_SCATTER, rooted = k == REDUCE || k == BROADCAST;
  int n = snprintf(text, bytes, "%s of %llu %s%s", kind_names[k], (unsigned long long)count, type_name(type),
                   reduces ? ops[op] : "");
  if (rooted && n >= 0 && (size_t)n < bytes) snprintf(text + n, bytes - (size_t)n, " at root %d", root);
}

/* Is what a peer is about to do what we do? */
static bool matches(ncclComm_t c, const part *p, int peer, const header *h) {
  bool pair = p->kind == SEND || p->kind == RECEIVE;
  if ((pair || h->kind == (int32_t)p->kind) && h->type == (int32_t)p->type && h->count == p->count &&
      (pair || (h->op == (int32_t)p->op && h->root == p->root)))
    return true;
  char ours[128], theirs[128];
  describe(ours, sizeof ours, p->kind, p->type, p->op, p->root, p->count);
  describe(theirs, sizeof theirs, h->kind, h->type, h->op, h->root, h->count);
  if (atomic_load(&c->error) != ncclInvalidUsage)
    sim_fault("nccl-mismatch", "rank %d calls %s, rank %d %s", c->rank, ours, peer, theirs);
  refuse(c, ncclInvalidUsage, "NCCL", "rank %d calls %s, rank %d %s", c->rank, ours, peer, theirs);
  atomic_store(&c->error, ncclInvalidUsage);
  return false;
}

/* ---- collective operations ---- */

static uint64_t stream_bytes(const struct ncclComm *c, const part *p) {
  return p->count * type_size(p->type) * (uint64_t)(p->kind == REDUCE_SCATTER ? c->ranks : 1);
}

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* Takes from chunk [at, at + bytes) of everybody's stream what belongs to this rank. */
static void take_chunk(ncclComm_t c, const part *p, uint64_t at, uint64_t bytes) {
  const unsigned char *of[MAX_RANKS];
  size_t size = type_size(p->type);
  uint64_t block = p->count * size;
  for (int r = 0; r < c->ranks; r++) {
    uint64_t index = r == c->rank ? atomic_load(&c->shared->slots[r].published) - p->published + p->consumed
                                  : atomic_load(&c->shared->slots[c->rank].consumed[r]);
    of[r] = c->shared->slots[r].ring[index % DEPTH];
  }
  unsigned char *to = p->to;
  if (p->kind == BROADCAST) {
    memcpy(to + at, of[p->root], bytes);
    return;
  }
  if (p->kind == ALL_GATHER) {
    for (int r = 0; r < c->ranks; r++) memcpy(to + (uint64_t)r * block + at, of[r], bytes);
    return;
  }
  uint64_t from = at, end = at + bytes; /* what of it is reduced here */
  if (p->kind == REDUCE_SCATTER) {
    uint64_t first = (uint64_t)c->rank * block;
    from = from < first ? first : from;
    end = least(end, first + block);
    if (from >= end) return;
    to -= first;
  }
  if (p->kind == REDUCE && p->root != c->rank) return;
  uint64_t skip = from - at;
  size_t n = (size_t)((end - from) / size);
  _Alignas(8) unsigned char sum[CHUNK];
  memcpy(sum, of[0] + skip, end - from);
  for (int r = 1; r < c->ranks; r++) reduce(p->type, p->op, sum, of[r] + skip, n);
  if (p->op == ncclAvg) divide(p->type, sum, n, c->ranks);
  memcpy(to + from, sum, end - from);
}

static bool everyone_has_room(const struct ncclComm *c) {
  uint64_t published = atomic_load(&c->shared->slots[c->rank].published);
  for (int r = 0; r < c->ranks; r++)
    if (r != c->rank && published >= atomic_load(&c->shared->slots[r].consumed[c->rank]) + DEPTH) return false;
  return true;
}

/* -1: all have a chunk for us */
static int who_lacks_a_chunk(ncclComm_t c, part *p) {
  for (int r = 0; r < c->ranks; r++) {
    if (r == c->rank || (p->matched[r] && atomic_load(&c->shared->slots[r].published) >
                                              atomic_load(&c->shared->slots[c->rank].consumed[r])))
      continue;
    return r;
  }
  return -1;
}

/* Compares headers as they come. Returns the first rank that has not posted its own, -1 if all have; -2: no match. */
static int meet(ncclComm_t c, part *p) {
  int missing = -1;
  for (int r = 0; r < c->ranks; r++) {
    const header *h = &c->shared->slots[r].headers[p->number % HEADERS];
    if (r == c->rank || p->matched[r]) continue;
    if (atomic_load(&h->number) != p->number + 1) {
      if (missing < 0) missing = r;
      continue;
    }
    if (!matches(c, p, r, h)) return -2;
    p->matched[r] = true;
  }
  return missing;
}

/* One step of a collective operation. Returns whether anything moved; *waits_for: the rank it needs next. */
static bool step_collective(ncclComm_t c, part *p, int *waits_for) {
  slot *own = &c->shared->slots[c->rank];
  uint64_t total = stream_bytes(c, p);
  bool moved = false;
  if (!p->started) {
    p->number = c->collectives;
    for (int r = 0; r < c->ranks; r++)
      if (p->number >= atomic_load(&c->shared->slots[r].done) + HEADERS) return *waits_for = r, false;
    c->collectives++;
    p->chunks = (total + CHUNK - 1) / CHUNK;
    p->started = moved = true;
    post(&own->headers[p->number % HEADERS], p);
  }
  int missing = meet(c, p);
  if (missing == -2) return false;
  while (p->published < p->chunks && p->published < p->consumed + DEPTH && everyone_has_room(c)) {
    uint64_t at = p->published * CHUNK;
    bool gives = p->kind != BROADCAST || p->root == c->rank;
    if (gives)
      memcpy(own->ring[atomic_load(&own->published) % DEPTH], (const char *)p->from + at, least(CHUNK, total - at));
    p->published++;
    atomic_fetch_add(&own->published, 1);
    moved = true;
  }
  while (p->consumed < p->published && (*waits_for = who_lacks_a_chunk(c, p)) < 0) {
    uint64_t at = p->consumed * CHUNK;
    take_chunk(c, p, at, least(CHUNK, total - at));
    p->consumed++;
    for (int r = 0; r < c->ranks; r++)
      if (r != c->rank) atomic_fetch_add(&own->consumed[r], 1);
    moved = true;
  }
  if (p->consumed == p->chunks && missing == -1) {
    atomic_fetch_add(&own->done, 1);
    p->done = moved = true;
  } else if (missing >= 0) {
    *waits_for = missing;
  } else if (*waits_for < 0) {
    for (int r = 0; r < c->ranks; r++) /* somebody does not read */
      if (r != c->rank && atomic_load(&own->published) >= atomic_load(&c->shared->slots[r].consumed[c->rank]) + DEPTH)
        *waits_for = r;
  }
  return moved;
}

/* ---- from one rank to another ---- */

static bool step_send(ncclComm_t c, part *p, int *waits_for) {
  pair *with = &c->shared->pairs[c->rank][p->root];
  uint64_t total = stream_bytes(c, p);
  bool moved = false;
  *waits_for = p->root;
  if (!p->started) {
    p->number = c->sent[p->root];
    if (p->number >= atomic_load(&with->done) + HEADERS) return false;
    c->sent[p->root]++;
    p->chunks = (total + PAIR_CHUNK - 1) / PAIR_CHUNK;
    p->started = moved = true;
    post(&with->headers[p->number % HEADERS], p);
  }
  while (p->published < p->chunks && atomic_load(&with->published) < atomic_load(&with->consumed) + DEPTH) {
    if (atomic_load(&with->done) != p->number) break; /* an earlier one is still read */
    uint64_t at = p->published * PAIR_CHUNK;
    memcpy(with->ring[atomic_load(&with->published) % DEPTH], (const char *)p->from + at,
           least(PAIR_CHUNK, total - at));
    p->published++;
    atomic_fetch_add(&with->published, 1);
    moved = true;
  }
  if (p->published == p->chunks && atomic_load(&with->done) > p->number) p->done = moved = true;
  return moved;
}

static bool step_receive(ncclComm_t c, part *p, int *waits_for) {
  pair *with = &c->shared->pairs[p->root][c->rank];
  uint64_t total = stream_bytes(c, p);
  bool moved = false;
  *waits_for = p->root;
  if (!p->started) {
    p->number = c->received[p->root]++;
    p->chunks = (total + PAIR_CHUNK - 1) / PAIR_CHUNK;
    p->started = moved = true;
  }
  const header *h = &with->headers[p->number % HEADERS];
  if (!p->matched[0]) {
    if (atomic_load(&h->number) != p->number + 1 || !matches(c, p, p->root, h)) return moved;
    p->matched[0] = moved = true;
  }
  if (atomic_load(&with->done) != p->number) return moved; /* an earlier one has not got its chunks yet */
  while (p->consumed < p->chunks && atomic_load(&with->published) > atomic_load(&with->consumed)) {
    uint64_t at = p->consumed * PAIR_CHUNK;
    memcpy((char *)p->to + at, with->ring[atomic_load(&with->consumed) % DEPTH], least(PAIR_CHUNK, total - at));
    p->consumed++;
    atomic_fetch_add(&with->consumed, 1);
    moved = true;
  }
  if (p->consumed == p->chunks) {
    atomic_fetch_add(&with->done, 1);
    p->done = moved = true;
  }
  return moved;
}

/* ---- an item of a stream: the calls of a group on one communicator and stream ---- */

typedef struct item {
  ncclComm_t comm;
  bool started, captured;
  uint64_t ticket;           /* items of a communicator run one after the other, but for what a graph replays */
  double asked_at, moved_at; /* seconds */
  int parts;
  part part[];
} item;

static void stuck(item *t, const part *p, int waits_for) {
  ncclComm_t c = t->comm;
  char what[128];
  const char *why = waits_for >= 0 ? gone(c, waits_for) : NULL;
  describe(what, sizeof what, p->kind, p->type, p->op, p->root, p->count);
  sim_fault("nccl-hang", "%s of rank %d waits for rank %d, which %s", what, c->rank, waits_for,
            why != NULL ? why : "does not take part in it");
  atomic_store(&c->error, ncclRemoteError);
  atomic_store(&c->aborted, true); /* where faults are only counted: or nothing would ever end */
}

static int finished(item *t) {
  if (!t->captured) atomic_fetch_add(&t->comm->completed, 1);
  return 1;
}

static int poll_item(void *data, int device) {
  (void)device;
  item *t = data;
  ncclComm_t c = t->comm;
  double now = seconds();
  if (!t->started) {
    if (!t->captured && atomic_load(&c->completed) < t->ticket && !atomic_load(&c->aborted)) return 0;
    t->started = true;
    t->moved_at = now;
  } else if (now - t->asked_at > 1) {
    t->moved_at = now; /* nobody waited meanwhile, here or elsewhere */
  }
  t->asked_at = now;
  if (atomic_load(&c->aborted)) return finished(t);
  bool moved = false, all_done = true;
  int waits_for = -1;
  const part *last = NULL;
  for (int i = 0; i < t->parts; i++) {
    part *p = &t->part[i];
    if (p->done) continue;
    int needs = -1;
    bool some = p->kind == SEND      ? step_send(c, p, &needs)
                : p->kind == RECEIVE ? step_receive(c, p, &needs)
                                     : step_collective(c, p, &needs);
    moved = moved || some;
    if (p->done) continue;
    all_done = false;
    if (last == NULL) last = p, waits_for = needs;
    if (p->kind < SEND) break; /* collective operations keep their order */
  }
  if (all_done) return finished(t);
  if (moved) {
    t->moved_at = now;
    return 0;
  }
  look_at_peers(c);
  const char *why = waits_for >= 0 ? gone(c, waits_for) : NULL;
  if (why != NULL && atomic_load(&c->error) == ncclSuccess) {
    atomic_store(&c->error, ncclRemoteError);
    refuse(c, ncclRemoteError, "NCCL", "rank %d %s, and others still need it", waits_for, why);
  }
  if (now - t->moved_at > patience()) stuck(t, last, waits_for);
  return 0;
}

static void add_part_ranges(sim_ranges *r, const struct ncclComm *c, const part *p) {
  size_t block = p->count * type_size(p->type), whole = block * (size_t)c->ranks;
  bool gives = p->kind != RECEIVE && (p->kind != BROADCAST || p->root == c->rank);
  bool takes = p->kind != SEND && (p->kind != REDUCE || p->root == c->rank);
  size_t in = p->kind == REDUCE_SCATTER ? whole : block, out = p->kind == ALL_GATHER ? whole : block;
  bool in_place = p->kind == ALL_GATHER       ? p->from == (const char *)p->to + (size_t)c->rank * block
                  : p->kind == REDUCE_SCATTER ? p->to == (char *)p->from + (size_t)c->rank * block
                                              : false;
  bool kept = r->overlap;
  if (gives) sim_ranges_add(r, p->from, in, 0);
  if (takes) sim_ranges_add(r, p->to, out, 1);
  if (in_place) r->overlap = kept;
}

static ncclResult_t enqueue(ncclComm_t c, cudaStream_t stream, call *calls, int count) {
  size_t bytes = sizeof(item) + (size_t)count * sizeof(part);
  item *t = sim_scratch(1, bytes);
  for (int i = 0; i < count; i++)
    if (calls[i].comm == c && calls[i].stream == stream) {
      t->part[t->parts++] = calls[i].part;
      calls[i].comm = NULL; /* taken */
    }
  sim_ranges r = {0};
  for (int i = 0; i < t->parts; i++) {
    sim_ranges one = {0};
    add_part_ranges(&one, c, &t->part[i]);
    sim_ranges_overlap(&one, kind_names[t->part[i].kind]);
    for (int j = 0; j < one.count && r.count < 16; j++) r.range[r.count++] = one.range[j];
  }
  enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  cudaStreamIsCapturing(stream, &capture);
  t->comm = c;
  t->captured = capture != cudaStreamCaptureStatusNone;
  t->ticket = c->issued;
  int before = 0;
  cudaGetDevice(&before);
  cudaSetDevice(c->device);
  cudaError_t e = sim_enqueue_poll(stream, kind_names[t->part[0].kind], poll_item, t, bytes, r.count, r.range);
  cudaSetDevice(before);
  bool counted = e == cudaSuccess && !t->captured;
  free(t);
  if (counted) c->issued++;
  if (e == cudaSuccess) return ncclSuccess;
  return refuse(c, ncclUnhandledCudaError, "NCCL", "%s", cudaGetErrorName(e));
}

static ncclResult_t end_group(void) {
  ncclResult_t r = group.error;
  for (int i = 0; i < group.joins; i++) {
    ncclComm_t c = group.join[i].comm;
    ncclResult_t one = r == ncclSuccess ? wait_for_all(c) : r;
    if (one == ncclSuccess) continue;
    r = one;
    *group.join[i].place = NULL;
    shm_unlink(c->name);
    close_comm(c);
  }
  for (int i = 0; i < group.calls && r == ncclSuccess; i++)
    if (group.call[i].comm != NULL)
      r = enqueue(group.call[i].comm, group.call[i].stream, group.call + i, group.calls - i);
  free(group.call);
  group.call = NULL;
  group.calls = group.room = group.joins = 0;
  return r;
}

/* ---- communication: calls ---- */

static ncclResult_t issue(const char *function, ncclComm_t c, cudaStream_t stream, part p, bool needs_from,
                          bool needs_to) {
  ncclResult_t r = check_comm(c, function);
  if (r == ncclSuccess && sim_call_fails(function))
    r = refuse(c, ncclInternalError, function, "fails on request (TLUA_SIM_FAIL)");
  if (r == ncclSuccess && !c->ready) r = refuse(c, ncclInvalidUsage, function, "not every rank has joined yet");
  if (r == ncclSuccess && type_size(p.type) == 0)
    r = refuse(c, ncclInvalidArgument, function, "type %d is unknown, or not modelled", p.type);
  if (r == ncclSuccess && (p.op < ncclSum || p.op > ncclAvg))
    r = refuse(c, ncclInvalidArgument, function, "operation %d is unknown, or not modelled", p.op);
  if (r == ncclSuccess && (p.root < 0 || p.root >= c->ranks))
    r = refuse(c, ncclInvalidArgument, function, "rank %d of %d", p.root, c->ranks);
  if (r == ncclSuccess && p.count > 0 && ((needs_from && p.from == NULL) || (needs_to && p.to == NULL)))
    r = refuse(c, ncclInvalidArgument, function, "a buffer is NULL");
  if (r == ncclSuccess && p.kind >= SEND && p.root == c->rank && group.depth == 0)
    r = refuse(c, ncclInvalidUsage, function, "a rank sends to itself within a group only");
  if (r == ncclSuccess && group.joins > 0)
    r = refuse(c, ncclInvalidUsage, function, "a group joins ranks or communicates, not both");
  if (r != ncclSuccess) {
    if (group.depth > 0 && group.error == ncclSuccess) group.error = r;
    return r;
  }
  call one = {.comm = c, .stream = stream, .part = p};
  if (group.depth == 0) return enqueue(c, stream, &one, 1);
  if (group.calls == group.room) {
    group.room = group.room == 0 ? 16 : 2 * group.room;
    call *grown = realloc(group.call, (size_t)group.room * sizeof *grown);
    if (grown == NULL) return ncclSystemError;
    group.call = grown;
  }
  group.call[group.calls++] = one;
  return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t c,
                           cudaStream_t stream) {
  part p = {.kind = ALL_REDUCE, .type = type, .op = op, .from = from, .to = to, .count = count};
  return issue(__func__, c, stream, p, true, true);
}

ncclResult_t ncclReduce(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t c, cudaStream_t stream) {
  part p = {.kind = REDUCE, .type = type, .op = op, .root = root, .from = from, .to = to, .count = count};
  return issue(__func__, c, stream, p, true, c != NULL && root == c->rank);
}

ncclResult_t ncclBroadcast(const void *from, void *to, size_t count, ncclDataType_t type, int root, ncclComm_t c,
                           cudaStream_t stream) {
  part p = {.kind = BROADCAST, .type = type, .root = root, .from = from, .to = to, .count = count};
  return issue(__func__, c, stream, p, c != NULL && root == c->rank, true);
}

ncclResult_t ncclBcast(void *buffer, size_t count, ncclDataType_t type, int root, ncclComm_t c, cudaStream_t stream) {
  part p = {.kind = BROADCAST, .type = type, .root = root, .from = buffer, .to = buffer, .count = count};
  return issue(__func__, c, stream, p, true, true);
}

ncclResult_t ncclAllGather(const void *from, void *to, size_t count, ncclDataType_t type, ncclComm_t c,
                           cudaStream_t stream) {
  part p = {.kind = ALL_GATHER, .type = type, .from = from, .to = to, .count = count};
  return issue(__func__, c, stream, p, true, true);
}

ncclResult_t ncclReduceScatter(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t c, cudaStream_t stream) {
  part p = {.kind = REDUCE_SCATTER, .type = type, .op = op, .from = from, .to = to, .count = count};
  return issue(__func__, c, stream, p, true, true);
}

ncclResult_t ncclSend(const void *from, size_t count, ncclDataType_t type, int peer, ncclComm_t c,
                      cudaStream_t stream) {
  part p = {.kind = SEND, .type = type, .root = peer, .from = from, .count = count};
  return issue(__func__, c, stream, p, true, false);
}

ncclResult_t ncclRecv(void *to, size_t count, ncclDataType_t type, int peer, ncclComm_t c, cudaStream_t stream) {
  part p = {.kind = RECEIVE, .type = type, .root = peer, .to = to, .count = count};
  return issue(__func__, c, stream, p, false, true);
}
