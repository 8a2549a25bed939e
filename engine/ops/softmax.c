/* softmax.c: softmax and log-softmax along one dim. */
#include "autograd/tape.h"
#include "backend/backend.h"
#include "ops/autocast.h"
#include "ops/plain.h"

typedef struct payload {
  int64_t outer, n, inner;
  bool log;
} payload;

static tl_status softmax_backward(tl_node *node, tl_tensor *const *grad_out, tl_tensor **grad_in) {
  const payload *p = node->payload;
  tl_tensor *y, *g = NULL, *dx = NULL;
  TL_TRY(tl_node_saved(node, 0, &y));
  TL_KERNEL(y, softmax_grad, node->cls->name);
  TL_TRY(tl_plain(grad_out[0], y->dtype, &g));
  tl_status st = tl_empty_like(y, y->dtype, &dx);
  if (st == TL_OK) {
    tl_softmax_grad_args a = {.outer = p->outer, .n = p->n, .inner = p->inner, .log = p->log, .g = g, .y = y, .dx = dx};
    st = tl_kernels_of(y)->softmax_grad(&a);
  }
  tl_tensor_free(g);
  return tl_give(st, dx, &grad_in[0]);
}

static const tl_node_class softmax_class = {"softmax", softmax_backward, NULL};
static const tl_node_class log_softmax_class = {"log_softmax", softmax_backward, NULL};

static tl_status run(const tl_node_class *cls, bool log, tl_tensor *x, int d, tl_tensor **out) {
  TL_AUTOCAST(TL_CAST_FULL, run(cls, log, cast[0], d, out), x);
  TL_TRY(tl_check_floating(cls->name, x));
  TL_TRY(tl_check_dim(cls->name, x->ndim, &d));
  TL_KERNEL(x, softmax, cls->name);
  payload p = {1, x->ndim == 0 ? 1 : x->shape[d], 1, log};
  for (int i = 0; i < d; i++) p.outer *= x->shape[i];
  for (int i = d + 1; i < x->ndim; i++) p.inner *= x->shape[i];
  tl_tensor *dense, *y = NULL;
  TL_TRY(tl_plain(x, x->dtype, &dense));
  tl_status st = tl_empty_like(x, x->dtype, &y);
  if (st == TL_OK) {
    tl_softmax_args a = {.outer = p.outer, .n = p.n, .inner = p.inner, .log = log, .x = dense, .y = y};
    st = tl_kernels_of(x)->softmax(&a);
  }
  tl_tensor_free(dense);
  if (st == TL_OK) st = tl_record1(cls, y, 1, &x, 1, &y, &p, sizeof p);
  return tl_give(st, y, out);
}

tl_status tl_softmax(tl_tensor *x, int d, tl_tensor **out) { return run(&softmax_class, false, x, d, out); }

tl_status tl_log_softmax(tl_tensor *x, int d, tl_tensor **out) { return run(&log_softmax_class, true, x, d, out); }
