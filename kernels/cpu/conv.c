/* conv.c: convolutions. float32 is oneDNN's, and so is bfloat16 where the processor is fast at it; else float16 and
 * bfloat16 are widened to float32 and rounded once at the end. float64 is a product with the unfolded input (im2col;
 * Chellapilla, Puri, Simard 2006), one sample and group at a time. */
#include "cpu.h"

#include "backend/dnnl.h"
#include "core/memory.h"
#include "widen.h"

static int64_t x_count(const tl_convolution *c) { return c->batch * c->in * c->size[0] * c->size[1]; }
static int64_t w_count(const tl_convolution *c) { return c->out * (c->in / c->groups) * c->kernel[0] * c->kernel[1]; }
static int64_t y_count(const tl_convolution *c) { return c->batch * c->out * c->result[0] * c->result[1]; }

static tl_status no_memory(const tl_convolution *c, size_t bytes) {
  return TL_FAIL(TL_ERR_MEMORY, c->op, "no %.1f MB of scratch memory", (double)bytes / 1048576);
}

/* ---- float64 ---- */

/* The elements of x that output row u meets at kernel position (p, q), for every output column v: *first is that of
 * v = 0 and each next one lies stride[1] further; only v from *begin to *end lie inside. false: all of them are
 * padding. */
static bool meets(const tl_convolution *c, int64_t u, int64_t p, int64_t q, int64_t *first, int64_t *begin,
                  int64_t *end) {
  const int64_t h = u * c->stride[0] - c->padding[0] + p * c->dilation[0];
  const int64_t w = q * c->dilation[1] - c->padding[1], stride = c->stride[1];
  if (h < 0 || h >= c->size[0]) return false;
  *first = h * c->size[1] + w;
  *begin = w < 0 ? (-w + stride - 1) / stride : 0;
  *end = w < c->size[1] ? (c->size[1] - w + stride - 1) / stride : 0;
  if (*end > c->result[1]) *end = c->result[1];
  return *begin < *end;
}

/* column (in/groups * KH * KW, OH * OW) = the elements of x (in/groups, H, W) that each output element meets */
static void unfold(const tl_convolution *c, double *column, const double *x) {
  const int64_t channels = c->in / c->groups, stride = c->stride[1];
  memset(column, 0, (size_t)(channels * c->kernel[0] * c->kernel[1] * c->result[0] * c->result[1]) * sizeof *column);
  for (int64_t i = 0; i < channels; i++, x += c->size[0] * c->size[1])
    for (int64_t p = 0; p < c->kernel[0]; p++)
      for (int64_t q = 0; q < c->kernel[1]; q++)
        for (int64_t u = 0, first, begin, end; u < c->result[0]; u++, column += c->result[1]) {
          if (!meets(c, u, p, q, &first, &begin, &end)) continue;
          for (int64_t v = begin; v < end; v++) column[v] = x[first + v * stride];
        }
}

/* The transpose of unfold: x += what stands in column. */
static void fold(const tl_convolution *c, const double *column, double *x) {
  const int64_t channels = c->in / c->groups, stride = c->stride[1];
  for (int64_t i = 0; i < channels; i++, x += c->size[0] * c->size[1])
    for (int64_t p = 0; p < c->kernel[0]; p++)
      for (int64_t q = 0; q < c->kernel[1]; q++)
        for (int64_t u = 0, first, begin, end; u < c->result[0]; u++, column += c->result[1]) {
          if (!meets(c, u, p, q, &first, &begin, &end)) continue;
          for (int64_t v = begin; v < end; v++) x[first + v * stride] += column[v];
        }
}

/* c = a b + beta * c of contiguous doubles; a (m, k) or its transpose, b (k, n) or its transpose */
static tl_status multiply(const char *op, int64_t m, int64_t n, int64_t k, const double *a, bool at, const double *b,
                          bool bt, double beta, double *c) {
  const tl_gemm g = {.op = op,
                     .dtype = TL_FLOAT64,
                     .m = m,
                     .n = n,
                     .k = k,
                     .alpha = 1,
                     .beta = beta,
                     .a = {.data = (void *)a, .row = at ? 1 : k, .col = at ? m : 1},
                     .b = {.data = (void *)b, .row = bt ? 1 : n, .col = bt ? k : 1},
                     .c = {.data = c, .row = n, .col = 1}};
  return tl_cpu_gemm(&g);
}

/* Sizes and positions of one (sample, group). */
typedef struct part {
  int64_t outs, rows, length; /* out channels, unfolded rows, output positions */
  int64_t x, w, y;            /* offsets */
} part;

static part part_of(const tl_convolution *c, int64_t i) {
  const int64_t sample = i / c->groups, group = i % c->groups;
  part p = {.outs = c->out / c->groups,
            .rows = c->in / c->groups * c->kernel[0] * c->kernel[1],
            .length = c->result[0] * c->result[1]};
  p.x = (sample * c->in + group * (c->in / c->groups)) * c->size[0] * c->size[1];
  p.w = group * p.outs * p.rows;
  p.y = (sample * c->out + group * p.outs) * p.length;
  return p;
}

static double *column_of(const tl_convolution *c, size_t *bytes) {
  const part p = part_of(c, 0);
  *bytes = (size_t)(p.rows * p.length) * sizeof(double);
  return tl_cpu_alloc(*bytes);
}

static tl_status forward_f64(const tl_convolution *c, const double *x, const double *w, const double *bias, double *y) {
  size_t bytes;
  double *column = column_of(c, &bytes);
  if (column == NULL) return no_memory(c, bytes);
  tl_status st = TL_OK;
  for (int64_t i = 0; i < c->batch * c->groups && st == TL_OK; i++) {
    const part p = part_of(c, i);
    unfold(c, column, x + p.x);
    for (int64_t o = 0; o < p.outs; o++)
      for (int64_t l = 0; l < p.length; l++)
        y[p.y + o * p.length + l] = bias == NULL ? 0 : bias[i % c->groups * p.outs + o];
    st = multiply(c->op, p.outs, p.length, p.rows, w + p.w, false, column, false, 1, y + p.y);
  }
  tl_cpu_free(column, bytes);
  return st;
}

static tl_status backward_f64(const tl_convolution *c, const double *x, const double *w, const double *dy, double *dx,
                              double *dw, double *dbias) {
  size_t bytes;
  double *column = column_of(c, &bytes);
  if (column == NULL) return no_memory(c, bytes);
  if (dx != NULL) memset(dx, 0, (size_t)x_count(c) * sizeof *dx);
  if (dw != NULL) memset(dw, 0, (size_t)w_count(c) * sizeof *dw);
  if (dbias != NULL) memset(dbias, 0, (size_t)c->out * sizeof *dbias);
  tl_status st = TL_OK;
  for (int64_t i = 0; i < c->batch * c->groups && st == TL_OK; i++) {
    const part p = part_of(c, i);
    if (dx != NULL) {
      st = multiply(c->op, p.rows, p.length, p.outs, w + p.w, true, dy + p.y, false, 0, column);
      if (st == TL_OK) fold(c, column, dx + p.x);
    }
    if (dw != NULL && st == TL_OK) {
      unfold(c, column, x + p.x);
      st = multiply(c->op, p.outs, p.rows, p.length, dy + p.y, false, column, true, 1, dw + p.w);
    }
    for (int64_t o = 0; o < p.outs && dbias != NULL; o++)
      for (int64_t l = 0; l < p.length; l++) dbias[i % c->groups * p.outs + o] += dy[p.y + o * p.length + l];
  }
  tl_cpu_free(column, bytes);
  return st;
}

/* ---- float16 and bfloat16 ---- */

static tl_convolution as_float32(const tl_convolution *c) {
  tl_convolution wide = *c;
  wide.dtype = TL_FLOAT32;
  return wide;
}

static tl_status forward_half(const tl_convolution *c, const void *x, const void *w, const void *bias, void *y) {
  const tl_convolution wide = as_float32(c);
  const int64_t nx = x_count(c), nw = w_count(c), ny = y_count(c);
  const size_t bytes = (size_t)(nx + nw + ny + c->out) * sizeof(float);
  float *fx = tl_cpu_alloc(bytes), *fw = fx + nx, *fy = fw + nw, *fb = fy + ny;
  if (fx == NULL) return no_memory(c, bytes);
  tl_widen(fx, c->dtype, x, nx);
  tl_widen(fw, c->dtype, w, nw);
  if (bias != NULL) tl_widen(fb, c->dtype, bias, c->out);
  tl_status st = tl_dnnl_conv_forward(&wide, fx, fw, bias == NULL ? NULL : fb, fy);
  if (st == TL_OK) tl_narrow_to(y, c->dtype, fy, ny);
  tl_cpu_free(fx, bytes);
  return st;
}

static tl_status backward_half(const tl_convolution *c, const void *x, const void *w, const void *dy, void *dx,
                               void *dw, void *dbias) {
  const tl_convolution wide = as_float32(c);
  const int64_t nx = x_count(c), nw = w_count(c), ny = y_count(c);
  const size_t bytes = (size_t)(2 * (nx + nw) + ny + c->out) * sizeof(float);
  float *fx = tl_cpu_alloc(bytes), *fw = fx + nx, *fy = fw + nw, *fdx = fy + ny, *fdw = fdx + nx, *fdb = fdw + nw;
  if (fx == NULL) return no_memory(c, bytes);
  if (dx != NULL) tl_widen(fw, c->dtype, w, nw);
  if (dw != NULL || dbias != NULL) tl_widen(fx, c->dtype, x, nx);
  tl_widen(fy, c->dtype, dy, ny);
  tl_status st = tl_dnnl_conv_backward(&wide, fx, fw, fy, dx == NULL ? NULL : fdx, dw == NULL ? NULL : fdw,
                                       dbias == NULL ? NULL : fdb);
  if (st == TL_OK && dx != NULL) tl_narrow_to(dx, c->dtype, fdx, nx);
  if (st == TL_OK && dw != NULL) tl_narrow_to(dw, c->dtype, fdw, nw);
  if (st == TL_OK && dbias != NULL) tl_narrow_to(dbias, c->dtype, fdb, c->out);
  tl_cpu_free(fx, bytes);
  return st;
}

/* ---- all dtypes ---- */

static bool is_dnnl(const tl_convolution *c) {
  return c->dtype == TL_FLOAT32 || (c->dtype == TL_BFLOAT16 && tl_dnnl_fast_bfloat16());
}

tl_status tl_cpu_conv_forward(const tl_convolution *c, const void *x, const void *w, const void *bias, void *y) {
  if (is_dnnl(c)) return tl_dnnl_conv_forward(c, x, w, bias, y);
  if (c->dtype == TL_FLOAT64) return forward_f64(c, x, w, bias, y);
  return forward_half(c, x, w, bias, y);
}

tl_status tl_cpu_conv_backward(const tl_convolution *c, const void *x, const void *w, const void *dy, void *dx,
                               void *dw, void *dbias) {
  if (is_dnnl(c)) return tl_dnnl_conv_backward(c, x, w, dy, dx, dw, dbias);
  if (c->dtype == TL_FLOAT64) return backward_f64(c, x, w, dy, dx, dw, dbias);
  return backward_half(c, x, w, dy, dx, dw, dbias);
}
