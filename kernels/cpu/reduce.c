/* reduce.c: reductions over the trailing dims of an iterator.
 *
 * One loop does the work: fold() runs `rows` rows of `width` neighbours into `width` accumulators, which is vector code
 * whatever the operation is. Reducing an outer dim uses it as it stands (accumulators are neighbouring outputs);
 * reducing the innermost dim deals a row out to LANES accumulators and joins them at the end. Large problems with few
 * outputs are cut into blocks whose number depends on the shape only. */
#include "cpu.h"

#include <math.h>

#include "backend/reduce.h"
#include "convert.h"
#include "core/memory.h"

#define TILE TL_CHUNK /* accumulators at a time */
#define LANES 64      /* accumulators of one row */
#define BLOCK 32768   /* elements of a block */
#define MAX_BLOCKS 64

typedef union cell {
  double f64;
  int64_t i64;
} cell;

typedef struct loops {
  void (*fold)(int width, int64_t rows, const char *x, int64_t stride, cell *acc, const cell *centre, double p);
  void (*row)(int64_t n, const char *x, cell *acc, const cell *centre, double p); /* short rows, into one accumulator */
  void (*join)(int n, cell *acc, const cell *other);
  void (*collapse)(cell *acc); /* LANES accumulators into the first */
  cell init;
} loops;

/* ---- the operations: a accumulates v; c is the centre of its column ---- */

#define STEP_SUM a + v
#define STEP_PROD a *v
#define STEP_MAX v > a || v != v ? v : a
#define STEP_MIN v < a || v != v ? v : a
#define STEP_ALL v != 0 ? a : 0
#define STEP_ANY v != 0 ? 1 : a
#define STEP_COUNT a + (v != 0 ? 1 : 0)
#define STEP_ABS a + fabs(v)
#define STEP_SQUARE a + v *v
#define STEP_POWER a + pow(fabs(v), p)
#define STEP_ABSMAX fabs(v) > a || v != v ? fabs(v) : a
#define STEP_ABSMIN fabs(v) < a || v != v ? fabs(v) : a
#define STEP_SPREAD a + (v - c) * (v - c)
/* wraps around instead of overflowing */
#define STEP_ISUM (int64_t)((uint64_t)a + (uint64_t)v)
#define STEP_IPROD (int64_t)((uint64_t)a * (uint64_t)v)
#define STEP_IMAX v > a ? v : a
#define STEP_IMIN v < a ? v : a

#define FOLD(NAME, S, MEMBER, A, STEP)                                                                           \
  static void NAME##_fold(int width, int64_t rows, const char *x, int64_t stride, cell *acc, const cell *centre, \
                          double p) {                                                                            \
    (void)p, (void)centre;                                                                                       \
    for (; rows >= 4; rows -= 4, x += 4 * stride) {                                                              \
      const S *x0 = (const S *)x, *x1 = (const S *)(x + stride);                                                 \
      const S *x2 = (const S *)(x + 2 * stride), *x3 = (const S *)(x + 3 * stride);                              \
      _Pragma("omp simd") for (int i = 0; i < width; i++) {                                                      \
        const A c = centre[i].MEMBER;                                                                            \
        (void)c;                                                                                                 \
        A a = acc[i].MEMBER, v = (A)x0[i];                                                                       \
        a = STEP, v = (A)x1[i];                                                                                  \
        a = STEP, v = (A)x2[i];                                                                                  \
        a = STEP, v = (A)x3[i];                                                                                  \
        acc[i].MEMBER = STEP;                                                                                    \
      }                                                                                                          \
    }                                                                                                            \
    for (; rows > 0; rows--, x += stride) {                                                                      \
      const S *x0 = (const S *)x;                                                                                \
      _Pragma("omp simd") for (int i = 0; i < width; i++) {                                                      \
        const A c = centre[i].MEMBER;                                                                            \
        (void)c;                                                                                                 \
        const A a = acc[i].MEMBER, v = (A)x0[i];                                                                 \
        acc[i].MEMBER = STEP;                                                                                    \
      }                                                                                                          \
    }                                                                                                            \
  }                                                                                                              \
  static void NAME##_row(int64_t n, const char *x_, cell *acc, const cell *centre, double p) {                   \
    const S *x = (const S *)x_;                                                                                  \
    const A c = centre->MEMBER;                                                                                  \
    (void)p, (void)c;                                                                                            \
    A a = acc->MEMBER;                                                                                           \
    for (int64_t i = 0; i < n; i++) {                                                                            \
      const A v = (A)x[i];                                                                                       \
      a = STEP;                                                                                                  \
    }                                                                                                            \
    acc->MEMBER = a;                                                                                             \
  }

#define JOIN(NAME, MEMBER, A, STEP)                              \
  static void NAME##_join(int n, cell *acc, const cell *other) { \
    for (int i = 0; i < n; i++) {                                \
      const A a = acc[i].MEMBER, v = other[i].MEMBER;            \
      acc[i].MEMBER = STEP;                                      \
    }                                                            \
  }                                                              \
  static void NAME##_collapse(cell *acc) {                       \
    A lane[LANES / 2];                                           \
    _Pragma("omp simd") for (int i = 0; i < LANES / 2; i++) {    \
      const A a = acc[i].MEMBER, v = acc[i + LANES / 2].MEMBER;  \
      lane[i] = STEP;                                            \
    }                                                            \
    _Pragma("omp simd") for (int i = 0; i < LANES / 4; i++) {    \
      const A a = lane[i], v = lane[i + LANES / 4];              \
      lane[i] = STEP;                                            \
    }                                                            \
    _Pragma("omp simd") for (int i = 0; i < LANES / 8; i++) {    \
      const A a = lane[i], v = lane[i + LANES / 8];              \
      lane[i] = STEP;                                            \
    }                                                            \
    for (int half = LANES / 16; half > 0; half /= 2)             \
      for (int i = 0; i < half; i++) {                           \
        const A a = lane[i], v = lane[i + half];                 \
        lane[i] = STEP;                                          \
      }                                                          \
    acc->MEMBER = lane[0];                                       \
  }
JOIN(f64_sum, f64, double, STEP_SUM)
JOIN(f64_prod, f64, double, STEP_PROD)
JOIN(f64_max, f64, double, STEP_MAX)
JOIN(f64_min, f64, double, STEP_MIN)
JOIN(i64_sum, i64, int64_t, STEP_ISUM)
JOIN(i64_prod, i64, int64_t, STEP_IPROD)
JOIN(i64_max, i64, int64_t, STEP_IMAX)
JOIN(i64_min, i64, int64_t, STEP_IMIN)

#define FLOAT_ROWS(SUF, S)                        \
  FOLD(SUF##_sum, S, f64, double, STEP_SUM)       \
  FOLD(SUF##_prod, S, f64, double, STEP_PROD)     \
  FOLD(SUF##_max, S, f64, double, STEP_MAX)       \
  FOLD(SUF##_min, S, f64, double, STEP_MIN)       \
  FOLD(SUF##_all, S, f64, double, STEP_ALL)       \
  FOLD(SUF##_any, S, f64, double, STEP_ANY)       \
  FOLD(SUF##_count, S, f64, double, STEP_COUNT)   \
  FOLD(SUF##_abs, S, f64, double, STEP_ABS)       \
  FOLD(SUF##_square, S, f64, double, STEP_SQUARE) \
  FOLD(SUF##_power, S, f64, double, STEP_POWER)   \
  FOLD(SUF##_absmax, S, f64, double, STEP_ABSMAX) \
  FOLD(SUF##_absmin, S, f64, double, STEP_ABSMIN) \
  FOLD(SUF##_spread, S, f64, double, STEP_SPREAD)
FLOAT_ROWS(of_f32, float)
FLOAT_ROWS(of_f64, double)
FOLD(i64_sum, int64_t, i64, int64_t, STEP_ISUM)
FOLD(i64_prod, int64_t, i64, int64_t, STEP_IPROD)
FOLD(i64_max, int64_t, i64, int64_t, STEP_IMAX)
FOLD(i64_min, int64_t, i64, int64_t, STEP_IMIN)
FOLD(i64_all, int64_t, i64, int64_t, STEP_ALL)
FOLD(i64_any, int64_t, i64, int64_t, STEP_ANY)

enum { SUM, PROD, MAX, MIN, ALL, ANY, COUNT, ABS, SQUARE, POWER, ABSMAX, ABSMIN, SPREAD, FOLDS };

#define LOOPS(NAME, JOINED, INIT) \
  { NAME##_fold, NAME##_row, JOINED##_join, JOINED##_collapse, INIT }
#define FLOAT_TABLE(SUF)                                                                                             \
  {                                                                                                                  \
    [SUM] = LOOPS(SUF##_sum, f64_sum, {.f64 = 0}), [PROD] = LOOPS(SUF##_prod, f64_prod, {.f64 = 1}),                 \
    [MAX] = LOOPS(SUF##_max, f64_max, {.f64 = -INFINITY}), [MIN] = LOOPS(SUF##_min, f64_min, {.f64 = INFINITY}),     \
    [ALL] = LOOPS(SUF##_all, f64_min, {.f64 = 1}), [ANY] = LOOPS(SUF##_any, f64_max, {.f64 = 0}),                    \
    [COUNT] = LOOPS(SUF##_count, f64_sum, {.f64 = 0}), [ABS] = LOOPS(SUF##_abs, f64_sum, {.f64 = 0}),                \
    [SQUARE] = LOOPS(SUF##_square, f64_sum, {.f64 = 0}), [POWER] = LOOPS(SUF##_power, f64_sum, {.f64 = 0}),          \
    [ABSMAX] = LOOPS(SUF##_absmax, f64_max, {.f64 = 0}), [ABSMIN] = LOOPS(SUF##_absmin, f64_min, {.f64 = INFINITY}), \
    [SPREAD] = LOOPS(SUF##_spread, f64_sum, {.f64 = 0}),                                                             \
  }
static const loops f32_loops[FOLDS] = FLOAT_TABLE(of_f32);
static const loops f64_loops[FOLDS] = FLOAT_TABLE(of_f64);
static const loops i64_loops[FOLDS] = {
    [SUM] = LOOPS(i64_sum, i64_sum, {.i64 = 0}),         [PROD] = LOOPS(i64_prod, i64_prod, {.i64 = 1}),
    [MAX] = LOOPS(i64_max, i64_max, {.i64 = INT64_MIN}), [MIN] = LOOPS(i64_min, i64_min, {.i64 = INT64_MAX}),
    [ALL] = LOOPS(i64_all, i64_min, {.i64 = 1}),         [ANY] = LOOPS(i64_any, i64_max, {.i64 = 0}),
};

/* ---- one reduction ---- */

typedef struct job {
  const tl_iter *it;
  const loops *f;
  int lead;            /* dims that are kept */
  int compute;         /* TL_FLOAT32, TL_FLOAT64 or TL_INT64: what rows are converted to */
  int64_t outs, count; /* outputs; elements of each */
  int64_t inner;       /* size of the innermost kept dim */
  bool columns;        /* accumulators are neighbouring outputs */
  double p;
  const cell *centre; /* [outs]; read by SPREAD only */
} job;

static void load(const job *j, void *buffer, const char *src, int64_t stride, int n) {
  int dtype = j->it->op[1].dtype;
  if (j->compute == TL_FLOAT32) tl_load_f32(buffer, dtype, src, stride, n);
  else if (j->compute == TL_FLOAT64) tl_load_f64(buffer, dtype, src, stride, n);
  else tl_load_i64(buffer, dtype, src, stride, n);
}

static void set(cell *acc, int n, cell value) {
  const int64_t bits = value.i64; /* either member: only bits move */
  for (int i = 0; i < n; i++) acc[i].i64 = bits;
}

static const char *output_source(const job *j, int64_t o) {
  const tl_iter *it = j->it;
  const char *src = it->op[1].data;
  for (int d = j->lead - 1; d >= 0 && o > 0; d--) {
    src += o % it->shape[d] * it->op[1].stride[d];
    o /= it->shape[d];
  }
  return src;
}

/* Elements r.. of the reduced dims that lie on one innermost run: its start, its stride, how many (at most `most`). */
static int64_t run_at(const job *j, const char *src, int64_t r, int64_t most, const char **at, int64_t *stride) {
  const tl_iter *it = j->it;
  int inner = it->ndim - 1;
  if (inner < j->lead) { /* every reduced dim has size 1 */
    *at = src;
    *stride = 0;
    return 1;
  }
  int64_t width = it->shape[inner], column = r % width, rest = r / width;
  src += column * it->op[1].stride[inner];
  for (int d = inner - 1; d >= j->lead && rest > 0; d--) {
    src += rest % it->shape[d] * it->op[1].stride[d];
    rest /= it->shape[d];
  }
  *at = src;
  *stride = it->op[1].stride[inner];
  return width - column < most ? width - column : most;
}

static void join_groups(const job *j, cell *acc, int width, int groups) {
  while (groups > 1) {
    int half = groups / 2;
    j->f->join(half * width, acc, acc + (groups - half) * width);
    groups -= half;
  }
}

/* out[0..width-1]: outputs o.. (neighbours on the innermost kept dim) over reduced elements first..end-1. Few columns
 * whose rows follow each other in memory are folded several rows at a time. */
static void fold_columns(const job *j, int64_t o, int width, int64_t first, int64_t end, cell *out) {
  const tl_operand *in = &j->it->op[1];
  int64_t size = (int64_t)tl_dtype_size(in->dtype), step = j->it->ndim > j->lead ? in->stride[j->it->ndim - 1] : 0;
  int64_t column_stride = in->stride[j->lead - 1];
  bool direct = in->dtype == j->compute && (column_stride == size || width == 1);
  int groups = direct && step == width * size && end - first >= 2 * TILE / width ? TILE / width : 1;
  cell wide[TILE], centres[TILE], *acc = groups > 1 ? wide : out;
  set(acc, groups * width, j->f->init);
  const cell *centre = j->centre != NULL ? j->centre + o : acc;
  for (int g = 0; g < groups && j->centre != NULL; g++)
    memcpy(centres + g * width, centre, (size_t)width * sizeof *centre);
  if (groups > 1) centre = centres;
  const char *src = output_source(j, o);
  double buffer[TILE];
  for (int64_t r = first; r < end;) {
    const char *at;
    int64_t stride, n = run_at(j, src, r, end - r, &at, &stride);
    r += n;
    if (direct) {
      int64_t together = n / groups;
      j->f->fold(groups * width, together, at, groups * stride, acc, centre, j->p);
      if (groups > 1) j->f->fold(width, n % groups, at + together * groups * stride, stride, acc, centre, j->p);
      continue;
    }
    for (int64_t i = 0; i < n; i++) {
      load(j, buffer, at + i * stride, column_stride, width);
      j->f->fold(width, 1, (const char *)buffer, 0, acc, centre, j->p);
    }
  }
  if (groups == 1) return;
  join_groups(j, wide, width, groups);
  memcpy(out, wide, (size_t)width * sizeof *out);
}

/* One output over reduced elements first..end-1. */
static void fold_row(const job *j, int64_t o, int64_t first, int64_t end, cell *out) {
  const tl_operand *in = &j->it->op[1];
  int64_t size = (int64_t)tl_dtype_size(in->dtype), unit = (int64_t)tl_dtype_size(j->compute);
  cell lanes[LANES], centres[LANES], total = j->f->init;
  bool dealt = false;
  const cell *centre = j->centre != NULL ? j->centre + o : &total;
  const char *src = output_source(j, o);
  double buffer[TL_CHUNK];
  for (int64_t r = first; r < end;) {
    const char *x;
    int64_t stride, n = run_at(j, src, r, end - r, &x, &stride);
    if (in->dtype != j->compute || (stride != size && n > 1)) {
      if (n > TL_CHUNK) n = TL_CHUNK;
      load(j, buffer, x, stride, (int)n);
      x = (const char *)buffer;
    }
    r += n;
    int64_t rows = n >= 2 * LANES ? n / LANES : 0;
    if (rows > 0) {
      if (!dealt) {
        set(lanes, LANES, j->f->init);
        if (j->centre != NULL) set(centres, LANES, *centre);
        dealt = true;
      }
      j->f->fold(LANES, rows, x, LANES * unit, lanes, j->centre != NULL ? centres : lanes, j->p);
    }
    j->f->row(n - rows * LANES, x + rows * LANES * unit, &total, centre, j->p);
  }
  if (dealt) {
    j->f->collapse(lanes);
    j->f->join(1, &total, lanes);
  }
  *out = total;
}

/* Task t of the outputs: a tile of columns, or a few rows. */
static int64_t tasks_of(const job *j, int64_t *rows) {
  *rows = 4096 / (j->count + 1) + 1;
  if (!j->columns) return (j->outs + *rows - 1) / *rows;
  return j->outs / j->inner * ((j->inner + TILE - 1) / TILE);
}

static void run_task(const job *j, int64_t t, int64_t rows, int64_t first, int64_t end, cell *results) {
  if (!j->columns) {
    for (int64_t o = t * rows; o < (t + 1) * rows && o < j->outs; o++) fold_row(j, o, first, end, results + o);
    return;
  }
  int64_t tiles = (j->inner + TILE - 1) / TILE, column = t % tiles * TILE, o = t / tiles * j->inner + column;
  fold_columns(j, o, j->inner - column < TILE ? (int)(j->inner - column) : TILE, first, end, results + o);
}

/* results[0..outs-1] */
static tl_status fold_all(const job *j, cell *results) {
  int64_t rows, tasks = tasks_of(j, &rows), numel = j->outs * j->count, blocks = 1;
  if (numel >= 2 * BLOCK && tasks < 8) blocks = numel / BLOCK < MAX_BLOCKS ? numel / BLOCK : MAX_BLOCKS;
  if (blocks > j->count) blocks = j->count;
  if (blocks <= 1) {
    if (numel < TL_PARALLEL_MIN) { /* no team, no closure */
      for (int64_t t = 0; t < tasks; t++) run_task(j, t, rows, 0, j->count, results);
      return TL_OK;
    }
#pragma omp parallel for schedule(static)
    for (int64_t t = 0; t < tasks; t++) run_task(j, t, rows, 0, j->count, results);
    return TL_OK;
  }
  cell *partial = tl_host_alloc((size_t)(blocks * j->outs) * sizeof *partial);
  if (partial == NULL) return TL_FAIL(TL_ERR_MEMORY, "reduce", "no memory for partial results");
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < blocks * tasks; i++) {
    int64_t b = i / tasks, length = (j->count + blocks - 1) / blocks;
    int64_t first = b * length < j->count ? b * length : j->count,
            end = first + length < j->count ? first + length : j->count;
    run_task(j, i % tasks, rows, first, end, partial + b * j->outs);
  }
  memcpy(results, partial, (size_t)j->outs * sizeof *results);
  for (int64_t b = 1; b < blocks; b++)
    for (int64_t o = 0; o < j->outs; o += TILE)
      j->f->join(j->outs - o < TILE ? (int)(j->outs - o) : TILE, results + o, partial + b * j->outs + o);
  tl_host_free(partial);
  return TL_OK;
}

static int fold_of(int kind, double p) {
  switch (kind) {
    case TL_REDUCE_KIND_PROD: return PROD;
    case TL_REDUCE_KIND_MAX: return MAX;
    case TL_REDUCE_KIND_MIN: return MIN;
    case TL_REDUCE_KIND_ALL: return ALL;
    case TL_REDUCE_KIND_ANY: return ANY;
    case TL_REDUCE_KIND_NORM:
      return p == 2 ? SQUARE : p == 1 ? ABS : p == 0 ? COUNT : p == INFINITY ? ABSMAX : p == -INFINITY ? ABSMIN : POWER;
    default: return SUM;
  }
}

static void finish(int kind, double p, int64_t count, int64_t n, cell *results) {
  double divisor = (double)count - p > 0 ? (double)count - p : 0;
  switch (kind) {
    case TL_REDUCE_KIND_MEAN:
      for (int64_t o = 0; o < n; o++) results[o].f64 /= (double)count;
      break;
    case TL_REDUCE_KIND_VAR:
      for (int64_t o = 0; o < n; o++) results[o].f64 /= divisor;
      break;
    case TL_REDUCE_KIND_STD:
      for (int64_t o = 0; o < n; o++) results[o].f64 = sqrt(results[o].f64 / divisor);
      break;
    case TL_REDUCE_KIND_NORM:
      if (p == 2)
        for (int64_t o = 0; o < n; o++) results[o].f64 = sqrt(results[o].f64);
      else if (p != 0 && p != 1 && fabs(p) != INFINITY)
        for (int64_t o = 0; o < n; o++) results[o].f64 = pow(results[o].f64, 1 / p);
      break;
  }
}

static void store(const tl_iter *it, int compute, int64_t n, const cell *results) {
  int dtype = it->op[0].dtype;
  int64_t size = (int64_t)tl_dtype_size(dtype);
  for (int64_t o = 0; o < n; o += TILE) {
    int part = n - o < TILE ? (int)(n - o) : TILE;
    if (compute == TL_INT64) tl_store_i64(it->op[0].data + o * size, dtype, size, &results[o].i64, part);
    else tl_store_f64(it->op[0].data + o * size, dtype, size, &results[o].f64, part);
  }
}

static job plan(const tl_iter *it, int reduced, double p) {
  job j = {.it = it, .lead = it->ndim - reduced, .outs = 1, .count = 1, .inner = 1, .p = p};
  const tl_operand *in = &it->op[1];
  for (int d = 0; d < j.lead; d++) j.outs *= it->shape[d];
  for (int d = j.lead; d < it->ndim; d++) j.count *= it->shape[d];
  j.compute = tl_compute_type(in->dtype);
  if (j.lead == 0) return j;
  j.inner = it->shape[j.lead - 1];
  int64_t across = in->stride[j.lead - 1], along = reduced > 0 ? in->stride[it->ndim - 1] : INT64_MAX;
  j.columns = j.inner > 1 && (across < along || (j.count < LANES / 2 && j.inner >= LANES / 4));
  return j;
}

tl_status tl_cpu_reduce(int kind, const tl_iter *it, int reduced, double p) {
  job j = plan(it, reduced, p);
  if (j.outs == 0) return TL_OK;
  const loops *table = j.compute == TL_FLOAT32 ? f32_loops : j.compute == TL_FLOAT64 ? f64_loops : i64_loops;
  bool spread = kind == TL_REDUCE_KIND_VAR || kind == TL_REDUCE_KIND_STD;
  j.f = &table[fold_of(kind, p)];
  if (j.f->fold == NULL)
    return TL_FAIL(TL_ERR_UNSUPPORTED, "reduce", "kind %d does not reduce %s", kind, tl_dtype_name(it->op[1].dtype));
  cell few[2 * TILE], *results = few;
  int64_t cells = spread ? 2 * j.outs : j.outs;
  if (cells > 2 * TILE) results = tl_host_alloc((size_t)cells * sizeof *results);
  if (results == NULL) return TL_FAIL(TL_ERR_MEMORY, "reduce", "no memory for %lld results", (long long)j.outs);
  tl_status st = fold_all(&j, results);
  if (st == TL_OK && spread) {
    cell *centre = results + j.outs;
    for (int64_t o = 0; o < j.outs; o++) centre[o].f64 = results[o].f64 / (double)j.count;
    j.centre = centre;
    j.f = &table[SPREAD];
    st = fold_all(&j, results);
  }
  if (st == TL_OK) {
    finish(kind, p, j.count, j.outs, results);
    store(it, j.compute, j.outs, results);
  }
  if (results != few) tl_host_free(results);
  return st;
}
