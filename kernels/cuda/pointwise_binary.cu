// pointwise_binary.cu: y = f(a, b) for the rows of ops.def, and the functions of three operands, in float and double.
#include "pointwise.h"

#include "formula.h"

#define TL_C(c) ((T)(c))

#define TL_BINARY(name, kind, f, da, db, saves)                                                         \
  struct fn_##name {                                                                                    \
    template <typename T, typename P> static __device__ inline T run(const T *in, P p, P q) {           \
      const T a = in[0], b = in[1];                                                                     \
      (void)p, (void)q;                                                                                 \
      return (T)(f);                                                                                    \
    }                                                                                                   \
  };
#include "ops/ops.def"

#define TERNARY(name, f)                                                                                \
  struct fn_##name {                                                                                    \
    template <typename T, typename P> static __device__ inline T run(const T *in, P p, P q) {           \
      const T a = in[0], b = in[1], c = in[2];                                                          \
      (void)p, (void)q;                                                                                 \
      return (T)(f);                                                                                    \
    }                                                                                                   \
  };
struct fn_add_scaled {
  template <typename T, typename P> static __device__ inline T run(const T *in, P p, P) { return in[0] + p * in[1]; }
};
struct fn_lerp {
  template <typename T, typename P> static __device__ inline T run(const T *in, P p, P) {
    return in[0] + p * (in[1] - in[0]);
  }
};
TERNARY(addcmul, a + p * b * c)
TERNARY(addcdiv, a + p * b / c)
TERNARY(where, a != 0 ? b : c)

tl_status gpu_pointwise_binary(int fn, const gpu_pointwise *a) {
  switch (fn) {
#define TL_BINARY(name, kind, f, da, db, saves) \
  case TL_FN_##name: return gpu_floating<fn_##name, 2>(#name, a);
#include "ops/ops.def"
    case TL_FN_add_scaled: return gpu_floating<fn_add_scaled, 2>("add_scaled", a);
    case TL_FN_lerp: return gpu_floating<fn_lerp, 2>("lerp", a);
    case TL_FN_addcmul: return gpu_floating<fn_addcmul, 3>("addcmul", a);
    case TL_FN_addcdiv: return gpu_floating<fn_addcdiv, 3>("addcdiv", a);
    case TL_FN_where: return gpu_floating<fn_where, 3>("where", a);
    default: return gpu_pointwise_missing(fn, a);
  }
}
