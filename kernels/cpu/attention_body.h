/* attention_body.h: attention in the type T; attention.c includes it for float and double.
 *
 * A vector's lanes are queries in the scores (keys, PANEL) and elements of a head in everything else: softmax then
 * runs down the columns without a sum across lanes, and no operand but the queries is transposed. The operands of the
 * products are packed: rows padded to whole vectors, in T. A few queries alone, as in generation, are no vector: they
 * meet each key one by one, and keys and values are read where they lie. */

#define LANES ((int)(VECTOR_BYTES / sizeof(T)))
#define PANEL (2 * LANES) /* queries that are worked on at once */

typedef T F(vec) __attribute__((vector_size(VECTOR_BYTES), may_alias));
typedef T F(loose) __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(T)), may_alias)); /* anywhere in memory */

static inline int64_t F(padded)(int64_t n) { return (n + LANES - 1) / LANES * LANES; }

/* Lane by lane: a where the comparison held, else b. */
static inline F(vec) F(choose)(F(index) held, F(vec) a, F(vec) b) {
  return (F(vec))((held & (F(index))a) | (~held & (F(index))b));
}

/* 0, 1, .. */
static inline F(index) F(lanes)(void) { return *(const F(index) *)F(counted); }

/* Element i is a's index[i], or b's index[i] - LANES. */
static inline F(vec) F(shuffle)(F(vec) a, F(vec) b, F(index) index) {
#ifdef __clang__ /* the compiler of the fuzz targets has it for constants only */
  F(vec) to;
  for (int i = 0; i < LANES; i++) to[i] = index[i] < LANES ? a[index[i]] : b[index[i] - LANES];
  return to;
#else
  return __builtin_shuffle(a, b, index);
#endif
}

/* The sum of the lanes */
static inline T F(across)(F(vec) v) {
#pragma GCC unroll 4
  for (int step = LANES / 2; step > 0; step /= 2) {
    const F(index) other = F(lanes)() ^ (F(int))step;
    v += F(shuffle)(v, v, other);
  }
  return v[0];
}

/* ---- products ---- */

/* c (rows, vecs vectors) = a (rows, k) b (k, vecs vectors), added to c with `add`; a's element (i, p) is a[i ai + p ap] */
static inline __attribute__((always_inline)) void F(tile)(const int rows, const int vecs, int64_t k, const T *a,
                                                          int64_t ai, int64_t ap, const T *b, int64_t ldb, T *c,
                                                          int64_t ldc, bool add) {
  F(vec) s[ROWS][2] = {0}, bv[2];
  if (add)
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
      for (int v = 0; v < vecs; v++) s[i][v] = *(const F(vec) *)(c + i * ldc + v * LANES);
  for (int64_t p = 0; p < k; p++) {
#pragma GCC unroll 2
    for (int v = 0; v < vecs; v++) bv[v] = *(const F(loose) *)(b + p * ldb + v * LANES);
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
      for (int v = 0; v < vecs; v++) s[i][v] += a[i * ai + p * ap] * bv[v];
  }
#pragma GCC unroll 8
  for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
    for (int v = 0; v < vecs; v++) *(F(vec) *)(c + i * ldc + v * LANES) = s[i][v];
}

/* Rows of a product, in tiles: row i of c uses a's columns from (i + shift) on and below (i + reach). What a tile takes
 * beyond that is 0 in a. */
static inline __attribute__((always_inline)) void F(strips)(const int vecs, int64_t m, int64_t k, const T *a,
                                                            int64_t ai, int64_t ap, const T *b, int64_t ldb, T *c,
                                                            int64_t ldc, bool add, int64_t shift, int64_t reach) {
  for (int64_t i = 0; i < m;) {
    const int rows = m - i >= ROWS ? ROWS : m - i >= 4 ? 4 : m - i >= 2 ? 2 : 1;
    const int64_t from = i + shift < 0 ? 0 : i + shift < k ? i + shift : k;
    const int64_t to = k < i + rows + reach ? k : i + rows + reach;
    const T *at = a + i * ai + from * ap, *bt = b + from * ldb;
    T *ct = c + i * ldc;
    if (rows == ROWS) F(tile)(ROWS, vecs, to - from, at, ai, ap, bt, ldb, ct, ldc, add);
    else if (rows == 4) F(tile)(4, vecs, to - from, at, ai, ap, bt, ldb, ct, ldc, add);
    else if (rows == 2) F(tile)(2, vecs, to - from, at, ai, ap, bt, ldb, ct, ldc, add);
    else F(tile)(1, vecs, to - from, at, ai, ap, bt, ldb, ct, ldc, add);
    i += rows;
  }
}

/* c (m, n) = a b with a (m, k) stored row by row, or column by column; n is a multiple of LANES */
static void F(times_rows)(int64_t m, int64_t n, int64_t k, const T *a, int64_t lda, const T *b, int64_t ldb, T *c,
                          int64_t ldc, bool add, int64_t shift) {
  int64_t j = 0;
  for (; j + 2 * LANES <= n; j += 2 * LANES)
    F(strips)(2, m, k, a, lda, 1, b + j, ldb, c + j, ldc, add, shift, EVERYTHING);
  if (j < n) F(strips)(1, m, k, a, lda, 1, b + j, ldb, c + j, ldc, add, shift, EVERYTHING);
}
static void F(times_columns)(int64_t m, int64_t n, int64_t k, const T *a, int64_t lda, const T *b, int64_t ldb, T *c,
                             int64_t ldc, bool add, int64_t reach) {
  int64_t j = 0;
  for (; j + 2 * LANES <= n; j += 2 * LANES)
    F(strips)(2, m, k, a, 1, lda, b + j, ldb, c + j, ldc, add, -EVERYTHING, reach);
  if (j < n) F(strips)(1, m, k, a, 1, lda, b + j, ldb, c + j, ldc, add, -EVERYTHING, reach);
}

/* ---- packing ---- */

/* Rows first..first+n-1 of head (b, h) of t (B, H, rows, width), times `factor`, as rows of `ld` elements; what is right
 * of them and, up to `all`, below them becomes 0. */
static void F(pack)(T *dst, int64_t ld, const tl_tensor *t, int64_t b, int64_t h, int64_t first, int64_t n, int64_t all,
                    T factor) {
  const int64_t size = (int64_t)tl_dtype_size(t->dtype), width = t->shape[3];
  const char *src = (const char *)tl_data(t) + (b * t->strides[0] + h * t->strides[1] + first * t->strides[2]) * size;
  const bool plain = size == (int64_t)sizeof(T) && t->strides[3] == 1;
  for (int64_t r = 0; r < n; r++, src += t->strides[2] * size) {
    T *row = dst + r * ld;
    int64_t d = 0;
    for (; plain && d + LANES <= width; d += LANES) *(F(vec) *)(row + d) = *(const F(loose) *)(src + d * size) * factor;
    if (d < width) {
      F(tl_load)(row + d, t->dtype, src + d * t->strides[3] * size, t->strides[3] * size, (int)(width - d));
      for (int64_t e = d; e < width; e++) row[e] *= factor;
    }
    for (d = width; d < ld; d++) row[d] = 0;
  }
  if (n < all) memset(dst + n * ld, 0, (size_t)((all - n) * ld) * sizeof(T));
}

/* Rows first..first+n-1 of a head for a product: where they lie if `in_place` and they are whole vectors, else packed. */
typedef struct F(matrix) {
  const T *at;
  int64_t ld;
} F(matrix);
static F(matrix) F(fetch)(T *room, bool in_place, const tl_tensor *t, int64_t b, int64_t h, int64_t first, int64_t n) {
  const int64_t width = F(padded)(t->shape[3]);
  if (in_place && width == t->shape[3] && t->strides[3] == 1 && tl_dtype_size(t->dtype) == sizeof(T)) {
    const T *at = (const T *)tl_data(t) + b * t->strides[0] + h * t->strides[1] + first * t->strides[2];
    return (F(matrix)){at, t->strides[2]};
  }
  F(pack)(room, width, t, b, h, first, n, n, 1);
  return (F(matrix)){room, width};
}

/* The way back: the first `width` elements of rows of `ld`. */
static void F(unpack)(const T *src, int64_t ld, const tl_tensor *t, int64_t b, int64_t h, int64_t first, int64_t n) {
  const int64_t size = (int64_t)tl_dtype_size(t->dtype), width = t->shape[3];
  char *dst = (char *)tl_data(t) + (b * t->strides[0] + h * t->strides[1] + first * t->strides[2]) * size;
  const bool plain = size == (int64_t)sizeof(T) && t->strides[3] == 1;
  for (int64_t r = 0; r < n; r++, dst += t->strides[2] * size, src += ld) {
    int64_t d = 0;
    for (; plain && d + LANES <= width; d += LANES) *(F(loose) *)(dst + d * size) = *(const F(vec) *)(src + d);
    if (d < width)
      F(tl_store)(dst + d * t->strides[3] * size, t->dtype, t->strides[3] * size, src + d, (int)(width - d));
  }
}

/* dst (width, PANEL) = the transpose of src (PANEL, width): blocks of LANES x LANES, whose halves change places at every
 * distance (Eklundh 1972) */
static void F(transpose)(T *dst, const T *src, int64_t width) {
  for (int64_t d = 0; d < width; d += LANES)
    for (int half = 0; half < 2; half++) {
      F(vec) x[LANES];
#pragma GCC unroll 16
      for (int i = 0; i < LANES; i++) x[i] = *(const F(vec) *)(src + (half * LANES + i) * width + d);
#pragma GCC unroll 4
      for (int step = 1; step < LANES; step *= 2) {
        /* of the two vectors as one list of elements: those that stay, and those that come over */
        const F(index) lane = F(lanes)(), second = ((lane & (F(int))step) != 0) & (F(int))(LANES - step);
        const F(index) even = lane + second, odd = even + (F(int))step;
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++)
          if (!(i & step)) {
            const F(vec) a = x[i], b = x[i + step];
            x[i] = F(shuffle)(a, b, even);
            x[i + step] = F(shuffle)(a, b, odd);
          }
      }
#pragma GCC unroll 16
      for (int i = 0; i < LANES; i++) *(F(vec) *)(dst + (d + i) * PANEL + half * LANES) = x[i];
    }
}

/* ---- scores ---- */

/* Of queries from `row` on and n keys from `key` on, one column a query */
typedef struct F(block) {
  const problem *p;
  int64_t b, h, row, rows; /* rows <= PANEL: those there are */
  int64_t key, n;
} F(block);

/* s (n, PANEL) = keys (n, width) x the transposed queries. What no query of a half may see, and a half without queries,
 * stays as it is. */
static void F(scores)(const F(block) * x, const T *keys, const T *queries, int64_t width, T *s) {
  if (x->rows <= LANES) {
    F(times_rows)(x->n, LANES, width, keys, width, queries, PANEL, s, PANEL, false, -EVERYTHING);
    return;
  }
  int64_t seen = x->n;
  if (x->p->causal) {
    seen = x->row + LANES - x->key;
    seen = seen < 0 ? 0 : seen < x->n ? seen : x->n;
  }
  F(times_rows)(seen, PANEL, width, keys, width, queries, PANEL, s, PANEL, false, -EVERYTHING);
  F(times_rows)
  (x->n - seen, LANES, width, keys + seen * width, width, queries + LANES, PANEL, s + seen * PANEL + LANES, PANEL,
   false, -EVERYTHING);
}

/* The same from queries (rows, width) as they are, for a few of them */
static void F(few_scores)(const F(block) * x, F(matrix) keys, const T *queries, int64_t width, T *s) {
  for (int64_t j = 0; j < x->n; j++) {
    const T *k = keys.at + j * keys.ld;
    for (int64_t r = 0; r < x->rows; r++) {
      const T *q = queries + r * width;
      F(vec) sum = {0};
      for (int64_t d = 0; d < width; d += LANES) sum += *(const F(vec) *)(q + d) * *(const F(loose) *)(k + d);
      s[j * PANEL + r] = F(across)(sum);
    }
  }
}

/* Adds the mask; what may not be seen becomes -inf. */
static void F(mask)(const F(block) * x, T *s) {
  const tl_tensor *m = x->p->mask;
  if (m != NULL) {
    const int64_t size = (int64_t)tl_dtype_size(m->dtype), step = m->strides[3] * size;
    const char *at = (const char *)tl_data(m) +
                     (x->b * m->strides[0] + x->h * m->strides[1] + x->row * m->strides[2]) * size + x->key * step;
    for (int64_t r = 0; r < x->rows; r++, at += m->strides[2] * size) {
      if (m->dtype == TL_BOOL)
        for (int64_t j = 0; j < x->n; j++) s[j * PANEL + r] = at[j * step] ? s[j * PANEL + r] : -(T)INFINITY;
      else
        for (int64_t j = 0; j < x->n; j++) s[j * PANEL + r] += *(const T *)(at + j * step);
    }
  }
  const F(index) lane = F(lanes)();
  for (int64_t j = x->row + 1 > x->key ? x->row + 1 - x->key : 0; x->p->causal && j < x->n; j++)
    for (int half = 0; half < 2; half++) {
      const int64_t seen = x->key + j - x->row - half * LANES; /* by the lanes from here on */
      F(vec) *at = (F(vec) *)(s + j * PANEL + half * LANES);
      *at = F(choose)(lane < (F(int))(seen < LANES ? seen : LANES), (F(vec)){0} - (T)INFINITY, *at);
    }
}

/* Keys from x->key on that some query of the panel sees. */
static int64_t F(reachable)(const F(block) * x) {
  const int64_t n = x->p->keys - x->key, seen = x->row + x->rows - x->key;
  return x->p->causal && seen < n ? seen : n;
}

/* keep (n, PANEL): 1 / (1 - p) where a weight stays, else 0. Weight (b, h, t, s) has the number of its place in the
 * row-major order of (B, H, T, S). */
static void F(draw)(const F(block) * x, T *keep) {
  const problem *p = x->p;
  uint32_t raw[TL_CHUNK + 4];
  for (int64_t r = 0; r < x->rows; r++) {
    const uint64_t place = (uint64_t)(((x->b * p->heads + x->h) * p->rows + x->row + r) * p->keys + x->key);
    const uint32_t *w = tl_words(raw, p->seed, p->offset + place, (int)x->n);
    for (int64_t j = 0; j < x->n; j++) keep[j * PANEL + r] = w[j] >> 8 < p->drop_below ? 0 : (T)p->keep_scale;
  }
  for (int64_t r = x->rows; r < PANEL; r++)
    for (int64_t j = 0; j < x->n; j++) keep[j * PANEL + r] = 0;
}

/* ---- forward ---- */

typedef struct F(panel) {
  T *q; /* (width, PANEL), scaled */
  T *o; /* (PANEL, v_width) sums so far */
  T *m; /* (PANEL) maxima so far */
  T *l; /* (PANEL) sums of exp(score - maximum) so far */
} F(panel);

/* s = exp(s - shift) in the first `lanes` columns, which l sums up */
static inline __attribute__((always_inline)) void F(exponentials)(const int lanes, int64_t n, T *restrict s,
                                                                  const T *restrict shift, T *restrict l) {
  for (int64_t j = 0; j < n; j++) {
#pragma omp simd
    for (int r = 0; r < lanes; r++) {
      const T e = F(weight)(s[j * PANEL + r] - shift[r]);
      s[j * PANEL + r] = e;
      l[r] += e;
    }
  }
}

/* s becomes exp(s - maximum); the sums in l and o are scaled to the new maxima. */
static void F(softmax)(const F(block) * x, F(panel) * p, T *s, int64_t v_width) {
  T top[PANEL], shift[PANEL], factor[PANEL];
  T *restrict m = p->m, *restrict l = p->l;
  F(vec) most[2] = {*(F(vec) *)m, *(F(vec) *)(m + LANES)};
  for (int64_t j = 0; j < x->n; j++)
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
      const F(vec) v = *(F(vec) *)(s + j * PANEL + half * LANES);
      most[half] = F(choose)(v > most[half], v, most[half]);
    }
  memcpy(top, most, sizeof top);
#pragma omp simd
  for (int r = 0; r < PANEL; r++) {
    shift[r] = top[r] == -(T)INFINITY ? 0 : top[r];
    factor[r] = F(weight)(m[r] - shift[r]);
    m[r] = top[r];
    l[r] *= factor[r];
  }
  if (x->rows <= LANES) F(exponentials)(LANES, x->n, s, shift, l);
  else F(exponentials)(PANEL, x->n, s, shift, l);
  if (x->key == 0) return;
  for (int64_t r = 0; r < x->rows; r++)
    for (int64_t d = 0; d < v_width; d++) p->o[r * v_width + d] *= factor[r];
}

/* s: the scores of this block */
static void F(forward_block)(const F(block) * x, F(panel) * p, F(matrix) v, int64_t v_width, T *s, T *keep) {
  F(mask)(x, s);
  F(softmax)(x, p, s, v_width);
  if (x->p->drops) {
    F(draw)(x, keep);
    for (int64_t i = 0; i < x->n * PANEL; i++) s[i] *= keep[i];
  }
  F(times_columns)
  (x->rows, v_width, x->n, s, PANEL, v.at, v.ld, p->o, v_width, x->key > 0,
   x->p->causal ? x->row - x->key : EVERYTHING);
}

/* out = o / l, lse = m + log l; a row that sees nothing: 0 and -inf */
static void F(finish)(const F(block) * x, F(panel) * p, const tl_attention_args *a, int64_t v_width) {
  for (int64_t r = 0; r < x->rows; r++) {
    T *o = p->o + r * v_width;
    const T scale = 1 / p->l[r];
    if (p->l[r] == 0)
      for (int64_t d = 0; d < v_width; d++) o[d] = 0;
    else
      for (int64_t d = 0; d < v_width; d++) o[d] *= scale;
  }
  F(unpack)(p->o, v_width, a->out, x->b, x->h, x->row, x->rows);
  if (a->lse == NULL) return;
  T *lse = (T *)tl_data(a->lse) + (x->b * x->p->heads + x->h) * x->p->rows + x->row;
  for (int64_t r = 0; r < x->rows; r++) lse[r] = p->l[r] == 0 ? -(T)INFINITY : p->m[r] + f_log(p->l[r]);
}

static size_t F(forward_scratch)(const problem *p) {
  const int64_t width = F(padded)(p->width), v_width = F(padded)(p->v_width);
  return sizeof(T) *
         (size_t)(KEYS * (width + v_width) + 2 * KEYS * PANEL + PANELS * PANEL * (width + v_width + 2) + PANEL * width);
}

/* Queries of PANELS panels from `row` on, of one head */
static void F(forward_task)(const tl_attention_args *a, const problem *p, int64_t b, int64_t h, int64_t row, T *at) {
  const int64_t width = F(padded)(p->width), v_width = F(padded)(p->v_width), kv = h / p->group;
  T *k_room = at, *v_room = k_room + KEYS * width, *s = v_room + KEYS * v_width, *keep = s + KEYS * PANEL,
    *rows = keep + KEYS * PANEL;
  const bool few = p->rows <= FEW;
  F(panel) panel[PANELS];
  F(block) block[PANELS];
  int panels = 0;
  at = rows + PANEL * width;
  for (; panels < PANELS && row < p->rows; panels++, row += PANEL) {
    F(panel) *x = &panel[panels];
    *x = (F(panel)){at, at + PANEL * width, at + PANEL * (width + v_width), at + PANEL * (width + v_width + 1)};
    at += PANEL * (width + v_width + 2);
    block[panels] = (F(block)){p, b, h, row, p->rows - row < PANEL ? p->rows - row : PANEL, 0, 0};
    F(pack)(rows, width, a->q, b, h, row, block[panels].rows, PANEL, (T)p->scale);
    F(transpose)(x->q, rows, width);
    memset(x->o, 0, (size_t)(PANEL * v_width) * sizeof(T)); /* stays so without keys */
    for (int r = 0; r < PANEL; r++) x->m[r] = -(T)INFINITY, x->l[r] = 0;
  }
  const int64_t end = F(reachable)(&block[panels - 1]);
  for (int64_t key = 0; key < end; key += KEYS) {
    const int64_t n = end - key < KEYS ? end - key : KEYS;
    const F(matrix) k = F(fetch)(k_room, few, a->k, b, kv, key, n), v = F(fetch)(v_room, few, a->v, b, kv, key, n);
    for (int i = 0; i < panels; i++) {
      F(block) *x = &block[i];
      x->key = key;
      x->n = F(reachable)(x) < n ? F(reachable)(x) : n;
      if (x->n <= 0) continue;
      if (few) F(few_scores)(x, k, rows, width, s);
      else F(scores)(x, k.at, panel[i].q, width, s);
      F(forward_block)(x, &panel[i], v, v_width, s, keep);
    }
  }
  for (int i = 0; i < panels; i++) F(finish)(&block[i], &panel[i], a, v_width);
}

static void F(forward)(const tl_attention_args *a, const problem *p, const plan *plan) {
#pragma omp parallel num_threads(plan->threads) if (plan->threads > 1)
  {
    T *at = (T *)(plan->scratch + (size_t)omp_get_thread_num() * plan->bytes);
    const int64_t pieces = (p->rows + PANELS * PANEL - 1) / (PANELS * PANEL);
#pragma omp for schedule(dynamic)
    for (int64_t task = 0; task < p->batch * p->heads * pieces; task++) {
      const int64_t head = task / pieces;
      F(forward_task)(a, p, head / p->heads, head % p->heads, task % pieces * PANELS * PANEL, at);
    }
  }
}

/* ---- backward: with P = exp(scores - lse) and delta the sum of g out over a row,
 * dV = P^T g, dS = P (g V^T - delta), dQ = scale dS K, dK = scale dS^T Q (Dao et al. 2022) ---- */

typedef struct F(query) { /* of one panel */
  T *rows, *columns;      /* scaled queries (PANEL, width) and their transpose */
  T *g, *g_columns;       /* the gradient that arrives (PANEL, v_width) and its transpose */
  T *dq;                  /* (PANEL, width), without the scale */
  T *lse, *delta;         /* (PANEL) */
} F(query);

/* s = P as it weights the values (dropout included), ds = dS. A weight of 0 has no gradient, whatever it is multiplied
 * with. */
static void F(weights_grad)(const F(block) * x, const F(query) * q, T *restrict s, T *restrict ds,
                            const T *restrict keep) {
  const T *restrict lse = q->lse, *restrict delta = q->delta;
  for (int64_t j = 0; j < x->n; j++) {
    T *restrict sj = s + j * PANEL, *restrict dj = ds + j * PANEL;
    if (x->p->drops) {
      const T *restrict kj = keep + j * PANEL;
#pragma omp simd
      for (int r = 0; r < PANEL; r++) {
        const T w = F(weight)(sj[r] - lse[r]), d = w * (dj[r] * kj[r] - delta[r]);
        sj[r] = w * kj[r];
        dj[r] = w == 0 ? 0 : d;
      }
    } else {
#pragma omp simd
      for (int r = 0; r < PANEL; r++) {
        const T w = F(weight)(sj[r] - lse[r]), d = w * (dj[r] - delta[r]);
        sj[r] = w;
        dj[r] = w == 0 ? 0 : d;
      }
    }
  }
}

/* Packs a panel's rows. */
static void F(open_query)(const F(block) * x, const F(query) * q, const tl_attention_grad_args *a, T *rows) {
  const problem *p = x->p;
  const int64_t width = F(padded)(p->width), v_width = F(padded)(p->v_width);
  F(pack)(q->rows, width, a->in.q, x->b, x->h, x->row, x->rows, PANEL, (T)p->scale);
  F(transpose)(q->columns, q->rows, width);
  F(pack)(q->g, v_width, a->g, x->b, x->h, x->row, x->rows, PANEL, 1);
  F(transpose)(q->g_columns, q->g, v_width);
  F(pack)(rows, v_width, a->in.out, x->b, x->h, x->row, x->rows, PANEL, 1);
  const T *lse = (const T *)tl_data(a->in.lse) + (x->b * p->heads + x->h) * p->rows + x->row;
  for (int r = 0; r < PANEL; r++) {
    T sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t d = 0; d < v_width; d++) sum += q->g[r * v_width + d] * rows[r * v_width + d];
    q->delta[r] = sum;
    q->lse[r] = r >= x->rows || lse[r] == -(T)INFINITY ? (T)INFINITY : lse[r]; /* all weights 0 */
  }
  memset(q->dq, 0, (size_t)(PANEL * width) * sizeof(T));
}

static size_t F(backward_scratch)(const problem *p, int64_t keys) {
  const int64_t width = F(padded)(p->width), v_width = F(padded)(p->v_width);
  return sizeof(T) * (size_t)(2 * keys * (width + v_width) + 3 * KEYS * PANEL + PANEL * (3 * width + 3 * v_width + 2));
}

/* Keys first .. first+n-1 of one key head against all queries that share it. partial: where dq of this part of the keys
 * goes, (B, H, T, width) in T; NULL: there is one part, dq itself. */
static void F(backward_task)(const tl_attention_grad_args *a, const problem *p, int64_t b, int64_t kv, int64_t first,
                             int64_t n, T *partial, T *at) {
  const int64_t width = F(padded)(p->width), v_width = F(padded)(p->v_width);
  T *k = at, *v = k + n * width, *dk = v + n * v_width, *dv = dk + n * width, *s = dv + n * v_width,
    *ds = s + KEYS * PANEL, *keep = ds + KEYS * PANEL, *out = keep + KEYS * PANEL;
  F(query) q;
  q.rows = out + PANEL * v_width, q.columns = q.rows + PANEL * width, q.dq = q.columns + PANEL * width;
  q.g = q.dq + PANEL * width, q.g_columns = q.g + PANEL * v_width;
  q.lse = q.g_columns + PANEL * v_width, q.delta = q.lse + PANEL;
  F(pack)(k, width, a->in.k, b, kv, first, n, n, 1);
  F(pack)(v, v_width, a->in.v, b, kv, first, n, n, 1);
  memset(dk, 0, (size_t)(n * (width + v_width)) * sizeof(T));
  for (int64_t h = kv * p->group; h < (kv + 1) * p->group; h++)
    for (int64_t row = 0; row < p->rows; row += PANEL) {
      F(block) x = {p, b, h, row, p->rows - row < PANEL ? p->rows - row : PANEL, first, 0};
      const int64_t end = F(reachable)(&x) < n ? F(reachable)(&x) : n;
      if (end > 0) F(open_query)(&x, &q, a, out);
      else memset(q.dq, 0, (size_t)(PANEL * width) * sizeof(T));
      for (int64_t done = 0; done < end; done += KEYS) {
        x.key = first + done;
        x.n = end - done < KEYS ? end - done : KEYS;
        const int64_t shift = p->causal ? x.key - row : -EVERYTHING;
        F(scores)(&x, k + done * width, q.columns, width, s);
        F(mask)(&x, s);
        F(scores)(&x, v + done * v_width, q.g_columns, v_width, ds);
        if (p->drops) F(draw)(&x, keep);
        F(weights_grad)(&x, &q, s, ds, keep);
        if (a->dv != NULL)
          F(times_rows)(x.n, v_width, x.rows, s, PANEL, q.g, v_width, dv + done * v_width, v_width, true, shift);
        if (a->dk != NULL)
          F(times_rows)(x.n, width, x.rows, ds, PANEL, q.rows, width, dk + done * width, width, true, shift);
        if (a->dq != NULL)
          F(times_columns)(x.rows, width, x.n, ds, PANEL, k + done * width, width, q.dq, width, true, -shift);
      }
      if (a->dq == NULL) continue;
      for (int64_t i = 0; i < PANEL * width; i++) q.dq[i] *= (T)p->scale;
      if (partial == NULL) F(unpack)(q.dq, width, a->dq, b, h, row, x.rows);
      else memcpy(partial + ((b * p->heads + h) * p->rows + row) * width, q.dq, (size_t)(x.rows * width) * sizeof(T));
    }
  if (a->dk != NULL) F(unpack)(dk, width, a->dk, b, kv, first, n);
  if (a->dv != NULL) F(unpack)(dv, v_width, a->dv, b, kv, first, n);
}

/* dq = the sum of the parts, in order */
static void F(sum_parts)(const tl_attention_grad_args *a, const problem *p, const plan *plan, T *partial) {
  const int64_t width = F(padded)(p->width), size = p->batch * p->heads * p->rows * width;
#pragma omp parallel for num_threads(plan->threads) if (plan->threads > 1) schedule(static)
  for (int64_t head = 0; head < p->batch * p->heads; head++) {
    T *sum = partial + head * p->rows * width;
    for (int64_t part = 1; part < plan->parts; part++)
      for (int64_t i = 0; i < p->rows * width; i++) sum[i] += sum[part * size + i];
    F(unpack)(sum, width, a->dq, head / p->heads, head % p->heads, 0, p->rows);
  }
}

static void F(backward)(const tl_attention_grad_args *a, const problem *p, const plan *plan) {
  T *partial = plan->parts > 1 && a->dq != NULL ? (T *)(plan->scratch + (size_t)plan->threads * plan->bytes) : NULL;
  const int64_t size = p->batch * p->heads * p->rows * F(padded)(p->width);
#pragma omp parallel num_threads(plan->threads) if (plan->threads > 1)
  {
    T *at = (T *)(plan->scratch + (size_t)omp_get_thread_num() * plan->bytes);
#pragma omp for schedule(dynamic)
    for (int64_t task = 0; task < p->batch * p->kv_heads * plan->parts; task++) {
      const int64_t head = task / plan->parts, part = task % plan->parts, first = part * plan->keys;
      const int64_t n = p->keys - first < plan->keys ? p->keys - first : plan->keys;
      F(backward_task)
      (a, p, head / p->kv_heads, head % p->kv_heads, first, n, partial == NULL ? NULL : partial + part * size, at);
    }
  }
  if (partial != NULL) F(sum_parts)(a, p, plan, partial);
}
