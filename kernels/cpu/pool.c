/* pool.c: max and average pooling. Planes are independent: threads share them. */
#include "cpu.h"

#include <math.h>

#include "core/memory.h"
#include "widen.h"

static tl_status no_memory(const tl_pooling *p, size_t bytes) {
  return TL_FAIL(TL_ERR_MEMORY, p->op, "no %.1f MB of scratch memory", (double)bytes / 1048576);
}

static int64_t x_plane(const tl_pooling *p) { return p->size[0] * p->size[1]; }
static int64_t y_plane(const tl_pooling *p) { return p->result[0] * p->result[1]; }
static bool is_parallel(const tl_pooling *p) { return p->planes * (x_plane(p) + y_plane(p)) > TL_PARALLEL_MIN; }

/* ---- max ---- */

#define LANES 16
#define COLUMNS 512 /* output columns of a row at a time */

/* The output columns v whose element w + v * stride lies in a row of `size`. */
static void inside(int64_t w, int64_t stride, int64_t size, int64_t columns, int64_t *begin, int64_t *end) {
  *begin = w < 0 ? (-w + stride - 1) / stride : 0;
  *end = w < size ? (size - w + stride - 1) / stride : 0;
  if (*end > columns) *end = columns;
}

/* One position of the window against n columns. The blocks of LANES have no rest, so they become whole vectors: the caller
 * rounds n up where that reads nothing outside of x; what the additional columns get is never looked at. */
#define TAP_KERNEL(T, SUFFIX)                                                                                        \
  static inline void tap_columns_##SUFFIX(int64_t n, int64_t stride, const T *x, int tap, T *best, int *where) {     \
    int64_t j = 0;                                                                                                   \
    for (; j + LANES <= n; j += LANES)                                                                               \
      for (int i = 0; i < LANES; i++) {                                                                              \
        const T v = x[(j + i) * stride];                                                                             \
        const bool wins = v > best[j + i] || v != v || where[j + i] < 0;                                             \
        best[j + i] = wins ? v : best[j + i];                                                                        \
        where[j + i] = wins ? tap : where[j + i];                                                                    \
      }                                                                                                              \
    for (; j < n; j++) {                                                                                             \
      const T v = x[j * stride];                                                                                     \
      const bool wins = v > best[j] || v != v || where[j] < 0;                                                       \
      best[j] = wins ? v : best[j];                                                                                  \
      where[j] = wins ? tap : where[j];                                                                              \
    }                                                                                                                \
  }                                                                                                                  \
  static void tap_##SUFFIX(int64_t n, int64_t stride, const T *x, int tap, T *best, int *where) {                    \
    if (stride == 1) tap_columns_##SUFFIX(n, 1, x, tap, best, where);                                                \
    else if (stride == 2) tap_columns_##SUFFIX(n, 2, x, tap, best, where);                                           \
    else tap_columns_##SUFFIX(n, stride, x, tap, best, where);                                                       \
  }

/* Output row u of one plane, columns first .. first + columns; `left` elements of x may be read from the plane's start. */
#define MAX_KERNEL(T, SUFFIX)                                                                                        \
  TAP_KERNEL(T, SUFFIX)                                                                                              \
  static void max_row_##SUFFIX(const tl_pooling *p, const T *x, int64_t left, int64_t u, int64_t first, int64_t columns, \
                               T *best, int *where) {                                                                \
    for (int64_t j = 0; j < COLUMNS; j++) best[j] = -(T)INFINITY, where[j] = -1;                                     \
    for (int64_t r = 0; r < p->kernel[0]; r++) {                                                                     \
      const int64_t h = u * p->stride[0] - p->padding[0] + r * p->dilation[0];                                       \
      if (h < 0 || h >= p->size[0]) continue;                                                                        \
      for (int64_t q = 0; q < p->kernel[1]; q++) {                                                                   \
        const int64_t w = first * p->stride[1] - p->padding[1] + q * p->dilation[1];                                 \
        int64_t begin, end;                                                                                          \
        inside(w, p->stride[1], p->size[1], columns, &begin, &end);                                                  \
        if (begin >= end) continue;                                                                                  \
        const int64_t at = h * p->size[1] + w + begin * p->stride[1];                                                \
        const int64_t whole = (end - begin + LANES - 1) / LANES * LANES;                                             \
        const bool fits = end == columns && begin + whole <= COLUMNS && at + (whole - 1) * p->stride[1] < left;      \
        tap_##SUFFIX(fits ? whole : end - begin, p->stride[1], x + at, (int)(r * p->kernel[1] + q), best + begin,    \
                     where + begin);                                                                                 \
      }                                                                                                              \
    }                                                                                                                \
  }                                                                                                                  \
  static void max_##SUFFIX(const tl_pooling *p, const T *x, T *y, void *where) {                                     \
    const int64_t in = x_plane(p), out = y_plane(p), width = p->result[1];                                           \
    _Pragma("omp parallel for schedule(static) if (is_parallel(p))") for (int64_t i = 0; i < p->planes; i++) {       \
      T best[COLUMNS];                                                                                               \
      int won[COLUMNS];                                                                                              \
      for (int64_t u = 0; u < p->result[0]; u++)                                                                     \
        for (int64_t v = 0; v < width; v += COLUMNS) {                                                               \
          const int64_t n = width - v < COLUMNS ? width - v : COLUMNS, at = i * out + u * width + v;                 \
          max_row_##SUFFIX(p, x + i * in, (p->planes - i) * in, u, v, n, best, won);                                 \
          memcpy(y + at, best, (size_t)n * sizeof *best);                                                            \
          if (where == NULL) continue;                                                                               \
          if (p->where_dtype == TL_INT32) memcpy((int32_t *)where + at, won, (size_t)n * sizeof *won);               \
          else                                                                                                       \
            for (int64_t j = 0; j < n; j++) ((uint8_t *)where)[at + j] = (uint8_t)won[j];                            \
        }                                                                                                            \
    }                                                                                                                \
  }                                                                                                                  \
  static void max_backward_##SUFFIX(const tl_pooling *p, const T *dy, const void *where, T *dx) {                    \
    const int64_t in = x_plane(p), out = y_plane(p);                                                                 \
    const bool bytes = p->where_dtype == TL_UINT8;                                                                   \
    _Pragma("omp parallel for schedule(static) if (is_parallel(p))") for (int64_t i = 0; i < p->planes; i++) {       \
      T *plane = dx + i * in;                                                                                        \
      memset(plane, 0, (size_t)in * sizeof *plane);                                                                  \
      for (int64_t u = 0, at = i * out; u < p->result[0]; u++)                                                       \
        for (int64_t v = 0; v < p->result[1]; v++, at++) {                                                           \
          const int tap = bytes ? ((const uint8_t *)where)[at] : ((const int32_t *)where)[at];                       \
          if (tap == (bytes ? 255 : -1)) continue;                                                                   \
          const int r = tap / (int)p->kernel[1], q = tap - r * (int)p->kernel[1];                                    \
          const int64_t h = u * p->stride[0] - p->padding[0] + r * p->dilation[0];                                   \
          plane[h * p->size[1] + v * p->stride[1] - p->padding[1] + q * p->dilation[1]] += dy[at];                   \
        }                                                                                                            \
    }                                                                                                                \
  }

MAX_KERNEL(float, f32)
MAX_KERNEL(double, f64)

/* ---- averages ---- */

/* Window i along one dim: elements begin .. end, and the extent that it counts for in the divisor. */
static void window(const tl_pooling *p, int d, int64_t i, int64_t *begin, int64_t *end, int64_t *extent) {
  const int64_t size = p->size[d];
  if (p->adaptive) {
    *begin = i * size / p->result[d];
    *end = ((i + 1) * size + p->result[d] - 1) / p->result[d];
    *extent = *end - *begin;
    return;
  }
  const int64_t first = i * p->stride[d] - p->padding[d], last = first + p->kernel[d];
  *begin = first < 0 ? 0 : first;
  *end = last > size ? size : last;
  if (*end < *begin) *end = *begin;
  /* a window over the far end (ceil_mode) counts padding, never what lies beyond it */
  *extent = p->count_include_pad ? (last > size + p->padding[d] ? size + p->padding[d] : last) - first : *end - *begin;
}

/* BODY sees top .. bottom, left .. right, the divisor and `at`, the element of y; for every window of plane i. */
#define FOR_WINDOWS(p, i, BODY)                                                                                      \
  for (int64_t u_ = 0, at = (i) * y_plane(p), top, bottom, high; u_ < (p)->result[0]; u_++) {                        \
    window(p, 0, u_, &top, &bottom, &high);                                                                          \
    for (int64_t v_ = 0, left, right, wide; v_ < (p)->result[1]; v_++, at++) {                                       \
      window(p, 1, v_, &left, &right, &wide);                                                                        \
      const int64_t divisor = high * wide;                                                                           \
      BODY                                                                                                           \
    }                                                                                                                \
  }

#define AVG_KERNEL(T, SUFFIX)                                                                                        \
  static void avg_##SUFFIX(const tl_pooling *p, const T *x, T *y) {                                                  \
    const int64_t in = x_plane(p), width = p->size[1];                                                               \
    _Pragma("omp parallel for schedule(static) if (is_parallel(p))") for (int64_t i = 0; i < p->planes; i++) {       \
      const T *plane = x + i * in;                                                                                   \
      FOR_WINDOWS(p, i, T sum = 0; for (int64_t h = top; h < bottom; h++) for (int64_t w = left; w < right; w++)     \
                                       sum += plane[h * width + w];                                                  \
                  y[at] = divisor == 0 ? (T)NAN : sum / (T)divisor;)                                                 \
    }                                                                                                                \
  }                                                                                                                  \
  static void avg_backward_##SUFFIX(const tl_pooling *p, const T *dy, T *dx) {                                       \
    const int64_t in = x_plane(p), width = p->size[1];                                                               \
    _Pragma("omp parallel for schedule(static) if (is_parallel(p))") for (int64_t i = 0; i < p->planes; i++) {       \
      T *plane = dx + i * in;                                                                                        \
      memset(plane, 0, (size_t)in * sizeof *plane);                                                                  \
      FOR_WINDOWS(p, i, const T share = dy[at] / (T)(divisor == 0 ? 1 : divisor);                                    \
                  for (int64_t h = top; h < bottom; h++) for (int64_t w = left; w < right; w++)                      \
                      plane[h * width + w] += share;)                                                                \
    }                                                                                                                \
  }
AVG_KERNEL(float, f32)
AVG_KERNEL(double, f64)

/* ---- all dtypes ---- */

/* float16 and bfloat16 run as float32: from and to are widened copies. */
typedef struct copies {
  float *from, *to;
  size_t bytes;
} copies;

static tl_status widen_input(const tl_pooling *p, const void *src, int64_t from, int64_t to, copies *c) {
  c->bytes = (size_t)(from + to) * sizeof(float);
  c->from = tl_cpu_alloc(c->bytes);
  if (c->from == NULL) return no_memory(p, c->bytes);
  c->to = c->from + from;
  tl_widen(c->from, p->dtype, src, from);
  return TL_OK;
}

static void narrow_output(const tl_pooling *p, void *dst, int64_t to, copies *c) {
  tl_narrow_to(dst, p->dtype, c->to, to);
  tl_cpu_free(c->from, c->bytes);
}

tl_status tl_cpu_max_pool(const tl_pooling *p, const void *x, void *y, void *where) {
  copies c = {0};
  if (p->dtype == TL_FLOAT32) max_f32(p, x, y, where);
  else if (p->dtype == TL_FLOAT64) max_f64(p, x, y, where);
  else {
    TL_TRY(widen_input(p, x, p->planes * x_plane(p), p->planes * y_plane(p), &c));
    max_f32(p, c.from, c.to, where);
    narrow_output(p, y, p->planes * y_plane(p), &c);
  }
  return TL_OK;
}

tl_status tl_cpu_max_pool_backward(const tl_pooling *p, const void *dy, const void *where, void *dx) {
  copies c = {0};
  if (p->dtype == TL_FLOAT32) max_backward_f32(p, dy, where, dx);
  else if (p->dtype == TL_FLOAT64) max_backward_f64(p, dy, where, dx);
  else {
    TL_TRY(widen_input(p, dy, p->planes * y_plane(p), p->planes * x_plane(p), &c));
    max_backward_f32(p, c.from, where, c.to);
    narrow_output(p, dx, p->planes * x_plane(p), &c);
  }
  return TL_OK;
}

tl_status tl_cpu_avg_pool(const tl_pooling *p, const void *x, void *y) {
  copies c = {0};
  if (p->dtype == TL_FLOAT32) avg_f32(p, x, y);
  else if (p->dtype == TL_FLOAT64) avg_f64(p, x, y);
  else {
    TL_TRY(widen_input(p, x, p->planes * x_plane(p), p->planes * y_plane(p), &c));
    avg_f32(p, c.from, c.to);
    narrow_output(p, y, p->planes * y_plane(p), &c);
  }
  return TL_OK;
}

tl_status tl_cpu_avg_pool_backward(const tl_pooling *p, const void *dy, void *dx) {
  copies c = {0};
  if (p->dtype == TL_FLOAT32) avg_backward_f32(p, dy, dx);
  else if (p->dtype == TL_FLOAT64) avg_backward_f64(p, dy, dx);
  else {
    TL_TRY(widen_input(p, dy, p->planes * y_plane(p), p->planes * x_plane(p), &c));
    avg_backward_f32(p, c.from, c.to);
    narrow_output(p, dx, p->planes * x_plane(p), &c);
  }
  return TL_OK;
}
