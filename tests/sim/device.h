/* device.h: what device.cpp tells the files that watch it: shared memory's lifetime (shared.cpp) and the access checkers
 * (shadow.cpp, in the checker build). */
#ifndef TLUA_SIM_DEVICE_PARTS_H
#define TLUA_SIM_DEVICE_PARTS_H

#include "sim.h"

/* A grid starts; one of its blocks starts, whose shared memory holds garbage; its first block is done. */
void sim_shared_grid(const void *function);
void sim_shared_begin(const void *function, char *dynamic, size_t bytes);
void sim_shared_first(const void *function);
/* A grid is done: did it use more shared memory than a block has? */
void sim_shared_end(const sim_kernel *kernel, size_t most);
/* The __shared__ variable around an address; 0 if there is none. */
int sim_shared_of(const void *p, const void **base, size_t *bytes);

#ifdef SIM_CHECK
void sim_shadow_grid(const sim_kernel *kernel, int device);
void sim_shadow_grid_done();
void sim_shadow_block();
void sim_shadow_thread(int thread);
void sim_shadow_barrier();
void sim_shadow_warp(int first, unsigned lanes);
#else
static inline void sim_shadow_grid(const sim_kernel *, int) {}
static inline void sim_shadow_grid_done() {}
static inline void sim_shadow_block() {}
static inline void sim_shadow_thread(int) {}
static inline void sim_shadow_barrier() {}
static inline void sim_shadow_warp(int, unsigned) {}
#endif

/* The stacks of CUDA threads. */
enum : size_t { SIM_STACK = 128 << 10, SIM_MAX_THREADS = 1024 };
extern const char *sim_stacks; /* the lowest address; NULL before the first grid */
static inline bool sim_is_stack(const void *p) {
  return (size_t)(static_cast<const char *>(p) - sim_stacks) < SIM_STACK * SIM_MAX_THREADS;
}

extern "C" {
int sim_pinned_of(const void *p, const void **base, size_t *bytes); /* memory.c */
/* " [kernel ..., block ..., thread ...]", or nothing where no kernel runs */
const char *sim_where(char *text, size_t bytes);
}

#endif
