/* backend.h: what a device kind is. The CPU backend is built in; others are shared objects opened on first use. */
#ifndef TL_BACKEND_BACKEND_H
#define TL_BACKEND_BACKEND_H

#include "backend/kernels.h"
#include "tlua.h"

typedef struct tl_backend {
  const char *name; /* "cpu", "cuda" */
  int kind;         /* device >> 8 */
  int (*device_count)(void);
  /* NULL when there is no memory; `bytes` > 0. free must be given the same size and never synchronises. */
  void *(*alloc)(int index, size_t bytes);
  void (*free)(int index, void *p, size_t bytes);
  void (*empty_cache)(int index);
  double (*cached_bytes)(int index);
  /* Host <-> device copies of raw bytes; return when the host may reuse its memory. */
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

static inline const tl_kernels *tl_kernels_of(const tl_tensor *t) { return tl_backend_of(t->device)->kernels; }

extern const tl_backend tl_cpu_backend;

#endif
