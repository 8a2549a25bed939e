/* nccl.c: NCCL's operations, between ranks that may be processes or threads. An operation is a state machine in a
 * stream's queue: whenever it is asked it moves the chunks that can move (nccl_steps.c), and it is done when its last one
 * has. What waits too long for a rank (TLUA_SIM_NCCL_TIMEOUT seconds) is a fault. */
#include <stdlib.h>
#include <sys/mman.h>

#include "nccl_comm.h"

/* ---- groups ---- */

_Thread_local group sim_nccl_group;

static ncclResult_t end_group(void);

ncclResult_t ncclGroupStart(void) {
  if (sim_nccl_group.depth++ == 0) {
    sim_nccl_group.calls = sim_nccl_group.joins = 0;
    sim_nccl_group.error = ncclSuccess;
  }
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void) {
  if (sim_nccl_group.depth == 0) return REFUSE(NULL, ncclInvalidUsage, "no ncclGroupStart before it");
  return --sim_nccl_group.depth > 0 ? ncclSuccess : end_group();
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
  const char *why = waits_for >= 0 ? sim_nccl_gone(c, waits_for) : NULL;
  sim_nccl_describe(what, sizeof what, p->kind, p->type, p->op, p->root, p->count);
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
  double now = sim_nccl_seconds();
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
    bool some = sim_nccl_step(c, p, &needs);
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
  sim_nccl_look_at_peers(c);
  const char *why = waits_for >= 0 ? sim_nccl_gone(c, waits_for) : NULL;
  if (why != NULL && atomic_load(&c->error) == ncclSuccess) {
    atomic_store(&c->error, ncclRemoteError);
    sim_nccl_refuse(c, ncclRemoteError, "NCCL", "rank %d %s, and others still need it", waits_for, why);
  }
  if (now - t->moved_at > sim_nccl_patience()) stuck(t, last, waits_for);
  return 0;
}

static void add_part_ranges(sim_ranges *r, const struct ncclComm *c, const part *p) {
  size_t block = p->count * sim_nccl_type_size(p->type), whole = block * (size_t)c->ranks;
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
    sim_ranges_overlap(&one, sim_nccl_names[t->part[i].kind]);
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
  cudaError_t e = sim_enqueue_poll(stream, sim_nccl_names[t->part[0].kind], poll_item, t, bytes, r.count, r.range);
  cudaSetDevice(before);
  bool counted = e == cudaSuccess && !t->captured;
  free(t);
  if (counted) c->issued++;
  if (e == cudaSuccess) return ncclSuccess;
  return sim_nccl_refuse(c, ncclUnhandledCudaError, "NCCL", "%s", cudaGetErrorName(e));
}

static ncclResult_t end_group(void) {
  ncclResult_t r = sim_nccl_group.error;
  for (int i = 0; i < sim_nccl_group.joins; i++) {
    ncclComm_t c = sim_nccl_group.join[i].comm;
    ncclResult_t one = r == ncclSuccess ? sim_nccl_wait_for_all(c) : r;
    if (one == ncclSuccess) continue;
    r = one;
    *sim_nccl_group.join[i].place = NULL;
    shm_unlink(c->name);
    sim_nccl_close(c);
  }
  for (int i = 0; i < sim_nccl_group.calls && r == ncclSuccess; i++)
    if (sim_nccl_group.call[i].comm != NULL)
      r = enqueue(sim_nccl_group.call[i].comm, sim_nccl_group.call[i].stream, sim_nccl_group.call + i,
                  sim_nccl_group.calls - i);
  free(sim_nccl_group.call);
  sim_nccl_group.call = NULL;
  sim_nccl_group.calls = sim_nccl_group.room = sim_nccl_group.joins = 0;
  return r;
}

/* ---- communication: calls ---- */

static ncclResult_t issue(const char *function, ncclComm_t c, cudaStream_t stream, part p, bool needs_from,
                          bool needs_to) {
  ncclResult_t r = sim_nccl_check(c, function);
  if (r == ncclSuccess && sim_call_fails(function))
    r = sim_nccl_refuse(c, ncclInternalError, function, "fails on request (TLUA_SIM_FAIL)");
  if (r == ncclSuccess && !c->ready)
    r = sim_nccl_refuse(c, ncclInvalidUsage, function, "not every rank has joined yet");
  if (r == ncclSuccess && sim_nccl_type_size(p.type) == 0)
    r = sim_nccl_refuse(c, ncclInvalidArgument, function, "type %d is unknown, or not modelled", p.type);
  if (r == ncclSuccess && (p.op < ncclSum || p.op > ncclAvg))
    r = sim_nccl_refuse(c, ncclInvalidArgument, function, "operation %d is unknown, or not modelled", p.op);
  if (r == ncclSuccess && (p.root < 0 || p.root >= c->ranks))
    r = sim_nccl_refuse(c, ncclInvalidArgument, function, "rank %d of %d", p.root, c->ranks);
  if (r == ncclSuccess && p.count > 0 && ((needs_from && p.from == NULL) || (needs_to && p.to == NULL)))
    r = sim_nccl_refuse(c, ncclInvalidArgument, function, "a buffer is NULL");
  if (r == ncclSuccess && p.kind >= SEND && p.root == c->rank && sim_nccl_group.depth == 0)
    r = sim_nccl_refuse(c, ncclInvalidUsage, function, "a rank sends to itself within a group only");
  if (r == ncclSuccess && sim_nccl_group.joins > 0)
    r = sim_nccl_refuse(c, ncclInvalidUsage, function, "a group joins ranks or communicates, not both");
  if (r != ncclSuccess) {
    if (sim_nccl_group.depth > 0 && sim_nccl_group.error == ncclSuccess) sim_nccl_group.error = r;
    return r;
  }
  call one = {.comm = c, .stream = stream, .part = p};
  if (sim_nccl_group.depth == 0) return enqueue(c, stream, &one, 1);
  if (sim_nccl_group.calls == sim_nccl_group.room) {
    sim_nccl_group.room = sim_nccl_group.room == 0 ? 16 : 2 * sim_nccl_group.room;
    call *grown = realloc(sim_nccl_group.call, (size_t)sim_nccl_group.room * sizeof *grown);
    if (grown == NULL) return ncclSystemError;
    sim_nccl_group.call = grown;
  }
  sim_nccl_group.call[sim_nccl_group.calls++] = one;
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
