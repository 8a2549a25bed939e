/* test_index.c: reading and adding elements by stored indices, masks, extremes with their places. */
#include "check_tl.h"

#define IDS(...)                                                                                           \
  make_tensor(TL_INT64, 1, (const int64_t[]){(int64_t)(sizeof((double[]){__VA_ARGS__}) / sizeof(double))}, \
              (const double[]){__VA_ARGS__})

static tl_tensor *numbered(int64_t rows, int64_t columns, int dtype) {
  tl_tensor *flat, *x;
  ck_ok(tl_arange(0, (double)(rows * columns), 1, dtype, test_device(), &flat));
  ck_ok(tl_view(flat, SHAPE(rows, columns), &x));
  tl_tensor_free(flat);
  return x;
}

static void free_all(int n, tl_tensor **list) {
  for (int i = 0; i < n; i++) tl_tensor_free(list[i]);
}
#define FREE(...) \
  free_all((int)(sizeof((tl_tensor *[]){__VA_ARGS__}) / sizeof(tl_tensor *)), (tl_tensor *[]){__VA_ARGS__})

START_TEST(index_select_takes_rows_and_columns) {
  for (int dtype = 0; dtype < TL_BOOL; dtype++)
    for (int idtype = TL_INT64; idtype <= TL_UINT8; idtype++) {
      tl_tensor *x = numbered(3, 4, dtype), *ids = TENSOR(idtype, SHAPE(3), 2, 0, 2), *y, *z;
      ck_ok(tl_index_select(x, 0, ids, &y));
      ck_tensor(y, 0, 8, 9, 10, 11, 0, 1, 2, 3, 8, 9, 10, 11);
      ck_ok(tl_index_select(x, -1, ids, &z));
      ck_assert_int_eq(tl_dtype_of(z), dtype);
      ck_tensor(z, 0, 2, 0, 2, 6, 4, 6, 10, 8, 10);
      FREE(x, ids, y, z);
    }
}
END_TEST

/* semantics: column select, then index_select */
START_TEST(index_select_of_a_strided_column) {
  tl_tensor *x = numbered(4, 3, TL_FLOAT32), *column, *ids = IDS(3, 1), *y;
  ck_ok(tl_select(x, 1, 1, &column));
  ck_ok(tl_index_select(column, 0, ids, &y));
  ck_tensor(y, 0, 10, 4);
  FREE(x, column, ids, y);
}
END_TEST

START_TEST(gather_and_scatter_add_are_each_others_reverse) {
  tl_tensor *x = numbered(2, 3, TL_FLOAT32), *ids = TENSOR(TL_INT64, SHAPE(2, 2), 2, 0, 1, 1), *y, *s, *zeros;
  ck_ok(tl_gather(x, 1, ids, &y));
  ck_tensor(y, 0, 2, 0, 4, 4);
  ck_ok(tl_full(SHAPE(2, 3), 0, TL_FLOAT32, test_device(), &zeros));
  ck_ok(tl_scatter_add(zeros, 1, ids, y, &s));
  ck_tensor(s, 0, 0, 0, 2, 0, 8, 0);
  ck_tensor(zeros, 0, 0, 0, 0, 0, 0, 0);
  ck_ok(tl_scatter_add_(zeros, 1, ids, y));
  ck_tensor(zeros, 0, 0, 0, 2, 0, 8, 0);
  FREE(x, ids, y, s, zeros);
}
END_TEST

START_TEST(ids_may_be_smaller_than_the_tensors) {
  tl_tensor *x = numbered(3, 3, TL_INT64), *ids = TENSOR(TL_INT64, SHAPE(1, 2), 2, 1), *src = numbered(2, 3, TL_INT64),
            *y, *s;
  ck_ok(tl_gather(x, 0, ids, &y));
  ck_tensor(y, 0, 6, 4);
  ck_ok(tl_scatter_add(x, 0, ids, src, &s));
  ck_tensor(s, 0, 0, 1, 2, 3, 5, 5, 6, 7, 8);
  FREE(x, ids, src, y, s);
}
END_TEST

START_TEST(low_precision_sums_round_once) {
  /* 256 + 1 + 1 + .. in bfloat16 would stay 256 */
  for (int dtype = TL_FLOAT16; dtype <= TL_BFLOAT16; dtype++) {
    tl_tensor *x, *ids, *ones, *big, *y;
    ck_ok(tl_full(SHAPE(1), 256, dtype, test_device(), &x));
    ck_ok(tl_full(SHAPE(64), 0, TL_INT64, test_device(), &ids));
    ck_ok(tl_full(SHAPE(64), 1, dtype, test_device(), &ones));
    ck_ok(tl_scatter_add(x, 0, ids, ones, &y));
    ck_tensor(y, 0, 320);
    ck_ok(tl_index_add_(x, 0, ids, ones, 2));
    ck_tensor(x, 0, 384);
    ck_ok(tl_clone(x, &big));
    ck_ok(tl_scatter_add_(big, 0, ids, ones));
    ck_tensor(big, 0, 448);
    FREE(x, ids, ones, big, y);
  }
}
END_TEST

START_TEST(index_add_counts_its_change_and_scales) {
  tl_tensor *x = numbered(3, 2, TL_INT32), *ids = IDS(2, 0, 2), *src = numbered(3, 2, TL_INT32), *view, *wide;
  double version = tl_version_of(x);
  ck_ok(tl_index_add_(x, 0, ids, src, -2));
  ck_tensor(x, 0, -4, -5, 2, 3, 4 - 8, 5 - 12);
  ck_assert_double_eq(tl_version_of(x), version + 1);
  ck_fails(tl_index_add_(x, 0, ids, src, 0.5), TL_ERR_VALUE, "no integer");
  /* through a strided view */
  wide = numbered(2, 3, TL_FLOAT32);
  ck_ok(tl_transpose(wide, 0, 1, &view));
  tl_tensor *rows = numbered(3, 2, TL_FLOAT32);
  ck_ok(tl_index_add_(view, 0, ids, rows, 1));
  ck_tensor(wide, 0, 2, 1, 2 + 0 + 4, 3 + 3, 4, 5 + 1 + 5);
  FREE(x, ids, src, view, wide, rows);
}
END_TEST

START_TEST(bad_ids_are_named_and_nothing_is_written) {
  tl_tensor *x = numbered(3, 4, TL_FLOAT32), *before, *bad = IDS(0, 3), *negative = IDS(-1, 0),
            *src = numbered(2, 4, TL_FLOAT32), *y;
  tl_tensor *matrix = TENSOR(TL_INT64, SHAPE(2, 2), 0, 1, 9, 0), *floats = VECTOR(0, 1);
  bool equal, on_cpu = test_device() == TL_CPU;
  ck_ok(tl_clone(x, &before));
  ck_names_bad(tl_index_select(x, 0, bad, &y), &y, TL_ERR_INDEX, "id 3",
               " at position (1) of the ids is outside 0..2, dim 0 of (3x4)");
  ck_names_bad(tl_index_select(x, 0, negative, &y), &y, TL_ERR_INDEX, "id -1", " at position (0)");
  ck_names_bad(tl_index_add_(x, 0, bad, src, 1), NULL, TL_ERR_INDEX, "id 3", "");
  ck_names_bad(tl_gather(x, 1, matrix, &y), &y, TL_ERR_INDEX, "id 9", " at position (1, 0)");
  ck_names_bad(tl_scatter_add_(x, 1, matrix, src), NULL, TL_ERR_INDEX, "id 9", " at position (1, 0)");
  if (on_cpu) ck_assert_str_eq(tl_last_error()->op, "scatter_add_");
  tl_error_index_base(1); /* positions follow the user, stored ids do not */
  ck_names_bad(tl_gather(x, 1, matrix, &y), &y, TL_ERR_INDEX, "id 9",
               " at position (2, 1) of the ids is outside 0..3, dim 2 of (3x4)");
  tl_error_index_base(0);
  ck_fails(tl_index_select(x, 0, floats, &y), TL_ERR_DTYPE, "integers, got float32");
  ck_fails(tl_index_select(x, 0, matrix, &y), TL_ERR_SHAPE, "1-d");
  ck_fails(tl_gather(x, 1, bad, &y), TL_ERR_SHAPE, "number of dims");
  ck_fails(tl_index_select(x, 2, bad, &y), TL_ERR_INDEX, "dim 2");
  ck_fails(tl_scatter_add(x, 1, matrix, bad, &y), TL_ERR_DTYPE, "int64 values do not add to a float32");
  ck_ok(tl_equal(x, before, &equal));
  if (on_cpu) ck_assert(equal && tl_version_of(x) == 0); /* elsewhere the ids that are right have been served */
  FREE(x, before, bad, negative, src, matrix, floats);
}
END_TEST

START_TEST(in_place_targets_are_checked) {
  tl_tensor *row = VECTOR(1, 2), *expanded, *ids = IDS(0, 1), *src = numbered(2, 2, TL_FLOAT32), *leaf = VECTOR(1, 2),
            *values = VECTOR(1, 1);
  ck_ok(tl_expand(row, SHAPE(3, 2), &expanded));
  ck_fails(tl_index_add_(expanded, 0, ids, src, 1), TL_ERR_VALUE, "expanded");
  ck_ok(tl_set_requires_grad(leaf, true));
  ck_fails(tl_scatter_add_(leaf, 0, ids, values), TL_ERR_STATE, "leaf");
  ck_tensor(row, 0, 1, 2);
  ck_tensor(leaf, 0, 1, 2);
  FREE(row, expanded, ids, src, leaf, values);
}
END_TEST

START_TEST(masks) {
  tl_tensor *x = numbered(2, 3, TL_FLOAT32), *mask = TENSOR(TL_BOOL, SHAPE(2, 3), 1, 0, 0, 0, 1, 1),
            *column = TENSOR(TL_BOOL, SHAPE(2, 1), 0, 1);
  tl_tensor *t, *y, *none = TENSOR(TL_BOOL, SHAPE(3), 0, 0, 0), *odd = TENSOR(TL_FLOAT32, SHAPE(2, 2), 0, NAN, -0.0, 3),
                    *scalar = VECTOR(7), *zero_d;
  ck_ok(tl_masked_select(x, mask, &y));
  ck_tensor(y, 0, 0, 4, 5);
  tl_tensor_free(y);
  ck_ok(tl_masked_select(x, column, &y));
  ck_tensor(y, 0, 3, 4, 5);
  tl_tensor_free(y);
  ck_ok(tl_masked_select(x, none, &y));
  ck_assert_int_eq(tl_ndim(y), 1);
  ck_assert_double_eq(tl_numel(y), 0);
  tl_tensor_free(y);
  ck_ok(tl_transpose(x, 0, 1, &t));
  ck_fails(tl_masked_select(t, mask, &y), TL_ERR_SHAPE, "broadcast");
  ck_fails(tl_masked_select(x, x, &y), TL_ERR_DTYPE, "bool, got float32");
  ck_ok(tl_nonzero(odd, &y)); /* nan is not zero, -0 is */
  ck_tensor(y, 0, 0, 1, 1, 1);
  ck_assert_double_eq(tl_size(y, 0), 2);
  tl_tensor_free(y);
  ck_ok(tl_reshape(scalar, 0, NULL, &zero_d));
  ck_ok(tl_nonzero(zero_d, &y));
  ck_assert_int_eq(tl_ndim(y), 2);
  ck_assert_double_eq(tl_size(y, 0), 1);
  ck_assert_double_eq(tl_size(y, 1), 0);
  FREE(y, x, mask, column, t, none, odd, scalar, zero_d);
}
END_TEST

START_TEST(one_hot) {
  tl_tensor *ids = TENSOR(TL_INT64, SHAPE(3), 0, 2, 1), *empty = TENSOR(TL_INT64, SHAPE(0), 0), *y, *floats = VECTOR(1);
  ck_ok(tl_one_hot(ids, -1, &y));
  ck_assert_int_eq(tl_dtype_of(y), TL_INT64);
  ck_tensor(y, 0, 1, 0, 0, 0, 0, 1, 0, 1, 0);
  tl_tensor_free(y);
  ck_ok(tl_one_hot(ids, 4, &y));
  ck_assert_double_eq(tl_size(y, 1), 4);
  tl_tensor_free(y);
  ck_names_bad(tl_one_hot(ids, 2, &y), &y, TL_ERR_INDEX, "id 2", "");
  ck_fails(tl_one_hot(empty, -1, &y), TL_ERR_VALUE, "not determined");
  ck_fails(tl_one_hot(floats, 2, &y), TL_ERR_DTYPE, "integers");
  ck_ok(tl_one_hot(empty, 5, &y));
  ck_assert_double_eq(tl_size(y, 1), 5);
  FREE(ids, empty, y, floats);
}
END_TEST

START_TEST(extremes_come_with_their_first_place) {
  for (int dtype = 0; dtype < TL_BOOL; dtype++) {
    tl_tensor *x = TENSOR(dtype, SHAPE(2, 3), 3, 7, 7, 5, 1, 1), *v, *i;
    ck_ok(tl_max_dim(x, 1, false, &v, &i));
    ck_tensor(v, 0, 7, 5);
    ck_tensor(i, 0, 1, 0);
    ck_assert_int_eq(tl_dtype_of(i), TL_INT64);
    FREE(v, i);
    ck_ok(tl_min_dim(x, 0, true, &v, &i));
    ck_assert_int_eq(tl_ndim(v), 2);
    ck_tensor(v, 0, 3, 1, 1);
    ck_tensor(i, 0, 0, 1, 1);
    FREE(v, i);
    ck_ok(tl_argmin(x, -1, false, &i));
    ck_tensor(i, 0, 0, 1);
    tl_tensor_free(i);
    ck_ok(tl_argmax_all(x, &i));
    ck_assert_int_eq(tl_ndim(i), 0);
    ck_tensor(i, 0, 1);
    FREE(i, x);
  }
}
END_TEST

START_TEST(the_first_nan_is_the_extreme) {
  double values[300];
  for (int i = 0; i < 300; i++) values[i] = i % 7;
  for (int at = 1; at < 300; at += 23) {
    double former = values[at];
    values[at] = values[299] = NAN;
    tl_tensor *x = make_tensor(TL_FLOAT32, SHAPE(300), values), *column, *i, *v;
    ck_ok(tl_argmax_all(x, &i));
    ck_tensor(i, 0, at);
    tl_tensor_free(i);
    ck_ok(tl_argmin(x, 0, false, &i));
    ck_tensor(i, 0, at);
    tl_tensor_free(i);
    ck_ok(tl_view(x, SHAPE(100, 3), &column));
    ck_ok(tl_max_dim(column, 0, false, &v, &i));
    double places[3];
    ck_ok(tl_to_doubles(i, 3, places));
    ck_assert_double_eq(places[at % 3], at / 3);
    FREE(x, column, i, v);
    values[at] = former;
  }
}
END_TEST

START_TEST(there_is_no_extreme_of_nothing) {
  tl_tensor *x = TENSOR(TL_FLOAT32, SHAPE(0, 3), 0), *v, *i;
  ck_fails(tl_max_dim(x, 0, false, &v, &i), TL_ERR_SHAPE, "dim 0 of (0x3) is empty");
  ck_fails(tl_argmax_all(x, &i), TL_ERR_SHAPE, "empty");
  ck_ok(tl_max_dim(x, 1, false, &v, &i)); /* no rows: no results */
  ck_assert_double_eq(tl_numel(v), 0);
  FREE(x, v, i);
}
END_TEST

START_TEST(cumsum) {
  tl_tensor *x = TENSOR(TL_INT32, SHAPE(2, 3), 1, 2, 3, 4, 5, 6), *y, *ones;
  ck_ok(tl_cumsum(x, 0, &y));
  ck_assert_int_eq(tl_dtype_of(y), TL_INT64);
  ck_tensor(y, 0, 1, 2, 3, 5, 7, 9);
  tl_tensor_free(y);
  ck_ok(tl_cumsum(x, 1, &y));
  ck_tensor(y, 0, 1, 3, 6, 4, 9, 15);
  tl_tensor_free(y);
  ck_ok(tl_full(SHAPE(2000), 0.1, TL_FLOAT32, test_device(), &ones));
  ck_ok(tl_cumsum(ones, 0, &y));
  double last;
  ck_ok(tl_get(y, 1, (const int64_t[]){-1}, &last));
  ck_assert_double_eq_tol(last, 2000 * (double)0.1f, 1e-5);
  FREE(x, y, ones);
}
END_TEST

/* ---- layouts and gradients ---- */

typedef struct context {
  tl_tensor *ids, *mask;
  int d;
} context;

static tl_status f_index_select(tl_tensor *const *in, void *c, tl_tensor **out) {
  context *k = c;
  return tl_index_select(in[0], k->d, k->ids, out);
}
static tl_status f_gather(tl_tensor *const *in, void *c, tl_tensor **out) {
  context *k = c;
  return tl_gather(in[0], k->d, k->mask, out);
}
static tl_status f_scatter_add(tl_tensor *const *in, void *c, tl_tensor **out) {
  context *k = c;
  return tl_scatter_add(in[0], k->d, k->mask, in[1], out);
}
static tl_status f_scatter_add_(tl_tensor *const *in, void *c, tl_tensor **out) {
  context *k = c;
  tl_tensor *y;
  ck_ok(tl_mul_scalar(in[0], 2, &y));
  tl_status st = tl_scatter_add_(y, k->d, k->mask, in[1]);
  *out = y;
  return st;
}
static tl_status f_index_add(tl_tensor *const *in, void *c, tl_tensor **out) {
  context *k = c;
  tl_tensor *y, *rows;
  ck_ok(tl_mul_scalar(in[0], 2, &y));
  ck_ok(tl_index_select(in[1], k->d, k->ids, &rows));
  tl_status st = tl_index_add_(y, k->d, k->ids, rows, -1.5);
  tl_tensor_free(rows);
  *out = y;
  return st;
}
static tl_status f_masked(tl_tensor *const *in, void *c, tl_tensor **out) {
  context *k = c;
  tl_tensor *mask;
  ck_ok(tl_ne_scalar(k->mask, 0, &mask));
  tl_status st = tl_masked_select(in[0], mask, out);
  tl_tensor_free(mask);
  return st;
}
static tl_status f_max(tl_tensor *const *in, void *c, tl_tensor **out) {
  tl_tensor *ids = NULL;
  tl_status st = tl_max_dim(in[0], ((context *)c)->d, ((context *)c)->d == 0, out, &ids);
  tl_tensor_free(ids);
  return st;
}
static tl_status f_min(tl_tensor *const *in, void *c, tl_tensor **out) {
  tl_tensor *ids = NULL;
  tl_status st = tl_min_dim(in[0], ((context *)c)->d, ((context *)c)->d == 0, out, &ids);
  tl_tensor_free(ids);
  return st;
}
static tl_status f_cumsum(tl_tensor *const *in, void *c, tl_tensor **out) {
  return tl_cumsum(in[0], ((context *)c)->d, out);
}

static const struct {
  const char *name;
  graded f;
  int inputs;
} graphs[] = {{"index_select", f_index_select, 1},
              {"gather", f_gather, 1},
              {"scatter_add", f_scatter_add, 2},
              {"scatter_add_", f_scatter_add_, 2},
              {"index_add_", f_index_add, 2},
              {"masked_select", f_masked, 1},
              {"max", f_max, 1},
              {"min", f_min, 1},
              {"cumsum", f_cumsum, 1}};
#define GRAPHS ((int)(sizeof graphs / sizeof *graphs))

static bool skips(int k, int layout, int d) {
  bool extreme = graphs[k].f == f_max || graphs[k].f == f_min;
  /* there is nothing to index in an empty dim; equal rows have no derivative of their extreme */
  return (layout == EMPTY && (d == 0 || extreme)) || (layout == EXPANDED && extreme && d == 0);
}

/* 3 x 4: ids address both dims; an EMPTY tensor gets empty ids of the same number of columns */
static context ids_for(int layout, int d) {
  context c = {.d = d, .ids = IDS(2, 0, 2)};
  c.mask = layout == EMPTY ? TENSOR(TL_INT64, SHAPE(0, 4), 0)
                           : TENSOR(TL_INT64, SHAPE(3, 4), 0, 2, 1, 1, 2, 0, 0, 1, 0, 0, 2, 2);
  return c;
}

START_TEST(gradients) {
  for (int k = 0; k < GRAPHS; k++)
    for (int layout = 0; layout < LAYOUTS; layout++)
      for (int d = 0; d < 2; d++) {
        if (skips(k, layout, d)) continue;
        tl_tensor *in[2] = {layout_tensor(layout, 3, 4, TL_FLOAT64, -1, 1, 3),
                            layout_tensor(layout, 3, 4, TL_FLOAT64, -1, 1, 4)};
        context c = ids_for(layout, d);
        check_gradients(graphs[k].name, graphs[k].f, graphs[k].inputs, in, &c);
        FREE(in[0], in[1], c.ids, c.mask);
      }
}
END_TEST

START_TEST(every_layout_equals_its_contiguous_result) {
  for (int k = 0; k < GRAPHS; k++)
    for (int layout = 0; layout < LAYOUTS; layout++)
      for (int dtype = 0; dtype < TL_BOOL; dtype++)
        for (int d = 0; d < 2; d++) {
          if (skips(k, layout, d)) continue;
          if (graphs[k].f == f_index_add && dtype > TL_FLOAT64) continue; /* alpha 1.5 */
          tl_tensor *in[2] = {layout_tensor(layout, 3, 4, dtype, 0, 9, 3), layout_tensor(layout, 3, 4, dtype, 0, 9, 4)},
                    *flat[2], *a, *b;
          context c = ids_for(layout, d);
          bool equal;
          for (int i = 0; i < 2; i++) ck_ok(tl_clone(in[i], &flat[i]));
          ck_ok(graphs[k].f(in, &c, &a));
          ck_ok(graphs[k].f(flat, &c, &b));
          ck_ok(tl_equal(a, b, &equal));
          ck_assert_msg(equal, "%s of %s, %s, dim %d", graphs[k].name, tl_dtype_name(dtype), layout_name(layout), d);
          FREE(in[0], in[1], flat[0], flat[1], c.ids, c.mask, a, b);
        }
}
END_TEST

START_TEST(changed_ids_are_noticed_by_backward) {
  tl_tensor *x = VECTOR(1, 2, 3), *ids = IDS(0, 1), *y, *s;
  tl_walk *walk;
  ck_ok(tl_set_requires_grad(x, true));
  ck_ok(tl_index_select(x, 0, ids, &y));
  ck_ok(tl_fill_(ids, 7)); /* out of range by now */
  ck_ok(tl_sum(y, 0, NULL, false, &s));
  ck_fails(tl_backward(s, NULL, false, &walk), TL_ERR_STATE, "modified in place");
  FREE(x, ids, y, s);
}
END_TEST

/* Large enough for threads, whose number must not matter. */
START_TEST(threads_change_nothing) {
  int before = tl_get_num_threads();
  tl_tensor *x = layout_tensor(CONTIGUOUS, 500, 300, TL_FLOAT32, -1, 1, 8), *ids, *sum[3], *top[3], *run[3];
  bool equal;
  ck_ok(tl_empty(SHAPE(500), TL_INT64, test_device(), &ids));
  ck_ok(tl_randint_(ids, 0, 20, NULL));
  for (int threads = 1; threads <= 3; threads++) {
    ck_ok(tl_set_num_threads(threads));
    ck_ok(tl_full(SHAPE(20, 300), 0, TL_FLOAT32, test_device(), &sum[threads - 1]));
    ck_ok(tl_index_add_(sum[threads - 1], 0, ids, x, 1));
    ck_ok(tl_argmax(x, 1, false, &top[threads - 1]));
    ck_ok(tl_cumsum(x, 0, &run[threads - 1]));
  }
  for (int i = 1; i < 3; i++) {
    ck_ok(tl_equal(sum[0], sum[i], &equal));
    ck_assert(equal);
    ck_ok(tl_equal(top[0], top[i], &equal));
    ck_assert(equal);
    ck_ok(tl_equal(run[0], run[i], &equal));
    ck_assert(equal);
  }
  ck_ok(tl_set_num_threads(before));
  free_all(3, sum);
  free_all(3, top);
  free_all(3, run);
  FREE(x, ids);
}
END_TEST

START_TEST(failing_allocations) {
  for (int k = 0; k < GRAPHS; k++) {
    if (graphs[k].f == f_index_add || graphs[k].f == f_scatter_add_ || graphs[k].f == f_masked)
      continue; /* helpers insist */
    tl_tensor *in[2] = {layout_tensor(TRANSPOSED, 3, 4, TL_BFLOAT16, -1, 1, 3),
                        layout_tensor(TRANSPOSED, 3, 4, TL_BFLOAT16, -1, 1, 4)};
    context c = ids_for(CONTIGUOUS, 1);
    for (int i = 0; i < 2; i++) ck_ok(tl_set_requires_grad(in[i], true));
    int64_t before = live_tensors();
    bool done = false;
    for (int64_t nth = 1; !done && nth < 200; nth++) {
      tl_tensor *y = NULL, *s = NULL;
      tl_walk *walk = NULL;
      tl_fail_allocation(nth);
      tl_status st = graphs[k].f(in, &c, &y);
      if (st == TL_OK) st = tl_sum(y, 0, NULL, false, &s);
      if (st == TL_OK) st = tl_backward(s, NULL, false, &walk);
      tl_fail_allocation(0);
      ck_assert(st == TL_OK || st == TL_ERR_MEMORY);
      done = st == TL_OK;
      FREE(y, s);
      for (int i = 0; i < 2; i++) ck_ok(tl_set_grad(in[i], NULL));
      ck_assert_msg(live_tensors() == before, "%s leaks when allocation %lld fails", graphs[k].name, (long long)nth);
    }
    ck_assert(done);
    FREE(in[0], in[1], c.ids, c.mask);
  }
}
END_TEST

TEST_MAIN("index", index_select_takes_rows_and_columns, index_select_of_a_strided_column,
          gather_and_scatter_add_are_each_others_reverse, ids_may_be_smaller_than_the_tensors,
          low_precision_sums_round_once, index_add_counts_its_change_and_scales,
          bad_ids_are_named_and_nothing_is_written, in_place_targets_are_checked, masks, one_hot,
          extremes_come_with_their_first_place, the_first_nan_is_the_extreme, there_is_no_extreme_of_nothing, cumsum,
          gradients, every_layout_equals_its_contiguous_result, changed_ids_are_noticed_by_backward,
          threads_change_nothing, failing_allocations)
