/* random.c: filling tensors with random numbers, permutations, draws, dropout. */
#include "backend/random.h"

#include <math.h>

#include "autograd/tape.h"
#include "backend/backend.h"
#include "core/random.h"
#include "core/tensor.h"

/* Fills in row-major order; a tensor of other strides goes through a contiguous one. */
static tl_status fill(const char *op, int kind, tl_tensor *t, double p, double q, tl_generator *g) {
  TL_TRY(tl_check_inplace(op, t));
  TL_KERNEL(t, random, op);
  uint64_t seed, offset;
  if (!t->contiguous) {
    tl_tensor *flat;
    TL_TRY(tl_empty_like(t, t->dtype, &flat));
    tl_generator_take(g, 0, &seed, &offset); /* where it stands */
    tl_status st = fill(op, kind, flat, p, q, g);
    if (st == TL_OK) st = tl_copy_(t, flat);
    tl_tensor_free(flat);
    return tl_generator_end(g, offset, st);
  }
  tl_write w;
  TL_TRY(tl_overwrite_begin(&w, t));
  tl_generator_take(g, t->numel, &seed, &offset);
  tl_iter it;
  tl_iter_init(&it, 1, &t, NULL, t->ndim, t->shape);
  tl_status st = tl_write_end(&w, t, tl_kernels_of(t)->random(kind, &it, seed, offset, p, q));
  return tl_generator_end(g, offset, st);
}

tl_status tl_uniform_(tl_tensor *t, double low, double high, tl_generator *g) {
  TL_TRY(tl_check_floating("uniform_", t));
  if (!(low <= high) || !isfinite(high - low))
    return TL_FAIL(TL_ERR_VALUE, "uniform_", "the range %g to %g is empty", low, high);
  return fill("uniform_", TL_RANDOM_UNIFORM, t, low, high, g);
}

tl_status tl_normal_(tl_tensor *t, double mean, double std, tl_generator *g) {
  TL_TRY(tl_check_floating("normal_", t));
  if (!(std >= 0)) return TL_FAIL(TL_ERR_VALUE, "normal_", "the standard deviation is %g", std);
  return fill("normal_", TL_RANDOM_NORMAL, t, mean, std, g);
}

tl_status tl_randint_(tl_tensor *t, double low, double high, tl_generator *g) {
  if (!(low < high) || fabs(low) > 9007199254740992.0 || fabs(high) > 9007199254740992.0)
    return TL_FAIL(TL_ERR_VALUE, "randint", "the range %g to %g (excluded) holds no integers", low, high);
  if (low != floor(low) || high != floor(high))
    return TL_FAIL(TL_ERR_VALUE, "randint", "%g and %g must be integers", low, high);
  return fill("randint", TL_RANDOM_INTEGER, t, low, high, g);
}

tl_status tl_bernoulli_(tl_tensor *t, double p, tl_generator *g) {
  if (!(p >= 0 && p <= 1)) return TL_FAIL(TL_ERR_VALUE, "bernoulli_", "the probability is %g", p);
  return fill("bernoulli_", TL_RANDOM_BERNOULLI, t, p, 0, g);
}

/* ---- permutations and draws: computed on the host for every device, so that all devices agree ---- */

tl_status tl_randperm(int64_t n, int dtype, tl_device device, tl_generator *g, tl_tensor **out) {
  if (n < 0) return TL_FAIL(TL_ERR_VALUE, "randperm", "%lld elements asked for", (long long)n);
  if (dtype == TL_BOOL || (dtype == TL_UINT8 && n > 256) || (dtype == TL_INT32 && n > INT32_MAX))
    return TL_FAIL(TL_ERR_DTYPE, "randperm", "%s does not hold the numbers 0..%lld", tl_dtype_name(dtype),
                   (long long)(n - 1));
  const tl_backend *b;
  TL_TRY(tl_backend_open(device, &b));
  tl_tensor *order;
  TL_TRY(tl_empty(1, &n, TL_INT64, TL_CPU, &order));
  uint64_t seed, offset;
  tl_generator_take(g, 2 * n, &seed, &offset);
  tl_status st = tl_kernels_of(order)->permutation(n, seed, offset, tl_data(order));
  if (st == TL_OK) st = tl_to(order, dtype, device, out);
  tl_tensor_free(order);
  return tl_generator_end(g, offset, st);
}

static const char *const bad_weights[] = {"are negative", "are not finite", "are all zero",
                                          "leave too few non-zero ones"};

/* What is wrong with a row of weights: an index of bad_weights, or -1. */
static int fault_of(const double *w, int64_t c, int64_t needed) {
  double sum = 0;
  int64_t positive = 0;
  for (int64_t i = 0; i < c; i++) {
    if (!isfinite(w[i])) return 1;
    if (w[i] < 0) return 0;
    sum += w[i];
    positive += w[i] > 0;
  }
  if (positive == 0) return 2;
  if (!isfinite(sum)) return 1;
  return positive < needed ? 3 : -1;
}

static tl_status check_weights(const tl_tensor *host, int64_t rows, int64_t c, int64_t n, bool replacement) {
  const double *w = tl_data(host);
  for (int64_t r = 0; r < rows && n > 0; r++) {
    int fault = fault_of(w + r * c, c, replacement ? 1 : n);
    if (fault >= 0)
      return TL_FAIL(TL_ERR_VALUE, "multinomial", "row %lld of the weights cannot be drawn from: they %s",
                     (long long)tl_position(r), bad_weights[fault]);
  }
  return TL_OK;
}

/* n draws from each row of contiguous double weights on the host */
static tl_status draws(tl_tensor *host, int64_t n, bool replacement, tl_generator *g, tl_tensor **out) {
  int64_t c = host->shape[host->ndim - 1], rows = c == 0 ? 0 : host->numel / c, shape[TL_MAX_DIMS];
  TL_TRY(check_weights(host, rows, c, n, replacement));
  for (int d = 0; d < host->ndim; d++) shape[d] = d == host->ndim - 1 ? n : host->shape[d];
  tl_tensor *ids;
  TL_TRY(tl_empty(host->ndim, shape, TL_INT64, TL_CPU, &ids));
  if (ids->numel == 0) return tl_give(TL_OK, ids, out);
  uint64_t seed, offset;
  tl_generator_take(g, 2 * rows * (replacement ? n : c), &seed, &offset);
  tl_status st = tl_kernels_of(host)->multinomial(tl_data(host), rows, c, n, replacement, seed, offset, tl_data(ids));
  return tl_give(st, ids, out);
}

tl_status tl_multinomial(const tl_tensor *weights, int64_t n, bool replacement, tl_generator *g, tl_tensor **out) {
  TL_TRY(tl_check_floating("multinomial", weights));
  if (weights->ndim == 0) return TL_FAIL(TL_ERR_SHAPE, "multinomial", "weights are at least 1-d");
  int64_t c = weights->shape[weights->ndim - 1];
  if (n < 0) return TL_FAIL(TL_ERR_VALUE, "multinomial", "%lld draws", (long long)n);
  if (n > 0 && c == 0)
    return TL_FAIL(TL_ERR_SHAPE, "multinomial", "weights of %s hold nothing to draw", tl_shape_of(weights));
  if (!replacement && n > c)
    return TL_FAIL(TL_ERR_VALUE, "multinomial", "%lld draws without replacement from %lld", (long long)n, (long long)c);
  bool former = tl_set_grad_enabled(false);
  tl_tensor *wide = NULL, *host = NULL, *ids = NULL;
  uint64_t seed, offset;
  tl_generator_take(g, 0, &seed, &offset); /* where it stands */
  tl_status st = tl_to((tl_tensor *)weights, TL_FLOAT64, TL_CPU, &wide);
  if (st == TL_OK) st = tl_contiguous(wide, &host);
  if (st == TL_OK) st = draws(host, n, replacement, g, &ids);
  if (st == TL_OK) st = tl_to(ids, TL_INT64, weights->device, out);
  tl_set_grad_enabled(former);
  tl_generator_end(g, offset, st);
  tl_tensor_free(wide);
  tl_tensor_free(host);
  tl_tensor_free(ids);
  return st;
}

/* ---- dropout: the mask is never stored, its numbers are drawn again ---- */

typedef struct mask {
  uint64_t seed, offset;
  double p;
} mask;

/* y = x * mask, unrecorded */
static tl_status drop(tl_tensor *x, const mask *m, tl_tensor **out) {
  TL_KERNEL(x, dropout, "dropout");
  tl_tensor *flat, *y = NULL;
  bool former = tl_set_grad_enabled(false);
  tl_status st = tl_contiguous(x, &flat);
  tl_set_grad_enabled(former);
  TL_TRY(st);
  st = tl_empty_like(x, x->dtype, &y);
  if (st == TL_OK)
    st = tl_kernels_of(x)->dropout(x->dtype, tl_data(flat), tl_data(y), x->numel, m->seed, m->offset, m->p);
  tl_tensor_free(flat);
  return tl_give(st, y, out);
}

static tl_status dropout_backward(tl_node *n, tl_tensor *const *grad_out, tl_tensor **grad_in) {
  return drop(grad_out[0], n->payload, &grad_in[0]);
}

static const tl_node_class dropout_class = {"dropout", dropout_backward, NULL};

tl_status tl_dropout(tl_tensor *x, double p, bool training, tl_generator *g, tl_tensor **out) {
  if (!(p >= 0 && p <= 1)) return TL_FAIL(TL_ERR_VALUE, "dropout", "the probability %g is outside 0..1", p);
  TL_TRY(tl_check_floating("dropout", x));
  if (!training || p == 0) return tl_tensor_retain(x, out);
  mask m = {.p = p};
  tl_tensor *y;
  tl_generator_take(g, x->numel, &m.seed, &m.offset);
  tl_status st = drop(x, &m, &y);
  if (st == TL_OK) st = tl_give(tl_record1(&dropout_class, y, 1, &x, 0, NULL, &m, sizeof m), y, out);
  return tl_generator_end(g, m.offset, st);
}
