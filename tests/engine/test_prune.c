/* Masks: counts, exact selection among ties and masked elements, groups. */
#include "check_tl.h"

START_TEST(fractions_round_half_to_even) {
  const double cases[][3] = {{.25, 10, 2}, {.35, 10, 4}, {.15, 10, 2}, {.5, 5, 2}, {.5, 7, 4}, {0, 9, 0}, {1, 9, 9}};
  double count;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    ck_ok(tl_prune_count(cases[i][0], cases[i][1], &count));
    ck_assert_double_eq(count, cases[i][2]);
  }
  ck_fails(tl_prune_count(1.5, 10, &count), TL_ERR_VALUE, "between 0 and 1, got 1.5");
  ck_fails(tl_prune_count(-.1, 10, &count), TL_ERR_VALUE, "between 0 and 1");
  ck_fails(tl_prune_count(NAN, 10, &count), TL_ERR_VALUE, "between 0 and 1");
}
END_TEST

START_TEST(the_smallest_go_in_every_dtype) {
  for (int dtype = TL_FLOAT32; dtype <= TL_FLOAT64; dtype++) {
    tl_tensor *w = TENSOR(dtype, SHAPE(2, 4), 1, 2, 3, 4, -4, -3, -2, -1), *mask, *more;
    ck_ok(tl_prune_smallest(w, NULL, 3, &mask));
    ck_assert_int_eq(tl_dtype_of(mask), dtype);
    ck_tensor(mask, 0, 0, 0, 1, 1, 1, 1, 1, 0); /* of the two 2s the first */
    ck_ok(tl_prune_smallest(w, mask, 2, &more));
    ck_tensor(more, 0, 0, 0, 0, 1, 1, 1, 0, 0);
    tl_tensor_free(more);
    ck_fails(tl_prune_smallest(w, mask, 6, &more), TL_ERR_VALUE, "6 cannot be pruned: there are 5 left");
    ck_ok(tl_prune_smallest(w, mask, 5, &more));
    ck_tensor(more, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    tl_tensor_free(more);
    tl_tensor_free(mask);
    tl_tensor_free(w);
  }
}
END_TEST

START_TEST(nan_stays_longest) {
  tl_tensor *w = VECTOR(NAN, 1e-40, -INFINITY, 0, 3), *mask;
  ck_ok(tl_prune_smallest(w, NULL, 4, &mask));
  ck_tensor(mask, 0, 1, 0, 0, 0, 0);
  tl_tensor_free(mask);
  tl_tensor_free(w);
}
END_TEST

static int by_size(const void *a, const void *b) {
  const double x = fabs(*(const double *)a), y = fabs(*(const double *)b);
  return (x > y) - (x < y);
}

/* Every layout, against sorting. */
START_TEST(selects_what_sorting_would) {
  for (int layout = 0; layout < LAYOUTS; layout++)
    for (int dtype = TL_FLOAT32; dtype <= TL_FLOAT64; dtype++) {
      tl_tensor *w = layout_tensor(layout, 37, 29, dtype, -1, 1, 7), *mask;
      int64_t n = (int64_t)tl_numel(w), count = n / 3;
      double *values = calloc((size_t)n + 1, 8), *sorted = calloc((size_t)n + 1, 8), *kept = calloc((size_t)n + 1, 8);
      ck_ok(tl_to_doubles(w, n, values));
      memcpy(sorted, values, (size_t)n * 8);
      if (n > 0) qsort(sorted, (size_t)n, 8, by_size);
      ck_ok(tl_prune_smallest(w, NULL, count, &mask));
      ck_ok(tl_to_doubles(mask, n, kept));
      int64_t pruned = 0;
      for (int64_t i = 0; i < n; i++) {
        pruned += kept[i] == 0;
        if (fabs(values[i]) < fabs(sorted[count])) ck_assert_msg(kept[i] == 0, "%s", layout_name(layout));
        if (fabs(values[i]) > fabs(sorted[count])) ck_assert_msg(kept[i] == 1, "%s", layout_name(layout));
      }
      ck_assert_int_eq(pruned, count);
      free(values), free(sorted), free(kept);
      tl_tensor_free(mask);
      tl_tensor_free(w);
    }
}
END_TEST

START_TEST(two_of_every_four_stay) {
  tl_tensor *w = TENSOR(TL_FLOAT32, SHAPE(2, 8), 1, -4, 3, 2, 5, 5, 5, 5, 0, 0, 0, 1, -1, 2, -3, 4), *mask, *more;
  ck_ok(tl_prune_groups(w, NULL, 1, 2, 4, &mask));
  ck_tensor(mask, 0, 0, 1, 1, 0, 0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1);
  tl_tensor_free(mask);
  mask = TENSOR(TL_FLOAT32, SHAPE(2, 8), 1, 0, 1, 1, 0, 0, 0, 1, 1, 1, 1, 0, 1, 1, 0, 0);
  ck_ok(tl_prune_groups(w, mask, -1, 2, 4, &more));
  ck_tensor(more, 0, 0, 0, 1, 1, 0, 0, 0, 1, 0, 1, 1, 0, 1, 1, 0, 0);
  tl_tensor_free(more);
  ck_fails(tl_prune_groups(w, NULL, 0, 2, 4, &more), TL_ERR_SHAPE, "is not a multiple of 4");
  tl_tensor_free(mask);
  tl_tensor_free(w);
}
END_TEST

START_TEST(groups_run_along_any_dim) {
  tl_tensor *w = TENSOR(TL_FLOAT64, SHAPE(4, 2), 1, 8, 2, 7, 3, 6, 4, 5), *mask;
  ck_ok(tl_prune_groups(w, NULL, 0, 2, 4, &mask));
  ck_tensor(mask, 0, 0, 1, 0, 1, 1, 0, 1, 0);
  tl_tensor_free(mask);
  tl_tensor_free(w);
}
END_TEST

START_TEST(arguments_are_checked) {
  int64_t live = live_tensors();
  tl_tensor *w = VECTOR(1, 2), *ids = TENSOR(TL_INT64, SHAPE(2), 1, 2), *short_mask = VECTOR(1), *out;
  ck_fails(tl_prune_smallest(ids, NULL, 1, &out), TL_ERR_DTYPE, "");
  ck_fails(tl_prune_smallest(w, short_mask, 1, &out), TL_ERR_SHAPE, "a mask of (1) for scores of (2)");
  ck_fails(tl_prune_smallest(w, NULL, -1, &out), TL_ERR_VALUE, "cannot be pruned");
  for (int k = 1;; k++) {
    tl_fail_allocation(k);
    tl_status st = tl_prune_smallest(w, NULL, 1, &out);
    tl_fail_allocation(0);
    if (st == TL_OK) break;
    ck_assert_int_eq(st, TL_ERR_MEMORY);
  }
  tl_tensor_free(out);
  tl_tensor_free(w), tl_tensor_free(ids), tl_tensor_free(short_mask);
  ck_assert_int_eq(live_tensors(), live);
}
END_TEST

int main(void) {
  Suite *s = suite_create("prune");
  TCase *c = tcase_create("masks");
  tcase_add_test(c, fractions_round_half_to_even);
  tcase_add_test(c, the_smallest_go_in_every_dtype);
  tcase_add_test(c, nan_stays_longest);
  tcase_add_test(c, selects_what_sorting_would);
  tcase_add_test(c, two_of_every_four_stay);
  tcase_add_test(c, groups_run_along_any_dim);
  tcase_add_test(c, arguments_are_checked);
  suite_add_tcase(s, c);
  SRunner *r = srunner_create(s);
  srunner_run_all(r, CK_NORMAL);
  int failed = srunner_ntests_failed(r);
  srunner_free(r);
  return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
