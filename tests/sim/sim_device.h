/* sim_device.h: what a .cu file needs to be plain C++: the built-in variables and functions of CUDA's device code.
 *
 * Included by launch.h after NVIDIA's headers, which give types, vector types and half/bfloat16 conversions to any host
 * compiler. Device functions are ordinary functions; the variables are ordinary variables that device.cpp sets before it
 * lets a thread go on. One grid runs at a time. */
#ifndef TLUA_SIM_DEVICE_H
#define TLUA_SIM_DEVICE_H

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <math.h>
#include <string.h>

#include <tuple>
#include <type_traits>

#include "sim.h"

#undef __shared__
#define __shared__ static thread_local /* device.cpp finds them among the library's thread-local symbols */
#undef __launch_bounds__
#define __launch_bounds__(...)

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
enum { warpSize = 32 };

/* Where in the source a barrier or a shuffle is: these two end every such function's parameters. */
#define SIM_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()

/* ---- launches ---- */

template <typename... P> struct sim_arguments {
  void (*kernel)(P...);
  std::tuple<P...> values;
  static void run(const void *p) {
    const sim_arguments *a = static_cast<const sim_arguments *>(p);
    std::apply(a->kernel, a->values);
  }
};

template <typename... P>
static inline cudaError_t sim_launch(const char *name, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared,
                                     cudaStream_t stream, P... values) {
  static_assert(sizeof(std::tuple<P...>) <= 4096, "CUDA passes 4 KB of parameters at most");
  sim_arguments<P...> a = {kernel, std::tuple<P...>(values...)};
  sim_kernel k = {name, reinterpret_cast<const void *>(kernel), sim_arguments<P...>::run, &a, grid, block, shared};
  return sim_enqueue_kernel(&k, sizeof a, stream);
}

/* ---- blocks ---- */

void *sim_dynamic_shared();
enum sim_barrier { SIM_SYNC, SIM_COUNT, SIM_AND, SIM_OR };
int sim_barrier_wait(int kind, int predicate, const char *file, int line);

static inline void __syncthreads(SIM_SITE) { sim_barrier_wait(SIM_SYNC, 0, file, line); }
static inline int __syncthreads_count(int p, SIM_SITE) { return sim_barrier_wait(SIM_COUNT, p, file, line); }
static inline int __syncthreads_and(int p, SIM_SITE) { return sim_barrier_wait(SIM_AND, p, file, line); }
static inline int __syncthreads_or(int p, SIM_SITE) { return sim_barrier_wait(SIM_OR, p, file, line); }
static inline void __threadfence_block() {}
static inline void __threadfence() {}
static inline void __threadfence_system() {}

/* ---- warps ---- */

enum sim_warp_operation { SIM_SYNCWARP, SIM_SHUFFLE, SIM_BALLOT, SIM_MATCH };
/* Waits for the lanes of `mask`. SIM_SHUFFLE: the value of lane `source`; SIM_BALLOT: the lanes whose value is not 0;
 * SIM_MATCH: the lanes whose value is this one's. */
unsigned long long sim_warp_wait(int operation, unsigned mask, unsigned long long value, int source, const char *file,
                                 int line);
int sim_lane();
unsigned __activemask();

template <typename T> static inline T sim_shuffle(unsigned mask, T v, int source, const char *file, int line) {
  static_assert((std::is_arithmetic_v<T> && sizeof(T) >= 4) || std::is_same_v<T, __half> ||
                    std::is_same_v<T, __half2> || std::is_same_v<T, __nv_bfloat16> || std::is_same_v<T, __nv_bfloat162>,
                "there is no shuffle for this type: cast it");
  unsigned long long bits = 0;
  memcpy(&bits, static_cast<const void *>(&v), sizeof v);
  bits = sim_warp_wait(SIM_SHUFFLE, mask, bits, source, file, line);
  memcpy(static_cast<void *>(&v), &bits, sizeof v);
  return v;
}

/* A source outside the segment of `width` lanes is the lane itself. */
template <typename T> static inline T __shfl_sync(unsigned mask, T v, int source, int width = 32, SIM_SITE) {
  return sim_shuffle(mask, v, (sim_lane() & ~(width - 1)) | (source & (width - 1)), file, line);
}
template <typename T> static inline T __shfl_up_sync(unsigned mask, T v, unsigned delta, int width = 32, SIM_SITE) {
  int lane = sim_lane(), inside = lane & (width - 1);
  return sim_shuffle(mask, v, inside < (int)delta ? lane : lane - (int)delta, file, line);
}
template <typename T> static inline T __shfl_down_sync(unsigned mask, T v, unsigned delta, int width = 32, SIM_SITE) {
  int lane = sim_lane(), inside = lane & (width - 1);
  return sim_shuffle(mask, v, inside + (int)delta >= width ? lane : lane + (int)delta, file, line);
}
template <typename T> static inline T __shfl_xor_sync(unsigned mask, T v, int bits, int width = 32, SIM_SITE) {
  int lane = sim_lane(), source = lane ^ bits;
  return sim_shuffle(mask, v, source >= ((lane & ~(width - 1)) + width) ? lane : source, file, line);
}

static inline void __syncwarp(unsigned mask = 0xffffffffu, SIM_SITE) {
  sim_warp_wait(SIM_SYNCWARP, mask, 0, 0, file, line);
}
static inline unsigned __ballot_sync(unsigned mask, int p, SIM_SITE) {
  return (unsigned)sim_warp_wait(SIM_BALLOT, mask, p != 0, 0, file, line);
}
static inline int __any_sync(unsigned mask, int p, SIM_SITE) { return __ballot_sync(mask, p, file, line) != 0; }
static inline int __all_sync(unsigned mask, int p, SIM_SITE) { return __ballot_sync(mask, !p, file, line) == 0; }
template <typename T> static inline unsigned __match_any_sync(unsigned mask, T v, SIM_SITE) {
  unsigned long long bits = 0;
  memcpy(&bits, &v, sizeof v);
  return (unsigned)sim_warp_wait(SIM_MATCH, mask, bits, 0, file, line);
}

/* ---- atomics ---- */

/* No other thread runs in between: a plain read and write. The checkers know it as atomic, at the place it returns to. */
#ifdef SIM_CHECK
void sim_check_atomic(const void *p, size_t bytes, const void *pc);
#define SIM_CHECK_ATOMIC(p) sim_check_atomic(p, sizeof *(p), __builtin_return_address(0))
#define SIM_ATOMIC_BODY __attribute__((noinline, no_sanitize("thread")))
#else
#define SIM_CHECK_ATOMIC(p)
#define SIM_ATOMIC_BODY
#endif

template <typename T, typename F> SIM_ATOMIC_BODY static inline T sim_atomic(T *p, F change) {
  SIM_CHECK_ATOMIC(p);
  T old = *p;
  *p = change(old);
  return old;
}

#define SIM_ATOMIC(name, expression)                                                                         \
  template <typename T> __attribute__((always_inline)) static inline T name(T *p, std::common_type_t<T> v) { \
    return sim_atomic(p, [v](T old) -> T { return (T)(expression); });                                       \
  }
SIM_ATOMIC(atomicAdd, old + v)
SIM_ATOMIC(atomicSub, old - v)
SIM_ATOMIC(atomicExch, ((void)old, v))
SIM_ATOMIC(atomicMin, v < old ? v : old)
SIM_ATOMIC(atomicMax, v > old ? v : old)
SIM_ATOMIC(atomicAnd, old &v)
SIM_ATOMIC(atomicOr, old | v)
SIM_ATOMIC(atomicXor, old ^ v)
SIM_ATOMIC(atomicInc, old >= v ? 0 : old + 1)
SIM_ATOMIC(atomicDec, old == 0 || old > v ? v : old - 1)
#undef SIM_ATOMIC
template <typename T>
__attribute__((always_inline)) static inline T atomicCAS(T *p, std::common_type_t<T> expected,
                                                         std::common_type_t<T> v) {
  return sim_atomic(p, [=](T old) -> T { return old == expected ? v : old; });
}

/* ---- arithmetic ---- */

/* The C library declares functions of these names, for itself. */
#define __expf(x) expf(x)
#define __exp10f(x) exp10f(x)
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
#define __log10f(x) log10f(x)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
#define __tanf(x) tanf(x)
#define __powf(x, y) powf(x, y)

static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline double rsqrt(double x) { return 1.0 / sqrt(x); }
static inline float __fdividef(float a, float b) { return a / b; }
static inline float __saturatef(float x) { return x > 1 ? 1 : x > 0 ? x : 0; }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline float __frcp_rn(float x) { return 1.0f / x; }
static inline float __fsqrt_rn(float x) { return sqrtf(x); }
static inline float __frsqrt_rn(float x) { return (float)(1.0 / sqrt((double)x)); }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline double __dsub_rn(double a, double b) { return a - b; }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline double __ddiv_rn(double a, double b) { return a / b; }
static inline double __drcp_rn(double x) { return 1.0 / x; }
static inline double __dsqrt_rn(double x) { return sqrt(x); }
static inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }

template <typename To, typename From> static inline To sim_bits(From v) {
  static_assert(sizeof(To) == sizeof(From), "as many bits");
  To to;
  memcpy(&to, &v, sizeof to);
  return to;
}
static inline int __float_as_int(float x) { return sim_bits<int>(x); }
static inline unsigned __float_as_uint(float x) { return sim_bits<unsigned>(x); }
static inline float __int_as_float(int x) { return sim_bits<float>(x); }
static inline float __uint_as_float(unsigned x) { return sim_bits<float>(x); }
static inline long long __double_as_longlong(double x) { return sim_bits<long long>(x); }
static inline double __longlong_as_double(long long x) { return sim_bits<double>(x); }

/* To an integer: what does not fit is the nearest end, nan is 0. */
template <typename I, typename F> static inline I sim_to_integer(F x) {
  constexpr int bits = (int)sizeof(I) * 8 - (std::is_signed_v<I> ? 1 : 0);
  constexpr I most = (I)(~0ull >> (64 - bits)), least = std::is_signed_v<I> ? -most - 1 : 0;
  if (x != x) return 0;
  return x >= (F)ldexp(1.0, bits) ? most : x < (F)least ? least : (I)x;
}
static inline int __float2int_rn(float x) { return sim_to_integer<int>(rintf(x)); }
static inline int __float2int_rz(float x) { return sim_to_integer<int>(truncf(x)); }
static inline int __float2int_rd(float x) { return sim_to_integer<int>(floorf(x)); }
static inline int __float2int_ru(float x) { return sim_to_integer<int>(ceilf(x)); }
static inline unsigned __float2uint_rn(float x) { return sim_to_integer<unsigned>(rintf(x)); }
static inline unsigned __float2uint_rz(float x) { return sim_to_integer<unsigned>(truncf(x)); }
static inline long long __float2ll_rn(float x) { return sim_to_integer<long long>(rintf(x)); }
static inline long long __double2ll_rn(double x) { return sim_to_integer<long long>(rint(x)); }
static inline long long __double2ll_rz(double x) { return sim_to_integer<long long>(trunc(x)); }
static inline int __double2int_rn(double x) { return sim_to_integer<int>(rint(x)); }
static inline int __double2int_rz(double x) { return sim_to_integer<int>(trunc(x)); }
static inline float __int2float_rn(int x) { return (float)x; }
static inline float __uint2float_rn(unsigned x) { return (float)x; }
static inline float __ll2float_rn(long long x) { return (float)x; }
static inline float __ull2float_rn(unsigned long long x) { return (float)x; }
static inline double __ll2double_rn(long long x) { return (double)x; }
static inline float __double2float_rn(double x) { return (float)x; }

static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz((unsigned)x); }
static inline int __clzll(long long x) { return x == 0 ? 64 : __builtin_clzll((unsigned long long)x); }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }
static inline unsigned __brev(unsigned x) {
  unsigned r = 0;
  for (int i = 0; i < 32; i++) r |= (x >> i & 1u) << (31 - i);
  return r;
}
static inline unsigned long long __brevll(unsigned long long x) {
  return (unsigned long long)__brev((unsigned)x) << 32 | __brev((unsigned)(x >> 32));
}
static inline int __mulhi(int a, int b) { return (int)((long long)a * b >> 32); }
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return (unsigned long long)((unsigned __int128)a * b >> 64);
}
static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  unsigned long long both = (unsigned long long)y << 32 | x;
  unsigned r = 0;
  for (int i = 0; i < 4; i++) r |= (unsigned)(both >> 8 * (selector >> 4 * i & 7) & 255) << 8 * i;
  return r;
}

template <typename A, typename B> static inline std::common_type_t<A, B> min(A a, B b) {
  typedef std::common_type_t<A, B> T;
  if constexpr (std::is_floating_point_v<T>) return (T)fmin((T)a, (T)b);
  else return (T)b < (T)a ? (T)b : (T)a;
}
template <typename A, typename B> static inline std::common_type_t<A, B> max(A a, B b) {
  typedef std::common_type_t<A, B> T;
  if constexpr (std::is_floating_point_v<T>) return (T)fmax((T)a, (T)b);
  else return (T)b > (T)a ? (T)b : (T)a;
}

/* Loads and stores with cache hints. */
template <typename T> static inline T __ldg(const T *p) { return *p; }
template <typename T> static inline T __ldcs(const T *p) { return *p; }
template <typename T> static inline T __ldcg(const T *p) { return *p; }
template <typename T> static inline void __stcs(T *p, std::common_type_t<T> v) { *p = v; }
template <typename T> static inline void __stcg(T *p, std::common_type_t<T> v) { *p = v; }

#endif
