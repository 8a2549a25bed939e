// small_state.cu: Adam's step with moments in bfloat16 or in 8-bit codes: bit for bit what kernels/cpu/optimizer.c gives.
//
// A warp moves a block of codes: 8 elements a lane, in two quads of neighbours, so that a Philox block serves a quad.
#include "list.h"

#include "backend/cuda/table.h"
#include "philox.h"
#include "quantise.h"
#include "rounding.h"
#include "update.h"

struct small_entry {
  void *param;
  const void *grad;
  float *master;
  void *state[TL_SMALL_STATES];
  float *absmax[TL_SMALL_STATES];
  const tl_update_coefficients *by;
  uint64_t seed, offset;
  uint32_t key;
  bool quads;
};
typedef gpu_list<small_entry, 32> small_list;

// ---- four neighbours from element e on, n of which there are; whole: at once ----

template <typename T> static __device__ inline gpu_quad<T> load_quad(const void *from, int64_t e, int n, bool whole) {
  if (whole) return *(const gpu_quad<T> *)((const T *)from + e);
  gpu_quad<T> q = {};
#pragma unroll
  for (int k = 0; k < 4; k++) // indices that the compiler knows: in registers
    if (k < n) q.at[k] = ((const T *)from)[e + k];
  return q;
}

template <typename T>
static __device__ inline void store_quad(void *to, int64_t e, int n, bool whole, const gpu_quad<T> &q) {
  if (whole) {
    *(gpu_quad<T> *)((T *)to + e) = q;
    return;
  }
#pragma unroll
  for (int k = 0; k < 4; k++)
    if (k < n) ((T *)to)[e + k] = q.at[k];
}

// ---- how the moments are stored ----

struct bf16_state {
  typedef __nv_bfloat16 S;
  static constexpr bool CODES = false;
};
struct code_state {
  typedef uint8_t S;
  static constexpr bool CODES = true;
};

// What codes stand for: of second moments at 0..255, of first ones after that.
static __device__ inline void fill_values(float *values) {
  for (int i = (int)threadIdx.x; i < 512; i += GPU_BLOCK) values[i] = tl_quant_value(i >= 256, i & 255);
}

// The largest |x| of the warp's block; nan, whose bits are above all others, wins.
static __device__ inline float largest_of(const gpu_quad<float> *x) {
  int32_t most = 0;
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const int32_t bits = i32_bits(x[i / 4].at[i % 4]) & 0x7fffffff;
    most = bits > most ? bits : most;
  }
  return f32_bits(gpu_warp_reduce(most, gpu_largest()));
}

// Number e of the stream that rounds bfloat16 parameters.
static __device__ inline uint32_t parameter_word(const small_entry &u, int64_t e, const tl_cuda_random_base *base) {
  const uint64_t at = u.offset + base->offset + (uint64_t)e;
  const tl_philox random = tl_philox_block(u.seed ^ base->seed, at / 4);
  const int place = (int)(at % 4);
  return random.word[0] * (place == 0) | random.word[1] * (place == 1) | random.word[2] * (place == 2) |
         random.word[3] * (place == 3);
}

template <typename F, rounding HOW, typename P>
static __device__ inline void move_block(const small_entry &u, int64_t first, int64_t end, const f32_coefficients *c,
                                         int64_t step, const float *values, const tl_cuda_random_base *base) {
  typedef typename F::S S;
  gpu_quad<float> a[2], b[2];
  tl_philox random[2];
  float scale[TL_SMALL_STATES] = {1, 1};
  if (F::CODES)
    for (int k = 0; k < TL_SMALL_STATES; k++) { // the lane that will change it reads it
      if (gpu_lane() == 0) scale[k] = u.absmax[k][first / TL_QUANT_BLOCK];
      scale[k] = __shfl_sync(GPU_ALL_LANES, scale[k], 0);
    }
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int64_t e = first + 128 * h + 4 * gpu_lane();
    const int n = end - e >= 4 ? 4 : end > e ? (int)(end - e) : 0;
    const bool whole = n == 4 && u.quads;
    gpu_quad<P> low = load_quad<P>(u.param, e, n, whole);
    const gpu_quad<P> grad = load_quad<P>(u.grad, e, n, whole);
    const gpu_quad<S> first_moment = load_quad<S>(u.state[0], e, n, whole);
    const gpu_quad<S> second_moment = load_quad<S>(u.state[1], e, n, whole);
    gpu_quad<float> master = {};
    if (HOW == MASTERED) master = load_quad<float>(u.master, e, n, whole);
    random[h] = tl_philox_block(tl_rounding_key(u.key, step), (uint64_t)e / 4);
#pragma unroll
    for (int k = 0; k < 4; k++) {
      float p = gpu_load<float>(low.at[k]);
      if (HOW == MASTERED && p == gpu_load<float>(gpu_store<P>(master.at[k]))) p = master.at[k];
      if constexpr (F::CODES) {
        a[h].at[k] = values[256 + first_moment.at[k]] * scale[0];
        b[h].at[k] = values[second_moment.at[k]] * scale[1];
      } else {
        a[h].at[k] = gpu_load<float>(first_moment.at[k]);
        b[h].at[k] = gpu_load<float>(second_moment.at[k]);
      }
      f32_update_adam(c, gpu_load<float>(grad.at[k]), &p, &a[h].at[k], &b[h].at[k]);
      if (k >= n) a[h].at[k] = b[h].at[k] = 0;
      master.at[k] = p;
      if constexpr (HOW == STOCHASTIC) low.at[k] = gpu_stochastic(p, parameter_word(u, e + k, base) >> 16);
      else low.at[k] = gpu_store<P>(p);
    }
    store_quad(u.param, e, n, whole, low);
    if (HOW == MASTERED) store_quad(u.master, e, n, whole, master);
  }
  float divisor[TL_SMALL_STATES] = {};
  if (F::CODES) {
    const float largest[TL_SMALL_STATES] = {largest_of(a), largest_of(b)};
    for (int k = 0; k < TL_SMALL_STATES; k++) {
      divisor[k] = tl_quant_divisor(largest[k]);
      if (gpu_lane() == 0) u.absmax[k][first / TL_QUANT_BLOCK] = largest[k];
    }
  }
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int64_t e = first + 128 * h + 4 * gpu_lane();
    const int n = end - e >= 4 ? 4 : end > e ? (int)(end - e) : 0;
    const bool whole = n == 4 && u.quads;
    gpu_quad<S> first_moment, second_moment;
#pragma unroll
    for (int k = 0; k < 4; k++) {
      const uint32_t word = random[h].word[k];
      if constexpr (F::CODES) {
        first_moment.at[k] = tl_quant_signed(a[h].at[k], divisor[0], tl_quant_u(word));
        second_moment.at[k] = tl_quant_unsigned(b[h].at[k], divisor[1], tl_quant_u(word >> 16));
      } else {
        first_moment.at[k] = gpu_stochastic(a[h].at[k], word);
        second_moment.at[k] = gpu_stochastic(b[h].at[k], word >> 16);
      }
    }
    store_quad(u.state[0], e, n, whole, first_moment);
    store_quad(u.state[1], e, n, whole, second_moment);
  }
}

template <typename F, rounding HOW, typename P>
static __global__ void __launch_bounds__(GPU_BLOCK) small_state_kernel(small_list list,
                                                                       const tl_cuda_random_base *base) {
  __shared__ f32_coefficients shared;
  __shared__ float values[F::CODES ? 512 : 1];
  const int entry = gpu_find(list, blockIdx.x);
  const tl_update_coefficients *by = list.entry[entry].by;
  if (by->skip) return;
  if (threadIdx.x == 0) shared = f32_narrow(by);
  if (F::CODES) fill_values(values);
  __syncthreads();
  const f32_coefficients c = shared;
  const int64_t begin = (int64_t)(blockIdx.x - list.block[entry]) * GPU_PIECE;
  const int64_t end = begin + GPU_PIECE < list.n[entry] ? begin + GPU_PIECE : list.n[entry];
#pragma unroll 1
  for (int64_t first = begin + gpu_warp_of_block() * TL_QUANT_BLOCK; first < end; first += gpu_warps() * TL_QUANT_BLOCK)
    move_block<F, HOW, P>(list.entry[entry], first, end, &c, by->step, values, base);
}

// ---- which ones go together ----

static bool at_quads(const tl_update *u) {
  return gpu_aligned(u->param) && gpu_aligned(u->grad) && gpu_aligned(u->master) && gpu_aligned(u->state[0]) &&
         gpu_aligned(u->state[1]);
}

template <typename F, rounding HOW, typename P>
static tl_status update_like(int count, const tl_update *list, int dtype, int state_dtype) {
  return gpu_each_list<small_entry, 32>(
      count,
      [=](int i) {
        const tl_update *u = &list[i];
        const rounding how = u->master != NULL ? MASTERED : u->dtype == TL_BFLOAT16 ? STOCHASTIC : PLAIN;
        return u->state_dtype == state_dtype && u->dtype == dtype && how == HOW ? u->n : 0;
      },
      [=](int i, small_entry *e) {
        const tl_update *u = &list[i];
        *e = {u->param, u->grad, u->master, {u->state[0], u->state[1]}, {u->absmax[0], u->absmax[1]}, u->by, u->seed,
              u->offset, u->key, at_quads(u)};
      },
      [](const small_list &some, unsigned blocks) {
        return gpu_launch("update", small_state_kernel<F, HOW, P>, blocks, GPU_BLOCK, 0, some, tl_cuda_here()->random);
      });
}

template <typename F> static tl_status update_in(int count, const tl_update *list, int state_dtype) {
  TL_TRY((update_like<F, PLAIN, float>(count, list, TL_FLOAT32, state_dtype)));
  TL_TRY((update_like<F, MASTERED, __half>(count, list, TL_FLOAT16, state_dtype)));
  TL_TRY((update_like<F, MASTERED, __nv_bfloat16>(count, list, TL_BFLOAT16, state_dtype)));
  return update_like<F, STOCHASTIC, __nv_bfloat16>(count, list, TL_BFLOAT16, state_dtype);
}

tl_status tl_cuda_update_small(int count, const tl_update *list) {
  TL_TRY(update_in<bf16_state>(count, list, TL_BFLOAT16));
  return update_in<code_state>(count, list, TL_UINT8);
}
