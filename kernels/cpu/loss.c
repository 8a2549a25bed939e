/* loss.c: losses that compare element by element. Sums go over fixed blocks, whose partial sums are added in order. */
#include "formula.h"
#include "wide.h"

#define T float
#define TL_C(c) ((float)(c))
#define F(name) TL_PASTE(name, f32)
#include "loss_body.h"
#undef T
#undef TL_C
#undef F
#define T double
#define TL_C(c) (c)
#define F(name) TL_PASTE(name, f64)
#include "loss_body.h"
#undef T
#undef TL_C
#undef F

#define BLOCKS 512 /* most blocks: their partial sums stand on the stack */

typedef union arrays {
  loss_arrays_f32 f32;
  loss_arrays_f64 f64;
} arrays;

/* Their members are pointers in the same order, so one filling serves both. */
static arrays widen(tl_wide *w, tl_tensor *x, tl_tensor *t, tl_tensor *wt, tl_tensor *pw, tl_tensor *g, tl_tensor *y,
                    tl_tensor *dx, tl_tensor *dt) {
  arrays v;
  if (w->compute == TL_FLOAT64)
    v.f64 = (loss_arrays_f64){tl_wide_in(w, x), tl_wide_in(w, t),  tl_wide_in(w, wt),  tl_wide_in(w, pw),
                              tl_wide_in(w, g), tl_wide_out(w, y), tl_wide_out(w, dx), tl_wide_out(w, dt)};
  else
    v.f32 = (loss_arrays_f32){tl_wide_in(w, x), tl_wide_in(w, t),  tl_wide_in(w, wt),  tl_wide_in(w, pw),
                              tl_wide_in(w, g), tl_wide_out(w, y), tl_wide_out(w, dx), tl_wide_out(w, dt)};
  return v;
}

static int64_t block_size(int64_t numel) {
  int64_t block = 16384;
  while (block * BLOCKS < numel) block *= 2;
  return block;
}

static double range(const tl_loss_args *a, const arrays *v, int compute, int64_t first, int64_t end, int64_t *bad) {
  bool wide = compute == TL_FLOAT64;
  *bad = !a->unit ? -1 : wide ? outside_unit_f64(&v->f64, first, end) : outside_unit_f32(&v->f32, first, end);
  return wide ? loss_range_f64(a, &v->f64, first, end) : loss_range_f32(a, &v->f32, first, end);
}

static void forward(const tl_loss_args *a, const arrays *v, int compute) {
  int64_t block = block_size(a->numel), blocks = (a->numel + block - 1) / block, bads[BLOCKS];
  double sums[BLOCKS], total = 0;
  if (blocks > 1) {
#pragma omp parallel for schedule(static)
    for (int64_t b = 0; b < blocks; b++)
      sums[b] = range(a, v, compute, b * block, (b + 1) * block < a->numel ? (b + 1) * block : a->numel, &bads[b]);
  } else if (blocks == 1) {
    sums[0] = range(a, v, compute, 0, a->numel, &bads[0]);
  }
  for (int64_t b = blocks - 1; b >= 0; b--)
    if (bads[b] >= 0) *a->bad = bads[b];
  if (!a->reduce) return;
  for (int64_t b = 0; b < blocks; b++) total += sums[b];
  /* nothing to sum: 0, and the mean of nothing (scale inf) is nan */
  if (compute == TL_FLOAT64) v->f64.y[0] = total * a->scale;
  else v->f32.y[0] = (float)(total * a->scale);
}

tl_status tl_cpu_loss(const tl_loss_args *a) {
  tl_wide w = tl_wide_begin(a->x);
  arrays v = widen(&w, a->x, a->t, a->w, a->pw, NULL, a->y, NULL, NULL);
  if (!w.failed) forward(a, &v, w.compute);
  return tl_wide_end(&w, "loss", TL_OK);
}

static void grad_range(const tl_loss_grad_args *a, const arrays *v, int compute, int64_t first, int64_t end) {
  if (compute == TL_FLOAT64) {
    if (v->f64.dx != NULL) loss_grad_range_f64(a, &v->f64, loss_loops_f64[a->kind].dx, v->f64.dx, first, end);
    if (v->f64.dt != NULL) loss_grad_range_f64(a, &v->f64, loss_loops_f64[a->kind].dt, v->f64.dt, first, end);
  } else {
    if (v->f32.dx != NULL) loss_grad_range_f32(a, &v->f32, loss_loops_f32[a->kind].dx, v->f32.dx, first, end);
    if (v->f32.dt != NULL) loss_grad_range_f32(a, &v->f32, loss_loops_f32[a->kind].dt, v->f32.dt, first, end);
  }
}

tl_status tl_cpu_loss_grad(const tl_loss_grad_args *a) {
  if (a->numel == 0) return TL_OK;
  tl_wide w = tl_wide_begin(a->x);
  arrays v = widen(&w, a->x, a->t, a->w, a->pw, a->g, NULL, a->dx, a->dt);
  if (!w.failed) {
    int64_t block = block_size(a->numel), blocks = (a->numel + block - 1) / block;
    if (blocks > 1) {
#pragma omp parallel for schedule(static)
      for (int64_t b = 0; b < blocks; b++)
        grad_range(a, &v, w.compute, b * block, (b + 1) * block < a->numel ? (b + 1) * block : a->numel);
    } else {
      grad_range(a, &v, w.compute, 0, a->numel);
    }
  }
  return tl_wide_end(&w, "loss", TL_OK);
}
