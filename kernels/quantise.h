/* quantise.h: optimizer state in 8 or 16 bits (Dettmers, Lewis, Shleifer, Zettlemoyer: "8-bit optimizers via block-wise
 * quantization", ICLR 2022). Shared by the CPU, CUDA and whoever converts state.
 *
 * 8 bits: a block of TL_QUANT_BLOCK elements has one float32, its largest |x|; an element is a code for x / largest in
 * [-1, 1]. The codes are a dynamic tree: each decade 10^-(e+1) .. 10^-e below 1 is divided evenly, into half as many
 * steps as the decade above it. First moments have a sign bit and 7 decades with 64 steps in the uppermost one, second
 * moments, which are never negative, 8 decades with 128; the lowest decade's one step begins at 0. Code 0 is 0, the
 * largest code is 1: the largest element of a block is exact.
 *
 * Rounding is stochastic in both formats: up with the probability of the dropped share. A mean with beta2 = 0.999 moves by
 * a thousandth of itself, less than half a step of either format, and would stay for ever where it is if it went to the
 * nearest number. The random bits are those of Philox with a key made of parameter and step: a run is the same whatever
 * else takes random numbers, on every device and for any number of threads. */
#ifndef TL_KERNELS_QUANTISE_H
#define TL_KERNELS_QUANTISE_H

#include <stdbool.h>

#include "backend/update.h"
#include "formula.h"

/* What code `code` stands for; `with_sign`: first moments. */
TL_FN float tl_quant_value(bool with_sign, int code) {
  const int index = with_sign ? code & 127 : code, decades = with_sign ? 7 : 8;
  if (index == 0) return 0;
  int d = 0; /* from the lowest: it has codes 2^d .. 2^(d+1) - 1 */
  while (index >> (d + 1) != 0) d++;
  double top = 1;
  for (int e = d; e < decades - 1; e++) top /= 10;
  const double share = (double)(index - (1 << d) + 1) / (1 << d);
  const double value = d == 0 ? top : top * (0.1 + 0.9 * share);
  return (float)(with_sign && code >= 128 ? -value : value);
}

/* Where x in [0, 1] lies among the codes: between two of them in proportion. Any x has a place there. */
#define TL_QUANT_DECADE(steps, bottom)                                     \
  slope = x > (float)(bottom) ? (float)((steps) / (9 * (bottom))) : slope; \
  shift = x > (float)(bottom) ? (float)((steps)*8.0 / 9 - 1) : shift;
TL_FN float tl_quant_place_signed(float x) {
  float slope = 1e6f, shift = 0;
  TL_QUANT_DECADE(2, 1e-6)
  TL_QUANT_DECADE(4, 1e-5)
  TL_QUANT_DECADE(8, 1e-4)
  TL_QUANT_DECADE(16, 1e-3)
  TL_QUANT_DECADE(32, 1e-2)
  TL_QUANT_DECADE(64, 1e-1)
  return x < 1 ? slope * x + shift : 127;
}
TL_FN float tl_quant_place_unsigned(float x) {
  float slope = 1e7f, shift = 0;
  TL_QUANT_DECADE(2, 1e-7)
  TL_QUANT_DECADE(4, 1e-6)
  TL_QUANT_DECADE(8, 1e-5)
  TL_QUANT_DECADE(16, 1e-4)
  TL_QUANT_DECADE(32, 1e-3)
  TL_QUANT_DECADE(64, 1e-2)
  TL_QUANT_DECADE(128, 1e-1)
  return x > 0 ? x < 1 ? slope * x + shift : 255 : 0;
}
#undef TL_QUANT_DECADE

/* A block's divisor: 1 where all is 0, or nan is among it. */
TL_FN float tl_quant_divisor(float largest) { return largest > 0 ? largest : 1; }

/* The code of x; u in [0, 1): what decides, 0.5 for the nearest. A second moment that is not 0 stays so: its root is
 * divided by. */
TL_FN uint8_t tl_quant_signed(float x, float divisor, float u) {
  const float place = tl_quant_place_signed((x < 0 ? -x : x) / divisor) + u;
  return (uint8_t)((int32_t)place | (x < 0 ? 128 : 0));
}
TL_FN uint8_t tl_quant_unsigned(float x, float divisor, float u) {
  const float place = tl_quant_place_unsigned(x / divisor) + u;
  return (uint8_t)(x > 0 && place < 1 ? 1 : (int32_t)place);
}

/* 16 random bits as u: never 0, so that codes that a value meets exactly are not missed by the last bit of a product. */
TL_FN float tl_quant_u(uint32_t bits) { return (float)(int32_t)(bits & 0xffff) * 0x1p-16f + 0x1p-17f; }

/* bfloat16: adds 16 random bits to the 16 that are dropped: the carry comes with the probability of their share of a
 * step. What is not finite gets none; a nan whose fraction is all in the dropped bits keeps one above. */
TL_FN uint16_t tl_bf16_stochastic(float x, uint32_t random) {
  uint32_t bits = (uint32_t)i32_bits(x);
  const uint32_t finite = (bits & 0x7f800000u) != 0x7f800000u, nan = (bits & 0x7fffffffu) > 0x7f800000u;
  bits += finite * (random & 0xffff);
  return (uint16_t)(bits >> 16 | nan << 6);
}

/* The Philox key of a parameter's step; element i takes word i: the low half for its first moment, the high half for its
 * second. */
TL_FN uint64_t tl_rounding_key(uint32_t parameter, int64_t step) {
  return ((uint64_t)step << 24 | parameter) ^ 0x9e3779b97f4a7c15u;
}

#endif
