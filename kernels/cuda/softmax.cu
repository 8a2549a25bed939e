// softmax.cu: softmax and log-softmax along the middle dim of (outer, n, inner). Rows of up to 1024 elements stay in the
// registers of a warp, longer ones are read twice by a block; lines that lie side by side get a thread each.
#include "lines.h"

enum { ROW_MAX = 1024 };

static unsigned blocks_for(int64_t lines, int64_t a_block) {
  const int64_t blocks = (lines + a_block - 1) / a_block, most = (int64_t)tl_cuda_here()->multiprocessors * 32;
  return (unsigned)(blocks < most ? blocks : most);
}

// What a line's results are made of: softmax e * scale, log-softmax x - shift - ls.
template <typename C> struct coefficients {
  C shift, ls, scale;
};
template <typename C> static __device__ inline coefficients<C> coefficients_of(C shift, C sum, bool log) {
  coefficients<C> k = {shift, 0, 0};
  if (log) k.ls = sum == 0 ? 0 : f_log(sum);
  else k.scale = sum == 0 ? 0 : 1 / sum;
  return k;
}
// Two subtractions, so that a large shift does not round the small logarithm away.
template <typename C> static __device__ inline C result(const coefficients<C> &k, C x, bool log) {
  return log ? x - k.shift - k.ls : f_exp(x - k.shift) * k.scale;
}

// ---- rows in registers: lane l of the row's warp holds elements l, l + 32, ... ----

template <typename T, int ITEMS>
static __global__ void rows_kernel(const T *x, T *y, int64_t rows, int n, bool log) {
  typedef gpu_compute_t<T> C;
  for (int64_t row = gpu_by_warp::line(); row < rows; row += gpu_by_warp::lines()) {
    C v[ITEMS], m = -(C)INFINITY, sum = 0;
#pragma unroll
    for (int k = 0; k < ITEMS; k++) {
      const int c = k * GPU_WARP + gpu_lane();
      v[k] = c < n ? gpu_load<C>(x[row * n + c]) : -(C)INFINITY;
      m = v[k] > m ? v[k] : m;
    }
    m = gpu_warp_reduce(m, gpu_largest());
    if (m == -(C)INFINITY) m = 0;
#pragma unroll
    for (int k = 0; k < ITEMS; k++) {
      const C e = k * GPU_WARP + gpu_lane() < n ? f_exp(v[k] - m) : 0;
      if (!log) v[k] = e;
      sum += e;
    }
    const coefficients<C> a = coefficients_of(m, gpu_warp_reduce(sum, gpu_sum()), log);
#pragma unroll
    for (int k = 0; k < ITEMS; k++) {
      const int c = k * GPU_WARP + gpu_lane();
      if (c < n) y[row * n + c] = gpu_store<T>(log ? v[k] - a.shift - a.ls : v[k] * a.scale);
    }
  }
}

// dx = e (g - sum g e), e = y; log-softmax: dx = g - e sum g, e = exp(y). A line of zeros in e gets zeros.
template <typename T, int ITEMS>
static __global__ void rows_grad_kernel(const T *g, const T *y, T *dx, int64_t rows, int n, bool log) {
  typedef gpu_compute_t<T> C;
  for (int64_t row = gpu_by_warp::line(); row < rows; row += gpu_by_warp::lines()) {
    C gs[ITEMS], es[ITEMS], sum = 0, mass = 0;
#pragma unroll
    for (int k = 0; k < ITEMS; k++) {
      const int c = k * GPU_WARP + gpu_lane();
      const bool inside = c < n;
      gs[k] = inside ? gpu_load<C>(g[row * n + c]) : 0;
      es[k] = inside ? gpu_load<C>(y[row * n + c]) : 0;
      if (log && inside) es[k] = f_exp(es[k]);
      sum += log ? gs[k] : gs[k] * es[k];
      mass += es[k];
    }
    sum = gpu_warp_reduce(sum, gpu_sum());
    mass = gpu_warp_reduce(mass, gpu_sum());
#pragma unroll
    for (int k = 0; k < ITEMS; k++) {
      const int c = k * GPU_WARP + gpu_lane();
      const C d = log ? gs[k] - es[k] * sum : es[k] * (gs[k] - sum);
      if (c < n) dx[row * n + c] = gpu_store<T>(mass == 0 ? 0 : d);
    }
  }
}

// ---- everything else: a block or a thread a line, two passes ----

template <typename BY, typename T>
static __global__ void lines_kernel(const T *x, T *y, int64_t lines, int64_t n, int64_t inner, bool log, bool vectors) {
  typedef gpu_compute_t<T> C;
  for (int64_t line = BY::line(); line < lines; line += BY::lines()) {
    const int64_t base = line / inner * n * inner + line % inner;
    const gpu_exp_sum<C> s = gpu_line_exp_sum<BY>(x + base, n, inner, vectors);
    const coefficients<C> k = coefficients_of(s.shift, s.sum, log);
    if (vectors) {
      const gpu_vector<T> *xs = (const gpu_vector<T> *)(x + base);
      gpu_vector<T> *ys = (gpu_vector<T> *)(y + base);
      for (int64_t p = BY::first(); p < n / gpu_vector<T>::N; p += BY::step()) {
        gpu_vector<T> e = xs[p];
#pragma unroll
        for (int j = 0; j < gpu_vector<T>::N; j++) e.at[j] = gpu_store<T>(result(k, gpu_load<C>(e.at[j]), log));
        ys[p] = e;
      }
      continue;
    }
    for (int64_t c = BY::first(); c < n; c += BY::step())
      y[base + c * inner] = gpu_store<T>(result(k, gpu_load<C>(x[base + c * inner]), log));
  }
}

template <typename BY, typename T>
static __global__ void lines_grad_kernel(const T *g, const T *y, T *dx, int64_t lines, int64_t n, int64_t inner,
                                         bool log) {
  typedef gpu_compute_t<T> C;
  for (int64_t line = BY::line(); line < lines; line += BY::lines()) {
    const int64_t base = line / inner * n * inner + line % inner;
    C sum = 0, mass = 0;
    for (int64_t c = BY::first(); c < n; c += BY::step()) {
      const C gc = gpu_load<C>(g[base + c * inner]), yc = gpu_load<C>(y[base + c * inner]), e = log ? f_exp(yc) : yc;
      sum += log ? gc : gc * e;
      mass += e;
    }
    sum = BY::all(sum, gpu_sum(), (C)0);
    mass = BY::all(mass, gpu_sum(), (C)0);
    for (int64_t c = BY::first(); c < n; c += BY::step()) {
      const C gc = gpu_load<C>(g[base + c * inner]), yc = gpu_load<C>(y[base + c * inner]), e = log ? f_exp(yc) : yc;
      const C d = log ? gc - e * sum : e * (gc - sum);
      dx[base + c * inner] = gpu_store<T>(mass == 0 ? 0 : d);
    }
  }
}

// ---- entries ----

template <typename T> static tl_status forward(const tl_softmax_args *a) {
  const T *x = (const T *)tl_first(a->x);
  T *y = (T *)tl_first(a->y);
  const int64_t lines = a->outer * a->inner, n = a->n;
  const unsigned a_warp_each = blocks_for(lines, GPU_BLOCK / GPU_WARP);
  if (a->inner > 1)
    return gpu_launch("softmax", lines_kernel<gpu_by_thread, T>, blocks_for(lines, GPU_BLOCK), GPU_BLOCK, 0, x, y, lines,
                      n, a->inner, a->log, false);
  if (n <= 64) return gpu_launch("softmax", rows_kernel<T, 2>, a_warp_each, GPU_BLOCK, 0, x, y, lines, n, a->log);
  if (n <= 256) return gpu_launch("softmax", rows_kernel<T, 8>, a_warp_each, GPU_BLOCK, 0, x, y, lines, n, a->log);
  if (n <= ROW_MAX) return gpu_launch("softmax", rows_kernel<T, 32>, a_warp_each, GPU_BLOCK, 0, x, y, lines, n, a->log);
  const bool vectors = gpu_aligned(x) && gpu_aligned(y) && n % gpu_vector<T>::N == 0;
  return gpu_launch("softmax", lines_kernel<gpu_by_block, T>, blocks_for(lines, 1), GPU_BLOCK, 0, x, y, lines, n, 1,
                    a->log, vectors);
}

TL_CUDA_ENTRY(softmax)(const tl_softmax_args *a) {
  if (a->x->numel == 0) return TL_OK;
  GPU_DISPATCH_FLOATING(a->x->dtype, T, return forward<T>(a);)
  return TL_OK;
}

template <typename T> static tl_status backward(const tl_softmax_grad_args *a) {
  const T *g = (const T *)tl_first(a->g), *y = (const T *)tl_first(a->y);
  T *dx = (T *)tl_first(a->dx);
  const int64_t lines = a->outer * a->inner, n = a->n;
  const unsigned a_warp_each = blocks_for(lines, GPU_BLOCK / GPU_WARP);
  const char *op = "softmax_grad";
  if (a->inner > 1)
    return gpu_launch(op, lines_grad_kernel<gpu_by_thread, T>, blocks_for(lines, GPU_BLOCK), GPU_BLOCK, 0, g, y, dx,
                      lines, n, a->inner, a->log);
  if (n <= 64) return gpu_launch(op, rows_grad_kernel<T, 2>, a_warp_each, GPU_BLOCK, 0, g, y, dx, lines, n, a->log);
  if (n <= 256) return gpu_launch(op, rows_grad_kernel<T, 8>, a_warp_each, GPU_BLOCK, 0, g, y, dx, lines, n, a->log);
  if (n <= ROW_MAX)
    return gpu_launch(op, rows_grad_kernel<T, 32>, a_warp_each, GPU_BLOCK, 0, g, y, dx, lines, n, a->log);
  return gpu_launch(op, lines_grad_kernel<gpu_by_block, T>, blocks_for(lines, 1), GPU_BLOCK, 0, g, y, dx, lines, n, 1,
                    a->log);
}

TL_CUDA_ENTRY(softmax_grad)(const tl_softmax_grad_args *a) {
  if (a->y->numel == 0) return TL_OK;
  GPU_DISPATCH_FLOATING(a->y->dtype, T, return backward<T>(a);)
  return TL_OK;
}
