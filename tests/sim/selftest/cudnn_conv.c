/* cudnn_conv.c: the simulated convolutions of cuDNN against their definition, and what they must refuse. */
#include <cudnn.h>

#include "libraries.h"

#define DNN(call) SIM_EXPECT((call) == CUDNN_STATUS_SUCCESS)
#define DNN_REFUSES(status, call) SIM_EXPECT((call) == CUDNN_STATUS_##status)

typedef struct problem {
  number type;
  int spatial, n, groups, c, k; /* c, k of one group */
  int in[3], window[3], pad[3], step[3], dilation[3];
  cudnnTensorFormat_t format;
  cudnnConvolutionMode_t mode;
  bool gaps; /* tensors are narrowed: strides are larger than packed ones */
  double alpha, beta;
} problem;

static const problem problems[] = {
    {.spatial = 2, .n = 2, .groups = 1, .c = 3, .k = 4, .in = {7, 6}, .window = {3, 3}, .pad = {1, 1}},
    {.spatial = 2, .n = 1, .groups = 1, .c = 1, .k = 1, .in = {5, 5}, .window = {5, 5}, .pad = {2, 2}},
    {.spatial = 2, .n = 3, .groups = 2, .c = 2, .k = 5, .in = {8, 9}, .window = {3, 2}, .step = {2, 3}, .pad = {0, 1}},
    {.spatial = 2,
     .n = 2,
     .groups = 4,
     .c = 1,
     .k = 2,
     .in = {9, 9},
     .window = {3, 3},
     .dilation = {2, 3},
     .pad = {2, 3}},
    {.spatial = 2, .n = 2, .groups = 1, .c = 9, .k = 8, .in = {4, 4}, .window = {1, 1}, .beta = 0.5, .alpha = 2},
    {.spatial = 2, .n = 2, .groups = 1, .c = 2, .k = 3, .in = {6, 7}, .window = {3, 3}, .gaps = true, .beta = 1},
    {.spatial = 2, .n = 2, .groups = 1, .c = 2, .k = 3, .in = {6, 7}, .window = {2, 3}, .mode = CUDNN_CONVOLUTION},
    {.spatial = 3, .n = 2, .groups = 1, .c = 2, .k = 3, .in = {3, 4, 5}, .window = {2, 3, 3}, .pad = {1, 1, 0}},
    {.spatial = 2,
     .n = 2,
     .groups = 2,
     .c = 4,
     .k = 3,
     .in = {6, 5},
     .window = {3, 3},
     .pad = {1, 1},
     .format = CUDNN_TENSOR_NHWC},
    {.spatial = 3,
     .n = 1,
     .groups = 1,
     .c = 4,
     .k = 2,
     .in = {3, 3, 4},
     .window = {2, 2, 2},
     .format = CUDNN_TENSOR_NHWC},
};

typedef struct setting {
  problem p;
  int out[3], xs[5], ys[5], ws[5];
  cudnnHandle_t handle;
  cudnnTensorDescriptor_t x, y;
  cudnnFilterDescriptor_t w;
  cudnnConvolutionDescriptor_t conv;
  size_t x_size, y_size, w_size;
} setting;

static cudnnDataType_t dnn_type(number type) {
  return type == F64   ? CUDNN_DATA_DOUBLE
         : type == F32 ? CUDNN_DATA_FLOAT
         : type == F16 ? CUDNN_DATA_HALF
                       : CUDNN_DATA_BFLOAT16;
}

static size_t strides(const problem *p, int nd, const int *dim, int gap, int *stride) {
  int step = 1;
  if (p->format == CUDNN_TENSOR_NHWC) {
    stride[1] = 1;
    step = dim[1];
  }
  for (int d = nd - 1; d >= 0; d--) {
    if (d == 1 && p->format == CUDNN_TENSOR_NHWC) continue;
    stride[d] = step;
    step *= dim[d] + gap;
  }
  return (size_t)step;
}

static setting set_up(problem p) {
  if (p.alpha == 0) p.alpha = 1;
  for (int d = 0; d < p.spatial; d++) {
    if (p.step[d] == 0) p.step[d] = 1;
    if (p.dilation[d] == 0) p.dilation[d] = 1;
  }
  if (p.mode == 0 && p.window[0] != 2)
    p.mode = CUDNN_CROSS_CORRELATION; /* of the table: a true convolution of (2, 3) */
  setting s = {.p = p};
  int x[5] = {p.n, p.c * p.groups}, y[5] = {p.n, p.k * p.groups}, w[5] = {p.k * p.groups, p.c}, nd = p.spatial + 2;
  DNN(cudnnCreate(&s.handle));
  DNN(cudnnCreateTensorDescriptor(&s.x));
  DNN(cudnnCreateTensorDescriptor(&s.y));
  DNN(cudnnCreateFilterDescriptor(&s.w));
  DNN(cudnnCreateConvolutionDescriptor(&s.conv));
  DNN(cudnnSetConvolutionNdDescriptor(s.conv, p.spatial, p.pad, p.step, p.dilation, p.mode,
                                      p.type == F64 ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT));
  DNN(cudnnSetConvolutionGroupCount(s.conv, p.groups));
  DNN(cudnnSetConvolutionMathType(s.conv, CUDNN_FMA_MATH));
  for (int d = 0; d < p.spatial; d++) {
    x[2 + d] = p.in[d];
    w[2 + d] = p.window[d];
    y[2 + d] = (p.in[d] + 2 * p.pad[d] - p.dilation[d] * (p.window[d] - 1) - 1) / p.step[d] + 1;
    s.out[d] = y[2 + d];
  }
  s.x_size = strides(&p, nd, x, p.gaps ? 2 : 0, s.xs);
  s.y_size = strides(&p, nd, y, p.gaps ? 1 : 0, s.ys);
  s.w_size = strides(&p, nd, w, 0, s.ws);
  DNN(cudnnSetTensorNdDescriptor(s.x, dnn_type(p.type), nd, x, s.xs));
  DNN(cudnnSetTensorNdDescriptor(s.y, dnn_type(p.type), nd, y, s.ys));
  DNN(cudnnSetFilterNdDescriptor(s.w, dnn_type(p.type), p.format, nd, w));
  int dim[5];
  DNN(cudnnGetConvolutionNdForwardOutputDim(s.conv, s.x, s.w, nd, dim));
  SIM_EXPECT(memcmp(dim, y, (size_t)nd * sizeof(int)) == 0);
  return s;
}

static void tear_down(setting *s) {
  DNN(cudnnDestroyTensorDescriptor(s->x));
  DNN(cudnnDestroyTensorDescriptor(s->y));
  DNN(cudnnDestroyFilterDescriptor(s->w));
  DNN(cudnnDestroyConvolutionDescriptor(s->conv));
  DNN(cudnnDestroy(s->handle));
}

/* ---- the definition: every triple (x, w, y) of elements that belong together, with its places ---- */

typedef struct triple {
  size_t x, w, y;
} triple;
typedef void triple_fn(void *state, triple t);

static void each_triple(const setting *s, triple_fn *visit, void *state) {
  const problem *p = &s->p;
  int out[3] = {1, 1, 1}, window[3] = {1, 1, 1}, first = 3 - p->spatial; /* the missing leading dims are 1 */
  for (int d = 0; d < p->spatial; d++) out[first + d] = s->out[d], window[first + d] = p->window[d];
  for (int n = 0; n < p->n; n++)
    for (int k = 0; k < p->k * p->groups; k++)
      for (int c = 0; c < p->c; c++)
        for (int o = 0; o < out[0] * out[1] * out[2]; o++)
          for (int v = 0; v < window[0] * window[1] * window[2]; v++) {
            int at[3] = {o / (out[1] * out[2]), o / out[2] % out[1], o % out[2]};
            int tap[3] = {v / (window[1] * window[2]), v / window[2] % window[1], v % window[2]};
            size_t x = (size_t)(n * s->xs[0] + (k / p->k * p->c + c) * s->xs[1]);
            size_t w = (size_t)(k * s->ws[0] + c * s->ws[1]), y = (size_t)(n * s->ys[0] + k * s->ys[1]);
            bool inside = true;
            for (int d = 0; d < p->spatial; d++) {
              int t = tap[first + d], i = at[first + d] * p->step[d] - p->pad[d] + t * p->dilation[d];
              inside = inside && i >= 0 && i < p->in[d];
              x += (size_t)(i * s->xs[2 + d]);
              w += (size_t)((p->mode == CUDNN_CONVOLUTION ? p->window[d] - 1 - t : t) * s->ws[2 + d]);
              y += (size_t)(at[first + d] * s->ys[2 + d]);
            }
            if (inside) visit(state, (triple){x, w, y});
          }
}

typedef struct sums {
  const array *x, *w, *y;
  double *x_sum, *w_sum, *y_sum;
} sums;

static void add_all(void *state, triple t) {
  sums *s = state;
  s->y_sum[t.y] += s->x->value[t.x] * s->w->value[t.w];
  s->x_sum[t.x] += s->y->value[t.y] * s->w->value[t.w];
  s->w_sum[t.w] += s->x->value[t.x] * s->y->value[t.y];
}

/* Which places belong to the tensor: those that a triple, or a place without any, has. */
static void expect(const setting *s, array *to, const double *sum, int nd, const int *dim, const int *stride) {
  size_t count = 1;
  for (int d = 0; d < nd; d++) count *= (size_t)dim[d];
  for (size_t i = 0; i < count; i++) {
    size_t rest = i, at = 0;
    for (int d = nd - 1; d >= 0; d--) {
      at += rest % (size_t)dim[d] * (size_t)stride[d];
      rest /= (size_t)dim[d];
    }
    to->value[at] = s->p.alpha * sum[at] + (s->p.beta == 0 ? 0 : s->p.beta * to->value[at]);
  }
}

static void *workspace_of(size_t bytes) {
  void *p = NULL;
  if (bytes > 0) SIM_OK(cudaMalloc(&p, bytes));
  return p;
}

enum { LIMIT = 64 << 20 };

#define EACH_ALGORITHM(PERF, GET, ...)               \
  PERF found[8];                                     \
  int count = 0, good = 0;                           \
  DNN(GET(s.handle, __VA_ARGS__, 8, &count, found)); \
  SIM_EXPECT(count >= 5);                            \
  for (int i = 0; i < count; i++)                    \
    if (found[i].status == CUDNN_STATUS_SUCCESS && found[i].memory <= LIMIT && ++good)

static void check(problem one) {
  setting s = set_up(one);
  const problem *p = &s.p;
  array x = array_random(p->type, s.x_size, 1), w = array_random(p->type, s.w_size, 2);
  array y = array_random(p->type, s.y_size, 3);
  sums sum = {&x, &w, &y, calloc(s.x_size, 8), calloc(s.w_size, 8), calloc(s.y_size, 8)};
  each_triple(&s, add_all, &sum);
  float alpha32 = (float)p->alpha, beta32 = (float)p->beta;
  const void *alpha = p->type == F64 ? (const void *)&p->alpha : &alpha32;
  const void *beta = p->type == F64 ? (const void *)&p->beta : &beta32;
  int nd = p->spatial + 2, x_dim[5] = {p->n, p->c * p->groups}, y_dim[5] = {p->n, p->k * p->groups};
  int w_dim[5] = {p->k * p->groups, p->c};
  for (int d = 0; d < p->spatial; d++) x_dim[2 + d] = p->in[d], y_dim[2 + d] = s.out[d], w_dim[2 + d] = p->window[d];
  {
    EACH_ALGORITHM(cudnnConvolutionFwdAlgoPerf_t, cudnnGetConvolutionForwardAlgorithm_v7, s.x, s.w, s.conv, s.y) {
      array to = array_random(p->type, s.y_size, 4);
      void *workspace = workspace_of(found[i].memory);
      DNN(cudnnConvolutionForward(s.handle, alpha, s.x, x.device, s.w, w.device, s.conv, found[i].algo, workspace,
                                  found[i].memory, beta, s.y, to.device));
      expect(&s, &to, sum.y_sum, nd, y_dim, s.ys);
      array_check(&to, "forward");
      array_free(&to);
      SIM_OK(cudaFree(workspace));
    }
    SIM_EXPECT(good > 0);
  }
  {
    EACH_ALGORITHM(cudnnConvolutionBwdDataAlgoPerf_t, cudnnGetConvolutionBackwardDataAlgorithm_v7, s.w, s.y, s.conv,
                   s.x) {
      array to = array_random(p->type, s.x_size, 4);
      void *workspace = workspace_of(found[i].memory);
      DNN(cudnnConvolutionBackwardData(s.handle, alpha, s.w, w.device, s.y, y.device, s.conv, found[i].algo, workspace,
                                       found[i].memory, beta, s.x, to.device));
      expect(&s, &to, sum.x_sum, nd, x_dim, s.xs);
      array_check(&to, "backward data");
      array_free(&to);
      SIM_OK(cudaFree(workspace));
    }
    SIM_EXPECT(good > 0);
  }
  {
    EACH_ALGORITHM(cudnnConvolutionBwdFilterAlgoPerf_t, cudnnGetConvolutionBackwardFilterAlgorithm_v7, s.x, s.y, s.conv,
                   s.w) {
      array to = array_random(p->type, s.w_size, 4);
      void *workspace = workspace_of(found[i].memory);
      DNN(cudnnConvolutionBackwardFilter(s.handle, alpha, s.x, x.device, s.y, y.device, s.conv, found[i].algo,
                                         workspace, found[i].memory, beta, s.w, to.device));
      expect(&s, &to, sum.w_sum, nd, w_dim, s.ws);
      array_check(&to, "backward filter");
      array_free(&to);
      SIM_OK(cudaFree(workspace));
    }
    SIM_EXPECT(good > 0);
  }
  free(sum.x_sum);
  free(sum.w_sum);
  free(sum.y_sum);
  array_free(&x);
  array_free(&w);
  array_free(&y);
  tear_down(&s);
}

static void check_all(number type) {
  for (size_t i = 0; i < sizeof problems / sizeof *problems; i++) {
    problem p = problems[i];
    p.type = type;
    if (type != F64 || p.format != CUDNN_TENSOR_NHWC) check(p);
  }
}

SIM_CLEAN(cudnn_convolutions_of_float32) { check_all(F32); }
SIM_CLEAN_WITH(cudnn_convolutions_of_float64, "TLUA_SIM_SEED=1") { check_all(F64); }
SIM_CLEAN_WITH(cudnn_convolutions_of_float16, "TLUA_SIM_SEED=2") { check_all(F16); }
SIM_CLEAN_WITH(cudnn_convolutions_of_bfloat16, "TLUA_SIM_SEED=3") { check_all(BF16); }

/* ---- what float32 loses to tensor cores, and atomic sums to their order ---- */

static array forward_of(setting *s, const array *x, const array *w) {
  float one = 1, zero = 0;
  array y = array_full(F32, s->y_size, 0);
  DNN(cudnnConvolutionForward(s->handle, &one, s->x, x->device, s->w, w->device, s->conv,
                              CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM, NULL, 0, &zero, s->y, y.device));
  float *host = malloc(s->y_size * 4);
  SIM_OK(cudaDeviceSynchronize());
  SIM_OK(cudaMemcpy(host, y.device, s->y_size * 4, cudaMemcpyDeviceToHost));
  for (size_t i = 0; i < s->y_size; i++) y.value[i] = host[i];
  free(host);
  return y;
}

static double distance(const array *a, const array *b) {
  double most = 0;
  for (size_t i = 0; i < a->n; i++) most = fmax(most, fabs(a->value[i] - b->value[i]));
  return most;
}

SIM_CLEAN(cudnn_float32_without_FMA_MATH_is_tf32) {
  setting s = set_up(problems[0]);
  array x = array_random(F32, s.x_size, 1), w = array_random(F32, s.w_size, 2), fma = forward_of(&s, &x, &w);
  DNN(cudnnSetConvolutionMathType(s.conv, CUDNN_DEFAULT_MATH));
  array tf32 = forward_of(&s, &x, &w);
  SIM_EXPECT(distance(&fma, &tf32) > 1e-5 && distance(&fma, &tf32) < 1e-2);
}

SIM_CLEAN(cudnn_only_some_algorithms_repeat_bit_for_bit) {
  problem p = problems[0];
  p.n = 16;
  setting s = set_up(p);
  array x = array_random(F32, s.x_size, 1), y = array_random(F32, s.y_size, 2);
  float one = 1, zero = 0, *first = malloc(s.w_size * 4), *again = malloc(s.w_size * 4);
  int same[2] = {0, 0};
  void *workspace = workspace_of(1 << 20), *dw;
  SIM_OK(cudaMalloc(&dw, s.w_size * 4));
  for (int exact = 0; exact < 2; exact++)
    for (int i = 0; i < 5; i++) {
      DNN(cudnnConvolutionBackwardFilter(s.handle, &one, s.x, x.device, s.y, y.device, s.conv,
                                         exact ? CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1
                                               : CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0,
                                         workspace, 1 << 20, &zero, s.w, dw));
      SIM_OK(cudaDeviceSynchronize());
      SIM_OK(cudaMemcpy(i == 0 ? first : again, dw, s.w_size * 4, cudaMemcpyDeviceToHost));
      same[exact] += i > 0 && memcmp(first, again, s.w_size * 4) == 0;
    }
  SIM_EXPECT(same[0] < 4 && same[1] == 4);
}

/* ---- bias ---- */

SIM_CLEAN(cudnn_bias_forward_and_back) {
  setting s = set_up(problems[0]);
  int channels = s.p.k, points = s.out[0] * s.out[1];
  cudnnTensorDescriptor_t bias_desc;
  DNN(cudnnCreateTensorDescriptor(&bias_desc));
  DNN(cudnnSetTensor4dDescriptor(bias_desc, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, 1, channels, 1, 1));
  array y = array_random(F32, s.y_size, 1), bias = array_random(F32, (size_t)channels, 2);
  float one = 1, half = 0.5f;
  DNN(cudnnAddTensor(s.handle, &one, bias_desc, bias.device, &half, s.y, y.device));
  for (size_t i = 0; i < s.y_size; i++)
    y.value[i] = 0.5 * y.value[i] + bias.value[i / (size_t)points % (size_t)channels];
  array_check(&y, "y + bias");
  DNN(cudnnConvolutionBackwardBias(s.handle, &half, s.y, y.device, &one, bias_desc, bias.device));
  for (size_t i = 0; i < s.y_size; i++) bias.value[i / (size_t)points % (size_t)channels] += 0.5 * y.value[i];
  array_check(&bias, "bias gradient");
}

SIM_CLEAN(cudnn_convolution_bias_and_relu_in_one) {
  setting s = set_up(problems[0]);
  cudnnTensorDescriptor_t bias_desc;
  cudnnActivationDescriptor_t relu;
  DNN(cudnnCreateTensorDescriptor(&bias_desc));
  DNN(cudnnCreateActivationDescriptor(&relu));
  DNN(cudnnSetActivationDescriptor(relu, CUDNN_ACTIVATION_RELU, CUDNN_PROPAGATE_NAN, 0));
  DNN(cudnnSetTensor4dDescriptor(bias_desc, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, 1, s.p.k, 1, 1));
  array x = array_random(F32, s.x_size, 1), w = array_random(F32, s.w_size, 2), y = array_random(F32, s.y_size, 3);
  array bias = array_random(F32, (size_t)s.p.k, 4), z = array_random(F32, s.y_size, 5);
  sums sum = {&x, &w, &y, calloc(s.x_size, 8), calloc(s.w_size, 8), calloc(s.y_size, 8)};
  each_triple(&s, add_all, &sum);
  float one = 1, half = 0.5f;
  DNN(cudnnConvolutionBiasActivationForward(s.handle, &one, s.x, x.device, s.w, w.device, s.conv,
                                            CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM, NULL, 0, &half, s.y, z.device,
                                            bias_desc, bias.device, relu, s.y, y.device));
  for (size_t i = 0; i < s.y_size; i++) {
    size_t k = i / (size_t)(s.out[0] * s.out[1]) % (size_t)s.p.k;
    y.value[i] = fmax(sum.y_sum[i] + 0.5 * z.value[i] + bias.value[k], 0);
  }
  array_check(&y, "fused");
  DNN(cudnnSetActivationDescriptor(relu, CUDNN_ACTIVATION_IDENTITY, CUDNN_PROPAGATE_NAN, 0));
  DNN_REFUSES(NOT_SUPPORTED,
              cudnnConvolutionBiasActivationForward(s.handle, &one, s.x, x.device, s.w, w.device, s.conv,
                                                    CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM, NULL, 0, &half, s.y,
                                                    z.device, bias_desc, bias.device, relu, s.y, y.device));
}

/* ---- searches and refusals ---- */

typedef struct call {
  setting s;
  array x, w, y;
} call;

static call make_call(problem p) {
  call c = {.s = set_up(p)};
  c.x = array_random(p.type, c.s.x_size, 1);
  c.w = array_random(p.type, c.s.w_size, 2);
  c.y = array_random(p.type, c.s.y_size, 3);
  return c;
}

static cudnnStatus_t forward(const call *c, cudnnConvolutionFwdAlgo_t algo, void *workspace, size_t bytes) {
  float one = 1, zero = 0;
  return cudnnConvolutionForward(c->s.handle, &one, c->s.x, c->x.device, c->s.w, c->w.device, c->s.conv, algo,
                                 workspace, bytes, &zero, c->s.y, c->y.device);
}

SIM_CLEAN(cudnn_search_tells_what_the_workspace_allows) {
  call c = make_call(problems[0]);
  cudnnConvolutionFwdAlgoPerf_t found[8];
  int count = 0, good = 0, poor = 0, bad = 0;
  void *workspace = workspace_of(256);
  DNN(cudnnFindConvolutionForwardAlgorithmEx(c.s.handle, c.s.x, c.x.device, c.s.w, c.w.device, c.s.conv, c.s.y,
                                             c.y.device, 8, &count, found, workspace, 256));
  for (int i = 0; i < count; i++) {
    good += found[i].status == CUDNN_STATUS_SUCCESS && found[i].memory <= 256;
    poor += found[i].status == CUDNN_STATUS_ALLOC_FAILED && found[i].memory > 256;
    bad += found[i].status == CUDNN_STATUS_NOT_SUPPORTED;
  }
  SIM_EXPECT(good > 0 && poor > 0 && good + poor + bad == count);
  setting s = c.s;
  DNN(cudnnGetConvolutionForwardAlgorithm_v7(s.handle, s.x, s.w, s.conv, s.y, 1, &count, found));
  SIM_EXPECT(count == 1 && found[0].status == CUDNN_STATUS_SUCCESS);
}

/* Whoever takes the first of the list without a look at its status and its memory fails under some seed. */
SIM_CLEAN(cudnn_heuristic_orders_by_the_seed) {
  setting s = set_up(problems[2]);
  int failing = 0, large = 0;
  for (int seed = 0; seed < 30; seed++) {
    cudnnConvolutionFwdAlgoPerf_t found[8];
    int count = 0;
    char text[16];
    snprintf(text, sizeof text, "%d", seed);
    setenv("TLUA_SIM_SEED", text, 1);
    DNN(cudnnGetConvolutionForwardAlgorithm_v7(s.handle, s.x, s.w, s.conv, s.y, 8, &count, found));
    failing += found[0].status != CUDNN_STATUS_SUCCESS;
    large += found[0].status == CUDNN_STATUS_SUCCESS && found[0].memory > 0;
  }
  SIM_EXPECT(failing > 0 && large > 0 && failing + large < 30);
}

SIM_CLEAN(cudnn_needs_the_workspace_it_asked_for) {
  call c = make_call(problems[0]);
  size_t bytes = 0;
  cudnnConvolutionFwdAlgo_t gemm = CUDNN_CONVOLUTION_FWD_ALGO_GEMM;
  DNN(cudnnGetConvolutionForwardWorkspaceSize(c.s.handle, c.s.x, c.s.w, c.s.conv, c.s.y, gemm, &bytes));
  SIM_EXPECT(bytes > 0);
  void *workspace = workspace_of(bytes);
  DNN_REFUSES(BAD_PARAM, forward(&c, gemm, NULL, 0));
  DNN_REFUSES(BAD_PARAM, forward(&c, gemm, NULL, bytes));
  DNN_REFUSES(BAD_PARAM, forward(&c, gemm, workspace, bytes - 1));
  DNN(forward(&c, gemm, workspace, bytes));
}

SIM_CLEAN(cudnn_refuses_what_an_algorithm_cannot_do) {
  void *workspace = workspace_of(4 << 20);
  call dilated = make_call(problems[3]), narrowed = make_call(problems[5]), nhwc = make_call(problems[8]);
  DNN_REFUSES(NOT_SUPPORTED, forward(&dilated, CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD, workspace, 4 << 20));
  DNN_REFUSES(NOT_SUPPORTED, forward(&dilated, CUDNN_CONVOLUTION_FWD_ALGO_DIRECT, workspace, 4 << 20));
  DNN_REFUSES(NOT_SUPPORTED, forward(&narrowed, CUDNN_CONVOLUTION_FWD_ALGO_GEMM, workspace, 4 << 20));
  DNN_REFUSES(NOT_SUPPORTED, forward(&nhwc, CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM, NULL, 0));
  DNN(cudnnSetFilter4dDescriptor(nhwc.s.w, CUDNN_DATA_FLOAT, CUDNN_TENSOR_NCHW, 6, 4, 3, 3));
  DNN_REFUSES(NOT_SUPPORTED, forward(&nhwc, CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM, workspace, 4 << 20));
}

SIM_CLEAN(cudnn_refuses_descriptors_that_do_not_fit) {
  call c = make_call(problems[0]); /* (2, 3, 7, 6), 4 filters of (3, 3, 3) */
  cudnnConvolutionFwdAlgo_t algo = CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM;
  DNN(forward(&c, algo, NULL, 0));
  DNN(cudnnSetTensor4dDescriptor(c.s.y, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, 2, 4, 7, 5));
  DNN_REFUSES(BAD_PARAM, forward(&c, algo, NULL, 0));
  DNN(cudnnSetTensor4dDescriptor(c.s.y, CUDNN_TENSOR_NCHW, CUDNN_DATA_HALF, 2, 4, 7, 6));
  DNN_REFUSES(BAD_PARAM, forward(&c, algo, NULL, 0));
  DNN(cudnnSetTensor4dDescriptor(c.s.y, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, 2, 4, 7, 6));
  DNN(cudnnSetConvolutionGroupCount(c.s.conv, 3));
  DNN_REFUSES(BAD_PARAM, forward(&c, algo, NULL, 0));
  DNN(cudnnSetConvolutionGroupCount(c.s.conv, 1));
  DNN(cudnnSetConvolution2dDescriptor(c.s.conv, 1, 1, 1, 1, 1, 1, CUDNN_CROSS_CORRELATION, CUDNN_DATA_HALF));
  DNN_REFUSES(NOT_SUPPORTED, forward(&c, algo, NULL, 0));
  char text[256];
  cudnnGetLastErrorString(text, sizeof text);
  SIM_EXPECT(strstr(text, "compute type") != NULL);
  c.x.device = NULL;
  DNN_REFUSES(BAD_PARAM, forward(&c, algo, NULL, 0));
}

SIM_CLEAN(cudnn_refuses_bad_descriptors) {
  cudnnTensorDescriptor_t t;
  cudnnFilterDescriptor_t f;
  cudnnConvolutionDescriptor_t c;
  DNN(cudnnCreateTensorDescriptor(&t));
  DNN(cudnnCreateFilterDescriptor(&f));
  DNN(cudnnCreateConvolutionDescriptor(&c));
  int three[3] = {1, 2, 3}, ones[4] = {1, 1, 1, 1}, none[4] = {1, 0, 1, 1}, twos[4] = {2, 2, 2, 2};
  DNN_REFUSES(NOT_SUPPORTED, cudnnSetTensorNdDescriptor(t, CUDNN_DATA_FLOAT, 3, three, three));
  DNN_REFUSES(BAD_PARAM, cudnnSetTensorNdDescriptor(t, CUDNN_DATA_FLOAT, 4, none, ones));
  DNN(cudnnSetTensorNdDescriptor(t, CUDNN_DATA_FLOAT, 4, ones, none));
  DNN_REFUSES(BAD_PARAM, cudnnSetTensorNdDescriptor(t, CUDNN_DATA_FLOAT, 4, twos, none));
  DNN_REFUSES(NOT_SUPPORTED, cudnnSetTensor4dDescriptor(t, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, 65536, 65536, 1, 1));
  DNN_REFUSES(NOT_SUPPORTED, cudnnSetTensor4dDescriptor(t, CUDNN_TENSOR_NCHW, CUDNN_DATA_INT32, 1, 1, 1, 1));
  DNN_REFUSES(BAD_PARAM, cudnnSetFilterNdDescriptor(f, CUDNN_DATA_FLOAT, CUDNN_TENSOR_NCHW, 4, none));
  DNN_REFUSES(BAD_PARAM,
              cudnnSetConvolution2dDescriptor(c, 0, 0, 0, 1, 1, 1, CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT));
  DNN_REFUSES(BAD_PARAM, cudnnSetConvolutionGroupCount(c, 0));
  DNN(cudnnDestroyTensorDescriptor(t));
  DNN_REFUSES(BAD_PARAM, cudnnDestroyTensorDescriptor(t));
  DNN(cudnnDestroyTensorDescriptor(NULL));
  DNN(cudnnDestroy(NULL));
  DNN_REFUSES(BAD_PARAM, cudnnSetTensor4dDescriptor(t, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, 1, 1, 1, 1));
}

SIM_CLEAN_WITH(cudnn_calls_fail_on_request, "TLUA_SIM_FAIL=1") {
  cudnnHandle_t handle;
  DNN_REFUSES(NOT_INITIALIZED, cudnnCreate(&handle));
}

SIM_FAULT(cudnn_workspace_over_the_result, "overlap", "cudnnConvolutionForward") {
  call c = make_call(problems[0]);
  size_t bytes = 0;
  cudnnConvolutionFwdAlgo_t gemm = CUDNN_CONVOLUTION_FWD_ALGO_GEMM;
  DNN(cudnnGetConvolutionForwardWorkspaceSize(c.s.handle, c.s.x, c.s.w, c.s.conv, c.s.y, gemm, &bytes));
  forward(&c, gemm, c.y.device, bytes);
}

SIM_FAULT_WITH(cudnn_handle_of_another_device, "wrong device", "handle of device 0", "TLUA_SIM_DEVICES=2") {
  call c = make_call(problems[0]);
  SIM_OK(cudaSetDevice(1));
  forward(&c, CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM, NULL, 0);
}

/* A handle that is made while a stream is captured in the global mode spoils the capture. */
SIM_CLEAN(cudnn_handles_are_not_made_in_a_capture) {
  cudaStream_t s;
  cudaGraph_t graph;
  cudnnHandle_t handle;
  SIM_OK(cudaStreamCreate(&s));
  SIM_OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
  DNN_REFUSES(NOT_INITIALIZED, cudnnCreate(&handle));
  SIM_EXPECT(cudaStreamEndCapture(s, &graph) == cudaErrorStreamCaptureInvalidated);
  enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  SIM_OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
  SIM_OK(cudaThreadExchangeStreamCaptureMode(&mode));
  DNN(cudnnCreate(&handle));
  SIM_OK(cudaThreadExchangeStreamCaptureMode(&mode));
  SIM_OK(cudaStreamEndCapture(s, &graph));
}
