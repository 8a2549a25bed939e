/* op_table.h: the rows of op_rows.def as a table, and their inputs in every layout. Each program that drives the whole
 * engine by this table checks one promise of tlua.h for every operation. */
#ifndef OP_TABLE_H
#define OP_TABLE_H

#include <stdio.h>

#include "check_tl.h"

/* ---- what rows use ---- */

enum row_flags {
  MOVES = 1,            /* elements are moved or chosen: results are exact */
  IN_PLACE = 2,         /* writes in[0] */
  NO_GRADIENT = 4,      /* the result never has a history */
  DRAWS = 8,            /* takes numbers of row_generator() */
  CONTIGUOUS_ONLY = 16, /* other strides may be refused */
  MASK_OR_BIAS = 32     /* a mask may be floating numbers, which are added */
};

#define BIT(dtype) (1u << (dtype))
#define FLOATING (BIT(TL_FLOAT32) | BIT(TL_FLOAT16) | BIT(TL_BFLOAT16) | BIT(TL_FLOAT64))
#define ALL (BIT(TL_DTYPES) - 1u)
#define NUMBERS (ALL & ~BIT(TL_BOOL))
#define ANY_ONE BIT(TL_FLOAT32) /* the dtype of data does not occur */

enum input_kind { DATA, BUFFER, IDS, MASK };
#define MAX_INPUTS 4
typedef struct op_input {
  enum input_kind kind;
  double low, high; /* ids: the limit */
  int ndim;
  int64_t shape[4];
} op_input;
#define SIZES(...) \
  (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), { __VA_ARGS__ }
#define F(...) \
  { DATA, -1, 1, SIZES(__VA_ARGS__) }
#define P(...) \
  { DATA, 0.1, 0.9, SIZES(__VA_ARGS__) }
#define B(...) \
  { BUFFER, 0.1, 0.9, SIZES(__VA_ARGS__) }
#define I(limit, ...) \
  { IDS, 0, limit, SIZES(__VA_ARGS__) }
#define M(...) \
  { MASK, 0, 1, SIZES(__VA_ARGS__) }

static tl_generator *row_numbers;
/* The same numbers for every call. */
static inline tl_generator *row_generator(void) {
  if (row_numbers == NULL) ck_ok(tl_generator_new(7, &row_numbers));
  ck_ok(tl_generator_set_state(row_numbers, 7, 0));
  return row_numbers;
}

static bool row_flag;
static inline tl_status row_answer(tl_status status, tl_tensor **out) {
  return status == TL_OK ? tl_full(0, NULL, row_flag, TL_BOOL, TL_CPU, out) : status;
}

/* ---- the table ---- */

typedef struct op_row {
  const char *name;
  unsigned dtypes;
  int flags;
  tl_status (*run)(tl_tensor *const *in, tl_tensor **out);
  int inputs;
  const op_input *input;
} op_row;

#define ROW(name, dtypes, flags, call, ...)                                   \
  static inline tl_status run_##name(tl_tensor *const *in, tl_tensor **out) { \
    (void)out;                                                                \
    return call;                                                              \
  }                                                                           \
  static const op_input inputs_of_##name[] = {__VA_ARGS__};
#include "op_rows.def"
#undef ROW
static const op_row op_rows[] = {
#define ROW(name, dtypes, flags, call, ...) \
  {#name, dtypes, flags, run_##name, (int)(sizeof inputs_of_##name / sizeof *inputs_of_##name), inputs_of_##name},
#include "op_rows.def"
#undef ROW
};
#define OP_ROWS (int)(sizeof op_rows / sizeof *op_rows)

/* ---- inputs: one set of values, seen through the strides of a larger tensor ---- */

enum way { PLAIN, REVERSED, INSIDE, REPEATED, STEPPED, WAYS };
static inline const char *way_name(int way) {
  static const char *const names[WAYS] = {"contiguous", "transposed", "narrowed", "expanded", "stepped"};
  return names[way];
}

/* The tensor that an input of this layout is a view of. Drawn on the CPU: the same for every device. */
static inline tl_tensor *make_root(const op_input *s, int way, int dtype, double seed, tl_device device) {
  int64_t shape[4] = {0};
  int n = s->ndim;
  for (int d = 0; d < n; d++) shape[d] = s->shape[way == REVERSED ? n - 1 - d : d];
  if (n == 0 && way != PLAIN) shape[n++] = 3;
  else if (n > 0 && way == INSIDE) shape[0] += 2, shape[n - 1] += 3;
  else if (n > 0 && way == REPEATED) shape[0] = 1;
  else if (n > 0 && way == STEPPED) shape[n - 1] = 2 * shape[n - 1] + 1;
  tl_generator *g;
  tl_tensor *x = NULL, *y = NULL;
  ck_ok(tl_generator_new(seed, &g));
  dtype = s->kind == IDS ? TL_INT64 : s->kind == MASK ? TL_BOOL : dtype;
  bool floating = dtype <= TL_FLOAT64;
  ck_ok(tl_empty(n, shape, TL_FLOAT64, TL_CPU, &x));
  if (floating) ck_ok(tl_uniform_(x, s->low, s->high, g));
  else
    ck_ok(tl_randint_(x, s->kind == DATA && s->low > 0 ? 1 : 0,
                      s->kind == IDS     ? s->high
                      : dtype == TL_BOOL ? 2
                                         : 6,
                      g));
  ck_ok(tl_to(x, dtype, device, &y));
  tl_tensor_free(x);
  tl_generator_free(g);
  return y;
}

/* The input as a view of its root (or of something of the root's shape). */
static inline tl_tensor *arrange(const op_input *s, int way, tl_tensor *root) {
  tl_tensor *v = NULL, *w = NULL;
  int dims[4], n = s->ndim;
  for (int d = 0; d < n; d++) dims[d] = n - 1 - d;
  if (way == PLAIN) ck_ok(tl_tensor_retain(root, &v));
  else if (n == 0) ck_ok(tl_select(root, 0, 1, &v));
  else if (way == REVERSED) ck_ok(tl_permute(root, n, dims, &v));
  else if (way == REPEATED) ck_ok(tl_expand(root, n, s->shape, &v));
  else if (way == STEPPED) ck_ok(tl_slice(root, -1, 1, INT64_MAX, 2, &v));
  else {
    ck_ok(tl_narrow(root, -1, n == 1 ? 2 : 1, s->shape[n - 1], &w));
    if (n == 1) return w;
    ck_ok(tl_narrow(w, 0, 1, s->shape[0], &v));
    tl_tensor_free(w);
  }
  return v;
}

/* ---- one run of a row ---- */

typedef struct trial {
  const op_row *row;
  int dtype, way[MAX_INPUTS];
  tl_tensor *root[MAX_INPUTS], *mid[MAX_INPUTS], *in[MAX_INPUTS], *out[2]; /* mid: the root, or a copy to write to */
} trial;

static inline tl_tensor *result_of(const trial *t) { return t->row->flags & IN_PLACE ? t->in[0] : t->out[0]; }

static inline const char *trial_name(const trial *t) {
  static char text[200];
  int n = snprintf(text, sizeof text, "%s, %s", t->row->name, tl_dtype_name(t->dtype));
  for (int i = 0; i < t->row->inputs; i++)
    n += snprintf(text + n, sizeof text - (size_t)n, ", %s", way_name(t->way[i]));
  return text;
}

/* Makes the inputs. reference: contiguous copies of what the layout shows, on the CPU. rounded: values of `dtype` in
 * float32. */
static inline void trial_make(trial *t, const op_row *row, int dtype, const int *way, bool graded, bool reference,
                              bool rounded) {
  *t = (trial){.row = row, .dtype = rounded ? TL_FLOAT32 : dtype};
  for (int i = 0; i < row->inputs; i++) {
    const op_input *s = &row->input[i];
    t->way[i] = way[i];
    tl_tensor *first = make_root(s, way[i], dtype, 100 + i, reference ? TL_CPU : test_device()), *v;
    if (rounded && s->kind <= BUFFER) ck_ok(tl_to(first, TL_FLOAT32, tl_device_of(first), &t->root[i]));
    else ck_ok(tl_tensor_retain(first, &t->root[i]));
    tl_tensor_free(first);
    if (graded && s->kind == DATA && dtype <= TL_FLOAT64) ck_ok(tl_set_requires_grad(t->root[i], true));
    if (i == 0 && row->flags & IN_PLACE) ck_ok(tl_clone(t->root[i], &t->mid[i]));
    else ck_ok(tl_tensor_retain(t->root[i], &t->mid[i]));
    v = arrange(s, way[i], t->mid[i]);
    if (reference) ck_ok(tl_clone(v, &t->in[i]));
    else ck_ok(tl_tensor_retain(v, &t->in[i]));
    tl_tensor_free(v);
  }
}

static inline tl_status trial_run(trial *t) { return t->row->run(t->in, t->out); }

/* A gradient for y: fixed numbers, where y is, with strides that are not y's where `strided`. */
static inline tl_tensor *make_weights(const tl_tensor *y, bool strided) {
  int64_t shape[TL_MAX_DIMS];
  for (int d = 0; d < tl_ndim(y); d++) shape[d] = (int64_t)tl_size(y, d);
  tl_generator *g;
  tl_tensor *w, *turned, *dense;
  ck_ok(tl_generator_new(55, &g));
  ck_ok(tl_empty(tl_ndim(y), shape, tl_dtype_of(y), tl_device_of(y), &w));
  ck_ok(tl_uniform_(w, -1, 1, g));
  tl_generator_free(g);
  if (!strided || tl_ndim(y) < 2) return w;
  ck_ok(tl_transpose(w, 0, -1, &turned));
  ck_ok(tl_clone(turned, &dense));
  tl_tensor_free(w);
  tl_tensor_free(turned);
  ck_ok(tl_transpose(dense, 0, -1, &w));
  tl_tensor_free(dense);
  return w;
}

/* Does the result carry a history to walk? */
static inline bool trial_graded(const trial *t) { return tl_requires_grad(result_of(t)); }

static inline tl_status trial_backward(const trial *t, tl_tensor *weights) {
  tl_walk *walk = NULL;
  tl_status st = tl_backward(result_of(t), weights, false, &walk);
  ck_assert_ptr_null(walk);
  return st;
}

static inline void trial_free(trial *t) {
  for (int i = 0; i < MAX_INPUTS; i++) {
    tl_tensor_free(t->root[i]);
    tl_tensor_free(t->mid[i]);
    tl_tensor_free(t->in[i]);
  }
  for (int i = 0; i < 2; i++) tl_tensor_free(t->out[i]);
}

/* ---- values before and after ---- */

/* numel + 1 doubles, to be freed; NULL is no values */
static inline double *values_of(const tl_tensor *t, int64_t *n) {
  *n = t == NULL ? 0 : (int64_t)tl_numel(t);
  double *v = calloc((size_t)*n + 1, sizeof *v);
  if (t != NULL) ck_ok(tl_to_doubles(t, *n, v));
  return v;
}

/* a and b have one shape and dtype (unless `rounded`) and, within the tolerance of their largest element, one value */
static inline void ck_same(const char *what, const char *part, const tl_tensor *a, const tl_tensor *b,
                           double tolerance) {
  int64_t n, m;
  double *x = values_of(a, &n), *y = values_of(b, &m), scale = 1;
  ck_assert_msg(n == m, "%s: %s: %lld elements, expected %lld", what, part, (long long)n, (long long)m);
  for (int64_t i = 0; i < n; i++)
    if (isfinite(y[i]) && fabs(y[i]) > scale) scale = fabs(y[i]);
  for (int64_t i = 0; i < n; i++) {
    if (x[i] == y[i] || (isnan(x[i]) && isnan(y[i]))) continue;
    ck_assert_msg(fabs(x[i] - y[i]) <= tolerance * scale, "%s: %s: element %lld is %.9g, expected %.9g", what, part,
                  (long long)i, x[i], y[i]);
  }
  if (a != NULL && b != NULL) {
    ck_assert_msg(tl_ndim(a) == tl_ndim(b), "%s: %s: %d dims, expected %d", what, part, tl_ndim(a), tl_ndim(b));
    for (int d = 0; d < tl_ndim(a); d++)
      ck_assert_msg(tl_size(a, d) == tl_size(b, d), "%s: %s: size %d is %g, expected %g", what, part, d, tl_size(a, d),
                    tl_size(b, d));
  }
  free(x);
  free(y);
}

typedef struct snapshot { /* of a trial's inputs */
  tl_tensor *values[MAX_INPUTS], *roots[MAX_INPUTS];
  double version[MAX_INPUTS];
  const char *history[MAX_INPUTS];
} snapshot;

static inline tl_tensor *unrecorded_copy(tl_tensor *t) {
  tl_tensor *y;
  bool former = tl_set_grad_enabled(false);
  ck_ok(tl_clone(t, &y));
  tl_set_grad_enabled(former);
  return y;
}

static inline void snapshot_take(snapshot *s, const trial *t) {
  for (int i = 0; i < t->row->inputs; i++) {
    s->values[i] = unrecorded_copy(t->mid[i]);
    s->roots[i] = unrecorded_copy(t->root[i]);
    s->version[i] = tl_version_of(t->in[i]);
    s->history[i] = tl_grad_fn_name(t->in[i]);
  }
}

/* Inputs first.. are what they were. */
static inline void snapshot_check(const snapshot *s, const trial *t, int first, const char *what) {
  for (int i = 0; i < t->row->inputs; i++) {
    ck_same(what, "the leaf of an input afterwards", t->root[i], s->roots[i], 0);
    if (i < first) continue;
    ck_same(what, "an input afterwards", t->mid[i], s->values[i], 0);
    ck_assert_msg(tl_version_of(t->in[i]) == s->version[i], "%s: input %d has version %g, had %g", what, i,
                  tl_version_of(t->in[i]), s->version[i]);
    ck_assert_msg(tl_grad_fn_name(t->in[i]) == s->history[i], "%s: input %d has another history", what, i);
  }
}

static inline void snapshot_free(snapshot *s, const trial *t) {
  for (int i = 0; i < t->row->inputs; i++) {
    tl_tensor_free(s->values[i]);
    tl_tensor_free(s->roots[i]);
  }
}

/* how far two ways to compute a result of this dtype may be apart */
static inline double row_tolerance(const op_row *row, int dtype) {
  if (row->flags & MOVES) return 0;
  return dtype == TL_FLOAT64 ? 1e-12 : dtype == TL_FLOAT16 ? 4e-3 : dtype == TL_BFLOAT16 ? 3e-2 : 1e-5;
}

#endif
