/* runtime.h: what the files of the simulated CUDA runtime say to each other.
 *
 * Everything that was submitted and is not done yet is one directed acyclic graph of items: an item waits for what was
 * in its stream before it, for events, for the legacy default stream. Nothing runs until somebody waits (work.c). One
 * recursive lock guards all of it; it is held while items run. */
#ifndef TLUA_SIM_RUNTIME_H
#define TLUA_SIM_RUNTIME_H

#include <stdbool.h>
#include <stdint.h>

#include "sim.h"

enum { SIM_MAX_DEVICES = 8, SIM_DEFAULT_SHARED = 48 << 10, SIM_MAX_SHARED = 99 << 10 };

/* ---- calls: runtime.c ---- */

/* Every public function: takes the lock, fails on request with `failure` (cudaSuccess: never), runs, gives the lock back
 * and leaves an error where cudaGetLastError finds it. */
#define SIM_API(failure, expression)                                                                                   \
  do {                                                                                                                 \
    cudaError_t error_ = sim_enter(__func__, failure);                                                                 \
    if (error_ == cudaSuccess) error_ = (expression);                                                                  \
    return sim_leave(error_);                                                                                          \
  } while (0)
cudaError_t sim_enter(const char *function, cudaError_t failure);
cudaError_t sim_leave(cudaError_t error);
void sim_lock(void);
void sim_unlock(void);
/* Number in the environment, or what is taken where it is not set. */
long long sim_setting(const char *name, long long otherwise);
/* This thread's current device. */
int sim_current_device(void);
int sim_devices(void);
cudaError_t sim_check_device(int device);
/* The thread is inside a cudaLaunchHostFunc callback, which must not call the runtime. */
void sim_in_callback(bool inside);

/* ---- handles ---- */

/* The first word of every handle: which kind it is, or that it was destroyed. */
typedef enum sim_kind { SIM_STREAM = 0x51a7ea11, SIM_EVENT, SIM_GRAPH, SIM_EXEC, SIM_DEAD } sim_kind;

/* A handle that was destroyed: its memory is kept for a while so that a later use is recognised. */
void sim_bury(void *handle);

/* ---- items: work.c ---- */

typedef struct sim_work {
  const char *name;
  int device;
  sim_work_fn *run;   /* NULL: a marker, done when what it waits for is */
  sim_poll_fn *poll;  /* instead of run: 1 done, 0 ask again */
  bool callback;      /* host code: runs without the lock and without device memory */
  void *data;         /* own copy */
  size_t bytes;
  int ranges;
  sim_range *range; /* own copy */
  double seconds;   /* simulated */
} sim_work;

typedef struct sim_item sim_item;
struct sim_item {
  sim_work work;
  uint64_t number; /* order of submission */
  int refs, unmet; /* owners; items it still waits for */
  bool done, running;
  uint64_t polled, marked;
  double finish; /* simulated seconds */
  sim_item **needs, **dependents;
  int need_count, dependent_count;
  sim_item *previous, *next; /* all that are not done */
};

/* A new item that waits for some others (NULLs and done ones are fine). The caller owns one reference. */
sim_item *sim_submit(const sim_work *work, int needs, sim_item *const *need);
sim_item *sim_keep(sim_item *item);
void sim_drop(sim_item *item);
void sim_replace(sim_item **slot, sim_item *item); /* takes a new reference */
/* Runs items until one is done. */
void sim_wait(sim_item *item);
/* Lets the device make some progress, as time does while the host asks. */
void sim_progress(sim_item *wanted);
void sim_work_free(sim_work *work);

/* ---- streams and events: stream.c ---- */

struct CUstream_st {
  sim_kind kind;
  int device;
  bool blocking, legacy;
  int priority;
  sim_item *last;
  struct CUstream_st *next;
};

struct CUevent_st {
  sim_kind kind;
  int device;
  unsigned flags;
  sim_item *item; /* NULL: never recorded */
};

/* The stream behind a handle; an error for what is no stream or no longer one. */
cudaError_t sim_stream_of(cudaStream_t handle, struct CUstream_st **stream);
/* Appends work; `item`, where it is not NULL, takes a reference on what was appended. */
cudaError_t sim_append(struct CUstream_st *stream, const sim_work *work, sim_item **item);
/* All work of a device. */
void sim_wait_device(int device);

/* ---- memory: memory.c ---- */

size_t sim_device_memory(void);
/* A pinned allocation around an address. */
int sim_pinned_of(const void *p, const void **base, size_t *bytes);
/* The checks of a piece of work's ranges when it is submitted and when it runs. */
cudaError_t sim_check_ranges(const char *name, int ranges, const sim_range *range);

#endif
