/* Autocast: which operations convert, nesting, the cache of converted parameters, gradients through conversions. */
#include "check_tl.h"

#include <pthread.h>

/* The kind of the device under test. */
static int here(void) { return test_device() >> 8; }

static int enter(int kind, int dtype, bool enabled) {
  int former;
  ck_ok(tl_autocast_enter(kind, dtype, enabled, &former));
  return former;
}

static tl_tensor *parameter(int dtype, int ndim, const int64_t *shape, double value) {
  tl_tensor *t;
  ck_ok(tl_full(ndim, shape, value, dtype, test_device(), &t));
  ck_ok(tl_set_requires_grad(t, true));
  return t;
}

static tl_tensor *filled(int dtype, int ndim, const int64_t *shape, double value) {
  tl_tensor *t;
  ck_ok(tl_full(ndim, shape, value, dtype, test_device(), &t));
  return t;
}

#define gives(expected, call, y)                                                                 \
  do {                                                                                           \
    tl_tensor *y = NULL;                                                                         \
    ck_ok(call);                                                                                 \
    ck_assert_msg(tl_dtype_of(y) == (expected), "%s: %s", #call, tl_dtype_name(tl_dtype_of(y))); \
    tl_tensor_free(y);                                                                           \
  } while (0)

START_TEST(products_run_in_the_low_type) {
  const int64_t ones[2] = {1, 1}, zeros[2] = {0, 0};
  for (int low = TL_FLOAT16; low <= TL_BFLOAT16; low++) {
    tl_tensor *a = filled(TL_FLOAT32, SHAPE(2, 2), 1), *b = filled(TL_FLOAT32, SHAPE(3, 2, 2), 1);
    tl_tensor *v = filled(TL_FLOAT32, SHAPE(2), 1), *x = filled(TL_FLOAT32, SHAPE(1, 2, 4, 4), 1);
    tl_tensor *w = filled(TL_FLOAT32, SHAPE(2, 2, 3, 3), 1), *l = filled(low, SHAPE(2, 2), 1);
    tl_tensor *x1 = filled(TL_FLOAT32, SHAPE(1, 2, 4), 1), *w1 = filled(TL_FLOAT32, SHAPE(2, 2, 3), 1);
    tl_tensor *pair[2] = {a, l}, *one[1] = {a};
    int former = enter(here(), low, true);
    gives(low, tl_matmul(a, b, &y), y);
    gives(low, tl_mm(a, l, &y), y);
    gives(low, tl_bmm(b, b, &y), y);
    gives(low, tl_addmm(v, a, l, 1, 1, &y), y);
    gives(low, tl_linear(a, a, v, &y), y);
    gives(low, tl_linear(l, a, NULL, &y), y);
    gives(low, tl_conv(x, w, v, 2, ones, zeros, ones, 1, &y), y);
    gives(low, tl_conv(x1, w1, NULL, 1, ones, zeros, ones, 1, &y), y);
    gives(low, tl_conv_transpose2d(x, w, v, ones, zeros, zeros, ones, 1, &y), y);
    gives(low, tl_einsum("ij,jk->ik", 2, pair, &y), y);
    gives(low, tl_einsum("ij->j", 1, one, &y), y);
    gives(low, tl_einsum("ij,jk->k", 2, pair, &y), y);
    gives(TL_FLOAT32, tl_dot(v, v, &y), y);
    gives(TL_FLOAT32, tl_add(a, l, &y), y);
    gives(low, tl_add(l, l, &y), y);
    gives(low, tl_relu(l, &y), y);
    tl_autocast_leave(former);
    gives(TL_FLOAT32, tl_mm(a, a, &y), y);
    tl_tensor *const all[] = {a, b, v, x, w, l, x1, w1};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) tl_tensor_free(all[i]);
  }
}
END_TEST

START_TEST(what_needs_range_runs_in_float32) {
  const int low = TL_FLOAT16;
  tl_tensor *x = filled(low, SHAPE(2, 4), .5), *t = filled(low, SHAPE(2, 4), .25), *w = filled(TL_FLOAT32, SHAPE(4), 1);
  tl_tensor *labels = TENSOR(TL_INT64, SHAPE(2), 0, 3), *ids = filled(TL_INT64, SHAPE(2, 4), 0);
  const int64_t four = 4;
  int former = enter(here(), low, true);
  gives(TL_FLOAT32, tl_softmax(x, 1, &y), y);
  gives(TL_FLOAT32, tl_log_softmax(x, 1, &y), y);
  gives(TL_FLOAT32, tl_layer_norm(x, 1, &four, w, w, 1e-5, &y), y);
  gives(TL_FLOAT32, tl_rms_norm(x, 1, &four, w, 1e-5, &y), y);
  gives(TL_FLOAT32, tl_group_norm(x, 2, w, w, 1e-5, &y), y);
  gives(TL_FLOAT32, tl_norm(x, 2, 0, NULL, false, &y), y);
  gives(TL_FLOAT32, tl_sum(x, 0, NULL, false, &y), y);
  gives(TL_FLOAT32, tl_prod(x, 0, NULL, false, &y), y);
  gives(TL_FLOAT32, tl_logsumexp(x, 0, NULL, false, &y), y);
  gives(TL_FLOAT32, tl_cumsum(x, 0, &y), y);
  tl_status (*const unary[])(tl_tensor *, tl_tensor **) = {tl_exp,   tl_expm1, tl_log,        tl_log1p, tl_log2,
                                                           tl_log10, tl_rsqrt, tl_reciprocal, tl_tan,   tl_sinh,
                                                           tl_cosh,  tl_asin,  tl_acos};
  for (size_t i = 0; i < sizeof unary / sizeof *unary; i++) gives(TL_FLOAT32, unary[i](x, &y), y);
  gives(TL_FLOAT32, tl_softplus(x, 1, 20, &y), y);
  gives(TL_FLOAT32, tl_pow(x, t, &y), y);
  gives(TL_FLOAT32, tl_pow_scalar(x, 2, &y), y);
  gives(TL_FLOAT32, tl_pow_rscalar(2, x, &y), y);
  gives(TL_FLOAT32, tl_mse_loss(x, t, TL_REDUCE_MEAN, &y), y);
  gives(TL_FLOAT32, tl_l1_loss(x, t, TL_REDUCE_NONE, &y), y);
  gives(TL_FLOAT32, tl_smooth_l1_loss(x, t, 1, TL_REDUCE_MEAN, &y), y);
  gives(TL_FLOAT32, tl_huber_loss(x, t, 1, TL_REDUCE_MEAN, &y), y);
  gives(TL_FLOAT32, tl_kl_div_loss(x, t, false, TL_REDUCE_BATCHMEAN, &y), y);
  gives(TL_FLOAT32, tl_bce_with_logits_loss(x, t, NULL, NULL, TL_REDUCE_MEAN, &y), y);
  gives(TL_FLOAT32, tl_cross_entropy(x, labels, w, -100, .1, TL_REDUCE_MEAN, &y), y);
  gives(TL_FLOAT32, tl_nll_loss(x, labels, NULL, -100, TL_REDUCE_MEAN, &y), y);
  gives(TL_FLOAT16, tl_mean(x, 0, NULL, false, &y), y); /* on no list */
  gives(TL_FLOAT16, tl_square(x, &y), y);
  tl_tensor *y = NULL, *wide = filled(TL_FLOAT32, SHAPE(2, 4), 1);
  ck_fails(tl_bce_loss(x, t, NULL, TL_REDUCE_MEAN, &y), TL_ERR_UNSUPPORTED, "BCEWithLogits");
  ck_fails(tl_bce_loss(wide, wide, NULL, TL_REDUCE_MEAN, &y), TL_ERR_UNSUPPORTED, "BCEWithLogits");
  /* the widest of the inputs */
  tl_tensor *both[2] = {x, wide};
  gives(TL_FLOAT32, tl_cat(2, both, 0, &z), z);
  gives(TL_FLOAT32, tl_stack(2, both, 0, &z), z);
  gives(TL_FLOAT32, tl_addcmul(x, wide, t, 1, &z), z);
  gives(TL_FLOAT16, tl_addcmul(x, t, t, 1, &z), z);
  gives(TL_FLOAT32, tl_scatter_add(wide, 0, ids, x, &z), z);
  gives(TL_FLOAT16, tl_scatter_add(x, 0, ids, x, &z), z);
  tl_autocast_leave(former);
  ck_ok(tl_bce_loss(wide, wide, NULL, TL_REDUCE_MEAN, &y));
  tl_tensor *const all[] = {x, t, w, labels, ids, y, wide};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) tl_tensor_free(all[i]);
}
END_TEST

START_TEST(vectors_of_two_types_have_a_dot_product) {
  tl_tensor *a = filled(TL_FLOAT16, SHAPE(3), 2), *b = filled(TL_FLOAT32, SHAPE(3), 3), *y = NULL;
  ck_fails(tl_dot(a, b, &y), TL_ERR_DTYPE, "float16");
  int former = enter(here(), TL_FLOAT16, true);
  gives(TL_FLOAT32, tl_dot(a, b, &z), z);
  gives(TL_FLOAT16, tl_dot(a, a, &z), z);
  tl_autocast_leave(former);
  tl_tensor_free(a);
  tl_tensor_free(b);
}
END_TEST

START_TEST(float64_integers_and_in_place_are_left_alone) {
  tl_tensor *d = filled(TL_FLOAT64, SHAPE(2, 2), .5), *i = filled(TL_INT64, SHAPE(2, 2), 2),
            *l = filled(TL_FLOAT16, SHAPE(2, 2), 1);
  int former = enter(here(), TL_FLOAT16, true);
  gives(TL_FLOAT64, tl_mm(d, d, &y), y);
  gives(TL_FLOAT64, tl_exp(d, &y), y);
  gives(TL_FLOAT64, tl_softmax(d, 1, &y), y);
  gives(TL_FLOAT64, tl_bce_loss(d, d, NULL, TL_REDUCE_MEAN, &y), y);
  gives(TL_INT64, tl_mm(i, i, &y), y);
  gives(TL_INT64, tl_sum(i, 0, NULL, false, &y), y);
  gives(TL_INT64, tl_pow_scalar(i, 3, &y), y);
  ck_ok(tl_exp_(l));
  ck_assert_int_eq(tl_dtype_of(l), TL_FLOAT16);
  tl_autocast_leave(former);
  tl_tensor_free(d);
  tl_tensor_free(i);
  tl_tensor_free(l);
}
END_TEST

START_TEST(batch_norm_keeps_float32_statistics) {
  tl_tensor *x = filled(TL_FLOAT16, SHAPE(4, 2), 3), *mean = filled(TL_FLOAT32, SHAPE(2), 0),
            *var = filled(TL_FLOAT32, SHAPE(2), 1);
  tl_tensor *w = parameter(TL_FLOAT32, SHAPE(2), 1), *b = parameter(TL_FLOAT32, SHAPE(2), 0);
  int former = enter(here(), TL_FLOAT16, true);
  gives(TL_FLOAT16, tl_batch_norm(x, w, b, mean, var, true, .1, 1e-5, &y), y);
  tl_autocast_leave(former);
  ck_assert_int_eq(tl_dtype_of(mean), TL_FLOAT32);
  ck_tensor(mean, 1e-6, .3, .3);
  tl_tensor *const all[] = {x, mean, var, w, b};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) tl_tensor_free(all[i]);
}
END_TEST

START_TEST(blocks_nest) {
  tl_tensor *a = filled(TL_FLOAT32, SHAPE(2, 2), 1);
  const int other_kind = 1 - here();
  int outer = enter(here(), TL_FLOAT16, true);
  int off = enter(here(), TL_BFLOAT16, false);
  ck_assert(!tl_autocast_enabled(here()));
  gives(TL_FLOAT32, tl_mm(a, a, &y), y);
  int on = enter(here(), TL_BFLOAT16, true);
  gives(TL_BFLOAT16, tl_mm(a, a, &y), y);
  tl_autocast_leave(on);
  gives(TL_FLOAT32, tl_mm(a, a, &y), y);
  tl_autocast_leave(off);
  gives(TL_FLOAT16, tl_mm(a, a, &y), y);
  int other = enter(other_kind, TL_BFLOAT16, true); /* another device's block does not concern this one */
  gives(TL_FLOAT16, tl_mm(a, a, &y), y);
  tl_autocast_leave(other);
  tl_autocast_leave(outer);
  other = enter(other_kind, TL_BFLOAT16, true);
  gives(TL_FLOAT32, tl_mm(a, a, &y), y);
  tl_autocast_leave(other);
  ck_assert(!tl_autocast_enabled(0) && !tl_autocast_enabled(1) && !tl_autocast_enabled(2));
  ck_assert_int_eq(tl_autocast_dtype(0), TL_BFLOAT16);
  ck_assert_int_eq(tl_autocast_dtype(1), TL_FLOAT16);
  tl_tensor_free(a);
  int former;
  ck_fails(tl_autocast_enter(0, TL_FLOAT32, true, &former), TL_ERR_DTYPE, "float32");
  ck_fails(tl_autocast_enter(3, TL_FLOAT16, true, &former), TL_ERR_DEVICE, "3");
}
END_TEST

static tl_tensor *grad_of(tl_tensor *p) {
  tl_tensor *g;
  ck_ok(tl_grad(p, &g));
  tl_tensor_free(g); /* p holds it */
  return g;
}

static void backward(tl_tensor *y) {
  tl_walk *walk = NULL;
  ck_ok(tl_backward(y, NULL, false, &walk));
  ck_assert_ptr_null(walk);
}

/* sum(x w) with w used twice, backward inside or outside of the block */
START_TEST(gradients_pass_the_conversions) {
  for (int inside = 0; inside < 2; inside++) {
    tl_tensor *x = filled(TL_FLOAT32, SHAPE(1, 2), 2), *w = parameter(TL_FLOAT32, SHAPE(2, 2), 3);
    tl_tensor *h, *y, *sum;
    int former = enter(here(), TL_FLOAT16, true);
    ck_ok(tl_mm(x, w, &h));
    ck_ok(tl_mm(h, w, &y));
    ck_ok(tl_sum(y, 0, NULL, false, &sum));
    ck_assert_int_eq(tl_dtype_of(sum), TL_FLOAT32);
    if (inside) backward(sum);
    tl_autocast_leave(former);
    if (!inside) backward(sum);
    ck_assert_int_eq(tl_dtype_of(grad_of(w)), TL_FLOAT32);
    ck_tensor(grad_of(w), 0, 24, 24, 24, 24); /* 2 * 6 from the first product, 12 from the second */
    tl_tensor *const all[] = {x, w, h, y, sum};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) tl_tensor_free(all[i]);
  }
}
END_TEST

/* The memory that two products with w take, w (64 x 64) converted each time or once */
START_TEST(a_parameter_is_converted_once) {
  tl_tensor *x = filled(TL_FLOAT16, SHAPE(1, 64), 1), *w = parameter(TL_FLOAT32, SHAPE(64, 64), 1), *y[3];
  int64_t before = live_tensors();
  int outer = enter(here(), TL_FLOAT16, true), inner = enter(here(), TL_FLOAT16, true);
  ck_ok(tl_mm(x, w, &y[0]));
  int64_t one = live_tensors() - before;
  tl_autocast_leave(inner); /* the cache is the outermost block's */
  ck_ok(tl_mm(x, w, &y[1]));
  ck_ok(tl_mm(x, w, &y[2]));
  int64_t three = live_tensors() - before;
  ck_assert_int_le(three - one, 4); /* two results with what their nodes saved, no conversion */
  for (int i = 0; i < 3; i++) tl_tensor_free(y[i]);
  tl_autocast_leave(outer);
  ck_assert_int_eq(live_tensors(), before);
  tl_tensor_free(x);
  tl_tensor_free(w);
}
END_TEST

START_TEST(without_gradients_first_then_with) {
  tl_tensor *x = filled(TL_FLOAT32, SHAPE(1, 2), 2), *w = parameter(TL_FLOAT32, SHAPE(2, 2), 3), *y, *z, *sum;
  int former = enter(here(), TL_BFLOAT16, true);
  bool recording = tl_set_grad_enabled(false);
  ck_ok(tl_mm(x, w, &y));
  tl_set_grad_enabled(recording);
  ck_ok(tl_mm(x, w, &z));
  ck_assert(tl_requires_grad(z) && !tl_requires_grad(y));
  ck_ok(tl_sum(z, 0, NULL, false, &sum));
  tl_autocast_leave(former);
  backward(sum);
  ck_tensor(grad_of(w), 0, 2, 2, 2, 2);
  tl_tensor *const all[] = {x, w, y, z, sum};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) tl_tensor_free(all[i]);
}
END_TEST

START_TEST(a_changed_parameter_is_converted_again) {
  tl_tensor *x = filled(TL_FLOAT32, SHAPE(1, 2), 1), *w = parameter(TL_FLOAT32, SHAPE(2, 2), 3), *y;
  tl_tensor *other = filled(TL_FLOAT32, SHAPE(2, 2), 7), *turned, *uneven = TENSOR(TL_FLOAT32, SHAPE(2, 2), 1, 2, 3, 4);
  int former = enter(here(), TL_BFLOAT16, true);
  ck_ok(tl_mm(x, w, &y));
  ck_tensor(y, 0, 6, 6);
  tl_tensor_free(y);
  bool recording = tl_set_grad_enabled(false); /* an optimizer's step inside the block */
  ck_ok(tl_add_scalar_(w, 1));
  tl_set_grad_enabled(recording);
  ck_ok(tl_mm(x, w, &y));
  ck_tensor(y, 0, 8, 8);
  tl_tensor_free(y);
  ck_ok(tl_set_data(w, other));
  ck_ok(tl_mm(x, w, &y));
  ck_tensor(y, 0, 14, 14);
  tl_tensor_free(y);
  ck_ok(tl_set_data(w, uneven));
  ck_ok(tl_mm(x, w, &y));
  ck_tensor(y, 0, 4, 6);
  tl_tensor_free(y);
  ck_ok(tl_transpose(uneven, 0, 1, &turned));
  ck_ok(tl_set_data(w, turned));
  ck_ok(tl_mm(x, w, &y));
  ck_tensor(y, 0, 3, 7);
  tl_autocast_leave(former);
  tl_tensor *const all[] = {x, w, y, other, turned, uneven};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) tl_tensor_free(all[i]);
}
END_TEST

START_TEST(many_parameters) {
  enum { N = 200 };
  tl_tensor *x = filled(TL_FLOAT32, SHAPE(1, 1), 1), *w[N], *y;
  int64_t before = live_tensors();
  for (int i = 0; i < N; i++) w[i] = parameter(TL_FLOAT32, SHAPE(1, 1), i);
  int former = enter(here(), TL_FLOAT16, true);
  for (int round = 0; round < 2; round++)
    for (int i = 0; i < N; i++) {
      ck_ok(tl_mm(x, w[i], &y));
      ck_tensor(y, 0, i);
      tl_tensor_free(y);
    }
  tl_autocast_leave(former);
  for (int i = 0; i < N; i++) tl_tensor_free(w[i]);
  ck_assert_int_eq(live_tensors(), before);
  tl_tensor_free(x);
}
END_TEST

START_TEST(without_memory_nothing_leaks) {
  tl_tensor *x = filled(TL_FLOAT32, SHAPE(2, 2), 1), *w = parameter(TL_FLOAT32, SHAPE(2, 2), 1), *y = NULL;
  for (int k = 1; k < 40; k++) {
    int64_t before = live_tensors();
    int former = enter(here(), TL_FLOAT16, true);
    tl_fail_allocation(k);
    tl_status st = tl_linear(x, w, NULL, &y);
    tl_fail_allocation(0);
    if (st == TL_OK) tl_tensor_free(y);
    else ck_assert_int_eq(st, TL_ERR_MEMORY);
    tl_autocast_leave(former);
    ck_assert_int_eq(live_tensors(), before);
  }
  tl_tensor_free(x);
  tl_tensor_free(w);
}
END_TEST

static void *elsewhere(void *arg) {
  tl_tensor *a = filled(TL_FLOAT32, SHAPE(2, 2), 1);
  gives(TL_FLOAT32, tl_mm(a, a, &y), y);
  tl_tensor_free(a);
  return arg;
}

START_TEST(blocks_belong_to_a_thread) {
  pthread_t thread;
  int former = enter(here(), TL_FLOAT16, true);
  ck_assert_int_eq(pthread_create(&thread, NULL, elsewhere, NULL), 0);
  pthread_join(thread, NULL);
  tl_autocast_leave(former);
}
END_TEST

TEST_MAIN("autocast", products_run_in_the_low_type, what_needs_range_runs_in_float32,
          vectors_of_two_types_have_a_dot_product, float64_integers_and_in_place_are_left_alone,
          batch_norm_keeps_float32_statistics, blocks_nest, gradients_pass_the_conversions,
          a_parameter_is_converted_once, without_gradients_first_then_with, a_changed_parameter_is_converted_again,
          many_parameters, without_memory_nothing_leaks, blocks_belong_to_a_thread)
