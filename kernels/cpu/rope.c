/* rope.c: rotary position embedding: rows of x, wherever they lie, to contiguous rows of y. */
#include <string.h>

#include "convert.h"
#include "cpu.h"

/* Elements i * step of a and b turn by the angle of (c, s)[i]. */
#define TURN(SUF, T)                                                                                                \
  static inline void turn_##SUF(const T *a, const T *b, const T *c, const T *s, T sign, T *ya, T *yb, int64_t step, \
                                int64_t n) {                                                                        \
    _Pragma("omp simd") for (int64_t i = 0; i < n; i++) {                                                           \
      const T p = a[i * step], q = b[i * step], sine = sign * s[i];                                                 \
      ya[i * step] = p * c[i] - q * sine;                                                                           \
      yb[i * step] = q * c[i] + p * sine;                                                                           \
    }                                                                                                               \
  }                                                                                                                 \
  /* n pairs: halves of x that begin `apart` elements apart, or neighbours (apart 1) */                             \
  static void pairs_##SUF(const T *x, const T *c, const T *s, bool back, T *y, bool interleaved, int64_t apart,     \
                          int64_t n) {                                                                              \
    const T sign = back ? -1 : 1;                                                                                   \
    if (interleaved) turn_##SUF(x, x + 1, c, s, sign, y, y + 1, 2, n);                                              \
    else turn_##SUF(x, x + apart, c, s, sign, y, y + apart, 1, n);                                                  \
  }
TURN(f32, float)
TURN(f64, double)

/* A row of a half type, by way of float32. */
static void row_half(const tl_rope_args *a, const uint16_t *x, const float *c, const float *s, uint16_t *y) {
  const int64_t pairs = a->cos->shape[1];
  const int dtype = a->x->dtype;
  float in[TL_CHUNK], out[TL_CHUNK];
  for (int64_t i = 0; i < pairs; i += TL_CHUNK / 2) {
    const int n = (int)(pairs - i < TL_CHUNK / 2 ? pairs - i : TL_CHUNK / 2);
    const int64_t first = a->interleaved ? 2 * i : i, second = a->interleaved ? 2 * i + n : pairs + i;
    tl_load_f32(in, dtype, (const char *)(x + first), 2, n);
    tl_load_f32(in + n, dtype, (const char *)(x + second), 2, n);
    pairs_f32(in, c + i, s + i, a->back, out, a->interleaved, n, n);
    tl_store_f32((char *)(y + first), dtype, 2, out, n);
    tl_store_f32((char *)(y + second), dtype, 2, out + n, n);
  }
}

static void row(const tl_rope_args *a, int64_t t, const char *x, char *y) {
  const int64_t pairs = a->cos->shape[1], width = a->x->shape[a->x->ndim - 1];
  const int64_t size = (int64_t)tl_dtype_size(a->x->dtype), turned = 2 * pairs * size;
  if (a->x->dtype == TL_FLOAT64) {
    const double *c = tl_data(a->cos), *s = tl_data(a->sin);
    pairs_f64((const double *)x, c + t * pairs, s + t * pairs, a->back, (double *)y, a->interleaved, pairs, pairs);
  } else {
    const float *c = (const float *)tl_data(a->cos) + t * pairs, *s = (const float *)tl_data(a->sin) + t * pairs;
    if (a->x->dtype == TL_FLOAT32) pairs_f32((const float *)x, c, s, a->back, (float *)y, a->interleaved, pairs, pairs);
    else row_half(a, (const uint16_t *)x, c, s, (uint16_t *)y);
  }
  if (turned < width * size) memcpy(y + turned, x + turned, (size_t)(width * size - turned));
}

tl_status tl_cpu_rope(const tl_rope_args *a) {
  const tl_tensor *x = a->x;
  const int64_t length = x->shape[x->ndim - 2], width = x->shape[x->ndim - 1], rows = x->numel / width;
  const int64_t size = (int64_t)tl_dtype_size(x->dtype);
  const char *from = tl_data(x);
  char *to = tl_data(a->y);
#pragma omp parallel for schedule(static) if (x->numel >= TL_PARALLEL_MIN)
  for (int64_t r = 0; r < rows; r++) {
    int64_t offset = 0, rest = r;
    for (int d = x->ndim - 2; d >= 0; d--) {
      offset += rest % x->shape[d] * x->strides[d];
      rest /= x->shape[d];
    }
    row(a, r % length, from + offset * size, to + r * width * size);
  }
  return TL_OK;
}
