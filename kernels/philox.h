/* philox.h: Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011), and how
 * its bits become numbers. Shared by all devices, so that all give the same numbers.
 *
 * Number i of a stream is word i % 4 of the block with counter i / 4 and key seed. Normal numbers come in pairs by
 * Box & Muller (1958) from words (0,1) and (2,3).
 *
 * The same bits come out everywhere only where products and sums are rounded one by one: whoever includes this is
 * compiled without contraction to fused multiply-adds (-ffp-contract=off, nvcc -fmad=false), and with an exact sqrtf. */
#ifndef TL_KERNELS_PHILOX_H
#define TL_KERNELS_PHILOX_H

#include "formula.h"

typedef struct tl_philox {
  uint32_t word[4];
} tl_philox;

/* Written for scalars and for loops over counters alike: 32-bit lanes, no branch. */
TL_FN void tl_philox_words(uint32_t k0, uint32_t k1, uint32_t low, uint32_t high, uint32_t *w0, uint32_t *w1,
                           uint32_t *w2, uint32_t *w3) {
  uint32_t c0 = low, c1 = high, c2 = 0, c3 = 0;
#ifndef __CUDACC__ /* which unrolls by itself */
#pragma GCC unroll 10
#endif
  for (int round = 0; round < 10; round++) {
    uint64_t a = (uint64_t)0xD2511F53u * c0, b = (uint64_t)0xCD9E8D57u * c2;
    uint32_t n0 = (uint32_t)(b >> 32) ^ c1 ^ k0, n2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
    c1 = (uint32_t)b;
    c3 = (uint32_t)a;
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  *w0 = c0;
  *w1 = c1;
  *w2 = c2;
  *w3 = c3;
}

TL_FN tl_philox tl_philox_block(uint64_t seed, uint64_t counter) {
  tl_philox r;
  tl_philox_words((uint32_t)seed, (uint32_t)(seed >> 32), (uint32_t)counter, (uint32_t)(counter >> 32), &r.word[0],
                  &r.word[1], &r.word[2], &r.word[3]);
  return r;
}

/* [0, 1): 24 bits, every value a multiple of 2^-24 */
TL_FN float tl_unit_f32(uint32_t w) { return (float)(int32_t)(w >> 8) * 5.9604644775390625e-8f; }
/* (0, 1]: for logarithms */
TL_FN float tl_open_f32(uint32_t w) { return ((float)(int32_t)(w >> 8) + 1.0f) * 5.9604644775390625e-8f; }
/* [0, 1) with 53 bits, from two words */
TL_FN double tl_unit_f64(uint32_t high, uint32_t low) {
  return (double)(int64_t)(((uint64_t)high << 32 | low) >> 11) * 0x1p-53;
}

/* Two standard normal numbers from two words. The angle is reduced in turns, where that is exact, to an eighth of a turn
 * on either side of a quarter; sine and cosine are Cephes' polynomials there. */
TL_FN void tl_normal_pair(uint32_t w0, uint32_t w1, float *even, float *odd) {
  float radius = sqrtf(-2.0f * f32_log(tl_open_f32(w0)));
  float turn = tl_unit_f32(w1);
  float quarter = floorf(turn * 4.0f + 0.5f);
  float x = (turn - quarter * 0.25f) * 6.2831853071795865f, z = x * x;
  float s = -1.9515295891e-4f;
  s = s * z + 8.3321608736e-3f;
  s = s * z - 1.6666654611e-1f;
  s = s * z * x + x;
  float c = 2.443315711809948e-5f;
  c = c * z - 1.388731625493765e-3f;
  c = c * z + 4.166664568298827e-2f;
  c = c * z * z - 0.5f * z + 1.0f;
  int32_t q = (int32_t)quarter;
  float cosine = q & 1 ? s : c, sine = q & 1 ? c : s;
  cosine = (q + 1) & 2 ? -cosine : cosine;
  sine = q & 2 ? -sine : sine;
  *even = radius * cosine;
  *odd = radius * sine;
}

#endif
