/* view.c: other shapes of the same elements. */
#include <string.h>

#include "autograd/tape.h"
#include "core/tensor.h"

/* ---- gradients: most views undo themselves ---- */

typedef struct shape_payload {
  int ndim;
  int64_t shape[TL_MAX_DIMS];
} shape_payload;

static shape_payload shape_of(const tl_tensor *t) {
  shape_payload p = {.ndim = t->ndim};
  memcpy(p.shape, t->shape, (size_t)t->ndim * sizeof *t->shape);
  return p;
}

static tl_status reshape_backward(tl_node *n, tl_tensor *const *grad_out, tl_tensor **grad_in) {
  const shape_payload *p = n->payload;
  return tl_reshape(grad_out[0], p->ndim, p->shape, &grad_in[0]);
}

static tl_status expand_backward(tl_node *n, tl_tensor *const *grad_out, tl_tensor **grad_in) {
  const shape_payload *p = n->payload;
  return tl_sum_to(grad_out[0], p->ndim, p->shape, &grad_in[0]);
}

typedef struct order {
  int n, dims[TL_MAX_DIMS];
} order;

static tl_status permute_backward(tl_node *n, tl_tensor *const *grad_out, tl_tensor **grad_in) {
  const order *p = n->payload;
  int inverse[TL_MAX_DIMS];
  for (int i = 0; i < p->n; i++) inverse[p->dims[i]] = i;
  return tl_permute(grad_out[0], p->n, inverse, &grad_in[0]);
}

typedef struct part_payload {
  int ndim, d;
  int64_t shape[TL_MAX_DIMS];  /* of the whole */
  int64_t first, length, step; /* along d; length -1: one position, without its dim */
  order memory;                /* the whole's dims from the widest stride to the narrowest */
} part_payload;

/* t's dims from the widest stride to the narrowest, where its elements fill their memory; else as they are. */
static order stride_order(const tl_tensor *t) {
  order o = {.n = t->ndim};
  for (int i = 0; i < o.n; i++) {
    int k = i;
    for (; k > 0 && t->strides[o.dims[k - 1]] < t->strides[i]; k--) o.dims[k] = o.dims[k - 1];
    o.dims[k] = i;
  }
  int64_t filled = 1;
  for (int i = o.n - 1; i >= 0 && filled > 0; i--) {
    int d = o.dims[i];
    filled = t->shape[d] == 1 || t->strides[d] == filled ? filled * t->shape[d] : 0;
  }
  if (filled == 0)
    for (int i = 0; i < o.n; i++) o.dims[i] = i;
  return o;
}

/* zeros that lie in memory as the whole does: views that were taken before can be undone without a copy */
static tl_status zeros_like_whole(const part_payload *p, const tl_tensor *g, tl_tensor **out) {
  int64_t shape[TL_MAX_DIMS];
  int inverse[TL_MAX_DIMS];
  for (int i = 0; i < p->ndim; i++) {
    shape[i] = p->shape[p->memory.dims[i]];
    inverse[p->memory.dims[i]] = i;
  }
  tl_tensor *plain;
  TL_TRY(tl_full(p->ndim, shape, 0, g->dtype, g->device, &plain));
  tl_status st = tl_permute(plain, p->ndim, inverse, out);
  tl_tensor_free(plain);
  return st;
}

/* The sum that the parts of one tensor share: the first of them makes it, the others add theirs in its place. */
static tl_tensor *shared_sum(const tl_node *n, const tl_tensor *g) {
  const part_payload *p = n->payload;
  tl_tensor *sum = tl_node_arrived(n, 0);
  if (sum == NULL || sum->dtype != g->dtype || sum->device != g->device || sum->ndim != p->ndim) return NULL;
  return memcmp(sum->shape, p->shape, (size_t)p->ndim * sizeof *p->shape) == 0 ? sum : NULL;
}

/* zeros with the gradient of the part in its place */
static tl_status part_backward(tl_node *n, tl_tensor *const *grad_out, tl_tensor **grad_in) {
  const part_payload *p = n->payload;
  tl_tensor *sum = shared_sum(n, grad_out[0]), *whole = NULL, *place = NULL;
  if (sum == NULL) TL_TRY(zeros_like_whole(p, grad_out[0], &whole));
  if (p->length == 0) return grad_in[0] = whole, TL_OK;
  tl_tensor *to = sum != NULL ? sum : whole;
  tl_status st = p->length < 0
                     ? tl_select(to, p->d, p->first, &place)
                     : tl_slice(to, p->d, p->first, p->first + (p->length - 1) * p->step + 1, p->step, &place);
  if (st == TL_OK) st = sum != NULL ? tl_add_(place, grad_out[0]) : tl_copy_(place, grad_out[0]);
  tl_tensor_free(place);
  if (sum != NULL) return st;
  return tl_give(st, whole, &grad_in[0]);
}

static const tl_node_class part_class = {"slice", part_backward, NULL};
static const tl_node_class view_class = {"view", reshape_backward, NULL};
static const tl_node_class expand_class = {"expand", expand_backward, NULL};
static const tl_node_class permute_class = {"permute", permute_backward, NULL};

/* An alias with this geometry, recorded. */
static tl_status give_view(tl_tensor *t, const tl_node_class *cls, const void *payload, size_t bytes, int ndim,
                           const int64_t *shape, const int64_t *strides, int64_t offset, tl_tensor **out) {
  tl_tensor *v;
  TL_TRY(tl_alias_as(t, ndim, shape, strides, offset, &v));
  return tl_give(tl_record_view(cls, v, t, payload, bytes), v, out);
}

/* ---- reshape ---- */

/* A -1 among the sizes becomes what is left; the number of elements must agree. */
static tl_status infer_shape(const char *op, const tl_tensor *t, int ndim, const int64_t *wish, int64_t *shape) {
  int unknown = -1;
  if (ndim < 0 || ndim > TL_MAX_DIMS)
    return TL_FAIL(TL_ERR_SHAPE, op, "%d dims asked for, a tensor has 0 to %d", ndim, TL_MAX_DIMS);
  int64_t known = 1;
  char text[TL_SHAPE_CHARS];
  tl_shape_text(ndim, wish, text);
  for (int d = 0; d < ndim; d++) {
    shape[d] = wish[d];
    if (wish[d] == -1 && unknown < 0) {
      unknown = d;
      continue;
    }
    if (wish[d] < 0) return TL_FAIL(TL_ERR_SHAPE, op, "%s: only one size may be -1", text);
    if (__builtin_mul_overflow(known, wish[d], &known)) return TL_FAIL(TL_ERR_SHAPE, op, "%s is too big", text);
  }
  if (unknown >= 0) {
    if (known == 0) return TL_FAIL(TL_ERR_SHAPE, op, "%s: the size for -1 is not determined beside a 0", text);
    shape[unknown] = t->numel / known;
    known *= shape[unknown];
  }
  if (known != t->numel)
    return TL_FAIL(TL_ERR_SHAPE, op, "%s with %lld elements does not fit into %s", tl_shape_of(t), (long long)t->numel,
                   text);
  return TL_OK;
}

/* Strides that give t this shape without a copy; false if there are none. Groups of t's dims that step as one are
 * split into the new dims one group at a time. */
static bool view_strides(const tl_tensor *t, int ndim, const int64_t *shape, int64_t *strides) {
  if (t->numel == 0 || t->contiguous) {
    tl_contiguous_strides(ndim, shape, strides);
    return true;
  }
  int d = ndim - 1;
  int64_t group = 1, taken = 1, base = t->strides[t->ndim - 1];
  for (int s = t->ndim - 1; s >= 0; s--) {
    group *= t->shape[s];
    bool ends = s == 0 || (t->shape[s - 1] != 1 && t->strides[s - 1] != group * base);
    if (!ends) continue;
    while (d >= 0 && (taken < group || shape[d] == 1)) {
      strides[d] = taken * base;
      taken *= shape[d];
      d--;
    }
    if (taken != group) return false;
    if (s > 0) {
      base = t->strides[s - 1];
      group = taken = 1;
    }
  }
  return d == -1;
}

tl_status tl_view(tl_tensor *t, int ndim, const int64_t *wish, tl_tensor **out) {
  int64_t shape[TL_MAX_DIMS], strides[TL_MAX_DIMS];
  TL_TRY(infer_shape("view", t, ndim, wish, shape));
  if (!view_strides(t, ndim, shape, strides)) {
    char text[TL_SHAPE_CHARS];
    return TL_FAIL(TL_ERR_SHAPE, "view", "the strides of %s do not allow a view of %s: use reshape", tl_shape_of(t),
                   tl_shape_text(ndim, shape, text));
  }
  shape_payload p = shape_of(t);
  return give_view(t, &view_class, &p, sizeof p, ndim, shape, strides, t->offset, out);
}

tl_status tl_reshape(tl_tensor *t, int ndim, const int64_t *wish, tl_tensor **out) {
  int64_t shape[TL_MAX_DIMS], strides[TL_MAX_DIMS];
  TL_TRY(infer_shape("reshape", t, ndim, wish, shape));
  if (view_strides(t, ndim, shape, strides)) {
    shape_payload p = shape_of(t);
    return give_view(t, &view_class, &p, sizeof p, ndim, shape, strides, t->offset, out);
  }
  tl_tensor *copy;
  TL_TRY(tl_clone(t, &copy));
  tl_status st = tl_view(copy, ndim, shape, out);
  tl_tensor_free(copy);
  return st;
}

tl_status tl_flatten(tl_tensor *t, int first, int last, tl_tensor **out) {
  TL_TRY(tl_check_dim("flatten", t->ndim, &first));
  TL_TRY(tl_check_dim("flatten", t->ndim, &last));
  if (first > last)
    return TL_FAIL(TL_ERR_VALUE, "flatten", "the first dim %lld comes after the last %lld",
                   (long long)tl_position(first), (long long)tl_position(last));
  int64_t shape[TL_MAX_DIMS], product = 1;
  int ndim = 0;
  for (int d = 0; d < first; d++) shape[ndim++] = t->shape[d];
  for (int d = first; d <= last && d < t->ndim; d++) product *= t->shape[d];
  shape[ndim++] = product;
  for (int d = last + 1; d < t->ndim; d++) shape[ndim++] = t->shape[d];
  return tl_reshape(t, ndim, shape, out);
}

/* ---- dims: order, size 1, expansion ---- */

tl_status tl_permute(tl_tensor *t, int n, const int *dims, tl_tensor **out) {
  if (n != t->ndim) return TL_FAIL(TL_ERR_SHAPE, "permute", "%d dims named for a tensor of %s", n, tl_shape_of(t));
  order p = {.n = n};
  uint32_t mask;
  int64_t shape[TL_MAX_DIMS], strides[TL_MAX_DIMS];
  TL_TRY(tl_check_dims("permute", t->ndim, n, dims, &mask));
  for (int i = 0; i < n; i++) {
    p.dims[i] = dims[i] < 0 ? dims[i] + n : dims[i];
    shape[i] = t->shape[p.dims[i]];
    strides[i] = t->strides[p.dims[i]];
  }
  return give_view(t, &permute_class, &p, sizeof p, n, shape, strides, t->offset, out);
}

tl_status tl_transpose(tl_tensor *t, int a, int b, tl_tensor **out) {
  TL_TRY(tl_check_dim("transpose", t->ndim, &a));
  TL_TRY(tl_check_dim("transpose", t->ndim, &b));
  int dims[TL_MAX_DIMS];
  for (int d = 0; d < t->ndim; d++) dims[d] = d == a ? b : d == b ? a : d;
  return tl_permute(t, t->ndim, dims, out);
}

static tl_status squeeze(tl_tensor *t, uint32_t mask, tl_tensor **out) {
  int64_t shape[TL_MAX_DIMS], strides[TL_MAX_DIMS];
  int ndim = 0;
  for (int d = 0; d < t->ndim; d++)
    if (!(mask & 1u << d && t->shape[d] == 1)) {
      shape[ndim] = t->shape[d];
      strides[ndim++] = t->strides[d];
    }
  shape_payload p = shape_of(t);
  return give_view(t, &view_class, &p, sizeof p, ndim, shape, strides, t->offset, out);
}

tl_status tl_squeeze(tl_tensor *t, int d, tl_tensor **out) {
  TL_TRY(tl_check_dim("squeeze", t->ndim, &d));
  return squeeze(t, 1u << d, out);
}

tl_status tl_squeeze_all(tl_tensor *t, tl_tensor **out) { return squeeze(t, UINT32_MAX, out); }

tl_status tl_unsqueeze(tl_tensor *t, int d, tl_tensor **out) {
  if (t->ndim == TL_MAX_DIMS)
    return TL_FAIL(TL_ERR_SHAPE, "unsqueeze", "%s has %d dims already", tl_shape_of(t), TL_MAX_DIMS);
  TL_TRY(tl_check_dim("unsqueeze", t->ndim + 1, &d));
  int64_t shape[TL_MAX_DIMS], strides[TL_MAX_DIMS];
  for (int i = 0; i < d; i++) shape[i] = t->shape[i], strides[i] = t->strides[i];
  shape[d] = 1;
  strides[d] = d < t->ndim ? t->shape[d] * t->strides[d] : 1;
  for (int i = d; i < t->ndim; i++) shape[i + 1] = t->shape[i], strides[i + 1] = t->strides[i];
  shape_payload p = shape_of(t);
  return give_view(t, &view_class, &p, sizeof p, t->ndim + 1, shape, strides, t->offset, out);
}

tl_status tl_expand(tl_tensor *t, int ndim, const int64_t *wish, tl_tensor **out) {
  char text[TL_SHAPE_CHARS];
  int64_t shape[TL_MAX_DIMS], strides[TL_MAX_DIMS], numel;
  int lead = ndim - t->ndim;
  if (lead < 0 || ndim > TL_MAX_DIMS)
    return TL_FAIL(TL_ERR_SHAPE, "expand", "%s cannot become %d-d", tl_shape_of(t), ndim);
  for (int d = 0; d < ndim; d++) {
    int64_t have = d < lead ? 1 : t->shape[d - lead];
    shape[d] = wish[d] == -1 && d >= lead ? have : wish[d];
    if (shape[d] != have && have != 1)
      return TL_FAIL(TL_ERR_SHAPE, "expand", "%s does not expand to %s: size %lld of dim %lld is not 1", tl_shape_of(t),
                     tl_shape_text(ndim, wish, text), (long long)have, (long long)tl_position(d));
    strides[d] = d < lead || (have == 1 && shape[d] != 1) ? 0 : t->strides[d - lead];
  }
  TL_TRY(tl_check_shape("expand", ndim, shape, t->dtype, &numel));
  shape_payload p = shape_of(t);
  return give_view(t, &expand_class, &p, sizeof p, ndim, shape, strides, t->offset, out);
}

/* ---- parts ---- */

static tl_status position(const char *op, const tl_tensor *t, int d, int64_t *i) {
  int64_t size = t->shape[d];
  if (*i < -size || *i >= size)
    return TL_FAIL(TL_ERR_INDEX, op, "index %lld is out of range for dim %lld of %s", (long long)tl_position(*i),
                   (long long)tl_position(d), tl_shape_of(t));
  if (*i < 0) *i += size;
  return TL_OK;
}

static tl_status check_has_dims(const char *op, const tl_tensor *t) {
  if (t->ndim > 0) return TL_OK;
  return TL_FAIL(TL_ERR_INDEX, op, "a 0-d tensor has nothing to index");
}

static part_payload part_of(const tl_tensor *t, int d, int64_t first, int64_t length, int64_t step) {
  part_payload p = {.ndim = t->ndim, .d = d, .first = first, .length = length, .step = step};
  p.memory = stride_order(t);
  memcpy(p.shape, t->shape, (size_t)t->ndim * sizeof *t->shape);
  return p;
}

tl_status tl_select(tl_tensor *t, int d, int64_t i, tl_tensor **out) {
  TL_TRY(check_has_dims("select", t));
  TL_TRY(tl_check_dim("select", t->ndim, &d));
  TL_TRY(position("select", t, d, &i));
  int64_t shape[TL_MAX_DIMS], strides[TL_MAX_DIMS];
  int ndim = 0;
  for (int k = 0; k < t->ndim; k++)
    if (k != d) {
      shape[ndim] = t->shape[k];
      strides[ndim++] = t->strides[k];
    }
  part_payload p = part_of(t, d, i, -1, 1);
  return give_view(t, &part_class, &p, sizeof p, ndim, shape, strides, t->offset + i * t->strides[d], out);
}

static tl_status part(tl_tensor *t, int d, int64_t first, int64_t length, int64_t step, tl_tensor **out) {
  int64_t shape[TL_MAX_DIMS], strides[TL_MAX_DIMS];
  memcpy(shape, t->shape, sizeof shape);
  memcpy(strides, t->strides, sizeof strides);
  shape[d] = length;
  if (length > 1) strides[d] *= step; /* else nothing steps, and the product could overflow */
  part_payload p = part_of(t, d, first, length, step);
  return give_view(t, &part_class, &p, sizeof p, t->ndim, shape, strides,
                   t->offset + (length > 0 ? first * t->strides[d] : 0), out);
}

tl_status tl_narrow(tl_tensor *t, int d, int64_t first, int64_t length, tl_tensor **out) {
  TL_TRY(check_has_dims("narrow", t));
  TL_TRY(tl_check_dim("narrow", t->ndim, &d));
  int64_t size = t->shape[d], begin = first < 0 ? first + size : first;
  if (length < 0 || begin < 0 || begin > size || length > size - begin)
    return TL_FAIL(TL_ERR_INDEX, "narrow", "%lld elements from %lld do not lie in dim %lld of %s", (long long)length,
                   (long long)tl_position(first), (long long)tl_position(d), tl_shape_of(t));
  return part(t, d, begin, length, 1, out);
}

tl_status tl_slice(tl_tensor *t, int d, int64_t first, int64_t end, int64_t step, tl_tensor **out) {
  TL_TRY(check_has_dims("slice", t));
  TL_TRY(tl_check_dim("slice", t->ndim, &d));
  if (step < 1) return TL_FAIL(TL_ERR_VALUE, "slice", "a step is at least 1, got %lld", (long long)step);
  int64_t size = t->shape[d];
  first = first < 0 ? first + size : first;
  end = end < 0 ? end + size : end;
  if (first < 0) first = 0;
  if (end > size) end = size;
  int64_t length = end > first ? (end - first - 1) / step + 1 : 0;
  return part(t, d, first, length, step, out);
}

tl_status tl_detach(tl_tensor *t, tl_tensor **out) { return tl_alias(t, out); }
