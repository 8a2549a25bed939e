/* cross_entropy.c: losses over classes: cross entropy on logits (labels or probabilities as targets) and nll. */
#include "autograd/tape.h"
#include "backend/backend.h"
#include "ops/autocast.h"
#include "ops/plain.h"

/* x (outer, classes, inner): (N, C, ..), or one line (C) */
typedef struct geometry {
  int64_t outer, classes, inner;
} geometry;

typedef struct payload {
  geometry at;
  bool logits;
  int64_t ignore_index;
  double smoothing;
  int reduction, target_dtype;
} payload;

enum { SAVED_X, SAVED_TARGET, SAVED_WEIGHT, SAVED_LSE, SAVED_TOTAL, SAVED };

static tl_status class_loss_backward(tl_node *n, tl_tensor *const *grad_out, tl_tensor **grad_in) {
  const payload *p = n->payload;
  tl_tensor *s[SAVED], *g = NULL, *dx = NULL, *dt = NULL;
  for (int i = 0; i < SAVED; i++) TL_TRY(tl_node_saved(n, i, &s[i]));
  tl_tensor *x = s[SAVED_X];
  TL_KERNEL(x, class_loss_grad, n->cls->name);
  tl_status st = tl_plain(grad_out[0], x->dtype, &g);
  if (st == TL_OK && tl_node_needs(n, 0)) st = tl_empty_like(x, x->dtype, &dx);
  if (st == TL_OK && tl_node_needs(n, 1)) st = tl_empty_like(x, x->dtype, &dt);
  if (st == TL_OK) {
    tl_class_loss_grad_args a = {.outer = p->at.outer,
                                 .classes = p->at.classes,
                                 .inner = p->at.inner,
                                 .logits = p->logits,
                                 .x = x,
                                 .target = s[SAVED_TARGET],
                                 .weight = s[SAVED_WEIGHT],
                                 .lse = s[SAVED_LSE],
                                 .total = s[SAVED_TOTAL],
                                 .g = g,
                                 .ignore_index = p->ignore_index,
                                 .smoothing = p->smoothing,
                                 .reduction = p->reduction,
                                 .dx = dx,
                                 .dt = dt};
    st = tl_kernels_of(x)->class_loss_grad(&a);
  }
  tl_tensor_free(g);
  if (st == TL_OK && dt != NULL) st = tl_to(dt, p->target_dtype, x->device, &grad_in[1]);
  tl_tensor_free(dt);
  return tl_give(st, dx, &grad_in[0]);
}

static const tl_node_class cross_entropy_class = {"cross_entropy", class_loss_backward, NULL};
static const tl_node_class nll_class = {"nll_loss", class_loss_backward, NULL};

/* ---- checks ---- */

static tl_status check_target(const char *op, const tl_tensor *x, const tl_tensor *target) {
  if (tl_is_floating(target->dtype)) {
    if (tl_same_shape(x, target)) return TL_OK;
    return TL_FAIL(TL_ERR_SHAPE, op, "probabilities as targets have the input's shape %s, got %s (labels are integers)",
                   tl_shape_of(x), tl_shape_of(target));
  }
  bool fits = target->ndim == x->ndim - 1;
  for (int d = 0; d < target->ndim && fits; d++) fits = target->shape[d] == x->shape[d == 0 ? 0 : d + 1];
  if (fits) return TL_OK;
  return TL_FAIL(TL_ERR_SHAPE, op,
                 "labels of %s do not belong to an input of %s: they have its shape without the class dim",
                 tl_shape_of(target), tl_shape_of(x));
}

static tl_status check_weight(const char *op, const tl_tensor *x, tl_tensor *weight, int64_t classes) {
  if (weight == NULL) return TL_OK;
  if (weight->ndim != 1 || weight->shape[0] != classes)
    return TL_FAIL(TL_ERR_SHAPE, op, "the weight is %s, the input of %s has %lld classes", tl_shape_of(weight),
                   tl_shape_of(x), (long long)classes);
  if (tl_records(1, &weight)) return TL_FAIL(TL_ERR_UNSUPPORTED, op, "no gradient goes to weight: pass it detached");
  return tl_check_same_device(op, x, weight);
}

static tl_status check(const char *op, const tl_tensor *x, tl_tensor *target, tl_tensor *weight, const payload *p) {
  if (x->ndim == 0) return TL_FAIL(TL_ERR_SHAPE, op, "the input is (N, C, ..) or (C), got a number");
  TL_TRY(tl_check_floating(op, x));
  TL_TRY(tl_check_same_device(op, x, target));
  if (target->dtype == TL_BOOL || (tl_is_floating(target->dtype) && !p->logits))
    return TL_FAIL(TL_ERR_DTYPE, op, "labels are integers (int64), got %s", tl_dtype_name(target->dtype));
  TL_TRY(check_target(op, x, target));
  TL_TRY(check_weight(op, x, weight, p->at.classes));
  if (p->reduction < TL_REDUCE_NONE || p->reduction > TL_REDUCE_SUM)
    return TL_FAIL(TL_ERR_VALUE, op, "there is no reduction number %d here", p->reduction);
  if (!(p->smoothing >= 0 && p->smoothing <= 1))
    return TL_FAIL(TL_ERR_VALUE, op, "label_smoothing is a number from 0 to 1, got %g", p->smoothing);
  if (tl_is_floating(target->dtype) && p->ignore_index >= 0)
    return TL_FAIL(TL_ERR_VALUE, op, "ignore_index needs labels as targets, not probabilities");
  return TL_OK;
}

/* The label that the kernel stumbled over, with its place in the target. */
static tl_status bad_label(const char *op, const tl_tensor *target, const geometry *at, int64_t line) {
  int64_t index[TL_MAX_DIMS], rest = line;
  double label;
  for (int d = target->ndim - 1; d >= 0; d--) {
    index[d] = rest % target->shape[d];
    rest /= target->shape[d];
  }
  TL_TRY(tl_get(target, target->ndim, index, &label));
  if (target->ndim == 0)
    return TL_FAIL(TL_ERR_INDEX, op, "label %.0f is outside 0..%lld", label, (long long)at->classes - 1);
  if (at->inner == 1)
    return TL_FAIL(TL_ERR_INDEX, op, "label %.0f in row %lld is outside 0..%lld", label,
                   (long long)tl_position(index[0]), (long long)at->classes - 1);
  return TL_FAIL(TL_ERR_INDEX, op, "label %.0f in row %lld, place %lld of the row, is outside 0..%lld", label,
                 (long long)tl_position(index[0]), (long long)tl_position(line % at->inner),
                 (long long)at->classes - 1);
}

/* ---- forward ---- */

/* Kernel and history; s[] holds the dense operands and receives what the kernel leaves for backward. */
static tl_status compute(const tl_node_class *cls, const payload *p, const tl_tensor *x, const tl_tensor *target,
                         tl_tensor **s, tl_tensor **out) {
  int stats = tl_compute_dtype(x->dtype);
  int64_t lse_shape[3] = {2, p->at.outer, p->at.inner}, one = 1, shape[TL_MAX_DIMS], bad = -1;
  int ndim = 0;
  for (int d = 0; d < x->ndim && p->reduction == TL_REDUCE_NONE; d++)
    if (d != (x->ndim == 1 ? 0 : 1)) shape[ndim++] = x->shape[d];
  if (p->logits) TL_TRY(tl_empty(3, lse_shape, stats, x->device, &s[SAVED_LSE]));
  TL_TRY(tl_empty(1, &one, stats, x->device, &s[SAVED_TOTAL]));
  tl_tensor *y;
  TL_TRY(tl_empty(ndim, shape, x->dtype, x->device, &y));
  tl_class_loss_args a = {.outer = p->at.outer,
                          .classes = p->at.classes,
                          .inner = p->at.inner,
                          .logits = p->logits,
                          .x = s[SAVED_X],
                          .target = s[SAVED_TARGET],
                          .weight = s[SAVED_WEIGHT],
                          .ignore_index = p->ignore_index,
                          .smoothing = p->smoothing,
                          .reduction = p->reduction,
                          .y = y,
                          .lse = s[SAVED_LSE],
                          .total = s[SAVED_TOTAL],
                          .bad = &bad};
  tl_status st = tl_kernels_of(x)->class_loss(&a);
  if (st == TL_OK && bad >= 0) st = bad_label(cls->name, target, &p->at, bad);
  return tl_give(st, y, out);
}

static tl_status class_loss(const tl_node_class *cls, bool logits, tl_tensor *x, tl_tensor *target, tl_tensor *weight,
                            int64_t ignore_index, double smoothing, int reduction, tl_tensor **out) {
  TL_AUTOCAST(TL_CAST_FULL, class_loss(cls, logits, cast[0], cast[1], weight, ignore_index, smoothing, reduction, out),
              x, target);
  payload p = {.at = {1, 1, 1},
               .logits = logits,
               .ignore_index = ignore_index,
               .smoothing = smoothing,
               .reduction = reduction,
               .target_dtype = target->dtype};
  if (x->ndim == 1) p.at.classes = x->shape[0];
  else if (x->ndim > 1) p.at.outer = x->shape[0], p.at.classes = x->shape[1];
  for (int d = 2; d < x->ndim; d++) p.at.inner *= x->shape[d];
  TL_TRY(check(cls->name, x, target, weight, &p));
  TL_KERNEL(x, class_loss, cls->name);
  tl_tensor *s[SAVED] = {NULL}, *y = NULL, *in[2] = {x, target};
  tl_status st = tl_plain(x, x->dtype, &s[SAVED_X]);
  if (st == TL_OK) st = tl_plain(target, tl_is_floating(target->dtype) ? x->dtype : TL_INT64, &s[SAVED_TARGET]);
  if (st == TL_OK) st = tl_plain(weight, tl_compute_dtype(x->dtype), &s[SAVED_WEIGHT]);
  if (st == TL_OK) st = compute(cls, &p, x, target, s, &y);
  if (st == TL_OK) st = tl_record1(cls, y, 2, in, SAVED, s, &p, sizeof p);
  for (int i = 0; i < SAVED; i++) tl_tensor_free(s[i]);
  return tl_give(st, y, out);
}

tl_status tl_nll_loss(tl_tensor *x, tl_tensor *target, tl_tensor *weight, int64_t ignore_index, int reduction,
                      tl_tensor **out) {
  return class_loss(&nll_class, false, x, target, weight, ignore_index, 0, reduction, out);
}

tl_status tl_cross_entropy(tl_tensor *x, tl_tensor *target, tl_tensor *weight, int64_t ignore_index,
                           double label_smoothing, int reduction, tl_tensor **out) {
  return class_loss(&cross_entropy_class, true, x, target, weight, ignore_index, label_smoothing, reduction, out);
}
