/* class_loss_body.h: cross entropy and nll in the type T, a block of lines at a time (lines.h); class_loss.c includes it
 * for float and double. An element of class c on line j of a block stands at c * sc + j * sj. */
#include "lines_body.h"

typedef struct F(class_arrays) {
  const T *x, *weight, *probs, *g, *lse_in, *total_in; /* weight, probs NULL: none */
  const int64_t *labels;                               /* or NULL: probs */
  T *y, *lse, *total, *dx, *dt;
} F(class_arrays);

/* Loss of a line whose log-probabilities are x - shift - ls (nll: both 0). */
static T F(label_loss)(const T *x, int64_t sc, int64_t n, int64_t label, const T *weight, T smoothing, T shift, T ls) {
  const T w = weight == NULL ? 1 : weight[label];
  T own = w == 0 ? 0 : w * ((shift - x[label * sc]) + ls), all = 0;
  if (smoothing == 0) return own;
  for (int64_t c = 0; c < n; c++) all += (weight == NULL ? 1 : weight[c]) * ((shift - x[c * sc]) + ls);
  return (1 - smoothing) * own + smoothing / (T)n * all;
}

/* A class of no weight or probability adds nothing, even where its logit is -inf. */
static T F(probs_loss)(const T *x, const T *t, int64_t sc, int64_t n, const T *weight, T smoothing, T shift, T ls) {
  T s = 0;
  for (int64_t c = 0; c < n; c++) {
    T q = ((1 - smoothing) * t[c * sc] + smoothing / (T)n) * (weight == NULL ? 1 : weight[c]);
    s += q == 0 ? 0 : q * ((shift - x[c * sc]) + ls);
  }
  return s;
}

/* Losses of one block: into y (none) or summed up with the divisor. */
static tl_class_sum F(class_block)(const tl_class_loss_args *a, const F(class_arrays) * v, const tl_lines *l,
                                   const tl_line_block *b) {
  T shift[TL_LINES] = {0}, sum[TL_LINES] = {0};
  int64_t sc = l->inner, sj = l->inner == 1 ? l->n : 1, lines = l->outer * l->inner;
  tl_class_sum total = {0, 0, -1};
  if (a->logits) {
    F(exp_sums)(l, b, v->x + b->base, shift, sum, NULL);
    for (int64_t j = 0; j < b->count; j++) {
      T ls = f_log(sum[j]);
      sum[j] = sum[j] == 0 ? INFINITY : ls; /* a line that is all -inf: loss inf, gradients 0 */
      v->lse[b->line + j] = shift[j];
      v->lse[lines + b->line + j] = sum[j];
    }
  }
  for (int64_t j = 0; j < b->count; j++) {
    const T *x = v->x + b->base + j * sj;
    T loss = 0, w = 1;
    if (v->labels == NULL) {
      loss = F(probs_loss)(x, v->probs + b->base + j * sj, sc, l->n, v->weight, (T)a->smoothing, shift[j], sum[j]);
    } else {
      int64_t label = v->labels[b->line + j];
      if (label == a->ignore_index) {
        w = 0;
      } else if (label < 0 || label >= l->n) {
        if (total.bad < 0) total.bad = b->line + j;
        continue;
      } else {
        loss = F(label_loss)(x, sc, l->n, label, v->weight, (T)a->smoothing, shift[j], sum[j]);
        w = v->weight == NULL ? 1 : v->weight[label];
      }
    }
    if (a->reduction == TL_REDUCE_NONE) v->y[b->line + j] = loss;
    total.loss += (double)loss;
    total.weight += (double)w;
  }
  return total;
}

/* ---- gradients ---- */

/* What one line's gradient is made of: dx_c = mass * softmax_c - (own if c is the label) - share * weight_c, or minus
 * scale * target_c for probabilities. All zero for a line without gradient. */
typedef struct F(line_grad) {
  T scale, mass, own, share;
  int64_t label;
} F(line_grad);

static F(line_grad) F(line_grad_of)(const tl_class_loss_grad_args *a, const F(class_arrays) * v, const tl_lines *l,
                                    const tl_line_block *b, int64_t j, T scale, T weights) {
  F(line_grad) d = {0, 0, 0, 0, -1};
  int64_t line = b->line + j, sc = l->inner, sj = l->inner == 1 ? l->n : 1;
  if (a->logits && v->lse_in[l->outer * l->inner + line] == INFINITY) return d;
  if (a->reduction == TL_REDUCE_NONE) scale *= v->g[line];
  const T smoothing = (T)a->smoothing;
  if (v->labels != NULL) {
    if (v->labels[line] == a->ignore_index) return d;
    d.label = v->labels[line];
    d.own = scale * (1 - smoothing) * (v->weight == NULL ? 1 : v->weight[d.label]);
    d.share = scale * smoothing / (T)l->n;
    d.mass = d.own + d.share * weights;
  } else {
    const T *t = v->probs + b->base + j * sj;
    T q = 0;
    for (int64_t c = 0; c < l->n; c++)
      q += ((1 - smoothing) * t[c * sc] + smoothing / (T)l->n) * (v->weight == NULL ? 1 : v->weight[c]);
    d.mass = scale * q;
    d.share = scale * smoothing / (T)l->n;
  }
  d.scale = scale;
  return d;
}

/* dx = mass * exp(x - shift - ls) for the whole block, 0 where mass is 0 */
static void F(softmax_part)(const F(class_arrays) * v, const tl_lines *l, const tl_line_block *b,
                            const F(line_grad) * d) {
  const T *shift = v->lse_in + b->line, *ls = shift + l->outer * l->inner, *x = v->x + b->base;
  T *dx = v->dx + b->base;
  int64_t n = l->n;
  if (l->inner == 1) {
    for (int64_t j = 0; j < b->count; j++)
      for (int64_t c = 0; c < n; c++) dx[j * n + c] = x[j * n + c] - shift[j] - ls[j];
    F(exp_all)(dx, b->count * n);
    for (int64_t j = 0; j < b->count; j++)
      for (int64_t c = 0; c < n; c++) dx[j * n + c] = d[j].mass == 0 ? 0 : dx[j * n + c] * d[j].mass;
    return;
  }
  T mass[TL_LINES];
  for (int64_t j = 0; j < b->count; j++) mass[j] = d[j].mass;
  for (int64_t c = 0; c < n; c++) {
#pragma omp simd
    for (int64_t j = 0; j < b->count; j++) {
      T e = f_exp(x[c * l->inner + j] - shift[j] - ls[j]) * mass[j];
      dx[c * l->inner + j] = mass[j] == 0 ? 0 : e;
    }
  }
}

/* The target's part of dx, and dt */
static void F(target_part)(const tl_class_loss_grad_args *a, const F(class_arrays) * v, const tl_lines *l,
                           const tl_line_block *b, int64_t j, const F(line_grad) * d) {
  int64_t sc = l->inner, at = b->base + j * (l->inner == 1 ? l->n : 1);
  const T keep = d->scale * (1 - (T)a->smoothing);
  if (v->dx != NULL && d->label >= 0) v->dx[at + d->label * sc] -= d->own;
  for (int64_t c = 0; c < l->n && v->dx != NULL && d->share != 0; c++)
    v->dx[at + c * sc] -= d->share * (v->weight == NULL ? 1 : v->weight[c]);
  if (v->labels != NULL) return;
  for (int64_t c = 0; c < l->n; c++) {
    const T w = v->weight == NULL ? 1 : v->weight[c];
    if (v->dx != NULL) v->dx[at + c * sc] -= keep * w * v->probs[at + c * sc];
    if (v->dt != NULL) {
      const T *shift = v->lse_in + b->line + j;
      v->dt[at + c * sc] = keep * w == 0 ? 0 : keep * w * (shift[0] - v->x[at + c * sc] + shift[l->outer * l->inner]);
    }
  }
}

static void F(class_grad_block)(const tl_class_loss_grad_args *a, const F(class_arrays) * v, const tl_lines *l,
                                const tl_line_block *b) {
  F(line_grad) d[TL_LINES];
  T scale = a->reduction == TL_REDUCE_NONE ? 1 : v->g[0], weights = (T)l->n;
  if (a->reduction == TL_REDUCE_MEAN) scale = v->total_in[0] == 0 ? 0 : scale / v->total_in[0];
  if (v->weight != NULL && a->smoothing != 0) weights = F(row_sum)(v->weight, l->n);
  for (int64_t j = 0; j < b->count; j++) d[j] = F(line_grad_of)(a, v, l, b, j, scale, weights);
  if (v->dx != NULL && a->logits) {
    F(softmax_part)(v, l, b, d);
  } else if (v->dx != NULL) {
    int64_t lines = l->inner == 1 ? 1 : l->n, width = l->inner == 1 ? b->count * l->n : b->count;
    for (int64_t c = 0; c < lines; c++) memset(v->dx + b->base + c * l->inner, 0, (size_t)width * sizeof(T));
  }
  for (int64_t j = 0; j < b->count; j++) F(target_part)(a, v, l, b, j, &d[j]);
}
