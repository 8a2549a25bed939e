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

enum { SIM_LANES = 64, SIM_MAX_DEVICES = 8, SIM_DEFAULT_SHARED = 48 << 10, SIM_MAX_SHARED = 99 << 10 };

/* ---- calls: runtime.c ---- */

/* Every public function: takes the lock, fails on request with `failure` (cudaSuccess: never), runs, gives the lock back
 * and leaves an error where cudaGetLastError finds it. */
#define SIM_API(failure, expression)                   \
  do {                                                 \
    cudaError_t error_ = sim_enter(__func__, failure); \
    if (error_ == cudaSuccess) error_ = (expression);  \
    return sim_leave(error_);                          \
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
/* Leaves the lock for a while, for host code that may need it: a callback, another thread. */
void sim_pause(void (*what)(void *), void *argument, bool callback);

/* ---- handles ---- */

/* The first word of every handle: which kind it is, or that it was destroyed. */
typedef enum sim_kind { SIM_STREAM = 0x51a7ea11, SIM_EVENT, SIM_GRAPH, SIM_EXEC, SIM_DEAD } sim_kind;

/* A handle that was destroyed: its memory is kept for a while so that a later use is recognised. */
void sim_bury(void *handle);

/* ---- items: work.c ---- */

typedef struct sim_work {
  const char *name;
  int device;
  sim_work_fn *run;  /* NULL: a marker, done when what it waits for is */
  sim_poll_fn *poll; /* instead of run: 1 done, 0 ask again */
  bool callback;     /* host code: runs without the lock and without device memory */
  void *data;        /* own copy */
  size_t bytes;
  int ranges;
  sim_range *range; /* own copy: memory it touches, of devices or pinned */
  double seconds;   /* simulated */
  int lane;
  enum { SIM_USES, SIM_BEGINS, SIM_ENDS } lifetime; /* of the memory in its ranges: BEGINS is no access */
} sim_work;

/* sim_work with copies of what it points at, and their release. */
void sim_work_copy(sim_work *to, const sim_work *from);
void sim_work_free(sim_work *work);

typedef struct sim_item sim_item;
struct sim_item {
  sim_work work;
  uint64_t number; /* order of submission */
  int refs, unmet; /* owners; items it still waits for */
  bool done, running;
  uint64_t polled, marked; /* rounds of work.c */
  uint64_t polled_before;  /* how often a poll function was asked */
  double finish;           /* simulated seconds */
  uint32_t clock[SIM_LANES];
  sim_item **needs, **dependents;
  int need_count, dependent_count;
  sim_item *previous, *next; /* all that are not done */
};

/* Waits while the queues are full. Like every wait it may let other threads in: look at what they may change later. */
void sim_make_room(void);
/* A new item that waits for some others (NULLs and done ones are fine), which the caller keeps where there may be no
 * room. The caller owns one reference. */
sim_item *sim_submit(const sim_work *work, int needs, sim_item *const *need);
sim_item *sim_keep(sim_item *item);
void sim_drop(sim_item *item);
void sim_replace(sim_item **slot, sim_item *item); /* takes a new reference */
/* Runs items until one is done. */
void sim_wait(sim_item *item);
/* Waits, as host code, for all work of a device, that of destroyed streams too. */
void sim_wait_device(int device);
/* Lets the device make some progress, as time does while the host asks. */
void sim_progress(sim_item *wanted);
/* What this thread runs just now, NULL: host code. */
const sim_item *sim_running(void);
void *sim_checked(void *p); /* ends the process where malloc gave NULL */

/* ---- order: race.c ---- */

/* Vector clocks: each stream is a lane (more streams than lanes share them), each item a tick of its lane. The clock of
 * an item tells for every lane the last tick that came before it. Only devices have lanes: the host learns what it
 * waited for and passes that on to what it submits. */
int sim_lane_open(void);
void sim_lane_close(int lane);
void sim_clock_start(sim_item *item); /* a new item, before its needs are added: knows what the host knows */
void sim_clock_join(sim_item *item, const sim_item *before);
void sim_host_saw(const sim_item *item);
/* Waits as host code: what the host does next comes after the item. */
void sim_host_wait(sim_item *item);
/* What was done with one allocation; a fault if it is not ordered with what was done before. */
typedef struct sim_history sim_history;
void sim_touch(sim_history **history, const sim_item *item, size_t from, size_t to, bool writes);
void sim_history_free(sim_history *history);

/* ---- streams and events: stream.c ---- */

/* Nodes of a graph, by number. */
typedef struct sim_nodes {
  int *list;
  int count;
} sim_nodes;

struct CUstream_st {
  sim_kind kind;
  int device;
  bool blocking, legacy;
  int priority, lane;
  sim_item *last;
  struct sim_capture *capture; /* graph.c; NULL: not capturing */
  sim_nodes frontier;          /* what the next captured node comes after */
  struct CUstream_st *next;
};

struct CUevent_st {
  sim_kind kind;
  int device;
  unsigned flags;
  sim_item *item;   /* NULL: never recorded, or in a capture */
  uint64_t capture; /* number of the capture it was last recorded in, 0: none */
  sim_nodes frontier;
  struct CUevent_st *next;
};

/* The stream behind a handle; an error for what is no stream or no longer one. */
cudaError_t sim_stream_of(cudaStream_t handle, struct CUstream_st **stream);
struct CUstream_st *sim_streams(void); /* all that live, legacy streams apart */
/* Appends work, or a node to the graph that captures the stream. `item`, where it is not NULL, takes a reference on what
 * was appended; it is refused with an error in a capture. */
cudaError_t sim_append(struct CUstream_st *stream, const sim_work *work, sim_item **item);
int sim_report_handles(void); /* what was not destroyed: how many, each in a line on stderr */

/* ---- capture: graph.c ---- */

/* An error, and the end of the captures concerned, where a call is not allowed now: one that waits for a stream (or may
 * not meet a capture at all), one that a capture of this thread's or of any thread's forbids. */
cudaError_t sim_refuse_captured(struct CUstream_st *stream, const char *function);
cudaError_t sim_refuse_captured_event(struct CUevent_st *event, const char *function);
cudaError_t sim_refuse_unsafe(const char *function);
/* Work on a legacy stream while a blocking stream of its device is captured. */
cudaError_t sim_refuse_implicit(int device, const char *function);
bool sim_capture_works(const struct CUstream_st *stream); /* not captured, or the capture has not failed */
cudaError_t sim_capture_work(struct CUstream_st *stream, const sim_work *work);
cudaError_t sim_capture_record(struct CUstream_st *stream, struct CUevent_st *event);
cudaError_t sim_capture_wait(struct CUstream_st *stream, struct CUevent_st *event);
int sim_report_graphs(void);

/* ---- memory: memory.c ---- */

size_t sim_device_memory(void);
/* A device's arena and the part of it that was ever used; NULL before its first allocation. */
char *sim_arena(int device, size_t *extent);
/* A pinned allocation around an address. */
int sim_pinned_of(const void *p, const void **base, size_t *bytes);
/* Are a piece of work's ranges memory that is allocated? Looked at when it is submitted and when it runs. */
cudaError_t sim_check_ranges(const char *name, int ranges, const sim_range *range);
/* Who touched them last? An item is about to run. */
void sim_touch_ranges(const sim_item *item);
/* Fills what was allocated and guards the rest of its room; looks at the guard; fills what was freed. */
void sim_poison_new(char *p, size_t bytes, size_t room);
void sim_check_guard(const char *p, size_t bytes, size_t room, int device);
void sim_poison_freed(char *p, size_t room);
/* From now on an allocation's memory is used in blocks only. Returns whether there is one. */
int sim_manage(const void *p);

/* ---- blocks of an allocation: block.c ---- */

/* The block around an address, as of what runs now. */
int sim_block_of(const void *p, const void **base, size_t *bytes, sim_history ***history);
void sim_drop_blocks(const char *from, size_t bytes);
int sim_report_blocks(void);
int sim_report_memory(void);

/* ---- page protection: protect.c ---- */

/* Host code sees no device memory. Makes exactly the arenas in `devices` accessible (a bit each), or some more. */
void sim_open(unsigned devices);
void sim_open_also(unsigned devices);
void sim_close(int device);
void sim_protect_start(void);
void sim_protect_thread(void); /* a thread's first call: an alternate stack for the fault handler */
/* Pinned memory that a pending copy reads or writes: from its submission until it runs; then, what other copies want. */
void sim_pend(const sim_item *item);
void sim_unpend(const sim_item *item);
void sim_close_pinned(const sim_item *item);
/* Devices that may be touched by what runs on one. */
unsigned sim_peers(int device);

#endif
