// pointwise_integer.cu: the functions that keep integers or give flags, in (wrapping) int64.
#include "pointwise.h"

#include "formula.h"

#define TL_C(c) ((T)(c))

#define INT_FLOAT(...)
#define INT_ANY(...) __VA_ARGS__
#define INT_BOOL(...) __VA_ARGS__

#define TL_UNARY(name, kind, f, df, saves)                                                              \
  INT_##kind(struct fn_##name {                                                                         \
    template <typename T, typename P> static __device__ inline T run(const T *in, P p, P q) {           \
      const T x = in[0];                                                                                \
      (void)p, (void)q;                                                                                 \
      return (T)(f);                                                                                    \
    }                                                                                                   \
  };)
#define TL_UNARY1 TL_UNARY
#define TL_UNARY2 TL_UNARY
#define TL_BINARY(name, kind, f, da, db, saves)                                                         \
  INT_##kind(struct fn_##name {                                                                         \
    template <typename T, typename P> static __device__ inline T run(const T *in, P, P) {               \
      const T a = in[0], b = in[1];                                                                     \
      return (T)(f);                                                                                    \
    }                                                                                                   \
  };)
#include "ops/ops.def"

// Their parameter is an integer here.
struct fn_add_scaled {
  template <typename T, typename P> static __device__ inline T run(const T *in, P p, P) { return in[0] + (T)p * in[1]; }
};
struct fn_addcmul {
  template <typename T, typename P> static __device__ inline T run(const T *in, P p, P) {
    return in[0] + (T)p * in[1] * in[2];
  }
};
struct fn_where {
  template <typename T, typename P> static __device__ inline T run(const T *in, P, P) {
    return in[0] != 0 ? in[1] : in[2];
  }
};

tl_status gpu_pointwise_integer(int fn, const gpu_pointwise *a) {
  switch (fn) {
#define TL_UNARY(name, kind, f, df, saves) \
  INT_##kind(case TL_FN_##name : return gpu_strided<fn_##name, 1, int64_t>(#name, a);)
#define TL_UNARY1 TL_UNARY
#define TL_UNARY2 TL_UNARY
#define TL_BINARY(name, kind, f, da, db, saves) \
  INT_##kind(case TL_FN_##name : return gpu_strided<fn_##name, 2, int64_t>(#name, a);)
#include "ops/ops.def"
    case TL_FN_add_scaled: return gpu_strided<fn_add_scaled, 2, int64_t>("add_scaled", a);
    case TL_FN_addcmul: return gpu_strided<fn_addcmul, 3, int64_t>("addcmul", a);
    case TL_FN_where: return gpu_strided<fn_where, 3, int64_t>("where", a);
    default: return gpu_pointwise_missing(fn, a);
  }
}
