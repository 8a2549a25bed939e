/* test_softmax.c: softmax and log-softmax. */
#include "check_tl.h"

static void backward(tl_tensor *y, tl_tensor *grad) {
  tl_walk *walk = NULL;
  ck_ok(tl_backward(y, grad, false, &walk));
  ck_assert_ptr_null(walk);
}

struct call {
  bool log;
  int d;
};

static tl_status softmax(tl_tensor *const *in, void *context, tl_tensor **out) {
  const struct call *c = context;
  return c->log ? tl_log_softmax(in[0], c->d, out) : tl_softmax(in[0], c->d, out);
}

START_TEST(gradients_along_every_dim_and_layout) {
  for (int layout = 0; layout < LAYOUTS; layout++)
    for (int variant = 0; variant < 4; variant++) {
      struct call c = {variant & 1, variant & 2 ? 0 : -1};
      tl_tensor *x = layout_tensor(layout, 5, 4, TL_FLOAT64, -2, 2, 1);
      check_gradients(c.log ? "log_softmax" : "softmax", softmax, 1, &x, &c);
      tl_tensor_free(x);
    }
}
END_TEST

/* Sums to 1 along d and matches exp(x) / sum for sizes that take each path: short, long, tiles. */
START_TEST(values_of_every_path) {
  static const int64_t shapes[][3] = {{70, 10, 1}, {3, 3000, 1}, {2, 5, 300}, {1, 1, 1}, {4, 1024, 1}, {4, 1025, 2}};
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
    for (int dtype = TL_FLOAT32; dtype <= TL_FLOAT64; dtype++) {
      const int64_t *s = shapes[i], n = s[0] * s[1] * s[2];
      double tolerance = dtype == TL_FLOAT64 ? 1e-14 : dtype == TL_FLOAT32 ? 1e-6 : dtype == TL_FLOAT16 ? 1e-3 : 1e-2;
      tl_tensor *x = NULL, *y = NULL, *log = NULL;
      tl_generator *g;
      ck_ok(tl_generator_new(3, &g));
      ck_ok(tl_empty(3, s, dtype, test_device(), &x));
      ck_ok(tl_normal_(x, 0, 2, g));
      ck_ok(tl_softmax(x, 1, &y));
      ck_ok(tl_log_softmax(x, 1, &log));
      double *v = malloc((size_t)n * sizeof *v), *p = malloc((size_t)n * sizeof *p), *l = malloc((size_t)n * sizeof *l);
      ck_ok(tl_to_doubles(x, n, v));
      for (int64_t o = 0; o < s[0]; o++)
        for (int64_t k = 0; k < s[2]; k++) {
          double sum = 0;
          for (int64_t c = 0; c < s[1]; c++) sum += exp(v[(o * s[1] + c) * s[2] + k]);
          for (int64_t c = 0; c < s[1]; c++) {
            int64_t at = (o * s[1] + c) * s[2] + k;
            p[at] = exp(v[at]) / sum;
            l[at] = v[at] - log1p(sum - 1);
          }
        }
      ck_values(y, n, p, tolerance);
      ck_values(log, n, l, tolerance);
      free(v);
      free(p);
      free(l);
      tl_tensor_free(x);
      tl_tensor_free(y);
      tl_tensor_free(log);
      tl_generator_free(g);
    }
}
END_TEST

START_TEST(a_row_of_minus_inf_is_zeros_with_zero_gradients) {
  const double inf = INFINITY;
  for (int d = 0; d < 2; d++) { /* rows, and the same as columns */
    for (int log = 0; log < 2; log++) {
      tl_tensor *rows = TENSOR(TL_FLOAT32, SHAPE(2, 2), -inf, -inf, 0, -inf), *x = NULL, *y = NULL, *g = NULL,
                *grad = NULL;
      ck_ok(tl_set_requires_grad(rows, true));
      ck_ok(d == 1 ? tl_tensor_retain(rows, &x) : tl_transpose(rows, 0, 1, &x));
      ck_ok(log ? tl_log_softmax(x, d, &y) : tl_softmax(x, d, &y));
      if (log) ck_tensor(y, 0, -inf, d == 1 ? -inf : 0, d == 1 ? 0 : -inf, -inf);
      else ck_tensor(y, 0, 0, d == 1 ? 0 : 1, d == 1 ? 1 : 0, 0);
      g = TENSOR(TL_FLOAT32, SHAPE(2, 2), 1, 2, 3, 4);
      backward(y, g);
      ck_ok(tl_grad(rows, &grad));
      double g0 = d == 1 ? 3 : 2, g1 = 4; /* of the row (0, -inf): softmax (1, 0) */
      if (log) ck_tensor(grad, 0, 0, 0, g0 - (g0 + g1), g1);
      else ck_tensor(grad, 0, 0, 0, 0, 0);
      tl_tensor *all[] = {rows, x, y, g, grad};
      for (int i = 0; i < 5; i++) tl_tensor_free(all[i]);
    }
  }
}
END_TEST

START_TEST(nan_fills_its_row_only) {
  tl_tensor *x = TENSOR(TL_FLOAT32, SHAPE(3, 2), NAN, 1, 0, 0, -INFINITY, NAN), *y = NULL, *z = NULL;
  ck_ok(tl_softmax(x, 1, &y));
  ck_tensor(y, 0, NAN, NAN, 0.5, 0.5, NAN, NAN);
  ck_ok(tl_log_softmax(x, 1, &z));
  ck_tensor(z, 1e-6, NAN, NAN, -log(2), -log(2), NAN, NAN);
  tl_tensor_free(x);
  tl_tensor_free(y);
  tl_tensor_free(z);
}
END_TEST

START_TEST(large_values_do_not_overflow) {
  tl_tensor *x = VECTOR(100000, 100000, -100000), *y = NULL, *log = NULL;
  ck_ok(tl_softmax(x, 0, &y));
  ck_tensor(y, 0, 0.5, 0.5, 0);
  ck_ok(tl_log_softmax(x, 0, &log));
  ck_tensor(log, 1e-6, -log1p(1), -log1p(1), -200000 - log1p(1));
  tl_tensor_free(x);
  tl_tensor_free(y);
  tl_tensor_free(log);
}
END_TEST

START_TEST(numbers_and_empty_tensors) {
  tl_tensor *x = TENSOR(TL_FLOAT32, SHAPE(3, 0), 0), *zero = NULL, *y = NULL, *z = NULL;
  ck_ok(tl_softmax(x, 1, &y));
  ck_assert_int_eq((int)tl_numel(y), 0);
  ck_ok(tl_full(0, NULL, 7, TL_FLOAT32, test_device(), &zero));
  ck_ok(tl_softmax(zero, -1, &z));
  ck_tensor(z, 0, 1);
  tl_tensor_free(x);
  tl_tensor_free(y);
  tl_tensor_free(zero);
  tl_tensor_free(z);
}
END_TEST

START_TEST(messages) {
  tl_tensor *i = TENSOR(TL_INT64, SHAPE(2), 1, 2), *x = VECTOR(1, 2), *y = NULL;
  ck_fails(tl_softmax(i, 0, &y), TL_ERR_DTYPE, "int64");
  ck_fails(tl_log_softmax(x, 1, &y), TL_ERR_INDEX, "dim 1 is out of range for a 1-d tensor");
  tl_tensor_free(i);
  tl_tensor_free(x);
}
END_TEST

START_TEST(failing_allocations) {
  tl_tensor *x = layout_tensor(TRANSPOSED, 70, 10, TL_BFLOAT16, -1, 1, 1),
            *g = layout_tensor(TRANSPOSED, 70, 10, TL_BFLOAT16, -1, 1, 2);
  ck_ok(tl_set_requires_grad(x, true));
  int64_t before = live_tensors();
  bool done = false;
  for (int64_t k = 1; !done; k++) {
    tl_tensor *y = NULL;
    tl_walk *walk = NULL;
    tl_fail_allocation(k);
    tl_status st = tl_softmax(x, 1, &y);
    if (st == TL_OK) st = tl_backward(y, g, false, &walk);
    tl_fail_allocation(0);
    done = st == TL_OK;
    if (!done) ck_assert_int_eq(st, TL_ERR_MEMORY);
    tl_tensor_free(y);
    ck_ok(tl_set_grad(x, NULL));
    ck_assert_int_eq(live_tensors(), before);
  }
  tl_tensor_free(x);
  tl_tensor_free(g);
}
END_TEST

TEST_MAIN("softmax", gradients_along_every_dim_and_layout, values_of_every_path,
          a_row_of_minus_inf_is_zeros_with_zero_gradients, nan_fills_its_row_only, large_values_do_not_overflow,
          numbers_and_empty_tensors, messages, failing_allocations)
