/* cudnn_conv.c: cuDNN's convolutions (2-d and 3-d, grouped, dilated, strided, NCHW and NHWC): what is asked for, and
 * whether it can be. float32 with any math type but CUDNN_FMA_MATH may use the tensor cores: factors are rounded to TF32. */
#include <stdlib.h>
#include <string.h>

#include "cudnn_conv.h"

/* ---- a problem ---- */

int64_t sim_conv_length(int64_t in, int64_t window, int64_t pad, int64_t step, int64_t dilation) {
  int64_t span = in + 2 * pad - (dilation * (window - 1) + 1);
  return span < 0 ? 0 : span / step + 1;
}

static void read_tensor(const struct cudnnTensorStruct *t, int64_t *n, int64_t *c, int64_t *s) {
  *n = t->stride[0];
  *c = t->stride[1];
  for (int d = 0; d < t->nd - 2; d++) s[5 - t->nd + d] = t->stride[2 + d];
}

static void read_filter(const struct cudnnFilterStruct *f, problem *p) {
  int64_t taps = points(p->window), step = f->format == CUDNN_TENSOR_NHWC ? f->dim[1] : 1;
  for (int d = 2; d >= 0; d--) {
    p->ws[d] = step;
    step *= p->window[d];
  }
  p->wk = taps * f->dim[1];
  p->wc = f->format == CUDNN_TENSOR_NHWC ? 1 : taps;
}

static cudnnStatus_t read_layout(const struct cudnnTensorStruct *x, const struct cudnnFilterStruct *w,
                                 const struct cudnnTensorStruct *y, problem *p) {
  bool nhwc = sim_cudnn_is_packed(x, CUDNN_TENSOR_NHWC) && sim_cudnn_is_packed(y, CUDNN_TENSOR_NHWC);
  bool nchw = sim_cudnn_is_packed(x, CUDNN_TENSOR_NCHW) && sim_cudnn_is_packed(y, CUDNN_TENSOR_NCHW);
  if (w->format == CUDNN_TENSOR_NHWC && !nhwc)
    return SIM_CUDNN_REFUSE(CUDNN_STATUS_NOT_SUPPORTED, "an NHWC filter needs packed NHWC tensors");
  if (w->format == CUDNN_TENSOR_NCHW && nhwc && !nchw)
    return SIM_CUDNN_REFUSE(CUDNN_STATUS_NOT_SUPPORTED, "NHWC tensors need an NHWC filter");
  p->nhwc = w->format == CUDNN_TENSOR_NHWC;
  p->any_strides = !p->nhwc && !nchw;
  if (p->nhwc && p->type == SIM_F64)
    return SIM_CUDNN_REFUSE(CUDNN_STATUS_NOT_SUPPORTED, "no NHWC convolution of float64");
  return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t read_types(const struct cudnnTensorStruct *x, const struct cudnnFilterStruct *w,
                                const struct cudnnTensorStruct *y, const struct cudnnConvolutionStruct *conv,
                                problem *p) {
  if (x->type != w->type || x->type != y->type)
    return SIM_CUDNN_REFUSE(CUDNN_STATUS_BAD_PARAM, "types of x %d, filter %d, y %d", x->type, w->type, y->type);
  p->type = sim_cudnn_type(x->type);
  if (conv->compute != (p->type == SIM_F64 ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT))
    return SIM_CUDNN_REFUSE(CUDNN_STATUS_NOT_SUPPORTED, "compute type %d for data of type %d", conv->compute, x->type);
  p->tf32 = p->type == SIM_F32 && conv->math != CUDNN_FMA_MATH;
  p->flipped = conv->mode == CUDNN_CONVOLUTION;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t sim_conv_read(const struct cudnnTensorStruct *x, const struct cudnnFilterStruct *w,
                            const struct cudnnConvolutionStruct *conv, const struct cudnnTensorStruct *y, problem *p) {
  if (!sim_cudnn_is_tensor(x) || !sim_cudnn_is_filter(w) || !sim_object_is(conv, SIM_CUDNN_CONVOLUTION) ||
      !sim_cudnn_is_tensor(y) || conv->nd == 0)
    return SIM_CUDNN_REFUSE(CUDNN_STATUS_BAD_PARAM, "a descriptor does not live or is not set");
  if (x->nd != w->nd || x->nd != y->nd || x->nd != conv->nd + 2)
    return SIM_CUDNN_REFUSE(CUDNN_STATUS_BAD_PARAM, "dims of x %d, filter %d, y %d, convolution %d + 2", x->nd, w->nd,
                            y->nd, conv->nd);
  *p = (problem){.n = x->dim[0], .groups = conv->groups, .spatial = conv->nd};
  if (x->dim[1] != w->dim[1] * conv->groups || w->dim[0] % conv->groups != 0)
    return SIM_CUDNN_REFUSE(CUDNN_STATUS_BAD_PARAM, "%d channels, %d filters of %d channels, %d groups", x->dim[1],
                            w->dim[0], w->dim[1], conv->groups);
  if (y->dim[0] != x->dim[0] || y->dim[1] != w->dim[0])
    return SIM_CUDNN_REFUSE(CUDNN_STATUS_BAD_PARAM, "y has %d images of %d channels, not %d of %d", y->dim[0],
                            y->dim[1], x->dim[0], w->dim[0]);
  p->c = w->dim[1];
  p->k = w->dim[0] / conv->groups;
  for (int d = 0; d < 3; d++) {
    int own = d - (3 - conv->nd); /* the descriptor's dim, < 0: there is none */
    p->in[d] = own < 0 ? 1 : x->dim[2 + own];
    p->out[d] = own < 0 ? 1 : y->dim[2 + own];
    p->window[d] = own < 0 ? 1 : w->dim[2 + own];
    p->pad[d] = own < 0 ? 0 : conv->pad[own];
    p->step[d] = own < 0 ? 1 : conv->step[own];
    p->dilation[d] = own < 0 ? 1 : conv->dilation[own];
    int64_t length = sim_conv_length(p->in[d], p->window[d], p->pad[d], p->step[d], p->dilation[d]);
    if (p->out[d] != length)
      return SIM_CUDNN_REFUSE(CUDNN_STATUS_BAD_PARAM, "spatial dim %d of y is %lld, not %lld", own,
                              (long long)p->out[d], (long long)length);
  }
  cudnnStatus_t s = read_types(x, w, y, conv, p);
  if (s == CUDNN_STATUS_SUCCESS) s = read_layout(x, w, y, p);
  read_tensor(x, &p->xn, &p->xc, p->xs);
  read_tensor(y, &p->yn, &p->yc, p->ys);
  read_filter(w, p);
  p->x_bytes = sim_cudnn_bytes(x);
  p->y_bytes = sim_cudnn_bytes(y);
  p->w_bytes = (size_t)(p->groups * p->k * p->wk) * sim_type_size(p->type);
  return s;
}

/* ---- calls ---- */

cudnnStatus_t sim_conv_enqueue(cudnnHandle_t handle, const char *name, task *t, const way *w, size_t workspace_given) {
  const problem *p = &t->p;
  t->deterministic = w->deterministic;
  t->workspace_bytes = sim_conv_workspace(w, p);
  if (workspace_given > 0 && t->workspace == NULL)
    return SIM_CUDNN_REFUSE(CUDNN_STATUS_BAD_PARAM, "%s: a workspace of %zu bytes at NULL", name, workspace_given);
  if (workspace_given < t->workspace_bytes)
    return SIM_CUDNN_REFUSE(CUDNN_STATUS_BAD_PARAM, "%s: algorithm %d needs a workspace of %zu bytes, not %zu", name,
                            w->algo, t->workspace_bytes, workspace_given);
  if (t->workspace_bytes > 0 && (uintptr_t)t->workspace % 16 != 0)
    return SIM_CUDNN_REFUSE(CUDNN_STATUS_BAD_PARAM, "%s: the workspace is not 16-byte aligned", name);
  size_t to_bytes = t->direction == FORWARD ? p->y_bytes : t->direction == DATA ? p->x_bytes : p->w_bytes;
  sim_ranges r = {0};
  sim_ranges_add(&r, t->x, p->x_bytes, 0);
  sim_ranges_add(&r, t->w, p->w_bytes, 0);
  sim_ranges_add(&r, t->y, p->y_bytes, 0);
  sim_ranges_add(&r, t->bias, (size_t)(p->k * p->groups) * sim_type_size(p->type), 0);
  sim_ranges_add(&r, t->z, p->y_bytes, 0);
  if (t->beta != 0) sim_ranges_add(&r, t->to, to_bytes, 0);
  sim_ranges_add(&r, t->to, to_bytes, 1);
  sim_ranges_add(&r, t->workspace, t->workspace_bytes, 1);
  if (t->to == t->x || t->to == t->y || t->to == t->w) {
    sim_fault("overlap", "%s: the result is an operand", name);
    return CUDNN_STATUS_BAD_PARAM;
  }
  return sim_cudnn_enqueue(handle, name, sim_conv_run, t, sizeof *t, &r);
}

bool sim_conv_any_null(int count, const void *const *p) {
  for (int i = 0; i < count; i++)
    if (p[i] == NULL) return true;
  return false;
}

cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t handle, const void *alpha, const cudnnTensorDescriptor_t x_desc,
                                      const void *x, const cudnnFilterDescriptor_t w_desc, const void *w,
                                      const cudnnConvolutionDescriptor_t conv, cudnnConvolutionFwdAlgo_t algo,
                                      void *workspace, size_t workspace_bytes, const void *beta,
                                      const cudnnTensorDescriptor_t y_desc, void *y) {
  task t = {.direction = FORWARD, .x = x, .w = w, .to = y, .workspace = workspace};
  const way *found = NULL;
  cudnnStatus_t s = sim_cudnn_begin(handle, __func__);
  if (s == CUDNN_STATUS_SUCCESS && ANY_NULL(alpha, beta, x, w, y))
    s = SIM_CUDNN_REFUSE(CUDNN_STATUS_BAD_PARAM, "an argument is NULL");
  if (s == CUDNN_STATUS_SUCCESS) s = sim_conv_read(x_desc, w_desc, conv, y_desc, &t.p);
  if (s == CUDNN_STATUS_SUCCESS) s = sim_conv_find(FORWARD, &t.p, (int)algo, &found);
  if (s != CUDNN_STATUS_SUCCESS) return s;
  t.alpha = sim_cudnn_scalar(t.p.type, alpha);
  t.beta = sim_cudnn_scalar(t.p.type, beta);
  return sim_conv_enqueue(handle, __func__, &t, found, workspace_bytes);
}

cudnnStatus_t cudnnConvolutionBiasActivationForward(
    cudnnHandle_t handle, const void *alpha1, const cudnnTensorDescriptor_t x_desc, const void *x,
    const cudnnFilterDescriptor_t w_desc, const void *w, const cudnnConvolutionDescriptor_t conv,
    cudnnConvolutionFwdAlgo_t algo, void *workspace, size_t workspace_bytes, const void *alpha2,
    const cudnnTensorDescriptor_t z_desc, const void *z, const cudnnTensorDescriptor_t bias_desc, const void *bias,
    const cudnnActivationDescriptor_t activation, const cudnnTensorDescriptor_t y_desc, void *y) {
  task t = {.direction = FORWARD, .x = x, .w = w, .to = y, .workspace = workspace, .bias = bias};
  const way *found = NULL;
  cudnnStatus_t s = sim_cudnn_begin(handle, __func__);
  if (s == CUDNN_STATUS_SUCCESS && ANY_NULL(alpha1, alpha2, x, w, z, bias, y))
    s = SIM_CUDNN_REFUSE(CUDNN_STATUS_BAD_PARAM, "an argument is NULL");
  if (s == CUDNN_STATUS_SUCCESS) s = sim_conv_read(x_desc, w_desc, conv, y_desc, &t.p);
  if (s == CUDNN_STATUS_SUCCESS) s = sim_conv_find(FORWARD, &t.p, (int)algo, &found);
  if (s != CUDNN_STATUS_SUCCESS) return s;
  if (!sim_object_is(activation, SIM_CUDNN_ACTIVATION) || !activation->set || !sim_cudnn_is_tensor(z_desc) ||
      !sim_cudnn_is_tensor(bias_desc))
    return SIM_CUDNN_REFUSE(CUDNN_STATUS_BAD_PARAM, "a descriptor does not live or is not set");
  if (activation->mode == CUDNN_ACTIVATION_IDENTITY && algo != CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM)
    return SIM_CUDNN_REFUSE(CUDNN_STATUS_NOT_SUPPORTED, "without an activation it takes IMPLICIT_PRECOMP_GEMM only");
  if (z_desc->type != y_desc->type || !sim_cudnn_same_dims(z_desc, y_desc) ||
      memcmp(z_desc->stride, y_desc->stride, (size_t)y_desc->nd * sizeof(int)) != 0)
    return SIM_CUDNN_REFUSE(CUDNN_STATUS_NOT_SUPPORTED, "z is described like y");
  size_t ones = 1;
  for (int d = 0; d < bias_desc->nd; d++) ones *= d == 1 ? 1 : (size_t)bias_desc->dim[d];
  if (bias_desc->type != y_desc->type || bias_desc->nd != y_desc->nd || bias_desc->dim[1] != y_desc->dim[1] ||
      ones != 1 || (bias_desc->dim[1] > 1 && bias_desc->stride[1] != 1))
    return SIM_CUDNN_REFUSE(CUDNN_STATUS_NOT_SUPPORTED, "the bias is (1, %d, 1, ...) of y's type", y_desc->dim[1]);
  if (y == z) return SIM_CUDNN_REFUSE(CUDNN_STATUS_NOT_SUPPORTED, "z in y's memory is not modelled");
  t.alpha = sim_cudnn_scalar(t.p.type, alpha1);
  t.alpha_z = sim_cudnn_scalar(t.p.type, alpha2);
  t.z = t.alpha_z == 0 ? NULL : z;
  t.relu = activation->mode == CUDNN_ACTIVATION_RELU;
  t.zn = t.p.yn, t.zc = t.p.yc;
  memcpy(t.zs, t.p.ys, sizeof t.zs);
  return sim_conv_enqueue(handle, __func__, &t, found, workspace_bytes);
}

cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t handle, const void *alpha,
                                           const cudnnFilterDescriptor_t w_desc, const void *w,
                                           const cudnnTensorDescriptor_t dy_desc, const void *dy,
                                           const cudnnConvolutionDescriptor_t conv, cudnnConvolutionBwdDataAlgo_t algo,
                                           void *workspace, size_t workspace_bytes, const void *beta,
                                           const cudnnTensorDescriptor_t dx_desc, void *dx) {
  task t = {.direction = DATA, .w = w, .y = dy, .to = dx, .workspace = workspace};
  const way *found = NULL;
  cudnnStatus_t s = sim_cudnn_begin(handle, __func__);
  if (s == CUDNN_STATUS_SUCCESS && ANY_NULL(alpha, beta, w, dy, dx))
    s = SIM_CUDNN_REFUSE(CUDNN_STATUS_BAD_PARAM, "an argument is NULL");
  if (s == CUDNN_STATUS_SUCCESS) s = sim_conv_read(dx_desc, w_desc, conv, dy_desc, &t.p);
  if (s == CUDNN_STATUS_SUCCESS) s = sim_conv_find(DATA, &t.p, (int)algo, &found);
  if (s != CUDNN_STATUS_SUCCESS) return s;
  t.alpha = sim_cudnn_scalar(t.p.type, alpha);
  t.beta = sim_cudnn_scalar(t.p.type, beta);
  return sim_conv_enqueue(handle, __func__, &t, found, workspace_bytes);
}

cudnnStatus_t cudnnConvolutionBackwardFilter(cudnnHandle_t handle, const void *alpha,
                                             const cudnnTensorDescriptor_t x_desc, const void *x,
                                             const cudnnTensorDescriptor_t dy_desc, const void *dy,
                                             const cudnnConvolutionDescriptor_t conv,
                                             cudnnConvolutionBwdFilterAlgo_t algo, void *workspace,
                                             size_t workspace_bytes, const void *beta,
                                             const cudnnFilterDescriptor_t dw_desc, void *dw) {
  task t = {.direction = FILTER, .x = x, .y = dy, .to = dw, .workspace = workspace};
  const way *found = NULL;
  cudnnStatus_t s = sim_cudnn_begin(handle, __func__);
  if (s == CUDNN_STATUS_SUCCESS && ANY_NULL(alpha, beta, x, dy, dw))
    s = SIM_CUDNN_REFUSE(CUDNN_STATUS_BAD_PARAM, "an argument is NULL");
  if (s == CUDNN_STATUS_SUCCESS) s = sim_conv_read(x_desc, dw_desc, conv, dy_desc, &t.p);
  if (s == CUDNN_STATUS_SUCCESS) s = sim_conv_find(FILTER, &t.p, (int)algo, &found);
  if (s != CUDNN_STATUS_SUCCESS) return s;
  t.alpha = sim_cudnn_scalar(t.p.type, alpha);
  t.beta = sim_cudnn_scalar(t.p.type, beta);
  return sim_conv_enqueue(handle, __func__, &t, found, workspace_bytes);
}

/* ---- bias ---- */

typedef struct bias_task {
  struct cudnnTensorStruct dy;
  int64_t db_stride;
  const void *from;
  void *to;
  double alpha, beta;
} bias_task;

static void run_bias(void *data, int device) {
  (void)device;
  const bias_task *t = data;
  const struct cudnnTensorStruct *dy = &t->dy;
  int64_t dim[3] = {1, 1, 1}, stride[3] = {0, 0, 0};
  sim_type type = sim_cudnn_type(dy->type);
  for (int d = 2; d < dy->nd; d++) {
    dim[5 - dy->nd + d - 2] = dy->dim[d];
    stride[5 - dy->nd + d - 2] = dy->stride[d];
  }
  double *row = sim_scratch((size_t)dim[2], sizeof *row);
  for (int64_t k = 0; k < dy->dim[1]; k++) {
    double sum = 0;
    for (int64_t n = 0; n < dy->dim[0]; n++)
      for (int64_t d = 0; d < dim[0]; d++)
        for (int64_t h = 0; h < dim[1]; h++) {
          sim_unpack(type, t->from, n * dy->stride[0] + k * dy->stride[1] + d * stride[0] + h * stride[1], dim[2],
                     stride[2], row);
          for (int64_t w = 0; w < dim[2]; w++) sum += row[w];
        }
    sim_blend(type, t->to, k * t->db_stride, 1, 1, t->alpha, &sum, t->beta);
  }
  free(row);
}

cudnnStatus_t cudnnConvolutionBackwardBias(cudnnHandle_t handle, const void *alpha,
                                           const cudnnTensorDescriptor_t dy_desc, const void *dy, const void *beta,
                                           const cudnnTensorDescriptor_t db_desc, void *db) {
  cudnnStatus_t s = sim_cudnn_begin(handle, __func__);
  if (s != CUDNN_STATUS_SUCCESS) return s;
  if (ANY_NULL(alpha, beta, dy, db) || !sim_cudnn_is_tensor(dy_desc) || !sim_cudnn_is_tensor(db_desc))
    return SIM_CUDNN_REFUSE(CUDNN_STATUS_BAD_PARAM, "an argument is NULL, or a descriptor is not set");
  if (dy_desc->nd > 5) return SIM_CUDNN_REFUSE(CUDNN_STATUS_NOT_SUPPORTED, "%d dims", dy_desc->nd);
  if (dy_desc->type != db_desc->type || dy_desc->nd != db_desc->nd)
    return SIM_CUDNN_REFUSE(CUDNN_STATUS_BAD_PARAM, "dy and db are of one type and as many dims");
  for (int d = 0; d < db_desc->nd; d++)
    if (db_desc->dim[d] != (d == 1 ? dy_desc->dim[1] : 1))
      return SIM_CUDNN_REFUSE(CUDNN_STATUS_BAD_PARAM, "db is (1, %d, 1, ...)", dy_desc->dim[1]);
  sim_type type = sim_cudnn_type(dy_desc->type);
  bias_task t = {.dy = *dy_desc, .db_stride = db_desc->stride[1], .from = dy, .to = db};
  t.alpha = sim_cudnn_scalar(type, alpha);
  t.beta = sim_cudnn_scalar(type, beta);
  sim_ranges r = {0};
  sim_ranges_add(&r, dy, sim_cudnn_bytes(dy_desc), 0);
  if (t.beta != 0) sim_ranges_add(&r, db, sim_cudnn_bytes(db_desc), 0);
  sim_ranges_add(&r, db, sim_cudnn_bytes(db_desc), 1);
  return sim_cudnn_enqueue(handle, __func__, run_bias, &t, sizeof t, &r);
}
