/* index.h: what the operations on one dim and on stored indices share. */
#ifndef TL_OPS_INDEX_H
#define TL_OPS_INDEX_H

#include "core/tensor.h"

/* A tensor seen as (outer, n, inner) around dim d; a 0-d tensor is (1, 1, 1). */
typedef struct tl_along {
  int64_t outer, n, inner;
} tl_along;

tl_along tl_along_dim(const tl_tensor *x, int d);
/* ids as contiguous int64 on x's device, every one in 0..limit-1; *out carries a reference. The error names the id and
 * its position; `where` says what was indexed, e.g. dim 1 of (5x3). */
tl_status tl_checked_ids(const char *op, const tl_tensor *x, int d, tl_tensor *ids, tl_tensor **out);
/* zeros of x's shape with g added at ids along d: the way back from anything that chose elements. Unrecorded. */
tl_status tl_scatter_back(int ndim, const int64_t *shape, int d, tl_tensor *ids, tl_tensor *g, tl_tensor **out);

#endif
