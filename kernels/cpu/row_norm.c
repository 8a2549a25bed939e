/* row_norm.c: layer, group and RMS norm: each row has its own statistics. Gradients of weight and bias are summed over a
 * fixed number of blocks of rows, whatever the number of threads. */
#include <math.h>

#include "wide.h"

#define BLOCKS 16

#define T float
#define F(name) TL_PASTE(name, f32)
#include "row_norm_body.h"
#undef T
#undef F
#define T double
#define F(name) TL_PASTE(name, f64)
#include "row_norm_body.h"
#undef T
#undef F

typedef union arrays {
  row_arrays_f32 f32;
  row_arrays_f64 f64;
} arrays;

static void forward(const tl_row_norm_args *a, const arrays *v, int compute) {
#pragma omp parallel for schedule(static) if (a->x->numel >= TL_PARALLEL_MIN)
  for (int64_t r = 0; r < a->rows; r++) {
    if (compute == TL_FLOAT64) norm_row_f64(a, &v->f64, r);
    else norm_row_f32(a, &v->f32, r);
  }
}

tl_status tl_cpu_row_norm(const tl_row_norm_args *a) {
  if (a->x->numel == 0) return TL_OK;
  tl_wide w = tl_wide_begin(a->x);
  arrays v = {0};
#define FILL(m)                      \
  m.x = tl_wide_in(&w, a->x);        \
  m.w = tl_wide_in(&w, a->w);        \
  m.b = tl_wide_in(&w, a->b);        \
  m.y = tl_wide_out(&w, a->y);       \
  m.mean = tl_wide_out(&w, a->mean); \
  m.invstd = tl_wide_out(&w, a->invstd)
  if (w.compute == TL_FLOAT64) {
    FILL(v.f64);
  } else {
    FILL(v.f32);
  }
#undef FILL
  if (!w.failed) forward(a, &v, w.compute);
  return tl_wide_end(&w, "layer_norm", TL_OK);
}

tl_status tl_cpu_row_norm_grad(const tl_row_norm_grad_args *a) {
  tl_wide w = tl_wide_begin(a->x);
  arrays v = {0};
  tl_status st = TL_OK;
  if (w.compute == TL_FLOAT64) {
    TL_WIDE_NORM_GRAD(v.f64, w, a);
    if (!w.failed) st = row_norm_grad_f64(a, &v.f64);
  } else {
    TL_WIDE_NORM_GRAD(v.f32, w, a);
    if (!w.failed) st = row_norm_grad_f32(a, &v.f32);
  }
  return tl_wide_end(&w, "layer_norm", st);
}
