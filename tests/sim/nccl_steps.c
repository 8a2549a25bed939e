/* nccl_steps.c: one step of an NCCL operation.
 *
 * Collective operations all go the same way: every rank streams what it gives to all others, chunk by chunk through the
 * ring of its slot, and takes from every chunk what is its own. Ranks first tell each other what they are about to do, so
 * that operations that do not match are found. */
#include <stdio.h>
#include <string.h>

#include "nccl_comm.h"

const char *const sim_nccl_names[] = {"AllReduce", "Reduce", "Broadcast", "AllGather", "ReduceScatter", "Send", "Recv"};

/* ---- numbers ---- */

size_t sim_nccl_type_size(int type) {
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

void sim_nccl_describe(char *text, size_t bytes, int k, int type, int op, int root, uint64_t count) {
  static const char *const ops[] = {" sum", " prod", " max", " min", " avg"};
  bool reduces = k == ALL_REDUCE || k == REDUCE || k == REDUCE_SCATTER, rooted = k == REDUCE || k == BROADCAST;
  int n = snprintf(text, bytes, "%s of %llu %s%s", sim_nccl_names[k], (unsigned long long)count, type_name(type),
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
  sim_nccl_describe(ours, sizeof ours, p->kind, p->type, p->op, p->root, p->count);
  sim_nccl_describe(theirs, sizeof theirs, h->kind, h->type, h->op, h->root, h->count);
  if (atomic_load(&c->error) != ncclInvalidUsage)
    sim_fault("nccl-mismatch", "rank %d calls %s, rank %d %s", c->rank, ours, peer, theirs);
  sim_nccl_refuse(c, ncclInvalidUsage, "NCCL", "rank %d calls %s, rank %d %s", c->rank, ours, peer, theirs);
  atomic_store(&c->error, ncclInvalidUsage);
  return false;
}

/* ---- collective operations ---- */

static uint64_t stream_bytes(const struct ncclComm *c, const part *p) {
  return p->count * sim_nccl_type_size(p->type) * (uint64_t)(p->kind == REDUCE_SCATTER ? c->ranks : 1);
}

/* From device memory into a ring. */
static void give(void *ring, const void *from, size_t bytes) {
  if (sim_memory_read != NULL) sim_memory_read(from, bytes);
  memcpy(ring, from, bytes);
}

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* Takes from chunk [at, at + bytes) of everybody's stream what belongs to this rank. */
static void take_chunk(ncclComm_t c, const part *p, uint64_t at, uint64_t bytes) {
  const unsigned char *of[MAX_RANKS];
  size_t size = sim_nccl_type_size(p->type);
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
      give(own->ring[atomic_load(&own->published) % DEPTH], (const char *)p->from + at, least(CHUNK, total - at));
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
    give(with->ring[atomic_load(&with->published) % DEPTH], (const char *)p->from + at, least(PAIR_CHUNK, total - at));
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

bool sim_nccl_step(ncclComm_t c, part *p, int *waits_for) {
  if (p->kind == SEND) return step_send(c, p, waits_for);
  return p->kind == RECEIVE ? step_receive(c, p, waits_for) : step_collective(c, p, waits_for);
}
