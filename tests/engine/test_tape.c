/* test_tape.c: recording, walking, in-place changes, views, hooks, custom functions. */
#include "check_tl.h"

static tl_tensor *leaf(int ndim, const int64_t *shape, const double *values) {
  tl_tensor *t = make_tensor(TL_FLOAT32, ndim, shape, values);
  ck_ok(tl_set_requires_grad(t, true));
  return t;
}
#define LEAF(...) \
  leaf(1, (const int64_t[]){(int64_t)(sizeof((double[]){__VA_ARGS__}) / sizeof(double))}, (const double[]){__VA_ARGS__})

static void backward(tl_tensor *t) {
  tl_tensor *s;
  tl_walk *w = NULL;
  ck_ok(tl_sum(t, 0, NULL, false, &s));
  ck_ok(tl_backward(s, NULL, false, &w));
  ck_assert_ptr_null(w);
  tl_tensor_free(s);
}

#define ck_grad(t, ...)               \
  do {                                \
    tl_tensor *g_ = NULL;             \
    ck_ok(tl_grad(t, &g_));           \
    ck_assert_ptr_nonnull(g_);        \
    ck_tensor(g_, 1e-6, __VA_ARGS__); \
    tl_tensor_free(g_);               \
  } while (0)

static void free_all(int n, tl_tensor **t) {
  for (int i = 0; i < n; i++) tl_tensor_free(t[i]);
  ck_assert_int_eq(live_tensors(), 0);
}
#define FREE(...) \
  free_all((int)(sizeof((tl_tensor *[]){__VA_ARGS__}) / sizeof(tl_tensor *)), (tl_tensor *[]){__VA_ARGS__})

START_TEST(gradients_accumulate_over_paths_and_calls) {
  tl_tensor *x = LEAF(1, 2, 3), *y, *z;
  ck_ok(tl_mul(x, x, &y));
  ck_ok(tl_add(y, x, &z));
  backward(z);
  ck_grad(x, 3, 5, 7);
  tl_tensor_free(y);
  tl_tensor_free(z);
  ck_ok(tl_mul(x, x, &y));
  backward(y);
  ck_grad(x, 5, 9, 13);
  FREE(x, y);
}
END_TEST

START_TEST(a_leaf_s_gradient_is_its_own_memory) {
  /* add passes one gradient to both inputs: neither may see the other's later changes */
  tl_tensor *a = LEAF(1, 2), *b = LEAF(3, 4), *y, *ga, *gb;
  ck_ok(tl_add(a, b, &y));
  backward(y);
  ck_ok(tl_grad(a, &ga));
  ck_ok(tl_grad(b, &gb));
  ck_assert(!tl_same_storage(ga, gb));
  ck_ok(tl_mul_scalar_(ga, 10));
  ck_grad(b, 1, 1);
  FREE(a, b, y, ga, gb);
}
END_TEST

START_TEST(a_graph_is_freed_by_its_first_backward) {
  tl_tensor *x = LEAF(2), *y;
  tl_walk *w;
  ck_ok(tl_mul(x, x, &y));
  ck_ok(tl_backward(y, NULL, true, &w)); /* retained */
  ck_ok(tl_backward(y, NULL, false, &w));
  ck_grad(x, 8);
  ck_fails(tl_backward(y, NULL, false, &w), TL_ERR_STATE, "retain_graph");
  ck_grad(x, 8);
  FREE(x, y);
}
END_TEST

START_TEST(long_chains_do_not_recurse) {
  tl_tensor *x = LEAF(1), *y, *z;
  ck_ok(tl_add_scalar(x, 0, &y));
  for (int i = 0; i < 200000; i++) {
    ck_ok(tl_add_scalar(y, 1, &z));
    tl_tensor_free(y);
    y = z;
  }
  backward(y);
  ck_grad(x, 1);
  FREE(x, y);
}
END_TEST

START_TEST(no_history_without_need) {
  tl_tensor *x = VECTOR(1, 2), *p = LEAF(3, 4), *y;
  ck_ok(tl_mul(x, x, &y));
  ck_assert(!tl_requires_grad(y));
  tl_tensor_free(y);
  ck_assert(tl_set_grad_enabled(false));
  ck_ok(tl_mul(p, p, &y));
  ck_assert(!tl_requires_grad(y));
  tl_tensor_free(y);
  tl_set_grad_enabled(true);
  ck_ok(tl_mul(p, x, &y));
  ck_assert(tl_requires_grad(y));
  ck_assert_str_eq(tl_grad_fn_name(y), "mul");
  tl_tensor_free(y);
  ck_ok(tl_gt_scalar(p, 0, &y)); /* a bool has no gradient */
  ck_assert(!tl_requires_grad(y));
  tl_walk *w;
  ck_fails(tl_backward(x, NULL, false, &w), TL_ERR_STATE, "does not depend");
  tl_tensor *i = TENSOR(TL_INT64, SHAPE(1), 1);
  ck_fails(tl_set_requires_grad(i, true), TL_ERR_DTYPE, "int64");
  FREE(x, p, y, i);
}
END_TEST

START_TEST(backward_checks_the_gradient_it_is_given) {
  tl_tensor *x = LEAF(1, 2), *y, *g = VECTOR(1, 2, 3), *d = TENSOR(TL_FLOAT64, SHAPE(2), 1, 2), *ok = VECTOR(10, 20);
  tl_walk *w;
  ck_ok(tl_mul_scalar(x, 3, &y));
  ck_fails(tl_backward(y, NULL, false, &w), TL_ERR_SHAPE, "(2)");
  ck_fails(tl_backward(y, g, false, &w), TL_ERR_SHAPE, "(3)");
  ck_fails(tl_backward(y, d, false, &w), TL_ERR_DTYPE, "float64");
  ck_ok(tl_backward(y, ok, false, &w));
  ck_grad(x, 30, 60);
  ck_tensor(ok, 0, 10, 20);
  FREE(x, y, g, d, ok);
}
END_TEST

/* ---- in-place ---- */

START_TEST(changing_a_saved_value_is_caught) {
  tl_tensor *x = LEAF(1, 2), *c, *y;
  tl_walk *w;
  ck_ok(tl_mul_scalar(x, 1, &c));
  ck_ok(tl_mul(c, c, &y));
  ck_ok(tl_add_scalar_(c, 1));
  tl_tensor *s;
  ck_ok(tl_sum(y, 0, NULL, false, &s));
  ck_fails(tl_backward(s, NULL, false, &w), TL_ERR_STATE, "modified in place");
  tl_tensor *g;
  ck_ok(tl_grad(x, &g));
  ck_assert_ptr_null(g);
  FREE(x, c, y, s);
}
END_TEST

START_TEST(leaves_that_require_gradients_are_protected) {
  tl_tensor *x = LEAF(1, 2), *v;
  ck_fails(tl_add_scalar_(x, 1), TL_ERR_STATE, "leaf");
  ck_ok(tl_narrow(x, 0, 0, 1, &v));
  ck_fails(tl_fill_(v, 0), TL_ERR_STATE, "view of a leaf");
  tl_set_grad_enabled(false);
  ck_ok(tl_add_scalar_(x, 1));
  tl_set_grad_enabled(true);
  ck_tensor(x, 0, 2, 3);
  FREE(x, v);
}
END_TEST

START_TEST(in_place_on_a_value_extends_its_history) {
  tl_tensor *x = LEAF(1, 2), *y;
  ck_ok(tl_mul_scalar(x, 2, &y));
  ck_ok(tl_mul_(y, y));
  ck_ok(tl_mul_scalar_(y, 0.25));
  ck_ok(tl_exp_(y));
  backward(y); /* e^(x^2): 2x e^(x^2) */
  ck_grad(x, 2 * exp(1), 4 * exp(4));
  FREE(x, y);
}
END_TEST

START_TEST(writing_through_a_view_reaches_the_base) {
  tl_tensor *x = LEAF(1, 2, 3, 4), *y, *v, *p = LEAF(10, 20);
  ck_ok(tl_mul_scalar(x, 2, &y));
  ck_ok(tl_narrow(y, 0, 1, 2, &v));
  ck_ok(tl_mul_(v, p)); /* y = {2x1, 2x2 p1, 2x3 p2, 2x4} */
  ck_tensor(y, 0, 2, 40, 120, 8);
  backward(y);
  ck_grad(x, 2, 20, 40, 2);
  ck_grad(p, 4, 6);
  FREE(x, y, v, p);
}
END_TEST

START_TEST(a_plain_tensor_takes_the_history_of_what_is_written_into_it) {
  tl_tensor *buffer, *row, *p = LEAF(5, 6);
  ck_ok(tl_full(SHAPE(2, 2), 0, TL_FLOAT32, test_device(), &buffer));
  ck_ok(tl_select(buffer, 0, 1, &row));
  ck_ok(tl_copy_(row, p));
  ck_assert(tl_requires_grad(buffer));
  tl_tensor *square;
  ck_ok(tl_mul(buffer, buffer, &square));
  backward(square);
  ck_grad(p, 10, 12);
  FREE(buffer, row, p, square);
}
END_TEST

START_TEST(a_view_follows_its_base) {
  tl_tensor *x = LEAF(1, 2, 3), *y, *v, *z;
  ck_ok(tl_mul_scalar(x, 1, &y));
  ck_ok(tl_narrow(y, 0, 0, 2, &v));
  ck_ok(tl_mul_scalar_(y, 5)); /* the base changes after the view was made */
  ck_ok(tl_mul_scalar(v, 2, &z));
  backward(z);
  ck_grad(x, 10, 10, 0);
  FREE(x, y, v, z);
}
END_TEST

START_TEST(overwriting_cuts_the_old_history) {
  tl_tensor *x = LEAF(1, 2), *y, *g;
  ck_ok(tl_mul_scalar(x, 3, &y));
  ck_ok(tl_fill_(y, 7));
  backward(y);
  ck_ok(tl_grad(x, &g));
  ck_assert_ptr_null(g);
  FREE(x, y);
}
END_TEST

/* ---- views ---- */

static tl_status views(tl_tensor *const *in, void *c, tl_tensor **out) {
  tl_tensor *a, *b, *d, *e;
  (void)c;
  ck_ok(tl_transpose(in[0], 0, 1, &a));
  ck_ok(tl_slice(a, 0, 0, 7, 2, &b));
  ck_ok(tl_reshape(b, SHAPE(-1, 1), &d));
  ck_ok(tl_expand(d, SHAPE(2, -1, 3), &e));
  tl_status st = tl_mul(e, e, out);
  tl_tensor_free(a);
  tl_tensor_free(b);
  tl_tensor_free(d);
  tl_tensor_free(e);
  return st;
}

static tl_status conversions(tl_tensor *const *in, void *c, tl_tensor **out) {
  tl_tensor *a, *b;
  (void)c;
  ck_ok(tl_clone(in[0], &a));
  ck_ok(tl_select(a, 1, -1, &b));
  tl_status st = tl_to(b, TL_FLOAT64, test_device(), out);
  tl_tensor_free(a);
  tl_tensor_free(b);
  return st;
}

START_TEST(gradients_of_views_agree_with_differences) {
  for (int layout = 0; layout < EMPTY; layout++) {
    tl_tensor *x = layout_tensor(layout, 5, 7, TL_FLOAT64, -1, 1, 1);
    check_gradients("views", views, 1, &x, NULL);
    check_gradients("clone, select", conversions, 1, &x, NULL);
    tl_tensor_free(x);
  }
}
END_TEST

/* ---- hooks and custom functions: the host's side ---- */

START_TEST(hooks_see_and_replace_gradients) {
  tl_tensor *x = LEAF(1, 2), *y, *s, *doubled = NULL;
  tl_walk *w = NULL;
  tl_walk_event e;
  ck_ok(tl_mul_scalar(x, 3, &y));
  ck_ok(tl_register_hook(y, 11));
  ck_ok(tl_register_hook(x, 12));
  ck_ok(tl_sum(y, 0, NULL, false, &s));
  ck_ok(tl_backward(s, NULL, false, &w));
  ck_assert_ptr_nonnull(w);
  ck_ok(tl_walk_next(w, &e));
  ck_assert_int_eq(e.kind, 1);
  ck_assert_int_eq(e.id, 11);
  ck_ok(tl_mul_scalar(e.grads[0], 2, &doubled));
  ck_ok(tl_walk_reply(w, 1, &doubled));
  ck_ok(tl_walk_next(w, &e));
  ck_assert_int_eq(e.id, 12);
  ck_tensor(e.grads[0], 0, 6, 6);
  tl_tensor *wrong = VECTOR(1, 2, 3);
  ck_fails(tl_walk_reply(w, 1, &wrong), TL_ERR_SHAPE, "a hook returned");
  ck_ok(tl_walk_reply(w, 0, NULL));
  ck_ok(tl_walk_next(w, &e));
  ck_assert_int_eq(e.kind, 0);
  tl_walk_free(w);
  ck_grad(x, 6, 6);
  ck_ok(tl_remove_hook(x, 12));
  FREE(x, y, s, doubled, wrong);
}
END_TEST

START_TEST(custom_functions_are_served_by_the_host) {
  tl_tensor *x = LEAF(2, 3), *y, *z;
  bool recorded;
  tl_set_grad_enabled(false);
  ck_ok(tl_square(x, &y));
  tl_set_grad_enabled(true);
  ck_ok(tl_function_record("square", 5, 1, &x, 1, &y, 1, &x, &recorded));
  ck_assert(recorded);
  ck_ok(tl_mul_scalar(y, 10, &z));
  tl_tensor *s;
  tl_walk *w;
  tl_walk_event e;
  ck_ok(tl_sum(z, 0, NULL, false, &s));
  ck_ok(tl_backward(s, NULL, false, &w));
  ck_ok(tl_walk_next(w, &e));
  ck_assert_int_eq(e.kind, 2);
  ck_assert_int_eq(e.id, 5);
  ck_assert_int_eq(e.count, 1);
  ck_assert_int_eq(e.replies, 1);
  tl_tensor *saved, *g, *g2;
  ck_ok(tl_function_saved(w, 1, &saved));
  ck_ok(tl_mul(e.grads[0], saved, &g));
  ck_ok(tl_mul_scalar(g, 2, &g2));
  ck_ok(tl_walk_reply(w, 1, &g2));
  ck_ok(tl_walk_next(w, &e));
  ck_assert_int_eq(e.kind, 0);
  tl_walk_free(w);
  ck_grad(x, 40, 60);
  ck_assert_int_eq(tl_function_dead(), -1);
  FREE(x, y, z, s, saved, g, g2);
  ck_assert_int_eq(tl_function_dead(), 5);
  ck_assert_int_eq(tl_function_dead(), -1);
}
END_TEST

START_TEST(an_abandoned_walk_leaves_nothing_behind) {
  tl_tensor *x = LEAF(2, 3), *y, *s;
  tl_walk *w;
  ck_ok(tl_mul_scalar(x, 3, &y));
  ck_ok(tl_register_hook(y, 1));
  ck_ok(tl_sum(y, 0, NULL, false, &s));
  ck_ok(tl_backward(s, NULL, true, &w));
  tl_walk_free(w);
  tl_walk_event e;
  ck_ok(tl_backward(s, NULL, false, &w)); /* and it can be walked again */
  ck_ok(tl_walk_next(w, &e));
  ck_ok(tl_walk_reply(w, 0, NULL));
  ck_ok(tl_walk_next(w, &e));
  tl_walk_free(w);
  ck_grad(x, 3, 3);
  FREE(x, y, s);
}
END_TEST

START_TEST(grad_returns_gradients_without_touching_leaves) {
  tl_tensor *x = LEAF(1, 2), *y, *z, *s, *g[2];
  tl_walk *w;
  tl_walk_event e;
  ck_ok(tl_mul(x, x, &y));
  ck_ok(tl_mul_scalar(y, 3, &z));
  ck_ok(tl_sum(z, 0, NULL, false, &s));
  tl_tensor *inputs[2] = {x, y};
  ck_ok(tl_autograd_grad(1, &s, NULL, 2, inputs, false, &w));
  ck_ok(tl_walk_next(w, &e));
  ck_assert_int_eq(e.kind, 0);
  ck_ok(tl_walk_grads(w, 2, g));
  tl_walk_free(w);
  ck_tensor(g[0], 0, 6, 12);
  ck_tensor(g[1], 0, 3, 3);
  tl_tensor *none;
  ck_ok(tl_grad(x, &none));
  ck_assert_ptr_null(none);
  FREE(x, y, z, s, g[0], g[1]);
}
END_TEST

START_TEST(walks_nest) {
  /* inside the backward of a custom function another graph over the same leaf is walked */
  tl_tensor *x = LEAF(2), *y, *z, *inner, *g;
  bool recorded;
  tl_walk *w, *w2;
  tl_walk_event e;
  tl_set_grad_enabled(false);
  ck_ok(tl_square(x, &y));
  tl_set_grad_enabled(true);
  ck_ok(tl_function_record("outer", 1, 1, &x, 1, &y, 0, NULL, &recorded));
  ck_ok(tl_mul(y, x, &z)); /* the leaf is reached by two paths */
  ck_ok(tl_backward(z, NULL, false, &w));
  ck_ok(tl_walk_next(w, &e));
  ck_assert_int_eq(e.kind, 2);
  ck_ok(tl_mul(x, x, &inner));
  ck_ok(tl_backward(inner, e.grads[0], false, &w2)); /* += 2x * x = 8 */
  ck_assert_ptr_null(w2);
  ck_grad(x, 8);
  ck_ok(tl_full(SHAPE(1), 100, TL_FLOAT32, test_device(), &g));
  ck_ok(tl_walk_reply(w, 1, &g)); /* the function's own: 100; z's direct path: y = 4 */
  ck_ok(tl_walk_next(w, &e));
  ck_assert_int_eq(e.kind, 0);
  tl_walk_free(w);
  ck_grad(x, 112);
  FREE(x, y, z, inner, g);
}
END_TEST

START_TEST(non_leaves_keep_gradients_on_request) {
  tl_tensor *x = LEAF(1, 2), *y, *z;
  ck_ok(tl_mul_scalar(x, 2, &y));
  ck_ok(tl_retain_grad(y));
  ck_ok(tl_mul(y, y, &z));
  backward(z);
  ck_grad(y, 4, 8);
  ck_grad(x, 8, 16);
  tl_tensor_free(z);
  FREE(x, y);
  /* the tensor may go before the walk */
  x = LEAF(1, 2);
  ck_ok(tl_mul_scalar(x, 2, &y));
  ck_ok(tl_retain_grad(y));
  ck_ok(tl_mul(y, y, &z));
  tl_tensor_free(y);
  backward(z);
  ck_grad(x, 8, 16);
  FREE(x, z);
}
END_TEST

START_TEST(anomaly_detection_names_the_first_nan) {
  tl_tensor *x = LEAF(-1), *y, *z, *s;
  tl_walk *w;
  ck_ok(tl_sqrt(x, &y));
  ck_ok(tl_mul_scalar(y, 2, &z));
  ck_ok(tl_sum(z, 0, NULL, false, &s));
  tl_set_detect_anomaly(true);
  ck_fails(tl_backward(s, NULL, false, &w), TL_ERR_VALUE, "backward of 'sqrt'");
  tl_set_detect_anomaly(false);
  FREE(x, y, z, s);
}
END_TEST

/* ---- what an in-place operation keeps ---- */

START_TEST(the_right_side_may_be_the_target_by_another_name) {
  /* y *= y' where y' shows the same memory: its gradient needs the old values, which are overwritten */
  tl_tensor *x = LEAF(1, 2, 3), *y, *same;
  ck_ok(tl_clone(x, &y));
  ck_ok(tl_detach(y, &same));
  ck_ok(tl_mul_(y, same));
  ck_tensor(y, 0, 1, 4, 9);
  backward(y);
  ck_grad(x, 1, 2, 3); /* the other factor is a constant */
  FREE(x, y, same);
}
END_TEST

START_TEST(random_numbers_and_comparisons_have_no_history) {
  for (int which = 0; which < 3; which++) {
    tl_tensor *x = LEAF(1, 2, 3), *y, *turned = NULL;
    ck_ok(tl_clone(x, &y));
    if (which == 0) ck_ok(tl_uniform_(y, 0, 1, NULL));
    if (which == 1) ck_ok(tl_gt_scalar_(y, 2));
    if (which == 2) { /* through a view */
      ck_ok(tl_slice(y, 0, 0, 3, 2, &turned));
      ck_ok(tl_normal_(turned, 0, 1, NULL));
    }
    backward(y);
    tl_tensor *g = NULL;
    ck_ok(tl_grad(x, &g));
    if (which == 2) ck_tensor(g, 0, 0, 1, 0);
    else ck_assert(g == NULL);
    FREE(x, y, turned, g);
  }
}
END_TEST

START_TEST(an_integer_tensor_gets_no_history) {
  tl_tensor *x = LEAF(1.5, 2.5), *y;
  ck_ok(tl_full(SHAPE(2), 0, TL_INT64, test_device(), &y));
  ck_ok(tl_copy_(y, x));
  ck_tensor(y, 0, 1, 2);
  ck_assert(!tl_requires_grad(y));
  FREE(x, y);
}
END_TEST

TEST_MAIN("tape", gradients_accumulate_over_paths_and_calls, a_leaf_s_gradient_is_its_own_memory,
          a_graph_is_freed_by_its_first_backward, long_chains_do_not_recurse, no_history_without_need,
          backward_checks_the_gradient_it_is_given, changing_a_saved_value_is_caught,
          leaves_that_require_gradients_are_protected, in_place_on_a_value_extends_its_history,
          writing_through_a_view_reaches_the_base, a_plain_tensor_takes_the_history_of_what_is_written_into_it,
          a_view_follows_its_base, overwriting_cuts_the_old_history, gradients_of_views_agree_with_differences,
          hooks_see_and_replace_gradients, custom_functions_are_served_by_the_host,
          an_abandoned_walk_leaves_nothing_behind, grad_returns_gradients_without_touching_leaves, walks_nest,
          non_leaves_keep_gradients_on_request, anomaly_detection_names_the_first_nan,
          the_right_side_may_be_the_target_by_another_name, random_numbers_and_comparisons_have_no_history,
          an_integer_tensor_gets_no_history)
