/* softmax.c: softmax and log-softmax along one dim, block by block. */
#include "formula.h"
#include "lines.h"
#include "wide.h"

#define T float
#define F(name) TL_PASTE(name, f32)
#include "softmax_body.h"
#undef T
#undef F
#define T double
#define F(name) TL_PASTE(name, f64)
#include "softmax_body.h"
#undef T
#undef F

static void forward(const tl_softmax_args *a, int compute, const void *x, void *y) {
  tl_lines l = tl_lines_of(a->outer, a->n, a->inner);
#pragma omp parallel for schedule(static) if (a->x->numel >= TL_PARALLEL_MIN)
  for (int64_t i = 0; i < l.blocks; i++) {
    tl_line_block b = tl_line_block_of(&l, i);
    if (compute == TL_FLOAT64) softmax_block_f64(&l, &b, a->log, (const double *)x + b.base, (double *)y + b.base);
    else softmax_block_f32(&l, &b, a->log, (const float *)x + b.base, (float *)y + b.base);
  }
}

tl_status tl_cpu_softmax(const tl_softmax_args *a) {
  if (a->x->numel == 0) return TL_OK;
  tl_wide w = tl_wide_begin(a->x);
  const void *x = tl_wide_in(&w, a->x);
  void *y = tl_wide_out(&w, a->y);
  if (!w.failed) forward(a, w.compute, x, y);
  return tl_wide_end(&w, "softmax", TL_OK);
}

static void backward(const tl_softmax_grad_args *a, int compute, const void *g, const void *y, void *dx) {
  tl_lines l = tl_lines_of(a->outer, a->n, a->inner);
#pragma omp parallel for schedule(static) if (a->y->numel >= TL_PARALLEL_MIN)
  for (int64_t i = 0; i < l.blocks; i++) {
    tl_line_block b = tl_line_block_of(&l, i);
    if (compute == TL_FLOAT64)
      softmax_grad_block_f64(&l, &b, a->log, (const double *)g + b.base, (const double *)y + b.base,
                             (double *)dx + b.base);
    else
      softmax_grad_block_f32(&l, &b, a->log, (const float *)g + b.base, (const float *)y + b.base,
                             (float *)dx + b.base);
  }
}

tl_status tl_cpu_softmax_grad(const tl_softmax_grad_args *a) {
  if (a->y->numel == 0) return TL_OK;
  tl_wide w = tl_wide_begin(a->y);
  const void *g = tl_wide_in(&w, a->g), *y = tl_wide_in(&w, a->y);
  void *dx = tl_wide_out(&w, a->dx);
  if (!w.failed) backward(a, w.compute, g, y, dx);
  return tl_wide_end(&w, "softmax", TL_OK);
}
