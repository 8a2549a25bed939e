/* ternary.c: pointwise operations of three operands, and a + alpha*b. */
#include "autograd/tape.h"
#include "backend/backend.h"
#include "core/iter.h"
#include "core/tensor.h"

static tl_status run_into(int fn, const char *op, tl_tensor *y, int compute, int n, tl_tensor *const *in,
                          const double *constants, double p) {
  tl_tensor *operands[4] = {y};
  double values[4] = {0};
  for (int i = 0; i < n; i++) {
    operands[i + 1] = in[i];
    values[i + 1] = constants == NULL ? 0 : constants[i];
  }
  TL_KERNEL(y, pointwise, op);
  tl_iter it;
  tl_iter_init(&it, n + 1, operands, values, y->ndim, y->shape);
  return tl_kernels_of(y)->pointwise(fn, compute, &it, p, 0);
}

/* The broadcast shape of up to three tensors (NULL entries are constants). */
static tl_status common_shape(const char *op, int n, tl_tensor *const *in, tl_tensor *frame) {
  frame->ndim = 0;
  for (int i = 0; i < n; i++) {
    if (in[i] == NULL) continue;
    int ndim;
    int64_t shape[TL_MAX_DIMS];
    TL_TRY(tl_broadcast(op, frame, in[i], &ndim, shape));
    frame->ndim = (uint8_t)ndim;
    for (int d = 0; d < ndim; d++) frame->shape[d] = shape[d];
  }
  return TL_OK;
}

/* part = g reduced to the shape and dtype of one input */
typedef struct origin {
  int dtype, ndim;
  int64_t shape[TL_MAX_DIMS];
} origin;

typedef struct payload {
  double value;
  origin from[3];
} payload;

static void remember(payload *p, int i, const tl_tensor *t) {
  if (t == NULL) return;
  p->from[i].dtype = t->dtype;
  p->from[i].ndim = t->ndim;
  for (int d = 0; d < t->ndim; d++) p->from[i].shape[d] = t->shape[d];
}

/* Hands g (whose reference is taken over) back to input i. */
static tl_status give_back(const payload *p, int i, tl_status st, tl_tensor *g, tl_tensor **grad_in) {
  tl_tensor *sum = NULL;
  if (st == TL_OK) st = tl_sum_to(g, p->from[i].ndim, p->from[i].shape, &sum);
  if (st == TL_OK) st = tl_to(sum, p->from[i].dtype, sum->device, &grad_in[i]);
  tl_tensor_free(g);
  tl_tensor_free(sum);
  return st;
}

static tl_status scaled(tl_tensor *g, tl_tensor *by, double value, tl_tensor **out) {
  tl_tensor *product = NULL;
  TL_TRY(tl_mul(g, by, &product));
  if (value == 1) return tl_give(TL_OK, product, out);
  tl_status st = tl_mul_scalar(product, value, out);
  tl_tensor_free(product);
  return st;
}

/* ---- a + alpha * b ---- */

static tl_status add_scaled_backward(tl_node *n, tl_tensor *const *grad_out, tl_tensor **grad_in) {
  const payload *p = n->payload;
  if (tl_node_needs(n, 0)) TL_TRY(give_back(p, 0, TL_OK, tl_hold(grad_out[0]), grad_in));
  if (!tl_node_needs(n, 1)) return TL_OK;
  tl_tensor *g = NULL;
  tl_status st = tl_mul_scalar(grad_out[0], p->value, &g);
  return give_back(p, 1, st, g, grad_in);
}

/* ---- addcmul, addcdiv, lerp: saved are the inputs ---- */

static tl_status addcmul_backward(tl_node *n, tl_tensor *const *grad_out, tl_tensor **grad_in) {
  const payload *p = n->payload;
  tl_tensor *b, *c, *g = NULL;
  TL_TRY(tl_node_saved(n, 0, &b));
  TL_TRY(tl_node_saved(n, 1, &c));
  if (tl_node_needs(n, 0)) TL_TRY(give_back(p, 0, TL_OK, tl_hold(grad_out[0]), grad_in));
  if (tl_node_needs(n, 1)) {
    tl_status st = scaled(grad_out[0], c, p->value, &g);
    TL_TRY(give_back(p, 1, st, g, grad_in));
  }
  g = NULL;
  if (!tl_node_needs(n, 2)) return TL_OK;
  tl_status st = scaled(grad_out[0], b, p->value, &g);
  return give_back(p, 2, st, g, grad_in);
}

static tl_status addcdiv_backward(tl_node *n, tl_tensor *const *grad_out, tl_tensor **grad_in) {
  const payload *p = n->payload;
  tl_tensor *b, *c, *over = NULL;
  TL_TRY(tl_node_saved(n, 0, &b));
  TL_TRY(tl_node_saved(n, 1, &c));
  if (tl_node_needs(n, 0)) TL_TRY(give_back(p, 0, TL_OK, tl_hold(grad_out[0]), grad_in));
  if (!tl_node_needs(n, 1) && !tl_node_needs(n, 2)) return TL_OK;
  tl_tensor *scaled_g = NULL;
  tl_status st = tl_div(grad_out[0], c, &over); /* g/c: b's gradient but for value; c's is -value*b*g/c^2 */
  if (st == TL_OK) st = tl_mul_scalar(over, p->value, &scaled_g);
  tl_tensor_free(over);
  if (st == TL_OK && tl_node_needs(n, 1)) st = give_back(p, 1, TL_OK, tl_hold(scaled_g), grad_in);
  if (st == TL_OK && tl_node_needs(n, 2)) {
    tl_tensor *ratio = NULL, *product = NULL, *g = NULL;
    st = tl_div(b, c, &ratio);
    if (st == TL_OK) st = tl_mul(scaled_g, ratio, &product);
    if (st == TL_OK) st = tl_neg(product, &g);
    tl_tensor_free(ratio);
    tl_tensor_free(product);
    st = give_back(p, 2, st, g, grad_in);
  }
  tl_tensor_free(scaled_g);
  return st;
}

static tl_status lerp_backward(tl_node *n, tl_tensor *const *grad_out, tl_tensor **grad_in) {
  const payload *p = n->payload;
  const double weight[2] = {1 - p->value, p->value};
  for (int i = 0; i < 2; i++) {
    if (!tl_node_needs(n, i)) continue;
    tl_tensor *g = NULL;
    tl_status st = tl_mul_scalar(grad_out[0], weight[i], &g);
    TL_TRY(give_back(p, i, st, g, grad_in));
  }
  return TL_OK;
}

static const tl_node_class add_scaled_class = {"add", add_scaled_backward, NULL};
static const tl_node_class addcmul_class = {"addcmul", addcmul_backward, NULL};
static const tl_node_class addcdiv_class = {"addcdiv", addcdiv_backward, NULL};
static const tl_node_class lerp_class = {"lerp", lerp_backward, NULL};

/* n = 2 or 3 tensors; all but add_scaled and addcmul need a floating result */
static tl_status combine(int fn, const tl_node_class *cls, int n, tl_tensor *const *in, double value, tl_tensor **out) {
  tl_tensor frame;
  TL_TRY(common_shape(cls->name, n, in, &frame));
  int dtype = tl_result_type(in[0], in[1]);
  for (int i = 1; i < n; i++) TL_TRY(tl_check_same_device(cls->name, in[0], in[i]));
  if (n == 3) dtype = tl_promote(dtype, in[2]->dtype);
  bool integers = fn == TL_FN_add_scaled || fn == TL_FN_addcmul;
  if (!tl_is_floating(dtype) && (!integers || !tl_is_whole(value))) dtype = TL_FLOAT32;
  tl_tensor *y;
  TL_TRY(tl_empty(frame.ndim, frame.shape, dtype, in[0]->device, &y));
  tl_status st = run_into(fn, cls->name, y, tl_compute_type(dtype), n, in, NULL, value);
  payload p = {.value = value};
  for (int i = 0; i < n; i++) remember(&p, i, in[i]);
  if (st == TL_OK) st = tl_record1(cls, y, n, in, n == 3 ? 2 : 0, in + 1, &p, sizeof p);
  return tl_give(st, y, out);
}

static tl_status combine_(int fn, const tl_node_class *cls, int n, tl_tensor *const *in, double value) {
  TL_TRY(tl_check_inplace(cls->name, in[0]));
  tl_tensor *y = NULL;
  TL_TRY(combine(fn, cls, n, in, value, &y));
  /* Through a temporary, so that any overlap is harmless; copy_ hands the history over. */
  tl_status st = TL_OK;
  if (!tl_same_shape(y, in[0]))
    st = TL_FAIL(TL_ERR_SHAPE, cls->name, "in place, %s does not fit into %s", tl_shape_of(y), tl_shape_of(in[0]));
  else if (tl_is_floating(y->dtype) && !tl_is_floating(in[0]->dtype))
    st = TL_FAIL(TL_ERR_DTYPE, cls->name, "a %s result does not go into a %s tensor in place", tl_dtype_name(y->dtype),
                 tl_dtype_name(in[0]->dtype));
  if (st == TL_OK) st = tl_copy_(in[0], y);
  tl_tensor_free(y);
  return st;
}

tl_status tl_add_scaled(tl_tensor *a, tl_tensor *b, double alpha, tl_tensor **out) {
  tl_tensor *in[2] = {a, b};
  return combine(TL_FN_add_scaled, &add_scaled_class, 2, in, alpha, out);
}

tl_status tl_add_scaled_(tl_tensor *a, tl_tensor *b, double alpha) {
  tl_tensor *in[2] = {a, b};
  return combine_(TL_FN_add_scaled, &add_scaled_class, 2, in, alpha);
}

tl_status tl_addcmul(tl_tensor *a, tl_tensor *b, tl_tensor *c, double value, tl_tensor **out) {
  tl_tensor *in[3] = {a, b, c};
  return combine(TL_FN_addcmul, &addcmul_class, 3, in, value, out);
}

tl_status tl_addcdiv(tl_tensor *a, tl_tensor *b, tl_tensor *c, double value, tl_tensor **out) {
  tl_tensor *in[3] = {a, b, c};
  return combine(TL_FN_addcdiv, &addcdiv_class, 3, in, value, out);
}

tl_status tl_addcmul_(tl_tensor *a, tl_tensor *b, tl_tensor *c, double value) {
  tl_tensor *in[3] = {a, b, c};
  return combine_(TL_FN_addcmul, &addcmul_class, 3, in, value);
}

tl_status tl_addcdiv_(tl_tensor *a, tl_tensor *b, tl_tensor *c, double value) {
  tl_tensor *in[3] = {a, b, c};
  return combine_(TL_FN_addcdiv, &addcdiv_class, 3, in, value);
}

tl_status tl_lerp(tl_tensor *a, tl_tensor *b, double weight, tl_tensor **out) {
  tl_tensor *in[2] = {a, b};
  return combine(TL_FN_lerp, &lerp_class, 2, in, weight, out);
}

/* ---- where, masked_fill ---- */

static tl_status check_mask(const char *op, const tl_tensor *mask) {
  if (mask->dtype == TL_BOOL) return TL_OK;
  return TL_FAIL(TL_ERR_DTYPE, op, "the mask must be bool, got %s", tl_dtype_name(mask->dtype));
}

/* payload.value is the constant of a side that is a number */
static tl_status where_backward(tl_node *n, tl_tensor *const *grad_out, tl_tensor **grad_in) {
  const payload *p = n->payload;
  tl_tensor *mask, *g = grad_out[0];
  TL_TRY(tl_node_saved(n, 0, &mask));
  const double zero[3] = {0, 0, 0};
  for (int i = 0; i < 2; i++) {
    if (!tl_node_needs(n, i)) continue;
    tl_tensor *in[3] = {mask, i == 0 ? g : NULL, i == 1 ? g : NULL}, *part;
    TL_TRY(tl_empty_like(g, g->dtype, &part));
    tl_status st = run_into(TL_FN_where, "where", part, tl_compute_type(g->dtype), 3, in, zero, 0);
    TL_TRY(give_back(p, i, st, part, grad_in));
  }
  return TL_OK;
}

static const tl_node_class where_class = {"where", where_backward, NULL};

/* b may be NULL: the number sb */
static tl_status choose(const char *op, tl_tensor *mask, tl_tensor *a, double sa, tl_tensor *b, tl_tensor **out) {
  TL_TRY(check_mask(op, mask));
  tl_tensor frame, *in[3] = {mask, a, b}, *y;
  double constants[3] = {0, sa, 0};
  TL_TRY(common_shape(op, 3, in, &frame));
  for (int i = 1; i < 3; i++)
    if (in[i] != NULL) TL_TRY(tl_check_same_device(op, mask, in[i]));
  int dtype = a == NULL ? b->dtype : tl_result_type(a, b);
  TL_TRY(tl_empty(frame.ndim, frame.shape, dtype, mask->device, &y));
  tl_status st = run_into(TL_FN_where, op, y, tl_compute_type(dtype), 3, in, constants, 0);
  payload p = {0};
  remember(&p, 0, a);
  remember(&p, 1, b);
  if (st == TL_OK) st = tl_record1(&where_class, y, 2, in + 1, 1, &mask, &p, sizeof p);
  return tl_give(st, y, out);
}

tl_status tl_where(tl_tensor *cond, tl_tensor *a, tl_tensor *b, tl_tensor **out) {
  return choose("where", cond, a, 0, b, out);
}

tl_status tl_masked_fill(tl_tensor *x, tl_tensor *mask, double value, tl_tensor **out) {
  return choose("masked_fill", mask, NULL, value, x, out);
}

tl_status tl_masked_fill_(tl_tensor *x, tl_tensor *mask, double value) {
  TL_TRY(tl_check_inplace("masked_fill_", x));
  tl_tensor *y = NULL;
  TL_TRY(tl_masked_fill(x, mask, value, &y));
  tl_status st = tl_same_shape(x, y) ? tl_copy_(x, y)
                                     : TL_FAIL(TL_ERR_SHAPE, "masked_fill_", "a mask of %s does not fit into %s",
                                               tl_shape_of(mask), tl_shape_of(x));
  tl_tensor_free(y);
  return st;
}
