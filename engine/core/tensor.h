/* tensor.h: storages and tensor handles, as the engine sees them. */
#ifndef TL_CORE_TENSOR_H
#define TL_CORE_TENSOR_H

#include <math.h>
#ifndef __cplusplus
#include <stdatomic.h>
#endif

#include "core/error.h"
#include "tlua.h"

#ifdef __cplusplus
extern "C" {
#endif

/* CUDA kernels, which are C++, only read where tensors lie. */
#ifdef __cplusplus
typedef int tl_atomic_int;
#else
typedef atomic_int tl_atomic_int;
#endif

/* The bytes that tensors view. Reference counts are atomic: loaders and collectives hold storages on other threads. */
typedef struct tl_storage {
  tl_atomic_int refs;
  tl_device device;
  uint32_t version; /* + 1 at every in-place change */
  size_t bytes;
  void *data;
  const struct tl_accelerator *pinned; /* of host memory: whose pinned memory this is; NULL: ordinary */
} tl_storage;

struct tl_node; /* autograd/tape.h */
struct tl_hook;

struct tl_tensor {
  int refs;
  uint8_t dtype;
  uint8_t ndim;
  bool requires_grad; /* a leaf that collects .grad, or anything with a node */
  bool retains_grad;  /* its node has a hook that stores .grad here */
  bool contiguous;    /* kept up to date by tl_tensor_set_layout */
  uint16_t slot;      /* which output of `node` this is */
  tl_device device;
  int64_t numel;
  int64_t offset; /* first element in the storage, in elements */
  tl_storage *storage;
  struct tl_node *node;   /* what computed this (owned), NULL for a leaf */
  struct tl_node *sink;   /* a leaf's accumulation node while a graph uses it (not owned) */
  struct tl_tensor *grad; /* owned */
  struct tl_hook *hooks;  /* a leaf's hooks; a non-leaf's live in its node */
  struct tl_tensor *base; /* of a view that autograd tracks (owned): see autograd/inplace.c */
  uint64_t base_state;    /* the base's node sequence number when this view's node was made */
  int64_t shape[TL_MAX_DIMS];
  int64_t strides[TL_MAX_DIMS]; /* in elements; 0 where expanded */
};

/* Storage of at least `bytes`, uninitialised. */
tl_status tl_storage_new(tl_device device, size_t bytes, tl_storage **out);
/* An uninitialised contiguous CPU tensor in pinned memory, from which devices copy by themselves. */
tl_status tl_empty_pinned(int ndim, const int64_t *shape, int dtype, tl_tensor **out);
void tl_storage_retain(tl_storage *s);
void tl_storage_drop(tl_storage *s);

/* A second handle on the same elements with no autograd history: saved values, detach. */
tl_status tl_alias(const tl_tensor *t, tl_tensor **out);
/* An alias with another geometry of the same storage; unchecked, for view operations that computed it. */
tl_status tl_alias_as(const tl_tensor *t, int ndim, const int64_t *shape, const int64_t *strides, int64_t offset,
                      tl_tensor **out);
/* An uninitialised contiguous tensor; the shape was checked by whoever computed it from valid tensors. */
tl_status tl_empty_like(const tl_tensor *t, int dtype, tl_tensor **out);

/* Inside the engine the size of a known dtype is a table look-up without a call. */
static inline size_t tl_size_of_dtype(int dtype) { return (size_t)1 << ((0x00233112u >> (4 * dtype)) & 15); }
#define tl_dtype_size(dtype) tl_size_of_dtype(dtype)

/* Address of the first element (tl_data without the call); the storage of a released tensor has none. */
static inline void *tl_first(const tl_tensor *t) {
  return t->storage->data == NULL ? NULL : (char *)t->storage->data + t->offset * (int64_t)tl_size_of_dtype(t->dtype);
}
#define tl_data(t) tl_first(t)

/* Lets go of a dying handle's hooks and node. The one thing that this floor asks of the next: autograd/hook.c. */
void tl_history_drop(tl_tensor *t);

static inline tl_tensor *tl_hold(tl_tensor *t) {
  if (t != NULL) t->refs++;
  return t;
}

/* The usual end of an operation: hands `t` out, or frees it when `status` is a failure. */
static inline tl_status tl_give(tl_status status, tl_tensor *t, tl_tensor **out) {
  if (status == TL_OK) *out = t;
  else tl_tensor_free(t);
  return status;
}

/* A number for the host program. LuaJIT keeps its other values in the bits of NaNs, and files, vector comparisons and
 * payloads make any such bits: a NaN leaves as the plain one, or it would arrive as a nil, a table, a wild pointer. */
static inline double tl_outgoing(double v) { return v == v ? v : (double)NAN; }

static inline bool tl_is_floating(int dtype) { return dtype <= TL_FLOAT64; }

/* ---- shapes (core/shape.c) ---- */

/* The one shape checker: 0..8 dims, sizes >= 0, no overflow of elements * element size. */
tl_status tl_check_shape(const char *op, int ndim, const int64_t *shape, int dtype, int64_t *numel);
/* d in -ndim..ndim-1 (a 0-d tensor counts as 1-d) becomes 0-based. */
tl_status tl_check_dim(const char *op, int ndim, int *d);
/* A list of dims becomes a bit mask; n = 0 means all; duplicates are errors. */
tl_status tl_check_dims(const char *op, int ndim, int n, const int *dims, uint32_t *mask);
tl_status tl_check_same_device(const char *op, const tl_tensor *a, const tl_tensor *b);
tl_status tl_check_floating(const char *op, const tl_tensor *t);
bool tl_same_shape(const tl_tensor *a, const tl_tensor *b);
/* Row-major strides; returns numel. */
int64_t tl_contiguous_strides(int ndim, const int64_t *shape, int64_t *strides);
/* The common broadcast shape; TL_ERR_SHAPE names both shapes. */
tl_status tl_broadcast(const char *op, const tl_tensor *a, const tl_tensor *b, int *ndim, int64_t *shape);
/* PyTorch's result type of two tensors: 0-d tensors promote only across categories (bool < integer < floating). */
int tl_result_type(const tl_tensor *a, const tl_tensor *b);
/* The dtype of a tensor combined with a number (an integral number counts as an integer). */
int tl_result_type_scalar(const tl_tensor *t, double s);
/* Is s an integer that a double tells from its neighbours (at most 2^53)? */
bool tl_is_whole(double s);
/* Fills contiguous and numel from shape and strides. */
void tl_tensor_set_layout(tl_tensor *t);
/* Do two elements of t share an address (expanded dims)? Then it must not be written in place. */
bool tl_overlaps_itself(const tl_tensor *t);

#ifdef __cplusplus
}
#endif
#endif
