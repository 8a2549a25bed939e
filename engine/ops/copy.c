/* copy.c: clones, conversions between dtypes and devices, copies into existing tensors. */
#include "autograd/tape.h"
#include "backend/backend.h"
#include "core/tensor.h"

/* dst and src on one device, src broadcasts to dst: only elements move. */
static tl_status copy_kernel(tl_tensor *dst, tl_tensor *src) {
  TL_KERNEL(dst, copy, "copy");
  tl_tensor *operands[2] = {dst, src};
  tl_iter it;
  tl_iter_init(&it, 2, operands, NULL, dst->ndim, dst->shape);
  return tl_kernels_of(dst)->copy(&it);
}

tl_status tl_write_back(tl_tensor *dst, tl_tensor *src) { return copy_kernel(dst, src); }

/* Bytes of a contiguous tensor to another contiguous one of the same dtype on another device. `async`: from pinned memory
 * the device copies by itself. */
static tl_status copy_bytes(tl_tensor *dst, const tl_tensor *src, bool async) {
  size_t bytes = (size_t)src->numel * tl_dtype_size(src->dtype);
  int from = src->device & 255, to = dst->device & 255;
  if (bytes == 0 || dst->device == TL_META) return TL_OK;
  if (dst->device == TL_CPU || src->device == TL_META)
    return tl_backend_of(src->device)->copy_out(from, tl_data(dst), tl_data(src), bytes);
  const tl_backend *b = tl_backend_of(dst->device);
  if (src->device != TL_CPU) return b->accelerator->copy_between(to, tl_data(dst), from, tl_data(src), bytes);
  if (async && src->storage->pinned != NULL)
    return b->accelerator->copy_in_pinned(to, tl_data(dst), src->storage->data, tl_data(src), bytes);
  return b->copy_in(to, tl_data(dst), tl_data(src), bytes);
}

/* A contiguous tensor with t's values, unrecorded. */
static tl_status converted(tl_tensor *t, int dtype, tl_device device, bool async, tl_tensor **out) {
  tl_tensor *y;
  if (t->device == device) {
    TL_TRY(tl_empty_like(t, dtype, &y));
    return tl_give(copy_kernel(y, t), y, out);
  }
  tl_tensor *near = NULL, *far = NULL;
  tl_status st = TL_OK;
  if (t->contiguous && t->dtype == dtype) near = tl_hold(t);
  else st = converted(t, dtype, t->device, false, &near);
  if (st == TL_OK) st = tl_empty(t->ndim, t->shape, dtype, device, &far);
  if (st == TL_OK) st = copy_bytes(far, near, async);
  tl_tensor_free(near);
  return tl_give(st, far, out);
}

typedef struct origin {
  int dtype;
  tl_device device;
} origin;

static tl_status to_backward(tl_node *n, tl_tensor *const *grad_out, tl_tensor **grad_in) {
  const origin *from = n->payload;
  return tl_to(grad_out[0], from->dtype, from->device, &grad_in[0]);
}

static const tl_node_class to_class = {"to", to_backward, NULL};

static tl_status recorded_copy(tl_tensor *t, int dtype, tl_device device, bool async, tl_tensor **out) {
  tl_tensor *y;
  TL_TRY(converted(t, dtype, device, async, &y));
  origin from = {t->dtype, t->device};
  return tl_give(tl_record1(&to_class, y, 1, &t, 0, NULL, &from, sizeof from), y, out);
}

static tl_status to(tl_tensor *t, int dtype, tl_device device, bool async, tl_tensor **out) {
  if (t->dtype == dtype && t->device == device) return tl_tensor_retain(t, out);
  if (tl_dtype_name(dtype) == NULL) return TL_FAIL(TL_ERR_DTYPE, "to", "there is no dtype number %d", dtype);
  const tl_backend *b;
  TL_TRY(tl_backend_open(device, &b));
  return recorded_copy(t, dtype, device, async, out);
}

tl_status tl_to(tl_tensor *t, int dtype, tl_device device, tl_tensor **out) { return to(t, dtype, device, false, out); }

tl_status tl_to_async(tl_tensor *t, int dtype, tl_device device, tl_tensor **out) {
  return to(t, dtype, device, true, out);
}

tl_status tl_clone(tl_tensor *t, tl_tensor **out) { return recorded_copy(t, t->dtype, t->device, false, out); }

tl_status tl_contiguous(tl_tensor *t, tl_tensor **out) {
  return t->contiguous ? tl_tensor_retain(t, out) : tl_clone(t, out);
}

typedef struct copied {
  origin from;
  int ndim;
  int64_t shape[TL_MAX_DIMS];
} copied;

/* inputs: dst's former value (its gradient is zero: it was overwritten), src */
static tl_status copy_backward(tl_node *n, tl_tensor *const *grad_out, tl_tensor **grad_in) {
  const copied *p = n->payload;
  if (!tl_node_needs(n, 1)) return TL_OK;
  tl_tensor *sum;
  TL_TRY(tl_sum_to(grad_out[0], p->ndim, p->shape, &sum));
  tl_status st = tl_to(sum, p->from.dtype, p->from.device, &grad_in[1]);
  tl_tensor_free(sum);
  return st;
}

static const tl_node_class copy_class = {"copy_", copy_backward, NULL};

static tl_status copy_into(tl_tensor *dst, tl_tensor *src, bool async) {
  TL_TRY(tl_check_inplace("copy_", dst));
  int ndim;
  int64_t shape[TL_MAX_DIMS];
  TL_TRY(tl_broadcast("copy_", dst, src, &ndim, shape));
  for (int d = 0; d < ndim; d++)
    if (ndim != dst->ndim || shape[d] != dst->shape[d])
      return TL_FAIL(TL_ERR_SHAPE, "copy_", "%s does not fit into %s", tl_shape_of(src), tl_shape_of(dst));
  tl_tensor *from = tl_hold(src);
  tl_status st = TL_OK;
  /* Reading what is being written: take a copy first. */
  bool overlaps = dst->storage == src->storage && !(dst->offset == src->offset && tl_same_shape(dst, src));
  if (src->device != dst->device || overlaps) {
    tl_tensor_free(from);
    from = NULL;
    st = converted(src, dst->dtype, dst->device, async, &from);
  }
  copied payload = {{src->dtype, src->device}, src->ndim, {0}};
  for (int d = 0; d < src->ndim; d++) payload.shape[d] = src->shape[d];
  tl_tensor *in[2] = {NULL, src};
  tl_write w;
  if (st == TL_OK) st = tl_write_begin(&w, &copy_class, dst, 2, in, 0, NULL, &payload, sizeof payload);
  if (st == TL_OK) st = tl_write_end(&w, dst, copy_kernel(dst, from));
  tl_tensor_free(from);
  return st;
}

tl_status tl_copy_(tl_tensor *dst, tl_tensor *src) { return copy_into(dst, src, false); }

tl_status tl_copy_async_(tl_tensor *dst, tl_tensor *src) { return copy_into(dst, src, true); }

tl_status tl_fill_(tl_tensor *t, double value) {
  TL_TRY(tl_check_inplace("fill_", t));
  TL_KERNEL(t, copy, "fill_");
  tl_tensor *operands[2] = {t, NULL};
  double constants[2] = {0, value};
  tl_iter it;
  tl_iter_init(&it, 2, operands, constants, t->ndim, t->shape);
  tl_write w;
  TL_TRY(tl_overwrite_begin(&w, t));
  return tl_write_end(&w, t, tl_kernels_of(t)->copy(&it));
}
