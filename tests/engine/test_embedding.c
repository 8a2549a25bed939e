/* test_embedding.c: rows of a table by id. */
#include "check_tl.h"

struct call {
  tl_tensor *ids;
  int64_t padding;
};

static tl_status embedding(tl_tensor *const *in, void *context, tl_tensor **out) {
  const struct call *c = context;
  return tl_embedding(in[0], c->ids, c->padding, out);
}

START_TEST(gradients_of_every_layout) {
  tl_tensor *ids = TENSOR(TL_INT64, SHAPE(2, 3), 0, 2, 2, 4, 0, 2), *none = TENSOR(TL_INT64, SHAPE(0), 0);
  for (int layout = 0; layout < LAYOUTS; layout++) {
    tl_tensor *w = layout_tensor(layout, 5, 4, TL_FLOAT64, -1, 1, 1);
    struct call c = {layout == EMPTY ? none : ids, -1};
    check_gradients("embedding", embedding, 1, &w, &c);
    tl_tensor_free(w);
  }
  tl_tensor_free(ids);
  tl_tensor_free(none);
}
END_TEST

START_TEST(repeated_ids_add_up_and_padding_gets_nothing) {
  for (int dtype = TL_FLOAT32; dtype <= TL_FLOAT64; dtype++) {
    tl_tensor *w = TENSOR(dtype, SHAPE(3, 2), 1, 2, 3, 4, 5, 6), *wide = TENSOR(TL_INT32, SHAPE(2, 2), 2, 0, 2, 1),
              *ids = NULL, *y = NULL, *g = NULL, *grad = NULL;
    ck_ok(tl_set_requires_grad(w, true));
    ck_ok(tl_transpose(wide, 0, 1, &ids));
    ck_ok(tl_embedding(w, ids, 1, &y));
    ck_assert_int_eq(tl_ndim(y), 3);
    ck_tensor(y, 0, 5, 6, 5, 6, 1, 2, 3, 4);
    g = TENSOR(dtype, SHAPE(2, 2, 2), 1, 2, 3, 4, 5, 6, 7, 8);
    tl_walk *walk = NULL;
    ck_ok(tl_backward(y, g, false, &walk));
    ck_ok(tl_grad(w, &grad));
    ck_assert_int_eq(tl_dtype_of(grad), dtype);
    ck_tensor(grad, 0, 5, 6, 0, 0, 4, 6);
    tl_tensor *all[] = {w, wide, ids, y, g, grad};
    for (int i = 0; i < 6; i++) tl_tensor_free(all[i]);
  }
}
END_TEST

/* Sums in the order of the ids, whatever the number of threads. */
START_TEST(threads_do_not_change_the_gradient) {
  tl_tensor *w = layout_tensor(CONTIGUOUS, 300, 64, TL_FLOAT32, -1, 1, 1), *ids = NULL, *grads[2] = {NULL, NULL};
  tl_generator *g;
  ck_ok(tl_generator_new(1, &g));
  ck_ok(tl_empty(SHAPE(2000), TL_INT64, test_device(), &ids));
  ck_ok(tl_randint_(ids, 0, 300, g));
  ck_ok(tl_set_requires_grad(w, true));
  for (int k = 0; k < 2; k++) {
    ck_ok(tl_set_num_threads(k == 0 ? 1 : 3));
    tl_tensor *y = NULL;
    tl_walk *walk = NULL;
    ck_ok(tl_embedding(w, ids, -1, &y));
    ck_ok(tl_set_grad(w, NULL));
    tl_tensor *upstream = layout_tensor(CONTIGUOUS, 2000, 64, TL_FLOAT32, -1, 1, 2);
    ck_ok(tl_backward(y, upstream, false, &walk));
    ck_ok(tl_grad(w, &grads[k]));
    tl_tensor_free(y);
    tl_tensor_free(upstream);
  }
  double *first = malloc(300 * 64 * sizeof *first);
  ck_ok(tl_to_doubles(grads[0], 300 * 64, first));
  ck_values(grads[1], 300 * 64, first, 0);
  free(first);
  tl_tensor *all[] = {w, ids, grads[0], grads[1]};
  for (int i = 0; i < 4; i++) tl_tensor_free(all[i]);
  tl_generator_free(g);
}
END_TEST

START_TEST(messages) {
  tl_tensor *w = TENSOR(TL_FLOAT32, SHAPE(3, 2), 1, 2, 3, 4, 5, 6), *ids = TENSOR(TL_INT64, SHAPE(2, 2), 0, 2, 3, -1),
            *x = VECTOR(0, 1), *y = NULL;
  /* the first of the two; on a GPU whichever is met first */
  ck_names_bad(tl_embedding(w, ids, -1, &y), &y, TL_ERR_INDEX, "id ",
               "3 (element 2 of ids (2x2)) is outside the table's 0..2");
  ck_fails(tl_embedding(w, x, -1, &y), TL_ERR_DTYPE, "ids are integers (int64), got float32");
  ck_fails(tl_embedding(x, ids, -1, &y), TL_ERR_SHAPE, "the table is (V, D), got (2)");
  ck_fails(tl_embedding(w, ids, 3, &y), TL_ERR_INDEX, "padding_idx 3 is outside the table's 0..2");
  ck_assert_ptr_null(y);
  tl_tensor_free(w);
  tl_tensor_free(ids);
  tl_tensor_free(x);
}
END_TEST

/* w is used otherwise, too: whichever gradient comes first, the sum is that of both, and a padding row gets the other's. */
START_TEST(adds_to_a_gradient_that_has_come) {
  for (int dtype = TL_FLOAT32; dtype <= TL_FLOAT64; dtype++)
    for (int order = 0; order < 2; order++) {
      tl_tensor *w = TENSOR(dtype, SHAPE(3, 2), 1, 2, 3, 4, 5, 6), *ids = TENSOR(TL_INT64, SHAPE(4), 1, 2, 0, 2);
      tl_tensor *rows = NULL, *looked_up = NULL, *square = NULL, *other = NULL, *y = NULL, *grad = NULL;
      tl_walk *walk = NULL;
      ck_ok(tl_set_requires_grad(w, true));
      if (order == 0) ck_ok(tl_embedding(w, ids, 0, &rows));
      ck_ok(tl_square(w, &square));
      if (order == 1) ck_ok(tl_embedding(w, ids, 0, &rows));
      ck_ok(tl_sum(rows, 0, NULL, false, &looked_up));
      ck_ok(tl_sum(square, 0, NULL, false, &other));
      ck_ok(order == 0 ? tl_add(looked_up, other, &y) : tl_add(other, looked_up, &y));
      ck_ok(tl_backward(y, NULL, false, &walk));
      ck_ok(tl_grad(w, &grad));
      ck_tensor(grad, 0, 2, 4, 6 + 1, 8 + 1, 10 + 2, 12 + 2);
      tl_tensor *all[] = {w, ids, rows, looked_up, square, other, y, grad};
      for (int i = 0; i < 8; i++) tl_tensor_free(all[i]);
    }
}
END_TEST

START_TEST(failing_allocations) {
  tl_tensor *w = layout_tensor(TRANSPOSED, 30, 10, TL_FLOAT16, -1, 1, 1), *ids = TENSOR(TL_INT32, SHAPE(3), 1, 29, 1);
  tl_tensor *g = layout_tensor(TRANSPOSED, 3, 10, TL_FLOAT16, -1, 1, 2);
  ck_ok(tl_set_requires_grad(w, true));
  int64_t before = live_tensors();
  bool done = false;
  for (int64_t k = 1; !done; k++) {
    tl_tensor *y = NULL;
    tl_walk *walk = NULL;
    tl_fail_allocation(k);
    tl_status st = tl_embedding(w, ids, -1, &y);
    if (st == TL_OK) st = tl_backward(y, g, false, &walk);
    tl_fail_allocation(0);
    done = st == TL_OK;
    if (!done) ck_assert_int_eq(st, TL_ERR_MEMORY);
    tl_tensor_free(y);
    ck_ok(tl_set_grad(w, NULL));
    ck_assert_int_eq(live_tensors(), before);
  }
  tl_tensor_free(w);
  tl_tensor_free(ids);
  tl_tensor_free(g);
}
END_TEST

TEST_MAIN("embedding", gradients_of_every_layout, repeated_ids_add_up_and_padding_gets_nothing,
          threads_do_not_change_the_gradient, adds_to_a_gradient_that_has_come, messages, failing_allocations)
