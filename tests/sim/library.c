/* library.c: what the simulated libraries share (library.h). */
#include <math.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "library.h"
#include "runtime.h"

/* ---- numbers ---- */

size_t sim_type_size(sim_type type) { return type == SIM_F64 ? 8 : type == SIM_F32 ? 4 : 2; }

static float bits_float(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static uint32_t float_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

static float half_to_float(uint16_t h) {
  uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7fff;
  if (rest >= 0x7c00) return bits_float(sign | 0x7f800000 | (rest & 0x3ff) << 13);
  if (rest >= 0x400) return bits_float(sign | ((rest << 13) + (112u << 23)));
  float value = (float)rest * 0x1p-24f; /* subnormal */
  return sign != 0 ? -value : value;
}

static uint16_t float_to_half(float value) {
  uint32_t bits = float_bits(value), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
  if (rest > 0x7f800000) return (uint16_t)(sign | 0x7fff);
  if (rest >= 0x477ff000) return (uint16_t)(sign | 0x7c00); /* rounds beyond 65504 */
  if (rest < 0x38800000) return (uint16_t)(sign | (uint32_t)lrintf(fabsf(value) * 0x1p24f));
  rest += 0xfff + (rest >> 13 & 1);
  return (uint16_t)(sign | (rest - (112u << 23)) >> 13);
}

static uint16_t float_to_bfloat(float value) {
  uint32_t bits = float_bits(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fff;
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

double sim_to_tf32(double value) {
  uint32_t bits = float_bits((float)value);
  if ((bits & 0x7f800000) == 0x7f800000) return value;
  return bits_float((bits + 0xfff + (bits >> 13 & 1)) & ~0x1fffu);
}

static void reads(sim_type type, const void *base, int64_t index, int64_t n) {
  size_t size = sim_type_size(type);
  if (sim_memory_read != NULL && n > 0) sim_memory_read((const char *)base + index * (int64_t)size, (size_t)n * size);
}

double sim_load(sim_type type, const void *base, int64_t index) {
  reads(type, base, index, 1);
  switch (type) {
    case SIM_F64: return ((const double *)base)[index];
    case SIM_F32: return ((const float *)base)[index];
    case SIM_F16: return half_to_float(((const uint16_t *)base)[index]);
    default: return bits_float((uint32_t)((const uint16_t *)base)[index] << 16);
  }
}

void sim_store(sim_type type, void *base, int64_t index, double value) {
  switch (type) {
    case SIM_F64: ((double *)base)[index] = value; break;
    case SIM_F32: ((float *)base)[index] = (float)value; break;
    case SIM_F16: ((uint16_t *)base)[index] = float_to_half((float)value); break;
    default: ((uint16_t *)base)[index] = float_to_bfloat((float)value); break;
  }
}

void sim_unpack(sim_type type, const void *base, int64_t offset, int64_t n, int64_t stride, double *out) {
  if (type == SIM_F32 && (stride == 1 || sim_memory_read == NULL)) {
    const float *p = (const float *)base + offset;
    reads(type, base, offset, n);
    for (int64_t i = 0; i < n; i++) out[i] = p[i * stride];
  } else {
    for (int64_t i = 0; i < n; i++) out[i] = sim_load(type, base, offset + i * stride);
  }
}

void sim_blend(sim_type type, void *base, int64_t offset, int64_t n, int64_t stride, double alpha, const double *value,
               double beta) {
  for (int64_t i = 0; i < n; i++) {
    int64_t at = offset + i * stride;
    if (type == SIM_F64) {
      double v = alpha * value[i];
      if (beta != 0) v += beta * sim_load(type, base, at);
      ((double *)base)[at] = v;
    } else {
      float v = (float)alpha * (float)value[i];
      if (beta != 0) v += (float)beta * (float)sim_load(type, base, at);
      sim_store(type, base, at, v);
    }
  }
}

void *sim_scratch(size_t count, size_t size) {
  void *p = calloc(count == 0 ? 1 : count, size);
  if (p == NULL) {
    fprintf(stderr, "tlua-sim: no host memory for %zu bytes of a library's intermediate results\n", count * size);
    abort();
  }
  return p;
}

/* ---- the matrix product: panels of a and b are packed, so that any strides cost the same ---- */

enum { ROWS = 4, COLUMNS = 8, DEPTH = 256, WIDTH = 256 };

typedef double lanes __attribute__((vector_size(COLUMNS * sizeof(double)), aligned(8), may_alias));

/* sum(ROWS, COLUMNS) of panels a(k, ROWS) and b(k, COLUMNS) */
__attribute__((always_inline)) static inline void tile_body(int64_t k, const double *a, const double *b, double *sum) {
  lanes s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};
  for (int64_t p = 0; p < k; p++, a += ROWS, b += COLUMNS) {
    lanes row = *(const lanes *)b;
    s0 += a[0] * row;
    s1 += a[1] * row;
    s2 += a[2] * row;
    s3 += a[3] * row;
  }
  ((lanes *)sum)[0] = s0;
  ((lanes *)sum)[1] = s1;
  ((lanes *)sum)[2] = s2;
  ((lanes *)sum)[3] = s3;
}

static void tile_plain(int64_t k, const double *a, const double *b, double *sum) { tile_body(k, a, b, sum); }

#ifdef __x86_64__
__attribute__((target("avx2,fma"))) static void tile_avx2(int64_t k, const double *a, const double *b, double *sum) {
  tile_body(k, a, b, sum);
}
#endif

typedef void tile_fn(int64_t k, const double *a, const double *b, double *sum);

static tile_fn *tile_of_this_cpu(void) {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return tile_avx2;
#endif
  return tile_plain;
}

/* out(ceil(n / width), k, width) of x(n, k), 0 beyond n */
static void pack(int64_t n, int64_t k, int width, const double *x, int64_t xn, int64_t xk, double *out) {
  for (int64_t i = 0; i < n; i += width)
    for (int64_t p = 0; p < k; p++)
      for (int64_t j = i; j < i + width; j++) *out++ = j < n ? x[j * xn + p * xk] : 0;
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

void sim_product(int64_t m, int64_t n, int64_t k, const double *a, int64_t ai, int64_t ap, const double *b, int64_t bp,
                 int64_t bj, double *c) {
  tile_fn *tile = tile_of_this_cpu();
  int64_t m_padded = (m + ROWS - 1) / ROWS * ROWS;
  double *a_panels = sim_scratch((size_t)(m_padded * DEPTH), sizeof(double));
  double *b_panels = sim_scratch(WIDTH * DEPTH, sizeof(double));
  for (int64_t p = 0; p < k; p += DEPTH) {
    int64_t depth = least(DEPTH, k - p);
    pack(m, depth, ROWS, a + p * ap, ai, ap, a_panels);
    for (int64_t j = 0; j < n; j += WIDTH) {
      int64_t width = least(WIDTH, n - j);
      pack(width, depth, COLUMNS, b + p * bp + j * bj, bj, bp, b_panels);
      for (int64_t i = 0; i < m; i += ROWS) {
        for (int64_t t = 0; t < width; t += COLUMNS) {
          double sum[ROWS * COLUMNS];
          tile(depth, a_panels + i * depth, b_panels + t * depth, sum);
          for (int64_t r = 0; r < least(ROWS, m - i); r++)
            for (int64_t s = 0; s < least(COLUMNS, width - t); s++) c[(i + r) * n + j + t + s] += sum[r * COLUMNS + s];
        }
      }
    }
  }
  free(a_panels);
  free(b_panels);
}

/* ---- a call's memory ---- */

void sim_ranges_add(sim_ranges *r, const void *p, size_t bytes, int writes) {
  if (p == NULL || bytes == 0) return;
  const sim_range added = {.base = p, .bytes = bytes, .writes = writes};
  for (int i = 0; i < r->count; i++) {
    const sim_range *old = &r->range[i];
    bool apart =
        (const char *)p + bytes <= (const char *)old->base || (const char *)old->base + old->bytes <= (const char *)p;
    bool same = p == old->base && bytes == old->bytes;
    if (apart || same || (!writes && !old->writes)) continue;
    r->overlap = true;
    r->one = *old;
    r->other = added;
  }
  if (r->count < (int)(sizeof r->range / sizeof *r->range)) r->range[r->count++] = added;
}

static const char *way_of(const sim_range *r) { return r->writes ? "written" : "read"; }

bool sim_ranges_overlap(const sim_ranges *r, const char *function) {
  if (r->overlap)
    sim_fault("overlap", "%s: %zu bytes at %p, which are %s, lie over %zu bytes at %p, which are %s", function,
              r->one.bytes, r->one.base, way_of(&r->one), r->other.bytes, r->other.base, way_of(&r->other));
  return r->overlap;
}

/* ---- seeds ---- */

uint64_t sim_library_seed(uint64_t salt) {
  uint64_t x = (uint64_t)sim_setting("TLUA_SIM_SEED", 0) * 0x9e3779b97f4a7c15u + salt + 1;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u; /* splitmix64 */
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

void sim_library_shuffle(int *order, int n, uint64_t salt) {
  for (int i = 0; i < n; i++) order[i] = i;
  for (int i = n - 1; i > 0; i--) {
    int j = (int)(sim_library_seed(salt + (uint64_t)i) % (uint64_t)(i + 1)), kept = order[i];
    order[i] = order[j];
    order[j] = kept;
  }
}

/* ---- objects ---- */

enum { GRAVES = 4096 };

static _Atomic int alive;
static _Atomic unsigned next_grave;
static _Atomic(void *) graves[GRAVES];

void *sim_object_create(uint64_t mark, size_t bytes) {
  uint64_t *object = calloc(1, bytes);
  if (object == NULL) return NULL;
  *object = mark;
  atomic_fetch_add(&alive, 1);
  return object;
}

bool sim_object_is(const void *object, uint64_t mark) { return object != NULL && *(const uint64_t *)object == mark; }

void sim_object_destroy(void *object) {
  *(uint64_t *)object = 0;
  atomic_fetch_sub(&alive, 1);
  free(atomic_exchange(&graves[atomic_fetch_add(&next_grave, 1) % GRAVES], object));
}

int sim_report_objects(void) {
  int n = atomic_load(&alive);
  if (n > 0) fprintf(stderr, "tlua-sim: leak: %d handles and descriptors of libraries\n", n);
  return n;
}

/* ---- refusals ---- */

static _Thread_local char refusal[512];

int sim_refuse(const char *function, int status, const char *format, ...) {
  int used = snprintf(refusal, sizeof refusal, "%s: ", function);
  va_list args;
  va_start(args, format);
  vsnprintf(refusal + used, sizeof refusal - (size_t)used, format, args);
  va_end(args);
  if (sim_setting("TLUA_SIM_LOG", 0) != 0) fprintf(stderr, "tlua-sim: status %d: %s\n", status, refusal);
  return status;
}

const char *sim_last_refusal(void) { return refusal; }
