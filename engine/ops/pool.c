/* pool.c: max, average and adaptive average pooling over the last two dims of (N, C, H, W) or (C, H, W). */
#include "autograd/tape.h"
#include "backend/backend.h"
#include "core/tensor.h"

/* ---- checks ---- */

static tl_status check_input(const char *op, const tl_tensor *x) {
  TL_TRY(tl_check_floating(op, x));
  if (x->ndim == 3 || x->ndim == 4) return TL_OK;
  return TL_FAIL(TL_ERR_SHAPE, op, "the input must be (N, C, H, W) or (C, H, W), got %s", tl_shape_of(x));
}

/* x's planes and size */
static tl_pooling describe(const char *op, const tl_tensor *x) {
  tl_pooling p = {.op = op, .dtype = x->dtype, .planes = x->ndim == 4 ? x->shape[0] * x->shape[1] : x->shape[0]};
  for (int d = 0; d < 2; d++) p.size[d] = x->shape[x->ndim - 2 + d];
  return p;
}

/* Windows along one dim; a last window that starts beyond the input and its left padding does not count (ceil_mode). */
static int64_t windows(const tl_pooling *p, int d, bool ceil_mode) {
  int64_t room = p->size[d] + 2 * p->padding[d] - p->dilation[d] * (p->kernel[d] - 1) - 1;
  if (room < 0 && !(ceil_mode && room + p->stride[d] - 1 >= 0)) return 0;
  int64_t n = (room + (ceil_mode ? p->stride[d] - 1 : 0)) / p->stride[d] + 1;
  return ceil_mode && (n - 1) * p->stride[d] >= p->size[d] + p->padding[d] ? n - 1 : n;
}

/* stride NULL is the kernel's, padding NULL 0, dilation NULL 1. */
static tl_status set_windows(tl_pooling *p, const tl_tensor *x, const int64_t *kernel, const int64_t *stride,
                             const int64_t *padding, const int64_t *dilation, bool ceil_mode) {
  for (int d = 0; d < 2; d++) {
    p->kernel[d] = kernel[d];
    p->stride[d] = stride == NULL ? kernel[d] : stride[d];
    p->padding[d] = padding == NULL ? 0 : padding[d];
    p->dilation[d] = dilation == NULL ? 1 : dilation[d];
    if (p->kernel[d] < 1 || p->stride[d] < 1 || p->padding[d] < 0 || p->dilation[d] < 1)
      return TL_FAIL(TL_ERR_VALUE, p->op,
                     "kernel %lld, stride %lld, padding %lld, dilation %lld: at least 1, 1, 0 and 1 are needed",
                     (long long)p->kernel[d], (long long)p->stride[d], (long long)p->padding[d],
                     (long long)p->dilation[d]);
    if (p->kernel[d] > TL_WINDOW_MAX || p->stride[d] > TL_WINDOW_MAX || p->dilation[d] > TL_WINDOW_MAX)
      return TL_FAIL(TL_ERR_VALUE, p->op, "kernel %lld, stride %lld, dilation %lld: %d is the most",
                     (long long)p->kernel[d], (long long)p->stride[d], (long long)p->dilation[d], TL_WINDOW_MAX);
    const int64_t reach = p->dilation[d] * (p->kernel[d] - 1) + 1;
    if (p->padding[d] > reach / 2)
      return TL_FAIL(TL_ERR_VALUE, p->op, "padding %lld: at most half the window of %lld elements is possible",
                     (long long)p->padding[d], (long long)reach);
    p->result[d] = windows(p, d, ceil_mode);
    if (p->result[d] < 1)
      return TL_FAIL(TL_ERR_SHAPE, p->op, "the window reaches over %lld elements, the padded input of %s has %lld",
                     (long long)reach, tl_shape_of(x), (long long)(p->size[d] + 2 * p->padding[d]));
  }
  return TL_OK;
}

/* An uninitialised tensor like x with the last two dims replaced. */
static tl_status make_like(const tl_tensor *x, int dtype, const int64_t size[2], tl_tensor **out) {
  int64_t shape[4];
  for (int d = 0; d < x->ndim; d++) shape[d] = x->shape[d];
  shape[x->ndim - 2] = size[0];
  shape[x->ndim - 1] = size[1];
  return tl_empty(x->ndim, shape, dtype, x->device, out);
}

/* ---- max ---- */

/* The kernel's share of the backward pass: dx from a contiguous dy. */
static tl_status max_backward(tl_node *n, tl_tensor *const *grad_out, tl_tensor **grad_in) {
  const tl_pooling *p = n->payload;
  tl_tensor *where, *g, *dx;
  TL_TRY(tl_node_saved(n, 0, &where));
  TL_KERNEL(where, max_pool_backward, p->op);
  TL_TRY(tl_contiguous(grad_out[0], &g));
  tl_status st = make_like(g, g->dtype, p->size, &dx);
  if (st == TL_OK)
    st = tl_give(tl_kernels_of(g)->max_pool_backward(p, tl_data(g), tl_data(where), tl_data(dx)), dx, &grad_in[0]);
  tl_tensor_free(g);
  return st;
}

static const tl_node_class max_class = {"max_pool2d", max_backward, NULL};

/* y and, when a gradient is wanted, where its elements came from */
static tl_status max_into(tl_pooling *p, tl_tensor *x, tl_tensor *y) {
  TL_KERNEL(x, max_pool, p->op);
  tl_tensor *xc, *where = NULL;
  const bool records = tl_records(1, &x);
  p->where_dtype = p->kernel[0] * p->kernel[1] <= 254 ? TL_UINT8 : TL_INT32;
  TL_TRY(tl_contiguous(x, &xc));
  tl_status st = records ? make_like(x, p->where_dtype, p->result, &where) : TL_OK;
  if (st == TL_OK) st = tl_kernels_of(x)->max_pool(p, tl_data(xc), tl_data(y), where == NULL ? NULL : tl_data(where));
  if (st == TL_OK && records) st = tl_record1(&max_class, y, 1, &x, 1, &where, p, sizeof *p);
  tl_tensor_free(xc);
  tl_tensor_free(where);
  return st;
}

tl_status tl_max_pool2d(tl_tensor *x, const int64_t *kernel, const int64_t *stride, const int64_t *padding,
                        const int64_t *dilation, bool ceil_mode, tl_tensor **out) {
  TL_TRY(check_input("max_pool2d", x));
  tl_pooling p = describe("max_pool2d", x);
  TL_TRY(set_windows(&p, x, kernel, stride, padding, dilation, ceil_mode));
  tl_tensor *y;
  TL_TRY(make_like(x, x->dtype, p.result, &y));
  return tl_give(max_into(&p, x, y), y, out);
}

/* ---- averages ---- */

static tl_status avg_backward(tl_node *n, tl_tensor *const *grad_out, tl_tensor **grad_in) {
  const tl_pooling *p = n->payload;
  tl_tensor *g, *dx;
  TL_KERNEL(grad_out[0], avg_pool_backward, p->op);
  TL_TRY(tl_contiguous(grad_out[0], &g));
  tl_status st = make_like(g, g->dtype, p->size, &dx);
  if (st == TL_OK) st = tl_give(tl_kernels_of(g)->avg_pool_backward(p, tl_data(g), tl_data(dx)), dx, &grad_in[0]);
  tl_tensor_free(g);
  return st;
}

static const tl_node_class avg_class = {"avg_pool2d", avg_backward, NULL};
static const tl_node_class adaptive_class = {"adaptive_avg_pool2d", avg_backward, NULL};

static tl_status average(const tl_node_class *cls, const tl_pooling *p, tl_tensor *x, tl_tensor **out) {
  TL_KERNEL(x, avg_pool, p->op);
  tl_tensor *xc, *y;
  TL_TRY(tl_contiguous(x, &xc));
  tl_status st = make_like(x, x->dtype, p->result, &y);
  if (st == TL_OK) {
    st = tl_kernels_of(x)->avg_pool(p, tl_data(xc), tl_data(y));
    if (st == TL_OK) st = tl_record1(cls, y, 1, &x, 0, NULL, p, sizeof *p);
    st = tl_give(st, y, out);
  }
  tl_tensor_free(xc);
  return st;
}

tl_status tl_avg_pool2d(tl_tensor *x, const int64_t *kernel, const int64_t *stride, const int64_t *padding,
                        bool ceil_mode, bool count_include_pad, tl_tensor **out) {
  TL_TRY(check_input("avg_pool2d", x));
  tl_pooling p = describe("avg_pool2d", x);
  TL_TRY(set_windows(&p, x, kernel, stride, padding, NULL, ceil_mode));
  p.count_include_pad = count_include_pad;
  return average(&avg_class, &p, x, out);
}

tl_status tl_adaptive_avg_pool2d(tl_tensor *x, int64_t height, int64_t width, tl_tensor **out) {
  const char *op = adaptive_class.name;
  TL_TRY(check_input(op, x));
  if (height < 1 || width < 1)
    return TL_FAIL(TL_ERR_VALUE, op, "an output of %lldx%lld: both must be at least 1", (long long)height,
                   (long long)width);
  tl_pooling p = describe(op, x);
  if (p.size[0] * p.size[1] == 0)
    return TL_FAIL(TL_ERR_SHAPE, op, "the input of %s has planes without elements", tl_shape_of(x));
  p.adaptive = true;
  p.result[0] = height;
  p.result[1] = width;
  return average(&adaptive_class, &p, x, out);
}
