/* along.c: what walks along one dim of a contiguous (outer, n, inner) tensor: extremes with their places, running sums. */
#include "cpu.h"

#include <math.h>

#include "convert.h"

#define TILE TL_CHUNK /* columns at a time */

/* ---- extremes: the first of equals, the first nan before everything ---- */

/* Columns of one tile over n rows: `best` and `at` follow the extreme. */
#define EXTREME(NAME, T, BETTER)                                               \
  static void NAME(int width, const T *row, int64_t r, T *best, int64_t *at) { \
    _Pragma("omp simd") for (int i = 0; i < width; i++) {                      \
      const T v = row[i], b = best[i];                                         \
      const int better = BETTER;                                               \
      best[i] = better ? v : b;                                                \
      at[i] = better ? r : at[i];                                              \
    }                                                                          \
  }
EXTREME(largest_f32, float, (v > b) | ((v != v) & (b == b)))
EXTREME(smallest_f32, float, (v < b) | ((v != v) & (b == b)))
EXTREME(largest_f64, double, (v > b) | ((v != v) & (b == b)))
EXTREME(smallest_f64, double, (v < b) | ((v != v) & (b == b)))
EXTREME(largest_i64, int64_t, v > b)
EXTREME(smallest_i64, int64_t, v < b)

/* A tile of columns: converted rows come from `load`. */
#define EXTREME_TILE(SUF, T)                                                                                \
  static void tile_##SUF(bool largest, int dtype, const char *src, int64_t row_bytes, int64_t n, int width, \
                         int64_t *at) {                                                                     \
    T best[TILE], row[TILE];                                                                                \
    int64_t size = (int64_t)tl_dtype_size(dtype);                                                           \
    tl_load_##SUF(best, dtype, src, size, width);                                                           \
    for (int i = 0; i < width; i++) at[i] = 0;                                                              \
    for (int64_t r = 1; r < n; r++) {                                                                       \
      tl_load_##SUF(row, dtype, src + r * row_bytes, size, width);                                          \
      if (largest) largest_##SUF(width, row, r, best, at);                                                  \
      else smallest_##SUF(width, row, r, best, at);                                                         \
    }                                                                                                       \
  }                                                                                                         \
  static int64_t short_row_##SUF(bool largest, const T *x, int n) {                                         \
    int place = 0;                                                                                          \
    for (int i = 1; i < n && x[place] == x[place]; i++)                                                     \
      place = (largest ? x[i] > x[place] : x[i] < x[place]) || x[i] != x[i] ? i : place;                    \
    return place;                                                                                           \
  }                                                                                                         \
  /* inner size 1: a long row is dealt out to lanes, which join at the end */                               \
  static int64_t row_##SUF(bool largest, int dtype, const char *src, int64_t n) {                           \
    enum { LANES = 64 };                                                                                    \
    T best[LANES], row[LANES];                                                                              \
    int64_t at[LANES] = {0}, size = (int64_t)tl_dtype_size(dtype);                                          \
    int width = n < LANES ? (int)n : LANES;                                                                 \
    tl_load_##SUF(best, dtype, src, size, width);                                                           \
    if (n <= LANES) return short_row_##SUF(largest, best, width);                                           \
    for (int64_t r = 1; r * width < n; r++) {                                                               \
      int have = n - r * width < width ? (int)(n - r * width) : width;                                      \
      tl_load_##SUF(row, dtype, src + r * width * size, size, have);                                        \
      if (largest) largest_##SUF(have, row, r, best, at);                                                   \
      else smallest_##SUF(have, row, r, best, at);                                                          \
    }                                                                                                       \
    int64_t place = at[0] * width;                                                                          \
    T value = best[0];                                                                                      \
    for (int i = 1; i < width; i++) {                                                                       \
      int64_t here = at[i] * width + i;                                                                     \
      bool nan = best[i] != best[i], had = value != value;                                                  \
      bool better = largest ? best[i] > value : best[i] < value;                                            \
      bool same = best[i] == value || (nan && had);                                                         \
      if (better || (nan && !had) || (same && here < place)) value = best[i], place = here;                 \
    }                                                                                                       \
    return place;                                                                                           \
  }
EXTREME_TILE(f32, float)
EXTREME_TILE(f64, double)
EXTREME_TILE(i64, int64_t)

tl_status tl_cpu_arg_extreme(bool largest, int dtype, const void *x, int64_t outer, int64_t n, int64_t inner,
                             int64_t *ids) {
  int64_t size = (int64_t)tl_dtype_size(dtype), tiles = (inner + TILE - 1) / TILE;
  int compute = tl_compute_type(dtype);
#pragma omp parallel for schedule(static) if (outer * n * inner >= TL_PARALLEL_MIN)
  for (int64_t t = 0; t < outer * tiles; t++) {
    int64_t o = t / tiles, column = t % tiles * TILE;
    int width = inner - column < TILE ? (int)(inner - column) : TILE;
    const char *src = (const char *)x + (o * n * inner + column) * size;
    int64_t *at = ids + o * inner + column;
    if (inner == 1)
      *at = compute == TL_FLOAT32   ? row_f32(largest, dtype, src, n)
            : compute == TL_FLOAT64 ? row_f64(largest, dtype, src, n)
                                    : row_i64(largest, dtype, src, n);
    else if (compute == TL_FLOAT32) tile_f32(largest, dtype, src, inner * size, n, width, at);
    else if (compute == TL_FLOAT64) tile_f64(largest, dtype, src, inner * size, n, width, at);
    else tile_i64(largest, dtype, src, inner * size, n, width, at);
  }
  return TL_OK;
}

/* ---- running sums, in double or (wrapping) int64 ---- */

#define RUNNING(SUF, T, ADD)                                                                                   \
  static void running_##SUF(int from, int to, const char *src, char *dst, int64_t n, int64_t inner, int width, \
                            bool reverse) {                                                                    \
    T sum[TILE] = {0}, row[TILE];                                                                              \
    int64_t in = (int64_t)tl_dtype_size(from), out = (int64_t)tl_dtype_size(to);                               \
    for (int64_t i = 0; i < n; i++) {                                                                          \
      int64_t r = reverse ? n - 1 - i : i;                                                                     \
      tl_load_##SUF(row, from, src + r * inner * in, in, width);                                               \
      for (int c = 0; c < width; c++) sum[c] = ADD;                                                            \
      tl_store_##SUF(dst + r * inner * out, to, out, sum, width);                                              \
    }                                                                                                          \
  }
RUNNING(f64, double, sum[c] + row[c])
RUNNING(i64, int64_t, (int64_t)((uint64_t)sum[c] + (uint64_t)row[c]))

/* inner size 1: a float32 row as it stands, any other a chunk at a time */
static void running_row_f32(const float *src, float *dst, int64_t n, bool reverse) {
  double sum = 0;
  if (reverse)
    for (int64_t i = n - 1; i >= 0; i--) dst[i] = (float)(sum += src[i]);
  else
    for (int64_t i = 0; i < n; i++) dst[i] = (float)(sum += src[i]);
}

#define RUNNING_ROW(SUF, T, ADD)                                                                         \
  static void running_row_##SUF(int from, int to, const char *src, char *dst, int64_t n, bool reverse) { \
    T sum = 0, row[TILE];                                                                                \
    int64_t in = (int64_t)tl_dtype_size(from), out = (int64_t)tl_dtype_size(to);                         \
    for (int64_t done = 0; done < n; done += TILE) {                                                     \
      int width = n - done < TILE ? (int)(n - done) : TILE;                                              \
      int64_t at = reverse ? n - done - width : done;                                                    \
      tl_load_##SUF(row, from, src + at * in, in, width);                                                \
      for (int i = 0; i < width; i++) {                                                                  \
        int c = reverse ? width - 1 - i : i;                                                             \
        row[c] = sum = ADD;                                                                              \
      }                                                                                                  \
      tl_store_##SUF(dst + at * out, to, out, row, width);                                               \
    }                                                                                                    \
  }
RUNNING_ROW(f64, double, sum + row[c])
RUNNING_ROW(i64, int64_t, (int64_t)((uint64_t)sum + (uint64_t)row[c]))

tl_status tl_cpu_cumsum(int from, const void *x, int to, void *y, int64_t outer, int64_t n, int64_t inner,
                        bool reverse) {
  int64_t in = (int64_t)tl_dtype_size(from), out = (int64_t)tl_dtype_size(to), tiles = (inner + TILE - 1) / TILE;
#pragma omp parallel for schedule(static) if (outer * n * inner >= TL_PARALLEL_MIN)
  for (int64_t t = 0; t < outer * tiles; t++) {
    int64_t at = t / tiles * n * inner + t % tiles * TILE, column = t % tiles * TILE;
    int width = inner - column < TILE ? (int)(inner - column) : TILE;
    const char *src = (const char *)x + at * in;
    char *dst = (char *)y + at * out;
    if (inner == 1 && from == TL_FLOAT32 && to == TL_FLOAT32)
      running_row_f32((const float *)src, (float *)dst, n, reverse);
    else if (inner == 1 && tl_is_floating(from)) running_row_f64(from, to, src, dst, n, reverse);
    else if (inner == 1) running_row_i64(from, to, src, dst, n, reverse);
    else if (tl_is_floating(from)) running_f64(from, to, src, dst, n, inner, width, reverse);
    else running_i64(from, to, src, dst, n, inner, width, reverse);
  }
  return TL_OK;
}
