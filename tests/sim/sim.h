/* sim.h: the seam between the simulator's parts. NVIDIA's headers give the public functions' signatures; this is what
 * the parts say to each other.
 *
 *   device.cpp    runs one grid: fibers, barriers, shuffles, shared memory; the checkers' access hooks
 *   runtime.c     the CUDA runtime: errors, devices, settings
 *   work.c        what was submitted and the order it runs in
 *   memory.c, copy.c, stream.c, graph.c   arenas, copies, streams and events, capture
 *   protect.c, race.c   host code that touches what it must not; work that nothing orders
 *   block.c       the blocks of the plug-in's allocator
 *   cublaslt*.c, cudnn*.c, nccl*.c, library.c   the libraries, on top of sim_enqueue
 *
 * Settings, all in the environment:
 *
 *   TLUA_SIM_DEVICES=2, TLUA_SIM_MEMORY=4294967296   simulated GPUs, bytes of each
 *   TLUA_SIM_SEED=0      0: streams run what is waited for, as late as can be; others: a random order that the waits allow
 *   TLUA_SIM_ORDER=...   of the threads and blocks of a kernel: forward, reverse, random (by the seed)
 *   TLUA_SIM_FAIL=k      the k-th call that can fail does; FUNCTION:k: the k-th of that function
 *   TLUA_SIM_HANG=FUNCTION   never returns: ncclCommAbort
 *   TLUA_SIM_DRIVER=old  the driver is too old for the runtime
 *   TLUA_SIM_LEAKS=1     what was not freed or destroyed is a fault at exit
 *   TLUA_SIM_TIMEOUT=60, TLUA_SIM_NCCL_TIMEOUT=60    seconds without progress before a wait is a fault
 *   TLUA_SIM_LOG=1       why a call gave an error, on stderr
 *   TLUA_SIM_FAULTS=count   goes on after a fault where that is possible
 */
#ifndef TLUA_SIM_H
#define TLUA_SIM_H

#include <stdint.h>

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- work: runtime.c ---- */

/* A piece of work that a stream runs later, any number of times (a graph replays it). `data` is copied, to an address
 * that is aligned as malloc's are. */
typedef void sim_work_fn(void *data, int device);
/* Appends work to a stream (or to the graph that captures it). `reads`, `writes`: device memory it will touch, for the
 * libraries, whose plain loops are not instrumented. */
typedef struct sim_range {
  const void *base;
  size_t bytes;
  int writes;
} sim_range;
cudaError_t sim_enqueue(cudaStream_t stream, const char *name, sim_work_fn *run, const void *data, size_t bytes,
                        int ranges, const sim_range *range);
/* The same for work that may have to wait for other devices: it returns 1 when it is done and 0 to be asked again. */
typedef int sim_poll_fn(void *data, int device);
cudaError_t sim_enqueue_poll(cudaStream_t stream, const char *name, sim_poll_fn *poll, const void *data, size_t bytes,
                             int ranges, const sim_range *range);
/* Makes cudaGetLastError and the caller return `error`; a sentence for the log says why. */
cudaError_t sim_error(cudaError_t error, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Never returns where TLUA_SIM_HANG names this function. Not under the lock. */
void sim_hang_on_request(const char *function);

/* The k-th failable call fails (TLUA_SIM_FAIL=k): every simulated function that can fail asks first. */
int sim_call_fails(const char *function);

/* One more call of the runtime's function, or launch of the kernel, of this name. */
void sim_count(const char *name);
/* Of all whose name has this part: what a test of the library asks ("Synchronize": how often the host waited). */
long long tl_sim_calls(const char *part);

/* ---- one grid: device.cpp ---- */

typedef struct sim_kernel {
  const char *name;
  const void *function;
  void (*run)(const void *arguments); /* one thread's whole run */
  const void *arguments;
  dim3 grid, block;
  size_t shared; /* dynamic, bytes */
} sim_kernel;
/* What <<<>>> is: checks the configuration as the runtime does, then sim_enqueue. `arguments` are copied. */
cudaError_t sim_enqueue_kernel(const sim_kernel *kernel, size_t bytes, cudaStream_t stream);
/* Runs one now; sim_enqueue_kernel's work function ends here. One grid runs at a time, whatever thread asks. */
void sim_run_grid(const sim_kernel *kernel, int device);
/* A fault address that device.cpp can explain (end of shared memory, a thread's stack): in words; 0 if it is not ours. */
int sim_explain_address(const void *p, char *text, size_t bytes);

/* ---- a fault that the simulator exists to find: report.c ---- */

/* Prints "tlua-sim: KIND: text" with the kernel, block and thread that run, and ends the process with exit code 66, or
 * only counts it where the self-test asked for that (TLUA_SIM_FAULTS=count). */
void sim_fault(const char *kind, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- memory state, for the checkers: memory.c (arena) tells device.cpp (shadow) ---- */

/* Which device's arena an address is in, -1 for host memory. */
int sim_device_of(const void *p);
/* The live allocation around an address, 0 if there is none (freed, or between allocations). */
int sim_allocation_of(const void *p, const void **base, size_t *bytes);
/* Order, for the stream-race checker. A moment stands for the work that runs just now; sim_comes_after: is what runs now
 * ordered (by a stream, an event, a wait of the host) behind that moment? */
typedef struct sim_moment {
  uint32_t lane, tick; /* lane < 64 */
} sim_moment;
sim_moment sim_now(void);
int sim_comes_after(sim_moment before);
const char *sim_work_name(void); /* of what runs just now */
/* The plug-in's allocator (engine/backend/cuda/memory.c): block.c. */
void sim_block(void *base, size_t room, size_t bytes, cudaStream_t stream);
/* What the checkers want to know, where they are built in. */
void sim_memory_allocated(const void *base, size_t bytes) __attribute__((weak));
void sim_memory_freed(const void *base, size_t bytes) __attribute__((weak));
/* Of a block that the plug-in's allocator cut from an allocation, the first `bytes` are in use from now on, the rest of
 * its `room` is not. */
void sim_block_changed(void *base, size_t room, size_t bytes) __attribute__((weak));
/* A copy, a fill or a library call touches device memory, when it runs; writes = 2: the memory's life ends. */
void sim_memory_touched(const void *base, size_t bytes, int writes) __attribute__((weak));
/* A library's loop reads just these bytes: were they ever written? (A range may have gaps.) */
void sim_memory_read(const void *base, size_t bytes) __attribute__((weak));

#ifdef __cplusplus
}
#endif
#endif
