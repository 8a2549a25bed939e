/* mask.c: masked_select, nonzero, one_hot: between flags and places. */
#include "autograd/tape.h"
#include "backend/backend.h"
#include "core/tensor.h"

/* The places of x's non-zero elements (nan is one): int64 (n, ndim of `shape`), x seen in this shape of as many elements. */
static tl_status places_of(const char *op, tl_tensor *x, int ndim, const int64_t *shape, tl_tensor **out) {
  TL_KERNEL(x, nonzero, op);
  tl_tensor *flags = NULL, *count = NULL, *places = NULL;
  double n = 0;
  tl_status st = tl_ne_scalar(x, 0, &flags); /* contiguous: it was just made */
  if (st == TL_OK) st = tl_sum(flags, 0, NULL, false, &count);
  if (st == TL_OK) st = tl_item(count, &n);
  int64_t size[2] = {(int64_t)n, ndim};
  if (st == TL_OK) st = tl_empty(2, size, TL_INT64, x->device, &places);
  if (st == TL_OK && x->numel > 0) st = tl_kernels_of(x)->nonzero(tl_data(flags), ndim, shape, tl_data(places));
  tl_tensor_free(flags);
  tl_tensor_free(count);
  return tl_give(st, places, out);
}

tl_status tl_nonzero(tl_tensor *x, tl_tensor **out) { return places_of("nonzero", x, x->ndim, x->shape, out); }

/* x and mask broadcast against each other; the elements come in row-major order. */
tl_status tl_masked_select(tl_tensor *x, tl_tensor *mask, tl_tensor **out) {
  if (mask->dtype != TL_BOOL)
    return TL_FAIL(TL_ERR_DTYPE, "masked_select", "the mask must be bool, got %s", tl_dtype_name(mask->dtype));
  TL_TRY(tl_check_same_device("masked_select", x, mask));
  int ndim;
  int64_t shape[TL_MAX_DIMS], all = 1;
  TL_TRY(tl_broadcast("masked_select", x, mask, &ndim, shape));
  for (int d = 0; d < ndim; d++) all *= shape[d];
  tl_tensor *wide = NULL, *places = NULL, *ids = NULL, *values = NULL, *flat = NULL;
  tl_status st = tl_expand(mask, ndim, shape, &wide);
  if (st == TL_OK) st = places_of("masked_select", wide, 1, &all, &places);
  if (st == TL_OK) st = tl_reshape(places, 1, places->shape, &ids);
  if (st == TL_OK) st = tl_expand(x, ndim, shape, &values);
  if (st == TL_OK) st = tl_reshape(values, 1, &all, &flat);
  if (st == TL_OK) st = tl_index_select(flat, 0, ids, out);
  tl_tensor *const used[] = {wide, places, ids, values, flat};
  for (size_t i = 0; i < sizeof used / sizeof *used; i++) tl_tensor_free(used[i]);
  return st;
}

/* The number of classes that ids ask for: the largest + 1. */
static tl_status count_classes(tl_tensor *ids, int64_t *classes) {
  if (ids->numel == 0)
    return TL_FAIL(TL_ERR_VALUE, "one_hot", "the number of classes is not determined by ids of %s", tl_shape_of(ids));
  tl_tensor *largest;
  double value = 0;
  TL_TRY(tl_amax(ids, 0, NULL, false, &largest));
  tl_status st = tl_item(largest, &value);
  tl_tensor_free(largest);
  *classes = value < 0 ? 1 : (int64_t)value + 1;
  return st;
}

tl_status tl_one_hot(tl_tensor *ids, int64_t classes, tl_tensor **out) {
  if (tl_is_floating(ids->dtype) || ids->dtype == TL_BOOL)
    return TL_FAIL(TL_ERR_DTYPE, "one_hot", "ids must be integers, got %s", tl_dtype_name(ids->dtype));
  if (ids->ndim == TL_MAX_DIMS)
    return TL_FAIL(TL_ERR_SHAPE, "one_hot", "%s has %d dims already", tl_shape_of(ids), TL_MAX_DIMS);
  if (classes == -1) TL_TRY(count_classes(ids, &classes));
  if (classes < 1) return TL_FAIL(TL_ERR_VALUE, "one_hot", "%lld classes", (long long)classes);
  int64_t shape[TL_MAX_DIMS], one = 1;
  int ndim = ids->ndim;
  for (int d = 0; d < ndim; d++) shape[d] = ids->shape[d];
  shape[ndim] = classes;
  tl_tensor *zeros = NULL, *column = NULL, *ones = NULL, *each = NULL;
  tl_status st = tl_full(ndim + 1, shape, 0, TL_INT64, ids->device, &zeros);
  if (st == TL_OK) st = tl_unsqueeze(ids, -1, &column);
  if (st == TL_OK) st = tl_full(1, &one, 1, TL_INT64, ids->device, &ones);
  if (st == TL_OK) st = tl_expand(ones, column->ndim, column->shape, &each);
  if (st == TL_OK) st = tl_scatter_add_(zeros, -1, column, each);
  tl_tensor_free(column);
  tl_tensor_free(ones);
  tl_tensor_free(each);
  return tl_give(st, zeros, out);
}
