/* class_loss.c: cross entropy and nll. Blocks of lines give partial sums, which are added in order. */
#include "formula.h"
#include "lines.h"
#include "wide.h"

typedef struct tl_class_sum {
  double loss, weight;
  int64_t bad; /* the first line of the block with a label that is no class, -1: none */
} tl_class_sum;

#define T float
#define F(name) TL_PASTE(name, f32)
#include "class_loss_body.h"
#undef T
#undef F
#define T double
#define F(name) TL_PASTE(name, f64)
#include "class_loss_body.h"
#undef T
#undef F

typedef union arrays {
  class_arrays_f32 f32;
  class_arrays_f64 f64;
} arrays;

static tl_class_sum block_sum(const tl_class_loss_args *a, const arrays *v, int compute, const tl_lines *l, int64_t i) {
  tl_line_block b = tl_line_block_of(l, i);
  return compute == TL_FLOAT64 ? class_block_f64(a, &v->f64, l, &b) : class_block_f32(a, &v->f32, l, &b);
}

static void store_result(const tl_class_loss_args *a, const arrays *v, int compute, const tl_class_sum *sum) {
  double y = sum->loss;
  if (a->reduction == TL_REDUCE_MEAN) y = sum->weight == 0 ? 0 : y / sum->weight;
  if (compute == TL_FLOAT64) {
    v->f64.total[0] = sum->weight;
    if (a->reduction != TL_REDUCE_NONE) v->f64.y[0] = y;
  } else {
    v->f32.total[0] = (float)sum->weight;
    if (a->reduction != TL_REDUCE_NONE) v->f32.y[0] = (float)y;
  }
}

static tl_status forward(const tl_class_loss_args *a, const arrays *v, int compute) {
  tl_lines l = tl_lines_of(a->outer, a->classes, a->inner);
  tl_class_sum few[32], *sums = few, all = {0, 0, -1};
  if (l.blocks > 32) sums = tl_host_alloc((size_t)l.blocks * sizeof *sums);
  if (sums == NULL)
    return TL_FAIL(TL_ERR_MEMORY, "cross_entropy", "no memory for %lld partial sums", (long long)l.blocks);
  if (a->x->numel >= TL_PARALLEL_MIN) {
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < l.blocks; i++) sums[i] = block_sum(a, v, compute, &l, i);
  } else {
    for (int64_t i = 0; i < l.blocks; i++) sums[i] = block_sum(a, v, compute, &l, i);
  }
  for (int64_t i = 0; i < l.blocks; i++) {
    all.loss += sums[i].loss;
    all.weight += sums[i].weight;
    if (sums[i].bad >= 0 && (all.bad < 0 || sums[i].bad < all.bad)) all.bad = sums[i].bad;
  }
  if (all.bad >= 0) *a->bad = all.bad;
  store_result(a, v, compute, &all);
  if (sums != few) tl_host_free(sums);
  return TL_OK;
}

tl_status tl_cpu_class_loss(const tl_class_loss_args *a) {
  tl_wide w = tl_wide_begin(a->x);
  bool labels = a->target->dtype == TL_INT64;
  arrays v = {0};
#define FILL(m)                                        \
  m.x = tl_wide_in(&w, a->x);                          \
  m.weight = tl_wide_in(&w, a->weight);                \
  m.labels = labels ? tl_data(a->target) : NULL;       \
  m.probs = labels ? NULL : tl_wide_in(&w, a->target); \
  m.y = tl_wide_out(&w, a->y);                         \
  m.lse = tl_wide_out(&w, a->lse);                     \
  m.total = tl_wide_out(&w, a->total)
  if (w.compute == TL_FLOAT64) {
    FILL(v.f64);
  } else {
    FILL(v.f32);
  }
#undef FILL
  return tl_wide_end(&w, "cross_entropy", w.failed ? TL_OK : forward(a, &v, w.compute));
}

static void backward(const tl_class_loss_grad_args *a, const arrays *v, int compute) {
  tl_lines l = tl_lines_of(a->outer, a->classes, a->inner);
#pragma omp parallel for schedule(static) if (a->x->numel >= TL_PARALLEL_MIN)
  for (int64_t i = 0; i < l.blocks; i++) {
    tl_line_block b = tl_line_block_of(&l, i);
    if (compute == TL_FLOAT64) class_grad_block_f64(a, &v->f64, &l, &b);
    else class_grad_block_f32(a, &v->f32, &l, &b);
  }
}

tl_status tl_cpu_class_loss_grad(const tl_class_loss_grad_args *a) {
  if (a->x->numel == 0) return TL_OK;
  tl_wide w = tl_wide_begin(a->x);
  bool labels = a->target->dtype == TL_INT64;
  arrays v = {0};
  /* in place one copy of a half type serves for both */
  void *x = a->dx == a->x ? tl_wide_inout(&w, a->x, true) : (void *)tl_wide_in(&w, a->x);
#define FILL(m)                                        \
  m.x = x;                                             \
  m.weight = tl_wide_in(&w, a->weight);                \
  m.labels = labels ? tl_data(a->target) : NULL;       \
  m.probs = labels ? NULL : tl_wide_in(&w, a->target); \
  m.g = tl_wide_in(&w, a->g);                          \
  m.lse_in = tl_wide_in(&w, a->lse);                   \
  m.total_in = tl_wide_in(&w, a->total);               \
  m.dx = a->dx == a->x ? x : tl_wide_out(&w, a->dx);   \
  m.dt = tl_wide_out(&w, a->dt)
  if (w.compute == TL_FLOAT64) {
    FILL(v.f64);
  } else {
    FILL(v.f32);
  }
#undef FILL
  if (!w.failed) backward(a, &v, w.compute);
  return tl_wide_end(&w, "cross_entropy", TL_OK);
}
