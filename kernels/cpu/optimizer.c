/* optimizer.c: one pass over every parameter of an optimizer. */
#include "cpu.h"

#include <omp.h>

#include "convert.h"
#include "quantise.h"
#include "update.h"
#include "words.h"

/* NAME_run(c, n, p, g, a, b, d): a rule over contiguous elements. */
#define STATE_0(i)
#define STATE_1(i) , &a[i]
#define STATE_2(i) , &a[i], &b[i]
#define STATE_3(i) , &a[i], &b[i], &d[i]
#define RUN(T, prefix, name, states)                                                                               \
  static void prefix##_run_##name(const prefix##_coefficients *c, int64_t n, T *restrict p, const T *restrict g,   \
                                  T *restrict a, T *restrict b, T *restrict d) {                                   \
    const prefix##_coefficients k = *c;                                                                            \
    (void)a, (void)b, (void)d;                                                                                     \
    _Pragma("omp simd") for (int64_t i = 0; i < n; i++) prefix##_update_##name(&k, g[i], &p[i] STATE_##states(i)); \
  }
#define RUN_F32(name, states) RUN(float, f32, name, states)
#define RUN_F64(name, states) RUN(double, f64, name, states)
TL_UPDATE_RULES(RUN_F32)
TL_UPDATE_RULES(RUN_F64)

static void (*const run_f32[])(const f32_coefficients *, int64_t, float *, const float *, float *, float *, float *) = {
#define ENTRY_F32(name, states) f32_run_##name,
    TL_UPDATE_RULES(ENTRY_F32)};
static void (*const run_f64[])(const f64_coefficients *, int64_t, double *, const double *, double *, double *,
                               double *) = {
#define ENTRY_F64(name, states) f64_run_##name,
    TL_UPDATE_RULES(ENTRY_F64)};

#define AT(T, pointer) ((pointer) == NULL ? NULL : (T *)(pointer) + first)

/* ---- parameters that are not float32, states that are smaller: a piece at a time goes through these ---- */

typedef struct piece {
  float p[TL_QUANT_BLOCK], g[TL_QUANT_BLOCK], a[TL_QUANT_BLOCK], b[TL_QUANT_BLOCK];
} piece;

/* A parameter that is no longer the rounding of its master was changed from outside: it starts again from there. */
static void load_param(const tl_update *u, int64_t first, int n, piece *x) {
  const int64_t size = u->dtype == TL_FLOAT32 ? 4 : 2;
  tl_load_f32(x->g, u->dtype, (const char *)u->grad + first * size, size, n);
  tl_load_f32(x->p, u->dtype, (const char *)u->param + first * size, size, n);
  if (u->master == NULL) return;
  float rounded[TL_QUANT_BLOCK];
  uint16_t low[TL_QUANT_BLOCK];
  tl_store_f32((char *)low, u->dtype, 2, u->master + first, n);
  tl_load_f32(rounded, u->dtype, (const char *)low, 2, n);
  for (int i = 0; i < n; i++) x->p[i] = x->p[i] == rounded[i] ? u->master[first + i] : x->p[i];
}

/* The master moves and the parameter becomes its rounding; without one bfloat16 goes up or down at random. */
static void store_param(const tl_update *u, int64_t first, int n, const piece *x) {
  if (u->dtype == TL_BFLOAT16 && u->master == NULL) {
    uint32_t buffer[TL_CHUNK + 4];
    const uint32_t *random = tl_words(buffer, u->seed, u->offset + (uint64_t)first, n);
    uint16_t *to = (uint16_t *)u->param + first;
#pragma omp simd
    for (int i = 0; i < n; i++) to[i] = tl_bf16_stochastic(x->p[i], random[i] >> 16);
    return;
  }
  const int64_t size = u->dtype == TL_FLOAT32 ? 4 : 2;
  if (u->master != NULL) memcpy(u->master + first, x->p, (size_t)n * sizeof *x->p);
  tl_store_f32((char *)u->param + first * size, u->dtype, size, x->p, n);
}

/* What the codes of first (1) and second (0) moments stand for. */
typedef float code_values[2][256];

static void fill_values(code_values values) {
  for (int k = 0; k < 2; k++)
    for (int i = 0; i < 256; i++) values[k][i] = tl_quant_value(k, i);
}

static void load_codes(const float *values, const uint8_t *codes, float largest, int n, float *x) {
#pragma omp simd
  for (int i = 0; i < n; i++) x[i] = values[codes[i]] * largest;
}

static void load_state(const tl_update *u, code_values values, int64_t first, int n, piece *x) {
  if (u->state_dtype == TL_BFLOAT16) {
    tl_load_f32(x->a, TL_BFLOAT16, (const char *)u->state[0] + first * 2, 2, n);
    tl_load_f32(x->b, TL_BFLOAT16, (const char *)u->state[1] + first * 2, 2, n);
  } else {
    load_codes(values[1], (const uint8_t *)u->state[0] + first, u->absmax[0][first / TL_QUANT_BLOCK], n, x->a);
    load_codes(values[0], (const uint8_t *)u->state[1] + first, u->absmax[1][first / TL_QUANT_BLOCK], n, x->b);
  }
}

/* The largest |x|; nan, whose bits are above all others, wins. */
static float largest_of(const float *x, int n) {
  int32_t most = 0;
#pragma omp simd reduction(max : most)
  for (int i = 0; i < n; i++) {
    int32_t bits = i32_bits(x[i]) & 0x7fffffff;
    most = bits > most ? bits : most;
  }
  return f32_bits(most);
}

static void store_state(const tl_update *u, int64_t first, int n, const piece *x) {
  uint32_t buffer[TL_CHUNK + 4];
  const uint32_t *random = tl_words(buffer, tl_rounding_key(u->key, u->by->step), (uint64_t)first, n);
  if (u->state_dtype == TL_BFLOAT16) {
    uint16_t *a = (uint16_t *)u->state[0] + first, *b = (uint16_t *)u->state[1] + first;
#pragma omp simd
    for (int i = 0; i < n; i++) a[i] = tl_bf16_stochastic(x->a[i], random[i]);
#pragma omp simd
    for (int i = 0; i < n; i++) b[i] = tl_bf16_stochastic(x->b[i], random[i] >> 16);
    return;
  }
  uint8_t *a = (uint8_t *)u->state[0] + first, *b = (uint8_t *)u->state[1] + first;
  const float most_a = largest_of(x->a, n), most_b = largest_of(x->b, n);
  const float by_a = tl_quant_divisor(most_a), by_b = tl_quant_divisor(most_b);
  u->absmax[0][first / TL_QUANT_BLOCK] = most_a;
  u->absmax[1][first / TL_QUANT_BLOCK] = most_b;
#pragma omp simd
  for (int i = 0; i < n; i++) a[i] = tl_quant_signed(x->a[i], by_a, tl_quant_u(random[i]));
#pragma omp simd
  for (int i = 0; i < n; i++) b[i] = tl_quant_unsigned(x->b[i], by_b, tl_quant_u(random[i] >> 16));
}

static void update_pieces(const tl_update *u, code_values values, int64_t first, int64_t n) {
  const f32_coefficients c = f32_narrow(u->by);
  const bool small = u->state_dtype != TL_FLOAT32;
  piece x;
  for (int64_t end = first + n; first < end; first += TL_QUANT_BLOCK) {
    int m = end - first < TL_QUANT_BLOCK ? (int)(end - first) : TL_QUANT_BLOCK;
    load_param(u, first, m, &x);
    if (small) {
      load_state(u, values, first, m, &x);
      run_f32[u->rule](&c, m, x.p, x.g, x.a, x.b, NULL);
      store_state(u, first, m, &x);
    } else {
      run_f32[u->rule](&c, m, x.p, x.g, AT(float, u->state[0]), AT(float, u->state[1]), AT(float, u->state[2]));
    }
    store_param(u, first, m, &x);
  }
}

/* ---- the list ---- */

static void update_range(const tl_update *u, code_values values, int64_t first, int64_t n) {
  if (u->dtype == TL_FLOAT64) {
    const f64_coefficients c = f64_narrow(u->by);
    run_f64[u->rule](&c, n, (double *)u->param + first, (const double *)u->grad + first, AT(double, u->state[0]),
                     AT(double, u->state[1]), AT(double, u->state[2]));
  } else if (u->dtype == TL_FLOAT32 && u->state_dtype == TL_FLOAT32) {
    const f32_coefficients c = f32_narrow(u->by);
    run_f32[u->rule](&c, n, (float *)u->param + first, (const float *)u->grad + first, AT(float, u->state[0]),
                     AT(float, u->state[1]), AT(float, u->state[2]));
  } else {
    update_pieces(u, values, first, n);
  }
}

#define BLOCK 8192 /* fixed, whole blocks of codes: what belongs together does not depend on the number of threads */

static int64_t blocks_of(const tl_update *u) { return (u->n + BLOCK - 1) / BLOCK; }

/* Blocks first .. end-1 of the whole list. */
static void update_blocks(int count, const tl_update *list, code_values values, int64_t first, int64_t end) {
  for (int i = 0; i < count && end > 0; i++) {
    int64_t blocks = blocks_of(&list[i]);
    for (int64_t k = first < 0 ? 0 : first; k < blocks && k < end; k++)
      update_range(&list[i], values, k * BLOCK, list[i].n - k * BLOCK < BLOCK ? list[i].n - k * BLOCK : BLOCK);
    first -= blocks;
    end -= blocks;
  }
}

tl_status tl_cpu_update(int count, const tl_update *list) {
  int64_t elements = 0, blocks = 0;
  bool codes = false;
  code_values values;
  for (int i = 0; i < count; i++) {
    elements += list[i].n;
    blocks += blocks_of(&list[i]);
    codes = codes || list[i].state_dtype == TL_UINT8;
  }
  if (codes) fill_values(values);
  if (elements < TL_PARALLEL_MIN) {
    update_blocks(count, list, values, 0, blocks);
    return TL_OK;
  }
#pragma omp parallel
  {
    int64_t threads = omp_get_num_threads(), me = omp_get_thread_num();
    update_blocks(count, list, values, me * blocks / threads, (me + 1) * blocks / threads);
  }
  return TL_OK;
}
