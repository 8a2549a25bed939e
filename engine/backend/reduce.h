/* reduce.h: the kinds of tl_kernels.reduce. Floating types accumulate in double, integers in int64, in blocks that the
 * shape alone decides: the result does not depend on the number of threads. */
#ifndef TL_BACKEND_REDUCE_H
#define TL_BACKEND_REDUCE_H

enum tl_reduce_kind {
  TL_REDUCE_KIND_SUM,
  TL_REDUCE_KIND_MEAN,
  TL_REDUCE_KIND_PROD,
  TL_REDUCE_KIND_MAX, /* nan wins */
  TL_REDUCE_KIND_MIN,
  TL_REDUCE_KIND_ALL,
  TL_REDUCE_KIND_ANY,
  TL_REDUCE_KIND_NORM, /* (sum |x|^p)^(1/p); p = 0 counts non-zeros, p = +-inf is the largest or smallest */
  TL_REDUCE_KIND_VAR,  /* sum (x - mean)^2 / (n - p), in two passes */
  TL_REDUCE_KIND_STD   /* its square root */
};

#endif
