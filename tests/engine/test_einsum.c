/* test_einsum.c: einsum against a sum over all positions of all letters. */
#include "check_tl.h"

static int64_t size_of(char letter) { return 2 + (letter - 'a') % 4; } /* a 2, b 3, c 4, d 5, e 2, ... */

static tl_tensor *random_tensor(int ndim, const int64_t *shape, int dtype, double seed) {
  tl_tensor *t = NULL, *typed = NULL;
  tl_generator *g;
  ck_ok(tl_generator_new(seed, &g));
  ck_ok(tl_empty(ndim, shape, TL_FLOAT64, test_device(), &t));
  ck_ok(tl_uniform_(t, -3, 3, g));
  ck_ok(tl_to(t, dtype, test_device(), &typed));
  tl_generator_free(g);
  tl_tensor_free(t);
  return typed;
}

/* Splits "ab,bc->ac" into terms; the last is the result. */
static int split(const char *equation, char terms[8][16]) {
  int n = 0, length = 0;
  for (const char *c = equation;; c++) {
    if (*c == ',' || *c == '-' || *c == '\0') {
      terms[n++][length] = '\0';
      length = 0;
      if (*c == '-') c++;
      if (*c == '\0') return n;
    } else {
      terms[n][length++] = *c;
    }
  }
}

static int64_t offset_of(const char *term, const int64_t *position) {
  int64_t offset = 0;
  for (; *term != '\0'; term++) offset = offset * size_of(*term) + position[*term - 'a'];
  return offset;
}

/* Adds the product at every position of all letters to the result's element. */
static void brute_force(int n, char terms[8][16], double *const *values, double *result) {
  int64_t position[26] = {0};
  bool used[26] = {false};
  for (int i = 0; i <= n; i++)
    for (const char *c = terms[i]; *c != '\0'; c++) used[*c - 'a'] = true;
  for (bool more = true; more;) {
    double product = 1;
    for (int i = 0; i < n; i++) product *= values[i][offset_of(terms[i], position)];
    result[offset_of(terms[n], position)] += product;
    more = false;
    for (int l = 0; l < 26 && !more; l++) {
      if (!used[l]) continue;
      if (++position[l] < size_of((char)('a' + l))) more = true;
      else position[l] = 0;
    }
  }
}

static tl_tensor *operand(const char *term, int dtype, double seed) {
  int64_t shape[TL_MAX_DIMS];
  int ndim = 0;
  for (; term[ndim] != '\0'; ndim++) shape[ndim] = size_of(term[ndim]);
  return random_tensor(ndim, shape, dtype, seed);
}

static const char *const equations[] = {
    "ab,bc->ac",    "ab,cb->ac",      "ab,bc->ca", "a,a->",     "a,b->ab",         "ab->ba",
    "ab->a",        "ab->",           "aa->a",     "aa->",      "aab->ba",         "aba->b",
    "abc,acd->abd", "abc,bcd->ad",    "ab,ab->ab", "ab,ab->a",  "ab,b->a",         "abcd,cdef->abef",
    "ab,bc,cd->ad", "ab,ac,ad->abcd", "a,ab,b->",  "abc,cb->a", "ab,cd->",         "abc,abd,cd->a",
    "aab,bcc->ac",  "b,abc->abc",     "abc->cab",  ",ab->ab",   "eabc,eadc->ebad",
};

START_TEST(all_kinds_of_equations) {
  for (size_t e = 0; e < sizeof equations / sizeof *equations; e++)
    for (int dtype = 0; dtype < TL_BOOL; dtype++) {
      if (dtype == TL_FLOAT16 || dtype == TL_BFLOAT16 || dtype == TL_UINT8) continue;
      char terms[8][16];
      int n = split(equations[e], terms) - 1;
      tl_tensor *in[8], *y = NULL;
      double *values[8], result[4096] = {0};
      for (int i = 0; i < n; i++) {
        in[i] = operand(terms[i], dtype, i + 1);
        values[i] = malloc((size_t)tl_numel(in[i]) * sizeof(double));
        ck_ok(tl_to_doubles(in[i], (int64_t)tl_numel(in[i]), values[i]));
      }
      brute_force(n, terms, values, result);
      ck_ok(tl_einsum(equations[e], n, in, &y));
      ck_assert_int_eq(tl_ndim(y), (int)strlen(terms[n]));
      for (int d = 0; d < tl_ndim(y); d++) ck_assert_int_eq((int64_t)tl_size(y, d), size_of(terms[n][d]));
      ck_values(y, (int64_t)tl_numel(y), result, dtype == TL_FLOAT32 ? 1e-4 : 1e-11);
      tl_tensor_free(y);
      for (int i = 0; i < n; i++) tl_tensor_free(in[i]), free(values[i]);
    }
}
END_TEST

/* Two equations that mean the same */
static void same(const char *a, const char *b, int n, tl_tensor *const *in) {
  tl_tensor *ya = NULL, *yb = NULL;
  ck_ok(tl_einsum(a, n, in, &ya));
  ck_ok(tl_einsum(b, n, in, &yb));
  ck_assert_int_eq(tl_ndim(ya), tl_ndim(yb));
  for (int d = 0; d < tl_ndim(ya); d++) ck_assert_int_eq((int64_t)tl_size(ya, d), (int64_t)tl_size(yb, d));
  int64_t count = (int64_t)tl_numel(yb);
  double *expected = malloc((size_t)(count + 1) * sizeof *expected);
  ck_ok(tl_to_doubles(yb, count, expected));
  ck_values(ya, count, expected, 1e-12);
  free(expected);
  tl_tensor_free(ya);
  tl_tensor_free(yb);
}

START_TEST(ellipsis_and_implicit_results) {
  tl_tensor *a = random_tensor(SHAPE(2, 3, 4, 5), TL_FLOAT64, 1), *b = random_tensor(SHAPE(3, 5, 6), TL_FLOAT64, 2);
  tl_tensor *c = random_tensor(SHAPE(2, 1, 5, 6), TL_FLOAT64, 3), *m = random_tensor(SHAPE(5, 5), TL_FLOAT64, 4);
  tl_tensor *ab[2] = {a, b}, *ac[2] = {a, c};
  same("...ij,...jk->...ik", "abij,bjk->abik", 2, ab);
  same("...ij,...jk", "abij,bjk->abik", 2, ab);
  same("...ij,...jk->...ik", "abij,abjk->abik", 2, ac); /* a size of 1 broadcasts, by letter too */
  same("...ij,...jk->ik", "abij,bjk->ik", 2, ab);
  same("ij...->...ji", "ijab->abji", 1, &a);
  same("z...y->...", "zaby->ab", 1, &a);
  same("ii", "ii->", 1, &m);
  same("ba", "ba->ab", 1, &m);
  same(" i j , j k -> i k ", "ij,jk->ik", 2, (tl_tensor *[]){m, m});
  same("Aa,aB->AB", "ij,jk->ik", 2, (tl_tensor *[]){m, m});
  tl_tensor *all[] = {a, b, c, m};
  for (int i = 0; i < 4; i++) tl_tensor_free(all[i]);
}
END_TEST

static tl_status run_einsum(tl_tensor *const *in, void *context, tl_tensor **out) {
  const char *equation = context;
  int n = 1;
  for (const char *c = equation; *c != '\0'; c++) n += *c == ',';
  return tl_einsum(equation, n, in, out);
}

START_TEST(gradients) {
  for (size_t e = 0; e < sizeof equations / sizeof *equations; e++) {
    char terms[8][16];
    int n = split(equations[e], terms) - 1;
    tl_tensor *in[8];
    int64_t work = 1;
    for (int i = 0; i < n; i++) in[i] = operand(terms[i], TL_FLOAT64, i + 1), work *= (int64_t)tl_numel(in[i]);
    if (work < 2000) check_gradients(equations[e], run_einsum, n, in, (void *)equations[e]);
    for (int i = 0; i < n; i++) tl_tensor_free(in[i]);
  }
  for (int la = 0; la < LAYOUTS; la++) {
    tl_tensor *in[2] = {layout_tensor(la, 3, 4, TL_FLOAT64, -1, 1, 1),
                        layout_tensor(TRANSPOSED, 2, 4, TL_FLOAT64, -1, 1, 2)};
    check_gradients(layout_name(la), run_einsum, 2, in, (void *)"ij,kj->ki");
    tl_tensor_free(in[0]);
    tl_tensor_free(in[1]);
  }
}
END_TEST

/* A diagonal is a view: writing it writes the matrix, and gradients know. */
START_TEST(diagonals_are_views) {
  tl_tensor *x = make_tensor(TL_FLOAT32, SHAPE(2, 2), (const double[]){1, 2, 3, 4}), *y = NULL;
  ck_ok(tl_einsum("ii->i", 1, &x, &y));
  ck_ok(tl_fill_(y, 7));
  ck_tensor(x, 0, 7, 2, 3, 7);
  tl_tensor_free(x);
  tl_tensor_free(y);
}
END_TEST

START_TEST(zero_sizes) {
  tl_tensor *a = random_tensor(SHAPE(2, 0), TL_FLOAT64, 1), *b = random_tensor(SHAPE(0, 3), TL_FLOAT64, 2), *y = NULL;
  ck_ok(tl_einsum("ij,jk->ik", 2, (tl_tensor *[]){a, b}, &y));
  ck_tensor(y, 0, 0, 0, 0, 0, 0, 0);
  tl_tensor_free(y);
  ck_ok(tl_einsum("ij->j", 1, &a, &y));
  ck_assert_int_eq((int64_t)tl_numel(y), 0);
  tl_tensor_free(y);
  tl_tensor_free(a);
  tl_tensor_free(b);
}
END_TEST

START_TEST(messages) {
  tl_tensor *a = random_tensor(SHAPE(2, 3), TL_FLOAT64, 1), *b = random_tensor(SHAPE(4, 5), TL_FLOAT64, 2),
            *f = VECTOR(1, 2), *y = NULL;
  tl_tensor *ab[3] = {a, b, a}, *af[2] = {a, f};
  int64_t before = live_tensors();
  ck_fails(tl_einsum("ij,jk->ik", 2, ab, &y), TL_ERR_SHAPE, "'ij,jk->ik': 'j' is 3 in operand 0 and 4 in operand 1");
  ck_fails(tl_einsum("ij,jk->ik", 3, ab, &y), TL_ERR_VALUE, "'ij,jk->ik' has 2 operands, got 3");
  ck_fails(tl_einsum("ijk->i", 1, ab, &y), TL_ERR_SHAPE, "'ijk->i': operand 0 of (2x3) has 2 dims, its term names 3");
  ck_fails(tl_einsum("i1->i", 1, ab, &y), TL_ERR_VALUE, "'i1->i': '1' is no letter");
  ck_fails(tl_einsum("ij->k", 1, ab, &y), TL_ERR_VALUE, "no operand has the result's 'k'");
  ck_fails(tl_einsum("ij->ii", 1, ab, &y), TL_ERR_VALUE, "the result names 'i' twice");
  ck_fails(tl_einsum("......->", 1, ab, &y), TL_ERR_VALUE, "more than one '...'");
  ck_fails(tl_einsum("ij->i->j", 1, ab, &y), TL_ERR_VALUE, "the result is one term");
  ck_fails(tl_einsum("ij,j->i", 2, af, &y), TL_ERR_DTYPE, "float64 and float32");
  ck_assert_int_eq(live_tensors(), before);
  tl_tensor_free(a);
  tl_tensor_free(b);
  tl_tensor_free(f);
}
END_TEST

START_TEST(failing_allocations) {
  tl_tensor *a = random_tensor(SHAPE(2, 2, 3), TL_FLOAT64, 1), *b = random_tensor(SHAPE(3, 4), TL_FLOAT64, 2),
            *in[2] = {a, b};
  ck_ok(tl_set_requires_grad(a, true));
  int64_t before = live_tensors();
  bool done = false;
  for (int64_t k = 1; !done; k++) {
    tl_tensor *y = NULL;
    tl_fail_allocation(k);
    tl_status st = tl_einsum("iij,jk->ki", 2, in, &y);
    tl_fail_allocation(0);
    done = st == TL_OK;
    if (!done) ck_assert_int_eq(st, TL_ERR_MEMORY);
    tl_tensor_free(y);
    ck_assert_int_eq(live_tensors(), before);
  }
  tl_tensor_free(a);
  tl_tensor_free(b);
}
END_TEST

TEST_MAIN("einsum", all_kinds_of_equations, ellipsis_and_implicit_results, gradients, diagonals_are_views, zero_sizes,
          messages, failing_allocations)
