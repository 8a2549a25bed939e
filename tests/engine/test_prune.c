/* Masks: counts, exact selection among ties and masked elements, groups. Weights in compressed rows. */
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

/* ---- sparse weights: host memory, whatever the device ---- */

static tl_tensor *host(int64_t rows, int64_t columns, double zeros, double seed) {
  const int64_t shape[2] = {rows, columns};
  tl_tensor *w, *mask;
  tl_generator *g;
  ck_ok(tl_generator_new(seed, &g));
  ck_ok(tl_empty(2, shape, TL_FLOAT32, TL_CPU, &w));
  ck_ok(tl_uniform_(w, -1, 1, g));
  ck_ok(tl_prune_smallest(w, NULL, (int64_t)(zeros * (double)(rows * columns)), &mask));
  ck_ok(tl_mul_(w, mask));
  tl_tensor_free(mask);
  tl_generator_free(g);
  return w;
}

static void ck_close(tl_tensor *a, tl_tensor *b) {
  ck_assert_int_eq((int64_t)tl_numel(a), (int64_t)tl_numel(b));
  const float *x = tl_data(a), *y = tl_data(b);
  for (int64_t i = 0; i < (int64_t)tl_numel(a); i++)
    ck_assert_msg(fabsf(x[i] - y[i]) <= 1e-5f, "element %lld: %g and %g", (long long)i, (double)x[i], (double)y[i]);
}

START_TEST(sparse_products_are_the_dense_ones) {
  const int64_t sizes[][2] = {{1, 1}, {3, 70}, {130, 67}, {64, 16}, {5, 0}, {0, 5}},
                batches[] = {0, 1, 4, 5, 16, 33, 64, 600};
  const double zeros[] = {0, .5, .9, 1};
  for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
    for (size_t z = 0; z < sizeof zeros / sizeof *zeros; z++) {
      tl_tensor *w = host(sizes[s][0], sizes[s][1], zeros[z], 3), *values, *columns, *first;
      tl_tensor *row = host(1, sizes[s][0], 0, 5), *bias;
      ck_ok(tl_view(row, 1, &sizes[s][0], &bias));
      ck_ok(tl_sparse_rows(w, &values, &columns, &first));
      for (size_t b = 0; b < sizeof batches / sizeof *batches; b++) {
        tl_tensor *x = host(batches[b], sizes[s][1], 0, 4), *sparse, *dense;
        for (int with = 0; with < 2; with++) {
          ck_ok(tl_sparse_linear(x, values, columns, first, with ? bias : NULL, sizes[s][1], &sparse));
          ck_ok(tl_linear(x, w, with ? bias : NULL, &dense));
          ck_close(sparse, dense);
          tl_tensor_free(sparse), tl_tensor_free(dense);
        }
        tl_tensor_free(x);
      }
      tl_tensor_free(w), tl_tensor_free(row), tl_tensor_free(bias);
      tl_tensor_free(values), tl_tensor_free(columns), tl_tensor_free(first);
    }
}
END_TEST

START_TEST(sparse_products_do_not_depend_on_threads) {
  tl_tensor *w = host(300, 400, .8, 3), *x = host(70, 400, 0, 4), *values, *columns, *first, *y[2];
  ck_ok(tl_sparse_rows(w, &values, &columns, &first));
  const int threads = tl_get_num_threads();
  for (int i = 0; i < 2; i++) {
    ck_ok(tl_set_num_threads(i + 1));
    ck_ok(tl_sparse_linear(x, values, columns, first, NULL, 400, &y[i]));
  }
  ck_ok(tl_set_num_threads(threads));
  ck_assert_mem_eq(tl_data(y[0]), tl_data(y[1]), 300 * 70 * sizeof(float));
  tl_tensor_free(y[0]), tl_tensor_free(y[1]), tl_tensor_free(w), tl_tensor_free(x);
  tl_tensor_free(values), tl_tensor_free(columns), tl_tensor_free(first);
}
END_TEST

/* Columns and row ends come from files, too: whatever they hold, nothing else is read. */
START_TEST(sparse_weights_are_not_believed) {
  tl_tensor *w = host(70, 20, .5, 3), *values, *columns, *first, *out;
  ck_ok(tl_sparse_rows(w, &values, &columns, &first));
  const int32_t bad[] = {20, -1, INT32_MAX, INT32_MIN};
  const int64_t batches[] = {1, 20, 64};
  for (size_t b = 0; b < 3; b++) {
    tl_tensor *x = host(batches[b], 20, 0, 4);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
      int32_t *at = (int32_t *)tl_data(columns) + 300, kept = *at;
      *at = bad[i];
      ck_fails(tl_sparse_linear(x, values, columns, first, NULL, 20, &out), TL_ERR_VALUE,
               "of a weight with 20 columns");
      *at = kept;
      at = (int32_t *)tl_data(first) + 30, kept = *at; /* some rows are wrong then, no more */
      *at = bad[i];
      ck_ok(tl_sparse_linear(x, values, columns, first, NULL, 20, &out));
      tl_tensor_free(out);
      *at = kept;
    }
    tl_tensor_free(x);
  }
  tl_tensor_free(w), tl_tensor_free(values), tl_tensor_free(columns), tl_tensor_free(first);
}
END_TEST

START_TEST(sparse_arguments_are_checked) {
  int64_t live = live_tensors();
  tl_tensor *w = host(7, 5, .5, 3), *x = host(20, 5, 0, 4), *narrow = host(20, 4, 0, 4), *wide, *part[3], *y, *out;
  ck_ok(tl_to(w, TL_FLOAT64, TL_CPU, &wide));
  ck_fails(tl_sparse_rows(wide, &part[0], &part[1], &part[2]), TL_ERR_DTYPE, "a float32 weight, got float64");
  for (int k = 1;; k++) {
    tl_fail_allocation(k);
    tl_status st = tl_sparse_rows(w, &part[0], &part[1], &part[2]);
    tl_fail_allocation(0);
    if (st == TL_OK) break;
    ck_assert_int_eq(st, TL_ERR_MEMORY);
  }
  ck_fails(tl_sparse_rows(part[0], &y, &y, &y), TL_ERR_SHAPE, "the weight must be (out x in)");
  for (int k = 1;; k++) {
    tl_fail_allocation(k);
    tl_status st = tl_sparse_linear(x, part[0], part[1], part[2], NULL, 5, &y);
    tl_fail_allocation(0);
    if (st == TL_OK) break;
    ck_assert_int_eq(st, TL_ERR_MEMORY);
  }
  tl_tensor_free(y);
  ck_fails(tl_sparse_linear(narrow, part[0], part[1], part[2], NULL, 5, &out), TL_ERR_SHAPE,
           "5 input features expected");
  ck_fails(tl_sparse_linear(x, part[0], part[2], part[2], NULL, 5, &out), TL_ERR_SHAPE, "values");
  ck_fails(tl_sparse_linear(x, part[0], part[0], part[2], NULL, 5, &out), TL_ERR_DTYPE, "columns must be int32");
  ck_fails(tl_sparse_linear(x, part[0], part[1], part[2], part[0], 5, &out), TL_ERR_SHAPE, "a bias of");
  ck_fails(tl_sparse_linear(wide, part[0], part[1], part[2], NULL, 5, &out), TL_ERR_DTYPE, "a float32 input");
  ck_ok(tl_set_requires_grad(x, true));
  ck_fails(tl_sparse_linear(x, part[0], part[1], part[2], NULL, 5, &out), TL_ERR_STATE, "is for inference");
  tl_tensor_free(w), tl_tensor_free(x), tl_tensor_free(narrow), tl_tensor_free(wide);
  for (int i = 0; i < 3; i++) tl_tensor_free(part[i]);
  ck_assert_int_eq(live_tensors(), live);
  if (test_device() == TL_CPU) return;
  tl_tensor *far = TENSOR(TL_FLOAT32, SHAPE(2, 2), 1, 0, 0, 1);
  ck_fails(tl_sparse_rows(far, &part[0], &part[1], &part[2]), TL_ERR_DEVICE, "must be on the CPU");
  tl_tensor_free(far);
}
END_TEST

int main(void) {
  Suite *s = suite_create("prune");
  TCase *c = tcase_create("masks");
  tcase_set_timeout(c, 60);
  tcase_add_test(c, fractions_round_half_to_even);
  tcase_add_test(c, the_smallest_go_in_every_dtype);
  tcase_add_test(c, nan_stays_longest);
  tcase_add_test(c, selects_what_sorting_would);
  tcase_add_test(c, two_of_every_four_stay);
  tcase_add_test(c, groups_run_along_any_dim);
  tcase_add_test(c, arguments_are_checked);
  tcase_add_test(c, sparse_products_are_the_dense_ones);
  tcase_add_test(c, sparse_products_do_not_depend_on_threads);
  tcase_add_test(c, sparse_weights_are_not_believed);
  tcase_add_test(c, sparse_arguments_are_checked);
  suite_add_tcase(s, c);
  SRunner *r = srunner_create(s);
  srunner_run_all(r, CK_NORMAL);
  int failed = srunner_ntests_failed(r);
  srunner_free(r);
  return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
