/* Traces: which operations, on which tensors. */
#include "check_tl.h"

static tl_tensor *tensor_of(const tl_trace *t, int i, int k) {
  tl_tensor *x;
  ck_ok(tl_trace_tensor(t, i, k, &x));
  tl_tensor_free(x); /* the trace holds it */
  return x;
}

START_TEST(lists_operations_in_order) {
  int64_t live = live_tensors();
  tl_tensor *x = VECTOR(1, -2), *w = VECTOR(3, 4), *y, *z;
  tl_trace *t, *second;
  ck_ok(tl_set_requires_grad(w, true));
  ck_ok(tl_trace_begin(&t));
  ck_fails(tl_trace_begin(&second), TL_ERR_STATE, "running already");
  ck_ok(tl_mul(x, w, &y));
  ck_ok(tl_relu_(y));
  ck_ok(tl_sum(y, 0, NULL, false, &z));
  tl_tensor_free(z);
  ck_ok(tl_neg(x, &z)); /* records nothing */
  tl_tensor_free(z);
  ck_ok(tl_trace_end(t));
  ck_ok(tl_sum(y, 0, NULL, false, &z));
  ck_assert_int_eq(tl_trace_length(t), 3);
  ck_assert_str_eq(tl_trace_op(t, 0), "mul");
  ck_assert_str_eq(tl_trace_op(t, 1), "relu");
  ck_assert_str_eq(tl_trace_op(t, 2), "sum");
  ck_assert_int_eq(tl_trace_inputs(t, 0), 2);
  ck_assert_int_eq(tl_trace_outputs(t, 0), 1);
  ck_assert_ptr_eq(tensor_of(t, 0, 0), x);
  ck_assert_ptr_eq(tensor_of(t, 0, 1), w);
  ck_assert_ptr_eq(tensor_of(t, 0, 2), y);
  ck_assert_ptr_eq(tensor_of(t, 1, 0), y);
  ck_assert_ptr_eq(tensor_of(t, 1, 1), y);
  ck_assert_ptr_null(tl_trace_op(t, 3));
  ck_assert_int_eq(tl_trace_inputs(t, -1), 0);
  tl_tensor *none;
  ck_fails(tl_trace_tensor(t, 0, 3, &none), TL_ERR_INDEX, "no tensor 3");
  tl_trace_free(t);
  tl_trace_free(NULL);
  tl_tensor_free(x), tl_tensor_free(w), tl_tensor_free(y), tl_tensor_free(z);
  ck_assert_int_eq(live_tensors(), live);
}
END_TEST

START_TEST(grows_and_reports_missing_memory) {
  tl_tensor *x = VECTOR(1), *y;
  tl_trace *t;
  ck_ok(tl_set_requires_grad(x, true));
  ck_ok(tl_trace_begin(&t));
  for (int i = 0; i < 300; i++) {
    ck_ok(tl_neg(x, &y));
    tl_tensor_free(y);
  }
  ck_ok(tl_trace_end(t));
  ck_assert_int_eq(tl_trace_length(t), 300);
  tl_trace_free(t);
  int failures = 0;
  for (int k = 1; k < 8; k++) {
    tl_fail_allocation(k);
    if (tl_trace_begin(&t) == TL_OK) {
      tl_status made = tl_neg(x, &y);
      if (made == TL_OK) tl_tensor_free(y);
      failures += tl_trace_end(t) != TL_OK || made != TL_OK;
      tl_trace_free(t);
    } else {
      failures++;
    }
    tl_fail_allocation(0);
  }
  ck_assert_int_ge(failures, 3);
  tl_tensor_free(x);
}
END_TEST

int main(void) {
  Suite *s = suite_create("trace");
  TCase *c = tcase_create("trace");
  tcase_add_test(c, lists_operations_in_order);
  tcase_add_test(c, grows_and_reports_missing_memory);
  suite_add_tcase(s, c);
  SRunner *r = srunner_create(s);
  srunner_run_all(r, CK_NORMAL);
  int failed = srunner_ntests_failed(r);
  srunner_free(r);
  return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
