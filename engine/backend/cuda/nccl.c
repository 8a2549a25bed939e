/* nccl.c: collectives of device memory over NCCL, on a stream of their own.
 *
 * An exchange begins after what the current stream has queued at the launch and orders the stream that waits for it: the
 * host waits for neither. Nothing here knows of other ranks but NCCL; engine/dist lets them agree first. */
#include "backend/cuda/nccl.h"

#include <nccl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/cuda.h"
#include "backend/cuda/memory.h"
#include "backend/cuda/stream.h"

_Static_assert(sizeof(ncclUniqueId) == TL_COMM_ID, "the id has another size in this NCCL");

typedef struct comm {
  ncclComm_t nccl;
  int index;
  cudaStream_t stream;
} comm;

/* Two hold it: who waits for the exchange, and who watches it. */
typedef struct request {
  atomic_int holders;
  cudaEvent_t done;
  int index;
} request;

static tl_status failed(ncclResult_t result, ncclComm_t c, const char *op, int line) {
  const char *detail = c == NULL ? "" : ncclGetLastError(c);
  bool more = detail != NULL && detail[0] != '\0';
  return tl_fail(TL_ERR_STATE, op, __FILE__, line, "NCCL: %s%s%s", ncclGetErrorString(result), more ? ": " : "",
                 more ? detail : "");
}
#define NCCL_TRY(c, op, call)                                              \
  do {                                                                     \
    ncclResult_t result_ = (call);                                         \
    if (result_ != ncclSuccess) return failed(result_, (c), op, __LINE__); \
  } while (0)

tl_status tl_cuda_comm_id(void *id) {
  ncclUniqueId unique;
  NCCL_TRY(NULL, "dist", ncclGetUniqueId(&unique));
  memcpy(id, &unique, sizeof unique);
  return TL_OK;
}

tl_status tl_cuda_comm_new(int index, const void *id, int rank, int size, void **out) {
  ncclUniqueId unique;
  memcpy(&unique, id, sizeof unique);
  tl_cuda_use(index);
  void *stream;
  comm *c = tl_cuda_host->allocation_fails() ? NULL : malloc(sizeof *c);
  if (c == NULL) return TL_FAIL(TL_ERR_MEMORY, "dist", "no memory for a communicator");
  tl_status st = tl_cuda_stream_new(index, true, &stream);
  if (st == TL_OK) {
    *c = (comm){.index = index, .stream = stream};
    ncclResult_t result = ncclCommInitRank(&c->nccl, size, unique, rank);
    if (result != ncclSuccess) {
      st = failed(result, NULL, "dist", __LINE__);
      tl_cuda_stream_free(index, true, stream);
    }
  }
  if (st == TL_OK) {
    atomic_store(&tl_cuda_lost, false);
    *out = c;
  } else {
    free(c);
  }
  return st;
}

static ncclDataType_t type_of(int dtype) {
  switch (dtype) {
    case TL_FLOAT32: return ncclFloat32;
    case TL_FLOAT16: return ncclFloat16;
    case TL_BFLOAT16: return ncclBfloat16;
    case TL_FLOAT64: return ncclFloat64;
    case TL_INT64: return ncclInt64;
    case TL_INT32: return ncclInt32;
    default: return ncclUint8;
  }
}

/* bool is stored as 0 and 1: "any" is the largest, "all" the smallest. */
static ncclRedOp_t op_of(int dtype, int op) {
  if (dtype == TL_BOOL) return op == TL_MIN ? ncclMin : ncclMax;
  return op == TL_MAX ? ncclMax : op == TL_MIN ? ncclMin : ncclSum;
}

static ncclResult_t exchange(const comm *c, const tl_collective *k) {
  size_t n = (size_t)k->count;
  ncclDataType_t type = type_of(k->dtype);
  ncclRedOp_t op = op_of(k->dtype, k->op);
  switch (k->kind) {
    case TL_COLLECTIVE_ALL_REDUCE: return ncclAllReduce(k->recv, k->recv, n, type, op, c->nccl, c->stream);
    case TL_COLLECTIVE_BROADCAST: return ncclBroadcast(k->recv, k->recv, n, type, k->root, c->nccl, c->stream);
    case TL_COLLECTIVE_ALL_GATHER: return ncclAllGather(k->send, k->recv, n, type, c->nccl, c->stream);
    case TL_COLLECTIVE_REDUCE_SCATTER: return ncclReduceScatter(k->send, k->recv, n, type, op, c->nccl, c->stream);
    default: return ncclSuccess;
  }
}

/* Later work of `after` waits for what `before` has queued; also while a step is recorded. */
static cudaError_t order(int index, cudaStream_t before, cudaStream_t after) {
  cudaEvent_t event = tl_cuda_take_event(index);
  if (event == NULL) return cudaErrorMemoryAllocation;
  cudaError_t e = cudaEventRecord(event, before);
  if (e == cudaSuccess) e = cudaStreamWaitEvent(after, event, 0);
  tl_cuda_give_event(index, event);
  return e;
}

tl_status tl_cuda_comm_launch(void *communicator, const tl_collective *k, void **out) {
  comm *c = communicator;
  tl_cuda_use(c->index);
  request *r = tl_cuda_host->allocation_fails() ? NULL : malloc(sizeof *r);
  if (r == NULL) return TL_FAIL(TL_ERR_MEMORY, "dist", "no memory for a request");
  atomic_init(&r->holders, 2);
  r->index = c->index;
  r->done = tl_cuda_take_event(c->index);
  cudaError_t e = r->done == NULL ? cudaErrorMemoryAllocation : order(c->index, tl_cuda_here()->stream, c->stream);
  ncclResult_t result = ncclSuccess;
  if (e == cudaSuccess && k->count > 0) result = exchange(c, k);
  if (e == cudaSuccess && result == ncclSuccess) e = cudaEventRecord(r->done, c->stream);
  if (e == cudaSuccess && result == ncclSuccess) {
    *out = r;
    return TL_OK;
  }
  if (r->done != NULL) tl_cuda_give_event(c->index, r->done);
  free(r);
  if (result != ncclSuccess) return failed(result, c->nccl, "dist", __LINE__);
  return tl_cuda_failed(e, "dist", __FILE__, __LINE__);
}

static void release(request *r) {
  if (atomic_fetch_sub(&r->holders, 1) > 1) return;
  tl_cuda_give_event(r->index, r->done);
  free(r);
}

/* The buffers are used by the current stream's earlier and later work alone but for the exchange, which lies between:
 * their memory needs no further note. */
tl_status tl_cuda_comm_order(void *communicator, void *req) {
  comm *c = communicator;
  request *r = req;
  tl_cuda_use(c->index);
  cudaError_t e = cudaStreamWaitEvent(tl_cuda_here()->stream, r->done, 0);
  bool recorded = tl_cuda_recording();
  if (recorded) release(r); /* nobody watches what only runs later */
  release(r);
  TL_CUDA_TRY("dist", e);
  return TL_OK;
}

tl_status tl_cuda_comm_done(void *communicator, void *req, bool *done) {
  comm *c = communicator;
  request *r = req;
  ncclResult_t state = ncclSuccess;
  NCCL_TRY(c->nccl, "dist", ncclCommGetAsyncError(c->nccl, &state));
  if (state != ncclSuccess && state != ncclInProgress) return failed(state, c->nccl, "dist", __LINE__);
  cudaError_t e = cudaEventQuery(r->done);
  *done = e == cudaSuccess;
  if (e == cudaErrorNotReady) cudaGetLastError();
  else TL_CUDA_TRY("dist", e);
  if (*done) release(r);
  return TL_OK;
}

void tl_cuda_comm_free(void *communicator, bool abort) {
  comm *c = communicator;
  tl_cuda_use(c->index);
  if (abort) {
    atomic_store(&tl_cuda_lost, true); /* before the stream goes on */
    ncclCommAbort(c->nccl);
  } else {
    ncclCommDestroy(c->nccl);
  }
  tl_cuda_stream_free(c->index, true, c->stream);
  free(c);
}
