/* test_interrupt.c: tl_interrupt() and the operation that notices it. */
#include "check_tl.h"

#include <signal.h>

START_TEST(next_operation_fails_once) {
  tl_tensor *x = VECTOR(1, 2), *y = NULL;
  int64_t before = live_tensors();
  tl_interrupt();
  ck_fails(tl_add(x, x, &y), TL_ERR_INTERRUPT, "interrupted");
  ck_assert_ptr_null(y);
  ck_assert_int_eq(live_tensors(), before);
  ck_ok(tl_add(x, x, &y));
  ck_tensor(y, 0, 2, 4);
  tl_tensor_free(x);
  tl_tensor_free(y);
}
END_TEST

START_TEST(in_place_operation_leaves_its_target) {
  tl_tensor *x = VECTOR(1, 2);
  tl_interrupt();
  ck_fails(tl_mul_scalar_(x, 3), TL_ERR_INTERRUPT, "interrupted");
  ck_tensor(x, 0, 1, 2);
  tl_tensor_free(x);
}
END_TEST

START_TEST(a_host_takes_it) {
  tl_tensor *x = VECTOR(1), *y = NULL;
  ck_assert(!tl_take_interrupt());
  tl_interrupt();
  ck_assert(tl_take_interrupt());
  ck_assert(!tl_take_interrupt());
  ck_ok(tl_add(x, x, &y));
  tl_tensor_free(x);
  tl_tensor_free(y);
}
END_TEST

static void on_signal(int number) {
  (void)number;
  tl_interrupt();
}

START_TEST(works_from_a_signal_handler) {
  tl_tensor *x = VECTOR(1), *y = NULL;
  signal(SIGUSR1, on_signal);
  raise(SIGUSR1);
  ck_fails(tl_add(x, x, &y), TL_ERR_INTERRUPT, "interrupted");
  tl_tensor_free(x);
}
END_TEST

TEST_MAIN("interrupt", next_operation_fails_once, in_place_operation_leaves_its_target, a_host_takes_it,
          works_from_a_signal_handler)
