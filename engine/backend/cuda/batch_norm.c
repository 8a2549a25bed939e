/* batch_norm.c: batch norm on cuDNN where it has the case, on the kernels of norm.cu everywhere else.
 *
 * cuDNN has: statistics of the batch over spatial dims, with weight and bias, running statistics of the type that is
 * computed in or none. Left out although it has them: bfloat16, (N, C) without spatial dims and the use of running
 * statistics, which are one pass of an own kernel; and gradients unless all three are wanted. The running variance is
 * the unbiased one and its momentum the new value's weight in both. */
#include <limits.h>

#include "backend/cuda/library.h"
#include "backend/cuda/table.h"

#define BATCH_MAX 65535
/* The gradient does not use it where the statistics are given, but checks it. */
#define UNUSED_EPS 1e-5

/* x (outer, channels, inner) and the vectors of its channels */
typedef struct descriptors {
  cudnnTensorDescriptor_t x, channels;
} descriptors;

static bool suits(int64_t outer, int64_t channels, int64_t inner, int dtype) {
  return dtype != TL_BFLOAT16 && inner > 1 && outer > 0 && channels > 0 && outer <= BATCH_MAX &&
         outer * channels * inner <= INT_MAX;
}

static tl_status describe(int64_t outer, int64_t channels, int64_t inner, int dtype, descriptors *d) {
  const char *op = "batch_norm";
  const cudnnDataType_t type = dtype == TL_FLOAT16   ? CUDNN_DATA_HALF
                               : dtype == TL_FLOAT64 ? CUDNN_DATA_DOUBLE
                                                     : CUDNN_DATA_FLOAT;
  TL_DNN_TRY(op, cudnnCreateTensorDescriptor(&d->x));
  TL_DNN_TRY(op, cudnnSetTensor4dDescriptor(d->x, CUDNN_TENSOR_NCHW, type, (int)outer, (int)channels, 1, (int)inner));
  TL_DNN_TRY(op, cudnnCreateTensorDescriptor(&d->channels));
  TL_DNN_TRY(op, cudnnDeriveBNTensorDescriptor(d->channels, d->x, CUDNN_BATCHNORM_SPATIAL));
  return TL_OK;
}

static void drop(const descriptors *d) {
  if (d->x != NULL) cudnnDestroyTensorDescriptor(d->x);
  if (d->channels != NULL) cudnnDestroyTensorDescriptor(d->channels);
}

static tl_status forward(const tl_batch_norm_args *a, cudnnHandle_t dnn, const descriptors *d) {
  const float one = 1, none = 0;
  const double one64 = 1, none64 = 0;
  const bool wide = a->x->dtype == TL_FLOAT64;
  const void *alpha = wide ? (const void *)&one64 : &one, *beta = wide ? (const void *)&none64 : &none;
  void *running_mean = a->running_mean == NULL ? NULL : tl_first(a->running_mean);
  void *running_var = a->running_var == NULL ? NULL : tl_first(a->running_var);
  TL_DNN_TRY("batch_norm", cudnnBatchNormalizationForwardTraining(
                               dnn, CUDNN_BATCHNORM_SPATIAL, alpha, beta, d->x, tl_first(a->x), d->x, tl_first(a->y),
                               d->channels, tl_first(a->w), tl_first(a->b), a->momentum, running_mean, running_var,
                               a->eps, tl_first(a->mean), tl_first(a->invstd)));
  return tl_cuda_launched("batch_norm");
}

tl_status tl_cuda_batch_norm(const tl_batch_norm_args *a) {
  const int compute = tl_compute_type(a->x->dtype);
  const bool moves = a->running_mean == NULL || (a->running_mean->dtype == compute && a->running_var->dtype == compute);
  if (!a->batch_stats || a->w == NULL || a->b == NULL || !moves || !(a->eps >= CUDNN_BN_MIN_EPSILON) ||
      !suits(a->outer, a->channels, a->inner, a->x->dtype))
    return tl_cuda_own_batch_norm(a);
  descriptors d = {NULL, NULL};
  cudnnHandle_t dnn;
  TL_TRY(tl_cuda_dnn_open("batch_norm", &dnn));
  tl_status st = describe(a->outer, a->channels, a->inner, a->x->dtype, &d);
  if (st == TL_OK) st = forward(a, dnn, &d);
  drop(&d);
  tl_cuda_library_close();
  return st;
}

static tl_status backward(const tl_batch_norm_grad_args *a, cudnnHandle_t dnn, const descriptors *d) {
  const float one = 1, none = 0;
  const double one64 = 1, none64 = 0;
  const bool wide = a->x->dtype == TL_FLOAT64;
  const void *alpha = wide ? (const void *)&one64 : &one, *beta = wide ? (const void *)&none64 : &none;
  TL_DNN_TRY("batch_norm", cudnnBatchNormalizationBackward(
                               dnn, CUDNN_BATCHNORM_SPATIAL, alpha, beta, alpha, beta, d->x, tl_first(a->x), d->x,
                               tl_first(a->g), d->x, tl_first(a->dx), d->channels, tl_first(a->w), tl_first(a->dw),
                               tl_first(a->db), UNUSED_EPS, tl_first(a->mean), tl_first(a->invstd)));
  return tl_cuda_launched("batch_norm");
}

tl_status tl_cuda_batch_norm_grad(const tl_batch_norm_grad_args *a) {
  if (!a->batch_stats || a->w == NULL || a->dx == NULL || a->dw == NULL || a->db == NULL ||
      !suits(a->outer, a->channels, a->inner, a->x->dtype))
    return tl_cuda_own_batch_norm_grad(a);
  descriptors d = {NULL, NULL};
  cudnnHandle_t dnn;
  TL_TRY(tl_cuda_dnn_open("batch_norm", &dnn));
  tl_status st = describe(a->outer, a->channels, a->inner, a->x->dtype, &d);
  if (st == TL_OK) st = backward(a, dnn, &d);
  drop(&d);
  tl_cuda_library_close();
  return st;
}
