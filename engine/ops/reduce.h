/* reduce.h: what the files of reductions share: shapes, the kernel call, the way back from a result to the input. */
#ifndef TL_OPS_REDUCE_H
#define TL_OPS_REDUCE_H

#include "backend/reduce.h"
#include "core/tensor.h"

/* The reduction of a tensor: payload of the nodes. */
typedef struct tl_reducing {
  int ndim;
  int64_t shape[TL_MAX_DIMS]; /* of the input */
  uint32_t mask;              /* reduced dims */
  int64_t count;              /* elements of each result */
  double p;                   /* norm's p, var's correction */
} tl_reducing;

tl_status tl_reducing_init(const char *op, const tl_tensor *x, int n, const int *dims, double p, tl_reducing *r);
/* y = the reduction, unrecorded */
tl_status tl_reduce(const char *op, int kind, tl_tensor *x, const tl_reducing *r, bool keepdim, int dtype,
                    tl_tensor **out);
/* t (of the result's shape, with or without its reduced dims) with the reduced dims as size 1: broadcasts against x */
tl_status tl_reduced_view(const tl_reducing *r, tl_tensor *t, tl_tensor **out);
/* the same, expanded to x's shape */
tl_status tl_reduced_expand(const tl_reducing *r, tl_tensor *t, tl_tensor **out);
/* Reductions without a neutral element (max, min) need at least one element for each result. */
tl_status tl_check_nonempty(const char *op, const tl_tensor *x, const tl_reducing *r);

/* Steps of a formula: *t = f(*t), f(*t, b), f(*t, s). On failure *t keeps its value. */
static inline tl_status tl_step1(tl_status (*f)(tl_tensor *, tl_tensor **), tl_tensor **t) {
  tl_tensor *y;
  TL_TRY(f(*t, &y));
  tl_tensor_free(*t);
  *t = y;
  return TL_OK;
}

static inline tl_status tl_step2(tl_status (*f)(tl_tensor *, tl_tensor *, tl_tensor **), tl_tensor **t, tl_tensor *b) {
  tl_tensor *y;
  TL_TRY(f(*t, b, &y));
  tl_tensor_free(*t);
  *t = y;
  return TL_OK;
}

static inline tl_status tl_step_scalar(tl_status (*f)(tl_tensor *, double, tl_tensor **), tl_tensor **t, double s) {
  tl_tensor *y;
  TL_TRY(f(*t, s, &y));
  tl_tensor_free(*t);
  *t = y;
  return TL_OK;
}

#endif
