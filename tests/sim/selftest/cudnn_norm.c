/* cudnn_norm.c: the simulated batch normalization of cuDNN against its definition, and what it must refuse. */
#include <cudnn.h>

#include "libraries.h"

#define DNN(call) SIM_EXPECT((call) == CUDNN_STATUS_SUCCESS)
#define DNN_REFUSES(status, call) SIM_EXPECT((call) == CUDNN_STATUS_##status)

enum { N = 3, C = 4, H = 2, W = 5, SIZE = N * C * H * W };
static const double epsilon = 1e-3;

typedef struct setting {
  number type;
  cudnnBatchNormMode_t mode;
  bool nhwc;
  int units, unit_size;
  cudnnHandle_t handle;
  cudnnTensorDescriptor_t data, params;
  array x, scale, bias, mean, invstd;
  double centre[C * H * W], variance[C * H * W];
} setting;

/* Element i, and the unit (channel, or place of it) that it belongs to. */
static int unit_of(const setting *s, int i) {
  int c = s->nhwc ? i % C : i / (H * W) % C, place = s->nhwc ? i / C % (H * W) : i % (H * W);
  return s->mode == CUDNN_BATCHNORM_PER_ACTIVATION ? c * H * W + place : c;
}

static setting set_up(number type, cudnnBatchNormMode_t mode, bool nhwc) {
  setting s = {.type = type, .mode = mode, .nhwc = nhwc};
  number param = type == F64 ? F64 : F32;
  s.units = mode == CUDNN_BATCHNORM_PER_ACTIVATION ? C * H * W : C;
  s.unit_size = SIZE / s.units;
  DNN(cudnnCreate(&s.handle));
  DNN(cudnnCreateTensorDescriptor(&s.data));
  DNN(cudnnCreateTensorDescriptor(&s.params));
  DNN(cudnnSetTensor4dDescriptor(s.data, nhwc ? CUDNN_TENSOR_NHWC : CUDNN_TENSOR_NCHW,
                                 type == F64   ? CUDNN_DATA_DOUBLE
                                 : type == F32 ? CUDNN_DATA_FLOAT
                                 : type == F16 ? CUDNN_DATA_HALF
                                               : CUDNN_DATA_BFLOAT16,
                                 N, C, H, W));
  DNN(cudnnDeriveBNTensorDescriptor(s.params, s.data, mode));
  s.x = array_random(type, SIZE, 1);
  s.scale = array_random(param, (size_t)s.units, 2);
  s.bias = array_random(param, (size_t)s.units, 3);
  s.mean = array_full(param, (size_t)s.units, 0);
  s.invstd = array_full(param, (size_t)s.units, 0);
  for (int i = 0; i < SIZE; i++) s.centre[unit_of(&s, i)] += s.x.value[i] / s.unit_size;
  for (int i = 0; i < SIZE; i++) {
    double d = s.x.value[i] - s.centre[unit_of(&s, i)];
    s.variance[unit_of(&s, i)] += d * d / s.unit_size;
  }
  return s;
}

static double normal(const setting *s, int i) {
  int u = unit_of(s, i);
  return (s->x.value[i] - s->centre[u]) / sqrt(s->variance[u] + epsilon);
}

static void check_training(setting *s) {
  array y = array_random(s->type, SIZE, 4);
  array running = array_full(s->scale.type, (size_t)s->units, 2),
        spread = array_full(s->scale.type, (size_t)s->units, 3);
  float one = 1, zero = 0, half = 0.5f;
  double one64 = 1, zero64 = 0, half64 = 0.5;
  bool wide = s->type == F64;
  const void *alpha = wide ? (const void *)&one64 : &one, *beta = wide ? (const void *)&zero64 : &zero;
  DNN(cudnnBatchNormalizationForwardTraining(s->handle, s->mode, alpha, beta, s->data, s->x.device, s->data, y.device,
                                             s->params, s->scale.device, s->bias.device, 0.25, running.device,
                                             spread.device, epsilon, s->mean.device, s->invstd.device));
  for (int i = 0; i < SIZE; i++) {
    int u = unit_of(s, i);
    y.value[i] = normal(s, i) * s->scale.value[u] + s->bias.value[u];
  }
  for (int u = 0; u < s->units; u++) {
    running.value[u] = 0.75 * 2 + 0.25 * s->centre[u];
    spread.value[u] = 0.75 * 3 + 0.25 * s->variance[u] * s->unit_size / (s->unit_size - 1);
    s->mean.value[u] = s->centre[u];
    s->invstd.value[u] = 1 / sqrt(s->variance[u] + epsilon);
  }
  array_check(&y, "y");
  array_check(&running, "running mean");
  array_check(&spread, "running variance");
  array_check(&s->mean, "saved mean");
  array_check(&s->invstd, "saved inverse deviation");

  array dy = array_random(s->type, SIZE, 5), dx = array_random(s->type, SIZE, 6);
  array dscale = array_random(s->scale.type, (size_t)s->units, 7),
        dbias = array_random(s->scale.type, (size_t)s->units, 8);
  double sum[C * H * W] = {0}, product[C * H * W] = {0};
  for (int i = 0; i < SIZE; i++) {
    sum[unit_of(s, i)] += dy.value[i];
    product[unit_of(s, i)] += dy.value[i] * normal(s, i);
  }
  for (int i = 0; i < SIZE; i++) {
    int u = unit_of(s, i);
    double slope = s->scale.value[u] / sqrt(s->variance[u] + epsilon);
    dx.value[i] = slope * (dy.value[i] - (sum[u] + normal(s, i) * product[u]) / s->unit_size);
  }
  for (int u = 0; u < s->units; u++) {
    dscale.value[u] = product[u] + 0.5 * dscale.value[u];
    dbias.value[u] = sum[u] + 0.5 * dbias.value[u];
  }
  DNN(cudnnBatchNormalizationBackward(s->handle, s->mode, alpha, beta, alpha, wide ? (const void *)&half64 : &half,
                                      s->data, s->x.device, s->data, dy.device, s->data, dx.device, s->params,
                                      s->scale.device, dscale.device, dbias.device, epsilon, s->mean.device,
                                      s->invstd.device));
  array_check(&dx, "dx");
  array_check(&dscale, "dscale");
  array_check(&dbias, "dbias");
  SIM_OK(cudaMemset(dx.device, 0xff, 2)); /* nan, which beta 0 does not read; statistics are found anew */
  DNN(cudnnBatchNormalizationBackward(s->handle, s->mode, alpha, beta, alpha, beta, s->data, s->x.device, s->data,
                                      dy.device, s->data, dx.device, s->params, s->scale.device, dscale.device,
                                      dbias.device, epsilon, NULL, NULL));
  array_check(&dx, "dx without saved statistics");
}

static void check_inference(setting *s) {
  array y = array_random(s->type, SIZE, 4), variance = array_full(s->scale.type, (size_t)s->units, 0.5);
  float two = 2, one = 1;
  double two64 = 2, one64 = 1;
  bool wide = s->type == F64;
  DNN(cudnnBatchNormalizationForwardInference(
      s->handle, s->mode, wide ? (const void *)&two64 : &two, wide ? (const void *)&one64 : &one, s->data, s->x.device,
      s->data, y.device, s->params, s->scale.device, s->bias.device, s->bias.device, variance.device, epsilon));
  for (int i = 0; i < SIZE; i++) {
    int u = unit_of(s, i);
    double v = (s->x.value[i] - s->bias.value[u]) / sqrt(0.5 + epsilon) * s->scale.value[u] + s->bias.value[u];
    y.value[i] += 2 * v;
  }
  array_check(&y, "inference");
}

SIM_CLEAN(cudnn_batch_norm) {
  for (int type = F32; type <= BF16; type++)
    for (int mode = CUDNN_BATCHNORM_PER_ACTIVATION; mode <= CUDNN_BATCHNORM_SPATIAL_PERSISTENT; mode++)
      for (int nhwc = 0; nhwc < 2; nhwc++) {
        if (nhwc && mode == CUDNN_BATCHNORM_PER_ACTIVATION) continue;
        setting s = set_up((number)type, (cudnnBatchNormMode_t)mode, nhwc);
        check_training(&s);
        check_inference(&s);
      }
}

static cudnnStatus_t train(const setting *s, cudnnTensorDescriptor_t params, double eps, void *mean, void *invstd,
                           void *y) {
  float one = 1, zero = 0;
  return cudnnBatchNormalizationForwardTraining(s->handle, s->mode, &one, &zero, s->data, s->x.device, s->data, y,
                                                params, s->scale.device, s->bias.device, 1, NULL, NULL, eps, mean,
                                                invstd);
}

SIM_CLEAN(cudnn_batch_norm_refuses) {
  setting s = set_up(F16, CUDNN_BATCHNORM_SPATIAL, false);
  array y = array_full(F16, SIZE, 0);
  DNN(train(&s, s.params, epsilon, s.mean.device, s.invstd.device, y.device));
  DNN(train(&s, s.params, 0, NULL, NULL, y.device));
  DNN_REFUSES(BAD_PARAM, train(&s, s.params, -1, NULL, NULL, y.device));
  DNN_REFUSES(BAD_PARAM, train(&s, s.params, epsilon, s.mean.device, NULL, y.device));
  DNN_REFUSES(BAD_PARAM, train(&s, s.params, epsilon, NULL, NULL, NULL));
  cudnnTensorDescriptor_t half;
  DNN(cudnnCreateTensorDescriptor(&half));
  DNN_REFUSES(BAD_PARAM, train(&s, half, epsilon, NULL, NULL, y.device));
  DNN(cudnnSetTensor4dDescriptor(half, CUDNN_TENSOR_NCHW, CUDNN_DATA_HALF, 1, C, 1, 1));
  DNN_REFUSES(BAD_PARAM, train(&s, half, epsilon, NULL, NULL, y.device));
  DNN(cudnnSetTensor4dDescriptor(half, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, 1, C, H, W));
  DNN_REFUSES(BAD_PARAM, train(&s, half, epsilon, NULL, NULL, y.device));
}

SIM_CLEAN(cudnn_batch_norm_ex_needs_its_workspace) {
  setting s = set_up(F16, CUDNN_BATCHNORM_SPATIAL_PERSISTENT, true);
  array y = array_full(F16, SIZE, 0);
  size_t bytes = 0, kept = 0;
  float one = 1, zero = 0;
  DNN(cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(s.handle, s.mode, CUDNN_BATCHNORM_OPS_BN, s.data, NULL,
                                                               s.data, s.params, NULL, &bytes));
  DNN(cudnnGetBatchNormalizationTrainingExReserveSpaceSize(s.handle, s.mode, CUDNN_BATCHNORM_OPS_BN, NULL, s.data,
                                                           &kept));
  DNN_REFUSES(NOT_SUPPORTED, cudnnGetBatchNormalizationTrainingExReserveSpaceSize(
                                 s.handle, s.mode, CUDNN_BATCHNORM_OPS_BN_ACTIVATION, NULL, s.data, &kept));
  SIM_EXPECT(bytes > 0 && kept > 0);
  void *workspace, *reserve;
  SIM_OK(cudaMalloc(&workspace, bytes));
  SIM_OK(cudaMalloc(&reserve, kept));
  for (int i = 0; i < 3; i++) {
    cudnnStatus_t status = cudnnBatchNormalizationForwardTrainingEx(
        s.handle, s.mode, CUDNN_BATCHNORM_OPS_BN, &one, &zero, s.data, s.x.device, NULL, NULL, s.data, y.device,
        s.params, s.scale.device, s.bias.device, 1, NULL, NULL, epsilon, s.mean.device, s.invstd.device, NULL,
        workspace, i == 0 ? bytes - 1 : bytes, reserve, i == 1 ? 0 : kept);
    SIM_EXPECT((status == CUDNN_STATUS_SUCCESS) == (i == 2));
  }
  for (int i = 0; i < SIZE; i++)
    y.value[i] = normal(&s, i) * s.scale.value[unit_of(&s, i)] + s.bias.value[unit_of(&s, i)];
  array_check(&y, "y");
}
