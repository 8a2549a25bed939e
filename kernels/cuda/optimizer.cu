// optimizer.cu: one pass over every parameter of an optimizer: bit for bit what kernels/cpu/optimizer.c gives, for which
// both are compiled without contraction of products and sums.
//
// Coefficients, the rule among those that share their state, and whether the step is skipped are read on the device,
// where `plan` wrote them just before. A launch takes all parameters of one rule and storage.
#include "list.h"

#include "backend/cuda/table.h"
#include "philox.h"
#include "rounding.h"
#include "update.h"

struct update_entry {
  void *param;
  const void *grad;
  float *master;
  void *state[TL_UPDATE_STATES];
  const tl_update_coefficients *by;
  uint64_t seed, offset;
  bool quads;
};
typedef gpu_list<update_entry, 34> update_list;

// ---- the rules: of one family where only the device knows which runs ----

struct float_rules {
  typedef float T;
  typedef f32_coefficients coefficients;
  static __device__ inline coefficients narrow(const tl_update_coefficients *by) { return f32_narrow(by); }
#define STATE_0
#define STATE_1 , s
#define STATE_2 , s, s + 1
#define STATE_3 , s, s + 1, s + 2
#define RULE(name, states) \
  static __device__ inline void name(const coefficients *c, T g, T *p, T *s) { (void)s, f32_update_##name(c, g, p STATE_##states); }
  TL_UPDATE_RULES(RULE)
#undef RULE
};
struct double_rules {
  typedef double T;
  typedef f64_coefficients coefficients;
  static __device__ inline coefficients narrow(const tl_update_coefficients *by) { return f64_narrow(by); }
#define RULE(name, states) \
  static __device__ inline void name(const coefficients *c, T g, T *p, T *s) { (void)s, f64_update_##name(c, g, p STATE_##states); }
  TL_UPDATE_RULES(RULE)
#undef RULE
};

// X(name, states, rule, other, fills): `other` runs where by->rule says so; it fills its state without reading it.
#define FAMILIES(X)                                                                              \
  X(sgd, 0, sgd, sgd, false)                                                                     \
  X(momentum, 1, sgd_momentum, sgd_first, true)                                                  \
  X(nesterov, 1, nesterov, nesterov_first, true)                                                 \
  X(adam, 2, adam, adam, false)                                                                  \
  X(amsgrad, 3, amsgrad, amsgrad, false)                                                         \
  X(rmsprop, 1, rmsprop, rmsprop, false)                                                         \
  X(rmsprop_momentum, 2, rmsprop_momentum, rmsprop_momentum, false)                              \
  X(rmsprop_centered, 2, rmsprop_centered, rmsprop_centered, false)                              \
  X(rmsprop_centered_momentum, 3, rmsprop_centered_momentum, rmsprop_centered_momentum, false)   \
  X(adagrad, 1, adagrad, adagrad, false)                                                         \
  X(nadam, 2, nadam, nadam, false)                                                               \
  X(radam, 2, radam_rectified, radam, false)

#define FAMILY(name, states, rule, other, fills)                                     \
  struct family_##name {                                                             \
    static constexpr int STATES = states, RULE = TL_UPDATE_##rule;                   \
    static constexpr int OTHER = TL_UPDATE_##other;                                  \
    static constexpr bool FILLS = fills;                                             \
    template <typename R, typename C, typename T>                                    \
    static __device__ inline void run(bool others, const C *c, T g, T *p, T *s) {    \
      if (RULE != OTHER && others) R::other(c, g, p, s);                             \
      else R::rule(c, g, p, s);                                                      \
    }                                                                                \
  };
FAMILIES(FAMILY)

// ---- elements ----

// N elements from element e on; N = 4 where everything lies at multiples of 16 bytes.
template <typename F, typename R, rounding HOW, typename P, int N>
static __device__ inline void elements(const update_entry &u, int64_t e, bool others, const typename R::coefficients *c,
                                       uint64_t seed, uint64_t offset) {
  typedef typename R::T T;
  struct alignas(N * sizeof(P) < 16 ? N * sizeof(P) : 16) stored {
    P at[N];
  };
  struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) wide {
    T at[N];
  };
  stored *param = (stored *)((P *)u.param + e);
  stored low = *param;
  const stored grad = *(const stored *)((const P *)u.grad + e);
  wide state[F::STATES > 0 ? F::STATES : 1], p, master = {};
#pragma unroll
  for (int k = 0; k < F::STATES; k++) state[k] = F::FILLS && others ? wide{} : *(const wide *)((const T *)u.state[k] + e);
  if (HOW == MASTERED) master = *(const wide *)((const T *)u.master + e);
  tl_philox random = {};
  if (HOW == STOCHASTIC) random = tl_philox_block(seed, (offset + (uint64_t)e) / 4);
  const int place = (int)((offset + (uint64_t)e) % 4); // 0 for N = 4
  const uint32_t word = random.word[0] * (place == 0) | random.word[1] * (place == 1) | random.word[2] * (place == 2) |
                        random.word[3] * (place == 3);
  (void)word;
#pragma unroll
  for (int k = 0; k < N; k++) {
    p.at[k] = gpu_load<T>(low.at[k]);
    // A parameter that is no longer the rounding of its master was changed from outside: it starts again from there.
    if (HOW == MASTERED && p.at[k] == gpu_load<T>(gpu_store<P>(master.at[k]))) p.at[k] = master.at[k];
    T s[TL_UPDATE_STATES] = {};
#pragma unroll
    for (int i = 0; i < F::STATES; i++) s[i] = state[i].at[k];
    F::template run<R>(others, c, gpu_load<T>(grad.at[k]), &p.at[k], s);
#pragma unroll
    for (int i = 0; i < F::STATES; i++) state[i].at[k] = s[i];
    if constexpr (HOW == STOCHASTIC) low.at[k] = gpu_stochastic(p.at[k], (N == 4 ? random.word[k] : word) >> 16);
    else low.at[k] = gpu_store<P>(p.at[k]);
  }
  *param = low;
#pragma unroll
  for (int k = 0; k < F::STATES; k++) *(wide *)((T *)u.state[k] + e) = state[k];
  if (HOW == MASTERED) *(wide *)((T *)u.master + e) = p;
}

template <typename F, typename R, rounding HOW, typename P>
static __device__ inline void piece(const update_list &list, int entry, bool others, const typename R::coefficients *c,
                                    const tl_cuda_random_base *base) {
  const update_entry &u = list.entry[entry];
  const int64_t begin = (int64_t)(blockIdx.x - list.block[entry]) * GPU_PIECE;
  const int64_t end = begin + GPU_PIECE < list.n[entry] ? begin + GPU_PIECE : list.n[entry];
  const uint64_t seed = HOW == STOCHASTIC ? u.seed ^ base->seed : 0;
  const uint64_t offset = HOW == STOCHASTIC ? u.offset + base->offset : 0;
  int64_t e = begin;
  if (u.quads && offset % 4 == 0) {
    int64_t quads = (end - begin) / 4;
#pragma unroll 1
    for (int64_t q = threadIdx.x; q < quads; q += GPU_BLOCK)
      elements<F, R, HOW, P, 4>(u, begin + 4 * q, others, c, seed, offset);
    e += 4 * quads;
  }
#pragma unroll 1
  for (e += threadIdx.x; e < end; e += GPU_BLOCK) elements<F, R, HOW, P, 1>(u, e, others, c, seed, offset);
}

template <typename F, typename R, rounding HOW, typename P>
static __global__ void __launch_bounds__(GPU_BLOCK) update_kernel(update_list list, const tl_cuda_random_base *base) {
  __shared__ typename R::coefficients shared;
  const int entry = gpu_find(list, blockIdx.x);
  const tl_update_coefficients *by = list.entry[entry].by;
  if (by->skip) return;
  if (threadIdx.x == 0) shared = R::narrow(by);
  __syncthreads();
  const typename R::coefficients c = shared;
  piece<F, R, HOW, P>(list, entry, F::RULE != F::OTHER && by->rule == F::OTHER, &c, base);
}

// ---- which ones go together ----

enum { F32, F64, F16_MASTERED, BF16_MASTERED, BF16, MODES };

static int mode_of(const tl_update *u) {
  switch (u->dtype) {
    case TL_FLOAT32: return F32;
    case TL_FLOAT64: return F64;
    case TL_FLOAT16: return F16_MASTERED;
    default: return u->master != NULL ? BF16_MASTERED : BF16;
  }
}

static bool is_small(const tl_update *u) { return u->state_dtype == TL_BFLOAT16 || u->state_dtype == TL_UINT8; }

static bool at_quads(const tl_update *u) {
  uintptr_t all = (uintptr_t)u->param | (uintptr_t)u->grad | (uintptr_t)u->master;
  for (int k = 0; k < TL_UPDATE_STATES; k++) all |= (uintptr_t)u->state[k];
  return all % 16 == 0;
}

// The parameters of this family and mode.
template <typename F, typename R, rounding HOW, typename P>
static tl_status update_like(int count, const tl_update *list, int mode) {
  return gpu_each_list<update_entry, 34>(
      count,
      [=](int i) {
        const tl_update *u = &list[i];
        return !is_small(u) && mode_of(u) == mode && (u->rule == F::RULE || u->rule == F::OTHER) ? u->n : 0;
      },
      [=](int i, update_entry *e) {
        const tl_update *u = &list[i];
        *e = {u->param, u->grad, u->master, {u->state[0], u->state[1], u->state[2]}, u->by, u->seed, u->offset, at_quads(u)};
      },
      [](const update_list &some, unsigned blocks) {
        return gpu_launch("update", update_kernel<F, R, HOW, P>, blocks, GPU_BLOCK, 0, some, tl_cuda_here()->random);
      });
}

template <typename F> static tl_status update_family(int count, const tl_update *list, unsigned modes) {
  if (modes & 1u << F32) TL_TRY((update_like<F, float_rules, PLAIN, float>(count, list, F32)));
  if (modes & 1u << F64) TL_TRY((update_like<F, double_rules, PLAIN, double>(count, list, F64)));
  if (modes & 1u << F16_MASTERED) TL_TRY((update_like<F, float_rules, MASTERED, __half>(count, list, F16_MASTERED)));
  if (modes & 1u << BF16_MASTERED)
    TL_TRY((update_like<F, float_rules, MASTERED, __nv_bfloat16>(count, list, BF16_MASTERED)));
  if (modes & 1u << BF16) TL_TRY((update_like<F, float_rules, STOCHASTIC, __nv_bfloat16>(count, list, BF16)));
  return TL_OK;
}

TL_CUDA_ENTRY(update)(int count, const tl_update *list) {
  unsigned modes[TL_UPDATE_COUNT] = {}; // a bit for each mode that a rule is wanted in
  bool small = false;
  for (int i = 0; i < count; i++) {
    if (is_small(&list[i])) small = true;
    else modes[list[i].rule] |= 1u << mode_of(&list[i]);
  }
  if (small) TL_TRY(tl_cuda_update_small(count, list));
#define UPDATE_FAMILY(name, states, rule, other, fills)           \
  if (modes[TL_UPDATE_##rule] | modes[TL_UPDATE_##other])         \
    TL_TRY(update_family<family_##name>(count, list, modes[TL_UPDATE_##rule] | modes[TL_UPDATE_##other]));
  FAMILIES(UPDATE_FAMILY)
  return TL_OK;
}
