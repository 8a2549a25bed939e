/* norm.c: batch norm (Ioffe & Szegedy 2015), layer norm (Ba et al. 2016), group norm (Wu & He 2018) and RMS norm (Zhang &
 * Sennrich 2019). Weight and bias may each be NULL. Statistics are float32, or float64 for float64 inputs. */
#include "autograd/tape.h"
#include "backend/backend.h"
#include "ops/autocast.h"
#include "ops/plain.h"

/* An optional parameter or buffer: floating, on x's device, as many elements as expected, in this shape. */
static tl_status check_vector(const char *op, const char *what, const tl_tensor *x, const tl_tensor *v, int ndim,
                              const int64_t *shape) {
  if (v == NULL) return TL_OK;
  TL_TRY(tl_check_same_device(op, x, v));
  TL_TRY(tl_check_floating(op, v));
  bool fits = v->ndim == ndim;
  for (int d = 0; d < ndim && fits; d++) fits = v->shape[d] == shape[d];
  if (fits) return TL_OK;
  char text[TL_SHAPE_CHARS];
  return TL_FAIL(TL_ERR_SHAPE, op, "%s is %s, an input of %s needs %s", what, tl_shape_of(v), tl_shape_of(x),
                 tl_shape_text(ndim, shape, text));
}

/* Gradients of x, w, b: tensors for those that are wanted; w's and b's in the statistics' dtype at first. */
static tl_status make_gradients(tl_node *n, const tl_tensor *x, int ndim, const int64_t *shape, tl_tensor **d) {
  int stats = tl_compute_dtype(x->dtype);
  if (tl_node_needs(n, 0)) TL_TRY(tl_empty_like(x, x->dtype, &d[0]));
  for (int i = 1; i < n->inputs; i++)
    if (tl_node_needs(n, i)) TL_TRY(tl_empty(ndim, shape, stats, x->device, &d[i]));
  return TL_OK;
}

/* Hands them out in their inputs' dtypes; drops all of d. */
static tl_status give_gradients(tl_node *n, tl_status st, const int *dtypes, tl_tensor **d, tl_tensor **grad_in) {
  for (int i = 0; i < n->inputs; i++) {
    if (st == TL_OK && d[i] != NULL) st = tl_to(d[i], dtypes[i], d[i]->device, &grad_in[i]);
    tl_tensor_free(d[i]);
  }
  return st;
}

/* ---- batch norm ---- */

typedef struct batch_payload {
  int64_t outer, channels, inner;
  bool batch_stats;
  int dtypes[3];
} batch_payload;

enum { SAVED_X, SAVED_W, SAVED_MEAN, SAVED_INVSTD, SAVED };

static tl_status batch_norm_backward(tl_node *n, tl_tensor *const *grad_out, tl_tensor **grad_in) {
  const batch_payload *p = n->payload;
  tl_tensor *s[SAVED], *g = NULL, *d[3] = {NULL};
  for (int i = 0; i < SAVED; i++) TL_TRY(tl_node_saved(n, i, &s[i]));
  TL_KERNEL(s[SAVED_X], batch_norm_grad, "batch_norm");
  tl_status st = tl_plain(grad_out[0], s[SAVED_X]->dtype, &g);
  if (st == TL_OK) st = make_gradients(n, s[SAVED_X], 1, &p->channels, d);
  if (st == TL_OK) {
    tl_batch_norm_grad_args a = {.outer = p->outer,
                                 .channels = p->channels,
                                 .inner = p->inner,
                                 .g = g,
                                 .x = s[SAVED_X],
                                 .w = s[SAVED_W],
                                 .mean = s[SAVED_MEAN],
                                 .invstd = s[SAVED_INVSTD],
                                 .batch_stats = p->batch_stats,
                                 .dx = d[0],
                                 .dw = d[1],
                                 .db = d[2]};
    st = tl_kernels_of(g)->batch_norm_grad(&a);
  }
  tl_tensor_free(g);
  return give_gradients(n, st, p->dtypes, d, grad_in);
}

static const tl_node_class batch_norm_class = {"batch_norm", batch_norm_backward, NULL};

static tl_status check_running(const tl_tensor *x, tl_tensor *mean, tl_tensor *var, bool training) {
  const char *op = "batch_norm";
  if ((mean == NULL) != (var == NULL))
    return TL_FAIL(TL_ERR_VALUE, op, "running_mean and running_var come together, got only %s",
                   mean == NULL ? "running_var" : "running_mean");
  TL_TRY(check_vector(op, "running_mean", x, mean, 1, &x->shape[1]));
  TL_TRY(check_vector(op, "running_var", x, var, 1, &x->shape[1]));
  tl_tensor *both[2] = {mean, var};
  for (int i = 0; i < 2 && mean != NULL; i++) {
    if (tl_requires_grad(both[i]))
      return TL_FAIL(TL_ERR_STATE, op, "the running statistics are buffers: they cannot require gradients");
    if (training && tl_overlaps_itself(both[i]))
      return TL_FAIL(TL_ERR_VALUE, op, "the running statistics are expanded: clone() them first");
  }
  return TL_OK;
}

static tl_status batch_norm_check(const tl_tensor *x, const tl_tensor *w, const tl_tensor *b, tl_tensor *mean,
                                  tl_tensor *var, bool training) {
  const char *op = "batch_norm";
  TL_TRY(tl_check_floating(op, x));
  if (x->ndim < 2) return TL_FAIL(TL_ERR_SHAPE, op, "the input is (N, C, ..), got %s", tl_shape_of(x));
  TL_TRY(check_vector(op, "weight", x, w, 1, &x->shape[1]));
  TL_TRY(check_vector(op, "bias", x, b, 1, &x->shape[1]));
  TL_TRY(check_running(x, mean, var, training));
  if ((training || mean == NULL) && x->shape[1] > 0 && x->numel == x->shape[1])
    return TL_FAIL(TL_ERR_SHAPE, op,
                   "%s has one value per channel: there is no variance to train on, a batch needs more",
                   tl_shape_of(x));
  return TL_OK;
}

/* Dense operands of one call, and what it leaves. */
typedef struct batch_operands {
  tl_tensor *saved[SAVED], *b, *running_mean, *running_var;
} batch_operands;

static tl_status batch_norm_kernel(const batch_payload *p, batch_operands *o, double momentum, double eps,
                                   tl_tensor *y) {
  tl_tensor *x = o->saved[SAVED_X];
  if (x->numel == 0) return TL_OK; /* no values: no statistics, and nothing moves */
  tl_batch_norm_args a = {.outer = p->outer,
                          .channels = p->channels,
                          .inner = p->inner,
                          .x = x,
                          .w = o->saved[SAVED_W],
                          .b = o->b,
                          .running_mean = o->running_mean,
                          .running_var = o->running_var,
                          .batch_stats = p->batch_stats,
                          .momentum = momentum,
                          .eps = eps,
                          .y = y,
                          .mean = o->saved[SAVED_MEAN],
                          .invstd = o->saved[SAVED_INVSTD]};
  return tl_kernels_of(x)->batch_norm(&a);
}

/* The kernel moved `dense`: so has `running`, which it may be a copy of. */
static tl_status moved(tl_tensor *running, tl_tensor *dense) {
  if (running == NULL) return TL_OK;
  tl_touch(running);
  return running == dense ? TL_OK : tl_write_back(running, dense);
}

tl_status tl_batch_norm(tl_tensor *x, tl_tensor *w, tl_tensor *b, tl_tensor *running_mean, tl_tensor *running_var,
                        bool training, double momentum, double eps, tl_tensor **out) {
  TL_TRY(batch_norm_check(x, w, b, running_mean, running_var, training));
  TL_KERNEL(x, batch_norm, "batch_norm");
  batch_payload p = {x->shape[0],
                     x->shape[1],
                     1,
                     training || running_mean == NULL,
                     {x->dtype, w == NULL ? 0 : w->dtype, b == NULL ? 0 : b->dtype}};
  for (int d = 2; d < x->ndim; d++) p.inner *= x->shape[d];
  int stats = tl_compute_dtype(x->dtype);
  batch_operands o = {{NULL}, NULL, NULL, NULL};
  tl_tensor *y = NULL, *in[3] = {x, w, b};
  tl_status st = tl_plain(x, x->dtype, &o.saved[SAVED_X]);
  if (st == TL_OK) st = tl_plain(w, stats, &o.saved[SAVED_W]);
  if (st == TL_OK) st = tl_plain(b, stats, &o.b);
  if (st == TL_OK && running_mean != NULL) st = tl_plain(running_mean, running_mean->dtype, &o.running_mean);
  if (st == TL_OK && running_var != NULL) st = tl_plain(running_var, running_var->dtype, &o.running_var);
  if (st == TL_OK) st = tl_empty(1, &p.channels, stats, x->device, &o.saved[SAVED_MEAN]);
  if (st == TL_OK) st = tl_empty(1, &p.channels, stats, x->device, &o.saved[SAVED_INVSTD]);
  for (int i = SAVED_MEAN; i <= SAVED_INVSTD && st == TL_OK && x->numel == 0; i++) st = tl_fill_(o.saved[i], 0);
  if (st == TL_OK) st = tl_empty_like(x, x->dtype, &y);
  if (st == TL_OK) st = tl_record1(&batch_norm_class, y, 3, in, SAVED, o.saved, &p, sizeof p);
  /* Last of all what cannot be undone: the running statistics. */
  if (st == TL_OK) st = batch_norm_kernel(&p, &o, momentum, eps, y);
  if (st == TL_OK && p.batch_stats) st = moved(running_mean, o.running_mean);
  if (st == TL_OK && p.batch_stats) st = moved(running_var, o.running_var);
  for (int i = 0; i < SAVED; i++) tl_tensor_free(o.saved[i]);
  tl_tensor_free(o.b);
  tl_tensor_free(o.running_mean);
  tl_tensor_free(o.running_var);
  return tl_give(st, y, out);
}

/* ---- layer, group and RMS norm: rows with statistics of their own ---- */

typedef struct row_payload {
  int64_t rows, groups, channels, inner;
  bool centre;
  int dtypes[3];
  int param_ndim; /* shape of weight and bias */
  int64_t param_shape[TL_MAX_DIMS];
} row_payload;

static tl_status row_norm_backward(tl_node *n, tl_tensor *const *grad_out, tl_tensor **grad_in) {
  const row_payload *p = n->payload;
  tl_tensor *s[SAVED], *g = NULL, *d[3] = {NULL};
  for (int i = 0; i < SAVED; i++) TL_TRY(tl_node_saved(n, i, &s[i]));
  TL_KERNEL(s[SAVED_X], row_norm_grad, n->cls->name);
  tl_status st = tl_plain(grad_out[0], s[SAVED_X]->dtype, &g);
  if (st == TL_OK) st = make_gradients(n, s[SAVED_X], p->param_ndim, p->param_shape, d);
  if (st == TL_OK) {
    tl_row_norm_grad_args a = {.rows = p->rows,
                               .groups = p->groups,
                               .channels = p->channels,
                               .inner = p->inner,
                               .g = g,
                               .x = s[SAVED_X],
                               .w = s[SAVED_W],
                               .mean = s[SAVED_MEAN],
                               .invstd = s[SAVED_INVSTD],
                               .dx = d[0],
                               .dw = d[1],
                               .db = d[2]};
    st = tl_kernels_of(g)->row_norm_grad(&a);
  }
  tl_tensor_free(g);
  return give_gradients(n, st, p->dtypes, d, grad_in);
}

static const tl_node_class layer_norm_class = {"layer_norm", row_norm_backward, NULL};
static const tl_node_class group_norm_class = {"group_norm", row_norm_backward, NULL};
static const tl_node_class rms_norm_class = {"rms_norm", row_norm_backward, NULL};

static tl_status row_norm(const tl_node_class *cls, row_payload *p, tl_tensor *x, tl_tensor *w, tl_tensor *b,
                          double eps, tl_tensor **out) {
  TL_AUTOCAST(TL_CAST_FULL, row_norm(cls, p, cast[0], cast[1], cast[2], eps, out), x, w, b);
  TL_KERNEL(x, row_norm, cls->name);
  TL_TRY(check_vector(cls->name, "weight", x, w, p->param_ndim, p->param_shape));
  TL_TRY(check_vector(cls->name, "bias", x, b, p->param_ndim, p->param_shape));
  int stats = tl_compute_dtype(x->dtype);
  p->dtypes[0] = x->dtype;
  p->dtypes[1] = w == NULL ? 0 : w->dtype;
  p->dtypes[2] = b == NULL ? 0 : b->dtype;
  tl_tensor *s[SAVED] = {NULL}, *bias = NULL, *y = NULL, *in[3] = {x, w, b};
  tl_status st = tl_plain(x, x->dtype, &s[SAVED_X]);
  if (st == TL_OK) st = tl_plain(w, stats, &s[SAVED_W]);
  if (st == TL_OK) st = tl_plain(b, stats, &bias);
  if (st == TL_OK && p->centre) st = tl_empty(1, &p->rows, stats, x->device, &s[SAVED_MEAN]);
  if (st == TL_OK) st = tl_empty(1, &p->rows, stats, x->device, &s[SAVED_INVSTD]);
  if (st == TL_OK) st = tl_empty_like(x, x->dtype, &y);
  if (st == TL_OK) {
    tl_row_norm_args a = {.rows = p->rows,
                          .groups = p->groups,
                          .channels = p->channels,
                          .inner = p->inner,
                          .x = s[SAVED_X],
                          .w = s[SAVED_W],
                          .b = bias,
                          .centre = p->centre,
                          .eps = eps,
                          .y = y,
                          .mean = s[SAVED_MEAN],
                          .invstd = s[SAVED_INVSTD]};
    st = tl_kernels_of(x)->row_norm(&a);
  }
  if (st == TL_OK) st = tl_record1(cls, y, 3, in, SAVED, s, p, sizeof *p);
  for (int i = 0; i < SAVED; i++) tl_tensor_free(s[i]);
  tl_tensor_free(bias);
  return tl_give(st, y, out);
}

/* x's last n dims must have this shape: they are the rows. */
static tl_status last_dims(const char *op, const tl_tensor *x, int n, const int64_t *shape, row_payload *p) {
  TL_TRY(tl_check_floating(op, x));
  if (n < 1) return TL_FAIL(TL_ERR_SHAPE, op, "the normalised shape has one dim at least");
  bool fits = n <= x->ndim;
  for (int d = 0; d < n && fits; d++) fits = x->shape[x->ndim - n + d] == shape[d];
  char text[TL_SHAPE_CHARS];
  if (!fits)
    return TL_FAIL(TL_ERR_SHAPE, op, "an input of %s does not end in the normalised shape %s", tl_shape_of(x),
                   tl_shape_text(n > TL_MAX_DIMS ? TL_MAX_DIMS : n, shape, text));
  p->rows = p->groups = p->channels = p->inner = 1;
  for (int d = 0; d < x->ndim - n; d++) p->rows *= x->shape[d];
  for (int d = 0; d < n; d++) p->channels *= p->param_shape[d] = shape[d];
  p->param_ndim = n;
  return TL_OK;
}

tl_status tl_layer_norm(tl_tensor *x, int n, const int64_t *shape, tl_tensor *w, tl_tensor *b, double eps,
                        tl_tensor **out) {
  row_payload p = {.centre = true};
  TL_TRY(last_dims("layer_norm", x, n, shape, &p));
  return row_norm(&layer_norm_class, &p, x, w, b, eps, out);
}

tl_status tl_rms_norm(tl_tensor *x, int n, const int64_t *shape, tl_tensor *w, double eps, tl_tensor **out) {
  row_payload p = {.centre = false};
  TL_TRY(last_dims("rms_norm", x, n, shape, &p));
  return row_norm(&rms_norm_class, &p, x, w, NULL, eps, out);
}

tl_status tl_group_norm(tl_tensor *x, int64_t groups, tl_tensor *w, tl_tensor *b, double eps, tl_tensor **out) {
  const char *op = "group_norm";
  TL_TRY(tl_check_floating(op, x));
  if (x->ndim < 2) return TL_FAIL(TL_ERR_SHAPE, op, "the input is (N, C, ..), got %s", tl_shape_of(x));
  if (groups < 1 || x->shape[1] % groups != 0)
    return TL_FAIL(TL_ERR_VALUE, op, "%lld groups do not divide the %lld channels of %s", (long long)groups,
                   (long long)x->shape[1], tl_shape_of(x));
  row_payload p = {.rows = x->shape[0] * groups,
                   .groups = groups,
                   .channels = x->shape[1] / groups,
                   .inner = 1,
                   .centre = true,
                   .param_ndim = 1,
                   .param_shape = {x->shape[1]}};
  for (int d = 2; d < x->ndim; d++) p.inner *= x->shape[d];
  return row_norm(&group_norm_class, &p, x, w, b, eps, out);
}
