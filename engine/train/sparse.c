/* sparse.c: a linear layer's weight in compressed rows, for inference: masks of single weights make dense products no
 * faster, leaving the zeros out does where there are many (docs/pruning.md has the cross-over). */
#include <string.h>

#include "autograd/tape.h"
#include "backend/backend.h"
#include "core/memory.h"
#include "core/tensor.h"
#include "ops/autocast.h"

/* ---- to compressed rows ---- */

static tl_status check_weight(const tl_tensor *w) {
  const char *op = "sparse_rows";
  if (w->ndim != 2) return TL_FAIL(TL_ERR_SHAPE, op, "the weight must be (out x in), got %s", tl_shape_of(w));
  if (w->dtype != TL_FLOAT32) return TL_FAIL(TL_ERR_DTYPE, op, "a float32 weight, got %s", tl_dtype_name(w->dtype));
  if (w->device != TL_CPU) return TL_FAIL(TL_ERR_DEVICE, op, "the weight must be on the CPU");
  if (w->shape[1] > INT32_MAX) return TL_FAIL(TL_ERR_SHAPE, op, "%lld columns", (long long)w->shape[1]);
  return TL_OK;
}

static void fill(const float *w, int64_t rows, int64_t columns, float *values, int32_t *column, int32_t *first) {
  int32_t used = 0;
  for (int64_t r = 0; r < rows; r++) {
    first[r] = used;
    for (int64_t c = 0; c < columns; c++) {
      if (w[r * columns + c] == 0) continue;
      values[used] = w[r * columns + c];
      column[used++] = (int32_t)c;
    }
  }
  first[rows] = used;
}

static tl_status compress(const tl_tensor *w, tl_tensor *part[3]) {
  const float *data = tl_data(w);
  int64_t nonzeros = 0;
  for (int64_t i = 0; i < w->numel; i++) nonzeros += data[i] != 0; /* nan stays */
  if (nonzeros > INT32_MAX || w->shape[0] > INT32_MAX - 1)
    return TL_FAIL(TL_ERR_SHAPE, "sparse_rows", "%s has too many weights that are not 0", tl_shape_of(w));
  const int64_t rows = w->shape[0], ends = rows + 1;
  TL_TRY(tl_empty(1, &nonzeros, TL_FLOAT32, TL_CPU, &part[0]));
  TL_TRY(tl_empty(1, &nonzeros, TL_INT32, TL_CPU, &part[1]));
  TL_TRY(tl_empty(1, &ends, TL_INT32, TL_CPU, &part[2]));
  fill(data, rows, w->shape[1], tl_data(part[0]), tl_data(part[1]), tl_data(part[2]));
  return TL_OK;
}

tl_status tl_sparse_rows(tl_tensor *w, tl_tensor **values, tl_tensor **columns, tl_tensor **first) {
  TL_CHECK_INTERRUPT("sparse_rows");
  TL_TRY(check_weight(w));
  tl_tensor *held, *part[3] = {NULL, NULL, NULL};
  const bool recording = tl_set_grad_enabled(false); /* w may be a parameter */
  tl_status st = tl_contiguous(w, &held);
  if (st == TL_OK) {
    st = compress(held, part);
    tl_tensor_free(held);
  }
  tl_set_grad_enabled(recording);
  if (st != TL_OK) {
    for (int i = 0; i < 3; i++) tl_tensor_free(part[i]);
    return st;
  }
  *values = part[0], *columns = part[1], *first = part[2];
  return TL_OK;
}

/* ---- the layer ---- */

static tl_status check_part(const tl_tensor *x, const tl_tensor *t, const char *name, int dtype) {
  const char *op = "sparse_linear";
  if (t->dtype != dtype)
    return TL_FAIL(TL_ERR_DTYPE, op, "%s must be %s, got %s", name, tl_dtype_name(dtype), tl_dtype_name(t->dtype));
  if (t->ndim != 1) return TL_FAIL(TL_ERR_SHAPE, op, "%s must have 1 dim, got %s", name, tl_shape_of(t));
  if (t->strides[0] != 1 && t->numel > 1) return TL_FAIL(TL_ERR_SHAPE, op, "%s must be contiguous", name);
  return tl_check_same_device(op, x, t);
}

static tl_status check_linear(tl_tensor *x, tl_tensor *values, tl_tensor *columns, tl_tensor *first, tl_tensor *b,
                              int64_t in) {
  const char *op = "sparse_linear";
  if (x->dtype != TL_FLOAT32) return TL_FAIL(TL_ERR_DTYPE, op, "a float32 input, got %s", tl_dtype_name(x->dtype));
  if (x->ndim == 0) return TL_FAIL(TL_ERR_SHAPE, op, "the input needs at least 1 dim");
  if (x->shape[x->ndim - 1] != in)
    return TL_FAIL(TL_ERR_SHAPE, op, "an input of %s: %lld input features expected", tl_shape_of(x), (long long)in);
  TL_TRY(check_part(x, values, "values", TL_FLOAT32));
  TL_TRY(check_part(x, columns, "columns", TL_INT32));
  TL_TRY(check_part(x, first, "first", TL_INT32));
  if (columns->numel != values->numel || first->numel < 1 || (in == 0 && values->numel > 0))
    return TL_FAIL(TL_ERR_SHAPE, op, "%lld values, %lld columns, %lld row ends", (long long)values->numel,
                   (long long)columns->numel, (long long)first->numel);
  if (b != NULL) {
    TL_TRY(check_part(x, b, "the bias", TL_FLOAT32));
    if (b->shape[0] != first->shape[0] - 1)
      return TL_FAIL(TL_ERR_SHAPE, op, "a bias of %s for %lld rows", tl_shape_of(b), (long long)(first->shape[0] - 1));
  }
  tl_tensor *all[3] = {x, values, b};
  if (tl_records(b == NULL ? 2 : 3, all))
    return TL_FAIL(TL_ERR_STATE, op, "a sparse weight is for inference: it has no gradient (use tl.no_grad)");
  return TL_OK;
}

static tl_status multiply(tl_tensor *x, const tl_sparse *w, tl_tensor *y) {
  if (y->numel == 0) return TL_OK;
  if (w->nonzeros == 0 && w->bias == NULL) return tl_fill_(y, 0);
  tl_tensor *held;
  TL_TRY(tl_contiguous(x, &held));
  const tl_status st = tl_kernels_of(x)->sparse_linear(w, tl_data(held), y->numel / w->rows, tl_data(y));
  tl_tensor_free(held);
  return st;
}

tl_status tl_sparse_linear(tl_tensor *x, tl_tensor *values, tl_tensor *columns, tl_tensor *first, tl_tensor *b,
                           int64_t in, tl_tensor **out) {
  TL_AUTOCAST(TL_CAST_FULL, tl_sparse_linear(cast[0], values, columns, first, b, in, out), x);
  TL_CHECK_INTERRUPT("sparse_linear");
  TL_TRY(check_linear(x, values, columns, first, b, in));
  TL_KERNEL(x, sparse_linear, "sparse_linear");
  const tl_sparse w = {.rows = first->numel - 1,
                       .columns = in,
                       .nonzeros = values->numel,
                       .first = tl_data(first),
                       .column = tl_data(columns),
                       .value = tl_data(values),
                       .bias = b == NULL ? NULL : tl_data(b)};
  int64_t shape[TL_MAX_DIMS];
  for (int d = 0; d < x->ndim - 1; d++) shape[d] = x->shape[d];
  shape[x->ndim - 1] = w.rows;
  tl_tensor *y;
  TL_TRY(tl_empty(x->ndim, shape, TL_FLOAT32, x->device, &y));
  return tl_give(multiply(x, &w, y), y, out);
}
