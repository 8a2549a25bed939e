/* clip.c: the gradients of a list of parameters: clipping (Pascanu et al. 2013), and forgetting. */
#include <math.h>

#include "autograd/tape.h"
#include "backend/backend.h"
#include "core/tensor.h"
#include "train/gradients.h"

static tl_status total_norm(const char *op, const tl_gradients *g, double p, double *norm) {
  double total = 0;
  for (int first = 0, end; first < g->n; first = end) {
    const tl_tensor *x = tl_gradients_run(g, first, &end);
    double part;
    TL_KERNEL(x, span_norm, op);
    TL_TRY(tl_kernels_of(x)->span_norm(end - first, g->span + first, p, &part));
    if (p != INFINITY) total += part;
    else if (!(part <= total)) total = total != total ? total : part; /* nan wins */
  }
  *norm = p == INFINITY || p == 1 ? total : p == 2 ? sqrt(total) : pow(total, 1 / p);
  return TL_OK;
}

static tl_status scale(const char *op, tl_gradients *g, double factor) {
  for (int first = 0, end; first < g->n; first = end) {
    const tl_tensor *x = tl_gradients_run(g, first, &end);
    TL_KERNEL(x, span_scale, op);
    TL_TRY(tl_kernels_of(x)->span_scale(end - first, g->span + first, factor));
  }
  return tl_gradients_scatter(g);
}

static tl_status clamp(const char *op, tl_gradients *g, double limit) {
  for (int first = 0, end; first < g->n; first = end) {
    const tl_tensor *x = tl_gradients_run(g, first, &end);
    TL_KERNEL(x, span_clamp, op);
    TL_TRY(tl_kernels_of(x)->span_clamp(end - first, g->span + first, limit));
  }
  return tl_gradients_scatter(g);
}

static tl_status clip_norm(const char *op, tl_gradients *g, double max_norm, double p, bool error_if_nonfinite,
                           double *norm) {
  TL_TRY(total_norm(op, g, p, norm));
  if (error_if_nonfinite && !(*norm < INFINITY))
    return TL_FAIL(TL_ERR_VALUE, op, "the norm of the gradients is %g: they are left as they are", *norm);
  double factor = max_norm / (*norm + 1e-6);
  return factor >= 1 ? TL_OK : scale(op, g, factor);
}

static tl_status check_norm(const char *op, double max_norm, double norm_type) {
  TL_CHECK_INTERRUPT(op);
  if (!(max_norm >= 0)) return TL_FAIL(TL_ERR_VALUE, op, "max_norm must be at least 0, got %g", max_norm);
  if (!(norm_type > 0)) return TL_FAIL(TL_ERR_VALUE, op, "norm_type must be above 0, got %g", norm_type);
  return TL_OK;
}

tl_status tl_clip_grad_norm_(int n, tl_tensor *const *params, double max_norm, double norm_type,
                             bool error_if_nonfinite, double *norm) {
  const char *op = "clip_grad_norm_";
  TL_TRY(check_norm(op, max_norm, norm_type));
  bool recording = tl_set_grad_enabled(false);
  tl_gradients g;
  double total = 0;
  tl_status st = tl_gradients_gather(op, n, params, &g);
  if (st == TL_OK) st = clip_norm(op, &g, max_norm, norm_type, error_if_nonfinite, &total);
  tl_gradients_release(&g);
  tl_set_grad_enabled(recording);
  if (st == TL_OK) *norm = tl_outgoing(total);
  return st;
}

/* The norm stays where the gradients are; that takes them to be on one device, which has the kernel. */
static tl_status clip_there(tl_gradients *g, double max_norm, double p, tl_tensor **norm) {
  const tl_tensor *x = g->owner[0]->grad;
  tl_tensor *y;
  TL_TRY(tl_empty(0, NULL, TL_FLOAT64, x->device, &y));
  tl_status st = tl_kernels_of(x)->span_clip(g->n, g->span, p, max_norm, tl_data(y));
  if (st == TL_OK) st = tl_gradients_scatter(g);
  return tl_give(st, y, norm);
}

static tl_status clip_somewhere(const char *op, tl_gradients *g, double max_norm, double p, tl_tensor **norm) {
  int end = 0;
  const tl_tensor *x = g->n == 0 ? NULL : tl_gradients_run(g, 0, &end);
  if (x != NULL && end == g->n && tl_backend_of(x->device)->kernels->span_clip != NULL)
    return clip_there(g, max_norm, p, norm);
  tl_tensor *y;
  double total = 0;
  TL_TRY(tl_empty(0, NULL, TL_FLOAT64, TL_CPU, &y));
  tl_status st = clip_norm(op, g, max_norm, p, false, &total);
  if (st == TL_OK) *(double *)tl_data(y) = tl_outgoing(total);
  return tl_give(st, y, norm);
}

tl_status tl_clip_grad_norm_tensor_(int n, tl_tensor *const *params, double max_norm, double norm_type,
                                    tl_tensor **norm) {
  const char *op = "clip_grad_norm_";
  TL_TRY(check_norm(op, max_norm, norm_type));
  bool recording = tl_set_grad_enabled(false);
  tl_gradients g;
  tl_status st = tl_gradients_gather(op, n, params, &g);
  if (st == TL_OK) st = clip_somewhere(op, &g, max_norm, norm_type, norm);
  tl_gradients_release(&g);
  tl_set_grad_enabled(recording);
  return st;
}

tl_status tl_clip_grad_value_(int n, tl_tensor *const *params, double value) {
  const char *op = "clip_grad_value_";
  TL_CHECK_INTERRUPT(op);
  if (!(value >= 0)) return TL_FAIL(TL_ERR_VALUE, op, "the value must be at least 0, got %g", value);
  bool recording = tl_set_grad_enabled(false);
  tl_gradients g;
  tl_status st = tl_gradients_gather(op, n, params, &g);
  if (st == TL_OK) st = clamp(op, &g, value);
  tl_gradients_release(&g);
  tl_set_grad_enabled(recording);
  return st;
}

/* ---- forgetting ---- */

static tl_status zero(tl_tensor *p) {
  tl_tensor *g = p->grad;
  if (g->node == NULL && !tl_overlaps_itself(g)) return tl_fill_(g, 0);
  tl_tensor *fresh;
  TL_TRY(tl_full(p->ndim, p->shape, 0, p->dtype, p->device, &fresh));
  p->grad = fresh;
  tl_tensor_free(g);
  return TL_OK;
}

tl_status tl_zero_grad(int n, tl_tensor *const *params, bool set_to_nil) {
  for (int i = 0; i < n; i++) {
    tl_tensor *g = params[i]->grad;
    if (g == NULL) continue;
    if (set_to_nil) {
      params[i]->grad = NULL;
      tl_tensor_free(g);
    } else {
      TL_TRY(zero(params[i]));
    }
  }
  return TL_OK;
}
