/* plugin.c: the plug-in's one symbol, devices and their contexts, what kernels reported. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/cuda.h"
#include "backend/cuda/table.h"

#define MAX_DEVICES 16

const tl_plugin_host *tl_cuda_host;
static int devices;
static bool sync_always; /* TLUA_SYNC=1 */
static tl_cuda_context contexts[MAX_DEVICES];
static _Thread_local tl_cuda_context *here;

tl_status tl_fail(int code, const char *op, const char *file, int line, const char *format, ...) {
  char text[512];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  return tl_cuda_host->fail(code, op, file, line, text);
}

tl_status tl_cuda_failed(cudaError_t error, const char *op, const char *file, int line) {
  cudaGetLastError(); /* or every later launch would report it again */
  int code = error == cudaErrorMemoryAllocation ? TL_ERR_MEMORY : TL_ERR_DEVICE;
  return tl_fail(code, op, file, line, "CUDA: %s (%s)", cudaGetErrorString(error), cudaGetErrorName(error));
}

tl_status tl_cuda_launched(const char *name) {
  cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess && sync_always) error = cudaStreamSynchronize(tl_cuda_here()->stream);
  return error == cudaSuccess ? TL_OK : tl_cuda_failed(error, name, __FILE__, __LINE__);
}

tl_cuda_context *tl_cuda_here(void) { return here != NULL ? here : &contexts[0]; }

static int device_count(void) { return devices; }

static void use(int index) {
  if (here == &contexts[index]) return;
  here = &contexts[index];
  cudaSetDevice(index);
}

static void *alloc(int index, size_t bytes) {
  if (tl_cuda_host->allocation_fails()) return NULL;
  use(index);
  void *p = NULL;
  if (cudaMalloc(&p, bytes) != cudaSuccess) {
    cudaGetLastError();
    return NULL;
  }
  return p;
}

static void release(int index, void *p, size_t bytes) {
  (void)bytes;
  use(index);
  cudaFreeAsync(p, here->stream);
}

static void empty_cache(int index) { (void)index; }
static double cached_bytes(int index) { return (void)index, 0; }

void *tl_cuda_scratch(const char *op, size_t bytes) {
  void *p = alloc(tl_cuda_here()->index, bytes == 0 ? 1 : bytes);
  if (p == NULL) TL_FAIL(TL_ERR_MEMORY, op, "no memory for %.1f MB of intermediate results", (double)bytes / 1048576);
  return p;
}

void tl_cuda_scratch_free(void *p, size_t bytes) {
  if (p != NULL) release(tl_cuda_here()->index, p, bytes == 0 ? 1 : bytes);
}

static tl_status copy_in(int index, void *dst, const void *host, size_t bytes) {
  use(index);
  TL_CUDA_TRY("copy", cudaMemcpyAsync(dst, host, bytes, cudaMemcpyHostToDevice, here->stream));
  TL_CUDA_TRY("copy", cudaStreamSynchronize(here->stream));
  return TL_OK;
}

/* What kernels found, in words. The context goes on. */
static tl_status reported(const tl_cuda_fault *f) {
  long long value = f->value, limit = f->limit, at = tl_cuda_host == NULL ? 0 : f->at;
  switch (f->code) {
    case TL_CUDA_FAULT_NONE: return TL_OK;
    case TL_CUDA_FAULT_LABEL:
      return TL_FAIL(TL_ERR_INDEX, "cross_entropy", "label %lld (element %lld of the target) is not a class of 0..%lld",
                     value, at, limit - 1);
    case TL_CUDA_FAULT_EMBEDDING:
      return TL_FAIL(TL_ERR_INDEX, "embedding", "id %lld (element %lld of the ids) is not a row of 0..%lld", value, at,
                     limit - 1);
    case TL_CUDA_FAULT_ID:
      return TL_FAIL(TL_ERR_INDEX, "index", "id %lld (element %lld of the ids) is outside 0..%lld", value, at, limit - 1);
    default:
      return TL_FAIL(TL_ERR_VALUE, "bce_loss", "element %lld of the input or the target is outside 0..1", at);
  }
}

static tl_status synchronize(int index) {
  use(index);
  tl_cuda_fault found;
  TL_CUDA_TRY("synchronize",
              cudaMemcpyAsync(&found, here->fault, sizeof found, cudaMemcpyDeviceToHost, here->stream));
  TL_CUDA_TRY("synchronize", cudaStreamSynchronize(here->stream));
  if (found.code != TL_CUDA_FAULT_NONE)
    TL_CUDA_TRY("synchronize", cudaMemsetAsync(here->fault, 0, sizeof *here->fault, here->stream));
  return reported(&found);
}

static tl_status copy_out(int index, void *host, const void *src, size_t bytes) {
  use(index);
  TL_CUDA_TRY("copy", cudaMemcpyAsync(host, src, bytes, cudaMemcpyDeviceToHost, here->stream));
  return synchronize(index);
}

static tl_kernels kernels;
static const tl_backend backend = {
    .name = "cuda",
    .kind = 1,
    .device_count = device_count,
    .use = use,
    .alloc = alloc,
    .free = release,
    .empty_cache = empty_cache,
    .cached_bytes = cached_bytes,
    .copy_in = copy_in,
    .copy_out = copy_out,
    .synchronize = synchronize,
    .kernels = &kernels,
};

static cudaError_t open_device(int index) {
  tl_cuda_context *c = &contexts[index];
  cudaError_t e = cudaSetDevice(index);
  c->index = index;
  if (e == cudaSuccess) e = cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking);
  if (e == cudaSuccess) e = cudaMalloc((void **)&c->fault, sizeof *c->fault + sizeof *c->random);
  if (e == cudaSuccess) e = cudaMemsetAsync(c->fault, 0, sizeof *c->fault + sizeof *c->random, c->stream);
  c->random = (const tl_cuda_random_base *)(c->fault + 1);
  if (e == cudaSuccess) e = cudaDeviceGetAttribute(&c->multiprocessors, cudaDevAttrMultiProcessorCount, index);
  if (e == cudaSuccess) e = cudaDeviceGetAttribute(&c->max_shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, index);
  return e;
}

__attribute__((visibility("default"))) const tl_backend *tl_backend_plugin(int abi, const tl_plugin_host *host,
                                                                           const char **why) {
  static char text[256];
  *why = text;
  if (abi != TL_ABI) {
    snprintf(text, sizeof text, "it was built for ABI %d of the engine, this one has %d: build both together", TL_ABI, abi);
    return NULL;
  }
  tl_cuda_host = host;
  const char *sync = getenv("TLUA_SYNC");
  sync_always = sync != NULL && strcmp(sync, "1") == 0;
  cudaError_t e = cudaGetDeviceCount(&devices);
  if (devices > MAX_DEVICES) devices = MAX_DEVICES;
  for (int i = 0; i < devices && e == cudaSuccess; i++) e = open_device(i);
  if (e == cudaSuccess && devices > 0) {
    cudaSetDevice(0);
    tl_cuda_fill_table(&kernels, host->cpu->kernels);
    return &backend;
  }
  snprintf(text, sizeof text, "%s", e == cudaSuccess ? "there is no CUDA device" : cudaGetErrorString(e));
  return NULL;
}
