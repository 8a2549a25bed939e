/* sparse.c: products with a weight in compressed rows. Each sum has one order, whatever the number of threads. What the
 * columns say is not believed: rows with one that lies outside are left out, and it is reported. */
#include "cpu.h"

#include <string.h>

#include "core/error.h"
#include "core/memory.h"

enum { LANES = 16, TILE = 64, ROWS = 64, PACKED = 512 };

/* Rows [from, to) of w: what they may read, once it is known that their columns are there. */
typedef struct rows {
  int64_t from, to;
  int32_t begin, end;
} rows;

static inline int32_t limited(int32_t at, int32_t low, int32_t high) { return at < low ? low : at > high ? high : at; }
static inline int32_t begin_of(const tl_sparse *w, const rows *b, int64_t r) {
  return limited(w->first[r], b->begin, b->end);
}
static inline int32_t end_of(const tl_sparse *w, const rows *b, int64_t r) {
  return limited(w->first[r + 1], b->begin, b->end);
}

/* Do these rows have columns of w only? Else *worst is the largest. */
static bool check_rows(const tl_sparse *w, int64_t from, int64_t to, rows *b, uint32_t *worst) {
  *b = (rows){from, to, limited(w->first[from], 0, (int32_t)w->nonzeros), 0};
  b->end = limited(w->first[to], b->begin, (int32_t)w->nonzeros);
  uint32_t largest = 0;
#pragma omp simd reduction(max : largest)
  for (int32_t i = b->begin; i < b->end; i++)
    largest = (uint32_t)w->column[i] > largest ? (uint32_t)w->column[i] : largest;
  if (b->begin == b->end || largest < (uint32_t)w->columns) return true;
  *worst = largest > *worst ? largest : *worst;
  return false;
}

/* ---- one sample ---- */

/* One load for each x: gathers are no faster, and on processors that are patched against their leaks slower by far. */
static inline float dot(const float *value, const int32_t *column, int32_t n, const float *x) {
  float sum[4] = {0};
  int32_t i = 0;
  for (; i + 4 <= n; i += 4)
    for (int k = 0; k < 4; k++) sum[k] += value[i + k] * x[column[i + k]];
  for (; i < n; i++) sum[0] += value[i] * x[column[i]];
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

static void rows_of_one(const tl_sparse *w, const rows *b, const float *x, float *y) {
  for (int64_t r = b->from; r < b->to; r++) {
    const int32_t begin = begin_of(w, b, r);
    y[r] = dot(w->value + begin, w->column + begin, end_of(w, b, r) - begin, x) + (w->bias != NULL ? w->bias[r] : 0);
  }
}

/* ---- many: a tile of samples at a time, LANES or TILE, their features packed side by side ---- */

/* x (samples, columns) to packed (columns, tile); what lacks of a tile is 0. */
static void pack(const float *x, int64_t samples, int64_t columns, int tile, float *packed) {
  if (samples < tile) memset(packed, 0, (size_t)(columns * tile) * sizeof *packed);
  for (int64_t from = 0; from < columns; from += LANES) {
    const int64_t to = from + LANES < columns ? from + LANES : columns;
    for (int64_t s = 0; s < samples; s++)
      for (int64_t c = from; c < to; c++) packed[c * tile + s] = x[s * columns + c];
  }
}

/* Vectors by name: of loops over arrays the compiler makes scalar ones here. `packed` is aligned. */
typedef float lanes __attribute__((vector_size(LANES * sizeof(float)), may_alias));

static void row_of_16(const tl_sparse *w, const rows *b, int64_t r, const float *packed, float *sums) {
  const int32_t end = end_of(w, b, r);
  const lanes *x = (const lanes *)packed;
  lanes sum = (lanes){0} + (w->bias != NULL ? w->bias[r] : 0);
  for (int32_t i = begin_of(w, b, r); i < end; i++) sum += w->value[i] * x[w->column[i]];
  memcpy(sums, &sum, sizeof sum);
}

static void row_of_64(const tl_sparse *w, const rows *b, int64_t r, const float *packed, float *sums) {
  const int32_t end = end_of(w, b, r);
  lanes first = (lanes){0} + (w->bias != NULL ? w->bias[r] : 0), sum[4] = {first, first, first, first};
  for (int32_t i = begin_of(w, b, r); i < end; i++) {
    const float v = w->value[i];
    const lanes *x = (const lanes *)packed + w->column[i] * (int64_t)4;
    sum[0] += v * x[0];
    sum[1] += v * x[1];
    sum[2] += v * x[2];
    sum[3] += v * x[3];
  }
  memcpy(sums, sum, sizeof sum);
}

static void rows_of_tile(const tl_sparse *w, const rows *b, const float *packed, int tile, int64_t samples, float *y) {
  float sums[LANES][TILE];
  for (int64_t r = b->from; r < b->to; r += LANES) {
    const int n = (int)(r + LANES < b->to ? LANES : b->to - r);
    for (int k = 0; k < n; k++) {
      if (tile == LANES) row_of_16(w, b, r + k, packed, sums[k]);
      else row_of_64(w, b, r + k, packed, sums[k]);
    }
    for (int64_t s = 0; s < samples; s++)
      for (int k = 0; k < n; k++) y[s * w->rows + r + k] = sums[k][s];
  }
}

/* Samples of tile t of `all`. */
static inline int64_t tile_size(int64_t all, int64_t t, int tile) {
  return all - t * tile < tile ? all - t * tile : tile;
}

static tl_status in_tiles(const tl_sparse *w, const float *x, int64_t batch, float *y, uint32_t *seen) {
  const int tile = batch <= 2 * LANES ? LANES : TILE;
  const int64_t most = batch < PACKED ? (batch + tile - 1) / tile : PACKED / tile;
  const int64_t blocks = (w->rows + ROWS - 1) / ROWS, size = w->columns * tile;
  const size_t bytes = (size_t)(most * size) * sizeof(float);
  float *packed = tl_cpu_alloc(bytes);
  if (packed == NULL)
    return TL_FAIL(TL_ERR_MEMORY, "sparse_linear", "no %.1f MB of scratch memory", (double)bytes / 1048576);
  uint32_t worst = 0;
  for (int64_t first = 0; first < batch; first += PACKED) {
    const int64_t here = batch - first < PACKED ? batch - first : PACKED, tiles = (here + tile - 1) / tile;
    const float *from = x + first * w->columns;
    float *to = y + first * w->rows;
#pragma omp parallel if (here * w->nonzeros >= TL_PARALLEL_MIN)
    {
#pragma omp for schedule(static)
      for (int64_t t = 0; t < tiles; t++)
        pack(from + t * tile * w->columns, tile_size(here, t, tile), w->columns, tile, packed + t * size);
#pragma omp for schedule(static) reduction(max : worst)
      for (int64_t i = 0; i < tiles * blocks; i++) {
        const int64_t t = i / blocks, r = i % blocks * ROWS;
        rows b;
        if (check_rows(w, r, r + ROWS < w->rows ? r + ROWS : w->rows, &b, &worst))
          rows_of_tile(w, &b, packed + t * size, tile, tile_size(here, t, tile), to + t * tile * w->rows);
      }
    }
  }
  tl_cpu_free(packed, bytes);
  *seen = worst;
  return TL_OK;
}

tl_status tl_cpu_sparse_linear(const tl_sparse *w, const float *x, int64_t batch, float *y) {
  uint32_t worst = 0;
  if (batch > 1 && w->nonzeros > 0) {
    TL_TRY(in_tiles(w, x, batch, y, &worst));
  } else {
    const int64_t blocks = (w->rows + ROWS - 1) / ROWS;
#pragma omp parallel for schedule(static) reduction(max : worst) if (batch * w->nonzeros >= TL_PARALLEL_MIN)
    for (int64_t i = 0; i < batch * blocks; i++) {
      const int64_t s = i / blocks, r = i % blocks * ROWS;
      rows b;
      if (check_rows(w, r, r + ROWS < w->rows ? r + ROWS : w->rows, &b, &worst))
        rows_of_one(w, &b, x + s * w->columns, y + s * w->rows);
    }
  }
  if (worst > 0)
    return TL_FAIL(TL_ERR_VALUE, "sparse_linear", "column %u of a weight with %lld columns (counted from 0)", worst,
                   (long long)w->columns);
  return TL_OK;
}
