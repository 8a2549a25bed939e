/* reduce.h: the kinds of tl_kernels.reduce. Sums accumulate in fixed blocks: the result does not depend on threads. */
#ifndef TL_BACKEND_REDUCE_H
#define TL_BACKEND_REDUCE_H

enum tl_reduce_kind {
  TL_REDUCE_KIND_SUM,
  TL_REDUCE_KIND_PROD,
  TL_REDUCE_KIND_MAX, /* nan wins */
  TL_REDUCE_KIND_MIN,
  TL_REDUCE_KIND_ALL,
  TL_REDUCE_KIND_ANY,
  TL_REDUCE_KIND_NORM /* (sum |x|^p)^(1/p); p = 0 counts, p = inf is the largest */
};

#endif
