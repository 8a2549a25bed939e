/* norm.c: batch norm. With spatial dims a channel at a time (its elements stay in the cache between the passes), without
 * them some neighbouring channels at a time. Each channel is summed by one thread, in one order. */
#include <math.h>

#include "wide.h"

#define ROWS 256 /* rows of columns added up in T before the sum goes on in double */
#define COLUMNS 64

#define T float
#define F(name) TL_PASTE(name, f32)
#include "norm_body.h"
#undef T
#undef F
#define T double
#define F(name) TL_PASTE(name, f64)
#include "norm_body.h"
#undef T
#undef F

typedef union arrays {
  batch_arrays_f32 f32;
  batch_arrays_f64 f64;
} arrays;

static void forward(const tl_batch_norm_args *a, const arrays *v, int compute) {
  bool wide = compute == TL_FLOAT64, columns = a->inner == 1;
  int64_t step = columns ? COLUMNS : 1;
#pragma omp parallel for schedule(static) if (a->x->numel >= TL_PARALLEL_MIN)
  for (int64_t c = 0; c < a->channels; c += step) {
    int64_t count = a->channels - c < step ? a->channels - c : step;
    if (columns && wide) batch_columns_f64(a, &v->f64, c, count);
    else if (columns) batch_columns_f32(a, &v->f32, c, count);
    else if (wide) batch_channel_f64(a, &v->f64, c);
    else batch_channel_f32(a, &v->f32, c);
  }
}

tl_status tl_cpu_batch_norm(const tl_batch_norm_args *a) {
  tl_wide w = tl_wide_begin(a->x);
  arrays v = {0};
  bool moves = a->batch_stats; /* the running statistics are written, too */
#define FILL(m)                                               \
  m.x = tl_wide_in(&w, a->x);                                 \
  m.w = tl_wide_in(&w, a->w);                                 \
  m.b = tl_wide_in(&w, a->b);                                 \
  m.running_mean = tl_wide_inout(&w, a->running_mean, moves); \
  m.running_var = tl_wide_inout(&w, a->running_var, moves);   \
  m.y = tl_wide_out(&w, a->y);                                \
  m.mean = tl_wide_out(&w, a->mean);                          \
  m.invstd = tl_wide_out(&w, a->invstd)
  if (w.compute == TL_FLOAT64) {
    FILL(v.f64);
  } else {
    FILL(v.f32);
  }
#undef FILL
  if (!w.failed) forward(a, &v, w.compute);
  return tl_wide_end(&w, "batch_norm", TL_OK);
}

static void backward(const tl_batch_norm_grad_args *a, const arrays *v, int compute) {
  bool wide = compute == TL_FLOAT64, columns = a->inner == 1;
  int64_t step = columns ? COLUMNS : 1;
#pragma omp parallel for schedule(static) if (a->x->numel >= TL_PARALLEL_MIN)
  for (int64_t c = 0; c < a->channels; c += step) {
    int64_t count = a->channels - c < step ? a->channels - c : step;
    if (columns && wide) batch_grad_columns_f64(a, &v->f64, c, count);
    else if (columns) batch_grad_columns_f32(a, &v->f32, c, count);
    else if (wide) batch_grad_channel_f64(a, &v->f64, c);
    else batch_grad_channel_f32(a, &v->f32, c);
  }
}

tl_status tl_cpu_batch_norm_grad(const tl_batch_norm_grad_args *a) {
  tl_wide w = tl_wide_begin(a->x);
  arrays v = {0};
  if (w.compute == TL_FLOAT64) {
    TL_WIDE_NORM_GRAD(v.f64, w, a);
  } else {
    TL_WIDE_NORM_GRAD(v.f32, w, a);
  }
  if (!w.failed) backward(a, &v, w.compute);
  return tl_wide_end(&w, "batch_norm", TL_OK);
}
