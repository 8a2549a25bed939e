/* Adam's moments in bfloat16 and in 8-bit codes: rounding, blocks, bytes, conversions, failing calls. */
#include "check_tl.h"

enum { N = 4096 + 77 }; /* 8-bit from 4096 elements on; the last block is not full */

static tl_tensor *noise(int dtype, int64_t n, double seed, double scale) {
  tl_generator *g;
  tl_tensor *x, *y;
  ck_ok(tl_generator_new(seed, &g));
  ck_ok(tl_empty(1, &n, TL_FLOAT32, test_device(), &x));
  ck_ok(tl_normal_(x, 0, scale, g));
  ck_ok(tl_to(x, dtype, test_device(), &y));
  tl_tensor_free(x);
  tl_generator_free(g);
  return y;
}

static tl_param_group adam(int state_dtype) {
  tl_param_group g;
  ck_ok(tl_optimizer_defaults(TL_ADAM, &g));
  g.state_dtype = state_dtype;
  return g;
}

static tl_optimizer *optimizer(tl_tensor *param, const tl_param_group *g) {
  tl_optimizer *o;
  ck_ok(tl_optimizer_new(TL_ADAM, &o));
  ck_ok(tl_optimizer_add_group(o, 1, &param, g, NULL));
  return o;
}

/* Steps first .. last, each with its own gradients. */
static void train(tl_optimizer *o, tl_tensor *p, int first, int last) {
  for (int i = first; i <= last; i++) {
    tl_tensor *grad = noise(tl_dtype_of(p), (int64_t)tl_numel(p), i, 1);
    ck_ok(tl_set_grad(p, grad));
    tl_tensor_free(grad);
    ck_ok(tl_optimizer_step(o));
  }
}

static double *numbers(const tl_tensor *t) {
  int64_t n = (int64_t)tl_numel(t);
  double *x = calloc((size_t)n + 1, sizeof *x);
  ck_ok(tl_to_doubles(t, n, x));
  return x;
}

static bool equal(const tl_tensor *a, const tl_tensor *b) {
  double *x = numbers(a), *y = numbers(b);
  bool same = tl_numel(a) == tl_numel(b) && memcmp(x, y, (size_t)tl_numel(a) * sizeof *x) == 0;
  free(x);
  free(y);
  return same;
}

static tl_tensor *state(const tl_optimizer *o, int k, tl_tensor **absmax) {
  tl_tensor *t;
  ck_ok(tl_optimizer_state(o, 0, k, &t));
  ck_ok(tl_optimizer_absmax(o, 0, k, absmax));
  return t;
}

/* What an optimizer with 8-bit state makes of plain numbers: codes and absmax. */
static tl_tensor *encode(tl_tensor *values, int k, tl_tensor **absmax) {
  tl_tensor *p = noise(TL_FLOAT32, (int64_t)tl_numel(values), 1, 1);
  tl_param_group g = adam(TL_UINT8);
  tl_optimizer *o = optimizer(p, &g);
  ck_ok(tl_optimizer_set_state(o, 0, k, values));
  tl_tensor *codes = state(o, k, absmax);
  tl_optimizer_free(o);
  tl_tensor_free(p);
  return codes;
}

/* And one with float32 state of codes. */
static tl_tensor *decode(tl_tensor *codes, tl_tensor *absmax, int k) {
  tl_tensor *p = noise(TL_FLOAT32, (int64_t)tl_numel(codes), 1, 1), *none;
  tl_param_group g = adam(TL_FLOAT32);
  tl_optimizer *o = optimizer(p, &g);
  ck_ok(tl_optimizer_set_codes(o, 0, k, codes, absmax));
  tl_tensor *values = state(o, k, &none);
  ck_assert_ptr_null(none);
  tl_optimizer_free(o);
  tl_tensor_free(p);
  return values;
}

/* Block 0 has every code, the others zeros; k: which moment. */
static tl_tensor *all_codes(tl_tensor **absmax) {
  double x[4096] = {0}, most[16] = {.75};
  for (int i = 0; i < 256; i++) x[i] = i;
  *absmax = TENSOR(TL_FLOAT32, SHAPE(16), most[0], 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
  return make_tensor(TL_UINT8, SHAPE(4096), x);
}

START_TEST(codes_are_a_dynamic_tree) {
  for (int k = 0; k < 2; k++) {
    tl_tensor *absmax, *codes = all_codes(&absmax), *values = decode(codes, absmax, k);
    double *x = numbers(values);
    const int top = k == 0 ? 127 : 255;
    ck_assert_double_eq(x[0], 0);
    ck_assert_double_eq(x[top], .75);
    ck_assert_double_eq_tol(x[1], .75 * (k == 0 ? 1e-6 : 1e-7), 1e-13);
    ck_assert_double_eq_tol(x[top / 2], .075, 1e-8); /* the end of the second decade */
    for (int i = 1; i <= top; i++) ck_assert_double_gt(x[i], x[i - 1]);
    if (k == 0)
      for (int i = 1; i <= top; i++) ck_assert_double_eq(x[128 + i], -x[i]);
    /* going to the nearest code, each comes back: exactly, and with its block's largest value */
    tl_tensor *most, *again = encode(values, k, &most);
    double *y = numbers(again);
    for (int i = 0; i < 4096; i++) ck_assert_double_eq(y[i], i == 128 && k == 0 ? 0 : i < 256 ? i : 0);
    ck_assert(equal(absmax, most));
    free(x);
    free(y);
    tl_tensor *all[] = {absmax, codes, values, most, again};
    for (int i = 0; i < 5; i++) tl_tensor_free(all[i]);
  }
}
END_TEST

START_TEST(numbers_go_to_the_nearest_code) {
  for (int k = 0; k < 2; k++) {
    tl_tensor *table_most, *table_codes = all_codes(&table_most), *table = decode(table_codes, table_most, k);
    tl_tensor *x = noise(TL_FLOAT32, N, 5, 1), *square, *most;
    ck_ok(tl_mul(x, x, &square));
    tl_tensor *from = k == 0 ? x : square, *codes = encode(from, k, &most), *back = decode(codes, most, k);
    double *grid = numbers(table), *value = numbers(from), *result = numbers(back), *largest = numbers(most);
    ck_assert_double_eq(tl_numel(most), 17);
    for (int i = 0; i < N; i++) {
      double scale = largest[i / 256], best = INFINITY;
      for (int c = k == 0 ? 0 : 1; c < 256; c++) best = fmin(best, fabs(grid[c] / .75 * scale - value[i]));
      ck_assert_double_le(fabs(result[i] - value[i]), best + 1e-7 * scale);
      ck_assert_double_le(fabs(result[i] - value[i]), (k == 0 ? .9 / 128 : .9 / 256) * scale * 1.001);
    }
    double *lists[] = {grid, value, result, largest};
    for (int i = 0; i < 4; i++) free(lists[i]);
    tl_tensor *all[] = {table_most, table_codes, table, x, square, most, codes, back};
    for (int i = 0; i < 8; i++) tl_tensor_free(all[i]);
  }
}
END_TEST

static double live(void) {
  tl_memory_stats stats;
  ck_ok(tl_memory(test_device(), &stats));
  return stats.live;
}

START_TEST(bytes_of_state) {
  const int dtypes[3] = {TL_FLOAT32, TL_BFLOAT16, TL_UINT8};
  const double expected[3] = {8, 4, 2 + 8. / 256}; /* for each element */
  for (int i = 0; i < 3; i++) {
    tl_tensor *p = noise(TL_FLOAT32, 1 << 20, 1, 1), *grad = noise(TL_FLOAT32, 1 << 20, 2, 1);
    ck_ok(tl_set_grad(p, grad));
    tl_param_group g = adam(dtypes[i]);
    double before = live();
    tl_optimizer *o = optimizer(p, &g);
    ck_ok(tl_optimizer_step(o));
    ck_assert_double_eq_tol((live() - before) / (1 << 20), expected[i], 1e-3);
    tl_optimizer_free(o);
    tl_tensor_free(p);
    tl_tensor_free(grad);
  }
}
END_TEST

/* How far the parameters are from those of float32 state, beside how far they went. */
static double distance(int dtype, int state_dtype, int steps) {
  tl_tensor *p[2], *start = noise(dtype, N, 99, 1);
  for (int i = 0; i < 2; i++) {
    ck_ok(tl_clone(start, &p[i]));
    tl_param_group g = adam(i == 0 ? TL_FLOAT32 : state_dtype);
    g.lr = 1e-2;
    tl_optimizer *o = optimizer(p[i], &g);
    train(o, p[i], 1, steps);
    tl_optimizer_free(o);
  }
  double *a = numbers(p[0]), *b = numbers(p[1]), *x = numbers(start), apart = 0, way = 0;
  for (int i = 0; i < N; i++) apart += (a[i] - b[i]) * (a[i] - b[i]), way += (a[i] - x[i]) * (a[i] - x[i]);
  free(a);
  free(b);
  free(x);
  for (int i = 0; i < 2; i++) tl_tensor_free(p[i]);
  tl_tensor_free(start);
  return sqrt(apart / way);
}

START_TEST(the_way_is_that_of_float32) {
  ck_assert_double_lt(distance(TL_FLOAT32, TL_BFLOAT16, 60), 6e-3);
  ck_assert_double_lt(distance(TL_FLOAT32, TL_UINT8, 60), 3e-2);
  ck_assert_double_lt(distance(TL_FLOAT16, TL_UINT8, 20), 3e-2);
  ck_assert_double_lt(distance(TL_BFLOAT16, TL_BFLOAT16, 20), 6e-2); /* the parameter itself has 8 bits */
}
END_TEST

/* beta2 = 0.999: to the nearest, a mean that shrinks by a thousandth a step would stay where it is. */
START_TEST(means_decay) {
  for (int i = 0; i < 2; i++) {
    tl_tensor *p = noise(TL_FLOAT32, 8192, 1, 1), *ones, *zeros, *absmax;
    ck_ok(tl_full(1, (const int64_t[]){8192}, 1, TL_FLOAT32, test_device(), &ones));
    ck_ok(tl_full(1, (const int64_t[]){8192}, 0, TL_FLOAT32, test_device(), &zeros));
    tl_param_group g = adam(i == 0 ? TL_BFLOAT16 : TL_UINT8);
    tl_optimizer *o = optimizer(p, &g);
    ck_ok(tl_set_grad(p, ones));
    ck_ok(tl_optimizer_step(o));
    ck_ok(tl_set_grad(p, zeros));
    for (int k = 0; k < 100; k++) ck_ok(tl_optimizer_step(o));
    tl_tensor *second = state(o, 1, &absmax), *plain = absmax == NULL ? second : decode(second, absmax, 1), *mean;
    ck_ok(tl_mean(plain, 0, NULL, false, &mean));
    ck_tensor(mean, 1e-6, 1e-3 * pow(.999, 100));
    if (plain != second) tl_tensor_free(plain);
    tl_tensor *all[] = {p, ones, zeros, absmax, second, mean};
    for (int k = 0; k < 6; k++) tl_tensor_free(all[k]);
    tl_optimizer_free(o);
  }
}
END_TEST

START_TEST(threads_and_other_random_numbers_change_nothing) {
  const int dtypes[4] = {TL_FLOAT32, TL_FLOAT32, TL_FLOAT16, TL_BFLOAT16};
  for (int i = 0; i < 4; i++) {
    tl_tensor *first = NULL;
    for (int threads = 1; threads <= 3; threads += 2) {
      ck_ok(tl_set_num_threads(threads));
      tl_tensor *p = noise(dtypes[i], 3 * 8192 + 100, 7, 1);
      tl_param_group g = adam(i % 2 == 0 ? TL_UINT8 : TL_BFLOAT16);
      tl_optimizer *o = optimizer(p, &g);
      train(o, p, 1, 5);
      tl_optimizer_free(o);
      if (threads == 1) {
        first = p;
        continue;
      }
      ck_assert(equal(first, p));
      tl_tensor_free(first);
      tl_tensor_free(p);
    }
  }
}
END_TEST

/* Saved after step 3: the same bits from there on. */
START_TEST(state_moves_exactly) {
  for (int i = 0; i < 2; i++) {
    tl_tensor *p = noise(TL_FLOAT32, N, 3, 1), *q;
    tl_param_group g = adam(i == 0 ? TL_BFLOAT16 : TL_UINT8);
    tl_optimizer *o = optimizer(p, &g);
    train(o, p, 1, 3);
    ck_ok(tl_clone(p, &q));
    tl_optimizer *other = optimizer(q, &g);
    double step, product;
    ck_ok(tl_optimizer_progress(o, 0, &step, &product));
    ck_ok(tl_optimizer_set_progress(other, 0, step, product));
    for (int k = 0; k < 2; k++) {
      tl_tensor *absmax, *x = state(o, k, &absmax);
      ck_assert_int_eq(tl_dtype_of(x), g.state_dtype);
      if (absmax != NULL) ck_ok(tl_optimizer_set_codes(other, 0, k, x, absmax));
      else ck_ok(tl_optimizer_set_state(other, 0, k, x));
      tl_tensor_free(x);
      tl_tensor_free(absmax);
    }
    train(o, p, 4, 7);
    train(other, q, 4, 7);
    ck_assert(equal(p, q));
    tl_optimizer_free(o);
    tl_optimizer_free(other);
    tl_tensor_free(p);
    tl_tensor_free(q);
  }
}
END_TEST

START_TEST(small_parameters_keep_float32) {
  tl_tensor *p = noise(TL_FLOAT32, 4095, 1, 1), *absmax;
  tl_param_group g = adam(TL_UINT8);
  tl_optimizer *o = optimizer(p, &g);
  train(o, p, 1, 2);
  tl_tensor *m = state(o, 0, &absmax);
  ck_assert_int_eq(tl_dtype_of(m), TL_FLOAT32);
  ck_assert_ptr_null(absmax);
  tl_optimizer_free(o);
  tl_tensor_free(p);
  tl_tensor_free(m);
}
END_TEST

START_TEST(nan_spoils_its_block_only) {
  tl_tensor *p = noise(TL_FLOAT32, N, 1, 1), *grad = noise(TL_FLOAT32, N, 2, 1), *one;
  const int64_t at = 300;
  ck_ok(tl_narrow(grad, 0, at, 1, &one));
  ck_ok(tl_fill_(one, NAN));
  ck_ok(tl_set_grad(p, grad));
  tl_param_group g = adam(TL_UINT8);
  tl_optimizer *o = optimizer(p, &g);
  ck_ok(tl_optimizer_step(o));
  train(o, p, 2, 3);
  double *x = numbers(p);
  for (int i = 0; i < N; i++) ck_assert_int_eq(isnan(x[i]), i / 256 == at / 256);
  free(x);
  tl_optimizer_free(o);
  tl_tensor *all[] = {p, grad, one};
  for (int i = 0; i < 3; i++) tl_tensor_free(all[i]);
}
END_TEST

START_TEST(what_cannot_be_small) {
  tl_tensor *p = noise(TL_FLOAT32, 5000, 1, 1), *wide = noise(TL_FLOAT64, 5000, 1, 1), *x;
  tl_param_group g = adam(TL_INT32), *used;
  tl_optimizer *o;
  ck_ok(tl_optimizer_new(TL_ADAM, &o));
  ck_fails(tl_optimizer_add_group(o, 1, &p, &g, NULL), TL_ERR_VALUE, "state in dtype number");
  tl_optimizer_free(o);
  ck_ok(tl_optimizer_new(TL_SGD, &o));
  g.state_dtype = TL_UINT8;
  ck_fails(tl_optimizer_add_group(o, 1, &p, &g, NULL), TL_ERR_UNSUPPORTED, "only Adam and AdamW");
  tl_optimizer_free(o);
  ck_ok(tl_set_grad(p, p));
  ck_ok(tl_set_grad(wide, wide));
  o = optimizer(wide, &g);
  ck_fails(tl_optimizer_step(o), TL_ERR_DTYPE, "parameter 0 is float64");
  tl_optimizer_free(o);
  o = optimizer(p, &g);
  used = tl_optimizer_group(o, 0);
  used->amsgrad = true;
  ck_fails(tl_optimizer_step(o), TL_ERR_UNSUPPORTED, "amsgrad");
  used->amsgrad = false;
  ck_ok(tl_optimizer_step(o));
  used->state_dtype = TL_BFLOAT16;
  ck_fails(tl_optimizer_step(o), TL_ERR_STATE, "the state's dtype, after the first step");
  used->state_dtype = TL_UINT8;
  /* codes that do not fit */
  tl_tensor *absmax, *codes = state(o, 0, &absmax);
  ck_fails(tl_optimizer_set_codes(o, 0, 0, codes, codes), TL_ERR_DTYPE, "absmax float32, not uint8 and uint8");
  ck_fails(tl_optimizer_set_codes(o, 0, 0, absmax, absmax), TL_ERR_SHAPE, "the parameter (5000)");
  ck_fails(tl_optimizer_set_codes(o, 0, 0, codes, p), TL_ERR_SHAPE, "it has 20 blocks of 256");
  ck_fails(tl_optimizer_set_codes(o, 0, 2, codes, absmax), TL_ERR_UNSUPPORTED, "max_exp_avg_sq cannot be");
  ck_fails(tl_optimizer_set_codes(o, 1, 0, codes, absmax), TL_ERR_INDEX, "there are 1");
  ck_fails(tl_optimizer_absmax(o, 0, 7, &x), TL_ERR_INDEX, "number 7");
  ck_ok(tl_optimizer_step(o));
  tl_optimizer_free(o);
  ck_ok(tl_set_grad(p, NULL));
  ck_ok(tl_set_grad(wide, NULL));
  tl_tensor *all[] = {p, wide, absmax, codes};
  for (int i = 0; i < 4; i++) tl_tensor_free(all[i]);
}
END_TEST

/* What is not at a multiple of 16 bytes goes element by element: the same numbers. */
START_TEST(unaligned_parameters) {
  tl_tensor *flat = noise(TL_FLOAT32, N + 1, 3, 1), *part, *plain;
  ck_ok(tl_narrow(flat, 0, 1, N, &part));
  ck_ok(tl_clone(part, &plain));
  tl_param_group g = adam(TL_UINT8);
  tl_optimizer *a = optimizer(part, &g), *b = optimizer(plain, &g);
  train(a, part, 1, 3);
  train(b, plain, 1, 3);
  ck_assert(equal(part, plain));
  tl_optimizer_free(a);
  tl_optimizer_free(b);
  tl_tensor *all[] = {flat, part, plain};
  for (int i = 0; i < 3; i++) tl_tensor_free(all[i]);
}
END_TEST

TEST_MAIN("optimizer_state", codes_are_a_dynamic_tree, numbers_go_to_the_nearest_code, bytes_of_state,
          the_way_is_that_of_float32, means_decay, threads_and_other_random_numbers_change_nothing, state_moves_exactly,
          small_parameters_keep_float32, nan_spoils_its_block_only, what_cannot_be_small, unaligned_parameters)
