/* mpi.c: the plug-in libtlua-mpi.so: collectives over MPI (MPI 3.1). */
#define _DEFAULT_SOURCE /* on_exit */
#include <limits.h>
#include <mpi.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/convert.h"
#include "core/error.h"
#include "dist/transport.h"

static const tl_plugin_host *host;
static MPI_Comm data_comm = MPI_COMM_NULL, control_comm = MPI_COMM_NULL;
static MPI_Op half_ops[4], bf16_ops[4];    /* by tl_reduce_op */
static MPI_Op float_ops[2], double_ops[2]; /* max, min */
static int ranks, own_rank;
static bool opened_here, left_well;
/* Elements that one call of MPI, whose counts are int, takes: no product with a size or a number of ranks overflows. */
static int most = 1 << 27;

tl_status tl_fail(int code, const char *op, const char *file, int line, const char *format, ...) {
  va_list args;
  va_start(args, format);
  tl_status st = host->fail(code, op, file, line, format, args);
  va_end(args);
  return st;
}

static tl_status failed(int error, const char *op, int line) {
  char text[MPI_MAX_ERROR_STRING] = "";
  int n = 0;
  MPI_Error_string(error, text, &n);
  return tl_fail(TL_ERR_STATE, op, __FILE__, line, "MPI: %s", text);
}
#define MPI_TRY(op, call)                                           \
  do {                                                              \
    int error_ = (call);                                            \
    if (error_ != MPI_SUCCESS) return failed(error_, op, __LINE__); \
  } while (0)

/* ---- float16 and bfloat16: MPI has no such types; each step is computed in float32 and rounded ---- */

#define LOW_OP(name, to_float, from_float, expression)                  \
  static void name(void *in, void *inout, int *n, MPI_Datatype *type) { \
    (void)type;                                                         \
    const uint16_t *a = in;                                             \
    uint16_t *b = inout;                                                \
    for (int i = 0; i < *n; i++) {                                      \
      float x = to_float(a[i]), y = to_float(b[i]);                     \
      b[i] = from_float(expression);                                    \
    }                                                                   \
  }
#define LARGEST(x, y) ((x) != (x) ? (x) : (y) != (y) ? (y) : (x) > (y) ? (x) : (y))
#define SMALLEST(x, y) ((x) != (x) ? (x) : (y) != (y) ? (y) : (x) < (y) ? (x) : (y))
LOW_OP(half_sum, tl_half_to_float, tl_float_to_half, x + y)
LOW_OP(half_max, tl_half_to_float, tl_float_to_half, LARGEST(x, y))
LOW_OP(half_min, tl_half_to_float, tl_float_to_half, SMALLEST(x, y))
LOW_OP(bf16_sum, tl_bf16_to_float, tl_float_to_bf16, x + y)
LOW_OP(bf16_max, tl_bf16_to_float, tl_float_to_bf16, LARGEST(x, y))
LOW_OP(bf16_min, tl_bf16_to_float, tl_float_to_bf16, SMALLEST(x, y))

/* MPI_MAX and MPI_MIN compare: whether a NaN stays depends on the rank that has it. */
#define COMPARE_OP(name, T, choose)                                     \
  static void name(void *in, void *inout, int *n, MPI_Datatype *type) { \
    (void)type;                                                         \
    const T *a = in;                                                    \
    T *b = inout;                                                       \
    for (int i = 0; i < *n; i++) b[i] = choose(a[i], b[i]);             \
  }
COMPARE_OP(float_max, float, LARGEST)
COMPARE_OP(float_min, float, SMALLEST)
COMPARE_OP(double_max, double, LARGEST)
COMPARE_OP(double_min, double, SMALLEST)

static tl_status make_ops(void) {
  MPI_TRY("dist.init", MPI_Op_create(float_max, 1, &float_ops[0]));
  MPI_TRY("dist.init", MPI_Op_create(float_min, 1, &float_ops[1]));
  MPI_TRY("dist.init", MPI_Op_create(double_max, 1, &double_ops[0]));
  MPI_TRY("dist.init", MPI_Op_create(double_min, 1, &double_ops[1]));
  MPI_User_function *const half[4] = {half_sum, half_sum, half_max, half_min};
  MPI_User_function *const bf16[4] = {bf16_sum, bf16_sum, bf16_max, bf16_min};
  for (int i = 0; i < 4; i++) {
    MPI_TRY("dist.init", MPI_Op_create(half[i], 1, &half_ops[i]));
    MPI_TRY("dist.init", MPI_Op_create(bf16[i], 1, &bf16_ops[i]));
  }
  return TL_OK;
}

static MPI_Datatype type_of(int dtype) {
  switch (dtype) {
    case TL_FLOAT32: return MPI_FLOAT;
    case TL_FLOAT64: return MPI_DOUBLE;
    case TL_INT64: return MPI_INT64_T;
    case TL_INT32: return MPI_INT32_T;
    case TL_FLOAT16:
    case TL_BFLOAT16: return MPI_UINT16_T;
    default: return MPI_UINT8_T;
  }
}

static MPI_Op op_of(int dtype, int op) {
  if (dtype == TL_FLOAT16) return half_ops[op];
  if (dtype == TL_BFLOAT16) return bf16_ops[op];
  if (dtype == TL_FLOAT32 && op >= TL_MAX) return float_ops[op - TL_MAX];
  if (dtype == TL_FLOAT64 && op >= TL_MAX) return double_ops[op - TL_MAX];
  if (dtype == TL_BOOL) return op == TL_MIN ? MPI_LAND : MPI_LOR;
  return op == TL_MAX ? MPI_MAX : op == TL_MIN ? MPI_MIN : MPI_SUM;
}

/* ---- life ---- */

/* At the end of the process: MPI begins once only, ranks may meet again. After an error exit the launcher is to end the
 * other ranks, which it does when one did not finalize. */
static void finalize(int code, void *unused) {
  (void)unused;
  if (code == 0 && left_well) MPI_Finalize();
}

static tl_status open_mpi(int *rank, int *size) {
  int there = 0, gone = 0, level = 0;
  MPI_Initialized(&there);
  MPI_Finalized(&gone);
  if (gone) return TL_FAIL(TL_ERR_STATE, "dist.init", "MPI was finalized in this process and cannot begin again");
  if (!there) {
    MPI_TRY("dist.init", MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level));
    on_exit(finalize, NULL);
  } else if (!opened_here) {
    MPI_Query_thread(&level);
    if (level < MPI_THREAD_MULTIPLE)
      return TL_FAIL(TL_ERR_STATE, "dist.init",
                     "the program began MPI without MPI_THREAD_MULTIPLE: collectives run on a thread of their own");
  }
  const char *lower = getenv("TLUA_MPI_MOST"); /* a test's: parts without gigabytes */
  if (lower != NULL && atoi(lower) > 0) most = atoi(lower);
  opened_here = opened_here || !there;
  left_well = false;
  MPI_TRY("dist.init", MPI_Comm_dup(MPI_COMM_WORLD, &data_comm));
  MPI_TRY("dist.init", MPI_Comm_dup(MPI_COMM_WORLD, &control_comm));
  MPI_Comm_set_errhandler(data_comm, MPI_ERRORS_RETURN);
  MPI_Comm_set_errhandler(control_comm, MPI_ERRORS_RETURN);
  MPI_TRY("dist.init", MPI_Comm_rank(data_comm, &own_rank));
  MPI_TRY("dist.init", MPI_Comm_size(data_comm, &ranks));
  *rank = own_rank;
  *size = ranks;
  return make_ops();
}

static void close_mpi(bool wait) {
  if (!wait) return; /* ranks may be gone: MPI_Finalize would wait for them; the process is about to end */
  for (int i = 0; i < 4; i++) {
    MPI_Op_free(&half_ops[i]);
    MPI_Op_free(&bf16_ops[i]);
  }
  for (int i = 0; i < 2; i++) {
    MPI_Op_free(&float_ops[i]);
    MPI_Op_free(&double_ops[i]);
  }
  MPI_Comm_free(&data_comm);
  MPI_Comm_free(&control_comm);
  left_well = true;
}

static void abort_mpi(int code) { MPI_Abort(MPI_COMM_WORLD, code); }

/* ---- requests ---- */

typedef struct request {
  int64_t n;
  MPI_Datatype blocks[2]; /* of a gather in parts: see blocks_of() */
  MPI_Request list[];     /* exchange: receives by rank (own: null), then sends */
} request;

static request *new_request(int64_t n) {
  request *r = host->allocation_fails() ? NULL : malloc(sizeof *r + (size_t)n * sizeof r->list[0]);
  if (r == NULL) return NULL;
  r->n = n;
  r->blocks[0] = r->blocks[1] = MPI_DATATYPE_NULL;
  for (int64_t i = 0; i < n; i++) r->list[i] = MPI_REQUEST_NULL;
  return r;
}

static void free_request(request *r) {
  for (int i = 0; i < 2; i++)
    if (r->blocks[i] != MPI_DATATYPE_NULL) MPI_Type_free(&r->blocks[i]);
  free(r);
}

static tl_status no_memory(const char *op) { return TL_FAIL(TL_ERR_MEMORY, op, "no memory for a request"); }

static tl_status exchange(const void *mine, size_t bytes, void *all, void **out) {
  request *r = new_request(2 * ranks);
  if (r == NULL) return no_memory("exchange");
  *out = r;
  memcpy((char *)all + (size_t)own_rank * bytes, mine, bytes);
  for (int i = 0; i < ranks; i++) {
    if (i == own_rank) continue;
    MPI_TRY("exchange",
            MPI_Irecv((char *)all + (size_t)i * bytes, (int)bytes, MPI_BYTE, i, 0, control_comm, &r->list[i]));
    MPI_TRY("exchange", MPI_Isend(mine, (int)bytes, MPI_BYTE, i, 0, control_comm, &r->list[ranks + i]));
  }
  return TL_OK;
}

static int missing(void *req, bool *missing_ranks) {
  request *r = req;
  int count = 0;
  for (int i = 0; i < ranks; i++) {
    missing_ranks[i] = i != own_rank && r->list[i] != MPI_REQUEST_NULL;
    count += missing_ranks[i];
  }
  return count;
}

/* ---- collectives; long ones in parts, all of one request ---- */

/* n elements, of which one rank's begin `stride` elements after the rank's before. */
static tl_status blocks_of(MPI_Datatype type, int n, int64_t stride, size_t size, MPI_Datatype *out) {
  MPI_Datatype one = MPI_DATATYPE_NULL;
  MPI_TRY("all_gather", MPI_Type_contiguous(n, type, &one));
  int error = MPI_Type_create_resized(one, 0, (MPI_Aint)stride * (MPI_Aint)size, out);
  MPI_Type_free(&one);
  if (error == MPI_SUCCESS) error = MPI_Type_commit(out);
  return error == MPI_SUCCESS ? TL_OK : failed(error, "all_gather", __LINE__);
}

/* n elements of everybody's part, from `at` on. */
static tl_status gather_part(const tl_collective *c, request *r, MPI_Datatype type, size_t size, int64_t at, int n,
                             MPI_Request *out) {
  const char *send = (const char *)c->send + (size_t)at * size;
  char *recv = (char *)c->recv + (size_t)at * size;
  MPI_Datatype *block = &r->blocks[at + n == c->count];
  if (*block == MPI_DATATYPE_NULL) TL_TRY(blocks_of(type, n, c->count, size, block));
  MPI_TRY("all_gather", MPI_Iallgather(send, n, type, recv, 1, *block, data_comm, out));
  return TL_OK;
}

/* Blocks of a reduction cannot be spread in memory: one reduction for each rank that keeps one. */
static tl_status scatter_part(const tl_collective *c, MPI_Datatype type, size_t size, int64_t at, int n,
                              MPI_Request *out) {
  for (int root = 0; root < ranks; root++) {
    const char *send = (const char *)c->send + (size_t)(root * c->count + at) * size;
    char *recv = (char *)c->recv + (size_t)at * size;
    MPI_TRY("reduce_scatter", MPI_Ireduce(send, recv, n, type, op_of(c->dtype, c->op), root, data_comm, &out[root]));
  }
  return TL_OK;
}

static tl_status start_whole(const tl_collective *c, MPI_Datatype type, MPI_Request *out) {
  MPI_Op op = op_of(c->dtype, c->op);
  int n = (int)c->count;
  switch (c->kind) {
    case TL_COLLECTIVE_ALL_GATHER:
      MPI_TRY("all_gather", MPI_Iallgather(c->send, n, type, c->recv, n, type, data_comm, out));
      return TL_OK;
    case TL_COLLECTIVE_REDUCE_SCATTER:
      MPI_TRY("reduce_scatter", MPI_Ireduce_scatter_block(c->send, c->recv, n, type, op, data_comm, out));
      return TL_OK;
    case TL_COLLECTIVE_ALL_REDUCE:
      MPI_TRY("all_reduce", MPI_Iallreduce(MPI_IN_PLACE, c->recv, n, type, op, data_comm, out));
      return TL_OK;
    case TL_COLLECTIVE_BROADCAST:
      MPI_TRY("broadcast", MPI_Ibcast(c->recv, n, type, c->root, data_comm, out));
      return TL_OK;
    default: MPI_TRY("barrier", MPI_Ibarrier(data_comm, out)); return TL_OK;
  }
}

static tl_status start(const tl_collective *c, void **out) {
  size_t size = (size_t)1 << ((0x00233112u >> (4 * c->dtype)) & 15); /* tl_dtype_size */
  MPI_Datatype type = type_of(c->dtype);
  bool gather = c->kind == TL_COLLECTIVE_ALL_GATHER, scatter = c->kind == TL_COLLECTIVE_REDUCE_SCATTER;
  int64_t limit = gather || scatter ? most / ranks : most; /* those move it for every rank */
  if (limit < 1) limit = 1;
  int64_t parts = c->count <= limit ? 1 : (c->count + limit - 1) / limit;
  int64_t each = parts > 1 && scatter ? ranks : 1; /* requests of a part */
  request *r = new_request(parts * each);
  if (r == NULL) return no_memory("collective");
  *out = r;
  if (parts == 1) return start_whole(c, type, r->list);
  for (int64_t p = 0; p < parts; p++) {
    int64_t at = p * limit;
    int n = (int)(c->count - at < limit ? c->count - at : limit);
    tl_collective part = *c;
    part.count = n;
    part.recv = (char *)c->recv + (size_t)at * size;
    if (gather) TL_TRY(gather_part(c, r, type, size, at, n, &r->list[p]));
    else if (scatter) TL_TRY(scatter_part(c, type, size, at, n, &r->list[p * each]));
    else TL_TRY(start_whole(&part, type, &r->list[p]));
  }
  return TL_OK;
}

static tl_status test(void *req, bool *done) {
  request *r = req;
  int all = 1;
  for (int64_t i = 0; i < r->n; i++) {
    int one = 1;
    if (r->list[i] == MPI_REQUEST_NULL) continue;
    MPI_TRY("collective", MPI_Test(&r->list[i], &one, MPI_STATUS_IGNORE));
    all = all && one;
  }
  *done = all != 0;
  if (all) free_request(r);
  return TL_OK;
}

/* Collectives cannot be cancelled: the request is left to MPI, which ends with the process. */
static void cancel(void *req) { free_request(req); }

static const tl_transport transport = {"mpi", open_mpi, close_mpi, abort_mpi, exchange, missing, start, test, cancel};

__attribute__((visibility("default"))) const tl_transport *tl_transport_plugin(int abi, const tl_plugin_host *h,
                                                                               const char **why) {
  static char text[128];
  if (abi != TL_ABI) {
    snprintf(text, sizeof text, "it was built for ABI %d of the engine, this one has %d: build both together", TL_ABI,
             abi);
    *why = text;
    return NULL;
  }
  host = h;
  return &transport;
}
