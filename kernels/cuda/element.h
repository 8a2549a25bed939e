/* element.h: dtypes as C++ types, conversions as the CPU's kernels/cpu/convert.h makes them, dispatch by dtype. */
#ifndef TL_KERNELS_CUDA_ELEMENT_H
#define TL_KERNELS_CUDA_ELEMENT_H

#include "launch.h"

/* TL_BOOL: what is stored is 0 or 1. */
struct gpu_bool {
  uint8_t v;
};

/* The type that a stored type is computed in (tl_compute_type). */
template <typename T> struct gpu_compute { typedef int64_t type; };
template <> struct gpu_compute<float> { typedef float type; };
template <> struct gpu_compute<__half> { typedef float type; };
template <> struct gpu_compute<__nv_bfloat16> { typedef float type; };
template <> struct gpu_compute<double> { typedef double type; };
template <typename T> using gpu_compute_t = typename gpu_compute<T>::type;

/* nan becomes 0, what does not fit the nearest end. */
static __device__ inline int64_t gpu_to_int64(double d) {
  if (d != d) return 0;
  if (d >= 9223372036854775808.0) return INT64_MAX;
  if (d < -9223372036854775808.0) return INT64_MIN;
  return (int64_t)d;
}

/* A stored element as a number of type C (float, double, int64_t). */
template <typename C, typename T> static __device__ inline C gpu_load(T v) {
  if constexpr (std::is_same_v<T, __half>) return gpu_load<C>(__half2float(v));
  else if constexpr (std::is_same_v<T, __nv_bfloat16>) return gpu_load<C>(__bfloat162float(v));
  else if constexpr (std::is_same_v<T, gpu_bool>) return (C)v.v;
  else if constexpr (std::is_same_v<C, int64_t> && std::is_floating_point_v<T>) return gpu_to_int64((double)v);
  else return (C)v;
}

/* A number of type C as it is stored. */
template <typename T, typename C> static __device__ inline T gpu_store(C v) {
  if constexpr (std::is_same_v<T, __half>) return __float2half_rn((float)v);
  else if constexpr (std::is_same_v<T, __nv_bfloat16>) return __float2bfloat16_rn((float)v);
  else if constexpr (std::is_same_v<T, gpu_bool>) return gpu_bool{(uint8_t)(v != 0)};
  else if constexpr (std::is_integral_v<T> && std::is_floating_point_v<C>) return (T)gpu_to_int64((double)v);
  else return (T)v;
}

/* The same where the stored type is known at run time only; the branch is the same for all threads. */
template <typename C> static __device__ inline C gpu_load_as(int dtype, const void *p) {
  switch (dtype) {
    case TL_FLOAT32: return gpu_load<C>(*(const float *)p);
    case TL_FLOAT16: return gpu_load<C>(*(const __half *)p);
    case TL_BFLOAT16: return gpu_load<C>(*(const __nv_bfloat16 *)p);
    case TL_FLOAT64: return gpu_load<C>(*(const double *)p);
    case TL_INT64: return gpu_load<C>(*(const int64_t *)p);
    case TL_INT32: return gpu_load<C>(*(const int32_t *)p);
    default: return gpu_load<C>(*(const uint8_t *)p);
  }
}

template <typename C> static __device__ inline void gpu_store_as(int dtype, void *p, C v) {
  switch (dtype) {
    case TL_FLOAT32: *(float *)p = gpu_store<float>(v); break;
    case TL_FLOAT16: *(__half *)p = gpu_store<__half>(v); break;
    case TL_BFLOAT16: *(__nv_bfloat16 *)p = gpu_store<__nv_bfloat16>(v); break;
    case TL_FLOAT64: *(double *)p = gpu_store<double>(v); break;
    case TL_INT64: *(int64_t *)p = gpu_store<int64_t>(v); break;
    case TL_INT32: *(int32_t *)p = gpu_store<int32_t>(v); break;
    case TL_UINT8: *(uint8_t *)p = gpu_store<uint8_t>(v); break;
    default: *(uint8_t *)p = (uint8_t)(v != 0); break;
  }
}

/* Runs a statement with `T` as the type of a dtype: all eight, or the four floating ones. */
#define GPU_CASE(DTYPE, TYPE, T, ...) \
  case DTYPE: {                       \
    typedef TYPE T;                   \
    __VA_ARGS__                       \
    break;                            \
  }
#define GPU_FLOATING_CASES(T, ...)                     \
  GPU_CASE(TL_FLOAT32, float, T, __VA_ARGS__)          \
  GPU_CASE(TL_FLOAT16, __half, T, __VA_ARGS__)         \
  GPU_CASE(TL_BFLOAT16, __nv_bfloat16, T, __VA_ARGS__) \
  GPU_CASE(TL_FLOAT64, double, T, __VA_ARGS__)
#define GPU_DISPATCH_FLOATING(dtype, T, ...)                                                        \
  switch (dtype) {                                                                                  \
    GPU_FLOATING_CASES(T, __VA_ARGS__)                                                              \
    default: return TL_FAIL(TL_ERR_DTYPE, "cuda", "dtype number %d is not floating", (int)(dtype)); \
  }
#define GPU_DISPATCH(dtype, T, ...)                                                             \
  switch (dtype) {                                                                              \
    GPU_FLOATING_CASES(T, __VA_ARGS__)                                                          \
    GPU_CASE(TL_INT64, int64_t, T, __VA_ARGS__)                                                 \
    GPU_CASE(TL_INT32, int32_t, T, __VA_ARGS__)                                                 \
    GPU_CASE(TL_UINT8, uint8_t, T, __VA_ARGS__)                                                 \
    GPU_CASE(TL_BOOL, gpu_bool, T, __VA_ARGS__)                                                 \
    default: return TL_FAIL(TL_ERR_DTYPE, "cuda", "there is no dtype number %d", (int)(dtype)); \
  }

#endif
