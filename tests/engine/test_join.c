/* test_join.c: cat, stack, tile, repeat_interleave, flip, triu, tril. */
#include "check_tl.h"

static void free_all(int n, tl_tensor **list) {
  for (int i = 0; i < n; i++) tl_tensor_free(list[i]);
}
#define FREE(...) \
  free_all((int)(sizeof((tl_tensor *[]){__VA_ARGS__}) / sizeof(tl_tensor *)), (tl_tensor *[]){__VA_ARGS__})
#define LIST(...) \
  (int)(sizeof((tl_tensor *[]){__VA_ARGS__}) / sizeof(tl_tensor *)), (tl_tensor *[]) { __VA_ARGS__ }

START_TEST(cat_joins_along_a_dim) {
  tl_tensor *a = TENSOR(TL_FLOAT32, SHAPE(2, 2), 1, 2, 3, 4), *b = TENSOR(TL_FLOAT32, SHAPE(1, 2), 5, 6), *y, *t;
  ck_ok(tl_cat(LIST(a, b, a), 0, &y));
  ck_assert_double_eq(tl_size(y, 0), 5);
  ck_tensor(y, 0, 1, 2, 3, 4, 5, 6, 1, 2, 3, 4);
  tl_tensor_free(y);
  ck_ok(tl_transpose(a, 0, 1, &t));
  ck_ok(tl_cat(LIST(a, t), -1, &y));
  ck_tensor(y, 0, 1, 2, 1, 3, 3, 4, 2, 4);
  FREE(a, b, y, t);
}
END_TEST

START_TEST(cat_promotes_and_skips_empty_vectors) {
  tl_tensor *a = TENSOR(TL_INT64, SHAPE(2, 1), 1, 2), *b = TENSOR(TL_FLOAT16, SHAPE(2, 1), .5, 1.5),
            *none = TENSOR(TL_FLOAT32, SHAPE(0), 0);
  tl_tensor *hollow = TENSOR(TL_INT64, SHAPE(0, 1), 0), *y;
  ck_ok(tl_cat(LIST(a, b), 0, &y));
  ck_assert_int_eq(tl_dtype_of(y), TL_FLOAT16);
  ck_tensor(y, 0, 1, 2, .5, 1.5);
  tl_tensor_free(y);
  ck_ok(tl_cat(LIST(none, a), 1, &y));
  ck_tensor(y, 0, 1, 2);
  tl_tensor_free(y);
  ck_ok(tl_cat(LIST(hollow, a), 0, &y));
  ck_tensor(y, 0, 1, 2);
  tl_tensor_free(y);
  ck_ok(tl_cat(LIST(none, none), 0, &y));
  ck_assert_double_eq(tl_numel(y), 0);
  FREE(a, b, none, hollow, y);
}
END_TEST

START_TEST(what_does_not_join_is_named) {
  tl_tensor *a = TENSOR(TL_FLOAT32, SHAPE(2, 2), 1, 2, 3, 4), *b = TENSOR(TL_FLOAT32, SHAPE(1, 3), 5, 6, 7),
            *c = make_tensor(TL_FLOAT32, 0, NULL, (const double[]){1}), *y;
  ck_fails(tl_cat(LIST(a, b), 0, &y), TL_ERR_SHAPE, "tensor 1 of (1x3) does not join (2x2) along dim 0");
  ck_fails(tl_cat(LIST(c), 0, &y), TL_ERR_SHAPE, "0-d: use stack");
  ck_fails(tl_cat(0, NULL, 0, &y), TL_ERR_VALUE, "no tensors");
  ck_fails(tl_cat(LIST(a), 2, &y), TL_ERR_INDEX, "dim 2");
  ck_fails(tl_stack(LIST(a, b), 0, &y), TL_ERR_SHAPE, "tensor 1 of (1x3) does not stack on (2x2)");
  tl_error_index_base(1);
  ck_fails(tl_cat(LIST(a, b), 0, &y), TL_ERR_SHAPE, "tensor 2 of (1x3) does not join (2x2) along dim 1");
  tl_error_index_base(0);
  FREE(a, b, c);
}
END_TEST

START_TEST(stack_makes_a_dim) {
  tl_tensor *a = VECTOR(1, 2), *b = VECTOR(3, 4), *c = make_tensor(TL_FLOAT32, 0, NULL, (const double[]){5}), *y;
  ck_ok(tl_stack(LIST(a, b), 0, &y));
  ck_tensor(y, 0, 1, 2, 3, 4);
  tl_tensor_free(y);
  ck_ok(tl_stack(LIST(a, b), -1, &y));
  ck_tensor(y, 0, 1, 3, 2, 4);
  tl_tensor_free(y);
  ck_ok(tl_stack(LIST(c, c, c), 0, &y));
  ck_assert_int_eq(tl_ndim(y), 1);
  ck_tensor(y, 0, 5, 5, 5);
  FREE(a, b, c, y);
}
END_TEST

START_TEST(repetition) {
  tl_tensor *x = TENSOR(TL_FLOAT32, SHAPE(2, 2), 1, 2, 3, 4), *y;
  const int64_t once[1] = {2}, grid[3] = {2, 1, 2}, none[2] = {0, 1}, negative[1] = {-1}, ones[2] = {1, 1};
  ck_ok(tl_tile(x, 1, once, &y));
  ck_tensor(y, 0, 1, 2, 1, 2, 3, 4, 3, 4);
  tl_tensor_free(y);
  ck_ok(tl_tile(x, 3, grid, &y));
  ck_assert_int_eq(tl_ndim(y), 3);
  ck_tensor(y, 0, 1, 2, 1, 2, 3, 4, 3, 4, 1, 2, 1, 2, 3, 4, 3, 4);
  tl_tensor_free(y);
  ck_ok(tl_tile(x, 2, none, &y));
  ck_assert_double_eq(tl_size(y, 0), 0);
  tl_tensor_free(y);
  ck_ok(tl_tile(x, 2, ones, &y)); /* never x's own memory */
  ck_assert(!tl_same_storage(x, y));
  tl_tensor_free(y);
  ck_fails(tl_tile(x, 1, negative, &y), TL_ERR_VALUE, "-1 repeats");
  ck_ok(tl_repeat_interleave(x, 2, 1, &y));
  ck_tensor(y, 0, 1, 1, 2, 2, 3, 3, 4, 4);
  tl_tensor_free(y);
  ck_ok(tl_repeat_interleave(x, 2, 0, &y));
  ck_tensor(y, 0, 1, 2, 1, 2, 3, 4, 3, 4);
  tl_tensor_free(y);
  ck_ok(tl_repeat_interleave(x, 0, 0, &y));
  ck_assert_double_eq(tl_numel(y), 0);
  tl_tensor_free(y);
  ck_fails(tl_repeat_interleave(x, -2, 0, &y), TL_ERR_VALUE, "-2 repeats");
  ck_fails(tl_repeat_interleave(x, INT64_MAX, 0, &y), TL_ERR_SHAPE, "too many");
  tl_tensor_free(x);
}
END_TEST

START_TEST(flip) {
  tl_tensor *x = TENSOR(TL_FLOAT32, SHAPE(2, 3), 1, 2, 3, 4, 5, 6), *y;
  const int both[2] = {0, -1}, rows = 0, twice[2] = {0, 0};
  ck_ok(tl_flip(x, 1, &rows, &y));
  ck_tensor(y, 0, 4, 5, 6, 1, 2, 3);
  tl_tensor_free(y);
  ck_ok(tl_flip(x, 2, both, &y));
  ck_tensor(y, 0, 6, 5, 4, 3, 2, 1);
  tl_tensor_free(y);
  ck_ok(tl_flip(x, 0, NULL, &y));
  ck_tensor(y, 0, 1, 2, 3, 4, 5, 6);
  tl_tensor_free(y);
  ck_fails(tl_flip(x, 2, twice, &y), TL_ERR_VALUE, "twice");
  tl_tensor_free(x);
}
END_TEST

START_TEST(triangles) {
  tl_tensor *x = TENSOR(TL_FLOAT32, SHAPE(2, 3), 1, 2, NAN, INFINITY, 5, 6), *y, *v = VECTOR(1);
  ck_ok(tl_tril(x, 0, &y)); /* what is cut off is 0, not nan * 0 */
  ck_tensor(y, 0, 1, 0, 0, INFINITY, 5, 0);
  tl_tensor_free(y);
  ck_ok(tl_triu(x, 1, &y));
  ck_tensor(y, 0, 0, 2, NAN, 0, 0, 6);
  tl_tensor_free(y);
  ck_ok(tl_tril(x, INT64_MIN, &y));
  ck_tensor(y, 0, 0, 0, 0, 0, 0, 0);
  tl_tensor_free(y);
  ck_ok(tl_tril(x, INT64_MAX, &y));
  ck_tensor(y, 0, 1, 2, NAN, INFINITY, 5, 6);
  tl_tensor_free(y);
  ck_fails(tl_triu(v, 0, &y), TL_ERR_SHAPE, "at least 2 dims, got (1)");
  FREE(x, v);
}
END_TEST

/* ---- layouts and gradients ---- */

static tl_status f_cat(tl_tensor *const *in, void *d, tl_tensor **out) {
  return tl_cat(LIST(in[0], in[1], in[0]), *(int *)d, out);
}
static tl_status f_stack(tl_tensor *const *in, void *d, tl_tensor **out) {
  return tl_stack(LIST(in[0], in[1]), *(int *)d, out);
}
static tl_status f_tile(tl_tensor *const *in, void *d, tl_tensor **out) {
  return tl_tile(in[0], 3, *(int *)d ? (const int64_t[]){2, 3, 1} : (const int64_t[]){1, 1, 2}, out);
}
static tl_status f_interleave(tl_tensor *const *in, void *d, tl_tensor **out) {
  return tl_repeat_interleave(in[0], 3, *(int *)d, out);
}
static tl_status f_flip(tl_tensor *const *in, void *d, tl_tensor **out) { return tl_flip(in[0], 1, d, out); }
static tl_status f_triu(tl_tensor *const *in, void *d, tl_tensor **out) { return tl_triu(in[0], *(int *)d, out); }
static tl_status f_tril(tl_tensor *const *in, void *d, tl_tensor **out) { return tl_tril(in[0], -*(int *)d, out); }

static const struct {
  const char *name;
  graded f;
  int inputs;
} graphs[] = {{"cat", f_cat, 2},   {"stack", f_stack, 2}, {"tile", f_tile, 1}, {"repeat_interleave", f_interleave, 1},
              {"flip", f_flip, 1}, {"triu", f_triu, 1},   {"tril", f_tril, 1}};
#define GRAPHS ((int)(sizeof graphs / sizeof *graphs))

START_TEST(gradients) {
  for (int k = 0; k < GRAPHS; k++)
    for (int layout = 0; layout < LAYOUTS; layout++)
      for (int d = 0; d < 2; d++) {
        tl_tensor *in[2] = {layout_tensor(layout, 3, 4, TL_FLOAT64, -1, 1, 3),
                            layout_tensor(layout, 3, 4, TL_FLOAT64, -1, 1, 4)};
        check_gradients(graphs[k].name, graphs[k].f, graphs[k].inputs, in, &d);
        FREE(in[0], in[1]);
      }
}
END_TEST

START_TEST(gradients_return_in_the_inputs_dtypes) {
  tl_tensor *a = TENSOR(TL_FLOAT16, SHAPE(2), 1, 2), *b = VECTOR(3, 4), *none = TENSOR(TL_FLOAT32, SHAPE(0), 0), *y, *s,
            *g;
  tl_walk *walk;
  ck_ok(tl_set_requires_grad(a, true));
  ck_ok(tl_set_requires_grad(none, true));
  ck_ok(tl_cat(LIST(a, none, b), 0, &y));
  ck_ok(tl_sum(y, 0, NULL, false, &s));
  ck_ok(tl_backward(s, NULL, false, &walk));
  ck_ok(tl_grad(a, &g));
  ck_assert_int_eq(tl_dtype_of(g), TL_FLOAT16);
  ck_tensor(g, 0, 1, 1);
  FREE(a, b, none, y, s, g);
}
END_TEST

START_TEST(every_layout_equals_its_contiguous_result) {
  for (int k = 0; k < GRAPHS; k++)
    for (int layout = 0; layout < LAYOUTS; layout++)
      for (int dtype = 0; dtype < TL_DTYPES; dtype++)
        for (int d = 0; d < 2; d++) {
          tl_tensor *in[2] = {layout_tensor(layout, 3, 4, dtype, 0, 9, 3), layout_tensor(layout, 3, 4, dtype, 0, 9, 4)},
                    *flat[2], *a, *b;
          bool equal;
          for (int i = 0; i < 2; i++) ck_ok(tl_clone(in[i], &flat[i]));
          ck_ok(graphs[k].f(in, &d, &a));
          ck_ok(graphs[k].f(flat, &d, &b));
          ck_assert_int_eq(tl_dtype_of(a), dtype);
          ck_ok(tl_equal(a, b, &equal));
          ck_assert_msg(equal, "%s of %s, %s, %d", graphs[k].name, tl_dtype_name(dtype), layout_name(layout), d);
          FREE(in[0], in[1], flat[0], flat[1], a, b);
        }
}
END_TEST

START_TEST(failing_allocations) {
  for (int k = 0; k < GRAPHS; k++) {
    tl_tensor *in[2] = {layout_tensor(CONTIGUOUS, 3, 4, TL_FLOAT32, -1, 1, 3),
                        layout_tensor(CONTIGUOUS, 3, 4, TL_FLOAT32, -1, 1, 4)};
    for (int i = 0; i < 2; i++) ck_ok(tl_set_requires_grad(in[i], true));
    int64_t before = live_tensors();
    bool done = false;
    for (int64_t nth = 1; !done && nth < 200; nth++) {
      tl_tensor *y = NULL, *s = NULL;
      tl_walk *walk = NULL;
      int d = 1;
      tl_fail_allocation(nth);
      tl_status st = graphs[k].f(in, &d, &y);
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
    FREE(in[0], in[1]);
  }
}
END_TEST

TEST_MAIN("join", cat_joins_along_a_dim, cat_promotes_and_skips_empty_vectors, what_does_not_join_is_named,
          stack_makes_a_dim, repetition, flip, triangles, gradients, gradients_return_in_the_inputs_dtypes,
          every_layout_equals_its_contiguous_result, failing_allocations)
