/* index.c: moving and adding elements by stored indices. Whoever calls has checked the ids. Sums run in the order of the
 * ids, so they do not depend on threads. */
#include "cpu.h"

#include <string.h>

tl_status tl_cpu_find_bad_id(const int64_t *ids, int64_t n, int64_t limit, int64_t *at) {
  uint64_t outside = 0;
#pragma omp simd reduction(| : outside)
  for (int64_t i = 0; i < n; i++) outside |= (uint64_t)(ids[i] < 0) | (uint64_t)(ids[i] >= limit);
  *at = -1;
  for (int64_t i = 0; i < n && outside; i++)
    if (ids[i] < 0 || ids[i] >= limit) {
      *at = i;
      break;
    }
  return TL_OK;
}

/* ---- rows ---- */

#define SELECT(T) \
  for (int64_t j = 0; j < m; j++) ((T *)dst)[j] = ((const T *)src)[ids[j]];

/* Single elements: rows of inner size 1. */
static void select_elements(size_t size, const char *src, int64_t m, const int64_t *ids, char *dst) {
  switch (size) {
    case 1: SELECT(uint8_t) break;
    case 2: SELECT(uint16_t) break;
    case 4: SELECT(uint32_t) break;
    default: SELECT(uint64_t) break;
  }
}

tl_status tl_cpu_index_select(size_t size, const void *x, int64_t outer, int64_t n, int64_t inner, int64_t m,
                              const int64_t *ids, void *y) {
  size_t bytes = (size_t)inner * size;
  if (inner == 1) {
#pragma omp parallel for schedule(static) if (outer * m >= TL_PARALLEL_MIN)
    for (int64_t o = 0; o < outer; o++)
      select_elements(size, (const char *)x + (size_t)(o * n) * size, m, ids, (char *)y + (size_t)(o * m) * size);
    return TL_OK;
  }
#pragma omp parallel for schedule(static) if (outer * m * inner >= TL_PARALLEL_MIN)
  for (int64_t i = 0; i < outer * m; i++)
    memcpy((char *)y + (size_t)i * bytes, (const char *)x + (size_t)(i / m * n + ids[i % m]) * bytes, bytes);
  return TL_OK;
}

#define ADD_ROWS(NAME, T, SUM)                                                                                \
  static void add_##NAME(const void *x_, int64_t outer, int64_t n, int64_t inner, int64_t first, int64_t end, \
                         int64_t m, const int64_t *ids, double alpha_, void *y_) {                            \
    const T *x = x_, alpha = (T)alpha_;                                                                       \
    T *y = y_;                                                                                                \
    for (int64_t o = 0; o < outer; o++)                                                                       \
      for (int64_t j = 0; j < m; j++) {                                                                       \
        const T *src = x + (o * m + j) * inner;                                                               \
        T *dst = y + (o * n + ids[j]) * inner;                                                                \
        _Pragma("omp simd") for (int64_t i = first; i < end; i++) {                                           \
          const T a = dst[i], b = src[i];                                                                     \
          dst[i] = SUM;                                                                                       \
        }                                                                                                     \
      }                                                                                                       \
  }
ADD_ROWS(f32, float, a + alpha * b)
ADD_ROWS(f64, double, a + alpha * b)
ADD_ROWS(i64, int64_t, (int64_t)((uint64_t)a + (uint64_t)alpha * (uint64_t)b))
ADD_ROWS(i32, int32_t, (int32_t)((uint32_t)a + (uint32_t)alpha * (uint32_t)b))
ADD_ROWS(u8, uint8_t, (uint8_t)(a + alpha * b))

static tl_status no_sum(int dtype) {
  return TL_FAIL(TL_ERR_UNSUPPORTED, "index_add", "there is no sum of %s", tl_dtype_name(dtype));
}

/* Threads share the columns, so that each sum has one owner and its fixed order. */
tl_status tl_cpu_index_add(int dtype, const void *x, int64_t outer, int64_t n, int64_t inner, int64_t m,
                           const int64_t *ids, double alpha, void *y) {
  void (*add)(const void *, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, const int64_t *, double, void *) =
      dtype == TL_FLOAT32   ? add_f32
      : dtype == TL_FLOAT64 ? add_f64
      : dtype == TL_INT64   ? add_i64
      : dtype == TL_INT32   ? add_i32
      : dtype == TL_UINT8   ? add_u8
                            : NULL;
  if (add == NULL) return no_sum(dtype);
  int64_t block = 64, blocks = (inner + block - 1) / block;
  if (outer * m * inner < TL_PARALLEL_MIN || blocks < 2) {
    add(x, outer, n, inner, 0, inner, m, ids, alpha, y);
    return TL_OK;
  }
#pragma omp parallel for schedule(static)
  for (int64_t b = 0; b < blocks; b++)
    add(x, outer, n, inner, b * block, (b + 1) * block < inner ? (b + 1) * block : inner, m, ids, alpha, y);
  return TL_OK;
}

/* ---- single elements through an iterator ---- */

/* Addresses of operand 0..2 where row `row` of the iterator begins. */
static void row_at(const tl_iter *it, int64_t row, char *at[3]) {
  for (int i = 0; i < 3; i++) at[i] = it->op[i].data;
  for (int d = it->ndim - 2; d >= 0 && row > 0; d--) {
    for (int i = 0; i < 3; i++) at[i] += row % it->shape[d] * it->op[i].stride[d];
    row /= it->shape[d];
  }
}

#define GATHER(T)                                                  \
  for (int64_t k = 0; k < width; k++, dst += a, id += b, src += c) \
    *(T *)dst = *(const T *)(src + *(const int64_t *)id * stride);

tl_status tl_cpu_gather(const tl_iter *it, int64_t stride, int64_t n) {
  (void)n; /* the ids were checked */
  if (it->numel == 0) return TL_OK;
  int inner = it->ndim - 1;
  int64_t width = it->shape[inner], rows = it->numel / width;
  int64_t a = it->op[0].stride[inner], b = it->op[1].stride[inner], c = it->op[2].stride[inner];
#pragma omp parallel for schedule(static) if (it->numel >= TL_PARALLEL_MIN)
  for (int64_t r = 0; r < rows; r++) {
    char *at[3];
    row_at(it, r, at);
    char *dst = at[0];
    const char *id = at[1], *src = at[2];
    switch (tl_dtype_size(it->op[0].dtype)) {
      case 1: GATHER(uint8_t) break;
      case 2: GATHER(uint16_t) break;
      case 4: GATHER(uint32_t) break;
      default: GATHER(uint64_t) break;
    }
  }
  return TL_OK;
}

#define SCATTER(T, U)                                                \
  for (int64_t k = 0; k < width; k++, dst += a, id += b, src += c) { \
    T *to = (T *)(dst + *(const int64_t *)id * stride);              \
    *to = (T)((U)*to + (U) * (const T *)src);                        \
  }

tl_status tl_cpu_scatter_add(const tl_iter *it, int64_t stride, int64_t n) {
  (void)n;
  if (it->numel == 0) return TL_OK;
  int inner = it->ndim - 1, dtype = it->op[0].dtype;
  int64_t width = it->shape[inner], rows = it->numel / width;
  int64_t a = it->op[0].stride[inner], b = it->op[1].stride[inner], c = it->op[2].stride[inner];
  for (int64_t r = 0; r < rows; r++) {
    char *at[3];
    row_at(it, r, at);
    char *dst = at[0];
    const char *id = at[1], *src = at[2];
    switch (dtype) {
      case TL_FLOAT32: SCATTER(float, float) break;
      case TL_FLOAT64: SCATTER(double, double) break;
      case TL_INT64: SCATTER(int64_t, uint64_t) break;
      case TL_INT32: SCATTER(int32_t, uint32_t) break;
      case TL_UINT8: SCATTER(uint8_t, unsigned) break;
      default: return no_sum(dtype);
    }
  }
  return TL_OK;
}

/* ---- flags, triangles ---- */

tl_status tl_cpu_nonzero(const uint8_t *flags, int ndim, const int64_t *shape, int64_t *out) {
  int64_t index[TL_MAX_DIMS] = {0}, n = 1;
  for (int d = 0; d < ndim; d++) n *= shape[d];
  for (int64_t i = 0; i < n; i++) {
    if (flags[i]) {
      for (int d = 0; d < ndim; d++) *out++ = index[d];
    }
    for (int d = ndim - 1; d >= 0 && ++index[d] == shape[d]; d--) index[d] = 0;
  }
  return TL_OK;
}

tl_status tl_cpu_triangle(size_t size, const void *x, int64_t batch, int64_t rows, int64_t columns, int64_t diagonal,
                          bool upper, void *y) {
#pragma omp parallel for schedule(static) if (batch * rows * columns >= TL_PARALLEL_MIN)
  for (int64_t r = 0; r < batch * rows; r++) {
    /* columns 0..cut-1 lie below the diagonal (tril keeps one more) */
    int64_t cut = r % rows + diagonal + (upper ? 0 : 1);
    size_t left = (size_t)(cut < 0 ? 0 : cut > columns ? columns : cut) * size, all = (size_t)columns * size;
    const char *src = (const char *)x + (size_t)r * all;
    char *dst = (char *)y + (size_t)r * all;
    if (upper) {
      memset(dst, 0, left);
      memcpy(dst + left, src + left, all - left);
    } else {
      memcpy(dst, src, left);
      memset(dst + left, 0, all - left);
    }
  }
  return TL_OK;
}
