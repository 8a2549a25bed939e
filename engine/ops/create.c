/* create.c: tensors from numbers. */
#include <math.h>

#include "backend/backend.h"
#include "core/tensor.h"

tl_status tl_full(int ndim, const int64_t *shape, double value, int dtype, tl_device device, tl_tensor **out) {
  tl_tensor *t;
  TL_TRY(tl_empty(ndim, shape, dtype, device, &t));
  return tl_give(tl_fill_(t, value), t, out);
}

/* out[i] = first + i * step */
static tl_status range(const char *op, int64_t n, double first, double step, int dtype, tl_device device,
                       tl_tensor **out) {
  tl_tensor *t;
  TL_TRY(tl_empty(1, &n, dtype, device, &t));
  if (tl_kernels_of(t)->range == NULL) {
    tl_tensor_free(t);
    return TL_FAIL(TL_ERR_UNSUPPORTED, op, "there is no range kernel for this device");
  }
  return tl_give(tl_kernels_of(t)->range(t, first, step), t, out);
}

tl_status tl_arange(double first, double last, double step, int dtype, tl_device device, tl_tensor **out) {
  if (!isfinite(first) || !isfinite(last) || !isfinite(step))
    return TL_FAIL(TL_ERR_VALUE, "arange", "%g, %g, %g: all three must be finite", first, last, step);
  if (step == 0) return TL_FAIL(TL_ERR_VALUE, "arange", "the step is 0");
  if ((last - first) * step < 0)
    return TL_FAIL(TL_ERR_VALUE, "arange", "from %g a step of %g never reaches %g", first, step, last);
  double n = ceil((last - first) / step);
  if (n > 9007199254740992.0) return TL_FAIL(TL_ERR_SHAPE, "arange", "%g elements are too many", n);
  return range("arange", (int64_t)n, first, step, dtype, device, out);
}

tl_status tl_linspace(double first, double last, int64_t n, int dtype, tl_device device, tl_tensor **out) {
  if (n < 0) return TL_FAIL(TL_ERR_VALUE, "linspace", "%lld points asked for", (long long)n);
  tl_tensor *t;
  TL_TRY(range("linspace", n, first, n > 1 ? (last - first) / (double)(n - 1) : 0, dtype, device, &t));
  if (n < 2) return tl_give(TL_OK, t, out);
  /* the last point is exactly `last`, whatever the rounding of the step */
  tl_tensor *end = NULL;
  tl_status st = tl_select(t, 0, -1, &end);
  if (st == TL_OK) st = tl_fill_(end, last);
  tl_tensor_free(end);
  return tl_give(st, t, out);
}

tl_status tl_eye(int64_t rows, int64_t columns, int dtype, tl_device device, tl_tensor **out) {
  int64_t shape[2] = {rows, columns};
  tl_tensor *t, *diagonal = NULL;
  TL_TRY(tl_full(2, shape, 0, dtype, device, &t));
  int64_t n = rows < columns ? rows : columns, stride = columns + 1;
  tl_status st = n == 0 ? TL_OK : tl_alias_as(t, 1, &n, &stride, 0, &diagonal);
  if (st == TL_OK && n > 0) st = tl_fill_(diagonal, 1);
  tl_tensor_free(diagonal);
  return tl_give(st, t, out);
}
