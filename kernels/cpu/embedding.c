/* embedding.c: rows of a table by id, and the sums of gradients by id. */
#include <omp.h>
#include <string.h>

#include "wide.h"

tl_status tl_cpu_embedding(const tl_embedding_args *a) {
  const int64_t *ids = tl_data(a->ids);
  size_t bytes = (size_t)a->width * tl_dtype_size(a->w->dtype);
  const char *w = tl_data(a->w);
  char *out = tl_data(a->out);
  int64_t bad = a->n;
#pragma omp parallel for schedule(static) reduction(min : bad) if (a->out->numel >= TL_PARALLEL_MIN)
  for (int64_t i = 0; i < a->n; i++) {
    if (ids[i] >= 0 && ids[i] < a->rows) memcpy(out + (size_t)i * bytes, w + (size_t)ids[i] * bytes, bytes);
    else bad = i < bad ? i : bad;
  }
  if (bad < a->n) *a->bad = bad;
  return TL_OK;
}

/* Rows first..end-1 of the table: every thread reads all ids and adds those of its own rows, in their order. */
#define ADD_ROWS(SUF, T)                                                                                       \
  static void add_rows_##SUF(const tl_embedding_grad_args *a, const T *g, T *dw, int64_t first, int64_t end) { \
    const int64_t *ids = tl_data(a->ids);                                                                      \
    if (!a->add) memset(dw + first * a->width, 0, (size_t)((end - first) * a->width) * sizeof(T));             \
    for (int64_t i = 0; i < a->n; i++) {                                                                       \
      if (ids[i] < first || ids[i] >= end || ids[i] == a->padding) continue;                                   \
      const T *from = g + i * a->width;                                                                        \
      T *to = dw + ids[i] * a->width;                                                                          \
      for (int64_t k = 0; k < a->width; k++) to[k] += from[k];                                                 \
    }                                                                                                          \
  }
ADD_ROWS(f32, float)
ADD_ROWS(f64, double)

#define PARTS 4 /* of the table, a thread: more than one, so that popular rows are shared out */

tl_status tl_cpu_embedding_grad(const tl_embedding_grad_args *a) {
  if (a->dw->numel == 0) return TL_OK;
  tl_wide w = tl_wide_begin(a->dw);
  const void *g = tl_wide_in(&w, a->g);
  void *dw = a->add ? tl_wide_inout(&w, a->dw, true) : tl_wide_out(&w, a->dw);
  const bool small = a->g->numel < TL_PARALLEL_MIN && (a->add || a->dw->numel < TL_PARALLEL_MIN);
  const int threads = small ? 1 : omp_get_max_threads();
  const int64_t parts = threads == 1 ? 1 : PARTS * threads;
  if (!w.failed) {
#pragma omp parallel for schedule(dynamic) if (parts > 1)
    for (int64_t p = 0; p < parts; p++) {
      int64_t first = p * a->rows / parts, end = (p + 1) * a->rows / parts;
      if (w.compute == TL_FLOAT64) add_rows_f64(a, g, dw, first, end);
      else add_rows_f32(a, g, dw, first, end);
    }
  }
  return tl_wide_end(&w, "embedding", TL_OK);
}
