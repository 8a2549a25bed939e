/* cuda.h: what the files of the CUDA plug-in share: the device of this thread, scratch memory, errors.
 *
 * The plug-in is engine/backend/cuda (C) and kernels/cuda (CUDA C++), linked with cudart, cuBLASLt, cuDNN and NCCL, or
 * with tests/sim instead of them. It links nothing of the engine: core/error.h's tl_fail is defined in plugin.c. */
#ifndef TL_BACKEND_CUDA_CUDA_H
#define TL_BACKEND_CUDA_CUDA_H

#include <cuda_runtime_api.h>

#include "backend/backend.h"
#include "core/error.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a kernel found wrong. It lies in device memory, is set at most once, and is read and cleared by the next call that
 * waits for the device (plugin.c says it in words). */
enum tl_cuda_fault_code {
  TL_CUDA_FAULT_NONE,
  TL_CUDA_FAULT_LABEL,     /* cross_entropy, nll_loss: value is no class of 0..limit-1 */
  TL_CUDA_FAULT_EMBEDDING, /* embedding: value is no row of 0..limit-1 */
  TL_CUDA_FAULT_ID,        /* gather, index_select ...: value is outside 0..limit-1 */
  TL_CUDA_FAULT_UNIT       /* bce_loss: an element is outside 0..1 */
};

typedef struct tl_cuda_fault {
  int32_t code, unused;
  int64_t value, limit;
  int64_t at; /* row-major place in the ids or labels */
} tl_cuda_fault;

/* Random kernels work on stream seed ^ random->seed from number offset + random->offset on, both read on the device: zero,
 * but in a graph what has changed since it was recorded. */
typedef struct tl_cuda_random_base {
  uint64_t seed, offset;
} tl_cuda_random_base;

enum { TL_CUDA_DEVICES = 16 }; /* at most */

/* A device, as one thread sees it. */
typedef struct tl_cuda_context {
  int index;
  cudaStream_t stream; /* what this thread's work goes to */
  cudaStream_t work;   /* the device's own one, which all threads start with */
  tl_cuda_fault *fault;
  const tl_cuda_random_base *random; /* in the device's memory */
  int multiprocessors;
  int max_shared; /* bytes a block may ask for */
} tl_cuda_context;

/* The context of the device that tl_backend.use chose, which is also the runtime's current one. */
tl_cuda_context *tl_cuda_here(void);
void tl_cuda_use(int index);
/* The same device as `use` would choose it, but the current one stays. */
tl_cuda_context *tl_cuda_context_of(int index);

/* Does this thread record a graph (graph.c)? Then nothing runs, and nothing may wait for the device or ask events. */
bool tl_cuda_recording(void);

/* Memory for one call's intermediate results, from the caching allocator: give it back right after the launch that uses
 * it last (reuse is stream-ordered). NULL when there is none, with the failure recorded (TL_ERR_MEMORY). */
void *tl_cuda_scratch(const char *op, size_t bytes);
void tl_cuda_scratch_free(void *p, size_t bytes);

/* A failing runtime call becomes a tl_status with the runtime's own words. */
tl_status tl_cuda_failed(cudaError_t error, const char *op, const char *file, int line);
#define TL_CUDA_TRY(op, call)                                                           \
  do {                                                                                  \
    cudaError_t error_ = (call);                                                        \
    if (error_ != cudaSuccess) return tl_cuda_failed(error_, (op), __FILE__, __LINE__); \
  } while (0)

/* After a launch: did it start? Under TLUA_SYNC=1 waits and says whether it ran. */
tl_status tl_cuda_launched(const char *name);

/* What kernels found, in words; the record is cleared by whoever read it. */
tl_status tl_cuda_report(const tl_cuda_fault *found);

/* The engine's side (plugin.c). */
extern const tl_plugin_host *tl_cuda_host;

#ifdef __cplusplus
}
#endif
#endif
