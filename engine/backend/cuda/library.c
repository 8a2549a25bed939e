/* library.c: handles of cuBLASLt and cuDNN, their errors, caches of prepared problems. */
#include "backend/cuda/library.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* ---- handles ---- */

typedef struct library {
  pthread_mutex_t lock;
  cublasLtHandle_t blas;
  cudnnHandle_t dnn;
  cudaStream_t dnn_stream;
  tl_cuda_caches caches;
} library;

static _Atomic(library *) libraries[TL_CUDA_DEVICES];
static atomic_bool tf32;

void tl_cuda_allow_tf32(bool allow) { atomic_store(&tf32, allow); }
bool tl_cuda_tf32_allowed(void) { return atomic_load(&tf32); }

/* This thread's device's; NULL without memory for it. */
static library *here(void) {
  _Atomic(library *) *place = &libraries[tl_cuda_here()->index];
  library *l = atomic_load_explicit(place, memory_order_acquire), *mine;
  if (l != NULL) return l;
  if ((mine = calloc(1, sizeof *mine)) == NULL) return NULL;
  pthread_mutex_init(&mine->lock, NULL);
  if (atomic_compare_exchange_strong(place, &l, mine)) return mine;
  pthread_mutex_destroy(&mine->lock); /* another thread was first */
  free(mine);
  return l;
}

/* While a graph is recorded a library may still have to load what it runs, or to start: such calls are let through. */
static void exchange_capture_mode(void) {
  static _Thread_local enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  if (tl_cuda_recording()) cudaThreadExchangeStreamCaptureMode(&mode);
}

static tl_status lock(const char *op, library **out) {
  *out = here();
  if (*out == NULL) return TL_FAIL(TL_ERR_MEMORY, op, "no memory for the handles of cuBLASLt and cuDNN");
  pthread_mutex_lock(&(*out)->lock);
  exchange_capture_mode();
  return TL_OK;
}

void tl_cuda_library_close(void) {
  exchange_capture_mode();
  pthread_mutex_unlock(&here()->lock);
}

tl_cuda_caches *tl_cuda_caches_here(void) { return &here()->caches; }

tl_status tl_cuda_blas_open(const char *op, cublasLtHandle_t *out) {
  library *l;
  TL_TRY(lock(op, &l));
  cublasStatus_t status = l->blas == NULL ? cublasLtCreate(&l->blas) : CUBLAS_STATUS_SUCCESS;
  *out = l->blas;
  if (status == CUBLAS_STATUS_SUCCESS) return TL_OK;
  l->blas = NULL;
  tl_cuda_library_close();
  return tl_cuda_blas_failed(status, op, __FILE__, __LINE__);
}

tl_status tl_cuda_dnn_open(const char *op, cudnnHandle_t *out) {
  library *l;
  cudaStream_t stream = tl_cuda_here()->stream;
  TL_TRY(lock(op, &l));
  cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
  if (l->dnn == NULL && (status = cudnnCreate(&l->dnn)) != CUDNN_STATUS_SUCCESS) l->dnn = NULL;
  if (status == CUDNN_STATUS_SUCCESS && l->dnn_stream != stream) {
    status = cudnnSetStream(l->dnn, stream);
    if (status == CUDNN_STATUS_SUCCESS) l->dnn_stream = stream;
  }
  *out = l->dnn;
  if (status == CUDNN_STATUS_SUCCESS) return TL_OK;
  tl_cuda_library_close();
  return tl_cuda_dnn_failed(status, op, __FILE__, __LINE__);
}

/* ---- errors ---- */

/* What a user can do about the failures that are not a bug of ours. */
static const char *blas_remedy(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return ": the library could not start; are its version and the driver's a pair, and is memory left on the device?";
    case CUBLAS_STATUS_ALLOC_FAILED: return ": no memory left for its own data; free tensors or take smaller batches";
    case CUBLAS_STATUS_ARCH_MISMATCH: return ": this device is too old for it (compute capability 8.0 is needed)";
    case CUBLAS_STATUS_EXECUTION_FAILED: return ": run with TLUA_SYNC=1 to find the call that went wrong before it";
    default: return "";
  }
}

tl_status tl_cuda_blas_failed(cublasStatus_t status, const char *op, const char *file, int line) {
  const int code = status == CUBLAS_STATUS_ALLOC_FAILED    ? TL_ERR_MEMORY
                   : status == CUBLAS_STATUS_NOT_SUPPORTED ? TL_ERR_UNSUPPORTED
                                                           : TL_ERR_DEVICE;
  return tl_fail(code, op, file, line, "cuBLASLt: %s%s", cublasLtGetStatusName(status), blas_remedy(status));
}

static const char *dnn_remedy(cudnnStatus_t status) {
  switch (status) {
    case CUDNN_STATUS_NOT_INITIALIZED:
      return ": the library could not start; are its version and the driver's a pair, and is memory left on the device?";
    case CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH:
    case CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED:
      return ": libcudnn's parts do not fit together; have one version of cuDNN on the library path";
    case CUDNN_STATUS_EXECUTION_FAILED: return ": run with TLUA_SYNC=1 to find the call that went wrong before it";
    default: return "";
  }
}

tl_status tl_cuda_dnn_failed(cudnnStatus_t status, const char *op, const char *file, int line) {
  const int kind = (int)status / 1000 * 1000; /* statuses are numbered by category */
  const bool memory = status == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED ||
                      status == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED;
  const int code = memory                                    ? TL_ERR_MEMORY
                   : kind == (int)CUDNN_STATUS_NOT_SUPPORTED ? TL_ERR_UNSUPPORTED
                                                             : TL_ERR_DEVICE;
  return tl_fail(code, op, file, line, "cuDNN: %s%s", cudnnGetErrorString(status), dnn_remedy(status));
}

/* ---- caches ---- */

/* FNV-1a over 8 bytes at a time; never 0 */
static uint64_t hash_of(const void *key, size_t size) {
  uint64_t h = 14695981039346656037u, word;
  for (size_t i = 0; i + sizeof word <= size; i += sizeof word) {
    memcpy(&word, (const char *)key + i, sizeof word);
    h = (h ^ word) * 1099511628211u;
    h ^= h >> 29;
  }
  return h | 1;
}

static char *place(const tl_cuda_cache *c, uint64_t set, int way, size_t entry_size) {
  return (char *)c->entries + (set * TL_CUDA_CACHE_WAYS + (uint64_t)way) * entry_size;
}

static uint64_t set_of(uint64_t hash) { return (hash >> 8) % TL_CUDA_CACHE_SETS; }

void *tl_cuda_cache_find(const tl_cuda_cache *c, const void *key, size_t key_size, size_t entry_size) {
  const uint64_t hash = hash_of(key, key_size), set = set_of(hash);
  for (int way = 0; way < TL_CUDA_CACHE_WAYS; way++) {
    if (c->hashes[set][way] != hash) continue;
    char *entry = place(c, set, way, entry_size);
    if (memcmp(entry, key, key_size) == 0) return entry;
  }
  return NULL;
}

tl_status tl_cuda_cache_add(tl_cuda_cache *c, const char *op, const void *entry, size_t key_size, size_t entry_size,
                            void (*drop)(void *entry), void **out) {
  const uint64_t hash = hash_of(entry, key_size), set = set_of(hash);
  if (c->entries == NULL) c->entries = calloc(TL_CUDA_CACHE_SETS * TL_CUDA_CACHE_WAYS, entry_size);
  if (c->entries == NULL) return TL_FAIL(TL_ERR_MEMORY, op, "no memory for the cache of prepared problems");
  const int way = c->next[set];
  char *to = place(c, set, way, entry_size);
  if (c->hashes[set][way] != 0) drop(to);
  c->next[set] = (uint8_t)((way + 1) % TL_CUDA_CACHE_WAYS);
  c->hashes[set][way] = hash;
  memcpy(to, entry, entry_size);
  *out = to;
  return TL_OK;
}
