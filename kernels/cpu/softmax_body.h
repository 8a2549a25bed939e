/* softmax_body.h: softmax and log-softmax of blocks of lines in the type T; softmax.c includes it for float and double. */
#include "lines_body.h"

/* y, holding exp(x - shift), becomes the softmax */
static void F(divide)(const tl_lines *l, const tl_line_block *b, const T *sum, T *y) {
  T r[TL_LINES];
  for (int64_t j = 0; j < b->count; j++) r[j] = sum[j] == 0 ? 0 : 1 / sum[j];
  if (l->inner == 1) {
    for (int64_t j = 0; j < b->count; j++)
      for (int64_t c = 0; c < l->n; c++) y[j * l->n + c] *= r[j];
  } else {
    for (int64_t c = 0; c < l->n; c++)
      for (int64_t j = 0; j < b->count; j++) y[c * l->inner + j] *= r[j];
  }
}

/* y = x - shift - log sum: two subtractions, so that a large shift does not round the small logarithm away */
static void F(subtract)(const tl_lines *l, const tl_line_block *b, const T *x, const T *shift, const T *sum, T *y) {
  T ls[TL_LINES];
  for (int64_t j = 0; j < b->count; j++) ls[j] = sum[j] == 0 ? 0 : f_log(sum[j]);
  if (l->inner == 1) {
    for (int64_t j = 0; j < b->count; j++)
      for (int64_t c = 0; c < l->n; c++) y[j * l->n + c] = x[j * l->n + c] - shift[j] - ls[j];
  } else {
    for (int64_t c = 0; c < l->n; c++)
      for (int64_t j = 0; j < b->count; j++) y[c * l->inner + j] = x[c * l->inner + j] - shift[j] - ls[j];
  }
}

static void F(softmax_block)(const tl_lines *l, const tl_line_block *b, bool log, const T *x, T *y) {
  T shift[TL_LINES], sum[TL_LINES];
  F(exp_sums)(l, b, x, shift, sum, log ? NULL : y);
  if (log) F(subtract)(l, b, x, shift, sum, y);
  else F(divide)(l, b, sum, y);
}

/* softmax: dx = e (g - sum g e), e = y; log-softmax: dx = g - e sum g, e = exp(y). A line of zeros in e gets zeros. `log`
 * is a constant where these are called. */
static inline __attribute__((always_inline)) void F(grad_row)(int64_t n, bool log, const T *g, const T *e, T *dx) {
  T s = 0, mass = 0;
#pragma omp simd reduction(+ : s, mass)
  for (int64_t c = 0; c < n; c++) {
    s += log ? g[c] : g[c] * e[c];
    mass += e[c];
  }
  if (mass == 0) {
    memset(dx, 0, (size_t)n * sizeof(T));
    return;
  }
#pragma omp simd
  for (int64_t c = 0; c < n; c++) dx[c] = log ? g[c] - e[c] * s : e[c] * (g[c] - s);
}

static inline __attribute__((always_inline)) void F(grad_tile)(int64_t count, int64_t n, int64_t inner, bool log,
                                                               const T *g, const T *y, T *dx) {
  T s[TL_LINES] = {0}, mass[TL_LINES] = {0};
  for (int64_t c = 0; c < n; c++) {
    const T *gc = g + c * inner, *yc = y + c * inner;
#pragma omp simd
    for (int64_t j = 0; j < count; j++) {
      T e = log ? f_exp(yc[j]) : yc[j];
      s[j] += log ? gc[j] : gc[j] * e;
      mass[j] += e;
    }
  }
  for (int64_t c = 0; c < n; c++) {
    const T *gc = g + c * inner, *yc = y + c * inner;
    T *dc = dx + c * inner;
#pragma omp simd
    for (int64_t j = 0; j < count; j++) {
      T e = log ? f_exp(yc[j]) : yc[j];
      T d = log ? gc[j] - e * s[j] : e * (gc[j] - s[j]);
      dc[j] = mass[j] == 0 ? 0 : d;
    }
  }
}

static void F(softmax_grad_block)(const tl_lines *l, const tl_line_block *b, bool log, const T *g, const T *y, T *dx) {
  int64_t n = l->n;
  if (l->inner > 1) {
    if (log) F(grad_tile)(b->count, n, l->inner, true, g, y, dx);
    else F(grad_tile)(b->count, n, l->inner, false, g, y, dx);
    return;
  }
  if (log) {
    memcpy(dx, y, (size_t)(b->count * n) * sizeof(T));
    F(exp_all)(dx, b->count * n);
  }
  for (int64_t j = 0; j < b->count; j++) {
    if (log) F(grad_row)(n, true, g + j * n, dx + j * n, dx + j * n);
    else F(grad_row)(n, false, g + j * n, y + j * n, dx + j * n);
  }
}
