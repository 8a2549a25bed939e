/* attention.c: scaled dot-product attention (Vaswani et al. 2017), whose weights never exist but for a block: softmax is
 * computed as the keys go by (Milakov & Gimelshein 2018), and once more in backward (Dao et al. 2022).
 *
 * A task has some queries of one head (forward), or all queries that share one head's keys (backward): no two tasks
 * write to one place, and how the work is cut does not depend on the number of threads. */
#include "cpu.h"

#include <omp.h>

#include "core/memory.h"
#include "formula.h"
#include "words.h"

/* A vector of this instruction set; tiles of ROWS x 2 vectors of sums fill its registers. */
#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#define ROWS 8
#else
#if defined(__AVX__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif
#define ROWS 4
#endif

#define KEYS 64                          /* keys of a block */
#define PANELS 4                         /* panels of queries that share a block's packing, in forward */
#define FEW 4                            /* queries that are not worth a panel */
#define TASKS 8                          /* backward cuts the keys of fewer heads, until there are so many tasks */
#define EVERYTHING (INT64_MAX / 4)       /* beyond every matrix */
#define PARALLEL_MIN ((double)(1 << 20)) /* multiplications that are worth a second thread */

typedef int32_t int_f32, index_f32 __attribute__((vector_size(VECTOR_BYTES)));
typedef int64_t int_f64, index_f64 __attribute__((vector_size(VECTOR_BYTES)));

static const int_f32 counted_f32[16]
    __attribute__((aligned(64))) = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
static const int_f64 counted_f64[8] __attribute__((aligned(64))) = {0, 1, 2, 3, 4, 5, 6, 7};

/* exp(x) for x <= 0 (f32_exp without its other cases), at once 0 where it would be subnormal. nan stays. */
static inline float weight_f32(float x) {
  const float c = x < -87.0f ? -87.0f : x;
  const float t = c * 1.44269504f + 12582912.0f, n = t - 12582912.0f; /* t's low bits are the integer next to it */
  float r = c - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const float e = p * f32_bits((int32_t)(((uint32_t)i32_bits(t) - 0x4b400000u + 127u) << 23));
  return x < -87.0f ? 0 : e;
}
static inline double weight_f64(double x) {
  const double e = exp(x < -708 ? -708 : x);
  return x < -708 ? 0 : e;
}

typedef struct problem {
  int64_t batch, heads, kv_heads, group, rows, keys, width, v_width; /* B, H, Hk, H / Hk, T, S, D, V */
  const tl_tensor *mask;
  bool causal, drops;
  double scale, keep_scale;
  uint32_t drop_below; /* a number is a multiple of 2^-24: p * 2^24 rounded up */
  uint64_t seed, offset;
} problem;

typedef struct plan {
  int threads;
  int64_t parts, keys; /* backward: parts of so many keys */
  size_t bytes;        /* scratch memory of a thread */
  char *scratch;
} plan;

#define T float
#define F(name) TL_PASTE(name, f32)
#include "attention_body.h"
#undef T
#undef F
#define T double
#define F(name) TL_PASTE(name, f64)
#include "attention_body.h"
#undef T
#undef F

static problem problem_of(const tl_attention_args *a) {
  const int64_t *q = a->q->shape, *k = a->k->shape;
  return (problem){.batch = q[0],
                   .heads = q[1],
                   .kv_heads = k[1],
                   .group = k[1] == 0 ? 1 : q[1] / k[1],
                   .rows = q[2],
                   .keys = k[2],
                   .width = q[3],
                   .v_width = a->v->shape[3],
                   .mask = a->mask,
                   .causal = a->causal,
                   .drops = a->dropout > 0,
                   .scale = a->scale,
                   .keep_scale = a->dropout < 1 ? 1 / (1 - a->dropout) : 0,
                   .drop_below = (uint32_t)ceil(a->dropout * 0x1p24),
                   .seed = a->seed,
                   .offset = a->offset};
}

static tl_status allocate(plan *plan, const problem *p, int64_t tasks, size_t bytes, size_t shared) {
  const double work = (double)p->batch * (double)p->heads * (double)p->rows * (double)p->keys *
                      (double)(p->width + p->v_width) / (p->causal ? 2 : 1);
  const int most = work < PARALLEL_MIN || omp_in_parallel() ? 1 : omp_get_max_threads();
  plan->threads = most < tasks ? most : (int)tasks;
  plan->bytes = (bytes + 63) / 64 * 64;
  const size_t all = plan->bytes * (size_t)plan->threads + shared;
  plan->scratch = tl_cpu_alloc(all);
  if (plan->scratch == NULL)
    return TL_FAIL(TL_ERR_MEMORY, "scaled_dot_product_attention", "no %.1f MB of scratch memory",
                   (double)all / 1048576);
  return TL_OK;
}

static void release(const plan *plan, size_t shared) {
  tl_cpu_free(plan->scratch, plan->bytes * (size_t)plan->threads + shared);
}

tl_status tl_cpu_attention(const tl_attention_args *a) {
  const problem p = problem_of(a);
  const bool wide = a->q->dtype == TL_FLOAT64;
  const int64_t tasks = p.batch * p.heads * ((p.rows + PANELS - 1) / PANELS);
  plan plan = {0};
  TL_TRY(allocate(&plan, &p, tasks, wide ? forward_scratch_f64(&p) : forward_scratch_f32(&p), 0));
  if (wide) forward_f64(a, &p, &plan);
  else forward_f32(a, &p, &plan);
  release(&plan, 0);
  return TL_OK;
}

tl_status tl_cpu_attention_grad(const tl_attention_grad_args *a) {
  const problem p = problem_of(&a->in);
  const bool wide = a->g->dtype == TL_FLOAT64;
  const int64_t heads = p.batch * p.kv_heads, blocks = (p.keys + KEYS - 1) / KEYS;
  plan plan = {0};
  plan.parts = (TASKS + heads - 1) / heads;
  if (plan.parts > blocks) plan.parts = blocks;
  plan.keys = (blocks + plan.parts - 1) / plan.parts * KEYS;
  plan.parts = (p.keys + plan.keys - 1) / plan.keys;
  if (plan.keys > p.keys) plan.keys = p.keys;
  const int64_t width = wide ? padded_f64(p.width) : padded_f32(p.width);
  const size_t dq = (size_t)(plan.parts * p.batch * p.heads * p.rows * width) * (wide ? sizeof(double) : sizeof(float));
  const size_t shared = plan.parts > 1 && a->dq != NULL ? dq : 0;
  const size_t bytes = wide ? backward_scratch_f64(&p, plan.keys) : backward_scratch_f32(&p, plan.keys);
  TL_TRY(allocate(&plan, &p, heads * plan.parts, bytes, shared));
  if (wide) backward_f64(a, &p, &plan);
  else backward_f32(a, &p, &plan);
  release(&plan, shared);
  return TL_OK;
}
