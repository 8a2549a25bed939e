/* wide.h: contiguous operands as arrays of the type that is computed in (float, or double for float64).
 *
 * A tensor that is stored in that type lends its own memory; any other (float16, bfloat16) is converted to a copy, and
 * copies of outputs are converted back at the end. One set of loops then serves all floating dtypes. */
#ifndef TL_KERNELS_CPU_WIDE_H
#define TL_KERNELS_CPU_WIDE_H

#include "convert.h"
#include "core/memory.h"
#include "cpu.h"

#define TL_WIDE_MAX 12

typedef struct tl_wide {
  int compute; /* TL_FLOAT32 or TL_FLOAT64 */
  int copies;
  bool failed; /* no memory for a copy: its pointer is NULL, nothing may run */
  struct {
    tl_tensor *t;
    void *data;
    size_t bytes;
    bool store;
  } copy[TL_WIDE_MAX];
} tl_wide;

static inline tl_wide tl_wide_begin(const tl_tensor *t) {
  tl_wide w;
  w.compute = t->dtype == TL_FLOAT64 ? TL_FLOAT64 : TL_FLOAT32;
  w.copies = 0;
  w.failed = false;
  return w;
}

/* Moves all elements between a tensor and an array of the compute type. */
static inline void tl_wide_move(int compute, tl_tensor *t, char *data, bool store) {
  int64_t size = (int64_t)tl_dtype_size(t->dtype), wide = (int64_t)tl_dtype_size(compute);
  char *at = tl_data(t);
#pragma omp parallel for if (t->numel > TL_PARALLEL_MIN) schedule(static)
  for (int64_t done = 0; done < t->numel; done += TL_CHUNK) {
    int n = t->numel - done < TL_CHUNK ? (int)(t->numel - done) : TL_CHUNK;
    char *narrow = at + done * size, *c = data + done * wide;
    if (compute == TL_FLOAT64 && store) tl_store_f64(narrow, t->dtype, size, (double *)c, n);
    else if (compute == TL_FLOAT64) tl_load_f64((double *)c, t->dtype, narrow, size, n);
    else if (store) tl_store_f32(narrow, t->dtype, size, (float *)c, n);
    else tl_load_f32((float *)c, t->dtype, narrow, size, n);
  }
}

static inline void *tl_wide_copy(tl_wide *w, tl_tensor *t, bool load, bool store) {
  /* from the tensors' cache: fresh pages would cost more than the conversion */
  size_t bytes = (size_t)(t->numel > 0 ? t->numel : 1) * tl_dtype_size(w->compute);
  void *data = tl_cpu_alloc(bytes);
  if (data == NULL) {
    w->failed = true;
    return NULL;
  }
  if (load) tl_wide_move(w->compute, t, data, false);
  w->copy[w->copies].t = t;
  w->copy[w->copies].data = data;
  w->copy[w->copies].bytes = bytes;
  w->copy[w->copies++].store = store;
  return data;
}

static inline const void *tl_wide_in(tl_wide *w, tl_tensor *t) {
  if (t == NULL) return NULL;
  return t->dtype == w->compute ? tl_data(t) : tl_wide_copy(w, t, true, false);
}
static inline void *tl_wide_out(tl_wide *w, tl_tensor *t) {
  if (t == NULL) return NULL;
  return t->dtype == w->compute ? tl_data(t) : tl_wide_copy(w, t, false, true);
}
/* Read, and written if `store`. */
static inline void *tl_wide_inout(tl_wide *w, tl_tensor *t, bool store) {
  if (t == NULL) return NULL;
  return t->dtype == w->compute ? tl_data(t) : tl_wide_copy(w, t, true, store);
}

/* What the gradients of batch norm and of the row norms take alike, in their arrays m. */
#define TL_WIDE_NORM_GRAD(m, wide, a)           \
  do {                                          \
    m.g = tl_wide_in(&wide, a->g);              \
    m.x = tl_wide_in(&wide, a->x);              \
    m.w = tl_wide_in(&wide, a->w);              \
    m.mean_in = tl_wide_in(&wide, a->mean);     \
    m.invstd_in = tl_wide_in(&wide, a->invstd); \
    m.dx = tl_wide_out(&wide, a->dx);           \
    m.dw = tl_wide_out(&wide, a->dw);           \
    m.db = tl_wide_out(&wide, a->db);           \
  } while (0)

/* Converts the outputs back (unless something failed) and frees the copies. */
static inline tl_status tl_wide_end(tl_wide *w, const char *op, tl_status st) {
  if (st == TL_OK && w->failed) st = TL_FAIL(TL_ERR_MEMORY, op, "no memory for float32 copies of the operands");
  for (int i = 0; i < w->copies; i++) {
    if (st == TL_OK && w->copy[i].store) tl_wide_move(w->compute, w->copy[i].t, w->copy[i].data, true);
    tl_cpu_free(w->copy[i].data, w->copy[i].bytes);
  }
  return st;
}

#endif
