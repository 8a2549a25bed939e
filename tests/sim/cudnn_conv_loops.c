/* cudnn_conv_loops.c: convolutions as products over unrolled windows, in float64, rounded to float32 and then to the
 * tensor's type. */
#include <stdlib.h>
#include <string.h>

#include "cudnn_conv.h"

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

void sim_conv_run(void *data, int device) {
  (void)device;
  const task *t = data;
  size_t most = t->workspace_bytes < (size_t)1 << 20 ? t->workspace_bytes : (size_t)1 << 20;
  if (most > 0) memset(t->workspace, 0xff, most); /* nothing that lay there survives */
  if (t->direction == FORWARD) run_forward(t);
  else if (t->direction == DATA) run_data(t);
  else run_filter(t);
}
