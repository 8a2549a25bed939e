/* test_linear_cross_entropy.c: the chunked loss equals linear followed by cross_entropy, forward and backward, whatever
 * the chunk; gradients made in forward take whatever scale arrives later. */
#include "check_tl.h"

static const int NONE = TL_REDUCE_NONE, MEAN = TL_REDUCE_MEAN, SUM = TL_REDUCE_SUM;
enum { ROWS = 7, WIDTH = 3, CLASSES = 5 };

typedef struct setting {
  bool fused;
  int reduction;
  int64_t chunk, ignore;
  double smoothing;
  tl_tensor *target, *bias, *weight;
} setting;

/* in: x, w, and b where there is a third */
static tl_status loss(tl_tensor *const *in, void *context, tl_tensor **out) {
  const setting *s = context;
  tl_tensor *b = s->bias == NULL ? NULL : in[2], *y = NULL;
  if (s->fused)
    return tl_linear_cross_entropy(in[0], in[1], s->target, b, s->weight, s->ignore, s->smoothing, s->reduction,
                                   s->chunk, out);
  tl_status st = tl_linear(in[0], in[1], b, &y);
  if (st == TL_OK) st = tl_cross_entropy(y, s->target, s->weight, s->ignore, s->smoothing, s->reduction, out);
  tl_tensor_free(y);
  return st;
}

static tl_tensor *random_tensor(int64_t rows, int64_t columns, int dtype, double seed) {
  return layout_tensor(CONTIGUOUS, rows, columns, dtype, -1, 1, seed);
}

static tl_tensor *leaf_of(tl_tensor *t) {
  tl_tensor *y = NULL;
  ck_ok(tl_clone(t, &y));
  ck_ok(tl_set_requires_grad(y, true));
  return y;
}

static tl_tensor *leaf(tl_tensor *t) {
  ck_ok(tl_set_requires_grad(t, true));
  return t;
}

static void backward(tl_tensor *y, tl_tensor *grad, bool retain) {
  tl_walk *walk = NULL;
  ck_ok(tl_backward(y, grad, retain, &walk));
  ck_assert_ptr_null(walk);
}

static void same(const char *what, tl_tensor *a, tl_tensor *b, double tolerance) {
  enum { MOST = 8192 };
  static double expected[MOST];
  ck_assert_ptr_nonnull(a);
  ck_assert_ptr_nonnull(b);
  const int64_t n = (int64_t)tl_numel(b);
  ck_assert_int_le(n, MOST);
  ck_assert_msg((int64_t)tl_numel(a) == n, "%s", what);
  ck_ok(tl_to_doubles(b, n, expected));
  ck_values(a, n, expected, tolerance);
}

static tl_tensor *grad_of(tl_tensor *t) {
  tl_tensor *g = NULL;
  ck_ok(tl_grad(t, &g));
  return g;
}

/* Loss and gradients of both ways with one incoming gradient; gradients are those of `scale` times the loss. */
static void compare(setting *s, tl_tensor *const *data, double scale, double tolerance) {
  tl_tensor *in[2][3], *y[2] = {NULL, NULL}, *g = NULL;
  for (int way = 0; way < 2; way++) {
    s->fused = way == 0;
    for (int i = 0; i < 3; i++) in[way][i] = leaf_of(data[i]);
    ck_ok(loss(in[way], s, &y[way]));
    if (g == NULL) ck_ok(tl_mul_scalar(y[way], 0, &g));
    tl_tensor *arriving = NULL;
    ck_ok(tl_detach(g, &arriving));
    ck_ok(tl_fill_(arriving, scale));
    backward(y[way], arriving, false);
    tl_tensor_free(arriving);
  }
  ck_assert_int_eq(tl_dtype_of(y[0]), tl_dtype_of(y[1]));
  same("loss", y[0], y[1], tolerance);
  for (int i = 0; i < (s->bias == NULL ? 2 : 3); i++) {
    tl_tensor *a = grad_of(in[0][i]), *b = grad_of(in[1][i]);
    same("gradient", a, b, tolerance);
    ck_assert_int_eq(tl_dtype_of(a), tl_dtype_of(in[0][i]));
    tl_tensor_free(a);
    tl_tensor_free(b);
  }
  for (int way = 0; way < 2; way++) {
    for (int i = 0; i < 3; i++) tl_tensor_free(in[way][i]);
    tl_tensor_free(y[way]);
  }
  tl_tensor_free(g);
}

static tl_tensor *some_labels(void) { return TENSOR(TL_INT64, SHAPE(ROWS), 0, 4, 2, 2, 1, 3, 4); }

START_TEST(equals_linear_and_cross_entropy) {
  tl_tensor *target = some_labels(), *weight = VECTOR(0.5, 1, 2, 3, 0.1), *b = NULL;
  static const double tolerances[] = {
      [TL_FLOAT32] = 1e-5, [TL_FLOAT16] = 1e-2, [TL_BFLOAT16] = 6e-2, [TL_FLOAT64] = 1e-12};
  for (int dtype = TL_FLOAT32; dtype <= TL_FLOAT64; dtype++) {
    tl_tensor *rows = random_tensor(1, CLASSES, dtype, 3);
    ck_ok(tl_flatten(rows, 0, -1, &b));
    tl_tensor *data[3] = {random_tensor(ROWS, WIDTH, dtype, 1), random_tensor(CLASSES, WIDTH, dtype, 2), b};
    for (int variant = 0; variant < 16; variant++)
      for (int reduction = NONE; reduction <= SUM; reduction++)
        for (int64_t chunk = 0; chunk < 9; chunk += 3) {
          setting s = {.reduction = reduction, .chunk = chunk, .target = target};
          s.ignore = variant & 1 ? 2 : -100, s.smoothing = variant & 2 ? 0.1 : 0;
          s.weight = variant & 4 ? weight : NULL, s.bias = variant & 8 ? b : NULL;
          compare(&s, data, variant & 1 ? 1 : 3, tolerances[dtype]);
        }
    for (int i = 0; i < 3; i++) tl_tensor_free(data[i]);
    tl_tensor_free(rows);
  }
  tl_tensor_free(target);
  tl_tensor_free(weight);
}
END_TEST

START_TEST(gradients_are_those_of_differences) {
  tl_tensor *target = some_labels(), *row = random_tensor(1, CLASSES, TL_FLOAT64, 3), *b = NULL;
  ck_ok(tl_flatten(row, 0, -1, &b));
  for (int layout = 0; layout < EMPTY; layout++)
    for (int reduction = NONE; reduction <= SUM; reduction++) {
      setting s = {.fused = true, .reduction = reduction, .chunk = 2, .ignore = 4, .target = target, .bias = b};
      tl_tensor *in[3] = {layout_tensor(layout, ROWS, WIDTH, TL_FLOAT64, -1, 1, 1),
                          layout_tensor(layout, CLASSES, WIDTH, TL_FLOAT64, -1, 1, 2), b};
      check_gradients("linear_cross_entropy", loss, 3, in, &s);
      tl_tensor_free(in[0]);
      tl_tensor_free(in[1]);
    }
  tl_tensor *all[] = {target, row, b};
  for (int i = 0; i < 3; i++) tl_tensor_free(all[i]);
}
END_TEST

START_TEST(nothing_to_learn_from_is_zero) {
  tl_tensor *x = leaf(random_tensor(ROWS, WIDTH, TL_FLOAT32, 1)),
            *w = leaf(random_tensor(CLASSES, WIDTH, TL_FLOAT32, 2)), *ignored = NULL,
            *none = make_tensor(TL_INT64, 1, (const int64_t[]){0}, NULL), *empty = NULL;
  ck_ok(tl_full(SHAPE(ROWS), -100, TL_INT64, test_device(), &ignored));
  ck_ok(tl_empty(SHAPE(0, WIDTH), TL_FLOAT32, test_device(), &empty));
  for (int reduction = MEAN; reduction <= SUM; reduction++)
    for (int64_t chunk = 0; chunk < 4; chunk += 3) {
      tl_tensor *y = NULL, *z = NULL;
      ck_ok(tl_linear_cross_entropy(x, w, ignored, NULL, NULL, -100, 0.1, reduction, chunk, &y));
      ck_tensor(y, 0, 0);
      backward(y, NULL, false);
      ck_ok(tl_linear_cross_entropy(empty, w, none, NULL, NULL, -100, 0, reduction, chunk, &z));
      ck_tensor(z, 0, 0);
      backward(z, NULL, false);
      tl_tensor_free(y);
      tl_tensor_free(z);
    }
  tl_tensor *gx = grad_of(x), *gw = grad_of(w);
  static const double zeros[ROWS * WIDTH] = {0};
  ck_values(gx, ROWS * WIDTH, zeros, 0);
  ck_values(gw, CLASSES * WIDTH, zeros, 0);
  tl_tensor *all[] = {x, w, ignored, none, empty, gx, gw};
  for (int i = 0; i < 7; i++) tl_tensor_free(all[i]);
}
END_TEST

/* The kept gradients are scaled where they lie, unless the graph is needed once more. */
START_TEST(retained_graphs_give_the_same_again) {
  tl_tensor *target = some_labels(), *half = NULL;
  ck_ok(tl_full(0, NULL, 0.5, TL_FLOAT32, test_device(), &half));
  for (int reduction = NONE; reduction <= SUM; reduction++)
    for (int64_t chunk = 0; chunk < 4; chunk += 3) {
      tl_tensor *x = leaf(random_tensor(ROWS, WIDTH, TL_FLOAT32, 1)),
                *w = leaf(random_tensor(CLASSES, WIDTH, TL_FLOAT32, 2)), *each = NULL, *y = NULL, *once = NULL,
                *twice = NULL;
      ck_ok(tl_linear_cross_entropy(x, w, target, NULL, NULL, -100, 0, reduction, chunk, &each));
      ck_ok(tl_sum(each, 0, NULL, false, &y));
      backward(y, half, true);
      tl_tensor *first = grad_of(w);
      ck_ok(tl_mul_scalar(first, 3, &once));
      backward(y, NULL, false); /* half and a whole are three halves */
      twice = grad_of(w);
      same("accumulated", twice, once, 1e-6);
      tl_walk *walk = NULL;
      ck_fails(tl_backward(y, NULL, false, &walk), TL_ERR_STATE, "retain_graph");
      tl_tensor *all[] = {x, w, each, y, first, once, twice};
      for (int i = 0; i < 7; i++) tl_tensor_free(all[i]);
    }
  tl_tensor_free(target);
  tl_tensor_free(half);
}
END_TEST

START_TEST(autocast_computes_logits_in_the_low_type_and_the_loss_in_float32) {
  tl_tensor *target = some_labels(), *x = leaf(random_tensor(ROWS, WIDTH, TL_FLOAT32, 1)),
            *w = leaf(random_tensor(CLASSES, WIDTH, TL_FLOAT32, 2));
  static const int low[2] = {TL_FLOAT16, TL_BFLOAT16};
  for (int i = 0; i < 2; i++)
    for (int reduction = NONE; reduction <= SUM; reduction++) {
      tl_tensor *y = NULL, *exact = NULL, *grad = NULL, *half = NULL, *z = NULL;
      int former;
      ck_ok(tl_linear_cross_entropy(x, w, target, NULL, NULL, -100, 0, reduction, 3, &exact));
      ck_ok(tl_to(x, low[i], test_device(), &half));
      ck_ok(tl_autocast_enter(test_device() >> 8, low[i], true, &former));
      ck_ok(tl_linear_cross_entropy(x, w, target, NULL, NULL, -100, 0, reduction, 3, &y));
      ck_ok(tl_linear_cross_entropy(half, w, target, NULL, NULL, -100, 0, reduction, 3, &z));
      tl_autocast_leave(former);
      ck_assert_int_eq(tl_dtype_of(y), TL_FLOAT32);
      ck_assert_int_eq(tl_dtype_of(z), TL_FLOAT32);
      same("loss", y, exact, 2e-2);
      same("loss", z, y, 2e-2);
      if (reduction != NONE) {
        backward(y, NULL, false);
        grad = grad_of(w);
        ck_assert_int_eq(tl_dtype_of(grad), TL_FLOAT32);
      }
      tl_tensor *all[] = {y, exact, grad, half, z};
      for (int k = 0; k < 5; k++) tl_tensor_free(all[k]);
    }
  tl_tensor *all[] = {target, x, w};
  for (int i = 0; i < 3; i++) tl_tensor_free(all[i]);
}
END_TEST

/* Each row adds the same to w's gradient: in bfloat16 the sum over 64 chunks would stop growing, and a half's float16
 * would overflow before the mean divides. */
START_TEST(gradients_add_up_in_float32) {
  enum { MANY = 2048 };
  static const int low[2] = {TL_FLOAT16, TL_BFLOAT16};
  for (int i = 0; i < 2; i++) {
    tl_tensor *x = NULL, *w = NULL, *target = NULL, *y = NULL;
    ck_ok(tl_full(SHAPE(MANY, 1), 64, low[i], test_device(), &x));
    ck_ok(tl_full(SHAPE(2, 1), 0, low[i], test_device(), &w));
    ck_ok(tl_full(SHAPE(MANY), 1, TL_INT64, test_device(), &target));
    ck_ok(tl_set_requires_grad(w, true));
    ck_ok(tl_linear_cross_entropy(x, w, target, NULL, NULL, -100, 0, MEAN, 32, &y));
    ck_tensor(y, 1e-2, log(2));
    backward(y, NULL, false);
    tl_tensor *g = grad_of(w);
    ck_tensor(g, 0, 32, -32); /* 64 * (0.5, -0.5) */
    tl_tensor *all[] = {x, w, target, y, g};
    for (int k = 0; k < 5; k++) tl_tensor_free(all[k]);
  }
}
END_TEST

/* Products that are large enough for the matrix units, whose float32 sums are added to what is there. */
START_TEST(large_products_of_half_types) {
  enum { N = 96, C = 64, V = 128 };
  static const int low[2] = {TL_FLOAT16, TL_BFLOAT16};
  tl_tensor *target = NULL;
  tl_generator *g;
  ck_ok(tl_generator_new(5, &g));
  ck_ok(tl_empty(SHAPE(N), TL_INT64, test_device(), &target));
  ck_ok(tl_randint_(target, 0, V, g));
  for (int i = 0; i < 2; i++) {
    tl_tensor *x[2], *w[2], *y[2] = {NULL, NULL};
    x[0] = random_tensor(N, C, low[i], 1), w[0] = random_tensor(V, C, low[i], 2);
    ck_ok(tl_to(x[0], TL_FLOAT32, test_device(), &x[1]));
    ck_ok(tl_to(w[0], TL_FLOAT32, test_device(), &w[1]));
    for (int k = 0; k < 2; k++) {
      ck_ok(tl_linear_cross_entropy(leaf(x[k]), leaf(w[k]), target, NULL, NULL, -100, 0, SUM, 48, &y[k]));
      backward(y[k], NULL, false);
    }
    tl_tensor *gx[2] = {grad_of(x[0]), grad_of(x[1])}, *gw[2] = {grad_of(w[0]), grad_of(w[1])};
    same("loss", y[0], y[1], 1e-2);
    same("gradient of x", gx[0], gx[1], 3e-2);
    same("gradient of w", gw[0], gw[1], 3e-2);
    for (int k = 0; k < 2; k++) {
      tl_tensor *all[] = {x[k], w[k], y[k], gx[k], gw[k]};
      for (int e = 0; e < 5; e++) tl_tensor_free(all[e]);
    }
  }
  tl_tensor_free(target);
  tl_generator_free(g);
}
END_TEST

START_TEST(a_label_out_of_range_is_named_with_its_place) {
  tl_tensor *x = random_tensor(ROWS, WIDTH, TL_FLOAT32, 1), *w = random_tensor(CLASSES, WIDTH, TL_FLOAT32, 2),
            *y = NULL, *t = TENSOR(TL_INT64, SHAPE(ROWS), 0, 4, 2, 2, 1, 9, 4);
  ck_names_bad(tl_linear_cross_entropy(x, w, t, NULL, NULL, -100, 0, MEAN, 2, &y), &y, TL_ERR_INDEX,
               "label 9 (element 5 of the target)", " is outside 0..4");
  ck_assert_ptr_null(y);
  tl_tensor *all[] = {x, w, t};
  for (int i = 0; i < 3; i++) tl_tensor_free(all[i]);
}
END_TEST

START_TEST(operands_that_do_not_fit) {
  tl_tensor *x = random_tensor(ROWS, WIDTH, TL_FLOAT32, 1), *w = random_tensor(CLASSES, WIDTH, TL_FLOAT32, 2),
            *y = NULL, *t = some_labels(), *few = TENSOR(TL_INT64, SHAPE(2), 0, 1), *v = VECTOR(1, 2),
            *d = random_tensor(CLASSES, WIDTH, TL_FLOAT64, 2),
            *scalar = make_tensor(TL_FLOAT32, 0, NULL, (const double[]){1}), *five = leaf(VECTOR(1, 2, 3, 4, 5));
#define CALL(x, w, t, b, c, smoothing, reduction, chunk) \
  tl_linear_cross_entropy(x, w, t, b, c, -100, smoothing, reduction, chunk, &y)
  ck_fails(CALL(x, v, t, NULL, NULL, 0, MEAN, 0), TL_ERR_SHAPE, "the weight is (classes x in), got (2)");
  ck_fails(CALL(scalar, w, t, NULL, NULL, 0, MEAN, 0), TL_ERR_SHAPE, "got a number");
  ck_fails(CALL(t, w, t, NULL, NULL, 0, MEAN, 0), TL_ERR_DTYPE, "int64");
  ck_fails(CALL(w, x, few, NULL, NULL, 0, MEAN, 0), TL_ERR_SHAPE, "labels of (2)");
  ck_fails(CALL(x, d, t, NULL, NULL, 0, MEAN, 0), TL_ERR_DTYPE, "float64");
  ck_fails(CALL(x, w, t, v, NULL, 0, MEAN, 0), TL_ERR_SHAPE, "a bias of (2) for a weight of (5x3): (5) expected");
  ck_fails(CALL(x, w, t, NULL, v, 0, MEAN, 0), TL_ERR_SHAPE, "the class weight is (2), there are 5 classes");
  ck_fails(CALL(x, w, t, NULL, five, 0, MEAN, 0), TL_ERR_UNSUPPORTED, "no gradient goes to weight");
  ck_fails(CALL(x, w, x, NULL, NULL, 0, MEAN, 0), TL_ERR_DTYPE, "cross_entropy takes probabilities");
  ck_fails(CALL(x, w, t, NULL, NULL, 2, MEAN, 0), TL_ERR_VALUE, "label_smoothing");
  ck_fails(CALL(x, w, t, NULL, NULL, 0, 9, 0), TL_ERR_VALUE, "reduction number 9");
  ck_fails(CALL(x, w, t, NULL, NULL, 0, MEAN, -1), TL_ERR_VALUE, "a chunk of -1 rows");
  ck_assert_ptr_null(y);
  tl_tensor *all[] = {x, w, t, few, v, d, scalar, five};
  for (int i = 0; i < 8; i++) tl_tensor_free(all[i]);
}
END_TEST

TEST_MAIN("linear_cross_entropy", equals_linear_and_cross_entropy, gradients_are_those_of_differences,
          nothing_to_learn_from_is_zero, retained_graphs_give_the_same_again,
          autocast_computes_logits_in_the_low_type_and_the_loss_in_float32, gradients_add_up_in_float32,
          large_products_of_half_types, a_label_out_of_range_is_named_with_its_place, operands_that_do_not_fit)
