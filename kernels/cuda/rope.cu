// rope.cu: rotary position embedding: rows of x, wherever they lie, to contiguous rows of y. A thread has a pair, or an
// element that stays.
#include "element.h"

struct rope_rows {
  int ndim; // of x without its last
  int64_t shape[TL_MAX_DIMS], stride[TL_MAX_DIMS];
  int64_t length, width, pairs, rows;
  bool interleaved;
};

template <typename T>
static __global__ void rope_kernel(rope_rows r, const T *x, const gpu_compute_t<T> *cos, const gpu_compute_t<T> *sin,
                                   gpu_compute_t<T> sign, T *y) {
  typedef gpu_compute_t<T> C;
  const int64_t items = r.width - r.pairs;
  GPU_LOOP(e, r.rows * items) {
    const int64_t row = e / items, i = e % items;
    int64_t rest = row, from = 0;
    for (int d = r.ndim - 1; d >= 0; d--) {
      from += rest % r.shape[d] * r.stride[d];
      rest /= r.shape[d];
    }
    const T *p = x + from;
    T *q = y + row * r.width;
    if (i >= r.pairs) {
      q[i + r.pairs] = p[i + r.pairs];
      continue;
    }
    const int64_t first = r.interleaved ? 2 * i : i, second = r.interleaved ? first + 1 : r.pairs + i;
    const int64_t angle = row % r.length * r.pairs + i;
    const C a = gpu_load<C>(p[first]), b = gpu_load<C>(p[second]), c = cos[angle], s = sign * sin[angle];
    q[first] = gpu_store<T>(a * c - b * s);
    q[second] = gpu_store<T>(b * c + a * s);
  }
}

TL_CUDA_ENTRY(rope)(const tl_rope_args *a) {
  const tl_tensor *x = a->x;
  rope_rows r = {};
  r.ndim = x->ndim - 1;
  for (int d = 0; d < r.ndim; d++) r.shape[d] = x->shape[d], r.stride[d] = x->strides[d];
  r.length = x->shape[x->ndim - 2], r.width = x->shape[x->ndim - 1], r.pairs = a->cos->shape[1];
  r.rows = x->numel / r.width;
  r.interleaved = a->interleaved;
  GPU_DISPATCH_FLOATING(x->dtype, T, {
    typedef gpu_compute_t<T> C;
    return gpu_launch("rope", rope_kernel<T>, gpu_blocks(r.rows * (r.width - r.pairs)), GPU_BLOCK, 0, r,
                      (const T *)tl_first(x), (const C *)tl_first(a->cos), (const C *)tl_first(a->sin),
                      (C)(a->back ? -1 : 1), (T *)tl_first(a->y));
  })
  return TL_OK;
}
