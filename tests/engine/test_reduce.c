/* test_reduce.c: sums and other reductions: values, layouts, empty dims, nan, gradients, determinism. */
#include "check_tl.h"

typedef tl_status (*reduction)(tl_tensor *x, int n, const int *dims, bool keepdim, tl_tensor **out);

static tl_status var1(tl_tensor *x, int n, const int *dims, bool k, tl_tensor **out) {
  return tl_var(x, n, dims, 1, k, out);
}
static tl_status std1(tl_tensor *x, int n, const int *dims, bool k, tl_tensor **out) {
  return tl_std(x, n, dims, 1, k, out);
}
static tl_status norm0(tl_tensor *x, int n, const int *dims, bool k, tl_tensor **out) {
  return tl_norm(x, 0, n, dims, k, out);
}
static tl_status norm1(tl_tensor *x, int n, const int *dims, bool k, tl_tensor **out) {
  return tl_norm(x, 1, n, dims, k, out);
}
static tl_status norm2(tl_tensor *x, int n, const int *dims, bool k, tl_tensor **out) {
  return tl_norm(x, 2, n, dims, k, out);
}
static tl_status norm3(tl_tensor *x, int n, const int *dims, bool k, tl_tensor **out) {
  return tl_norm(x, 3, n, dims, k, out);
}
static tl_status norm_half(tl_tensor *x, int n, const int *dims, bool k, tl_tensor **out) {
  return tl_norm(x, 0.5, n, dims, k, out);
}
static tl_status norm_inf(tl_tensor *x, int n, const int *dims, bool k, tl_tensor **out) {
  return tl_norm(x, INFINITY, n, dims, k, out);
}
static tl_status norm_least(tl_tensor *x, int n, const int *dims, bool k, tl_tensor **out) {
  return tl_norm(x, -INFINITY, n, dims, k, out);
}

static const struct {
  const char *name;
  reduction f;
  bool integers;  /* takes them */
  bool chooses;   /* needs an element */
  double neutral; /* of nothing, unless it chooses */
} reductions[] = {
    {"sum", tl_sum, true, false, 0},
    {"mean", tl_mean, false, false, NAN},
    {"prod", tl_prod, true, false, 1},
    {"var", var1, false, false, NAN},
    {"std", std1, false, false, NAN},
    {"norm 0", norm0, false, false, 0},
    {"norm 1", norm1, false, false, 0},
    {"norm 2", norm2, false, false, 0},
    {"norm 3", norm3, false, false, 0},
    {"norm 0.5", norm_half, false, false, 0},
    {"norm inf", norm_inf, false, true, 0},
    {"norm -inf", norm_least, false, true, 0},
    {"logsumexp", tl_logsumexp, false, true, 0},
    {"amax", tl_amax, true, true, 0},
    {"amin", tl_amin, true, true, 0},
    {"all", tl_all, true, false, 1},
    {"any", tl_any, true, false, 0},
};
#define REDUCTIONS ((int)(sizeof reductions / sizeof *reductions))

static double one(tl_tensor *t) {
  double v;
  ck_ok(tl_item(t, &v));
  tl_tensor_free(t);
  return v;
}

START_TEST(known_values) {
  tl_tensor *x = TENSOR(TL_FLOAT32, SHAPE(2, 3), 1, -2, 3, 4, 5, -6), *y;
  const int rows = 0, columns = 1;
  ck_ok(tl_sum(x, 1, &rows, false, &y));
  ck_tensor(y, 0, 5, 3, -3);
  tl_tensor_free(y);
  ck_ok(tl_mean(x, 1, &columns, true, &y));
  ck_assert_int_eq(tl_ndim(y), 2);
  ck_tensor(y, 1e-7, 2.0 / 3, 1);
  tl_tensor_free(y);
  ck_ok(tl_prod(x, 1, &columns, false, &y));
  ck_tensor(y, 0, -6, -120);
  tl_tensor_free(y);
  ck_ok(tl_var(x, 1, &columns, 1, false, &y));
  ck_tensor(y, 1e-6, 6.3333333, 37);
  tl_tensor_free(y);
  ck_ok(tl_std(x, 1, &columns, 0, false, &y));
  ck_tensor(y, 1e-6, 2.0548047, 4.9665548);
  tl_tensor_free(y);
  ck_ok(norm2(x, 0, NULL, false, &y));
  ck_tensor(y, 1e-6, 9.5393920);
  tl_tensor_free(y);
  ck_ok(norm3(x, 0, NULL, false, &y));
  ck_tensor(y, 1e-6, 7.6116626);
  tl_tensor_free(y);
  ck_ok(tl_logsumexp(x, 1, &columns, false, &y));
  ck_tensor(y, 1e-6, 3.1328452, 5.3132739);
  tl_tensor_free(y);
  ck_ok(tl_amax(x, 0, NULL, false, &y));
  ck_tensor(y, 0, 5);
  tl_tensor_free(y);
  tl_tensor_free(x);
}
END_TEST

START_TEST(integers_sum_to_int64_and_have_no_mean) {
  tl_tensor *x = TENSOR(TL_UINT8, SHAPE(3), 200, 100, 2), *b = TENSOR(TL_BOOL, SHAPE(3), 1, 0, 1), *y;
  ck_ok(tl_sum(x, 0, NULL, false, &y));
  ck_assert_int_eq(tl_dtype_of(y), TL_INT64);
  ck_assert_double_eq(one(y), 302);
  ck_ok(tl_prod(x, 0, NULL, false, &y));
  ck_assert_int_eq(tl_dtype_of(y), TL_INT64);
  ck_assert_double_eq(one(y), 40000);
  ck_ok(tl_sum(b, 0, NULL, false, &y));
  ck_assert_double_eq(one(y), 2);
  ck_ok(tl_amax(x, 0, NULL, false, &y));
  ck_assert_int_eq(tl_dtype_of(y), TL_UINT8);
  ck_assert_double_eq(one(y), 200);
  ck_ok(tl_all(x, 0, NULL, false, &y));
  ck_assert_int_eq(tl_dtype_of(y), TL_BOOL);
  ck_assert_double_eq(one(y), 1);
  ck_fails(tl_mean(x, 0, NULL, false, &y), TL_ERR_DTYPE, "floating dtype, got uint8");
  ck_fails(tl_var(x, 0, NULL, 1, false, &y), TL_ERR_DTYPE, "floating");
  ck_fails(tl_norm(x, 2, 0, NULL, false, &y), TL_ERR_DTYPE, "floating");
  ck_fails(tl_logsumexp(x, 0, NULL, false, &y), TL_ERR_DTYPE, "floating");
  tl_tensor_free(x);
  tl_tensor_free(b);
}
END_TEST

START_TEST(every_layout_equals_its_contiguous_result) {
  const int dims[3][2] = {{0, 0}, {1, 0}, {0, 1}};
  for (int k = 0; k < REDUCTIONS; k++)
    for (int dtype = 0; dtype < TL_DTYPES; dtype++)
      for (int layout = 0; layout < LAYOUTS; layout++)
        for (int size = 0; size < 2; size++)
          for (int d = 0; d < 3; d++) {
            if (dtype > TL_FLOAT64 && !reductions[k].integers) continue;
            if (layout == EMPTY && reductions[k].chooses) continue;
            tl_tensor *x = layout_tensor(layout, size ? 37 : 3, size ? 70 : 4, dtype, dtype == TL_UINT8 ? 0 : -3, 3, 5),
                      *c, *a, *b;
            bool equal;
            ck_ok(tl_clone(x, &c));
            ck_ok(reductions[k].f(x, d == 2 ? 2 : 1, dims[d], false, &a));
            ck_ok(reductions[k].f(c, d == 2 ? 2 : 1, dims[d], false, &b));
            ck_ok(tl_allclose(a, b, dtype == TL_FLOAT64 ? 1e-12 : 1e-5, 1e-6, true, &equal));
            ck_assert_msg(equal, "%s of %s, %s, dims %d", reductions[k].name, tl_dtype_name(dtype), layout_name(layout),
                          d);
            tl_tensor_free(x);
            tl_tensor_free(c);
            tl_tensor_free(a);
            tl_tensor_free(b);
          }
}
END_TEST

START_TEST(nothing_reduces_to_the_neutral_element_or_an_error) {
  tl_tensor *x = TENSOR(TL_FLOAT32, SHAPE(2, 0), 0), *y;
  const int empty = 1, other = 0;
  for (int k = 0; k < REDUCTIONS; k++) {
    if (reductions[k].chooses && strcmp(reductions[k].name, "logsumexp") != 0) {
      ck_fails(reductions[k].f(x, 1, &empty, false, &y), TL_ERR_SHAPE, "dim 1 of (2x0) is empty");
    } else if (!reductions[k].chooses) {
      ck_ok(reductions[k].f(x, 1, &empty, false, &y));
      ck_tensor(y, 0, reductions[k].neutral, reductions[k].neutral);
      tl_tensor_free(y);
    }
    ck_ok(reductions[k].f(x, 1, &other, true, &y)); /* (1x0): no result, no complaint */
    ck_assert_double_eq(tl_numel(y), 0);
    tl_tensor_free(y);
  }
  ck_ok(tl_logsumexp(x, 1, &empty, false, &y));
  ck_tensor(y, 0, -INFINITY, -INFINITY);
  tl_tensor_free(y);
  tl_tensor_free(x);
}
END_TEST

START_TEST(scalars_reduce_to_themselves) {
  tl_tensor *x = make_tensor(TL_FLOAT32, 0, NULL, (const double[]){-3}), *y;
  const int last = -1;
  ck_ok(tl_sum(x, 1, &last, true, &y));
  ck_assert_int_eq(tl_ndim(y), 0);
  ck_assert_double_eq(one(y), -3);
  ck_ok(norm2(x, 0, NULL, false, &y));
  ck_assert_double_eq(one(y), 3);
  tl_tensor_free(x);
}
END_TEST

START_TEST(wrong_dims_are_named) {
  tl_tensor *x = TENSOR(TL_FLOAT32, SHAPE(2, 2), 1, 2, 3, 4), *y;
  const int outside = 2, twice[2] = {0, -2};
  ck_fails(tl_sum(x, 1, &outside, false, &y), TL_ERR_INDEX, "dim 2 is out of range");
  ck_fails(tl_mean(x, 2, twice, false, &y), TL_ERR_VALUE, "dim 0 is named twice");
  tl_error_index_base(1);
  ck_fails(tl_amax(x, 2, twice, false, &y), TL_ERR_VALUE, "dim 1 is named twice");
  tl_error_index_base(0);
  tl_tensor_free(x);
}
END_TEST

START_TEST(nan_stays_nan) {
  double values[200];
  for (int i = 0; i < 200; i++) values[i] = i;
  for (int at = 0; at < 200; at += 13)
    for (int dtype = TL_FLOAT32; dtype <= TL_FLOAT64; dtype++) {
      double former = values[at];
      values[at] = NAN;
      tl_tensor *x = make_tensor(dtype, SHAPE(200), values), *column, *y;
      ck_ok(tl_view(x, SHAPE(50, 4), &column));
      reduction fs[] = {tl_amax, tl_amin, tl_sum, norm2, norm_inf, norm_least, tl_logsumexp};
      for (size_t k = 0; k < sizeof fs / sizeof *fs; k++) {
        const int first = 0;
        ck_ok(fs[k](x, 0, NULL, false, &y));
        ck_assert(isnan(one(y)));
        ck_ok(fs[k](column, 1, &first, false, &y));
        double v[4];
        ck_ok(tl_to_doubles(y, 4, v));
        for (int c = 0; c < 4; c++) ck_assert_int_eq(isnan(v[c]) != 0, c == at % 4);
        tl_tensor_free(y);
      }
      ck_ok(tl_any(x, 0, NULL, false, &y)); /* nan is true */
      ck_assert_double_eq(one(y), 1);
      tl_tensor_free(column);
      tl_tensor_free(x);
      values[at] = former;
    }
}
END_TEST

START_TEST(infinite_rows_of_logsumexp) {
  tl_tensor *x = TENSOR(TL_FLOAT64, SHAPE(3, 2), -INFINITY, -INFINITY, INFINITY, 1, 1000, 1000), *y, *s, *g;
  const int last = 1;
  tl_walk *walk;
  ck_ok(tl_set_requires_grad(x, true));
  ck_ok(tl_logsumexp(x, 1, &last, false, &y));
  ck_tensor(y, 1e-12, -INFINITY, INFINITY, 1000.6931471805599);
  ck_ok(tl_select(y, 0, 0, &s));
  ck_ok(tl_backward(s, NULL, false, &walk));
  ck_ok(tl_grad(x, &g));
  double v[6];
  ck_ok(tl_to_doubles(g, 6, v));
  ck_assert(v[0] == 0 && v[1] == 0 && v[4] == 0 && v[5] == 0); /* no nan from a row of -inf */
  tl_tensor_free(g);
  tl_tensor_free(s);
  tl_tensor_free(y);
  tl_tensor_free(x);
}
END_TEST

START_TEST(variance_does_not_cancel) {
  tl_tensor *x = TENSOR(TL_FLOAT64, SHAPE(4), 1e9 + 1, 1e9 + 2, 1e9 + 3, 1e9 + 4), *y, *single = VECTOR(3);
  ck_ok(var1(x, 0, NULL, false, &y));
  ck_tensor(y, 1e-12, 5.0 / 3);
  tl_tensor_free(y);
  ck_ok(var1(single, 0, NULL, false, &y)); /* one value has no unbiased variance */
  ck_assert(isnan(one(y)));
  ck_ok(tl_var(single, 0, NULL, 0, false, &y));
  ck_assert_double_eq(one(y), 0);
  tl_tensor_free(single);
  tl_tensor_free(x);
}
END_TEST

START_TEST(float_sums_round_once) {
  /* 2^24 + 2^20 ones: a float accumulator would stop at 2^24 */
  tl_tensor *x, *y, *expanded;
  ck_ok(tl_full(SHAPE(1), 1, TL_FLOAT32, test_device(), &x));
  ck_ok(tl_expand(x, SHAPE(17825792), &expanded));
  ck_ok(tl_sum(expanded, 0, NULL, false, &y));
  ck_assert_double_eq(one(y), 17825792);
  tl_tensor_free(expanded);
  tl_tensor_free(x);
  ck_ok(tl_full(SHAPE(300000), 1, TL_BFLOAT16, test_device(), &x));
  ck_ok(tl_sum(x, 0, NULL, false, &y));
  ck_assert_double_eq(one(y), 299008); /* the bfloat16 nearest to 300000 */
  tl_tensor_free(x);
}
END_TEST

/* Bit for bit the same with 1, 2 and 3 threads. */
START_TEST(threads_change_nothing) {
  const int64_t shapes[4][2] = {{1, 300000}, {300000, 1}, {3000, 100}, {100, 3000}};
  int before = tl_get_num_threads();
  for (int s = 0; s < 4; s++)
    for (int d = 0; d < 3; d++) {
      tl_tensor *x = layout_tensor(CONTIGUOUS, shapes[s][0], shapes[s][1], TL_FLOAT64, -1, 1, 11), *first = NULL, *y;
      for (int threads = 1; threads <= 3; threads++) {
        bool equal = true;
        ck_ok(tl_set_num_threads(threads));
        ck_ok(tl_sum(x, d == 2 ? 0 : 1, &d, false, &y));
        if (first == NULL) first = y;
        else {
          ck_ok(tl_equal(first, y, &equal));
          tl_tensor_free(y);
        }
        ck_assert(equal);
      }
      tl_tensor_free(first);
      tl_tensor_free(x);
    }
  ck_ok(tl_set_num_threads(before));
}
END_TEST

typedef struct choice {
  reduction f;
  int n, dims[2];
  bool keepdim;
} choice;

static tl_status reduce_chosen(tl_tensor *const *in, void *context, tl_tensor **out) {
  choice *c = context;
  return c->f(in[0], c->n, c->dims, c->keepdim, out);
}

START_TEST(gradients) {
  for (int k = 0; k < REDUCTIONS; k++)
    for (int layout = 0; layout < LAYOUTS; layout++)
      for (int d = 0; d < 3; d++) {
        if (reductions[k].f == tl_all || reductions[k].f == tl_any) continue;
        if (layout == EMPTY && (reductions[k].chooses || !(reductions[k].neutral == 0))) continue;
        /* ties have no derivative, and std has none where it is 0: the columns of expanded rows are such */
        bool ties = (reductions[k].chooses && reductions[k].f != tl_logsumexp) || reductions[k].f == std1;
        if (ties && layout == EXPANDED) continue;
        tl_tensor *x = layout_tensor(layout, 3, 4, TL_FLOAT64, 0.3, 2, 21);
        choice c = {reductions[k].f, d == 2 ? 0 : 1, {d, 0}, d == 1};
        check_gradients(reductions[k].name, reduce_chosen, 1, &x, &c);
        tl_tensor_free(x);
      }
}
END_TEST

/* The gradient of a scalar reduction of x. */
static tl_tensor *gradient_of(reduction f, tl_tensor *x) {
  tl_tensor *y, *g;
  tl_walk *walk;
  ck_ok(tl_set_requires_grad(x, true));
  ck_ok(f(x, 0, NULL, false, &y));
  ck_ok(tl_backward(y, NULL, false, &walk));
  ck_ok(tl_grad(x, &g));
  tl_tensor_free(y);
  tl_tensor_free(x);
  return g;
}

static void ck_gradient(reduction f, tl_tensor *x, const double *expected) {
  tl_tensor *g = gradient_of(f, x);
  ck_values(g, 4, expected, 1e-6);
  tl_tensor_free(g);
}
#define EXPECT(...) \
  (const double[]) { __VA_ARGS__ }

START_TEST(gradients_at_special_points) {
  ck_gradient(tl_prod, VECTOR(2, 0, 3, 4), EXPECT(0, 24, 0, 0));
  ck_gradient(tl_prod, VECTOR(2, 0, 0, 4), EXPECT(0, 0, 0, 0));
  ck_gradient(tl_prod, VECTOR(1, 2, 3, 4), EXPECT(24, 12, 8, 6));
  ck_gradient(tl_amax, VECTOR(1, 5, 5, 2), EXPECT(0, .5, .5, 0));
  ck_gradient(tl_amin, VECTOR(1, 1, 1, 1), EXPECT(.25, .25, .25, .25));
  ck_gradient(tl_amax, VECTOR(1, NAN, 5, 2), EXPECT(0, 1, 0, 0));
  ck_gradient(norm2, VECTOR(0, 0, 0, 0), EXPECT(0, 0, 0, 0));
  ck_gradient(norm1, VECTOR(0, -2, 3, 0), EXPECT(0, -1, 1, 0));
  ck_gradient(norm0, VECTOR(0, -2, 3, 0), EXPECT(0, 0, 0, 0));
  ck_gradient(norm_inf, VECTOR(1, -5, 5, 0), EXPECT(0, -.5, .5, 0));
  ck_gradient(norm_half, VECTOR(0, 1, 0, 0), EXPECT(0, 1, 0, 0));
  ck_gradient(std1, VECTOR(2, 2, 2, 2), EXPECT(0, 0, 0, 0));
}
END_TEST

START_TEST(sum_to_undoes_a_broadcast) {
  tl_tensor *x = TENSOR(TL_FLOAT32, SHAPE(2, 3), 1, 2, 3, 4, 5, 6), *y;
  ck_ok(tl_sum_to(x, SHAPE(3), &y));
  ck_tensor(y, 0, 5, 7, 9);
  tl_tensor_free(y);
  ck_ok(tl_sum_to(x, SHAPE(2, 1), &y));
  ck_assert_int_eq(tl_ndim(y), 2);
  ck_tensor(y, 0, 6, 15);
  tl_tensor_free(y);
  ck_ok(tl_sum_to(x, 0, NULL, &y));
  ck_tensor(y, 0, 21);
  tl_tensor_free(y);
  tl_tensor_free(x);
}
END_TEST

START_TEST(allclose_and_equal) {
  tl_tensor *a = VECTOR(1, 2, INFINITY), *b = VECTOR(1.000001, 2, INFINITY), *n = VECTOR(NAN, 2, 3),
            *minus = VECTOR(1, 2, -INFINITY);
  tl_tensor *finite = VECTOR(1, 2, 3), *i = TENSOR(TL_INT64, SHAPE(3), 1, 2, 3), *shorter = VECTOR(1, 2),
            *d = TENSOR(TL_FLOAT64, SHAPE(1), 2);
  bool r;
#define CLOSE(x, y, nan, expected)               \
  ck_ok(tl_allclose(x, y, 1e-5, 1e-8, nan, &r)); \
  ck_assert_int_eq(r, expected)
  CLOSE(a, b, false, true);
  CLOSE(a, minus, false, false);
  CLOSE(finite, a, false, false);
  CLOSE(n, n, false, false);
  CLOSE(n, n, true, true);
  CLOSE(finite, i, false, true);
  CLOSE(finite, d, false, false);
  ck_fails(tl_allclose(a, shorter, 1e-5, 1e-8, false, &r), TL_ERR_SHAPE, "broadcast");
  ck_fails(tl_allclose(a, b, -1, 0, false, &r), TL_ERR_VALUE, "tolerances");
  ck_ok(tl_equal(a, a, &r));
  ck_assert(r);
  ck_ok(tl_equal(a, b, &r));
  ck_assert(!r);
  ck_ok(tl_equal(a, shorter, &r));
  ck_assert(!r);
  ck_ok(tl_equal(n, n, &r));
  ck_assert(!r);
  tl_tensor *all[] = {a, b, n, minus, finite, i, shorter, d};
  for (size_t k = 0; k < sizeof all / sizeof *all; k++) tl_tensor_free(all[k]);
}
END_TEST

/* Every allocation of a forward and backward pass fails once: an error each time, and nothing leaks. */
START_TEST(failing_allocations) {
  for (int k = 0; k < REDUCTIONS; k++) {
    if (reductions[k].f == tl_all || reductions[k].f == tl_any) continue;
    tl_tensor *x;
    ck_ok(tl_full(SHAPE(2, 600), 2, TL_FLOAT32, test_device(), &x));
    ck_ok(tl_set_requires_grad(x, true));
    int64_t before = live_tensors();
    bool done = false;
    for (int64_t nth = 1; !done && nth < 200; nth++) {
      tl_tensor *y = NULL, *s = NULL;
      tl_walk *walk = NULL;
      const int first = 0;
      tl_fail_allocation(nth);
      tl_status st = reductions[k].f(x, 1, &first, false, &y);
      if (st == TL_OK) st = tl_sum(y, 0, NULL, false, &s);
      if (st == TL_OK) st = tl_backward(s, NULL, false, &walk);
      tl_fail_allocation(0);
      ck_assert(st == TL_OK || st == TL_ERR_MEMORY);
      done = st == TL_OK;
      tl_tensor_free(y);
      tl_tensor_free(s);
      ck_ok(tl_set_grad(x, NULL));
      ck_assert_msg(live_tensors() == before, "%s leaks when allocation %lld fails", reductions[k].name,
                    (long long)nth);
    }
    ck_assert(done);
    tl_tensor_free(x);
  }
}
END_TEST

TEST_MAIN("reduce", known_values, integers_sum_to_int64_and_have_no_mean, every_layout_equals_its_contiguous_result,
          nothing_reduces_to_the_neutral_element_or_an_error, scalars_reduce_to_themselves, wrong_dims_are_named,
          nan_stays_nan, infinite_rows_of_logsumexp, variance_does_not_cancel, float_sums_round_once,
          threads_change_nothing, gradients, gradients_at_special_points, sum_to_undoes_a_broadcast, allclose_and_equal,
          failing_allocations)
