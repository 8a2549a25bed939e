/* gemm.c: batched matrix products.
 *
 * float32 goes to oneDNN's sgemm, which takes either operand transposed; operands that fit neither way (expanded, every
 * second column, ...) are packed first. Tiny products are computed in place from any strides: a call into the library
 * would cost more than they do. float64 and integers have one blocked kernel each; the half types are packed to
 * float32, except large bfloat16 products where the processor is fast at them. */
#include "cpu.h"

#include <omp.h>

#include "backend/dnnl.h"
#include "backend/gemm.h"
#include "convert.h"
#include "core/memory.h"

/* Products of fewer multiplications than this are not worth a call into oneDNN. */
#define SMALL 768
/* A batch item below this is computed by one thread, the batch by all. */
#define BATCH_ITEM_MAX (1 << 19)

/* From so many multiplications on a bfloat16 product goes to oneDNN as it is, where the processor is fast at that. */
#define LARGE_BFLOAT16 (1 << 18)

/* ---- float32 ---- */

static void small_f32(const tl_gemm *g) {
  const float *restrict a = g->a.data, *restrict b = g->b.data, *bias = g->bias;
  float *restrict c = g->c.data;
  const float alpha = (float)g->alpha, beta = (float)g->beta;
  const int64_t ac = g->a.col, br = g->b.row, k = g->k, n = g->n;
  for (int64_t i = 0; i < g->m; i++) {
    const float *ai = a + i * g->a.row;
    float *ci = c + i * g->c.row;
    for (int64_t j = 0; j < n; j++) {
      const float *bj = b + j * g->b.col;
      float sum = 0;
      if (ac == 1 && br == 1)
        for (int64_t p = 0; p < k; p++) sum += ai[p] * bj[p];
      else
        for (int64_t p = 0; p < k; p++) sum += ai[p * ac] * bj[p * br];
      float y = alpha * sum + (bias == NULL ? 0 : bias[j * g->bias_stride]);
      ci[j] = beta == 0 ? y : y + beta * ci[j];
    }
  }
}

/* c = bias in every row, so that sgemm adds to it. */
static void fill_bias(const tl_gemm *g) {
  const float *bias = g->bias;
  for (int64_t i = 0; i < g->m; i++) {
    float *c = (float *)g->c.data + i * g->c.row;
    if (g->bias_stride == 1) memcpy(c, bias, (size_t)g->n * sizeof *c);
    else
      for (int64_t j = 0; j < g->n; j++) c[j] = bias[j * g->bias_stride];
  }
}

static void add_bias(const tl_gemm *g) {
  const float *bias = g->bias;
  for (int64_t i = 0; i < g->m; i++) {
    float *c = (float *)g->c.data + i * g->c.row;
    for (int64_t j = 0; j < g->n; j++) c[j] += bias[j * g->bias_stride];
  }
}

/* A float32 copy of x (rows x cols, any dtype and strides), row-major. */
static void pack_f32(float *dst, int dtype, const tl_matrix *x, int64_t rows, int64_t cols) {
  const int64_t size = (int64_t)tl_dtype_size(dtype);
#pragma omp parallel for if (rows * cols > TL_PARALLEL_MIN) schedule(static)
  for (int64_t i = 0; i < rows; i++) {
    const char *src = (const char *)x->data + i * x->row * size;
    for (int64_t done = 0; done < cols; done += TL_CHUNK) {
      int n = cols - done < TL_CHUNK ? (int)(cols - done) : TL_CHUNK;
      tl_load_f32(dst + i * cols + done, dtype, src + done * x->col * size, x->col * size, n);
    }
  }
}

static tl_status no_memory(const tl_gemm *g, size_t bytes) {
  return TL_FAIL(TL_ERR_MEMORY, g->op, "no %.1f MB of scratch memory for a product of (%lldx%lld) and (%lldx%lld)",
                 (double)bytes / 1048576, (long long)g->m, (long long)g->k, (long long)g->k, (long long)g->n);
}

/* Both operands can be read by sgemm. */
static tl_status direct_f32(const tl_gemm *g) {
  const tl_reading a = tl_reading_of(&g->a, g->m, g->k), b = tl_reading_of(&g->b, g->k, g->n);
  float beta = (float)g->beta;
  bool first = g->bias != NULL && beta == 0;
  if (first) fill_bias(g);
  int64_t ldc = g->m == 1 ? g->n : g->c.row;
  TL_TRY(tl_dnnl_sgemm(g->op, a.transposed, b.transposed, g->m, g->n, g->k, (float)g->alpha, g->a.data, a.ld, g->b.data,
                       b.ld, first ? 1 : beta, g->c.data, ldc));
  if (g->bias != NULL && !first) add_bias(g);
  return TL_OK;
}

static tl_status item_f32(const tl_gemm *g) {
  if (g->m * g->n * g->k <= SMALL) {
    small_f32(g);
    return TL_OK;
  }
  const bool a_ok = tl_reading_of(&g->a, g->m, g->k).possible, b_ok = tl_reading_of(&g->b, g->k, g->n).possible;
  if (a_ok && b_ok) return direct_f32(g);
  tl_gemm packed = *g;
  size_t a_size = a_ok ? 0 : (size_t)(g->m * g->k), b_size = b_ok ? 0 : (size_t)(g->k * g->n);
  size_t bytes = (a_size + b_size) * sizeof(float);
  float *scratch = tl_cpu_alloc(bytes);
  if (scratch == NULL) return no_memory(g, bytes);
  if (!a_ok) {
    pack_f32(scratch, TL_FLOAT32, &g->a, g->m, g->k);
    packed.a = (tl_matrix){.data = scratch, .row = g->k, .col = 1};
  }
  if (!b_ok) {
    pack_f32(scratch + a_size, TL_FLOAT32, &g->b, g->k, g->n);
    packed.b = (tl_matrix){.data = scratch + a_size, .row = g->n, .col = 1};
  }
  tl_status st = direct_f32(&packed);
  tl_cpu_free(scratch, bytes);
  return st;
}

/* Can oneDNN multiply these bfloat16 matrices as they are, and is it worth the set-up? */
static bool suits_bfloat16(const tl_gemm *g) {
  return g->dtype == TL_BFLOAT16 && g->alpha == 1 && (g->beta == 0 || (g->wide && g->beta == 1)) &&
         g->m * g->n * g->k >= LARGE_BFLOAT16 && (g->bias == NULL || g->bias_stride == 1) &&
         tl_reading_of(&g->a, g->m, g->k).possible && tl_reading_of(&g->b, g->k, g->n).possible && !omp_in_parallel() &&
         tl_dnnl_fast_bfloat16();
}

/* x with its strides as sgemm would read it: dims of size 1 have any */
static tl_matrix as_read(const tl_matrix *x, int64_t rows, int64_t cols) {
  const tl_reading r = tl_reading_of(x, rows, cols);
  return (tl_matrix){.data = x->data, .row = r.transposed ? 1 : r.ld, .col = r.transposed ? r.ld : 1};
}

static tl_status item_bfloat16(const tl_gemm *g) {
  const tl_matrix a = as_read(&g->a, g->m, g->k), b = as_read(&g->b, g->k, g->n);
  const tl_matrix c = {.data = g->c.data, .row = g->m == 1 ? g->n : g->c.row, .col = 1};
  return tl_dnnl_bfloat16_gemm(g->op, g->m, g->n, g->k, &a, &b, g->bias, g->bias_stride, g->wide, g->beta == 1, &c);
}

/* float16 and bfloat16: everything as float32, rounded once at the end; a wide c is that already. */
static tl_status item_half(const tl_gemm *g) {
  size_t a = (size_t)(g->m * g->k), b = (size_t)(g->k * g->n), c = g->wide ? 0 : (size_t)(g->m * g->n),
         bias = (size_t)g->n;
  size_t bytes = (a + b + c + bias) * sizeof(float);
  float *scratch = tl_cpu_alloc(bytes);
  if (scratch == NULL) return no_memory(g, bytes);
  float *fa = scratch, *fb = fa + a, *fc = fb + b, *fbias = fc + c;
  tl_gemm wide = *g;
  pack_f32(fa, g->dtype, &g->a, g->m, g->k);
  pack_f32(fb, g->dtype, &g->b, g->k, g->n);
  if (g->beta != 0 && !g->wide) pack_f32(fc, g->dtype, &g->c, g->m, g->n);
  if (g->bias != NULL) {
    const tl_matrix row = {.data = (void *)g->bias, .col = g->bias_stride};
    pack_f32(fbias, g->dtype, &row, 1, g->n);
    wide.bias = fbias;
    wide.bias_stride = 1;
  }
  wide.dtype = TL_FLOAT32;
  wide.a = (tl_matrix){.data = fa, .row = g->k, .col = 1};
  wide.b = (tl_matrix){.data = fb, .row = g->n, .col = 1};
  if (!g->wide) wide.c = (tl_matrix){.data = fc, .row = g->n, .col = 1};
  tl_status st = item_f32(&wide);
  const int64_t n = g->n, row = g->c.row;
#pragma omp parallel for if (g->m * n > TL_PARALLEL_MIN) schedule(static)
  for (int64_t i = 0; i < (g->wide ? 0 : g->m); i++)
    for (int64_t done = 0; done < n; done += TL_CHUNK)
      tl_store_f32((char *)g->c.data + (i * row + done) * 2, g->dtype, 2, fc + i * n + done,
                   n - done < TL_CHUNK ? (int)(n - done) : TL_CHUNK);
  tl_cpu_free(scratch, bytes);
  return st;
}

/* ---- float64 and integers: panels of b, blocks of a's rows ---- */

#define PANEL 16 /* columns of b at a time, packed and padded with zeros */
#define ROWS 4   /* rows of a at a time: ROWS * PANEL sums stay in registers */

typedef double f64_half __attribute__((vector_size(PANEL / 2 * sizeof(double))));
typedef int64_t i64_half __attribute__((vector_size(PANEL / 2 * sizeof(int64_t))));

/* sums[r][j] = sum over p of a[r][p] * b[p][j], for the two halves of a panel; rows of a may repeat (the tail) */
#define BLOCK_KERNEL(T, SUFFIX)                                                                                  \
  static void block_##SUFFIX(T sums[ROWS][PANEL], const T *const a[ROWS], int64_t step, const T *b, int64_t k) { \
    SUFFIX##_half s[ROWS][2] = {0}, b0, b1;                                                                      \
    for (int64_t p = 0; p < k; p++, b += PANEL) {                                                                \
      memcpy(&b0, b, sizeof b0);                                                                                 \
      memcpy(&b1, b + PANEL / 2, sizeof b1);                                                                     \
      _Pragma("GCC unroll 4") for (int r = 0; r < ROWS; r++) {                                                   \
        s[r][0] += a[r][p * step] * b0;                                                                          \
        s[r][1] += a[r][p * step] * b1;                                                                          \
      }                                                                                                          \
    }                                                                                                            \
    memcpy(sums, s, sizeof s);                                                                                   \
  }

/* One problem in T; LOAD and STORE convert rows. Panels are independent: one thread computes each sum from first to
 * last. */
#define ITEM_KERNEL(T, SUFFIX, LOAD, STORE)                                                                           \
  BLOCK_KERNEL(T, SUFFIX)                                                                                             \
  static void panel_##SUFFIX(const tl_gemm *g, const T *a, int64_t a_row, int64_t a_col, int64_t first, T *b) {       \
    const int64_t size = (int64_t)tl_dtype_size(g->dtype);                                                            \
    const int width = g->n - first < PANEL ? (int)(g->n - first) : PANEL;                                             \
    const char *src = (const char *)g->b.data + first * g->b.col * size;                                              \
    T bias[PANEL] = {0}, old[PANEL], sums[ROWS][PANEL];                                                               \
    for (int64_t p = 0; p < g->k; p++) {                                                                              \
      for (int j = width; j < PANEL; j++) b[p * PANEL + j] = 0;                                                       \
      LOAD(b + p * PANEL, g->dtype, src + p * g->b.row * size, g->b.col * size, width);                               \
    }                                                                                                                 \
    if (g->bias != NULL)                                                                                              \
      LOAD(bias, g->dtype, (const char *)g->bias + first * g->bias_stride * size, g->bias_stride * size, width);      \
    for (int64_t i = 0; i < g->m; i += ROWS) {                                                                        \
      const T *rows[ROWS];                                                                                            \
      for (int r = 0; r < ROWS; r++) rows[r] = a + (i + r < g->m ? i + r : i) * a_row;                                \
      block_##SUFFIX(sums, rows, a_col, b, g->k);                                                                     \
      for (int r = 0; r < ROWS && i + r < g->m; r++) {                                                                \
        char *c = (char *)g->c.data + ((i + r) * g->c.row + first) * size;                                            \
        T *y = sums[r];                                                                                               \
        if (g->alpha != 1)                                                                                            \
          for (int j = 0; j < PANEL; j++) y[j] = (T)g->alpha * y[j];                                                  \
        if (g->beta != 0) {                                                                                           \
          LOAD(old, g->dtype, c, size, width);                                                                        \
          for (int j = 0; j < width; j++) y[j] += (T)g->beta * old[j];                                                \
        }                                                                                                             \
        for (int j = 0; j < PANEL; j++) y[j] += bias[j];                                                              \
        STORE(c, g->dtype, size, y, width);                                                                           \
      }                                                                                                               \
    }                                                                                                                 \
  }                                                                                                                   \
  static tl_status item_##SUFFIX(const tl_gemm *g, bool stored_in_t) {                                                \
    const int64_t size = (int64_t)tl_dtype_size(g->dtype), panels = (g->n + PANEL - 1) / PANEL;                       \
    const bool parallel = g->m * g->n * g->k > TL_PARALLEL_MIN * 4 && panels > 1 && !omp_in_parallel();               \
    const int threads = parallel ? omp_get_max_threads() : 1;                                                         \
    size_t a_bytes = stored_in_t ? 0 : (size_t)(g->m * g->k) * sizeof(T), panel = (size_t)g->k * PANEL;               \
    size_t bytes = a_bytes + panel * sizeof(T) * (size_t)threads;                                                     \
    T *scratch = tl_cpu_alloc(bytes), *a = g->a.data;                                                                 \
    if (scratch == NULL) return no_memory(g, bytes);                                                                  \
    T *packed = scratch + panel * (size_t)threads;                                                                    \
    if (!stored_in_t) {                                                                                               \
      a = packed;                                                                                                     \
      for (int64_t i = 0; i < g->m; i++)                                                                              \
        for (int64_t done = 0; done < g->k; done += TL_CHUNK)                                                         \
          LOAD(packed + i * g->k + done, g->dtype, (const char *)g->a.data + (i * g->a.row + done * g->a.col) * size, \
               g->a.col * size, g->k - done < TL_CHUNK ? (int)(g->k - done) : TL_CHUNK);                              \
    }                                                                                                                 \
    const int64_t a_row = stored_in_t ? g->a.row : g->k, a_col = stored_in_t ? g->a.col : 1;                          \
    _Pragma("omp parallel for num_threads(threads) schedule(static)") for (int64_t j = 0; j < panels; j++)            \
        panel_##SUFFIX(g, a, a_row, a_col, j *PANEL, scratch + panel * (size_t)omp_get_thread_num());                 \
    tl_cpu_free(scratch, bytes);                                                                                      \
    return TL_OK;                                                                                                     \
  }

ITEM_KERNEL(double, f64, tl_load_f64, tl_store_f64)
ITEM_KERNEL(int64_t, i64, tl_load_i64, tl_store_i64)

/* ---- all dtypes ---- */

static tl_status item(const tl_gemm *g) {
  switch (g->dtype) {
    case TL_FLOAT32: return item_f32(g);
    case TL_FLOAT64: return item_f64(g, true);
    case TL_FLOAT16: return item_half(g);
    case TL_BFLOAT16: return suits_bfloat16(g) ? item_bfloat16(g) : item_half(g);
    default: return item_i64(g, g->dtype == TL_INT64);
  }
}

static tl_status many(const tl_gemm *g, int64_t count) {
  const bool parallel = g->m * g->n * g->k < BATCH_ITEM_MAX && g->m * g->n * g->k * count > TL_PARALLEL_MIN * 4;
  tl_status st = TL_OK;
#pragma omp parallel for if (parallel) schedule(static)
  for (int64_t i = 0; i < count; i++) {
    tl_gemm one = tl_gemm_item(g, i);
    tl_status mine = item(&one);
    if (mine != TL_OK) {
#pragma omp atomic write
      st = mine;
    }
  }
  /* The detail of a failure stays with the thread it happened on: say it again here. */
  if (st != TL_OK && parallel) return no_memory(g, (size_t)(g->m * g->k + g->k * g->n) * tl_dtype_size(g->dtype));
  return st;
}

tl_status tl_cpu_gemm(const tl_gemm *problem) {
  if (problem->m == 0 || problem->n == 0) return TL_OK;
  if (problem->batch_ndim == 0) return item(problem);
  tl_gemm g = *problem;
  int64_t count = tl_gemm_batch_count(&g);
  if (count == 0) return TL_OK;
  tl_gemm_fold(&g);
  return g.batch_ndim == 0 ? item(&g) : many(&g, tl_gemm_batch_count(&g));
}
