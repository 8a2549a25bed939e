/* row_norm_body.h: normalisation of rows of (channels, inner) in the type T; row_norm.c includes it for float and double. */
#include "sums_body.h"

typedef struct F(row_arrays) {
  const T *x, *w, *b, *g, *mean_in, *invstd_in;
  T *y, *mean, *invstd, *dx, *dw, *db;
} F(row_arrays);

static T F(mean_of)(const T *x, int64_t n) {
  double total = 0;
  for (int64_t done = 0; done < n; done += PIECE) {
    int64_t w = n - done < PIECE ? n - done : PIECE;
    T s = 0;
#pragma omp simd reduction(+ : s)
    for (int64_t i = 0; i < w; i++) s += x[done + i];
    total += (double)s;
  }
  return (T)(total / (double)n);
}

/* y = ((x - m) r + k) w + b. Weighted and biased are constants where this is called: each case becomes a loop of its own. */
static inline __attribute__((always_inline)) void F(scale_row)(const T *x, T *y, int64_t n, T m, T r, T k, const T *w,
                                                               const T *b, bool weighted, bool biased) {
#pragma omp simd
  for (int64_t c = 0; c < n; c++) {
    T v = (x[c] - m) * r + k;
    if (weighted) v *= w[c];
    if (biased) v += b[c];
    y[c] = v;
  }
}

static void F(norm_row)(const tl_row_norm_args *a, const F(row_arrays) * v, int64_t row) {
  int64_t n = a->channels * a->inner, first = row % a->groups * a->channels;
  const T *x = v->x + row * n, *w = v->w == NULL ? NULL : v->w + first, *b = v->b == NULL ? NULL : v->b + first;
  T *y = v->y + row * n;
  const T m = a->centre ? F(mean_of)(x, n) : 0;
  double s1, s2, rest, var;
  F(shifted_sums)(x, 1, 0, n, m, &s1, &s2);
  rest = a->centre ? s1 / (double)n : 0; /* what the rounding of m left */
  var = s2 / (double)n - rest * rest;
  const T r = (T)(1 / sqrt((var > 0 || var != var ? var : 0) + a->eps)), k = (T)(-rest * (double)r);
  if (v->mean != NULL) v->mean[row] = m;
  v->invstd[row] = r;
  if (a->inner == 1) {
    if (w != NULL && b != NULL) F(scale_row)(x, y, n, m, r, k, w, b, true, true);
    else if (w != NULL) F(scale_row)(x, y, n, m, r, k, w, b, true, false);
    else if (b != NULL) F(scale_row)(x, y, n, m, r, k, w, b, false, true);
    else F(scale_row)(x, y, n, m, r, k, w, b, false, false);
    return;
  }
  for (int64_t c = 0; c < a->channels; c++) {
    const T scale = w == NULL ? 1 : w[c], offset = b == NULL ? 0 : b[c];
#pragma omp simd
    for (int64_t i = c * a->inner; i < (c + 1) * a->inner; i++) y[i] = ((x[i] - m) * r + k) * scale + offset;
  }
}

/* Sums of g w and g w (x - m); weighted as above */
static inline __attribute__((always_inline)) void F(weighted_sums)(const T *x, const T *g, const T *w, int64_t n, T m,
                                                                   bool weighted, double *sg, double *sgx) {
  T s = 0, t = 0;
#pragma omp simd reduction(+ : s, t)
  for (int64_t c = 0; c < n; c++) {
    T gw = weighted ? g[c] * w[c] : g[c];
    s += gw;
    t += gw * (x[c] - m);
  }
  *sg = (double)s;
  *sgx = (double)t;
}

/* dx = r g w + q (x - m) + k */
static inline __attribute__((always_inline)) void F(grad_row)(const T *x, const T *g, const T *w, T *dx, int64_t n, T m,
                                                              T r, T q, T k, bool weighted) {
#pragma omp simd
  for (int64_t c = 0; c < n; c++) dx[c] = r * (weighted ? g[c] * w[c] : g[c]) + (q * (x[c] - m) + k);
}

/* Sums of g w and g w (x - m) over the row; this row's share is added to dw and db (each or NULL). */
static void F(row_grad_sums)(const tl_row_norm_grad_args *a, const T *x, const T *g, const T *w, T m, T r, T *dw, T *db,
                             double *sg, double *sgx) {
  if (a->inner == 1) {
    int64_t n = a->channels;
    if (w != NULL) F(weighted_sums)(x, g, w, n, m, true, sg, sgx);
    else F(weighted_sums)(x, g, w, n, m, false, sg, sgx);
#pragma omp simd
    for (int64_t c = 0; c < (dw == NULL ? 0 : n); c++) dw[c] += g[c] * ((x[c] - m) * r);
#pragma omp simd
    for (int64_t c = 0; c < (db == NULL ? 0 : n); c++) db[c] += g[c];
    return;
  }
  *sg = *sgx = 0;
  for (int64_t c = 0; c < a->channels; c++) {
    T p = 0, q = 0;
#pragma omp simd reduction(+ : p, q)
    for (int64_t i = c * a->inner; i < (c + 1) * a->inner; i++) {
      p += g[i];
      q += g[i] * (x[i] - m);
    }
    *sg += (double)(p * (w == NULL ? 1 : w[c]));
    *sgx += (double)(q * (w == NULL ? 1 : w[c]));
    if (dw != NULL) dw[c] += q * r;
    if (db != NULL) db[c] += p;
  }
}

static void F(norm_row_grad)(const tl_row_norm_grad_args *a, const F(row_arrays) * v, int64_t row, T *dw, T *db) {
  int64_t n = a->channels * a->inner, first = row % a->groups * a->channels;
  const T *x = v->x + row * n, *g = v->g + row * n, *w = v->w == NULL ? NULL : v->w + first;
  const T m = v->mean_in == NULL ? 0 : v->mean_in[row], r = v->invstd_in[row];
  double sg, sgx;
  F(row_grad_sums)(a, x, g, w, m, r, dw == NULL ? NULL : dw + first, db == NULL ? NULL : db + first, &sg, &sgx);
  if (v->dx == NULL) return;
  T *dx = v->dx + row * n;
  const T q = (T)(-(double)r * (double)r * (double)r * sgx / (double)n);
  const T k = v->mean_in == NULL ? 0 : (T)(-(double)r * sg / (double)n);
  if (a->inner == 1) {
    if (w != NULL) F(grad_row)(x, g, w, dx, n, m, r, q, k, true);
    else F(grad_row)(x, g, w, dx, n, m, r, q, k, false);
    return;
  }
  for (int64_t c = 0; c < a->channels; c++) {
    const T p = r * (w == NULL ? 1 : w[c]);
#pragma omp simd
    for (int64_t i = c * a->inner; i < (c + 1) * a->inner; i++) dx[i] = p * g[i] + (q * (x[i] - m) + k);
  }
}

/* Rows first..end-1, added to dw and db, which are zeroed first. */
static void F(norm_rows_grad)(const tl_row_norm_grad_args *a, const F(row_arrays) * v, int64_t first, int64_t end,
                              T *dw, T *db) {
  size_t bytes = (size_t)(a->groups * a->channels) * sizeof(T);
  if (dw != NULL) memset(dw, 0, bytes);
  if (db != NULL) memset(db, 0, bytes);
  for (int64_t r = first; r < end; r++) F(norm_row_grad)(a, v, r, dw, db);
}

/* dw, db = the sums of the blocks' parts, in order */
static void F(add_parts)(const T *parts, int64_t blocks, int64_t step, int64_t n, T *out) {
  if (out == NULL) return;
  memcpy(out, parts, (size_t)n * sizeof(T));
  for (int64_t b = 1; b < blocks; b++)
    for (int64_t i = 0; i < n; i++) out[i] += parts[b * step + i];
}

static tl_status F(row_norm_grad)(const tl_row_norm_grad_args *a, const F(row_arrays) * v) {
  int64_t n = a->groups * a->channels, blocks = a->x->numel < TL_PARALLEL_MIN ? 1 : a->rows < BLOCKS ? a->rows : BLOCKS;
  if (blocks == 1) {
    F(norm_rows_grad)(a, v, 0, a->rows, v->dw, v->db);
    return TL_OK;
  }
  T *parts = tl_host_alloc((size_t)(blocks * 2 * n) * sizeof(T));
  if (parts == NULL) return TL_FAIL(TL_ERR_MEMORY, "layer_norm", "no memory for partial sums of the weight's gradient");
#pragma omp parallel for schedule(static)
  for (int64_t b = 0; b < blocks; b++) {
    T *dw = v->dw == NULL ? NULL : parts + b * 2 * n, *db = v->db == NULL ? NULL : parts + (b * 2 + 1) * n;
    F(norm_rows_grad)(a, v, b * a->rows / blocks, (b + 1) * a->rows / blocks, dw, db);
  }
  F(add_parts)(parts, blocks, 2 * n, n, v->dw);
  F(add_parts)(parts + n, blocks, 2 * n, n, v->db);
  tl_host_free(parts);
  return TL_OK;
}
