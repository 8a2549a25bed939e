/* compare.c: whole tensors compared to one answer. */
#include "core/tensor.h"

#include "ops/reduce.h"

/* Are all flags set? Takes over the reference. */
static tl_status verdict(tl_status st, tl_tensor *flags, bool *result) {
  tl_tensor *all = NULL;
  double value = 0;
  if (st == TL_OK) st = tl_all(flags, 0, NULL, false, &all);
  if (st == TL_OK) st = tl_item(all, &value);
  tl_tensor_free(flags);
  tl_tensor_free(all);
  if (st == TL_OK) *result = value != 0;
  return st;
}

tl_status tl_equal(tl_tensor *a, tl_tensor *b, bool *result) {
  TL_TRY(tl_check_same_device("equal", a, b));
  if (!tl_same_shape(a, b)) {
    *result = false;
    return TL_OK;
  }
  tl_tensor *flags = NULL;
  tl_status st = tl_eq(a, b, &flags);
  return verdict(st, flags, result);
}

/* a == b or |a - b| <= atol + rtol * |b|, or both nan where equal_nan says so; *flags is bool of the broadcast shape */
static tl_status close_flags(tl_tensor *a, tl_tensor *b, double rtol, double atol, bool equal_nan, tl_tensor **flags) {
  tl_tensor *distance = NULL, *limit = NULL, *near = NULL, *finite = NULL, *other = NULL;
  tl_status st = tl_sub(a, b, &distance);
  if (st == TL_OK) st = tl_step1(tl_abs, &distance);
  if (st == TL_OK) st = tl_abs(b, &limit);
  if (st == TL_OK) st = tl_step_scalar(tl_mul_scalar, &limit, rtol);
  if (st == TL_OK) st = tl_step_scalar(tl_add_scalar, &limit, atol);
  if (st == TL_OK) st = tl_le(distance, limit, &near);
  if (st == TL_OK) st = tl_isfinite(b, &finite); /* inf is close to inf only, whatever rtol * inf says */
  if (st == TL_OK) st = tl_step2(tl_logical_and, &near, finite);
  if (st == TL_OK) st = tl_eq(a, b, flags);
  if (st == TL_OK) st = tl_step2(tl_logical_or, flags, near);
  if (st == TL_OK && equal_nan) {
    tl_tensor *both = NULL;
    st = tl_isnan(a, &both);
    if (st == TL_OK) st = tl_isnan(b, &other);
    if (st == TL_OK) st = tl_step2(tl_logical_and, &both, other);
    if (st == TL_OK) st = tl_step2(tl_logical_or, flags, both);
    tl_tensor_free(both);
  }
  tl_tensor *const used[] = {distance, limit, near, finite, other};
  for (size_t i = 0; i < sizeof used / sizeof *used; i++) tl_tensor_free(used[i]);
  return st;
}

tl_status tl_allclose(tl_tensor *a, tl_tensor *b, double rtol, double atol, bool equal_nan, bool *result) {
  TL_TRY(tl_check_same_device("allclose", a, b));
  if (!(rtol >= 0) || !(atol >= 0)) return TL_FAIL(TL_ERR_VALUE, "allclose", "tolerances %g and %g", rtol, atol);
  int dtype = tl_promote(a->dtype, b->dtype);
  /* integers and low-precision numbers meet in a type that holds their difference */
  if (dtype != TL_FLOAT32) dtype = TL_FLOAT64;
  bool former = tl_set_grad_enabled(false);
  tl_tensor *wa = NULL, *wb = NULL, *flags = NULL;
  tl_status st = tl_to(a, dtype, a->device, &wa);
  if (st == TL_OK) st = tl_to(b, dtype, b->device, &wb);
  if (st == TL_OK) st = close_flags(wa, wb, rtol, atol, equal_nan, &flags);
  st = verdict(st, flags, result);
  tl_tensor_free(wa);
  tl_tensor_free(wb);
  tl_set_grad_enabled(former);
  return st;
}
