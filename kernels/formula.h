/* formula.h: the functions that ops.def's formulas are written in, for float, double and int64_t.
 *
 * Shared by the CPU kernels (C11, picked by _Generic) and the CUDA kernels (C++, picked by overloading). The float forms
 * of exp, log, tanh and what follows from them are branch-free polynomials (after Cephes, S. Moshier), so that loops
 * over them become vector code; their error is about 1 ulp (of erf a few). Everything else is the C library's.
 *
 * TL_POLE(e) is a derivative e that is 0 wherever the arriving gradient g is, even at a pole of e.
 * TL_C(c) is a constant in the type that is being computed in; T names that type where a kernel file defines it.
 */
#ifndef TL_KERNELS_FORMULA_H
#define TL_KERNELS_FORMULA_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define TL_POLE(e) (g == 0 ? 0 : (e))

#if defined(__CUDACC__) || defined(__cplusplus)
#define TL_FN static __host__ __device__ inline
#else
#define TL_FN static inline
#endif

/* ---- float ---- */

TL_FN float f32_bits(int32_t i) {
  float f;
  memcpy(&f, &i, sizeof f);
  return f;
}

TL_FN int32_t i32_bits(float f) {
  int32_t i;
  memcpy(&i, &f, sizeof i);
  return i;
}

/* e^x = 2^n * e^r, |r| <= ln2/2. Two factors of 2 keep results near the ends of the range exact. */
TL_FN float f32_exp(float x) {
  float c = x > 88.72284f ? 88.72284f : x;
  c = c >= -104.0f ? c : -104.0f; /* nan, too: its conversion to an integer is undefined */
  float n = rintf(c * 1.44269504f);
  float r = c - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  int32_t i = (int32_t)n;
  int32_t half = i >> 1;
  float y = p * f32_bits((half + 127) << 23) * f32_bits((i - half + 127) << 23);
  y = x > 88.72284f ? INFINITY : y;
  return x != x ? x : y;
}

TL_FN float f32_expm1(float x) {
  /* Near 0 the series; elsewhere exp has lost nothing. */
  float p = 1.9841270e-4f;
  p = p * x + 1.3888889e-3f;
  p = p * x + 8.3333333e-3f;
  p = p * x + 4.1666667e-2f;
  p = p * x + 1.6666667e-1f;
  p = p * x + 0.5f;
  p = p * x * x + x;
  float e = f32_exp(x) - 1.0f;
  return fabsf(x) < 0.35f ? p : e;
}

TL_FN float f32_log(float x) {
  /* Subnormals are scaled up first. */
  float scaled = x < 1.17549435e-38f ? x * 8388608.0f : x;
  float shift = x < 1.17549435e-38f ? -23.0f : 0.0f;
  int32_t bits = i32_bits(scaled);
  int32_t e = (bits >> 23) - 126;
  float m = f32_bits((bits & 0x007fffff) | 0x3f000000); /* [0.5, 1) */
  float low = m < 0.707106781f ? 1.0f : 0.0f;
  m = m + low * m - 1.0f;
  float n = (float)e - low + shift;
  float z = m * m;
  float p = 7.0376836292e-2f;
  p = p * m - 1.1514610310e-1f;
  p = p * m + 1.1676998740e-1f;
  p = p * m - 1.2420140846e-1f;
  p = p * m + 1.4249322787e-1f;
  p = p * m - 1.6668057665e-1f;
  p = p * m + 2.0000714765e-1f;
  p = p * m - 2.4999993993e-1f;
  p = p * m + 3.3333331174e-1f;
  p = p * m * z + n * -2.12194440e-4f - 0.5f * z;
  float y = m + p + n * 0.693359375f;
  y = x == 0.0f ? -INFINITY : y;
  y = x < 0.0f ? NAN : y;
  y = x == INFINITY ? x : y;
  return x != x ? x : y;
}

/* log(1+x): the rounding of 1+x is put right by the ratio x / ((1+x)-1) (Goldberg 1991). */
TL_FN float f32_log1p(float x) {
  float u = 1.0f + x;
  float d = u - 1.0f;
  float y = f32_log(u) * (x / (d == 0.0f ? 1.0f : d));
  y = x == INFINITY ? x : y;
  return d == 0.0f ? x : y;
}

TL_FN float f32_tanh(float x) {
  float a = fabsf(x), z = x * x;
  float p = -5.70498872745e-3f;
  p = p * z + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  p = p * z * x + x;
  float e = 1.0f - 2.0f / (f32_exp(2.0f * a) + 1.0f);
  float big = x < 0.0f ? -e : e;
  float y = a < 0.625f ? p : big;
  return x != x ? x : y;
}

TL_FN float f32_sigmoid(float x) { return 1.0f / (1.0f + f32_exp(-x)); }
TL_FN double f64_sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }

/* log(1 + e^x) without overflow */
TL_FN float f32_softplus(float x) { return (x > 0.0f ? x : 0.0f) + f32_log1p(f32_exp(-fabsf(x))); }
TL_FN double f64_softplus(double x) { return (x > 0.0 ? x : 0.0) + log1p(exp(-fabs(x))); }

#define TL_SQRT1_2 0.70710678118654752440
#define TL_INV_SQRT_2PI 0.39894228040143267794
#define TL_SQRT_2_PI 0.79788456080286535588

/* erfc(y) for y >= 0 and e = exp(-y^2): e times a polynomial in t = 1 / (1 + y/2), within 4e-7 of its value for float's y */
TL_FN float f32_erfc_of(float y, float e) {
  float t = 1.0f / (1.0f + 0.5f * y);
  float p = -5.88907698e-2f;
  p = p * t + 2.83701912e-1f;
  p = p * t - 4.85383533e-1f;
  p = p * t + 2.75977879e-1f;
  p = p * t - 2.51774357e-2f;
  p = p * t + 2.02069704e-1f;
  p = p * t + 2.43261046e-1f;
  p = p * t + 2.82353478e-1f;
  p = p * t + 2.82087677e-1f;
  return p * t * e;
}

TL_FN float f32_erf(float x) {
  float a = fabsf(x), z = x * x;
  float p = 7.85386059e-5f;
  p = p * z - 8.01019339e-4f;
  p = p * z + 5.18832766e-3f;
  p = p * z - 2.68538119e-2f;
  p = p * z + 1.12835851e-1f;
  p = p * z - 3.76126258e-1f;
  p = p * z + 1.12837917f;
  float e = 1.0f - f32_erfc_of(a, f32_exp(-z));
  float big = x < 0.0f ? -e : e;
  return a < 1.0f ? p * x : big;
}

/* The standard normal distribution's Phi(x), for e = exp(-x^2 / 2) */
TL_FN float f32_phi(float x, float e) {
  float q = 0.5f * f32_erfc_of(fabsf(x) * (float)TL_SQRT1_2, e);
  return x < 0.0f ? q : 1.0f - q;
}

/* Hendrycks & Gimpel 2016: x * Phi(x), and the tanh form, which is x * sigmoid(2u) for 0.5 x (1 + tanh(u)) */
TL_FN float f32_gelu(float x) { return x * f32_phi(x, f32_exp(-0.5f * x * x)); }
TL_FN double f64_gelu(double x) { return 0.5 * x * (1.0 + erf(x * TL_SQRT1_2)); }
TL_FN float f32_gelu_grad(float x) {
  float e = f32_exp(-0.5f * x * x);
  return f32_phi(x, e) + x * e * (float)TL_INV_SQRT_2PI;
}
TL_FN double f64_gelu_grad(double x) {
  return 0.5 * (1.0 + erf(x * TL_SQRT1_2)) + x * exp(-0.5 * x * x) * TL_INV_SQRT_2PI;
}
TL_FN float f32_gelu_tanh(float x) {
  return x * f32_sigmoid(2.0f * (float)TL_SQRT_2_PI * (x + 0.044715f * x * x * x));
}
TL_FN double f64_gelu_tanh(double x) { return 0.5 * x * (1.0 + tanh(TL_SQRT_2_PI * (x + 0.044715 * x * x * x))); }
TL_FN float f32_gelu_tanh_grad(float x) {
  float s = f32_sigmoid(2.0f * (float)TL_SQRT_2_PI * (x + 0.044715f * x * x * x));
  return s + x * s * (1.0f - s) * 2.0f * (float)TL_SQRT_2_PI * (1.0f + 3.0f * 0.044715f * x * x);
}
TL_FN double f64_gelu_tanh_grad(double x) {
  double t = tanh(TL_SQRT_2_PI * (x + 0.044715 * x * x * x));
  return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * TL_SQRT_2_PI * (1.0 + 3.0 * 0.044715 * x * x);
}
TL_FN float f32_silu_grad(float x) {
  float s = f32_sigmoid(x);
  return s * (1.0f + x * (1.0f - s));
}
TL_FN double f64_silu_grad(double x) {
  double s = f64_sigmoid(x);
  return s * (1.0 + x * (1.0 - s));
}
TL_FN float f32_mish_grad(float x) {
  float t = f32_tanh(f32_softplus(x));
  return t + x * (1.0f - t * t) * f32_sigmoid(x);
}
TL_FN double f64_mish_grad(double x) {
  double t = tanh(f64_softplus(x));
  return t + x * (1.0 - t * t) * f64_sigmoid(x);
}

/* ---- functions of every type: nan stays nan, integers stay exact ---- */

TL_FN float f32_relu(float x) { return x < 0.0f ? 0.0f : x; }
TL_FN double f64_relu(double x) { return x < 0.0 ? 0.0 : x; }
TL_FN int64_t i64_relu(int64_t x) { return x < 0 ? 0 : x; }
TL_FN float f32_sign(float x) { return (float)(x > 0.0f) - (float)(x < 0.0f); }
TL_FN double f64_sign(double x) { return (double)(x > 0.0) - (double)(x < 0.0); }
TL_FN int64_t i64_sign(int64_t x) { return (x > 0) - (x < 0); }
/* Unsigned arithmetic: the smallest integer has no negative, and wraps as it does everywhere else. */
TL_FN int64_t i64_abs(int64_t x) { return x < 0 ? (int64_t)(0 - (uint64_t)x) : x; }
TL_FN int64_t i64_same(int64_t x) { return x; }
TL_FN int64_t i64_false(int64_t x) { return x & 0; }
TL_FN int64_t i64_true(int64_t x) { return (x & 0) | 1; }

TL_FN float f32_isinf(float x) { return fabsf(x) == INFINITY ? 1.0f : 0.0f; }
TL_FN double f64_isinf(double x) { return fabs(x) == INFINITY ? 1.0 : 0.0; }
TL_FN float f32_isfinite(float x) { return fabsf(x) < INFINITY ? 1.0f : 0.0f; }
TL_FN double f64_isfinite(double x) { return fabs(x) < INFINITY ? 1.0 : 0.0; }

TL_FN float f32_max(float a, float b) { return a > b || a != a ? a : b; }
TL_FN double f64_max(double a, double b) { return a > b || a != a ? a : b; }
TL_FN int64_t i64_max(int64_t a, int64_t b) { return a > b ? a : b; }
TL_FN float f32_min(float a, float b) { return a < b || a != a ? a : b; }
TL_FN double f64_min(double a, double b) { return a < b || a != a ? a : b; }
TL_FN int64_t i64_min(int64_t a, int64_t b) { return a < b ? a : b; }
/* max's gradient of its first argument: ties share */
TL_FN float f32_max_da(float g, float a, float b) { return a < b ? 0.0f : a == b ? 0.5f * g : g; }
TL_FN double f64_max_da(double g, double a, double b) { return a < b ? 0.0 : a == b ? 0.5 * g : g; }
TL_FN int64_t i64_max_da(int64_t g, int64_t a, int64_t b) { return a > b ? g : 0; }

TL_FN float f32_clamp(float x, float lo, float hi) {
  float y = x < lo ? lo : x;
  return y > hi ? hi : y;
}
TL_FN double f64_clamp(double x, double lo, double hi) {
  double y = x < lo ? lo : x;
  return y > hi ? hi : y;
}
/* A bound beyond the integers is the last of them: x < lo at 2^63 and more, x > hi below -2^63. */
TL_FN int64_t i64_clamp(int64_t x, double lo, double hi) {
  int64_t y = (double)x >= lo || lo != lo ? x : lo >= 9223372036854775808.0 ? INT64_MAX : (int64_t)lo;
  return (double)y <= hi || hi != hi ? y : hi < -9223372036854775808.0 ? INT64_MIN : (int64_t)hi;
}

TL_FN double f64_pow(double a, double b) { return b == 2.0 ? a * a : pow(a, b); }
TL_FN float f32_pow(float a, float b) { return b == 2.0f ? a * a : powf(a, b); }
TL_FN int64_t i64_pow(int64_t a, int64_t b) {
  if (b < 0) return a == 1 ? 1 : a == -1 ? (b % 2 == 0 ? 1 : -1) : 0;
  uint64_t y = 1, base = (uint64_t)a;
  for (uint64_t e = (uint64_t)b; e > 0; e >>= 1, base *= base)
    if (e & 1) y *= base;
  return (int64_t)y;
}
/* d(a^b)/da = b a^(b-1), 0 for b = 0; d(a^b)/db = a^b ln a, 0 where a = 0 and b >= 0 */
TL_FN float f32_pow_da(float g, float a, float b) { return b == 0.0f ? 0.0f : b == 2.0f ? g * 2.0f * a : g * b * powf(a, b - 1.0f); }
TL_FN double f64_pow_da(double g, double a, double b) { return b == 0.0 ? 0.0 : b == 2.0 ? g * 2.0 * a : g * b * pow(a, b - 1.0); }
TL_FN float f32_pow_db(float g, float a, float b) { return a == 0.0f && b >= 0.0f ? 0.0f : g * powf(a, b) * logf(a); }
TL_FN double f64_pow_db(double g, double a, double b) { return a == 0.0 && b >= 0.0 ? 0.0 : g * pow(a, b) * log(a); }
TL_FN int64_t i64_none3(int64_t g, int64_t a, int64_t b) { return (g & 0) + (a & 0) + (b & 0); }

/* Floor division and its remainder (the sign of the divisor), Python's and PyTorch's: a = b * floor_divide + remainder
 * also where a / b rounds up to an integer (1 and 0.1: 9, not 10). An integer division by 0 gives 0 here; the operation
 * reports it before the kernel runs. */
TL_FN float f32_floor_divide(float a, float b) {
  if (b == 0.0f) return a / b;
  float m = fmodf(a, b), q = (a - m) / b;
  if (m != 0.0f && (m < 0.0f) != (b < 0.0f)) q -= 1.0f;
  if (q == 0.0f) return copysignf(0.0f, a / b);
  float whole = floorf(q);
  return q - whole > 0.5f ? whole + 1.0f : whole;
}
TL_FN double f64_floor_divide(double a, double b) {
  if (b == 0.0) return a / b;
  double m = fmod(a, b), q = (a - m) / b;
  if (m != 0.0 && (m < 0.0) != (b < 0.0)) q -= 1.0;
  if (q == 0.0) return copysign(0.0, a / b);
  double whole = floor(q);
  return q - whole > 0.5 ? whole + 1.0 : whole;
}
TL_FN int64_t i64_floor_divide(int64_t a, int64_t b) {
  if (b == 0) return 0;
  if (b == -1) return (int64_t)(0 - (uint64_t)a);
  int64_t q = a / b;
  return q - ((a % b != 0) & ((a < 0) != (b < 0)));
}
TL_FN float f32_remainder(float a, float b) {
  float m = fmodf(a, b);
  return m != 0.0f && (m < 0.0f) != (b < 0.0f) ? m + b : m;
}
TL_FN double f64_remainder(double a, double b) {
  double m = fmod(a, b);
  return m != 0.0 && (m < 0.0) != (b < 0.0) ? m + b : m;
}
TL_FN int64_t i64_remainder(int64_t a, int64_t b) {
  if (b == 0 || b == -1) return 0;
  int64_t m = a % b;
  return m != 0 && (m < 0) != (b < 0) ? m + b : m;
}
TL_FN int64_t i64_fmod(int64_t a, int64_t b) { return b == 0 || b == -1 ? 0 : a % b; }

/* ---- one name for all types ---- */

#if defined(__cplusplus)
#define TL_PICK1(name, f, d) \
  TL_FN float name(float x) { return f(x); } \
  TL_FN double name(double x) { return d(x); }
#define TL_PICK1I(name, f, d, i) \
  TL_PICK1(name, f, d)           \
  TL_FN int64_t name(int64_t x) { return i(x); }
#define TL_PICK2I(name, f, d, i)                     \
  TL_FN float name(float a, float b) { return f(a, b); }  \
  TL_FN double name(double a, double b) { return d(a, b); } \
  TL_FN int64_t name(int64_t a, int64_t b) { return i(a, b); }
#define TL_PICK3I(name, f, d, i)                                        \
  TL_FN float name(float g, float a, float b) { return f(g, a, b); }    \
  TL_FN double name(double g, double a, double b) { return d(g, a, b); } \
  TL_FN int64_t name(int64_t g, int64_t a, int64_t b) { return i(g, a, b); }
TL_PICK1(f_exp, f32_exp, exp)
TL_PICK1(f_expm1, f32_expm1, expm1)
TL_PICK1(f_log, f32_log, log)
TL_PICK1(f_log1p, f32_log1p, log1p)
TL_PICK1(f_sqrt, sqrtf, sqrt)
TL_PICK1(f_sin, sinf, sin)
TL_PICK1(f_cos, cosf, cos)
TL_PICK1(f_tan, tanf, tan)
TL_PICK1(f_asin, asinf, asin)
TL_PICK1(f_acos, acosf, acos)
TL_PICK1(f_atan, atanf, atan)
TL_PICK1(f_sinh, sinhf, sinh)
TL_PICK1(f_cosh, coshf, cosh)
TL_PICK1(f_tanh, f32_tanh, tanh)
TL_PICK1(f_sigmoid, f32_sigmoid, f64_sigmoid)
TL_PICK1(f_softplus, f32_softplus, f64_softplus)
TL_PICK1(f_erf, f32_erf, erf)
TL_PICK1(f_gelu, f32_gelu, f64_gelu)
TL_PICK1(f_gelu_grad, f32_gelu_grad, f64_gelu_grad)
TL_PICK1(f_gelu_tanh, f32_gelu_tanh, f64_gelu_tanh)
TL_PICK1(f_gelu_tanh_grad, f32_gelu_tanh_grad, f64_gelu_tanh_grad)
TL_PICK1(f_silu_grad, f32_silu_grad, f64_silu_grad)
TL_PICK1(f_mish_grad, f32_mish_grad, f64_mish_grad)
TL_PICK1I(f_abs, fabsf, fabs, i64_abs)
TL_PICK1I(f_sign, f32_sign, f64_sign, i64_sign)
TL_PICK1I(f_floor, floorf, floor, i64_same)
TL_PICK1I(f_ceil, ceilf, ceil, i64_same)
TL_PICK1I(f_round, rintf, rint, i64_same)
TL_PICK1I(f_trunc, truncf, trunc, i64_same)
TL_PICK1I(f_relu, f32_relu, f64_relu, i64_relu)
TL_PICK1I(f_isinf, f32_isinf, f64_isinf, i64_false)
TL_PICK1I(f_isfinite, f32_isfinite, f64_isfinite, i64_true)
TL_PICK2I(f_max, f32_max, f64_max, i64_max)
TL_PICK2I(f_min, f32_min, f64_min, i64_min)
TL_PICK2I(f_pow, f32_pow, f64_pow, i64_pow)
TL_PICK2I(f_floor_divide, f32_floor_divide, f64_floor_divide, i64_floor_divide)
TL_PICK2I(f_remainder, f32_remainder, f64_remainder, i64_remainder)
TL_PICK2I(f_fmod, fmodf, fmod, i64_fmod)
TL_PICK3I(f_max_da, f32_max_da, f64_max_da, i64_max_da)
TL_PICK3I(f_pow_da, f32_pow_da, f64_pow_da, i64_none3)
TL_PICK3I(f_pow_db, f32_pow_db, f64_pow_db, i64_none3)
TL_FN float f_clamp(float x, double lo, double hi) { return f32_clamp(x, (float)lo, (float)hi); }
TL_FN double f_clamp(double x, double lo, double hi) { return f64_clamp(x, lo, hi); }
TL_FN int64_t f_clamp(int64_t x, double lo, double hi) { return i64_clamp(x, lo, hi); }
TL_FN float f_atan2(float a, float b) { return atan2f(a, b); }
TL_FN double f_atan2(double a, double b) { return atan2(a, b); }
#else
#define f_exp(x) _Generic((x), float: f32_exp, default: exp)(x)
#define f_expm1(x) _Generic((x), float: f32_expm1, default: expm1)(x)
#define f_log(x) _Generic((x), float: f32_log, default: log)(x)
#define f_log1p(x) _Generic((x), float: f32_log1p, default: log1p)(x)
#define f_sqrt(x) _Generic((x), float: sqrtf, default: sqrt)(x)
#define f_sin(x) _Generic((x), float: sinf, default: sin)(x)
#define f_cos(x) _Generic((x), float: cosf, default: cos)(x)
#define f_tan(x) _Generic((x), float: tanf, default: tan)(x)
#define f_asin(x) _Generic((x), float: asinf, default: asin)(x)
#define f_acos(x) _Generic((x), float: acosf, default: acos)(x)
#define f_atan(x) _Generic((x), float: atanf, default: atan)(x)
#define f_sinh(x) _Generic((x), float: sinhf, default: sinh)(x)
#define f_cosh(x) _Generic((x), float: coshf, default: cosh)(x)
#define f_tanh(x) _Generic((x), float: f32_tanh, default: tanh)(x)
#define f_sigmoid(x) _Generic((x), float: f32_sigmoid, default: f64_sigmoid)(x)
#define f_softplus(x) _Generic((x), float: f32_softplus, default: f64_softplus)(x)
#define f_erf(x) _Generic((x), float: f32_erf, default: erf)(x)
#define f_gelu(x) _Generic((x), float: f32_gelu, default: f64_gelu)(x)
#define f_gelu_grad(x) _Generic((x), float: f32_gelu_grad, default: f64_gelu_grad)(x)
#define f_gelu_tanh(x) _Generic((x), float: f32_gelu_tanh, default: f64_gelu_tanh)(x)
#define f_gelu_tanh_grad(x) _Generic((x), float: f32_gelu_tanh_grad, default: f64_gelu_tanh_grad)(x)
#define f_silu_grad(x) _Generic((x), float: f32_silu_grad, default: f64_silu_grad)(x)
#define f_mish_grad(x) _Generic((x), float: f32_mish_grad, default: f64_mish_grad)(x)
#define f_abs(x) _Generic((x), float: fabsf, double: fabs, default: i64_abs)(x)
#define f_sign(x) _Generic((x), float: f32_sign, double: f64_sign, default: i64_sign)(x)
#define f_floor(x) _Generic((x), float: floorf, double: floor, default: i64_same)(x)
#define f_ceil(x) _Generic((x), float: ceilf, double: ceil, default: i64_same)(x)
#define f_round(x) _Generic((x), float: rintf, double: rint, default: i64_same)(x)
#define f_trunc(x) _Generic((x), float: truncf, double: trunc, default: i64_same)(x)
#define f_relu(x) _Generic((x), float: f32_relu, double: f64_relu, default: i64_relu)(x)
#define f_isinf(x) _Generic((x), float: f32_isinf, double: f64_isinf, default: i64_false)(x)
#define f_isfinite(x) _Generic((x), float: f32_isfinite, double: f64_isfinite, default: i64_true)(x)
#define f_max(a, b) _Generic((a), float: f32_max, double: f64_max, default: i64_max)(a, b)
#define f_min(a, b) _Generic((a), float: f32_min, double: f64_min, default: i64_min)(a, b)
#define f_max_da(g, a, b) _Generic((a), float: f32_max_da, double: f64_max_da, default: i64_max_da)(g, a, b)
#define f_clamp(x, p, q) _Generic((x), float: f32_clamp, double: f64_clamp, default: i64_clamp)(x, p, q)
#define f_pow(a, b) _Generic((a), float: f32_pow, double: f64_pow, default: i64_pow)(a, b)
#define f_pow_da(g, a, b) _Generic((a), float: f32_pow_da, double: f64_pow_da, default: i64_none3)(g, a, b)
#define f_pow_db(g, a, b) _Generic((a), float: f32_pow_db, double: f64_pow_db, default: i64_none3)(g, a, b)
#define f_floor_divide(a, b) \
  _Generic((a), float: f32_floor_divide, double: f64_floor_divide, default: i64_floor_divide)(a, b)
#define f_remainder(a, b) _Generic((a), float: f32_remainder, double: f64_remainder, default: i64_remainder)(a, b)
#define f_fmod(a, b) _Generic((a), float: fmodf, double: fmod, default: i64_fmod)(a, b)
#define f_atan2(a, b) _Generic((a), float: atan2f, default: atan2)(a, b)
#endif

#endif
