/* iter.h: the one stride iterator. Every pointwise, copy and reduction kernel gets its operands through it. */
#ifndef TL_CORE_ITER_H
#define TL_CORE_ITER_H

#include "core/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TL_MAX_OPERANDS 6

/* The type that operands of a dtype are computed in. */
static inline int tl_compute_type(int dtype) {
  return dtype == TL_FLOAT64 ? TL_FLOAT64 : tl_is_floating(dtype) ? TL_FLOAT32 : TL_INT64;
}

typedef struct tl_operand {
  char *data;                  /* first element; NULL for a constant */
  int dtype;                   /* tl_dtype of what is stored */
  double constant;             /* the value when data is NULL */
  int64_t stride[TL_MAX_DIMS]; /* in BYTES, one a dim of the iterator; 0 where broadcast */
} tl_operand;

/* n operands over one shape. Operand 0 is the output. Dims are ordered so that the last one is the innermost (smallest
 * strides of the output) and adjacent dims that all operands step through alike are merged: a contiguous problem has
 * ndim 1. A 0-d problem has ndim 1 and shape[0] = 1; an empty one has numel 0 (kernels return at once). */
typedef struct tl_iter {
  int n;
  int ndim;
  int64_t numel;
  int64_t shape[TL_MAX_DIMS];
  tl_operand op[TL_MAX_OPERANDS];
} tl_iter;

/* Operands broadcast to (ndim, shape); a NULL tensor is a constant, taken from constants[i]. Shapes must be compatible
 * (the op has checked them). Operand 0 must not be NULL. */
void tl_iter_init(tl_iter *it, int n, tl_tensor *const *tensors, const double *constants, int ndim,
                  const int64_t *shape);

/* A reduction: operand 0 (the output, whose shape has the reduced dims of `in` as 1 or left out: pass out's strides
 * through out with keepdim layout) gets stride 0 on the dims of `mask`; dims are ordered kept first, reduced last, each
 * group merged on its own. *reduced is the number of trailing iterator dims that are reduced (0 when mask is empty). */
void tl_iter_init_reduce(tl_iter *it, tl_tensor *out, tl_tensor *in, uint32_t mask, int *reduced);

#ifdef __cplusplus
}
#endif
#endif
