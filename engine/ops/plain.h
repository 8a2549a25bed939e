/* plain.h: operands of kernels that want plain arrays. */
#ifndef TL_OPS_PLAIN_H
#define TL_OPS_PLAIN_H

#include "core/tensor.h"

/* The dtype that statistics, sums and coefficients of a floating tensor are kept in. */
static inline int tl_compute_dtype(int dtype) { return dtype == TL_FLOAT64 ? TL_FLOAT64 : TL_FLOAT32; }

/* t itself (retained) if it is contiguous and of this dtype, else an unrecorded copy that is. NULL stays NULL. */
static inline tl_status tl_plain(tl_tensor *t, int dtype, tl_tensor **out) {
  *out = NULL;
  if (t == NULL) return TL_OK;
  if (t->contiguous && t->dtype == dtype) return tl_tensor_retain(t, out);
  bool former = tl_set_grad_enabled(false);
  tl_tensor *dense = NULL;
  tl_status st = tl_contiguous(t, &dense);
  if (st == TL_OK) st = tl_to(dense, dtype, t->device, out);
  tl_tensor_free(dense);
  tl_set_grad_enabled(former);
  return st;
}

#endif
