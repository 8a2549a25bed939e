/* reduce.c: sums and other reductions. */
#include "backend/reduce.h"

#include "autograd/tape.h"
#include "backend/backend.h"
#include "core/tensor.h"

static int reduced_shape(const tl_tensor *x, uint32_t mask, bool keepdim, int64_t *shape) {
  int ndim = 0;
  for (int d = 0; d < x->ndim; d++) {
    if (!(mask & 1u << d)) shape[ndim++] = x->shape[d];
    else if (keepdim) shape[ndim++] = 1;
  }
  return ndim;
}

/* An unrecorded reduction. */
static tl_status reduce(const char *op, int kind, tl_tensor *x, uint32_t mask, bool keepdim, int dtype, double p,
                        tl_tensor **out) {
  int64_t shape[TL_MAX_DIMS];
  int ndim = reduced_shape(x, mask, keepdim, shape), reduced;
  TL_KERNEL(x, reduce, op);
  tl_tensor *y;
  TL_TRY(tl_empty(ndim, shape, dtype, x->device, &y));
  tl_iter it;
  tl_iter_init_reduce(&it, y, x, mask, &reduced);
  return tl_give(tl_kernels_of(x)->reduce(kind, &it, reduced, p), y, out);
}

typedef struct sum_payload {
  int ndim;
  int64_t shape[TL_MAX_DIMS];
  uint32_t mask;
  bool keepdim;
} sum_payload;

/* g with its reduced dims back, expanded to the input's shape */
static tl_status sum_backward(tl_node *n, tl_tensor *const *grad_out, tl_tensor **grad_in) {
  const sum_payload *p = n->payload;
  int64_t shape[TL_MAX_DIMS];
  for (int d = 0; d < p->ndim; d++) shape[d] = p->mask & 1u << d ? 1 : p->shape[d];
  tl_tensor *kept;
  TL_TRY(tl_reshape(grad_out[0], p->ndim, shape, &kept));
  tl_status st = tl_expand(kept, p->ndim, p->shape, &grad_in[0]);
  tl_tensor_free(kept);
  return st;
}

static const tl_node_class sum_class = {"sum", sum_backward, NULL};

tl_status tl_sum(tl_tensor *x, int n, const int *dims, bool keepdim, tl_tensor **out) {
  sum_payload p = {.ndim = x->ndim, .keepdim = keepdim};
  TL_TRY(tl_check_dims("sum", x->ndim, n, dims, &p.mask));
  for (int d = 0; d < x->ndim; d++) p.shape[d] = x->shape[d];
  tl_tensor *y;
  TL_TRY(reduce("sum", TL_REDUCE_KIND_SUM, x, p.mask, keepdim, tl_is_floating(x->dtype) ? x->dtype : TL_INT64, 0, &y));
  return tl_give(tl_record1(&sum_class, y, 1, &x, 0, NULL, &p, sizeof p), y, out);
}

tl_status tl_any(tl_tensor *x, int n, const int *dims, bool keepdim, tl_tensor **out) {
  uint32_t mask;
  TL_TRY(tl_check_dims("any", x->ndim, n, dims, &mask));
  return reduce("any", TL_REDUCE_KIND_ANY, x, mask, keepdim, TL_BOOL, 0, out);
}

tl_status tl_sum_to(tl_tensor *x, int ndim, const int64_t *shape, tl_tensor **out) {
  int dims[TL_MAX_DIMS], n = 0, lead = x->ndim - ndim;
  for (int d = 0; d < x->ndim; d++)
    if (d < lead || (shape[d - lead] == 1 && x->shape[d] != 1)) dims[n++] = d;
  if (n == 0) return tl_tensor_retain(x, out);
  tl_tensor *sum;
  TL_TRY(tl_sum(x, n, dims, true, &sum));
  tl_status st = tl_reshape(sum, ndim, shape, out);
  tl_tensor_free(sum);
  return st;
}
