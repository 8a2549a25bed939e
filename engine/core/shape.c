/* shape.c: the one shape checker, strides and broadcasting. */
#include "core/tensor.h"

tl_status tl_check_shape(const char *op, int ndim, const int64_t *shape, int dtype, int64_t *numel) {
  if (tl_dtype_name(dtype) == NULL) return TL_FAIL(TL_ERR_DTYPE, op, "there is no dtype number %d", dtype);
  if (ndim < 0 || ndim > TL_MAX_DIMS)
    return TL_FAIL(TL_ERR_SHAPE, op, "%d dims asked for, a tensor has 0 to %d", ndim, TL_MAX_DIMS);
  /* Sizes of 0 do not hide an overflow of the others: strides are computed from them. */
  int64_t product = 1, n = 1;
  for (int d = 0; d < ndim; d++) {
    if (shape[d] < 0)
      return TL_FAIL(TL_ERR_SHAPE, op, "size %lld of dim %lld is negative", (long long)shape[d],
                     (long long)tl_position(d));
    if (shape[d] > 0 && __builtin_mul_overflow(product, shape[d], &product)) goto too_big;
    n *= shape[d] > 0;
  }
  if (product > INT64_MAX >> 8) goto too_big;
  *numel = n * product;
  return TL_OK;
too_big:;
  char text[TL_SHAPE_CHARS];
  return TL_FAIL(TL_ERR_SHAPE, op, "shape %s of %s is too big to address", tl_shape_text(ndim, shape, text),
                 tl_dtype_name(dtype));
}

tl_status tl_check_dim(const char *op, int ndim, int *d) {
  int n = ndim == 0 ? 1 : ndim;
  if (*d < -n || *d >= n)
    return TL_FAIL(TL_ERR_INDEX, op, "dim %lld is out of range for a %d-d tensor", (long long)tl_position(*d), ndim);
  if (*d < 0) *d += n;
  return TL_OK;
}

tl_status tl_check_dims(const char *op, int ndim, int n, const int *dims, uint32_t *mask) {
  *mask = 0;
  if (n < 0) return TL_FAIL(TL_ERR_VALUE, op, "a list of %d dims", n);
  if (n == 0) {
    *mask = (1u << ndim) - 1;
    return TL_OK;
  }
  for (int i = 0; i < n; i++) {
    int d = dims[i];
    TL_TRY(tl_check_dim(op, ndim, &d));
    if (*mask & 1u << d) return TL_FAIL(TL_ERR_VALUE, op, "dim %lld is named twice", (long long)tl_position(d));
    *mask |= 1u << d;
  }
  if (ndim == 0) *mask = 0;
  return TL_OK;
}

tl_status tl_check_same_device(const char *op, const tl_tensor *a, const tl_tensor *b) {
  if (a->device == b->device) return TL_OK;
  char na[32] = "?", nb[32] = "?";
  tl_device_name(a->device, na, sizeof na);
  tl_device_name(b->device, nb, sizeof nb);
  return TL_FAIL(TL_ERR_DEVICE, op, "tensors are on different devices: %s and %s", na, nb);
}

tl_status tl_check_floating(const char *op, const tl_tensor *t) {
  if (tl_is_floating(t->dtype)) return TL_OK;
  return TL_FAIL(TL_ERR_DTYPE, op, "needs a floating dtype, got %s", tl_dtype_name(t->dtype));
}

bool tl_same_shape(const tl_tensor *a, const tl_tensor *b) {
  if (a->ndim != b->ndim) return false;
  for (int d = 0; d < a->ndim; d++)
    if (a->shape[d] != b->shape[d]) return false;
  return true;
}

int64_t tl_contiguous_strides(int ndim, const int64_t *shape, int64_t *strides) {
  int64_t step = 1, numel = 1;
  for (int d = ndim - 1; d >= 0; d--) {
    strides[d] = step;
    step *= shape[d] > 1 ? shape[d] : 1;
    numel *= shape[d];
  }
  return numel;
}

void tl_tensor_set_layout(tl_tensor *t) {
  int64_t numel = 1;
  for (int d = 0; d < t->ndim; d++) numel *= t->shape[d];
  t->numel = numel;
  bool contiguous = true;
  int64_t step = 1;
  for (int d = t->ndim - 1; d >= 0 && numel > 0; d--) {
    if (t->shape[d] == 1) continue;
    if (t->strides[d] != step) {
      contiguous = false;
      break;
    }
    step *= t->shape[d];
  }
  t->contiguous = contiguous;
}

tl_status tl_broadcast(const char *op, const tl_tensor *a, const tl_tensor *b, int *ndim, int64_t *shape) {
  int n = a->ndim > b->ndim ? a->ndim : b->ndim;
  for (int i = 0; i < n; i++) { /* i counts from the last dim */
    int64_t sa = i < a->ndim ? a->shape[a->ndim - 1 - i] : 1, sb = i < b->ndim ? b->shape[b->ndim - 1 - i] : 1;
    if (sa != sb && sa != 1 && sb != 1)
      return TL_FAIL(TL_ERR_SHAPE, op, "%s and %s do not broadcast: sizes %lld and %lld of dim %lld differ",
                     tl_shape_of(a), tl_shape_of(b), (long long)sa, (long long)sb, (long long)tl_position(n - 1 - i));
    shape[n - 1 - i] = sa == 1 ? sb : sa;
  }
  *ndim = n;
  return TL_OK;
}

bool tl_overlaps_itself(const tl_tensor *t) {
  for (int d = 0; d < t->ndim; d++)
    if (t->strides[d] == 0 && t->shape[d] > 1) return true;
  return false;
}
