/* index.c: reading and adding elements by stored (0-based) indices. Every id is checked before anything is written. */
#include "ops/index.h"

#include <stdio.h>
#include <string.h>

#include "autograd/tape.h"
#include "backend/backend.h"
#include "ops/autocast.h"

/* ---- shared ---- */

tl_along tl_along_dim(const tl_tensor *x, int d) {
  tl_along a = {1, x->ndim == 0 ? 1 : x->shape[d], 1};
  for (int i = 0; i < d; i++) a.outer *= x->shape[i];
  for (int i = d + 1; i < x->ndim; i++) a.inner *= x->shape[i];
  return a;
}

/* How many ids there are along d. */
static int64_t extent(const tl_tensor *x, int d) { return x->ndim == 0 ? 1 : x->shape[d]; }

/* "(2, 3)": the position of element i of t, as the user counts. */
static const char *place_text(const tl_tensor *t, int64_t i, char *buffer, size_t bytes) {
  int64_t index[TL_MAX_DIMS];
  for (int d = t->ndim - 1; d >= 0; d--) {
    index[d] = i % t->shape[d];
    i /= t->shape[d];
  }
  size_t used = 0;
  buffer[0] = 0;
  for (int d = 0; d < t->ndim && used < bytes; d++)
    used += (size_t)snprintf(buffer + used, bytes - used, d == 0 ? "%lld" : ", %lld", (long long)tl_position(index[d]));
  return buffer;
}

tl_status tl_checked_ids(const char *op, const tl_tensor *x, int d, tl_tensor *ids, tl_tensor **out) {
  if (tl_is_floating(ids->dtype) || ids->dtype == TL_BOOL)
    return TL_FAIL(TL_ERR_DTYPE, op, "ids must be integers, got %s", tl_dtype_name(ids->dtype));
  TL_TRY(tl_check_same_device(op, x, ids));
  TL_KERNEL(x, find_bad_id, op);
  tl_tensor *wide = NULL, *flat = NULL;
  int64_t limit = extent(x, d), bad;
  tl_status st = tl_to(ids, TL_INT64, ids->device, &wide);
  if (st == TL_OK) st = tl_contiguous(wide, &flat);
  tl_tensor_free(wide);
  if (st == TL_OK && limit == 0) bad = flat->numel == 0 ? -1 : 0; /* known without looking */
  else if (st == TL_OK) st = tl_kernels_of(x)->find_bad_id(tl_data(flat), flat->numel, limit, &bad);
  if (st == TL_OK && bad >= 0) {
    int64_t index[TL_MAX_DIMS] = {0}, rest = bad;
    double id = 0;
    char place[TL_SHAPE_CHARS];
    for (int k = flat->ndim - 1; k >= 0; k--) index[k] = rest % flat->shape[k], rest /= flat->shape[k];
    st = tl_get(flat, flat->ndim, index, &id);
    if (st == TL_OK && limit == 0)
      st = TL_FAIL(TL_ERR_INDEX, op, "dim %lld of %s is empty: there is nothing that id %.0f could name",
                   (long long)tl_position(d), tl_shape_of(x), id);
    else if (st == TL_OK)
      st = TL_FAIL(TL_ERR_INDEX, op, "id %.0f at position (%s) of the ids is outside 0..%lld, dim %lld of %s", id,
                   place_text(flat, bad, place, sizeof place), (long long)(limit - 1), (long long)tl_position(d),
                   tl_shape_of(x));
  }
  return tl_give(st, flat, out);
}

static tl_status check_same_dtype(const char *op, const tl_tensor *x, const tl_tensor *src) {
  if (x->dtype == src->dtype) return TL_OK;
  return TL_FAIL(TL_ERR_DTYPE, op, "%s values do not add to a %s tensor", tl_dtype_name(src->dtype),
                 tl_dtype_name(x->dtype));
}

static tl_status check_adds(const char *op, const tl_tensor *x, const tl_tensor *src) {
  TL_TRY(check_same_dtype(op, x, src));
  TL_TRY(tl_check_same_device(op, x, src));
  if (x->dtype == TL_BOOL) return TL_FAIL(TL_ERR_DTYPE, op, "bool tensors do not add");
  return TL_OK;
}

typedef struct indexed {
  int d, ndim;
  int64_t shape[TL_MAX_DIMS]; /* of the indexed tensor */
  double alpha;
} indexed;

static indexed indexed_of(const tl_tensor *x, int d, double alpha) {
  indexed p = {.d = d, .ndim = x->ndim, .alpha = alpha};
  memcpy(p.shape, x->shape, (size_t)x->ndim * sizeof *x->shape);
  return p;
}

/* float16 and bfloat16 sums run in float32: one rounding at the end instead of one an addition. */
static bool is_low(int dtype) { return dtype == TL_FLOAT16 || dtype == TL_BFLOAT16; }

/* ---- whole rows: index_select, index_add_ ---- */

/* y += alpha * x at ids (contiguous, checked) along d; y contiguous and of a type that sums. Unrecorded. */
static tl_status add_rows(tl_tensor *y, int d, tl_tensor *ids, tl_tensor *x, double alpha) {
  TL_KERNEL(y, index_add, "index_add");
  tl_tensor *flat;
  TL_TRY(tl_contiguous(x, &flat));
  tl_along a = tl_along_dim(y, d);
  tl_status st = tl_kernels_of(y)->index_add(y->dtype, tl_data(flat), a.outer, a.n, a.inner, ids->numel, tl_data(ids),
                                             alpha, tl_data(y));
  tl_tensor_free(flat);
  return st;
}

/* The same for any strides and dtypes of y, whose elements change only if everything works. */
static tl_status add_rows_any(tl_tensor *y, int d, tl_tensor *ids, tl_tensor *x, double alpha) {
  if (y->contiguous && !is_low(y->dtype) && y->storage != x->storage) return add_rows(y, d, ids, x, alpha);
  int dtype = is_low(y->dtype) ? TL_FLOAT32 : y->dtype;
  tl_tensor *sum = NULL, *wide = NULL, *fresh = NULL;
  tl_status st = tl_to(y, dtype, y->device, &wide);
  if (st == TL_OK) st = wide == y ? tl_clone(y, &sum) : tl_contiguous(wide, &sum);
  if (st == TL_OK) st = tl_to(x, dtype, x->device, &fresh);
  if (st == TL_OK) st = add_rows(sum, d, ids, fresh, alpha);
  if (st == TL_OK) {
    st = tl_write_back(y, sum);
  }
  tl_tensor_free(wide);
  tl_tensor_free(sum);
  tl_tensor_free(fresh);
  return st;
}

/* saved: ids */
static tl_status index_select_backward(tl_node *n, tl_tensor *const *grad_out, tl_tensor **grad_in) {
  const indexed *p = n->payload;
  tl_tensor *ids, *sum;
  TL_TRY(tl_node_saved(n, 0, &ids));
  TL_TRY(tl_full(p->ndim, p->shape, 0, grad_out[0]->dtype, grad_out[0]->device, &sum));
  return tl_give(add_rows_any(sum, p->d, ids, grad_out[0], 1), sum, &grad_in[0]);
}

static const tl_node_class index_select_class = {"index_select", index_select_backward, NULL};

static tl_status check_id_list(const char *op, const tl_tensor *ids) {
  if (ids->ndim <= 1) return TL_OK;
  return TL_FAIL(TL_ERR_SHAPE, op, "ids must be 1-d, got %s", tl_shape_of(ids));
}

tl_status tl_index_select(tl_tensor *x, int d, tl_tensor *ids, tl_tensor **out) {
  TL_TRY(tl_check_dim("index_select", x->ndim, &d));
  TL_TRY(check_id_list("index_select", ids));
  TL_KERNEL(x, index_select, "index_select");
  tl_tensor *checked = NULL, *flat = NULL, *y = NULL;
  int64_t shape[TL_MAX_DIMS] = {1};
  memcpy(shape, x->shape, (size_t)x->ndim * sizeof *shape);
  bool former = tl_set_grad_enabled(false);
  tl_status st = tl_checked_ids("index_select", x, d, ids, &checked);
  if (st == TL_OK && x->ndim > 0) shape[d] = checked->numel;
  else if (st == TL_OK && checked->numel != 1)
    st = TL_FAIL(TL_ERR_SHAPE, "index_select", "a 0-d tensor takes one id, got %lld", (long long)checked->numel);
  if (st == TL_OK) st = tl_contiguous(x, &flat);
  if (st == TL_OK) st = tl_empty(x->ndim, shape, x->dtype, x->device, &y);
  if (st == TL_OK && y->numel > 0) {
    tl_along a = tl_along_dim(x, d);
    st = tl_kernels_of(x)->index_select(tl_dtype_size(x->dtype), tl_data(flat), a.outer, a.n, a.inner, checked->numel,
                                        tl_data(checked), tl_data(y));
  }
  tl_set_grad_enabled(former);
  indexed p = indexed_of(x, d, 1);
  if (st == TL_OK) st = tl_record1(&index_select_class, y, 1, &x, 1, &checked, &p, sizeof p);
  tl_tensor_free(checked);
  tl_tensor_free(flat);
  return tl_give(st, y, out);
}

/* inputs: the old value, src; saved: ids */
static tl_status index_add_backward(tl_node *n, tl_tensor *const *grad_out, tl_tensor **grad_in) {
  const indexed *p = n->payload;
  tl_tensor *ids, *rows = NULL;
  if (tl_node_needs(n, 0)) grad_in[0] = tl_hold(grad_out[0]);
  if (!tl_node_needs(n, 1)) return TL_OK;
  TL_TRY(tl_node_saved(n, 0, &ids));
  TL_TRY(tl_index_select(grad_out[0], p->d, ids, &rows));
  if (p->alpha == 1) return tl_give(TL_OK, rows, &grad_in[1]);
  tl_status st = tl_mul_scalar(rows, p->alpha, &grad_in[1]);
  tl_tensor_free(rows);
  return st;
}

static const tl_node_class index_add_class = {"index_add_", index_add_backward, NULL};

static tl_status check_rows(const tl_tensor *x, int d, const tl_tensor *ids, const tl_tensor *src) {
  bool fits = src->ndim == x->ndim && (src->ndim == 0 ? ids->numel == 1 : src->shape[d] == ids->numel);
  for (int i = 0; i < x->ndim && fits; i++) fits = i == d || src->shape[i] == x->shape[i];
  if (fits) return TL_OK;
  return TL_FAIL(TL_ERR_SHAPE, "index_add_", "%lld rows of dim %lld of %s cannot take %s", (long long)ids->numel,
                 (long long)tl_position(d), tl_shape_of(x), tl_shape_of(src));
}

tl_status tl_index_add_(tl_tensor *x, int d, tl_tensor *ids, tl_tensor *src, double alpha) {
  TL_TRY(tl_check_inplace("index_add_", x));
  TL_TRY(tl_check_dim("index_add_", x->ndim, &d));
  TL_TRY(check_id_list("index_add_", ids));
  TL_TRY(check_adds("index_add_", x, src));
  TL_TRY(check_rows(x, d, ids, src));
  if (!tl_is_floating(x->dtype) && !tl_is_whole(alpha))
    return TL_FAIL(TL_ERR_VALUE, "index_add_", "alpha %g is no integer, and the tensor is %s", alpha,
                   tl_dtype_name(x->dtype));
  tl_tensor *checked, *in[2] = {x, src};
  TL_TRY(tl_checked_ids("index_add_", x, d, ids, &checked));
  indexed p = indexed_of(x, d, alpha);
  tl_write w;
  tl_status st = tl_write_begin(&w, &index_add_class, x, 2, in, 1, &checked, &p, sizeof p);
  if (st == TL_OK) {
    bool former = tl_set_grad_enabled(false);
    st = add_rows_any(x, d, checked, src, alpha);
    tl_set_grad_enabled(former);
    st = tl_write_end(&w, x, st);
  }
  tl_tensor_free(checked);
  return st;
}

/* ---- single elements: gather, scatter_add ---- */

/* x as the iterator's third (or first) operand: ids' shape, and no step along d (the id decides). */
static tl_status frozen(const tl_tensor *x, int d, const tl_tensor *ids, tl_tensor **out) {
  int64_t strides[TL_MAX_DIMS] = {0};
  for (int i = 0; i < x->ndim; i++) strides[i] = i == d ? 0 : x->strides[i];
  return tl_alias_as(x, ids->ndim, ids->shape, strides, x->offset, out);
}

static int64_t step_bytes(const tl_tensor *x, int d) {
  return x->ndim == 0 ? 0 : x->strides[d] * (int64_t)tl_dtype_size(x->dtype);
}

/* ids may be smaller than x in every dim but d. */
static tl_status check_inside(const char *op, const char *what, const tl_tensor *x, int d, const tl_tensor *ids) {
  if (ids->ndim != x->ndim)
    return TL_FAIL(TL_ERR_SHAPE, op, "ids of %s for %s of %s: the number of dims differs", tl_shape_of(ids), what,
                   tl_shape_of(x));
  for (int i = 0; i < x->ndim; i++)
    if (i != d && ids->shape[i] > x->shape[i])
      return TL_FAIL(TL_ERR_SHAPE, op, "ids of %s reach outside %s of %s in dim %lld", tl_shape_of(ids), what,
                     tl_shape_of(x), (long long)tl_position(i));
  return TL_OK;
}

/* y += src at ids (checked) along d; y of a type that sums, any strides. Unrecorded. */
static tl_status add_elements(tl_tensor *y, int d, tl_tensor *ids, tl_tensor *src) {
  TL_KERNEL(y, scatter_add, "scatter_add");
  tl_tensor *target = NULL, *part = NULL;
  tl_status st = frozen(y, d, ids, &target);
  if (st == TL_OK) st = tl_alias_as(src, ids->ndim, ids->shape, src->strides, src->offset, &part);
  if (st == TL_OK) {
    tl_tensor *operands[3] = {target, ids, part};
    tl_iter it;
    tl_iter_init(&it, 3, operands, NULL, ids->ndim, ids->shape);
    st = tl_kernels_of(y)->scatter_add(&it, step_bytes(y, d), extent(y, d));
  }
  tl_tensor_free(target);
  tl_tensor_free(part);
  return st;
}

/* A fresh tensor with x's values, of the type sums run in, and src in that type. */
static tl_status widened(tl_tensor *x, tl_tensor *src, tl_tensor **sum, tl_tensor **wide) {
  int dtype = is_low(x->dtype) ? TL_FLOAT32 : x->dtype;
  TL_TRY(dtype == x->dtype ? tl_clone(x, sum) : tl_to(x, dtype, x->device, sum));
  return tl_to(src, dtype, src->device, wide);
}

/* *out = x with src added at ids: a fresh tensor, unrecorded */
static tl_status added_elements(tl_tensor *x, int d, tl_tensor *ids, tl_tensor *src, tl_tensor **out) {
  tl_tensor *sum = NULL, *wide = NULL;
  tl_status st = widened(x, src, &sum, &wide);
  if (st == TL_OK) st = add_elements(sum, d, ids, wide);
  if (st == TL_OK) st = tl_to(sum, x->dtype, x->device, out);
  tl_tensor_free(sum);
  tl_tensor_free(wide);
  return st;
}

tl_status tl_scatter_back(int ndim, const int64_t *shape, int d, tl_tensor *ids, tl_tensor *g, tl_tensor **out) {
  int dtype = is_low(g->dtype) ? TL_FLOAT32 : g->dtype;
  tl_tensor *sum = NULL, *wide = NULL;
  TL_TRY(tl_full(ndim, shape, 0, dtype, g->device, &sum));
  tl_status st = tl_to(g, dtype, g->device, &wide);
  if (st == TL_OK) st = add_elements(sum, d, ids, wide);
  if (st == TL_OK) st = tl_to(sum, g->dtype, g->device, out);
  tl_tensor_free(sum);
  tl_tensor_free(wide);
  return st;
}

/* saved: ids */
static tl_status gather_backward(tl_node *n, tl_tensor *const *grad_out, tl_tensor **grad_in) {
  const indexed *p = n->payload;
  tl_tensor *ids;
  TL_TRY(tl_node_saved(n, 0, &ids));
  return tl_scatter_back(p->ndim, p->shape, p->d, ids, grad_out[0], &grad_in[0]);
}

static const tl_node_class gather_class = {"gather", gather_backward, NULL};

static tl_status gather_into(tl_tensor *y, tl_tensor *x, int d, tl_tensor *ids) {
  tl_tensor *source;
  TL_TRY(frozen(x, d, ids, &source));
  tl_tensor *operands[3] = {y, ids, source};
  tl_iter it;
  tl_iter_init(&it, 3, operands, NULL, ids->ndim, ids->shape);
  tl_status st = tl_kernels_of(x)->gather(&it, step_bytes(x, d), extent(x, d));
  tl_tensor_free(source);
  return st;
}

tl_status tl_gather(tl_tensor *x, int d, tl_tensor *ids, tl_tensor **out) {
  TL_TRY(tl_check_dim("gather", x->ndim, &d));
  TL_TRY(check_inside("gather", "a tensor", x, d, ids));
  TL_KERNEL(x, gather, "gather");
  tl_tensor *checked = NULL, *y = NULL;
  TL_TRY(tl_checked_ids("gather", x, d, ids, &checked));
  tl_status st = tl_empty(ids->ndim, ids->shape, x->dtype, x->device, &y);
  if (st == TL_OK) st = gather_into(y, x, d, checked);
  indexed p = indexed_of(x, d, 1);
  if (st == TL_OK) st = tl_record1(&gather_class, y, 1, &x, 1, &checked, &p, sizeof p);
  tl_tensor_free(checked);
  return tl_give(st, y, out);
}

/* inputs: x (or its old value), src of payload's shape; saved: ids. Elements of src that ids leave out get nothing. */
static tl_status scatter_add_backward(tl_node *n, tl_tensor *const *grad_out, tl_tensor **grad_in) {
  const indexed *p = n->payload;
  tl_tensor *ids, *chosen = NULL, *whole = NULL, *place = NULL;
  if (tl_node_needs(n, 0)) grad_in[0] = tl_hold(grad_out[0]);
  if (!tl_node_needs(n, 1)) return TL_OK;
  TL_TRY(tl_node_saved(n, 0, &ids));
  TL_TRY(tl_gather(grad_out[0], p->d, ids, &chosen));
  bool all = true;
  for (int d = 0; d < p->ndim; d++) all = all && p->shape[d] == ids->shape[d];
  if (all) return tl_give(TL_OK, chosen, &grad_in[1]);
  tl_status st = tl_full(p->ndim, p->shape, 0, chosen->dtype, chosen->device, &whole);
  if (st == TL_OK) st = tl_alias_as(whole, ids->ndim, ids->shape, whole->strides, whole->offset, &place);
  if (st == TL_OK) st = tl_copy_(place, chosen);
  tl_tensor_free(chosen);
  tl_tensor_free(place);
  return tl_give(st, whole, &grad_in[1]);
}

static const tl_node_class scatter_add_class = {"scatter_add", scatter_add_backward, NULL};

static tl_status check_scatter(const char *op, const tl_tensor *x, int *d, const tl_tensor *ids, const tl_tensor *src) {
  TL_TRY(tl_check_dim(op, x->ndim, d));
  TL_TRY(check_adds(op, x, src));
  TL_TRY(check_inside(op, "a tensor", x, *d, ids));
  return check_inside(op, "values", src, -1, ids);
}

tl_status tl_scatter_add(tl_tensor *x, int d, tl_tensor *ids, tl_tensor *src, tl_tensor **out) {
  TL_AUTOCAST(TL_CAST_WIDEST, tl_scatter_add(cast[0], d, ids, cast[1], out), x, src);
  TL_TRY(check_scatter("scatter_add", x, &d, ids, src));
  tl_tensor *checked = NULL, *y = NULL, *in[2] = {x, src};
  TL_TRY(tl_checked_ids("scatter_add", x, d, ids, &checked));
  bool former = tl_set_grad_enabled(false);
  tl_status st = added_elements(x, d, checked, src, &y);
  tl_set_grad_enabled(former);
  indexed p = indexed_of(src, d, 1);
  if (st == TL_OK) st = tl_record1(&scatter_add_class, y, 2, in, 1, &checked, &p, sizeof p);
  tl_tensor_free(checked);
  return tl_give(st, y, out);
}

tl_status tl_scatter_add_(tl_tensor *x, int d, tl_tensor *ids, tl_tensor *src) {
  TL_TRY(tl_check_inplace("scatter_add_", x));
  TL_TRY(check_scatter("scatter_add_", x, &d, ids, src));
  tl_tensor *checked = NULL, *y = NULL, *in[2] = {x, src};
  TL_TRY(tl_checked_ids("scatter_add_", x, d, ids, &checked));
  indexed p = indexed_of(src, d, 1);
  tl_write w;
  tl_status st = tl_write_begin(&w, &scatter_add_class, x, 2, in, 1, &checked, &p, sizeof p);
  if (st == TL_OK) {
    bool former = tl_set_grad_enabled(false), direct = !is_low(x->dtype) && x->storage != src->storage;
    st = direct ? add_elements(x, d, checked, src) : added_elements(x, d, checked, src, &y);
    if (st == TL_OK && !direct) st = tl_write_back(x, y);
    tl_set_grad_enabled(former);
    st = tl_write_end(&w, x, st);
  }
  tl_tensor_free(checked);
  tl_tensor_free(y);
  return st;
}
