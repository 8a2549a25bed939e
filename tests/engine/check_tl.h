/* check_tl.h: what the Check programs of this folder share. Only tlua.h is used: a host program could do the same. */
#ifndef CHECK_TL_H
#define CHECK_TL_H

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tlua.h"

#define ck_ok(call)                                                                                      \
  do {                                                                                                   \
    tl_status status_ = (call);                                                                          \
    ck_assert_msg(status_ == TL_OK, "%s: %s: %s", #call, tl_last_error()->op, tl_last_error()->message); \
  } while (0)

/* The call fails with this code and a message that contains `text`. */
#define ck_fails(call, code_, text)                                                             \
  do {                                                                                          \
    tl_status status_ = (call);                                                                 \
    ck_assert_msg(status_ == (code_), "%s: status %d, expected %d", #call, status_, (code_));   \
    ck_assert_msg(strstr(tl_last_error()->message, text) != NULL, "'%s' does not contain '%s'", \
                  tl_last_error()->message, text);                                              \
  } while (0)

#define SHAPE(...) \
  (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (const int64_t[]) { __VA_ARGS__ }

/* Where tests make their tensors: what the environment's TLUA_TEST_DEVICE names, the CPU without it. */
static inline tl_device test_device(void) {
  static tl_device device = -1;
  const char *name = getenv("TLUA_TEST_DEVICE");
  if (device < 0) ck_ok(tl_device_parse(name == NULL ? "cpu" : name, &device));
  return device;
}

/* Kernels of a GPU meet ids and labels that name nothing when nobody waits for them: the next call that waits says so.
 * The status of a call, or that of the wait for it; *out goes with a late refusal. */
static inline tl_status settled(tl_status status, tl_tensor **out) {
  if (status != TL_OK || test_device() == TL_CPU) return status;
  tl_tensor *probe;
  double value;
  ck_ok(tl_full(0, NULL, 0, TL_FLOAT32, test_device(), &probe));
  status = tl_item(probe, &value);
  tl_tensor_free(probe);
  if (status != TL_OK && out != NULL) {
    tl_tensor_free(*out);
    *out = NULL;
  }
  return status;
}

/* The call fails, at once or late. Its message names the value; `where`, which goes on from there, only the CPU knows. */
#define ck_names_bad(call, out, code, value, where) \
  ck_fails(settled(call, out), code, test_device() == TL_CPU ? value where : value)

static inline int64_t live_tensors(void) {
  tl_memory_stats s;
  ck_ok(tl_memory(TL_CPU, &s));
  return (int64_t)s.tensors;
}

/* values of a tensor against `expected`, |difference| <= tolerance * max(1, |expected|); nan equals nan */
static inline void ck_values(const tl_tensor *t, int64_t n, const double *expected, double tolerance) {
  ck_assert_msg((int64_t)tl_numel(t) == n, "%g elements, expected %lld", tl_numel(t), (long long)n);
  double *v = malloc((size_t)(n == 0 ? 1 : n) * sizeof *v);
  ck_ok(tl_to_doubles(t, n, v));
  for (int64_t i = 0; i < n; i++) {
    if (isnan(expected[i]) && isnan(v[i])) continue;
    if (v[i] == expected[i]) continue;
    double scale = fabs(expected[i]) > 1 ? fabs(expected[i]) : 1;
    ck_assert_msg(fabs(v[i] - expected[i]) <= tolerance * scale, "element %lld is %.9g, expected %.9g", (long long)i,
                  v[i], expected[i]);
  }
  free(v);
}
#define ck_tensor(t, tolerance, ...) \
  ck_values(t, (int64_t)(sizeof((double[]){__VA_ARGS__}) / sizeof(double)), (const double[]){__VA_ARGS__}, tolerance)

static inline tl_tensor *make_tensor(int dtype, int ndim, const int64_t *shape, const double *values) {
  tl_tensor *t = NULL;
  ck_ok(tl_from_doubles(ndim, shape, dtype, test_device(), values, &t));
  return t;
}
#define TENSOR(dtype, shape, ...) make_tensor(dtype, shape, (const double[]){__VA_ARGS__})
#define VECTOR(...)                                                                                          \
  make_tensor(TL_FLOAT32, 1, (const int64_t[]){(int64_t)(sizeof((double[]){__VA_ARGS__}) / sizeof(double))}, \
              (const double[]){__VA_ARGS__})

/* ---- layouts: the same values through different strides ---- */

enum layout { CONTIGUOUS, TRANSPOSED, NARROWED, EXPANDED, EMPTY, LAYOUTS };
static inline const char *layout_name(int layout) {
  static const char *names[LAYOUTS] = {"contiguous", "transposed", "narrowed", "expanded", "empty"};
  return names[layout];
}

/* A (rows x columns) tensor of this layout whose elements are random in [low, high); EXPANDED repeats one row, EMPTY has
 * no rows. Deterministic: seed. */
static inline tl_tensor *layout_tensor(int layout, int64_t rows, int64_t columns, int dtype, double low, double high,
                                       double seed) {
  tl_generator *g;
  tl_tensor *x = NULL, *y = NULL, *z = NULL;
  ck_ok(tl_generator_new(seed, &g));
  int64_t shape[2] = {rows, columns}, swapped[2] = {columns, rows}, wide[2] = {rows, columns + 3},
          one[2] = {1, columns}, none[2] = {0, columns};
  const int64_t *s = layout == TRANSPOSED ? swapped
                     : layout == NARROWED ? wide
                     : layout == EXPANDED ? one
                     : layout == EMPTY    ? none
                                          : shape;
  ck_ok(tl_empty(2, s, TL_FLOAT64, test_device(), &x));
  ck_ok(tl_uniform_(x, low, high, g));
  ck_ok(tl_to(x, dtype, test_device(), &y));
  if (layout == TRANSPOSED) ck_ok(tl_transpose(y, 0, 1, &z));
  else if (layout == NARROWED) ck_ok(tl_narrow(y, 1, 2, columns, &z));
  else if (layout == EXPANDED) ck_ok(tl_expand(y, 2, shape, &z));
  else ck_ok(tl_tensor_retain(y, &z));
  tl_tensor_free(x);
  tl_tensor_free(y);
  tl_generator_free(g);
  return z;
}

/* ---- gradients by central differences, in float64 ---- */

/* A function of n tensors (float64) to one tensor of any shape; the check contracts it with fixed random weights. */
typedef tl_status (*graded)(tl_tensor *const *in, void *context, tl_tensor **out);

static inline double weighted_sum(graded f, tl_tensor *const *in, void *context, tl_tensor **weights,
                                  tl_tensor **total) {
  tl_tensor *y = NULL, *product = NULL, *sum = NULL;
  ck_ok(f(in, context, &y));
  if (*weights == NULL) {
    int64_t shape[TL_MAX_DIMS];
    for (int d = 0; d < tl_ndim(y); d++) shape[d] = (int64_t)tl_size(y, d);
    tl_generator *g;
    ck_ok(tl_generator_new(99, &g));
    ck_ok(tl_empty(tl_ndim(y), shape, TL_FLOAT64, test_device(), weights));
    ck_ok(tl_uniform_(*weights, -1, 1, g));
    tl_generator_free(g);
  }
  ck_ok(tl_mul(y, *weights, &product));
  ck_ok(tl_sum(product, 0, NULL, false, &sum));
  double value;
  ck_ok(tl_item(sum, &value));
  tl_tensor_free(y);
  tl_tensor_free(product);
  if (total != NULL) *total = sum;
  else tl_tensor_free(sum);
  return value;
}

/* Compares the tape's gradients of f with differences for every floating input. Inputs may have any strides; each is
 * held as a leaf of its own values seen through the same layout. */
static inline void check_gradients(const char *what, graded f, int n, tl_tensor *const *inputs, void *context) {
  tl_tensor *leaves[8], *weights = NULL, *total = NULL;
  ck_assert_int_le(n, 8);
  for (int i = 0; i < n; i++) {
    ck_ok(tl_detach(inputs[i], &leaves[i]));
    if (tl_dtype_of(leaves[i]) == TL_FLOAT64) ck_ok(tl_set_requires_grad(leaves[i], true));
  }
  weighted_sum(f, leaves, context, &weights, &total);
  tl_walk *walk = NULL;
  ck_ok(tl_backward(total, NULL, false, &walk));
  ck_assert_ptr_null(walk);
  for (int i = 0; i < n; i++) {
    if (tl_dtype_of(leaves[i]) != TL_FLOAT64) continue;
    int64_t count = (int64_t)tl_numel(leaves[i]);
    double *analytic = calloc((size_t)count + 1, sizeof *analytic),
           *values = malloc(((size_t)count + 1) * sizeof *values);
    tl_tensor *grad = NULL;
    ck_ok(tl_grad(leaves[i], &grad));
    if (grad != NULL) ck_ok(tl_to_doubles(grad, count, analytic));
    ck_ok(tl_to_doubles(leaves[i], count, values));
    int64_t shape[TL_MAX_DIMS];
    for (int d = 0; d < tl_ndim(leaves[i]); d++) shape[d] = (int64_t)tl_size(leaves[i], d);
    tl_tensor *moved[8];
    for (int k = 0; k < n; k++) moved[k] = inputs[k];
    for (int64_t e = 0; e < count; e++) {
      const double step = 1e-5;
      double at = values[e], side[2];
      for (int s = 0; s < 2; s++) {
        values[e] = at + (s == 0 ? step : -step);
        moved[i] = make_tensor(TL_FLOAT64, tl_ndim(leaves[i]), shape, values);
        side[s] = weighted_sum(f, moved, context, &weights, NULL);
        tl_tensor_free(moved[i]);
      }
      values[e] = at;
      double numeric = (side[0] - side[1]) / (2 * step);
      ck_assert_msg(fabs(numeric - analytic[e]) <= 1e-5 * (1 + fabs(numeric)),
                    "%s: gradient of input %d, element %lld: %.9g, differences give %.9g", what, i, (long long)e,
                    analytic[e], numeric);
    }
    tl_tensor_free(grad);
    free(analytic);
    free(values);
  }
  for (int i = 0; i < n; i++) tl_tensor_free(leaves[i]);
  tl_tensor_free(weights);
  tl_tensor_free(total);
}

/* ---- main ---- */

/* int main(void) { return run_tests("tensor", test_a, test_b, NULL); } */
static inline int run_suite(Suite *suite) {
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_ENV);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

#define TEST_MAIN(name, ...)                                                                   \
  int main(void) {                                                                             \
    const TTest *tests[] = {__VA_ARGS__};                                                      \
    Suite *suite = suite_create(name);                                                         \
    TCase *tcase = tcase_create(name);                                                         \
    tcase_set_timeout(tcase, 120);                                                             \
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) tcase_add_test(tcase, tests[i]); \
    suite_add_tcase(suite, tcase);                                                             \
    return run_suite(suite);                                                                   \
  }

#endif
