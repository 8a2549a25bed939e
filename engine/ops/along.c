/* along.c: operations along one dim: extremes with their places, cumsum, sort, topk. */
#include <string.h>

#include "autograd/tape.h"
#include "backend/backend.h"
#include "ops/autocast.h"
#include "ops/index.h"

/* Where values came from: dim d of `shape`, ids saved. */
typedef struct chosen {
  int d, ndim;
  bool keepdim;
  int64_t shape[TL_MAX_DIMS];
} chosen;

static chosen chosen_of(const tl_tensor *x, int d, bool keepdim) {
  chosen c = {.d = d, .ndim = x->ndim, .keepdim = keepdim};
  memcpy(c.shape, x->shape, (size_t)x->ndim * sizeof *x->shape);
  return c;
}

/* g goes back to the chosen elements */
static tl_status chosen_backward(tl_node *n, tl_tensor *const *grad_out, tl_tensor **grad_in) {
  const chosen *c = n->payload;
  tl_tensor *ids, *g = NULL, *places = NULL;
  TL_TRY(tl_node_saved(n, 0, &ids));
  tl_status st = c->keepdim ? tl_tensor_retain(grad_out[0], &g) : tl_unsqueeze(grad_out[0], c->d, &g);
  if (st == TL_OK) st = c->keepdim ? tl_tensor_retain(ids, &places) : tl_unsqueeze(ids, c->d, &places);
  if (st == TL_OK) st = tl_scatter_back(c->ndim, c->shape, c->d, places, g, &grad_in[0]);
  tl_tensor_free(g);
  tl_tensor_free(places);
  return st;
}

static const tl_node_class max_class = {"max", chosen_backward, NULL};
static const tl_node_class min_class = {"min", chosen_backward, NULL};
static const tl_node_class sort_class = {"sort", chosen_backward, NULL};
static const tl_node_class topk_class = {"topk", chosen_backward, NULL};

/* ---- extremes ---- */

/* ids of the first extreme along d, with d kept as size 1 */
static tl_status places(const char *op, bool largest, tl_tensor *x, int d, tl_tensor **out) {
  TL_KERNEL(x, arg_extreme, op);
  int64_t shape[TL_MAX_DIMS];
  for (int i = 0; i < x->ndim; i++) shape[i] = i == d ? 1 : x->shape[i];
  if (x->ndim > 0 && x->shape[d] == 0)
    return TL_FAIL(TL_ERR_SHAPE, op, "dim %lld of %s is empty: there is no element to choose",
                   (long long)tl_position(d), tl_shape_of(x));
  tl_tensor *flat, *ids = NULL;
  bool former = tl_set_grad_enabled(false);
  tl_status st = tl_contiguous(x, &flat);
  tl_set_grad_enabled(former);
  TL_TRY(st);
  tl_along a = tl_along_dim(x, d);
  st = tl_empty(x->ndim, shape, TL_INT64, x->device, &ids);
  if (st == TL_OK && ids->numel > 0)
    st = tl_kernels_of(x)->arg_extreme(largest, x->dtype, tl_data(flat), a.outer, a.n, a.inner, tl_data(ids));
  tl_tensor_free(flat);
  return tl_give(st, ids, out);
}

/* *t without dim d (a plain alias: t was just made) */
static tl_status drop_dim(tl_tensor **t, int d) {
  if ((*t)->ndim == 0) return TL_OK;
  tl_tensor *y;
  TL_TRY(tl_squeeze(*t, d, &y));
  tl_tensor_free(*t);
  *t = y;
  return TL_OK;
}

static tl_status extreme(const tl_node_class *cls, bool largest, tl_tensor *x, int d, bool keepdim, tl_tensor **values,
                         tl_tensor **ids) {
  TL_TRY(tl_check_dim(cls->name, x->ndim, &d));
  tl_tensor *at = NULL, *v = NULL;
  bool former = tl_set_grad_enabled(false);
  tl_status st = places(cls->name, largest, x, d, &at);
  if (st == TL_OK) st = tl_gather(x, d, at, &v);
  if (st == TL_OK && !keepdim) st = drop_dim(&at, d);
  if (st == TL_OK && !keepdim) st = drop_dim(&v, d);
  tl_set_grad_enabled(former);
  chosen c = chosen_of(x, d, keepdim || x->ndim == 0);
  if (st == TL_OK) st = tl_record1(cls, v, 1, &x, 1, &at, &c, sizeof c);
  if (st != TL_OK) {
    tl_tensor_free(at);
    tl_tensor_free(v);
    return st;
  }
  *values = v;
  *ids = at;
  return TL_OK;
}

tl_status tl_max_dim(tl_tensor *x, int d, bool keepdim, tl_tensor **values, tl_tensor **ids) {
  return extreme(&max_class, true, x, d, keepdim, values, ids);
}

tl_status tl_min_dim(tl_tensor *x, int d, bool keepdim, tl_tensor **values, tl_tensor **ids) {
  return extreme(&min_class, false, x, d, keepdim, values, ids);
}

static tl_status arg(const char *op, bool largest, tl_tensor *x, int d, bool keepdim, tl_tensor **out) {
  TL_TRY(tl_check_dim(op, x->ndim, &d));
  tl_tensor *ids = NULL;
  tl_status st = places(op, largest, x, d, &ids);
  if (st == TL_OK && !keepdim) st = drop_dim(&ids, d);
  return tl_give(st, ids, out);
}

tl_status tl_argmax(tl_tensor *x, int d, bool keepdim, tl_tensor **out) {
  return arg("argmax", true, x, d, keepdim, out);
}
tl_status tl_argmin(tl_tensor *x, int d, bool keepdim, tl_tensor **out) {
  return arg("argmin", false, x, d, keepdim, out);
}

static tl_status arg_all(const char *op, bool largest, tl_tensor *x, tl_tensor **out) {
  tl_tensor *flat;
  bool former = tl_set_grad_enabled(false);
  tl_status st = tl_reshape(x, 1, &x->numel, &flat);
  tl_set_grad_enabled(former);
  TL_TRY(st);
  st = arg(op, largest, flat, 0, false, out);
  tl_tensor_free(flat);
  return st;
}

tl_status tl_argmax_all(tl_tensor *x, tl_tensor **out) { return arg_all("argmax", true, x, out); }
tl_status tl_argmin_all(tl_tensor *x, tl_tensor **out) { return arg_all("argmin", false, x, out); }

/* ---- cumsum ---- */

static tl_status running_sum(tl_tensor *x, int d, int dtype, bool reverse, tl_tensor **out) {
  TL_KERNEL(x, cumsum, "cumsum");
  tl_tensor *flat, *y = NULL;
  bool former = tl_set_grad_enabled(false);
  tl_status st = tl_contiguous(x, &flat);
  tl_set_grad_enabled(former);
  TL_TRY(st);
  tl_along a = tl_along_dim(x, d);
  st = tl_empty(x->ndim, x->shape, dtype, x->device, &y);
  if (st == TL_OK && y->numel > 0)
    st = tl_kernels_of(x)->cumsum(x->dtype, tl_data(flat), dtype, tl_data(y), a.outer, a.n, a.inner, reverse);
  tl_tensor_free(flat);
  return tl_give(st, y, out);
}

/* the running sum from the back */
static tl_status cumsum_backward(tl_node *n, tl_tensor *const *grad_out, tl_tensor **grad_in) {
  return running_sum(grad_out[0], *(const int *)n->payload, grad_out[0]->dtype, true, &grad_in[0]);
}

static const tl_node_class cumsum_class = {"cumsum", cumsum_backward, NULL};

tl_status tl_cumsum(tl_tensor *x, int d, tl_tensor **out) {
  TL_AUTOCAST(TL_CAST_FULL, tl_cumsum(cast[0], d, out), x);
  TL_TRY(tl_check_dim("cumsum", x->ndim, &d));
  tl_tensor *y;
  TL_TRY(running_sum(x, d, tl_is_floating(x->dtype) ? x->dtype : TL_INT64, false, &y));
  return tl_give(tl_record1(&cumsum_class, y, 1, &x, 0, NULL, &d, sizeof d), y, out);
}

/* ---- sort, topk ---- */

/* The first k in order along d. */
static tl_status ordered(const tl_node_class *cls, tl_tensor *x, int d, int64_t k, bool descending, tl_tensor **values,
                         tl_tensor **ids) {
  TL_KERNEL(x, sort, cls->name);
  int64_t shape[TL_MAX_DIMS];
  for (int i = 0; i < x->ndim; i++) shape[i] = i == d ? k : x->shape[i];
  tl_tensor *flat = NULL, *at = NULL, *v = NULL;
  bool former = tl_set_grad_enabled(false);
  tl_status st = tl_contiguous(x, &flat);
  tl_set_grad_enabled(former);
  tl_along a = tl_along_dim(x, d);
  if (st == TL_OK) st = tl_empty(x->ndim, shape, x->dtype, x->device, &v);
  if (st == TL_OK) st = tl_empty(x->ndim, shape, TL_INT64, x->device, &at);
  if (st == TL_OK && v->numel > 0)
    st = tl_kernels_of(x)->sort(x->dtype, tl_data(flat), a.outer, a.n, a.inner, descending, k, tl_data(v), tl_data(at));
  tl_tensor_free(flat);
  chosen c = chosen_of(x, d, true);
  if (st == TL_OK) st = tl_record1(cls, v, 1, &x, 1, &at, &c, sizeof c);
  if (st != TL_OK) {
    tl_tensor_free(at);
    tl_tensor_free(v);
    return st;
  }
  *values = v;
  *ids = at;
  return TL_OK;
}

tl_status tl_sort(tl_tensor *x, int d, bool descending, tl_tensor **values, tl_tensor **ids) {
  TL_TRY(tl_check_dim("sort", x->ndim, &d));
  return ordered(&sort_class, x, d, x->ndim == 0 ? 1 : x->shape[d], descending, values, ids);
}

/* Equal values keep the order of their places, so the result is sorted whether `sorted` asks for it or not. */
tl_status tl_topk(tl_tensor *x, int64_t k, int d, bool largest, bool sorted, tl_tensor **values, tl_tensor **ids) {
  (void)sorted;
  TL_TRY(tl_check_dim("topk", x->ndim, &d));
  int64_t n = x->ndim == 0 ? 1 : x->shape[d];
  if (k < 0 || k > n)
    return TL_FAIL(TL_ERR_VALUE, "topk", "k = %lld of the %lld elements of dim %lld of %s", (long long)k, (long long)n,
                   (long long)tl_position(d), tl_shape_of(x));
  if (x->ndim == 0 && k == 0) return TL_FAIL(TL_ERR_VALUE, "topk", "k = 0 of a 0-d tensor");
  return ordered(&topk_class, x, d, k, largest, values, ids);
}
