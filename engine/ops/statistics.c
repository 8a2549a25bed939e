/* statistics.c: prod, var, std, norm, logsumexp: reductions whose derivative needs their input. */
#include <math.h>

#include "autograd/tape.h"
#include "backend/backend.h"
#include "ops/autocast.h"
#include "ops/reduce.h"

/* *t with 0 wherever `mask` holds. */
static tl_status blank(tl_tensor **t, tl_tensor *mask) {
  tl_tensor *y;
  TL_TRY(tl_masked_fill(*t, mask, 0, &y));
  tl_tensor_free(*t);
  *t = y;
  return TL_OK;
}

/* The reduced dims as a list. None are reduced only in a 0-d tensor, where the empty list means just that. */
static int dims_of(const tl_reducing *r, int *dims) {
  int n = 0;
  for (int d = 0; d < r->ndim; d++)
    if (r->mask & 1u << d) dims[n++] = d;
  return n;
}

/* ---- prod: without division, so that zeros keep their derivatives ---- */

/* The product of the others is prod(non-zeros) / x where there is no zero, prod(non-zeros) at the only zero, else 0. */
static tl_status prod_backward(tl_node *n, tl_tensor *const *grad_out, tl_tensor **grad_in) {
  const tl_reducing *r = n->payload;
  tl_tensor *x, *is_zero = NULL, *zeros = NULL, *filled = NULL, *product = NULL, *many = NULL, *hit = NULL, *g = NULL;
  int dims[TL_MAX_DIMS], reduced = dims_of(r, dims);
  TL_TRY(tl_node_saved(n, 0, &x));
  tl_status st = tl_eq_scalar(x, 0, &is_zero);
  if (st == TL_OK) st = tl_masked_fill(x, is_zero, 1, &filled);
  if (st == TL_OK) st = tl_sum(is_zero, reduced, dims, true, &zeros);
  if (st == TL_OK) st = tl_prod(filled, reduced, dims, true, &product);
  if (st == TL_OK) st = tl_reduced_view(r, grad_out[0], &g);
  if (st == TL_OK) st = tl_step2(tl_mul, &product, g);
  if (st == TL_OK) st = tl_div(product, filled, &grad_in[0]);
  /* another element is the zero: zeros - is_zero > 0 */
  if (st == TL_OK) st = tl_to(is_zero, TL_INT64, x->device, &hit);
  if (st == TL_OK) st = tl_gt(zeros, hit, &many);
  if (st == TL_OK) st = blank(&grad_in[0], many);
  tl_tensor *const used[] = {is_zero, zeros, filled, product, many, hit, g};
  for (size_t i = 0; i < sizeof used / sizeof *used; i++) tl_tensor_free(used[i]);
  return st;
}

static const tl_node_class prod_class = {"prod", prod_backward, NULL};

tl_status tl_prod(tl_tensor *x, int n, const int *dims, bool keepdim, tl_tensor **out) {
  TL_AUTOCAST(TL_CAST_FULL, tl_prod(cast[0], n, dims, keepdim, out), x);
  tl_reducing r;
  TL_TRY(tl_reducing_init("prod", x, n, dims, 0, &r));
  tl_tensor *y;
  TL_TRY(tl_reduce("prod", TL_REDUCE_KIND_PROD, x, &r, keepdim, tl_is_floating(x->dtype) ? x->dtype : TL_INT64, &y));
  return tl_give(tl_record1(&prod_class, y, 1, &x, 1, &x, &r, sizeof r), y, out);
}

/* ---- var, std ---- */

/* x - mean(x) over the reduced dims */
static tl_status centred(const tl_reducing *r, tl_tensor *x, tl_tensor **out) {
  int dims[TL_MAX_DIMS], reduced = dims_of(r, dims);
  tl_tensor *mean;
  TL_TRY(tl_mean(x, reduced, dims, true, &mean));
  tl_status st = tl_sub(x, mean, out);
  tl_tensor_free(mean);
  return st;
}

/* 2 / (n - correction) * g * (x - mean); saved: x */
static tl_status var_backward(tl_node *n, tl_tensor *const *grad_out, tl_tensor **grad_in) {
  const tl_reducing *r = n->payload;
  tl_tensor *x, *g = NULL;
  double divisor = (double)r->count - r->p;
  TL_TRY(tl_node_saved(n, 0, &x));
  tl_status st = tl_reduced_view(r, grad_out[0], &g);
  if (st == TL_OK) st = tl_step_scalar(tl_mul_scalar, &g, 2 / (divisor > 0 ? divisor : 0));
  if (st == TL_OK) st = centred(r, x, &grad_in[0]);
  if (st == TL_OK) st = tl_step2(tl_mul, &grad_in[0], g);
  tl_tensor_free(g);
  return st;
}

/* g * (x - mean) / (y * (n - correction)), 0 where y is 0; saved: x, y */
static tl_status std_backward(tl_node *n, tl_tensor *const *grad_out, tl_tensor **grad_in) {
  const tl_reducing *r = n->payload;
  tl_tensor *x, *y, *scale = NULL, *flat = NULL, *g = NULL;
  double divisor = (double)r->count - r->p;
  TL_TRY(tl_node_saved(n, 0, &x));
  TL_TRY(tl_node_saved(n, 1, &y));
  tl_status st = tl_reduced_view(r, y, &scale);
  if (st == TL_OK) st = tl_eq_scalar(scale, 0, &flat);
  if (st == TL_OK) st = tl_step_scalar(tl_mul_scalar, &scale, divisor > 0 ? divisor : 0);
  if (st == TL_OK) st = tl_reduced_view(r, grad_out[0], &g);
  if (st == TL_OK) st = tl_step2(tl_div, &g, scale);
  if (st == TL_OK) st = blank(&g, flat);
  if (st == TL_OK) st = centred(r, x, &grad_in[0]);
  if (st == TL_OK) st = tl_step2(tl_mul, &grad_in[0], g);
  tl_tensor_free(scale);
  tl_tensor_free(flat);
  tl_tensor_free(g);
  return st;
}

static const tl_node_class var_class = {"var", var_backward, NULL};
static const tl_node_class std_class = {"std", std_backward, NULL};

tl_status tl_var(tl_tensor *x, int n, const int *dims, double correction, bool keepdim, tl_tensor **out) {
  tl_reducing r;
  TL_TRY(tl_check_floating("var", x));
  TL_TRY(tl_reducing_init("var", x, n, dims, correction, &r));
  tl_tensor *y;
  TL_TRY(tl_reduce("var", TL_REDUCE_KIND_VAR, x, &r, keepdim, x->dtype, &y));
  return tl_give(tl_record1(&var_class, y, 1, &x, 1, &x, &r, sizeof r), y, out);
}

tl_status tl_std(tl_tensor *x, int n, const int *dims, double correction, bool keepdim, tl_tensor **out) {
  tl_reducing r;
  TL_TRY(tl_check_floating("std", x));
  TL_TRY(tl_reducing_init("std", x, n, dims, correction, &r));
  tl_tensor *y;
  TL_TRY(tl_reduce("std", TL_REDUCE_KIND_STD, x, &r, keepdim, x->dtype, &y));
  tl_tensor *save[2] = {x, y};
  return tl_give(tl_record1(&std_class, y, 1, &x, 2, save, &r, sizeof r), y, out);
}

/* ---- norm ---- */

/* p = +-inf: the elements of the extreme size share g, each with its sign */
static tl_status share_extreme(const tl_reducing *r, tl_tensor *x, tl_tensor *y, tl_tensor *g, tl_tensor **out) {
  int dims[TL_MAX_DIMS], reduced = dims_of(r, dims);
  tl_tensor *ties = NULL, *count = NULL, *share = NULL;
  tl_status st = tl_abs(x, &ties);
  if (st == TL_OK) st = tl_step2(tl_eq, &ties, y);
  if (st == TL_OK) st = tl_sum(ties, reduced, dims, true, &count);
  if (st == TL_OK) st = tl_div(g, count, &share);
  if (st == TL_OK) st = tl_sign(x, out);
  if (st == TL_OK) st = tl_step2(tl_mul, out, ties);
  if (st == TL_OK) st = tl_step2(tl_mul, out, share);
  tl_tensor_free(ties);
  tl_tensor_free(count);
  tl_tensor_free(share);
  return st;
}

/* g * sign(x) * (|x| / y)^(p-1), 0 where x is 0 (a subgradient, and y may be 0 there) */
static tl_status power_gradient(double p, tl_tensor *x, tl_tensor *y, tl_tensor *g, tl_tensor **out) {
  tl_tensor *is_zero = NULL, *scale = NULL;
  tl_status st;
  if (p == 1) {
    TL_TRY(tl_sign(x, out));
    return tl_step2(tl_mul, out, g);
  }
  if (p == 2) {
    TL_TRY(tl_div(g, y, &scale));
    st = tl_mul(x, scale, out);
  } else {
    st = tl_abs(x, out);
    if (st == TL_OK) st = tl_step2(tl_div, out, y);
    if (st == TL_OK) st = tl_step_scalar(tl_pow_scalar, out, p - 1);
    if (st == TL_OK) st = tl_sign(x, &scale);
    if (st == TL_OK) st = tl_step2(tl_mul, out, scale);
    if (st == TL_OK) st = tl_step2(tl_mul, out, g);
  }
  if (st == TL_OK) st = tl_eq_scalar(x, 0, &is_zero);
  if (st == TL_OK) st = blank(out, is_zero);
  tl_tensor_free(is_zero);
  tl_tensor_free(scale);
  return st;
}

/* saved: x, y */
static tl_status norm_backward(tl_node *n, tl_tensor *const *grad_out, tl_tensor **grad_in) {
  const tl_reducing *r = n->payload;
  tl_tensor *x, *y, *kept = NULL, *g = NULL;
  TL_TRY(tl_node_saved(n, 0, &x));
  TL_TRY(tl_node_saved(n, 1, &y));
  if (r->p == 0) return tl_full(x->ndim, x->shape, 0, x->dtype, x->device, &grad_in[0]);
  tl_status st = tl_reduced_view(r, y, &kept);
  if (st == TL_OK) st = tl_reduced_view(r, grad_out[0], &g);
  if (st == TL_OK)
    st = isinf(r->p) ? share_extreme(r, x, kept, g, &grad_in[0]) : power_gradient(r->p, x, kept, g, &grad_in[0]);
  tl_tensor_free(kept);
  tl_tensor_free(g);
  return st;
}

static const tl_node_class norm_class = {"norm", norm_backward, NULL};

tl_status tl_norm(tl_tensor *x, double p, int n, const int *dims, bool keepdim, tl_tensor **out) {
  TL_AUTOCAST(TL_CAST_FULL, tl_norm(cast[0], p, n, dims, keepdim, out), x);
  tl_reducing r;
  TL_TRY(tl_check_floating("norm", x));
  if (isnan(p)) return TL_FAIL(TL_ERR_VALUE, "norm", "p is nan");
  TL_TRY(tl_reducing_init("norm", x, n, dims, p, &r));
  if (p < 0 || isinf(p)) TL_TRY(tl_check_nonempty("norm", x, &r));
  tl_tensor *y;
  TL_TRY(tl_reduce("norm", TL_REDUCE_KIND_NORM, x, &r, keepdim, x->dtype, &y));
  tl_tensor *save[2] = {x, y};
  return tl_give(tl_record1(&norm_class, y, 1, &x, 2, save, &r, sizeof r), y, out);
}

/* ---- logsumexp ---- */

/* g * exp(x - y); a row that is all -inf has no gradient; saved: x, y */
static tl_status logsumexp_backward(tl_node *n, tl_tensor *const *grad_out, tl_tensor **grad_in) {
  const tl_reducing *r = n->payload;
  tl_tensor *x, *y, *kept = NULL, *none = NULL, *g = NULL;
  TL_TRY(tl_node_saved(n, 0, &x));
  TL_TRY(tl_node_saved(n, 1, &y));
  tl_status st = tl_reduced_view(r, y, &kept);
  if (st == TL_OK) st = tl_reduced_view(r, grad_out[0], &g);
  if (st == TL_OK) st = tl_eq_scalar(kept, -INFINITY, &none);
  if (st == TL_OK) st = tl_sub(x, kept, &grad_in[0]);
  if (st == TL_OK) st = tl_step1(tl_exp, &grad_in[0]);
  if (st == TL_OK) st = tl_step2(tl_mul, &grad_in[0], g);
  if (st == TL_OK) st = blank(&grad_in[0], none);
  tl_tensor_free(kept);
  tl_tensor_free(none);
  tl_tensor_free(g);
  return st;
}

static const tl_node_class logsumexp_class = {"logsumexp", logsumexp_backward, NULL};

/* log(sum(exp(x - m))) + m with m = max(x), 0 where that is infinite: unrecorded. Not in a low precision, whose sums end
 * at 65504 or stop growing at 256. */
static tl_status shifted_logsumexp(const tl_reducing *r, tl_tensor *x, bool keepdim, tl_tensor **out) {
  tl_reducing plain = *r;
  tl_tensor *m = NULL, *finite = NULL, *e = NULL, *flat = NULL, *y = NULL;
  plain.p = 0;
  tl_status st = tl_reduce("logsumexp", TL_REDUCE_KIND_MAX, x, &plain, true, x->dtype, &m);
  if (st == TL_OK) st = tl_isinf(m, &finite);
  if (st == TL_OK) st = blank(&m, finite);
  if (st == TL_OK) st = tl_sub(x, m, &e);
  if (st == TL_OK) st = tl_step1(tl_exp, &e);
  if (st == TL_OK) st = tl_reduce("logsumexp", TL_REDUCE_KIND_SUM, e, &plain, keepdim, x->dtype, &y);
  if (st == TL_OK) st = tl_step1(tl_log, &y);
  if (st == TL_OK) st = tl_reshape(m, y->ndim, y->shape, &flat);
  if (st == TL_OK) st = tl_step2(tl_add, &y, flat);
  tl_tensor *const used[] = {m, finite, e, flat};
  for (size_t i = 0; i < sizeof used / sizeof *used; i++) tl_tensor_free(used[i]);
  return tl_give(st, y, out);
}

tl_status tl_logsumexp(tl_tensor *x, int n, const int *dims, bool keepdim, tl_tensor **out) {
  TL_AUTOCAST(TL_CAST_FULL, tl_logsumexp(cast[0], n, dims, keepdim, out), x);
  tl_reducing r;
  TL_TRY(tl_check_floating("logsumexp", x));
  TL_TRY(tl_reducing_init("logsumexp", x, n, dims, 0, &r));
  bool former = tl_set_grad_enabled(false);
  tl_tensor *wide = NULL, *sum = NULL, *y = NULL;
  tl_status st = tl_to(x, x->dtype == TL_FLOAT64 ? TL_FLOAT64 : TL_FLOAT32, x->device, &wide);
  if (st == TL_OK) st = shifted_logsumexp(&r, wide, keepdim, &sum);
  if (st == TL_OK) st = tl_to(sum, x->dtype, x->device, &y);
  tl_set_grad_enabled(former);
  tl_tensor_free(wide);
  tl_tensor_free(sum);
  TL_TRY(st);
  tl_tensor *save[2] = {x, y};
  return tl_give(tl_record1(&logsumexp_class, y, 1, &x, 2, save, &r, sizeof r), y, out);
}
