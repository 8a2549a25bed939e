/* copy.c: copies and fills.
 *
 * A copy from pageable memory takes its source before it returns; one to pageable memory is done when it returns. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "runtime.h"

typedef struct copy {
  void *dst;
  const void *src; /* NULL: the bytes follow */
  size_t bytes;
  unsigned char staged[];
} copy;

static void run_copy(void *data, int device) {
  (void)device;
  copy *c = data;
  memmove(c->dst, c->src != NULL ? c->src : c->staged, c->bytes);
}

typedef enum place { PAGEABLE, PINNED, DEVICE } place;

static place place_of(const void *p) {
  return sim_device_of(p) >= 0 ? DEVICE : sim_pinned_of(p, NULL, NULL) ? PINNED : PAGEABLE;
}

static cudaError_t check_kind(const char *function, place dst, place src, enum cudaMemcpyKind kind) {
  static const char *const words[] = {"pageable host memory", "pinned host memory", "device memory"};
  bool to = dst == DEVICE, from = src == DEVICE;
  bool fits = kind == cudaMemcpyDefault || (kind == cudaMemcpyHostToHost && !to && !from) ||
              (kind == cudaMemcpyHostToDevice && to && !from) || (kind == cudaMemcpyDeviceToHost && !to && from) ||
              (kind == cudaMemcpyDeviceToDevice && to && from);
  if (fits) return cudaSuccess;
  return sim_error(cudaErrorInvalidValue, "%s: kind %d, but it goes from %s to %s", function, (int)kind, words[src],
                   words[dst]);
}

static cudaError_t submit(const char *function, void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind,
                          cudaStream_t handle, bool synchronous) {
  struct CUstream_st *s;
  cudaError_t e = sim_stream_of(handle, &s);
  if (e != cudaSuccess || bytes == 0) return e;
  if (synchronous) e = sim_refuse_unsafe(function);
  if (e != cudaSuccess) return e;
  if (dst == NULL || src == NULL) return sim_error(cudaErrorInvalidValue, "%s: a NULL pointer", function);
  place to = place_of(dst), from = place_of(src);
  e = check_kind(function, to, from, kind);
  sim_range range[2];
  int ranges = 0;
  if (to != PAGEABLE) range[ranges++] = (sim_range){dst, bytes, 1};
  if (from != PAGEABLE) range[ranges++] = (sim_range){src, bytes, 0};
  if (e == cudaSuccess) e = sim_check_ranges(function, ranges, range);
  if (e != cudaSuccess) return e;
  if (s->capture != NULL && (to == PAGEABLE || from == PAGEABLE)) {
    sim_refuse_captured(s, function);
    return sim_error(cudaErrorStreamCaptureUnsupported,
                     "%s: a captured copy needs pinned host memory: a replay reads or "
                     "writes it at a time of its own",
                     function);
  }
  size_t staged = from == PAGEABLE && to == DEVICE ? bytes : 0;
  copy *c = malloc(sizeof *c + staged);
  if (c == NULL) return cudaErrorMemoryAllocation;
  *c = (copy){.dst = dst, .src = staged > 0 ? NULL : src, .bytes = bytes};
  if (staged > 0) memcpy(c->staged, src, bytes);
  sim_work w = {.name = function,
                .device = s->device,
                .run = run_copy,
                .data = c,
                .bytes = sizeof *c + staged,
                .ranges = ranges,
                .range = range,
                .seconds = 5e-6 + (double)bytes / 16e9};
  /* also when it is synchronous, one between devices or from pageable memory may still be under way */
  bool host_waits = (to == PAGEABLE && from == DEVICE) || (to != DEVICE && from != DEVICE) ||
                    (synchronous && (to == PINNED || from == PINNED));
  sim_item *item = NULL;
  e = sim_append(s, &w, host_waits ? &item : NULL);
  free(c);
  if (e == cudaSuccess) sim_host_wait(item);
  sim_drop(item);
  return e;
}

cudaError_t CUDARTAPI cudaMemcpy(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind) {
  SIM_API(cudaErrorUnknown, submit("cudaMemcpy", dst, src, bytes, kind, NULL, true));
}

cudaError_t CUDARTAPI cudaMemcpyAsync(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind,
                                      cudaStream_t stream) {
  SIM_API(cudaErrorUnknown, submit("cudaMemcpyAsync", dst, src, bytes, kind, stream, false));
}

static cudaError_t peer(void *dst, int dst_device, const void *src, int src_device, size_t bytes, cudaStream_t stream) {
  cudaError_t e = sim_check_device(dst_device);
  if (e == cudaSuccess) e = sim_check_device(src_device);
  if (e != cudaSuccess) return e;
  if (bytes > 0 && (sim_device_of(dst) != dst_device || sim_device_of(src) != src_device))
    return sim_error(cudaErrorInvalidValue, "cudaMemcpyPeerAsync: memory of devices %d and %d, said to be of %d and %d",
                     sim_device_of(dst), sim_device_of(src), dst_device, src_device);
  return submit("cudaMemcpyPeerAsync", dst, src, bytes, cudaMemcpyDeviceToDevice, stream, false);
}

cudaError_t CUDARTAPI cudaMemcpyPeerAsync(void *dst, int dst_device, const void *src, int src_device, size_t bytes,
                                          cudaStream_t stream) {
  SIM_API(cudaErrorUnknown, peer(dst, dst_device, src, src_device, bytes, stream));
}

typedef struct fill {
  void *dst;
  size_t bytes;
  int value;
} fill;

static void run_fill(void *data, int device) {
  (void)device;
  fill *f = data;
  memset(f->dst, f->value, f->bytes);
}

static cudaError_t set(const char *function, void *dst, int value, size_t bytes, cudaStream_t handle, bool unsafe) {
  struct CUstream_st *s;
  cudaError_t e = sim_stream_of(handle, &s);
  if (e == cudaSuccess && unsafe) e = sim_refuse_unsafe(function);
  if (e != cudaSuccess || bytes == 0) return e;
  if (place_of(dst) != DEVICE) return sim_error(cudaErrorInvalidValue, "%s: %p is no device memory", function, dst);
  sim_range range = {dst, bytes, 1};
  e = sim_check_ranges(function, 1, &range);
  if (e != cudaSuccess) return e;
  fill f = {dst, bytes, value};
  sim_work w = {.name = function,
                .device = s->device,
                .run = run_fill,
                .data = &f,
                .bytes = sizeof f,
                .ranges = 1,
                .range = &range,
                .seconds = 3e-6 + (double)bytes / 500e9};
  return sim_append(s, &w, NULL);
}

cudaError_t CUDARTAPI cudaMemset(void *dst, int value, size_t bytes) {
  SIM_API(cudaErrorUnknown, set("cudaMemset", dst, value, bytes, NULL, true));
}

cudaError_t CUDARTAPI cudaMemsetAsync(void *dst, int value, size_t bytes, cudaStream_t stream) {
  SIM_API(cudaErrorUnknown, set("cudaMemsetAsync", dst, value, bytes, stream, false));
}
