/* optimizer.c: one pass over every parameter of an optimizer. */
#include "cpu.h"

#include <omp.h>

#include "convert.h"
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

/* float16 and bfloat16 with a master: it moves, the parameter becomes its rounding. A parameter that is no longer the
 * rounding of its master was changed from outside: it starts again from there. */
static void update_low(const tl_update *u, int64_t first, int64_t n) {
  const f32_coefficients c = f32_narrow(u->by);
  float p[TL_CHUNK], g[TL_CHUNK], low[TL_CHUNK];
  uint16_t rounded[TL_CHUNK];
  for (int64_t end = first + n; first < end; first += TL_CHUNK) {
    int m = end - first < TL_CHUNK ? (int)(end - first) : TL_CHUNK;
    char *param = (char *)u->param + first * 2;
    float *master = u->master + first;
    tl_load_f32(g, u->dtype, (const char *)u->grad + first * 2, 2, m);
    tl_load_f32(low, u->dtype, param, 2, m);
    tl_store_f32((char *)rounded, u->dtype, 2, master, m);
    tl_load_f32(p, u->dtype, (const char *)rounded, 2, m);
    for (int i = 0; i < m; i++) p[i] = low[i] == p[i] ? master[i] : low[i];
    run_f32[u->rule](&c, m, p, g, AT(float, u->state[0]), AT(float, u->state[1]), AT(float, u->state[2]));
    memcpy(master, p, (size_t)m * sizeof *p);
    tl_store_f32(param, u->dtype, 2, p, m);
  }
}

/* Adds 16 random bits to the 16 that bfloat16 drops: the carry comes with the probability of their share of a step.
 * What is not finite gets none; a nan whose fraction is all in the dropped bits keeps one above. */
static void store_stochastic(uint16_t *to, const float *x, const uint32_t *random, int n) {
#pragma omp simd
  for (int i = 0; i < n; i++) {
    uint32_t bits;
    memcpy(&bits, &x[i], sizeof bits);
    const uint32_t finite = (bits & 0x7f800000u) != 0x7f800000u, nan = (bits & 0x7fffffffu) > 0x7f800000u;
    bits += finite * (random[i] >> 16);
    to[i] = (uint16_t)(bits >> 16 | nan << 6);
  }
}

/* bfloat16 without a master: the result itself is rounded, up or down at random. */
static void update_stochastic(const tl_update *u, int64_t first, int64_t n) {
  const f32_coefficients c = f32_narrow(u->by);
  float p[TL_CHUNK], g[TL_CHUNK];
  uint32_t buffer[TL_CHUNK + 4];
  for (int64_t end = first + n; first < end; first += TL_CHUNK) {
    int m = end - first < TL_CHUNK ? (int)(end - first) : TL_CHUNK;
    uint16_t *param = (uint16_t *)u->param + first;
    tl_load_f32(g, u->dtype, (const char *)u->grad + first * 2, 2, m);
    tl_load_f32(p, u->dtype, (const char *)param, 2, m);
    run_f32[u->rule](&c, m, p, g, AT(float, u->state[0]), AT(float, u->state[1]), AT(float, u->state[2]));
    store_stochastic(param, p, tl_words(buffer, u->seed, u->offset + (uint64_t)first, m), m);
  }
}

static void update_range(const tl_update *u, int64_t first, int64_t n) {
  if (u->dtype == TL_FLOAT32) {
    const f32_coefficients c = f32_narrow(u->by);
    run_f32[u->rule](&c, n, (float *)u->param + first, (const float *)u->grad + first, AT(float, u->state[0]),
                     AT(float, u->state[1]), AT(float, u->state[2]));
  } else if (u->dtype == TL_FLOAT64) {
    const f64_coefficients c = f64_narrow(u->by);
    run_f64[u->rule](&c, n, (double *)u->param + first, (const double *)u->grad + first, AT(double, u->state[0]),
                     AT(double, u->state[1]), AT(double, u->state[2]));
  } else if (u->master != NULL) {
    update_low(u, first, n);
  } else {
    update_stochastic(u, first, n);
  }
}

#define BLOCK 8192 /* fixed: what belongs together does not depend on the number of threads */

static int64_t blocks_of(const tl_update *u) { return (u->n + BLOCK - 1) / BLOCK; }

/* Blocks first .. end-1 of the whole list. */
static void update_blocks(int count, const tl_update *list, int64_t first, int64_t end) {
  for (int i = 0; i < count && end > 0; i++) {
    int64_t blocks = blocks_of(&list[i]);
    for (int64_t k = first < 0 ? 0 : first; k < blocks && k < end; k++)
      update_range(&list[i], k * BLOCK, list[i].n - k * BLOCK < BLOCK ? list[i].n - k * BLOCK : BLOCK);
    first -= blocks;
    end -= blocks;
  }
}

tl_status tl_cpu_update(int count, const tl_update *list) {
  int64_t elements = 0, blocks = 0;
  for (int i = 0; i < count; i++) elements += list[i].n, blocks += blocks_of(&list[i]);
  if (elements < TL_PARALLEL_MIN) {
    update_blocks(count, list, 0, blocks);
    return TL_OK;
  }
#pragma omp parallel
  {
    int64_t threads = omp_get_num_threads(), me = omp_get_thread_num();
    update_blocks(count, list, me * blocks / threads, (me + 1) * blocks / threads);
  }
  return TL_OK;
}
