/* fold.h: reductions of the trailing dims of an iterator, whatever the operation.
 *
 * rows_kernel    threads side by side along the reduced elements of one output, or of a few neighbouring outputs
 * columns_kernel threads side by side across outputs, which are nearer to each other in memory; some deep along them
 *
 * Few outputs of many elements are cut into parts (gridDim.y), whose results join_kernel puts together. The shape alone
 * decides how: results do not depend on the device. An operation is a struct with
 *
 *     acc<C>                                   what is accumulated over values of type C
 *     init<C>()
 *     step<C>(acc, C v, int64_t at, double centre, double p)
 *     join(acc, acc)                           commutative
 *     write<C>(const gpu_fold &, o, acc)       output o
 *     ends_alone                               write is long: only join_kernel calls it
 *     slow                                     step is long: an element at a time */
#ifndef TL_KERNELS_CUDA_FOLD_H
#define TL_KERNELS_CUDA_FOLD_H

#include "pointwise.h"

/* Integers wrap around. */
static __device__ inline double gpu_plus(double a, double b) { return a + b; }
static __device__ inline int64_t gpu_plus(int64_t a, int64_t b) { return (int64_t)((uint64_t)a + (uint64_t)b); }
static __device__ inline double gpu_times(double a, double b) { return a * b; }
static __device__ inline int64_t gpu_times(int64_t a, int64_t b) { return (int64_t)((uint64_t)a * (uint64_t)b); }

struct gpu_fold {
  gpu_walk<1> kept, along; /* of the input */
  const char *x;
  int dtype;
  uint32_t outs, count;
  int64_t begin;  /* place of the first reduced element among all that the output has */
  uint32_t part;  /* reduced elements of a part */
  uint32_t lanes; /* threads that share an output: a power of 2 */
  bool vectors;   /* rows lie contiguously at multiples of 16 bytes, of a 2- or 4-byte floating dtype */
  bool adjacent;  /* see pointwise.h */
  double *centre; /* [outs], may be NULL */
  double p;
  void *cells;   /* [slot][outs], NULL: outputs are written at once */
  uint32_t slot; /* of part 0 */
  char *out;
  int out_dtype, out_size, finish;
  double divisor, inverse; /* 1 / divisor */
};

template <typename Op, typename C, typename A>
static __device__ inline void fold_write(const gpu_fold &a, uint32_t o, A acc) {
  if (Op::ends_alone || a.cells != NULL) ((A *)a.cells)[(size_t)(a.slot + blockIdx.y) * a.outs + o] = acc;
  else Op::template write<C>(a, o, acc);
}

template <typename Op, typename C> static __global__ void __launch_bounds__(GPU_BLOCK, 4) rows_kernel(gpu_fold a) {
  typedef typename Op::template acc<C> A;
  __shared__ A part[GPU_BLOCK / GPU_WARP];
  const uint32_t lane = threadIdx.x & (a.lanes - 1), rows = GPU_BLOCK / a.lanes;
  const uint32_t begin = blockIdx.y * a.part, end = begin + a.part < a.count ? begin + a.part : a.count;
#pragma unroll 1
  for (uint32_t first = blockIdx.x * rows; first < a.outs; first += gridDim.x * rows) {
    const uint32_t o = first + threadIdx.x / a.lanes;
    A acc = Op::template init<C>();
    if (o < a.outs) {
      int64_t at;
      gpu_offsets<1>(a.kept, o, &at);
      const char *x = a.x + at;
      const double centre = a.centre == NULL ? 0 : a.centre[o];
      uint32_t r = begin;
      if constexpr (std::is_same_v<C, float> && !Op::slow) {
        const uint32_t tile = a.lanes * 2 * GPU_GROUP;
        if (a.vectors) {
#pragma unroll 1
          for (; r + tile <= end; r += tile) {
            const uint32_t i = r + lane * (a.adjacent ? 2 * GPU_GROUP : GPU_GROUP);
            const uint32_t j = i + (a.adjacent ? GPU_GROUP : tile / 2);
            float v[2 * GPU_GROUP];
            switch (a.dtype) {
              case TL_FLOAT32: load_groups<float>(x + (size_t)i * 4, x + (size_t)j * 4, a.adjacent, v); break;
              case TL_FLOAT16: load_groups<__half>(x + (size_t)i * 2, x + (size_t)j * 2, a.adjacent, v); break;
              default: load_groups<__nv_bfloat16>(x + (size_t)i * 2, x + (size_t)j * 2, a.adjacent, v); break;
            }
#pragma unroll
            for (uint32_t k = 0; k < 2 * GPU_GROUP; k++)
              acc = Op::template step<C>(acc, v[k], a.begin + (k < GPU_GROUP ? i + k : j + k - GPU_GROUP), centre, a.p);
          }
        }
      }
#pragma unroll 1
      for (r += lane; r < end; r += a.lanes) {
        gpu_offsets<1>(a.along, r, &at);
        acc = Op::template step<C>(acc, gpu_load_as<C>(a.dtype, x + at), a.begin + r, centre, a.p);
      }
    }
#pragma unroll 1
    for (uint32_t d = (a.lanes < GPU_WARP ? a.lanes : (uint32_t)GPU_WARP) / 2; d > 0; d >>= 1)
      acc = Op::join(acc, gpu_shuffle_xor(acc, (int)d));
    if (a.lanes > GPU_WARP) { /* the whole block */
      __syncthreads();
      if (gpu_lane() == 0) part[gpu_warp_of_block()] = acc;
      __syncthreads();
      acc = part[0];
#pragma unroll 1
      for (int w = 1; w < gpu_warps(); w++) acc = Op::join(acc, part[w]);
    }
    if (lane == 0 && o < a.outs) fold_write<Op, C>(a, o, acc);
  }
}

/* loads of a thread at once: 16 bytes */
template <typename C> static constexpr uint32_t gpu_deep = 16 / sizeof(C);
static constexpr uint32_t GPU_DEEP = 4; /* at most */

template <typename Op, typename C> static __global__ void __launch_bounds__(GPU_BLOCK, 4) columns_kernel(gpu_fold a) {
  typedef typename Op::template acc<C> A;
  constexpr uint32_t DEEP = gpu_deep<C>;
  __shared__ A part[GPU_BLOCK];
  const uint32_t width = GPU_BLOCK / a.lanes, column = threadIdx.x & (width - 1), lane = threadIdx.x / width;
  const uint32_t begin = blockIdx.y * a.part, end = begin + a.part < a.count ? begin + a.part : a.count;
#pragma unroll 1
  for (uint32_t first = blockIdx.x * width; first < a.outs; first += gridDim.x * width) {
    const uint32_t o = first + column;
    A acc = Op::template init<C>();
    if (o < a.outs) {
      int64_t at;
      gpu_offsets<1>(a.kept, o, &at);
      const char *x = a.x + at;
      const double centre = a.centre == NULL ? 0 : a.centre[o];
      uint32_t r = begin + lane;
#pragma unroll 1
      for (; r + (DEEP - 1) * a.lanes < end; r += DEEP * a.lanes) {
        C v[DEEP];
#pragma unroll
        for (uint32_t k = 0; k < DEEP; k++) {
          gpu_offsets<1>(a.along, r + k * a.lanes, &at);
          v[k] = gpu_load_as<C>(a.dtype, x + at);
        }
#pragma unroll
        for (uint32_t k = 0; k < DEEP; k++)
          acc = Op::template step<C>(acc, v[k], a.begin + r + k * a.lanes, centre, a.p);
      }
#pragma unroll 1
      for (; r < end; r += a.lanes) {
        gpu_offsets<1>(a.along, r, &at);
        acc = Op::template step<C>(acc, gpu_load_as<C>(a.dtype, x + at), a.begin + r, centre, a.p);
      }
    }
    __syncthreads();
    part[threadIdx.x] = acc;
    __syncthreads();
#pragma unroll 1
    for (uint32_t d = a.lanes / 2; d > 0; d >>= 1) {
      if (lane < d) part[threadIdx.x] = Op::join(part[threadIdx.x], part[threadIdx.x + d * width]);
      __syncthreads();
    }
    if (lane == 0 && o < a.outs) fold_write<Op, C>(a, o, part[threadIdx.x]);
  }
}

/* A warp for an output: joins `slots` parts (0: writes what an empty reduction is). */
template <typename Op, typename C>
static __global__ void __launch_bounds__(GPU_BLOCK) join_kernel(gpu_fold a, const void *cells, uint32_t slots) {
  typedef typename Op::template acc<C> A;
  const uint32_t warps = GPU_BLOCK / GPU_WARP;
#pragma unroll 1
  for (uint32_t o = blockIdx.x * warps + threadIdx.x / GPU_WARP; o < a.outs; o += gridDim.x * warps) {
    A acc = Op::template init<C>();
#pragma unroll 1
    for (uint32_t s = threadIdx.x % GPU_WARP; s < slots; s += GPU_WARP)
      acc = Op::join(acc, ((const A *)cells)[(size_t)s * a.outs + o]);
#pragma unroll 1
    for (int d = GPU_WARP / 2; d > 0; d >>= 1) acc = Op::join(acc, gpu_shuffle_xor(acc, d));
    if (threadIdx.x % GPU_WARP == 0) Op::template write<C>(a, o, acc);
  }
}

/* ---- the host's side ---- */

static constexpr int64_t GPU_FOLD_MOST = GPU_MAX_INDEX - 8; /* elements of one launch; parts are rounded up */

static inline uint32_t gpu_power_below(int64_t n, uint32_t most) { /* the largest power of 2 up to n and most */
  uint32_t p = 1;
  while (2 * (int64_t)p <= n && 2 * p <= most) p *= 2;
  return p;
}

enum { GPU_FOLD_BLOCKS = 512 }; /* fewer blocks than this are cut into parts */

/* How a piece of at most GPU_MAX_INDEX elements is dealt out. */
struct gpu_fold_plan {
  gpu_fold fold;
  bool columns;
  uint32_t blocks, parts;
};

static inline gpu_fold_plan gpu_fold_plan_of(const tl_iter *it, int reduced, int compute) {
  gpu_fold_plan plan = {};
  gpu_fold *a = &plan.fold;
  int lead = it->ndim - reduced;
  const tl_operand *in = &it->op[1];
  int64_t outs = 1, count = 1, size = (int64_t)tl_dtype_size(in->dtype);
  for (int d = 0; d < lead; d++) outs *= it->shape[d];
  for (int d = lead; d < it->ndim; d++) count *= it->shape[d];
  tl_iter source = *it;
  source.n = 1;
  source.op[0] = *in;
  a->kept = gpu_walk_of<1>(&source, 0, lead);
  a->along = gpu_walk_of<1>(&source, lead, reduced);
  a->x = in->data;
  a->dtype = in->dtype;
  a->outs = (uint32_t)outs;
  a->count = (uint32_t)count;
  int64_t across = lead > 0 ? in->stride[lead - 1] : INT64_MAX,
          along = reduced > 0 ? in->stride[it->ndim - 1] : INT64_MAX;
  plan.columns = outs > 1 && across < along;
  int64_t most_parts, width;
  if (plan.columns) {
    a->lanes = gpu_power_below(count / GPU_DEEP, 8);
    while (a->lanes < GPU_BLOCK && outs <= GPU_BLOCK / a->lanes / 2 && count >= 2 * GPU_DEEP * (int64_t)a->lanes)
      a->lanes *= 2;
    width = GPU_BLOCK / a->lanes;
    most_parts = count / (a->lanes * 4 * GPU_DEEP);
  } else {
    a->vectors =
        compute == TL_FLOAT32 && tl_is_floating(in->dtype) && reduced == 1 && along == size && gpu_aligned(in->data);
    for (int d = 0; d < lead; d++) a->vectors = a->vectors && in->stride[d] % 16 == 0;
    a->adjacent = size == 2;
    a->lanes = count >= 4 * GPU_BLOCK ? (uint32_t)GPU_BLOCK : gpu_power_below(count / (2 * GPU_GROUP), GPU_WARP);
    width = GPU_BLOCK / a->lanes;
    most_parts = count / (GPU_BLOCK * 4 * GPU_GROUP);
  }
  int64_t blocks = (outs + width - 1) / width, parts = GPU_FOLD_BLOCKS / blocks;
  if (parts > most_parts) parts = most_parts;
  if (parts < 1) parts = 1;
  int64_t part = (count + parts - 1) / parts;
  part = (part + 7) / 8 * 8; /* vectors stay at multiples of 16 bytes */
  a->part = (uint32_t)part;
  plan.parts = (uint32_t)((count + part - 1) / part);
  plan.blocks = gpu_blocks(blocks * GPU_BLOCK);
  return plan;
}

template <typename Op, typename C>
static inline tl_status gpu_fold_launch(const char *name, const gpu_fold_plan *plan) {
  dim3 grid(plan->blocks, plan->parts);
  return gpu_launch(name, plan->columns ? columns_kernel<Op, C> : rows_kernel<Op, C>, grid, GPU_BLOCK, 0, plan->fold);
}

/* The reduction of `it` (op[1], contiguous outputs at op[0]) over its last `reduced` dims; `as` says how it ends. */
template <typename Op, typename C>
static inline tl_status gpu_fold_some(const char *name, const tl_iter *it, int reduced, int compute,
                                      const gpu_fold *as) {
  typedef typename Op::template acc<C> A;
  int64_t outs = 1;
  for (int d = 0; d < it->ndim - reduced; d++) outs *= it->shape[d];
  gpu_fold last = *as;
  last.outs = (uint32_t)outs;
  last.cells = NULL;
  /* pieces: one, or of a single output with more elements than a launch has numbers for */
  int64_t slots = 0, pieces = 0;
  TL_TRY(gpu_split(it, it->ndim, GPU_FOLD_MOST, 0, [&](const tl_iter *piece, int64_t) {
    if (piece->numel > 0) pieces++, slots += gpu_fold_plan_of(piece, reduced, compute).parts;
    return TL_OK;
  }));
  const bool direct = slots == 1 && !Op::ends_alone;
  size_t bytes = (size_t)slots * (size_t)outs * sizeof(A);
  void *cells = NULL;
  if (!direct && slots > 0) {
    cells = tl_cuda_scratch(name, bytes);
    if (cells == NULL) return TL_ERR_MEMORY;
  }
  int64_t slot = 0;
  tl_status st = gpu_split(it, it->ndim, GPU_FOLD_MOST, 0, [&](const tl_iter *piece, int64_t begin) {
    if (piece->numel == 0) return (tl_status)TL_OK;
    gpu_fold_plan plan = gpu_fold_plan_of(piece, reduced, compute);
    gpu_fold *a = &plan.fold;
    a->begin = pieces > 1 ? begin : 0;
    a->centre = as->centre;
    a->p = as->p;
    a->cells = cells;
    a->slot = (uint32_t)slot;
    a->out = as->out;
    a->out_dtype = as->out_dtype;
    a->out_size = as->out_size;
    a->finish = as->finish;
    a->divisor = as->divisor;
    a->inverse = as->inverse;
    slot += plan.parts;
    return gpu_fold_launch<Op, C>(name, &plan);
  });
  if (st == TL_OK && !direct)
    st = gpu_launch(name, join_kernel<Op, C>, gpu_blocks(outs * GPU_WARP), GPU_BLOCK, 0, last, cells, slots);
  tl_cuda_scratch_free(cells, bytes);
  return st;
}

#endif
