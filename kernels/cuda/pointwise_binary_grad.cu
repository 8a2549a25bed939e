// pointwise_binary_grad.cu: the gradients of the binary rows of ops.def, from g, a and b.
#include "pointwise.h"

#include "formula.h"

#define TL_C(c) ((T)(c))

// Rows without a derivative have no kernel.
#define SAVES_AB(...) __VA_ARGS__
#define SAVES_NO(...) __VA_ARGS__
#define SAVES_ND(...)

#define GRADIENT(name, df)                                                                              \
  struct fn_##name {                                                                                    \
    template <typename T, typename P> static __device__ inline T run(const T *in, P p, P q) {           \
      const T g = in[0], a = in[1], b = in[2];                                                          \
      (void)g, (void)a, (void)b, (void)p, (void)q;                                                      \
      return (T)(df);                                                                                   \
    }                                                                                                   \
  };
#define TL_BINARY(name, kind, f, da, db, saves) SAVES_##saves(GRADIENT(name##_da, da) GRADIENT(name##_db, db))
#include "ops/ops.def"

tl_status gpu_pointwise_binary_grad(int fn, const gpu_pointwise *a) {
  switch (fn) {
#define CASE(name) \
  case TL_FN_##name: return gpu_floating<fn_##name, 3>(#name, a);
#define TL_BINARY(name, kind, f, da, db, saves) SAVES_##saves(CASE(name##_da) CASE(name##_db))
#include "ops/ops.def"
    default: return gpu_pointwise_missing(fn, a);
  }
}
