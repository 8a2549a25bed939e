/* plugin.c: the plug-in's one symbol, devices and their contexts, what kernels reported. */
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/cuda.h"
#include "backend/cuda/graph.h"
#include "backend/cuda/library.h"
#include "backend/cuda/memory.h"
#include "backend/cuda/nccl.h"
#include "backend/cuda/ranges.h"
#include "backend/cuda/stream.h"
#include "backend/cuda/table.h"

const tl_plugin_host *tl_cuda_host;
static int devices;
static bool sync_always; /* TLUA_SYNC=1 */
static tl_cuda_context opened[TL_CUDA_DEVICES];
static _Thread_local tl_cuda_context contexts[TL_CUDA_DEVICES]; /* stream = NULL: a copy of `opened` is due */
static _Thread_local tl_cuda_context *here;

tl_status tl_fail(int code, const char *op, const char *file, int line, const char *format, ...) {
  va_list args;
  va_start(args, format);
  tl_status st = tl_cuda_host->fail(code, op, file, line, format, args);
  va_end(args);
  return st;
}

tl_status tl_cuda_failed(cudaError_t error, const char *op, const char *file, int line) {
  cudaGetLastError(); /* or every later launch would report it again */
  int code = error == cudaErrorMemoryAllocation ? TL_ERR_MEMORY : TL_ERR_DEVICE;
  return tl_fail(code, op, file, line, "CUDA: %s (%s)", cudaGetErrorString(error), cudaGetErrorName(error));
}

tl_status tl_cuda_launched(const char *name) {
  cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess && sync_always && !tl_cuda_recording())
    error = cudaStreamSynchronize(tl_cuda_here()->stream);
  return error == cudaSuccess ? TL_OK : tl_cuda_failed(error, name, __FILE__, __LINE__);
}

tl_cuda_context *tl_cuda_context_of(int index) {
  tl_cuda_context *c = &contexts[index];
  if (c->stream == NULL) *c = opened[index];
  return c;
}

void tl_cuda_use(int index) {
  if (here == &contexts[index]) return;
  here = tl_cuda_context_of(index);
  cudaSetDevice(index);
}

tl_cuda_context *tl_cuda_here(void) {
  if (here == NULL) tl_cuda_use(0);
  return here;
}

static int device_count(void) { return devices; }

static void release(int index, void *p, size_t bytes) {
  (void)bytes;
  tl_cuda_free(index, p);
}

void *tl_cuda_scratch(const char *op, size_t bytes) {
  void *p = tl_cuda_alloc(tl_cuda_here()->index, bytes);
  if (p == NULL) TL_FAIL(TL_ERR_MEMORY, op, "no memory for %.1f MB of intermediate results", (double)bytes / 1048576);
  return p;
}

void tl_cuda_scratch_free(void *p, size_t bytes) {
  (void)bytes;
  if (p != NULL) tl_cuda_free(tl_cuda_here()->index, p);
}

tl_status tl_cuda_report(const tl_cuda_fault *f) {
  long long value = f->value, limit = f->limit, at = tl_cuda_host->position(f->at);
  switch (f->code) {
    case TL_CUDA_FAULT_NONE: return TL_OK;
    case TL_CUDA_FAULT_LABEL:
      return TL_FAIL(TL_ERR_INDEX, "cross_entropy", "label %lld (element %lld of the target) is not a class of 0..%lld",
                     value, at, limit - 1);
    case TL_CUDA_FAULT_EMBEDDING:
      return TL_FAIL(TL_ERR_INDEX, "embedding", "id %lld (element %lld of the ids) is not a row of 0..%lld", value, at,
                     limit - 1);
    case TL_CUDA_FAULT_ID:
      return TL_FAIL(TL_ERR_INDEX, "index", "id %lld (element %lld of the ids) is outside 0..%lld", value, at,
                     limit - 1);
    default: return TL_FAIL(TL_ERR_VALUE, "bce_loss", "element %lld of the input or the target is outside 0..1", at);
  }
}

static tl_status properties(int index, tl_device_properties *p) {
  static _Thread_local struct cudaDeviceProp prop;
  TL_CUDA_TRY("get_device_properties", cudaGetDeviceProperties(&prop, index));
  *p = (tl_device_properties){
      .major = prop.major,
      .minor = prop.minor,
      .multiprocessors = prop.multiProcessorCount,
      .total_memory = (double)prop.totalGlobalMem,
      .shared_memory = (double)prop.sharedMemPerBlockOptin,
      .l2_cache = prop.l2CacheSize,
      .warp = prop.warpSize,
  };
  snprintf(p->name, sizeof p->name, "%s", prop.name);
  return TL_OK;
}

/* ---- opening ---- */

static cudaError_t prepare(tl_cuda_context *c, int index) {
  cudaError_t e = cudaSetDevice(index);
  c->index = index;
  if (e == cudaSuccess) e = cudaStreamCreateWithFlags(&c->work, cudaStreamNonBlocking);
  if (e == cudaSuccess) e = cudaMalloc((void **)&c->fault, sizeof *c->fault + sizeof *c->random);
  if (e == cudaSuccess) e = cudaMemsetAsync(c->fault, 0, sizeof *c->fault + sizeof *c->random, c->work);
  if (e == cudaSuccess) e = cudaStreamSynchronize(c->work); /* other streams read it, too */
  c->random = (const tl_cuda_random_base *)(c->fault + 1);
  if (e == cudaSuccess) e = cudaDeviceGetAttribute(&c->multiprocessors, cudaDevAttrMultiProcessorCount, index);
  if (e == cudaSuccess) e = cudaDeviceGetAttribute(&c->max_shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, index);
  return e;
}

/* A device costs hundreds of megabytes: it is opened when somebody names it. */
static tl_status open_device(int index) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  static atomic_bool ready[TL_CUDA_DEVICES];
  if (atomic_load_explicit(&ready[index], memory_order_acquire)) return TL_OK;
  int major = 0, minor = 0, current = 0;
  TL_CUDA_TRY("device", cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index));
  TL_CUDA_TRY("device", cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index));
  if (major < 8)
    return TL_FAIL(TL_ERR_DEVICE, "device", "cuda:%d has compute capability %d.%d: these kernels need 8.0 or more",
                   index, major, minor);
  pthread_mutex_lock(&lock);
  tl_cuda_context c = {0};
  cudaGetDevice(&current);
  cudaError_t e = atomic_load(&ready[index]) ? cudaSuccess : prepare(&c, index);
  if (e == cudaSuccess && c.work != NULL) {
    c.stream = c.work;
    opened[index] = c;
    atomic_store_explicit(&ready[index], true, memory_order_release);
  }
  cudaSetDevice(current);
  pthread_mutex_unlock(&lock);
  TL_CUDA_TRY("device", e);
  return TL_OK;
}

/* Why there are no devices, and what to do about it. */
static const char *explain(cudaError_t e) {
  static char text[256];
  int driver = 0;
  cudaDriverGetVersion(&driver);
  if (e == cudaSuccess || e == cudaErrorNoDevice)
    return "there is no CUDA device (nvidia-smi lists them; CUDA_VISIBLE_DEVICES may hide them)";
  if (driver == 0) return "there is no NVIDIA driver: install it, or check that this container or machine has a GPU";
  if (e == cudaErrorInsufficientDriver)
    snprintf(text, sizeof text, "the NVIDIA driver is too old: it is for CUDA %d.%d, this build needs %d.%d: update it",
             driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
  else snprintf(text, sizeof text, "CUDA does not start: %s (%s)", cudaGetErrorString(e), cudaGetErrorName(e));
  return text;
}

static const tl_accelerator accelerator = {
    .open = open_device,
    .allow_tf32 = tl_cuda_allow_tf32,
    .range_push = tl_cuda_range_push,
    .range_pop = tl_cuda_range_pop,
    .memory = tl_cuda_memory_details,
    .reset_peaks = tl_cuda_reset_peaks,
    .record_stream = tl_cuda_record_stream,
    .pinned_alloc = tl_cuda_pinned_alloc,
    .pinned_free = tl_cuda_pinned_free,
    .copy_in_pinned = tl_cuda_copy_in_pinned,
    .copy_between = tl_cuda_copy_between,
    .properties = properties,
    .stream_new = tl_cuda_stream_new,
    .stream_free = tl_cuda_stream_free,
    .stream_current = tl_cuda_stream_current,
    .stream_use = tl_cuda_stream_use,
    .stream_query = tl_cuda_stream_query,
    .stream_synchronize = tl_cuda_stream_synchronize,
    .stream_wait = tl_cuda_stream_wait,
    .stream_order = tl_cuda_order,
    .event_new = tl_cuda_event_new,
    .event_free = tl_cuda_event_free,
    .event_record = tl_cuda_event_record,
    .event_query = tl_cuda_event_query,
    .event_synchronize = tl_cuda_event_synchronize,
    .event_elapsed = tl_cuda_event_elapsed,
    .recording = tl_cuda_recording,
    .graph_begin = tl_cuda_graph_begin,
    .graph_end = tl_cuda_graph_end,
    .graph_replay = tl_cuda_graph_replay,
    .graph_free = tl_cuda_graph_free,
#ifdef TL_NCCL
    .comm_id = tl_cuda_comm_id,
    .comm_new = tl_cuda_comm_new,
    .comm_launch = tl_cuda_comm_launch,
    .comm_order = tl_cuda_comm_order,
    .comm_done = tl_cuda_comm_done,
    .comm_free = tl_cuda_comm_free,
#endif
};

static tl_kernels kernels;
static const tl_backend backend = {
    .name = "cuda",
    .kind = 1,
    .device_count = device_count,
    .use = tl_cuda_use,
    .alloc = tl_cuda_alloc,
    .free = release,
    .empty_cache = tl_cuda_empty_cache,
    .cached_bytes = tl_cuda_cached_bytes,
    .copy_in = tl_cuda_copy_in,
    .copy_out = tl_cuda_copy_out,
    .synchronize = tl_cuda_synchronize,
    .kernels = &kernels,
    .accelerator = &accelerator,
};

__attribute__((visibility("default"))) const tl_backend *tl_backend_plugin(int abi, const tl_plugin_host *host,
                                                                           const char **why) {
  static char text[256];
  *why = text;
  if (abi != TL_PLUGIN_ABI) {
    snprintf(text, sizeof text, "it was built for ABI %d of the engine, this one has %d: build both together",
             TL_PLUGIN_ABI, abi);
    return NULL;
  }
  tl_cuda_host = host;
  const char *sync = getenv("TLUA_SYNC");
  sync_always = sync != NULL && strcmp(sync, "1") == 0;
  cudaError_t e = cudaGetDeviceCount(&devices);
  if (devices > TL_CUDA_DEVICES) devices = TL_CUDA_DEVICES;
  if (e != cudaSuccess || devices == 0) {
    cudaGetLastError();
    *why = explain(e);
    return NULL;
  }
  tl_cuda_fill_table(&kernels, host->cpu->kernels);
  return &backend;
}
