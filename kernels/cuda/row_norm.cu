// row_norm.cu: layer norm (Ba, Kiros & Hinton 2016), group norm, RMS norm and their gradients. A warp has a short row,
// a block a long one. A row is read once and kept in shared memory, as far as that has room, for the two passes of its
// statistics (mean, then squares round it: nothing cancels in float32) and the result. Each thread reads back only what
// it stored itself. The gradients of weight and bias are sums over parts of the rows (channels.h), added up in order.
#include "channels.h"
#include "element.h"
#include "warp.h"

namespace {

enum {
  SHARED = (48 << 10) - 512, /* bytes that a block may have on every device without asking, less those of sums */
  WARP_ROW = 1024,           /* elements that a warp takes */
  LONG_ROW = 8192,           /* elements from which a block is larger */
  LONG_BLOCK = 512
};

/* Rows of n = channels * inner elements. `lanes` threads have one row: a warp or the block. */
struct rows {
  int64_t rows, groups, channels, inner;
  int lanes;
  bool cached;
};

/* `arrays` values of compute type C are kept of each element, V elements are read at once. */
struct plan {
  rows r;
  unsigned blocks;
  int block;
  size_t shared;
};
template <typename C> plan plan_of(int64_t count, int64_t groups, int64_t channels, int64_t inner, int arrays, int v) {
  const int64_t n = channels * inner;
  plan p = {{count, groups, channels, inner, GPU_WARP, true}, 0, n < LONG_ROW ? (int)GPU_BLOCK : (int)LONG_BLOCK, 0};
  for (;;) {
    const int64_t round = (int64_t)p.r.lanes * v, kept = (n + round - 1) / round * round;
    const int64_t bytes = kept * (p.block / p.r.lanes) * arrays * (int64_t)sizeof(C);
    p.r.cached = bytes <= SHARED;
    p.shared = p.r.cached ? (size_t)bytes : 0;
    if (p.r.lanes == p.block || (n <= WARP_ROW && p.r.cached)) break;
    p.r.lanes = p.block;
  }
  p.blocks = gpu_blocks(count * p.r.lanes);
  return p;
}

template <typename T, int V> struct alignas(V * sizeof(T)) pack { T at[V]; };

/* Over the threads of a row */
template <typename C> __device__ C row_sum(C v, int lanes) {
  return lanes == GPU_WARP ? gpu_warp_reduce(v, gpu_sum()) : gpu_block_sum(v);
}

/* Where thread `lane` keeps value k * V + j of its row: neighbours in neighbouring banks. */
#define KEPT(k) ((k)*r.lanes + lane)
/* What a row's thread does for its elements: e is the index of a pack's first element, k counts the packs. */
#define FOR_PACKS(e, k) for (int64_t e = (int64_t)lane * V, k = 0; e < n; e += (int64_t)r.lanes * V, k += V)
/* The rows of this block's threads. A warp with a row of its own may end before the others. */
#define FOR_ROWS(row)                                                                                    \
  for (int64_t row = (int64_t)blockIdx.x * (blockDim.x / r.lanes) + threadIdx.x / r.lanes; row < r.rows; \
       row += (int64_t)gridDim.x * (blockDim.x / r.lanes))

template <typename T, int V>
__global__ void row_norm_kernel(const T *x, rows r, const gpu_compute_t<T> *w, const gpu_compute_t<T> *b, bool centre,
                                gpu_compute_t<T> eps, T *y, gpu_compute_t<T> *mean, gpu_compute_t<T> *invstd) {
  typedef gpu_compute_t<T> C;
  typedef pack<T, V> P;
  GPU_SHARED(C, shared);
  const int lane = (int)threadIdx.x % r.lanes, slot = (int)threadIdx.x / r.lanes;
  const int64_t n = r.channels * r.inner, round = (int64_t)r.lanes * V;
  C *kept = shared + slot * ((n + round - 1) / round * round);
  FOR_ROWS(row) {
    const T *from = x + row * n;
    C sum = 0;
    FOR_PACKS(e, k) {
      const P v = *(const P *)(from + e);
#pragma unroll
      for (int j = 0; j < V; j++) {
        const C value = gpu_load<C>(v.at[j]);
        sum += value;
        if (r.cached) kept[KEPT(k + j)] = value;
      }
    }
    const C m = centre ? row_sum(sum, r.lanes) / (C)n : (C)0;
    C s1 = 0, s2 = 0;
    FOR_PACKS(e, k) {
      const P v = r.cached ? P() : *(const P *)(from + e);
#pragma unroll
      for (int j = 0; j < V; j++) {
        const C d = (r.cached ? kept[KEPT(k + j)] : gpu_load<C>(v.at[j])) - m;
        s1 += d;
        s2 += d * d;
      }
    }
    const C rest = centre ? row_sum(s1, r.lanes) / (C)n : (C)0; /* what the rounding of m left */
    const C var = row_sum(s2, r.lanes) / (C)n - rest * rest;
    const C scale = (C)1 / (C)sqrt((var > 0 || var != var ? var : (C)0) + eps), offset = -rest * scale;
    if (lane == 0) {
      if (mean != nullptr) mean[row] = m;
      invstd[row] = scale;
    }
    const int64_t first = r.groups == 1 ? 0 : row % r.groups * r.channels;
    FOR_PACKS(e, k) {
      P v = r.cached ? P() : *(const P *)(from + e);
#pragma unroll
      for (int j = 0; j < V; j++) {
        const int64_t c = first + (r.inner == 1 ? e + j : (int64_t)((uint64_t)(e + j) / (uint64_t)r.inner));
        C value = ((r.cached ? kept[KEPT(k + j)] : gpu_load<C>(v.at[j])) - m) * scale + offset;
        if (w != nullptr) value *= w[c];
        if (b != nullptr) value += b[c];
        v.at[j] = gpu_store<T>(value);
      }
      *(P *)(y + row * n + e) = v;
    }
  }
}

/* dx = rstd g w + q (x - mean) + k; kept are g w and x - mean */
template <typename T, int V>
__global__ void row_norm_grad_kernel(const T *g, const T *x, rows r, const gpu_compute_t<T> *w,
                                     const gpu_compute_t<T> *mean, const gpu_compute_t<T> *invstd, T *dx) {
  typedef gpu_compute_t<T> C;
  typedef pack<T, V> P;
  GPU_SHARED(C, shared);
  const int lane = (int)threadIdx.x % r.lanes, slot = (int)threadIdx.x / r.lanes;
  const int64_t n = r.channels * r.inner, round = (int64_t)r.lanes * V, room = (n + round - 1) / round * round;
  C *kept_g = shared + slot * 2 * room, *kept_x = kept_g + room;
  FOR_ROWS(row) {
    const int64_t first = r.groups == 1 ? 0 : row % r.groups * r.channels;
    const C m = mean == nullptr ? (C)0 : mean[row], rstd = invstd[row];
    const T *from_g = g + row * n, *from_x = x + row * n;
    C sg = 0, sgx = 0;
    FOR_PACKS(e, k) {
      const P a = *(const P *)(from_g + e), b = *(const P *)(from_x + e);
#pragma unroll
      for (int j = 0; j < V; j++) {
        const int64_t c = first + (r.inner == 1 ? e + j : (int64_t)((uint64_t)(e + j) / (uint64_t)r.inner));
        const C d = gpu_load<C>(b.at[j]) - m, gw = gpu_load<C>(a.at[j]) * (w == nullptr ? (C)1 : w[c]);
        sg += gw;
        sgx += gw * d;
        if (!r.cached) continue;
        kept_g[KEPT(k + j)] = gw;
        kept_x[KEPT(k + j)] = d;
      }
    }
    const C q = -rstd * (rstd * (rstd * (row_sum(sgx, r.lanes) / (C)n)));
    const C shift = mean == nullptr ? (C)0 : -rstd * (row_sum(sg, r.lanes) / (C)n);
    FOR_PACKS(e, k) {
      P a = r.cached ? P() : *(const P *)(from_g + e);
      const P b = r.cached ? P() : *(const P *)(from_x + e);
#pragma unroll
      for (int j = 0; j < V; j++) {
        C gw, d;
        if (r.cached) {
          gw = kept_g[KEPT(k + j)];
          d = kept_x[KEPT(k + j)];
        } else {
          const int64_t c = first + (r.inner == 1 ? e + j : (int64_t)((uint64_t)(e + j) / (uint64_t)r.inner));
          gw = gpu_load<C>(a.at[j]) * (w == nullptr ? (C)1 : w[c]);
          d = gpu_load<C>(b.at[j]) - m;
        }
        a.at[j] = gpu_store<T>(rstd * gw + (q * d + shift));
      }
      *(P *)(dx + row * n + e) = a;
    }
  }
}

/* dw, db (channels; each may be NULL) = the parts' sums */
template <typename C>
__global__ void add_parts_kernel(const C *parts, tl_cuda_channels c, tl_cuda_part_sums add, C *dw, C *db) {
  GPU_LOOP(i, add.threads) {
    const int lane = (int)i & (add.lanes - 1);
    const int64_t k = i / add.lanes, from = k < c.channels ? k : 0;
    const double sg =
        gpu_part_sum(c.splits, lane, add.lanes, [&](int64_t p) { return (double)parts[p * 2 * c.channels + from]; });
    const double sgx = gpu_part_sum(c.splits, lane, add.lanes,
                                    [&](int64_t p) { return (double)parts[(p * 2 + 1) * c.channels + from]; });
    if (lane > 0 || k >= c.channels) continue;
    if (dw != nullptr) dw[k] = (C)sgx;
    if (db != nullptr) db[k] = (C)sg;
  }
}

template <typename C> C *array(tl_tensor *t) { return t == NULL ? NULL : (C *)tl_first(t); }

/* Rows that are whole 16-byte vectors, and lie so */
template <typename T> bool packs(int64_t n, const void *a, const void *b, const void *c) {
  return n % gpu_vector<T>::N == 0 && gpu_aligned(a) && gpu_aligned(b) && gpu_aligned(c);
}

template <typename T, int V> tl_status forward(const tl_row_norm_args *a) {
  typedef gpu_compute_t<T> C;
  const plan p = plan_of<C>(a->rows, a->groups, a->channels, a->inner, 1, V);
  return gpu_launch("layer_norm", row_norm_kernel<T, V>, p.blocks, p.block, p.shared, array<T>(a->x), p.r,
                    array<C>(a->w), array<C>(a->b), a->centre, a->eps, array<T>(a->y), array<C>(a->mean),
                    array<C>(a->invstd));
}

template <typename T, int V> tl_status backward(const tl_row_norm_grad_args *a) {
  typedef gpu_compute_t<T> C;
  const plan p = plan_of<C>(a->rows, a->groups, a->channels, a->inner, 2, V);
  return gpu_launch("layer_norm", row_norm_grad_kernel<T, V>, p.blocks, p.block, p.shared, array<T>(a->g),
                    array<T>(a->x), p.r, array<C>(a->w), array<C>(a->mean), array<C>(a->invstd), array<T>(a->dx));
}

/* The rows of all groups side by side are (rows / groups, groups * channels, inner). */
template <typename T> tl_status parameters(const tl_row_norm_grad_args *a) {
  typedef gpu_compute_t<T> C;
  const char *op = "layer_norm";
  const int64_t n = a->groups * a->channels;
  if (n == 0 || (a->dw == NULL && a->db == NULL)) return TL_OK;
  const tl_cuda_channels c = tl_cuda_channels_of(a->rows / a->groups, n, a->inner);
  const tl_cuda_part_sums add = tl_cuda_part_sums_of(&c);
  const size_t bytes = (size_t)(2 * c.splits * n) * sizeof(C);
  C *parts = (C *)tl_cuda_scratch(op, bytes);
  if (parts == NULL) return TL_ERR_MEMORY;
  tl_status st = tl_cuda_channel_sums(op, &c, a->x->dtype, tl_first(a->g), tl_first(a->x), array<C>(a->mean),
                                      tl_first(a->invstd), a->groups, a->channels, parts);
  if (st == TL_OK)
    st = gpu_launch(op, add_parts_kernel<C>, gpu_blocks(add.threads), GPU_BLOCK, 0, parts, c, add, array<C>(a->dw),
                    array<C>(a->db));
  tl_cuda_scratch_free(parts, bytes);
  return st;
}

} // namespace

TL_CUDA_ENTRY(row_norm)(const tl_row_norm_args *a) {
  if (a->x->numel == 0) return TL_OK;
  GPU_DISPATCH_FLOATING(a->x->dtype, T, {
    if (packs<T>(a->channels * a->inner, tl_first(a->x), tl_first(a->y), NULL)) return forward<T, gpu_vector<T>::N>(a);
    return forward<T, 1>(a);
  })
  return TL_OK;
}

TL_CUDA_ENTRY(row_norm_grad)(const tl_row_norm_grad_args *a) {
  GPU_DISPATCH_FLOATING(a->x->dtype, T, {
    TL_TRY(parameters<T>(a));
    if (a->dx == NULL || a->x->numel == 0) return TL_OK;
    if (packs<T>(a->channels * a->inner, tl_first(a->x), tl_first(a->g), tl_first(a->dx)))
      return backward<T, gpu_vector<T>::N>(a);
    return backward<T, 1>(a);
  })
  return TL_OK;
}
