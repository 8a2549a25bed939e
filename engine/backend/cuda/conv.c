/* conv.c: convolutions on cuDNN.
 *
 * Tensors are what the engine has: packed NCHW. The matrix units want NHWC for the half types, and cuDNN turns the
 * operands round by itself where that pays; to do so here would cost the same passes over memory, and keeping tensors
 * NHWC between layers is not this file's to decide.
 *
 * The algorithm is the first of cuDNN's heuristic that is deterministic and keeps within the workspace; it is looked up
 * once per shape. A measured search could choose another one from run to run, and with it other roundings, and could not
 * run while a graph is captured. float32 keeps to float32 arithmetic unless TF32 is allowed.
 *
 * Tensors of 2^31 elements and more, which many algorithms cannot index, go through in parts of the batch. */
#include <limits.h>
#include <string.h>

#include "backend/cuda/library.h"
#include "backend/kernels.h"

#define WORKSPACE_MAX ((size_t)256 << 20)

enum direction { FORWARD, DATA, FILTER, BIAS }; /* y; dx; dw; dbias, which needs no algorithm */

typedef struct conv_key {
  int64_t batch, in, out, groups, size[2], kernel[2], result[2], stride[2], padding[2], dilation[2];
  int32_t dtype, direction;
  int64_t tf32;
} conv_key;

typedef struct conv_plan {
  conv_key key;
  cudnnTensorDescriptor_t x, y, bias;
  cudnnFilterDescriptor_t w;
  cudnnConvolutionDescriptor_t conv;
  int algorithm;
  size_t workspace;
} conv_plan;

static void drop_plan(void *entry) {
  conv_plan *p = entry;
  if (p->x != NULL) cudnnDestroyTensorDescriptor(p->x);
  if (p->y != NULL) cudnnDestroyTensorDescriptor(p->y);
  if (p->bias != NULL) cudnnDestroyTensorDescriptor(p->bias);
  if (p->w != NULL) cudnnDestroyFilterDescriptor(p->w);
  if (p->conv != NULL) cudnnDestroyConvolutionDescriptor(p->conv);
}

/* ---- descriptors ---- */

static cudnnDataType_t type_of(int dtype) {
  switch (dtype) {
    case TL_FLOAT16: return CUDNN_DATA_HALF;
    case TL_BFLOAT16: return CUDNN_DATA_BFLOAT16;
    case TL_FLOAT64: return CUDNN_DATA_DOUBLE;
    default: return CUDNN_DATA_FLOAT;
  }
}

static tl_status describe_tensor(const char *op, cudnnTensorDescriptor_t *t, int dtype, int64_t n, int64_t c, int64_t h,
                                 int64_t w) {
  if (n > INT_MAX || c > INT_MAX || h > INT_MAX || w > INT_MAX)
    return TL_FAIL(TL_ERR_UNSUPPORTED, op, "cuDNN takes no tensor of (%lldx%lldx%lldx%lld)", (long long)n, (long long)c,
                   (long long)h, (long long)w);
  TL_DNN_TRY(op, cudnnCreateTensorDescriptor(t));
  TL_DNN_TRY(op, cudnnSetTensor4dDescriptor(*t, CUDNN_TENSOR_NCHW, type_of(dtype), (int)n, (int)c, (int)h, (int)w));
  return TL_OK;
}

static tl_status describe(const char *op, conv_plan *p) {
  const conv_key *k = &p->key;
  const cudnnDataType_t type = type_of(k->dtype);
  const cudnnMathType_t math = k->dtype == TL_FLOAT16 || k->dtype == TL_BFLOAT16 ? CUDNN_TENSOR_OP_MATH
                               : k->dtype == TL_FLOAT32 && !k->tf32              ? CUDNN_FMA_MATH
                                                                                 : CUDNN_DEFAULT_MATH;
  TL_TRY(describe_tensor(op, &p->x, k->dtype, k->batch, k->in, k->size[0], k->size[1]));
  TL_TRY(describe_tensor(op, &p->y, k->dtype, k->batch, k->out, k->result[0], k->result[1]));
  TL_TRY(describe_tensor(op, &p->bias, k->dtype, 1, k->out, 1, 1));
  TL_DNN_TRY(op, cudnnCreateFilterDescriptor(&p->w));
  TL_DNN_TRY(op, cudnnSetFilter4dDescriptor(p->w, type, CUDNN_TENSOR_NCHW, (int)k->out, (int)(k->in / k->groups),
                                            (int)k->kernel[0], (int)k->kernel[1]));
  TL_DNN_TRY(op, cudnnCreateConvolutionDescriptor(&p->conv));
  TL_DNN_TRY(op, cudnnSetConvolution2dDescriptor(p->conv, (int)k->padding[0], (int)k->padding[1], (int)k->stride[0],
                                                 (int)k->stride[1], (int)k->dilation[0], (int)k->dilation[1],
                                                 CUDNN_CROSS_CORRELATION,
                                                 k->dtype == TL_FLOAT64 ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT));
  TL_DNN_TRY(op, cudnnSetConvolutionGroupCount(p->conv, (int)k->groups));
  TL_DNN_TRY(op, cudnnSetConvolutionMathType(p->conv, math));
  return TL_OK;
}

/* ---- the algorithm ---- */

enum { CANDIDATES = 16 };

/* Deterministic algorithms, the fastest first as cuDNN estimates. */
#define LIST(PERF, GET, ...)                                                                      \
  do {                                                                                            \
    PERF found[CANDIDATES];                                                                       \
    TL_DNN_TRY(op, GET(dnn, __VA_ARGS__, CANDIDATES, &n, found));                                 \
    for (int i = 0; i < n; i++)                                                                   \
      if (found[i].status == CUDNN_STATUS_SUCCESS && found[i].determinism == CUDNN_DETERMINISTIC) \
        list[(*count)++] = (int)found[i].algo;                                                    \
  } while (0)

static tl_status list_algorithms(const char *op, cudnnHandle_t dnn, const conv_plan *p, int *list, int *count) {
  int n = 0;
  *count = 0;
  switch (p->key.direction) {
    case FORWARD:
      LIST(cudnnConvolutionFwdAlgoPerf_t, cudnnGetConvolutionForwardAlgorithm_v7, p->x, p->w, p->conv, p->y);
      break;
    case DATA:
      LIST(cudnnConvolutionBwdDataAlgoPerf_t, cudnnGetConvolutionBackwardDataAlgorithm_v7, p->w, p->y, p->conv, p->x);
      break;
    default:
      LIST(cudnnConvolutionBwdFilterAlgoPerf_t, cudnnGetConvolutionBackwardFilterAlgorithm_v7, p->x, p->y, p->conv,
           p->w);
  }
  return TL_OK;
}

static cudnnStatus_t workspace_of(cudnnHandle_t dnn, const conv_plan *p, int algorithm, size_t *bytes) {
  switch (p->key.direction) {
    case FORWARD:
      return cudnnGetConvolutionForwardWorkspaceSize(dnn, p->x, p->w, p->conv, p->y,
                                                     (cudnnConvolutionFwdAlgo_t)algorithm, bytes);
    case DATA:
      return cudnnGetConvolutionBackwardDataWorkspaceSize(dnn, p->w, p->y, p->conv, p->x,
                                                          (cudnnConvolutionBwdDataAlgo_t)algorithm, bytes);
    default:
      return cudnnGetConvolutionBackwardFilterWorkspaceSize(dnn, p->x, p->y, p->conv, p->w,
                                                            (cudnnConvolutionBwdFilterAlgo_t)algorithm, bytes);
  }
}

/* The heuristic's own workspace is for the arithmetic it would choose; asked again, cuDNN goes by the descriptor's. */
static tl_status choose(const char *op, cudnnHandle_t dnn, conv_plan *p) {
  int list[CANDIDATES], count;
  TL_TRY(list_algorithms(op, dnn, p, list, &count));
  for (int i = 0; i < count; i++) {
    size_t bytes = 0;
    if (workspace_of(dnn, p, list[i], &bytes) != CUDNN_STATUS_SUCCESS || bytes > WORKSPACE_MAX) continue;
    p->algorithm = list[i];
    p->workspace = bytes;
    return TL_OK;
  }
  const conv_key *k = &p->key;
  return TL_FAIL(
      TL_ERR_UNSUPPORTED, op,
      "cuDNN has no deterministic algorithm within %zu MB of workspace for an input of (%lldx%lldx%lldx%lld), "
      "%lld kernels of (%lldx%lld) in %lld groups, dtype number %d",
      WORKSPACE_MAX >> 20, (long long)k->batch, (long long)k->in, (long long)k->size[0], (long long)k->size[1],
      (long long)k->out, (long long)k->kernel[0], (long long)k->kernel[1], (long long)k->groups, k->dtype);
}

static tl_status plan_of(const char *op, cudnnHandle_t dnn, const conv_key *key, conv_plan **out) {
  tl_cuda_cache *cache = &tl_cuda_caches_here()->convolutions;
  *out = tl_cuda_cache_find(cache, key, sizeof *key, sizeof **out);
  if (*out != NULL) return TL_OK;
  conv_plan p = {.key = *key};
  void *kept = NULL;
  tl_status st = describe(op, &p);
  if (st == TL_OK && key->direction != BIAS) st = choose(op, dnn, &p);
  if (st == TL_OK) st = tl_cuda_cache_add(cache, op, &p, sizeof *key, sizeof p, drop_plan, &kept);
  if (st != TL_OK) drop_plan(&p);
  *out = kept;
  return st;
}

/* ---- running ---- */

typedef struct operands {
  const void *x, *w, *dy, *bias;
  void *out;
  bool add; /* to what is in out */
} operands;

static cudnnStatus_t call(cudnnHandle_t dnn, const conv_plan *p, const operands *o, void *workspace) {
  const float one = 1, none = 0;
  const double one64 = 1, none64 = 0;
  const bool wide = p->key.dtype == TL_FLOAT64;
  const void *alpha = wide ? (const void *)&one64 : &one, *zero = wide ? (const void *)&none64 : &none;
  const void *beta = o->add ? alpha : zero;
  cudnnStatus_t status;
  switch (p->key.direction) {
    case FORWARD:
      status =
          cudnnConvolutionForward(dnn, alpha, p->x, o->x, p->w, o->w, p->conv, (cudnnConvolutionFwdAlgo_t)p->algorithm,
                                  workspace, p->workspace, beta, p->y, o->out);
      if (status != CUDNN_STATUS_SUCCESS || o->bias == NULL) return status;
      return cudnnAddTensor(dnn, alpha, p->bias, o->bias, alpha, p->y, o->out);
    case DATA:
      return cudnnConvolutionBackwardData(dnn, alpha, p->w, o->w, p->y, o->dy, p->conv,
                                          (cudnnConvolutionBwdDataAlgo_t)p->algorithm, workspace, p->workspace, beta,
                                          p->x, o->out);
    case FILTER:
      return cudnnConvolutionBackwardFilter(dnn, alpha, p->x, o->x, p->y, o->dy, p->conv,
                                            (cudnnConvolutionBwdFilterAlgo_t)p->algorithm, workspace, p->workspace,
                                            beta, p->w, o->out);
    default: return cudnnConvolutionBackwardBias(dnn, alpha, p->y, o->dy, beta, p->bias, o->out);
  }
}

static tl_status run_plan(const char *op, cudnnHandle_t dnn, const conv_key *key, const operands *o) {
  conv_plan *p;
  void *workspace = NULL;
  TL_TRY(plan_of(op, dnn, key, &p));
  if (p->workspace > 0 && (workspace = tl_cuda_scratch(op, p->workspace)) == NULL) return TL_ERR_MEMORY;
  cudnnStatus_t status = call(dnn, p, o, workspace);
  if (workspace != NULL) tl_cuda_scratch_free(workspace, p->workspace);
  TL_DNN_TRY(op, status);
  return tl_cuda_launched(op);
}

static conv_key key_of(const tl_convolution *c, int direction) {
  conv_key key;
  memset(&key, 0, sizeof key);
  key.batch = c->batch, key.in = c->in, key.out = c->out, key.groups = c->groups;
  for (int d = 0; d < 2; d++) {
    key.size[d] = c->size[d], key.kernel[d] = c->kernel[d], key.result[d] = c->result[d];
    key.stride[d] = c->stride[d], key.padding[d] = c->padding[d], key.dilation[d] = c->dilation[d];
  }
  key.dtype = c->dtype;
  key.direction = direction;
  key.tf32 = c->dtype == TL_FLOAT32 && tl_cuda_tf32_allowed();
  return key;
}

static const void *after(const void *p, int64_t bytes) { return p == NULL ? NULL : (const char *)p + bytes; }

/* One direction, in as few parts of the batch as 32-bit indices allow. */
static tl_status run(const tl_convolution *c, int direction, const operands *whole) {
  const int64_t size = (int64_t)tl_dtype_size(c->dtype), of_x = c->in * c->size[0] * c->size[1],
                of_y = c->out * c->result[0] * c->result[1], of_out = direction == FORWARD ? of_y : of_x;
  int64_t most = INT_MAX / (of_x > of_y ? of_x : of_y);
  if (most < 1) most = 1;
  cudnnHandle_t dnn;
  conv_key key = key_of(c, direction);
  TL_TRY(tl_cuda_dnn_open(c->op, &dnn));
  tl_status st = TL_OK;
  for (int64_t first = 0; first < c->batch && st == TL_OK; first += most) {
    operands o = *whole;
    o.x = after(o.x, first * of_x * size);
    o.dy = after(o.dy, first * of_y * size);
    if (direction == FORWARD || direction == DATA) o.out = (char *)o.out + first * of_out * size;
    else o.add = first > 0;
    key.batch = c->batch - first < most ? c->batch - first : most;
    st = run_plan(c->op, dnn, &key, &o);
  }
  tl_cuda_library_close();
  return st;
}

tl_status tl_cuda_conv_forward(const tl_convolution *c, const void *x, const void *w, const void *bias, void *y) {
  const operands o = {.x = x, .w = w, .bias = bias, .out = y};
  return run(c, FORWARD, &o);
}

tl_status tl_cuda_conv_backward(const tl_convolution *c, const void *x, const void *w, const void *dy, void *dx,
                                void *dw, void *dbias) {
  operands o = {.x = x, .w = w, .dy = dy};
  tl_status st = TL_OK;
  if (dx != NULL) {
    o.out = dx;
    st = run(c, DATA, &o);
  }
  if (dw != NULL && st == TL_OK) {
    o.out = dw;
    st = run(c, FILTER, &o);
  }
  if (dbias != NULL && st == TL_OK) {
    o.out = dbias;
    st = run(c, BIAS, &o);
  }
  return st;
}
