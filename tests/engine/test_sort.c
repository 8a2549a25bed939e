/* test_sort.c: sort and topk: order, stability, nan, every length the sort changes its method at. */
#include "check_tl.h"

static void free_all(int n, tl_tensor **list) {
  for (int i = 0; i < n; i++) tl_tensor_free(list[i]);
}
#define FREE(...) \
  free_all((int)(sizeof((tl_tensor *[]){__VA_ARGS__}) / sizeof(tl_tensor *)), (tl_tensor *[]){__VA_ARGS__})

START_TEST(nan_is_the_largest_and_zeros_are_equal) {
  for (int dtype = TL_FLOAT32; dtype <= TL_FLOAT64; dtype++) {
    tl_tensor *x = TENSOR(dtype, SHAPE(8), 0.0, NAN, -INFINITY, -0.0, 2, INFINITY, -1.5, NAN), *v, *i;
    ck_ok(tl_sort(x, 0, false, &v, &i));
    ck_tensor(v, 0, -INFINITY, -1.5, 0, 0, 2, INFINITY, NAN, NAN);
    ck_tensor(i, 0, 2, 6, 0, 3, 4, 5, 1, 7);
    FREE(v, i);
    ck_ok(tl_sort(x, -1, true, &v, &i));
    ck_tensor(v, 0, NAN, NAN, INFINITY, 2, 0, 0, -1.5, -INFINITY);
    ck_tensor(i, 0, 1, 7, 5, 4, 0, 3, 6, 2);
    FREE(v, i);
    ck_ok(tl_topk(x, 3, 0, false, true, &v, &i));
    ck_tensor(i, 0, 2, 6, 0);
    FREE(v, i);
    ck_ok(tl_topk(x, 3, 0, true, true, &v, &i));
    ck_tensor(i, 0, 1, 7, 5);
    FREE(x, v, i);
  }
}
END_TEST

START_TEST(integers_sort_over_their_whole_range) {
  tl_tensor *x = TENSOR(TL_INT32, SHAPE(4), 2147483647, -2147483648.0, 0, -1),
            *b = TENSOR(TL_BOOL, SHAPE(4), 1, 0, 1, 0), *v, *i;
  ck_ok(tl_sort(x, 0, false, &v, &i));
  ck_assert_int_eq(tl_dtype_of(v), TL_INT32);
  ck_tensor(i, 0, 1, 3, 2, 0);
  FREE(v, i);
  ck_ok(tl_sort(b, 0, true, &v, &i));
  ck_tensor(i, 0, 0, 2, 1, 3);
  FREE(x, b, v, i);
}
END_TEST

/* Against the definition: ordered, and equal values in the order of their places. */
static void ck_sorted(tl_tensor *x, int64_t n, int64_t k, bool descending, const char *what) {
  tl_tensor *v, *i;
  double *values = malloc((size_t)n * sizeof *values), *sorted = malloc((size_t)n * sizeof *sorted),
         *places = malloc((size_t)n * sizeof *places);
  if (k == n) ck_ok(tl_sort(x, 0, descending, &v, &i));
  else ck_ok(tl_topk(x, k, 0, descending, true, &v, &i));
  ck_ok(tl_to_doubles(x, n, values));
  ck_ok(tl_to_doubles(v, k, sorted));
  ck_ok(tl_to_doubles(i, k, places));
  for (int64_t j = 0; j < k; j++) {
    ck_assert_double_eq(sorted[j], values[(int64_t)places[j]]);
    if (j == 0) continue;
    bool right = sorted[j - 1] == sorted[j] ? places[j - 1] < places[j] : (sorted[j - 1] < sorted[j]) != descending;
    ck_assert_msg(right, "%s: %lld elements, place %lld", what, (long long)n, (long long)j);
  }
  /* nothing better was left out: with the places distinct, it is enough that every other value is no better than the last */
  int64_t better = 0;
  for (int64_t j = 0; j < n && k > 0; j++) better += descending ? values[j] > sorted[k - 1] : values[j] < sorted[k - 1];
  ck_assert(better < k || k == 0);
  FREE(v, i);
  free(values);
  free(sorted);
  free(places);
}

START_TEST(every_length_and_dtype) {
  const int64_t lengths[] = {1, 2, 47, 48, 49, 100, 511, 513, 3000};
  for (int dtype = 0; dtype < TL_DTYPES; dtype++)
    for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
      int64_t n = lengths[l];
      tl_generator *g;
      tl_tensor *wide, *x;
      ck_ok(tl_generator_new((double)n, &g));
      ck_ok(tl_empty(SHAPE(n), TL_FLOAT32, test_device(), &wide));
      ck_ok(tl_uniform_(wide, dtype == TL_UINT8 ? 0 : -90, 90, g)); /* many equals among integers */
      ck_ok(tl_to(wide, dtype, test_device(), &x));
      for (int descending = 0; descending < 2; descending++) {
        ck_sorted(x, n, n, descending, tl_dtype_name(dtype));
        ck_sorted(x, n, n / 2, descending, tl_dtype_name(dtype));
        ck_sorted(x, n, n < 5 ? 1 : 5, descending, tl_dtype_name(dtype));
      }
      FREE(wide, x);
      tl_generator_free(g);
    }
}
END_TEST

START_TEST(any_dim_of_any_layout) {
  for (int layout = 0; layout < LAYOUTS; layout++)
    for (int d = 0; d < 2; d++) {
      tl_tensor *x = layout_tensor(layout, 60, 70, TL_FLOAT32, -1, 1, 2), *c, *v, *i, *cv, *ci, *again;
      bool equal;
      ck_ok(tl_clone(x, &c));
      ck_ok(tl_sort(x, d, false, &v, &i));
      ck_ok(tl_sort(c, d, false, &cv, &ci));
      ck_ok(tl_equal(v, cv, &equal));
      ck_assert(equal);
      ck_ok(tl_equal(i, ci, &equal));
      ck_assert(equal);
      ck_ok(tl_gather(x, d, i, &again));
      ck_ok(tl_equal(v, again, &equal));
      ck_assert(equal);
      FREE(x, c, v, i, cv, ci, again);
    }
}
END_TEST

START_TEST(scalars_empty_rows_and_errors) {
  tl_tensor *s = make_tensor(TL_FLOAT32, 0, NULL, (const double[]){4}), *none = TENSOR(TL_FLOAT32, SHAPE(2, 0), 0),
            *x = VECTOR(1, 2), *v, *i;
  ck_ok(tl_sort(s, 0, false, &v, &i));
  ck_assert_int_eq(tl_ndim(v), 0);
  ck_tensor(i, 0, 0);
  FREE(v, i);
  ck_ok(tl_sort(none, 1, false, &v, &i));
  ck_assert_double_eq(tl_numel(v), 0);
  FREE(v, i);
  ck_ok(tl_topk(x, 0, 0, true, true, &v, &i));
  ck_assert_double_eq(tl_numel(v), 0);
  FREE(v, i);
  ck_fails(tl_topk(x, 3, 0, true, true, &v, &i), TL_ERR_VALUE, "k = 3 of the 2 elements");
  ck_fails(tl_topk(x, -1, 0, true, true, &v, &i), TL_ERR_VALUE, "k = -1");
  ck_fails(tl_sort(x, 1, true, &v, &i), TL_ERR_INDEX, "dim 1");
  FREE(s, none, x);
}
END_TEST

typedef struct order {
  int d;
  int64_t k;
  bool descending;
} order;

static tl_status f_order(tl_tensor *const *in, void *c, tl_tensor **out) {
  const order *o = c;
  tl_tensor *ids = NULL;
  tl_status st = o->k < 0 ? tl_sort(in[0], o->d, o->descending, out, &ids)
                          : tl_topk(in[0], o->k, o->d, o->descending, false, out, &ids);
  tl_tensor_free(ids);
  return st;
}

START_TEST(gradients) {
  for (int layout = 0; layout < LAYOUTS; layout++)
    for (int d = 0; d < 2; d++)
      for (int64_t k = -1; k < 3; k++) {
        if ((layout == EXPANDED || layout == EMPTY) && d == 0) continue; /* ties; no rows */
        tl_tensor *x = layout_tensor(layout, 3, 4, TL_FLOAT64, -1, 1, 6);
        order o = {d, k, d == 1};
        check_gradients("sort", f_order, 1, &x, &o);
        tl_tensor_free(x);
      }
}
END_TEST

START_TEST(failing_allocations) {
  tl_tensor *x = layout_tensor(TRANSPOSED, 100, 3, TL_FLOAT32, -1, 1, 6);
  ck_ok(tl_set_requires_grad(x, true));
  int64_t before = live_tensors();
  bool done = false;
  for (int64_t nth = 1; !done && nth < 100; nth++) {
    tl_tensor *y = NULL, *s = NULL;
    tl_walk *walk = NULL;
    order o = {0, -1, false};
    tl_fail_allocation(nth);
    tl_status st = f_order(&x, &o, &y);
    if (st == TL_OK) st = tl_sum(y, 0, NULL, false, &s);
    if (st == TL_OK) st = tl_backward(s, NULL, false, &walk);
    tl_fail_allocation(0);
    ck_assert(st == TL_OK || st == TL_ERR_MEMORY);
    done = st == TL_OK;
    FREE(y, s);
    ck_ok(tl_set_grad(x, NULL));
    ck_assert_msg(live_tensors() == before, "a leak when allocation %lld fails", (long long)nth);
  }
  ck_assert(done);
  tl_tensor_free(x);
}
END_TEST

TEST_MAIN("sort", nan_is_the_largest_and_zeros_are_equal, integers_sort_over_their_whole_range, every_length_and_dtype,
          any_dim_of_any_layout, scalars_empty_rows_and_errors, gradients, failing_allocations)
