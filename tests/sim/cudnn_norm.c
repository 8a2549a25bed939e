/* cudnn_norm.c: cuDNN's batch normalization, 4-d and 5-d, per channel (spatial) or per activation: statistics in float64,
 * results rounded to float32 and then to the tensor's type. Scale, bias and statistics are float32, or float64 for
 * float64 data. The fused activations of the ...Ex calls are not modelled. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cudnn_descriptors.h"

/* The elements that share statistics: `units` of them (channels, or channels x points). */
typedef struct problem {
  sim_type type, param_type;
  bool per_activation;
  int64_t n, c, points[3]; /* (depth, height, width) */
  struct cudnnTensorStruct x, y, dx;
  int64_t param_stride[5]; /* of scale, bias and statistics, aligned to the right: (1, C, depth, height, width) */
  size_t param_bytes;
  double epsilon;
} problem;

static void right_aligned(const struct cudnnTensorStruct *t, int64_t *dim, int64_t *stride) {
  for (int d = 0; d < 3; d++) {
    int own = d + t->nd - 3;
    dim[d] = own < 2 ? 1 : t->dim[own];
    stride[d] = own < 2 ? 0 : t->stride[own];
  }
}

static cudnnStatus_t check_mode(cudnnBatchNormMode_t mode) {
  if (mode == CUDNN_BATCHNORM_PER_ACTIVATION || mode == CUDNN_BATCHNORM_SPATIAL ||
      mode == CUDNN_BATCHNORM_SPATIAL_PERSISTENT)
    return CUDNN_STATUS_SUCCESS;
  return SIM_CUDNN_REFUSE(CUDNN_STATUS_BAD_PARAM, "mode %d", mode);
}

static cudnnStatus_t read_problem(cudnnBatchNormMode_t mode, const struct cudnnTensorStruct *x,
                                  const struct cudnnTensorStruct *y, const struct cudnnTensorStruct *dx,
                                  const struct cudnnTensorStruct *params, double epsilon, problem *p) {
  cudnnStatus_t s = check_mode(mode);
  if (s != CUDNN_STATUS_SUCCESS) return s;
  if (!sim_cudnn_is_tensor(x) || !sim_cudnn_is_tensor(y) || !sim_cudnn_is_tensor(dx) || !sim_cudnn_is_tensor(params))
    return SIM_CUDNN_REFUSE(CUDNN_STATUS_BAD_PARAM, "a descriptor does not live or is not set");
  if (x->nd != 4 && x->nd != 5)
    return SIM_CUDNN_REFUSE(CUDNN_STATUS_NOT_SUPPORTED, "%d dims: 4 and 5 are supported", x->nd);
  if (!sim_cudnn_same_dims(x, y) || !sim_cudnn_same_dims(x, dx) || x->type != y->type || x->type != dx->type)
    return SIM_CUDNN_REFUSE(CUDNN_STATUS_BAD_PARAM, "the data tensors differ in dims or type");
  *p = (problem){.type = sim_cudnn_type(x->type), .x = *x, .y = *y, .dx = *dx, .epsilon = epsilon};
  p->per_activation = mode == CUDNN_BATCHNORM_PER_ACTIVATION;
  p->param_type = p->type == SIM_F64 ? SIM_F64 : SIM_F32;
  p->n = x->dim[0];
  p->c = x->dim[1];
  if (p->n > (p->per_activation ? 65535 : 880801))
    return SIM_CUDNN_REFUSE(CUDNN_STATUS_NOT_SUPPORTED, "%lld images are too many", (long long)p->n);
  if (sim_cudnn_type(params->type) != p->param_type)
    return SIM_CUDNN_REFUSE(CUDNN_STATUS_BAD_PARAM,
                            "scale, bias and statistics are float32, or float64 for float64 data");
  if (params->nd != x->nd) return SIM_CUDNN_REFUSE(CUDNN_STATUS_BAD_PARAM, "%d dims of the parameters", params->nd);
  for (int d = 0; d < x->nd; d++)
    if (params->dim[d] != (d == 1 || (d > 1 && p->per_activation) ? x->dim[d] : 1))
      return SIM_CUDNN_REFUSE(CUDNN_STATUS_BAD_PARAM, "dim %d of the parameters is %d", d, params->dim[d]);
  if (!(epsilon >= CUDNN_BN_MIN_EPSILON)) return SIM_CUDNN_REFUSE(CUDNN_STATUS_BAD_PARAM, "epsilon %g", epsilon);
  int64_t dim[3];
  right_aligned(params, dim, p->param_stride + 2);
  p->param_stride[1] = params->stride[1];
  p->param_bytes = sim_cudnn_bytes(params);
  right_aligned(x, p->points, (int64_t[3]){0});
  return CUDNN_STATUS_SUCCESS;
}

/* ---- one unit: a channel, or one place of it ---- */

typedef struct unit {
  int64_t c, from[3], to[3]; /* places [from, to) */
  int64_t param;
} unit;

static int64_t unit_count(const problem *p) {
  return p->c * (p->per_activation ? p->points[0] * p->points[1] * p->points[2] : 1);
}

static unit unit_at(const problem *p, int64_t i) {
  unit u = {.to = {p->points[0], p->points[1], p->points[2]}};
  u.c = i;
  for (int d = 2; p->per_activation && d >= 0; d--) {
    u.from[d] = u.c % p->points[d];
    u.to[d] = u.from[d] + 1;
    u.c /= p->points[d];
    u.param += u.from[d] * p->param_stride[2 + d];
  }
  u.param += u.c * p->param_stride[1];
  return u;
}

static int64_t unit_size(const problem *p, const unit *u) {
  int64_t size = p->n;
  for (int d = 0; d < 3; d++) size *= u->to[d] - u->from[d];
  return size;
}

/* How a unit's elements lie in a tensor, row by row of the last dim. */
typedef struct walk {
  const unit *u;
  int64_t n, at[2], image, c, stride[3];
} walk;

static walk walk_of(const struct cudnnTensorStruct *t, const unit *u) {
  walk w = {.u = u, .at = {u->from[0], u->from[1]}, .image = t->stride[0], .c = t->stride[1]};
  int64_t dim[3];
  right_aligned(t, dim, w.stride);
  return w;
}

static int64_t row_of(const walk *w) {
  return w->n * w->image + w->u->c * w->c + w->at[0] * w->stride[0] + w->at[1] * w->stride[1] +
         w->u->from[2] * w->stride[2];
}

static void next_row(walk *w) {
  if (++w->at[1] < w->u->to[1]) return;
  w->at[1] = w->u->from[1];
  if (++w->at[0] < w->u->to[0]) return;
  w->at[0] = w->u->from[0];
  w->n++;
}

static void load_unit(const problem *p, const struct cudnnTensorStruct *t, const unit *u, const void *base,
                      double *out) {
  int64_t width = u->to[2] - u->from[2];
  walk w = walk_of(t, u);
  for (; w.n < p->n; next_row(&w), out += width) sim_unpack(p->type, base, row_of(&w), width, w.stride[2], out);
}

static void store_unit(const problem *p, const struct cudnnTensorStruct *t, const unit *u, void *base, double alpha,
                       const double *from, double beta) {
  int64_t width = u->to[2] - u->from[2];
  walk w = walk_of(t, u);
  for (; w.n < p->n; next_row(&w), from += width)
    sim_blend(p->type, base, row_of(&w), width, w.stride[2], alpha, from, beta);
}

static void moments(const double *x, int64_t n, double *mean, double *variance) {
  double sum = 0, squares = 0;
  for (int64_t i = 0; i < n; i++) sum += x[i];
  *mean = sum / (double)n;
  for (int64_t i = 0; i < n; i++) squares += (x[i] - *mean) * (x[i] - *mean);
  *variance = squares / (double)n;
}

/* ---- forward ---- */

typedef struct forward_task {
  problem p;
  bool training;
  const void *x, *scale, *bias, *mean, *variance; /* mean, variance: inference */
  void *y, *running_mean, *running_variance, *save_mean, *save_invstd, *workspace;
  size_t workspace_bytes;
  double alpha, beta, factor;
} forward_task;

static void blend_running(const forward_task *t, void *running, int64_t at, double now) {
  double old = t->factor == 1 ? 0 : sim_load(t->p.param_type, running, at); /* factor 1 does not read */
  sim_store(t->p.param_type, running, at, t->factor * now + (1 - t->factor) * old);
}

static void run_forward(void *data, int device) {
  (void)device;
  const forward_task *t = data;
  const problem *p = &t->p;
  double *x = NULL;
  if (t->workspace_bytes > 0) memset(t->workspace, 0xff, t->workspace_bytes);
  for (int64_t i = 0; i < unit_count(p); i++) {
    unit u = unit_at(p, i);
    int64_t n = unit_size(p, &u);
    if (x == NULL) x = sim_scratch((size_t)n, sizeof *x);
    load_unit(p, &p->x, &u, t->x, x);
    double mean, variance;
    if (t->training) {
      moments(x, n, &mean, &variance);
      if (t->running_mean != NULL) blend_running(t, t->running_mean, u.param, mean);
      if (t->running_variance != NULL)
        blend_running(t, t->running_variance, u.param, variance * (double)n / (double)(n - 1));
    } else {
      mean = sim_load(p->param_type, t->mean, u.param);
      variance = sim_load(p->param_type, t->variance, u.param);
    }
    double invstd = 1 / sqrt(variance + p->epsilon);
    if (t->save_mean != NULL) sim_store(p->param_type, t->save_mean, u.param, mean);
    if (t->save_invstd != NULL) sim_store(p->param_type, t->save_invstd, u.param, invstd);
    double scale = sim_load(p->param_type, t->scale, u.param) * invstd,
           bias = sim_load(p->param_type, t->bias, u.param);
    for (int64_t j = 0; j < n; j++) x[j] = (x[j] - mean) * scale + bias;
    store_unit(p, &p->y, &u, t->y, t->alpha, x, t->beta);
  }
  free(x);
}

static cudnnStatus_t enqueue_forward(cudnnHandle_t handle, const char *name, const forward_task *t) {
  const problem *p = &t->p;
  sim_ranges r = {0};
  sim_ranges_add(&r, t->x, sim_cudnn_bytes(&p->x), 0);
  const void *read[] = {t->scale, t->bias, t->mean, t->variance};
  for (int i = 0; i < 4; i++) sim_ranges_add(&r, read[i], p->param_bytes, 0);
  if (t->factor != 1) {
    sim_ranges_add(&r, t->running_mean, p->param_bytes, 0);
    sim_ranges_add(&r, t->running_variance, p->param_bytes, 0);
  }
  void *written[] = {t->running_mean, t->running_variance, t->save_mean, t->save_invstd};
  for (int i = 0; i < 4; i++) sim_ranges_add(&r, written[i], p->param_bytes, 1);
  if (t->beta != 0) sim_ranges_add(&r, t->y, sim_cudnn_bytes(&p->y), 0);
  sim_ranges_add(&r, t->y, sim_cudnn_bytes(&p->y), 1);
  sim_ranges_add(&r, t->workspace, t->workspace_bytes, 1);
  return sim_cudnn_enqueue(handle, name, run_forward, t, sizeof *t, &r);
}

cudnnStatus_t cudnnBatchNormalizationForwardInference(cudnnHandle_t handle, cudnnBatchNormMode_t mode,
                                                      const void *alpha, const void *beta,
                                                      const cudnnTensorDescriptor_t x_desc, const void *x,
                                                      const cudnnTensorDescriptor_t y_desc, void *y,
                                                      const cudnnTensorDescriptor_t params, const void *scale,
                                                      const void *bias, const void *mean, const void *variance,
                                                      double epsilon) {
  forward_task t = {.x = x, .scale = scale, .bias = bias, .mean = mean, .variance = variance, .y = y, .factor = 1};
  cudnnStatus_t s = sim_cudnn_begin(handle, __func__);
  if (s != CUDNN_STATUS_SUCCESS) return s;
  if (alpha == NULL || beta == NULL || x == NULL || y == NULL || scale == NULL || bias == NULL || mean == NULL ||
      variance == NULL)
    return SIM_CUDNN_REFUSE(CUDNN_STATUS_BAD_PARAM, "an argument is NULL");
  s = read_problem(mode, x_desc, y_desc, x_desc, params, epsilon, &t.p);
  if (s != CUDNN_STATUS_SUCCESS) return s;
  t.alpha = sim_cudnn_scalar(t.p.type, alpha);
  t.beta = sim_cudnn_scalar(t.p.type, beta);
  return enqueue_forward(handle, __func__, &t);
}

static cudnnStatus_t train(cudnnHandle_t handle, const char *name, cudnnBatchNormMode_t mode, const void *alpha,
                           const void *beta, const cudnnTensorDescriptor_t x_desc, const cudnnTensorDescriptor_t y_desc,
                           const cudnnTensorDescriptor_t params, double epsilon, forward_task *t) {
  if (alpha == NULL || beta == NULL || t->x == NULL || t->y == NULL || t->scale == NULL || t->bias == NULL)
    return SIM_CUDNN_REFUSE(CUDNN_STATUS_BAD_PARAM, "%s: an argument is NULL", name);
  cudnnStatus_t s = read_problem(mode, x_desc, y_desc, x_desc, params, epsilon, &t->p);
  if (s != CUDNN_STATUS_SUCCESS) return s;
  if ((t->save_mean == NULL) != (t->save_invstd == NULL) || (t->running_mean == NULL) != (t->running_variance == NULL))
    return SIM_CUDNN_REFUSE(CUDNN_STATUS_BAD_PARAM, "%s: of a mean and its variance both are given, or none", name);
  unit u = unit_at(&t->p, 0);
  if (unit_size(&t->p, &u) == 1)
    return SIM_CUDNN_REFUSE(CUDNN_STATUS_NOT_SUPPORTED, "%s: one element has no variance", name);
  t->training = true;
  t->alpha = sim_cudnn_scalar(t->p.type, alpha);
  t->beta = sim_cudnn_scalar(t->p.type, beta);
  return enqueue_forward(handle, name, t);
}

cudnnStatus_t cudnnBatchNormalizationForwardTraining(cudnnHandle_t handle, cudnnBatchNormMode_t mode, const void *alpha,
                                                     const void *beta, const cudnnTensorDescriptor_t x_desc,
                                                     const void *x, const cudnnTensorDescriptor_t y_desc, void *y,
                                                     const cudnnTensorDescriptor_t params, const void *scale,
                                                     const void *bias, double factor, void *running_mean,
                                                     void *running_variance, double epsilon, void *save_mean,
                                                     void *save_invstd) {
  forward_task t = {.x = x, .scale = scale, .bias = bias, .y = y, .factor = factor};
  t.running_mean = running_mean, t.running_variance = running_variance;
  t.save_mean = save_mean, t.save_invstd = save_invstd;
  cudnnStatus_t s = sim_cudnn_begin(handle, __func__);
  return s != CUDNN_STATUS_SUCCESS ? s
                                   : train(handle, __func__, mode, alpha, beta, x_desc, y_desc, params, epsilon, &t);
}

/* ---- backward ---- */

typedef struct backward_task {
  problem p;
  const void *x, *dy, *scale, *save_mean, *save_invstd;
  void *dx, *dscale, *dbias, *workspace;
  size_t workspace_bytes;
  double alpha_data, beta_data, alpha_param, beta_param;
} backward_task;

static void run_backward(void *data, int device) {
  (void)device;
  const backward_task *t = data;
  const problem *p = &t->p;
  double *x = NULL, *dy = NULL;
  if (t->workspace_bytes > 0) memset(t->workspace, 0xff, t->workspace_bytes);
  for (int64_t i = 0; i < unit_count(p); i++) {
    unit u = unit_at(p, i);
    int64_t n = unit_size(p, &u);
    if (x == NULL) {
      x = sim_scratch((size_t)n, sizeof *x);
      dy = sim_scratch((size_t)n, sizeof *dy);
    }
    load_unit(p, &p->x, &u, t->x, x);
    load_unit(p, &p->y, &u, t->dy, dy);
    double mean, invstd, sum = 0, product = 0;
    if (t->save_mean != NULL) {
      mean = sim_load(p->param_type, t->save_mean, u.param);
      invstd = sim_load(p->param_type, t->save_invstd, u.param);
    } else {
      moments(x, n, &mean, &invstd);
      invstd = 1 / sqrt(invstd + p->epsilon);
    }
    for (int64_t j = 0; j < n; j++) {
      x[j] = (x[j] - mean) * invstd;
      sum += dy[j];
      product += dy[j] * x[j];
    }
    double scale = sim_load(p->param_type, t->scale, u.param) * invstd;
    for (int64_t j = 0; j < n; j++) dy[j] = scale * (dy[j] - (sum + x[j] * product) / (double)n);
    store_unit(p, &p->dx, &u, t->dx, t->alpha_data, dy, t->beta_data);
    sim_blend(p->param_type, t->dscale, u.param, 1, 1, t->alpha_param, &product, t->beta_param);
    sim_blend(p->param_type, t->dbias, u.param, 1, 1, t->alpha_param, &sum, t->beta_param);
  }
  free(dy);
  free(x);
}

static cudnnStatus_t go_back(cudnnHandle_t handle, const char *name, cudnnBatchNormMode_t mode, const void *alpha_data,
                             const void *beta_data, const void *alpha_param, const void *beta_param,
                             const cudnnTensorDescriptor_t x_desc, const cudnnTensorDescriptor_t dy_desc,
                             const cudnnTensorDescriptor_t dx_desc, const cudnnTensorDescriptor_t params,
                             double epsilon, backward_task *t) {
  if (alpha_data == NULL || beta_data == NULL || alpha_param == NULL || beta_param == NULL || t->x == NULL ||
      t->dy == NULL || t->dx == NULL || t->scale == NULL || t->dscale == NULL || t->dbias == NULL)
    return SIM_CUDNN_REFUSE(CUDNN_STATUS_BAD_PARAM, "%s: an argument is NULL", name);
  if ((t->save_mean == NULL) != (t->save_invstd == NULL))
    return SIM_CUDNN_REFUSE(CUDNN_STATUS_BAD_PARAM, "%s: of a saved mean and variance both are given, or none", name);
  cudnnStatus_t s = read_problem(mode, x_desc, dy_desc, dx_desc, params, epsilon, &t->p);
  if (s != CUDNN_STATUS_SUCCESS) return s;
  const problem *p = &t->p;
  t->alpha_data = sim_cudnn_scalar(p->type, alpha_data), t->beta_data = sim_cudnn_scalar(p->type, beta_data);
  t->alpha_param = sim_cudnn_scalar(p->type, alpha_param), t->beta_param = sim_cudnn_scalar(p->type, beta_param);
  sim_ranges r = {0};
  sim_ranges_add(&r, t->x, sim_cudnn_bytes(&p->x), 0);
  sim_ranges_add(&r, t->dy, sim_cudnn_bytes(&p->y), 0);
  const void *read[] = {t->scale, t->save_mean, t->save_invstd};
  for (int i = 0; i < 3; i++) sim_ranges_add(&r, read[i], p->param_bytes, 0);
  void *params_out[] = {t->dscale, t->dbias};
  for (int i = 0; i < 2; i++) {
    if (t->beta_param != 0) sim_ranges_add(&r, params_out[i], p->param_bytes, 0);
    sim_ranges_add(&r, params_out[i], p->param_bytes, 1);
  }
  if (t->beta_data != 0) sim_ranges_add(&r, t->dx, sim_cudnn_bytes(&p->dx), 0);
  sim_ranges_add(&r, t->dx, sim_cudnn_bytes(&p->dx), 1);
  sim_ranges_add(&r, t->workspace, t->workspace_bytes, 1);
  return sim_cudnn_enqueue(handle, name, run_backward, t, sizeof *t, &r);
}

cudnnStatus_t cudnnBatchNormalizationBackward(cudnnHandle_t handle, cudnnBatchNormMode_t mode, const void *alpha_data,
                                              const void *beta_data, const void *alpha_param, const void *beta_param,
                                              const cudnnTensorDescriptor_t x_desc, const void *x,
                                              const cudnnTensorDescriptor_t dy_desc, const void *dy,
                                              const cudnnTensorDescriptor_t dx_desc, void *dx,
                                              const cudnnTensorDescriptor_t params, const void *scale, void *dscale,
                                              void *dbias, double epsilon, const void *save_mean,
                                              const void *save_invstd) {
  backward_task t = {.x = x, .dy = dy, .dx = dx, .scale = scale, .dscale = dscale, .dbias = dbias};
  t.save_mean = save_mean, t.save_invstd = save_invstd;
  cudnnStatus_t s = sim_cudnn_begin(handle, __func__);
  if (s != CUDNN_STATUS_SUCCESS) return s;
  return go_back(handle, __func__, mode, alpha_data, beta_data, alpha_param, beta_param, x_desc, dy_desc, dx_desc,
                 params, epsilon, &t);
}

/* ---- the ...Ex calls: with a workspace, and memory that the backward pass needs again ---- */

static size_t ex_workspace(cudnnBatchNormMode_t mode, const struct cudnnTensorStruct *x) {
  bool none = mode == CUDNN_BATCHNORM_PER_ACTIVATION || !sim_cudnn_is_packed(x, CUDNN_TENSOR_NHWC);
  return none ? 0 : (size_t)x->dim[1] * 2 * 64 * sizeof(float);
}

static size_t ex_reserve(cudnnBatchNormMode_t mode, const struct cudnnTensorStruct *x) {
  bool some = mode == CUDNN_BATCHNORM_SPATIAL_PERSISTENT && sim_cudnn_is_packed(x, CUDNN_TENSOR_NHWC);
  return some ? (size_t)x->dim[1] * 16 : 0;
}

static cudnnStatus_t ask_ex(cudnnHandle_t handle, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t ops,
                            const struct cudnnTensorStruct *x, size_t *bytes) {
  if (!sim_object_is(handle, SIM_CUDNN_HANDLE) || bytes == NULL || !sim_cudnn_is_tensor(x))
    return SIM_CUDNN_REFUSE(CUDNN_STATUS_BAD_PARAM, "no live handle, no tensor, or no place for the size");
  if (ops != CUDNN_BATCHNORM_OPS_BN)
    return SIM_CUDNN_REFUSE(CUDNN_STATUS_NOT_SUPPORTED, "fused activations are not modelled");
  return check_mode(mode);
}

cudnnStatus_t cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t ops, const cudnnTensorDescriptor_t x,
    const cudnnTensorDescriptor_t z, const cudnnTensorDescriptor_t y, const cudnnTensorDescriptor_t params,
    const cudnnActivationDescriptor_t activation, size_t *bytes) {
  (void)z, (void)y, (void)params, (void)activation;
  cudnnStatus_t s = ask_ex(handle, mode, ops, x, bytes);
  if (s == CUDNN_STATUS_SUCCESS) *bytes = ex_workspace(mode, x);
  return s;
}

cudnnStatus_t cudnnGetBatchNormalizationBackwardExWorkspaceSize(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t ops, const cudnnTensorDescriptor_t x,
    const cudnnTensorDescriptor_t y, const cudnnTensorDescriptor_t dy, const cudnnTensorDescriptor_t dz,
    const cudnnTensorDescriptor_t dx, const cudnnTensorDescriptor_t params,
    const cudnnActivationDescriptor_t activation, size_t *bytes) {
  (void)y, (void)dy, (void)dz, (void)dx, (void)params, (void)activation;
  cudnnStatus_t s = ask_ex(handle, mode, ops, x, bytes);
  if (s == CUDNN_STATUS_SUCCESS) *bytes = ex_workspace(mode, x);
  return s;
}

cudnnStatus_t cudnnGetBatchNormalizationTrainingExReserveSpaceSize(cudnnHandle_t handle, cudnnBatchNormMode_t mode,
                                                                   cudnnBatchNormOps_t ops,
                                                                   const cudnnActivationDescriptor_t activation,
                                                                   const cudnnTensorDescriptor_t x, size_t *bytes) {
  (void)activation;
  cudnnStatus_t s = ask_ex(handle, mode, ops, x, bytes);
  if (s == CUDNN_STATUS_SUCCESS) *bytes = ex_reserve(mode, x);
  return s;
}

static cudnnStatus_t check_ex(cudnnBatchNormMode_t mode, cudnnBatchNormOps_t ops, const struct cudnnTensorStruct *x,
                              const void *workspace, size_t workspace_bytes, const void *reserve,
                              size_t reserve_bytes) {
  if (ops != CUDNN_BATCHNORM_OPS_BN)
    return SIM_CUDNN_REFUSE(CUDNN_STATUS_NOT_SUPPORTED, "fused activations are not modelled");
  if (!sim_cudnn_is_tensor(x)) return SIM_CUDNN_REFUSE(CUDNN_STATUS_BAD_PARAM, "x's descriptor is not set");
  size_t workspace_needed = ex_workspace(mode, x), reserve_needed = ex_reserve(mode, x);
  if (workspace_bytes < workspace_needed || reserve_bytes < reserve_needed)
    return SIM_CUDNN_REFUSE(CUDNN_STATUS_BAD_PARAM, "workspace %zu of %zu bytes, reserve space %zu of %zu",
                            workspace_bytes, workspace_needed, reserve_bytes, reserve_needed);
  if ((workspace_needed > 0 && workspace == NULL) || (reserve_needed > 0 && reserve == NULL))
    return SIM_CUDNN_REFUSE(CUDNN_STATUS_BAD_PARAM, "workspace or reserve space is NULL");
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBatchNormalizationForwardTrainingEx(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t ops, const void *alpha, const void *beta,
    const cudnnTensorDescriptor_t x_desc, const void *x, const cudnnTensorDescriptor_t z_desc, const void *z,
    const cudnnTensorDescriptor_t y_desc, void *y, const cudnnTensorDescriptor_t params, const void *scale,
    const void *bias, double factor, void *running_mean, void *running_variance, double epsilon, void *save_mean,
    void *save_invstd, cudnnActivationDescriptor_t activation, void *workspace, size_t workspace_bytes, void *reserve,
    size_t reserve_bytes) {
  (void)z_desc, (void)z, (void)activation;
  forward_task t = {.x = x, .scale = scale, .bias = bias, .y = y, .factor = factor, .workspace = workspace};
  t.running_mean = running_mean, t.running_variance = running_variance;
  t.save_mean = save_mean, t.save_invstd = save_invstd;
  cudnnStatus_t s = sim_cudnn_begin(handle, __func__);
  if (s == CUDNN_STATUS_SUCCESS) s = check_ex(mode, ops, x_desc, workspace, workspace_bytes, reserve, reserve_bytes);
  if (s != CUDNN_STATUS_SUCCESS) return s;
  t.workspace_bytes = ex_workspace(mode, x_desc);
  return train(handle, __func__, mode, alpha, beta, x_desc, y_desc, params, epsilon, &t);
}

cudnnStatus_t cudnnBatchNormalizationBackwardEx(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t ops, const void *alpha_data,
    const void *beta_data, const void *alpha_param, const void *beta_param, const cudnnTensorDescriptor_t x_desc,
    const void *x, const cudnnTensorDescriptor_t y_desc, const void *y, const cudnnTensorDescriptor_t dy_desc,
    const void *dy, const cudnnTensorDescriptor_t dz_desc, void *dz, const cudnnTensorDescriptor_t dx_desc, void *dx,
    const cudnnTensorDescriptor_t params, const void *scale, const void *bias, void *dscale, void *dbias,
    double epsilon, const void *save_mean, const void *save_invstd, cudnnActivationDescriptor_t activation,
    void *workspace, size_t workspace_bytes, void *reserve, size_t reserve_bytes) {
  (void)y_desc, (void)y, (void)dz_desc, (void)dz, (void)bias, (void)activation;
  backward_task t = {.x = x, .dy = dy, .dx = dx, .scale = scale, .dscale = dscale, .dbias = dbias};
  t.save_mean = save_mean, t.save_invstd = save_invstd, t.workspace = workspace;
  cudnnStatus_t s = sim_cudnn_begin(handle, __func__);
  if (s == CUDNN_STATUS_SUCCESS) s = check_ex(mode, ops, x_desc, workspace, workspace_bytes, reserve, reserve_bytes);
  if (s != CUDNN_STATUS_SUCCESS) return s;
  t.workspace_bytes = ex_workspace(mode, x_desc);
  return go_back(handle, __func__, mode, alpha_data, beta_data, alpha_param, beta_param, x_desc, dy_desc, dx_desc,
                 params, epsilon, &t);
}

/* ---- descriptors ---- */

cudnnStatus_t cudnnDeriveBNTensorDescriptor(cudnnTensorDescriptor_t derived, const cudnnTensorDescriptor_t x,
                                            cudnnBatchNormMode_t mode) {
  cudnnStatus_t s = check_mode(mode);
  if (s != CUDNN_STATUS_SUCCESS) return s;
  if (!sim_object_is(derived, SIM_CUDNN_TENSOR) || !sim_cudnn_is_tensor(x))
    return SIM_CUDNN_REFUSE(CUDNN_STATUS_BAD_PARAM, "a descriptor does not live or is not set");
  int dim[CUDNN_DIM_MAX];
  for (int d = 0; d < x->nd; d++) dim[d] = d == 1 || (d > 1 && mode == CUDNN_BATCHNORM_PER_ACTIVATION) ? x->dim[d] : 1;
  cudnnDataType_t type = x->type == CUDNN_DATA_DOUBLE ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT;
  return cudnnSetTensorNdDescriptorEx(derived, CUDNN_TENSOR_NCHW, type, x->nd, dim);
}
