/* sort.c: stable sorting of (key, place) pairs. Every dtype becomes an unsigned key of the same order, so one sort serves
 * all: insertion for short rows, least-significant-digit radix for long ones, a bounded list for the top few. */
#include "cpu.h"

#include <string.h>

#include "convert.h"
#include "core/memory.h"

typedef struct pair {
  uint64_t key;
  int64_t place;
} pair;

#define SHORT_ROW 48 /* insertion sort up to here */
#define FEW 32       /* top-k by a bounded list up to here */

/* Floats: the sign bit flips (positive) or all bits flip (negative); -0 is 0, every nan is the largest. */
static uint64_t key_f32(float f) {
  if (f != f) return UINT32_MAX;
  if (f == 0) f = 0;
  uint32_t bits;
  memcpy(&bits, &f, sizeof bits);
  return bits >> 31 ? (uint32_t)~bits : bits | 0x80000000u;
}

static uint64_t key_f64(double f) {
  if (f != f) return UINT64_MAX;
  if (f == 0) f = 0;
  uint64_t bits;
  memcpy(&bits, &f, sizeof bits);
  return bits >> 63 ? ~bits : bits | 1ull << 63;
}

/* One row of n elements, `stride` bytes apart, as keys; descending flips them (stability stays). */
static void keys_of(int dtype, const char *src, int64_t stride, int64_t n, bool descending, pair *out) {
  union {
    float f32[TL_CHUNK];
    double f64[TL_CHUNK];
    int64_t i64[TL_CHUNK];
  } buffer;
  bool narrow = dtype != TL_FLOAT64 && dtype != TL_INT64;
  uint64_t flip = !descending ? 0 : narrow ? UINT32_MAX : UINT64_MAX;
  for (int64_t done = 0; done < n; done += TL_CHUNK) {
    int part = n - done < TL_CHUNK ? (int)(n - done) : TL_CHUNK;
    const char *at = src + done * stride;
    pair *to = out + done;
    if (dtype == TL_FLOAT64) {
      tl_load_f64(buffer.f64, dtype, at, stride, part);
      for (int i = 0; i < part; i++) to[i].key = key_f64(buffer.f64[i]) ^ flip;
    } else if (tl_is_floating(dtype)) {
      tl_load_f32(buffer.f32, dtype, at, stride, part);
      for (int i = 0; i < part; i++) to[i].key = key_f32(buffer.f32[i]) ^ flip;
    } else if (dtype == TL_INT64) {
      tl_load_i64(buffer.i64, dtype, at, stride, part);
      for (int i = 0; i < part; i++) to[i].key = ((uint64_t)buffer.i64[i] ^ 1ull << 63) ^ flip;
    } else {
      tl_load_i64(buffer.i64, dtype, at, stride, part);
      for (int i = 0; i < part; i++) to[i].key = (uint64_t)(uint32_t)(buffer.i64[i] + 0x80000000ll) ^ flip;
    }
    for (int i = 0; i < part; i++) to[i].place = done + i;
  }
}

static void insertion(pair *a, int64_t n) {
  for (int64_t i = 1; i < n; i++) {
    pair p = a[i];
    int64_t k = i;
    for (; k > 0 && a[k - 1].key > p.key; k--) a[k] = a[k - 1];
    a[k] = p;
  }
}

/* Eight bits a pass; a digit that all keys share costs nothing. The result is in `a`. */
static void radix(pair *a, pair *spare, int64_t n, int digits) {
  int64_t count[8][256];
  memset(count, 0, (size_t)digits * sizeof count[0]);
  for (int64_t i = 0; i < n; i++)
    for (int d = 0; d < digits; d++) count[d][a[i].key >> 8 * d & 255]++;
  pair *from = a, *to = spare;
  for (int d = 0; d < digits; d++) {
    if (count[d][a[0].key >> 8 * d & 255] == n) continue;
    int64_t sum = 0;
    for (int i = 0; i < 256; i++) {
      int64_t here = count[d][i];
      count[d][i] = sum;
      sum += here;
    }
    for (int64_t i = 0; i < n; i++) to[count[d][from[i].key >> 8 * d & 255]++] = from[i];
    pair *swap = from;
    from = to;
    to = swap;
  }
  if (from != a) memcpy(a, from, (size_t)n * sizeof *a);
}

/* The k smallest of n in order, to the front of a. */
static void smallest(pair *a, int64_t n, int64_t k) {
  insertion(a, k);
  for (int64_t i = k; i < n; i++) {
    pair p = a[i];
    if (p.key >= a[k - 1].key) continue;
    int64_t at = k - 1;
    for (; at > 0 && a[at - 1].key > p.key; at--) a[at] = a[at - 1];
    a[at] = p;
  }
}

static void sort_row(pair *a, pair *spare, int64_t n, int64_t k, int digits) {
  if (k == 0) return;
  if (n <= SHORT_ROW) insertion(a, n);
  else if (k <= FEW) smallest(a, n, k);
  else radix(a, spare, n, digits);
}

tl_status tl_cpu_sort(int dtype, const void *x, int64_t outer, int64_t n, int64_t inner, bool descending, int64_t k,
                      void *values, int64_t *ids) {
  int64_t size = (int64_t)tl_dtype_size(dtype), stride = inner * size, rows = outer * inner;
  int digits = dtype == TL_FLOAT64 || dtype == TL_INT64 ? 8 : 4;
  bool failed = false;
  if (rows == 0 || n == 0) return TL_OK;
#pragma omp parallel if (rows > 1 && rows * n >= TL_PARALLEL_MIN / 4)
  {
    pair few[2 * SHORT_ROW], *pairs = n <= SHORT_ROW ? few : tl_host_alloc(2 * (size_t)n * sizeof *pairs);
    if (pairs == NULL) {
#pragma omp atomic write
      failed = true;
    }
#pragma omp for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
      if (pairs == NULL) continue;
      int64_t o = r / inner, c = r % inner;
      const char *src = (const char *)x + (o * n * inner + c) * size;
      keys_of(dtype, src, stride, n, descending, pairs);
      sort_row(pairs, pairs + n, n, k, digits);
      for (int64_t j = 0; j < k; j++) {
        int64_t to = (o * k + j) * inner + c;
        ids[to] = pairs[j].place;
        memcpy((char *)values + to * size, src + pairs[j].place * stride, (size_t)size);
      }
    }
    if (pairs != few) tl_host_free(pairs);
  }
  return failed ? TL_FAIL(TL_ERR_MEMORY, "sort", "no memory to sort rows of %lld elements", (long long)n) : TL_OK;
}
