/* device.h: what device.cpp tells the files that watch it: shared memory's lifetime (shared.cpp) and the access checkers
 * (shadow.cpp, in the checker build). */
#ifndef TLUA_SIM_DEVICE_PARTS_H
#define TLUA_SIM_DEVICE_PARTS_H

#include "sim.h"

/* A block starts: its shared memory holds garbage. */
void sim_shared_begin(const void *function, char *dynamic, size_t bytes);
/* A grid is done: was there more shared memory in use than a block has? */
void sim_shared_end(const void *function, size_t dynamic);

#ifdef SIM_CHECK
void sim_shadow_grid(const sim_kernel *kernel, int device);
void sim_shadow_block();
void sim_shadow_thread(int thread);
void sim_shadow_barrier();
void sim_shadow_warp(int first, unsigned lanes);
#else
static inline void sim_shadow_grid(const sim_kernel *, int) {}
static inline void sim_shadow_block() {}
static inline void sim_shadow_thread(int) {}
static inline void sim_shadow_barrier() {}
static inline void sim_shadow_warp(int, unsigned) {}
#endif

extern "C" {
/* " [kernel ..., block ..., thread ...]", or nothing where no kernel runs */
const char *sim_where(char *text, size_t bytes);
}

#endif
