/* test_loss.c: losses. Expected numbers were computed with PyTorch 2.15 on the CPU unless a comment derives them. */
#include "check_tl.h"

static const int NONE = TL_REDUCE_NONE, MEAN = TL_REDUCE_MEAN, SUM = TL_REDUCE_SUM;

static void backward(tl_tensor *y, tl_tensor *grad) {
  tl_walk *walk = NULL;
  ck_ok(tl_backward(y, grad, false, &walk));
  ck_assert_ptr_null(walk);
}

static tl_tensor *leaf(tl_tensor *t) {
  ck_ok(tl_set_requires_grad(t, true));
  return t;
}

/* values of a gradient */
#define ck_grad(t, tolerance, ...)            \
  do {                                        \
    tl_tensor *grad_ = NULL;                  \
    ck_ok(tl_grad(t, &grad_));                \
    ck_assert_ptr_nonnull(grad_);             \
    ck_tensor(grad_, tolerance, __VA_ARGS__); \
    tl_tensor_free(grad_);                    \
  } while (0)

static tl_tensor *labels(int n, const double *values) { return make_tensor(TL_INT64, 1, (const int64_t[]){n}, values); }
#define LABELS(...) labels((int)(sizeof((double[]){__VA_ARGS__}) / sizeof(double)), (const double[]){__VA_ARGS__})

/* ---- element by element ---- */

/* One line a loss, so that the matrix below runs them all: kind, op, and whether inputs must be probabilities. */
struct pair {
  int kind, reduction;
  tl_tensor *weight, *pos_weight;
};
enum { MSE, L1, SMOOTH_L1, HUBER, BCE, BCE_LOGITS, KL, KL_LOG, PAIRS };
static const char *const pair_names[PAIRS] = {"mse",    "l1",        "smooth_l1", "huber", "bce", "bce_with_logits",
                                              "kl_div", "kl_div log"};

static tl_status pair_loss(tl_tensor *const *in, void *context, tl_tensor **out) {
  const struct pair *p = context;
  switch (p->kind) {
    case MSE: return tl_mse_loss(in[0], in[1], p->reduction, out);
    case L1: return tl_l1_loss(in[0], in[1], p->reduction, out);
    case SMOOTH_L1: return tl_smooth_l1_loss(in[0], in[1], 0.7, p->reduction, out);
    case HUBER: return tl_huber_loss(in[0], in[1], 0.7, p->reduction, out);
    case BCE: return tl_bce_loss(in[0], in[1], p->weight, p->reduction, out);
    case BCE_LOGITS: return tl_bce_with_logits_loss(in[0], in[1], p->weight, p->pos_weight, p->reduction, out);
    case KL: return tl_kl_div_loss(in[0], in[1], false, p->reduction, out);
    default: return tl_kl_div_loss(in[0], in[1], true, p->reduction, out);
  }
}

/* Inputs of 0.2 .. 0.8 suit all of them; x and t differ, so that |x - t| has a derivative. */
START_TEST(gradients_of_every_loss_layout_and_reduction) {
  for (int kind = 0; kind < PAIRS; kind++)
    for (int layout = 0; layout < LAYOUTS; layout++)
      for (int reduction = NONE; reduction <= SUM; reduction++) {
        if (layout == EMPTY && reduction == MEAN) continue; /* nan: see means_of_nothing */
        tl_tensor *in[2] = {layout_tensor(layout, 3, 4, TL_FLOAT64, 0.2, 0.8, 1),
                            layout_tensor(CONTIGUOUS, layout == EMPTY ? 0 : 3, 4, TL_FLOAT64, 0.2, 0.8, 2)};
        struct pair p = {kind, reduction, VECTOR(0.5, 2, 1, 3), VECTOR(2, 1, 0.5, 4)};
        check_gradients(pair_names[kind], pair_loss, 2, in, &p);
        tl_tensor *swapped[2] = {in[1], in[0]};
        check_gradients(pair_names[kind], pair_loss, 2, swapped, &p);
        tl_tensor_free(in[0]);
        tl_tensor_free(in[1]);
        tl_tensor_free(p.weight);
        tl_tensor_free(p.pos_weight);
      }
}
END_TEST

START_TEST(values_of_every_loss) {
  tl_tensor *x = VECTOR(0.1, 0.9, 0.4), *t = VECTOR(0, 1, 0.75);
  static const double expected[PAIRS][3] = {
      {0.01, 0.01, 0.1225},
      {0.1, 0.1, 0.35},
      {0.1 * 0.1 / 1.4, 0.1 * 0.1 / 1.4, 0.35 * 0.35 / 1.4},
      {0.005, 0.005, 0.06125},
      {0.10536052, 0.10536052, 0.81492437},
      {0.744396686, 0.341153890, 0.613015223},
      {0, -0.9, 0.75 * (-0.287682072 - 0.4)},
      {-0.1, 0.271828183, 0.740950006},
  };
  for (int kind = 0; kind < PAIRS; kind++)
    for (int dtype = TL_FLOAT32; dtype <= TL_FLOAT64; dtype++) {
      double tolerance = dtype == TL_FLOAT32 ? 1e-6 : dtype == TL_FLOAT64 ? 1e-7 : dtype == TL_FLOAT16 ? 3e-3 : 2e-2;
      tl_tensor *in[2], *y = NULL, *mean = NULL, *sum = NULL;
      ck_ok(tl_to(x, dtype, test_device(), &in[0]));
      ck_ok(tl_to(t, dtype, test_device(), &in[1]));
      struct pair p = {kind, NONE, NULL, NULL};
      ck_ok(pair_loss(in, &p, &y));
      ck_assert_int_eq(tl_dtype_of(y), dtype);
      ck_values(y, 3, expected[kind], tolerance);
      double total = expected[kind][0] + expected[kind][1] + expected[kind][2];
      p.reduction = MEAN;
      ck_ok(pair_loss(in, &p, &mean));
      ck_assert_int_eq(tl_ndim(mean), 0);
      ck_tensor(mean, tolerance, total / 3);
      p.reduction = SUM;
      ck_ok(pair_loss(in, &p, &sum));
      ck_tensor(sum, tolerance, total);
      tl_tensor *all[] = {in[0], in[1], y, mean, sum};
      for (int i = 0; i < 5; i++) tl_tensor_free(all[i]);
    }
  tl_tensor_free(x);
  tl_tensor_free(t);
}
END_TEST

START_TEST(bce_stays_finite_at_the_ends) {
  tl_tensor *x = leaf(VECTOR(0, 1, 0, 1)), *t = VECTOR(1, 0, 0, 1), *y = NULL;
  ck_ok(tl_bce_loss(x, t, NULL, NONE, &y));
  ck_tensor(y, 0, 100, 100, 0, 0);
  tl_tensor *ones = VECTOR(1, 1, 1, 1);
  backward(y, ones);
  ck_grad(x, 1e-6, -1e12, 1e12, 0, 0);
  tl_tensor_free(x);
  tl_tensor_free(t);
  tl_tensor_free(y);
  tl_tensor_free(ones);
}
END_TEST

START_TEST(bce_with_logits_does_not_overflow) {
  tl_tensor *x = leaf(VECTOR(1000, -1000, 1000, -1000)), *t = VECTOR(1, 0, 0, 1), *y = NULL, *ones = VECTOR(1, 1, 1, 1);
  ck_ok(tl_bce_with_logits_loss(x, t, NULL, NULL, NONE, &y));
  ck_tensor(y, 0, 0, 0, 1000, 1000);
  backward(y, ones);
  ck_grad(x, 0, 0, 0, 1, -1);
  tl_tensor_free(x);
  tl_tensor_free(t);
  tl_tensor_free(y);
  tl_tensor_free(ones);
}
END_TEST

START_TEST(kl_div_takes_targets_of_zero_and_means_by_batch) {
  tl_tensor *x = leaf(TENSOR(TL_FLOAT32, SHAPE(2, 2), -1, -INFINITY, -2, -0.5)),
            *t = TENSOR(TL_FLOAT32, SHAPE(2, 2), 1, 0, 0.5, 0.5), *y = NULL;
  ck_ok(tl_kl_div_loss(x, t, false, TL_REDUCE_BATCHMEAN, &y));
  /* (1 * (0 + 1) + 0 + 0.5 (ln 0.5 + 2) + 0.5 (ln 0.5 + 0.5)) / 2 */
  ck_tensor(y, 1e-6, (1 + 0.5 * (log(0.5) + 2) + 0.5 * (log(0.5) + 0.5)) / 2);
  backward(y, NULL);
  ck_grad(x, 1e-6, -0.5, 0, -0.25, -0.25);
  tl_tensor *z = NULL;
  ck_fails(tl_mse_loss(x, t, TL_REDUCE_BATCHMEAN, &z), TL_ERR_VALUE, "reduction number 3");
  tl_tensor_free(x);
  tl_tensor_free(t);
  tl_tensor_free(y);
}
END_TEST

START_TEST(means_of_nothing) {
  tl_tensor *x = leaf(TENSOR(TL_FLOAT32, SHAPE(0, 3), 0)), *t = TENSOR(TL_FLOAT32, SHAPE(0, 3), 0), *mean = NULL,
            *sum = NULL, *none = NULL;
  ck_ok(tl_mse_loss(x, t, MEAN, &mean));
  ck_ok(tl_mse_loss(x, t, SUM, &sum));
  ck_ok(tl_mse_loss(x, t, NONE, &none));
  ck_tensor(mean, 0, NAN);
  ck_tensor(sum, 0, 0);
  ck_assert_int_eq((int)tl_size(none, 1), 3);
  backward(sum, NULL);
  tl_tensor *grad = NULL;
  ck_ok(tl_grad(x, &grad));
  ck_assert_int_eq((int)tl_numel(grad), 0);
  tl_tensor *all[] = {x, t, mean, sum, none, grad};
  for (int i = 0; i < 6; i++) tl_tensor_free(all[i]);
}
END_TEST

START_TEST(mixed_dtypes_promote_and_gradients_return) {
  tl_tensor *x = leaf(VECTOR(1, 2)), *t = make_tensor(TL_FLOAT64, 1, (const int64_t[]){2}, (const double[]){0, 4}),
            *y = NULL;
  leaf(t);
  ck_ok(tl_mse_loss(x, t, SUM, &y));
  ck_assert_int_eq(tl_dtype_of(y), TL_FLOAT64);
  ck_tensor(y, 0, 5);
  backward(y, NULL);
  ck_grad(x, 0, 2, -4);
  ck_grad(t, 0, -2, 4);
  tl_tensor *counts = make_tensor(TL_INT64, 1, (const int64_t[]){2}, (const double[]){3, 2}), *z = NULL;
  ck_ok(tl_l1_loss(x, counts, SUM, &z));
  ck_assert_int_eq(tl_dtype_of(z), TL_FLOAT32);
  ck_tensor(z, 0, 2);
  tl_tensor *all[] = {x, t, y, counts, z};
  for (int i = 0; i < 5; i++) tl_tensor_free(all[i]);
}
END_TEST

START_TEST(nan_goes_through) {
  tl_tensor *x = VECTOR(NAN, 0.5), *t = VECTOR(0.5, 0.5);
  for (int kind = 0; kind < PAIRS; kind++) {
    tl_tensor *in[2] = {x, t}, *y = NULL;
    struct pair p = {kind, SUM, NULL, NULL};
    ck_ok(pair_loss(in, &p, &y));
    ck_tensor(y, 0, NAN);
    tl_tensor_free(y);
  }
  tl_tensor_free(x);
  tl_tensor_free(t);
}
END_TEST

START_TEST(messages_of_pairs) {
  tl_tensor *x = TENSOR(TL_FLOAT32, SHAPE(2, 1), 0.5, 0.5), *t = VECTOR(0, 1),
            *two = TENSOR(TL_FLOAT32, SHAPE(2, 1), 0.5, 2), *y = NULL;
  tl_tensor *i = make_tensor(TL_INT64, 1, (const int64_t[]){2}, (const double[]){0, 1}), *w = VECTOR(1, 2, 3);
  ck_fails(tl_mse_loss(x, t, MEAN, &y), TL_ERR_SHAPE, "the input is (2x1) but the target (2)");
  ck_fails(tl_mse_loss(i, i, MEAN, &y), TL_ERR_DTYPE, "int64");
  ck_names_bad(tl_bce_loss(x, two, NULL, MEAN, &y), &y, TL_ERR_VALUE, "element 1 of the input",
               " (2x1) or its target is not between 0 and 1");
  ck_names_bad(tl_bce_loss(two, x, NULL, MEAN, &y), &y, TL_ERR_VALUE, "element 1 of the input",
               " (2x1) or its target is not between 0 and 1: for logits there is BCEWithLogitsLoss");
  ck_fails(tl_bce_loss(x, x, w, MEAN, &y), TL_ERR_SHAPE, "weight of (3) does not broadcast to the input's (2x1)");
  ck_fails(tl_smooth_l1_loss(x, x, -1, MEAN, &y), TL_ERR_VALUE, "beta must not be negative, got -1");
  ck_fails(tl_huber_loss(x, x, 0, MEAN, &y), TL_ERR_VALUE, "delta must be positive, got 0");
  ck_fails(tl_mse_loss(x, x, 9, &y), TL_ERR_VALUE, "reduction number 9");
  tl_tensor *v = leaf(TENSOR(TL_FLOAT32, SHAPE(1), 1));
  ck_fails(tl_bce_loss(x, x, v, MEAN, &y), TL_ERR_UNSUPPORTED, "no gradient goes to weight");
  ck_assert_ptr_null(y);
  tl_tensor *all[] = {x, t, two, i, w, v};
  for (int k = 0; k < 6; k++) tl_tensor_free(all[k]);
}
END_TEST

/* ---- classes ---- */

START_TEST(cross_entropy_values) {
  tl_tensor *x = leaf(TENSOR(TL_FLOAT32, SHAPE(2, 2), 0, 0, 0, log(3))), *t = LABELS(0, -100), *y = NULL;
  ck_ok(tl_cross_entropy(x, t, NULL, -100, 0, MEAN, &y));
  ck_tensor(y, 1e-6, 0.693147);
  backward(y, NULL);
  ck_grad(x, 1e-6, -0.5, 0.5, 0, 0);
  tl_tensor *x2 = TENSOR(TL_FLOAT64, SHAPE(2, 2), 1, 2, 3, 0.4), *t2 = LABELS(-100, 1), *w = VECTOR(0.2, 0.3),
            *y2 = NULL;
  ck_ok(tl_cross_entropy(x2, t2, w, -100, 0.1, MEAN, &y2));
  ck_tensor(y2, 1e-7, 2.5404506);
  tl_tensor *all[] = {x, t, y, x2, t2, w, y2};
  for (int i = 0; i < 7; i++) tl_tensor_free(all[i]);
}
END_TEST

START_TEST(all_targets_ignored_is_zero) {
  for (int reduction = NONE; reduction <= SUM; reduction++) {
    tl_tensor *x = leaf(TENSOR(TL_FLOAT32, SHAPE(2, 2), 1, 2, NAN, 4)), *t = LABELS(-100, -100), *y = NULL, *one = NULL;
    ck_ok(tl_cross_entropy(x, t, NULL, -100, 0.1, reduction, &y));
    if (reduction == NONE) {
      ck_tensor(y, 0, 0, 0);
      one = VECTOR(1, 1);
    } else {
      ck_tensor(y, 0, 0);
    }
    backward(y, one);
    ck_grad(x, 0, 0, 0, 0, 0);
    tl_tensor_free(x);
    tl_tensor_free(t);
    tl_tensor_free(y);
    tl_tensor_free(one);
  }
  /* a batch of no rows counts as that */
  tl_tensor *x = TENSOR(TL_FLOAT32, SHAPE(0, 3), 0), *t = make_tensor(TL_INT64, 1, (const int64_t[]){0}, NULL),
            *y = NULL;
  ck_ok(tl_cross_entropy(x, t, NULL, -100, 0, MEAN, &y));
  ck_tensor(y, 0, 0);
  tl_tensor_free(x);
  tl_tensor_free(t);
  tl_tensor_free(y);
}
END_TEST

START_TEST(a_label_out_of_range_is_named_with_its_row) {
  tl_tensor *x = TENSOR(TL_FLOAT32, SHAPE(3, 2), 1, 2, 3, 4, 5, 6), *y = NULL;
  tl_tensor *t = LABELS(0, 2, -3), *u = LABELS(0, 1, -1);
  ck_names_bad(tl_cross_entropy(x, t, NULL, -100, 0, MEAN, &y), &y, TL_ERR_INDEX, "label 2",
               " in row 1 is outside 0..1");
  ck_names_bad(tl_nll_loss(x, u, NULL, -100, MEAN, &y), &y, TL_ERR_INDEX, "label -1", " in row 2 is outside 0..1");
  tl_error_index_base(1);
  ck_names_bad(tl_cross_entropy(x, t, NULL, -100, 0, NONE, &y), &y, TL_ERR_INDEX, "label 2",
               " in row 2 is outside 0..1");
  tl_error_index_base(0);
  tl_tensor *image = TENSOR(TL_FLOAT32, SHAPE(1, 2, 2, 1), 1, 2, 3, 4), *v = TENSOR(TL_INT64, SHAPE(1, 2, 1), 0, 7);
  ck_names_bad(tl_cross_entropy(image, v, NULL, -100, 0, SUM, &y), &y, TL_ERR_INDEX, "label 7",
               " in row 0, place 1 of the row, is outside 0..1");
  ck_assert_ptr_null(y);
  tl_tensor *all[] = {x, t, u, image, v};
  for (int i = 0; i < 5; i++) tl_tensor_free(all[i]);
}
END_TEST

START_TEST(impossible_rows_and_logits) {
  /* a row that is all -inf: loss inf, gradient 0; the other rows are untouched */
  tl_tensor *x = leaf(TENSOR(TL_FLOAT32, SHAPE(3, 2), 0, 0, -INFINITY, -INFINITY, 0, -INFINITY)), *t = LABELS(0, 1, 0),
            *y = NULL;
  ck_ok(tl_cross_entropy(x, t, NULL, -100, 0, NONE, &y));
  ck_tensor(y, 1e-6, log(2), INFINITY, 0);
  tl_tensor *ones = VECTOR(1, 1, 1);
  backward(y, ones);
  ck_grad(x, 1e-6, -0.5, 0.5, 0, 0, 0, 0);
  /* large logits neither overflow nor lose the small part */
  tl_tensor *big = TENSOR(TL_FLOAT32, SHAPE(1, 3), 100000, 100000, -100000), *one = LABELS(1), *z = NULL;
  ck_ok(tl_cross_entropy(big, one, NULL, -100, 0, MEAN, &z));
  ck_tensor(z, 1e-6, log(2));
  tl_tensor *all[] = {x, t, y, ones, big, one, z};
  for (int i = 0; i < 7; i++) tl_tensor_free(all[i]);
}
END_TEST

START_TEST(probabilities_as_targets) {
  tl_tensor *x = leaf(TENSOR(TL_FLOAT32, SHAPE(1, 3), 1, 2, 3)), *t = TENSOR(TL_FLOAT32, SHAPE(1, 3), 0, 1, 0),
            *label = LABELS(1);
  tl_tensor *soft = NULL, *hard = NULL;
  ck_ok(tl_cross_entropy(x, t, NULL, -100, 0.2, MEAN, &soft));
  ck_ok(tl_cross_entropy(x, label, NULL, -100, 0.2, MEAN, &hard));
  double value;
  ck_ok(tl_item(hard, &value));
  ck_tensor(soft, 1e-6, value);
  /* a class without probability adds nothing, even if its logit is -inf */
  tl_tensor *masked = TENSOR(TL_FLOAT32, SHAPE(1, 3), -INFINITY, 2, 2), *y = NULL;
  ck_ok(tl_cross_entropy(masked, t, NULL, -100, 0, SUM, &y));
  ck_tensor(y, 1e-6, log(2));
  tl_tensor *all[] = {x, t, label, soft, hard, masked, y};
  for (int i = 0; i < 7; i++) tl_tensor_free(all[i]);
}
END_TEST

struct classes {
  bool nll;
  int64_t ignore;
  double smoothing;
  int reduction;
  tl_tensor *target, *weight; /* target NULL: in[1] */
};

static tl_status class_loss(tl_tensor *const *in, void *context, tl_tensor **out) {
  const struct classes *c = context;
  tl_tensor *t = c->target != NULL ? c->target : in[1];
  if (c->nll) return tl_nll_loss(in[0], t, c->weight, c->ignore, c->reduction, out);
  return tl_cross_entropy(in[0], t, c->weight, c->ignore, c->smoothing, c->reduction, out);
}

/* (5, 4): rows; the same as (5, 4, 3) through an expanded or transposed third dim */
START_TEST(gradients_of_class_losses) {
  tl_tensor *rows = LABELS(1, 3, 0, 2, 2), *none = make_tensor(TL_INT64, 1, (const int64_t[]){0}, NULL),
            *weight = VECTOR(0.5, 1, 2, 3);
  for (int layout = 0; layout < LAYOUTS; layout++)
    for (int variant = 0; variant < 16; variant++)
      for (int reduction = NONE; reduction <= SUM; reduction++) {
        struct classes c = {variant & 8, variant & 4 ? 2 : -100,        variant & 2 ? 0.1 : 0,
                            reduction,   layout == EMPTY ? none : rows, variant & 1 ? weight : NULL};
        tl_tensor *in[2] = {layout_tensor(layout, 5, 4, TL_FLOAT64, -2, 2, 7),
                            layout_tensor(layout, 5, 4, TL_FLOAT64, 0.1, 0.4, 8)};
        check_gradients("labels", class_loss, 1, in, &c);
        c.target = NULL;
        if (!c.nll && c.ignore < 0) check_gradients("probabilities", class_loss, 2, in, &c);
        tl_tensor_free(in[0]);
        tl_tensor_free(in[1]);
      }
  tl_tensor_free(rows);
  tl_tensor_free(none);
  tl_tensor_free(weight);
}
END_TEST

static tl_status spatial_loss(tl_tensor *const *in, void *context, tl_tensor **out) {
  tl_tensor *x = NULL, *p = NULL, *t = NULL;
  const struct classes *c = context;
  tl_status st = tl_transpose(in[0], 1, 2, &x); /* (2, 3, 4) -> (2, 4, 3) */
  if (st == TL_OK && c->target == NULL) st = tl_transpose(in[1], 1, 2, &p);
  t = c->target != NULL ? c->target : p;
  if (st == TL_OK) st = tl_cross_entropy(x, t, c->weight, c->ignore, c->smoothing, c->reduction, out);
  tl_tensor_free(x);
  tl_tensor_free(p);
  return st;
}

START_TEST(gradients_with_spatial_dims) {
  tl_tensor *flat[2] = {layout_tensor(CONTIGUOUS, 2, 12, TL_FLOAT64, -2, 2, 3),
                        layout_tensor(CONTIGUOUS, 2, 12, TL_FLOAT64, 0.1, 0.4, 4)},
            *in[2];
  for (int i = 0; i < 2; i++) ck_ok(tl_view(flat[i], SHAPE(2, 3, 4), &in[i]));
  tl_tensor *t = TENSOR(TL_INT64, SHAPE(2, 3), 0, 3, 1, 1, 2, 2), *weight = VECTOR(0.5, 1, 2, 3);
  for (int variant = 0; variant < 8; variant++)
    for (int reduction = NONE; reduction <= SUM; reduction++) {
      struct classes c = {false, variant & 4 ? 1 : -100,     variant & 2 ? 0.1 : 0, reduction,
                          t,     variant & 1 ? weight : NULL};
      check_gradients("labels", spatial_loss, 1, in, &c);
      c.target = NULL;
      if (c.ignore < 0) check_gradients("probabilities", spatial_loss, 2, in, &c);
    }
  tl_tensor *all[] = {flat[0], flat[1], in[0], in[1], t, weight};
  for (int i = 0; i < 6; i++) tl_tensor_free(all[i]);
}
END_TEST

/* Long rows, short rows and tiles all take other paths: each must equal log_softmax followed by nll. */
START_TEST(cross_entropy_equals_nll_of_log_softmax) {
  static const int64_t shapes[][3] = {{64, 10, 1}, {300, 7, 1}, {3, 5000, 1}, {2, 9, 300}, {1, 1, 1}, {40, 1500, 1}};
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
    const int64_t *s = shapes[i];
    tl_tensor *x = NULL, *t = NULL, *log = NULL, *a = NULL, *b = NULL;
    tl_generator *g;
    ck_ok(tl_generator_new(5, &g));
    ck_ok(tl_empty(3, s, TL_FLOAT32, test_device(), &x));
    ck_ok(tl_normal_(x, 0, 3, g));
    ck_ok(tl_empty(SHAPE(s[0], s[2]), TL_INT64, test_device(), &t));
    ck_ok(tl_randint_(t, 0, (double)s[1], g));
    ck_ok(tl_log_softmax(x, 1, &log));
    ck_ok(tl_cross_entropy(x, t, NULL, -100, 0, NONE, &a));
    ck_ok(tl_nll_loss(log, t, NULL, -100, NONE, &b));
    double expected[1024];
    int64_t n = (int64_t)tl_numel(b);
    ck_ok(tl_to_doubles(b, n, expected));
    ck_values(a, n, expected, 1e-5);
    tl_tensor *all[] = {x, t, log, a, b};
    for (int k = 0; k < 5; k++) tl_tensor_free(all[k]);
    tl_generator_free(g);
  }
}
END_TEST

START_TEST(low_precision_and_small_labels) {
  for (int dtype = TL_FLOAT16; dtype <= TL_BFLOAT16; dtype++) {
    tl_tensor *x = leaf(TENSOR(dtype, SHAPE(2, 2), 1, 2, 3, 0.5)), *t = TENSOR(TL_UINT8, SHAPE(2), 1, 0), *y = NULL;
    ck_ok(tl_cross_entropy(x, t, NULL, -100, 0, MEAN, &y));
    ck_assert_int_eq(tl_dtype_of(y), dtype);
    ck_tensor(y, 2e-3, (log1p(exp(-1)) + log1p(exp(-2.5))) / 2);
    backward(y, NULL);
    double a = 0.5 / (1 + exp(1)), b = 0.5 / (1 + exp(2.5));
    ck_grad(x, 2e-3, a, -a, -b, b);
    tl_tensor_free(x);
    tl_tensor_free(t);
    tl_tensor_free(y);
  }
}
END_TEST

START_TEST(messages_of_classes) {
  tl_tensor *x = TENSOR(TL_FLOAT32, SHAPE(2, 3), 1, 2, 3, 4, 5, 6), *t = LABELS(0, 1, 2), *ok = LABELS(0, 1),
            *w = VECTOR(1, 2), *y = NULL;
  tl_tensor *p = TENSOR(TL_FLOAT32, SHAPE(2), 0, 1), *b = TENSOR(TL_BOOL, SHAPE(2), 0, 1);
  ck_fails(tl_cross_entropy(x, t, NULL, -100, 0, MEAN, &y), TL_ERR_SHAPE,
           "labels of (3) do not belong to an input of (2x3)");
  ck_fails(tl_cross_entropy(x, p, NULL, -100, 0, MEAN, &y), TL_ERR_SHAPE, "the input's shape (2x3), got (2)");
  ck_fails(tl_cross_entropy(x, ok, w, -100, 0, MEAN, &y), TL_ERR_SHAPE,
           "the weight is (2), the input of (2x3) has 3 classes");
  ck_fails(tl_cross_entropy(x, ok, NULL, -100, 1.5, MEAN, &y), TL_ERR_VALUE,
           "label_smoothing is a number from 0 to 1, got 1.5");
  ck_fails(tl_cross_entropy(x, x, NULL, 1, 0, MEAN, &y), TL_ERR_VALUE, "ignore_index needs labels");
  ck_fails(tl_cross_entropy(x, b, NULL, -100, 0, MEAN, &y), TL_ERR_DTYPE, "got bool");
  ck_fails(tl_nll_loss(x, x, NULL, -100, MEAN, &y), TL_ERR_DTYPE, "labels are integers (int64), got float32");
  ck_fails(tl_cross_entropy(ok, ok, NULL, -100, 0, MEAN, &y), TL_ERR_DTYPE, "int64");
  ck_fails(tl_cross_entropy(x, ok, NULL, -100, 0, TL_REDUCE_BATCHMEAN, &y), TL_ERR_VALUE, "reduction number 3");
  ck_assert_ptr_null(y);
  tl_tensor *all[] = {x, t, ok, w, p, b};
  for (int i = 0; i < 6; i++) tl_tensor_free(all[i]);
}
END_TEST

/* The same bits with one thread and with several. */
START_TEST(threads_do_not_change_the_sum) {
  tl_tensor *x = layout_tensor(CONTIGUOUS, 1000, 130, TL_FLOAT32, 0, 1, 1),
            *t = layout_tensor(CONTIGUOUS, 1000, 130, TL_FLOAT32, 0, 1, 2);
  double value[2][3];
  for (int k = 0; k < 2; k++) {
    ck_ok(tl_set_num_threads(k == 0 ? 1 : 3));
    tl_tensor *y[3] = {NULL};
    ck_ok(tl_mse_loss(x, t, SUM, &y[0]));
    ck_ok(tl_bce_loss(x, t, NULL, MEAN, &y[1]));
    ck_ok(tl_cross_entropy(x, t, NULL, -100, 0, SUM, &y[2]));
    for (int i = 0; i < 3; i++) {
      ck_ok(tl_item(y[i], &value[k][i]));
      tl_tensor_free(y[i]);
    }
  }
  for (int i = 0; i < 3; i++) ck_assert(value[0][i] == value[1][i]);
  tl_tensor_free(x);
  tl_tensor_free(t);
}
END_TEST

START_TEST(failing_allocations) {
  tl_tensor *x = layout_tensor(TRANSPOSED, 70, 10, TL_FLOAT16, 0.1, 0.9, 1),
            *t = layout_tensor(NARROWED, 70, 10, TL_FLOAT16, 0.1, 0.9, 2), *w = VECTOR(2);
  ck_ok(tl_set_requires_grad(x, true));
  for (int which = 0; which < 2; which++) {
    bool done = false;
    int64_t before = live_tensors();
    for (int64_t k = 1; !done; k++) {
      tl_tensor *y = NULL;
      tl_walk *walk = NULL;
      tl_fail_allocation(k);
      tl_status st = which == 0 ? tl_bce_loss(x, t, w, MEAN, &y) : tl_cross_entropy(x, t, NULL, -100, 0, MEAN, &y);
      if (st == TL_OK) st = tl_backward(y, NULL, false, &walk);
      tl_fail_allocation(0);
      done = st == TL_OK;
      if (!done) ck_assert_int_eq(st, TL_ERR_MEMORY);
      tl_tensor_free(y);
      ck_ok(tl_set_grad(x, NULL));
      ck_assert_int_eq(live_tensors(), before);
    }
  }
  tl_tensor_free(x);
  tl_tensor_free(t);
  tl_tensor_free(w);
}
END_TEST

TEST_MAIN("loss", gradients_of_every_loss_layout_and_reduction, values_of_every_loss, bce_stays_finite_at_the_ends,
          bce_with_logits_does_not_overflow, kl_div_takes_targets_of_zero_and_means_by_batch, means_of_nothing,
          mixed_dtypes_promote_and_gradients_return, nan_goes_through, messages_of_pairs, cross_entropy_values,
          all_targets_ignored_is_zero, a_label_out_of_range_is_named_with_its_row, impossible_rows_and_logits,
          probabilities_as_targets, gradients_of_class_losses, gradients_with_spatial_dims,
          cross_entropy_equals_nll_of_log_softmax, low_precision_and_small_labels, messages_of_classes,
          threads_do_not_change_the_sum, failing_allocations)
