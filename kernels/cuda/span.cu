// span.cu: lists of gradients: their norm, scaling, clamping, unscaling with a look at what is finite.
#include "list.h"

#include "formula.h"

struct span_entry {
  void *data;
  int dtype;
  bool quads;
};
typedef gpu_list<span_entry, 96> span_list;

template <typename RUN> static tl_status each_span(int n, const tl_span *list, const RUN &run) {
  return gpu_each_list<span_entry, 96>(
      n, [=](int i) { return list[i].n; },
      [=](int i, span_entry *e) {
        e->data = list[i].data;
        e->dtype = list[i].dtype;
        e->quads = (uintptr_t)list[i].data % 16 == 0;
      },
      run);
}

// The elements of this block's piece, by all its threads: each(&x) for every one, which is stored again if CHANGES.
template <typename T, bool CHANGES, typename F>
static __device__ inline void over_piece(const span_list &list, int entry, const F &each) {
  typedef gpu_compute_t<T> C;
  const int64_t begin = (int64_t)(blockIdx.x - list.block[entry]) * GPU_PIECE;
  const int64_t rest = list.n[entry] - begin;
  const int n = rest < GPU_PIECE ? (int)rest : (int)GPU_PIECE;
  T *x = (T *)list.entry[entry].data + begin;
  int i = 0;
  if (list.entry[entry].quads) {
#pragma unroll 1
    for (; i + 4 * GPU_BLOCK <= n; i += 4 * GPU_BLOCK) {
      gpu_quad<T> *at = (gpu_quad<T> *)(x + i) + threadIdx.x, q = *at;
#pragma unroll
      for (int k = 0; k < 4; k++) {
        C v = gpu_load<C>(q.at[k]);
        each(&v);
        if (CHANGES) q.at[k] = gpu_store<T>(v);
      }
      if (CHANGES) *at = q;
    }
  }
#pragma unroll 1
  for (i += (int)threadIdx.x; i < n; i += GPU_BLOCK) {
    C v = gpu_load<C>(x[i]);
    each(&v);
    if (CHANGES) x[i] = gpu_store<T>(v);
  }
}

template <bool CHANGES, typename F> static __device__ inline void over_block(const span_list &list, const F &each) {
  const int entry = gpu_find(list, blockIdx.x);
  switch (list.entry[entry].dtype) {
    case TL_FLOAT32: over_piece<float, CHANGES>(list, entry, each); break;
    case TL_FLOAT16: over_piece<__half, CHANGES>(list, entry, each); break;
    case TL_BFLOAT16: over_piece<__nv_bfloat16, CHANGES>(list, entry, each); break;
    default: over_piece<double, CHANGES>(list, entry, each); break;
  }
}

// ---- norms ----

struct norm_two {
  template <typename C> static __device__ inline double add(double s, C x, double) { return s + (double)x * (double)x; }
};
struct norm_one {
  template <typename C> static __device__ inline double add(double s, C x, double) { return s + fabs((double)x); }
};
struct norm_largest {
  template <typename C> static __device__ inline double add(double s, C x, double) {
    return gpu_largest()(s, fabs((double)x));
  }
};
struct norm_power { // exp and log are less code than pow, and p is no integer as a rule
  template <typename C> static __device__ inline double add(double s, C x, double p) {
    return s + exp(p * log(fabs((double)x)));
  }
};

template <typename N> static __global__ void __launch_bounds__(GPU_BLOCK, 4) span_norm_kernel(span_list list, double p, double *parts) {
  double sum = 0;
  over_block<false>(list, [&](auto *x) { sum = N::add(sum, *x, p); });
  if constexpr (std::is_same_v<N, norm_largest>) sum = gpu_block_reduce(sum, gpu_largest(), 0.0);
  else sum = gpu_block_sum(sum);
  if (threadIdx.x == 0) parts[list.slot + blockIdx.x] = sum;
}

// One block: what the parts make together, to the power of `root`, goes to *result, which may be parts[0].
static __global__ void __launch_bounds__(GPU_BLOCK)
    norm_join_kernel(const double *parts, int64_t n, bool largest, double root, double *result) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < n; i += GPU_BLOCK) sum = largest ? gpu_largest()(sum, parts[i]) : sum + parts[i];
  sum = largest ? gpu_block_reduce(sum, gpu_largest(), 0.0) : gpu_block_sum(sum);
  if (threadIdx.x == 0) *result = root == 1 ? sum : root == 0.5 ? sqrt(sum) : pow(sum, root);
}

template <typename N> static tl_status norms(int n, const tl_span *list, double p, double *parts) {
  return each_span(n, list, [=](const span_list &some, unsigned blocks) {
    return gpu_launch("span_norm", span_norm_kernel<N>, blocks, GPU_BLOCK, 0, some, p, parts);
  });
}

// *result, in the device's memory: the sum of powers, or the norm.
static tl_status norm_on_device(int n, const tl_span *list, double p, double *parts, int64_t pieces, bool root, double *result) {
  TL_TRY(p == 2          ? norms<norm_two>(n, list, p, parts)
         : p == 1        ? norms<norm_one>(n, list, p, parts)
         : p == INFINITY ? norms<norm_largest>(n, list, p, parts)
                         : norms<norm_power>(n, list, p, parts));
  return gpu_launch("span_norm", norm_join_kernel, 1, GPU_BLOCK, 0, parts, pieces, p == INFINITY,
                    root && p != INFINITY ? 1 / p : 1.0, result);
}

static int64_t pieces_of(int n, const tl_span *list) {
  int64_t pieces = 0;
  for (int i = 0; i < n; i++) pieces += gpu_pieces(list[i].n);
  return pieces;
}

static tl_status fetch(double *result, const double *from) {
  cudaStream_t stream = tl_cuda_here()->stream;
  TL_CUDA_TRY("span_norm", cudaMemcpyAsync(result, from, sizeof *result, cudaMemcpyDeviceToHost, stream));
  TL_CUDA_TRY("span_norm", cudaStreamSynchronize(stream));
  return TL_OK;
}

TL_CUDA_ENTRY(span_norm)(int n, const tl_span *list, double p, double *result) {
  *result = 0;
  int64_t pieces = pieces_of(n, list);
  if (pieces == 0) return TL_OK;
  size_t bytes = (size_t)pieces * sizeof(double);
  double *parts = (double *)tl_cuda_scratch("span_norm", bytes);
  if (parts == NULL) return TL_ERR_MEMORY;
  tl_status st = norm_on_device(n, list, p, parts, pieces, false, parts);
  if (st == TL_OK) st = fetch(result, parts);
  tl_cuda_scratch_free(parts, bytes);
  return st;
}

// ---- changes in place ----

static __global__ void __launch_bounds__(GPU_BLOCK) span_scale_kernel(span_list list, double factor) {
  const float factor_f32 = (float)factor;
  over_block<true>(list, [=](auto *x) {
    if constexpr (sizeof *x == sizeof(float)) *x *= factor_f32;
    else *x *= factor;
  });
}

static __global__ void __launch_bounds__(GPU_BLOCK) span_clamp_kernel(span_list list, double limit) {
  over_block<true>(list, [=](auto *x) { *x = f_clamp(*x, -limit, limit); });
}

static __global__ void __launch_bounds__(GPU_BLOCK) span_clip_kernel(span_list list, double max, const double *norm) {
  const double factor = max / (*norm + 1e-6);
  if (factor >= 1) return;
  const float factor_f32 = (float)factor;
  over_block<true>(list, [=](auto *x) {
    if constexpr (sizeof *x == sizeof(float)) *x *= factor_f32;
    else *x *= factor;
  });
}

static __global__ void __launch_bounds__(GPU_BLOCK) span_unscale_kernel(span_list list, const float *inverse, float *found) {
  const float factor = *inverse;
  int bad = 0;
  over_block<true>(list, [&](auto *x) {
    *x *= factor;
    bad |= !(*x - *x == 0); // inf and nan
  });
  if (__syncthreads_or(bad) && threadIdx.x == 0) atomicExch(found, 1.0f);
}

TL_CUDA_ENTRY(span_scale)(int n, const tl_span *list, double factor) {
  return each_span(n, list, [=](const span_list &some, unsigned blocks) {
    return gpu_launch("span_scale", span_scale_kernel, blocks, GPU_BLOCK, 0, some, factor);
  });
}

TL_CUDA_ENTRY(span_clamp)(int n, const tl_span *list, double limit) {
  return each_span(n, list, [=](const span_list &some, unsigned blocks) {
    return gpu_launch("span_clamp", span_clamp_kernel, blocks, GPU_BLOCK, 0, some, limit);
  });
}

TL_CUDA_ENTRY(span_clip)(int n, const tl_span *list, double p, double max, double *norm) {
  int64_t pieces = pieces_of(n, list);
  size_t bytes = (size_t)(pieces + 1) * sizeof(double);
  double *parts = (double *)tl_cuda_scratch("span_clip", bytes);
  if (parts == NULL) return TL_ERR_MEMORY;
  tl_status st = norm_on_device(n, list, p, parts, pieces, true, norm);
  if (st == TL_OK)
    st = each_span(n, list, [=](const span_list &some, unsigned blocks) {
      return gpu_launch("span_clip", span_clip_kernel, blocks, GPU_BLOCK, 0, some, max, norm);
    });
  tl_cuda_scratch_free(parts, bytes);
  return st;
}

TL_CUDA_ENTRY(span_unscale)(int n, const tl_span *list, const float *inverse, float *found) {
  return each_span(n, list, [=](const span_list &some, unsigned blocks) {
    return gpu_launch("span_unscale", span_unscale_kernel, blocks, GPU_BLOCK, 0, some, inverse, found);
  });
}
