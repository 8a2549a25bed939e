/* Gradient scaling: the rule, what a skipped step leaves alone, the order of calls, dtypes and layouts. */
#include "check_tl.h"

#include <float.h>

static tl_scaler *scaler(double scale, double interval) {
  tl_scaler_state state;
  tl_scaler *s;
  tl_scaler_defaults(&state);
  state.scale = scale;
  state.growth_interval = interval;
  ck_ok(tl_scaler_new(&state, &s));
  return s;
}

static tl_scaler_state state_of(const tl_scaler *s) {
  tl_scaler_state state;
  tl_scaler_get(s, &state);
  return state;
}

static tl_tensor *ones(int dtype, int64_t n) {
  tl_tensor *p;
  ck_ok(tl_full(1, &n, 1, dtype, test_device(), &p));
  ck_ok(tl_set_requires_grad(p, true));
  return p;
}

static tl_optimizer *optimizer(int kind, int n, tl_tensor *const *params) {
  tl_optimizer *o;
  tl_param_group options;
  ck_ok(tl_optimizer_defaults(kind, &options));
  options.lr = .5;
  ck_ok(tl_optimizer_new(kind, &o));
  ck_ok(tl_optimizer_add_group(o, n, params, &options, NULL));
  return o;
}

static void set_grad(tl_tensor *p, double value) {
  tl_tensor *g;
  int64_t n = (int64_t)tl_numel(p);
  ck_ok(tl_full(1, &n, value, tl_dtype_of(p), test_device(), &g));
  ck_ok(tl_set_grad(p, g));
  tl_tensor_free(g);
}

static tl_tensor *grad_of(tl_tensor *p) {
  tl_tensor *g;
  ck_ok(tl_grad(p, &g));
  tl_tensor_free(g); /* p holds it */
  return g;
}

START_TEST(a_finite_step) {
  tl_tensor *p = ones(TL_FLOAT32, 3), *loss = VECTOR(2), *scaled;
  tl_optimizer *o = optimizer(TL_SGD, 1, &p);
  tl_scaler *s = scaler(1024, 2);
  bool stepped = false;
  ck_ok(tl_scaler_scale(s, loss, &scaled));
  ck_tensor(scaled, 0, 2048);
  set_grad(p, 2048);
  ck_ok(tl_scaler_step(s, o, &stepped));
  ck_assert(stepped);
  ck_tensor(p, 0, 0, 0, 0);
  ck_tensor(grad_of(p), 0, 2, 2, 2);
  ck_ok(tl_scaler_update(s, NAN));
  ck_assert_double_eq(state_of(s).scale, 1024);
  ck_assert_double_eq(state_of(s).growth_tracker, 1);
  set_grad(p, 0);
  ck_ok(tl_scaler_unscale(s, o));
  ck_ok(tl_scaler_step(s, o, NULL));
  ck_ok(tl_scaler_update(s, NAN));
  ck_assert_double_eq(state_of(s).scale, 2048); /* after two good ones in a row */
  ck_assert_double_eq(state_of(s).growth_tracker, 0);
  tl_tensor_free(p), tl_tensor_free(loss), tl_tensor_free(scaled);
  tl_optimizer_free(o);
  tl_scaler_free(s);
}
END_TEST

START_TEST(an_overflow_changes_the_scale_only) {
  const double bad[3] = {INFINITY, -INFINITY, NAN};
  for (int i = 0; i < 3; i++) {
    tl_tensor *p[2] = {ones(TL_FLOAT32, 3), ones(TL_BFLOAT16, 2)}, *m;
    tl_optimizer *o = optimizer(TL_ADAM, 2, p);
    tl_scaler *s = scaler(65536, 2000);
    double step, product, before[3], after[3];
    bool stepped = true;
    set_grad(p[0], 65536), set_grad(p[1], 65536);
    ck_ok(tl_scaler_step(s, o, NULL));
    ck_ok(tl_scaler_update(s, NAN));
    ck_ok(tl_optimizer_state(o, 0, 0, &m));
    ck_ok(tl_to_doubles(p[0], 3, before));
    set_grad(p[0], 1), set_grad(p[1], bad[i]);
    ck_ok(tl_scaler_step(s, o, &stepped));
    ck_assert(!stepped);
    ck_ok(tl_scaler_update(s, NAN));
    ck_assert_double_eq(state_of(s).scale, 32768);
    ck_assert_double_eq(state_of(s).growth_tracker, 0);
    ck_ok(tl_to_doubles(p[0], 3, after));
    ck_assert_mem_eq(before, after, sizeof before);
    ck_tensor(m, 1e-7, .1, .1, .1);
    ck_ok(tl_optimizer_progress(o, 0, &step, &product));
    ck_assert_double_eq(step, 1);
    tl_tensor_free(m), tl_tensor_free(p[0]), tl_tensor_free(p[1]);
    tl_optimizer_free(o);
    tl_scaler_free(s);
  }
}
END_TEST

START_TEST(the_other_optimizer_steps) {
  tl_tensor *p = ones(TL_FLOAT32, 1), *q = ones(TL_FLOAT32, 1);
  tl_optimizer *a = optimizer(TL_SGD, 1, &p), *b = optimizer(TL_SGD, 1, &q);
  tl_scaler *s = scaler(2, 2000);
  bool stepped;
  set_grad(p, INFINITY), set_grad(q, 2);
  ck_ok(tl_scaler_step(s, a, &stepped));
  ck_assert(!stepped);
  ck_ok(tl_scaler_step(s, b, &stepped));
  ck_assert(stepped);
  ck_ok(tl_scaler_update(s, NAN));
  ck_assert_double_eq(state_of(s).scale, 1); /* found anywhere, halved once */
  ck_tensor(p, 0, 1);
  ck_tensor(q, 0, .5);
  tl_tensor_free(p), tl_tensor_free(q);
  tl_optimizer_free(a), tl_optimizer_free(b);
  tl_scaler_free(s);
}
END_TEST

START_TEST(the_scale_never_overflows) {
  tl_tensor *p = ones(TL_FLOAT32, 1);
  tl_optimizer *o = optimizer(TL_SGD, 1, &p);
  tl_scaler *s = scaler(65536, 1);
  for (int i = 0; i < 1000; i++) {
    set_grad(p, 0);
    ck_ok(tl_scaler_step(s, o, NULL));
    ck_ok(tl_scaler_update(s, NAN));
  }
  ck_assert_double_eq(state_of(s).scale, 0x1p127);
  for (int i = 0; i < 400; i++) {
    set_grad(p, NAN);
    ck_ok(tl_scaler_step(s, o, NULL));
    ck_ok(tl_scaler_update(s, NAN));
  }
  ck_assert_double_eq(state_of(s).scale, FLT_MIN); /* and its reciprocal is finite */
  ck_tensor(p, 0, 1);
  tl_tensor_free(p);
  tl_optimizer_free(o);
  tl_scaler_free(s);
}
END_TEST

START_TEST(calls_out_of_order) {
  tl_tensor *p = ones(TL_FLOAT32, 1), *half = ones(TL_FLOAT16, 1);
  tl_optimizer *o = optimizer(TL_SGD, 1, &p), *low = optimizer(TL_SGD, 1, &half);
  tl_scaler *s = scaler(4, 2000);
  ck_fails(tl_scaler_update(s, NAN), TL_ERR_STATE, "since the last update");
  ck_fails(tl_scaler_step(s, o, NULL), TL_ERR_STATE, "none of the optimizer's parameters has a gradient");
  ck_fails(tl_scaler_update(s, NAN), TL_ERR_STATE, "since the last update");
  ck_ok(tl_scaler_update(s, 8)); /* sets, and forgets what was recorded */
  set_grad(p, 8);
  ck_ok(tl_scaler_unscale(s, o));
  ck_fails(tl_scaler_unscale(s, o), TL_ERR_STATE, "already since");
  ck_tensor(grad_of(p), 0, 1);
  ck_ok(tl_scaler_step(s, o, NULL));
  ck_fails(tl_scaler_step(s, o, NULL), TL_ERR_STATE, "has stepped already");
  ck_fails(tl_scaler_unscale(s, o), TL_ERR_STATE, "comes before step");
  ck_tensor(p, 0, .5);
  set_grad(half, 1);
  ck_fails(tl_scaler_unscale(s, low), TL_ERR_DTYPE, "parameter 0 is float16");
  ck_fails(tl_scaler_step(s, low, NULL), TL_ERR_DTYPE, "float16");
  ck_tensor(grad_of(half), 0, 1);
  ck_ok(tl_scaler_update(s, NAN));
  ck_fails(tl_scaler_update(s, 0), TL_ERR_VALUE, "0");
  ck_fails(tl_scaler_update(s, INFINITY), TL_ERR_VALUE, "inf");
  ck_assert_double_eq(state_of(s).scale, 8);
  tl_tensor_free(p), tl_tensor_free(half);
  tl_optimizer_free(o), tl_optimizer_free(low);
  tl_scaler_free(s);
}
END_TEST

START_TEST(states_out_of_their_domain) {
  tl_scaler_state state;
  tl_scaler *s = scaler(2, 2), *none = NULL;
  tl_scaler_defaults(&state);
  ck_assert_double_eq(state.scale, 65536);
#define refused(field, value, text)                             \
  do {                                                          \
    tl_scaler_state wrong = state;                              \
    wrong.field = value;                                        \
    ck_fails(tl_scaler_new(&wrong, &none), TL_ERR_VALUE, text); \
    ck_fails(tl_scaler_set(s, &wrong), TL_ERR_VALUE, text);     \
  } while (0)
  refused(scale, 0, "scale");
  refused(scale, 1e39, "scale");
  refused(scale, NAN, "scale");
  refused(growth_factor, 1, "growth_factor");
  refused(backoff_factor, 1, "backoff_factor");
  refused(backoff_factor, 0, "backoff_factor");
  refused(growth_interval, 0, "growth_interval");
  refused(growth_interval, 1.5, "growth_interval");
  refused(growth_tracker, -1, "tracker");
  ck_assert_double_eq(state_of(s).scale, 2);
  state.scale = .1; /* kept as float32 */
  ck_ok(tl_scaler_set(s, &state));
  ck_assert_double_eq(state_of(s).scale, (double).1f);
  tl_scaler_free(s);
}
END_TEST

START_TEST(disabled_it_is_not_there) {
  tl_scaler_state state;
  tl_scaler *s;
  tl_scaler_defaults(&state);
  state.enabled = false;
  ck_ok(tl_scaler_new(&state, &s));
  tl_tensor *p = ones(TL_FLOAT16, 1), *same;
  tl_optimizer *o = optimizer(TL_SGD, 1, &p);
  bool stepped = false;
  ck_ok(tl_scaler_scale(s, p, &same));
  ck_assert_ptr_eq(p, same);
  set_grad(p, 1);
  ck_ok(tl_scaler_unscale(s, o));
  ck_ok(tl_scaler_unscale(s, o));
  ck_ok(tl_scaler_step(s, o, &stepped));
  ck_ok(tl_scaler_step(s, o, &stepped));
  ck_ok(tl_scaler_update(s, NAN));
  ck_assert(stepped);
  ck_tensor(p, 0, 0);
  tl_tensor_free(p), tl_tensor_free(same);
  tl_optimizer_free(o);
  tl_scaler_free(s);
}
END_TEST

/* Big and small lists, every dtype, the only bad element at the start, a block's border, the end. */
START_TEST(finds_one_in_many) {
  const int64_t sizes[2] = {1000, 300001};
  const int dtypes[3] = {TL_FLOAT32, TL_BFLOAT16, TL_FLOAT64};
  for (int d = 0; d < 3; d++)
    for (int k = 0; k < 2; k++) {
      const int64_t n = sizes[k], places[4] = {0, n > 8192 ? 8192 : 512, n - 1, -1};
      tl_tensor *p[2] = {ones(TL_FLOAT32, 5), ones(dtypes[d], n)};
      tl_optimizer *o = optimizer(TL_SGD, 2, p);
      for (int i = 0; i < 4; i++) {
        tl_scaler *s = scaler(4, 2000);
        bool stepped;
        set_grad(p[0], 0), set_grad(p[1], 4);
        if (places[i] >= 0) {
          tl_tensor *one;
          ck_ok(tl_select(grad_of(p[1]), 0, places[i], &one));
          ck_ok(tl_fill_(one, i == 1 ? NAN : INFINITY));
          tl_tensor_free(one);
        }
        ck_ok(tl_scaler_unscale(s, o));
        double v;
        ck_ok(tl_get(grad_of(p[1]), 1, (const int64_t[]){n / 2}, &v));
        ck_assert_double_eq(v, 1);
        ck_ok(tl_scaler_step(s, o, &stepped));
        ck_assert_int_eq(stepped, places[i] < 0);
        tl_scaler_free(s);
      }
      tl_tensor_free(p[0]), tl_tensor_free(p[1]);
      tl_optimizer_free(o);
    }
}
END_TEST

START_TEST(a_quotient_that_overflows_counts) {
  tl_tensor *p = ones(TL_FLOAT32, 1);
  tl_optimizer *o = optimizer(TL_SGD, 1, &p);
  tl_scaler *s = scaler(.25, 2000);
  bool stepped;
  set_grad(p, 3e38);
  ck_ok(tl_scaler_step(s, o, &stepped));
  ck_assert(!stepped);
  tl_tensor_free(p);
  tl_optimizer_free(o);
  tl_scaler_free(s);
}
END_TEST

START_TEST(gradients_with_other_strides) {
  tl_tensor *p, *g = TENSOR(TL_FLOAT32, SHAPE(2, 2), 2, 4, 6, 8), *turned, *row = TENSOR(TL_FLOAT32, SHAPE(1, 2), 2, 4),
                *wide;
  ck_ok(tl_full(SHAPE(2, 2), 0, TL_FLOAT32, test_device(), &p));
  ck_ok(tl_set_requires_grad(p, true));
  tl_optimizer *o = optimizer(TL_SGD, 1, &p);
  tl_scaler *s = scaler(2, 2000);
  ck_ok(tl_transpose(g, 0, 1, &turned));
  ck_ok(tl_set_grad(p, turned));
  ck_ok(tl_scaler_unscale(s, o));
  ck_tensor(grad_of(p), 0, 1, 3, 2, 4);
  ck_ok(tl_scaler_update(s, NAN));
  ck_ok(tl_expand(row, SHAPE(2, 2), &wide));
  ck_ok(tl_set_grad(p, wide));
  ck_ok(tl_scaler_unscale(s, o));
  ck_tensor(grad_of(p), 0, 1, 2, 1, 2);
  ck_tensor(row, 0, 2, 4);
  tl_tensor *const all[] = {p, g, turned, row, wide};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) tl_tensor_free(all[i]);
  tl_optimizer_free(o);
  tl_scaler_free(s);
}
END_TEST

/* A call without memory can be made again; in the end everything moved once. */
START_TEST(failing_allocations) {
  for (int k = 1; k < 60; k++) {
    int64_t before = live_tensors();
    tl_tensor *p, *g = TENSOR(TL_FLOAT32, SHAPE(2, 2), 2, 4, 6, 8), *turned;
    ck_ok(tl_full(SHAPE(2, 2), 0, TL_FLOAT32, test_device(), &p));
    ck_ok(tl_set_requires_grad(p, true));
    tl_optimizer *o = optimizer(TL_SGD, 1, &p);
    tl_scaler *s = scaler(2, 2000);
    ck_ok(tl_transpose(g, 0, 1, &turned));
    ck_ok(tl_set_grad(p, turned));
    tl_fail_allocation(k);
    tl_status st = tl_scaler_step(s, o, NULL);
    tl_fail_allocation(0);
    if (st != TL_OK) {
      ck_assert_int_eq(st, TL_ERR_MEMORY);
      ck_tensor(p, 0, 0, 0, 0, 0);
      ck_ok(tl_scaler_step(s, o, NULL));
    }
    ck_tensor(p, 0, -.5, -1.5, -1, -2);
    ck_ok(tl_scaler_update(s, NAN));
    tl_tensor *const all[] = {p, g, turned};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) tl_tensor_free(all[i]);
    tl_optimizer_free(o);
    tl_scaler_free(s);
    ck_assert_int_eq(live_tensors(), before);
  }
}
END_TEST

/* The scaler holds its optimizers between updates. */
START_TEST(lives_as_long_as_needed) {
  int64_t before = live_tensors();
  tl_scaler *s = scaler(2, 2000);
  for (int i = 0; i < 9; i++) {
    tl_tensor *p = ones(TL_FLOAT32, 1);
    tl_optimizer *o = optimizer(TL_SGD, 1, &p);
    set_grad(p, 1);
    ck_ok(tl_scaler_step(s, o, NULL));
    tl_optimizer_free(o);
    tl_tensor_free(p);
  }
  int64_t during = live_tensors();
  ck_ok(tl_scaler_update(s, NAN));
  ck_assert_int_ge(during - live_tensors(), 9);
  tl_scaler_free(s); /* which has numbers of its own on a GPU */
  ck_assert_int_eq(live_tensors(), before);
  tl_scaler_free(NULL);
}
END_TEST

TEST_MAIN("scaler", a_finite_step, an_overflow_changes_the_scale_only, the_other_optimizer_steps,
          the_scale_never_overflows, calls_out_of_order, states_out_of_their_domain, disabled_it_is_not_there,
          finds_one_in_many, a_quotient_that_overflows_counts, gradients_with_other_strides, failing_allocations,
          lives_as_long_as_needed)
