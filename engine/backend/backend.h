/* backend.h: what a device kind is. The CPU backend is built in; others are shared objects opened on first use. */
#ifndef TL_BACKEND_BACKEND_H
#define TL_BACKEND_BACKEND_H

#include "backend/kernels.h"
#include "tlua.h"

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
} tl_backend;

/* The backend of a device that tensors already live on: never fails. */
extern const tl_backend *tl_backends[2]; /* by device kind */
static inline const tl_backend *tl_backend_of(tl_device device) { return tl_backends[device >> 8]; }
/* For a device that a user named: opens the plug-in, checks the index. */
tl_status tl_backend_open(tl_device device, const tl_backend **out);

/* The kernels for a tensor, and its device made the current one. */
static inline const tl_kernels *tl_kernels_of(const tl_tensor *t) {
  const tl_backend *b = tl_backend_of(t->device);
  if (b->use != NULL) b->use(t->device & 255);
  return b->kernels;
}

extern const tl_backend tl_cpu_backend;

/* What a plug-in gets from the engine: it is opened with dlopen and links nothing of it. */
typedef struct tl_plugin_host {
  tl_status (*fail)(int code, const char *op, const char *file, int line, const char *text);
  bool (*allocation_fails)(void);
  const tl_backend *cpu;
} tl_plugin_host;

/* A plug-in's one symbol, "tl_backend_plugin". NULL and a sentence in *why (static) when it cannot work here. */
typedef const tl_backend *tl_backend_plugin_fn(int abi, const tl_plugin_host *host, const char **why);

#endif
