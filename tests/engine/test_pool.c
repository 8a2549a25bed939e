/* test_pool.c: pooling against a plain search of each window, and gradients. */
#include "check_tl.h"

typedef struct setting {
  int64_t size[2], kernel[2], stride[2], padding[2], dilation[2];
  bool ceil_mode;
  int64_t result[2]; /* by hand, as PyTorch has it */
} setting;

static const setting settings[] = {
    {{6, 8}, {2, 2}, {2, 2}, {0, 0}, {1, 1}, false, {3, 4}},
    {{7, 5}, {3, 2}, {2, 1}, {1, 1}, {1, 1}, false, {4, 6}},
    {{7, 6}, {2, 3}, {2, 2}, {0, 1}, {1, 1}, true, {4, 4}},
    {{5, 5}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, false, {5, 5}},
    {{9, 70}, {2, 2}, {3, 3}, {0, 0}, {3, 2}, false, {2, 23}},
    {{6, 6}, {3, 3}, {4, 4}, {1, 1}, {1, 1}, true, {2, 2}},
    {{28, 28}, {2, 2}, {2, 2}, {0, 0}, {1, 1}, false, {14, 14}},
    {{40, 40}, {17, 17}, {5, 5}, {8, 8}, {1, 1}, false, {8, 8}},  /* more positions than a byte numbers */
    {{3, 1200}, {3, 3}, {1, 2}, {1, 1}, {1, 1}, false, {3, 600}}, /* rows longer than a block of columns */
};
#define SETTINGS (int)(sizeof settings / sizeof *settings)

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

/* One window: the largest element (where: its index in the plane), or the sum and the number of elements inside. */
static double largest(const setting *s, const double *plane, int64_t u, int64_t v, int64_t *where) {
  double best = -INFINITY;
  *where = -1;
  for (int64_t p = 0; p < s->kernel[0]; p++)
    for (int64_t q = 0; q < s->kernel[1]; q++) {
      int64_t h = u * s->stride[0] - s->padding[0] + p * s->dilation[0],
              w = v * s->stride[1] - s->padding[1] + q * s->dilation[1];
      if (h < 0 || h >= s->size[0] || w < 0 || w >= s->size[1]) continue;
      double x = plane[h * s->size[1] + w];
      if (*where >= 0 && !(x > best) && !isnan(x)) continue;
      best = x;
      *where = h * s->size[1] + w;
    }
  return best;
}

static double average(const setting *s, const double *plane, int64_t u, int64_t v, bool include_pad) {
  double sum = 0;
  int64_t count = 0;
  for (int64_t p = 0; p < s->kernel[0]; p++)
    for (int64_t q = 0; q < s->kernel[1]; q++) {
      int64_t h = u * s->stride[0] - s->padding[0] + p, w = v * s->stride[1] - s->padding[1] + q;
      bool padded = h < s->size[0] + s->padding[0] && w < s->size[1] + s->padding[1];
      bool inside = h >= 0 && h < s->size[0] && w >= 0 && w < s->size[1];
      count += include_pad ? padded : inside;
      if (inside) sum += plane[h * s->size[1] + w];
    }
  return sum / (double)count;
}

static void ck_size(const tl_tensor *y, int64_t h, int64_t w) {
  ck_assert_int_eq((int64_t)tl_size(y, tl_ndim(y) - 2), h);
  ck_assert_int_eq((int64_t)tl_size(y, tl_ndim(y) - 1), w);
}

#define PLANES 6

START_TEST(max_finds_the_largest) {
  for (int dtype = 0; dtype <= TL_FLOAT64; dtype++)
    for (int i = 0; i < SETTINGS; i++) {
      const setting *s = &settings[i];
      tl_tensor *x = random_tensor(SHAPE(2, 3, s->size[0], s->size[1]), dtype, 1), *y = NULL, *g = NULL, *grad = NULL;
      double *vx = values_of(x);
      int64_t out = s->result[0] * s->result[1], in = s->size[0] * s->size[1], at;
      double *expected = malloc((size_t)(PLANES * out) * sizeof *expected),
             *dx = calloc((size_t)(PLANES * in), sizeof *dx);
      ck_ok(tl_set_requires_grad(x, true));
      ck_ok(tl_max_pool2d(x, s->kernel, s->stride, s->padding, s->dilation, s->ceil_mode, &y));
      ck_size(y, s->result[0], s->result[1]);
      g = random_tensor(SHAPE(2, 3, s->result[0], s->result[1]), dtype, 2);
      double *vg = values_of(g);
      for (int64_t c = 0; c < PLANES; c++)
        for (int64_t o = 0; o < out; o++) {
          expected[c * out + o] = largest(s, vx + c * in, o / s->result[1], o % s->result[1], &at);
          dx[c * in + at] += vg[c * out + o];
        }
      ck_values(y, PLANES * out, expected, 0);
      tl_walk *walk = NULL;
      ck_ok(tl_backward(y, g, false, &walk));
      ck_ok(tl_grad(x, &grad));
      ck_values(grad, PLANES * in, dx, dtype == TL_BFLOAT16 ? 2e-2 : dtype == TL_FLOAT16 ? 2e-3 : 1e-5);
      tl_tensor *all[] = {x, y, g, grad};
      for (int t = 0; t < 4; t++) tl_tensor_free(all[t]);
      free(vx), free(vg), free(expected), free(dx);
    }
}
END_TEST

START_TEST(max_lets_nan_win) {
  tl_tensor *x = make_tensor(TL_FLOAT32, SHAPE(1, 2, 4),
                             (const double[]){1, NAN, -INFINITY, -INFINITY, 3, 4, -INFINITY, -INFINITY}),
            *y = NULL;
  ck_ok(tl_max_pool2d(x, (int64_t[]){2, 2}, NULL, NULL, NULL, false, &y));
  ck_tensor(y, 0, NAN, -INFINITY);
  tl_tensor_free(x);
  tl_tensor_free(y);
}
END_TEST

START_TEST(averages) {
  for (int dtype = 0; dtype <= TL_FLOAT64; dtype++)
    for (int i = 0; i < SETTINGS; i++)
      for (int include = 0; include < 2; include++) {
        const setting *s = &settings[i];
        if (s->dilation[0] != 1) continue;
        tl_tensor *x = random_tensor(SHAPE(3, s->size[0], s->size[1]), dtype, 1), *y = NULL;
        double *vx = values_of(x);
        int64_t out = s->result[0] * s->result[1], in = s->size[0] * s->size[1];
        double *expected = malloc((size_t)(3 * out) * sizeof *expected);
        ck_ok(tl_avg_pool2d(x, s->kernel, s->stride, s->padding, s->ceil_mode, include, &y));
        ck_size(y, s->result[0], s->result[1]);
        for (int64_t c = 0; c < 3; c++)
          for (int64_t o = 0; o < out; o++)
            expected[c * out + o] = average(s, vx + c * in, o / s->result[1], o % s->result[1], include);
        ck_values(y, 3 * out, expected,
                  dtype == TL_FLOAT64   ? 1e-12
                  : dtype == TL_FLOAT32 ? 1e-5
                  : dtype == TL_FLOAT16 ? 1e-3
                                        : 1e-2);
        tl_tensor_free(x);
        tl_tensor_free(y);
        free(vx), free(expected);
      }
}
END_TEST

START_TEST(adaptive_divides_the_plane) {
  tl_tensor *x = make_tensor(TL_FLOAT32, SHAPE(1, 1, 1, 5), (const double[]){1, 2, 3, 4, 6}), *y = NULL;
  ck_ok(tl_adaptive_avg_pool2d(x, 1, 3, &y));
  ck_tensor(y, 1e-6, 1.5, 3, 5); /* elements 0..1, 1..3, 3..4 */
  tl_tensor_free(y);
  ck_ok(tl_adaptive_avg_pool2d(x, 2, 1, &y));
  ck_tensor(y, 1e-6, 3.2, 3.2);
  tl_tensor_free(y);
  ck_ok(tl_adaptive_avg_pool2d(x, 1, 7, &y));
  ck_tensor(y, 1e-6, 1, 1.5, 2.5, 3, 3.5, 5, 6);
  tl_tensor_free(y);
  tl_tensor_free(x);
}
END_TEST

/* ---- gradients ---- */

static tl_status run_max(tl_tensor *const *in, void *context, tl_tensor **out) {
  const setting *s = context;
  return tl_max_pool2d(in[0], s->kernel, s->stride, s->padding, s->dilation, s->ceil_mode, out);
}
static tl_status run_avg(tl_tensor *const *in, void *context, tl_tensor **out) {
  const setting *s = context;
  return tl_avg_pool2d(in[0], s->kernel, s->stride, s->padding, s->ceil_mode, true, out);
}
static tl_status run_avg_inside(tl_tensor *const *in, void *context, tl_tensor **out) {
  const setting *s = context;
  return tl_avg_pool2d(in[0], s->kernel, s->stride, s->padding, s->ceil_mode, false, out);
}
static tl_status run_adaptive(tl_tensor *const *in, void *context, tl_tensor **out) {
  const int64_t *size = context;
  return tl_adaptive_avg_pool2d(in[0], size[0], size[1], out);
}

START_TEST(gradients) {
  for (int i = 0; i < 6; i++) {
    const setting *s = &settings[i];
    tl_tensor *x = random_tensor(SHAPE(1, 2, s->size[0], s->size[1]), TL_FLOAT64, 3);
    check_gradients("max_pool2d", run_max, 1, &x, (void *)s);
    if (s->dilation[0] == 1) {
      check_gradients("avg_pool2d", run_avg, 1, &x, (void *)s);
      check_gradients("avg_pool2d inside", run_avg_inside, 1, &x, (void *)s);
    }
    check_gradients("adaptive_avg_pool2d", run_adaptive, 1, &x, (int64_t[]){2, 4});
    tl_tensor_free(x);
  }
}
END_TEST

START_TEST(any_strides) {
  tl_tensor *x = random_tensor(SHAPE(2, 6, 5, 3), TL_FLOAT64, 1), *xs = NULL, *xc = NULL, *y = NULL, *yc = NULL;
  ck_ok(tl_permute(x, 4, (int[]){0, 3, 1, 2}, &xs));
  ck_ok(tl_contiguous(xs, &xc));
  ck_ok(tl_max_pool2d(xs, (int64_t[]){2, 2}, NULL, NULL, NULL, false, &y));
  ck_ok(tl_max_pool2d(xc, (int64_t[]){2, 2}, NULL, NULL, NULL, false, &yc));
  double *expected = values_of(yc);
  ck_values(y, (int64_t)tl_numel(yc), expected, 0);
  free(expected);
  check_gradients("strided max_pool2d", run_max, 1, &xs, (void *)&settings[0]);
  check_gradients("strided avg_pool2d", run_avg, 1, &xs, (void *)&settings[0]);
  tl_tensor *one = NULL, *wide = NULL;
  ck_ok(tl_narrow(xc, 0, 0, 1, &one));
  ck_ok(tl_expand(one, SHAPE(3, 3, 6, 5), &wide));
  check_gradients("expanded max_pool2d", run_max, 1, &wide, (void *)&settings[0]);
  tl_tensor *all[] = {x, xs, xc, y, yc, one, wide};
  for (int t = 0; t < 7; t++) tl_tensor_free(all[t]);
  tl_tensor *none = random_tensor(SHAPE(0, 3, 6, 5), TL_FLOAT32, 1);
  ck_ok(tl_set_requires_grad(none, true));
  ck_ok(tl_max_pool2d(none, (int64_t[]){2, 2}, NULL, NULL, NULL, false, &y));
  ck_assert_int_eq((int64_t)tl_numel(y), 0);
  tl_tensor_free(y);
  ck_ok(tl_adaptive_avg_pool2d(none, 2, 2, &y));
  ck_assert_int_eq((int64_t)tl_numel(y), 0);
  tl_tensor_free(y);
  tl_tensor_free(none);
}
END_TEST

START_TEST(messages) {
  const int64_t two[2] = {2, 2}, five[2] = {5, 5}, none[2] = {0, 0};
  tl_tensor *x = random_tensor(SHAPE(1, 2, 4, 4), TL_FLOAT32, 1), *flat = VECTOR(1, 2), *ints = NULL, *y = NULL;
  ck_ok(tl_to(x, TL_INT64, test_device(), &ints));
  int64_t before = live_tensors();
  ck_fails(tl_max_pool2d(x, five, NULL, NULL, NULL, false, &y), TL_ERR_SHAPE,
           "the window reaches over 5 elements, the padded input of (1x2x4x4) has 4");
  ck_fails(tl_max_pool2d(x, two, NULL, two, NULL, false, &y), TL_ERR_VALUE,
           "padding 2: at most half the window of 2 elements");
  ck_fails(tl_avg_pool2d(x, two, none, NULL, false, true, &y), TL_ERR_VALUE, "stride 0");
  ck_fails(tl_avg_pool2d(flat, two, NULL, NULL, false, true, &y), TL_ERR_SHAPE,
           "must be (N, C, H, W) or (C, H, W), got (2)");
  ck_fails(tl_max_pool2d(ints, two, NULL, NULL, NULL, false, &y), TL_ERR_DTYPE, "int64");
  ck_fails(tl_adaptive_avg_pool2d(x, 0, 1, &y), TL_ERR_VALUE, "an output of 0x1");
  ck_assert_int_eq(live_tensors(), before);
  tl_tensor_free(x);
  tl_tensor_free(flat);
  tl_tensor_free(ints);
}
END_TEST

START_TEST(failing_allocations) {
  for (int dtype = 0; dtype <= TL_FLOAT64; dtype++) {
    tl_tensor *x = random_tensor(SHAPE(1, 2, 4, 4), dtype, 1);
    ck_ok(tl_set_requires_grad(x, true));
    int64_t before = live_tensors();
    bool done = false;
    for (int64_t k = 1; !done; k++) {
      tl_tensor *y = NULL, *z = NULL, *sum = NULL;
      tl_walk *walk = NULL;
      tl_fail_allocation(k);
      tl_status st = tl_max_pool2d(x, (int64_t[]){2, 2}, NULL, NULL, NULL, false, &y);
      if (st == TL_OK) st = tl_adaptive_avg_pool2d(y, 1, 1, &z);
      if (st == TL_OK) st = tl_sum(z, 0, NULL, false, &sum);
      if (st == TL_OK) st = tl_backward(sum, NULL, false, &walk);
      tl_fail_allocation(0);
      done = st == TL_OK;
      if (!done) ck_assert_int_eq(st, TL_ERR_MEMORY);
      tl_tensor *all[] = {y, z, sum};
      for (int t = 0; t < 3; t++) tl_tensor_free(all[t]);
      ck_ok(tl_set_grad(x, NULL));
      ck_assert_int_eq(live_tensors(), before);
    }
    tl_tensor_free(x);
  }
}
END_TEST

TEST_MAIN("pool", max_finds_the_largest, max_lets_nan_win, averages, adaptive_divides_the_plane, gradients, any_strides,
          messages, failing_allocations)
