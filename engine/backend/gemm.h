/* gemm.h: the geometry of tl_gemm that the backends share: batches as few dims as they can be, items, how a library that
 * knows leading dimensions only can read a matrix. */
#ifndef TL_BACKEND_GEMM_H
#define TL_BACKEND_GEMM_H

#include "backend/kernels.h"

static inline bool tl_gemm_steps_alike(const tl_matrix *x, const tl_gemm *g, int d) {
  return x->batch[d] == x->batch[d + 1] * g->batch[d + 1];
}

/* Batch dims that all operands step through alike become one; a batch that shares b becomes more rows of a. */
static inline void tl_gemm_fold(tl_gemm *g) {
  for (int d = g->batch_ndim - 2; d >= 0; d--) {
    if (!tl_gemm_steps_alike(&g->a, g, d) || !tl_gemm_steps_alike(&g->b, g, d) || !tl_gemm_steps_alike(&g->c, g, d))
      continue;
    g->batch[d] *= g->batch[d + 1];
    tl_matrix *all[3] = {&g->a, &g->b, &g->c};
    for (int i = 0; i < 3; i++) {
      all[i]->batch[d] = all[i]->batch[d + 1];
      for (int e = d + 1; e < g->batch_ndim - 1; e++) all[i]->batch[e] = all[i]->batch[e + 1];
    }
    for (int e = d + 1; e < g->batch_ndim - 1; e++) g->batch[e] = g->batch[e + 1];
    g->batch_ndim--;
  }
  if (g->batch_ndim != 1 || g->b.batch[0] != 0) return;
  if (g->m != 1 && (g->a.batch[0] != g->m * g->a.row || g->c.batch[0] != g->m * g->c.row)) return;
  if (g->m == 1) g->a.row = g->a.batch[0], g->c.row = g->c.batch[0];
  g->m *= g->batch[0];
  g->batch_ndim = 0;
}

static inline int64_t tl_gemm_batch_count(const tl_gemm *g) {
  int64_t count = 1;
  for (int d = 0; d < g->batch_ndim; d++) count *= g->batch[d];
  return count;
}

/* Elements from x's data to batch item i. */
static inline int64_t tl_gemm_batch_offset(const tl_gemm *g, const tl_matrix *x, int64_t i) {
  int64_t offset = 0;
  for (int d = g->batch_ndim - 1; d >= 0; d--) {
    offset += i % g->batch[d] * x->batch[d];
    i /= g->batch[d];
  }
  return offset;
}

/* Batch item i as a problem of its own. */
static inline tl_gemm tl_gemm_item(const tl_gemm *g, int64_t i) {
  tl_gemm item = *g;
  int64_t size = (int64_t)tl_dtype_size(g->dtype);
  item.a.data = (char *)g->a.data + tl_gemm_batch_offset(g, &g->a, i) * size;
  item.b.data = (char *)g->b.data + tl_gemm_batch_offset(g, &g->b, i) * size;
  item.c.data = (char *)g->c.data + tl_gemm_batch_offset(g, &g->c, i) * size;
  item.batch_ndim = 0;
  return item;
}

/* How a library can read a matrix: as it is stored, or transposed, with rows (columns) ld apart; or not at all. */
typedef struct tl_reading {
  bool possible, transposed;
  int64_t ld;
} tl_reading;

static inline tl_reading tl_reading_of(const tl_matrix *x, int64_t rows, int64_t cols) {
  if ((x->col == 1 || cols == 1) && (x->row >= cols || rows == 1))
    return (tl_reading){true, false, rows == 1 ? cols : x->row};
  if ((x->row == 1 || rows == 1) && (x->col >= rows || cols == 1))
    return (tl_reading){true, true, cols == 1 ? rows : x->col};
  return (tl_reading){false, false, 0};
}

#endif
