/* cudnn_conv_algo.c: the algorithms of cuDNN's convolutions. All of the real library's are listed and differ as there: in
 * what they refuse, in the workspace they need and overwrite, and in whether two runs give the same bits. */
#include "cudnn_conv.h"

/* ---- algorithms: rows of what the real library's documentation says of each ---- */

enum {
  UNIT_STEPS = 1,
  NO_DILATION = 2,
  WINDOW_3 = 4,
  WINDOW_3_OR_5 = 8,
  ANY_STRIDES = 16,
  NHWC = 32,
  SINGLE = 64,
  FLAT = 128
};

static const way forward_ways[] = {
    {CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM, true, ANY_STRIDES, NONE},
    {CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM, true, NHWC, INDICES},
    {CUDNN_CONVOLUTION_FWD_ALGO_GEMM, true, NO_DILATION | FLAT, COLUMNS},
    {CUDNN_CONVOLUTION_FWD_ALGO_FFT, true, UNIT_STEPS | NO_DILATION | SINGLE | FLAT, SPECTRUM},
    {CUDNN_CONVOLUTION_FWD_ALGO_FFT_TILING, true, UNIT_STEPS | NO_DILATION | SINGLE, TILES},
    {CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD, true, UNIT_STEPS | NO_DILATION | WINDOW_3 | SINGLE | FLAT, NONE},
    {CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED, true, UNIT_STEPS | NO_DILATION | WINDOW_3_OR_5 | SINGLE | FLAT,
     TILES},
};

static const way data_ways[] = {
    {CUDNN_CONVOLUTION_BWD_DATA_ALGO_0, false, ANY_STRIDES, NONE},
    {CUDNN_CONVOLUTION_BWD_DATA_ALGO_1, true, NHWC | ANY_STRIDES, INDICES},
    {CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT, true, UNIT_STEPS | NO_DILATION | SINGLE | FLAT, SPECTRUM},
    {CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT_TILING, true, UNIT_STEPS | NO_DILATION | SINGLE, TILES},
    {CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD, true, UNIT_STEPS | NO_DILATION | WINDOW_3 | SINGLE | FLAT, NONE},
    {CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD_NONFUSED, true, UNIT_STEPS | NO_DILATION | WINDOW_3_OR_5 | SINGLE | FLAT,
     TILES},
};

static const way filter_ways[] = {
    {CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0, false, ANY_STRIDES, NONE},
    {CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1, true, NHWC | ANY_STRIDES, COPIES},
    {CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT, true, UNIT_STEPS | NO_DILATION | SINGLE | FLAT, SPECTRUM},
    {CUDNN_CONVOLUTION_BWD_FILTER_ALGO_3, false, NO_DILATION | FLAT, COPIES},
    {CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD_NONFUSED, true, UNIT_STEPS | NO_DILATION | WINDOW_3 | SINGLE | FLAT,
     TILES},
    {CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT_TILING, true, UNIT_STEPS | NO_DILATION | SINGLE | FLAT, TILES},
};

#define COUNT(table) ((int)(sizeof(table) / sizeof *(table)))

static const way *ways_of(direction d, int *count) {
  *count = d == FORWARD ? COUNT(forward_ways) : d == DATA ? COUNT(data_ways) : COUNT(filter_ways);
  return d == FORWARD ? forward_ways : d == DATA ? data_ways : filter_ways;
}

static bool all_are(const int64_t *dim, int64_t value) { return dim[0] == value && dim[1] == value && dim[2] == value; }

static bool window_is(const problem *p, int64_t size) {
  return p->window[0] == 1 && p->window[1] == size && p->window[2] == size;
}

static bool way_fits(const way *w, const problem *p) {
  int demands = w->demands;
  if ((demands & UNIT_STEPS) && !all_are(p->step, 1)) return false;
  if ((demands & NO_DILATION) && !all_are(p->dilation, 1)) return false;
  if ((demands & WINDOW_3) && !window_is(p, 3)) return false;
  if ((demands & WINDOW_3_OR_5) && !window_is(p, 3) && !window_is(p, 5)) return false;
  if ((demands & SINGLE) && p->type != SIM_F32) return false;
  if ((demands & FLAT) && p->spatial != 2) return false;
  if (p->any_strides && !(demands & ANY_STRIDES)) return false;
  return !p->nhwc || (demands & NHWC) != 0;
}

/* Rough sizes. A spectrum is beyond what anybody should give: a caller without a limit runs out of memory. */
size_t sim_conv_workspace(const way *w, const problem *p) {
  size_t taps = (size_t)points(p->window), out = (size_t)points(p->out), in = (size_t)points(p->in);
  size_t channels = (size_t)(p->c + p->k);
  switch (w->workspace) {
    case NONE: return 0;
    case INDICES: return (taps * (size_t)p->c + out) * sizeof(int32_t);
    case COLUMNS: return (size_t)p->c * taps * out * sizeof(float);
    case COPIES: return 2 * p->w_bytes + 256;
    case TILES: return channels * (in + out) * sizeof(float) + ((size_t)1 << 20);
    default: return channels * (in + out + taps) * sizeof(float) + ((size_t)1 << 30);
  }
}

cudnnStatus_t sim_conv_find(direction d, const problem *p, int algo, const way **out) {
  int count;
  const way *w = ways_of(d, &count);
  for (int i = 0; i < count; i++) {
    if (w[i].algo != algo) continue;
    if (!way_fits(&w[i], p))
      return SIM_CUDNN_REFUSE(CUDNN_STATUS_NOT_SUPPORTED, "algorithm %d does not do this convolution", algo);
    *out = &w[i];
    return CUDNN_STATUS_SUCCESS;
  }
  return SIM_CUDNN_REFUSE(CUDNN_STATUS_NOT_SUPPORTED, "there is no algorithm %d", algo);
}

/* All algorithms in an order that follows from the seed, and at least one that works among the first `requested`. limit:
 * the workspace at hand. */
static int list_ways(direction d, const problem *p, size_t limit, int requested, perf *list) {
  int count, order[MAX_WAYS], n = 0;
  const way *w = ways_of(d, &count);
  sim_library_shuffle(order, count, (uint64_t)(p->n * 131 + p->c * 31 + p->k * 7 + points(p->out)));
  for (int i = 0; i < count; i++) {
    const way *one = &w[order[i]];
    perf f = {.way = one, .memory = sim_conv_workspace(one, p), .time = (float)(i + 1) * 0.01f};
    f.math = p->type == SIM_F64 || (p->type == SIM_F32 && !p->tf32) ? CUDNN_FMA_MATH : CUDNN_TENSOR_OP_MATH;
    if (!way_fits(one, p)) f.status = CUDNN_STATUS_NOT_SUPPORTED;
    else if (f.memory > limit) f.status = CUDNN_STATUS_ALLOC_FAILED;
    if (f.status != CUDNN_STATUS_SUCCESS) f.time = -1;
    list[n++] = f;
  }
  for (int i = 0; i < n; i++) { /* the first one that works moves forward, if it would be cut off */
    if (list[i].status != CUDNN_STATUS_SUCCESS) continue;
    if (i < requested) break;
    perf kept = list[i];
    list[i] = list[requested - 1];
    list[requested - 1] = kept;
    break;
  }
  return n < requested ? n : requested;
}

/* ---- questions ---- */

cudnnStatus_t cudnnGetConvolutionNdForwardOutputDim(const cudnnConvolutionDescriptor_t conv,
                                                    const cudnnTensorDescriptor_t x, const cudnnFilterDescriptor_t w,
                                                    int nd, int dim[]) {
  if (!sim_object_is(conv, SIM_CUDNN_CONVOLUTION) || !sim_cudnn_is_tensor(x) || !sim_cudnn_is_filter(w) || dim == NULL)
    return SIM_CUDNN_REFUSE(CUDNN_STATUS_BAD_PARAM, "a descriptor does not live or is not set");
  if (x->nd != w->nd || x->nd != conv->nd + 2 || nd != x->nd || x->dim[1] != w->dim[1] * conv->groups)
    return SIM_CUDNN_REFUSE(CUDNN_STATUS_BAD_PARAM, "x, filter and convolution do not fit each other");
  dim[0] = x->dim[0];
  dim[1] = w->dim[0];
  for (int d = 0; d < conv->nd; d++) {
    dim[2 + d] = (int)sim_conv_length(x->dim[2 + d], w->dim[2 + d], conv->pad[d], conv->step[d], conv->dilation[d]);
    if (dim[2 + d] <= 0) return SIM_CUDNN_REFUSE(CUDNN_STATUS_BAD_PARAM, "the output is empty");
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetConvolution2dForwardOutputDim(const cudnnConvolutionDescriptor_t conv,
                                                    const cudnnTensorDescriptor_t x, const cudnnFilterDescriptor_t w,
                                                    int *n, int *c, int *h, int *width) {
  int dim[4];
  cudnnStatus_t s = cudnnGetConvolutionNdForwardOutputDim(conv, x, w, 4, dim);
  if (s != CUDNN_STATUS_SUCCESS) return s;
  *n = dim[0], *c = dim[1], *h = dim[2], *width = dim[3];
  return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t ask_workspace(cudnnHandle_t handle, direction d, const cudnnTensorDescriptor_t x,
                                   const cudnnFilterDescriptor_t w, const cudnnConvolutionDescriptor_t conv,
                                   const cudnnTensorDescriptor_t y, int algo, size_t *bytes) {
  problem p;
  const way *found = NULL;
  if (!sim_object_is(handle, SIM_CUDNN_HANDLE) || bytes == NULL)
    return SIM_CUDNN_REFUSE(CUDNN_STATUS_BAD_PARAM, "not a live handle, or no place for the size");
  cudnnStatus_t s = sim_conv_read(x, w, conv, y, &p);
  if (s == CUDNN_STATUS_SUCCESS) s = sim_conv_find(d, &p, algo, &found);
  if (s == CUDNN_STATUS_SUCCESS) *bytes = sim_conv_workspace(found, &p);
  return s;
}

cudnnStatus_t cudnnGetConvolutionForwardWorkspaceSize(cudnnHandle_t handle, const cudnnTensorDescriptor_t x,
                                                      const cudnnFilterDescriptor_t w,
                                                      const cudnnConvolutionDescriptor_t conv,
                                                      const cudnnTensorDescriptor_t y, cudnnConvolutionFwdAlgo_t algo,
                                                      size_t *bytes) {
  return ask_workspace(handle, FORWARD, x, w, conv, y, (int)algo, bytes);
}

cudnnStatus_t cudnnGetConvolutionBackwardDataWorkspaceSize(cudnnHandle_t handle, const cudnnFilterDescriptor_t w,
                                                           const cudnnTensorDescriptor_t dy,
                                                           const cudnnConvolutionDescriptor_t conv,
                                                           const cudnnTensorDescriptor_t dx,
                                                           cudnnConvolutionBwdDataAlgo_t algo, size_t *bytes) {
  return ask_workspace(handle, DATA, dx, w, conv, dy, (int)algo, bytes);
}

cudnnStatus_t cudnnGetConvolutionBackwardFilterWorkspaceSize(cudnnHandle_t handle, const cudnnTensorDescriptor_t x,
                                                             const cudnnTensorDescriptor_t dy,
                                                             const cudnnConvolutionDescriptor_t conv,
                                                             const cudnnFilterDescriptor_t dw,
                                                             cudnnConvolutionBwdFilterAlgo_t algo, size_t *bytes) {
  return ask_workspace(handle, FILTER, x, dw, conv, dy, (int)algo, bytes);
}

static cudnnStatus_t count_ways(cudnnHandle_t handle, direction d, int *count) {
  if (!sim_object_is(handle, SIM_CUDNN_HANDLE) || count == NULL)
    return SIM_CUDNN_REFUSE(CUDNN_STATUS_BAD_PARAM, "not a live handle, or no place for the count");
  ways_of(d, count);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetConvolutionForwardAlgorithmMaxCount(cudnnHandle_t handle, int *count) {
  return count_ways(handle, FORWARD, count);
}
cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithmMaxCount(cudnnHandle_t handle, int *count) {
  return count_ways(handle, DATA, count);
}
cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithmMaxCount(cudnnHandle_t handle, int *count) {
  return count_ways(handle, FILTER, count);
}

/* The three perf structs of cuDNN differ in the type of `algo` alone. */
#define GIVE_PERFS(type, results, list, count)                                                                 \
  for (int i_ = 0; i_ < (count); i_++) {                                                                       \
    (results)[i_].algo = (type)(list)[i_].way->algo;                                                           \
    (results)[i_].status = (list)[i_].status;                                                                  \
    (results)[i_].time = (list)[i_].time;                                                                      \
    (results)[i_].memory = (list)[i_].memory;                                                                  \
    (results)[i_].determinism = (list)[i_].way->deterministic ? CUDNN_DETERMINISTIC : CUDNN_NON_DETERMINISTIC; \
    (results)[i_].mathType = (list)[i_].math;                                                                  \
  }

static cudnnStatus_t ask_ways(cudnnHandle_t handle, const char *function, direction d, const cudnnTensorDescriptor_t x,
                              const cudnnFilterDescriptor_t w, const cudnnConvolutionDescriptor_t conv,
                              const cudnnTensorDescriptor_t y, size_t limit, int requested, int *returned,
                              const void *results, problem *p, perf *list) {
  cudnnStatus_t s = sim_cudnn_begin(handle, function);
  if (s != CUDNN_STATUS_SUCCESS) return s;
  if (requested < 1 || returned == NULL || results == NULL)
    return SIM_CUDNN_REFUSE(CUDNN_STATUS_BAD_PARAM, "%s: no room for results", function);
  s = sim_conv_read(x, w, conv, y, p);
  if (s == CUDNN_STATUS_SUCCESS) *returned = list_ways(d, p, limit, requested, list);
  return s;
}

cudnnStatus_t cudnnGetConvolutionForwardAlgorithm_v7(cudnnHandle_t handle, const cudnnTensorDescriptor_t x,
                                                     const cudnnFilterDescriptor_t w,
                                                     const cudnnConvolutionDescriptor_t conv,
                                                     const cudnnTensorDescriptor_t y, const int requested,
                                                     int *returned, cudnnConvolutionFwdAlgoPerf_t *results) {
  problem p;
  perf list[MAX_WAYS];
  cudnnStatus_t s =
      ask_ways(handle, __func__, FORWARD, x, w, conv, y, SIZE_MAX, requested, returned, results, &p, list);
  if (s != CUDNN_STATUS_SUCCESS) return s;
  GIVE_PERFS(cudnnConvolutionFwdAlgo_t, results, list, *returned)
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithm_v7(cudnnHandle_t handle, const cudnnFilterDescriptor_t w,
                                                          const cudnnTensorDescriptor_t dy,
                                                          const cudnnConvolutionDescriptor_t conv,
                                                          const cudnnTensorDescriptor_t dx, const int requested,
                                                          int *returned, cudnnConvolutionBwdDataAlgoPerf_t *results) {
  problem p;
  perf list[MAX_WAYS];
  cudnnStatus_t s = ask_ways(handle, __func__, DATA, dx, w, conv, dy, SIZE_MAX, requested, returned, results, &p, list);
  if (s != CUDNN_STATUS_SUCCESS) return s;
  GIVE_PERFS(cudnnConvolutionBwdDataAlgo_t, results, list, *returned)
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithm_v7(cudnnHandle_t handle, const cudnnTensorDescriptor_t x,
                                                            const cudnnTensorDescriptor_t dy,
                                                            const cudnnConvolutionDescriptor_t conv,
                                                            const cudnnFilterDescriptor_t dw, const int requested,
                                                            int *returned,
                                                            cudnnConvolutionBwdFilterAlgoPerf_t *results) {
  problem p;
  perf list[MAX_WAYS];
  cudnnStatus_t s =
      ask_ways(handle, __func__, FILTER, x, dw, conv, dy, SIZE_MAX, requested, returned, results, &p, list);
  if (s != CUDNN_STATUS_SUCCESS) return s;
  GIVE_PERFS(cudnnConvolutionBwdFilterAlgo_t, results, list, *returned)
  return CUDNN_STATUS_SUCCESS;
}

/* A search measures: it waits for the device, which a captured stream does not allow, and leaves a result in `to`. */
static cudnnStatus_t find_ways(cudnnHandle_t handle, const char *function, bool null, task *t,
                               const cudnnTensorDescriptor_t x, const cudnnFilterDescriptor_t w,
                               const cudnnConvolutionDescriptor_t conv, const cudnnTensorDescriptor_t y, size_t limit,
                               int requested, int *returned, const void *results, perf *list) {
  if (null) return (cudnnStatus_t)sim_refuse(function, CUDNN_STATUS_BAD_PARAM, "an argument is NULL");
  cudnnStatus_t s =
      ask_ways(handle, function, t->direction, x, w, conv, y, limit, requested, returned, results, &t->p, list);
  if (s != CUDNN_STATUS_SUCCESS) return s;
  t->alpha = 1;
  for (int i = 0; i < *returned; i++) {
    if (list[i].status != CUDNN_STATUS_SUCCESS) continue;
    s = sim_conv_enqueue(handle, function, t, list[i].way, limit);
    if (s == CUDNN_STATUS_SUCCESS && cudaStreamSynchronize(handle->stream) != cudaSuccess)
      s = CUDNN_STATUS_EXECUTION_FAILED_CUDART;
    return s; /* what one leaves in `to`, all leave there */
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnFindConvolutionForwardAlgorithmEx(cudnnHandle_t handle, const cudnnTensorDescriptor_t x_desc,
                                                     const void *x, const cudnnFilterDescriptor_t w_desc, const void *w,
                                                     const cudnnConvolutionDescriptor_t conv,
                                                     const cudnnTensorDescriptor_t y_desc, void *y, const int requested,
                                                     int *returned, cudnnConvolutionFwdAlgoPerf_t *results,
                                                     void *workspace, size_t workspace_bytes) {
  task t = {.direction = FORWARD, .x = x, .w = w, .to = y, .workspace = workspace};
  perf list[MAX_WAYS];
  cudnnStatus_t s = find_ways(handle, __func__, ANY_NULL(x, w, y), &t, x_desc, w_desc, conv, y_desc, workspace_bytes,
                              requested, returned, results, list);
  if (s != CUDNN_STATUS_SUCCESS) return s;
  GIVE_PERFS(cudnnConvolutionFwdAlgo_t, results, list, *returned)
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnFindConvolutionBackwardDataAlgorithmEx(cudnnHandle_t handle, const cudnnFilterDescriptor_t w_desc,
                                                          const void *w, const cudnnTensorDescriptor_t dy_desc,
                                                          const void *dy, const cudnnConvolutionDescriptor_t conv,
                                                          const cudnnTensorDescriptor_t dx_desc, void *dx,
                                                          const int requested, int *returned,
                                                          cudnnConvolutionBwdDataAlgoPerf_t *results, void *workspace,
                                                          size_t workspace_bytes) {
  task t = {.direction = DATA, .w = w, .y = dy, .to = dx, .workspace = workspace};
  perf list[MAX_WAYS];
  cudnnStatus_t s = find_ways(handle, __func__, ANY_NULL(w, dy, dx), &t, dx_desc, w_desc, conv, dy_desc,
                              workspace_bytes, requested, returned, results, list);
  if (s != CUDNN_STATUS_SUCCESS) return s;
  GIVE_PERFS(cudnnConvolutionBwdDataAlgo_t, results, list, *returned)
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnFindConvolutionBackwardFilterAlgorithmEx(cudnnHandle_t handle, const cudnnTensorDescriptor_t x_desc,
                                                            const void *x, const cudnnTensorDescriptor_t dy_desc,
                                                            const void *dy, const cudnnConvolutionDescriptor_t conv,
                                                            const cudnnFilterDescriptor_t dw_desc, void *dw,
                                                            const int requested, int *returned,
                                                            cudnnConvolutionBwdFilterAlgoPerf_t *results,
                                                            void *workspace, size_t workspace_bytes) {
  task t = {.direction = FILTER, .x = x, .y = dy, .to = dw, .workspace = workspace};
  perf list[MAX_WAYS];
  cudnnStatus_t s = find_ways(handle, __func__, ANY_NULL(x, dy, dw), &t, x_desc, dw_desc, conv, dy_desc,
                              workspace_bytes, requested, returned, results, list);
  if (s != CUDNN_STATUS_SUCCESS) return s;
  GIVE_PERFS(cudnnConvolutionBwdFilterAlgo_t, results, list, *returned)
  return CUDNN_STATUS_SUCCESS;
}
