/* test_norm.c: batch, layer, group and RMS norm. Expected numbers were computed with PyTorch 2.15 on the CPU unless a
 * comment derives them. */
#include "check_tl.h"

static void backward(tl_tensor *y, tl_tensor *grad) {
  tl_walk *walk = NULL;
  ck_ok(tl_backward(y, grad, false, &walk));
  ck_assert_ptr_null(walk);
}

static void free_all(int n, tl_tensor *const *t) {
  for (int i = 0; i < n; i++) tl_tensor_free(t[i]);
}
#define FREE(...) \
  free_all((int)(sizeof((tl_tensor *[]){__VA_ARGS__}) / sizeof(tl_tensor *)), (tl_tensor *[]){__VA_ARGS__})

/* ---- batch norm ---- */

START_TEST(two_values_and_their_running_statistics) {
  tl_tensor *x = TENSOR(TL_FLOAT32, SHAPE(2, 1), 1, 3), *mean = VECTOR(0), *var = VECTOR(1), *y = NULL;
  ck_ok(tl_batch_norm(x, NULL, NULL, mean, var, true, 0.1, 1e-5, &y));
  ck_tensor(y, 1e-6, -0.999995, 0.999995);
  ck_tensor(mean, 1e-6, 0.2);
  ck_tensor(var, 1e-6, 1.1);
  FREE(x, mean, var, y);
}
END_TEST

START_TEST(momentum_one_takes_the_batch) {
  /* (3, 4): samples are rows; the spatial form (3, 4, 1, 1) must say the same */
  for (int spatial = 0; spatial < 2; spatial++) {
    const double v[] = {2, 15, 2, 1, 2, 17, 2, 1, -4, -2, -2, -1};
    tl_tensor *x = make_tensor(TL_FLOAT32, spatial ? 4 : 2, (const int64_t[]){3, 4, 1, 1}, v);
    tl_tensor *mean = VECTOR(0, 0, 0, 0), *var = VECTOR(1, 1, 1, 1), *y = NULL;
    ck_ok(tl_batch_norm(x, NULL, NULL, mean, var, true, 1, 1e-5, &y));
    ck_tensor(mean, 1e-4, 0, 10, 0.6667, 0.3333);
    ck_tensor(var, 1e-4, 12, 109, 5.3333, 1.3333);
    FREE(x, mean, var, y);
  }
}
END_TEST

/* momentum = false of the module: factor 1 / batches seen */
START_TEST(cumulative_factors_average) {
  tl_tensor *a = TENSOR(TL_FLOAT32, SHAPE(2, 1), 1, 3), *b = TENSOR(TL_FLOAT32, SHAPE(2, 1), 5, 9), *mean = VECTOR(0),
            *var = VECTOR(1), *y = NULL, *z = NULL;
  ck_ok(tl_batch_norm(a, NULL, NULL, mean, var, true, 1, 1e-5, &y));
  ck_ok(tl_batch_norm(b, NULL, NULL, mean, var, true, 0.5, 1e-5, &z));
  ck_tensor(mean, 1e-6, 4.5);
  ck_tensor(var, 1e-6, 5);
  FREE(a, b, mean, var, y, z);
}
END_TEST

START_TEST(one_value_per_channel_is_an_error_that_moves_nothing) {
  tl_tensor *x = TENSOR(TL_FLOAT32, SHAPE(1, 3), 1, 2, 3), *mean = VECTOR(0, 0, 0), *var = VECTOR(1, 1, 1), *y = NULL;
  double version = tl_version_of(var);
  ck_fails(tl_batch_norm(x, NULL, NULL, mean, var, true, 0.1, 1e-5, &y), TL_ERR_SHAPE,
           "(1x3) has one value per channel");
  ck_fails(tl_batch_norm(x, NULL, NULL, NULL, NULL, false, 0.1, 1e-5, &y), TL_ERR_SHAPE, "one value per channel");
  ck_tensor(mean, 0, 0, 0, 0);
  ck_tensor(var, 0, 1, 1, 1);
  ck_assert(tl_version_of(var) == version);
  ck_assert_ptr_null(y);
  ck_ok(tl_batch_norm(x, NULL, NULL, mean, var, false, 0.1, 0, &y)); /* eval takes it */
  ck_tensor(y, 1e-6, 1, 2, 3);
  tl_tensor *one = TENSOR(TL_FLOAT32, SHAPE(1, 1, 1, 2), 1, 3), *z = NULL; /* N = 1 with H * W > 1 is fine */
  ck_ok(tl_batch_norm(one, NULL, NULL, NULL, NULL, true, 0.1, 1e-5, &z));
  ck_tensor(z, 1e-5, -0.999995, 0.999995);
  FREE(x, mean, var, y, one, z);
}
END_TEST

START_TEST(variance_does_not_cancel_for_a_large_mean) {
  /* 1e6 + (0 .. 7): exact in float32; biased variance 5.25. As rows, as columns, and with a first value far off. */
  double v[8], far[8];
  for (int i = 0; i < 8; i++) v[i] = 1e6 + i, far[i] = i == 0 ? 0 : 1e6 + i;
  static const int64_t shapes[2][3] = {{8, 1, 1}, {2, 1, 4}};
  for (int s = 0; s < 2; s++) {
    tl_tensor *x = make_tensor(TL_FLOAT32, s == 0 ? 2 : 3, shapes[s], v), *mean = VECTOR(0), *var = VECTOR(1),
              *y = NULL;
    ck_ok(tl_batch_norm(x, NULL, NULL, mean, var, true, 1, 0, &y));
    ck_tensor(mean, 0, 1000003.5);
    ck_tensor(var, 1e-6, 6);
    double expected[8];
    for (int i = 0; i < 8; i++) expected[i] = (i - 3.5) / sqrt(5.25);
    ck_values(y, 8, expected, 1e-6);
    tl_tensor *z = make_tensor(TL_FLOAT32, s == 0 ? 2 : 3, shapes[s], far), *w = NULL;
    ck_ok(tl_batch_norm(z, NULL, NULL, mean, var, true, 1, 0, &w));
    double m = 0, q = 0;
    for (int i = 0; i < 8; i++) m += far[i] / 8;
    for (int i = 0; i < 8; i++) q += (far[i] - m) * (far[i] - m) / 7;
    ck_tensor(var, 1e-6, q);
    FREE(x, mean, var, y, z, w);
  }
  /* the same for rows of layer norm */
  tl_tensor *x = make_tensor(TL_FLOAT32, 2, (const int64_t[]){1, 8}, v), *y = NULL;
  ck_ok(tl_layer_norm(x, SHAPE(8), NULL, NULL, 0, &y));
  double expected[8];
  for (int i = 0; i < 8; i++) expected[i] = (i - 3.5) / sqrt(5.25);
  ck_values(y, 8, expected, 1e-6);
  FREE(x, y);
}
END_TEST

struct batch {
  bool training, spatial;
  int affine; /* bit 0: weight, bit 1: bias */
  bool running;
};

/* in: x, then weight and bias if they are there; (rows, 4), or (rows / 2, 4, 2) */
static tl_status batch_norm(tl_tensor *const *in, void *context, tl_tensor **out) {
  const struct batch *p = context;
  tl_tensor *w = p->affine & 1 ? in[1] : NULL, *b = p->affine & 2 ? in[p->affine & 1 ? 2 : 1] : NULL, *x = NULL;
  tl_tensor *mean = p->running ? VECTOR(0.1, 0.2, -0.3, 0) : NULL, *var = p->running ? VECTOR(1, 0.5, 2, 1) : NULL;
  tl_status st = TL_OK;
  if (p->spatial) {
    tl_tensor *cube = NULL;
    int64_t shape[3] = {(int64_t)tl_size(in[0], 0) / 2, 2, 4};
    st = tl_reshape(in[0], 3, shape, &cube);
    if (st == TL_OK) st = tl_transpose(cube, 1, 2, &x);
    tl_tensor_free(cube);
  } else {
    st = tl_tensor_retain(in[0], &x);
  }
  if (st == TL_OK) st = tl_batch_norm(x, w, b, mean, var, p->training, 0.1, 0.1, out);
  FREE(x, mean, var);
  return st;
}

START_TEST(gradients_of_batch_norm) {
  for (int layout = 0; layout < LAYOUTS; layout++)
    for (int variant = 0; variant < 32; variant++) {
      struct batch p = {variant & 1, variant & 2, variant >> 3, variant & 4};
      tl_tensor *x = layout_tensor(layout, 6, 4, TL_FLOAT64, -1, 1, 3), *in[3] = {x};
      tl_tensor *w = TENSOR(TL_FLOAT64, SHAPE(4), 0.5, -1, 2, 1), *b = TENSOR(TL_FLOAT64, SHAPE(4), 1, 2, 3, 4);
      int n = 1;
      if (p.affine & 1) in[n++] = w;
      if (p.affine & 2) in[n++] = b;
      check_gradients("batch_norm", batch_norm, n, in, &p);
      FREE(x, w, b);
    }
}
END_TEST

START_TEST(training_again_does_not_disturb_an_earlier_graph) {
  tl_tensor *x = TENSOR(TL_FLOAT32, SHAPE(2, 1), 1, 3), *mean = VECTOR(0), *var = VECTOR(1), *y = NULL, *z = NULL,
            *sum = NULL, *grad = NULL;
  ck_ok(tl_set_requires_grad(x, true));
  ck_ok(tl_batch_norm(x, NULL, NULL, mean, var, false, 0.1, 0, &y)); /* eval: its gradient rests on the old variance */
  double version = tl_version_of(mean);
  ck_ok(tl_batch_norm(x, NULL, NULL, mean, var, true, 0.1, 0, &z));
  ck_assert(tl_version_of(mean) > version);
  ck_assert(!tl_requires_grad(mean));
  ck_ok(tl_sum(y, 0, NULL, false, &sum));
  backward(sum, NULL);
  ck_ok(tl_grad(x, &grad));
  ck_tensor(grad, 1e-6, 1, 1);
  FREE(x, mean, var, y, z, sum, grad);
}
END_TEST

/* float16 values, float32 parameters and statistics: what AMP runs */
START_TEST(batch_norm_in_low_precision) {
  for (int dtype = TL_FLOAT16; dtype <= TL_BFLOAT16; dtype++) {
    tl_tensor *x = TENSOR(dtype, SHAPE(4, 1), 1, 2, 3, 6), *w = VECTOR(2), *b = VECTOR(1), *mean = VECTOR(0),
              *var = VECTOR(1), *y = NULL;
    ck_ok(tl_set_requires_grad(x, true));
    ck_ok(tl_set_requires_grad(w, true));
    ck_ok(tl_set_requires_grad(b, true));
    ck_ok(tl_batch_norm(x, w, b, mean, var, true, 1, 0, &y));
    ck_assert_int_eq(tl_dtype_of(y), dtype);
    double s = sqrt(3.5);
    ck_tensor(y, 1e-2, 1 - 4 / s, 1 - 2 / s, 1, 1 + 6 / s);
    ck_tensor(mean, 0, 3);
    ck_tensor(var, 1e-6, 14.0 / 3);
    tl_tensor *g = TENSOR(dtype, SHAPE(4, 1), 1, 0, 0, 1), *dx = NULL, *dw = NULL, *db = NULL;
    backward(y, g);
    ck_ok(tl_grad(x, &dx));
    ck_ok(tl_grad(w, &dw));
    ck_ok(tl_grad(b, &db));
    ck_assert_int_eq(tl_dtype_of(dx), dtype);
    ck_assert_int_eq(tl_dtype_of(dw), TL_FLOAT32);
    ck_tensor(dw, 1e-6, 1 / s);
    ck_tensor(db, 0, 2);
    FREE(x, w, b, mean, var, y, g, dx, dw, db);
  }
}
END_TEST

/* Running statistics through a view, and of another dtype than the input. */
START_TEST(running_statistics_of_any_layout_and_dtype) {
  tl_tensor *x = TENSOR(TL_FLOAT32, SHAPE(2, 2), 1, 10, 3, 30), *both = TENSOR(TL_FLOAT64, SHAPE(2, 2), 0, 1, 0, 1),
            *mean = NULL, *var = NULL, *y = NULL;
  ck_ok(tl_select(both, 1, 0, &mean));
  ck_ok(tl_select(both, 1, 1, &var));
  ck_ok(tl_batch_norm(x, NULL, NULL, mean, var, true, 1, 1e-5, &y));
  ck_tensor(both, 1e-6, 2, 2, 20, 200);
  FREE(x, both, mean, var, y);
}
END_TEST

START_TEST(no_samples) {
  tl_tensor *x = TENSOR(TL_FLOAT32, SHAPE(0, 2, 3), 0), *w = VECTOR(1, 2), *mean = VECTOR(5, 6), *var = VECTOR(7, 8),
            *y = NULL, *g = NULL, *dw = NULL;
  ck_ok(tl_set_requires_grad(w, true));
  ck_ok(tl_batch_norm(x, w, NULL, mean, var, true, 0.1, 1e-5, &y));
  ck_tensor(mean, 0, 5, 6);
  ck_tensor(var, 0, 7, 8);
  ck_ok(tl_empty(SHAPE(0, 2, 3), TL_FLOAT32, test_device(), &g));
  backward(y, g);
  ck_ok(tl_grad(w, &dw));
  ck_tensor(dw, 0, 0, 0);
  FREE(x, w, mean, var, y, g, dw);
}
END_TEST

/* ---- layer, group, RMS norm ---- */

enum { LAYER, LAYER_ALL, GROUP, RMS };
struct rows {
  int kind, affine;
};

/* x (rows, 4); LAYER_ALL normalises all of it, GROUP reads it as (rows / 2, 4, 2) with 2 groups */
static tl_status row_norm(tl_tensor *const *in, void *context, tl_tensor **out) {
  const struct rows *p = context;
  tl_tensor *w = p->affine & 1 ? in[1] : NULL, *b = p->affine & 2 ? in[p->affine & 1 ? 2 : 1] : NULL;
  int64_t shape[2] = {(int64_t)tl_size(in[0], 0), 4};
  if (p->kind == LAYER) return tl_layer_norm(in[0], 1, shape + 1, w, b, 0.1, out);
  if (p->kind == LAYER_ALL) return tl_layer_norm(in[0], 2, shape, w, b, 0.1, out);
  if (p->kind == RMS) return tl_rms_norm(in[0], 1, shape + 1, w, 0.1, out);
  tl_tensor *cube = NULL, *x = NULL;
  int64_t split[3] = {shape[0] / 2, 2, 4};
  tl_status st = tl_reshape(in[0], 3, split, &cube);
  if (st == TL_OK) st = tl_transpose(cube, 1, 2, &x);
  if (st == TL_OK) st = tl_group_norm(x, 2, w, b, 0.1, out);
  FREE(cube, x);
  return st;
}

START_TEST(gradients_of_row_norms) {
  for (int layout = 0; layout < LAYOUTS; layout++)
    for (int kind = LAYER; kind <= RMS; kind++)
      for (int affine = 0; affine < (kind == RMS ? 2 : 4); affine++) {
        struct rows p = {kind, affine};
        int64_t n_rows = layout == EMPTY ? 0 : 6;
        bool all = kind == LAYER_ALL;
        tl_tensor *x = layout_tensor(layout, 6, 4, TL_FLOAT64, -1, 1, 3), *in[3] = {x}, *w, *b;
        w = all ? layout_tensor(layout, n_rows, 4, TL_FLOAT64, -1, 1, 4) : TENSOR(TL_FLOAT64, SHAPE(4), 0.5, -1, 2, 1);
        b = all ? layout_tensor(layout, n_rows, 4, TL_FLOAT64, -1, 1, 5) : TENSOR(TL_FLOAT64, SHAPE(4), 1, 2, 3, 4);
        int n = 1;
        if (affine & 1) in[n++] = w;
        if (affine & 2) in[n++] = b;
        check_gradients("row norm", row_norm, n, in, &p);
        FREE(x, w, b);
      }
}
END_TEST

START_TEST(values_of_row_norms) {
  tl_tensor *x = TENSOR(TL_FLOAT32, SHAPE(1, 4), 1, 2, 3, 6), *w = VECTOR(1, 2, 1, 1), *b = VECTOR(0, 1, 0, 0);
  tl_tensor *layer = NULL, *group = NULL, *rms = NULL;
  double s = 1 / sqrt(3.5 + 1e-5), half = 0.5 / sqrt(0.25 + 1e-5), last = 1.5 / sqrt(2.25 + 1e-5),
         r = 1 / sqrt(12.5 + 1e-5);
  ck_ok(tl_layer_norm(x, SHAPE(4), w, b, 1e-5, &layer));
  ck_tensor(layer, 1e-6, -2 * s, 1 - 2 * s, 0, 3 * s);
  ck_ok(tl_group_norm(x, 2, w, b, 1e-5, &group));
  ck_tensor(group, 1e-6, -half, 1 + 2 * half, -last, last);
  ck_ok(tl_rms_norm(x, SHAPE(4), w, 1e-5, &rms));
  ck_tensor(rms, 1e-6, r, 4 * r, 3 * r, 6 * r);
  FREE(x, w, b, layer, group, rms);
}
END_TEST

/* Large enough to run in parallel: the same bits with one thread and with several. */
START_TEST(threads_change_no_bit) {
  tl_tensor *flat = layout_tensor(CONTIGUOUS, 512, 256, TL_FLOAT32, -1, 1, 1), *x = NULL, *w = NULL;
  ck_ok(tl_view(flat, SHAPE(16, 32, 16, 16), &x));
  ck_ok(tl_full(SHAPE(256), 1.5, TL_FLOAT32, test_device(), &w));
  ck_ok(tl_set_requires_grad(w, true));
  double *first[3] = {NULL};
  for (int k = 0; k < 2; k++) {
    ck_ok(tl_set_num_threads(k == 0 ? 1 : 3));
    tl_tensor *y[3] = {NULL};
    ck_ok(tl_set_grad(w, NULL));
    ck_ok(tl_batch_norm(x, NULL, NULL, NULL, NULL, true, 0.1, 1e-5, &y[0]));
    ck_ok(tl_layer_norm(flat, SHAPE(256), w, NULL, 1e-5, &y[1]));
    backward(y[1], flat);
    ck_ok(tl_grad(w, &y[2]));
    for (int i = 0; i < 3; i++) {
      int64_t n = (int64_t)tl_numel(y[i]);
      if (k == 0) first[i] = malloc((size_t)n * sizeof(double));
      if (k == 0) ck_ok(tl_to_doubles(y[i], n, first[i]));
      else ck_values(y[i], n, first[i], 0);
    }
    FREE(y[0], y[1], y[2]);
  }
  for (int i = 0; i < 3; i++) free(first[i]);
  FREE(flat, x, w);
}
END_TEST

START_TEST(messages) {
  tl_tensor *x = TENSOR(TL_FLOAT32, SHAPE(2, 3), 1, 2, 3, 4, 5, 6), *two = VECTOR(1, 2), *three = VECTOR(1, 2, 3),
            *y = NULL;
  tl_tensor *i = TENSOR(TL_INT64, SHAPE(2, 3), 1, 2, 3, 4, 5, 6), *leaf = VECTOR(1, 2, 3), *wide = NULL;
  ck_ok(tl_set_requires_grad(leaf, true));
  ck_ok(tl_expand(two, SHAPE(2, 2), &wide));
  ck_fails(tl_batch_norm(two, NULL, NULL, NULL, NULL, true, 0.1, 0, &y), TL_ERR_SHAPE, "(N, C, ..), got (2)");
  ck_fails(tl_batch_norm(i, NULL, NULL, NULL, NULL, true, 0.1, 0, &y), TL_ERR_DTYPE, "int64");
  ck_fails(tl_batch_norm(x, two, NULL, NULL, NULL, true, 0.1, 0, &y), TL_ERR_SHAPE,
           "weight is (2), an input of (2x3) needs (3)");
  ck_fails(tl_batch_norm(x, NULL, wide, NULL, NULL, true, 0.1, 0, &y), TL_ERR_SHAPE, "bias is (2x2)");
  ck_fails(tl_batch_norm(x, NULL, NULL, three, NULL, true, 0.1, 0, &y), TL_ERR_VALUE, "only running_mean");
  ck_fails(tl_batch_norm(x, NULL, NULL, three, leaf, true, 0.1, 0, &y), TL_ERR_STATE, "cannot require gradients");
  ck_fails(tl_layer_norm(x, SHAPE(2), NULL, NULL, 0, &y), TL_ERR_SHAPE,
           "(2x3) does not end in the normalised shape (2)");
  ck_fails(tl_layer_norm(x, SHAPE(1, 2, 3), NULL, NULL, 0, &y), TL_ERR_SHAPE, "(1x2x3)");
  ck_fails(tl_layer_norm(x, SHAPE(3), two, NULL, 0, &y), TL_ERR_SHAPE, "weight is (2), an input of (2x3) needs (3)");
  ck_fails(tl_rms_norm(x, 0, NULL, NULL, 0, &y), TL_ERR_SHAPE, "one dim at least");
  ck_fails(tl_group_norm(x, 2, NULL, NULL, 0, &y), TL_ERR_VALUE, "2 groups do not divide the 3 channels of (2x3)");
  ck_assert_ptr_null(y);
  FREE(x, two, three, i, leaf, wide);
}
END_TEST

START_TEST(failing_allocations_move_nothing) {
  tl_tensor *x = layout_tensor(TRANSPOSED, 6, 4, TL_FLOAT16, -1, 1, 1), *w = VECTOR(1, 2, 3, 4);
  tl_tensor *g = layout_tensor(TRANSPOSED, 6, 4, TL_FLOAT16, -1, 1, 2), *mean = VECTOR(0, 0, 0, 0),
            *var = VECTOR(1, 1, 1, 1);
  ck_ok(tl_set_requires_grad(x, true));
  ck_ok(tl_set_requires_grad(w, true));
  for (int which = 0; which < 2; which++) {
    int64_t before = live_tensors();
    bool done = false;
    for (int64_t k = 1; !done; k++) {
      tl_tensor *y = NULL;
      tl_walk *walk = NULL;
      tl_fail_allocation(k);
      tl_status st = which == 0 ? tl_batch_norm(x, w, NULL, mean, var, true, 0.1, 1e-5, &y)
                                : tl_layer_norm(x, SHAPE(4), w, NULL, 1e-5, &y);
      bool forward = st == TL_OK;
      if (forward) st = tl_backward(y, g, false, &walk);
      tl_fail_allocation(0);
      done = st == TL_OK;
      if (!done) ck_assert_int_eq(st, TL_ERR_MEMORY);
      if (!forward && which == 0) ck_tensor(mean, 0, 0, 0, 0, 0);
      tl_tensor_free(y);
      ck_ok(tl_fill_(mean, 0));
      ck_ok(tl_fill_(var, 1));
      ck_ok(tl_set_grad(x, NULL));
      ck_ok(tl_set_grad(w, NULL));
      ck_assert_int_eq(live_tensors(), before);
    }
  }
  FREE(x, w, g, mean, var);
}
END_TEST

TEST_MAIN("norm", two_values_and_their_running_statistics, momentum_one_takes_the_batch, cumulative_factors_average,
          one_value_per_channel_is_an_error_that_moves_nothing, variance_does_not_cancel_for_a_large_mean,
          gradients_of_batch_norm, training_again_does_not_disturb_an_earlier_graph, batch_norm_in_low_precision,
          running_statistics_of_any_layout_and_dtype, no_samples, gradients_of_row_norms, values_of_row_norms,
          threads_change_no_bit, messages, failing_allocations_move_nothing)
