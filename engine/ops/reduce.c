/* reduce.c: sum, mean, amax, amin, all, any, and the sum that undoes a broadcast. */
#include "ops/reduce.h"

#include "autograd/tape.h"
#include "backend/backend.h"
#include "ops/autocast.h"

/* ---- shared by all reductions ---- */

tl_status tl_reducing_init(const char *op, const tl_tensor *x, int n, const int *dims, double p, tl_reducing *r) {
  r->ndim = x->ndim;
  r->p = p;
  r->count = 1;
  TL_TRY(tl_check_dims(op, x->ndim, n, dims, &r->mask));
  for (int d = 0; d < x->ndim; d++) {
    r->shape[d] = x->shape[d];
    if (r->mask & 1u << d) r->count *= x->shape[d];
  }
  return TL_OK;
}

tl_status tl_reduce(const char *op, int kind, tl_tensor *x, const tl_reducing *r, bool keepdim, int dtype,
                    tl_tensor **out) {
  int64_t shape[TL_MAX_DIMS];
  int ndim = 0, reduced;
  for (int d = 0; d < x->ndim; d++) {
    if (!(r->mask & 1u << d)) shape[ndim++] = x->shape[d];
    else if (keepdim) shape[ndim++] = 1;
  }
  TL_KERNEL(x, reduce, op);
  tl_tensor *y;
  TL_TRY(tl_empty(ndim, shape, dtype, x->device, &y));
  tl_iter it;
  tl_iter_init_reduce(&it, y, x, r->mask, &reduced);
  return tl_give(tl_kernels_of(x)->reduce(kind, &it, reduced, r->p), y, out);
}

tl_status tl_reduced_view(const tl_reducing *r, tl_tensor *t, tl_tensor **out) {
  int64_t shape[TL_MAX_DIMS];
  for (int d = 0; d < r->ndim; d++) shape[d] = r->mask & 1u << d ? 1 : r->shape[d];
  return tl_reshape(t, r->ndim, shape, out);
}

tl_status tl_reduced_expand(const tl_reducing *r, tl_tensor *t, tl_tensor **out) {
  tl_tensor *view;
  TL_TRY(tl_reduced_view(r, t, &view));
  tl_status st = tl_expand(view, r->ndim, r->shape, out);
  tl_tensor_free(view);
  return st;
}

tl_status tl_check_nonempty(const char *op, const tl_tensor *x, const tl_reducing *r) {
  if (r->count > 0) return TL_OK;
  for (int d = 0; d < x->ndim; d++)
    if (r->mask & 1u << d && x->shape[d] == 0)
      return TL_FAIL(TL_ERR_SHAPE, op, "dim %lld of %s is empty: there is no element to choose",
                     (long long)tl_position(d), tl_shape_of(x));
  return TL_OK;
}

/* ---- sum, mean ---- */

static tl_status sum_backward(tl_node *n, tl_tensor *const *grad_out, tl_tensor **grad_in) {
  return tl_reduced_expand(n->payload, grad_out[0], &grad_in[0]);
}

static tl_status mean_backward(tl_node *n, tl_tensor *const *grad_out, tl_tensor **grad_in) {
  const tl_reducing *r = n->payload;
  tl_tensor *g;
  TL_TRY(tl_mul_scalar(grad_out[0], r->count == 0 ? 0 : 1 / (double)r->count, &g));
  tl_status st = tl_reduced_expand(r, g, &grad_in[0]);
  tl_tensor_free(g);
  return st;
}

static const tl_node_class sum_class = {"sum", sum_backward, NULL};
static const tl_node_class mean_class = {"mean", mean_backward, NULL};

tl_status tl_sum(tl_tensor *x, int n, const int *dims, bool keepdim, tl_tensor **out) {
  TL_AUTOCAST(TL_CAST_FULL, tl_sum(cast[0], n, dims, keepdim, out), x);
  tl_reducing r;
  TL_TRY(tl_reducing_init("sum", x, n, dims, 0, &r));
  tl_tensor *y;
  TL_TRY(tl_reduce("sum", TL_REDUCE_KIND_SUM, x, &r, keepdim, tl_is_floating(x->dtype) ? x->dtype : TL_INT64, &y));
  return tl_give(tl_record1(&sum_class, y, 1, &x, 0, NULL, &r, sizeof r), y, out);
}

tl_status tl_mean(tl_tensor *x, int n, const int *dims, bool keepdim, tl_tensor **out) {
  tl_reducing r;
  TL_TRY(tl_check_floating("mean", x));
  TL_TRY(tl_reducing_init("mean", x, n, dims, 0, &r));
  tl_tensor *y;
  TL_TRY(tl_reduce("mean", TL_REDUCE_KIND_MEAN, x, &r, keepdim, x->dtype, &y));
  return tl_give(tl_record1(&mean_class, y, 1, &x, 0, NULL, &r, sizeof r), y, out);
}

tl_status tl_sum_to(tl_tensor *x, int ndim, const int64_t *shape, tl_tensor **out) {
  int dims[TL_MAX_DIMS], n = 0, lead = x->ndim - ndim;
  bool fits = ndim >= 0 && lead >= 0;
  for (int d = 0; d < x->ndim && fits; d++) {
    if (d < lead || (shape[d - lead] == 1 && x->shape[d] != 1)) dims[n++] = d;
    else fits = shape[d - lead] == x->shape[d];
  }
  if (!fits) {
    char text[TL_SHAPE_CHARS];
    return TL_FAIL(TL_ERR_SHAPE, "sum_to", "%s is no broadcast of %s", tl_shape_of(x),
                   tl_shape_text(ndim < 0             ? 0
                                 : ndim > TL_MAX_DIMS ? TL_MAX_DIMS
                                                      : ndim,
                                 shape, text));
  }
  if (n == 0) return tl_tensor_retain(x, out);
  tl_tensor *sum;
  TL_TRY(tl_sum(x, n, dims, true, &sum));
  if (lead == 0) return tl_give(TL_OK, sum, out);
  tl_status st = tl_reshape(sum, ndim, shape, out);
  tl_tensor_free(sum);
  return st;
}

/* ---- amax, amin: equal extremes share the gradient ---- */

/* Where x is its reduction's extreme, nan included: bool of x's shape. */
static tl_status ties_of(tl_tensor *x, tl_tensor *y, tl_tensor **out) {
  tl_tensor *ties = NULL, *nans = NULL;
  tl_status st = tl_eq(x, y, &ties);
  if (st == TL_OK) st = tl_isnan(x, &nans);
  if (st == TL_OK) st = tl_step2(tl_logical_or, &ties, nans);
  tl_tensor_free(nans);
  return tl_give(st, ties, out);
}

/* saved: x, y */
static tl_status extreme_backward(tl_node *n, tl_tensor *const *grad_out, tl_tensor **grad_in) {
  const tl_reducing *r = n->payload;
  tl_tensor *x, *y, *kept = NULL, *ties = NULL, *count = NULL, *g = NULL;
  int dims[TL_MAX_DIMS], reduced = 0;
  TL_TRY(tl_node_saved(n, 0, &x));
  TL_TRY(tl_node_saved(n, 1, &y));
  for (int d = 0; d < r->ndim; d++)
    if (r->mask & 1u << d) dims[reduced++] = d;
  tl_status st = tl_reduced_view(r, y, &kept);
  if (st == TL_OK) st = ties_of(x, kept, &ties);
  if (st == TL_OK && reduced > 0) st = tl_sum(ties, reduced, dims, true, &count);
  if (st == TL_OK) st = tl_reduced_view(r, grad_out[0], &g);
  if (st == TL_OK && reduced > 0) st = tl_step2(tl_div, &g, count);
  if (st == TL_OK) st = tl_mul(g, ties, &grad_in[0]);
  tl_tensor_free(kept);
  tl_tensor_free(ties);
  tl_tensor_free(count);
  tl_tensor_free(g);
  return st;
}

static const tl_node_class amax_class = {"amax", extreme_backward, NULL};
static const tl_node_class amin_class = {"amin", extreme_backward, NULL};

static tl_status extreme(const tl_node_class *cls, int kind, tl_tensor *x, int n, const int *dims, bool keepdim,
                         tl_tensor **out) {
  tl_reducing r;
  TL_TRY(tl_reducing_init(cls->name, x, n, dims, 0, &r));
  TL_TRY(tl_check_nonempty(cls->name, x, &r));
  tl_tensor *y;
  TL_TRY(tl_reduce(cls->name, kind, x, &r, keepdim, x->dtype, &y));
  tl_tensor *save[2] = {x, y};
  return tl_give(tl_record1(cls, y, 1, &x, 2, save, &r, sizeof r), y, out);
}

tl_status tl_amax(tl_tensor *x, int n, const int *dims, bool keepdim, tl_tensor **out) {
  return extreme(&amax_class, TL_REDUCE_KIND_MAX, x, n, dims, keepdim, out);
}

tl_status tl_amin(tl_tensor *x, int n, const int *dims, bool keepdim, tl_tensor **out) {
  return extreme(&amin_class, TL_REDUCE_KIND_MIN, x, n, dims, keepdim, out);
}

/* ---- all, any: nan counts as true ---- */

static tl_status truth(const char *op, int kind, tl_tensor *x, int n, const int *dims, bool keepdim, tl_tensor **out) {
  tl_reducing r;
  TL_TRY(tl_reducing_init(op, x, n, dims, 0, &r));
  return tl_reduce(op, kind, x, &r, keepdim, TL_BOOL, out);
}

tl_status tl_all(tl_tensor *x, int n, const int *dims, bool keepdim, tl_tensor **out) {
  return truth("all", TL_REDUCE_KIND_ALL, x, n, dims, keepdim, out);
}

tl_status tl_any(tl_tensor *x, int n, const int *dims, bool keepdim, tl_tensor **out) {
  return truth("any", TL_REDUCE_KIND_ANY, x, n, dims, keepdim, out);
}
