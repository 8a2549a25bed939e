/* loss.c: losses that compare an input with a target of the same shape, element by element (rows of losses.def).
 *
 * Both shapes must be equal: PyTorch broadcasts (N, 1) against (N) to (N, N) with a warning only, which has cost many a
 * training run. Gradients go to the input and, where it requires them, to the target. */
#include <math.h>

#include "autograd/tape.h"
#include "backend/backend.h"
#include "ops/autocast.h"
#include "ops/plain.h"

typedef struct payload {
  int kind;
  double p, scale;
  int dtypes[2]; /* of x and the target */
} payload;

static tl_status loss_backward(tl_node *n, tl_tensor *const *grad_out, tl_tensor **grad_in) {
  const payload *p = n->payload;
  tl_tensor *saved[4], *g = NULL, *d[2] = {NULL, NULL};
  for (int i = 0; i < 4; i++) TL_TRY(tl_node_saved(n, i, &saved[i]));
  tl_tensor *x = saved[0];
  TL_KERNEL(x, loss_grad, n->cls->name);
  tl_status st = tl_plain(grad_out[0], x->dtype, &g);
  for (int i = 0; i < 2 && st == TL_OK; i++)
    if (tl_node_needs(n, i)) st = tl_empty_like(x, x->dtype, &d[i]);
  if (st == TL_OK) {
    tl_loss_grad_args a = {.kind = p->kind,
                           .numel = x->numel,
                           .p = p->p,
                           .x = x,
                           .t = saved[1],
                           .w = saved[2],
                           .pw = saved[3],
                           .g = g,
                           .scale = p->scale,
                           .dx = d[0],
                           .dt = d[1]};
    st = tl_kernels_of(x)->loss_grad(&a);
  }
  for (int i = 0; i < 2 && st == TL_OK; i++)
    if (d[i] != NULL) st = tl_to(d[i], p->dtypes[i], x->device, &grad_in[i]);
  tl_tensor_free(g);
  tl_tensor_free(d[0]);
  tl_tensor_free(d[1]);
  return st;
}

static const tl_node_class mse_class = {"mse_loss", loss_backward, NULL};
static const tl_node_class l1_class = {"l1_loss", loss_backward, NULL};
static const tl_node_class smooth_l1_class = {"smooth_l1_loss", loss_backward, NULL};
static const tl_node_class huber_class = {"huber_loss", loss_backward, NULL};
static const tl_node_class bce_class = {"binary_cross_entropy", loss_backward, NULL};
static const tl_node_class bce_with_logits_class = {"binary_cross_entropy_with_logits", loss_backward, NULL};
static const tl_node_class kl_div_class = {"kl_div_loss", loss_backward, NULL};

static tl_status check_pair(const char *op, const tl_tensor *x, const tl_tensor *target) {
  if (!tl_same_shape(x, target))
    return TL_FAIL(TL_ERR_SHAPE, op,
                   "the input is %s but the target %s: a loss does not broadcast, reshape one of them", tl_shape_of(x),
                   tl_shape_of(target));
  if (!tl_is_floating(x->dtype) && !tl_is_floating(target->dtype))
    return TL_FAIL(TL_ERR_DTYPE, op, "needs a floating input, got %s", tl_dtype_name(x->dtype));
  return tl_check_same_device(op, x, target);
}

/* The factor of the sum; 0 for TL_REDUCE_NONE */
static tl_status reduction_scale(const char *op, int reduction, bool batchmean, const tl_tensor *x, double *scale) {
  if (reduction == TL_REDUCE_NONE) *scale = 0;
  else if (reduction == TL_REDUCE_SUM) *scale = 1;
  else if (reduction == TL_REDUCE_MEAN) *scale = 1 / (double)x->numel;
  else if (reduction == TL_REDUCE_BATCHMEAN && batchmean) *scale = x->ndim == 0 ? 1 : 1 / (double)x->shape[0];
  else return TL_FAIL(TL_ERR_VALUE, op, "there is no reduction number %d here", reduction);
  return TL_OK;
}

/* A weight, expanded to x's shape and converted. NULL stays NULL. */
static tl_status expanded(const char *op, const char *what, tl_tensor *weight, const tl_tensor *x, int dtype,
                          tl_tensor **out) {
  *out = NULL;
  if (weight == NULL) return TL_OK;
  TL_TRY(tl_check_same_device(op, x, weight));
  if (tl_records(1, &weight)) return TL_FAIL(TL_ERR_UNSUPPORTED, op, "no gradient goes to %s: pass it detached", what);
  int ndim;
  int64_t shape[TL_MAX_DIMS];
  TL_TRY(tl_broadcast(op, x, weight, &ndim, shape));
  bool fits = ndim == x->ndim;
  for (int d = 0; d < ndim && fits; d++) fits = shape[d] == x->shape[d];
  if (!fits)
    return TL_FAIL(TL_ERR_SHAPE, op, "%s of %s does not broadcast to the input's %s", what, tl_shape_of(weight),
                   tl_shape_of(x));
  tl_tensor *view;
  TL_TRY(tl_expand(weight, x->ndim, x->shape, &view));
  tl_status st = tl_plain(view, dtype, out);
  tl_tensor_free(view);
  return st;
}

static tl_status outside(const char *op, const tl_tensor *x, int64_t at) {
  return TL_FAIL(
      TL_ERR_VALUE, op,
      "element %lld of the input %s or its target is not between 0 and 1: for logits there is BCEWithLogitsLoss",
      (long long)tl_position(at), tl_shape_of(x));
}

typedef struct request {
  int kind;
  const tl_node_class *cls;
  double p;
  bool batchmean, unit;
  tl_tensor *weight, *pos_weight;
} request;

/* operands: x, target, weight, pos_weight, dense and of the result's dtype */
static tl_status compute(const request *r, const tl_tensor *x, tl_tensor *const *operands, int reduction, double scale,
                         tl_tensor **out) {
  const char *op = r->cls->name;
  tl_tensor *y;
  int64_t bad = -1;
  TL_TRY(tl_empty(reduction == TL_REDUCE_NONE ? x->ndim : 0, x->shape, operands[0]->dtype, x->device, &y));
  tl_loss_args a = {.kind = r->kind,
                    .numel = x->numel,
                    .p = r->p,
                    .x = operands[0],
                    .t = operands[1],
                    .w = operands[2],
                    .pw = operands[3],
                    .reduce = reduction != TL_REDUCE_NONE,
                    .unit = r->unit,
                    .scale = scale,
                    .y = y,
                    .bad = &bad};
  tl_status st = tl_kernels_of(x)->loss(&a);
  if (st == TL_OK && bad >= 0) st = outside(op, x, bad);
  return tl_give(st, y, out);
}

static tl_status loss(const request *r, tl_tensor *x, tl_tensor *target, int reduction, tl_tensor **out) {
  TL_AUTOCAST(TL_CAST_FULL, loss(r, cast[0], cast[1], reduction, out), x, target);
  const char *op = r->cls->name;
  double scale = 0;
  TL_TRY(check_pair(op, x, target));
  TL_TRY(reduction_scale(op, reduction, r->batchmean, x, &scale));
  TL_KERNEL(x, loss, op);
  int dtype = x->dtype == target->dtype ? x->dtype : tl_promote(x->dtype, target->dtype);
  tl_tensor *operands[4] = {NULL, NULL, NULL, NULL}, *y = NULL, *in[2] = {x, target};
  tl_status st = tl_plain(x, dtype, &operands[0]);
  if (st == TL_OK) st = tl_plain(target, dtype, &operands[1]);
  if (st == TL_OK) st = expanded(op, "weight", r->weight, x, dtype, &operands[2]);
  if (st == TL_OK) st = expanded(op, "pos_weight", r->pos_weight, x, dtype, &operands[3]);
  if (st == TL_OK) st = compute(r, x, operands, reduction, scale, &y);
  payload p = {r->kind, r->p, reduction == TL_REDUCE_NONE ? 1 : scale, {x->dtype, target->dtype}};
  if (st == TL_OK) st = tl_record1(r->cls, y, 2, in, 4, operands, &p, sizeof p);
  for (int i = 0; i < 4; i++) tl_tensor_free(operands[i]);
  return tl_give(st, y, out);
}

tl_status tl_mse_loss(tl_tensor *x, tl_tensor *target, int reduction, tl_tensor **out) {
  static const request r = {.kind = TL_LOSS_mse, .cls = &mse_class};
  return loss(&r, x, target, reduction, out);
}

tl_status tl_l1_loss(tl_tensor *x, tl_tensor *target, int reduction, tl_tensor **out) {
  static const request r = {.kind = TL_LOSS_l1, .cls = &l1_class};
  return loss(&r, x, target, reduction, out);
}

tl_status tl_smooth_l1_loss(tl_tensor *x, tl_tensor *target, double beta, int reduction, tl_tensor **out) {
  if (!(beta >= 0)) return TL_FAIL(TL_ERR_VALUE, smooth_l1_class.name, "beta must not be negative, got %g", beta);
  request r = {.kind = TL_LOSS_smooth_l1, .cls = &smooth_l1_class, .p = beta};
  return loss(&r, x, target, reduction, out);
}

tl_status tl_huber_loss(tl_tensor *x, tl_tensor *target, double delta, int reduction, tl_tensor **out) {
  if (!(delta > 0)) return TL_FAIL(TL_ERR_VALUE, huber_class.name, "delta must be positive, got %g", delta);
  request r = {.kind = TL_LOSS_huber, .cls = &huber_class, .p = delta};
  return loss(&r, x, target, reduction, out);
}

tl_status tl_bce_loss(tl_tensor *x, tl_tensor *target, tl_tensor *weight, int reduction, tl_tensor **out) {
  if (tl_autocast_on && tl_autocast_enabled(x->device >> 8) && x->dtype != TL_FLOAT64)
    return TL_FAIL(TL_ERR_UNSUPPORTED, bce_class.name,
                   "under autocast probabilities and their gradients may not fit the low precision type: leave the "
                   "sigmoid out and use BCEWithLogits (bce_with_logits)");
  request r = {.kind = TL_LOSS_bce, .cls = &bce_class, .unit = true, .weight = weight};
  return loss(&r, x, target, reduction, out);
}

tl_status tl_bce_with_logits_loss(tl_tensor *x, tl_tensor *target, tl_tensor *weight, tl_tensor *pos_weight,
                                  int reduction, tl_tensor **out) {
  request r = {
      .kind = TL_LOSS_bce_with_logits, .cls = &bce_with_logits_class, .weight = weight, .pos_weight = pos_weight};
  return loss(&r, x, target, reduction, out);
}

tl_status tl_kl_div_loss(tl_tensor *x, tl_tensor *target, bool log_target, int reduction, tl_tensor **out) {
  request r = {.kind = log_target ? TL_LOSS_kl_div_log : TL_LOSS_kl_div, .cls = &kl_div_class, .batchmean = true};
  return loss(&r, x, target, reduction, out);
}
