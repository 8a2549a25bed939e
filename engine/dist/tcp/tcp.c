/* tcp.c: collectives over a mesh of TCP connections. Each has at most two rounds in which every rank exchanges a part with
 * every other at once: in the first, part r goes to rank r, who folds what it got; in the second, rank r's part goes to
 * all. An all-reduce is both (each rank sends 2 (N - 1) / N of the bytes, the least there is), a broadcast sends the
 * root's parts in the first round. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "core/error.h"
#include "core/memory.h"
#include "core/tensor.h"
#include "dist/group.h"
#include "dist/tcp/tcp.h"

static tl_mesh mesh;

/* What still goes to a rank and comes from it in this round. */
typedef struct lane {
  const char *out;
  char *in;
  size_t out_left, in_left;
} lane;

typedef struct request {
  tl_collective c;
  bool another;       /* round is to come */
  char *received;     /* the first round's, of a reduction: a part from each other rank */
  const void **parts; /* of a reduction, by rank */
  lane lanes[];       /* by rank */
} request;

static tl_status open_tcp(int *rank, int *size) {
  const char *address = getenv("MASTER_ADDR"), *port = getenv("MASTER_PORT"),
             *store = getenv("TORCHELASTIC_USE_AGENT_STORE");
  *rank = tl_the_group.rank;
  *size = tl_the_group.size;
  char *end = NULL;
  long number = port == NULL ? 0 : strtol(port, &end, 10);
  if (address == NULL || address[0] == '\0' || number < 1 || number > 65534 || *end != '\0')
    return TL_FAIL(TL_ERR_VALUE, "dist.init",
                   "ranks without MPI want MASTER_ADDR (a host name) and MASTER_PORT (1 to 65534), got '%s' and '%s'",
                   address == NULL ? "" : address, port == NULL ? "" : port);
  /* there torchrun itself listens at the port that it tells its processes */
  if (store != NULL && strcmp(store, "True") == 0) number++;
  return tl_mesh_open(address, (int)number, *rank, *size, tl_the_group.timeout, &mesh);
}

static void close_tcp(bool wait) { tl_mesh_close(&mesh, wait ? tl_the_group.timeout : 0); }

/* The others see the connections end. */
static void abort_tcp(int code) { (void)code; }

/* ---- rounds ---- */

typedef struct span {
  int64_t begin, count;
} span;

/* Rank r's part of n elements. */
static span part_of(int64_t n, int r) {
  int64_t each = n / mesh.size, more = n % mesh.size;
  return (span){each * r + (r < more ? r : more), each + (r < more)};
}

static void send_part(request *r, int to, const void *from, span part) {
  size_t size = tl_dtype_size(r->c.dtype);
  r->lanes[to].out = (const char *)from + (size_t)part.begin * size;
  r->lanes[to].out_left = (size_t)part.count * size;
}

static void receive_part(request *r, int from, void *into, span part) {
  size_t size = tl_dtype_size(r->c.dtype);
  r->lanes[from].in = (char *)into + (size_t)part.begin * size;
  r->lanes[from].in_left = (size_t)part.count * size;
}

static bool reduces(const request *r) {
  return r->c.kind == TL_COLLECTIVE_ALL_REDUCE || r->c.kind == TL_COLLECTIVE_REDUCE_SCATTER;
}

/* A reduction's parts: of all the elements, or the blocks that the ranks keep. */
static span reduced_part(const request *r, int rank) {
  if (r->c.kind == TL_COLLECTIVE_REDUCE_SCATTER) return (span){rank * r->c.count, r->c.count};
  return part_of(r->c.count, rank);
}

static tl_status first_round(request *r) {
  const tl_collective *c = &r->c;
  bool root = c->kind == TL_COLLECTIVE_BROADCAST && c->root == mesh.rank;
  if (root)
    for (int i = 0; i < mesh.size; i++)
      if (i != mesh.rank) send_part(r, i, c->recv, part_of(c->count, i));
  if (!root && c->kind == TL_COLLECTIVE_BROADCAST) receive_part(r, c->root, c->recv, part_of(c->count, mesh.rank));
  if (!reduces(r)) return TL_OK;
  const void *from = c->kind == TL_COLLECTIVE_ALL_REDUCE ? c->recv : c->send;
  span own = reduced_part(r, mesh.rank);
  size_t bytes = (size_t)own.count * tl_dtype_size(c->dtype);
  r->received = tl_host_alloc(bytes * (size_t)(mesh.size - 1) + 1);
  r->parts = tl_host_alloc((size_t)mesh.size * sizeof *r->parts);
  if (r->received == NULL || r->parts == NULL)
    return TL_FAIL(TL_ERR_MEMORY, tl_collective_name(c->kind), "no memory for %zu bytes from each of %d ranks", bytes,
                   mesh.size - 1);
  for (int i = 0, slot = 0; i < mesh.size; i++) {
    if (i == mesh.rank) {
      r->parts[i] = (const char *)from + (size_t)own.begin * tl_dtype_size(c->dtype);
      continue;
    }
    char *into = r->received + bytes * (size_t)slot++;
    r->parts[i] = into;
    send_part(r, i, from, reduced_part(r, i));
    receive_part(r, i, into, (span){0, own.count});
  }
  return TL_OK;
}

static void second_round(request *r) {
  const tl_collective *c = &r->c;
  if (reduces(r)) {
    span own = reduced_part(r, mesh.rank);
    bool whole = c->kind == TL_COLLECTIVE_ALL_REDUCE;
    char *into = (char *)c->recv + (whole ? (size_t)own.begin * tl_dtype_size(c->dtype) : 0);
    tl_fold(c->dtype, c->op, own.count, mesh.size, r->parts, into);
  }
  for (int i = 0; i < mesh.size && c->kind != TL_COLLECTIVE_REDUCE_SCATTER; i++) {
    if (i == mesh.rank) continue;
    if (c->kind == TL_COLLECTIVE_ALL_GATHER) {
      send_part(r, i, c->send, (span){0, c->count});
      receive_part(r, i, c->recv, (span){i * c->count, c->count});
      continue;
    }
    bool broadcast = c->kind == TL_COLLECTIVE_BROADCAST;
    if (!broadcast || i != c->root) send_part(r, i, c->recv, part_of(c->count, mesh.rank));
    if (!broadcast || mesh.rank != c->root) receive_part(r, i, c->recv, part_of(c->count, i));
  }
  if (c->kind != TL_COLLECTIVE_ALL_GATHER) return;
  size_t bytes = (size_t)c->count * tl_dtype_size(c->dtype);
  if (bytes > 0) memcpy((char *)c->recv + bytes * (size_t)mesh.rank, c->send, bytes);
}

/* ---- moving ---- */

static tl_status gone(int rank, int error) {
  if (error != 0 && error != ECONNRESET && error != EPIPE)
    return TL_FAIL(TL_ERR_STATE, "collective", "the connection to rank %d failed: %s", rank, strerror(error));
  return TL_FAIL(TL_ERR_STATE, "collective", "rank %d has ended", rank);
}

static tl_status move_lane(lane *l, int rank) {
  int fd = mesh.sockets[rank];
  while (l->out_left > 0) {
    ssize_t n = send(fd, l->out, l->out_left, MSG_NOSIGNAL);
    if (n < 0 && errno == EAGAIN) break;
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return gone(rank, errno);
    l->out += n;
    l->out_left -= (size_t)n;
  }
  while (l->in_left > 0) {
    ssize_t n = recv(fd, l->in, l->in_left, 0);
    if (n < 0 && errno == EAGAIN) break;
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return gone(rank, n < 0 ? errno : 0);
    l->in += n;
    l->in_left -= (size_t)n;
  }
  return TL_OK;
}

static void cancel(void *req) {
  request *r = req;
  tl_host_free(r->received);
  tl_host_free(r->parts);
  tl_host_free(r);
}

/* As far as it goes without waiting. */
static tl_status move(request *r, bool *rest) {
  *rest = false;
  for (int i = 0; i < mesh.size; i++) {
    lane *l = &r->lanes[i];
    if (l->out_left > 0 || l->in_left > 0) TL_TRY(move_lane(l, i));
    *rest = *rest || l->out_left > 0 || l->in_left > 0;
  }
  return TL_OK;
}

static tl_status test(void *req, bool *done) {
  request *r = req;
  bool rest;
  tl_status st = move(r, &rest);
  if (st == TL_OK && !rest && r->another) {
    r->another = false;
    second_round(r);
    st = move(r, &rest);
  }
  *done = st == TL_OK && !rest;
  if (*done || st != TL_OK) cancel(r);
  return st;
}

static request *new_request(void) { return tl_host_calloc(1, sizeof(request) + (size_t)mesh.size * sizeof(lane)); }

static tl_status exchange(const void *mine, size_t bytes, void *all, void **out) {
  request *r = new_request();
  if (r == NULL) return TL_FAIL(TL_ERR_MEMORY, "exchange", "no memory for a request");
  *out = r;
  memcpy((char *)all + (size_t)mesh.rank * bytes, mine, bytes);
  for (int i = 0; i < mesh.size; i++)
    if (i != mesh.rank) r->lanes[i] = (lane){mine, (char *)all + (size_t)i * bytes, bytes, bytes};
  return TL_OK;
}

static tl_status start(const tl_collective *c, void **out) {
  request *r = new_request();
  if (r == NULL) return TL_FAIL(TL_ERR_MEMORY, tl_collective_name(c->kind), "no memory for a request");
  r->c = *c;
  r->another = true;
  tl_status st = first_round(r);
  if (st == TL_OK) *out = r;
  else cancel(r);
  return st;
}

static int missing(void *req, bool *missing_ranks) {
  const request *r = req;
  int count = 0;
  for (int i = 0; i < mesh.size; i++) {
    missing_ranks[i] = r->lanes[i].in_left > 0;
    count += missing_ranks[i];
  }
  return count;
}

const tl_transport *tl_tcp_transport(void) {
  static const tl_transport transport = {"tcp", open_tcp, close_tcp, abort_tcp, exchange, missing, start, test, cancel};
  return &transport;
}
