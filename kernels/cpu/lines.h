/* lines.h: a (outer, n, inner) array cut into blocks of lines along its middle dim, for softmax and classification losses.
 *
 * Line p = o * inner + i has its element c at o * n * inner + c * inner + i. With inner = 1 a block is some whole rows
 * (few enough that short rows can share one loop over all their elements), else a tile of neighbouring i. */
#ifndef TL_KERNELS_CPU_LINES_H
#define TL_KERNELS_CPU_LINES_H

#include <stdint.h>

#define TL_LINES 128       /* most lines of a block */
#define TL_LINE_PIECE 1024 /* elements of a block of rows, unless it is one longer row */

typedef struct tl_lines {
  int64_t outer, n, inner;
  int64_t per;    /* lines of a full block */
  int64_t across; /* blocks of one o (1 when inner = 1: then blocks cut outer) */
  int64_t blocks;
} tl_lines;

typedef struct tl_line_block {
  int64_t line;  /* number of the first line */
  int64_t base;  /* its first element */
  int64_t count; /* lines */
} tl_line_block;

static inline tl_lines tl_lines_of(int64_t outer, int64_t n, int64_t inner) {
  tl_lines l = {outer, n, inner, TL_LINES, 1, 0};
  if (inner == 1) {
    if (n > TL_LINE_PIECE) l.per = 1;
    else if (n * TL_LINES > TL_LINE_PIECE) l.per = TL_LINE_PIECE / n;
    l.blocks = (outer + l.per - 1) / l.per;
  } else {
    l.across = (inner + TL_LINES - 1) / TL_LINES;
    l.blocks = outer * l.across;
  }
  return l;
}

static inline tl_line_block tl_line_block_of(const tl_lines *l, int64_t b) {
  int64_t o = b / l->across, i = b % l->across * l->per, end = l->inner;
  tl_line_block block;
  if (l->inner == 1) {
    o = b * l->per;
    i = 0;
    end = l->outer - o;
  } else {
    end = l->inner - i;
  }
  block.line = o * l->inner + i;
  block.base = o * l->n * l->inner + i;
  block.count = end < l->per ? end : l->per;
  return block;
}

#endif
