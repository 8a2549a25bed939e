/* attention.c: scaled dot-product attention (Vaswani et al. 2017) as one operation. Neither direction stores the (T, S)
 * weights: backward computes them again from q, k and the logarithm of each row's sum (Dao et al. 2022), and draws
 * dropout's numbers again. */
#include "autograd/tape.h"
#include "backend/backend.h"
#include "core/random.h"
#include "ops/autocast.h"
#include "ops/plain.h"

#define OP "scaled_dot_product_attention"

enum { Q, K, V, OUT, LSE, MASK, SAVED };

typedef struct payload {
  bool causal;
  double scale, dropout;
  uint64_t seed, offset;
  int ndim;
  int64_t shape[3][TL_MAX_DIMS]; /* of q, k, v */
} payload;

/* ---- (.., H, T, D) as (B, H, T, D), and back ---- */

/* A view; a copy where the leading dims cannot be seen as one. */
static tl_status as_4d(tl_tensor *t, tl_tensor **out) {
  const int lead = t->ndim - 3; /* dims that become B */
  for (int d = 0; d + 1 < lead; d++)
    if (t->numel > 0 && t->strides[d] != t->strides[d + 1] * t->shape[d + 1]) {
      tl_tensor *dense;
      TL_TRY(tl_plain(t, t->dtype, &dense));
      tl_status st = dense == t ? TL_OK : as_4d(dense, out);
      tl_tensor_free(dense);
      if (dense != t) return st;
      break; /* dims of size 1 */
    }
  int64_t shape[4] = {1, 1, 1, 1}, strides[4] = {0};
  for (int d = 0; d < lead; d++) shape[0] *= t->shape[d];
  if (lead > 0) strides[0] = t->strides[lead - 1];
  for (int d = lead < 0 ? 0 : lead; d < t->ndim; d++) {
    shape[d - lead + 1] = t->shape[d];
    strides[d - lead + 1] = t->strides[d];
  }
  return tl_alias_as(t, 4, shape, strides, t->offset, out);
}

/* The same elements with `ndim` dims; consumes t. */
static tl_status as_given(tl_tensor *t, int ndim, const int64_t *shape, tl_tensor **out) {
  if (ndim == 4) return tl_give(TL_OK, t, out);
  int64_t strides[TL_MAX_DIMS];
  for (int d = ndim - 1; d >= 0; d--)
    strides[d] = d >= ndim - 4 ? t->strides[d - ndim + 4] : strides[d + 1] * shape[d + 1];
  tl_status st = tl_alias_as(t, ndim, shape, strides, t->offset, out);
  tl_tensor_free(t);
  return st;
}

/* An uninitialised (B, H, T, width) tensor with the rest of like's shape. Where like's heads lie inside its positions,
 * (B, T, H, D), as they come out of a linear layer, so do the new one's: joining the heads again copies nothing. */
static tl_status empty_as(const tl_tensor *like, int64_t width, tl_tensor **out) {
  const int64_t *n = like->shape, shape[4] = {n[0], n[1], n[2], width}, inside[4] = {n[0], n[2], n[1], width};
  if (n[1] == 1 || like->strides[1] >= like->strides[2]) return tl_empty(4, shape, like->dtype, like->device, out);
  tl_tensor *dense;
  TL_TRY(tl_empty(4, inside, like->dtype, like->device, &dense));
  const int64_t strides[4] = {n[2] * n[1] * width, width, n[1] * width, 1};
  tl_status st = tl_alias_as(dense, 4, shape, strides, 0, out);
  tl_tensor_free(dense);
  return st;
}

/* ---- backward ---- */

static tl_status attention_backward(tl_node *n, tl_tensor *const *grad_out, tl_tensor **grad_in) {
  const payload *p = n->payload;
  tl_tensor *s[SAVED], *same = NULL, *g = NULL, *d[3] = {NULL};
  for (int i = 0; i < SAVED; i++) TL_TRY(tl_node_saved(n, i, &s[i]));
  TL_KERNEL(s[Q], attention_grad, OP);
  tl_status st = tl_to(grad_out[0], s[Q]->dtype, s[Q]->device, &same);
  if (st == TL_OK) st = as_4d(same, &g);
  for (int i = 0; i < 3; i++)
    if (st == TL_OK && tl_node_needs(n, i)) st = empty_as(s[i], s[i]->shape[3], &d[i]);
  if (st == TL_OK && (s[OUT]->numel == 0 || s[K]->shape[2] == 0)) {
    for (int i = 0; i < 3; i++)
      if (st == TL_OK && d[i] != NULL) st = tl_fill_(d[i], 0);
  } else if (st == TL_OK) {
    tl_attention_grad_args a = {.in = {.q = s[Q],
                                       .k = s[K],
                                       .v = s[V],
                                       .mask = s[MASK],
                                       .causal = p->causal,
                                       .scale = p->scale,
                                       .dropout = p->dropout,
                                       .seed = p->seed,
                                       .offset = p->offset,
                                       .out = s[OUT],
                                       .lse = s[LSE]},
                                .g = g,
                                .dq = d[Q],
                                .dk = d[K],
                                .dv = d[V]};
    st = tl_kernels_of(g)->attention_grad(&a);
  }
  tl_tensor_free(g);
  tl_tensor_free(same);
  for (int i = 0; i < 3; i++) {
    if (st == TL_OK && d[i] != NULL) st = as_given(d[i], p->ndim, p->shape[i], &grad_in[i]);
    else tl_tensor_free(d[i]);
  }
  return st;
}

static const tl_node_class attention_class = {OP, attention_backward, NULL};

/* ---- forward ---- */

static tl_status check_operands(const tl_tensor *q, const tl_tensor *k, const tl_tensor *v, bool gqa) {
  const tl_tensor *all[3] = {q, k, v};
  bool fits = true;
  for (int i = 0; i < 3; i++) {
    TL_TRY(tl_check_floating(OP, all[i]));
    TL_TRY(tl_check_same_device(OP, q, all[i]));
    if (all[i]->dtype != q->dtype)
      return TL_FAIL(TL_ERR_DTYPE, OP, "query, key and value are %s, %s and %s: they need one dtype",
                     tl_dtype_name(q->dtype), tl_dtype_name(k->dtype), tl_dtype_name(v->dtype));
    if (all[i]->ndim < 2) return TL_FAIL(TL_ERR_SHAPE, OP, "%s is not (.., T, D)", tl_shape_of(all[i]));
    fits = fits && all[i]->ndim == q->ndim;
  }
  const int n = q->ndim;
  for (int d = 0; fits && d < n - 3; d++) fits = q->shape[d] == k->shape[d] && q->shape[d] == v->shape[d];
  fits = fits && q->shape[n - 1] == k->shape[n - 1] && k->shape[n - 2] == v->shape[n - 2];
  if (fits && n > 2) fits = k->shape[n - 3] == v->shape[n - 3];
  if (!fits)
    return TL_FAIL(TL_ERR_SHAPE, OP,
                   "query %s, key %s and value %s do not fit: they are (.., H, T, D), (.., H, S, D) and (.., H, S, V)",
                   tl_shape_of(q), tl_shape_of(k), tl_shape_of(v));
  const int64_t heads = n < 3 ? 1 : q->shape[n - 3], kv_heads = n < 3 ? 1 : k->shape[n - 3];
  if (heads == kv_heads) return TL_OK;
  if (!gqa)
    return TL_FAIL(TL_ERR_SHAPE, OP, "the query has %lld heads, the key %lld: enable_gqa lets query heads share them",
                   (long long)heads, (long long)kv_heads);
  if (kv_heads == 0 || heads % kv_heads != 0)
    return TL_FAIL(TL_ERR_SHAPE, OP, "%lld query heads are not a multiple of %lld key heads", (long long)heads,
                   (long long)kv_heads);
  return TL_OK;
}

/* The mask as (B, H, T, S), broadcast by strides: bool, or in the type that is computed in. NULL stays NULL. */
static tl_status make_mask(tl_tensor *mask, const tl_tensor *q, int64_t keys, tl_tensor **out) {
  *out = NULL;
  if (mask == NULL) return TL_OK;
  TL_TRY(tl_check_same_device(OP, q, mask));
  if (mask->dtype != TL_BOOL && !tl_is_floating(mask->dtype))
    return TL_FAIL(TL_ERR_DTYPE, OP, "attn_mask is %s: it is bool (true takes part) or floating (added)",
                   tl_dtype_name(mask->dtype));
  if (tl_requires_grad(mask) && tl_grad_enabled())
    return TL_FAIL(TL_ERR_UNSUPPORTED, OP,
                   "attn_mask requires a gradient, which would be as large as all weights: detach() it, or put the "
                   "attention together from matmul and softmax");
  int64_t shape[TL_MAX_DIMS], strides[TL_MAX_DIMS];
  for (int d = 0; d < q->ndim - 1; d++) shape[d] = q->shape[d];
  shape[q->ndim - 1] = keys;
  bool fits = mask->ndim <= q->ndim;
  for (int d = 0; fits && d < q->ndim; d++) {
    const int from = d - (q->ndim - mask->ndim);
    const bool repeats = from < 0 || mask->shape[from] == 1;
    fits = repeats || mask->shape[from] == shape[d];
  }
  char text[TL_SHAPE_CHARS];
  if (!fits)
    return TL_FAIL(TL_ERR_SHAPE, OP, "attn_mask %s does not broadcast to the weights %s", tl_shape_of(mask),
                   tl_shape_text(q->ndim, shape, text));
  tl_tensor *wide = NULL, *view = NULL;
  bool former = tl_set_grad_enabled(false);
  tl_status st = mask->dtype == TL_BOOL ? tl_tensor_retain(mask, &wide)
                                        : tl_to(mask, tl_compute_dtype(q->dtype), mask->device, &wide);
  for (int d = 0; st == TL_OK && d < q->ndim; d++) {
    const int from = d - (q->ndim - mask->ndim);
    strides[d] = from < 0 || mask->shape[from] == 1 ? 0 : wide->strides[from];
  }
  if (st == TL_OK) st = tl_alias_as(wide, q->ndim, shape, strides, wide->offset, &view);
  if (st == TL_OK) st = as_4d(view, out);
  tl_tensor_free(view);
  tl_tensor_free(wide);
  tl_set_grad_enabled(former);
  return st;
}

/* s[OUT], and s[LSE] where it exists, from the other ones. */
static tl_status compute(const payload *p, tl_tensor *const *s) {
  if (s[OUT]->numel > 0 && s[K]->shape[2] > 0) {
    tl_attention_args a = {.q = s[Q],
                           .k = s[K],
                           .v = s[V],
                           .mask = s[MASK],
                           .causal = p->causal,
                           .scale = p->scale,
                           .dropout = p->dropout,
                           .seed = p->seed,
                           .offset = p->offset,
                           .out = s[OUT],
                           .lse = s[LSE]};
    return tl_kernels_of(s[Q])->attention(&a);
  }
  TL_TRY(tl_fill_(s[OUT], 0)); /* nothing to attend to */
  return s[LSE] == NULL ? TL_OK : tl_fill_(s[LSE], -INFINITY);
}

tl_status tl_scaled_dot_product_attention(tl_tensor *q, tl_tensor *k, tl_tensor *v, tl_tensor *mask, double dropout_p,
                                          bool is_causal, double scale, bool enable_gqa, tl_generator *g,
                                          tl_tensor **out) {
  TL_AUTOCAST(
      TL_CAST_LOW,
      tl_scaled_dot_product_attention(cast[0], cast[1], cast[2], mask, dropout_p, is_causal, scale, enable_gqa, g, out),
      q, k, v);
  TL_TRY(check_operands(q, k, v, enable_gqa));
  TL_KERNEL(q, attention, OP);
  if (!(dropout_p >= 0 && dropout_p <= 1))
    return TL_FAIL(TL_ERR_VALUE, OP, "the probability %g of dropout is outside 0..1", dropout_p);
  const int n = q->ndim;
  const int64_t width = q->shape[n - 1], keys = k->shape[n - 2], v_width = v->shape[n - 1];
  payload p = {.causal = is_causal,
               .scale = scale == scale ? scale
                        : width == 0   ? 1
                                       : 1 / sqrt((double)width),
               .dropout = dropout_p,
               .ndim = n};
  tl_tensor *s[SAVED] = {NULL}, *y = NULL, *in[3] = {q, k, v};
  for (int i = 0; i < 3; i++)
    for (int d = 0; d < n; d++) p.shape[i][d] = in[i]->shape[d];
  int64_t shape[TL_MAX_DIMS], numbers = 0;
  for (int d = 0; d < n; d++) shape[d] = d == n - 1 ? v_width : q->shape[d];
  tl_status st = make_mask(mask, q, keys, &s[MASK]);
  for (int i = 0; i < 3; i++)
    if (st == TL_OK) st = as_4d(in[i], &s[i]);
  if (st == TL_OK && dropout_p > 0)
    st = tl_check_shape(OP, 4, (const int64_t[]){s[Q]->shape[0], s[Q]->shape[1], s[Q]->shape[2], keys}, TL_FLOAT32,
                        &numbers);
  if (st == TL_OK && tl_records(3, in)) st = tl_empty(3, s[Q]->shape, tl_compute_dtype(q->dtype), q->device, &s[LSE]);
  if (st == TL_OK) st = empty_as(s[Q], v_width, &s[OUT]);
  if (st == TL_OK) st = as_given(tl_hold(s[OUT]), n, shape, &y);
  tl_generator_take(g, numbers, &p.seed, &p.offset);
  if (st == TL_OK) st = compute(&p, s);
  if (st == TL_OK) st = tl_record1(&attention_class, y, 3, in, SAVED, s, &p, sizeof p);
  st = tl_generator_end(g, p.offset, st);
  for (int i = 0; i < SAVED; i++) tl_tensor_free(s[i]);
  return tl_give(st, y, out);
}
