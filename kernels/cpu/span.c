/* span.c: lists of gradients: their norm, scaling, clamping, unscaling with a look at what is finite. */
#include "cpu.h"

#include <math.h>

#include "convert.h"
#include "formula.h"

#define BLOCK 8192
#define GROUPS 64 /* a long list is cut into so many pieces, each summed on its own, whatever the number of threads */

static int64_t blocks_of(const tl_span *s) { return (s->n + BLOCK - 1) / BLOCK; }

static int64_t elements_of(int n, const tl_span *list, int64_t *blocks) {
  int64_t elements = 0;
  *blocks = 0;
  for (int i = 0; i < n; i++) elements += list[i].n, *blocks += blocks_of(&list[i]);
  return elements;
}

/* ---- norms ---- */

/* The largest |x|: as integers the bits of positive floats have the order of the floats, and nan is above inf. */
static double largest_f32(const float *x, int64_t n) {
  uint32_t top = 0;
#pragma omp simd reduction(max : top)
  for (int64_t i = 0; i < n; i++) {
    uint32_t bits;
    memcpy(&bits, &x[i], sizeof bits);
    bits &= 0x7fffffffu;
    top = bits > top ? bits : top;
  }
  float f;
  memcpy(&f, &top, sizeof f);
  return f;
}

static double largest_f64(const double *x, int64_t n) {
  uint64_t top = 0;
#pragma omp simd reduction(max : top)
  for (int64_t i = 0; i < n; i++) {
    uint64_t bits;
    memcpy(&bits, &x[i], sizeof bits);
    bits &= 0x7fffffffffffffffu;
    top = bits > top ? bits : top;
  }
  double d;
  memcpy(&d, &top, sizeof d);
  return d;
}

#define POWER_SUM(name, T, largest)                                                                              \
  static double name(const T *x, int64_t n, double p) {                                                          \
    double sum = 0;                                                                                              \
    if (p == 2) {                                                                                                \
      _Pragma("omp simd reduction(+ : sum)") for (int64_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i]; \
    } else if (p == 1) {                                                                                         \
      _Pragma("omp simd reduction(+ : sum)") for (int64_t i = 0; i < n; i++) sum += fabs((double)x[i]);          \
    } else if (p == INFINITY) {                                                                                  \
      sum = largest(x, n);                                                                                       \
    } else {                                                                                                     \
      for (int64_t i = 0; i < n; i++) sum += pow(fabs((double)x[i]), p);                                         \
    }                                                                                                            \
    return sum;                                                                                                  \
  }
POWER_SUM(power_sum_f32, float, largest_f32)
POWER_SUM(power_sum_f64, double, largest_f64)

static double join(double a, double b, double p) { return p == INFINITY ? f_max(a, b) : a + b; }

static double norm_block(const tl_span *s, int64_t first, int64_t n, double p) {
  if (s->dtype == TL_FLOAT32) return power_sum_f32((const float *)s->data + first, n, p);
  if (s->dtype == TL_FLOAT64) return power_sum_f64((const double *)s->data + first, n, p);
  float x[TL_CHUNK];
  double sum = 0;
  for (int64_t end = first + n; first < end; first += TL_CHUNK) {
    int m = end - first < TL_CHUNK ? (int)(end - first) : TL_CHUNK;
    tl_load_f32(x, s->dtype, (const char *)s->data + first * 2, 2, m);
    sum = join(sum, power_sum_f32(x, m, p), p);
  }
  return sum;
}

/* Blocks first .. end-1 of the whole list. */
static double norm_blocks(int n, const tl_span *list, int64_t first, int64_t end, double p) {
  double sum = 0;
  for (int i = 0; i < n && end > 0; i++) {
    int64_t blocks = blocks_of(&list[i]);
    for (int64_t k = first < 0 ? 0 : first; k < blocks && k < end; k++)
      sum = join(sum, norm_block(&list[i], k * BLOCK, list[i].n - k * BLOCK < BLOCK ? list[i].n - k * BLOCK : BLOCK, p),
                 p);
    first -= blocks;
    end -= blocks;
  }
  return sum;
}

tl_status tl_cpu_span_norm(int n, const tl_span *list, double p, double *result) {
  int64_t blocks, elements = elements_of(n, list, &blocks);
  if (elements < TL_PARALLEL_MIN) {
    *result = norm_blocks(n, list, 0, blocks, p);
    return TL_OK;
  }
  double part[GROUPS], sum = 0;
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < GROUPS; i++)
    part[i] = norm_blocks(n, list, i * blocks / GROUPS, (i + 1) * blocks / GROUPS, p);
  for (int i = 0; i < GROUPS; i++) sum = join(sum, part[i], p);
  *result = sum;
  return TL_OK;
}

/* ---- changes in place ---- */

enum { SCALE, CLAMP };

static void change_f32(int what, float *x, int64_t n, double value) {
  const float v = (float)value;
  if (what == SCALE) {
    for (int64_t i = 0; i < n; i++) x[i] *= v;
  } else {
    for (int64_t i = 0; i < n; i++) x[i] = f32_clamp(x[i], -v, v);
  }
}

static void change_f64(int what, double *x, int64_t n, double value) {
  if (what == SCALE) {
    for (int64_t i = 0; i < n; i++) x[i] *= value;
  } else {
    for (int64_t i = 0; i < n; i++) x[i] = f64_clamp(x[i], -value, value);
  }
}

static void change_block(int what, const tl_span *s, int64_t first, int64_t n, double value) {
  if (s->dtype == TL_FLOAT32) {
    change_f32(what, (float *)s->data + first, n, value);
    return;
  }
  if (s->dtype == TL_FLOAT64) {
    change_f64(what, (double *)s->data + first, n, value);
    return;
  }
  float x[TL_CHUNK];
  for (int64_t end = first + n; first < end; first += TL_CHUNK) {
    int m = end - first < TL_CHUNK ? (int)(end - first) : TL_CHUNK;
    char *data = (char *)s->data + first * 2;
    tl_load_f32(x, s->dtype, data, 2, m);
    change_f32(what, x, m, value);
    tl_store_f32(data, s->dtype, 2, x, m);
  }
}

static tl_status change(int what, int n, const tl_span *list, double value) {
  int64_t blocks, elements = elements_of(n, list, &blocks);
  if (elements < TL_PARALLEL_MIN) {
    for (int i = 0; i < n; i++) change_block(what, &list[i], 0, list[i].n, value);
    return TL_OK;
  }
#pragma omp parallel
  for (int i = 0; i < n; i++) {
    int64_t count = blocks_of(&list[i]), size = list[i].n;
#pragma omp for schedule(static) nowait
    for (int64_t k = 0; k < count; k++)
      change_block(what, &list[i], k * BLOCK, size - k * BLOCK < BLOCK ? size - k * BLOCK : BLOCK, value);
  }
  return TL_OK;
}

tl_status tl_cpu_span_scale(int n, const tl_span *list, double factor) { return change(SCALE, n, list, factor); }
tl_status tl_cpu_span_clamp(int n, const tl_span *list, double limit) { return change(CLAMP, n, list, limit); }

/* ---- unscaling ---- */

/* x *= v; is a result not finite? Its exponent bits are all ones then, which is more than any other float's. */
static bool unscale_f32(float *x, int64_t n, float v) {
  uint32_t top = 0;
#pragma omp simd reduction(max : top)
  for (int64_t i = 0; i < n; i++) {
    const float y = x[i] * v;
    uint32_t bits;
    memcpy(&bits, &y, sizeof bits);
    bits &= 0x7fffffffu;
    top = bits > top ? bits : top;
    x[i] = y;
  }
  return top >= 0x7f800000u;
}

static bool unscale_f64(double *x, int64_t n, double v) {
  uint64_t top = 0;
#pragma omp simd reduction(max : top)
  for (int64_t i = 0; i < n; i++) {
    const double y = x[i] * v;
    uint64_t bits;
    memcpy(&bits, &y, sizeof bits);
    bits &= 0x7fffffffffffffffu;
    top = bits > top ? bits : top;
    x[i] = y;
  }
  return top >= 0x7ff0000000000000u;
}

static bool unscale_block(const tl_span *s, int64_t first, int64_t n, float v) {
  if (s->dtype == TL_FLOAT32) return unscale_f32((float *)s->data + first, n, v);
  if (s->dtype == TL_FLOAT64) return unscale_f64((double *)s->data + first, n, (double)v);
  float x[TL_CHUNK];
  bool bad = false;
  for (int64_t end = first + n; first < end; first += TL_CHUNK) {
    int m = end - first < TL_CHUNK ? (int)(end - first) : TL_CHUNK;
    char *data = (char *)s->data + first * 2;
    tl_load_f32(x, s->dtype, data, 2, m);
    bad |= unscale_f32(x, m, v);
    tl_store_f32(data, s->dtype, 2, x, m);
  }
  return bad;
}

tl_status tl_cpu_span_unscale(int n, const tl_span *list, const float *inverse, float *found) {
  const float v = *inverse;
  int64_t blocks, elements = elements_of(n, list, &blocks);
  bool bad = false;
  if (elements < TL_PARALLEL_MIN) {
    for (int i = 0; i < n; i++) bad |= unscale_block(&list[i], 0, list[i].n, v);
  } else {
#pragma omp parallel reduction(|| : bad)
    for (int i = 0; i < n; i++) {
      int64_t count = blocks_of(&list[i]), size = list[i].n;
#pragma omp for schedule(static) nowait
      for (int64_t k = 0; k < count; k++)
        bad = unscale_block(&list[i], k * BLOCK, size - k * BLOCK < BLOCK ? size - k * BLOCK : BLOCK, v) || bad;
    }
  }
  if (bad) *found = 1;
  return TL_OK;
}
