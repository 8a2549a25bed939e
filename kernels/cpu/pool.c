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

/* The largest element of the window of output (u, v) of one plane; *where is its position, -1 when there is none. */
#define MAX_WINDOW(T, SUFFIX)                                                                       \
  static T max_window_##SUFFIX(const tl_pooling *p, const T *x, int64_t u, int64_t v, int *where) { \
    T best = -(T)INFINITY;                                                                          \
    *where = -1;                                                                                    \
    for (int64_t r = 0; r < p->kernel[0]; r++)                                                      \
      for (int64_t q = 0; q < p->kernel[1]; q++) {                                                  \
        const int64_t h = u * p->stride[0] - p->padding[0] + r * p->dilation[0];                    \
        const int64_t w = v * p->stride[1] - p->padding[1] + q * p->dilation[1];                    \
        if (h < 0 || h >= p->size[0] || w < 0 || w >= p->size[1]) continue;                         \
        const T at = x[h * p->size[1] + w];                                                         \
        if (!(at > best || at != at || *where < 0)) continue;                                       \
        best = at;                                                                                  \
        *where = (int)(r * p->kernel[1] + q);                                                       \
      }                                                                                             \
    return best;                                                                                    \
  }

MAX_WINDOW(float, f32)
MAX_WINDOW(double, f64)

/* LANES neighbouring windows of a float32 row at once. GCC finds no vectors in that search by itself, so they are
 * spelled with its vector types, which every instruction set of the build knows how to split. */
#define LANES 16
typedef float floats __attribute__((vector_size(LANES * sizeof(float)), may_alias));
typedef int32_t ints __attribute__((vector_size(LANES * sizeof(int32_t)), may_alias));

/* *lanes = x[0], x[stride], ..: reads 2 * LANES elements for a stride of 2 */
static inline void load_lanes(const float *x, int64_t stride, floats *lanes) {
  floats a, b;
  memcpy(&a, x, sizeof a);
  if (stride == 2) {
    memcpy(&b, x + LANES, sizeof b);
    a = __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  } else if (stride != 1) {
    for (int i = 0; i < LANES; i++) a[i] = x[i * stride];
  }
  *lanes = a;
}

/* Windows (u, v) .. (u, v + LANES): none reaches over the left or right edge, except lanes that nobody looks at. */
static inline void max_lanes(const tl_pooling *p, const float *x, int64_t u, int64_t v, float *best_out,
                             int32_t *where_out) {
  floats best = {0};
  ints where = {0}, any = {0};
  any -= 1;
  best -= INFINITY;
  where -= 1;
  for (int64_t r = 0; r < p->kernel[0]; r++) {
    const int64_t h = u * p->stride[0] - p->padding[0] + r * p->dilation[0];
    if (h < 0 || h >= p->size[0]) continue;
    const float *row = x + h * p->size[1] + v * p->stride[1] - p->padding[1];
    for (int64_t q = 0; q < p->kernel[1]; q++, any = (ints){0}) {
      floats at;
      load_lanes(row + q * p->dilation[1], p->stride[1], &at);
      const ints wins = (at > best) | (at != at) | any, tap = (ints){0} + (int32_t)(r * p->kernel[1] + q);
      best = (floats)(((ints)at & wins) | ((ints)best & ~wins));
      where = (tap & wins) | (where & ~wins);
    }
  }
  memcpy(best_out, &best, sizeof best);
  memcpy(where_out, &where, sizeof where);
}

/* How many windows from column v one step takes, at most LANES; *lanes: max_lanes can do them. They are windows of one
 * kind: over the left edge, inside, or over the right edge. `left` elements can be read from the plane's start. */
static int64_t step_of(const tl_pooling *p, int64_t u, int64_t v, int64_t left, bool *lanes) {
  const int64_t first = v * p->stride[1] - p->padding[1], reach = (p->kernel[1] - 1) * p->dilation[1];
  int64_t n = p->result[1] - v < LANES ? p->result[1] - v : LANES, room;
  *lanes = false;
  if (first < 0) {
    room = (-first + p->stride[1] - 1) / p->stride[1];
    return n < room ? n : room;
  }
  if (first + reach >= p->size[1]) return n;
  room = (p->size[1] - 1 - reach - first) / p->stride[1] + 1;
  int64_t bottom = u * p->stride[0] - p->padding[0] + (p->kernel[0] - 1) * p->dilation[0];
  if (bottom >= p->size[0]) bottom = p->size[0] - 1;
  *lanes = bottom * p->size[1] + first + reach + LANES * p->stride[1] <= left;
  return n < room ? n : room;
}

static void store_where(const tl_pooling *p, void *where, int64_t at, const int32_t *won, int64_t n) {
  if (where == NULL) return;
  if (p->where_dtype == TL_INT32) memcpy((int32_t *)where + at, won, (size_t)n * sizeof *won);
  else
    for (int64_t i = 0; i < n; i++) ((uint8_t *)where)[at + i] = (uint8_t)won[i];
}

static void max_f32(const tl_pooling *p, const float *x, float *y, void *where) {
  const int64_t in = x_plane(p), out = y_plane(p), width = p->result[1];
#pragma omp parallel for schedule(static) if (is_parallel(p))
  for (int64_t i = 0; i < p->planes; i++)
    for (int64_t u = 0; u < p->result[0]; u++)
      for (int64_t v = 0, n; v < width; v += n) {
        float best[LANES];
        int32_t won[LANES];
        bool lanes;
        const int64_t at = i * out + u * width + v;
        n = step_of(p, u, v, (p->planes - i) * in, &lanes);
        if (lanes) {
          max_lanes(p, x + i * in, u, v, best, won);
        } else {
          for (int64_t j = 0; j < n; j++) best[j] = max_window_f32(p, x + i * in, u, v + j, &won[j]);
        }
        memcpy(y + at, best, (size_t)n * sizeof *best);
        store_where(p, where, at, won, n);
      }
}

static void max_f64(const tl_pooling *p, const double *x, double *y, void *where) {
  const int64_t in = x_plane(p), out = y_plane(p);
#pragma omp parallel for schedule(static) if (is_parallel(p))
  for (int64_t i = 0; i < p->planes; i++)
    for (int64_t o = 0; o < out; o++) {
      int32_t won;
      y[i * out + o] = max_window_f64(p, x + i * in, o / p->result[1], o % p->result[1], &won);
      store_where(p, where, i * out + o, &won, 1);
    }
}

/* Elements from a window's first position to position t. */
static int64_t place_of(const tl_pooling *p, int64_t t) {
  return t / p->kernel[1] * p->dilation[0] * p->size[1] + t % p->kernel[1] * p->dilation[1];
}

#define TAPS 64 /* positions whose places are worked out once */

/* dx += dy where the element of y came from; a byte's 255 is its -1 */
#define MAX_BACKWARD(T, SUFFIX)                                                                                \
  static void max_backward_##SUFFIX(const tl_pooling *p, const T *dy, const void *where, T *dx) {              \
    const int64_t in = x_plane(p), out = y_plane(p), taps = p->kernel[0] * p->kernel[1];                       \
    const bool bytes = p->where_dtype == TL_UINT8;                                                             \
    int64_t place[TAPS];                                                                                       \
    for (int64_t t = 0; t < taps && t < TAPS; t++) place[t] = place_of(p, t);                                  \
    _Pragma("omp parallel for schedule(static) if (is_parallel(p))") for (int64_t i = 0; i < p->planes; i++) { \
      T *plane = dx + i * in;                                                                                  \
      memset(plane, 0, (size_t)in * sizeof *plane);                                                            \
      for (int64_t u = 0, at = i * out; u < p->result[0]; u++) {                                               \
        const int64_t corner = (u * p->stride[0] - p->padding[0]) * p->size[1] - p->padding[1];                \
        for (int64_t v = 0; v < p->result[1]; v++, at++) {                                                     \
          const int tap = bytes ? ((const uint8_t *)where)[at] : ((const int32_t *)where)[at];                 \
          if (tap == (bytes ? 255 : -1)) continue;                                                             \
          plane[corner + v * p->stride[1] + (tap < TAPS ? place[tap] : place_of(p, tap))] += dy[at];           \
        }                                                                                                      \
      }                                                                                                        \
    }                                                                                                          \
  }

MAX_BACKWARD(float, f32)
MAX_BACKWARD(double, f64)

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
#define FOR_WINDOWS(p, i, BODY)                                                             \
  for (int64_t u_ = 0, at = (i)*y_plane(p), top, bottom, high; u_ < (p)->result[0]; u_++) { \
    window(p, 0, u_, &top, &bottom, &high);                                                 \
    for (int64_t v_ = 0, left, right, wide; v_ < (p)->result[1]; v_++, at++) {              \
      window(p, 1, v_, &left, &right, &wide);                                               \
      const int64_t divisor = high * wide;                                                  \
      BODY                                                                                  \
    }                                                                                       \
  }

#define AVG_KERNEL(T, SUFFIX)                                                                                    \
  static void avg_##SUFFIX(const tl_pooling *p, const T *x, T *y) {                                              \
    const int64_t in = x_plane(p), width = p->size[1];                                                           \
    _Pragma("omp parallel for schedule(static) if (is_parallel(p))") for (int64_t i = 0; i < p->planes; i++) {   \
      const T *plane = x + i * in;                                                                               \
      FOR_WINDOWS(p, i, T sum = 0; for (int64_t h = top; h < bottom; h++) for (int64_t w = left; w < right; w++) \
                                       sum += plane[h * width + w];                                              \
                  y[at] = divisor == 0 ? (T)NAN : sum / (T)divisor;)                                             \
    }                                                                                                            \
  }                                                                                                              \
  static void avg_backward_##SUFFIX(const tl_pooling *p, const T *dy, T *dx) {                                   \
    const int64_t in = x_plane(p), width = p->size[1];                                                           \
    _Pragma("omp parallel for schedule(static) if (is_parallel(p))") for (int64_t i = 0; i < p->planes; i++) {   \
      T *plane = dx + i * in;                                                                                    \
      memset(plane, 0, (size_t)in * sizeof *plane);                                                              \
      FOR_WINDOWS(p, i, const T share = dy[at] / (T)(divisor == 0 ? 1 : divisor);                                \
                  for (int64_t h = top; h < bottom; h++) for (int64_t w = left; w < right; w++)                  \
                      plane[h * width + w] += share;)                                                            \
    }                                                                                                            \
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
