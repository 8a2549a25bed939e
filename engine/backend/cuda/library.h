/* library.h: cuBLASLt and cuDNN as the plug-in's files use them: one handle a device, made when a product or a convolution
 * first asks for it, their errors in words, and bounded caches of what was prepared for a problem.
 *
 * A handle, its caches and the launch of what they hold belong together: callers hold the device's lock meanwhile, which
 * tl_cuda_blas_open and tl_cuda_dnn_open take and tl_cuda_library_close gives back. */
#ifndef TL_BACKEND_CUDA_LIBRARY_H
#define TL_BACKEND_CUDA_LIBRARY_H

#include <cublasLt.h>
#include <cudnn.h>

#include "backend/cuda/cuda.h"

/* ---- handles ---- */

/* The handle of this thread's device; its stream is this thread's one. On success the device is locked. */
tl_status tl_cuda_blas_open(const char *op, cublasLtHandle_t *out);
tl_status tl_cuda_dnn_open(const char *op, cudnnHandle_t *out);
void tl_cuda_library_close(void);

tl_status tl_cuda_blas_failed(cublasStatus_t status, const char *op, const char *file, int line);
tl_status tl_cuda_dnn_failed(cudnnStatus_t status, const char *op, const char *file, int line);
#define TL_BLAS_TRY(op, call)                                                                            \
  do {                                                                                                   \
    cublasStatus_t status_ = (call);                                                                     \
    if (status_ != CUBLAS_STATUS_SUCCESS) return tl_cuda_blas_failed(status_, (op), __FILE__, __LINE__); \
  } while (0)
#define TL_DNN_TRY(op, call)                                                                           \
  do {                                                                                                 \
    cudnnStatus_t status_ = (call);                                                                    \
    if (status_ != CUDNN_STATUS_SUCCESS) return tl_cuda_dnn_failed(status_, (op), __FILE__, __LINE__); \
  } while (0)

/* May float32 products and convolutions round their factors to TF32 (10 bits of mantissa), which the matrix units take?
 * Off at the start. */
void tl_cuda_allow_tf32(bool allow);
bool tl_cuda_tf32_allowed(void);

/* ---- caches ---- */

enum { TL_CUDA_CACHE_SETS = 64, TL_CUDA_CACHE_WAYS = 4 };

/* Entries start with their key, which is compared byte by byte: padding must be zero. A new key takes the place of its
 * set's oldest one. Zeroed memory is an empty cache. */
typedef struct tl_cuda_cache {
  void *entries;                                           /* SETS x WAYS, allocated at the first use */
  uint64_t hashes[TL_CUDA_CACHE_SETS][TL_CUDA_CACHE_WAYS]; /* 0: a free place */
  uint8_t next[TL_CUDA_CACHE_SETS];
} tl_cuda_cache;

/* The entry of a key, or NULL. */
void *tl_cuda_cache_find(const tl_cuda_cache *c, const void *key, size_t key_size, size_t entry_size);
/* Stores a copy of an entry; `drop` gets what lay in its place before. */
tl_status tl_cuda_cache_add(tl_cuda_cache *c, const char *op, const void *entry, size_t key_size, size_t entry_size,
                            void (*drop)(void *entry), void **out);

/* Caches of this thread's device. */
typedef struct tl_cuda_caches {
  tl_cuda_cache products, convolutions;
} tl_cuda_caches;
tl_cuda_caches *tl_cuda_caches_here(void);

#endif
