/* random.c: filling tensors with the numbers of a Philox stream, permutations, draws, dropout. Element i gets number
 * offset + i, so that neither threads nor strides change what comes out. */
#include "cpu.h"

#include <math.h>

#include "backend/random.h"
#include "convert.h"
#include "core/memory.h"
#include "philox.h"
#include "words.h"

/* Normal numbers of the same places. */
static const float *normals(float buffer[TL_CHUNK + 4], uint64_t seed, uint64_t first, int n) {
  uint32_t raw[TL_CHUNK + 4];
  int skip = (int)(first % 4), pairs = ((skip + n + 3) / 4) * 2;
  tl_words(raw, seed, first - (uint64_t)skip, skip + n < TL_CHUNK ? skip + n : TL_CHUNK);
  if (skip + n > TL_CHUNK) {
    tl_philox last = tl_philox_block(seed, first / 4 + TL_WORD_BLOCKS);
    memcpy(raw + TL_CHUNK, last.word, sizeof last.word);
  }
#pragma omp simd
  for (int i = 0; i < pairs; i++) tl_normal_pair(raw[2 * i], raw[2 * i + 1], &buffer[2 * i], &buffer[2 * i + 1]);
  return buffer + skip;
}

/* The largest number of this dtype below `high`: rounding must not reach the excluded end. */
static float below(int dtype, double high) {
  float f = nextafterf((float)high, -INFINITY);
  if ((double)(float)high < high) f = (float)high;
  if (dtype == TL_FLOAT32) return f;
  uint16_t bits = dtype == TL_FLOAT16 ? tl_float_to_half(f) : tl_float_to_bf16(f);
  float g = dtype == TL_FLOAT16 ? tl_half_to_float(bits) : tl_bf16_to_float(bits);
  if (g <= f) return g;
  bits = (uint16_t)(g > 0 ? bits - 1 : bits + 1);
  return dtype == TL_FLOAT16 ? tl_half_to_float(bits) : tl_bf16_to_float(bits);
}

/* float32, float16, bfloat16 */
static void chunk_f32(float *out, int kind, uint64_t seed, uint64_t first, int n, float p, float q, float top) {
  if (kind == TL_RANDOM_NORMAL) {
    float buffer[TL_CHUNK + 4];
    const float *z = normals(buffer, seed, first, n);
    for (int i = 0; i < n; i++) out[i] = p + q * z[i];
    return;
  }
  uint32_t buffer[TL_CHUNK + 4];
  const uint32_t *w = tl_words(buffer, seed, first, n);
  if (kind == TL_RANDOM_UNIFORM) {
    const float range = q - p;
    for (int i = 0; i < n; i++) {
      float y = p + range * tl_unit_f32(w[i]);
      out[i] = y < top ? y : top;
    }
  } else { /* bernoulli */
    for (int i = 0; i < n; i++) out[i] = tl_unit_f32(w[i]) < p ? 1.0f : 0.0f;
  }
}

static void chunk_f64(double *out, int kind, uint64_t seed, uint64_t first, int n, double p, double q) {
  if (kind == TL_RANDOM_NORMAL) {
    float buffer[TL_CHUNK + 4];
    const float *z = normals(buffer, seed, first, n);
    for (int i = 0; i < n; i++) out[i] = p + q * z[i];
    return;
  }
  uint32_t buffer[TL_CHUNK + 4];
  const uint32_t *w = tl_words(buffer, seed, first, n);
  const uint64_t range = kind == TL_RANDOM_INTEGER ? (uint64_t)(q - p) : 0;
  switch (kind) {
    case TL_RANDOM_UNIFORM: {
      const double top = nextafter(q, -INFINITY);
      for (int i = 0; i < n; i++) {
        double y = p + (q - p) * tl_unit_f32(w[i]);
        out[i] = y < top || p == q ? y : top;
      }
      break;
    }
    case TL_RANDOM_INTEGER: /* p + floor(u * (q-p)), without floating-point bias for ranges below 2^32 */
      for (int i = 0; i < n; i++)
        out[i] =
            p + (range >> 32 == 0 ? (double)((uint64_t)w[i] * range >> 32) : floor((q - p) * ((double)w[i] * 0x1p-32)));
      break;
    case TL_RANDOM_BERNOULLI:
      for (int i = 0; i < n; i++) out[i] = tl_unit_f32(w[i]) < (float)p ? 1 : 0;
      break;
  }
}

static void range(int kind, const tl_iter *it, uint64_t seed, uint64_t offset, double p, double q, int64_t first,
                  int64_t end) {
  const tl_operand *o = &it->op[0];
  int inner = it->ndim - 1;
  int64_t width = it->shape[inner], stride = o->stride[inner];
  bool narrow = tl_is_floating(o->dtype) && o->dtype != TL_FLOAT64 && kind != TL_RANDOM_INTEGER;
  float top = narrow && kind == TL_RANDOM_UNIFORM ? below(o->dtype, q) : 0;
  if (top < (float)p) top = (float)p; /* nothing of this dtype lies between */
  union {
    float f32[TL_CHUNK];
    double f64[TL_CHUNK];
  } buffer;
  while (first < end) {
    int64_t rest = first / width, column = first % width;
    char *dst = o->data + column * stride;
    for (int d = inner - 1; d >= 0; d--) {
      dst += rest % it->shape[d] * o->stride[d];
      rest /= it->shape[d];
    }
    int64_t n = width - column;
    if (n > end - first) n = end - first;
    if (n > TL_CHUNK) n = TL_CHUNK;
    if (narrow) {
      bool direct = o->dtype == TL_FLOAT32 && stride == (int64_t)sizeof(float);
      float *to = direct ? (float *)dst : buffer.f32;
      chunk_f32(to, kind, seed, offset + (uint64_t)first, (int)n, (float)p, (float)q, top);
      if (!direct) tl_store_f32(dst, o->dtype, stride, to, (int)n);
    } else {
      chunk_f64(buffer.f64, kind, seed, offset + (uint64_t)first, (int)n, p, q);
      tl_store_f64(dst, o->dtype, stride, buffer.f64, (int)n);
    }
    first += n;
  }
}

#define RANGE 16384 /* elements of one thread at a time */

tl_status tl_cpu_random(int kind, const tl_iter *it, uint64_t seed, uint64_t offset, double p, double q) {
  int64_t parts = (it->numel + RANGE - 1) / RANGE;
#pragma omp parallel for schedule(static) if (it->numel >= TL_PARALLEL_MIN)
  for (int64_t b = 0; b < parts; b++)
    range(kind, it, seed, offset, p, q, b * RANGE, (b + 1) * RANGE < it->numel ? (b + 1) * RANGE : it->numel);
  return TL_OK;
}

/* ---- dropout ---- */

/* y = x * scale where the number is at least p, else 0 */
#define DROP(NAME, T)                                                                                        \
  static void drop_##NAME(int dtype, const char *x, char *y, int64_t first, int64_t end, uint64_t seed,      \
                          uint64_t offset, double p) {                                                       \
    int64_t size = (int64_t)tl_dtype_size(dtype);                                                            \
    /* a number is a multiple of 2^-24: it is below p exactly if its integer is below p * 2^24 rounded up */ \
    const uint32_t limit = (uint32_t)ceil(p * 0x1p24);                                                       \
    const T scale = (T)(p < 1 ? 1 / (1 - p) : 0);                                                            \
    T buffer[TL_CHUNK];                                                                                      \
    uint32_t raw[TL_CHUNK + 4];                                                                              \
    for (; first < end; first += TL_CHUNK) {                                                                 \
      int n = end - first < TL_CHUNK ? (int)(end - first) : TL_CHUNK;                                        \
      bool direct = sizeof(T) == (size_t)size;                                                               \
      const uint32_t *w = tl_words(raw, seed, offset + (uint64_t)first, n);                                  \
      const T *from = direct ? (const T *)(x + first * size) : buffer;                                       \
      T *to = direct ? (T *)(y + first * size) : buffer;                                                     \
      if (!direct) tl_load_##NAME(buffer, dtype, x + first * size, size, n);                                 \
      _Pragma("omp simd") for (int i = 0; i < n; i++) to[i] = w[i] >> 8 < limit ? (T)0 : from[i] * scale;    \
      if (!direct) tl_store_##NAME(y + first * size, dtype, size, buffer, n);                                \
    }                                                                                                        \
  }
DROP(f32, float)
DROP(f64, double)

tl_status tl_cpu_dropout(int dtype, const void *x, void *y, int64_t n, uint64_t seed, uint64_t offset, double p) {
  int64_t parts = (n + RANGE - 1) / RANGE;
#pragma omp parallel for schedule(static) if (n >= TL_PARALLEL_MIN)
  for (int64_t b = 0; b < parts; b++) {
    int64_t end = (b + 1) * RANGE < n ? (b + 1) * RANGE : n;
    if (dtype == TL_FLOAT64) drop_f64(dtype, x, y, b * RANGE, end, seed, offset, p);
    else drop_f32(dtype, x, y, b * RANGE, end, seed, offset, p);
  }
  return TL_OK;
}

/* ---- permutations and draws: sequential by nature, two words a number ---- */

/* Fisher & Yates in Durstenfeld's form (1964): place i swaps with one of 0..i. */
tl_status tl_cpu_permutation(int64_t n, uint64_t seed, uint64_t offset, int64_t *out) {
  uint32_t raw[TL_CHUNK + 4];
  for (int64_t i = 0; i < n; i++) out[i] = i;
  for (int64_t i = 0; i < n; i++) {
    int k = (int)(i % (TL_CHUNK / 2));
    if (k == 0) tl_words(raw, seed, offset + 2 * (uint64_t)i, TL_CHUNK);
    int64_t last = n - 1 - i, j = (int64_t)(tl_unit_f64(raw[2 * k], raw[2 * k + 1]) * (double)(last + 1));
    int64_t swap = out[last];
    out[last] = out[j];
    out[j] = swap;
  }
  return TL_OK;
}

static double unit_at(uint64_t seed, uint64_t at) { /* at is even */
  tl_philox b = tl_philox_block(seed, at / 4);
  return tl_unit_f64(b.word[at % 4], b.word[at % 4 + 1]);
}

/* With replacement: the place where the running sum passes u * total. */
static void draw(const double *weights, double *sums, int64_t c, int64_t n, uint64_t seed, uint64_t offset,
                 int64_t *out) {
  double total = 0;
  int64_t last = 0; /* the last place with weight: where rounding must not lead past */
  for (int64_t i = 0; i < c; i++) {
    sums[i] = total += weights[i];
    if (weights[i] > 0) last = i;
  }
  for (int64_t k = 0; k < n; k++) {
    double u = unit_at(seed, offset + 2 * (uint64_t)k) * total;
    int64_t low = 0, high = last;
    while (low < high) { /* the first place whose sum is above u */
      int64_t middle = low + (high - low) / 2;
      if (sums[middle] > u) high = middle;
      else low = middle + 1;
    }
    out[k] = low;
  }
}

/* Without: the n smallest of Exponential(weight) (Efraimidis & Spirakis 2006), drawn in that order. times: room for c + n. */
static tl_status draw_distinct(const double *weights, double *times, int64_t c, int64_t n, uint64_t seed,
                               uint64_t offset, int64_t *out) {
  for (int64_t i = 0; i < c; i++)
    times[i] = weights[i] > 0 ? -log1p(-unit_at(seed, offset + 2 * (uint64_t)i)) / weights[i] : INFINITY;
  return tl_cpu_sort(TL_FLOAT64, times, 1, c, 1, false, n, times + c, out);
}

tl_status tl_cpu_multinomial(const double *weights, int64_t rows, int64_t c, int64_t n, bool replacement, uint64_t seed,
                             uint64_t offset, int64_t *out) {
  double *scratch = tl_host_alloc((size_t)(replacement ? c : c + n) * sizeof *scratch);
  if (scratch == NULL) return TL_FAIL(TL_ERR_MEMORY, "multinomial", "no memory for %lld weights", (long long)c);
  tl_status st = TL_OK;
  for (int64_t r = 0; r < rows && st == TL_OK; r++) {
    if (replacement) draw(weights + r * c, scratch, c, n, seed, offset + 2 * (uint64_t)(r * n), out + r * n);
    else st = draw_distinct(weights + r * c, scratch, c, n, seed, offset + 2 * (uint64_t)(r * c), out + r * n);
  }
  tl_host_free(scratch);
  return st;
}
