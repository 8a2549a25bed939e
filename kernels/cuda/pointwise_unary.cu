// pointwise_unary.cu: y = f(x) for the rows of ops.def, in float and double.
#include "pointwise.h"

#include "formula.h"

#define TL_C(c) ((T)(c))

#define TL_UNARY(name, kind, f, df, saves)                                                              \
  struct fn_##name {                                                                                    \
    template <typename T, typename P> static __device__ inline T run(const T *in, P p, P q) {           \
      const T x = in[0];                                                                                \
      (void)p, (void)q;                                                                                 \
      return (T)(f);                                                                                    \
    }                                                                                                   \
  };
#define TL_UNARY1 TL_UNARY
#define TL_UNARY2 TL_UNARY
#include "ops/ops.def"

tl_status gpu_pointwise_unary(int fn, const gpu_pointwise *a) {
  switch (fn) {
#define TL_UNARY(name, kind, f, df, saves) \
  case TL_FN_##name: return gpu_floating<fn_##name, 1>(#name, a);
#define TL_UNARY1 TL_UNARY
#define TL_UNARY2 TL_UNARY
#include "ops/ops.def"
    default: return gpu_pointwise_missing(fn, a);
  }
}
