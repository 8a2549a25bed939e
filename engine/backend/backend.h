/* backend.h: what a device kind is. The CPU backend is built in; others are shared objects opened on first use. */
#ifndef TL_BACKEND_BACKEND_H
#define TL_BACKEND_BACKEND_H

#include <stdarg.h>

#include "backend/kernels.h"
#include "tlua.h"

struct tl_collective;

/* What only accelerators have; see tlua.h's functions of these names (device.c). Streams, events and graphs are the
 * backend's own handles. `free` functions never wait. */
typedef struct tl_accelerator {
  tl_status (*open)(int index); /* before a device's first use; cheap when it is open */
  void (*allow_tf32)(bool on);
  void (*range_push)(const char *name); /* a profiler's ranges */
  void (*range_pop)(void);
  tl_status (*memory)(int index, tl_memory_details *d);
  void (*reset_peaks)(int index);
  tl_status (*properties)(int index, tl_device_properties *p);
  /* The block is used by work on another stream than the one that was current at its allocation. */
  void (*record_stream)(int index, void *p, void *stream);
  /* Pinned host memory; copies from a block that is freed meanwhile are waited for before it is used again. */
  void *(*pinned_alloc)(size_t bytes);
  void (*pinned_free)(void *block);
  /* `host` lies in the block and stays as it is until the copy is done: returns at once. */
  tl_status (*copy_in_pinned)(int index, void *dst, void *block, const void *host, size_t bytes);
  tl_status (*copy_between)(int to, void *dst, int from, const void *src, size_t bytes);
  tl_status (*stream_new)(int index, bool urgent, void **stream);
  void (*stream_free)(int index, bool urgent, void *stream);
  void *(*stream_current)(int index);
  tl_status (*stream_use)(int index, void *stream); /* NULL: the device's own one */
  tl_status (*stream_query)(int index, void *stream, bool *done);
  tl_status (*stream_synchronize)(int index, void *stream);
  tl_status (*stream_wait)(int index, void *stream, void *event);
  tl_status (*stream_order)(int index_before, void *before, void *after); /* later work of `after` waits for `before` */
  tl_status (*event_new)(int index, bool timing, void **event);
  void (*event_free)(int index, void *event);
  tl_status (*event_record)(int index, void *event, void *stream);
  tl_status (*event_query)(void *event, bool *done);
  tl_status (*event_synchronize)(void *event);
  tl_status (*event_elapsed)(void *from, void *to, double *milliseconds);
  bool (*recording)(void); /* does this thread record a graph? */
  tl_status (*graph_begin)(int index, void **graph);
  tl_status (*graph_end)(bool keep, void **graph); /* without keep, or on failure: freed, *graph = NULL */
  /* Random kernels work with the numbers they were recorded with, seed ^ `seed` and offset + `offset`. */
  tl_status (*graph_replay)(void *graph, uint64_t seed, uint64_t offset);
  void (*graph_free)(void *graph);
  /* Collectives (collective.h) of this device's memory, on a stream of their own that begins after what the current stream
   * has queued. `id` has TL_COMM_ID bytes: one rank makes it, all join with it. NULL where there is no such library. */
  tl_status (*comm_id)(void *id);
  tl_status (*comm_new)(int index, const void *id, int rank, int size, void **comm);
  tl_status (*comm_launch)(void *comm, const struct tl_collective *c, void **request);
  tl_status (*comm_order)(void *comm, void *request); /* the current stream's later work waits for it */
  /* Is it done, or did another rank or the network fail? From any thread. Then the request is freed. */
  tl_status (*comm_done)(void *comm, void *request, bool *done);
  void (*comm_free)(void *comm, bool abort); /* abort: without the other ranks */
} tl_accelerator;

enum { TL_COMM_ID = 128 };

typedef struct tl_backend {
  const char *name; /* "cpu", "cuda" */
  int kind;         /* device >> 8 */
  int (*device_count)(void);
  /* The calling thread's next calls of kernels go to this device. NULL where there is only one. */
  void (*use)(int index);
  /* NULL when there is no memory; `bytes` > 0. free must be given the same size and never synchronises. */
  void *(*alloc)(int index, size_t bytes);
  void (*free)(int index, void *p, size_t bytes);
  void (*empty_cache)(int index);
  double (*cached_bytes)(int index);
  /* Host <-> device copies of raw bytes; return when the host may reuse its memory. copy_out and synchronize also report
   * what kernels found wrong since the last one (an id out of range). */
  tl_status (*copy_in)(int index, void *dst, const void *host, size_t bytes);
  tl_status (*copy_out)(int index, void *host, const void *src, size_t bytes);
  tl_status (*synchronize)(int index);
  const tl_kernels *kernels;
  const tl_accelerator *accelerator; /* NULL: host memory */
} tl_backend;

/* The backend of a device that tensors already live on: never fails. */
enum { TL_DEVICE_KINDS = 3 };
extern const tl_backend *tl_backends[TL_DEVICE_KINDS];
static inline const tl_backend *tl_backend_of(tl_device device) { return tl_backends[device >> 8]; }
/* For a device that a user named: opens the plug-in, checks the index. */
tl_status tl_backend_open(tl_device device, const tl_backend **out);

/* The kernels for a tensor, and its device made the current one. */
static inline const tl_kernels *tl_kernels_of(const tl_tensor *t) {
  const tl_backend *b = tl_backend_of(t->device);
  if (b->use != NULL) b->use(t->device & 255);
  return b->kernels;
}

extern const tl_backend tl_cpu_backend, tl_meta_backend;

/* What a plug-in gets from the engine: it is opened with dlopen and links nothing of it. */
typedef struct tl_plugin_host {
  tl_status (*fail)(int code, const char *op, const char *file, int line, const char *format, va_list args);
  bool (*allocation_fails)(void);
  int64_t (*position)(int64_t i); /* a 0-based position as the user counts: for messages */
  const tl_backend *cpu;
} tl_plugin_host;

/* What both sides of a plug-in must have been built with: a change of a table shows in its size. */
enum {
  TL_PLUGIN_ABI = TL_ABI << 20 ^ (int)(sizeof(tl_backend) << 12 ^ sizeof(tl_accelerator) << 6 ^ sizeof(tl_kernels) ^
                                       sizeof(tl_plugin_host) << 16)
};

/* A plug-in's one symbol, "tl_backend_plugin". NULL and a sentence in *why (static) when it cannot work here. */
typedef const tl_backend *tl_backend_plugin_fn(int abi, const tl_plugin_host *host, const char **why);

#endif
