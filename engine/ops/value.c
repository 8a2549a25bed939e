/* value.c: values in and out of tensors, and a leaf that takes over other data. */
#include "autograd/tape.h"
#include "backend/backend.h"
#include "core/tensor.h"

tl_status tl_to_doubles(const tl_tensor *t, int64_t n, double *values) {
  if (n != t->numel)
    return TL_FAIL(TL_ERR_VALUE, "to_doubles", "room for %lld values, the tensor has %lld", (long long)n,
                   (long long)t->numel);
  if (n == 0) return TL_OK;
  tl_tensor *host = NULL, *wide = NULL;
  bool grad = tl_set_grad_enabled(false);
  tl_status st = tl_to((tl_tensor *)t, TL_FLOAT64, TL_CPU, &wide);
  if (st == TL_OK) st = tl_contiguous(wide, &host);
  if (st == TL_OK) {
    const double *from = tl_data(host);
    for (int64_t i = 0; i < n; i++) values[i] = tl_outgoing(from[i]);
  }
  tl_set_grad_enabled(grad);
  tl_tensor_free(wide);
  tl_tensor_free(host);
  return st;
}

tl_status tl_item(const tl_tensor *t, double *value) {
  if (t->numel != 1)
    return TL_FAIL(TL_ERR_SHAPE, "item", "a tensor of %s has %lld elements, item needs exactly 1", tl_shape_of(t),
                   (long long)t->numel);
  if (t->device == TL_CPU && t->dtype == TL_FLOAT32) {
    *value = tl_outgoing(*(const float *)tl_data(t));
    return TL_OK;
  }
  return tl_to_doubles(t, 1, value);
}

tl_status tl_get(const tl_tensor *t, int n, const int64_t *index, double *value) {
  if (n != t->ndim) return TL_FAIL(TL_ERR_INDEX, "get", "%d indices for a tensor of %s", n, tl_shape_of(t));
  int64_t shape[1] = {1}, strides[1] = {1}, offset = t->offset;
  for (int d = 0; d < n; d++) {
    int64_t i = index[d] < 0 ? index[d] + t->shape[d] : index[d];
    if (i < 0 || i >= t->shape[d])
      return TL_FAIL(TL_ERR_INDEX, "get", "index %lld is out of range for dim %lld of %s",
                     (long long)tl_position(index[d]), (long long)tl_position(d), tl_shape_of(t));
    offset += i * t->strides[d];
  }
  tl_tensor *one;
  TL_TRY(tl_alias_as(t, 0, shape, strides, offset, &one));
  tl_status st = tl_item(one, value);
  tl_tensor_free(one);
  return st;
}

tl_status tl_from_memory(int ndim, const int64_t *shape, int dtype, tl_device device, const void *data,
                         tl_tensor **out) {
  tl_tensor *t;
  TL_TRY(tl_empty(ndim, shape, dtype, device, &t));
  size_t bytes = (size_t)t->numel * tl_dtype_size(dtype);
  tl_status st = bytes == 0 ? TL_OK : tl_backend_of(device)->copy_in(device & 255, tl_data(t), data, bytes);
  return tl_give(st, t, out);
}

tl_status tl_from_doubles(int ndim, const int64_t *shape, int dtype, tl_device device, const double *values,
                          tl_tensor **out) {
  tl_tensor *wide;
  TL_TRY(tl_from_memory(ndim, shape, TL_FLOAT64, TL_CPU, values, &wide));
  tl_status st = tl_to(wide, dtype, device, out);
  tl_tensor_free(wide);
  return st;
}

tl_status tl_set_data(tl_tensor *t, tl_tensor *value) {
  if (t == value) return TL_OK;
  if (!tl_is_leaf(t))
    return TL_FAIL(TL_ERR_STATE, "set_data", "the tensor was computed by %s: only a leaf can take over other data",
                   tl_grad_fn_name(t));
  if (t->requires_grad && !tl_is_floating(value->dtype))
    return TL_FAIL(TL_ERR_DTYPE, "set_data", "a tensor that requires gradients cannot become %s",
                   tl_dtype_name(value->dtype));
  tl_tensor *grad = NULL;
  if (t->grad != NULL && tl_same_shape(t, value)) {
    bool recording = tl_set_grad_enabled(false);
    tl_status st = tl_to(t->grad, value->dtype, value->device, &grad);
    tl_set_grad_enabled(recording);
    TL_TRY(st);
  }
  tl_storage_retain(value->storage);
  tl_storage_drop(t->storage);
  tl_tensor_free(t->grad);
  tl_tensor_free(t->base);
  t->storage = value->storage;
  t->grad = grad;
  t->base = NULL;
  t->dtype = value->dtype;
  t->device = value->device;
  t->ndim = value->ndim;
  t->offset = value->offset;
  for (int d = 0; d < value->ndim; d++) t->shape[d] = value->shape[d], t->strides[d] = value->strides[d];
  t->numel = value->numel;
  t->contiguous = value->contiguous;
  return TL_OK;
}
