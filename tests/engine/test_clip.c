/* Clipping and zeroing of gradients: norms, layouts, dtypes, what is not finite. */
#include "check_tl.h"

/* A parameter of this shape whose gradient is `grad` (taken over). */
static tl_tensor *with_grad(tl_tensor *grad) {
  tl_tensor *p;
  int64_t shape[TL_MAX_DIMS];
  for (int d = 0; d < tl_ndim(grad); d++) shape[d] = (int64_t)tl_size(grad, d);
  ck_ok(tl_full(tl_ndim(grad), shape, 1, tl_dtype_of(grad), test_device(), &p));
  ck_ok(tl_set_requires_grad(p, true));
  ck_ok(tl_set_grad(p, grad));
  tl_tensor_free(grad);
  return p;
}

static tl_tensor *grad_of(tl_tensor *p) {
  tl_tensor *g;
  ck_ok(tl_grad(p, &g));
  tl_tensor_free(g); /* p holds it */
  return g;
}

static tl_tensor *ones(int64_t n, int dtype) {
  tl_tensor *g;
  ck_ok(tl_full(1, &n, 1, dtype, test_device(), &g));
  return with_grad(g);
}

START_TEST(a_hundred_ones) {
  for (int dtype = TL_FLOAT32; dtype <= TL_FLOAT64; dtype++) {
    tl_tensor *p[3] = {ones(60, dtype), ones(40, dtype), NULL};
    tl_tensor *none = VECTOR(1); /* without a gradient */
    p[2] = none;
    double norm, v;
    ck_ok(tl_clip_grad_norm_(3, p, 1, 2, true, &norm));
    ck_assert_double_eq_tol(norm, 10, 1e-12);
    for (int i = 0; i < 2; i++) {
      ck_ok(tl_get(grad_of(p[i]), 1, (const int64_t[]){39}, &v));
      ck_assert_double_eq_tol(v, .1, dtype == TL_BFLOAT16 ? 1e-3 : dtype == TL_FLOAT16 ? 1e-4 : 2e-7);
    }
    for (int i = 0; i < 3; i++) tl_tensor_free(p[i]);
  }
}
END_TEST

START_TEST(a_small_norm_stays) {
  tl_tensor *p = with_grad(VECTOR(3, 4));
  double norm, version = tl_version_of(grad_of(p));
  ck_ok(tl_clip_grad_norm_(1, &p, 5.1, 2, false, &norm));
  ck_assert_double_eq(norm, 5);
  ck_tensor(grad_of(p), 0, 3, 4);
  ck_assert_double_eq(tl_version_of(grad_of(p)), version);
  ck_ok(tl_clip_grad_norm_(1, &p, .5, 2, false, &norm)); /* the norm before clipping */
  ck_assert_double_eq(norm, 5);
  ck_tensor(grad_of(p), 1e-6, .3, .4);
  ck_assert_double_eq(tl_version_of(grad_of(p)), version + 1);
  tl_tensor_free(p);
}
END_TEST

START_TEST(other_norms) {
  const double types[4] = {1, 3, INFINITY, .5}, expected[4] = {7, 4.49794144527541, 4, 13.9282032302755};
  for (int i = 0; i < 4; i++)
    for (int dtype = TL_FLOAT32; dtype <= TL_FLOAT64; dtype++) {
      tl_tensor *p = with_grad(make_tensor(dtype, SHAPE(2), (const double[]){-3, 4}));
      double norm;
      ck_ok(tl_clip_grad_norm_(1, &p, 1, types[i], false, &norm));
      ck_assert_double_eq_tol(norm, expected[i], 1e-9);
      ck_tensor(grad_of(p), dtype == TL_BFLOAT16 ? 2e-3 : 1e-3, -3 / expected[i], 4 / expected[i]);
      tl_tensor_free(p);
    }
}
END_TEST

START_TEST(not_finite) {
  const double bad[2] = {NAN, INFINITY}, types[3] = {2, 1, INFINITY};
  for (int i = 0; i < 2; i++)
    for (int k = 0; k < 3; k++) {
      tl_tensor *p = with_grad(VECTOR(1, 2, 3)), *q = with_grad(VECTOR(bad[i], 1)), *both[2] = {q, p};
      double norm = 77;
      ck_fails(tl_clip_grad_norm_(2, both, 1, types[k], true, &norm), TL_ERR_VALUE, "left as they are");
      ck_assert_double_eq(norm, 77);
      ck_tensor(grad_of(p), 0, 1, 2, 3);
      ck_ok(tl_clip_grad_norm_(2, both, 1, types[k], false, &norm));
      ck_assert(i == 0 ? isnan(norm) : norm == INFINITY);
      if (i == 0) ck_tensor(grad_of(p), 0, NAN, NAN, NAN);
      else ck_tensor(grad_of(p), 0, 0, 0, 0);
      tl_tensor_free(p);
      tl_tensor_free(q);
    }
}
END_TEST

START_TEST(out_of_their_domain) {
  tl_tensor *p = ones(2, TL_FLOAT32);
  double norm;
  ck_fails(tl_clip_grad_norm_(1, &p, -1, 2, false, &norm), TL_ERR_VALUE, "max_norm");
  ck_fails(tl_clip_grad_norm_(1, &p, 1, 0, false, &norm), TL_ERR_VALUE, "norm_type");
  ck_fails(tl_clip_grad_value_(1, &p, -1), TL_ERR_VALUE, "at least 0");
  ck_ok(tl_clip_grad_norm_(0, NULL, 1, 2, true, &norm));
  ck_assert_double_eq(norm, 0);
  tl_tensor_free(p);
}
END_TEST

/* Every layout equals its contiguous copy, for both kinds of clipping. */
START_TEST(layouts) {
  for (int dtype = TL_FLOAT32; dtype <= TL_FLOAT64; dtype++)
    for (int by_value = 0; by_value < 2; by_value++) {
      tl_tensor *g = layout_tensor(_i, 5, 7, dtype, -2, 2, 1), *dense;
      ck_ok(tl_clone(g, &dense));
      tl_tensor *p = with_grad(g), *q = with_grad(dense);
      double a = 0, b = 0;
      if (by_value) {
        ck_ok(tl_clip_grad_value_(1, &p, .5));
        ck_ok(tl_clip_grad_value_(1, &q, .5));
      } else {
        ck_ok(tl_clip_grad_norm_(1, &p, .5, 2, false, &a));
        ck_ok(tl_clip_grad_norm_(1, &q, .5, 2, false, &b));
      }
      ck_assert_double_eq(a, b);
      double v[35], w[35];
      int64_t n = (int64_t)tl_numel(p);
      ck_ok(tl_to_doubles(grad_of(p), n, v));
      ck_ok(tl_to_doubles(grad_of(q), n, w));
      for (int64_t i = 0; i < n; i++) {
        ck_assert_double_eq(v[i], w[i]);
        ck_assert_double_le(fabs(v[i]), .5001);
      }
      tl_tensor_free(p);
      tl_tensor_free(q);
    }
  ck_assert_int_eq(live_tensors(), 0);
}
END_TEST

START_TEST(values) {
  tl_tensor *p = with_grad(VECTOR(-3, -.5, 0, .5, 3, INFINITY, NAN));
  ck_ok(tl_clip_grad_value_(1, &p, 1));
  ck_tensor(grad_of(p), 0, -1, -.5, 0, .5, 1, 1, NAN);
  tl_tensor_free(p);
}
END_TEST

/* Large lists: the same bits whatever the number of threads. */
START_TEST(threads_change_nothing) {
  double first = 0;
  for (int threads = 1; threads <= 3; threads++) {
    ck_ok(tl_set_num_threads(threads));
    tl_tensor *p[3];
    for (int i = 0; i < 3; i++) p[i] = with_grad(layout_tensor(CONTIGUOUS, 100 + i, 333, TL_FLOAT32, -1, 1, i + 1));
    double norm, after;
    ck_ok(tl_clip_grad_norm_(3, p, 1, 2, true, &norm));
    ck_ok(tl_clip_grad_norm_(3, p, 1e9, 2, true, &after));
    ck_assert_double_eq_tol(after, 1, 1e-5);
    if (threads == 1) first = norm;
    ck_assert_double_eq(norm, first);
    ck_ok(tl_clip_grad_value_(3, p, 1e-4));
    ck_ok(tl_clip_grad_norm_(3, p, 1e9, INFINITY, true, &norm));
    ck_assert_double_eq_tol(norm, 1e-4, 1e-9);
    for (int i = 0; i < 3; i++) tl_tensor_free(p[i]);
  }
}
END_TEST

START_TEST(zeroing) {
  tl_tensor *g = layout_tensor(EXPANDED, 3, 4, TL_FLOAT32, 1, 2, 1);
  tl_tensor *p[2] = {with_grad(g), ones(2, TL_FLOAT32)};
  ck_ok(tl_zero_grad(2, p, false));
  ck_tensor(grad_of(p[0]), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
  ck_tensor(grad_of(p[1]), 0, 0, 0);
  ck_ok(tl_zero_grad(2, p, true));
  ck_assert_ptr_null(grad_of(p[0]));
  ck_ok(tl_zero_grad(2, p, false));
  ck_assert_ptr_null(grad_of(p[1]));
  for (int i = 0; i < 2; i++) tl_tensor_free(p[i]);
}
END_TEST

/* The norm as a tensor: on a GPU nothing waits for it. */
START_TEST(the_norm_as_a_tensor) {
  const double types[] = {1, 2, 3, INFINITY};
  for (size_t k = 0; k < sizeof types / sizeof *types; k++)
    for (int i = 0; i < 2; i++) {
      tl_tensor *p[2] = {with_grad(VECTOR(3, 4)), with_grad(VECTOR(-1, 2, 0))};
      tl_tensor *q[2] = {with_grad(VECTOR(3, 4)), with_grad(VECTOR(-1, 2, 0))}, *norm;
      double expected, max = i == 0 ? .5 : 100, v;
      ck_ok(tl_clip_grad_norm_(2, p, max, types[k], false, &expected));
      ck_ok(tl_clip_grad_norm_tensor_(2, q, max, types[k], &norm));
      ck_assert_int_eq(tl_ndim(norm), 0);
      ck_assert_int_eq(tl_device_of(norm), test_device());
      ck_ok(tl_item(norm, &v));
      ck_assert_double_eq_tol(v, expected, 1e-12);
      for (int j = 0; j < 2; j++) {
        double g[3];
        ck_ok(tl_to_doubles(grad_of(p[j]), 2 + j, g));
        ck_values(grad_of(q[j]), 2 + j, g, 1e-7);
      }
      tl_tensor_free(norm);
      for (int j = 0; j < 2; j++) tl_tensor_free(p[j]), tl_tensor_free(q[j]);
    }
  tl_tensor *norm = NULL, *none = VECTOR(1);
  double v;
  ck_ok(tl_clip_grad_norm_tensor_(1, &none, 1, 2, &norm)); /* no gradient */
  ck_ok(tl_item(norm, &v));
  ck_assert_double_eq(v, 0);
  ck_fails(tl_clip_grad_norm_tensor_(1, &none, -1, 2, &norm), TL_ERR_VALUE, "max_norm");
  ck_fails(tl_clip_grad_norm_tensor_(1, &none, 1, 0, &norm), TL_ERR_VALUE, "norm_type");
  tl_tensor_free(norm);
  tl_tensor_free(none);
}
END_TEST

START_TEST(failing_allocations) {
  for (int64_t k = 1; k < 50; k++) {
    tl_tensor *g = layout_tensor(TRANSPOSED, 2, 2, TL_FLOAT32, 1, 2, 1), *copy;
    ck_ok(tl_clone(g, &copy));
    tl_tensor *p = with_grad(g);
    double norm, v[4], w[4];
    tl_fail_allocation(k);
    tl_status st = tl_clip_grad_norm_(1, &p, .1, 2, false, &norm);
    tl_fail_allocation(0);
    ck_ok(tl_to_doubles(grad_of(p), 4, v));
    ck_ok(tl_to_doubles(copy, 4, w));
    ck_assert((memcmp(v, w, sizeof v) == 0) == (st != TL_OK));
    tl_tensor_free(p);
    tl_tensor_free(copy);
    ck_assert_int_eq(live_tensors(), 0);
    if (st == TL_OK) return;
  }
  ck_abort_msg("never succeeded");
}
END_TEST

int main(void) {
  Suite *s = suite_create("clip");
  TCase *c = tcase_create("clip");
  tcase_add_test(c, a_hundred_ones);
  tcase_add_test(c, a_small_norm_stays);
  tcase_add_test(c, other_norms);
  tcase_add_test(c, not_finite);
  tcase_add_test(c, out_of_their_domain);
  tcase_add_loop_test(c, layouts, 0, LAYOUTS);
  tcase_add_test(c, values);
  tcase_add_test(c, threads_change_nothing);
  tcase_add_test(c, zeroing);
  tcase_add_test(c, the_norm_as_a_tensor);
  tcase_add_test(c, failing_allocations);
  suite_add_tcase(s, c);
  SRunner *r = srunner_create(s);
  srunner_run_all(r, CK_NORMAL);
  int failed = srunner_ntests_failed(r);
  srunner_free(r);
  return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
