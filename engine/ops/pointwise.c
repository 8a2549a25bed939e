/* pointwise.c: the operations of ops.def: checks, result dtype, kernel, history. One row, one set of functions. */
#include "autograd/tape.h"
#include "backend/backend.h"
#include "core/iter.h"
#include "core/tensor.h"
#include "ops/autocast.h"
#include "ops/matmul.h"

enum kind { KIND_FLOAT, KIND_ANY, KIND_BOOL };
enum saves { SAVES_NO, SAVES_X, SAVES_Y, SAVES_AB, SAVES_ND };

typedef struct row {
  const char *name;
  int fn; /* the derivatives' numbers follow: fn + 1 (grad or da), fn + 2 (db) */
  enum kind kind;
  enum saves saves;
  const tl_node_class *cls;
} row;

/* ---- running a function of the kernel table ---- */

/* y = fn(operands); y's shape is what they broadcast to. A NULL operand is the constant at its place. */
static tl_status run_into(int fn, const char *op, int compute, tl_tensor *y, int n, tl_tensor *const *in,
                          const double *constants, double p, double q) {
  tl_tensor *operands[TL_MAX_OPERANDS] = {y};
  double values[TL_MAX_OPERANDS] = {0};
  for (int i = 0; i < n; i++) {
    operands[i + 1] = in[i];
    if (constants != NULL) values[i + 1] = constants[i];
  }
  TL_KERNEL(y, pointwise, op);
  tl_iter it;
  tl_iter_init(&it, n + 1, operands, values, y->ndim, y->shape);
  return tl_kernels_of(y)->pointwise(fn, compute, &it, p, q);
}

static tl_status run(int fn, const char *op, int compute, int dtype, int ndim, const int64_t *shape, int n,
                     tl_tensor *const *in, const double *constants, double p, double q, tl_tensor **out) {
  tl_device device = TL_CPU;
  for (int i = 0; i < n; i++)
    if (in[i] != NULL) device = in[i]->device;
  tl_tensor *y;
  TL_TRY(tl_empty(ndim, shape, dtype, device, &y));
  return tl_give(run_into(fn, op, compute, y, n, in, constants, p, q), y, out);
}

/* ---- unary ---- */

typedef struct unary_payload {
  int fn;
  double p, q;
} unary_payload;

static tl_status unary_backward(tl_node *n, tl_tensor *const *grad_out, tl_tensor **grad_in) {
  const unary_payload *u = n->payload;
  tl_tensor *g = grad_out[0], *saved = g;
  if (n->saved_count > 0) TL_TRY(tl_node_saved(n, 0, &saved));
  tl_tensor *in[2] = {g, saved};
  return run(u->fn, n->cls->name, tl_compute_type(g->dtype), g->dtype, g->ndim, g->shape, 2, in, NULL, u->p, u->q,
             grad_in);
}

static tl_status check_arithmetic(const row *r, int dtype) {
  if (dtype == TL_BOOL && (r->fn == TL_FN_neg || r->fn == TL_FN_sub))
    return TL_FAIL(TL_ERR_DTYPE, r->name, "bool tensors do not subtract: use logical_not or logical_xor");
  return TL_OK;
}

static tl_status record_unary(const row *r, tl_tensor *x, tl_tensor *y, double p, double q) {
  unary_payload u = {r->fn + 1, p, q};
  tl_tensor *save = r->saves == SAVES_X ? x : y;
  return tl_record1(r->cls, y, 1, &x, r->saves == SAVES_NO ? 0 : 1, &save, &u, sizeof u);
}

/* Functions whose results leave the range of float16 soon: autocast has them in float32. */
static bool needs_range(const row *r) {
  switch (r->fn) {
    case TL_FN_exp:
    case TL_FN_expm1:
    case TL_FN_log:
    case TL_FN_log1p:
    case TL_FN_log2:
    case TL_FN_log10:
    case TL_FN_rsqrt:
    case TL_FN_reciprocal:
    case TL_FN_pow:
    case TL_FN_softplus:
    case TL_FN_tan:
    case TL_FN_sinh:
    case TL_FN_cosh:
    case TL_FN_asin:
    case TL_FN_acos: return true;
    default: return false;
  }
}

static tl_status unary(const row *r, tl_tensor *x, double p, double q, tl_tensor **out) {
  if (tl_autocast_on && needs_range(r)) TL_AUTOCAST(TL_CAST_FULL, unary(r, cast[0], p, q, out), x);
  int dtype = r->kind == KIND_FLOAT && !tl_is_floating(x->dtype) ? TL_FLOAT32 : x->dtype;
  TL_TRY(check_arithmetic(r, dtype));
  tl_tensor *y;
  TL_TRY(run(r->fn, r->name, tl_compute_type(dtype), r->kind == KIND_BOOL ? TL_BOOL : dtype, x->ndim, x->shape, 1, &x,
             NULL, p, q, &y));
  return tl_give(r->saves == SAVES_ND ? TL_OK : record_unary(r, x, y, p, q), y, out);
}

static tl_status check_stores(const char *op, int result, const tl_tensor *t) {
  bool fits = tl_is_floating(t->dtype) || !tl_is_floating(result);
  if (t->dtype == TL_BOOL && result != TL_BOOL) fits = false;
  if (fits) return TL_OK;
  return TL_FAIL(TL_ERR_DTYPE, op, "a %s result does not go into a %s tensor in place", tl_dtype_name(result),
                 tl_dtype_name(t->dtype));
}

/* The old value of t, if the derivative of an in-place operation will need it. */
static tl_status old_value(const tl_tensor *t, bool needed, tl_tensor **old) {
  *old = NULL;
  if (!needed) return TL_OK;
  bool former = tl_set_grad_enabled(false);
  tl_status st = tl_clone((tl_tensor *)t, old);
  tl_set_grad_enabled(former);
  return st;
}

static tl_status unary_(const row *r, tl_tensor *x, double p, double q) {
  TL_TRY(tl_check_inplace(r->name, x));
  int dtype = r->kind == KIND_FLOAT && !tl_is_floating(x->dtype) ? TL_FLOAT32 : x->dtype;
  TL_TRY(check_arithmetic(r, dtype));
  TL_TRY(check_stores(r->name, r->kind == KIND_BOOL ? TL_BOOL : dtype, x));
  bool records = r->saves != SAVES_ND && tl_records(1, &x);
  tl_tensor *old;
  TL_TRY(old_value(x, records && r->saves == SAVES_X, &old));
  unary_payload u = {r->fn + 1, p, q};
  tl_tensor *save = old != NULL ? old : x;
  tl_write w;
  tl_status st = r->saves == SAVES_ND
                     ? tl_overwrite_begin(&w, x)
                     : tl_write_begin(&w, r->cls, x, 1, &x, r->saves == SAVES_NO ? 0 : 1, &save, &u, sizeof u);
  if (st == TL_OK) st = tl_write_end(&w, x, run_into(r->fn, r->name, tl_compute_type(dtype), x, 1, &x, NULL, p, q));
  tl_tensor_free(old);
  return st;
}

/* ---- binary: a tensor or a number on either side ---- */

typedef struct side {
  int dtype, ndim;
  int64_t shape[TL_MAX_DIMS];
} side;

typedef struct binary_payload {
  int fn;
  double constant[2]; /* of the side that is a number */
  bool is_number[2];
  side sides[2];
} binary_payload;

/* Derivatives that are the incoming gradient itself need no kernel. */
static bool passes_gradient(int fn, int which) { return fn == TL_FN_add || (fn == TL_FN_sub && which == 0); }

static tl_status binary_backward(tl_node *n, tl_tensor *const *grad_out, tl_tensor **grad_in) {
  const binary_payload *b = n->payload;
  tl_tensor *g = grad_out[0], *in[3] = {g, NULL, NULL};
  double constants[3] = {0, b->constant[0], b->constant[1]};
  for (int i = 0; i < 2 && n->saved_count > 0; i++)
    if (!b->is_number[i]) TL_TRY(tl_node_saved(n, i, &in[i + 1]));
  for (int i = 0; i < 2; i++) {
    if (!tl_node_needs(n, i)) continue;
    const side *s = &b->sides[i];
    tl_tensor *full = NULL, *sum = NULL;
    tl_status st = TL_OK;
    if (passes_gradient(b->fn, i)) full = tl_hold(g);
    else
      st = run(b->fn + 1 + i, n->cls->name, tl_compute_type(g->dtype), g->dtype, g->ndim, g->shape, 3, in, constants, 0,
               0, &full);
    if (st == TL_OK) st = tl_sum_to(full, s->ndim, s->shape, &sum);
    if (st == TL_OK) st = tl_to(sum, s->dtype, g->device, &grad_in[i]);
    tl_tensor_free(full);
    tl_tensor_free(sum);
    TL_TRY(st);
  }
  return TL_OK;
}

static void describe_side(const tl_tensor *t, double number, int i, binary_payload *b) {
  b->is_number[i] = t == NULL;
  b->constant[i] = number;
  if (t == NULL) return;
  b->sides[i].dtype = t->dtype;
  b->sides[i].ndim = t->ndim;
  for (int d = 0; d < t->ndim; d++) b->sides[i].shape[d] = t->shape[d];
}

/* Integer division by zero has no result: refuse it before the kernel runs. */
static tl_status check_divisor(const row *r, int compute, tl_tensor *b, double sb) {
  bool divides = r->fn == TL_FN_floor_divide || r->fn == TL_FN_remainder || r->fn == TL_FN_fmod;
  if (!divides || compute != TL_INT64) return TL_OK;
  double zero = sb == 0;
  if (b != NULL) {
    tl_tensor *is_zero = NULL, *any = NULL;
    tl_status st = tl_eq_scalar(b, 0, &is_zero);
    if (st == TL_OK) st = tl_any(is_zero, 0, NULL, false, &any);
    if (st == TL_OK) st = tl_item(any, &zero);
    tl_tensor_free(is_zero);
    tl_tensor_free(any);
    TL_TRY(st);
  }
  return zero != 0 ? TL_FAIL(TL_ERR_VALUE, r->name, "integer division by zero") : TL_OK;
}

/* The dtype the two sides meet in. */
static int common_type(const row *r, const tl_tensor *a, const tl_tensor *b, double sa, double sb) {
  int dtype = b == NULL   ? tl_result_type_scalar(a, sb)
              : a == NULL ? tl_result_type_scalar(b, sa)
                          : tl_result_type(a, b);
  return r->kind == KIND_FLOAT && !tl_is_floating(dtype) ? TL_FLOAT32 : dtype;
}

static binary_payload describe(const row *r, const tl_tensor *a, const tl_tensor *b, double sa, double sb) {
  binary_payload p = {.fn = r->fn};
  describe_side(a, sa, 0, &p);
  describe_side(b, sb, 1, &p);
  return p;
}

static tl_status record_binary(const row *r, tl_tensor *y, tl_tensor *a, tl_tensor *b, double sa, double sb) {
  tl_tensor *in[2] = {a, b};
  binary_payload p = describe(r, a, b, sa, sb);
  return tl_record1(r->cls, y, 2, in, r->saves == SAVES_AB ? 2 : 0, in, &p, sizeof p);
}

static tl_status unary_square(tl_tensor *x, tl_tensor **out);

static tl_status binary(const row *r, tl_tensor *a, tl_tensor *b, double sa, double sb, tl_tensor **out) {
  if (tl_autocast_on && needs_range(r)) TL_AUTOCAST(TL_CAST_FULL, binary(r, cast[0], cast[1], sa, sb, out), a, b);
  tl_tensor *one = a != NULL ? a : b;
  if (r->fn == TL_FN_pow && b == NULL && sb == 2) return unary_square(a, out); /* pow is not vector code */
  int ndim = one->ndim;
  int64_t broadcast[TL_MAX_DIMS];
  const int64_t *shape = one->shape;
  if (a != NULL && b != NULL) {
    if (a->device != b->device) TL_TRY(tl_check_same_device(r->name, a, b));
    if (!tl_same_shape(a, b)) {
      TL_TRY(tl_broadcast(r->name, a, b, &ndim, broadcast));
      shape = broadcast;
    }
  }
  int dtype = common_type(r, a, b, sa, sb), compute = tl_compute_type(dtype);
  TL_TRY(check_arithmetic(r, dtype));
  TL_TRY(check_divisor(r, compute, b, sb));
  tl_tensor *in[2] = {a, b}, *y;
  double constants[2] = {sa, sb};
  TL_TRY(run(r->fn, r->name, compute, r->kind == KIND_BOOL ? TL_BOOL : dtype, ndim, shape, 2, in, constants, 0, 0, &y));
  if (r->saves == SAVES_ND || !tl_records(2, in)) return tl_give(TL_OK, y, out);
  return tl_give(record_binary(r, y, a, b, sa, sb), y, out);
}

/* Do a and b show the same elements in the same order? */
static bool same_elements(const tl_tensor *a, const tl_tensor *b) {
  if (a->storage != b->storage || a->offset != b->offset || a->dtype != b->dtype || !tl_same_shape(a, b)) return false;
  for (int d = 0; d < a->ndim; d++)
    if (a->strides[d] != b->strides[d]) return false;
  return true;
}

/* The right side of an in-place operation, as its kernel may read it and, if it is saved, as its gradient may: a copy when
 * it shares memory with the target. `old` (may be NULL) is a copy of the target. */
static tl_status right_side(const tl_tensor *a, tl_tensor *b, tl_tensor *old, tl_tensor **out) {
  *out = NULL;
  if (b == NULL) return TL_OK;
  if (a->storage != b->storage) return tl_tensor_retain(b, out);
  if (same_elements(a, b)) return tl_tensor_retain(old != NULL ? old : b, out);
  return old_value(b, true, out);
}

static tl_status check_target(const char *op, const tl_tensor *a, const tl_tensor *b) {
  int ndim;
  int64_t shape[TL_MAX_DIMS];
  TL_TRY(tl_check_same_device(op, a, b));
  if (tl_same_shape(a, b)) return TL_OK;
  TL_TRY(tl_broadcast(op, a, b, &ndim, shape));
  bool same = ndim == a->ndim;
  for (int d = 0; d < ndim && same; d++) same = shape[d] == a->shape[d];
  if (same) return TL_OK;
  return TL_FAIL(TL_ERR_SHAPE, op, "in place, %s does not fit into %s", tl_shape_of(b), tl_shape_of(a));
}

static tl_status binary_(const row *r, tl_tensor *a, tl_tensor *b, double sb) {
  TL_TRY(tl_check_inplace(r->name, a));
  if (b != NULL) TL_TRY(check_target(r->name, a, b));
  int dtype = common_type(r, a, b, 0, sb), compute = tl_compute_type(dtype);
  TL_TRY(check_arithmetic(r, dtype));
  TL_TRY(check_stores(r->name, r->kind == KIND_BOOL ? TL_BOOL : dtype, a));
  TL_TRY(check_divisor(r, compute, b, sb));
  tl_tensor *in[2] = {a, b}, *old, *right = NULL;
  double constants[2] = {0, sb};
  bool differentiable = r->saves != SAVES_ND, saves = r->saves == SAVES_AB && tl_records(2, in);
  TL_TRY(old_value(a, saves, &old));
  tl_status st = right_side(a, b, old, &right);
  binary_payload p = describe(r, a, b, 0, sb);
  tl_tensor *save[2] = {old, right};
  tl_write w;
  if (st == TL_OK && differentiable) st = tl_write_begin(&w, r->cls, a, 2, in, saves ? 2 : 0, save, &p, sizeof p);
  else if (st == TL_OK) st = tl_overwrite_begin(&w, a);
  in[1] = right;
  if (st == TL_OK) st = tl_write_end(&w, a, run_into(r->fn, r->name, compute, a, 2, in, constants, 0, 0));
  tl_tensor_free(old);
  tl_tensor_free(right);
  return st;
}

/* ---- the rows ---- */

#define TL_UNARY(name, kind, f, df, saves)                                                        \
  static const tl_node_class name##_class = {#name, unary_backward, NULL};                        \
  static const row name##_row = {#name, TL_FN_##name, KIND_##kind, SAVES_##saves, &name##_class}; \
  tl_status tl_##name(tl_tensor *x, tl_tensor **out) { return unary(&name##_row, x, 0, 0, out); } \
  tl_status tl_##name##_(tl_tensor *x) { return unary_(&name##_row, x, 0, 0); }
#define TL_UNARY1(name, kind, f, df, saves)                                                                 \
  static const tl_node_class name##_class = {#name, unary_backward, NULL};                                  \
  static const row name##_row = {#name, TL_FN_##name, KIND_##kind, SAVES_##saves, &name##_class};           \
  tl_status tl_##name(tl_tensor *x, double p, tl_tensor **out) { return unary(&name##_row, x, p, 0, out); } \
  tl_status tl_##name##_(tl_tensor *x, double p) { return unary_(&name##_row, x, p, 0); }
#define TL_UNARY2(name, kind, f, df, saves)                                                                           \
  static const tl_node_class name##_class = {#name, unary_backward, NULL};                                            \
  static const row name##_row = {#name, TL_FN_##name, KIND_##kind, SAVES_##saves, &name##_class};                     \
  tl_status tl_##name(tl_tensor *x, double p, double q, tl_tensor **out) { return unary(&name##_row, x, p, q, out); } \
  tl_status tl_##name##_(tl_tensor *x, double p, double q) { return unary_(&name##_row, x, p, q); }
#define TL_BINARY(name, kind, f, da, db, saves)                                                                     \
  static const tl_node_class name##_class = {#name, binary_backward, NULL};                                         \
  static const row name##_row = {#name, TL_FN_##name, KIND_##kind, SAVES_##saves, &name##_class};                   \
  tl_status tl_##name(tl_tensor *a, tl_tensor *b, tl_tensor **out) { return binary(&name##_row, a, b, 0, 0, out); } \
  tl_status tl_##name##_(tl_tensor *a, tl_tensor *b) { return binary_(&name##_row, a, b, 0); }                      \
  tl_status tl_##name##_scalar(tl_tensor *a, double s, tl_tensor **out) {                                           \
    return binary(&name##_row, a, NULL, 0, s, out);                                                                 \
  }                                                                                                                 \
  tl_status tl_##name##_scalar_(tl_tensor *a, double s) { return binary_(&name##_row, a, NULL, s); }                \
  tl_status tl_##name##_rscalar(double s, tl_tensor *b, tl_tensor **out) {                                          \
    return binary(&name##_row, NULL, b, s, 0, out);                                                                 \
  }
#include "ops/ops.def"

tl_status tl_record_gelu_tanh(tl_tensor *x, tl_tensor *y) { return record_unary(&gelu_tanh_row, x, y, 0, 0); }

static tl_status unary_square(tl_tensor *x, tl_tensor **out) { return tl_square(x, out); }
