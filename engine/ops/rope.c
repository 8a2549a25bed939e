/* rope.c: rotary position embedding (Su et al. 2021): pairs of elements turned by an angle that their position gives. */
#include "autograd/tape.h"
#include "backend/backend.h"
#include "ops/plain.h"

enum { COS, SIN, SAVED };

/* x's rows may lie anywhere: heads that were transposed out of a product need no copy of their own. */
static tl_status rows_dense(tl_tensor *x, tl_tensor **out) {
  if (x->strides[x->ndim - 1] == 1 || x->shape[x->ndim - 1] <= 1) return tl_tensor_retain(x, out);
  return tl_plain(x, x->dtype, out);
}

static tl_status rotate(tl_tensor *x, tl_tensor *cos, tl_tensor *sin, bool interleaved, bool back, tl_tensor **out) {
  tl_tensor *rows, *y = NULL;
  TL_TRY(rows_dense(x, &rows));
  tl_status st = tl_empty_like(x, x->dtype, &y);
  if (st == TL_OK && x->numel > 0) {
    tl_rope_args a = {.x = rows, .cos = cos, .sin = sin, .interleaved = interleaved, .back = back, .y = y};
    st = tl_kernels_of(x)->rope(&a);
  }
  tl_tensor_free(rows);
  return tl_give(st, y, out);
}

static tl_status rope_backward(tl_node *n, tl_tensor *const *grad_out, tl_tensor **grad_in) {
  const bool *interleaved = n->payload;
  tl_tensor *s[SAVED];
  for (int i = 0; i < SAVED; i++) TL_TRY(tl_node_saved(n, i, &s[i]));
  TL_KERNEL(s[COS], rope, "rope");
  return rotate(grad_out[0], s[COS], s[SIN], *interleaved, true, &grad_in[0]);
}

static const tl_node_class rope_class = {"rope", rope_backward, NULL};

static tl_status check_table(const char *what, const tl_tensor *x, tl_tensor *t) {
  TL_TRY(tl_check_floating("rope", t));
  TL_TRY(tl_check_same_device("rope", x, t));
  const int64_t length = x->shape[x->ndim - 2], width = x->shape[x->ndim - 1];
  if (t->ndim != 2 || t->shape[0] != length || t->shape[1] > width / 2)
    return TL_FAIL(TL_ERR_SHAPE, "rope", "%s is %s, an input of %s needs (%lldx%lld), or fewer columns", what,
                   tl_shape_of(t), tl_shape_of(x), (long long)length, (long long)width / 2);
  if (tl_records(1, &t)) return TL_FAIL(TL_ERR_UNSUPPORTED, "rope", "no gradient goes to %s: pass it detached", what);
  return TL_OK;
}

tl_status tl_rope(tl_tensor *x, tl_tensor *cos, tl_tensor *sin, bool interleaved, tl_tensor **out) {
  TL_TRY(tl_check_floating("rope", x));
  if (x->ndim < 2) return TL_FAIL(TL_ERR_SHAPE, "rope", "the input is (.., T, D), got %s", tl_shape_of(x));
  TL_TRY(check_table("cos", x, cos));
  TL_TRY(check_table("sin", x, sin));
  if (!tl_same_shape(cos, sin))
    return TL_FAIL(TL_ERR_SHAPE, "rope", "cos is %s but sin %s", tl_shape_of(cos), tl_shape_of(sin));
  TL_KERNEL(x, rope, "rope");
  const int stats = tl_compute_dtype(x->dtype);
  tl_tensor *s[SAVED] = {NULL}, *y = NULL;
  tl_status st = tl_plain(cos, stats, &s[COS]);
  if (st == TL_OK) st = tl_plain(sin, stats, &s[SIN]);
  if (st == TL_OK) st = rotate(x, s[COS], s[SIN], interleaved, false, &y);
  if (st == TL_OK) st = tl_record1(&rope_class, y, 1, &x, SAVED, s, &interleaved, sizeof interleaved);
  for (int i = 0; i < SAVED; i++) tl_tensor_free(s[i]);
  return tl_give(st, y, out);
}
