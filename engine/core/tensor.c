/* tensor.c: storages and reference-counted tensor handles. */
#include "core/tensor.h"

#include <math.h>
#include <string.h>

#include "backend/backend.h"
#include "core/iter.h"
#include "core/memory.h"

/* ---- storages ---- */

/* A small CPU storage carries its bytes right behind its header: one allocation, one cache line further. */
#define HEADER 64
#define INLINE_BYTES 960
_Static_assert(sizeof(tl_storage) <= HEADER, "the inline data must not overlap the header");

static bool is_inline(const tl_storage *s) { return s->data == (const char *)s + HEADER; }

static tl_status no_memory(tl_device device, size_t bytes) {
  char name[32] = "?";
  tl_memory_stats stats = {0};
  tl_device_name(device, name, sizeof name);
  tl_memory(device, &stats);
  tl_memory_details more;
  if (device == TL_CPU || tl_memory_details_of(device, &more) != TL_OK)
    return TL_FAIL(TL_ERR_MEMORY, "allocate", "%.1f MB asked for on %s: %.1f MB are in use, %.1f MB are cached",
                   (double)bytes / 1048576, name, stats.live / 1048576, stats.cached / 1048576);
  return TL_FAIL(
      TL_ERR_MEMORY, "allocate",
      "%.1f MB asked for on %s: %.1f MB are in use, %.1f MB are cached (the largest block has %.1f MB), %.1f of "
      "the device's %.1f MB are free",
      (double)bytes / 1048576, name, stats.live / 1048576, stats.cached / 1048576, more.largest_free / 1048576,
      more.device_free / 1048576, more.device_total / 1048576);
}

tl_status tl_storage_new(tl_device device, size_t bytes, tl_storage **out) {
  bool small = device == TL_CPU && bytes <= INLINE_BYTES;
  tl_storage *s = tl_small_alloc(small ? HEADER + bytes : sizeof *s);
  if (s == NULL) return no_memory(device, bytes);
  void *data = small ? (char *)s + HEADER : tl_backend_of(device)->alloc(device & 255, bytes == 0 ? 1 : bytes);
  if (data == NULL) {
    tl_small_free(s, sizeof *s);
    return no_memory(device, bytes);
  }
  atomic_init(&s->refs, 1);
  s->device = device;
  s->version = 0;
  s->bytes = bytes;
  s->data = data;
  s->pinned = NULL;
  tl_account(device, (int64_t)bytes);
  *out = s;
  return TL_OK;
}

/* The plug-in is open. */
static tl_status pinned_storage(size_t bytes, tl_storage **out) {
  const tl_accelerator *a = tl_backends[1]->accelerator;
  tl_storage *s = tl_small_alloc(sizeof *s);
  void *data = s == NULL ? NULL : a->pinned_alloc(bytes == 0 ? 1 : bytes);
  if (data == NULL) {
    if (s != NULL) tl_small_free(s, sizeof *s);
    return TL_FAIL(TL_ERR_MEMORY, "pin_memory", "there are no %.1f MB of pinned memory", (double)bytes / 1048576);
  }
  *s = (tl_storage){.device = TL_CPU, .bytes = bytes, .data = data, .pinned = a};
  atomic_init(&s->refs, 1);
  tl_account(TL_CPU, (int64_t)bytes);
  *out = s;
  return TL_OK;
}

void tl_storage_retain(tl_storage *s) { atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed); }

void tl_storage_drop(tl_storage *s) {
  /* The only holder needs no locked instruction. */
  if (atomic_load_explicit(&s->refs, memory_order_acquire) != 1 &&
      atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) != 1)
    return;
  tl_account(s->device, -(int64_t)s->bytes);
  if (is_inline(s)) {
    tl_small_free(s, HEADER + s->bytes);
    return;
  }
  if (s->pinned != NULL) {
    s->pinned->pinned_free(s->data);
    tl_small_free(s, sizeof *s);
    return;
  }
  tl_backend_of(s->device)->free(s->device & 255, s->data, s->bytes == 0 ? 1 : s->bytes);
  tl_small_free(s, sizeof *s);
}

/* ---- handles ---- */

static tl_tensor *new_handle(tl_storage *s, int dtype, int ndim) {
  tl_tensor *t = tl_small_alloc(sizeof *t);
  if (t == NULL) return NULL;
  /* Field by field: the shape is the caller's, and a memset of the rest is slower than all of this. */
  t->refs = 1;
  t->dtype = (uint8_t)dtype;
  t->ndim = (uint8_t)ndim;
  t->requires_grad = t->retains_grad = t->contiguous = false;
  t->slot = 0;
  t->device = s->device;
  t->numel = t->offset = 0;
  t->storage = s;
  t->node = t->sink = NULL;
  t->grad = t->base = NULL;
  t->hooks = NULL;
  t->base_state = 0;
  tl_count_tensor(1);
  return t;
}

/* A contiguous tensor on all of a new storage, which it takes over. */
static tl_status make_on(tl_storage *s, int ndim, const int64_t *shape, int64_t numel, int dtype, tl_tensor **out) {
  tl_tensor *t = new_handle(s, dtype, ndim);
  if (t == NULL) {
    tl_storage_drop(s);
    return no_memory(TL_CPU, sizeof *t);
  }
  for (int d = 0; d < ndim; d++) t->shape[d] = shape[d];
  tl_contiguous_strides(ndim, shape, t->strides);
  t->numel = numel;
  t->contiguous = true;
  *out = t;
  return TL_OK;
}

/* The shape was checked. */
static tl_status make(int ndim, const int64_t *shape, int64_t numel, int dtype, tl_device device, tl_tensor **out) {
  TL_CHECK_INTERRUPT("empty");
  tl_storage *s = NULL;
  TL_TRY(tl_storage_new(device, (size_t)numel * tl_dtype_size(dtype), &s));
  return make_on(s, ndim, shape, numel, dtype, out);
}

tl_status tl_empty_pinned(int ndim, const int64_t *shape, int dtype, tl_tensor **out) {
  int64_t numel;
  const tl_backend *b;
  TL_TRY(tl_check_shape("pin_memory", ndim, shape, dtype, &numel));
  TL_TRY(tl_backend_open(TL_CUDA, &b));
  tl_storage *s = NULL;
  TL_TRY(pinned_storage((size_t)numel * tl_dtype_size(dtype), &s));
  return make_on(s, ndim, shape, numel, dtype, out);
}

tl_status tl_empty(int ndim, const int64_t *shape, int dtype, tl_device device, tl_tensor **out) {
  int64_t numel;
  TL_TRY(tl_check_shape("empty", ndim, shape, dtype, &numel));
  if (device != TL_CPU) {
    const tl_backend *b;
    TL_TRY(tl_backend_open(device, &b));
  }
  return make(ndim, shape, numel, dtype, device, out);
}

tl_status tl_empty_like(const tl_tensor *t, int dtype, tl_tensor **out) {
  return make(t->ndim, t->shape, t->numel, dtype, t->device, out);
}

tl_status tl_alias_as(const tl_tensor *t, int ndim, const int64_t *shape, const int64_t *strides, int64_t offset,
                      tl_tensor **out) {
  TL_CHECK_INTERRUPT("view");
  tl_tensor *v = new_handle(t->storage, t->dtype, ndim);
  if (v == NULL) return no_memory(t->device, sizeof *v);
  tl_storage_retain(t->storage);
  for (int d = 0; d < ndim; d++) v->shape[d] = shape[d], v->strides[d] = strides[d];
  v->offset = offset;
  tl_tensor_set_layout(v);
  *out = v;
  return TL_OK;
}

tl_status tl_alias(const tl_tensor *t, tl_tensor **out) {
  tl_tensor *v = new_handle(t->storage, t->dtype, t->ndim);
  if (v == NULL) return no_memory(t->device, sizeof *v);
  tl_storage_retain(t->storage);
  for (int d = 0; d < t->ndim; d++) v->shape[d] = t->shape[d], v->strides[d] = t->strides[d];
  v->offset = t->offset;
  v->numel = t->numel;
  v->contiguous = t->contiguous;
  *out = v;
  return TL_OK;
}

tl_status tl_tensor_retain(tl_tensor *t, tl_tensor **out) {
  *out = tl_hold(t);
  return TL_OK;
}

void tl_tensor_free(tl_tensor *t) {
  if (t == NULL || --t->refs > 0) return;
  if (t->hooks != NULL || t->node != NULL) tl_history_drop(t);
  if (t->grad != NULL) tl_tensor_free(t->grad);
  if (t->base != NULL) tl_tensor_free(t->base);
  tl_storage_drop(t->storage);
  tl_count_tensor(-1);
  tl_small_free(t, sizeof *t);
}

void tl_tensor_release_storage(tl_tensor *t) {
  static tl_storage none = {.refs = 1};
  if (t->storage == &none) return;
  tl_storage_retain(&none);
  tl_storage_drop(t->storage);
  t->storage = &none;
  t->ndim = 1;
  t->shape[0] = 0;
  t->strides[0] = 1;
  t->offset = 0;
  t->device = TL_CPU;
  tl_tensor_set_layout(t);
  if (t->grad != NULL) tl_tensor_free(t->grad), t->grad = NULL;
}

int tl_ndim(const tl_tensor *t) { return t->ndim; }
int tl_dtype_of(const tl_tensor *t) { return t->dtype; }
tl_device tl_device_of(const tl_tensor *t) { return t->device; }
double tl_size(const tl_tensor *t, int d) { return d >= 0 && d < t->ndim ? (double)t->shape[d] : NAN; }
double tl_stride(const tl_tensor *t, int d) { return d >= 0 && d < t->ndim ? (double)t->strides[d] : NAN; }
double tl_numel(const tl_tensor *t) { return (double)t->numel; }
double tl_version_of(const tl_tensor *t) { return t->storage->version; }
bool tl_is_contiguous(const tl_tensor *t) { return t->contiguous; }
bool tl_same_storage(const tl_tensor *a, const tl_tensor *b) { return a->storage == b->storage; }

void *(tl_data)(const tl_tensor *t) { return tl_first(t); }
