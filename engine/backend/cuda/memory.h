/* memory.h: device memory from a caching allocator (memory.c), pinned host memory (pinned.c), copies through it (copy.c). */
#ifndef TL_BACKEND_CUDA_MEMORY_H
#define TL_BACKEND_CUDA_MEMORY_H

#include "backend/cuda/cuda.h"

/* Memory for work on this thread's current stream of the device. NULL when there is none, even after cached memory went
 * back to the device. */
void *tl_cuda_alloc(int index, size_t bytes);
/* The block may be handed out again to work that follows on the stream it was allocated for. Never waits. */
void tl_cuda_free(int index, void *p);
/* Work on another stream uses the block: once freed, it rests until that work is done. */
void tl_cuda_record_stream(int index, void *p, void *stream);
void tl_cuda_empty_cache(int index);
double tl_cuda_cached_bytes(int index);
tl_status tl_cuda_memory_details(int index, tl_memory_details *d);
void tl_cuda_reset_peaks(int index);

/* A graph's own memory. Between begin and end, this thread's allocations on the device's current stream come from it, and
 * whatever else is freed is kept aside. What is in use at `end` stays where it is until the last graph of the device is
 * freed: replays touch it. free: the graph will not run again. begin: NULL when there is no memory, or another thread records. */
typedef struct tl_cuda_pool tl_cuda_pool;
tl_cuda_pool *tl_cuda_pool_begin(int index);
void tl_cuda_pool_end(tl_cuda_pool *pool);
void tl_cuda_pool_free(tl_cuda_pool *pool);

/* Pinned host memory; NULL when there is none. A freed block rests until the copies that were recorded are done. */
void *tl_cuda_pinned_alloc(size_t bytes);
void tl_cuda_pinned_free(void *p);
/* The stream will read or write the block: to be said right after its copy was started. */
void tl_cuda_pinned_used(void *p, int index, cudaStream_t stream);
/* Waits until freed blocks whose copies are not done hold less than `bytes`. */
void tl_cuda_pinned_drain(size_t bytes);
double tl_cuda_pinned_bytes(void); /* held, in use or not */

/* Copies, tl_backend's contracts. */
tl_status tl_cuda_copy_in(int index, void *dst, const void *host, size_t bytes);
/* host lies in a pinned block and stays as it is until the copy is done. */
tl_status tl_cuda_copy_in_pinned(int index, void *dst, void *block, const void *host, size_t bytes);
tl_status tl_cuda_copy_out(int index, void *host, const void *src, size_t bytes);
tl_status tl_cuda_copy_between(int to, void *dst, int from, const void *src, size_t bytes);
tl_status tl_cuda_synchronize(int index);

#endif
