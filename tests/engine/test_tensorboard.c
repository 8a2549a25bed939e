/* test_tensorboard.c: event files when something fails. Their bytes are compared in tests/lua/train_tensorboard_spec.lua. */
#include "check_file.h"

START_TEST(names_what_cannot_be_written) {
  tl_events *e = NULL;
  write_file("taken", "x", 1);
  ck_fails(tl_events_new(scratch("taken"), 0, &e), TL_ERR_IO, "taken: File exists");
  ck_fails(tl_events_new("/dev/full/x", 0, &e), TL_ERR_IO, "/dev/full/x: Not a directory");
  ck_assert_ptr_null(e);
  tl_events_free(NULL);
  clear_scratch();
}
END_TEST

START_TEST(survives_failing_allocations) {
  tl_tensor *t;
  ck_ok(tl_full(1, (const int64_t[]){5}, 1, TL_FLOAT32, TL_CPU, &t));
  int64_t before = live_tensors();
  for (int k = 1;; k++) {
    tl_events *e = NULL;
    tl_fail_allocation(k);
    tl_status st = tl_events_new(scratch("events"), 0, &e);
    if (st == TL_OK) st = tl_events_scalar(e, 0, 1, "a", 1);
    if (st == TL_OK) st = tl_events_text(e, 0, 1, "a", "b");
    if (st == TL_OK) st = tl_events_histogram(e, 0, 1, "a", t);
    tl_fail_allocation(0);
    tl_events_free(e);
    unlink(scratch("events"));
    ck_assert_int_eq(live_tensors(), before);
    if (st == TL_OK) break;
    ck_assert_int_eq(st, TL_ERR_MEMORY);
  }
  tl_tensor_free(t);
  clear_scratch();
}
END_TEST

TEST_MAIN("tensorboard", names_what_cannot_be_written, survives_failing_allocations)
