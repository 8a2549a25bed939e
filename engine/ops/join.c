/* join.c: cat, stack, tile, repeat_interleave, flip, triu, tril. */
#include <string.h>

#include "autograd/tape.h"
#include "backend/backend.h"
#include "core/memory.h"
#include "ops/index.h"

/* ---- cat, stack ---- */

/* Input i covers sizes[i] of dim d; its dtype may be narrower than the result's. sizes[i] = -1: skipped. */
typedef struct joined_part {
  int64_t size;
  int dtype;
} joined_part;

typedef struct joined {
  int d;
  int64_t n;
  joined_part parts[];
} joined;

static tl_status cat_backward(tl_node *n, tl_tensor *const *grad_out, tl_tensor **grad_in) {
  const joined *j = n->payload;
  int64_t at = 0;
  for (int64_t i = 0; i < j->n; i++) {
    const joined_part *p = &j->parts[i];
    if (tl_node_needs(n, (int)i)) {
      tl_tensor *part = NULL;
      if (p->size < 0) {
        int64_t none = 0;
        TL_TRY(tl_full(1, &none, 0, p->dtype, grad_out[0]->device, &grad_in[i]));
        continue;
      }
      TL_TRY(tl_narrow(grad_out[0], j->d, at, p->size, &part));
      tl_status st = tl_to(part, p->dtype, part->device, &grad_in[i]);
      tl_tensor_free(part);
      TL_TRY(st);
    }
    if (p->size > 0) at += p->size;
  }
  return TL_OK;
}

static const tl_node_class cat_class = {"cat", cat_backward, NULL};

/* An empty 1-d tensor joins anything and adds nothing, as in PyTorch. */
static bool is_skipped(const tl_tensor *t) { return t->ndim == 1 && t->shape[0] == 0; }

/* The result's shape and dtype from n >= 1 tensors; *first is one that is not skipped (NULL: all are). */
static tl_status check_joined(const char *op, int n, tl_tensor *const *tensors, int *d, int64_t *shape, int *dtype,
                              tl_tensor **first) {
  int64_t sum = 0;
  *first = NULL;
  *dtype = tensors[0]->dtype;
  for (int i = 0; i < n; i++) {
    tl_tensor *t = tensors[i];
    TL_TRY(tl_check_same_device(op, tensors[0], t));
    *dtype = tl_promote(*dtype, t->dtype);
    if (t->ndim == 0) return TL_FAIL(TL_ERR_SHAPE, op, "tensor %lld is 0-d: use stack", (long long)tl_position(i));
    if (is_skipped(t)) continue;
    if (*first == NULL) {
      *first = t;
      TL_TRY(tl_check_dim(op, t->ndim, d));
      memcpy(shape, t->shape, (size_t)t->ndim * sizeof *shape);
    }
    bool fits = t->ndim == (*first)->ndim;
    for (int k = 0; k < t->ndim && fits; k++) fits = k == *d || t->shape[k] == shape[k];
    if (!fits)
      return TL_FAIL(TL_ERR_SHAPE, op, "tensor %lld of %s does not join %s along dim %lld", (long long)tl_position(i),
                     tl_shape_of(t), tl_shape_of(*first), (long long)tl_position(*d));
    if (__builtin_add_overflow(sum, t->shape[*d], &sum))
      return TL_FAIL(TL_ERR_SHAPE, op, "the sum of the sizes is too big");
  }
  if (*first == NULL) {
    TL_TRY(tl_check_dim(op, 1, d));
    shape[0] = 0;
  } else {
    shape[*d] = sum;
  }
  return TL_OK;
}

/* y = the tensors one after another along d; grad is off */
static tl_status fill_joined(tl_tensor *y, int n, tl_tensor *const *tensors, int d) {
  int64_t at = 0;
  for (int i = 0; i < n; i++) {
    if (is_skipped(tensors[i])) continue;
    tl_tensor *place;
    int64_t shape[TL_MAX_DIMS], size = tensors[i]->shape[d];
    memcpy(shape, y->shape, sizeof shape);
    shape[d] = size;
    TL_TRY(tl_alias_as(y, y->ndim, shape, y->strides, y->offset + at * y->strides[d], &place));
    tl_iter it;
    tl_tensor *operands[2] = {place, tensors[i]};
    tl_iter_init(&it, 2, operands, NULL, place->ndim, place->shape);
    tl_status st = tl_kernels_of(y)->copy(&it);
    tl_tensor_free(place);
    TL_TRY(st);
    at += size;
  }
  return TL_OK;
}

static tl_status record_joined(tl_tensor *y, int n, tl_tensor *const *tensors, int d) {
  if (!tl_records(n, tensors)) return TL_OK;
  size_t bytes = sizeof(joined) + (size_t)n * sizeof(joined_part);
  joined *j = tl_host_alloc(bytes);
  if (j == NULL) return TL_FAIL(TL_ERR_MEMORY, "cat", "no memory for %d inputs", n);
  j->d = d;
  j->n = n;
  for (int i = 0; i < n; i++)
    j->parts[i] = (joined_part){is_skipped(tensors[i]) ? -1 : tensors[i]->shape[d], tensors[i]->dtype};
  tl_status st = tl_record1(&cat_class, y, n, tensors, 0, NULL, j, bytes);
  tl_host_free(j);
  return st;
}

tl_status tl_cat(int n, tl_tensor *const *tensors, int d, tl_tensor **out) {
  if (n < 1) return TL_FAIL(TL_ERR_VALUE, "cat", "there are no tensors to join");
  if (n > UINT16_MAX) return TL_FAIL(TL_ERR_VALUE, "cat", "%d tensors, at most %d join at once", n, UINT16_MAX);
  int64_t shape[TL_MAX_DIMS];
  int dtype;
  tl_tensor *first, *y;
  TL_TRY(check_joined("cat", n, tensors, &d, shape, &dtype, &first));
  TL_KERNEL(tensors[0], copy, "cat");
  TL_TRY(tl_empty(first == NULL ? 1 : first->ndim, shape, dtype, tensors[0]->device, &y));
  tl_status st = fill_joined(y, n, tensors, d);
  if (st == TL_OK) st = record_joined(y, n, tensors, d);
  return tl_give(st, y, out);
}

tl_status tl_stack(int n, tl_tensor *const *tensors, int d, tl_tensor **out) {
  if (n < 1) return TL_FAIL(TL_ERR_VALUE, "stack", "there are no tensors to join");
  if (tensors[0]->ndim == TL_MAX_DIMS)
    return TL_FAIL(TL_ERR_SHAPE, "stack", "%s has %d dims already", tl_shape_of(tensors[0]), TL_MAX_DIMS);
  TL_TRY(tl_check_dim("stack", tensors[0]->ndim + 1, &d));
  for (int i = 1; i < n; i++)
    if (!tl_same_shape(tensors[0], tensors[i]))
      return TL_FAIL(TL_ERR_SHAPE, "stack", "tensor %lld of %s does not stack on %s", (long long)tl_position(i),
                     tl_shape_of(tensors[i]), tl_shape_of(tensors[0]));
  tl_tensor **views = tl_host_calloc((size_t)n, sizeof *views);
  if (views == NULL) return TL_FAIL(TL_ERR_MEMORY, "stack", "no memory for %d inputs", n);
  tl_status st = TL_OK;
  for (int i = 0; i < n && st == TL_OK; i++) st = tl_unsqueeze(tensors[i], d, &views[i]);
  if (st == TL_OK) st = tl_cat(n, views, d, out);
  for (int i = 0; i < n; i++) tl_tensor_free(views[i]);
  tl_host_free(views);
  return st;
}

/* ---- repetition: a view with an expanded dim, then a copy ---- */

/* x with every slice of dim d (interleave) or the whole of it repeated; recorded through its steps */
static tl_status repeated(const char *op, tl_tensor *x, int d, int64_t repeats, bool interleave, tl_tensor **out) {
  int64_t shape[TL_MAX_DIMS], numel;
  memcpy(shape, x->shape, (size_t)x->ndim * sizeof *shape);
  if (__builtin_mul_overflow(shape[d], repeats, &shape[d]))
    return TL_FAIL(TL_ERR_SHAPE, op, "%lld repeats of %s are too many", (long long)repeats, tl_shape_of(x));
  TL_TRY(tl_check_shape(op, x->ndim, shape, x->dtype, &numel));
  tl_along a = tl_along_dim(x, d);
  int64_t before = interleave ? a.outer * a.n : a.outer, after = interleave ? a.inner : a.n * a.inner;
  tl_tensor *view = NULL, *wide = NULL;
  tl_status st = tl_reshape(x, 3, (int64_t[3]){before, 1, after}, &view);
  if (st == TL_OK) st = tl_expand(view, 3, (int64_t[3]){before, repeats, after}, &wide);
  if (st == TL_OK) st = tl_reshape(wide, x->ndim, shape, out);
  tl_tensor_free(view);
  tl_tensor_free(wide);
  return st;
}

/* The result never shares x's memory. */
static tl_status own_copy(const tl_tensor *x, tl_tensor *y, tl_tensor **out) {
  if (y->storage != x->storage) return tl_tensor_retain(y, out);
  return tl_clone(y, out);
}

tl_status tl_tile(tl_tensor *x, int n, const int64_t *repeats, tl_tensor **out) {
  int ndim = n > x->ndim ? n : x->ndim;
  if (n < 0 || ndim > TL_MAX_DIMS)
    return TL_FAIL(TL_ERR_SHAPE, "tile", "%d repeats, a tensor has 0 to %d dims", n, TL_MAX_DIMS);
  int64_t shape[TL_MAX_DIMS];
  for (int d = 0; d < ndim; d++) shape[d] = d < ndim - x->ndim ? 1 : x->shape[d - (ndim - x->ndim)];
  for (int i = 0; i < n; i++)
    if (repeats[i] < 0)
      return TL_FAIL(TL_ERR_VALUE, "tile", "%lld repeats of dim %lld", (long long)repeats[i],
                     (long long)tl_position(i));
  tl_tensor *y = NULL;
  tl_status st = tl_reshape(x, ndim, shape, &y);
  for (int d = ndim - 1; d >= 0 && st == TL_OK; d--) {
    int64_t times = d < ndim - n ? 1 : repeats[d - (ndim - n)];
    if (times == 1) continue;
    tl_tensor *next = NULL;
    st = repeated("tile", y, d, times, false, &next);
    tl_tensor_free(y);
    y = next;
  }
  if (st == TL_OK) st = own_copy(x, y, out);
  tl_tensor_free(y);
  return st;
}

tl_status tl_repeat_interleave(tl_tensor *x, int64_t repeats, int d, tl_tensor **out) {
  TL_TRY(tl_check_dim("repeat_interleave", x->ndim, &d));
  if (repeats < 0) return TL_FAIL(TL_ERR_VALUE, "repeat_interleave", "%lld repeats", (long long)repeats);
  tl_tensor *vector = NULL, *y = NULL; /* a 0-d tensor counts as one element */
  tl_status st = x->ndim == 0 ? tl_reshape(x, 1, (int64_t[1]){1}, &vector) : tl_tensor_retain(x, &vector);
  if (st == TL_OK) st = repeated("repeat_interleave", vector, d, repeats, true, &y);
  if (st == TL_OK) st = own_copy(x, y, out);
  tl_tensor_free(vector);
  tl_tensor_free(y);
  return st;
}

/* ---- flip ---- */

/* y = x walked backwards along the dims of mask; y contiguous */
static tl_status flip_into(tl_tensor *y, const tl_tensor *x, uint32_t mask) {
  int64_t size = (int64_t)tl_dtype_size(x->dtype);
  tl_iter it = {.n = 2, .ndim = x->ndim == 0 ? 1 : x->ndim, .numel = x->numel, .shape = {1}};
  it.op[0] = (tl_operand){.data = tl_data(y), .dtype = y->dtype};
  it.op[1] = (tl_operand){.data = tl_data(x), .dtype = x->dtype};
  for (int d = 0; d < x->ndim; d++) {
    bool turned = mask & 1u << d;
    it.shape[d] = x->shape[d];
    it.op[0].stride[d] = y->strides[d] * size;
    it.op[1].stride[d] = (turned ? -x->strides[d] : x->strides[d]) * size;
    if (turned && x->numel > 0) it.op[1].data += (x->shape[d] - 1) * x->strides[d] * size;
  }
  return tl_kernels_of(x)->copy(&it);
}

static tl_status flipped(tl_tensor *x, uint32_t mask, tl_tensor **out) {
  TL_KERNEL(x, copy, "flip");
  tl_tensor *y = NULL;
  TL_TRY(tl_empty_like(x, x->dtype, &y));
  return tl_give(flip_into(y, x, mask), y, out);
}

static tl_status flip_backward(tl_node *n, tl_tensor *const *grad_out, tl_tensor **grad_in) {
  return flipped(grad_out[0], *(const uint32_t *)n->payload, &grad_in[0]);
}

static const tl_node_class flip_class = {"flip", flip_backward, NULL};

/* n = 0 turns nothing: unlike reductions, flip has no "all dims" form */
tl_status tl_flip(tl_tensor *x, int n, const int *dims, tl_tensor **out) {
  uint32_t mask = 0;
  if (n != 0) TL_TRY(tl_check_dims("flip", x->ndim, n, dims, &mask));
  tl_tensor *y = NULL;
  TL_TRY(flipped(x, mask, &y));
  return tl_give(tl_record1(&flip_class, y, 1, &x, 0, NULL, &mask, sizeof mask), y, out);
}

/* ---- triangles ---- */

typedef struct triangle {
  int64_t diagonal;
  bool upper;
} triangle;

static tl_status cut(const char *op, tl_tensor *x, const triangle *t, tl_tensor **out) {
  TL_KERNEL(x, triangle, op);
  tl_tensor *flat = NULL, *y = NULL;
  bool former = tl_set_grad_enabled(false);
  tl_status st = tl_contiguous(x, &flat);
  tl_set_grad_enabled(former);
  TL_TRY(st);
  st = tl_empty_like(x, x->dtype, &y);
  if (st == TL_OK && y->numel > 0) {
    int64_t rows = x->shape[x->ndim - 2], columns = x->shape[x->ndim - 1];
    st = tl_kernels_of(x)->triangle(tl_dtype_size(x->dtype), tl_data(flat), x->numel / (rows * columns), rows, columns,
                                    t->diagonal, t->upper, tl_data(y));
  }
  tl_tensor_free(flat);
  return tl_give(st, y, out);
}

static tl_status triangle_backward(tl_node *n, tl_tensor *const *grad_out, tl_tensor **grad_in) {
  return cut(n->cls->name, grad_out[0], n->payload, &grad_in[0]);
}

static const tl_node_class triu_class = {"triu", triangle_backward, NULL};
static const tl_node_class tril_class = {"tril", triangle_backward, NULL};

static tl_status triangular(const tl_node_class *cls, tl_tensor *x, int64_t diagonal, bool upper, tl_tensor **out) {
  if (x->ndim < 2) return TL_FAIL(TL_ERR_SHAPE, cls->name, "needs at least 2 dims, got %s", tl_shape_of(x));
  /* further out, nothing changes (and sums cannot overflow) */
  int64_t rows = x->shape[x->ndim - 2], columns = x->shape[x->ndim - 1];
  triangle t = {diagonal > columns ? columns : diagonal < -rows ? -rows : diagonal, upper};
  tl_tensor *y = NULL;
  TL_TRY(cut(cls->name, x, &t, &y));
  return tl_give(tl_record1(cls, y, 1, &x, 0, NULL, &t, sizeof t), y, out);
}

tl_status tl_triu(tl_tensor *x, int64_t diagonal, tl_tensor **out) {
  return triangular(&triu_class, x, diagonal, true, out);
}
tl_status tl_tril(tl_tensor *x, int64_t diagonal, tl_tensor **out) {
  return triangular(&tril_class, x, diagonal, false, out);
}
