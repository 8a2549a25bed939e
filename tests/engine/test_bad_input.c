/* test_bad_input.c: every operation with wrong dtypes, shapes, ids, dims and numbers: an error whose message says what
 * did not fit, or a result; never a crash, a leak or a changed argument. */
#include <ctype.h>
#include <stdio.h>

#include "op_table.h"

/* ---- each input of each row replaced by something else ---- */

static const int plain[MAX_INPUTS] = {PLAIN, PLAIN, PLAIN, PLAIN};

/* A shape error names a shape or at least a number of it; every error says something. */
static void check_message(const char *what, tl_status st) {
  const tl_error *e = tl_last_error();
  ck_assert_msg(e->code == (int)st, "%s: status %d, the error says %d", what, st, e->code);
  ck_assert_msg(e->message[0] != '\0' && e->op[0] != '\0', "%s: an error without words", what);
  bool number = false;
  for (const char *c = e->message; *c != '\0'; c++) number = number || isdigit((unsigned char)*c) || *c == '(';
  ck_assert_msg(st != TL_ERR_SHAPE || number, "%s: '%s' names no shape", what, e->message);
  ck_assert_msg(st == TL_ERR_SHAPE || st == TL_ERR_DTYPE || st == TL_ERR_INDEX || st == TL_ERR_VALUE ||
                    st == TL_ERR_STATE,
                "%s: status %d: %s", what, st, e->message);
}

/* Runs a trial whose input i was replaced by t (taken over): a walk must work wherever the call did. */
static tl_status run_replaced(const op_row *row, int dtype, int i, tl_tensor *other, const char *how) {
  trial t;
  snapshot before;
  char what[200];
  trial_make(&t, row, dtype, plain, true, false, false);
  snprintf(what, sizeof what, "%s, %s, input %d %s", row->name, tl_dtype_name(dtype), i, how);
  for (int k = 0; k < 3; k++) tl_tensor_free(k == 0 ? t.in[i] : k == 1 ? t.mid[i] : t.root[i]);
  t.root[i] = other;
  if (i == 0 && row->flags & IN_PLACE) ck_ok(tl_clone(other, &t.mid[i]));
  else ck_ok(tl_tensor_retain(other, &t.mid[i]));
  ck_ok(tl_tensor_retain(t.mid[i], &t.in[i]));
  snapshot_take(&before, &t);
  double live = (double)live_tensors();
  tl_status st = trial_run(&t), at_once = st;
  if (st == TL_OK) st = settled(st, &t.out[0]);
  if (at_once == TL_OK && st != TL_OK) {
    check_message(what, st);
    tl_tensor_free(t.out[1]);
    t.out[1] = NULL;
  } else if (st != TL_OK) {
    check_message(what, st);
    ck_assert_msg(t.out[0] == NULL && t.out[1] == NULL, "%s: failed and wrote a result", what);
    ck_assert_msg((double)live_tensors() == live, "%s: leaks", what);
    ck_assert_msg(tl_grad_enabled(), "%s: gradients stay off", what);
    snapshot_check(&before, &t, 0, what);
  } else if (trial_graded(&t)) {
    tl_tensor *w = make_weights(result_of(&t), false);
    ck_assert_msg(trial_backward(&t, w) == TL_OK, "%s: backward: %s", what, tl_last_error()->message);
    tl_tensor_free(w);
  }
  snapshot_free(&before, &t);
  trial_free(&t);
  ck_assert_msg(live_tensors() == 0, "%s: %lld tensors leak", what, (long long)live_tensors());
  return st;
}

static tl_tensor *replacement(const op_input *s, int ndim, const int64_t *shape, int dtype) {
  tl_tensor *t;
  ck_ok(tl_full(ndim, shape, s->kind == IDS ? 0 : 1, dtype, test_device(), &t));
  return t;
}

static int first_dtype(const op_row *row) {
  int dtype = 0;
  while (!(row->dtypes & BIT(dtype))) dtype++;
  return dtype;
}

START_TEST(other_dtypes) {
  for (int r = 0; r < OP_ROWS; r++)
    for (int i = 0; i < op_rows[r].inputs; i++)
      for (int dtype = 0; dtype < TL_DTYPES; dtype++) {
        const op_row *row = &op_rows[r];
        const op_input *s = &row->input[i];
        tl_status st =
            run_replaced(row, first_dtype(row), i, replacement(s, s->ndim, s->shape, dtype), tl_dtype_name(dtype));
        bool takes = s->kind == MASK  ? dtype == TL_BOOL || (row->flags & MASK_OR_BIAS && FLOATING & BIT(dtype))
                     : s->kind == IDS ? dtype >= TL_INT64 && dtype != TL_BOOL
                                      : row->inputs > 1 || row->dtypes & BIT(dtype);
        bool refused = st == TL_ERR_DTYPE ||
                       (s->kind == IDS && st == TL_ERR_SHAPE); /* floats are probabilities to cross_entropy */
        if (!takes) ck_assert_msg(refused, "%s takes %s as input %d (%d)", row->name, tl_dtype_name(dtype), i, st);
      }
}
END_TEST

START_TEST(other_shapes) {
  static const int64_t long_shape[TL_MAX_DIMS] = {1, 2, 1, 1, 2, 1, 1, 2};
  for (int r = 0; r < OP_ROWS; r++)
    for (int i = 0; i < op_rows[r].inputs; i++) {
      const op_row *row = &op_rows[r];
      const op_input *s = &row->input[i];
      const int dtype = first_dtype(row), kind = s->kind == IDS ? TL_INT64 : s->kind == MASK ? TL_BOOL : dtype;
      int64_t shape[8];
      for (int d = 0; d < s->ndim; d++)
        for (int change = -1; change <= 1; change++) {
          memcpy(shape, s->shape, sizeof s->shape);
          shape[d] = change == 0 ? 0 : shape[d] + change;
          if (shape[d] < 0) continue;
          run_replaced(row, dtype, i, replacement(s, s->ndim, shape, kind),
                       change == 0 ? "with a size of 0" : "with another size");
        }
      shape[0] = 1;
      memcpy(shape + 1, s->shape, sizeof s->shape);
      run_replaced(row, dtype, i, replacement(s, s->ndim + 1, shape, kind), "with one dim more");
      shape[0] = 2;
      run_replaced(row, dtype, i, replacement(s, s->ndim + 1, shape, kind), "twice as big");
      if (s->ndim > 0)
        run_replaced(row, dtype, i, replacement(s, s->ndim - 1, s->shape + 1, kind), "with one dim less");
      run_replaced(row, dtype, i, replacement(s, 0, NULL, kind), "of 0 dims");
      run_replaced(row, dtype, i, replacement(s, 8, long_shape, kind), "of 8 dims");
    }
}
END_TEST

START_TEST(ids_that_name_nothing) {
  static const double bad[] = {-1, 1 << 20, -9e15, 9e15};
  for (int r = 0; r < OP_ROWS; r++)
    for (int i = 0; i < op_rows[r].inputs; i++)
      for (size_t b = 0; b < sizeof bad / sizeof *bad; b++) {
        const op_row *row = &op_rows[r];
        const op_input *s = &row->input[i];
        if (s->kind != IDS) continue;
        tl_tensor *ids;
        ck_ok(tl_full(s->ndim, s->shape, bad[b], TL_INT64, test_device(), &ids));
        double n = tl_numel(ids);
        bool sized = strcmp(row->name, "one_hot_of_as_many") == 0 && bad[b] > 0; /* the largest id says how many */
        if (sized) tl_tensor_free(ids);
        else {
          tl_status st = run_replaced(row, first_dtype(row), i, ids, "of ids out of range");
          ck_assert_msg(st == (n > 0 ? TL_ERR_INDEX : TL_OK), "%s: %d for id %g", row->name, st, bad[b]);
        }
      }
}
END_TEST

/* ---- numbers ---- */

static tl_tensor *x, *v, *scalar, *ids, *mask, *image, *filter, *whole, *y, *z; /* y and z stay NULL */

static void make_operands(void) {
  ck_ok(tl_full(SHAPE(3, 4), 0.5, TL_FLOAT32, test_device(), &x));
  ck_ok(tl_full(SHAPE(4), 0.5, TL_FLOAT32, test_device(), &v));
  ck_ok(tl_full(0, NULL, 0.5, TL_FLOAT32, test_device(), &scalar));
  ck_ok(tl_full(SHAPE(3), 1, TL_INT64, test_device(), &ids));
  ck_ok(tl_full(SHAPE(3, 4), 1, TL_BOOL, test_device(), &mask));
  ck_ok(tl_full(SHAPE(2, 3, 5, 6), 1, TL_FLOAT32, test_device(), &image));
  ck_ok(tl_full(SHAPE(4, 3, 3, 3), 1, TL_FLOAT32, test_device(), &filter));
  ck_ok(tl_full(SHAPE(3, 4), 1, TL_INT32, test_device(), &whole));
}

static void free_operands(void) {
  tl_tensor *all[] = {x, v, scalar, ids, mask, image, filter, whole};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) tl_tensor_free(all[i]);
  ck_assert_int_eq(live_tensors(), 0);
}

#define bad(call, code, text)                                                 \
  do {                                                                        \
    int64_t before_ = live_tensors();                                         \
    ck_fails(call, code, text);                                               \
    ck_assert_msg(y == NULL && z == NULL, "%s: a result was written", #call); \
    ck_assert_msg(live_tensors() == before_, "%s: leaks", #call);             \
  } while (0)
#define DIMS(...) \
  (int)(sizeof((int[]){__VA_ARGS__}) / sizeof(int)), (const int[]) { __VA_ARGS__ }
#define HUGE_SIZE ((int64_t)1 << 61)

START_TEST(dims_out_of_range) {
  make_operands();
  static const int dims[] = {2, -3, INT32_MAX, INT32_MIN};
  for (int i = 0; i < 4; i++) {
    const int d = dims[i];
    bad(tl_transpose(x, 0, d, &y), TL_ERR_INDEX, "2-d");
    bad(tl_permute(x, DIMS(0, d), &y), TL_ERR_INDEX, "2-d");
    bad(tl_flatten(x, d, -1, &y), TL_ERR_INDEX, "2-d");
    bad(tl_squeeze(x, d, &y), TL_ERR_INDEX, "2-d");
    bad(tl_select(x, d, 0, &y), TL_ERR_INDEX, "2-d");
    bad(tl_narrow(x, d, 0, 1, &y), TL_ERR_INDEX, "2-d");
    bad(tl_slice(x, d, 0, 1, 1, &y), TL_ERR_INDEX, "2-d");
    bad(tl_sum(x, DIMS(d), false, &y), TL_ERR_INDEX, "2-d");
    bad(tl_mean(x, DIMS(0, d), false, &y), TL_ERR_INDEX, "2-d");
    bad(tl_prod(x, DIMS(d), false, &y), TL_ERR_INDEX, "2-d");
    bad(tl_var(x, DIMS(d), 1, false, &y), TL_ERR_INDEX, "2-d");
    bad(tl_std(x, DIMS(d), 1, false, &y), TL_ERR_INDEX, "2-d");
    bad(tl_norm(x, 2, DIMS(d), false, &y), TL_ERR_INDEX, "2-d");
    bad(tl_logsumexp(x, DIMS(d), false, &y), TL_ERR_INDEX, "2-d");
    bad(tl_amax(x, DIMS(d), false, &y), TL_ERR_INDEX, "2-d");
    bad(tl_amin(x, DIMS(d), false, &y), TL_ERR_INDEX, "2-d");
    bad(tl_all(x, DIMS(d), false, &y), TL_ERR_INDEX, "2-d");
    bad(tl_any(x, DIMS(d), false, &y), TL_ERR_INDEX, "2-d");
    bad(tl_max_dim(x, d, false, &y, &z), TL_ERR_INDEX, "2-d");
    bad(tl_min_dim(x, d, false, &y, &z), TL_ERR_INDEX, "2-d");
    bad(tl_argmax(x, d, false, &y), TL_ERR_INDEX, "2-d");
    bad(tl_argmin(x, d, false, &y), TL_ERR_INDEX, "2-d");
    bad(tl_cumsum(x, d, &y), TL_ERR_INDEX, "2-d");
    bad(tl_index_select(x, d, ids, &y), TL_ERR_INDEX, "2-d");
    bad(tl_gather(x, d, ids, &y), TL_ERR_INDEX, "2-d");
    bad(tl_scatter_add(x, d, ids, x, &y), TL_ERR_INDEX, "2-d");
    bad(tl_scatter_add_(x, d, ids, x), TL_ERR_INDEX, "2-d");
    bad(tl_index_add_(x, d, ids, x, 1), TL_ERR_INDEX, "2-d");
    bad(tl_cat(1, &x, d, &y), TL_ERR_INDEX, "2-d");
    bad(tl_repeat_interleave(x, 2, d, &y), TL_ERR_INDEX, "2-d");
    bad(tl_flip(x, DIMS(d), &y), TL_ERR_INDEX, "2-d");
    bad(tl_sort(x, d, false, &y, &z), TL_ERR_INDEX, "2-d");
    bad(tl_topk(x, 1, d, true, true, &y, &z), TL_ERR_INDEX, "2-d");
    bad(tl_softmax(x, d, &y), TL_ERR_INDEX, "2-d");
    bad(tl_log_softmax(x, d, &y), TL_ERR_INDEX, "2-d");
  }
  bad(tl_unsqueeze(x, 3, &y), TL_ERR_INDEX, "3-d");
  bad(tl_stack(1, &x, -4, &y), TL_ERR_INDEX, "3-d");
  bad(tl_softmax(scalar, 1, &y), TL_ERR_INDEX, "0-d");
  free_operands();
}
END_TEST

START_TEST(lists_of_dims) {
  make_operands();
  bad(tl_sum(x, DIMS(0, -2), false, &y), TL_ERR_VALUE, "twice");
  bad(tl_permute(x, DIMS(1, 1), &y), TL_ERR_VALUE, "twice");
  bad(tl_permute(x, DIMS(1), &y), TL_ERR_SHAPE, "(3x4)");
  bad(tl_flip(x, DIMS(1, -1), &y), TL_ERR_VALUE, "twice");
  bad(tl_flatten(x, 1, 0, &y), TL_ERR_VALUE, "0");
  bad(tl_sum(x, -1, NULL, false, &y), TL_ERR_VALUE, "-1");
  bad(tl_flip(x, -1, NULL, &y), TL_ERR_VALUE, "-1");
  bad(tl_permute(scalar, -1, NULL, &y), TL_ERR_SHAPE, "()");
  bad(tl_layer_norm(x, 3, (const int64_t[]){1, 3, 4}, NULL, NULL, 1e-5, &y), TL_ERR_SHAPE, "(3x4)");
  bad(tl_layer_norm(x, 0, NULL, NULL, NULL, 1e-5, &y), TL_ERR_SHAPE, "");
  bad(tl_layer_norm(x, -1, NULL, NULL, NULL, 1e-5, &y), TL_ERR_SHAPE, "");
  bad(tl_rms_norm(x, 1, (const int64_t[]){5}, NULL, 1e-5, &y), TL_ERR_SHAPE, "(3x4)");
  bad(tl_cat(0, NULL, 0, &y), TL_ERR_VALUE, "no tensors");
  bad(tl_cat(-1, NULL, 0, &y), TL_ERR_VALUE, "no tensors");
  bad(tl_stack(0, NULL, 0, &y), TL_ERR_VALUE, "no tensors");
  free_operands();
}
END_TEST

START_TEST(shapes_that_are_none) {
  make_operands();
  bad(tl_empty(SHAPE(3, -1), TL_FLOAT32, test_device(), &y), TL_ERR_SHAPE, "-1");
  bad(tl_empty(9, (const int64_t[9]){0}, TL_FLOAT32, test_device(), &y), TL_ERR_SHAPE, "9");
  bad(tl_empty(-1, NULL, TL_FLOAT32, test_device(), &y), TL_ERR_SHAPE, "-1");
  bad(tl_empty(SHAPE(HUGE_SIZE, 8), TL_FLOAT32, test_device(), &y), TL_ERR_SHAPE, "too big");
  bad(tl_full(SHAPE(0, HUGE_SIZE, 8), 1, TL_FLOAT32, test_device(), &y), TL_ERR_SHAPE, "too big");
  bad(tl_empty(SHAPE(3), TL_DTYPES, test_device(), &y), TL_ERR_DTYPE, "8");
  bad(tl_empty(SHAPE(3), -1, test_device(), &y), TL_ERR_DTYPE, "-1");
  bad(tl_empty(SHAPE(3), TL_FLOAT32, 77 << 8, &y), TL_ERR_DEVICE, "");
  bad(tl_to(x, 99, test_device(), &y), TL_ERR_DTYPE, "99");
  bad(tl_to(x, TL_FLOAT32, 77 << 8, &y), TL_ERR_DEVICE, "");
  bad(tl_view(x, SHAPE(5, -1), &y), TL_ERR_SHAPE, "(3x4)");
  bad(tl_view(x, SHAPE(-1, -1), &y), TL_ERR_SHAPE, "-1");
  bad(tl_view(x, SHAPE(-2, 6), &y), TL_ERR_SHAPE, "-2");
  bad(tl_view(x, SHAPE(HUGE_SIZE, HUGE_SIZE), &y), TL_ERR_SHAPE, "too big");
  bad(tl_view(x, SHAPE(0, -1), &y), TL_ERR_SHAPE, "0");
  bad(tl_reshape(x, SHAPE(7), &y), TL_ERR_SHAPE, "(3x4)");
  bad(tl_reshape(x, -1, NULL, &y), TL_ERR_SHAPE, "-1");
  bad(tl_expand(x, SHAPE(4, 4), &y), TL_ERR_SHAPE, "(3x4)");
  bad(tl_expand(x, SHAPE(4), &y), TL_ERR_SHAPE, "(3x4)");
  bad(tl_expand(v, SHAPE(-1, 4), &y), TL_ERR_SHAPE, "-1");
  bad(tl_expand(scalar, SHAPE(HUGE_SIZE, HUGE_SIZE), &y), TL_ERR_SHAPE, "too big");
  bad(tl_expand(scalar, 9, (const int64_t[9]){0}, &y), TL_ERR_SHAPE, "9");
  bad(tl_sum_to(x, SHAPE(2, 4), &y), TL_ERR_SHAPE, "(3x4)");
  bad(tl_sum_to(x, SHAPE(1, 3, 4), &y), TL_ERR_SHAPE, "(3x4)");
  bad(tl_sum_to(x, -1, NULL, &y), TL_ERR_SHAPE, "");
  bad(tl_tile(x, SHAPE(HUGE_SIZE, HUGE_SIZE), &y), TL_ERR_SHAPE, "");
  bad(tl_tile(x, SHAPE(-1, 1), &y), TL_ERR_VALUE, "-1");
  bad(tl_repeat_interleave(x, HUGE_SIZE, 0, &y), TL_ERR_SHAPE, "too big");
  bad(tl_repeat_interleave(x, -1, 0, &y), TL_ERR_VALUE, "-1");
  bad(tl_one_hot(ids, HUGE_SIZE, &y), TL_ERR_SHAPE, "");
  bad(tl_one_hot(ids, -2, &y), TL_ERR_VALUE, "-2");
  bad(tl_eye(-1, 2, TL_FLOAT32, test_device(), &y), TL_ERR_SHAPE, "-1");
  bad(tl_eye(HUGE_SIZE, HUGE_SIZE, TL_FLOAT32, test_device(), &y), TL_ERR_SHAPE, "too big");
  free_operands();
}
END_TEST

START_TEST(positions_and_numbers_out_of_range) {
  make_operands();
  const double nan = NAN;
  static const int64_t far[] = {4, -5, INT64_MAX, INT64_MIN};
  for (int i = 0; i < 4; i++) {
    bad(tl_select(x, 1, far[i], &y), TL_ERR_INDEX, "(3x4)");
    bad(tl_narrow(x, 1, far[i], 1, &y), TL_ERR_INDEX, "(3x4)");
    bad(tl_narrow(x, 1, 0, i == 0 ? 5 : i == 1 ? -1 : far[i], &y), TL_ERR_INDEX, "(3x4)");
  }
  bad(tl_slice(x, 0, 0, 3, 0, &y), TL_ERR_VALUE, "0");
  bad(tl_slice(x, 0, 0, 3, INT64_MIN, &y), TL_ERR_VALUE, "");
  bad(tl_select(scalar, 0, 0, &y), TL_ERR_INDEX, "0-d");
  bad(tl_narrow(scalar, 0, 0, 1, &y), TL_ERR_INDEX, "0-d");
  bad(tl_topk(x, 5, 1, true, true, &y, &z), TL_ERR_VALUE, "(3x4)");
  bad(tl_topk(x, -1, 1, true, true, &y, &z), TL_ERR_VALUE, "-1");
  bad(tl_arange(0, 5, 0, TL_INT64, test_device(), &y), TL_ERR_VALUE, "step");
  bad(tl_arange(0, 5, -1, TL_INT64, test_device(), &y), TL_ERR_VALUE, "never");
  bad(tl_arange(0, nan, 1, TL_INT64, test_device(), &y), TL_ERR_VALUE, "finite");
  bad(tl_arange(0, 1e300, 1e-300, TL_FLOAT32, test_device(), &y), TL_ERR_SHAPE, "too many");
  bad(tl_arange(0, 5, 1, 12, test_device(), &y), TL_ERR_DTYPE, "12");
  bad(tl_linspace(0, 5, -1, TL_FLOAT32, test_device(), &y), TL_ERR_VALUE, "-1");
  bad(tl_uniform_(x, 1, 0, NULL), TL_ERR_VALUE, "1");
  bad(tl_uniform_(x, nan, 0, NULL), TL_ERR_VALUE, "nan");
  bad(tl_uniform_(whole, 0, 1, NULL), TL_ERR_DTYPE, "int32");
  bad(tl_normal_(x, 0, -1, NULL), TL_ERR_VALUE, "-1");
  bad(tl_normal_(whole, 0, 1, NULL), TL_ERR_DTYPE, "int32");
  bad(tl_randint_(x, 0, 0, NULL), TL_ERR_VALUE, "0");
  bad(tl_randint_(x, 0, 1e300, NULL), TL_ERR_VALUE, "");
  bad(tl_bernoulli_(x, 1.5, NULL), TL_ERR_VALUE, "1.5");
  bad(tl_bernoulli_(x, nan, NULL), TL_ERR_VALUE, "nan");
  bad(tl_randperm(-1, TL_INT64, test_device(), NULL, &y), TL_ERR_VALUE, "-1");
  bad(tl_randperm(300, TL_UINT8, test_device(), NULL, &y), TL_ERR_DTYPE, "uint8");
  bad(tl_randperm(3, 12, test_device(), NULL, &y), TL_ERR_DTYPE, "12");
  bad(tl_randperm(HUGE_SIZE, TL_INT64, test_device(), NULL, &y), TL_ERR_SHAPE, "too big");
  bad(tl_multinomial(x, -1, true, NULL, &y), TL_ERR_VALUE, "-1");
  bad(tl_multinomial(x, 5, false, NULL, &y), TL_ERR_VALUE, "5");
  bad(tl_dropout(x, -0.1, true, NULL, &y), TL_ERR_VALUE, "-0.1");
  bad(tl_dropout(x, nan, true, NULL, &y), TL_ERR_VALUE, "nan");
  bad(tl_generator_seed(NULL, -1), TL_ERR_VALUE, "-1");
  bad(tl_generator_seed(NULL, nan), TL_ERR_VALUE, "nan");
  bad(tl_set_num_threads(0), TL_ERR_VALUE, "0");
  bad(tl_floor_divide_scalar(whole, 0, &y), TL_ERR_VALUE, "zero");
  bad(tl_remainder_scalar_(whole, 0), TL_ERR_VALUE, "zero");
  bad(tl_index_add_(whole, 0, ids, whole, 0.5), TL_ERR_VALUE, "0.5");
  bad(tl_index_add_(whole, 0, ids, whole, nan), TL_ERR_VALUE, "nan");
  bad(tl_index_add_(whole, 0, ids, whole, 1e300), TL_ERR_VALUE, "1e+300");
  bad(tl_allclose(x, x, -1, 0, false, &(bool){false}), TL_ERR_VALUE, "-1");
  bad(tl_norm(x, nan, 0, NULL, false, &y), TL_ERR_VALUE, "nan");
  free_operands();
}
END_TEST

/* Whatever the number, an operation on integers answers or refuses; conversions of it are defined. */
START_TEST(numbers_for_integer_tensors) {
  make_operands();
  static const double numbers[] = {NAN, INFINITY, -INFINITY, 1e300, -1e300, 9.3e18, -9.3e18, 0.5, -1};
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
    const double s = numbers[i];
    tl_tensor *t[16] = {NULL};
    int n = 0;
    tl_add_scalar(whole, s, &t[n++]);
    tl_mul_scalar(whole, s, &t[n++]);
    tl_pow_scalar(whole, s, &t[n++]);
    tl_floor_divide_scalar(whole, s, &t[n++]);
    tl_remainder_scalar(whole, s, &t[n++]);
    tl_gt_scalar(whole, s, &t[n++]);
    tl_clamp(whole, s, s, &t[n++]);
    tl_add_scaled(whole, whole, s, &t[n++]);
    tl_addcmul(whole, whole, whole, s, &t[n++]);
    tl_masked_fill(whole, mask, s, &t[n++]);
    for (int dtype = TL_INT64; dtype <= TL_BOOL; dtype++) tl_full(SHAPE(3), s, dtype, test_device(), &t[n++]);
    tl_linspace(s, s, 2, TL_INT32, test_device(), &t[n++]);
    ck_assert_int_le(n, 16);
    for (int k = 0; k < n; k++) tl_tensor_free(t[k]);
  }
  free_operands();
}
END_TEST

START_TEST(values_that_are_not_there) {
  make_operands();
  double value, values[12];
  const int64_t inside[2] = {2, -1}, outside[2] = {3, 0}, before[2] = {0, -5};
  ck_ok(tl_get(x, 2, inside, &value));
  bad(tl_get(x, 2, outside, &value), TL_ERR_INDEX, "(3x4)");
  bad(tl_get(x, 2, before, &value), TL_ERR_INDEX, "(3x4)");
  bad(tl_get(x, 1, inside, &value), TL_ERR_INDEX, "(3x4)");
  bad(tl_get(x, -1, inside, &value), TL_ERR_INDEX, "(3x4)");
  bad(tl_item(x, &value), TL_ERR_SHAPE, "(3x4)");
  bad(tl_to_doubles(x, 11, values), TL_ERR_VALUE, "11");
  bad(tl_from_doubles(SHAPE(2, -6), TL_FLOAT32, test_device(), values, &y), TL_ERR_SHAPE, "-6");
  bad(tl_from_memory(SHAPE(HUGE_SIZE, 8), TL_FLOAT32, test_device(), values, &y), TL_ERR_SHAPE, "too big");
  bad(tl_from_memory(SHAPE(3), 9, test_device(), values, &y), TL_ERR_DTYPE, "9");
  ck_assert(isnan(tl_size(x, 2)) && isnan(tl_size(x, -1)));
  free_operands();
}
END_TEST

START_TEST(matrices_and_images_that_do_not_fit) {
  make_operands();
  static const int64_t one[2] = {1, 1}, none[2] = {0, 0}, minus[2] = {-1, 1}, big[2] = {INT64_MAX, INT64_MAX},
                       half[2] = {HUGE_SIZE, 1};
  tl_tensor *pair[2] = {x, v};
  bad(tl_matmul(x, x, &y), TL_ERR_SHAPE, "(3x4)");
  bad(tl_matmul(x, scalar, &y), TL_ERR_SHAPE, "()");
  bad(tl_mm(x, v, &y), TL_ERR_SHAPE, "(4)");
  bad(tl_bmm(x, x, &y), TL_ERR_SHAPE, "(3x4)");
  bad(tl_addmm(v, x, x, 1, 1, &y), TL_ERR_SHAPE, "(3x4)");
  bad(tl_dot(v, x, &y), TL_ERR_SHAPE, "(3x4)");
  bad(tl_outer(v, x, &y), TL_ERR_SHAPE, "(3x4)");
  bad(tl_linear(x, x, v, &y), TL_ERR_SHAPE, "(4)");
  bad(tl_linear(scalar, x, NULL, &y), TL_ERR_SHAPE, "at least 1 dim");
  bad(tl_matmul(x, mask, &y), TL_ERR_DTYPE, "bool");
  static const char *const equations[] = {"",
                                          "ij",
                                          "ij,j,k->i",
                                          "ij,k->x",
                                          "ij,j->ii",
                                          "i?,j",
                                          "ij,j->i->i",
                                          "...j...,j",
                                          "ijk,j->",
                                          "ij,jk->",
                                          "ij-j",
                                          "ij,j->...",
                                          "->",
                                          ",",
                                          "ij,j,",
                                          "ij,i->j ,",
                                          "ij,j->i,",
                                          "abcdefghijk,j->a",
                                          "\xff\xff,j->"};
  for (size_t i = 0; i < sizeof equations / sizeof *equations; i++) {
    tl_status st = tl_einsum(equations[i], 2, pair, &y);
    if (st == TL_OK) { /* "ij,j->..." has a meaning: nothing stands for "..." */
      ck_assert_str_eq(equations[i], "ij,j->...");
      tl_tensor_free(y);
      y = NULL;
    } else {
      check_message(equations[i], st);
    }
  }
  bad(tl_einsum("ij", 0, NULL, &y), TL_ERR_VALUE, "");

  const int64_t *wrong[] = {none, minus, big, half};
  for (int i = 0; i < 4; i++) {
    const int64_t *w = wrong[i];
    int64_t before = live_tensors();
    tl_status st[] = {
        tl_conv(image, filter, NULL, 2, w, one, one, 1, &y),
        w == none ? TL_ERR_VALUE : tl_conv(image, filter, NULL, 2, one, w, one, 1, &y),
        tl_conv(image, filter, NULL, 2, one, one, w, 1, &y),
        tl_conv_transpose2d(image, image, NULL, w, none, none, one, 1, &y),
        w == none ? TL_ERR_VALUE : tl_conv_transpose2d(image, image, NULL, one, w, none, one, 1, &y),
        w == none ? TL_ERR_VALUE : tl_conv_transpose2d(image, image, NULL, one, none, w, one, 1, &y),
        tl_conv_transpose2d(image, image, NULL, one, none, none, w, 1, &y),
        tl_max_pool2d(image, w, one, none, one, true, &y),
        w == none ? TL_ERR_VALUE : tl_max_pool2d(image, one, one, w, one, true, &y),
        tl_avg_pool2d(image, w, one, none, true, true, &y),
        w == none ? TL_ERR_VALUE : tl_avg_pool2d(image, one, one, w, true, true, &y),
    };
    for (size_t k = 0; k < sizeof st / sizeof *st; k++)
      ck_assert_msg(st[k] == TL_ERR_VALUE || st[k] == TL_ERR_SHAPE, "window %d, call %zu: status %d", i, k, st[k]);
    ck_assert_ptr_null(y);
    ck_assert_int_eq(live_tensors(), before);
    tl_status strided = tl_max_pool2d(image, one, w, none, one, true, &y); /* a huge step leaves one window */
    ck_assert_msg(strided == TL_OK || strided == TL_ERR_VALUE, "stride %d: %d", i, strided);
    tl_tensor_free(y);
    y = NULL;
  }
  bad(tl_conv(image, filter, NULL, 3, one, one, one, 1, &y), TL_ERR_VALUE, "3");
  bad(tl_conv(image, filter, NULL, 0, one, one, one, 1, &y), TL_ERR_VALUE, "0");
  bad(tl_conv(image, filter, v, 2, one, one, one, 2, &y), TL_ERR_SHAPE, "(2x3x5x6)");
  bad(tl_conv(image, filter, v, 2, one, one, one, 0, &y), TL_ERR_VALUE, "0");
  bad(tl_conv(image, filter, x, 2, one, one, one, 1, &y), TL_ERR_SHAPE, "(3x4)");
  bad(tl_adaptive_avg_pool2d(image, -1, 2, &y), TL_ERR_VALUE, "-1");
  bad(tl_adaptive_avg_pool2d(image, HUGE_SIZE, HUGE_SIZE, &y), TL_ERR_SHAPE, "");
  bad(tl_adaptive_avg_pool2d(x, 1, 2, &y), TL_ERR_SHAPE, "(3x4)");
  bad(tl_batch_norm(x, v, NULL, v, NULL, true, 0.1, 1e-5, &y), TL_ERR_VALUE, "running_mean");
  bad(tl_batch_norm(v, NULL, NULL, NULL, NULL, true, 0.1, 1e-5, &y), TL_ERR_SHAPE, "(4)");
  bad(tl_batch_norm(x, ids, NULL, NULL, NULL, true, 0.1, 1e-5, &y), TL_ERR_DTYPE, "int64");
  bad(tl_group_norm(x, 3, NULL, NULL, 1e-5, &y), TL_ERR_VALUE, "3");
  bad(tl_group_norm(x, 0, NULL, NULL, 1e-5, &y), TL_ERR_VALUE, "0");
  bad(tl_mse_loss(x, v, TL_REDUCE_MEAN, &y), TL_ERR_SHAPE, "(4)");
  bad(tl_mse_loss(x, x, 9, &y), TL_ERR_VALUE, "9");
  bad(tl_mse_loss(x, x, TL_REDUCE_BATCHMEAN, &y), TL_ERR_VALUE, "");
  bad(tl_huber_loss(x, x, 0, TL_REDUCE_MEAN, &y), TL_ERR_VALUE, "0");
  bad(tl_smooth_l1_loss(x, x, -1, TL_REDUCE_MEAN, &y), TL_ERR_VALUE, "-1");
  bad(tl_nll_loss(x, ids, NULL, -100, -1, &y), TL_ERR_VALUE, "-1");
  bad(tl_cross_entropy(x, ids, NULL, -100, 1.5, TL_REDUCE_MEAN, &y), TL_ERR_VALUE, "1.5");
  bad(tl_cross_entropy(scalar, ids, NULL, -100, 0, TL_REDUCE_MEAN, &y), TL_ERR_SHAPE, "number");
  bad(tl_embedding(x, ids, 3, &y), TL_ERR_INDEX, "3");
  bad(tl_embedding(x, ids, -2, &y), TL_ERR_INDEX, "-2");
  free_operands();
}
END_TEST

START_TEST(what_the_tape_refuses) {
  make_operands();
  tl_walk *walk = NULL;
  bad(tl_backward(x, NULL, false, &walk), TL_ERR_STATE, "(3x4)");
  ck_ok(tl_set_requires_grad(x, true));
  bad(tl_backward(x, NULL, false, &walk), TL_ERR_SHAPE, "(3x4)");
  bad(tl_backward(x, v, false, &walk), TL_ERR_SHAPE, "(4)");
  bad(tl_backward(x, whole, false, &walk), TL_ERR_DTYPE, "int32");
  bad(tl_set_grad(x, v), TL_ERR_SHAPE, "(4)");
  bad(tl_set_grad(x, whole), TL_ERR_DTYPE, "int32");
  bad(tl_set_requires_grad(whole, true), TL_ERR_DTYPE, "int32");
  bad(tl_autograd_grad(1, &v, NULL, 1, &x, false, &walk), TL_ERR_STATE, "");
  bad(tl_autograd_grad(1, &x, NULL, 1, &v, false, &walk), TL_ERR_STATE, "");
  bad(tl_add_scalar_(x, 1), TL_ERR_STATE, "leaf");
  bad(tl_fill_(x, 1), TL_ERR_STATE, "leaf");
  bad(tl_uniform_(x, 0, 1, NULL), TL_ERR_STATE, "leaf");
  bad(tl_copy_(whole, image), TL_ERR_SHAPE, "(2x3x5x6)");
  bad(tl_copy_(v, whole), TL_ERR_SHAPE, "(3x4)");
  bad(tl_clip_grad_norm_(1, &x, -1, 2, false, &(double){0}), TL_ERR_VALUE, "-1");
  bad(tl_clip_grad_value_(1, &x, -1), TL_ERR_VALUE, "-1");
  ck_assert_ptr_null(walk);
  free_operands();
}
END_TEST

TEST_MAIN("bad input", other_dtypes, other_shapes, ids_that_name_nothing, dims_out_of_range, lists_of_dims,
          shapes_that_are_none, positions_and_numbers_out_of_range, numbers_for_integer_tensors,
          values_that_are_not_there, matrices_and_images_that_do_not_fit, what_the_tape_refuses)
