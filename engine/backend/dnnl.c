/* dnnl.c: oneDNN behind the functions of dnnl.h.
 *
 * A convolution runs fastest on oneDNN's own blocked layouts. Tensors here are plain row-major, so a plan holds the
 * primitive and the reorders around it; measured, they cost less than any primitive on plain layouts loses. */
#include "backend/dnnl.h"

#include <dnnl.h>
#include <omp.h>
#include <pthread.h>
#include <string.h>

#include "core/memory.h"

static tl_status failed(const char *op, dnnl_status_t status, const char *what) {
  const char *reason = status == dnnl_out_of_memory       ? "out of memory"
                       : status == dnnl_invalid_arguments ? "invalid arguments"
                       : status == dnnl_unimplemented     ? "not implemented"
                       : status == dnnl_runtime_error     ? "runtime error"
                                                          : "failure";
  return TL_FAIL(status == dnnl_out_of_memory ? TL_ERR_MEMORY : TL_ERR_UNSUPPORTED, op,
                 "oneDNN cannot %s: %s (status %d)", what, reason, (int)status);
}

#define DNNL_TRY(op, what, call)                                 \
  do {                                                           \
    dnnl_status_t try_ = (call);                                 \
    if (try_ != dnnl_success) return failed((op), try_, (what)); \
  } while (0)

tl_status tl_dnnl_sgemm(const char *op, bool a_transposed, bool b_transposed, int64_t m, int64_t n, int64_t k,
                        float alpha, const float *a, int64_t lda, const float *b, int64_t ldb, float beta, float *c,
                        int64_t ldc) {
  DNNL_TRY(
      op, "multiply",
      dnnl_sgemm(a_transposed ? 'T' : 'N', b_transposed ? 'T' : 'N', m, n, k, alpha, a, lda, b, ldb, beta, c, ldc));
  return TL_OK;
}

/* ---- plans: a primitive for one shape, with the reorders from and to plain tensors ---- */

enum pass { FORWARD, BACKWARD_DATA, BACKWARD_WEIGHT };
enum { X, W, Y, SIDES };

typedef struct side {
  dnnl_memory_desc_t plain;
  const dnnl_memory_desc_t *inner; /* belongs to the primitive's descriptor */
  dnnl_primitive_t reorder;        /* NULL: inner is plain */
} side;

typedef struct plan_key {
  int64_t pass, bias, threads; /* primitives divide their work when they are made */
  int64_t dtype;
  int64_t sizes[4 + 6 * 2];
} plan_key;

typedef struct plan {
  plan_key key;
  int refs; /* under the lock; the table holds one */
  dnnl_primitive_desc_t desc;
  dnnl_primitive_t primitive;
  side sides[SIDES];
  dnnl_memory_desc_t bias;
  const dnnl_memory_desc_t *scratch;
} plan;

#define SETS 64
#define WAYS 4

static struct {
  pthread_mutex_t lock;
  dnnl_engine_t engine;    /* made at the first use */
  plan *plans[SETS][WAYS]; /* newest first */
} cache = {.lock = PTHREAD_MUTEX_INITIALIZER};

static tl_status get_engine(const char *op) {
  pthread_mutex_lock(&cache.lock);
  dnnl_status_t status = cache.engine != NULL ? dnnl_success : dnnl_engine_create(&cache.engine, dnnl_cpu, 0);
  pthread_mutex_unlock(&cache.lock);
  return status == dnnl_success ? TL_OK : failed(op, status, "start");
}

static void plan_destroy(plan *p) {
  if (p == NULL) return;
  for (int s = 0; s < SIDES; s++)
    if (p->sides[s].reorder != NULL) dnnl_primitive_destroy(p->sides[s].reorder);
  if (p->primitive != NULL) dnnl_primitive_destroy(p->primitive);
  if (p->desc != NULL) dnnl_primitive_desc_destroy(p->desc);
  tl_host_free(p);
}

static void plan_drop(plan *p) {
  if (p == NULL) return;
  pthread_mutex_lock(&cache.lock);
  bool last = --p->refs == 0;
  pthread_mutex_unlock(&cache.lock);
  if (last) plan_destroy(p);
}

static plan_key key_of(const tl_convolution *c, enum pass pass, bool bias) {
  plan_key k = {.pass = pass,
                .bias = bias,
                .threads = omp_get_max_threads(),
                .dtype = c->dtype,
                .sizes = {c->batch, c->in, c->out, c->groups}};
  const int64_t *pairs[6] = {c->size, c->kernel, c->result, c->stride, c->padding, c->dilation};
  for (int i = 0; i < 6; i++) memcpy(k.sizes + 4 + 2 * i, pairs[i], 2 * sizeof(int64_t));
  return k;
}

static unsigned set_of(const plan_key *k) {
  const int64_t *v = (const int64_t *)k;
  uint64_t h = 0;
  for (size_t i = 0; i < sizeof *k / sizeof *v; i++) h = (h ^ (uint64_t)v[i]) * 0x9e3779b97f4a7c15u;
  return (unsigned)(h >> 32) % SETS;
}

/* The plan of this key with a reference for the caller, or NULL. */
static plan *find_plan(const plan_key *k) {
  plan **set = cache.plans[set_of(k)], *found = NULL;
  pthread_mutex_lock(&cache.lock);
  for (int i = 0; i < WAYS && set[i] != NULL && found == NULL; i++) {
    if (memcmp(&set[i]->key, k, sizeof *k) != 0) continue;
    found = set[i];
    found->refs++;
    memmove(set + 1, set, (size_t)i * sizeof *set);
    set[0] = found;
  }
  pthread_mutex_unlock(&cache.lock);
  return found;
}

/* Adds p; the one that was used longest ago leaves its set. */
static void keep_plan(plan *p) {
  plan **set = cache.plans[set_of(&p->key)];
  pthread_mutex_lock(&cache.lock);
  plan *out = set[WAYS - 1];
  memmove(set + 1, set, (WAYS - 1) * sizeof *set);
  set[0] = p;
  p->refs++;
  pthread_mutex_unlock(&cache.lock);
  plan_drop(out);
}

/* ---- making a plan ---- */

/* Plain descriptors of all sides; grouped weights have a dim more. */
static dnnl_status_t describe(const tl_convolution *c, plan *p) {
  const int64_t g = c->groups;
  const dnnl_data_type_t type = c->dtype == TL_BFLOAT16 ? dnnl_bf16 : dnnl_f32;
  dnnl_dims_t x = {c->batch, c->in, c->size[0], c->size[1]}, y = {c->batch, c->out, c->result[0], c->result[1]},
              b = {c->out};
  dnnl_dims_t w = {c->out, c->in, c->kernel[0], c->kernel[1]};
  dnnl_dims_t wg = {g, c->out / g, c->in / g, c->kernel[0], c->kernel[1]};
  dnnl_status_t st = dnnl_memory_desc_init_by_tag(&p->sides[X].plain, 4, x, type, dnnl_nchw);
  if (st == dnnl_success) st = dnnl_memory_desc_init_by_tag(&p->sides[Y].plain, 4, y, type, dnnl_nchw);
  if (st == dnnl_success)
    st = g == 1 ? dnnl_memory_desc_init_by_tag(&p->sides[W].plain, 4, w, type, dnnl_oihw)
                : dnnl_memory_desc_init_by_tag(&p->sides[W].plain, 5, wg, type, dnnl_goihw);
  if (st == dnnl_success) st = dnnl_memory_desc_init_by_tag(&p->bias, 1, b, type, dnnl_a);
  return st;
}

/* The same sizes with the layout left to oneDNN. */
static dnnl_status_t any_layout(const dnnl_memory_desc_t *plain, dnnl_memory_desc_t *any) {
  return dnnl_memory_desc_init_by_tag(any, plain->ndims, plain->dims, plain->data_type, dnnl_format_tag_any);
}

static dnnl_status_t make_desc(const tl_convolution *c, plan *p, enum pass pass, bool bias,
                               dnnl_primitive_desc_t *out) {
  dnnl_memory_desc_t any[SIDES];
  dnnl_status_t st = dnnl_success;
  for (int s = 0; s < SIDES && st == dnnl_success; s++) st = any_layout(&p->sides[s].plain, &any[s]);
  if (st != dnnl_success) return st;
  const dnnl_dims_t stride = {c->stride[0], c->stride[1]}, dilation = {c->dilation[0] - 1, c->dilation[1] - 1},
                    padding = {c->padding[0], c->padding[1]};
  const dnnl_memory_desc_t *b = bias ? &p->bias : NULL;
  dnnl_convolution_desc_t d;
  const dnnl_alg_kind_t direct = dnnl_convolution_direct;
  st = dnnl_dilated_convolution_forward_desc_init(&d, dnnl_forward_training, direct, &any[X], &any[W], b, &any[Y],
                                                  stride, dilation, padding, padding);
  if (st != dnnl_success) return st;
  dnnl_primitive_attr_t attr;
  st = dnnl_primitive_attr_create(&attr);
  if (st != dnnl_success) return st;
  st = dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user);
  dnnl_primitive_desc_t forward = NULL;
  if (st == dnnl_success) st = dnnl_primitive_desc_create(&forward, &d, attr, cache.engine, NULL);
  if (st == dnnl_success && pass != FORWARD) {
    st = pass == BACKWARD_DATA ? dnnl_dilated_convolution_backward_data_desc_init(&d, direct, &any[X], &any[W], &any[Y],
                                                                                  stride, dilation, padding, padding)
                               : dnnl_dilated_convolution_backward_weights_desc_init(
                                     &d, direct, &any[X], &any[W], b, &any[Y], stride, dilation, padding, padding);
    if (st == dnnl_success) st = dnnl_primitive_desc_create(out, &d, attr, cache.engine, forward);
    dnnl_primitive_desc_destroy(forward);
  } else {
    *out = forward;
  }
  dnnl_primitive_attr_destroy(attr);
  return st;
}

static dnnl_status_t make_reorder(side *s, bool inwards) {
  if (dnnl_memory_desc_equal(s->inner, &s->plain)) return dnnl_success;
  const dnnl_memory_desc_t *from = inwards ? &s->plain : s->inner, *to = inwards ? s->inner : &s->plain;
  dnnl_primitive_desc_t desc;
  dnnl_status_t st = dnnl_reorder_primitive_desc_create(&desc, from, cache.engine, to, cache.engine, NULL);
  if (st != dnnl_success) return st;
  st = dnnl_primitive_create(&s->reorder, desc);
  dnnl_primitive_desc_destroy(desc);
  return st;
}

static const dnnl_query_t queries[3][SIDES] = {
    [FORWARD] = {dnnl_query_src_md, dnnl_query_weights_md, dnnl_query_dst_md},
    [BACKWARD_DATA] = {dnnl_query_diff_src_md, dnnl_query_weights_md, dnnl_query_diff_dst_md},
    [BACKWARD_WEIGHT] = {dnnl_query_src_md, dnnl_query_diff_weights_md, dnnl_query_diff_dst_md},
};
static const int output_of[3] = {[FORWARD] = Y, [BACKWARD_DATA] = X, [BACKWARD_WEIGHT] = W};

static dnnl_status_t make_plan(const tl_convolution *c, plan *p, enum pass pass, bool bias) {
  dnnl_status_t st = describe(c, p);
  if (st == dnnl_success) st = make_desc(c, p, pass, bias, &p->desc);
  if (st == dnnl_success) st = dnnl_primitive_create(&p->primitive, p->desc);
  if (st != dnnl_success) return st;
  for (int s = 0; s < SIDES && st == dnnl_success; s++) {
    p->sides[s].inner = dnnl_primitive_desc_query_md(p->desc, queries[pass][s], 0);
    st = make_reorder(&p->sides[s], s != output_of[pass]);
  }
  p->scratch = dnnl_primitive_desc_query_md(p->desc, dnnl_query_scratchpad_md, 0);
  return st;
}

/* The plan for c, from the cache or new; give it back with plan_drop. */
static tl_status plan_of(const tl_convolution *c, enum pass pass, bool bias, plan **out) {
  TL_TRY(get_engine(c->op));
  const plan_key key = key_of(c, pass, bias);
  plan *p = find_plan(&key);
  if (p == NULL) {
    p = tl_host_calloc(1, sizeof *p);
    if (p == NULL) return failed(c->op, dnnl_out_of_memory, "plan a convolution");
    p->key = key;
    p->refs = 1;
    dnnl_status_t st = make_plan(c, p, pass, bias);
    if (st != dnnl_success) {
      plan_destroy(p);
      return failed(c->op, st, "plan a convolution");
    }
    keep_plan(p);
  }
  *out = p;
  return TL_OK;
}

/* ---- running plans ---- */

#define MOST_BUFFERS 12

/* What a call holds until it ends. */
typedef struct run {
  const char *op;
  dnnl_stream_t stream;
  int count;
  struct buffer {
    dnnl_memory_t memory;
    void *owned; /* NULL: the caller's */
    size_t bytes;
  } buffers[MOST_BUFFERS];
} run;

static tl_status run_begin(run *r, const char *op) {
  *r = (run){.op = op};
  DNNL_TRY(op, "start", dnnl_stream_create(&r->stream, cache.engine, dnnl_stream_default_flags));
  return TL_OK;
}

static void run_end(run *r) {
  for (int i = 0; i < r->count; i++) {
    if (r->buffers[i].memory != NULL) dnnl_memory_destroy(r->buffers[i].memory);
    if (r->buffers[i].owned != NULL) tl_cpu_free(r->buffers[i].owned, r->buffers[i].bytes);
  }
  dnnl_stream_destroy(r->stream);
}

/* Memory for md: the caller's p, or when that is NULL a temporary. */
static tl_status lay_out(run *r, const dnnl_memory_desc_t *md, const void *p, dnnl_memory_t *out) {
  struct buffer *b = &r->buffers[r->count++];
  *b = (struct buffer){0};
  if (p == NULL) {
    b->bytes = dnnl_memory_desc_get_size(md);
    b->owned = tl_cpu_alloc(b->bytes);
    if (b->owned == NULL)
      return TL_FAIL(TL_ERR_MEMORY, r->op, "no %.1f MB of scratch memory", (double)b->bytes / 1048576);
  }
  DNNL_TRY(r->op, "lay out memory", dnnl_memory_create(&b->memory, md, cache.engine, p == NULL ? b->owned : (void *)p));
  *out = b->memory;
  return TL_OK;
}

static tl_status move(run *r, dnnl_primitive_t reorder, dnnl_memory_t from, dnnl_memory_t to) {
  const dnnl_exec_arg_t args[2] = {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}};
  DNNL_TRY(r->op, "reorder", dnnl_primitive_execute(reorder, r->stream, 2, args));
  return TL_OK;
}

/* A side in the layout that the primitive wants; inputs are filled. */
static tl_status bring(run *r, const side *s, bool input, const void *plain, dnnl_memory_t *out) {
  if (s->reorder == NULL) return lay_out(r, &s->plain, plain, out);
  TL_TRY(lay_out(r, s->inner, NULL, out));
  if (!input) return TL_OK;
  dnnl_memory_t from;
  TL_TRY(lay_out(r, &s->plain, plain, &from));
  return move(r, s->reorder, from, *out);
}

static const int arguments[3][SIDES + 1] = {
    [FORWARD] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_BIAS},
    [BACKWARD_DATA] = {DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST, 0},
    [BACKWARD_WEIGHT] = {DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST, DNNL_ARG_DIFF_BIAS},
};

/* One pass over plain x, w, y. *y_memory: y in the plan's layout if it is there already, else NULL; it leaves with
 * it. */
static tl_status run_plan(run *r, const plan *p, const void *x, const void *w, const void *y, const void *bias,
                          dnnl_memory_t *y_memory) {
  const enum pass pass = (enum pass)p->key.pass;
  const int output = output_of[pass];
  const void *plain[SIDES] = {x, w, y};
  dnnl_exec_arg_t args[SIDES + 2];
  int n = 0;
  for (int s = 0; s < SIDES; s++, n++) {
    args[n].arg = arguments[pass][s];
    if (s == Y && *y_memory != NULL) args[n].memory = *y_memory;
    else TL_TRY(bring(r, &p->sides[s], s != output, plain[s], &args[n].memory));
  }
  *y_memory = args[Y].memory;
  if (p->key.bias) {
    args[n].arg = arguments[pass][SIDES];
    TL_TRY(lay_out(r, &p->bias, bias, &args[n++].memory));
  }
  if (dnnl_memory_desc_get_size(p->scratch) > 0) {
    args[n].arg = DNNL_ARG_SCRATCHPAD;
    TL_TRY(lay_out(r, p->scratch, NULL, &args[n++].memory));
  }
  DNNL_TRY(r->op, "compute", dnnl_primitive_execute(p->primitive, r->stream, n, args));
  if (p->sides[output].reorder == NULL) return TL_OK;
  dnnl_memory_t to;
  TL_TRY(lay_out(r, &p->sides[output].plain, plain[output], &to));
  return move(r, p->sides[output].reorder, args[output].memory, to);
}

tl_status tl_dnnl_conv_forward(const tl_convolution *c, const void *x, const void *w, const void *bias, void *y) {
  plan *p;
  run r;
  dnnl_memory_t none = NULL;
  TL_TRY(plan_of(c, FORWARD, bias != NULL, &p));
  tl_status st = run_begin(&r, c->op);
  if (st == TL_OK) {
    st = run_plan(&r, p, x, w, y, bias, &none);
    run_end(&r);
  }
  plan_drop(p);
  return st;
}

/* Both passes want dy in the same layout as a rule: it is reordered once. */
static tl_status run_backward(const tl_convolution *c, const plan *data, const plan *weight, const void *x,
                              const void *w, const void *dy, void *dx, void *dw, void *dbias) {
  run r, r2;
  dnnl_memory_t shared = NULL;
  TL_TRY(run_begin(&r, c->op));
  tl_status st = data == NULL ? TL_OK : run_plan(&r, data, dx, w, dy, NULL, &shared);
  if (st == TL_OK && weight != NULL) {
    if (data != NULL && !dnnl_memory_desc_equal(data->sides[Y].inner, weight->sides[Y].inner)) shared = NULL;
    st = run_begin(&r2, c->op);
    if (st == TL_OK) {
      st = run_plan(&r2, weight, x, dw, dy, dbias, &shared);
      run_end(&r2);
    }
  }
  run_end(&r);
  return st;
}

tl_status tl_dnnl_conv_backward(const tl_convolution *c, const void *x, const void *w, const void *dy, void *dx,
                                void *dw, void *dbias) {
  plan *data = NULL, *weight = NULL;
  tl_status st = dx == NULL ? TL_OK : plan_of(c, BACKWARD_DATA, false, &data);
  /* oneDNN has no pass for the bias alone: the weights' gradient goes to a temporary then */
  if (st == TL_OK && (dw != NULL || dbias != NULL)) st = plan_of(c, BACKWARD_WEIGHT, dbias != NULL, &weight);
  if (st == TL_OK) st = run_backward(c, data, weight, x, w, dy, dx, dw, dbias);
  plan_drop(data);
  plan_drop(weight);
  return st;
}

/* ---- bfloat16 products ---- */

bool tl_dnnl_fast_bfloat16(void) { return dnnl_get_effective_cpu_isa() >= dnnl_cpu_isa_avx512_core_amx; }

static dnnl_status_t describe_matrix(dnnl_memory_desc_t *md, dnnl_data_type_t type, int64_t rows, int64_t cols,
                                     int64_t row, int64_t col) {
  const dnnl_dims_t dims = {rows, cols}, strides = {row, col};
  return dnnl_memory_desc_init_by_strides(md, 2, dims, type, strides);
}

/* The attributes of a product that is added to what is there. */
static dnnl_status_t make_adding(dnnl_primitive_attr_t *out) {
  dnnl_post_ops_t ops;
  dnnl_status_t st = dnnl_primitive_attr_create(out);
  if (st != dnnl_success) return st;
  st = dnnl_post_ops_create(&ops);
  if (st == dnnl_success) {
    st = dnnl_post_ops_append_sum(ops, 1);
    if (st == dnnl_success) st = dnnl_primitive_attr_set_post_ops(*out, ops);
    dnnl_post_ops_destroy(ops);
  }
  if (st != dnnl_success) dnnl_primitive_attr_destroy(*out);
  return st;
}

/* oneDNN keeps its primitives itself; finding one again is quick beside a large product. */
static dnnl_status_t make_matmul(const dnnl_memory_desc_t md[4], bool bias, bool add, dnnl_primitive_t *out) {
  dnnl_matmul_desc_t d;
  dnnl_primitive_desc_t desc;
  dnnl_primitive_attr_t adding = NULL;
  dnnl_status_t st = dnnl_matmul_desc_init(&d, &md[0], &md[1], bias ? &md[3] : NULL, &md[2]);
  if (st == dnnl_success && add) st = make_adding(&adding);
  if (st == dnnl_success) {
    st = dnnl_primitive_desc_create(&desc, &d, adding, cache.engine, NULL);
    if (add) dnnl_primitive_attr_destroy(adding);
  }
  if (st != dnnl_success) return st;
  st = dnnl_primitive_create(out, desc);
  dnnl_primitive_desc_destroy(desc);
  return st;
}

tl_status tl_dnnl_bfloat16_gemm(const char *op, int64_t m, int64_t n, int64_t k, const tl_matrix *a, const tl_matrix *b,
                                const void *bias, int64_t bias_stride, bool wide, bool add, const tl_matrix *c) {
  dnnl_memory_desc_t md[4];
  dnnl_primitive_t matmul;
  run r;
  TL_TRY(get_engine(op));
  dnnl_status_t status = describe_matrix(&md[0], dnnl_bf16, m, k, a->row, a->col);
  if (status == dnnl_success) status = describe_matrix(&md[1], dnnl_bf16, k, n, b->row, b->col);
  if (status == dnnl_success) status = describe_matrix(&md[2], wide ? dnnl_f32 : dnnl_bf16, m, n, c->row, 1);
  if (status == dnnl_success) status = describe_matrix(&md[3], dnnl_bf16, 1, n, n * bias_stride, bias_stride);
  if (status == dnnl_success) status = make_matmul(md, bias != NULL, add, &matmul);
  if (status != dnnl_success) return failed(op, status, "plan a product");
  const int names[4] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_BIAS};
  const void *data[4] = {a->data, b->data, c->data, bias};
  dnnl_exec_arg_t args[4];
  tl_status st = run_begin(&r, op);
  if (st == TL_OK) {
    int count = bias == NULL ? 3 : 4;
    for (int i = 0; i < count && st == TL_OK; i++) {
      args[i].arg = names[i];
      st = lay_out(&r, &md[i], data[i], &args[i].memory);
    }
    status = st == TL_OK ? dnnl_primitive_execute(matmul, r.stream, count, args) : dnnl_success;
    if (status != dnnl_success) st = failed(op, status, "compute");
    run_end(&r);
  }
  dnnl_primitive_destroy(matmul);
  return st;
}
