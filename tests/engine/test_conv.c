/* test_conv.c: convolutions against a direct sum over the kernel, their gradients, their messages. */
#include "check_tl.h"

typedef struct setting {
  int64_t batch, in, out, groups;
  int64_t size[2], kernel[2], stride[2], padding[2], dilation[2], extra[2]; /* extra: output_padding */
} setting;

/* plain; rectangular; strided with a rest; dilated; grouped; depthwise; 1x1; wide channels for the blocked layouts */
static const setting settings[] = {
    {2, 1, 3, 1, {5, 6}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {0, 0}},
    {1, 2, 2, 1, {5, 4}, {2, 3}, {1, 2}, {0, 1}, {1, 1}, {0, 1}},
    {2, 3, 4, 1, {6, 6}, {3, 3}, {2, 2}, {0, 0}, {1, 1}, {1, 1}},
    {1, 2, 3, 1, {7, 8}, {3, 2}, {1, 1}, {2, 0}, {2, 3}, {0, 0}},
    {2, 4, 6, 2, {5, 5}, {3, 3}, {2, 1}, {1, 2}, {1, 1}, {1, 0}},
    {1, 4, 4, 4, {6, 5}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {0, 0}},
    {3, 5, 2, 1, {3, 3}, {1, 1}, {1, 1}, {0, 0}, {1, 1}, {0, 0}},
    {2, 32, 48, 1, {6, 7}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {0, 0}},
};
#define SETTINGS (int)(sizeof settings / sizeof *settings)

static int64_t result(const setting *s, int d) {
  return (s->size[d] + 2 * s->padding[d] - s->dilation[d] * (s->kernel[d] - 1) - 1) / s->stride[d] + 1;
}

/* Visits every product of y[n][o][u][v] += x[n][i][h][w] * weight[o][i'][p][q]. */
static void direct(const setting *s, const double *x, const double *w, const double *bias, double *y) {
  const int64_t in = s->in / s->groups, out = s->out / s->groups, oh = result(s, 0), ow = result(s, 1);
  int64_t at = 0;
  for (int64_t n = 0; n < s->batch; n++)
    for (int64_t o = 0; o < s->out; o++)
      for (int64_t u = 0; u < oh; u++)
        for (int64_t v = 0; v < ow; v++) {
          double sum = bias == NULL ? 0 : bias[o];
          for (int64_t i = 0; i < in; i++)
            for (int64_t p = 0; p < s->kernel[0]; p++)
              for (int64_t q = 0; q < s->kernel[1]; q++) {
                int64_t h = u * s->stride[0] - s->padding[0] + p * s->dilation[0];
                int64_t c = v * s->stride[1] - s->padding[1] + q * s->dilation[1];
                if (h < 0 || h >= s->size[0] || c < 0 || c >= s->size[1]) continue;
                sum += x[((n * s->in + o / out * in + i) * s->size[0] + h) * s->size[1] + c] *
                       w[((o * in + i) * s->kernel[0] + p) * s->kernel[1] + q];
              }
          y[at++] = sum;
        }
}

static tl_tensor *random_tensor(int ndim, const int64_t *shape, int dtype, double seed) {
  tl_tensor *t = NULL, *typed = NULL;
  tl_generator *g;
  ck_ok(tl_generator_new(seed, &g));
  ck_ok(tl_empty(ndim, shape, TL_FLOAT64, test_device(), &t));
  ck_ok(tl_uniform_(t, -1, 1, g));
  ck_ok(tl_to(t, dtype, test_device(), &typed));
  tl_generator_free(g);
  tl_tensor_free(t);
  return typed;
}

static double *values_of(const tl_tensor *t) {
  int64_t n = (int64_t)tl_numel(t);
  double *v = malloc((size_t)(n + 1) * sizeof *v);
  ck_ok(tl_to_doubles(t, n, v));
  return v;
}

static tl_tensor *x_of(const setting *s, int dtype) {
  return random_tensor(SHAPE(s->batch, s->in, s->size[0], s->size[1]), dtype, 1);
}
static tl_tensor *w_of(const setting *s, int dtype) {
  return random_tensor(SHAPE(s->out, s->in / s->groups, s->kernel[0], s->kernel[1]), dtype, 2);
}

static tl_status conv2d(const setting *s, tl_tensor *x, tl_tensor *w, tl_tensor *b, tl_tensor **y) {
  return tl_conv(x, w, b, 2, s->stride, s->padding, s->dilation, s->groups, y);
}

static void free_all(int n, tl_tensor *const *tensors) {
  for (int i = 0; i < n; i++) tl_tensor_free(tensors[i]);
}
#define FREE(...) \
  free_all((int)(sizeof((tl_tensor *[]){__VA_ARGS__}) / sizeof(tl_tensor *)), (tl_tensor *[]){__VA_ARGS__})

START_TEST(forward_in_all_dtypes) {
  const double tolerance[] = {[TL_FLOAT32] = 2e-5, [TL_FLOAT16] = 3e-3, [TL_BFLOAT16] = 2e-2, [TL_FLOAT64] = 1e-12};
  for (int dtype = 0; dtype <= TL_FLOAT64; dtype++)
    for (int i = 0; i < SETTINGS; i++) {
      const setting *s = &settings[i];
      tl_tensor *x = x_of(s, dtype), *w = w_of(s, dtype), *b = random_tensor(SHAPE(s->out), dtype, 3), *y = NULL,
                *y0 = NULL;
      double *vx = values_of(x), *vw = values_of(w), *vb = values_of(b);
      int64_t n = s->batch * s->out * result(s, 0) * result(s, 1);
      double *expected = malloc((size_t)n * sizeof *expected);
      ck_ok(conv2d(s, x, w, b, &y));
      direct(s, vx, vw, vb, expected);
      ck_values(y, n, expected, tolerance[dtype]);
      ck_ok(conv2d(s, x, w, NULL, &y0));
      direct(s, vx, vw, NULL, expected);
      ck_values(y0, n, expected, tolerance[dtype]);
      FREE(x, w, b, y, y0);
      free(vx), free(vw), free(vb), free(expected);
    }
}
END_TEST

/* float32's gradients equal float64's, which differences confirm below. */
START_TEST(gradients_agree_between_dtypes) {
  for (int i = 0; i < SETTINGS; i++)
    for (int dtype = TL_FLOAT32; dtype <= TL_BFLOAT16; dtype++) {
      const setting *s = &settings[i];
      double *reference[3] = {0};
      for (int pass = 0; pass < 2; pass++) {
        int type = pass == 0 ? TL_FLOAT64 : dtype;
        tl_tensor *in[3] = {x_of(s, dtype), w_of(s, dtype), random_tensor(SHAPE(s->out), dtype, 3)}, *wide[3],
                  *y = NULL, *g = NULL;
        for (int k = 0; k < 3; k++) {
          ck_ok(tl_to(in[k], type, test_device(), &wide[k]));
          ck_ok(tl_set_requires_grad(wide[k], true));
        }
        ck_ok(conv2d(s, wide[0], wide[1], wide[2], &y));
        tl_tensor *g0 = random_tensor(SHAPE(s->batch, s->out, result(s, 0), result(s, 1)), dtype, 4);
        ck_ok(tl_to(g0, type, test_device(), &g));
        tl_walk *walk = NULL;
        ck_ok(tl_backward(y, g, false, &walk));
        for (int k = 0; k < 3; k++) {
          tl_tensor *grad = NULL;
          ck_ok(tl_grad(wide[k], &grad));
          if (pass == 0) reference[k] = values_of(grad);
          else
            ck_values(grad, (int64_t)tl_numel(grad), reference[k],
                      dtype == TL_FLOAT32   ? 5e-5
                      : dtype == TL_FLOAT16 ? 1e-2
                                            : 5e-2);
          FREE(grad, in[k], wide[k]);
        }
        FREE(y, g, g0);
      }
      for (int k = 0; k < 3; k++) free(reference[k]);
    }
}
END_TEST

static tl_status run_conv(tl_tensor *const *in, void *context, tl_tensor **out) {
  return conv2d(context, in[0], in[1], in[2], out);
}
static tl_status run_conv1d(tl_tensor *const *in, void *context, tl_tensor **out) {
  (void)context;
  return tl_conv(in[0], in[1], in[2], 1, (int64_t[]){2}, (int64_t[]){1}, (int64_t[]){2}, 2, out);
}
static tl_status run_transpose(tl_tensor *const *in, void *context, tl_tensor **out) {
  const setting *s = context;
  return tl_conv_transpose2d(in[0], in[1], in[2], s->stride, s->padding, s->extra, s->dilation, s->groups, out);
}

START_TEST(gradients) {
  for (int i = 0; i < SETTINGS - 1; i++) {
    const setting *s = &settings[i];
    tl_tensor *x = x_of(s, TL_FLOAT64), *w = w_of(s, TL_FLOAT64), *b = random_tensor(SHAPE(s->out), TL_FLOAT64, 3);
    check_gradients("conv2d", run_conv, 3, (tl_tensor *[]){x, w, b}, (void *)s);
    FREE(x, w, b);
    x = random_tensor(SHAPE(s->batch, s->out, 3, 4), TL_FLOAT64, 1);
    w = w_of(s, TL_FLOAT64);
    b = random_tensor(SHAPE(s->in), TL_FLOAT64, 3);
    check_gradients("conv_transpose2d", run_transpose, 3, (tl_tensor *[]){x, w, b}, (void *)s);
    FREE(x, w, b);
  }
  tl_tensor *x = random_tensor(SHAPE(2, 4, 9), TL_FLOAT64, 1), *w = random_tensor(SHAPE(6, 2, 3), TL_FLOAT64, 2);
  tl_tensor *b = random_tensor(SHAPE(6), TL_FLOAT64, 3);
  check_gradients("conv1d", run_conv1d, 3, (tl_tensor *[]){x, w, b}, NULL);
  FREE(x, w, b);
}
END_TEST

/* <conv(x), y> = <x, conv_transpose(y)>: the transposed convolution is what its name says, in every dtype. */
START_TEST(transpose_is_the_adjoint) {
  for (int dtype = 0; dtype <= TL_FLOAT64; dtype++)
    for (int i = 0; i < SETTINGS; i++) {
      const setting *s = &settings[i];
      setting fitting = *s; /* a size that the stride divides without a rest, so that extra is the rest */
      for (int d = 0; d < 2; d++)
        fitting.size[d] = (result(s, d) - 1) * s->stride[d] - 2 * s->padding[d] + s->dilation[d] * (s->kernel[d] - 1) +
                          s->extra[d] + 1;
      tl_tensor *x = x_of(&fitting, dtype), *w = w_of(s, dtype), *y = NULL, *back = NULL, *up = NULL;
      ck_ok(conv2d(&fitting, x, w, NULL, &y));
      tl_tensor *g = random_tensor(SHAPE(s->batch, s->out, result(s, 0), result(s, 1)), dtype, 5);
      ck_ok(tl_conv_transpose2d(g, w, NULL, s->stride, s->padding, s->extra, s->dilation, s->groups, &up));
      ck_ok(tl_mul(y, g, &back));
      double *vx = values_of(x), *vup = values_of(up), *vy = values_of(y), *vg = values_of(g), left = 0, right = 0;
      ck_assert_int_eq((int64_t)tl_numel(up), (int64_t)tl_numel(x));
      for (int64_t k = 0; k < (int64_t)tl_numel(x); k++) right += vx[k] * vup[k];
      for (int64_t k = 0; k < (int64_t)tl_numel(y); k++) left += vy[k] * vg[k];
      double tolerance = dtype == TL_FLOAT64 ? 1e-10 : dtype == TL_FLOAT32 ? 1e-4 : dtype == TL_FLOAT16 ? 2e-2 : 0.2;
      ck_assert_msg(fabs(left - right) <= tolerance * (1 + fabs(left)), "setting %d, %s: %g and %g", i,
                    tl_dtype_name(dtype), left, right);
      FREE(x, w, y, back, up, g);
      free(vx), free(vup), free(vy), free(vg);
    }
}
END_TEST

/* Every operand through strides that are not row-major gives the contiguous result. */
START_TEST(layouts) {
  const setting *s = &settings[4];
  for (int dtype = 0; dtype <= TL_FLOAT64; dtype++) {
    tl_tensor *x = x_of(s, dtype), *w = w_of(s, dtype), *b = random_tensor(SHAPE(s->out), dtype, 3), *y = NULL;
    ck_ok(conv2d(s, x, w, b, &y));
    double *expected = values_of(y);
    tl_tensor *xt = NULL, *xc = NULL, *xs = NULL, *wt = NULL, *wc = NULL, *ws = NULL, *b2 = NULL, *bs = NULL,
              *ys = NULL;
    ck_ok(tl_permute(x, 4, (int[]){0, 2, 3, 1}, &xt)); /* channels last */
    ck_ok(tl_clone(xt, &xc));
    ck_ok(tl_permute(xc, 4, (int[]){0, 3, 1, 2}, &xs));
    ck_ok(tl_transpose(w, 2, 3, &wt));
    ck_ok(tl_clone(wt, &wc));
    ck_ok(tl_transpose(wc, 2, 3, &ws));
    ck_ok(tl_empty(SHAPE(2 * s->out), dtype, test_device(), &b2));
    ck_ok(tl_slice(b2, 0, 0, 2 * s->out, 2, &bs));
    ck_ok(tl_copy_(bs, b));
    ck_ok(conv2d(s, xs, ws, bs, &ys));
    ck_values(ys, (int64_t)tl_numel(y), expected, 1e-6);
    free(expected);
    FREE(x, w, b, y, xt, xc, xs, wt, wc, ws, b2, bs, ys);
  }
  tl_tensor *one = random_tensor(SHAPE(1, 1, 6, 6), TL_FLOAT32, 1), *x = NULL,
            *w = random_tensor(SHAPE(2, 3, 3, 3), TL_FLOAT32, 2), *y = NULL, *yc = NULL, *xc = NULL;
  ck_ok(tl_expand(one, SHAPE(4, 3, 6, 6), &x));
  ck_ok(tl_clone(x, &xc));
  ck_ok(tl_conv(x, w, NULL, 2, (int64_t[]){1, 1}, (int64_t[]){0, 0}, (int64_t[]){1, 1}, 1, &y));
  ck_ok(tl_conv(xc, w, NULL, 2, (int64_t[]){1, 1}, (int64_t[]){0, 0}, (int64_t[]){1, 1}, 1, &yc));
  double *expected = values_of(yc);
  ck_values(y, (int64_t)tl_numel(yc), expected, 0);
  free(expected);
  FREE(one, x, xc, w, y, yc);
}
END_TEST

START_TEST(empty_batches_and_channels) {
  const int64_t one[2] = {1, 1}, none[2] = {0, 0};
  for (int dtype = 0; dtype <= TL_FLOAT64; dtype++)
    for (int c = 0; c < 2; c++) { /* no samples; no input channels */
      const int64_t n = c == 0 ? 0 : 2, in = c == 0 ? 3 : 0;
      tl_tensor *x = random_tensor(SHAPE(n, in, 4, 4), dtype, 1), *w = random_tensor(SHAPE(2, in, 3, 3), dtype, 2),
                *y = NULL, *sum = NULL;
      tl_tensor *b = make_tensor(dtype, SHAPE(2), (const double[]){1, 2}), *g = NULL;
      tl_walk *walk = NULL;
      ck_ok(tl_set_requires_grad(w, true));
      ck_ok(tl_set_requires_grad(b, true));
      ck_ok(tl_conv(x, w, b, 2, one, none, one, 1, &y));
      ck_assert_int_eq((int64_t)tl_size(y, 0), n);
      if (c == 1) ck_tensor(y, 0, 1, 1, 1, 1, 2, 2, 2, 2, 1, 1, 1, 1, 2, 2, 2, 2);
      ck_ok(tl_sum(y, 0, NULL, false, &sum));
      ck_ok(tl_backward(sum, NULL, false, &walk));
      ck_ok(tl_grad(b, &g));
      ck_tensor(g, 0, c == 0 ? 0 : 8, c == 0 ? 0 : 8);
      FREE(g);
      ck_ok(tl_grad(w, &g));
      double zeros[54] = {0};
      ck_values(g, 18 * in, zeros, 0);
      FREE(x, w, b, y, sum, g);
    }
}
END_TEST

START_TEST(messages) {
  const int64_t one[2] = {1, 1}, none[2] = {0, 0}, two[2] = {2, 2};
  tl_tensor *x = random_tensor(SHAPE(2, 3, 4, 4), TL_FLOAT32, 1), *w = random_tensor(SHAPE(6, 1, 3, 3), TL_FLOAT32, 2),
            *y = NULL;
  tl_tensor *big = random_tensor(SHAPE(6, 3, 5, 5), TL_FLOAT32, 2), *b = VECTOR(1, 2),
            *w64 = random_tensor(SHAPE(6, 3, 3, 3), TL_FLOAT64, 2), *ints = NULL;
  ck_ok(tl_to(x, TL_INT64, test_device(), &ints));
  int64_t before = live_tensors();
  ck_fails(tl_conv(x, w, NULL, 2, one, none, one, 1, &y), TL_ERR_SHAPE,
           "an input of (2x3x4x4) and a weight of (6x1x3x3) with 1 group: 3 input channels, 1 expected");
  ck_assert_str_eq(tl_last_error()->op, "conv2d");
  ck_fails(tl_conv(x, big, NULL, 2, one, none, one, 1, &y), TL_ERR_SHAPE,
           "the kernel of (6x3x5x5) reaches over 5 elements, the padded input of (2x3x4x4) has 4");
  ck_fails(tl_conv(x, w, NULL, 1, one, none, one, 1, &y), TL_ERR_SHAPE, "both must have 3 dims");
  ck_fails(tl_conv(x, w, NULL, 2, none, none, one, 3, &y), TL_ERR_VALUE, "stride 0, padding 0, dilation 1");
  ck_fails(tl_conv(x, w, NULL, 2, one, none, one, 0, &y), TL_ERR_VALUE, "0 groups");
  ck_fails(tl_conv(x, w, b, 2, one, none, one, 3, &y), TL_ERR_SHAPE,
           "a bias of (2) for a weight of (6x1x3x3): (6) expected");
  ck_fails(tl_conv(x, w64, NULL, 2, one, none, one, 1, &y), TL_ERR_DTYPE, "a float32 input and a float64 weight");
  ck_fails(tl_conv(ints, w, NULL, 2, one, none, one, 3, &y), TL_ERR_DTYPE, "int64");
  ck_fails(tl_conv_transpose2d(x, big, NULL, two, none, two, one, 1, &y), TL_ERR_SHAPE, "3 input channels, 6 expected");
  ck_assert_int_eq(live_tensors(), before);
  FREE(x, w, big, b, w64, ints);
}
END_TEST

START_TEST(failing_allocations) {
  const setting *s = &settings[7];
  for (int dtype = 0; dtype <= TL_FLOAT64; dtype++) {
    tl_tensor *x = x_of(s, dtype), *w = w_of(s, dtype), *b = random_tensor(SHAPE(s->out), dtype, 3);
    ck_ok(tl_set_requires_grad(x, true));
    ck_ok(tl_set_requires_grad(w, true));
    ck_ok(tl_set_requires_grad(b, true));
    int64_t before = live_tensors();
    bool done = false;
    for (int64_t k = 1; !done; k++) {
      tl_tensor *y = NULL, *sum = NULL;
      tl_walk *walk = NULL;
      tl_fail_allocation(k);
      tl_status st = conv2d(s, x, w, b, &y);
      if (st == TL_OK) st = tl_sum(y, 0, NULL, false, &sum);
      if (st == TL_OK) st = tl_backward(sum, NULL, false, &walk);
      tl_fail_allocation(0);
      done = st == TL_OK;
      if (!done) ck_assert_int_eq(st, TL_ERR_MEMORY);
      FREE(y, sum);
      ck_ok(tl_set_grad(x, NULL));
      ck_ok(tl_set_grad(w, NULL));
      ck_ok(tl_set_grad(b, NULL));
      ck_assert_int_eq(live_tensors(), before);
    }
    FREE(x, w, b);
  }
}
END_TEST

/* The same numbers every time, with the number of threads held fixed. */
START_TEST(repeats_bit_for_bit) {
  for (int threads = 1; threads <= 2; threads++) {
    ck_ok(tl_set_num_threads(threads));
    const setting s = {16, 32, 64, 1, {14, 14}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {0, 0}};
    tl_tensor *x = x_of(&s, TL_FLOAT32), *w = w_of(&s, TL_FLOAT32), *b = random_tensor(SHAPE(64), TL_FLOAT32, 3);
    tl_tensor *leaves[3] = {x, w, b}, *first[4] = {0};
    for (int k = 0; k < 3; k++) ck_ok(tl_set_requires_grad(leaves[k], true));
    for (int i = 0; i < 10; i++) {
      tl_tensor *now[4] = {0};
      tl_walk *walk = NULL;
      ck_ok(conv2d(&s, x, w, b, &now[3]));
      ck_ok(tl_backward(now[3], now[3], false, &walk));
      for (int k = 0; k < 3; k++) {
        ck_ok(tl_grad(leaves[k], &now[k]));
        ck_ok(tl_set_grad(leaves[k], NULL));
      }
      for (int k = 0; k < 4; k++) {
        bool same = true;
        if (i == 0) first[k] = now[k];
        else ck_ok(tl_equal(now[k], first[k], &same));
        ck_assert(same);
        if (i > 0) FREE(now[k]);
      }
    }
    FREE(x, w, b, first[0], first[1], first[2], first[3]);
  }
}
END_TEST

/* More shapes than plans are kept: the oldest make room, results stay right. */
START_TEST(plans_are_bounded) {
  tl_tensor *w = random_tensor(SHAPE(2, 2, 1, 1), TL_FLOAT32, 2);
  double *vw = values_of(w);
  for (int round = 0; round < 2; round++)
    for (int64_t n = 1; n <= 300; n++) {
      tl_tensor *x = random_tensor(SHAPE(1, 2, 1, n), TL_FLOAT32, 1), *y = NULL;
      ck_ok(tl_conv(x, w, NULL, 2, (int64_t[]){1, 1}, (int64_t[]){0, 0}, (int64_t[]){1, 1}, 1, &y));
      double *vx = values_of(x), *vy = values_of(y);
      ck_assert_double_eq_tol(vy[n - 1], vw[0] * vx[n - 1] + vw[1] * vx[2 * n - 1], 1e-6);
      free(vx), free(vy);
      FREE(x, y);
    }
  free(vw);
  FREE(w);
}
END_TEST

TEST_MAIN("conv", forward_in_all_dtypes, gradients_agree_between_dtypes, gradients, transpose_is_the_adjoint, layouts,
          empty_batches_and_channels, messages, failing_allocations, plans_are_bounded, repeats_bit_for_bit)
