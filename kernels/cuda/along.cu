// along.cu: what walks along one dim of a contiguous (outer, n, inner) tensor: extremes with their places, running sums.
#include "fold.h"

// ---- extremes: the first of equals, the first nan before everything ----

template <typename C> struct extreme {
  C value;
  int64_t at; // -1: nothing yet
};
template <typename C> static __device__ inline extreme<C> gpu_shuffle_xor(extreme<C> e, int mask) {
  return {gpu_shuffle_xor(e.value, mask), gpu_shuffle_xor(e.at, mask)};
}

template <bool LARGEST> struct op_extreme {
  enum { ends_alone = false, slow = false };
  template <typename C> using acc = extreme<C>;
  template <typename C> static __device__ inline acc<C> init() { return {(C)0, -1}; }
  template <typename C> static __device__ inline acc<C> join(acc<C> a, acc<C> b) {
    const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
    const bool better = LARGEST ? b.value > a.value : b.value < a.value;
    const bool same = b.value == a.value || (a_nan && b_nan);
    const bool take = a.at < 0 || (b.at >= 0 && (same ? b.at < a.at : better || (b_nan && !a_nan)));
    return take ? b : a;
  }
  template <typename C> static __device__ inline acc<C> step(acc<C> a, C v, int64_t at, double, double) {
    return join<C>(a, {v, at});
  }
  template <typename C, typename A> static __device__ inline void write(const gpu_fold &a, uint32_t o, A v) {
    ((int64_t *)a.out)[o] = v.at;
  }
};

template <typename C> static tl_status extremes(bool largest, const tl_iter *it, int compute, const gpu_fold *as) {
  if (largest) return gpu_fold_some<op_extreme<true>, C>("argmax", it, 1, compute, as);
  return gpu_fold_some<op_extreme<false>, C>("argmin", it, 1, compute, as);
}

TL_CUDA_ENTRY(arg_extreme)(bool largest, int dtype, const void *x, int64_t outer, int64_t n, int64_t inner, int64_t *ids) {
  if (outer * inner == 0) return TL_OK;
  int64_t size = (int64_t)tl_dtype_size(dtype);
  const int compute = tl_compute_type(dtype);
  tl_iter it = {};
  it.n = 2;
  it.ndim = 3;
  it.numel = outer * n * inner;
  it.shape[0] = outer;
  it.shape[1] = inner;
  it.shape[2] = n;
  it.op[0].data = (char *)ids;
  it.op[0].dtype = TL_INT64;
  it.op[0].stride[0] = inner * 8;
  it.op[0].stride[1] = 8;
  it.op[1].data = (char *)x;
  it.op[1].dtype = dtype;
  it.op[1].stride[0] = n * inner * size;
  it.op[1].stride[1] = size;
  it.op[1].stride[2] = inner * size;
  if (inner == 1) { // rows: their dim is the innermost
    it.ndim = 2;
    it.shape[1] = n;
    it.op[0].stride[1] = 0;
    it.op[1].stride[1] = size;
  }
  return gpu_split(&it, it.ndim - 1, n > GPU_FOLD_MOST ? n : GPU_FOLD_MOST, 0, [=](const tl_iter *part, int64_t) {
    gpu_fold as = {};
    as.out = part->op[0].data;
    if (compute == TL_FLOAT32) return extremes<float>(largest, part, compute, &as);
    if (compute == TL_FLOAT64) return extremes<double>(largest, part, compute, &as);
    return extremes<int64_t>(largest, part, compute, &as);
  });
}

// ---- running sums, in double or (wrapping) int64 ----

struct add_up {
  template <typename A> __device__ A operator()(A a, A b) const { return gpu_plus(a, b); }
};

struct runner {
  const char *x;
  char *y;
  int from, to;
  int in_size, out_size;
  int64_t rows, n, inner; // rows: outer * inner
  bool reverse;
  int64_t part, parts; // elements of a row that a block walks along, how many such parts a row has
};

// Where the running order of row `row` (outer * inner of them) begins, and how far apart its elements are.
struct row_steps {
  int64_t first, step;
};
static __device__ inline row_steps row_of(const runner &a, int64_t row) {
  const int64_t first = row / a.inner * a.n * a.inner + row % a.inner;
  if (a.reverse) return {first + (a.n - 1) * a.inner, -a.inner};
  return {first, a.inner};
}

template <typename A> static __device__ inline A element(const runner &a, row_steps s, int64_t r) {
  return gpu_load_as<A>(a.from, a.x + (s.first + r * s.step) * a.in_size);
}
template <typename A> static __device__ inline void put(const runner &a, row_steps s, int64_t r, A v) {
  gpu_store_as<A>(a.to, a.y + (s.first + r * s.step) * a.out_size, v);
}

// sums[row][part]
template <typename A> static __global__ void __launch_bounds__(GPU_BLOCK) part_sums_kernel(runner a, A *sums) {
#pragma unroll 1
  for (int64_t b = blockIdx.x; b < a.rows * a.parts; b += gridDim.x) {
    const int64_t begin = b % a.parts * a.part, end = begin + a.part < a.n ? begin + a.part : a.n;
    const row_steps s = row_of(a, b / a.parts);
    A sum = 0;
#pragma unroll 1
    for (int64_t r = begin + threadIdx.x; r < end; r += GPU_BLOCK) sum = gpu_plus(sum, element<A>(a, s, r));
    sum = gpu_block_reduce(sum, add_up(), (A)0);
    if (threadIdx.x == 0) sums[b] = sum;
  }
}

// A block for a part of a row. sums: what part_sums_kernel found, NULL where a row is one part.
template <typename A> static __global__ void __launch_bounds__(GPU_BLOCK) run_rows_kernel(runner a, const A *sums) {
  enum { RUN = 4 }; // elements of a thread side by side
#pragma unroll 1
  for (int64_t b = blockIdx.x; b < a.rows * a.parts; b += gridDim.x) {
    const int64_t row = b / a.parts, part = b % a.parts, begin = part * a.part;
    const int64_t end = begin + a.part < a.n ? begin + a.part : a.n;
    const row_steps s = row_of(a, row);
    A before = 0;
    if (sums != NULL) {
#pragma unroll 1
      for (int64_t k = threadIdx.x; k < part; k += GPU_BLOCK) before = gpu_plus(before, sums[row * a.parts + k]);
      before = gpu_block_reduce(before, add_up(), (A)0);
    }
#pragma unroll 1
    for (int64_t first = begin; first < end; first += GPU_BLOCK * RUN) {
      const int64_t r = first + threadIdx.x * RUN;
      A v[RUN], sum = 0, total;
#pragma unroll
      for (int k = 0; k < RUN; k++) {
        v[k] = r + k < end ? element<A>(a, s, r + k) : (A)0;
        sum = gpu_plus(sum, v[k]);
      }
      A running = gpu_plus(before, gpu_block_before(sum, add_up(), (A)0, &total));
#pragma unroll
      for (int k = 0; k < RUN; k++) {
        running = gpu_plus(running, v[k]);
        if (r + k < end) put(a, s, r + k, running);
      }
      before = gpu_plus(before, total);
    }
  }
}

// Many rows whose neighbours are neighbours in memory: a thread for each.
template <typename A> static __global__ void __launch_bounds__(GPU_BLOCK) run_columns_kernel(runner a) {
  GPU_LOOP(row, a.rows) {
    const row_steps s = row_of(a, row);
    A sum = 0;
#pragma unroll 2
    for (int64_t r = 0; r < a.n; r++) {
      sum = gpu_plus(sum, element<A>(a, s, r));
      put(a, s, r, sum);
    }
  }
}

template <typename A> static tl_status run(runner a) {
  if (a.inner > 1 && a.rows >= 4096)
    return gpu_launch("cumsum", run_columns_kernel<A>, gpu_blocks(a.rows), GPU_BLOCK, 0, a);
  a.part = (a.n + a.parts - 1) / a.parts;
  a.parts = (a.n + a.part - 1) / a.part;
  unsigned grid = gpu_blocks(a.rows * a.parts * GPU_BLOCK);
  A *sums = NULL;
  size_t bytes = (size_t)(a.rows * a.parts) * sizeof(A);
  tl_status st = TL_OK;
  if (a.parts > 1) {
    sums = (A *)tl_cuda_scratch("cumsum", bytes);
    if (sums == NULL) return TL_ERR_MEMORY;
    st = gpu_launch("cumsum", part_sums_kernel<A>, grid, GPU_BLOCK, 0, a, sums);
  }
  if (st == TL_OK) st = gpu_launch("cumsum", run_rows_kernel<A>, grid, GPU_BLOCK, 0, a, sums);
  tl_cuda_scratch_free(sums, bytes);
  return st;
}

TL_CUDA_ENTRY(cumsum)(int from, const void *x, int to, void *y, int64_t outer, int64_t n, int64_t inner, bool reverse) {
  if (outer * n * inner == 0) return TL_OK;
  runner a = {};
  a.x = (const char *)x;
  a.y = (char *)y;
  a.from = from;
  a.to = to;
  a.in_size = (int)tl_dtype_size(from);
  a.out_size = (int)tl_dtype_size(to);
  a.rows = outer * inner;
  a.n = n;
  a.inner = inner;
  a.reverse = reverse;
  // few long rows are cut; how depends on the shape alone
  const int64_t longest = n / 8192, wanted = 256 / a.rows;
  a.parts = wanted < longest ? wanted : longest;
  if (a.parts < 1) a.parts = 1;
  return tl_is_floating(from) ? run<double>(a) : run<int64_t>(a);
}
