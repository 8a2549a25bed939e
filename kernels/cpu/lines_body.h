/* lines_body.h: maxima and sums of exponentials of lines, in the type T; included once for float and once for double.
 * F(f) is f's name in this type; blocks come from lines.h. */

#ifndef SHORT_ROW
#define SHORT_ROW 24 /* elements below which rows go side by side: on their own they would be mostly remainder */
#endif

/* nan is not seen here: it shows in the sum of exponentials */
static T F(row_max)(const T *x, int64_t n) {
  T m = -INFINITY;
#pragma omp simd reduction(max : m)
  for (int64_t c = 0; c < n; c++) m = x[c] > m ? x[c] : m;
  return m;
}

static T F(row_sum)(const T *x, int64_t n) {
  T s = 0;
#pragma omp simd reduction(+ : s)
  for (int64_t c = 0; c < n; c++) s += x[c];
  return s;
}

static void F(exp_all)(T *e, int64_t n) {
#pragma omp simd
  for (int64_t c = 0; c < n; c++) e[c] = f_exp(e[c]);
}

/* Rows of n elements. A row longer than a piece comes alone and goes piece by piece. */
static void F(exp_sums_rows)(const T *x, int64_t count, int64_t n, T *shift, T *sum, T *keep) {
  T scratch[TL_LINE_PIECE];
  for (int64_t j = 0; j < count; j++) {
    T m = F(row_max)(x + j * n, n);
    shift[j] = m == -INFINITY ? 0 : m;
    sum[j] = 0;
  }
  if (n > TL_LINE_PIECE) {
    for (int64_t done = 0; done < n; done += TL_LINE_PIECE) {
      int64_t w = n - done < TL_LINE_PIECE ? n - done : TL_LINE_PIECE;
      T *e = keep != NULL ? keep + done : scratch;
#pragma omp simd
      for (int64_t c = 0; c < w; c++) e[c] = x[done + c] - shift[0];
      F(exp_all)(e, w);
      sum[0] += F(row_sum)(e, w);
    }
    return;
  }
  T *e = keep != NULL ? keep : scratch;
  for (int64_t j = 0; j < count; j++)
    for (int64_t c = 0; c < n; c++) e[j * n + c] = x[j * n + c] - shift[j];
  F(exp_all)(e, count * n);
  for (int64_t j = 0; j < count; j++) sum[j] = F(row_sum)(e + j * n, n);
}

/* Lines side by side, element c of line j at c * sc + j * sj; sj = 1 is a constant where that is so. */
static inline __attribute__((always_inline)) void F(exp_sums_across)(const T *x, int64_t count, int64_t n, int64_t sc,
                                                                     int64_t sj, T *shift, T *sum, T *keep) {
  for (int64_t j = 0; j < count; j++) shift[j] = -INFINITY, sum[j] = 0;
  for (int64_t c = 0; c < n; c++) {
    const T *xc = x + c * sc;
#pragma omp simd
    for (int64_t j = 0; j < count; j++) shift[j] = xc[j * sj] > shift[j] ? xc[j * sj] : shift[j];
  }
  for (int64_t j = 0; j < count; j++) shift[j] = shift[j] == -INFINITY ? 0 : shift[j];
  for (int64_t c = 0; c < n; c++) {
    const T *xc = x + c * sc;
    T e[TL_LINES];
#pragma omp simd
    for (int64_t j = 0; j < count; j++) {
      e[j] = f_exp(xc[j * sj] - shift[j]);
      sum[j] += e[j];
    }
    for (int64_t j = 0; j < count && keep != NULL; j++) keep[c * sc + j * sj] = e[j];
  }
}

/* shift: a line's maximum (0 if that is -inf); sum: of exp(x - shift): 0 for a line that is all -inf, nan if one element
 * is. keep: those exponentials, laid out like x, or NULL. */
static void F(exp_sums)(const tl_lines *l, const tl_line_block *b, const T *x, T *shift, T *sum, T *keep) {
  if (l->inner > 1) F(exp_sums_across)(x, b->count, l->n, l->inner, 1, shift, sum, keep);
  else if (l->n < SHORT_ROW) F(exp_sums_across)(x, b->count, l->n, 1, l->n, shift, sum, keep);
  else F(exp_sums_rows)(x, b->count, l->n, shift, sum, keep);
}
