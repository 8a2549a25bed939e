/* cudnn_conv.c: cuDNN's convolutions (2-d and 3-d, grouped, dilated, strided, NCHW and NHWC) as products over unrolled
 * windows, in float64, rounded to float32 and then to the tensor's type. The algorithms of the real library are all listed
 * and differ as there: in what they refuse, in the workspace they need and overwrite, and in whether two runs give the
 * same bits. float32 with any math type but CUDNN_FMA_MATH may use the tensor cores: factors are rounded to TF32. */
#include <stdlib.h>
#include <string.h>

#include "cudnn_descriptors.h"

/* ---- a problem ---- */

typedef enum direction { FORWARD, DATA, FILTER } direction;

typedef struct problem {
  sim_type type;
  bool nhwc, any_strides, tf32, flipped;
  int64_t n, groups, c, k;                                        /* c, k of one group */
  int64_t in[3], out[3], window[3], pad[3], step[3], dilation[3]; /* (depth, height, width) */
  int64_t xn, xc, xs[3], yn, yc, ys[3], wk, wc, ws[3];            /* strides in elements */
  size_t x_bytes, y_bytes, w_bytes;
  int spatial;
} problem;

static int64_t points(const int64_t *dim) { return dim[0] * dim[1] * dim[2]; }

static int64_t out_length(int64_t in, int64_t window, int64_t pad, int64_t step, int64_t dilation) {
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

static cudnnStatus_t read_problem(const struct cudnnTensorStruct *x, const struct cudnnFilterStruct *w,
                                  const struct cudnnConvolutionStruct *conv, const struct cudnnTensorStruct *y,
                                  problem *p) {
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
    int64_t length = out_length(p->in[d], p->window[d], p->pad[d], p->step[d], p->dilation[d]);
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

typedef enum workspace { NONE, INDICES, COLUMNS, SPECTRUM, TILES, COPIES } workspace;

typedef struct way {
  int algo;
  bool deterministic;
  int demands; /* ANY_STRIDES, NHWC: what it can do; SINGLE: float32 only; FLAT: 2-d only */
  workspace workspace;
} way;

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

enum { MAX_WAYS = 8 };
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
static size_t workspace_of(const way *w, const problem *p) {
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

static cudnnStatus_t find_way(direction d, const problem *p, int algo, const way **out) {
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

typedef struct perf {
  const way *way;
  cudnnStatus_t status;
  float time;
  size_t memory;
  cudnnMathType_t math;
} perf;

/* All algorithms in an order that follows from the seed, and at least one that works among the first `requested`. limit:
 * the workspace at hand. */
static int list_ways(direction d, const problem *p, size_t limit, int requested, perf *list) {
  int count, order[MAX_WAYS], n = 0;
  const way *w = ways_of(d, &count);
  sim_library_shuffle(order, count, (uint64_t)(p->n * 131 + p->c * 31 + p->k * 7 + points(p->out)));
  for (int i = 0; i < count; i++) {
    const way *one = &w[order[i]];
    perf f = {.way = one, .memory = workspace_of(one, p), .time = (float)(i + 1) * 0.01f};
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

/* ---- the loops ---- */

typedef struct task {
  problem p;
  direction direction;
  bool deterministic;
  const void *x, *w, *y; /* what is read */
  void *to, *workspace;
  size_t workspace_bytes;
  double alpha, beta;
  const void *z, *bias; /* forward with an activation, or NULL */
  int64_t zn, zc, zs[3];
  double alpha_z;
  bool relu;
} task;

/* out(channels, points) = one image of one group */
static void load_image(const problem *p, const void *base, int64_t at, int64_t channels, int64_t c_stride,
                       const int64_t *dim, const int64_t *stride, double *out) {
  double *to = out;
  for (int64_t c = 0; c < channels; c++)
    for (int64_t d = 0; d < dim[0]; d++)
      for (int64_t h = 0; h < dim[1]; h++, to += dim[2])
        sim_unpack(p->type, base, at + c * c_stride + d * stride[0] + h * stride[1], dim[2], stride[2], to);
  if (p->tf32)
    for (double *v = out; v < to; v++) *v = sim_to_tf32(*v);
}

/* Where the taps of window (c, d, h, w) lie in the filter: mirrored for a true convolution. */
static int64_t filter_at(const problem *p, int64_t k, int64_t c, const int64_t *tap) {
  int64_t at = k * p->wk + c * p->wc;
  for (int d = 0; d < 3; d++) at += (p->flipped ? p->window[d] - 1 - tap[d] : tap[d]) * p->ws[d];
  return at;
}

/* Visits the windows' rows: for (c, tap), each (out depth, out height), the run of output columns [from, to) whose input
 * lies inside the image. */
typedef void row_fn(void *state, int64_t row, int64_t out_at, int64_t in_at, int64_t from, int64_t to, int64_t step);

__attribute__((always_inline)) static inline void each_row(const problem *p, row_fn *visit, void *state) {
  int64_t row = 0;
  for (int64_t c = 0; c < p->c; c++)
    for (int64_t a = 0; a < p->window[0]; a++)
      for (int64_t b = 0; b < p->window[1]; b++)
        for (int64_t e = 0; e < p->window[2]; e++, row++) {
          int64_t shift = e * p->dilation[2] - p->pad[2], from = 0, to = p->out[2];
          while (from < to && from * p->step[2] + shift < 0) from++;
          while (to > from && (to - 1) * p->step[2] + shift >= p->in[2]) to--;
          for (int64_t d = 0; d < p->out[0]; d++)
            for (int64_t h = 0; h < p->out[1]; h++) {
              int64_t in_d = d * p->step[0] + a * p->dilation[0] - p->pad[0];
              int64_t in_h = h * p->step[1] + b * p->dilation[1] - p->pad[1];
              if (in_d < 0 || in_d >= p->in[0] || in_h < 0 || in_h >= p->in[1]) continue;
              visit(state, row, (d * p->out[1] + h) * p->out[2],
                    ((c * p->in[0] + in_d) * p->in[1] + in_h) * p->in[2] + shift, from, to, p->step[2]);
            }
        }
}

typedef struct columns {
  double *image, *column;
  int64_t points;
} columns;

static void gather(void *state, int64_t row, int64_t out_at, int64_t in_at, int64_t from, int64_t to, int64_t step) {
  columns *s = state;
  double *to_row = s->column + row * s->points + out_at;
  for (int64_t w = from; w < to; w++) to_row[w] = s->image[in_at + w * step];
}

static void scatter(void *state, int64_t row, int64_t out_at, int64_t in_at, int64_t from, int64_t to, int64_t step) {
  columns *s = state;
  const double *from_row = s->column + row * s->points + out_at;
  for (int64_t w = from; w < to; w++) s->image[in_at + w * step] += from_row[w];
}

/* w(k, c * taps) of one group */
static void load_filter(const task *t, int64_t group, double *out) {
  const problem *p = &t->p;
  for (int64_t k = 0; k < p->k; k++)
    for (int64_t c = 0; c < p->c; c++)
      for (int64_t a = 0; a < p->window[0]; a++)
        for (int64_t b = 0; b < p->window[1]; b++)
          for (int64_t e = 0; e < p->window[2]; e++)
            *out++ = sim_load(p->type, t->w, filter_at(p, group * p->k + k, c, (int64_t[]){a, b, e}));
  if (p->tf32)
    for (double *v = out - p->k * p->c * points(p->window); v < out; v++) *v = sim_to_tf32(*v);
}

/* alpha conv + alpha_z z + bias, then the activation: in float32, as all that ends in a low type */
static void finish_forward(const task *t, int64_t n, int64_t k, double *sum) {
  const problem *p = &t->p;
  int64_t i = 0;
  double bias = t->bias == NULL ? 0 : sim_load(p->type, t->bias, k);
  for (int64_t d = 0; d < p->out[0]; d++)
    for (int64_t h = 0; h < p->out[1]; h++)
      for (int64_t w = 0; w < p->out[2]; w++, i++) {
        double v = t->alpha * sum[i] + bias;
        if (t->z != NULL && t->alpha_z != 0)
          v += t->alpha_z * sim_load(p->type, t->z, n * t->zn + k * t->zc + d * t->zs[0] + h * t->zs[1] + w * t->zs[2]);
        sum[i] = t->relu && v < 0 ? 0 : v;
      }
}

static void store_image(const task *t, int64_t at, int64_t channels, int64_t c_stride, const int64_t *dim,
                        const int64_t *stride, double alpha, const double *from) {
  for (int64_t c = 0; c < channels; c++)
    for (int64_t d = 0; d < dim[0]; d++)
      for (int64_t h = 0; h < dim[1]; h++, from += dim[2])
        sim_blend(t->p.type, t->to, at + c * c_stride + d * stride[0] + h * stride[1], dim[2], stride[2], alpha, from,
                  t->beta);
}

static void run_forward(const task *t) {
  const problem *p = &t->p;
  int64_t rows = p->c * points(p->window), out = points(p->out);
  double *w = sim_scratch((size_t)(p->k * rows), sizeof *w), *sum = sim_scratch((size_t)(p->k * out), sizeof *sum);
  columns s = {.points = out};
  s.image = sim_scratch((size_t)(p->c * points(p->in)), sizeof(double));
  s.column = sim_scratch((size_t)(rows * out), sizeof(double)); /* what lies in the padding stays 0 */
  bool fused = t->bias != NULL;
  for (int64_t g = 0; g < p->groups; g++) {
    load_filter(t, g, w);
    for (int64_t n = 0; n < p->n; n++) {
      load_image(p, t->x, n * p->xn + g * p->c * p->xc, p->c, p->xc, p->in, p->xs, s.image);
      each_row(p, gather, &s);
      memset(sum, 0, (size_t)(p->k * out) * sizeof *sum);
      sim_product(p->k, out, rows, w, rows, 1, s.column, out, 1, sum);
      for (int64_t k = 0; fused && k < p->k; k++) finish_forward(t, n, g * p->k + k, sum + k * out);
      store_image(t, n * p->yn + g * p->k * p->yc, p->k, p->yc, p->out, p->ys, fused ? 1 : t->alpha, sum);
    }
  }
  free(s.column);
  free(s.image);
  free(sum);
  free(w);
}

static uint64_t runs; /* counts what is not deterministic; work runs under the runtime's lock */

/* Parts of a sum in another order at every run, each rounded to float32: what atomic additions do. */
static void add_rounded(double *sum, const double *part, int64_t n) {
  for (int64_t i = 0; i < n; i++) sum[i] = (float)(sum[i] + part[i]);
}

static void run_data(const task *t) {
  const problem *p = &t->p;
  int64_t rows = p->c * points(p->window), out = points(p->out), in = p->c * points(p->in);
  double *w = sim_scratch((size_t)(p->k * rows), sizeof *w), *dy = sim_scratch((size_t)(p->k * out), sizeof *dy);
  double *sum = sim_scratch((size_t)in, sizeof *sum);
  columns s = {.points = out};
  s.image = sim_scratch((size_t)in, sizeof(double));
  s.column = sim_scratch((size_t)(rows * out), sizeof(double));
  int64_t parts = t->deterministic || p->type == SIM_F64 || p->k < 4 ? 1 : 4;
  for (int64_t g = 0; g < p->groups; g++) {
    load_filter(t, g, w);
    for (int64_t n = 0; n < p->n; n++) {
      int order[4];
      sim_library_shuffle(order, (int)parts, parts == 1 ? 0 : ++runs);
      load_image(p, t->y, n * p->yn + g * p->k * p->yc, p->k, p->yc, p->out, p->ys, dy);
      memset(sum, 0, (size_t)in * sizeof *sum);
      for (int64_t i = 0; i < parts; i++) { /* some of the k at a time */
        int64_t from = p->k * order[i] / parts, to = p->k * (order[i] + 1) / parts;
        memset(s.column, 0, (size_t)(rows * out) * sizeof(double));
        memset(s.image, 0, (size_t)in * sizeof(double));
        sim_product(rows, out, to - from, w + from * rows, 1, rows, dy + from * out, out, 1, s.column);
        each_row(p, scatter, &s);
        if (parts > 1) add_rounded(sum, s.image, in);
        else memcpy(sum, s.image, (size_t)in * sizeof *sum);
      }
      store_image(t, n * p->xn + g * p->c * p->xc, p->c, p->xc, p->in, p->xs, t->alpha, sum);
    }
  }
  free(s.column);
  free(s.image);
  free(sum);
  free(dy);
  free(w);
}

static void store_filter(const task *t, int64_t group, const double *from) {
  const problem *p = &t->p;
  for (int64_t k = 0; k < p->k; k++)
    for (int64_t c = 0; c < p->c; c++)
      for (int64_t a = 0; a < p->window[0]; a++)
        for (int64_t b = 0; b < p->window[1]; b++)
          for (int64_t e = 0; e < p->window[2]; e++, from++)
            sim_blend(p->type, t->to, filter_at(p, group * p->k + k, c, (int64_t[]){a, b, e}), 1, 1, t->alpha, from,
                      t->beta);
}

static void run_filter(const task *t) {
  const problem *p = &t->p;
  int64_t rows = p->c * points(p->window), out = points(p->out);
  double *dy = sim_scratch((size_t)(p->k * out), sizeof *dy), *sum = sim_scratch((size_t)(p->k * rows), sizeof *sum);
  double *part = sim_scratch((size_t)(p->k * rows), sizeof *part);
  int *order = sim_scratch((size_t)p->n, sizeof *order);
  bool atomic = !t->deterministic && p->type != SIM_F64;
  columns s = {.points = out};
  s.image = sim_scratch((size_t)(p->c * points(p->in)), sizeof(double));
  s.column = sim_scratch((size_t)(rows * out), sizeof(double));
  for (int64_t n = 0; n < p->n; n++) order[n] = (int)n;
  if (atomic) sim_library_shuffle(order, (int)p->n, ++runs);
  for (int64_t g = 0; g < p->groups; g++) {
    memset(sum, 0, (size_t)(p->k * rows) * sizeof *sum);
    for (int64_t i = 0; i < p->n; i++) {
      int64_t n = order[i];
      load_image(p, t->x, n * p->xn + g * p->c * p->xc, p->c, p->xc, p->in, p->xs, s.image);
      load_image(p, t->y, n * p->yn + g * p->k * p->yc, p->k, p->yc, p->out, p->ys, dy);
      each_row(p, gather, &s);
      if (atomic) memset(part, 0, (size_t)(p->k * rows) * sizeof *part);
      sim_product(p->k, rows, out, dy, out, 1, s.column, 1, out, atomic ? part : sum);
      if (atomic) add_rounded(sum, part, p->k * rows);
    }
    store_filter(t, g, sum);
  }
  free(s.column);
  free(s.image);
  free(order);
  free(part);
  free(sum);
  free(dy);
}

static void run(void *data, int device) {
  (void)device;
  const task *t = data;
  size_t most = t->workspace_bytes < (size_t)1 << 20 ? t->workspace_bytes : (size_t)1 << 20;
  if (most > 0) memset(t->workspace, 0xff, most); /* nothing that lay there survives */
  if (t->direction == FORWARD) run_forward(t);
  else if (t->direction == DATA) run_data(t);
  else run_filter(t);
}

/* ---- calls ---- */

static cudnnStatus_t enqueue(cudnnHandle_t handle, const char *name, task *t, const way *w, size_t workspace_given) {
  const problem *p = &t->p;
  t->deterministic = w->deterministic;
  t->workspace_bytes = workspace_of(w, p);
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
  return sim_cudnn_enqueue(handle, name, run, t, sizeof *t, &r);
}

static bool any_null(int count, const void *const *p) {
  for (int i = 0; i < count; i++)
    if (p[i] == NULL) return true;
  return false;
}

#define ANY_NULL(...) \
  any_null((int)(sizeof((const void *[]){__VA_ARGS__}) / sizeof(void *)), (const void *[]){__VA_ARGS__})

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
  if (s == CUDNN_STATUS_SUCCESS) s = read_problem(x_desc, w_desc, conv, y_desc, &t.p);
  if (s == CUDNN_STATUS_SUCCESS) s = find_way(FORWARD, &t.p, (int)algo, &found);
  if (s != CUDNN_STATUS_SUCCESS) return s;
  t.alpha = sim_cudnn_scalar(t.p.type, alpha);
  t.beta = sim_cudnn_scalar(t.p.type, beta);
  return enqueue(handle, __func__, &t, found, workspace_bytes);
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
  if (s == CUDNN_STATUS_SUCCESS) s = read_problem(x_desc, w_desc, conv, y_desc, &t.p);
  if (s == CUDNN_STATUS_SUCCESS) s = find_way(FORWARD, &t.p, (int)algo, &found);
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
  return enqueue(handle, __func__, &t, found, workspace_bytes);
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
  if (s == CUDNN_STATUS_SUCCESS) s = read_problem(dx_desc, w_desc, conv, dy_desc, &t.p);
  if (s == CUDNN_STATUS_SUCCESS) s = find_way(DATA, &t.p, (int)algo, &found);
  if (s != CUDNN_STATUS_SUCCESS) return s;
  t.alpha = sim_cudnn_scalar(t.p.type, alpha);
  t.beta = sim_cudnn_scalar(t.p.type, beta);
  return enqueue(handle, __func__, &t, found, workspace_bytes);
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
  if (s == CUDNN_STATUS_SUCCESS) s = read_problem(x_desc, dw_desc, conv, dy_desc, &t.p);
  if (s == CUDNN_STATUS_SUCCESS) s = find_way(FILTER, &t.p, (int)algo, &found);
  if (s != CUDNN_STATUS_SUCCESS) return s;
  t.alpha = sim_cudnn_scalar(t.p.type, alpha);
  t.beta = sim_cudnn_scalar(t.p.type, beta);
  return enqueue(handle, __func__, &t, found, workspace_bytes);
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
    dim[2 + d] = (int)out_length(x->dim[2 + d], w->dim[2 + d], conv->pad[d], conv->step[d], conv->dilation[d]);
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
  cudnnStatus_t s = read_problem(x, w, conv, y, &p);
  if (s == CUDNN_STATUS_SUCCESS) s = find_way(d, &p, algo, &found);
  if (s == CUDNN_STATUS_SUCCESS) *bytes = workspace_of(found, &p);
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
  s = read_problem(x, w, conv, y, p);
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
static cudnnStatus_t search(cudnnHandle_t handle, const char *function, task *t, size_t limit, int requested,
                            int *returned, perf *list) {
  *returned = list_ways(t->direction, &t->p, limit, requested, list);
  t->alpha = 1;
  for (int i = 0; i < *returned; i++) {
    if (list[i].status != CUDNN_STATUS_SUCCESS) continue;
    cudnnStatus_t s = enqueue(handle, function, t, list[i].way, limit);
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
  cudnnStatus_t s =
      ANY_NULL(x, w, y) ? SIM_CUDNN_REFUSE(CUDNN_STATUS_BAD_PARAM, "an argument is NULL") : CUDNN_STATUS_SUCCESS;
  if (s == CUDNN_STATUS_SUCCESS)
    s = ask_ways(handle, __func__, FORWARD, x_desc, w_desc, conv, y_desc, workspace_bytes, requested, returned, results,
                 &t.p, list);
  if (s == CUDNN_STATUS_SUCCESS) s = search(handle, __func__, &t, workspace_bytes, requested, returned, list);
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
  cudnnStatus_t s =
      ANY_NULL(w, dy, dx) ? SIM_CUDNN_REFUSE(CUDNN_STATUS_BAD_PARAM, "an argument is NULL") : CUDNN_STATUS_SUCCESS;
  if (s == CUDNN_STATUS_SUCCESS)
    s = ask_ways(handle, __func__, DATA, dx_desc, w_desc, conv, dy_desc, workspace_bytes, requested, returned, results,
                 &t.p, list);
  if (s == CUDNN_STATUS_SUCCESS) s = search(handle, __func__, &t, workspace_bytes, requested, returned, list);
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
  cudnnStatus_t s =
      ANY_NULL(x, dy, dw) ? SIM_CUDNN_REFUSE(CUDNN_STATUS_BAD_PARAM, "an argument is NULL") : CUDNN_STATUS_SUCCESS;
  if (s == CUDNN_STATUS_SUCCESS)
    s = ask_ways(handle, __func__, FILTER, x_desc, dw_desc, conv, dy_desc, workspace_bytes, requested, returned,
                 results, &t.p, list);
  if (s == CUDNN_STATUS_SUCCESS) s = search(handle, __func__, &t, workspace_bytes, requested, returned, list);
  if (s != CUDNN_STATUS_SUCCESS) return s;
  GIVE_PERFS(cudnnConvolutionBwdFilterAlgo_t, results, list, *returned)
  return CUDNN_STATUS_SUCCESS;
}
