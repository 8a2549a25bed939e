// pool.cu: max and average pooling. Forward: a thread (for large averaging windows a warp) an output element. Backward:
// a thread an input element, which adds the windows that hold it in the CPU's order: no atomics, equal results. float16
// and bfloat16 add up in float32.
#include "element.h"
#include "warp.h"

namespace {

/* A tl_pooling as kernels read it; windows and elements along one dim fit 32 bits (TL_WINDOW_MAX). */
struct pooling {
  int64_t planes;
  int size[2], result[2], kernel[2], stride[2], padding[2], dilation[2];
  bool adaptive, count_include_pad;
};

pooling pooling_of(const tl_pooling *p) {
  pooling q = {p->planes, {}, {}, {}, {}, {}, {}, p->adaptive, p->count_include_pad};
  for (int d = 0; d < 2; d++) {
    q.size[d] = (int)p->size[d];
    q.result[d] = (int)p->result[d];
    q.kernel[d] = (int)p->kernel[d];
    q.stride[d] = (int)p->stride[d];
    q.padding[d] = (int)p->padding[d];
    q.dilation[d] = (int)p->dilation[d];
  }
  return q;
}

/* Element i of planes of rows x columns. */
struct place {
  int64_t plane;
  int row, column;
};
__device__ place place_of(int64_t i, int rows, int columns) {
  const uint64_t line = (uint64_t)i / (unsigned)columns;
  place at;
  at.column = (int)((uint64_t)i - line * (unsigned)columns);
  at.plane = (int64_t)(line / (unsigned)rows);
  at.row = (int)(line - (uint64_t)at.plane * (unsigned)rows);
  return at;
}

// ---- max ----

template <typename T> __global__ void max_kernel(pooling p, const T *x, T *y, void *where, bool bytes) {
  typedef gpu_compute_t<T> C;
  const int64_t n = p.planes * p.result[0] * p.result[1];
  GPU_LOOP(i, n) {
    const place at = place_of(i, p.result[0], p.result[1]);
    const T *plane = x + at.plane * p.size[0] * p.size[1];
    C best = -(C)INFINITY;
    int won = -1;
    for (int r = 0; r < p.kernel[0]; r++) {
      const int64_t h = (int64_t)at.row * p.stride[0] - p.padding[0] + (int64_t)r * p.dilation[0];
      if (h < 0 || h >= p.size[0]) continue;
      for (int q = 0; q < p.kernel[1]; q++) {
        const int64_t w = (int64_t)at.column * p.stride[1] - p.padding[1] + (int64_t)q * p.dilation[1];
        if (w < 0 || w >= p.size[1]) continue;
        const C v = gpu_load<C>(plane[h * p.size[1] + w]);
        if (!(v > best || v != v || won < 0)) continue;
        best = v;
        won = r * p.kernel[1] + q;
      }
    }
    y[i] = gpu_store<T>(best);
    if (where == nullptr) continue;
    if (bytes) ((uint8_t *)where)[i] = (uint8_t)won;
    else ((int32_t *)where)[i] = won;
  }
}

/* The first and the last window along dim d (kernel with dilation) that may hold element h. */
struct span {
  int first, last;
};
__device__ span windows_of(const pooling &p, int d, int h) {
  const int64_t reach = (int64_t)h + p.padding[d], low = reach - (int64_t)(p.kernel[d] - 1) * p.dilation[d];
  const int64_t first = low <= 0 ? 0 : (low + p.stride[d] - 1) / p.stride[d], last = reach / p.stride[d];
  return {(int)(first < p.result[d] ? first : p.result[d]), (int)(last < p.result[d] ? last : p.result[d] - 1)};
}

/* The position along dim d of element h in window i, -1 where the window steps over it. */
__device__ int tap_of(const pooling &p, int d, int h, int i) {
  const int64_t steps = (int64_t)h + p.padding[d] - (int64_t)i * p.stride[d];
  if (p.dilation[d] == 1) return (int)steps;
  return steps % p.dilation[d] == 0 ? (int)(steps / p.dilation[d]) : -1;
}

template <typename T>
__global__ void max_backward_kernel(pooling p, const T *dy, const void *where, bool bytes, T *dx) {
  typedef gpu_compute_t<T> C;
  const int64_t n = p.planes * p.size[0] * p.size[1];
  GPU_LOOP(i, n) {
    const place at = place_of(i, p.size[0], p.size[1]);
    const span rows = windows_of(p, 0, at.row), columns = windows_of(p, 1, at.column);
    C sum = 0;
    for (int u = rows.first; u <= rows.last; u++) {
      const int r = tap_of(p, 0, at.row, u);
      if (r < 0) continue;
      for (int v = columns.first; v <= columns.last; v++) {
        const int q = tap_of(p, 1, at.column, v);
        if (q < 0) continue;
        const int64_t k = (at.plane * p.result[0] + u) * p.result[1] + v;
        const int won = bytes ? ((const uint8_t *)where)[k] : ((const int32_t *)where)[k];
        if (won == r * p.kernel[1] + q) sum += gpu_load<C>(dy[k]);
      }
    }
    dx[i] = gpu_store<T>(sum);
  }
}

// ---- averages ----

/* Window i along one dim: elements begin .. end-1, and the extent that it counts for in the divisor. */
struct window {
  int begin, end;
  int64_t extent;
};
__device__ window window_of(const pooling &p, int d, int i) {
  const int size = p.size[d];
  if (p.adaptive) {
    const int begin = (int)((int64_t)i * size / p.result[d]);
    const int end = (int)((((int64_t)i + 1) * size + p.result[d] - 1) / p.result[d]);
    return {begin, end, end - begin};
  }
  const int64_t first = (int64_t)i * p.stride[d] - p.padding[d], last = first + p.kernel[d];
  const int begin = (int)(first < 0 ? 0 : first < size ? first : size);
  const int64_t top = last > size ? size : last;
  const int end = top < begin ? begin : (int)top;
  /* a window over the far end (ceil_mode) counts padding, never what lies beyond it */
  const int64_t padded = (int64_t)size + p.padding[d];
  return {begin, end, p.count_include_pad ? (last > padded ? padded : last) - first : end - begin};
}

template <typename T> __device__ gpu_compute_t<T> average(gpu_compute_t<T> sum, int64_t divisor) {
  typedef gpu_compute_t<T> C;
  return divisor == 0 ? (C)NAN : sum / (C)divisor;
}

template <typename T> __global__ void avg_kernel(pooling p, const T *x, T *y) {
  typedef gpu_compute_t<T> C;
  const int64_t n = p.planes * p.result[0] * p.result[1];
  GPU_LOOP(i, n) {
    const place at = place_of(i, p.result[0], p.result[1]);
    const window rows = window_of(p, 0, at.row), columns = window_of(p, 1, at.column);
    const T *plane = x + at.plane * p.size[0] * p.size[1];
    C sum = 0;
    for (int h = rows.begin; h < rows.end; h++)
      for (int w = columns.begin; w < columns.end; w++) sum += gpu_load<C>(plane[(int64_t)h * p.size[1] + w]);
    y[i] = gpu_store<T>(average<T>(sum, rows.extent * columns.extent));
  }
}

/* A warp a window: global averages, and others of many elements. */
template <typename T> __global__ void avg_large_kernel(pooling p, const T *x, T *y) {
  typedef gpu_compute_t<T> C;
  const int64_t n = p.planes * p.result[0] * p.result[1];
  for (int64_t i = (int64_t)blockIdx.x * gpu_warps() + gpu_warp_of_block(); i < n;
       i += (int64_t)gridDim.x * gpu_warps()) {
    const place at = place_of(i, p.result[0], p.result[1]);
    const window rows = window_of(p, 0, at.row), columns = window_of(p, 1, at.column);
    const T *first = x + (at.plane * p.size[0] + rows.begin) * p.size[1] + columns.begin;
    const int64_t wide = columns.end - columns.begin, count = (rows.end - rows.begin) * wide;
    C sum = 0;
    if (wide == p.size[1]) { /* whole rows lie in one piece */
      for (int64_t e = gpu_lane(); e < count; e += GPU_WARP) sum += gpu_load<C>(first[e]);
    } else {
      for (int64_t e = gpu_lane(); e < count; e += GPU_WARP)
        sum += gpu_load<C>(
            first[(int64_t)((uint64_t)e / (uint64_t)wide) * p.size[1] + (int64_t)((uint64_t)e % (uint64_t)wide)]);
    }
    sum = gpu_warp_reduce(sum, gpu_sum());
    if (gpu_lane() == 0) y[i] = gpu_store<T>(average<T>(sum, rows.extent * columns.extent));
  }
}

/* The first and the last averaging window along dim d that hold element h. */
__device__ span averages_of(const pooling &p, int d, int h) {
  if (!p.adaptive) return windows_of(p, d, h);
  const int64_t n = p.result[d], size = p.size[d];
  return {(int)(h * n / size), (int)(((h + 1) * n + size - 1) / size - 1)};
}

template <typename T> __global__ void avg_backward_kernel(pooling p, const T *dy, T *dx) {
  typedef gpu_compute_t<T> C;
  const int64_t n = p.planes * p.size[0] * p.size[1];
  GPU_LOOP(i, n) {
    const place at = place_of(i, p.size[0], p.size[1]);
    const span rows = averages_of(p, 0, at.row), columns = averages_of(p, 1, at.column);
    C sum = 0;
    for (int u = rows.first; u <= rows.last; u++) {
      const int64_t high = window_of(p, 0, u).extent;
      for (int v = columns.first; v <= columns.last; v++) {
        const int64_t divisor = high * window_of(p, 1, v).extent;
        sum += gpu_load<C>(dy[(at.plane * p.result[0] + u) * p.result[1] + v]) / (C)(divisor == 0 ? 1 : divisor);
      }
    }
    dx[i] = gpu_store<T>(sum);
  }
}

} // namespace

static int64_t x_numel(const tl_pooling *p) { return p->planes * p->size[0] * p->size[1]; }
static int64_t y_numel(const tl_pooling *p) { return p->planes * p->result[0] * p->result[1]; }

TL_CUDA_ENTRY(max_pool)(const tl_pooling *p, const void *x, void *y, void *where) {
  const int64_t n = y_numel(p);
  if (n == 0) return TL_OK;
  GPU_DISPATCH_FLOATING(p->dtype, T, {
    return gpu_launch(p->op, max_kernel<T>, gpu_blocks(n), GPU_BLOCK, 0, pooling_of(p), (const T *)x, (T *)y, where,
                      p->where_dtype == TL_UINT8);
  })
  return TL_OK;
}

TL_CUDA_ENTRY(max_pool_backward)(const tl_pooling *p, const void *dy, const void *where, void *dx) {
  const int64_t n = x_numel(p);
  if (n == 0) return TL_OK;
  GPU_DISPATCH_FLOATING(p->dtype, T, {
    return gpu_launch(p->op, max_backward_kernel<T>, gpu_blocks(n), GPU_BLOCK, 0, pooling_of(p), (const T *)dy, where,
                      p->where_dtype == TL_UINT8, (T *)dx);
  })
  return TL_OK;
}

/* Elements of a window from which a warp shares it. */
enum { LARGE_WINDOW = 64 };

TL_CUDA_ENTRY(avg_pool)(const tl_pooling *p, const void *x, void *y) {
  const int64_t n = y_numel(p);
  if (n == 0) return TL_OK;
  const int64_t window = p->adaptive ? x_numel(p) / n : p->kernel[0] * p->kernel[1];
  GPU_DISPATCH_FLOATING(p->dtype, T, {
    if (window >= LARGE_WINDOW)
      return gpu_launch(p->op, avg_large_kernel<T>, gpu_blocks(n * GPU_WARP), GPU_BLOCK, 0, pooling_of(p), (const T *)x,
                        (T *)y);
    return gpu_launch(p->op, avg_kernel<T>, gpu_blocks(n), GPU_BLOCK, 0, pooling_of(p), (const T *)x, (T *)y);
  })
  return TL_OK;
}

TL_CUDA_ENTRY(avg_pool_backward)(const tl_pooling *p, const void *dy, void *dx) {
  const int64_t n = x_numel(p);
  if (n == 0) return TL_OK;
  GPU_DISPATCH_FLOATING(p->dtype, T, {
    return gpu_launch(p->op, avg_backward_kernel<T>, gpu_blocks(n), GPU_BLOCK, 0, pooling_of(p), (const T *)dy,
                      (T *)dx);
  })
  return TL_OK;
}
