/* words.h: a stretch of a Philox stream as raw 32-bit words, a chunk at a time. */
#ifndef TL_CPU_WORDS_H
#define TL_CPU_WORDS_H

#include "convert.h"
#include "philox.h"

#define TL_WORD_BLOCKS (TL_CHUNK / 4) /* Philox blocks of a chunk */

/* All words of `n` blocks from counter `first` on; n <= TL_WORD_BLOCKS. */
static inline void tl_word_blocks(uint32_t *restrict out, uint64_t seed, uint64_t first, int n) {
  uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32), low = (uint32_t)first, high = (uint32_t)(first >> 32);
  uint32_t w[4][TL_WORD_BLOCKS];
#pragma omp simd
  for (int i = 0; i < n; i++) {
    uint32_t c0 = low + (uint32_t)i, c1 = high + (c0 < low);
    tl_philox_words(k0, k1, c0, c1, &w[0][i], &w[1][i], &w[2][i], &w[3][i]);
  }
  for (int i = 0; i < n; i++)
    for (int k = 0; k < 4; k++) out[4 * i + k] = w[k][i];
}

/* Numbers first..first+n-1 of the stream as raw words; n <= TL_CHUNK. Returns where they begin in `buffer`, which has
 * room for a block more. `first` is rounded down to a block. */
static inline const uint32_t *tl_words(uint32_t buffer[TL_CHUNK + 4], uint64_t seed, uint64_t first, int n) {
  int skip = (int)(first % 4), blocks = (skip + n + 3) / 4;
  tl_word_blocks(buffer, seed, first / 4, blocks < TL_WORD_BLOCKS ? blocks : TL_WORD_BLOCKS);
  if (blocks > TL_WORD_BLOCKS) {
    tl_philox last = tl_philox_block(seed, first / 4 + TL_WORD_BLOCKS);
    memcpy(buffer + TL_CHUNK, last.word, sizeof last.word);
  }
  return buffer + skip;
}

#endif
