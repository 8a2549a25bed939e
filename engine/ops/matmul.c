/* matmul.c: matrix products. */
#include "ops/matmul.h"

#include "autograd/tape.h"
#include "backend/backend.h"
#include "core/tensor.h"
#include "ops/autocast.h"

/* ---- tensors as matrices ---- */

tl_matrices tl_matrices_of(tl_tensor *t, bool vector_is_column) {
  tl_matrices m = {.t = t, .batch = t->shape, .batch_strides = t->strides, .rows = 1, .cols = 1};
  if (t->ndim == 1) {
    *(vector_is_column ? &m.rows : &m.cols) = t->shape[0];
    *(vector_is_column ? &m.row : &m.col) = t->strides[0];
    return m;
  }
  m.batch_ndim = t->ndim - 2;
  m.rows = t->shape[t->ndim - 2];
  m.cols = t->shape[t->ndim - 1];
  m.row = t->strides[t->ndim - 2];
  m.col = t->strides[t->ndim - 1];
  return m;
}

tl_matrices tl_matrices_transposed(tl_matrices m) {
  tl_matrices t = m;
  t.rows = m.cols, t.cols = m.rows;
  t.row = m.col, t.col = m.row;
  return t;
}

/* x's batch strides as the broadcast batch dims see them */
static void set_matrix(tl_matrix *to, const tl_matrices *x, int batch_ndim) {
  to->data = tl_data(x->t);
  to->row = x->row;
  to->col = x->col;
  int lead = batch_ndim - x->batch_ndim;
  for (int d = 0; d < batch_ndim; d++)
    to->batch[d] = d < lead || x->batch[d - lead] == 1 ? 0 : x->batch_strides[d - lead];
}

static int64_t broadcast_size(const tl_matrices *x, int batch_ndim, int d) {
  int lead = batch_ndim - x->batch_ndim;
  return d < lead ? 1 : x->batch[d - lead];
}

static tl_gemm describe(const char *op, const tl_matrices *a, const tl_matrices *b, const tl_tensor *bias,
                        tl_tensor *y) {
  tl_gemm g = {.op = op, .dtype = a->t->dtype, .m = a->rows, .n = b->cols, .k = a->cols, .alpha = 1};
  g.wide = y->dtype != g.dtype;
  g.batch_ndim = a->batch_ndim > b->batch_ndim ? a->batch_ndim : b->batch_ndim;
  set_matrix(&g.a, a, g.batch_ndim);
  set_matrix(&g.b, b, g.batch_ndim);
  g.c = (tl_matrix){.data = tl_data(y), .row = g.n, .col = 1};
  int64_t step = g.m * g.n;
  for (int d = g.batch_ndim - 1; d >= 0; d--) {
    int64_t of_a = broadcast_size(a, g.batch_ndim, d);
    g.batch[d] = of_a != 1 ? of_a : broadcast_size(b, g.batch_ndim, d);
    g.c.batch[d] = step;
    step *= g.batch[d];
  }
  if (bias != NULL) {
    g.bias = tl_data(bias);
    g.bias_stride = bias->strides[0];
  }
  return g;
}

tl_status tl_gemm_into(const char *op, const tl_matrices *a, const tl_matrices *b, tl_tensor *bias, double alpha,
                       double beta, tl_tensor *y) {
  TL_KERNEL(y, gemm, op);
  tl_gemm g = describe(op, a, b, bias, y);
  g.alpha = alpha;
  g.beta = beta;
  return tl_kernels_of(y)->gemm(&g);
}

tl_status tl_gemm_sums_into(const char *op, const tl_matrices *a, const tl_matrices *b, tl_tensor *y, tl_tensor *sums) {
  const tl_gemm g = describe(op, a, b, NULL, y);
  return tl_kernels_of(y)->gemm_sums(&g, tl_data(sums));
}

tl_status tl_gemm_gelu_into(const char *op, const tl_matrices *a, const tl_matrices *b, tl_tensor *bias, tl_tensor *pre,
                            tl_tensor *y, bool *done) {
  const tl_gemm g = describe(op, a, b, bias, y);
  return tl_kernels_of(y)->gemm_gelu(&g, pre == NULL ? NULL : tl_data(pre), done);
}

tl_status tl_check_factors(const char *op, const tl_tensor *a, const tl_tensor *b) {
  TL_TRY(tl_check_same_device(op, a, b));
  if (a->dtype != b->dtype)
    return TL_FAIL(TL_ERR_DTYPE, op, "%s and %s: convert one of them with to()", tl_dtype_name(a->dtype),
                   tl_dtype_name(b->dtype));
  if (a->dtype == TL_BOOL) return TL_FAIL(TL_ERR_DTYPE, op, "bool tensors have no product: convert them with to()");
  return TL_OK;
}

/* ---- gradients of all products: y = alpha * a b, so da = alpha * g b^T and db = alpha * a^T g, summed over what was
 * broadcast ---- */

typedef struct dims {
  int n;
  int64_t shape[TL_MAX_DIMS];
} dims;

typedef struct product {
  double alpha;
  dims a, b; /* an operand whose values no gradient needs is not saved: its shape is kept here */
} product;

static dims dims_of(const tl_tensor *t) {
  dims d = {.n = t->ndim};
  for (int i = 0; i < t->ndim; i++) d.shape[i] = t->shape[i];
  return d;
}

/* An unrecorded product with the broadcast batch dims, then summed to `like`. */
static tl_status summed_product(const char *op, const tl_matrices *a, const tl_matrices *b, double alpha,
                                const dims *like, tl_tensor **out) {
  dims full = {.n = a->batch_ndim > b->batch_ndim ? a->batch_ndim : b->batch_ndim}, wanted = *like;
  for (int d = 0; d < full.n; d++) {
    int64_t size = broadcast_size(a, full.n, d);
    full.shape[d] = size != 1 ? size : broadcast_size(b, full.n, d);
  }
  full.shape[full.n] = a->rows;
  full.shape[full.n + 1] = b->cols;
  full.n += 2;
  if (like->n == 1) wanted = (dims){2, {a->rows, b->cols}}; /* it took part as a row or a column */
  tl_tensor *y, *sum = NULL;
  TL_TRY(tl_empty(full.n, full.shape, a->t->dtype, a->t->device, &y));
  tl_status st = tl_gemm_into(op, a, b, NULL, alpha, 0, y);
  if (st == TL_OK) st = tl_sum_to(y, wanted.n, wanted.shape, &sum);
  tl_tensor_free(y);
  if (st != TL_OK || like->n != 1) return tl_give(st, sum, out);
  st = tl_reshape(sum, 1, like->shape, out);
  tl_tensor_free(sum);
  return st;
}

/* t (.., c) as (rows, c) */
static tl_status flatten_rows(tl_tensor *t, tl_tensor **out) {
  int64_t shape[2] = {1, t->shape[t->ndim - 1]};
  for (int d = 0; d < t->ndim - 1; d++) shape[0] *= t->shape[d];
  return tl_reshape(t, 2, shape, out);
}

/* db of a (.., m, k) and b (k, n): the batch only makes the matrices longer, so one product sums over it. */
static tl_status folded_db(const char *op, tl_tensor *a, tl_tensor *g, double alpha, tl_tensor **out) {
  tl_tensor *a2, *g2, *y = NULL;
  TL_TRY(flatten_rows(a, &a2));
  tl_status st = flatten_rows(g, &g2);
  if (st == TL_OK) {
    const tl_matrices at = tl_matrices_transposed(tl_matrices_of(a2, false)), gm = tl_matrices_of(g2, false);
    const int64_t shape[2] = {at.rows, gm.cols};
    st = tl_empty(2, shape, a->dtype, a->device, &y);
    if (st == TL_OK) st = tl_gemm_into(op, &at, &gm, NULL, alpha, 0, y);
    tl_tensor_free(g2);
  }
  tl_tensor_free(a2);
  return tl_give(st, y, out);
}

/* g with the size-1 matrix dims back that a 1-d operand took away */
static tl_status with_matrix_dims(tl_tensor *g, const product *p, tl_tensor **out) {
  if (p->a.n > 1 && p->b.n > 1) return tl_tensor_retain(g, out);
  dims d = dims_of(g);
  if (p->a.n == 1) {
    d.shape[d.n] = d.n > 0 ? d.shape[d.n - 1] : 1;
    d.shape[d.n > 0 ? d.n - 1 : 0] = 1;
    d.n++;
  }
  if (p->b.n == 1) d.shape[d.n++] = 1;
  return tl_reshape(g, d.n, d.shape, out);
}

/* The gradients of factors that are inputs `first` and first + 1 and saved values 0 and 1. */
static tl_status factor_grads(tl_node *n, int first, const product *p, tl_tensor *grad, tl_tensor **grad_in) {
  const char *op = n->cls->name;
  tl_tensor *a, *b, *g;
  TL_TRY(tl_node_saved(n, 0, &a));
  TL_TRY(tl_node_saved(n, 1, &b));
  TL_TRY(with_matrix_dims(grad, p, &g));
  const tl_matrices gm = tl_matrices_of(g, false);
  tl_status st = TL_OK;
  if (tl_node_needs(n, first)) {
    const tl_matrices bt = tl_matrices_transposed(tl_matrices_of(b, true));
    st = summed_product(op, &gm, &bt, p->alpha, &p->a, &grad_in[first]);
  }
  if (st == TL_OK && tl_node_needs(n, first + 1)) {
    const tl_matrices at = tl_matrices_transposed(tl_matrices_of(a, false));
    st = p->b.n == 2 && p->a.n > 2 ? folded_db(op, a, g, p->alpha, &grad_in[first + 1])
                                   : summed_product(op, &at, &gm, p->alpha, &p->b, &grad_in[first + 1]);
  }
  tl_tensor_free(g);
  return st;
}

static tl_status product_backward(tl_node *n, tl_tensor *const *grad_out, tl_tensor **grad_in) {
  return factor_grads(n, 0, n->payload, grad_out[0], grad_in);
}

static const tl_node_class matmul_class = {"matmul", product_backward, NULL};
static const tl_node_class mm_class = {"mm", product_backward, NULL};
static const tl_node_class bmm_class = {"bmm", product_backward, NULL};
static const tl_node_class dot_class = {"dot", product_backward, NULL};

/* ---- the product of any two tensors ---- */

static tl_status check_inner(const char *op, const tl_tensor *a, const tl_tensor *b) {
  int64_t k = a->shape[a->ndim - 1], of_b = b->shape[b->ndim == 1 ? 0 : b->ndim - 2];
  if (k == of_b) return TL_OK;
  return TL_FAIL(TL_ERR_SHAPE, op, "%s and %s: inner sizes %lld and %lld differ", tl_shape_of(a), tl_shape_of(b),
                 (long long)k, (long long)of_b);
}

/* The shape of a b: broadcast batch dims, then what is left of the matrix dims. */
static tl_status product_shape(const char *op, const tl_tensor *a, const tl_tensor *b, dims *y) {
  const tl_matrices am = tl_matrices_of((tl_tensor *)a, false), bm = tl_matrices_of((tl_tensor *)b, true);
  int n = am.batch_ndim > bm.batch_ndim ? am.batch_ndim : bm.batch_ndim;
  for (int d = 0; d < n; d++) {
    int64_t of_a = broadcast_size(&am, n, d), of_b = broadcast_size(&bm, n, d);
    if (of_a != of_b && of_a != 1 && of_b != 1)
      return TL_FAIL(TL_ERR_SHAPE, op, "%s and %s: batch sizes %lld and %lld differ", tl_shape_of(a), tl_shape_of(b),
                     (long long)of_a, (long long)of_b);
    y->shape[d] = of_a != 1 ? of_a : of_b;
  }
  y->n = n;
  if (a->ndim > 1) y->shape[y->n++] = am.rows;
  if (b->ndim > 1) y->shape[y->n++] = bm.cols;
  return TL_OK;
}

static tl_status recorded_product(const tl_node_class *cls, tl_tensor *a, tl_tensor *b, tl_tensor **out) {
  const char *op = cls->name;
  product p = {.alpha = 1};
  dims shape;
  TL_TRY(tl_check_factors(op, a, b));
  TL_TRY(check_inner(op, a, b));
  TL_TRY(product_shape(op, a, b, &shape));
  tl_tensor *y, *in[2] = {a, b};
  TL_TRY(tl_empty(shape.n, shape.shape, a->dtype, a->device, &y));
  const tl_matrices am = tl_matrices_of(a, false), bm = tl_matrices_of(b, true);
  tl_status st = tl_gemm_into(op, &am, &bm, NULL, 1, 0, y);
  if (st == TL_OK && tl_records(2, in)) {
    p.a = dims_of(a), p.b = dims_of(b);
    tl_tensor *save[2] = {tl_requires_grad(b) ? a : NULL, tl_requires_grad(a) ? b : NULL};
    st = tl_record1(cls, y, 2, in, 2, save, &p, sizeof p);
  }
  return tl_give(st, y, out);
}

tl_status tl_matmul(tl_tensor *a, tl_tensor *b, tl_tensor **out) {
  TL_AUTOCAST(TL_CAST_LOW, tl_matmul(cast[0], cast[1], out), a, b);
  if (a->ndim == 0 || b->ndim == 0)
    return TL_FAIL(TL_ERR_SHAPE, "matmul", "%s and %s: both need at least 1 dim (use mul for a number)", tl_shape_of(a),
                   tl_shape_of(b));
  return recorded_product(&matmul_class, a, b, out);
}

static tl_status check_ndim(const char *op, const tl_tensor *a, const tl_tensor *b, int ndim) {
  if (a->ndim == ndim && b->ndim == ndim) return TL_OK;
  return TL_FAIL(TL_ERR_SHAPE, op, "%s and %s: both must have %d dim%s", tl_shape_of(a), tl_shape_of(b), ndim,
                 ndim == 1 ? "" : "s");
}

tl_status tl_mm(tl_tensor *a, tl_tensor *b, tl_tensor **out) {
  TL_AUTOCAST(TL_CAST_LOW, tl_mm(cast[0], cast[1], out), a, b);
  TL_TRY(check_ndim("mm", a, b, 2));
  return recorded_product(&mm_class, a, b, out);
}

tl_status tl_bmm(tl_tensor *a, tl_tensor *b, tl_tensor **out) {
  TL_AUTOCAST(TL_CAST_LOW, tl_bmm(cast[0], cast[1], out), a, b);
  TL_TRY(check_ndim("bmm", a, b, 3));
  if (a->shape[0] != b->shape[0])
    return TL_FAIL(TL_ERR_SHAPE, "bmm", "%s and %s: batch sizes %lld and %lld differ", tl_shape_of(a), tl_shape_of(b),
                   (long long)a->shape[0], (long long)b->shape[0]);
  return recorded_product(&bmm_class, a, b, out);
}

tl_status tl_dot(tl_tensor *a, tl_tensor *b, tl_tensor **out) {
  TL_AUTOCAST(TL_CAST_WIDEST, tl_dot(cast[0], cast[1], out), a, b);
  TL_TRY(check_ndim("dot", a, b, 1));
  return recorded_product(&dot_class, a, b, out);
}

/* (n) and (m) as (n, 1) times (1, m) */
tl_status tl_outer(tl_tensor *a, tl_tensor *b, tl_tensor **out) {
  TL_TRY(check_ndim("outer", a, b, 1));
  TL_TRY(tl_check_factors("outer", a, b));
  tl_tensor *column, *row = NULL;
  TL_TRY(tl_unsqueeze(a, 1, &column));
  tl_status st = tl_unsqueeze(b, 0, &row);
  if (st == TL_OK) st = recorded_product(&mm_class, column, row, out);
  tl_tensor_free(column);
  tl_tensor_free(row);
  return st;
}

/* ---- y = beta * c + alpha * a b ---- */

typedef struct addmm {
  product factors;
  double beta;
  dims c;
} addmm;

static tl_status addmm_backward(tl_node *n, tl_tensor *const *grad_out, tl_tensor **grad_in) {
  const addmm *p = n->payload;
  TL_TRY(factor_grads(n, 1, &p->factors, grad_out[0], grad_in));
  if (!tl_node_needs(n, 0)) return TL_OK;
  tl_tensor *sum;
  TL_TRY(tl_sum_to(grad_out[0], p->c.n, p->c.shape, &sum));
  tl_status st = p->beta == 1 ? tl_tensor_retain(sum, &grad_in[0]) : tl_mul_scalar(sum, p->beta, &grad_in[0]);
  tl_tensor_free(sum);
  return st;
}

static const tl_node_class addmm_class = {"addmm", addmm_backward, NULL};

/* Does c broadcast to (m, n)? */
static bool fits(const tl_tensor *c, int64_t m, int64_t n) {
  int64_t rows = c->ndim == 2 ? c->shape[0] : 1, cols = c->ndim == 0 ? 1 : c->shape[c->ndim - 1];
  return c->ndim <= 2 && (rows == m || rows == 1) && (cols == n || cols == 1);
}

static tl_status check_addmm(tl_tensor *c, tl_tensor *a, tl_tensor *b, double beta, double alpha) {
  TL_TRY(check_ndim("addmm", a, b, 2));
  TL_TRY(tl_check_factors("addmm", a, b));
  TL_TRY(tl_check_factors("addmm", a, c));
  TL_TRY(check_inner("addmm", a, b));
  if (!fits(c, a->shape[0], b->shape[1]))
    return TL_FAIL(TL_ERR_SHAPE, "addmm", "%s does not broadcast to the product's (%lldx%lld)", tl_shape_of(c),
                   (long long)a->shape[0], (long long)b->shape[1]);
  if (!tl_is_floating(a->dtype) && (!tl_is_whole(beta) || !tl_is_whole(alpha)))
    return TL_FAIL(TL_ERR_VALUE, "addmm", "alpha and beta must be whole numbers for %s tensors",
                   tl_dtype_name(a->dtype));
  return TL_OK;
}

tl_status tl_addmm(tl_tensor *c, tl_tensor *a, tl_tensor *b, double beta, double alpha, tl_tensor **out) {
  TL_AUTOCAST(TL_CAST_LOW, tl_addmm(cast[0], cast[1], cast[2], beta, alpha, out), c, a, b);
  TL_TRY(check_addmm(c, a, b, beta, alpha));
  const tl_matrices am = tl_matrices_of(a, false), bm = tl_matrices_of(b, true);
  const int64_t shape[2] = {am.rows, bm.cols};
  tl_tensor *y, *in[3] = {c, a, b};
  TL_TRY(tl_empty(2, shape, a->dtype, a->device, &y));
  tl_status st;
  if (c->ndim == 1 && c->shape[0] == bm.cols && beta == 1) {
    st = tl_gemm_into("addmm", &am, &bm, c, alpha, 0, y);
  } else {
    bool grad = tl_set_grad_enabled(false);
    st = beta == 0 ? TL_OK : tl_copy_(y, c);
    tl_set_grad_enabled(grad);
    if (st == TL_OK) st = tl_gemm_into("addmm", &am, &bm, NULL, alpha, beta, y);
  }
  if (st == TL_OK && tl_records(3, in)) {
    addmm p = {.factors = {alpha, dims_of(a), dims_of(b)}, .beta = beta, .c = dims_of(c)};
    tl_tensor *save[2] = {tl_requires_grad(b) ? a : NULL, tl_requires_grad(a) ? b : NULL};
    st = tl_record1(&addmm_class, y, 3, in, 2, save, &p, sizeof p);
  }
  return tl_give(st, y, out);
}
