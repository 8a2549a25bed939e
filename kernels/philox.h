/* philox.h: Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011), and how
 * its bits become numbers. Shared by all devices, so that all give the same numbers.
 *
 * Number i of a stream is word i % 4 of the block with counter i / 4 and key seed. Normal numbers come in pairs by
 * Box & Muller (1958) from words (0,1) and (2,3). */
#ifndef TL_KERNELS_PHILOX_H
#define TL_KERNELS_PHILOX_H

#include "formula.h"

typedef struct tl_philox {
  uint32_t word[4];
} tl_philox;

TL_FN tl_philox tl_philox_block(uint64_t seed, uint64_t counter) {
  uint32_t c0 = (uint32_t)counter, c1 = (uint32_t)(counter >> 32), c2 = 0, c3 = 0;
  uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
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
  tl_philox r = {{c0, c1, c2, c3}};
  return r;
}

/* [0, 1): 24 bits, every value a multiple of 2^-24 */
TL_FN float tl_unit_f32(uint32_t w) { return (float)(w >> 8) * 5.9604644775390625e-8f; }
/* (0, 1]: for logarithms */
TL_FN float tl_open_f32(uint32_t w) { return ((float)(w >> 8) + 1.0f) * 5.9604644775390625e-8f; }

#endif
