/* test_tensor.c: handles, storages, values in and out, views, copies. */
#include "check_tl.h"

START_TEST(shapes_strides_and_values_are_what_was_asked_for) {
  tl_tensor *t = TENSOR(TL_FLOAT32, SHAPE(2, 3), 1, 2, 3, 4, 5, 6);
  ck_assert_int_eq(tl_ndim(t), 2);
  ck_assert_double_eq(tl_size(t, 1), 3);
  ck_assert_double_eq(tl_stride(t, 0), 3);
  ck_assert(tl_is_contiguous(t));
  double v;
  ck_ok(tl_get(t, 2, (int64_t[]){1, -1}, &v));
  ck_assert_double_eq(v, 6);
  ck_fails(tl_get(t, 2, (int64_t[]){2, 0}, &v), TL_ERR_INDEX, "index 2 is out of range for dim 0 of (2x3)");
  ck_fails(tl_item(t, &v), TL_ERR_SHAPE, "needs exactly 1");
  tl_tensor_free(t);
  ck_assert_int_eq(live_tensors(), 0);
}
END_TEST

START_TEST(impossible_shapes_are_refused) {
  tl_tensor *t = NULL;
  ck_fails(tl_empty(SHAPE(2, -1), TL_FLOAT32, test_device(), &t), TL_ERR_SHAPE, "negative");
  ck_fails(tl_empty(SHAPE(1, 1, 1, 1, 1, 1, 1, 1, 1), TL_FLOAT32, test_device(), &t), TL_ERR_SHAPE, "9 dims");
  ck_fails(tl_empty(SHAPE(INT64_MAX, 2), TL_FLOAT32, test_device(), &t), TL_ERR_SHAPE, "too big");
  ck_fails(tl_empty(SHAPE(INT64_MAX, INT64_MAX, 0), TL_FLOAT32, test_device(), &t), TL_ERR_SHAPE, "too big");
  ck_fails(tl_empty(SHAPE((int64_t)1 << 50), TL_FLOAT32, test_device(), &t), TL_ERR_MEMORY, "asked for on c");
  ck_fails(tl_empty(SHAPE(1), 99, test_device(), &t), TL_ERR_DTYPE, "99");
  ck_fails(tl_empty(SHAPE(1), TL_FLOAT32, 5, &t), TL_ERR_DEVICE, "no device number 5");
  ck_assert_ptr_null(t);
}
END_TEST

START_TEST(zero_size_and_scalar_tensors_are_legal) {
  tl_tensor *empty, *scalar, *sum;
  ck_ok(tl_full(SHAPE(3, 0, 2), 1, TL_FLOAT32, test_device(), &empty));
  ck_assert_double_eq(tl_numel(empty), 0);
  ck_ok(tl_add(empty, empty, &sum));
  ck_assert_double_eq(tl_numel(sum), 0);
  ck_ok(tl_full(0, NULL, 7, TL_INT64, test_device(), &scalar));
  double v;
  ck_ok(tl_item(scalar, &v));
  ck_assert_double_eq(v, 7);
  tl_tensor_free(empty);
  tl_tensor_free(scalar);
  tl_tensor_free(sum);
}
END_TEST

START_TEST(every_dtype_stores_what_it_can) {
  const double values[] = {0, 1, -1, 2.5, 100};
  const double expected[TL_DTYPES][5] = {
      [TL_FLOAT32] = {0, 1, -1, 2.5, 100}, [TL_FLOAT16] = {0, 1, -1, 2.5, 100}, [TL_BFLOAT16] = {0, 1, -1, 2.5, 100},
      [TL_FLOAT64] = {0, 1, -1, 2.5, 100}, [TL_INT64] = {0, 1, -1, 2, 100},     [TL_INT32] = {0, 1, -1, 2, 100},
      [TL_UINT8] = {0, 1, 255, 2, 100},    [TL_BOOL] = {0, 1, 1, 1, 1},
  };
  for (int d = 0; d < TL_DTYPES; d++) {
    tl_tensor *t = make_tensor(d, SHAPE(5), values);
    ck_values(t, 5, expected[d], 0);
    for (int e = 0; e < TL_DTYPES; e++) { /* and to every other dtype */
      tl_tensor *u;
      ck_ok(tl_to(t, e, test_device(), &u));
      ck_assert_int_eq(tl_dtype_of(u), e);
      tl_tensor_free(u);
    }
    tl_tensor_free(t);
  }
}
END_TEST

START_TEST(half_and_bfloat16_round_to_nearest_even) {
  /* largest finite, first that overflows, ties, subnormals, specials */
  const double in[] = {65504,    65520, 1.00048828125, 1.0014648437500, 5.9604644775390625e-8, 2.98023223876953125e-8,
                       INFINITY, NAN};
  const double half[] = {65504, INFINITY, 1, 1.001953125, 5.9604644775390625e-8, 0, INFINITY, NAN};
  tl_tensor *t = make_tensor(TL_FLOAT16, SHAPE(8), in);
  ck_values(t, 8, half, 0);
  const double bin[] = {1.00390625, 1.01171875, 3.3895313892515355e38, INFINITY, NAN, -0.0};
  const double bf[] = {1, 1.015625, 3.3895313892515355e38, INFINITY, NAN, 0};
  tl_tensor *u = make_tensor(TL_BFLOAT16, SHAPE(6), bin);
  ck_values(u, 6, bf, 0);
  tl_tensor_free(t);
  tl_tensor_free(u);
}
END_TEST

START_TEST(integers_survive_conversions_exactly) {
  const double big[] = {9007199254740991.0, -9007199254740991.0, 16777217};
  tl_tensor *t = make_tensor(TL_INT64, SHAPE(3), big), *u, *v;
  ck_values(t, 3, big, 0);
  ck_ok(tl_add_scalar(t, 0, &u));
  ck_values(u, 3, big, 0);
  ck_ok(tl_to(t, TL_INT32, test_device(), &v));
  ck_tensor(v, 0, -1, 1, 16777217);
  tl_tensor_free(t);
  tl_tensor_free(u);
  tl_tensor_free(v);
}
END_TEST

START_TEST(views_share_storage_and_copies_do_not) {
  tl_tensor *t, *v, *c, *flat;
  ck_ok(tl_arange(0, 12, 1, TL_FLOAT32, test_device(), &t));
  ck_ok(tl_view(t, SHAPE(3, -1), &v));
  ck_assert(tl_same_storage(t, v));
  tl_tensor *tr;
  ck_ok(tl_transpose(v, 0, 1, &tr));
  ck_tensor(tr, 0, 0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11);
  ck_fails(tl_view(tr, SHAPE(12), &flat), TL_ERR_SHAPE, "use reshape");
  ck_ok(tl_reshape(tr, SHAPE(12), &flat));
  ck_assert(!tl_same_storage(tr, flat));
  ck_ok(tl_contiguous(tr, &c));
  ck_assert(tl_is_contiguous(c));
  ck_fails(tl_view(t, SHAPE(5, -1), &flat), TL_ERR_SHAPE, "(12)");
  ck_fails(tl_view(t, SHAPE(-1, -1), &flat), TL_ERR_SHAPE, "only one");
  tl_tensor *part, *step;
  ck_ok(tl_narrow(v, 1, 1, 2, &part));
  ck_tensor(part, 0, 1, 2, 5, 6, 9, 10);
  ck_ok(tl_slice(v, 1, 0, 4, 3, &step));
  ck_tensor(step, 0, 0, 3, 4, 7, 8, 11);
  ck_ok(tl_fill_(step, -1));
  ck_tensor(t, 0, -1, 1, 2, -1, -1, 5, 6, -1, -1, 9, 10, -1);
  tl_tensor *all[] = {t, v, tr, flat, c, part, step};
  for (int i = 0; i < 7; i++) tl_tensor_free(all[i]);
  ck_assert_int_eq(live_tensors(), 0);
}
END_TEST

START_TEST(a_view_of_non_contiguous_groups_is_found_where_one_exists) {
  tl_tensor *t, *n, *v;
  ck_ok(tl_arange(0, 24, 1, TL_FLOAT32, test_device(), &t));
  tl_tensor *m;
  ck_ok(tl_view(t, SHAPE(2, 3, 4), &m));
  ck_ok(tl_narrow(m, 2, 0, 2, &n)); /* (2,3,2), dims 0 and 1 still merge */
  ck_ok(tl_view(n, SHAPE(6, 2), &v));
  ck_tensor(v, 0, 0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21);
  tl_tensor *w;
  ck_ok(tl_view(n, SHAPE(3, 2, 1, 2), &w));
  ck_tensor(w, 0, 0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21);
  tl_tensor *all[] = {t, m, n, v, w};
  for (int i = 0; i < 5; i++) tl_tensor_free(all[i]);
}
END_TEST

START_TEST(copies_read_overlapping_sources_before_writing) {
  tl_tensor *t, *a, *b;
  ck_ok(tl_arange(0, 6, 1, TL_FLOAT32, test_device(), &t));
  ck_ok(tl_narrow(t, 0, 0, 5, &a));
  ck_ok(tl_narrow(t, 0, 1, 5, &b));
  ck_ok(tl_copy_(b, a));
  ck_tensor(t, 0, 0, 0, 1, 2, 3, 4);
  ck_ok(tl_add_(a, b)); /* a[i] += former b[i] */
  ck_tensor(t, 0, 0, 1, 3, 5, 7, 4);
  tl_tensor_free(t);
  tl_tensor_free(a);
  tl_tensor_free(b);
}
END_TEST

START_TEST(writing_into_an_expanded_tensor_is_an_error) {
  tl_tensor *t = VECTOR(1, 2), *e;
  ck_ok(tl_expand(t, SHAPE(3, 2), &e));
  ck_fails(tl_fill_(e, 0), TL_ERR_VALUE, "expanded");
  ck_fails(tl_add_scalar_(e, 1), TL_ERR_VALUE, "expanded");
  ck_tensor(t, 0, 1, 2);
  tl_tensor_free(t);
  tl_tensor_free(e);
}
END_TEST

START_TEST(failed_calls_leave_their_arguments_alone) {
  tl_tensor *a = TENSOR(TL_FLOAT32, SHAPE(2, 2), 1, 2, 3, 4), *b = VECTOR(1, 2, 3), *c = a;
  ck_fails(tl_add(a, b, &c), TL_ERR_SHAPE, "(2x2) and (3) do not broadcast");
  ck_assert_ptr_eq(a, c);
  ck_fails(tl_add_(a, b), TL_ERR_SHAPE, "do not broadcast");
  ck_tensor(a, 0, 1, 2, 3, 4);
  ck_assert_double_eq(tl_version_of(a), 0);
  ck_fails(tl_permute(a, 1, (int[]){0}, &c), TL_ERR_SHAPE, "1 dims");
  ck_fails(tl_transpose(a, 0, 5, &c), TL_ERR_INDEX, "dim 5");
  ck_fails(tl_narrow(a, 0, 1, 2, &c), TL_ERR_INDEX, "do not lie");
  ck_fails(tl_select(a, 0, 2, &c), TL_ERR_INDEX, "index 2");
  tl_tensor_free(a);
  tl_tensor_free(b);
}
END_TEST

START_TEST(creation_gives_the_usual_values) {
  tl_tensor *t;
  ck_ok(tl_arange(5, 0, -2, TL_INT64, test_device(), &t));
  ck_tensor(t, 0, 5, 3, 1);
  tl_tensor_free(t);
  ck_ok(tl_linspace(0, 1, 5, TL_FLOAT32, test_device(), &t));
  ck_tensor(t, 0, 0, 0.25, 0.5, 0.75, 1);
  tl_tensor_free(t);
  ck_ok(tl_eye(2, 3, TL_FLOAT32, test_device(), &t));
  ck_tensor(t, 0, 1, 0, 0, 0, 1, 0);
  tl_tensor_free(t);
  ck_fails(tl_arange(0, 5, 0, TL_FLOAT32, test_device(), &t), TL_ERR_VALUE, "step is 0");
  ck_fails(tl_arange(0, 5, -1, TL_FLOAT32, test_device(), &t), TL_ERR_VALUE, "never reaches");
  ck_fails(tl_arange(0, INFINITY, 1, TL_FLOAT32, test_device(), &t), TL_ERR_VALUE, "finite");
}
END_TEST

START_TEST(random_numbers_depend_on_the_seed_alone) {
  tl_tensor *a, *b, *wide, *narrow;
  tl_generator *g;
  ck_ok(tl_empty(SHAPE(1000, 100), TL_FLOAT32, test_device(), &a));
  ck_ok(tl_empty(SHAPE(1000, 100), TL_FLOAT32, test_device(), &b));
  ck_ok(tl_generator_new(7, &g));
  ck_ok(tl_set_num_threads(1));
  ck_ok(tl_normal_(a, 0, 1, g));
  ck_ok(tl_generator_seed(g, 7));
  ck_ok(tl_set_num_threads(2));
  ck_ok(tl_normal_(b, 0, 1, g));
  bool same;
  ck_ok(tl_equal(a, b, &same));
  ck_assert(same);
  ck_ok(tl_empty(SHAPE(1000, 200), TL_FLOAT32, test_device(), &wide)); /* strides do not matter either */
  ck_ok(tl_narrow(wide, 1, 50, 100, &narrow));
  ck_ok(tl_generator_seed(g, 7));
  ck_ok(tl_normal_(narrow, 0, 1, g));
  ck_ok(tl_equal(a, narrow, &same));
  ck_assert(same);
  tl_tensor *mean, *std;
  double m, s;
  ck_ok(tl_mean(a, 0, NULL, false, &mean));
  ck_ok(tl_std(a, 0, NULL, 1, false, &std));
  ck_ok(tl_item(mean, &m));
  ck_ok(tl_item(std, &s));
  ck_assert_double_lt(fabs(m), 0.02);
  ck_assert_double_lt(fabs(s - 1), 0.02);
  tl_tensor *all[] = {a, b, wide, narrow, mean, std};
  for (int i = 0; i < 6; i++) tl_tensor_free(all[i]);
  tl_generator_free(g);
}
END_TEST

START_TEST(philox_gives_the_published_numbers) {
  /* Random123's known answers for philox4x32-10: counter 0, key 0 */
  tl_tensor *t;
  tl_generator *g;
  ck_ok(tl_generator_new(0, &g));
  ck_ok(tl_empty(SHAPE(4), TL_INT64, test_device(), &t));
  ck_ok(tl_randint_(t, 0, 4294967295.0, g));
  const double words[] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
  double v[4];
  ck_ok(tl_to_doubles(t, 4, v));
  for (int i = 0; i < 4; i++) ck_assert_double_eq(v[i], floor(words[i] * 4294967295.0 / 4294967296.0));
  tl_tensor_free(t);
  tl_generator_free(g);
}
END_TEST

START_TEST(an_interrupt_ends_the_next_operation_and_only_that) {
  tl_tensor *a = VECTOR(1, 2), *b;
  tl_interrupt();
  ck_fails(tl_add(a, a, &b), TL_ERR_INTERRUPT, "interrupted");
  ck_ok(tl_add(a, a, &b));
  tl_tensor_free(a);
  tl_tensor_free(b);
}
END_TEST

START_TEST(released_storage_leaves_an_empty_handle) {
  tl_tensor *a = VECTOR(1, 2, 3);
  tl_memory_stats before, after;
  ck_ok(tl_memory(test_device(), &before));
  tl_tensor_release_storage(a);
  ck_ok(tl_memory(test_device(), &after));
  ck_assert_double_eq(before.live - after.live, 12);
  ck_assert_double_eq(tl_numel(a), 0);
  tl_tensor_release_storage(a);
  tl_tensor_free(a);
}
END_TEST

START_TEST(data_replaces_what_is_behind_a_handle) {
  tl_tensor *t = VECTOR(1, 2, 3), *wide, *same, *ids, *matrix, *computed, *grad;
  ck_ok(tl_set_requires_grad(t, true));
  tl_tensor *g = VECTOR(4, 5, 6);
  ck_ok(tl_set_grad(t, g));
  wide = TENSOR(TL_FLOAT64, SHAPE(3), 7, 8, 9);
  ck_ok(tl_set_data(t, wide)); /* another dtype: the gradient follows */
  ck_assert_int_eq(tl_dtype_of(t), TL_FLOAT64);
  ck_assert(tl_same_storage(t, wide));
  ck_assert(tl_requires_grad(t));
  ck_tensor(t, 0, 7, 8, 9);
  ck_ok(tl_grad(t, &grad));
  ck_assert_int_eq(tl_dtype_of(grad), TL_FLOAT64);
  ck_tensor(grad, 0, 4, 5, 6);
  tl_tensor_free(grad);
  ck_ok(tl_tensor_retain(t, &same));
  ck_ok(tl_set_data(t, same)); /* itself: nothing happens */
  ck_tensor(t, 0, 7, 8, 9);
  tl_tensor_free(same);
  ids = TENSOR(TL_INT64, SHAPE(3), 1, 2, 3);
  ck_fails(tl_set_data(t, ids), TL_ERR_DTYPE, "requires gradients cannot become int64");
  ck_ok(tl_mul(t, t, &computed));
  ck_fails(tl_set_data(computed, wide), TL_ERR_STATE, "was computed by mul");
  matrix = TENSOR(TL_FLOAT32, SHAPE(2, 2), 1, 2, 3, 4);
  for (int k = 1; k < 3; k++) { /* no memory for the gradient's copy: t is as it was */
    tl_tensor *low = TENSOR(TL_FLOAT32, SHAPE(3), 0, 0, 0);
    tl_fail_allocation(k);
    ck_fails(tl_set_data(t, low), TL_ERR_MEMORY, "");
    tl_fail_allocation(0);
    tl_tensor_free(low);
    ck_tensor(t, 0, 7, 8, 9);
  }
  ck_ok(tl_set_data(t, matrix)); /* another shape: no gradient any more */
  ck_tensor(t, 0, 1, 2, 3, 4);
  ck_ok(tl_grad(t, &grad));
  ck_assert_ptr_null(grad);
  tl_tensor *all[] = {t, g, wide, ids, computed, matrix};
  for (int i = 0; i < 6; i++) tl_tensor_free(all[i]);
  ck_assert_int_eq(live_tensors(), 0);
}
END_TEST

/* A view keeps the tensor that it was taken from; once that shows other elements it must not be written through. */
START_TEST(views_outlive_the_data_of_their_base) {
  for (int released = 0; released < 2; released++) {
    tl_tensor *base = TENSOR(TL_FLOAT32, SHAPE(3, 2), 1, 2, 3, 4, 5, 6), *view, *small, *w = VECTOR(10, 20), *sum,
              *grad;
    tl_walk *walk = NULL;
    ck_ok(tl_set_requires_grad(w, true));
    ck_ok(tl_select(base, 0, 2, &view));
    ck_ok(tl_narrow(base, 0, 0, 1, &small)); /* the same storage: base shrinks away from the view */
    if (released) tl_tensor_release_storage(base);
    else ck_ok(tl_set_data(base, small));
    ck_ok(tl_mul_(view, w));
    ck_tensor(view, 0, 50, 120);
    ck_assert(tl_requires_grad(view));
    ck_assert(!tl_requires_grad(base));
    ck_ok(tl_sum(view, 0, NULL, false, &sum));
    ck_ok(tl_backward(sum, NULL, false, &walk));
    ck_ok(tl_grad(w, &grad));
    ck_tensor(grad, 0, 5, 6);
    tl_tensor *all[] = {base, view, small, w, sum, grad};
    for (int i = 0; i < 6; i++) tl_tensor_free(all[i]);
  }
  ck_assert_int_eq(live_tensors(), 0);
}
END_TEST

START_TEST(devices_that_are_not_there_say_why) {
  tl_device d;
  ck_fails(tl_device_parse("gpu", &d), TL_ERR_DEVICE, "no device 'gpu'");
  ck_fails(tl_device_parse("cuda:x", &d), TL_ERR_DEVICE, "cuda:0");
  ck_ok(tl_device_parse("cpu", &d));
  ck_assert_int_eq(d, TL_CPU);
}
END_TEST

TEST_MAIN("tensor", shapes_strides_and_values_are_what_was_asked_for, impossible_shapes_are_refused,
          zero_size_and_scalar_tensors_are_legal, every_dtype_stores_what_it_can,
          half_and_bfloat16_round_to_nearest_even, integers_survive_conversions_exactly,
          views_share_storage_and_copies_do_not, a_view_of_non_contiguous_groups_is_found_where_one_exists,
          copies_read_overlapping_sources_before_writing, writing_into_an_expanded_tensor_is_an_error,
          failed_calls_leave_their_arguments_alone, creation_gives_the_usual_values,
          random_numbers_depend_on_the_seed_alone, philox_gives_the_published_numbers,
          an_interrupt_ends_the_next_operation_and_only_that, released_storage_leaves_an_empty_handle,
          data_replaces_what_is_behind_a_handle, views_outlive_the_data_of_their_base,
          devices_that_are_not_there_say_why)
