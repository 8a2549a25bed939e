/* Optimizers: exact values of docs and PyTorch, groups, state, dtypes, layouts, failing calls. */
#include "check_tl.h"

static tl_tensor *leaf(int dtype, int64_t n, const double *values) {
  tl_tensor *p = make_tensor(dtype, 1, &n, values);
  ck_ok(tl_set_requires_grad(p, true));
  return p;
}

static tl_tensor *scalar_leaf(int dtype, double value) { return leaf(dtype, 1, &value); }

static void give_grad(tl_tensor *p, const double *values) {
  int64_t shape[TL_MAX_DIMS];
  for (int d = 0; d < tl_ndim(p); d++) shape[d] = (int64_t)tl_size(p, d);
  tl_tensor *g = make_tensor(tl_dtype_of(p), tl_ndim(p), shape, values);
  ck_ok(tl_set_grad(p, g));
  tl_tensor_free(g);
}

static bool equal(const tl_tensor *a, const tl_tensor *b) {
  int64_t n = (int64_t)tl_numel(a);
  double *x = calloc((size_t)n + 1, sizeof *x), *y = calloc((size_t)n + 1, sizeof *y);
  ck_ok(tl_to_doubles(a, n, x));
  ck_ok(tl_to_doubles(b, n, y));
  bool same = memcmp(x, y, (size_t)n * sizeof *x) == 0;
  free(x);
  free(y);
  return same;
}

static tl_param_group defaults(int kind) {
  tl_param_group g;
  ck_ok(tl_optimizer_defaults(kind, &g));
  return g;
}

static tl_optimizer *optimizer(int kind, int n, tl_tensor *const *params, const tl_param_group *options) {
  tl_optimizer *o;
  ck_ok(tl_optimizer_new(kind, &o));
  ck_ok(tl_optimizer_add_group(o, n, params, options, NULL));
  return o;
}

static double value(const tl_tensor *t) {
  double v;
  ck_ok(tl_item(t, &v));
  return v;
}

/* One parameter that starts at 1: where `steps` gradients lead it. */
static void follow(int kind, const tl_param_group *options, int dtype, int steps, const double *grads,
                   const double *expected, double tolerance) {
  tl_tensor *p = scalar_leaf(dtype, 1);
  tl_optimizer *o = optimizer(kind, 1, &p, options);
  for (int i = 0; i < steps; i++) {
    double version = tl_version_of(p);
    give_grad(p, &grads[i]);
    ck_ok(tl_optimizer_step(o));
    ck_assert_msg(fabs(value(p) - expected[i]) <= tolerance, "%s, step %d: %.9g, expected %.9g",
                  tl_optimizer_name(kind), i + 1, value(p), expected[i]);
    ck_assert(tl_version_of(p) > version);
    ck_assert(tl_is_leaf(p));
  }
  tl_optimizer_free(o);
  tl_tensor_free(p);
}
#define FOLLOW(kind, options, grads, ...)                                                                   \
  do {                                                                                                      \
    const double expected_[] = {__VA_ARGS__};                                                               \
    follow(kind, options, TL_FLOAT32, (int)(sizeof expected_ / sizeof *expected_), grads, expected_, 2e-7); \
    follow(kind, options, TL_FLOAT64, (int)(sizeof expected_ / sizeof *expected_), grads, expected_, 2e-7); \
  } while (0)

static const double uneven[3] = {.5, -1, 2}, ones[4] = {1, 1, 1, 1}, tiny[3] = {1e-4, 1e-4, 1e-4};

START_TEST(adam_values) {
  tl_param_group g = defaults(TL_ADAM);
  g.lr = .1;
  FOLLOW(TL_ADAM, &g, uneven, .9, .9366104, .8946449);
  g.weight_decay = .1;
  FOLLOW(TL_ADAM, &g, uneven, .9, .9252635, .8776172);
  g = defaults(TL_ADAM);
  g.lr = .1;
  g.eps = 1e-3; /* added after the bias correction */
  FOLLOW(TL_ADAM, &g, tiny, .9909091, .9818182, .9727273);
}
END_TEST

START_TEST(adamw_values) {
  tl_param_group g = defaults(TL_ADAMW);
  ck_assert_double_eq(g.weight_decay, .01);
  g.lr = g.weight_decay = .1;
  FOLLOW(TL_ADAMW, &g, uneven, .89, .9177104, .8665678);
  const double none[1] = {0};
  FOLLOW(TL_ADAMW, &g, none, .99);
}
END_TEST

START_TEST(sgd_values) {
  tl_param_group g = defaults(TL_SGD);
  g.lr = .1;
  g.momentum = .9;
  g.dampening = .5; /* the first buffer is the gradient itself */
  FOLLOW(TL_SGD, &g, ones, .9, .76, .584, .3756);
  g.dampening = 0;
  g.nesterov = true;
  FOLLOW(TL_SGD, &g, ones, .81, .539, .1951);
  g = defaults(TL_SGD);
  g.lr = .1;
  FOLLOW(TL_SGD, &g, ones, .9, .8, .7);
  g.maximize = true;
  FOLLOW(TL_SGD, &g, ones, 1.1, 1.2, 1.3);
  g.weight_decay = .5; /* the gradient is negated before the decay is added */
  FOLLOW(TL_SGD, &g, ones, 1.05, 1.0975);
}
END_TEST

START_TEST(state_is_lazy_and_parameters_without_gradients_stay) {
  tl_tensor *p[2] = {scalar_leaf(TL_FLOAT32, 1), scalar_leaf(TL_FLOAT32, 5)}, *state = NULL;
  tl_param_group g = defaults(TL_ADAM);
  tl_optimizer *o = optimizer(TL_ADAM, 2, p, &g);
  ck_ok(tl_optimizer_state(o, 0, 0, &state));
  ck_assert_ptr_null(state);
  give_grad(p[0], ones);
  ck_ok(tl_optimizer_step(o));
  double step, product;
  ck_ok(tl_optimizer_progress(o, 0, &step, &product));
  ck_assert_double_eq(step, 1);
  ck_ok(tl_optimizer_progress(o, 1, &step, &product));
  ck_assert_double_eq(step, 0);
  ck_assert_double_eq(value(p[1]), 5);
  ck_assert_double_eq(tl_version_of(p[1]), 0);
  ck_ok(tl_optimizer_state(o, 1, 0, &state));
  ck_assert_ptr_null(state);
  ck_ok(tl_optimizer_state(o, 0, 0, &state));
  ck_tensor(state, 1e-7, .1);
  tl_tensor_free(state);
  ck_assert_str_eq(tl_optimizer_state_name(TL_ADAM, 2), "max_exp_avg_sq");
  ck_assert_str_eq(tl_optimizer_state_name(TL_ADAM, 3), "master");
  ck_assert_ptr_null(tl_optimizer_state_name(TL_ADAM, 4));
  tl_optimizer_free(o);
  tl_tensor_free(p[0]);
  tl_tensor_free(p[1]);
}
END_TEST

START_TEST(a_shared_parameter_is_stepped_once) {
  tl_tensor *p = scalar_leaf(TL_FLOAT32, 1), *twice[2] = {p, p};
  tl_param_group g = defaults(TL_SGD);
  g.lr = .1;
  tl_optimizer *o = optimizer(TL_SGD, 2, twice, &g);
  ck_assert_int_eq(tl_optimizer_group_size(o, 0), 1);
  give_grad(p, ones);
  ck_ok(tl_optimizer_step(o));
  ck_assert_double_eq_tol(value(p), .9, 1e-7);
  ck_fails(tl_optimizer_add_group(o, 1, &p, &g, NULL), TL_ERR_VALUE, "another group");
  ck_assert_int_eq(tl_optimizer_groups(o), 1);
  tl_optimizer_free(o);
  tl_tensor_free(p);
}
END_TEST

START_TEST(groups_have_options_of_their_own) {
  tl_tensor *p[2] = {scalar_leaf(TL_FLOAT32, 1), scalar_leaf(TL_FLOAT32, 1)};
  tl_param_group g = defaults(TL_SGD), *first, *second;
  tl_optimizer *o;
  ck_ok(tl_optimizer_new(TL_SGD, &o));
  g.lr = .1;
  ck_ok(tl_optimizer_add_group(o, 1, &p[0], &g, &first));
  g.lr = .2;
  ck_ok(tl_optimizer_add_group(o, 1, &p[1], &g, &second));
  ck_assert_ptr_eq(tl_optimizer_group(o, 1), second);
  ck_assert_ptr_null(tl_optimizer_group(o, 2));
  for (int i = 0; i < 2; i++) give_grad(p[i], ones);
  ck_ok(tl_optimizer_step(o));
  ck_assert_double_eq_tol(value(p[0]), .9, 1e-7);
  ck_assert_double_eq_tol(value(p[1]), .8, 1e-7);
  first->lr = .5; /* seen at the next step */
  ck_ok(tl_optimizer_step(o));
  ck_assert_double_eq_tol(value(p[0]), .4, 1e-7);
  tl_optimizer_free(o);
  tl_tensor_free(p[0]);
  tl_tensor_free(p[1]);
}
END_TEST

START_TEST(options_out_of_their_domain) {
  tl_tensor *p = scalar_leaf(TL_FLOAT32, 1);
  tl_optimizer *o;
  ck_ok(tl_optimizer_new(TL_ADAM, &o));
  tl_param_group g = defaults(TL_ADAM);
  g.lr = -1;
  ck_fails(tl_optimizer_add_group(o, 1, &p, &g, NULL), TL_ERR_VALUE, "lr must be at least 0");
  g.lr = NAN;
  ck_fails(tl_optimizer_add_group(o, 1, &p, &g, NULL), TL_ERR_VALUE, "lr must be");
  g = defaults(TL_ADAM);
  g.eps = -1;
  ck_fails(tl_optimizer_add_group(o, 1, &p, &g, NULL), TL_ERR_VALUE, "eps");
  g = defaults(TL_ADAM);
  g.beta2 = 1;
  ck_fails(tl_optimizer_add_group(o, 1, &p, &g, NULL), TL_ERR_VALUE, "beta 2");
  tl_optimizer_free(o);
  ck_ok(tl_optimizer_new(TL_SGD, &o));
  g = defaults(TL_SGD);
  g.nesterov = true;
  ck_fails(tl_optimizer_add_group(o, 1, &p, &g, NULL), TL_ERR_VALUE, "nesterov");
  tl_optimizer_free(o);
  ck_fails(tl_optimizer_new(TL_OPTIMIZERS, &o), TL_ERR_VALUE, "no optimizer");
  tl_tensor_free(p);
}
END_TEST

START_TEST(parameters_that_cannot_be_optimized) {
  tl_tensor *p = scalar_leaf(TL_FLOAT32, 1), *result = NULL, *ids = VECTOR(1), *whole = NULL, *wide = NULL;
  tl_param_group g = defaults(TL_SGD);
  tl_optimizer *o;
  ck_ok(tl_optimizer_new(TL_SGD, &o));
  ck_ok(tl_exp(p, &result));
  ck_fails(tl_optimizer_add_group(o, 1, &result, &g, NULL), TL_ERR_STATE, "not a leaf");
  ck_ok(tl_to(ids, TL_INT64, test_device(), &whole));
  ck_fails(tl_optimizer_add_group(o, 1, &whole, &g, NULL), TL_ERR_DTYPE, "int64");
  ck_ok(tl_expand(ids, SHAPE(3), &wide));
  ck_fails(tl_optimizer_add_group(o, 1, &wide, &g, NULL), TL_ERR_VALUE, "expanded");
  ck_fails(tl_optimizer_add_group(o, 0, NULL, &g, NULL), TL_ERR_VALUE, "without parameters");
  tl_optimizer_free(o);
  tl_tensor_free(p);
  tl_tensor_free(result);
  tl_tensor_free(ids);
  tl_tensor_free(whole);
  tl_tensor_free(wide);
}
END_TEST

/* Every kind, with every state tensor it knows. */
static tl_param_group rich(int kind, int variant) {
  tl_param_group g = defaults(kind);
  g.lr = .05;
  g.weight_decay = variant == 0 ? 0 : .1;
  g.maximize = variant == 2;
  g.amsgrad = g.centered = variant > 0;
  if (kind == TL_SGD || kind == TL_RMSPROP) g.momentum = variant == 0 ? 0 : .9;
  g.nesterov = kind == TL_SGD && variant == 2;
  g.decoupled_weight_decay = g.decoupled_weight_decay || variant == 2;
  g.lr_decay = .1;
  return g;
}

static tl_tensor *random_tensor(int dtype, int ndim, const int64_t *shape, double seed) {
  tl_generator *g;
  tl_tensor *x, *y;
  ck_ok(tl_generator_new(seed, &g));
  ck_ok(tl_empty(ndim, shape, TL_FLOAT64, test_device(), &x));
  ck_ok(tl_normal_(x, 0, 1, g));
  ck_ok(tl_to(x, dtype, test_device(), &y));
  tl_tensor_free(x);
  tl_generator_free(g);
  return y;
}

/* A transposed parameter with an expanded gradient moves exactly as its contiguous twin. */
START_TEST(strided_parameters_and_gradients) {
  for (int dtype = TL_FLOAT32; dtype <= TL_FLOAT64; dtype++) {
    int kind = _i / 3;
    tl_param_group g = rich(kind, _i % 3);
    tl_tensor *base = random_tensor(dtype, SHAPE(5, 7), 1), *strided, *plain,
              *row = random_tensor(dtype, SHAPE(1, 5), 2), *grad, *dense;
    ck_ok(tl_transpose(base, 0, 1, &strided));
    ck_ok(tl_contiguous(strided, &plain));
    ck_ok(tl_expand(row, SHAPE(7, 5), &grad));
    ck_ok(tl_clone(grad, &dense));
    ck_assert(!tl_is_contiguous(strided) && !tl_is_contiguous(grad) && tl_is_contiguous(plain));
    tl_tensor *both[2] = {strided, plain};
    tl_optimizer *o = optimizer(kind, 2, both, &g);
    ck_ok(tl_set_grad(strided, grad));
    ck_ok(tl_set_grad(plain, dense));
    for (int i = 0; i < 8; i++) ck_ok(tl_optimizer_step(o));
    ck_assert_msg(equal(strided, plain), "%s of %s", tl_optimizer_name(kind), tl_dtype_name(dtype));
    tl_optimizer_free(o);
    tl_tensor *all[] = {base, strided, plain, row, grad, dense};
    for (int i = 0; i < 6; i++) tl_tensor_free(all[i]);
  }
  ck_assert_int_eq(live_tensors(), 0);
}
END_TEST

/* The same bits from one thread and from many, with sizes around the blocks of the kernel. */
START_TEST(threads_change_nothing) {
  int kind = _i / 3;
  tl_param_group g = rich(kind, _i % 3);
  tl_tensor *first[3];
  for (int threads = 1; threads <= 3; threads += 2) {
    ck_ok(tl_set_num_threads(threads));
    const int64_t sizes[3] = {8193, 5, 40000};
    tl_tensor *p[3];
    for (int i = 0; i < 3; i++) {
      p[i] = random_tensor(TL_FLOAT32, 1, &sizes[i], i + 1);
      tl_tensor *grad = random_tensor(TL_FLOAT32, 1, &sizes[i], i + 10);
      ck_ok(tl_set_grad(p[i], grad));
      tl_tensor_free(grad);
    }
    tl_optimizer *o = optimizer(kind, 3, p, &g);
    for (int i = 0; i < 7; i++) ck_ok(tl_optimizer_step(o));
    tl_optimizer_free(o);
    for (int i = 0; i < 3; i++) {
      if (threads == 1) {
        first[i] = p[i];
        continue;
      }
      ck_assert(equal(first[i], p[i]));
      tl_tensor_free(first[i]);
      tl_tensor_free(p[i]);
    }
  }
}
END_TEST

START_TEST(low_precision_keeps_a_master_copy) {
  for (int dtype = TL_FLOAT16; dtype <= TL_BFLOAT16; dtype++) {
    tl_tensor *p = scalar_leaf(dtype, 1), *master;
    tl_param_group g = defaults(TL_SGD);
    g.lr = 1e-4; /* below the resolution at 1 of either dtype */
    tl_optimizer *o = optimizer(TL_SGD, 1, &p, &g);
    give_grad(p, ones);
    for (int i = 0; i < 100; i++) ck_ok(tl_optimizer_step(o));
    ck_ok(tl_optimizer_state(o, 0, 1, &master));
    ck_assert_int_eq(tl_dtype_of(master), TL_FLOAT32);
    ck_tensor(master, 1e-5, .99);
    ck_assert_double_eq_tol(value(p), .99, dtype == TL_FLOAT16 ? 3e-4 : 3e-3);
    ck_assert_double_lt(value(p), 1);
    ck_fails(tl_fill_(p, 0), TL_ERR_STATE, "leaf"); /* only the optimizer may, while gradients are recorded */
    tl_tensor_free(master);
    tl_optimizer_free(o);
    tl_tensor_free(p);
  }
}
END_TEST

START_TEST(a_parameter_changed_from_outside_overrides_its_master) {
  tl_tensor *p = scalar_leaf(TL_BFLOAT16, 1);
  tl_param_group g = defaults(TL_SGD);
  g.lr = .25;
  tl_optimizer *o = optimizer(TL_SGD, 1, &p, &g);
  give_grad(p, ones);
  ck_ok(tl_optimizer_step(o));
  ck_assert_double_eq(value(p), .75);
  bool recording = tl_set_grad_enabled(false);
  ck_ok(tl_fill_(p, 8));
  tl_set_grad_enabled(recording);
  ck_ok(tl_optimizer_step(o));
  ck_assert_double_eq(value(p), 7.75);
  tl_optimizer_free(o);
  tl_tensor_free(p);
}
END_TEST

/* Saved after step 2 and loaded into a new optimizer: the same bits from there on. */
START_TEST(state_moves_to_another_optimizer) {
  int kind = _i / 3;
  tl_param_group g = rich(kind, _i % 3);
  for (int dtype = TL_FLOAT32; dtype <= TL_FLOAT64; dtype++) {
    tl_tensor *p = random_tensor(dtype, SHAPE(9), 3), *grad = random_tensor(dtype, SHAPE(9), 4), *q;
    ck_ok(tl_set_grad(p, grad));
    tl_optimizer *o = optimizer(kind, 1, &p, &g);
    for (int i = 0; i < 2; i++) ck_ok(tl_optimizer_step(o));
    ck_ok(tl_clone(p, &q));
    ck_ok(tl_set_grad(q, grad));
    tl_optimizer *other = optimizer(kind, 1, &q, &g);
    double step, product;
    ck_ok(tl_optimizer_progress(o, 0, &step, &product));
    ck_ok(tl_optimizer_set_progress(other, 0, step, product));
    for (int k = 0; tl_optimizer_state_name(kind, k) != NULL; k++) {
      tl_tensor *state;
      ck_ok(tl_optimizer_state(o, 0, k, &state));
      ck_ok(tl_optimizer_set_state(other, 0, k, state));
      tl_tensor_free(state);
    }
    for (int i = 0; i < 6; i++) {
      ck_ok(tl_optimizer_step(o));
      ck_ok(tl_optimizer_step(other));
    }
    ck_assert_msg(equal(p, q), "%s of %s", tl_optimizer_name(kind), tl_dtype_name(dtype));
    tl_optimizer_free(o);
    tl_optimizer_free(other);
    tl_tensor_free(p);
    tl_tensor_free(q);
    tl_tensor_free(grad);
  }
}
END_TEST

START_TEST(state_that_does_not_fit) {
  tl_tensor *p = scalar_leaf(TL_FLOAT32, 1), *two = VECTOR(1, 2);
  tl_param_group g = defaults(TL_ADAM);
  tl_optimizer *o = optimizer(TL_ADAM, 1, &p, &g);
  ck_fails(tl_optimizer_set_state(o, 0, 0, two), TL_ERR_SHAPE, "(2)");
  ck_fails(tl_optimizer_set_state(o, 1, 0, two), TL_ERR_INDEX, "there are 1");
  ck_fails(tl_optimizer_set_state(o, 0, 9, two), TL_ERR_INDEX, "number 9");
  ck_fails(tl_optimizer_set_progress(o, 0, 1.5, 1), TL_ERR_VALUE, "whole number");
  ck_fails(tl_optimizer_set_progress(o, 0, NAN, 1), TL_ERR_VALUE, "whole number");
  tl_optimizer_free(o);
  tl_tensor_free(p);
  tl_tensor_free(two);
}
END_TEST

/* A module that is moved to another dtype changes its parameters under the optimizer. */
START_TEST(parameters_that_change_their_dtype) {
  const int to[3] = {TL_FLOAT64, TL_BFLOAT16, TL_FLOAT16};
  for (int i = 0; i < 3; i++) {
    tl_tensor *p = scalar_leaf(TL_FLOAT32, 1), *other = scalar_leaf(to[i], 1);
    tl_param_group g = defaults(TL_ADAM);
    g.lr = .25;
    tl_optimizer *o = optimizer(TL_ADAM, 1, &p, &g);
    give_grad(p, ones);
    ck_ok(tl_optimizer_step(o));
    ck_ok(tl_set_grad(p, NULL));
    ck_ok(tl_set_data(p, other));
    give_grad(p, ones);
    if (i == 0) {
      ck_fails(tl_optimizer_step(o), TL_ERR_STATE, "changed its shape, dtype or device");
      ck_assert_double_eq(value(p), 1);
    } else {
      ck_ok(tl_optimizer_step(o)); /* a master copy is made of what is there */
      ck_assert_double_eq_tol(value(p), .75, 1e-2);
    }
    tl_optimizer_free(o);
    tl_tensor_free(p);
    tl_tensor_free(other);
  }
}
END_TEST

START_TEST(gradients_go_or_become_zero) {
  tl_tensor *p = scalar_leaf(TL_FLOAT32, 1), *grad;
  tl_param_group g = defaults(TL_SGD);
  tl_optimizer *o = optimizer(TL_SGD, 1, &p, &g);
  give_grad(p, ones);
  ck_ok(tl_optimizer_zero_grad(o, false));
  ck_ok(tl_grad(p, &grad));
  ck_tensor(grad, 0, 0);
  tl_tensor_free(grad);
  ck_ok(tl_optimizer_zero_grad(o, true));
  ck_ok(tl_grad(p, &grad));
  ck_assert_ptr_null(grad);
  tl_optimizer_free(o);
  tl_tensor_free(p);
}
END_TEST

START_TEST(nan_stays_nan_and_empty_is_fine) {
  tl_tensor *p[2] = {scalar_leaf(TL_FLOAT32, 1), leaf(TL_FLOAT32, 0, NULL)};
  tl_param_group g = rich(_i / 3, _i % 3);
  tl_optimizer *o = optimizer(_i / 3, 2, p, &g);
  const double bad[1] = {NAN};
  give_grad(p[0], bad);
  give_grad(p[1], bad);
  ck_ok(tl_optimizer_step(o));
  ck_assert(isnan(value(p[0])));
  tl_optimizer_free(o);
  tl_tensor_free(p[0]);
  tl_tensor_free(p[1]);
}
END_TEST

/* Whatever allocation fails: the parameter is where it was, the step can be repeated, nothing leaks. */
START_TEST(failing_allocations) {
  int64_t before = live_tensors();
  tl_param_group g = rich(TL_ADAM, 2);
  for (int64_t k = 1; k < 100; k++) {
    tl_tensor *base = random_tensor(TL_BFLOAT16, SHAPE(3, 4), 1), *p[2], *copy, *grad;
    ck_ok(tl_transpose(base, 0, 1, &p[0]));
    p[1] = random_tensor(TL_BFLOAT16, SHAPE(4, 3), 2);
    ck_ok(tl_clone(p[0], &copy));
    grad = random_tensor(TL_BFLOAT16, SHAPE(4, 3), 3);
    for (int i = 0; i < 2; i++) ck_ok(tl_set_grad(p[i], grad));
    tl_optimizer *o = NULL;
    tl_fail_allocation(k);
    tl_status st = tl_optimizer_new(TL_ADAM, &o);
    if (st == TL_OK) st = tl_optimizer_add_group(o, 2, p, &g, NULL);
    if (st == TL_OK) st = tl_optimizer_step(o);
    tl_fail_allocation(0);
    ck_assert(equal(p[0], copy) == (st != TL_OK));
    if (st != TL_OK) ck_assert_int_eq(tl_last_error()->code, TL_ERR_MEMORY);
    if (st != TL_OK && o != NULL && tl_optimizer_groups(o) == 1) ck_ok(tl_optimizer_step(o));
    tl_optimizer_free(o);
    tl_tensor *all[] = {base, p[0], p[1], copy, grad};
    for (int i = 0; i < 5; i++) tl_tensor_free(all[i]);
    ck_assert_int_eq(live_tensors(), before);
    if (st == TL_OK) return;
  }
  ck_abort_msg("the step never succeeded");
}
END_TEST

int main(void) {
  Suite *s = suite_create("optimizer");
  TCase *c = tcase_create("optimizer");
  tcase_add_test(c, adam_values);
  tcase_add_test(c, adamw_values);
  tcase_add_test(c, sgd_values);
  tcase_add_test(c, state_is_lazy_and_parameters_without_gradients_stay);
  tcase_add_test(c, a_shared_parameter_is_stepped_once);
  tcase_add_test(c, groups_have_options_of_their_own);
  tcase_add_test(c, options_out_of_their_domain);
  tcase_add_test(c, parameters_that_cannot_be_optimized);
  tcase_add_loop_test(c, strided_parameters_and_gradients, 0, TL_OPTIMIZERS * 3);
  tcase_add_loop_test(c, threads_change_nothing, 0, TL_OPTIMIZERS * 3);
  tcase_add_test(c, low_precision_keeps_a_master_copy);
  tcase_add_test(c, a_parameter_changed_from_outside_overrides_its_master);
  tcase_add_loop_test(c, state_moves_to_another_optimizer, 0, TL_OPTIMIZERS * 3);
  tcase_add_test(c, state_that_does_not_fit);
  tcase_add_test(c, parameters_that_change_their_dtype);
  tcase_add_test(c, gradients_go_or_become_zero);
  tcase_add_loop_test(c, nan_stays_nan_and_empty_is_fine, 0, TL_OPTIMIZERS * 3);
  tcase_add_test(c, failing_allocations);
  suite_add_tcase(s, c);
  SRunner *r = srunner_create(s);
  srunner_run_all(r, CK_NORMAL);
  int failed = srunner_ntests_failed(r);
  srunner_free(r);
  return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
