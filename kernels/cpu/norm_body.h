/* norm_body.h: batch norm in the type T; norm.c includes it for float and double. */
#include "sums_body.h"

/* Mean and biased variance in one pass round a guess of the mean; a second one when the guess was so far off (in standard
 * deviations) that the difference of the sums would cancel. */
static void F(moments)(const T *x, int64_t outer, int64_t stride, int64_t inner, double *mean, double *var) {
  double n = (double)outer * (double)inner, s1, s2;
  T shift = x[0];
  for (int pass = 0; pass < 3; pass++) {
    F(shifted_sums)(x, outer, stride, inner, shift, &s1, &s2);
    *mean = (double)shift + s1 / n;
    *var = (s2 - s1 * s1 / n) / n;
    if (!(s1 * s1 / n > 0.9 * s2)) break;
    shift = (T)*mean;
  }
  if (*var < 0) *var = 0;
}

/* ---- batch norm, a channel at a time: pieces of `inner` elements, `stride` apart ---- */

/* y = (x - shift) * scale + offset */
static void F(affine)(const T *x, T *y, int64_t outer, int64_t stride, int64_t inner, T shift, T scale, T offset) {
  for (int64_t o = 0; o < outer; o++) {
    const T *p = x + o * stride;
    T *q = y + o * stride;
#pragma omp simd
    for (int64_t i = 0; i < inner; i++) q[i] = (p[i] - shift) * scale + offset;
  }
}

typedef struct F(batch_arrays) {
  const T *x, *w, *b, *g, *mean_in, *invstd_in;
  T *y, *mean, *invstd, *running_mean, *running_var, *dx, *dw, *db;
} F(batch_arrays);

/* Channel c's statistics are known: keeps them, moves the running ones, gives y's coefficients. */
static void F(settle)(const tl_batch_norm_args *a, const F(batch_arrays) * v, int64_t c, double mean, double var,
                      T *shift, T *scale, T *offset) {
  double n = (double)a->outer * (double)a->inner, invstd = 1 / sqrt(var + a->eps);
  if (a->batch_stats && v->running_mean != NULL) {
    v->running_mean[c] = (T)((double)v->running_mean[c] + a->momentum * (mean - (double)v->running_mean[c]));
    v->running_var[c] = (T)((double)v->running_var[c] + a->momentum * (var * n / (n - 1) - (double)v->running_var[c]));
  }
  v->mean[c] = (T)mean;
  v->invstd[c] = (T)invstd;
  *shift = (T)mean;
  *scale = (T)(invstd * (v->w == NULL ? 1 : (double)v->w[c]));
  /* what the rounding of the mean took away goes into the offset */
  *offset = (T)((v->b == NULL ? 0 : (double)v->b[c]) - (mean - (double)*shift) * (double)*scale);
}

static void F(batch_channel)(const tl_batch_norm_args *a, const F(batch_arrays) * v, int64_t c) {
  const T *x = v->x + c * a->inner;
  int64_t stride = a->channels * a->inner;
  double mean, var;
  T shift, scale, offset;
  if (a->batch_stats) {
    F(moments)(x, a->outer, stride, a->inner, &mean, &var);
  } else {
    mean = (double)v->running_mean[c];
    var = (double)v->running_var[c];
  }
  F(settle)(a, v, c, mean, var, &shift, &scale, &offset);
  F(affine)(x, v->y + c * a->inner, a->outer, stride, a->inner, shift, scale, offset);
}

/* dx = p g + q (x - mean) + r */
static void F(batch_grad_channel)(const tl_batch_norm_grad_args *a, const F(batch_arrays) * v, int64_t c) {
  int64_t stride = a->channels * a->inner;
  const T *x = v->x + c * a->inner, *g = v->g + c * a->inner, m = v->mean_in[c];
  double sg = 0, sgx = 0, n = (double)a->outer * (double)a->inner, invstd = (double)v->invstd_in[c];
  if (a->batch_stats || v->dw != NULL || v->db != NULL)
    for (int64_t o = 0; o < a->outer; o++)
      for (int64_t done = 0; done < a->inner; done += PIECE) {
        const T *xp = x + o * stride + done, *gp = g + o * stride + done;
        int64_t w = a->inner - done < PIECE ? a->inner - done : PIECE;
        T s = 0, t = 0;
#pragma omp simd reduction(+ : s, t)
        for (int64_t i = 0; i < w; i++) {
          s += gp[i];
          t += gp[i] * (xp[i] - m);
        }
        sg += (double)s;
        sgx += (double)t;
      }
  if (v->dw != NULL) v->dw[c] = (T)(sgx * invstd);
  if (v->db != NULL) v->db[c] = (T)sg;
  if (v->dx == NULL) return;
  double scale = invstd * (v->w == NULL ? 1 : (double)v->w[c]);
  const T p = (T)scale, q = a->batch_stats ? (T)(-scale * invstd * invstd * sgx / n) : 0,
          r = a->batch_stats ? (T)(-scale * sg / n) : 0;
  for (int64_t o = 0; o < a->outer; o++) {
    const T *xp = x + o * stride, *gp = g + o * stride;
    T *dp = v->dx + c * a->inner + o * stride;
#pragma omp simd
    for (int64_t i = 0; i < a->inner; i++) dp[i] = p * gp[i] + (q * (xp[i] - m) + r);
  }
}

/* ---- batch norm of (outer, channels): `count` neighbouring channels at a time ---- */

static void F(column_sums)(const T *x, int64_t rows, int64_t stride, int64_t count, const T *shift, double *s1,
                           double *s2) {
  for (int64_t j = 0; j < count; j++) s1[j] = s2[j] = 0;
  for (int64_t first = 0; first < rows; first += ROWS) {
    int64_t end = first + ROWS < rows ? first + ROWS : rows;
    T a[COLUMNS] = {0}, b[COLUMNS] = {0};
    for (int64_t r = first; r < end; r++) {
      const T *p = x + r * stride;
#pragma omp simd
      for (int64_t j = 0; j < count; j++) {
        T d = p[j] - shift[j];
        a[j] += d;
        b[j] += d * d;
      }
    }
    for (int64_t j = 0; j < count; j++) {
      s1[j] += (double)a[j];
      s2[j] += (double)b[j];
    }
  }
}

/* As moments(), for all columns of the block at once. */
static void F(column_moments)(const T *x, int64_t rows, int64_t stride, int64_t count, double *mean, double *var) {
  double s1[COLUMNS], s2[COLUMNS], n = (double)rows;
  T shift[COLUMNS];
  for (int64_t j = 0; j < count; j++) shift[j] = x[j];
  for (int pass = 0; pass < 3; pass++) {
    bool again = false;
    F(column_sums)(x, rows, stride, count, shift, s1, s2);
    for (int64_t j = 0; j < count; j++) {
      mean[j] = (double)shift[j] + s1[j] / n;
      var[j] = (s2[j] - s1[j] * s1[j] / n) / n;
      if (var[j] < 0) var[j] = 0;
      if (!(s1[j] * s1[j] / n > 0.9 * s2[j])) continue;
      shift[j] = (T)mean[j];
      again = true;
    }
    if (!again) break;
  }
}

static void F(batch_columns)(const tl_batch_norm_args *a, const F(batch_arrays) * v, int64_t c, int64_t count) {
  double mean[COLUMNS], var[COLUMNS];
  T shift[COLUMNS], scale[COLUMNS], offset[COLUMNS];
  if (a->batch_stats) F(column_moments)(v->x + c, a->outer, a->channels, count, mean, var);
  for (int64_t j = 0; j < count; j++) {
    if (!a->batch_stats) {
      mean[j] = (double)v->running_mean[c + j];
      var[j] = (double)v->running_var[c + j];
    }
    F(settle)(a, v, c + j, mean[j], var[j], &shift[j], &scale[j], &offset[j]);
  }
  for (int64_t r = 0; r < a->outer; r++) {
    const T *p = v->x + r * a->channels + c;
    T *q = v->y + r * a->channels + c;
#pragma omp simd
    for (int64_t j = 0; j < count; j++) q[j] = (p[j] - shift[j]) * scale[j] + offset[j];
  }
}

static void F(batch_grad_columns)(const tl_batch_norm_grad_args *a, const F(batch_arrays) * v, int64_t c,
                                  int64_t count) {
  double sg[COLUMNS] = {0}, sgx[COLUMNS] = {0}, n = (double)a->outer;
  const T *m = v->mean_in + c;
  T p[COLUMNS], q[COLUMNS], r[COLUMNS];
  for (int64_t first = 0; first < a->outer; first += ROWS) {
    int64_t end = first + ROWS < a->outer ? first + ROWS : a->outer;
    T s[COLUMNS] = {0}, t[COLUMNS] = {0};
    for (int64_t o = first; o < end; o++) {
      const T *xp = v->x + o * a->channels + c, *gp = v->g + o * a->channels + c;
#pragma omp simd
      for (int64_t j = 0; j < count; j++) {
        s[j] += gp[j];
        t[j] += gp[j] * (xp[j] - m[j]);
      }
    }
    for (int64_t j = 0; j < count; j++) sg[j] += (double)s[j], sgx[j] += (double)t[j];
  }
  for (int64_t j = 0; j < count; j++) {
    double invstd = (double)v->invstd_in[c + j], scale = invstd * (v->w == NULL ? 1 : (double)v->w[c + j]);
    if (v->dw != NULL) v->dw[c + j] = (T)(sgx[j] * invstd);
    if (v->db != NULL) v->db[c + j] = (T)sg[j];
    p[j] = (T)scale;
    q[j] = a->batch_stats ? (T)(-scale * invstd * invstd * sgx[j] / n) : 0;
    r[j] = a->batch_stats ? (T)(-scale * sg[j] / n) : 0;
  }
  for (int64_t o = 0; o < a->outer && v->dx != NULL; o++) {
    const T *xp = v->x + o * a->channels + c, *gp = v->g + o * a->channels + c;
    T *dp = v->dx + o * a->channels + c;
#pragma omp simd
    for (int64_t j = 0; j < count; j++) dp[j] = p[j] * gp[j] + (q[j] * (xp[j] - m[j]) + r[j]);
  }
}
