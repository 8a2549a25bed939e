/* test_attention.c: scaled dot-product attention against the formula written out in float64, for every dtype, layout and
 * option, forward and backward; what it refuses; what it keeps in memory. */
#include "check_tl.h"

typedef struct setting {
  int64_t batch, heads, kv_heads, length, keys, width, v_width;
  enum { NO_MASK, BOOL_MASK, ROW_MASK, FLOAT_MASK, CLOSED_MASK } mask;
  bool causal;
  double scale, dropout; /* scale nan: the default */
  int dtype;
  bool inside; /* heads lie inside positions, (B, T, H, D), in rows that are longer than that */
} setting;

enum { Q, K, V, G, OPERANDS };

/* A (b, h, t, d) tensor whose values are exact in every dtype, and the values themselves. */
static tl_tensor *operand(const setting *s, int64_t h, int64_t t, int64_t d, int seed, double **values) {
  const int64_t n = s->batch * h * t * d, shape[4] = {s->batch, h, t, d}, inside[4] = {s->batch, t, h, d + 3};
  double *v = calloc((size_t)n + 1, sizeof *v);
  for (int64_t i = 0; i < n; i++) v[i] = (double)((i * 7919 + seed * 104729) % 33) / 16 - 1;
  *values = v;
  tl_tensor *dense = make_tensor(s->dtype, 4, shape, v);
  if (!s->inside) return dense;
  tl_tensor *wide, *part, *turned;
  ck_ok(tl_full(4, inside, NAN, s->dtype, test_device(), &wide));
  ck_ok(tl_narrow(wide, 3, 1, d, &part));
  ck_ok(tl_transpose(part, 1, 2, &turned));
  ck_ok(tl_copy_(turned, dense));
  tl_tensor_free(wide);
  tl_tensor_free(part);
  tl_tensor_free(dense);
  return turned;
}

static bool hidden(const setting *s, int64_t h, int64_t t, int64_t k) {
  if (s->causal && k > t) return true;
  switch (s->mask) {
    case BOOL_MASK: return (h + 3 * t + k) % 4 == 0;
    case ROW_MASK: return k % 3 == 1;
    case CLOSED_MASK: return t % 2 == 1;
    default: return false;
  }
}
static double bias(const setting *s, int64_t h, int64_t t, int64_t k) {
  return s->mask == FLOAT_MASK ? (double)((h + t + 5 * k) % 9) / 4 - 1 : 0;
}

/* (H, T, S), or (S) for ROW_MASK */
static tl_tensor *mask_of(const setting *s) {
  if (s->mask == NO_MASK) return NULL;
  const bool row = s->mask == ROW_MASK;
  const int64_t shape[3] = {s->heads, s->length, s->keys}, n = row ? s->keys : s->heads * s->length * s->keys;
  double *v = calloc((size_t)n + 1, sizeof *v);
  for (int64_t i = 0; i < n; i++) {
    const int64_t k = i % s->keys, t = row ? 0 : i / s->keys % s->length, h = row ? 0 : i / (s->keys * s->length);
    setting open = *s;
    open.causal = false;
    v[i] = s->mask == FLOAT_MASK ? bias(s, h, t, k) : !hidden(&open, h, t, k);
  }
  tl_tensor *m = make_tensor(s->mask == FLOAT_MASK ? s->dtype : TL_BOOL, row ? 1 : 3, row ? &shape[2] : shape, v);
  free(v);
  return m;
}

/* What dropout multiplies the weights with, drawn as tl_dropout() draws for a (B, H, T, S) tensor of ones. */
static double *kept(const setting *s, double seed) {
  const int64_t shape[4] = {s->batch, s->heads, s->length, s->keys}, n = shape[0] * shape[1] * shape[2] * shape[3];
  double *keep = calloc((size_t)n + 1, sizeof *keep);
  tl_tensor *ones, *dropped;
  tl_generator *g;
  ck_ok(tl_generator_new(seed, &g));
  ck_ok(tl_full(4, shape, 1, TL_FLOAT64, TL_CPU, &ones));
  ck_ok(tl_dropout(ones, s->dropout, true, g, &dropped));
  ck_ok(tl_to_doubles(dropped, n, keep));
  tl_tensor_free(ones);
  tl_tensor_free(dropped);
  tl_generator_free(g);
  return keep;
}

typedef struct expected {
  double *out, *d[3];
} expected;

/* One query's row: out, and its shares of the gradients */
static void row_of(const setting *s, int64_t b, int64_t h, int64_t t, double *const *x, const double *keep,
                   double scale, expected *e) {
  const int64_t kv = b * s->kv_heads + h / (s->heads / s->kv_heads), row = (b * s->heads + h) * s->length + t;
  const double *q = x[Q] + row * s->width, *g = x[G] + row * s->v_width, *k = x[K] + kv * s->keys * s->width,
               *v = x[V] + kv * s->keys * s->v_width, *kept_row = keep + row * s->keys;
  double *p = calloc((size_t)s->keys + 1, sizeof *p), *dp = calloc((size_t)s->keys + 1, sizeof *dp), sum = 0,
         most = -INFINITY;
  for (int64_t j = 0; j < s->keys; j++) {
    p[j] = bias(s, h, t, j);
    for (int64_t d = 0; d < s->width; d++) p[j] += scale * q[d] * k[j * s->width + d];
    if (hidden(s, h, t, j)) p[j] = -INFINITY;
    if (p[j] > most) most = p[j];
  }
  for (int64_t j = 0; j < s->keys; j++) sum += p[j] = most == -INFINITY ? 0 : exp(p[j] - most);
  double delta = 0;
  for (int64_t j = 0; j < s->keys; j++) {
    p[j] = sum == 0 ? 0 : p[j] / sum;
    for (int64_t d = 0; d < s->v_width; d++) {
      e->out[row * s->v_width + d] += p[j] * kept_row[j] * v[j * s->v_width + d];
      e->d[V][(kv * s->keys + j) * s->v_width + d] += p[j] * kept_row[j] * g[d];
      dp[j] += g[d] * v[j * s->v_width + d] * kept_row[j];
    }
    delta += p[j] * dp[j];
  }
  for (int64_t j = 0; j < s->keys; j++)
    for (int64_t d = 0; d < s->width; d++) {
      const double ds = p[j] * (dp[j] - delta) * scale;
      e->d[Q][row * s->width + d] += ds * k[j * s->width + d];
      e->d[K][(kv * s->keys + j) * s->width + d] += ds * q[d];
    }
  free(p);
  free(dp);
}

static void check_setting(const setting *s) {
  const int64_t heads[OPERANDS] = {s->heads, s->kv_heads, s->kv_heads, s->heads},
                rows[OPERANDS] = {s->length, s->keys, s->keys, s->length},
                widths[OPERANDS] = {s->width, s->width, s->v_width, s->v_width};
  tl_tensor *in[OPERANDS], *mask = mask_of(s), *y;
  double *x[OPERANDS], *keep = kept(s, 11);
  expected e = {0};
  int64_t sizes[OPERANDS];
  for (int i = 0; i < OPERANDS; i++) {
    in[i] = operand(s, heads[i], rows[i], widths[i], i, &x[i]);
    sizes[i] = s->batch * heads[i] * rows[i] * widths[i];
    if (i != G) e.d[i] = calloc((size_t)sizes[i] + 1, sizeof(double));
    if (i != G) ck_ok(tl_set_requires_grad(in[i], true));
  }
  e.out = calloc((size_t)sizes[G] + 1, sizeof(double));
  const double scale = isnan(s->scale) ? 1 / sqrt((double)s->width) : s->scale;
  for (int64_t b = 0; b < s->batch; b++)
    for (int64_t h = 0; h < s->heads; h++)
      for (int64_t t = 0; t < s->length; t++) row_of(s, b, h, t, x, keep, scale, &e);
  tl_generator *g;
  ck_ok(tl_generator_new(11, &g));
  ck_ok(tl_scaled_dot_product_attention(in[Q], in[K], in[V], mask, s->dropout, s->causal, s->scale, true, g, &y));
  const double tolerance = s->dtype == TL_FLOAT64   ? 1e-12
                           : s->dtype == TL_FLOAT32 ? 2e-5
                           : s->dtype == TL_FLOAT16 ? 4e-3
                                                    : 3e-2;
  ck_values(y, sizes[G], e.out, tolerance);
  tl_walk *walk = NULL;
  ck_ok(tl_backward(y, in[G], false, &walk));
  for (int i = 0; i < G; i++) {
    tl_tensor *grad;
    ck_ok(tl_grad(in[i], &grad));
    ck_assert_ptr_nonnull(grad);
    ck_values(grad, sizes[i], e.d[i], tolerance * (s->dtype == TL_FLOAT64 ? 1 : 4));
    tl_tensor_free(grad);
    free(e.d[i]);
  }
  for (int i = 0; i < OPERANDS; i++) {
    tl_tensor_free(in[i]);
    free(x[i]);
  }
  free(e.out);
  free(keep);
  tl_tensor_free(mask);
  tl_tensor_free(y);
  tl_generator_free(g);
  ck_assert_int_eq(live_tensors(), 0);
}

static const int dtypes[] = {TL_FLOAT32, TL_FLOAT16, TL_BFLOAT16, TL_FLOAT64};
#define FOR_DTYPES(t) for (int t = 0; t < 4; t++)

START_TEST(every_mask_in_every_dtype_and_layout) {
  FOR_DTYPES(t)
  for (int mask = NO_MASK; mask <= CLOSED_MASK; mask++)
    for (int causal = 0; causal < 2; causal++)
      check_setting(&(setting){2, 4, 2, 9, 7, 6, 5, mask, causal, NAN, 0, dtypes[t], causal != mask % 2});
}
END_TEST

/* Across the edges of vectors, panels and blocks, with more queries than keys and the other way round. */
START_TEST(sizes_round_the_edges_of_tiles) {
  static const int64_t sizes[][2] = {{1, 1}, {1, 130}, {17, 15}, {33, 65}, {64, 64}, {70, 31}, {129, 20}};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
    for (int causal = 0; causal < 2; causal++)
      check_setting(&(setting){1, 2, 1, sizes[i][0], sizes[i][1], 17, 33, NO_MASK, causal, 0.3, 0, TL_FLOAT32, causal});
  check_setting(&(setting){1, 1, 1, 40, 70, 16, 16, BOOL_MASK, true, NAN, 0, TL_FLOAT64, false});
  check_setting(&(setting){1, 1, 1, 5, 5, 130, 70, NO_MASK, true, NAN, 0, TL_FLOAT32, false});
  check_setting(&(setting){1, 1, 1, 5, 5, 20, 140, NO_MASK, true, NAN, 0, TL_FLOAT64, false});
}
END_TEST

START_TEST(dropout_takes_the_numbers_of_the_weights_places) {
  for (int causal = 0; causal < 2; causal++) {
    check_setting(&(setting){2, 2, 1, 5, 70, 4, 3, BOOL_MASK, causal, NAN, 0.3, TL_FLOAT64, false});
    check_setting(&(setting){1, 2, 2, 37, 9, 4, 3, NO_MASK, causal, NAN, 0.5, TL_FLOAT32, true});
    check_setting(&(setting){1, 1, 1, 3, 3, 4, 3, NO_MASK, causal, NAN, 1, TL_FLOAT32, true});
  }
}
END_TEST

START_TEST(nothing_in_a_dim) {
  static const int64_t sizes[][5] = {/* batch, heads, length, keys, width */
                                     {0, 2, 3, 3, 4},
                                     {2, 2, 0, 3, 4},
                                     {2, 2, 3, 0, 4},
                                     {2, 2, 3, 3, 0}};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    const int64_t *n = sizes[i];
    check_setting(&(setting){n[0], n[1], n[1], n[2], n[3], n[4], 4, NO_MASK, false, NAN, 0, TL_FLOAT32, false});
  }
  tl_tensor *q, *y;
  ck_ok(tl_full(3, (const int64_t[]){0, 3, 4} /* no heads */, 1, TL_FLOAT32, test_device(), &q));
  ck_ok(tl_scaled_dot_product_attention(q, q, q, NULL, 0, true, NAN, false, NULL, &y));
  ck_assert_int_eq((int)tl_numel(y), 0);
  tl_tensor_free(q);
  tl_tensor_free(y);
}
END_TEST

static tl_tensor *ones(int ndim, const int64_t *shape, int dtype) {
  tl_tensor *t;
  ck_ok(tl_full(ndim, shape, 1, dtype, test_device(), &t));
  return t;
}
#define ONES(dtype, ...) ones(SHAPE(__VA_ARGS__), dtype)

START_TEST(what_does_not_fit_is_refused) {
  tl_tensor *q = ONES(TL_FLOAT32, 2, 4, 3, 8), *k = ONES(TL_FLOAT32, 2, 4, 5, 8), *v = ONES(TL_FLOAT32, 2, 4, 5, 6);
  tl_tensor *bad, *y = NULL;
#define REFUSES(q, k, v, mask, p, gqa, code, text) \
  ck_fails(tl_scaled_dot_product_attention(q, k, v, mask, p, false, NAN, gqa, NULL, &y), code, text)
#define WITH(make, ...)   \
  do {                    \
    bad = make;           \
    REFUSES(__VA_ARGS__); \
    tl_tensor_free(bad);  \
  } while (0)
  WITH(ONES(TL_INT64, 2, 4, 3, 8), bad, k, v, NULL, 0, false, TL_ERR_DTYPE, "floating");
  WITH(ONES(TL_FLOAT64, 2, 4, 3, 8), bad, k, v, NULL, 0, false, TL_ERR_DTYPE, "float64, float32 and float32");
  WITH(ONES(TL_FLOAT32, 8), bad, k, v, NULL, 0, false, TL_ERR_SHAPE, "is not (.., T, D)");
  WITH(ONES(TL_FLOAT32, 4, 3, 8), bad, k, v, NULL, 0, false, TL_ERR_SHAPE, "do not fit");
  WITH(ONES(TL_FLOAT32, 1, 4, 3, 8), bad, k, v, NULL, 0, false, TL_ERR_SHAPE, "do not fit");
  WITH(ONES(TL_FLOAT32, 2, 4, 3, 7), bad, k, v, NULL, 0, false, TL_ERR_SHAPE, "(2x4x3x7), key (2x4x5x8)");
  WITH(ONES(TL_FLOAT32, 2, 4, 6, 6), q, k, bad, NULL, 0, false, TL_ERR_SHAPE, "do not fit");
  WITH(ONES(TL_FLOAT32, 2, 2, 5, 6), q, k, bad, NULL, 0, true, TL_ERR_SHAPE, "do not fit");
  WITH(ONES(TL_FLOAT32, 2, 8, 3, 8), bad, k, v, NULL, 0, false, TL_ERR_SHAPE, "enable_gqa");
  WITH(ONES(TL_FLOAT32, 2, 6, 3, 8), bad, k, v, NULL, 0, true, TL_ERR_SHAPE, "not a multiple");
  WITH(ONES(TL_INT32, 3, 5), q, k, v, bad, 0, false, TL_ERR_DTYPE, "attn_mask is int32");
  WITH(ONES(TL_BOOL, 5, 3), q, k, v, bad, 0, false, TL_ERR_SHAPE,
       "attn_mask (5x3) does not broadcast to the weights (2x4x3x5)");
  WITH(ONES(TL_BOOL, 1, 2, 4, 3, 5), q, k, v, bad, 0, false, TL_ERR_SHAPE, "does not broadcast");
  REFUSES(q, k, v, NULL, -0.1, false, TL_ERR_VALUE, "-0.1");
  REFUSES(q, k, v, NULL, 1.5, false, TL_ERR_VALUE, "1.5");
  REFUSES(q, k, v, NULL, NAN, false, TL_ERR_VALUE, "outside 0..1");
  bad = ONES(TL_FLOAT32, 3, 5);
  ck_ok(tl_set_requires_grad(bad, true));
  REFUSES(q, k, v, bad, 0, false, TL_ERR_UNSUPPORTED, "attn_mask requires a gradient");
  tl_set_grad_enabled(false);
  ck_ok(tl_scaled_dot_product_attention(q, k, v, bad, 0, false, NAN, false, NULL, &y));
  tl_set_grad_enabled(true);
  tl_tensor *const all[] = {q, k, v, bad, y};
  for (int i = 0; i < 5; i++) tl_tensor_free(all[i]);
  ck_assert_int_eq(live_tensors(), 0);
}
END_TEST

/* (B1, B2, H, T, D) and (T, D) */
START_TEST(leading_dims) {
  tl_tensor *q4 = ONES(TL_FLOAT64, 6, 2, 3, 4), *k4 = ONES(TL_FLOAT64, 6, 2, 5, 4), *q, *k, *y4, *y, *flat;
  tl_generator *g;
  ck_ok(tl_generator_new(3, &g));
  ck_ok(tl_uniform_(q4, -1, 1, g));
  ck_ok(tl_uniform_(k4, -1, 1, g));
  ck_ok(tl_scaled_dot_product_attention(q4, k4, k4, NULL, 0, false, NAN, false, NULL, &y4));
  double want[6 * 2 * 3 * 4];
  ck_ok(tl_to_doubles(y4, 6 * 2 * 3 * 4, want));
  ck_ok(tl_reshape(q4, 5, (const int64_t[]){2, 3, 2, 3, 4}, &q));
  ck_ok(tl_reshape(k4, 5, (const int64_t[]){2, 3, 2, 5, 4}, &k));
  ck_ok(tl_set_requires_grad(q, true));
  ck_ok(tl_scaled_dot_product_attention(q, k, k, NULL, 0, false, NAN, false, NULL, &y));
  ck_assert_int_eq(tl_ndim(y), 5);
  ck_values(y, 6 * 2 * 3 * 4, want, 1e-15);
  tl_tensor *const five[] = {q, k, y};
  for (int i = 0; i < 3; i++) tl_tensor_free(five[i]);
  /* leading dims that are no one dim */
  ck_ok(tl_reshape(q4, 5, (const int64_t[]){3, 2, 2, 3, 4}, &flat));
  ck_ok(tl_transpose(flat, 0, 1, &q));
  tl_tensor_free(flat);
  ck_ok(tl_reshape(k4, 5, (const int64_t[]){3, 2, 2, 5, 4}, &flat));
  ck_ok(tl_transpose(flat, 0, 1, &k));
  tl_tensor_free(flat);
  ck_ok(tl_scaled_dot_product_attention(q, k, k, NULL, 0, false, NAN, false, NULL, &y));
  ck_ok(tl_transpose(y, 0, 1, &flat));
  ck_values(flat, 6 * 2 * 3 * 4, want, 1e-15);
  tl_tensor *const turned[] = {q, k, y, flat};
  for (int i = 0; i < 4; i++) tl_tensor_free(turned[i]);
  /* one head, without its dim */
  ck_ok(tl_select(q4, 0, 1, &flat));
  ck_ok(tl_select(flat, 0, 1, &q));
  tl_tensor_free(flat);
  ck_ok(tl_select(k4, 0, 1, &flat));
  ck_ok(tl_select(flat, 0, 1, &k));
  ck_ok(tl_scaled_dot_product_attention(q, k, k, NULL, 0, false, NAN, false, NULL, &y));
  ck_assert_int_eq(tl_ndim(y), 2);
  ck_values(y, 12, want + 36, 1e-15);
  tl_tensor *const two[] = {q, k, y, flat, q4, k4, y4};
  for (int i = 0; i < 7; i++) tl_tensor_free(two[i]);
  tl_generator_free(g);
}
END_TEST

/* The result and the gradients lie in memory as the operands do: heads inside positions stay there. */
START_TEST(results_lie_as_operands_do) {
  tl_tensor *x = ONES(TL_FLOAT32, 2, 5, 3, 4), *q, *y, *turned;
  ck_ok(tl_transpose(x, 1, 2, &q));
  ck_ok(tl_scaled_dot_product_attention(q, q, q, NULL, 0, true, NAN, false, NULL, &y));
  ck_ok(tl_transpose(y, 1, 2, &turned));
  ck_assert(tl_is_contiguous(turned));
  tl_tensor *const all[] = {x, q, y, turned};
  for (int i = 0; i < 4; i++) tl_tensor_free(all[i]);
}
END_TEST

/* Bytes at the peak of a step over T positions, beyond what was there before; on the CPU with those of scratch memory, which
 * the cache has afterwards (a GPU's cache holds large segments). */
static double peak_of(int64_t length) {
  const tl_device device = test_device();
  tl_tensor *x = ONES(TL_FLOAT32, 1, 4, length, 16), *y;
  tl_memory_stats before, after;
  ck_ok(tl_set_requires_grad(x, true));
  ck_ok(tl_empty_cache(device));
  ck_ok(tl_memory(device, &before));
  ck_ok(tl_reset_peak_memory(device));
  ck_ok(tl_scaled_dot_product_attention(x, x, x, NULL, 0, true, NAN, false, NULL, &y));
  tl_walk *walk = NULL;
  ck_ok(tl_backward(y, x, false, &walk));
  ck_ok(tl_memory(device, &after));
  tl_tensor_free(x);
  tl_tensor_free(y);
  return after.peak - before.live + (device == TL_CPU ? after.cached - before.cached : 0);
}

START_TEST(no_memory_that_grows_with_the_square) {
  const int64_t length = test_device() == TL_CPU ? 2048 : 512;
  const double x = 4 * 16 * 4 * (double)length; /* bytes of q */
  ck_ok(tl_set_num_threads(2));
  ck_assert_double_le(peak_of(length), 16 * x); /* out, dq, dk, dv, their sums, and what threads pack */
  ck_assert_double_lt(16 * x, 4 * 4 * (double)length * (double)length); /* the weights */
}
END_TEST

START_TEST(saved_values_are_watched) {
  tl_tensor *q = ONES(TL_FLOAT32, 2, 3, 4), *k = ONES(TL_FLOAT32, 2, 3, 4), *y;
  ck_ok(tl_set_requires_grad(q, true));
  ck_ok(tl_scaled_dot_product_attention(q, k, k, NULL, 0, true, NAN, false, NULL, &y));
  ck_ok(tl_fill_(k, 2));
  tl_walk *walk = NULL;
  ck_fails(tl_backward(y, y, false, &walk), TL_ERR_STATE, "modified");
  tl_tensor *const all[] = {q, k, y};
  for (int i = 0; i < 3; i++) tl_tensor_free(all[i]);
}
END_TEST

TEST_MAIN("attention", every_mask_in_every_dtype_and_layout, sizes_round_the_edges_of_tiles,
          dropout_takes_the_numbers_of_the_weights_places, nothing_in_a_dim, what_does_not_fit_is_refused, leading_dims,
          results_lie_as_operands_do, no_memory_that_grows_with_the_square, saved_values_are_watched)
