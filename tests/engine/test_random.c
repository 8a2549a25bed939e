/* test_random.c: Philox's known answers, fills, permutations, draws, dropout. */
#include "check_tl.h"

#include "philox.h"

static void free_all(int n, tl_tensor **list) {
  for (int i = 0; i < n; i++) tl_tensor_free(list[i]);
}
#define FREE(...) \
  free_all((int)(sizeof((tl_tensor *[]){__VA_ARGS__}) / sizeof(tl_tensor *)), (tl_tensor *[]){__VA_ARGS__})

/* Random123's kat_vectors: philox4x32-10 of counter 0 and key 0 */
START_TEST(philox_known_answers) {
  tl_philox b = tl_philox_block(0, 0);
  const uint32_t zeros[4] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
  for (int i = 0; i < 4; i++) ck_assert_uint_eq(b.word[i], zeros[i]);
}
END_TEST

START_TEST(fills_follow_the_stream) {
  tl_generator *g;
  tl_tensor *x, *n;
  double u[2000], z[2000];
  ck_ok(tl_generator_new(12345, &g));
  ck_ok(tl_generator_set_state(g, 12345, 40));
  ck_ok(tl_empty(SHAPE(2000), TL_FLOAT32, test_device(), &x));
  ck_ok(tl_uniform_(x, 0, 1, g));
  ck_ok(tl_to_doubles(x, 2000, u));
  double seed, offset;
  ck_ok(tl_generator_state(g, &seed, &offset));
  ck_assert_double_eq(offset, 2040);
  ck_ok(tl_empty(SHAPE(2000), TL_FLOAT32, test_device(), &n));
  ck_ok(tl_generator_set_state(g, 12345, 40));
  ck_ok(tl_normal_(n, 0, 1, g));
  ck_ok(tl_to_doubles(n, 2000, z));
  for (int i = 0; i < 2000; i++) {
    tl_philox b = tl_philox_block(12345, (uint64_t)(40 + i) / 4);
    ck_assert_double_eq(u[i], tl_unit_f32(b.word[i % 4]));
    /* Box & Muller from the same words, in double */
    int pair = i % 4 & ~1;
    double radius = sqrt(-2 * log((double)tl_open_f32(b.word[pair]))),
           angle = 2 * acos(-1) * tl_unit_f32(b.word[pair + 1]);
    ck_assert_double_eq_tol(z[i], radius * (i % 2 ? sin(angle) : cos(angle)), 2e-6);
  }
  FREE(x, n);
  tl_generator_free(g);
}
END_TEST

/* Element i gets number i, whatever the dtype, the strides and the threads. */
START_TEST(strides_and_threads_change_nothing) {
  int before = tl_get_num_threads();
  for (int dtype = TL_FLOAT32; dtype <= TL_FLOAT64; dtype++) {
    tl_generator *g;
    tl_tensor *flat, *base, *turned, *copy;
    bool equal;
    ck_ok(tl_generator_new(7, &g));
    ck_ok(tl_empty(SHAPE(300, 500), dtype, test_device(), &flat));
    ck_ok(tl_empty(SHAPE(500, 300), dtype, test_device(), &base));
    ck_ok(tl_transpose(base, 0, 1, &turned));
    ck_ok(tl_set_num_threads(1));
    ck_ok(tl_normal_(flat, 1, 2, g));
    ck_ok(tl_generator_seed(g, 7));
    ck_ok(tl_set_num_threads(3));
    ck_ok(tl_normal_(turned, 1, 2, g));
    ck_ok(tl_clone(turned, &copy));
    ck_ok(tl_equal(flat, copy, &equal));
    ck_assert(equal);
    FREE(flat, base, turned, copy);
    tl_generator_free(g);
  }
  ck_ok(tl_set_num_threads(before));
}
END_TEST

static void moments(tl_tensor *x, double *mean, double *deviation) {
  tl_tensor *wide, *m, *s;
  ck_ok(tl_to(x, TL_FLOAT64, test_device(), &wide));
  ck_ok(tl_mean(wide, 0, NULL, false, &m));
  ck_ok(tl_std(wide, 0, NULL, 1, false, &s));
  ck_ok(tl_item(m, mean));
  ck_ok(tl_item(s, deviation));
  FREE(wide, m, s);
}

START_TEST(distributions) {
  for (int dtype = TL_FLOAT32; dtype <= TL_FLOAT64; dtype++) {
    tl_generator *g;
    tl_tensor *x, *low, *high;
    double mean, deviation, least, most;
    ck_ok(tl_generator_new(1, &g));
    ck_ok(tl_empty(SHAPE(200000), dtype, test_device(), &x));
    ck_ok(tl_normal_(x, 3, 2, g));
    moments(x, &mean, &deviation);
    ck_assert_double_eq_tol(mean, 3, .02);
    ck_assert_double_eq_tol(deviation, 2, .02);
    ck_ok(tl_uniform_(x, -1, 1, g));
    moments(x, &mean, &deviation);
    ck_assert_double_eq_tol(mean, 0, .01);
    ck_assert_double_eq_tol(deviation, 1 / sqrt(3), .01);
    ck_ok(tl_amin(x, 0, NULL, false, &low));
    ck_ok(tl_amax(x, 0, NULL, false, &high));
    ck_ok(tl_item(low, &least));
    ck_ok(tl_item(high, &most));
    ck_assert(least >= -1 && most < 1); /* the upper end is excluded even where rounding would reach it */
    ck_ok(tl_bernoulli_(x, .3, g));
    moments(x, &mean, &deviation);
    ck_assert_double_eq_tol(mean, .3, .01);
    FREE(x, low, high);
    tl_generator_free(g);
  }
}
END_TEST

START_TEST(arguments_out_of_their_domain) {
  tl_tensor *x = VECTOR(1, 2), *i = TENSOR(TL_INT64, SHAPE(1), 0), *y, *row, *expanded;
  ck_fails(tl_uniform_(x, 2, 1, NULL), TL_ERR_VALUE, "empty");
  ck_fails(tl_normal_(x, 0, -1, NULL), TL_ERR_VALUE, "standard deviation");
  ck_fails(tl_bernoulli_(x, 1.5, NULL), TL_ERR_VALUE, "1.5");
  ck_fails(tl_randint_(x, 3, 3, NULL), TL_ERR_VALUE, "no integers");
  ck_fails(tl_uniform_(i, 0, 1, NULL), TL_ERR_DTYPE, "floating");
  ck_fails(tl_dropout(x, 1.01, true, NULL, &y), TL_ERR_VALUE, "1.01");
  ck_fails(tl_dropout(x, -.1, false, NULL, &y), TL_ERR_VALUE, "-0.1");
  ck_fails(tl_dropout(x, NAN, true, NULL, &y), TL_ERR_VALUE, "nan");
  ck_fails(tl_dropout(i, .5, true, NULL, &y), TL_ERR_DTYPE, "floating");
  ck_fails(tl_randperm(-1, TL_INT64, test_device(), NULL, &y), TL_ERR_VALUE, "-1 elements");
  ck_fails(tl_randperm(257, TL_UINT8, test_device(), NULL, &y), TL_ERR_DTYPE, "uint8 does not hold");
  ck_ok(tl_narrow(x, 0, 0, 1, &row));
  ck_ok(tl_expand(row, SHAPE(3), &expanded));
  ck_fails(tl_uniform_(expanded, 0, 1, NULL), TL_ERR_VALUE, "expanded");
  ck_tensor(x, 0, 1, 2);
  FREE(x, i, row, expanded);
}
END_TEST

START_TEST(randperm_is_a_permutation_and_repeats) {
  tl_generator *g;
  const int64_t sizes[] = {0, 1, 2, 255, 256, 257, 10000};
  ck_ok(tl_generator_new(3, &g));
  for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
    tl_tensor *p, *again, *v, *ids, *expected;
    bool equal;
    int64_t n = sizes[k];
    ck_ok(tl_generator_seed(g, 3));
    ck_ok(tl_randperm(n, TL_INT64, test_device(), g, &p));
    ck_ok(tl_generator_seed(g, 3));
    ck_ok(tl_randperm(n, TL_INT64, test_device(), g, &again));
    ck_ok(tl_equal(p, again, &equal));
    ck_assert(equal);
    ck_ok(tl_sort(p, 0, false, &v, &ids));
    ck_ok(tl_arange(0, (double)n, 1, TL_INT64, test_device(), &expected));
    ck_ok(tl_equal(v, expected, &equal));
    ck_assert(equal);
    ck_ok(tl_equal(p, expected, &equal));
    ck_assert(!equal || n < 255); /* and not the identity */
    FREE(p, again, v, ids, expected);
  }
  /* every order of three comes up about equally often */
  int seen[27] = {0}, kinds = 0;
  for (int i = 0; i < 6000; i++) {
    tl_tensor *p;
    double v[3];
    ck_ok(tl_randperm(3, TL_INT32, test_device(), g, &p));
    ck_ok(tl_to_doubles(p, 3, v));
    seen[(int)(v[0] * 9 + v[1] * 3 + v[2])]++;
    tl_tensor_free(p);
  }
  for (int i = 0; i < 27; i++) {
    kinds += seen[i] > 0;
    ck_assert(seen[i] == 0 || (seen[i] > 880 && seen[i] < 1120));
  }
  ck_assert_int_eq(kinds, 6);
  tl_generator_free(g);
}
END_TEST

START_TEST(multinomial_draws_by_weight) {
  tl_generator *g;
  tl_tensor *w = TENSOR(TL_FLOAT32, SHAPE(2, 4), 1, 0, 3, 0, 0, 0, 0, 2), *ids;
  static double v[80000];
  double counts[4] = {0};
  ck_ok(tl_generator_new(5, &g));
  ck_ok(tl_multinomial(w, 40000, true, g, &ids));
  ck_assert_int_eq(tl_dtype_of(ids), TL_INT64);
  ck_ok(tl_to_doubles(ids, 80000, v));
  for (int i = 0; i < 40000; i++) counts[(int)v[i]]++;
  ck_assert(counts[1] == 0 && counts[3] == 0);
  ck_assert_double_eq_tol(counts[2] / 40000, .75, .01);
  for (int i = 40000; i < 80000; i++) ck_assert_double_eq(v[i], 3);
  tl_tensor_free(ids);
  /* without replacement: distinct, zero weights never, the first draw by weight */
  tl_tensor *three = VECTOR(1, 0, 2, 7);
  double first[4] = {0};
  for (int i = 0; i < 5000; i++) {
    ck_ok(tl_multinomial(three, 3, false, g, &ids));
    ck_ok(tl_to_doubles(ids, 3, v));
    ck_assert(v[0] != v[1] && v[1] != v[2] && v[0] != v[2] && v[0] != 1 && v[1] != 1 && v[2] != 1);
    first[(int)v[0]]++;
    tl_tensor_free(ids);
  }
  ck_assert_double_eq_tol(first[3] / 5000, .7, .03);
  ck_assert_double_eq_tol(first[2] / 5000, .2, .03);
  FREE(w, three);
  tl_generator_free(g);
}
END_TEST

START_TEST(multinomial_refuses_bad_weights) {
  tl_tensor *negative = TENSOR(TL_FLOAT32, SHAPE(2, 2), 1, 1, 1, -1), *zero = VECTOR(0, 0), *nan = VECTOR(NAN, 1),
            *few = VECTOR(1, 0, 0), *y;
  tl_tensor *integers = TENSOR(TL_INT64, SHAPE(2), 1, 1);
  ck_fails(tl_multinomial(negative, 1, true, NULL, &y), TL_ERR_VALUE,
           "row 1 of the weights cannot be drawn from: they are negative");
  ck_fails(tl_multinomial(zero, 1, true, NULL, &y), TL_ERR_VALUE, "all zero");
  ck_fails(tl_multinomial(nan, 1, true, NULL, &y), TL_ERR_VALUE, "not finite");
  ck_fails(tl_multinomial(few, 2, false, NULL, &y), TL_ERR_VALUE, "too few");
  ck_fails(tl_multinomial(few, 4, false, NULL, &y), TL_ERR_VALUE, "4 draws without replacement from 3");
  ck_fails(tl_multinomial(integers, 1, true, NULL, &y), TL_ERR_DTYPE, "floating");
  FREE(negative, zero, nan, few, integers);
}
END_TEST

/* ---- dropout ---- */

START_TEST(dropout_scales_what_it_keeps) {
  for (int dtype = TL_FLOAT32; dtype <= TL_FLOAT64; dtype++) {
    tl_generator *g;
    tl_tensor *x, *y;
    static double v[100000];
    int kept = 0;
    ck_ok(tl_generator_new(9, &g));
    ck_ok(tl_full(SHAPE(100000), 3, dtype, test_device(), &x));
    ck_ok(tl_dropout(x, .25, true, g, &y));
    ck_assert_int_eq(tl_dtype_of(y), dtype);
    ck_ok(tl_to_doubles(y, 100000, v));
    for (int i = 0; i < 100000; i++) {
      ck_assert(v[i] == 0 || v[i] == 4);
      kept += v[i] != 0;
    }
    ck_assert_double_eq_tol(kept / 1e5, .75, .01);
    FREE(x, y);
    tl_generator_free(g);
  }
}
END_TEST

START_TEST(dropout_in_evaluation_is_the_identity) {
  tl_generator *g;
  tl_tensor *x = VECTOR(1, 2, 3), *y;
  double seed, offset;
  ck_ok(tl_generator_new(1, &g));
  ck_ok(tl_dropout(x, .5, false, g, &y));
  ck_tensor(y, 0, 1, 2, 3);
  tl_tensor_free(y);
  ck_ok(tl_dropout(x, 0, true, g, &y));
  ck_tensor(y, 0, 1, 2, 3);
  ck_ok(tl_generator_state(g, &seed, &offset)); /* no numbers were taken */
  ck_assert_double_eq(offset, 0);
  FREE(x, y);
  tl_generator_free(g);
}
END_TEST

START_TEST(dropout_of_everything_is_zero_with_zero_gradient) {
  tl_tensor *x = VECTOR(1, INFINITY, NAN), *y, *s, *grad;
  tl_walk *walk;
  ck_ok(tl_set_requires_grad(x, true));
  ck_ok(tl_dropout(x, 1, true, NULL, &y));
  ck_tensor(y, 0, 0, 0, 0);
  ck_ok(tl_sum(y, 0, NULL, false, &s));
  ck_ok(tl_backward(s, NULL, false, &walk));
  ck_ok(tl_grad(x, &grad));
  ck_tensor(grad, 0, 0, 0, 0);
  FREE(x, y, s, grad);
}
END_TEST

static tl_status f_dropout(tl_tensor *const *in, void *g, tl_tensor **out) {
  ck_ok(tl_generator_seed(g, 4)); /* the same mask at every evaluation */
  return tl_dropout(in[0], .4, true, g, out);
}

START_TEST(dropout_gradients_use_the_same_mask) {
  tl_generator *g;
  ck_ok(tl_generator_new(4, &g));
  for (int layout = 0; layout < LAYOUTS; layout++) {
    tl_tensor *x = layout_tensor(layout, 5, 7, TL_FLOAT64, -1, 1, 3), *c, *a, *b;
    bool equal;
    check_gradients("dropout", f_dropout, 1, &x, g);
    ck_ok(tl_clone(x, &c));
    ck_ok(f_dropout(&x, g, &a));
    ck_ok(f_dropout(&c, g, &b));
    ck_ok(tl_equal(a, b, &equal));
    ck_assert_msg(equal, "%s", layout_name(layout));
    FREE(x, c, a, b);
  }
  tl_generator_free(g);
}
END_TEST

START_TEST(failing_allocations) {
  tl_tensor *x = layout_tensor(TRANSPOSED, 20, 30, TL_FLOAT32, 0, 1, 3);
  ck_ok(tl_set_requires_grad(x, true));
  int64_t before = live_tensors();
  for (int what = 0; what < 4; what++) {
    bool done = false;
    for (int64_t nth = 1; !done && nth < 100; nth++) {
      tl_tensor *y = NULL, *s = NULL;
      tl_walk *walk = NULL;
      tl_fail_allocation(nth);
      tl_status st = what == 0   ? tl_dropout(x, .5, true, NULL, &y)
                     : what == 1 ? tl_randperm(500, TL_FLOAT32, test_device(), NULL, &y)
                                 : tl_multinomial(x, 5, what == 2, NULL, &y);
      if (st == TL_OK && what == 0) st = tl_sum(y, 0, NULL, false, &s);
      if (st == TL_OK && what == 0) st = tl_backward(s, NULL, false, &walk);
      tl_fail_allocation(0);
      ck_assert(st == TL_OK || st == TL_ERR_MEMORY);
      done = st == TL_OK;
      FREE(y, s);
      ck_ok(tl_set_grad(x, NULL));
      ck_assert_msg(live_tensors() == before, "case %d leaks when allocation %lld fails", what, (long long)nth);
    }
    ck_assert(done);
  }
  tl_tensor_free(x);
}
END_TEST

TEST_MAIN("random", philox_known_answers, fills_follow_the_stream, strides_and_threads_change_nothing, distributions,
          arguments_out_of_their_domain, randperm_is_a_permutation_and_repeats, multinomial_draws_by_weight,
          multinomial_refuses_bad_weights, dropout_scales_what_it_keeps, dropout_in_evaluation_is_the_identity,
          dropout_of_everything_is_zero_with_zero_gradient, dropout_gradients_use_the_same_mask, failing_allocations)
