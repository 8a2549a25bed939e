/* memory.h: where the engine's bytes come from, and the accounting behind tl_memory(). */
#ifndef TL_CORE_MEMORY_H
#define TL_CORE_MEMORY_H

#include "tlua.h"

/* Small host objects (handles, nodes): thread-local free lists by size class. NULL when there is no memory (also when
 * tl_fail_allocation says so). The size given to free must be the one asked for. Not zeroed. */
void *tl_small_alloc(size_t bytes);
void tl_small_free(void *p, size_t bytes);
/* Gives this thread's free lists back; a thread that used the engine calls it before it ends. */
void tl_thread_exit(void);

/* Any other host block: malloc, calloc and free behind the failing-allocator harness. */
void *tl_host_alloc(size_t bytes);
void *tl_host_calloc(size_t n, size_t bytes);
void tl_host_free(void *p);

bool tl_allocation_fails(void); /* the harness's verdict for one allocation; every allocator asks it */

/* CPU memory of tensors: 64-byte aligned, size-class cache with a limit. On failure: empties the cache, retries once. */
void *tl_cpu_alloc(size_t bytes);
void tl_cpu_free(void *p, size_t bytes);
void tl_cpu_empty_cache(void);
double tl_cpu_cached_bytes(void);

/* Accounting, called by tl_storage_new and its release. */
void tl_account(tl_device device, int64_t bytes);
void tl_count_tensor(int delta);

#endif
