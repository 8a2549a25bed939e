/* linear.c: y = x w^T + b, the fully connected layer, as one call. */
#include "autograd/tape.h"
#include "backend/backend.h"
#include "core/tensor.h"
#include "ops/autocast.h"
#include "ops/matmul.h"

/* t (.., c) as one (rows, c) matrix: t itself, retained, when its leading dims step as one; else a contiguous copy. */
static tl_status rows_of(tl_tensor *t, tl_tensor **held, tl_matrices *m) {
  const int last = t->ndim - 1;
  int64_t rows = 1, row = 0;
  bool regular = true;
  for (int d = last - 1; d >= 0; d--) {
    if (t->shape[d] != 1) {
      if (rows == 1) row = t->strides[d];
      else regular = regular && t->strides[d] == rows * row;
    }
    rows *= t->shape[d];
  }
  if (regular) *held = tl_hold(t);
  else TL_TRY(tl_contiguous(t, held));
  *m = (tl_matrices){.t = *held,
                     .rows = rows,
                     .cols = t->shape[last],
                     .row = regular ? row : t->shape[last],
                     .col = (*held)->strides[last]};
  return TL_OK;
}

static tl_status grad_x(tl_tensor *w, const tl_matrices *g, const tl_tensor *like, tl_tensor **out) {
  int64_t shape[TL_MAX_DIMS];
  for (int d = 0; d < like->ndim - 1; d++) shape[d] = like->shape[d];
  shape[like->ndim - 1] = w->shape[1];
  tl_tensor *y;
  TL_TRY(tl_empty(like->ndim, shape, w->dtype, w->device, &y));
  const tl_matrices wm = tl_matrices_of(w, false);
  return tl_give(tl_gemm_into("linear", g, &wm, NULL, 1, 0, y), y, out);
}

/* dw (out, in) = g^T x. db: NULL, or becomes the bias' gradient where the device gives it in the same call. */
static tl_status grad_w(tl_tensor *x, const tl_matrices *g, tl_tensor **dw, tl_tensor **db) {
  tl_tensor *held, *y, *sums = NULL;
  tl_matrices xm;
  TL_TRY(rows_of(x, &held, &xm));
  const tl_matrices gt = tl_matrices_transposed(*g);
  const int64_t shape[2] = {gt.rows, xm.cols};
  const bool both = db != NULL && x->numel > 0 && gt.rows > 0 && tl_kernels_of(x)->gemm_sums != NULL;
  tl_status st = tl_empty(2, shape, x->dtype, x->device, &y);
  if (st == TL_OK) {
    if (both) st = tl_empty(1, shape, x->dtype, x->device, &sums);
    if (st == TL_OK)
      st = both ? tl_gemm_sums_into("linear", &gt, &xm, y, sums) : tl_gemm_into("linear", &gt, &xm, NULL, 1, 0, y);
    st = tl_give(st, y, dw);
  }
  if (both) st = tl_give(st, sums, db);
  tl_tensor_free(held);
  return st;
}

static tl_status linear_backward(tl_node *n, tl_tensor *const *grad_out, tl_tensor **grad_in) {
  tl_tensor *x, *w, *held, *g = grad_out[0];
  tl_matrices gm;
  TL_TRY(tl_node_saved(n, 0, &x));
  TL_TRY(tl_node_saved(n, 1, &w));
  TL_TRY(rows_of(g, &held, &gm));
  const bool bias = n->inputs == 3 && tl_node_needs(n, 2);
  tl_status st = TL_OK;
  if (tl_node_needs(n, 0)) st = grad_x(w, &gm, g, &grad_in[0]);
  if (st == TL_OK && tl_node_needs(n, 1)) st = grad_w(x, &gm, &grad_in[1], bias ? &grad_in[2] : NULL);
  if (st == TL_OK && bias && grad_in[2] == NULL) st = tl_sum_to(g, 1, &g->shape[g->ndim - 1], &grad_in[2]);
  tl_tensor_free(held);
  return st;
}

static const tl_node_class linear_class = {"linear", linear_backward, NULL};

static tl_status check_linear(const tl_tensor *x, const tl_tensor *w, const tl_tensor *b) {
  if (w->ndim != 2) return TL_FAIL(TL_ERR_SHAPE, "linear", "the weight must be (out x in), got %s", tl_shape_of(w));
  if (x->ndim == 0) return TL_FAIL(TL_ERR_SHAPE, "linear", "the input needs at least 1 dim");
  int64_t in = x->shape[x->ndim - 1];
  if (in != w->shape[1])
    return TL_FAIL(TL_ERR_SHAPE, "linear", "%s into a weight of %s: %lld input features, %lld expected", tl_shape_of(x),
                   tl_shape_of(w), (long long)in, (long long)w->shape[1]);
  TL_TRY(tl_check_factors("linear", x, w));
  if (b == NULL) return TL_OK;
  if (b->ndim != 1 || b->shape[0] != w->shape[0])
    return TL_FAIL(TL_ERR_SHAPE, "linear", "a bias of %s for a weight of %s: (%lld) expected", tl_shape_of(b),
                   tl_shape_of(w), (long long)w->shape[0]);
  return tl_check_factors("linear", x, b);
}

/* An empty y (.., out) for x (.., in). */
static tl_status empty_result(const tl_tensor *x, const tl_tensor *w, tl_tensor **y) {
  int64_t shape[TL_MAX_DIMS];
  for (int d = 0; d < x->ndim - 1; d++) shape[d] = x->shape[d];
  shape[x->ndim - 1] = w->shape[0];
  return tl_empty(x->ndim, shape, x->dtype, x->device, y);
}

static tl_status record(tl_tensor *x, tl_tensor *w, tl_tensor *b, tl_tensor *y) {
  tl_tensor *in[3] = {x, w, b};
  const int inputs = b == NULL ? 2 : 3;
  if (!tl_records(inputs, in)) return TL_OK;
  tl_tensor *save[2] = {tl_requires_grad(w) ? x : NULL, tl_requires_grad(x) ? w : NULL};
  return tl_record1(&linear_class, y, inputs, in, 2, save, NULL, 0);
}

tl_status tl_linear(tl_tensor *x, tl_tensor *w, tl_tensor *b, tl_tensor **out) {
  TL_AUTOCAST(TL_CAST_LOW, tl_linear(cast[0], cast[1], cast[2], out), x, w, b);
  TL_TRY(check_linear(x, w, b));
  tl_tensor *held, *y;
  tl_matrices xm;
  TL_TRY(rows_of(x, &held, &xm));
  const tl_matrices wt = tl_matrices_transposed(tl_matrices_of(w, false));
  tl_status st = empty_result(x, w, &y);
  if (st == TL_OK) {
    st = tl_gemm_into("linear", &xm, &wt, b, 1, 0, y);
    if (st == TL_OK) st = record(x, w, b, y);
    st = tl_give(st, y, out);
  }
  tl_tensor_free(held);
  return st;
}

/* ---- linear and gelu, in one call where the device has it; on the tape they are two ---- */

/* *out stays NULL where it has not. */
static tl_status fused_gelu(tl_tensor *x, tl_tensor *w, tl_tensor *b, tl_tensor **out) {
  tl_tensor *in[3] = {x, w, b}, *held, *y = NULL, *pre = NULL;
  tl_matrices xm;
  bool done = false;
  TL_TRY(rows_of(x, &held, &xm));
  const tl_matrices wt = tl_matrices_transposed(tl_matrices_of(w, false));
  tl_status st = empty_result(x, w, &y);
  if (st == TL_OK && tl_records(b == NULL ? 2 : 3, in)) st = empty_result(x, w, &pre);
  if (st == TL_OK) st = tl_gemm_gelu_into("linear_gelu", &xm, &wt, b, pre, y, &done);
  if (st == TL_OK && done && pre != NULL) {
    st = record(x, w, b, pre);
    if (st == TL_OK) st = tl_record_gelu_tanh(pre, y);
  }
  tl_tensor_free(pre);
  tl_tensor_free(held);
  if (st == TL_OK && done) *out = y;
  else tl_tensor_free(y);
  return st;
}

tl_status tl_linear_gelu(tl_tensor *x, tl_tensor *w, tl_tensor *b, tl_tensor **out) {
  TL_AUTOCAST(TL_CAST_LOW, tl_linear_gelu(cast[0], cast[1], cast[2], out), x, w, b);
  TL_TRY(check_linear(x, w, b));
  tl_tensor *y = NULL;
  if (x->numel > 0 && w->numel > 0 && tl_kernels_of(x)->gemm_gelu != NULL) TL_TRY(fused_gelu(x, w, b, &y));
  if (y != NULL) {
    *out = y;
    return TL_OK;
  }
  TL_TRY(tl_linear(x, w, b, &y));
  tl_status st = tl_gelu_tanh(y, out);
  tl_tensor_free(y);
  return st;
}
