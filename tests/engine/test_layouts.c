/* test_layouts.c: every operation over every dtype and layout, on the device under test, agrees with itself on contiguous
 * copies on the CPU, forward and backward, leaves its inputs alone, and in float16 and bfloat16 stays near float32. */
#include "op_table.h"

/* What the operation says about a target whose elements share memory; true if it had to say so. */
static bool refuses_expanded(trial *t) {
  const op_input *s = &t->row->input[0];
  if (!(t->row->flags & IN_PLACE) || t->way[0] != REPEATED || s->ndim == 0 || s->shape[0] < 2) return false;
  snapshot before;
  snapshot_take(&before, t);
  ck_fails(trial_run(t), TL_ERR_VALUE, "expanded");
  snapshot_check(&before, t, 0, trial_name(t));
  snapshot_free(&before, t);
  return true;
}

static void run_and_walk(trial *t, bool strided) {
  ck_assert_msg(trial_run(t) == TL_OK, "%s: %s", trial_name(t), tl_last_error()->message);
  if (t->row->flags & NO_GRADIENT) ck_assert_msg(!tl_requires_grad(result_of(t)), "%s: a history", trial_name(t));
  if (!trial_graded(t)) return;
  tl_tensor *w = make_weights(result_of(t), strided);
  ck_assert_msg(trial_backward(t, w) == TL_OK, "%s: backward: %s", trial_name(t), tl_last_error()->message);
  tl_tensor_free(w);
}

/* Results and gradients of two trials; a missing gradient is one of zeros. */
static void compare(const trial *t, const trial *expected, double tolerance) {
  const char *name = trial_name(t);
  ck_assert_msg(tl_requires_grad(result_of(t)) == tl_requires_grad(result_of(expected)), "%s: requires_grad", name);
  ck_same(name, "result", result_of(t), result_of(expected), tolerance);
  if (t->out[1] != NULL) ck_same(name, "second result", t->out[1], expected->out[1], 0);
  for (int i = 0; i < t->row->inputs; i++) {
    tl_tensor *a, *b, *zeros = NULL;
    ck_ok(tl_grad(t->root[i], &a));
    ck_ok(tl_grad(expected->root[i], &b));
    if ((a == NULL) != (b == NULL)) ck_ok(tl_mul_scalar(a == NULL ? b : a, 0, &zeros));
    ck_same(name, "gradient", a == NULL ? zeros : a, b == NULL ? zeros : b, tolerance);
    tl_tensor_free(a);
    tl_tensor_free(b);
    tl_tensor_free(zeros);
  }
}

/* The target's elements are the expected ones, and those around them what they were. */
static void check_neighbours(const trial *t, const snapshot *before, const trial *expected, double tolerance) {
  bool former = tl_set_grad_enabled(false);
  tl_tensor *whole = unrecorded_copy(before->values[0]), *part = arrange(&t->row->input[0], t->way[0], whole);
  ck_ok(tl_copy_(part, expected->in[0]));
  ck_same(trial_name(t), "the target with what surrounds it", t->mid[0], whole, tolerance);
  ck_assert_msg(tl_version_of(t->in[0]) > before->version[0], "%s: the change was not counted", trial_name(t));
  tl_tensor_free(whole);
  tl_tensor_free(part);
  tl_set_grad_enabled(former);
}

static void check_layout(const op_row *row, int dtype, const int *way, bool graded) {
  trial t, reference;
  snapshot before;
  trial_make(&t, row, dtype, way, graded, false, false);
  if (!refuses_expanded(&t)) {
    trial_make(&reference, row, dtype, way, graded, true, false);
    snapshot_take(&before, &t);
    bool refused = row->flags & CONTIGUOUS_ONLY && !tl_is_contiguous(t.in[0]) && trial_run(&t) != TL_OK;
    if (refused) {
      ck_assert_int_eq(tl_last_error()->code, TL_ERR_SHAPE);
    } else {
      tl_tensor_free(t.out[0]); /* of the attempt above */
      t.out[0] = NULL;
      run_and_walk(&t, true);
      run_and_walk(&reference, false);
      compare(&t, &reference, row_tolerance(row, dtype));
      if (row->flags & IN_PLACE) check_neighbours(&t, &before, &reference, row_tolerance(row, dtype));
    }
    snapshot_check(&before, &t, row->flags & IN_PLACE ? 1 : 0, trial_name(&t));
    snapshot_free(&before, &t);
    trial_free(&reference);
  }
  trial_free(&t);
  ck_assert_msg(live_tensors() == 0, "%s: %lld tensors leak", row->name, (long long)live_tensors());
}

static void check_row(const op_row *row, bool graded) {
  for (int dtype = 0; dtype < TL_DTYPES; dtype++) {
    /* with gradients, floating results are looked at as well: without, one such dtype will do */
    if (!(row->dtypes & BIT(dtype)) || (graded ? dtype > TL_FLOAT64 : dtype > TL_FLOAT32 && dtype <= TL_FLOAT64))
      continue;
    for (int w = 0; w < WAYS; w++)
      for (int turn = 0; turn < (row->inputs == 1 ? 1 : 2); turn++) { /* all alike, or each another */
        int way[MAX_INPUTS];
        for (int i = 0; i < row->inputs; i++) way[i] = (w + turn * i) % WAYS;
        check_layout(row, dtype, way, graded);
      }
  }
}

START_TEST(every_operation_in_every_layout) {
  for (int r = 0; r < OP_ROWS; r++) check_row(&op_rows[r], false);
}
END_TEST

START_TEST(every_gradient_in_every_layout) {
  for (int r = 0; r < OP_ROWS; r++) check_row(&op_rows[r], true);
}
END_TEST

START_TEST(half_precision_is_near_single_precision) {
  const int plain[MAX_INPUTS] = {PLAIN, PLAIN, PLAIN, PLAIN};
  for (int r = 0; r < OP_ROWS; r++)
    for (int dtype = TL_FLOAT16; dtype <= TL_BFLOAT16; dtype++) {
      const op_row *row = &op_rows[r];
      if ((row->dtypes & FLOATING) != FLOATING) continue;
      trial t, wide;
      trial_make(&t, row, dtype, plain, true, false, false);
      trial_make(&wide, row, dtype, plain, true, true, true);
      run_and_walk(&t, false);
      run_and_walk(&wide, false);
      compare(&t, &wide, dtype == TL_FLOAT16 ? 4e-3 : 3e-2);
      trial_free(&t);
      trial_free(&wide);
    }
  ck_assert_int_eq(live_tensors(), 0);
}
END_TEST

/* Stops before anything changes, unless there is nothing to do and the result is the input. */
START_TEST(an_interrupt_stops_every_operation) {
  const int plain[MAX_INPUTS] = {PLAIN, PLAIN, PLAIN, PLAIN};
  for (int r = 0; r < OP_ROWS; r++) {
    trial t;
    snapshot before;
    int dtype = 0;
    while (!(op_rows[r].dtypes & BIT(dtype))) dtype++;
    trial_make(&t, &op_rows[r], dtype, plain, true, false, false);
    snapshot_take(&before, &t);
    tl_interrupt();
    tl_status st = trial_run(&t);
    bool pending = tl_take_interrupt();
    if (pending) ck_assert_msg(st == TL_OK && tl_data(t.out[0]) == tl_data(t.in[0]), "%s goes on", trial_name(&t));
    else ck_assert_msg(st == TL_ERR_INTERRUPT, "%s: status %d", trial_name(&t), st);
    snapshot_check(&before, &t, 0, trial_name(&t));
    snapshot_free(&before, &t);
    trial_free(&t);
  }
  ck_assert_int_eq(live_tensors(), 0);
}
END_TEST

TEST_MAIN("layouts", every_operation_in_every_layout, every_gradient_in_every_layout,
          half_precision_is_near_single_precision, an_interrupt_stops_every_operation)
