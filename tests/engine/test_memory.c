/* test_memory.c: accounting, caches, and what happens when the k-th allocation fails. */
#include "check_tl.h"

static tl_memory_stats stats(void) {
  tl_memory_stats s;
  ck_ok(tl_memory(test_device(), &s));
  return s;
}

START_TEST(bytes_and_handles_are_counted) {
  tl_memory_stats before = stats(), during, after;
  tl_tensor *t, *v;
  ck_ok(tl_empty(SHAPE(1000, 1000), TL_FLOAT32, test_device(), &t));
  ck_ok(tl_transpose(t, 0, 1, &v));
  during = stats();
  ck_assert_double_eq(during.live - before.live, 4e6);
  ck_assert_double_eq(during.tensors - before.tensors, 2);
  tl_tensor_free(t);
  ck_assert_double_eq(stats().live - before.live, 4e6); /* the view holds it */
  tl_tensor_free(v);
  after = stats();
  ck_assert_double_eq(after.live, before.live);
#ifndef __SANITIZE_ADDRESS__ /* which sees every free, so nothing is cached */
  ck_assert_double_ge(after.cached, 4e6);
#endif
  ck_ok(tl_empty_cache(test_device()));
  ck_assert_double_eq(stats().cached, 0);
  ck_assert_double_ge(stats().peak, 4e6);
  ck_ok(tl_reset_peak_memory(test_device()));
  ck_assert_double_eq(stats().peak, stats().live);
}
END_TEST

START_TEST(a_collector_is_asked_for_once_the_soft_limit_is_passed) {
  enum { N = 40 };
  tl_tensor *t[N];
  ck_assert_int_eq(*tl_collect_flag(), 0);
  for (int i = 0; i < N; i++) ck_ok(tl_empty(SHAPE(1 << 18), TL_FLOAT32, test_device(), &t[i])); /* 40 MB */
  ck_assert_int_eq(*tl_collect_flag(), 1);
  tl_collected();
  ck_assert_int_eq(*tl_collect_flag(), 0);
  ck_assert_double_ge(stats().soft_limit, 1.39 * 40 * (1 << 20));
  for (int i = 0; i < N; i++) tl_tensor_free(t[i]);
  tl_collected();
  ck_assert_double_eq(stats().soft_limit, 32 * (1 << 20));
}
END_TEST

START_TEST(temporaries_reuse_their_memory) {
  tl_tensor *x, *y;
  ck_ok(tl_full(SHAPE(1 << 18), 1, TL_FLOAT32, test_device(), &x));
  for (int i = 0; i < 10000; i++) {
    ck_ok(tl_empty(SHAPE(1 << 18), TL_FLOAT32, test_device(), &y));
    tl_tensor_free(x);
    x = y;
  }
  tl_tensor_free(x);
  ck_assert_double_le(stats().peak, 64e6);
  ck_assert_double_le(stats().cached, 64e6);
}
END_TEST

START_TEST(too_much_is_an_error_that_names_the_numbers) {
  tl_tensor *t = NULL;
  ck_fails(tl_empty(SHAPE((int64_t)1 << 46), TL_FLOAT32, test_device(), &t), TL_ERR_MEMORY, "asked for on c");
  ck_assert_ptr_null(t);
  ck_ok(tl_empty(SHAPE(4), TL_FLOAT32, test_device(), &t)); /* and life goes on */
  tl_tensor_free(t);
}
END_TEST

/* ---- the k-th allocation fails ---- */

/* A little of everything: conversions, views, pointwise, reductions, in-place through a view, backward. */
static tl_status everything(void) {
  tl_tensor *t[16] = {0};
  tl_walk *walk = NULL;
  tl_generator *g = NULL;
  int64_t shape[2] = {3, 4};
  tl_status st = tl_generator_new(1, &g);
  if (!st) st = tl_empty(2, shape, TL_FLOAT32, test_device(), &t[0]);
  if (!st) st = tl_uniform_(t[0], 0, 1, g);
  if (!st) st = tl_set_requires_grad(t[0], true);
  if (!st) st = tl_transpose(t[0], 0, 1, &t[1]);
  if (!st) st = tl_sin(t[1], &t[2]);
  if (!st) st = tl_narrow(t[2], 0, 1, 2, &t[3]);
  if (!st) st = tl_mul_scalar_(t[3], 2);
  if (!st) st = tl_select(t[2], 0, 0, &t[4]);
  if (!st) st = tl_add(t[2], t[4], &t[5]); /* shapes 4x3 and 3 */
  if (!st) st = tl_to(t[5], TL_FLOAT64, test_device(), &t[6]);
  if (!st) st = tl_register_hook(t[5], 3);
  if (!st) st = tl_reshape(t[6], 1, (int64_t[]){-1}, &t[7]);
  if (!st) st = tl_div_scalar(t[7], 3, &t[8]);
  if (!st) st = tl_sum(t[8], 0, NULL, false, &t[9]);
  if (!st) st = tl_backward(t[9], NULL, false, &walk);
  tl_walk_event e;
  if (!st) st = tl_walk_next(walk, &e);
  if (!st) st = tl_walk_reply(walk, 0, NULL);
  if (!st) st = tl_walk_next(walk, &e);
  tl_walk_free(walk);
  tl_generator_free(g);
  for (int i = 0; i < 16; i++) tl_tensor_free(t[i]);
  return st;
}

START_TEST(every_allocation_may_fail) {
  ck_ok(everything());
  double live = stats().live;
  ck_assert_int_eq(live_tensors(), 0);
  int k = 1;
  for (;; k++) {
    tl_fail_allocation(k);
    tl_status st = everything();
    tl_fail_allocation(0);
    ck_assert_msg(st == TL_OK || st == TL_ERR_MEMORY, "allocation %d: status %d: %s", k, st, tl_last_error()->message);
    ck_assert_msg(live_tensors() == 0, "allocation %d: %lld tensors leak", k, (long long)live_tensors());
    ck_assert_msg(stats().live == live, "allocation %d: %g bytes leak", k, stats().live - live);
    if (st == TL_OK) break;
    ck_assert_int_lt(k, 1000);
  }
  ck_assert_int_gt(k, 50); /* it did fail in many places */
}
END_TEST

TEST_MAIN("memory", bytes_and_handles_are_counted, a_collector_is_asked_for_once_the_soft_limit_is_passed,
          temporaries_reuse_their_memory, too_much_is_an_error_that_names_the_numbers, every_allocation_may_fail)
