/* test_matmul.c: matrix products against plain loops in double, their gradients, their messages. */
#include "check_tl.h"

/* ---- a reference: (batch x m x k) times (batch x k x n) in double ---- */

static void reference(int64_t m, int64_t n, int64_t k, const double *a, const double *b, double *y) {
  for (int64_t i = 0; i < m; i++)
    for (int64_t j = 0; j < n; j++) {
      double sum = 0;
      for (int64_t p = 0; p < k; p++) sum += a[i * k + p] * b[p * n + j];
      y[i * n + j] = sum;
    }
}

static double *values_of(const tl_tensor *t) {
  int64_t n = (int64_t)tl_numel(t);
  double *v = malloc((size_t)(n + 1) * sizeof *v);
  ck_ok(tl_to_doubles(t, n, v));
  return v;
}

/* mm of two 2-d tensors equals the reference of their values */
static void check_mm(tl_tensor *a, tl_tensor *b, double tolerance) {
  int64_t m = (int64_t)tl_size(a, 0), k = (int64_t)tl_size(a, 1), n = (int64_t)tl_size(b, 1);
  double *va = values_of(a), *vb = values_of(b), *expected = malloc((size_t)(m * n + 1) * sizeof *expected);
  reference(m, n, k, va, vb, expected);
  tl_tensor *y = NULL;
  ck_ok(tl_mm(a, b, &y));
  ck_assert_int_eq(tl_dtype_of(y), tl_dtype_of(a));
  ck_values(y, m * n, expected, tolerance);
  tl_tensor_free(y);
  free(va);
  free(vb);
  free(expected);
}

static double tolerance_of(int dtype) {
  return dtype == TL_FLOAT64    ? 1e-12
         : dtype == TL_FLOAT16  ? 2e-3
         : dtype == TL_BFLOAT16 ? 1e-2
         : dtype == TL_FLOAT32  ? 2e-5
                                : 0;
}

/* sizes below and above the threshold of the small kernel, odd tails included */
static const int64_t sizes[][3] = {{1, 1, 1},   {3, 5, 4},    {4, 16, 8},    {7, 1, 10},
                                   {1, 9, 300}, {33, 17, 29}, {130, 70, 65}, {70, 66, 90}};

START_TEST(mm_all_dtypes_and_layouts) {
  for (int dtype = 0; dtype < TL_BOOL; dtype++)
    for (int la = 0; la < LAYOUTS; la++)
      for (int lb = 0; lb < EMPTY; lb++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
          double low = dtype == TL_UINT8 ? 0 : -1, high = 1;
          if (dtype >= TL_INT64) low *= 3, high = dtype == TL_UINT8 ? 2 : 3;
          tl_tensor *a = layout_tensor(la, sizes[s][0], sizes[s][2], dtype, low, high, 1);
          tl_tensor *b = layout_tensor(lb, sizes[s][2], sizes[s][1], dtype, low, high, 2);
          check_mm(a, b, tolerance_of(dtype));
          tl_tensor_free(a);
          tl_tensor_free(b);
        }
}
END_TEST

START_TEST(int64_products_are_exact) {
  tl_tensor *a = make_tensor(TL_INT64, SHAPE(1, 2), (const double[]){3037000499., 1}), *y = NULL;
  tl_tensor *b = make_tensor(TL_INT64, SHAPE(2, 1), (const double[]){3037000499., 7});
  ck_ok(tl_mm(a, b, &y));
  const int64_t exact = INT64_C(3037000499) * 3037000499 + 7; /* more than a double holds */
  tl_tensor *expected;
  bool equal;
  ck_ok(tl_from_memory(SHAPE(1, 1), TL_INT64, test_device(), &exact, &expected));
  ck_ok(tl_equal(y, expected, &equal));
  ck_assert(equal);
  tl_tensor_free(expected);
  tl_tensor_free(a);
  tl_tensor_free(b);
  tl_tensor_free(y);
}
END_TEST

START_TEST(zero_sizes) {
  const int64_t cases[][3] = {{0, 3, 2}, {3, 0, 2}, {2, 3, 0}, {0, 0, 0}};
  for (int dtype = 0; dtype < TL_BOOL; dtype++)
    for (int c = 0; c < 4; c++) {
      tl_tensor *a = layout_tensor(CONTIGUOUS, cases[c][0], cases[c][2], dtype, 0, 3, 1);
      tl_tensor *b = layout_tensor(CONTIGUOUS, cases[c][2], cases[c][1], dtype, 0, 3, 2);
      check_mm(a, b, 0); /* k = 0 gives zeros */
      tl_tensor_free(a);
      tl_tensor_free(b);
    }
}
END_TEST

/* ---- the shapes of matmul ---- */

static tl_tensor *counting(int ndim, const int64_t *shape, int dtype) {
  tl_tensor *t = NULL, *shaped = NULL;
  int64_t n = 1;
  for (int d = 0; d < ndim; d++) n *= shape[d];
  ck_ok(tl_arange(1, (double)n + 1, 1, dtype, test_device(), &t));
  ck_ok(tl_reshape(t, ndim, shape, &shaped));
  tl_tensor_free(t);
  return shaped;
}

static void ck_shape(const tl_tensor *t, int ndim, const int64_t *shape) {
  ck_assert_int_eq(tl_ndim(t), ndim);
  for (int d = 0; d < ndim; d++) ck_assert_int_eq((int64_t)tl_size(t, d), shape[d]);
}

START_TEST(matmul_of_vectors) {
  tl_tensor *v = VECTOR(1, 2, 3), *m = counting(SHAPE(3, 2), TL_FLOAT32), *mt = NULL, *y = NULL;
  ck_ok(tl_matmul(v, v, &y));
  ck_assert_int_eq(tl_ndim(y), 0);
  ck_tensor(y, 0, 14);
  tl_tensor_free(y);
  ck_ok(tl_matmul(v, m, &y));
  ck_shape(y, SHAPE(2));
  ck_tensor(y, 0, 22, 28);
  tl_tensor_free(y);
  ck_ok(tl_transpose(m, 0, 1, &mt));
  ck_ok(tl_matmul(mt, v, &y));
  ck_shape(y, SHAPE(2));
  ck_tensor(y, 0, 22, 28);
  tl_tensor_free(y);
  ck_ok(tl_dot(v, v, &y));
  ck_tensor(y, 0, 14);
  tl_tensor_free(y);
  ck_ok(tl_outer(v, v, &y));
  ck_shape(y, SHAPE(3, 3));
  ck_tensor(y, 0, 1, 2, 3, 2, 4, 6, 3, 6, 9);
  tl_tensor_free(y);
  tl_tensor_free(v);
  tl_tensor_free(m);
  tl_tensor_free(mt);
}
END_TEST

START_TEST(matmul_broadcasts_batches) {
  tl_tensor *a = counting(SHAPE(2, 1, 2, 3), TL_FLOAT32), *b = counting(SHAPE(3, 3, 2), TL_FLOAT32), *y = NULL;
  double *va = values_of(a), *vb = values_of(b), expected[24];
  for (int i = 0; i < 2; i++)
    for (int j = 0; j < 3; j++) reference(2, 2, 3, va + i * 6, vb + j * 6, expected + (i * 3 + j) * 4);
  ck_ok(tl_matmul(a, b, &y));
  ck_shape(y, SHAPE(2, 3, 2, 2));
  ck_values(y, 24, expected, 0);
  free(va);
  free(vb);
  tl_tensor_free(a);
  tl_tensor_free(b);
  tl_tensor_free(y);
  tl_tensor *x = counting(SHAPE(2, 0, 3), TL_FLOAT32), *w = counting(SHAPE(3, 4), TL_FLOAT32);
  ck_ok(tl_matmul(x, w, &y));
  ck_shape(y, SHAPE(2, 0, 4));
  tl_tensor_free(x);
  tl_tensor_free(w);
  tl_tensor_free(y);
}
END_TEST

/* Batches large enough for the parallel path and batches that fold into one product agree with single products. */
START_TEST(matmul_large_batches) {
  const int64_t batch = 24, m = 20, k = 24, n = 28;
  for (int shared = 0; shared < 2; shared++) {
    tl_tensor *a = layout_tensor(CONTIGUOUS, batch * m, k, TL_FLOAT32, -1, 1, 3), *a3 = NULL, *b3 = NULL, *y = NULL;
    tl_tensor *b = layout_tensor(CONTIGUOUS, (shared ? 1 : batch) * k, n, TL_FLOAT32, -1, 1, 4);
    ck_ok(tl_view(a, SHAPE(batch, m, k), &a3));
    ck_ok(tl_view(b, SHAPE(shared ? 1 : batch, k, n), &b3));
    ck_ok(tl_matmul(a3, b3, &y));
    double *va = values_of(a), *vb = values_of(b), *expected = malloc((size_t)(batch * m * n) * sizeof *expected);
    for (int64_t i = 0; i < batch; i++)
      reference(m, n, k, va + i * m * k, vb + (shared ? 0 : i * k * n), expected + i * m * n);
    ck_values(y, batch * m * n, expected, 2e-5);
    tl_tensor *all[] = {a, a3, b, b3, y};
    for (int t = 0; t < 5; t++) tl_tensor_free(all[t]);
    free(va);
    free(vb);
    free(expected);
  }
}
END_TEST

START_TEST(addmm_scales) {
  tl_tensor *a = counting(SHAPE(2, 3), TL_FLOAT32), *b = counting(SHAPE(3, 2), TL_FLOAT32), *y = NULL;
  tl_tensor *c = make_tensor(TL_FLOAT32, SHAPE(2, 2), (const double[]){1, 2, 3, 4}), *v = VECTOR(10, 20);
  tl_tensor *bad = make_tensor(TL_FLOAT32, SHAPE(1), (const double[]){NAN});
  ck_ok(tl_addmm(c, a, b, 2, 0.5, &y));
  ck_tensor(y, 1e-6, 13, 18, 30.5, 40);
  tl_tensor_free(y);
  ck_ok(tl_addmm(v, a, b, 1, 1, &y));
  ck_tensor(y, 1e-6, 32, 48, 59, 84);
  tl_tensor_free(y);
  ck_ok(tl_addmm(bad, a, b, 0, 1, &y)); /* beta = 0: c is not read */
  ck_tensor(y, 1e-6, 22, 28, 49, 64);
  tl_tensor_free(y);
  ck_fails(tl_addmm(a, a, b, 1, 1, &y), TL_ERR_SHAPE, "(2x3) does not broadcast to the product's (2x2)");
  tl_tensor *all[] = {a, b, c, v, bad};
  for (int t = 0; t < 5; t++) tl_tensor_free(all[t]);
}
END_TEST

START_TEST(linear_adds_the_bias) {
  for (int dtype = 0; dtype <= TL_FLOAT64; dtype++)
    for (int rows = 0; rows <= 3; rows += 3) {
      tl_tensor *x = layout_tensor(CONTIGUOUS, rows * 2, 40, dtype, -1, 1, 1), *x3 = NULL, *y = NULL, *plain = NULL;
      tl_tensor *w = layout_tensor(TRANSPOSED, 30, 40, dtype, -1, 1, 2), *wt = NULL, *sum = NULL;
      tl_tensor *b2 = layout_tensor(CONTIGUOUS, 1, 30, dtype, -1, 1, 3), *b = NULL;
      ck_ok(tl_view(x, SHAPE(2, rows, 40), &x3));
      ck_ok(tl_select(b2, 0, 0, &b));
      ck_ok(tl_linear(x3, w, b, &y));
      ck_shape(y, SHAPE(2, rows, 30));
      ck_ok(tl_transpose(w, 0, 1, &wt));
      ck_ok(tl_matmul(x3, wt, &plain));
      ck_ok(tl_add(plain, b, &sum));
      double *expected = values_of(sum);
      ck_values(y, rows * 60, expected, tolerance_of(dtype) * 4);
      free(expected);
      tl_tensor *all[] = {x, x3, y, plain, w, wt, sum, b2, b};
      for (int t = 0; t < 9; t++) tl_tensor_free(all[t]);
    }
}
END_TEST

START_TEST(linear_without_features_is_the_bias) {
  tl_tensor *x = counting(SHAPE(2, 0), TL_FLOAT32), *w = counting(SHAPE(3, 0), TL_FLOAT32), *b = VECTOR(1, 2, 3),
            *y = NULL;
  ck_ok(tl_linear(x, w, b, &y));
  ck_tensor(y, 0, 1, 2, 3, 1, 2, 3);
  tl_tensor *all[] = {x, w, b, y};
  for (int t = 0; t < 4; t++) tl_tensor_free(all[t]);
}
END_TEST

/* The same numbers every time, with any number of threads held fixed. */
START_TEST(products_repeat_bit_for_bit) {
  for (int threads = 1; threads <= 2; threads++) {
    ck_ok(tl_set_num_threads(threads));
    tl_tensor *a = layout_tensor(CONTIGUOUS, 64, 784, TL_FLOAT32, -1, 1, 1),
              *b = layout_tensor(TRANSPOSED, 784, 128, TL_FLOAT32, -1, 1, 2);
    tl_tensor *first = NULL, *y = NULL;
    ck_ok(tl_mm(a, b, &first));
    for (int i = 0; i < 20; i++) {
      ck_ok(tl_mm(a, b, &y));
      bool same;
      ck_ok(tl_equal(y, first, &same));
      ck_assert(same);
      tl_tensor_free(y);
    }
    tl_tensor_free(a);
    tl_tensor_free(b);
    tl_tensor_free(first);
  }
}
END_TEST

/* ---- gradients ---- */

static tl_status run_matmul(tl_tensor *const *in, void *context, tl_tensor **out) {
  (void)context;
  return tl_matmul(in[0], in[1], out);
}
static tl_status run_addmm(tl_tensor *const *in, void *context, tl_tensor **out) {
  (void)context;
  return tl_addmm(in[0], in[1], in[2], 0.5, 2, out);
}
static tl_status run_linear(tl_tensor *const *in, void *context, tl_tensor **out) {
  return tl_linear(in[0], in[1], context != NULL ? in[2] : NULL, out);
}
static tl_status run_linear_gelu(tl_tensor *const *in, void *context, tl_tensor **out) {
  (void)context;
  return tl_linear_gelu(in[0], in[1], in[2], out);
}
static tl_status run_outer(tl_tensor *const *in, void *context, tl_tensor **out) {
  (void)context;
  return tl_outer(in[0], in[1], out);
}

static tl_tensor *random_tensor(int ndim, const int64_t *shape, double seed) {
  tl_tensor *t = NULL;
  tl_generator *g;
  ck_ok(tl_generator_new(seed, &g));
  ck_ok(tl_empty(ndim, shape, TL_FLOAT64, test_device(), &t));
  ck_ok(tl_uniform_(t, -1, 1, g));
  tl_generator_free(g);
  return t;
}

static void check_pair(const char *what, graded f, tl_tensor *a, tl_tensor *b) {
  check_gradients(what, f, 2, (tl_tensor *[]){a, b}, NULL);
  tl_tensor_free(a);
  tl_tensor_free(b);
}

START_TEST(gradients_of_matmul) {
  for (int la = 0; la < LAYOUTS; la++)
    for (int lb = 0; lb < EMPTY; lb++)
      check_pair("mm", run_matmul, layout_tensor(la, 3, 4, TL_FLOAT64, -1, 1, 1),
                 layout_tensor(lb, 4, 2, TL_FLOAT64, -1, 1, 2));
  check_pair("1x1", run_matmul, random_tensor(SHAPE(4), 1), random_tensor(SHAPE(4), 2));
  check_pair("1x2", run_matmul, random_tensor(SHAPE(4), 1), random_tensor(SHAPE(4, 3), 2));
  check_pair("2x1", run_matmul, random_tensor(SHAPE(3, 4), 1), random_tensor(SHAPE(4), 2));
  check_pair("1x3", run_matmul, random_tensor(SHAPE(4), 1), random_tensor(SHAPE(2, 4, 3), 2));
  check_pair("3x1", run_matmul, random_tensor(SHAPE(2, 3, 4), 1), random_tensor(SHAPE(4), 2));
  check_pair("3x2", run_matmul, random_tensor(SHAPE(2, 3, 4), 1), random_tensor(SHAPE(4, 3), 2));
  check_pair("2x3", run_matmul, random_tensor(SHAPE(3, 4), 1), random_tensor(SHAPE(2, 4, 3), 2));
  check_pair("4x3", run_matmul, random_tensor(SHAPE(2, 1, 3, 4), 1), random_tensor(SHAPE(3, 4, 2), 2));
  check_pair("k=0", run_matmul, random_tensor(SHAPE(3, 0), 1), random_tensor(SHAPE(0, 2), 2));
  check_pair("outer", run_outer, random_tensor(SHAPE(3), 1), random_tensor(SHAPE(2), 2));
}
END_TEST

START_TEST(gradients_of_addmm_and_linear) {
  tl_tensor *c = random_tensor(SHAPE(1, 2), 1), *a = random_tensor(SHAPE(3, 4), 2), *b = random_tensor(SHAPE(4, 2), 3);
  check_gradients("addmm", run_addmm, 3, (tl_tensor *[]){c, a, b}, NULL);
  tl_tensor *w = random_tensor(SHAPE(5, 4), 4), *bias = random_tensor(SHAPE(5), 5),
            *x3 = random_tensor(SHAPE(2, 3, 4), 6);
  tl_tensor *v = random_tensor(SHAPE(4), 7), *xt = NULL, *x3t = random_tensor(SHAPE(3, 2, 4), 8);
  ck_ok(tl_transpose(x3t, 0, 1, &xt));
  tl_tensor *inputs[4] = {a, x3, v, xt};
  for (int i = 0; i < 4; i++) check_gradients("linear", run_linear, 3, (tl_tensor *[]){inputs[i], w, bias}, &w);
  check_gradients("linear_gelu", run_linear_gelu, 3, (tl_tensor *[]){x3, w, bias}, NULL);
  check_gradients("linear without bias", run_linear, 2, (tl_tensor *[]){a, w}, NULL);
  tl_tensor *all[] = {c, a, b, w, bias, x3, v, xt, x3t};
  for (int t = 0; t < 9; t++) tl_tensor_free(all[t]);
}
END_TEST

/* A weight that no gradient needs may change between forward and backward. */
START_TEST(saves_only_what_gradients_need) {
  tl_tensor *x = VECTOR(1, 2), *w = counting(SHAPE(3, 2), TL_FLOAT32), *y = NULL, *sum = NULL, *g = NULL;
  tl_walk *walk = NULL;
  ck_ok(tl_set_requires_grad(w, true));
  ck_ok(tl_linear(x, w, NULL, &y));
  ck_ok(tl_sum(y, 0, NULL, false, &sum));
  bool grad = tl_set_grad_enabled(false);
  ck_ok(tl_fill_(w, 0));
  tl_set_grad_enabled(grad);
  ck_ok(tl_backward(sum, NULL, false, &walk));
  ck_ok(tl_grad(w, &g));
  ck_tensor(g, 0, 1, 2, 1, 2, 1, 2);
  tl_tensor *all[] = {x, w, y, sum, g};
  for (int t = 0; t < 5; t++) tl_tensor_free(all[t]);
}
END_TEST

/* ---- failures ---- */

START_TEST(messages) {
  tl_tensor *a = NULL, *b = NULL, *i = NULL, *y = NULL, *s = NULL, *t = NULL, *u = NULL, *flags = NULL;
  ck_ok(tl_full(SHAPE(64, 784), 1, TL_FLOAT32, test_device(), &a));
  ck_ok(tl_full(SHAPE(785, 128), 1, TL_FLOAT32, test_device(), &b));
  ck_ok(tl_full(SHAPE(784, 128), 1, TL_INT64, test_device(), &i));
  ck_ok(tl_full(0, NULL, 1, TL_FLOAT32, test_device(), &s));
  ck_ok(tl_full(SHAPE(2, 3, 4), 1, TL_FLOAT32, test_device(), &t));
  ck_ok(tl_full(SHAPE(5, 4, 6), 1, TL_FLOAT32, test_device(), &u));
  ck_ok(tl_full(SHAPE(2, 2), 1, TL_BOOL, test_device(), &flags));
  int64_t before = live_tensors();
  ck_fails(tl_matmul(a, b, &y), TL_ERR_SHAPE, "(64x784) and (785x128): inner sizes 784 and 785 differ");
  ck_assert_str_eq(tl_last_error()->op, "matmul");
  ck_fails(tl_matmul(a, i, &y), TL_ERR_DTYPE, "float32 and int64");
  ck_fails(tl_matmul(a, s, &y), TL_ERR_SHAPE, "(64x784) and (): both need at least 1 dim");
  ck_fails(tl_matmul(t, u, &y), TL_ERR_SHAPE, "(2x3x4) and (5x4x6): batch sizes 2 and 5 differ");
  ck_fails(tl_bmm(t, u, &y), TL_ERR_SHAPE, "batch sizes 2 and 5 differ");
  ck_fails(tl_mm(a, t, &y), TL_ERR_SHAPE, "(64x784) and (2x3x4): both must have 2 dims");
  ck_fails(tl_matmul(flags, flags, &y), TL_ERR_DTYPE, "bool");
  ck_fails(tl_linear(a, b, NULL, &y), TL_ERR_SHAPE,
           "(64x784) into a weight of (785x128): 784 input features, 128 expected");
  ck_fails(tl_linear(a, a, s, &y), TL_ERR_SHAPE, "a bias of () for a weight of (64x784): (64) expected");
  ck_assert_int_eq(live_tensors(), before);
  tl_tensor *all[] = {a, b, i, s, t, u, flags};
  for (int k = 0; k < 7; k++) tl_tensor_free(all[k]);
}
END_TEST

/* Every allocation of a forward and backward pass fails once: no leak, the arguments live. */
START_TEST(failing_allocations) {
  tl_tensor *x = layout_tensor(EXPANDED, 40, 50, TL_FLOAT32, -1, 1, 1),
            *w = layout_tensor(NARROWED, 30, 50, TL_FLOAT32, -1, 1, 2);
  ck_ok(tl_set_requires_grad(w, true));
  int64_t before = live_tensors();
  bool done = false;
  for (int64_t k = 1; !done; k++) {
    tl_tensor *y = NULL, *sum = NULL;
    tl_walk *walk = NULL;
    tl_fail_allocation(k);
    tl_status st = tl_linear(x, w, NULL, &y);
    if (st == TL_OK) st = tl_sum(y, 0, NULL, false, &sum);
    if (st == TL_OK) st = tl_backward(sum, NULL, false, &walk);
    tl_fail_allocation(0);
    done = st == TL_OK;
    if (!done) ck_assert_int_eq(st, TL_ERR_MEMORY);
    tl_tensor_free(y);
    tl_tensor_free(sum);
    ck_ok(tl_set_grad(w, NULL));
    ck_assert_int_eq(live_tensors(), before);
  }
  tl_tensor_free(x);
  tl_tensor_free(w);
}
END_TEST

TEST_MAIN("matmul", mm_all_dtypes_and_layouts, int64_products_are_exact, zero_sizes, matmul_of_vectors,
          matmul_broadcasts_batches, matmul_large_batches, addmm_scales, linear_adds_the_bias,
          linear_without_features_is_the_bias, products_repeat_bit_for_bit, gradients_of_matmul,
          gradients_of_addmm_and_linear, saves_only_what_gradients_need, messages, failing_allocations)
