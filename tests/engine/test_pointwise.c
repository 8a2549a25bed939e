/* test_pointwise.c: every row of ops.def over every dtype and layout, its gradients, and the edges of single rows.
 * The reference is the row's own formula in double, where it means the C library's functions. */
#include "check_tl.h"

#include "formula.h"

/* ---- the rows as a table ---- */

typedef struct unary_case {
  const char *name;
  int parameters;
  bool floating, boolean, differentiable;
  tl_status (*f0)(tl_tensor *, tl_tensor **), (*g0)(tl_tensor *);
  tl_status (*f1)(tl_tensor *, double, tl_tensor **), (*g1)(tl_tensor *, double);
  tl_status (*f2)(tl_tensor *, double, double, tl_tensor **), (*g2)(tl_tensor *, double, double);
  double (*reference)(double x, double p, double q);
} unary_case;

#define T double
#define TL_C(c) (c)
#define TL_UNARY(name, kind, f, df, saves)                       \
  static double name##_reference(double x, double p, double q) { \
    (void)p, (void)q;                                            \
    return (double)(f);                                          \
  }
#define TL_UNARY1 TL_UNARY
#define TL_UNARY2 TL_UNARY
#define TL_BINARY(name, kind, f, da, db, saves) \
  static double name##_reference(double a, double b) { return (double)(f); }
#include "ops/ops.def"

#define IS_FLOAT_FLOAT true
#define IS_FLOAT_ANY false
#define IS_FLOAT_BOOL false
#define IS_BOOL_FLOAT false
#define IS_BOOL_ANY false
#define IS_BOOL_BOOL true
#define DIFF_NO true
#define DIFF_X true
#define DIFF_Y true
#define DIFF_AB true
#define DIFF_ND false
static const unary_case unaries[] = {
#define TL_UNARY(name, kind, f, df, saves)                                                          \
  {#name, 0,    IS_FLOAT_##kind, IS_BOOL_##kind, DIFF_##saves, tl_##name, tl_##name##_, NULL, NULL, \
   NULL,  NULL, name##_reference},
#define TL_UNARY1(name, kind, f, df, saves)                               \
  {#name, 1,         IS_FLOAT_##kind, IS_BOOL_##kind, DIFF_##saves, NULL, \
   NULL,  tl_##name, tl_##name##_,    NULL,           NULL,         name##_reference},
#define TL_UNARY2(name, kind, f, df, saves)                                   \
  {#name, 2,    IS_FLOAT_##kind, IS_BOOL_##kind, DIFF_##saves,    NULL, NULL, \
   NULL,  NULL, tl_##name,       tl_##name##_,   name##_reference},
#include "ops/ops.def"
};
#define UNARIES (int)(sizeof unaries / sizeof *unaries)

typedef struct binary_case {
  const char *name;
  bool floating, boolean, differentiable;
  tl_status (*f)(tl_tensor *, tl_tensor *, tl_tensor **), (*g)(tl_tensor *, tl_tensor *);
  tl_status (*scalar)(tl_tensor *, double, tl_tensor **), (*rscalar)(double, tl_tensor *, tl_tensor **);
  double (*reference)(double a, double b);
} binary_case;
static const binary_case binaries[] = {
#define TL_BINARY(name, kind, f, da, db, saves)                                       \
  {#name,        IS_FLOAT_##kind,    IS_BOOL_##kind,      DIFF_##saves,    tl_##name, \
   tl_##name##_, tl_##name##_scalar, tl_##name##_rscalar, name##_reference},
#include "ops/ops.def"
};
#define BINARIES (int)(sizeof binaries / sizeof *binaries)

#define ROWS 5
#define COLUMNS 7
static const double P = 0.3, Q = 0.8; /* parameters of the rows that have them */

static tl_status apply(const unary_case *u, tl_tensor *x, tl_tensor **y) {
  return u->parameters == 0 ? u->f0(x, y) : u->parameters == 1 ? u->f1(x, P, y) : u->f2(x, P, Q, y);
}

static tl_status apply_(const unary_case *u, tl_tensor *x) {
  return u->parameters == 0 ? u->g0(x) : u->parameters == 1 ? u->g1(x, P) : u->g2(x, P, Q);
}

/* how far a result of this dtype may be from the double formula */
static double tolerance(int dtype) {
  switch (dtype) {
    case TL_FLOAT64: return 1e-14;
    case TL_FLOAT16: return 2e-3;
    case TL_BFLOAT16: return 1.6e-2;
    default: return 3e-6;
  }
}

static int result_dtype(bool floating, bool boolean, int dtype) {
  return boolean ? TL_BOOL : floating && dtype >= TL_INT64 ? TL_FLOAT32 : dtype;
}

static bool is_integer(int dtype) { return dtype >= TL_INT64; }

/* The stored values of x (rounded to its dtype) through the reference. */
static void compare(const char *name, tl_tensor *y, const double *expected, int64_t n, int dtype) {
  double *got = malloc((size_t)(n + 1) * sizeof *got);
  ck_ok(tl_to_doubles(y, n, got));
  for (int64_t i = 0; i < n; i++) {
    double e = is_integer(dtype) ? trunc(expected[i]) : expected[i];
    if (dtype == TL_UINT8) e = (double)(uint8_t)(int64_t)e;
    if (dtype == TL_BOOL) e = e != 0;
    if ((isnan(e) && isnan(got[i])) || e == got[i]) continue;
    ck_assert_msg(fabs(got[i] - e) <= tolerance(dtype) * (1 + fabs(e)), "%s %s: element %lld is %.9g, expected %.9g",
                  name, tl_dtype_name(dtype), (long long)i, got[i], e);
  }
  free(got);
}

static tl_tensor *sample(int layout, int dtype, double seed) {
  bool whole = is_integer(dtype);
  return layout_tensor(layout, ROWS, COLUMNS, dtype, whole ? 1 : 0.1, whole ? 6 : 0.9, seed);
}

START_TEST(every_unary_row_over_every_dtype_and_layout) {
  for (int i = 0; i < UNARIES; i++)
    for (int dtype = 0; dtype < TL_DTYPES; dtype++)
      for (int layout = 0; layout < LAYOUTS; layout++) {
        const unary_case *u = &unaries[i];
        tl_tensor *x = sample(layout, dtype, 1), *y = NULL;
        if (dtype == TL_BOOL && strcmp(u->name, "neg") == 0) {
          ck_fails(apply(u, x, &y), TL_ERR_DTYPE, "logical_not");
          tl_tensor_free(x);
          continue;
        }
        int64_t n = (int64_t)tl_numel(x);
        double values[ROWS * COLUMNS];
        ck_ok(tl_to_doubles(x, n, values));
        ck_ok(apply(u, x, &y));
        int result = result_dtype(u->floating, u->boolean, dtype);
        ck_assert_msg(tl_dtype_of(y) == result, "%s of %s is %s", u->name, tl_dtype_name(dtype),
                      tl_dtype_name(tl_dtype_of(y)));
        for (int64_t e = 0; e < n; e++) {
          double x_ = values[e];
          if (is_integer(dtype) && !u->floating && !u->boolean && u->parameters == 2)
            values[e] = x_ < P ? trunc(P) : x_ > Q ? trunc(Q) : x_;
          else values[e] = u->reference(x_, P, Q);
        }
        compare(u->name, y, values, n, result);
        tl_tensor_free(y);
        if (layout != EXPANDED && result == dtype) { /* and in place */
          ck_ok(apply_(u, x));
          compare(u->name, x, values, n, result);
        }
        tl_tensor_free(x);
      }
  ck_assert_int_eq(live_tensors(), 0);
}
END_TEST

START_TEST(every_binary_row_over_every_dtype_and_layout) {
  for (int i = 0; i < BINARIES; i++)
    for (int dtype = 0; dtype < TL_DTYPES; dtype++)
      for (int la = 0; la < LAYOUTS; la++)
        for (int lb = 0; lb < LAYOUTS; lb++) {
          if ((la == EMPTY) != (lb == EMPTY)) continue;
          const binary_case *c = &binaries[i];
          tl_tensor *a = sample(la, dtype, 1), *b = sample(lb, dtype, 2), *y = NULL, *row = NULL, *z = NULL;
          if (dtype == TL_BOOL && strcmp(c->name, "sub") == 0) {
            ck_fails(c->f(a, b, &y), TL_ERR_DTYPE, "logical_xor");
            tl_tensor_free(a);
            tl_tensor_free(b);
            continue;
          }
          int64_t n = (int64_t)tl_numel(a);
          double va[ROWS * COLUMNS], vb[ROWS * COLUMNS], expected[ROWS * COLUMNS];
          ck_ok(tl_to_doubles(a, n, va));
          ck_ok(tl_to_doubles(b, n, vb));
          int result = result_dtype(c->floating, c->boolean, dtype);
          for (int64_t e = 0; e < n; e++) expected[e] = c->reference(va[e], vb[e]);
          ck_ok(c->f(a, b, &y));
          ck_assert_int_eq(tl_dtype_of(y), result);
          compare(c->name, y, expected, n, result);
          tl_tensor_free(y);
          if (la != EMPTY) { /* a row broadcasts, a number works on either side */
            ck_ok(tl_select(b, 0, 0, &row));
            for (int64_t e = 0; e < n; e++) expected[e] = c->reference(va[e], vb[e % COLUMNS]);
            ck_ok(c->f(a, row, &y));
            compare(c->name, y, expected, n, result);
            tl_tensor_free(y);
            int with_number = dtype == TL_BOOL && !c->boolean && !c->floating ? TL_INT64 : result;
            ck_ok(c->scalar(a, 2, &y));
            for (int64_t e = 0; e < n; e++) expected[e] = c->reference(va[e], 2);
            compare(c->name, y, expected, n, with_number);
            ck_ok(c->rscalar(2, a, &z));
            for (int64_t e = 0; e < n; e++) expected[e] = c->reference(2, va[e]);
            compare(c->name, z, expected, n, with_number);
            tl_tensor_free(y);
            tl_tensor_free(z);
          }
          if (la != EXPANDED && result == dtype) {
            for (int64_t e = 0; e < n; e++) expected[e] = c->reference(va[e], vb[e]);
            ck_ok(c->g(a, b));
            compare(c->name, a, expected, n, result);
          }
          tl_tensor_free(a);
          tl_tensor_free(b);
          tl_tensor_free(row);
        }
  ck_assert_int_eq(live_tensors(), 0);
}
END_TEST

/* ---- gradients ---- */

static tl_status graded_unary(tl_tensor *const *in, void *c, tl_tensor **out) { return apply(c, in[0], out); }
static tl_status graded_binary(tl_tensor *const *in, void *c, tl_tensor **out) {
  return ((const binary_case *)c)->f(in[0], in[1], out);
}

/* in place on an intermediate value: clone(x).f_() */
static tl_status graded_unary_(tl_tensor *const *in, void *c, tl_tensor **out) {
  tl_tensor *y;
  tl_status st = tl_clone(in[0], &y);
  if (st == TL_OK) st = apply_(c, y);
  *out = y;
  return st;
}
static tl_status graded_binary_(tl_tensor *const *in, void *c, tl_tensor **out) {
  tl_tensor *y;
  tl_status st = tl_clone(in[0], &y);
  if (st == TL_OK) st = ((const binary_case *)c)->g(y, in[1]);
  *out = y;
  return st;
}
static tl_status graded_scalar(tl_tensor *const *in, void *c, tl_tensor **out) {
  return ((const binary_case *)c)->scalar(in[0], 1.7, out);
}
static tl_status graded_rscalar(tl_tensor *const *in, void *c, tl_tensor **out) {
  return ((const binary_case *)c)->rscalar(1.7, in[0], out);
}

START_TEST(gradients_of_every_row_agree_with_differences) {
  for (int layout = 0; layout < LAYOUTS; layout++) {
    for (int i = 0; i < UNARIES; i++) {
      if (!unaries[i].differentiable) continue;
      tl_tensor *x = sample(layout, TL_FLOAT64, 3);
      check_gradients(unaries[i].name, graded_unary, 1, &x, (void *)&unaries[i]);
      check_gradients(unaries[i].name, graded_unary_, 1, &x, (void *)&unaries[i]);
      tl_tensor_free(x);
    }
    for (int i = 0; i < BINARIES; i++) {
      if (!binaries[i].differentiable) continue;
      tl_tensor *in[2] = {sample(layout, TL_FLOAT64, 4), sample(layout, TL_FLOAT64, 5)}, *row[2];
      check_gradients(binaries[i].name, graded_binary, 2, in, (void *)&binaries[i]);
      check_gradients(binaries[i].name, graded_binary_, 2, in, (void *)&binaries[i]);
      check_gradients(binaries[i].name, graded_scalar, 1, in, (void *)&binaries[i]);
      check_gradients(binaries[i].name, graded_rscalar, 1, in, (void *)&binaries[i]);
      if (layout != EMPTY) { /* a broadcast side sums its gradient */
        row[0] = in[0];
        ck_ok(tl_narrow(in[1], 0, 1, 1, &row[1]));
        check_gradients(binaries[i].name, graded_binary, 2, row, (void *)&binaries[i]);
        tl_tensor_free(row[1]);
      }
      tl_tensor_free(in[0]);
      tl_tensor_free(in[1]);
    }
  }
}
END_TEST

static tl_status graded_addcmul(tl_tensor *const *in, void *c, tl_tensor **out) {
  return tl_addcmul(in[0], in[1], in[2], *(double *)c, out);
}
static tl_status graded_addcdiv(tl_tensor *const *in, void *c, tl_tensor **out) {
  return tl_addcdiv(in[0], in[1], in[2], *(double *)c, out);
}
static tl_status graded_add_scaled(tl_tensor *const *in, void *c, tl_tensor **out) {
  return tl_add_scaled(in[0], in[1], *(double *)c, out);
}
static tl_status graded_lerp(tl_tensor *const *in, void *c, tl_tensor **out) {
  return tl_lerp(in[0], in[1], *(double *)c, out);
}
static tl_status graded_where(tl_tensor *const *in, void *c, tl_tensor **out) { return tl_where(c, in[0], in[1], out); }
static tl_status graded_fill(tl_tensor *const *in, void *c, tl_tensor **out) {
  return tl_masked_fill(in[0], c, 3, out);
}

START_TEST(gradients_of_operations_with_three_operands) {
  for (int layout = 0; layout < EMPTY; layout++) {
    tl_tensor *in[3], *mask;
    double value = 0.7;
    for (int i = 0; i < 3; i++) in[i] = sample(layout, TL_FLOAT64, 10 + i);
    ck_ok(tl_gt_scalar(in[2], 0.5, &mask));
    check_gradients("addcmul", graded_addcmul, 3, in, &value);
    check_gradients("addcdiv", graded_addcdiv, 3, in, &value);
    check_gradients("add with alpha", graded_add_scaled, 2, in, &value);
    check_gradients("lerp", graded_lerp, 2, in, &value);
    check_gradients("where", graded_where, 2, in, mask);
    check_gradients("masked_fill", graded_fill, 1, in, mask);
    for (int i = 0; i < 3; i++) tl_tensor_free(in[i]);
    tl_tensor_free(mask);
  }
}
END_TEST

/* ---- accuracy and edges ---- */

static void check_accuracy(const char *name, tl_status (*f)(tl_tensor *, tl_tensor **), double (*exact)(double),
                           double low, double high, double ulps) {
  enum { N = 200001 };
  tl_tensor *x, *y;
  static double in[N], out[N];
  ck_ok(tl_linspace(low, high, N, TL_FLOAT32, test_device(), &x));
  ck_ok(f(x, &y));
  ck_ok(tl_to_doubles(x, N, in));
  ck_ok(tl_to_doubles(y, N, out));
  for (int i = 0; i < N; i++) {
    double e = exact(in[i]);
    double ulp = fabs(e) < 1.2e-38 ? 1.4e-45 : ldexp(1, ilogb(e) - 23);
    ck_assert_msg(fabs(out[i] - e) <= ulps * ulp, "%s(%.9g) = %.9g, exact %.9g: %.2f ulp", name, in[i], out[i], e,
                  fabs(out[i] - e) / ulp);
  }
  tl_tensor_free(x);
  tl_tensor_free(y);
}

static double exact_sigmoid(double x) { return 1 / (1 + exp(-x)); }

START_TEST(float_functions_are_within_a_few_ulp) {
  check_accuracy("exp", tl_exp, exp, -87, 88, 2);
  check_accuracy("exp", tl_exp, exp, -103, -87, 2);
  check_accuracy("log", tl_log, log, 1e-3, 3, 2);
  check_accuracy("log", tl_log, log, 1e-39, 1e-37, 2);
  check_accuracy("log", tl_log, log, 1, 3e38, 2);
  check_accuracy("log1p", tl_log1p, log1p, -0.9, 5, 4);
  check_accuracy("log1p", tl_log1p, log1p, -1e-6, 1e-6, 4);
  check_accuracy("expm1", tl_expm1, expm1, -2, 2, 4);
  check_accuracy("tanh", tl_tanh, tanh, -10, 10, 4);
  check_accuracy("sigmoid", tl_sigmoid, exact_sigmoid, -80, 80, 4);
}
END_TEST

START_TEST(special_values_are_those_of_ieee_754) {
  tl_tensor *x = VECTOR(0, -1, INFINITY, -INFINITY, NAN, 89, -110), *y;
  ck_ok(tl_exp(x, &y));
  ck_tensor(y, 1e-6, 1, 0.36787944117, INFINITY, 0, NAN, INFINITY, 0);
  tl_tensor_free(y);
  ck_ok(tl_log(x, &y));
  ck_tensor(y, 1e-6, -INFINITY, NAN, INFINITY, NAN, NAN, 4.48863636973, NAN);
  tl_tensor_free(y);
  ck_ok(tl_relu(x, &y));
  ck_tensor(y, 0, 0, 0, INFINITY, 0, NAN, 89, 0);
  tl_tensor_free(y);
  ck_ok(tl_clamp(x, -5, 5, &y));
  ck_tensor(y, 0, 0, -1, 5, -5, NAN, 5, -5);
  tl_tensor_free(y);
  ck_ok(tl_tanh(x, &y));
  ck_tensor(y, 1e-6, 0, -0.7615941559, 1, -1, NAN, 1, -1);
  tl_tensor_free(y);
  ck_ok(tl_maximum_scalar(x, 0, &y));
  ck_tensor(y, 0, 0, 0, INFINITY, 0, NAN, 89, 0);
  tl_tensor_free(y);
  tl_tensor *n = VECTOR(NAN, NAN, NAN, NAN, 1, 1, 1);
  ck_ok(tl_minimum(x, n, &y));
  ck_tensor(y, 0, NAN, NAN, NAN, NAN, NAN, 1, -110);
  tl_tensor_free(y);
  ck_ok(tl_isfinite(x, &y));
  ck_tensor(y, 0, 1, 1, 0, 0, 0, 1, 1);
  tl_tensor_free(y);
  tl_tensor_free(n);
  tl_tensor_free(x);
}
END_TEST

START_TEST(results_promote_as_in_pytorch) {
  const int expected[][3] = {{TL_INT32, TL_FLOAT16, TL_FLOAT16}, {TL_FLOAT16, TL_BFLOAT16, TL_FLOAT32},
                             {TL_UINT8, TL_INT32, TL_INT32},     {TL_BOOL, TL_UINT8, TL_UINT8},
                             {TL_INT64, TL_FLOAT32, TL_FLOAT32}, {TL_FLOAT64, TL_FLOAT16, TL_FLOAT64}};
  for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
    ck_assert_int_eq(tl_promote(expected[i][0], expected[i][1]), expected[i][2]);
    ck_assert_int_eq(tl_promote(expected[i][1], expected[i][0]), expected[i][2]);
  }
  tl_tensor *x = VECTOR(1, 2), *s, *y, *i = TENSOR(TL_INT32, SHAPE(2), 1, 2);
  ck_ok(tl_full(0, NULL, 3, TL_FLOAT64, test_device(), &s)); /* a 0-d tensor does not widen within its category */
  ck_ok(tl_add(x, s, &y));
  ck_assert_int_eq(tl_dtype_of(y), TL_FLOAT32);
  tl_tensor_free(y);
  ck_ok(tl_add(i, s, &y));
  ck_assert_int_eq(tl_dtype_of(y), TL_FLOAT64);
  tl_tensor_free(y);
  ck_ok(tl_add_scalar(i, 2, &y));
  ck_assert_int_eq(tl_dtype_of(y), TL_INT32);
  tl_tensor_free(y);
  ck_ok(tl_add_scalar(i, 2.5, &y));
  ck_assert_int_eq(tl_dtype_of(y), TL_FLOAT32);
  ck_tensor(y, 0, 3.5, 4.5);
  tl_tensor_free(y);
  ck_fails(tl_add_(i, x), TL_ERR_DTYPE, "float32 result does not go into a int32");
  tl_tensor_free(x);
  tl_tensor_free(s);
  tl_tensor_free(i);
}
END_TEST

START_TEST(integer_division_by_zero_is_an_error) {
  tl_tensor *a = TENSOR(TL_INT64, SHAPE(2), 7, -7), *b = TENSOR(TL_INT64, SHAPE(2), 2, 0), *y;
  ck_fails(tl_floor_divide(a, b, &y), TL_ERR_VALUE, "division by zero");
  ck_fails(tl_remainder_scalar(a, 0, &y), TL_ERR_VALUE, "division by zero");
  ck_ok(tl_floor_divide_scalar(a, 2, &y));
  ck_tensor(y, 0, 3, -4);
  tl_tensor_free(y);
  ck_ok(tl_remainder_scalar(a, 2, &y));
  ck_tensor(y, 0, 1, 1);
  tl_tensor_free(y);
  ck_ok(tl_div(a, b, &y)); /* true division is floating */
  ck_tensor(y, 0, 3.5, -INFINITY);
  tl_tensor_free(y);
  tl_tensor_free(a);
  tl_tensor_free(b);
}
END_TEST

START_TEST(the_square_has_no_gradient_at_zero) {
  tl_tensor *x = VECTOR(0, 3), *y, *s, *g;
  tl_walk *w;
  ck_ok(tl_set_requires_grad(x, true));
  ck_ok(tl_pow_scalar(x, 2, &y));
  ck_ok(tl_sum(y, 0, NULL, false, &s));
  ck_ok(tl_backward(s, NULL, false, &w));
  ck_ok(tl_grad(x, &g));
  ck_tensor(g, 0, 0, 6);
  tl_tensor_free(g);
  tl_tensor_free(s);
  tl_tensor_free(y);
  tl_tensor_free(x);
}
END_TEST

START_TEST(where_cuts_the_gradient_of_what_was_not_taken) {
  /* where(n == 0, 0, x / n) with n = {0, 2}, x = {0, 1}: gradient of x {0, .5} */
  tl_tensor *n = VECTOR(0, 2), *x = VECTOR(0, 1), *zero = VECTOR(0, 0), *is, *q, *y, *s, *g;
  tl_walk *w;
  ck_ok(tl_set_requires_grad(x, true));
  ck_ok(tl_eq_scalar(n, 0, &is));
  ck_ok(tl_where(is, n, n, &q));
  tl_tensor_free(q);
  ck_ok(tl_div(x, n, &q));
  ck_ok(tl_where(is, zero, q, &y));
  ck_ok(tl_sum(y, 0, NULL, false, &s));
  ck_ok(tl_backward(s, NULL, false, &w));
  ck_ok(tl_grad(x, &g));
  double v[2];
  ck_ok(tl_to_doubles(g, 2, v));
  ck_assert_double_eq(v[1], 0.5);
  ck_assert_double_eq(v[0], 0);
  tl_tensor *all[] = {n, x, zero, is, q, y, s, g};
  for (int i = 0; i < 8; i++) tl_tensor_free(all[i]);
}
END_TEST

START_TEST(results_do_not_depend_on_threads) {
  tl_tensor *x, *a, *b;
  bool same;
  ck_ok(tl_empty(SHAPE(300, 1001), TL_FLOAT32, test_device(), &x));
  ck_ok(tl_uniform_(x, -3, 3, NULL));
  for (int i = 0; i < UNARIES; i++) {
    ck_ok(tl_set_num_threads(1));
    ck_ok(apply(&unaries[i], x, &a));
    ck_ok(tl_set_num_threads(2));
    ck_ok(apply(&unaries[i], x, &b));
    tl_tensor *na, *nb, *diff, *any;
    double differs;
    ck_ok(tl_ne(a, b, &diff));
    ck_ok(tl_isnan(a, &na));
    ck_ok(tl_isnan(b, &nb));
    ck_ok(tl_masked_fill_(diff, na, 0)); /* nan in both places is equal */
    ck_ok(tl_equal(na, nb, &same));
    ck_assert(same);
    ck_ok(tl_any(diff, 0, NULL, false, &any));
    ck_ok(tl_item(any, &differs));
    ck_assert_msg(differs == 0, "%s", unaries[i].name);
    tl_tensor *all[] = {a, b, na, nb, diff, any};
    for (int k = 0; k < 6; k++) tl_tensor_free(all[k]);
  }
  tl_tensor_free(x);
}
END_TEST

TEST_MAIN("pointwise", every_unary_row_over_every_dtype_and_layout, every_binary_row_over_every_dtype_and_layout,
          gradients_of_every_row_agree_with_differences, gradients_of_operations_with_three_operands,
          float_functions_are_within_a_few_ulp, special_values_are_those_of_ieee_754, results_promote_as_in_pytorch,
          integer_division_by_zero_is_an_error, the_square_has_no_gradient_at_zero,
          where_cuts_the_gradient_of_what_was_not_taken, results_do_not_depend_on_threads)
