/* embedding.c: rows of a table (V, D) by their ids. */
#include "autograd/tape.h"
#include "backend/backend.h"
#include "ops/plain.h"

typedef struct payload {
  int64_t rows, width, padding;
} payload;

static tl_status embedding_backward(tl_node *n, tl_tensor *const *grad_out, tl_tensor **grad_in) {
  const payload *p = n->payload;
  tl_tensor *ids, *g = NULL, *dw = NULL;
  TL_TRY(tl_node_saved(n, 0, &ids));
  TL_KERNEL(ids, embedding_grad, "embedding");
  TL_TRY(tl_plain(grad_out[0], grad_out[0]->dtype, &g));
  /* the table may be the classifier's weight, too, whose gradient has come by now */
  tl_tensor *sum = tl_node_sum(n, 0);
  const bool add = sum != NULL && sum->dtype == g->dtype;
  int64_t shape[2] = {p->rows, p->width};
  tl_status st = add ? TL_OK : tl_empty(2, shape, g->dtype, g->device, &dw);
  if (st == TL_OK) {
    tl_embedding_grad_args a = {.n = ids->numel,
                                .rows = p->rows,
                                .width = p->width,
                                .padding = p->padding,
                                .add = add,
                                .g = g,
                                .ids = ids,
                                .dw = add ? sum : dw};
    st = tl_kernels_of(ids)->embedding_grad(&a);
  }
  tl_tensor_free(g);
  return tl_give(st, dw, &grad_in[0]);
}

static const tl_node_class embedding_class = {"embedding", embedding_backward, NULL};

static tl_status check(const tl_tensor *w, const tl_tensor *ids, int64_t padding_idx) {
  if (w->ndim != 2) return TL_FAIL(TL_ERR_SHAPE, "embedding", "the table is (V, D), got %s", tl_shape_of(w));
  if (tl_is_floating(ids->dtype) || ids->dtype == TL_BOOL)
    return TL_FAIL(TL_ERR_DTYPE, "embedding", "ids are integers (int64), got %s", tl_dtype_name(ids->dtype));
  if (ids->ndim >= TL_MAX_DIMS)
    return TL_FAIL(TL_ERR_SHAPE, "embedding", "ids of %s leave no room for a further dim", tl_shape_of(ids));
  if (padding_idx < -1 || padding_idx >= w->shape[0])
    return TL_FAIL(TL_ERR_INDEX, "embedding", "padding_idx %lld is outside the table's 0..%lld", (long long)padding_idx,
                   (long long)w->shape[0] - 1);
  return tl_check_same_device("embedding", w, ids);
}

/* Names the id and its place: row-major number in ids, counted as the user counts. */
static tl_status bad_id(const tl_tensor *w, const tl_tensor *ids, int64_t at) {
  int64_t index[TL_MAX_DIMS], rest = at;
  double id;
  for (int d = ids->ndim - 1; d >= 0; d--) {
    index[d] = rest % ids->shape[d];
    rest /= ids->shape[d];
  }
  TL_TRY(tl_get(ids, ids->ndim, index, &id));
  return TL_FAIL(TL_ERR_INDEX, "embedding", "id %.0f (element %lld of ids %s) is outside the table's 0..%lld", id,
                 (long long)tl_position(at), tl_shape_of(ids), (long long)w->shape[0] - 1);
}

static tl_status look_up(tl_tensor *w, tl_tensor *ids, tl_tensor **out) {
  int64_t shape[TL_MAX_DIMS], bad = -1;
  for (int d = 0; d < ids->ndim; d++) shape[d] = ids->shape[d];
  shape[ids->ndim] = w->shape[1];
  tl_tensor *y;
  TL_TRY(tl_empty(ids->ndim + 1, shape, w->dtype, w->device, &y));
  tl_embedding_args a = {
      .n = ids->numel, .rows = w->shape[0], .width = w->shape[1], .w = w, .ids = ids, .out = y, .bad = &bad};
  tl_status st = tl_kernels_of(w)->embedding(&a);
  if (st == TL_OK && bad >= 0) st = bad_id(w, ids, bad);
  return tl_give(st, y, out);
}

tl_status tl_embedding(tl_tensor *w, tl_tensor *ids, int64_t padding_idx, tl_tensor **out) {
  TL_TRY(check(w, ids, padding_idx));
  TL_KERNEL(w, embedding, "embedding");
  tl_tensor *table = NULL, *labels = NULL, *y = NULL;
  tl_status st = tl_plain(w, w->dtype, &table);
  if (st == TL_OK) st = tl_plain(ids, TL_INT64, &labels);
  if (st == TL_OK) st = look_up(table, labels, &y);
  payload p = {w->shape[0], w->shape[1], padding_idx};
  if (st == TL_OK) st = tl_record1(&embedding_class, y, 1, &w, 1, &labels, &p, sizeof p);
  tl_tensor_free(table);
  tl_tensor_free(labels);
  return tl_give(st, y, out);
}
