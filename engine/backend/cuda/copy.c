/* copy.c: copies between host and device, and the places where the host waits.
 *
 * Ordinary host memory is copied through pinned blocks: the host goes on as soon as its own memory may be reused. The
 * record of what kernels found wrong comes along with every copy to the host, in the same wait. */
#include <string.h>

#include "backend/cuda/memory.h"
#include "backend/cuda/nccl.h"
#include "backend/cuda/stream.h"

atomic_bool tl_cuda_lost;

#define CHUNK (4u << 20)       /* bytes of a pinned block on the way */
#define ON_THE_WAY (64u << 20) /* pinned bytes that copies to devices may hold */
#define ALIGNED(bytes) (((bytes) + 63) / 64 * 64)

static tl_status no_pinned(size_t bytes) {
  return TL_FAIL(TL_ERR_MEMORY, "copy", "no %.1f MB of pinned host memory to copy through", (double)bytes / 1048576);
}

/* What is recorded runs later: host memory would be read, or waited for, at the wrong time. */
static tl_status refuse_recording(const char *what) {
  if (!tl_cuda_recording()) return TL_OK;
  return TL_FAIL(TL_ERR_STATE, "copy", "%s while a step is recorded (tl.cuda.graph): do it outside of the step", what);
}

static tl_status copy_chunk_in(const tl_cuda_context *c, void *dst, const void *host, size_t bytes) {
  tl_cuda_pinned_drain(ON_THE_WAY);
  void *p = tl_cuda_pinned_alloc(bytes);
  if (p == NULL) return no_pinned(bytes);
  memcpy(p, host, bytes);
  cudaError_t e = cudaMemcpyAsync(dst, p, bytes, cudaMemcpyHostToDevice, c->stream);
  if (e == cudaSuccess) tl_cuda_pinned_used(p, c->index, c->stream);
  tl_cuda_pinned_free(p);
  TL_CUDA_TRY("copy", e);
  return TL_OK;
}

tl_status tl_cuda_copy_in(int index, void *dst, const void *host, size_t bytes) {
  TL_TRY(refuse_recording("a tensor is copied from the host"));
  tl_cuda_use(index);
  for (size_t at = 0; at < bytes; at += CHUNK) {
    size_t n = bytes - at < CHUNK ? bytes - at : CHUNK;
    TL_TRY(copy_chunk_in(tl_cuda_here(), (char *)dst + at, (const char *)host + at, n));
  }
  return TL_OK;
}

tl_status tl_cuda_copy_in_pinned(int index, void *dst, void *block, const void *host, size_t bytes) {
  TL_TRY(refuse_recording("a tensor is copied from the host"));
  tl_cuda_use(index);
  const tl_cuda_context *c = tl_cuda_here();
  TL_CUDA_TRY("copy", cudaMemcpyAsync(dst, host, bytes, cudaMemcpyHostToDevice, c->stream));
  tl_cuda_pinned_used(block, index, c->stream);
  return TL_OK;
}

/* `found` is a pinned copy of the record, made on the stream, which has been waited for. */
static tl_status report(const tl_cuda_context *c, const tl_cuda_fault *found) {
  if (tl_cuda_lost)
    return TL_FAIL(TL_ERR_STATE, "copy", "an exchange between ranks failed: what the GPU computed since is worthless");
  if (found->code == TL_CUDA_FAULT_NONE) return TL_OK;
  TL_CUDA_TRY("copy", cudaMemsetAsync(c->fault, 0, sizeof *c->fault, c->stream));
  return tl_cuda_report(found);
}

static tl_status wait_and_report(const tl_cuda_context *c, const tl_cuda_fault *found) {
  TL_CUDA_TRY("copy", cudaStreamSynchronize(c->stream));
  return report(c, found);
}

static tl_status fetch_fault(const tl_cuda_context *c, void *to) {
  TL_CUDA_TRY("copy", cudaMemcpyAsync(to, c->fault, sizeof *c->fault, cudaMemcpyDeviceToHost, c->stream));
  return TL_OK;
}

/* At most a chunk: one wait. `p` is pinned and has room for the record behind the data. */
static tl_status copy_last_out(const tl_cuda_context *c, void *host, const void *src, size_t bytes, char *p) {
  tl_cuda_fault *found = (tl_cuda_fault *)(p + ALIGNED(bytes));
  TL_CUDA_TRY("copy", cudaMemcpyAsync(p, src, bytes, cudaMemcpyDeviceToHost, c->stream));
  TL_TRY(fetch_fault(c, found));
  TL_CUDA_TRY("copy", cudaStreamSynchronize(c->stream));
  memcpy(host, p, bytes);
  return report(c, found);
}

/* More than a chunk: while one is moved on to the host's memory, the device fills the other. */
static tl_status copy_chunks_out(const tl_cuda_context *c, char *host, const char *src, size_t bytes, char *p[2],
                                 const cudaEvent_t done[2]) {
  size_t at = 0;
  for (int i = 0; at < bytes; i++, at += CHUNK) {
    size_t n = bytes - at < CHUNK ? bytes - at : CHUNK;
    TL_CUDA_TRY("copy", cudaMemcpyAsync(p[i % 2], src + at, n, cudaMemcpyDeviceToHost, c->stream));
    TL_CUDA_TRY("copy", cudaEventRecord(done[i % 2], c->stream));
    if (i == 0) continue;
    TL_CUDA_TRY("copy", cudaEventSynchronize(done[(i - 1) % 2]));
    memcpy(host + at - CHUNK, p[(i - 1) % 2], CHUNK);
  }
  size_t last = (bytes - 1) / CHUNK;
  TL_CUDA_TRY("copy", cudaEventSynchronize(done[last % 2]));
  memcpy(host + last * CHUNK, p[last % 2], bytes - last * CHUNK);
  return TL_OK;
}

static tl_status copy_large_out(const tl_cuda_context *c, void *host, const void *src, size_t bytes) {
  char *p[2] = {tl_cuda_pinned_alloc(CHUNK), tl_cuda_pinned_alloc(CHUNK)};
  cudaEvent_t done[2] = {tl_cuda_take_event(c->index), tl_cuda_take_event(c->index)};
  bool ok = p[0] != NULL && p[1] != NULL && done[0] != NULL && done[1] != NULL;
  tl_status st = ok ? copy_chunks_out(c, host, src, bytes, p, done) : no_pinned(2 * (size_t)CHUNK);
  if (st == TL_OK) st = fetch_fault(c, p[0]);
  if (st == TL_OK) st = wait_and_report(c, (const tl_cuda_fault *)p[0]);
  else cudaStreamSynchronize(c->stream); /* the blocks go back: nothing may still write to them */
  for (int i = 0; i < 2; i++) {
    if (p[i] != NULL) tl_cuda_pinned_free(p[i]);
    if (done[i] != NULL) tl_cuda_give_event(c->index, done[i]);
  }
  return st;
}

tl_status tl_cuda_copy_out(int index, void *host, const void *src, size_t bytes) {
  TL_TRY(refuse_recording("the host asks for values of a tensor"));
  tl_cuda_use(index);
  const tl_cuda_context *c = tl_cuda_here();
  if (bytes > CHUNK) return copy_large_out(c, host, src, bytes);
  size_t room = ALIGNED(bytes) + sizeof(tl_cuda_fault);
  char *p = tl_cuda_pinned_alloc(room);
  if (p == NULL) return no_pinned(room);
  tl_status st = copy_last_out(c, host, src, bytes, p);
  if (st != TL_OK) cudaStreamSynchronize(c->stream); /* the block goes back: nothing may still write to it */
  tl_cuda_pinned_free(p);
  return st;
}

/* On the receiver's stream, after what the sender's holds now; the sender's next work comes after it, because that may
 * write the source, or reuse its memory. */
tl_status tl_cuda_copy_between(int to, void *dst, int from, const void *src, size_t bytes) {
  TL_TRY(refuse_recording("a tensor is copied between devices"));
  cudaStream_t sender = tl_cuda_context_of(from)->stream, receiver = tl_cuda_context_of(to)->stream;
  tl_cuda_use(to);
  TL_TRY(tl_cuda_order(from, sender, receiver));
  TL_CUDA_TRY("copy", cudaMemcpyPeerAsync(dst, to, src, from, bytes, receiver));
  return tl_cuda_order(to, receiver, sender);
}

tl_status tl_cuda_synchronize(int index) {
  TL_TRY(refuse_recording("the host waits for the device"));
  tl_cuda_use(index);
  const tl_cuda_context *c = tl_cuda_here();
  TL_CUDA_TRY("synchronize", cudaDeviceSynchronize());
  tl_cuda_fault *found = tl_cuda_pinned_alloc(sizeof *found);
  if (found == NULL) return no_pinned(sizeof *found);
  tl_status st = fetch_fault(c, found);
  if (st == TL_OK) st = wait_and_report(c, found);
  tl_cuda_pinned_free(found);
  return st;
}
