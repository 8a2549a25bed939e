/* conv.c: convolution over 1 or 2 dims, and the transposed convolution over 2. The kernels know 2 spatial dims: a 1-d
 * convolution is one over a height of 1. */
#include "autograd/tape.h"
#include "backend/backend.h"
#include "core/tensor.h"
#include "ops/autocast.h"

/* ---- checks ---- */

/* The op's arguments as messages and the kernels need them: spatial arrays are padded in front to 2 dims. */
typedef struct geometry {
  const char *op;
  int n; /* spatial dims */
  int64_t stride[2], padding[2], dilation[2], groups;
} geometry;

static void spread(int64_t to[2], int n, const int64_t *from, int64_t missing) {
  to[0] = n == 2 ? from[0] : missing;
  to[1] = from[n - 1];
}

static tl_status check_geometry(geometry *g, int n, const int64_t *stride, const int64_t *padding,
                                const int64_t *dilation, int64_t groups) {
  g->n = n;
  g->groups = groups;
  spread(g->stride, n, stride, 1);
  spread(g->padding, n, padding, 0);
  spread(g->dilation, n, dilation, 1);
  if (groups < 1 || groups > TL_WINDOW_MAX)
    return TL_FAIL(TL_ERR_VALUE, g->op, "%lld groups: 1 to %d are possible", (long long)groups, TL_WINDOW_MAX);
  for (int d = 0; d < 2; d++)
    if (g->stride[d] < 1 || g->padding[d] < 0 || g->dilation[d] < 1)
      return TL_FAIL(TL_ERR_VALUE, g->op, "stride %lld, padding %lld, dilation %lld: at least 1, 0 and 1 are needed",
                     (long long)g->stride[d], (long long)g->padding[d], (long long)g->dilation[d]);
    else if (g->stride[d] > TL_WINDOW_MAX || g->padding[d] > TL_WINDOW_MAX || g->dilation[d] > TL_WINDOW_MAX)
      return TL_FAIL(TL_ERR_VALUE, g->op, "stride %lld, padding %lld, dilation %lld: %d is the most",
                     (long long)g->stride[d], (long long)g->padding[d], (long long)g->dilation[d], TL_WINDOW_MAX);
  return TL_OK;
}

/* Floating x and w of one dtype and device, both with the spatial dims; b (channels) or NULL. */
static tl_status check_tensors(const geometry *g, const tl_tensor *x, const tl_tensor *w, const tl_tensor *b,
                               int64_t channels) {
  const tl_tensor *others[2] = {w, b};
  TL_TRY(tl_check_floating(g->op, x));
  if (x->ndim != g->n + 2 || w->ndim != g->n + 2)
    return TL_FAIL(TL_ERR_SHAPE, g->op, "an input of %s and a weight of %s: both must have %d dims", tl_shape_of(x),
                   tl_shape_of(w), g->n + 2);
  for (int d = 0; d < x->ndim; d++)
    if (x->shape[d] > TL_WINDOW_MAX || w->shape[d] > TL_WINDOW_MAX)
      return TL_FAIL(TL_ERR_SHAPE, g->op, "an input of %s and a weight of %s: no size may be above %d", tl_shape_of(x),
                     tl_shape_of(w), TL_WINDOW_MAX);
  for (int i = 0; i < 2 && others[i] != NULL; i++) {
    TL_TRY(tl_check_same_device(g->op, x, others[i]));
    if (x->dtype != others[i]->dtype)
      return TL_FAIL(TL_ERR_DTYPE, g->op, "a %s input and a %s %s: convert one of them with to()",
                     tl_dtype_name(x->dtype), tl_dtype_name(others[i]->dtype), i == 0 ? "weight" : "bias");
  }
  if (b != NULL && (b->ndim != 1 || b->shape[0] != channels))
    return TL_FAIL(TL_ERR_SHAPE, g->op, "a bias of %s for a weight of %s: (%lld) expected", tl_shape_of(b),
                   tl_shape_of(w), (long long)channels);
  return TL_OK;
}

static tl_status check_channels(const geometry *g, const tl_tensor *x, const tl_tensor *w, int64_t expected) {
  if (x->shape[1] != expected)
    return TL_FAIL(TL_ERR_SHAPE, g->op,
                   "an input of %s and a weight of %s with %lld group%s: %lld input channels, %lld expected",
                   tl_shape_of(x), tl_shape_of(w), (long long)g->groups, g->groups == 1 ? "" : "s",
                   (long long)x->shape[1], (long long)expected);
  if (w->shape[0] % g->groups != 0)
    return TL_FAIL(TL_ERR_SHAPE, g->op, "a weight of %s does not divide into %lld groups", tl_shape_of(w),
                   (long long)g->groups);
  return TL_OK;
}

/* The part of the description that both directions share. */
static tl_convolution describe(const geometry *g, const tl_tensor *x, const tl_tensor *w) {
  tl_convolution c = {.op = g->op, .dtype = x->dtype, .batch = x->shape[0], .groups = g->groups};
  spread(c.kernel, g->n, w->shape + 2, 1);
  for (int d = 0; d < 2; d++) c.stride[d] = g->stride[d], c.padding[d] = g->padding[d], c.dilation[d] = g->dilation[d];
  return c;
}

/* ---- running the kernels ---- */

/* Nothing to compute: the result is the bias, gradients of factors are zeros. */
static bool degenerate(const tl_convolution *c) {
  return c->batch == 0 || c->in == 0 || c->out == 0 || c->size[0] * c->size[1] == 0 ||
         c->kernel[0] * c->kernel[1] == 0 || c->result[0] * c->result[1] == 0;
}

/* y += b (or y = b) along dim 1, unrecorded */
static tl_status bias_channels(tl_tensor *y, tl_tensor *b, bool add) {
  const int64_t shape[3] = {b->shape[0], 1, 1};
  bool grad = tl_set_grad_enabled(false);
  tl_tensor *column = NULL;
  tl_status st = tl_reshape(b, y->ndim - 1, shape, &column);
  if (st == TL_OK) st = add ? tl_add_(y, column) : tl_copy_(y, column);
  tl_set_grad_enabled(grad);
  tl_tensor_free(column);
  return st;
}

static tl_status run_forward(const tl_convolution *c, tl_tensor *x, tl_tensor *w, tl_tensor *b, tl_tensor *y) {
  if (degenerate(c)) return b != NULL ? bias_channels(y, b, false) : tl_fill_(y, 0);
  TL_KERNEL(x, conv_forward, c->op);
  tl_tensor *xc, *wc = NULL, *bc = NULL;
  TL_TRY(tl_contiguous(x, &xc));
  tl_status st = tl_contiguous(w, &wc);
  if (st == TL_OK && b != NULL) st = tl_contiguous(b, &bc);
  if (st == TL_OK)
    st = tl_kernels_of(x)->conv_forward(c, tl_data(xc), tl_data(wc), bc == NULL ? NULL : tl_data(bc), tl_data(y));
  tl_tensor_free(xc);
  tl_tensor_free(wc);
  tl_tensor_free(bc);
  return st;
}

static void *data_or_null(tl_tensor *t) { return t == NULL ? NULL : tl_data(t); }

/* x and w may be NULL where no gradient needs them; dx, dw, db are contiguous outputs or NULL. */
static tl_status run_backward(const tl_convolution *c, tl_tensor *x, tl_tensor *w, tl_tensor *dy, tl_tensor *dx,
                              tl_tensor *dw, tl_tensor *db) {
  TL_KERNEL(dy, conv_backward, c->op);
  tl_tensor *xc = NULL, *wc = NULL, *dyc;
  TL_TRY(tl_contiguous(dy, &dyc));
  tl_status st = x == NULL ? TL_OK : tl_contiguous(x, &xc);
  if (st == TL_OK && w != NULL) st = tl_contiguous(w, &wc);
  if (st == TL_OK)
    st = tl_kernels_of(dy)->conv_backward(c, data_or_null(xc), data_or_null(wc), tl_data(dyc), data_or_null(dx),
                                          data_or_null(dw), data_or_null(db));
  tl_tensor_free(xc);
  tl_tensor_free(wc);
  tl_tensor_free(dyc);
  return st;
}

/* sum of g over everything but dim 1 */
static tl_status sum_channels(tl_tensor *g, tl_tensor **out) {
  const int dims[3] = {0, 2, 3};
  return tl_sum(g, g->ndim - 1, dims, false, out);
}

/* ---- convolution ---- */

typedef struct payload {
  tl_convolution conv;
  int n;
  int64_t x_shape[4], w_shape[4];
} payload;

static payload payload_of(const tl_convolution *c, int n, const tl_tensor *x, const tl_tensor *w) {
  payload p = {.conv = *c, .n = n};
  for (int d = 0; d < n + 2; d++) p.x_shape[d] = x->shape[d], p.w_shape[d] = w->shape[d];
  return p;
}

/* Empty outputs for the gradients that n wants: of x, w, b. */
static tl_status make_grads(tl_node *n, const payload *p, tl_tensor *g, tl_tensor **grad_in) {
  if (tl_node_needs(n, 0)) TL_TRY(tl_empty(p->n + 2, p->x_shape, g->dtype, g->device, &grad_in[0]));
  if (tl_node_needs(n, 1)) TL_TRY(tl_empty(p->n + 2, p->w_shape, g->dtype, g->device, &grad_in[1]));
  return TL_OK;
}

static tl_status zero_grads(tl_node *n, tl_tensor *g, tl_tensor **grad_in) {
  for (int i = 0; i < 2; i++)
    if (grad_in[i] != NULL) TL_TRY(tl_fill_(grad_in[i], 0));
  return n->inputs == 3 && tl_node_needs(n, 2) ? sum_channels(g, &grad_in[2]) : TL_OK;
}

static tl_status conv_backward(tl_node *n, tl_tensor *const *grad_out, tl_tensor **grad_in) {
  const payload *p = n->payload;
  tl_tensor *x, *w, *g = grad_out[0];
  TL_TRY(tl_node_saved(n, 0, &x));
  TL_TRY(tl_node_saved(n, 1, &w));
  TL_TRY(make_grads(n, p, g, grad_in));
  if (degenerate(&p->conv)) return zero_grads(n, g, grad_in);
  /* the kernel gets the bias' gradient with the weight's for nothing; alone, a sum is cheaper */
  tl_tensor *db = NULL;
  if (n->inputs == 3 && tl_node_needs(n, 2)) {
    if (!tl_node_needs(n, 1)) TL_TRY(sum_channels(g, &grad_in[2]));
    else TL_TRY(tl_empty(1, &p->conv.out, g->dtype, g->device, &grad_in[2]));
    if (tl_node_needs(n, 1)) db = grad_in[2];
  }
  if (grad_in[0] == NULL && grad_in[1] == NULL) return TL_OK;
  return run_backward(&p->conv, x, w, g, grad_in[0], grad_in[1], db);
}

static const tl_node_class conv1d_class = {"conv1d", conv_backward, NULL};
static const tl_node_class conv2d_class = {"conv2d", conv_backward, NULL};

static tl_status record(const tl_node_class *cls, const tl_convolution *c, int n, tl_tensor *x, tl_tensor *w,
                        tl_tensor *b, tl_tensor *y) {
  tl_tensor *in[3] = {x, w, b};
  int inputs = b == NULL ? 2 : 3;
  if (!tl_records(inputs, in)) return TL_OK;
  const payload p = payload_of(c, n, x, w);
  tl_tensor *save[2] = {tl_requires_grad(w) ? x : NULL, tl_requires_grad(x) ? w : NULL};
  return tl_record1(cls, y, inputs, in, 2, save, &p, sizeof p);
}

static tl_status set_result(const geometry *g, tl_convolution *c, const tl_tensor *x, const tl_tensor *w) {
  for (int d = 0; d < 2; d++) {
    const int64_t padded = c->size[d] + 2 * c->padding[d], reach = c->dilation[d] * (c->kernel[d] - 1) + 1;
    if (padded < reach)
      return TL_FAIL(TL_ERR_SHAPE, g->op,
                     "the kernel of %s reaches over %lld elements, the padded input of %s has %lld", tl_shape_of(w),
                     (long long)reach, tl_shape_of(x), (long long)padded);
    c->result[d] = (padded - reach) / c->stride[d] + 1;
  }
  return TL_OK;
}

tl_status tl_conv(tl_tensor *x, tl_tensor *w, tl_tensor *b, int n, const int64_t *stride, const int64_t *padding,
                  const int64_t *dilation, int64_t groups, tl_tensor **out) {
  TL_AUTOCAST(TL_CAST_LOW, tl_conv(cast[0], cast[1], cast[2], n, stride, padding, dilation, groups, out), x, w, b);
  if (n != 1 && n != 2) return TL_FAIL(TL_ERR_VALUE, "conv", "%d spatial dims: 1 and 2 are built", n);
  const tl_node_class *cls = n == 1 ? &conv1d_class : &conv2d_class;
  geometry g = {.op = cls->name};
  TL_TRY(check_geometry(&g, n, stride, padding, dilation, groups));
  TL_TRY(check_tensors(&g, x, w, b, w->ndim > 0 ? w->shape[0] : 0));
  TL_TRY(check_channels(&g, x, w, w->shape[1] * groups));
  tl_convolution c = describe(&g, x, w);
  c.in = x->shape[1];
  c.out = w->shape[0];
  spread(c.size, n, x->shape + 2, 1);
  TL_TRY(set_result(&g, &c, x, w));
  const int64_t shape[4] = {c.batch, c.out, n == 2 ? c.result[0] : c.result[1], c.result[1]};
  tl_tensor *y;
  TL_TRY(tl_empty(n + 2, shape, x->dtype, x->device, &y));
  tl_status st = run_forward(&c, x, w, b, y);
  if (st == TL_OK) st = record(cls, &c, n, x, w, b, y);
  return tl_give(st, y, out);
}

/* ---- transposed convolution: the convolution from y's shape to x's, run backwards ---- */

static tl_status transpose_backward(tl_node *n, tl_tensor *const *grad_out, tl_tensor **grad_in) {
  const payload *p = n->payload;
  tl_tensor *x, *w, *g = grad_out[0];
  TL_TRY(tl_node_saved(n, 0, &x));
  TL_TRY(tl_node_saved(n, 1, &w));
  TL_TRY(make_grads(n, p, g, grad_in));
  if (degenerate(&p->conv)) return zero_grads(n, g, grad_in);
  if (n->inputs == 3 && tl_node_needs(n, 2)) TL_TRY(sum_channels(g, &grad_in[2]));
  if (grad_in[0] != NULL) TL_TRY(run_forward(&p->conv, g, w, NULL, grad_in[0]));
  return grad_in[1] == NULL ? TL_OK : run_backward(&p->conv, g, NULL, x, NULL, grad_in[1], NULL);
}

static const tl_node_class transpose_class = {"conv_transpose2d", transpose_backward, NULL};

static tl_status set_transposed_size(const geometry *g, tl_convolution *c, const int64_t *output_padding,
                                     const tl_tensor *x) {
  for (int d = 0; d < 2; d++) {
    const int64_t extra = output_padding[d];
    if (extra < 0 || extra >= c->stride[d])
      return TL_FAIL(TL_ERR_VALUE, g->op, "output_padding %lld: at least 0 and less than the stride of %lld is needed",
                     (long long)extra, (long long)c->stride[d]);
    c->size[d] =
        (c->result[d] - 1) * c->stride[d] - 2 * c->padding[d] + c->dilation[d] * (c->kernel[d] - 1) + extra + 1;
    if (c->size[d] < 1)
      return TL_FAIL(TL_ERR_SHAPE, g->op, "an input of %s with padding %lld leaves no output", tl_shape_of(x),
                     (long long)c->padding[d]);
  }
  return TL_OK;
}

tl_status tl_conv_transpose2d(tl_tensor *x, tl_tensor *w, tl_tensor *b, const int64_t *stride, const int64_t *padding,
                              const int64_t *output_padding, const int64_t *dilation, int64_t groups, tl_tensor **out) {
  TL_AUTOCAST(TL_CAST_LOW,
              tl_conv_transpose2d(cast[0], cast[1], cast[2], stride, padding, output_padding, dilation, groups, out), x,
              w, b);
  geometry g = {.op = transpose_class.name};
  TL_TRY(check_geometry(&g, 2, stride, padding, dilation, groups));
  TL_TRY(check_tensors(&g, x, w, b, w->ndim > 1 ? w->shape[1] * groups : 0));
  TL_TRY(check_channels(&g, x, w, w->shape[0]));
  tl_convolution c = describe(&g, x, w);
  c.out = x->shape[1];
  c.in = w->shape[1] * groups;
  spread(c.result, 2, x->shape + 2, 1);
  TL_TRY(set_transposed_size(&g, &c, output_padding, x));
  const int64_t shape[4] = {c.batch, c.in, c.size[0], c.size[1]};
  tl_tensor *y;
  TL_TRY(tl_empty(4, shape, x->dtype, x->device, &y));
  tl_status st = TL_OK;
  if (degenerate(&c)) st = b != NULL ? bias_channels(y, b, false) : tl_fill_(y, 0);
  else st = run_backward(&c, NULL, w, x, y, NULL, NULL);
  if (st == TL_OK && b != NULL && !degenerate(&c)) st = bias_channels(y, b, true);
  if (st == TL_OK) st = record(&transpose_class, &c, 2, x, w, b, y);
  return tl_give(st, y, out);
}
