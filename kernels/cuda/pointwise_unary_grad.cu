// pointwise_unary_grad.cu: the gradients of the unary rows of ops.def, from g and the saved x or y.
#include "pointwise.h"

#include "formula.h"

#define TL_C(c) ((T)(c))

// Rows without a derivative have no kernel.
#define SAVES_X(...) __VA_ARGS__
#define SAVES_Y(...) __VA_ARGS__
#define SAVES_NO(...) __VA_ARGS__
#define SAVES_ND(...)

#define TL_UNARY(name, kind, f, df, saves)                                                              \
  SAVES_##saves(struct fn_##name##_grad {                                                               \
    template <typename T, typename P> static __device__ inline T run(const T *in, P p, P q) {           \
      const T g = in[0], x = in[1], y = x;                                                              \
      (void)g, (void)x, (void)y, (void)p, (void)q;                                                      \
      return (T)(df);                                                                                   \
    }                                                                                                   \
  };)
#define TL_UNARY1 TL_UNARY
#define TL_UNARY2 TL_UNARY
#include "ops/ops.def"

tl_status gpu_pointwise_unary_grad(int fn, const gpu_pointwise *a) {
  switch (fn) {
#define TL_UNARY(name, kind, f, df, saves) \
  SAVES_##saves(case TL_FN_##name##_grad : return gpu_floating<fn_##name##_grad, 2>(#name "_grad", a);)
#define TL_UNARY1 TL_UNARY
#define TL_UNARY2 TL_UNARY
#include "ops/ops.def"
    default: return gpu_pointwise_missing(fn, a);
  }
}
