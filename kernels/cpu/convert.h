/* convert.h: moving chunks of elements between their stored dtype and the type that is computed in. */
#ifndef TL_KERNELS_CPU_CONVERT_H
#define TL_KERNELS_CPU_CONVERT_H

#include <stdint.h>
#include <string.h>

#include "core/iter.h"

#define TL_CHUNK 512 /* elements converted at a time: a few KB of stack an operand */

/* float16 <-> float32, round to nearest even, subnormals, inf and nan kept (IEEE 754). Branch-free, so that loops over
 * them become vector code on machines without F16C. */
static inline float tl_half_to_float(uint16_t h) {
#if defined(__FLT16_MAX__) && defined(__AVX512FP16__)
  _Float16 v;
  memcpy(&v, &h, 2);
  return (float)v;
#else
  uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = (uint32_t)(h & 0x7fff) << 13;
  float f;
  memcpy(&f, &rest, 4);
  f *= 0x1p112f; /* the exponent's bias; makes subnormals normal by itself */
  uint32_t bits;
  memcpy(&bits, &f, 4);
  bits = (h & 0x7c00) == 0x7c00 ? rest | 0x7f800000u : bits;
  bits |= sign;
  memcpy(&f, &bits, 4);
  return f;
#endif
}

static inline uint16_t tl_float_to_half(float f) {
  uint32_t bits;
  memcpy(&bits, &f, 4);
  uint32_t sign = bits >> 16 & 0x8000;
  uint32_t a = bits & 0x7fffffff;
  /* normal range: rebias and round to even */
  uint32_t normal = (a - 0x38000000u + 0xfffu + (a >> 13 & 1)) >> 13;
  /* below 2^-14: adding 0.5 aligns the mantissa so that the FPU rounds it */
  float sub;
  memcpy(&sub, &a, 4);
  sub += 0.5f;
  uint32_t subnormal;
  memcpy(&subnormal, &sub, 4);
  subnormal -= 0x3f000000u;
  uint32_t h = a < 0x38800000u ? subnormal : normal;
  h = a >= 0x477ff000u ? 0x7c00u : h;
  h = a > 0x7f800000u ? 0x7e00u : h;
  return (uint16_t)(sign | h);
}

static inline float tl_bf16_to_float(uint16_t b) {
  uint32_t bits = (uint32_t)b << 16;
  float f;
  memcpy(&f, &bits, 4);
  return f;
}

static inline uint16_t tl_float_to_bf16(float f) {
  uint32_t bits;
  memcpy(&bits, &f, 4);
  uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
  return (uint16_t)(f != f ? (bits >> 16) | 0x40 : rounded);
}

/* A float becomes an integer as PyTorch does on x86: truncation; what does not fit is a defined value here (nan 0,
 * else the nearest end). */
static inline int64_t tl_double_to_int64(double d) {
  if (d != d) return 0;
  if (d >= 9223372036854775808.0) return INT64_MAX;
  if (d < -9223372036854775808.0) return INT64_MIN;
  return (int64_t)d;
}

/* Loads n elements at `src` with a stride in bytes into dst, and stores them back: one pair for each compute type. */
#define TL_LOAD_CASE(DTYPE, S, EXPR)               \
  case DTYPE:                                      \
    if (stride == (int64_t)sizeof(S)) {            \
      const S *s = (const S *)src;                 \
      for (int i = 0; i < n; i++) {                \
        const S v = s[i];                          \
        dst[i] = (EXPR);                           \
      }                                            \
    } else {                                       \
      for (int i = 0; i < n; i++, src += stride) { \
        S v;                                       \
        memcpy(&v, src, sizeof v);                 \
        dst[i] = (EXPR);                           \
      }                                            \
    }                                              \
    break;

#define TL_STORE_CASE(DTYPE, S, EXPR)              \
  case DTYPE:                                      \
    if (stride == (int64_t)sizeof(S)) {            \
      S *d = (S *)dst;                             \
      for (int i = 0; i < n; i++) {                \
        const T v = src[i];                        \
        d[i] = (S)(EXPR);                          \
      }                                            \
    } else {                                       \
      for (int i = 0; i < n; i++, dst += stride) { \
        const T v = src[i];                        \
        const S w = (S)(EXPR);                     \
        memcpy(dst, &w, sizeof w);                 \
      }                                            \
    }                                              \
    break;

#define T float
static inline void tl_load_f32(float *dst, int dtype, const char *src, int64_t stride, int n) {
  switch (dtype) {
    TL_LOAD_CASE(TL_FLOAT32, float, v)
    TL_LOAD_CASE(TL_FLOAT16, uint16_t, tl_half_to_float(v))
    TL_LOAD_CASE(TL_BFLOAT16, uint16_t, tl_bf16_to_float(v))
    TL_LOAD_CASE(TL_FLOAT64, double, (float)v)
    TL_LOAD_CASE(TL_INT64, int64_t, (float)v)
    TL_LOAD_CASE(TL_INT32, int32_t, (float)v)
    TL_LOAD_CASE(TL_UINT8, uint8_t, (float)v)
    TL_LOAD_CASE(TL_BOOL, uint8_t, (float)v)
  }
}
static inline void tl_store_f32(char *dst, int dtype, int64_t stride, const float *src, int n) {
  switch (dtype) {
    TL_STORE_CASE(TL_FLOAT32, float, v)
    TL_STORE_CASE(TL_FLOAT16, uint16_t, tl_float_to_half(v))
    TL_STORE_CASE(TL_BFLOAT16, uint16_t, tl_float_to_bf16(v))
    TL_STORE_CASE(TL_FLOAT64, double, v)
    TL_STORE_CASE(TL_INT64, int64_t, tl_double_to_int64((double)v))
    TL_STORE_CASE(TL_INT32, int32_t, tl_double_to_int64((double)v))
    TL_STORE_CASE(TL_UINT8, uint8_t, tl_double_to_int64((double)v))
    TL_STORE_CASE(TL_BOOL, uint8_t, v != 0)
  }
}
#undef T

#define T double
static inline void tl_load_f64(double *dst, int dtype, const char *src, int64_t stride, int n) {
  switch (dtype) {
    TL_LOAD_CASE(TL_FLOAT32, float, (double)v)
    TL_LOAD_CASE(TL_FLOAT16, uint16_t, (double)tl_half_to_float(v))
    TL_LOAD_CASE(TL_BFLOAT16, uint16_t, (double)tl_bf16_to_float(v))
    TL_LOAD_CASE(TL_FLOAT64, double, v)
    TL_LOAD_CASE(TL_INT64, int64_t, (double)v)
    TL_LOAD_CASE(TL_INT32, int32_t, (double)v)
    TL_LOAD_CASE(TL_UINT8, uint8_t, (double)v)
    TL_LOAD_CASE(TL_BOOL, uint8_t, (double)v)
  }
}
static inline void tl_store_f64(char *dst, int dtype, int64_t stride, const double *src, int n) {
  switch (dtype) {
    TL_STORE_CASE(TL_FLOAT32, float, v)
    TL_STORE_CASE(TL_FLOAT16, uint16_t, tl_float_to_half((float)v))
    TL_STORE_CASE(TL_BFLOAT16, uint16_t, tl_float_to_bf16((float)v))
    TL_STORE_CASE(TL_FLOAT64, double, v)
    TL_STORE_CASE(TL_INT64, int64_t, tl_double_to_int64(v))
    TL_STORE_CASE(TL_INT32, int32_t, tl_double_to_int64(v))
    TL_STORE_CASE(TL_UINT8, uint8_t, tl_double_to_int64(v))
    TL_STORE_CASE(TL_BOOL, uint8_t, v != 0)
  }
}
#undef T

#define T int64_t
static inline void tl_load_i64(int64_t *dst, int dtype, const char *src, int64_t stride, int n) {
  switch (dtype) {
    TL_LOAD_CASE(TL_FLOAT32, float, tl_double_to_int64((double)v))
    TL_LOAD_CASE(TL_FLOAT16, uint16_t, tl_double_to_int64((double)tl_half_to_float(v)))
    TL_LOAD_CASE(TL_BFLOAT16, uint16_t, tl_double_to_int64((double)tl_bf16_to_float(v)))
    TL_LOAD_CASE(TL_FLOAT64, double, tl_double_to_int64(v))
    TL_LOAD_CASE(TL_INT64, int64_t, v)
    TL_LOAD_CASE(TL_INT32, int32_t, v)
    TL_LOAD_CASE(TL_UINT8, uint8_t, v)
    TL_LOAD_CASE(TL_BOOL, uint8_t, v)
  }
}
static inline void tl_store_i64(char *dst, int dtype, int64_t stride, const int64_t *src, int n) {
  switch (dtype) {
    TL_STORE_CASE(TL_FLOAT32, float, v)
    TL_STORE_CASE(TL_FLOAT16, uint16_t, tl_float_to_half((float)v))
    TL_STORE_CASE(TL_BFLOAT16, uint16_t, tl_float_to_bf16((float)v))
    TL_STORE_CASE(TL_FLOAT64, double, v)
    TL_STORE_CASE(TL_INT64, int64_t, v)
    TL_STORE_CASE(TL_INT32, int32_t, v)
    TL_STORE_CASE(TL_UINT8, uint8_t, v)
    TL_STORE_CASE(TL_BOOL, uint8_t, v != 0)
  }
}
#undef T

#endif
