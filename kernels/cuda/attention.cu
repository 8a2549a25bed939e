// attention.cu: scaled dot-product attention and its gradients. A block has a tile of queries (or, for the gradients of
// keys and values, of keys) and walks over the tiles of the other side; the weights of one pair of tiles exist at a
// time, in shared memory (Dao et al. 2022). Every sum has one owner and one order: all runs give the same results.
//
// Products are float32 multiply-adds for the half types, too, not tensor cores. cuDNN's C interface (9.19) has attention
// as one operation, but no attribute for a causal or added mask, nor for dropout: it is not used.
//
// The threads are a square: thread (y, x) has rows y, y + SIDE, .. and columns x, x + SIDE, .. of each product.
#include "element.h"
#include "philox.h"
#include "warp.h"

namespace {

enum { SIDE = 16, DEPTH = 16, WIDEST = 256 }; /* DEPTH: of a product's operands, in shared memory at a time */

/* One head's rows in a 4-d tensor, any strides, stored as the problem's dtype. Kernels are compiled for what they compute
 * in, C, and learn at run time how it is stored: five architectures of every combination take minutes to compile. */
struct rows {
  void *data;
  int64_t first, row, col;
};
struct view {
  void *data;
  int64_t stride[4];
  __device__ rows head(int64_t b, int64_t h) const {
    return {data, b * stride[0] + h * stride[1], stride[2], stride[3]};
  }
};

template <typename C> __device__ C load(int dtype, const rows &x, int64_t row, int64_t col) {
  const int64_t at = x.first + row * x.row + col * x.col;
  if constexpr (sizeof(C) == sizeof(double)) return ((const double *)x.data)[at];
  if (dtype == TL_FLOAT32) return ((const float *)x.data)[at];
  if (dtype == TL_FLOAT16) return gpu_load<C>(((const __half *)x.data)[at]);
  return gpu_load<C>(((const __nv_bfloat16 *)x.data)[at]);
}

template <typename C> __device__ void store(int dtype, const rows &x, int64_t row, int64_t col, C v) {
  const int64_t at = x.first + row * x.row + col * x.col;
  if constexpr (sizeof(C) == sizeof(double)) ((double *)x.data)[at] = v;
  else if (dtype == TL_FLOAT32) ((float *)x.data)[at] = v;
  else if (dtype == TL_FLOAT16) ((__half *)x.data)[at] = gpu_store<__half>(v);
  else ((__nv_bfloat16 *)x.data)[at] = gpu_store<__nv_bfloat16>(v);
}

struct problem {
  int64_t heads, kv_heads, group, length, keys; /* H, Hk, H / Hk, T, S */
  int width, v_width, dtype;                    /* D, V */
  view q, k, v, out, g, dq, dk, dv, mask;
  bool causal, masked, bool_mask;
  double scale, keep_scale;
  uint32_t drop_below; /* 0: nothing is dropped */
  uint64_t seed, offset;
  const tl_cuda_random_base *base;
  void *lse, *delta; /* (B, H, T), compute */
};

/* dst (n, columns), rows of `ld`, = elements of x from (first, column) on; 0 where x ends. columns is a power of 2. */
template <typename C>
__device__ void stage(C *dst, int ld, int dtype, const rows &x, int64_t first, int64_t end, int n, int column, int width,
                      int columns) {
  for (int i = (int)threadIdx.x; i < n * columns; i += SIDE * SIDE) {
    const int r = i / columns, c = i % columns;
    const bool inside = first + r < end && column + c < width;
    dst[r * ld + c] = inside ? load<C>(dtype, x, first + r, column + c) : (C)0;
  }
}

/* s[i][j] = the products of row (y + SIDE i) of a from `a0` on with row (x + SIDE j) of b from `b0` on */
template <int R, typename C>
__device__ void products(C s[R][R], int dtype, const rows &a, int64_t a0, int64_t a_end, const rows &b, int64_t b0,
                         int64_t b_end, int width, C *room) {
  const int y = (int)threadIdx.x / SIDE, x = (int)threadIdx.x % SIDE;
  C *as = room, *bs = room + R * SIDE * (DEPTH + 1);
#pragma unroll
  for (int i = 0; i < R; i++)
#pragma unroll
    for (int j = 0; j < R; j++) s[i][j] = 0;
  for (int d = 0; d < width; d += DEPTH) {
    __syncthreads(); /* the room is free again */
    stage<C>(as, DEPTH + 1, dtype, a, a0, a_end, R * SIDE, d, width, DEPTH);
    stage<C>(bs, DEPTH + 1, dtype, b, b0, b_end, R * SIDE, d, width, DEPTH);
    __syncthreads();
#pragma unroll 4
    for (int p = 0; p < DEPTH; p++) {
      C u[R], v[R];
#pragma unroll
      for (int i = 0; i < R; i++) u[i] = as[(y + SIDE * i) * (DEPTH + 1) + p];
#pragma unroll
      for (int j = 0; j < R; j++) v[j] = bs[(x + SIDE * j) * (DEPTH + 1) + p];
#pragma unroll
      for (int i = 0; i < R; i++)
#pragma unroll
        for (int j = 0; j < R; j++) s[i][j] += u[i] * v[j];
    }
  }
}

/* The room that products() and add_products() share: two operands DEPTH deep */
template <int R> constexpr int ROOM = 2 * R * SIDE * (DEPTH + 1);

/* sum[i][j] += row (y + SIDE i) of w (R SIDE, R SIDE), or its column, times column (x + SIDE j) of b from row b0 */
template <int R, int WIDTH, bool COLUMNS, typename C>
__device__ void add_products(C sum[R][WIDTH / SIDE], const C *w, int dtype, const rows &b, int64_t b0, int64_t b_end,
                             int width, C *room) {
  enum { PART = ROOM<R> / WIDTH < R * SIDE ? ROOM<R> / WIDTH : R * SIDE, LD = R * SIDE + 1 };
  static_assert(PART > 0, "a row fits");
  const int y = (int)threadIdx.x / SIDE, x = (int)threadIdx.x % SIDE;
  for (int first = 0; first < R * SIDE; first += PART) {
    const int n = R * SIDE - first < PART ? R * SIDE - first : PART;
    __syncthreads(); /* w is complete, and the room is free */
    stage<C>(room, WIDTH, dtype, b, b0 + first, b_end, n, 0, width, WIDTH);
    __syncthreads();
    for (int p = 0; p < n; p++) {
      C u[R];
#pragma unroll
      for (int i = 0; i < R; i++)
        u[i] = COLUMNS ? w[(first + p) * LD + y + SIDE * i] : w[(y + SIDE * i) * LD + first + p];
#pragma unroll
      for (int j = 0; j < WIDTH / SIDE; j++) {
        const C v = room[p * WIDTH + x + SIDE * j];
#pragma unroll
        for (int i = 0; i < R; i++) sum[i][j] += u[i] * v;
      }
    }
  }
}

/* The score of query t and key s, -inf where it is hidden */
template <typename C> __device__ C score(const problem &p, C product, int64_t b, int64_t h, int64_t t, int64_t s) {
  if (t >= p.length || s >= p.keys || (p.causal && s > t)) return -(C)INFINITY;
  const C scaled = product * (C)p.scale;
  if (!p.masked) return scaled;
  const int64_t at = b * p.mask.stride[0] + h * p.mask.stride[1] + t * p.mask.stride[2] + s * p.mask.stride[3];
  if (p.bool_mask) return ((const uint8_t *)p.mask.data)[at] ? scaled : -(C)INFINITY;
  return scaled + ((const C *)p.mask.data)[at];
}

/* What the weight of query t and key s is multiplied with after dropout: number (b, h, t, s) of the stream decides. */
template <typename C> __device__ C kept(const problem &p, int64_t b, int64_t h, int64_t t, int64_t s) {
  const uint64_t number = p.offset + p.base->offset + (uint64_t)(((b * p.heads + h) * p.length + t) * p.keys + s);
  const tl_philox words = tl_philox_block(p.seed ^ p.base->seed, number / 4);
  const int k = (int)(number % 4);
  const uint32_t w = k == 0 ? words.word[0] : k == 1 ? words.word[1] : k == 2 ? words.word[2] : words.word[3];
  return w >> 8 < p.drop_below ? (C)0 : (C)p.keep_scale;
}

/* The factors of a pair of tiles, this thread's: each goes where its weight will be. Not unrolled, or the random numbers'
 * code would be there R * R times. */
template <int R, typename C>
__device__ void keep_some(const problem &p, int64_t b, int64_t h, int64_t t0, int64_t s0, C *w) {
  if (p.drop_below == 0) return;
  const int y = (int)threadIdx.x / SIDE, x = (int)threadIdx.x % SIDE;
#pragma unroll 1
  for (int i = y; i < R * SIDE; i += SIDE)
#pragma unroll 1
    for (int j = x; j < R * SIDE; j += SIDE) w[i * (R * SIDE + 1) + j] = kept<C>(p, b, h, t0 + i, s0 + j);
}

/* ---- forward ---- */

template <typename C, int WIDTH, int R>
__global__ void __launch_bounds__(SIDE *SIDE, 1) attention_kernel(const __grid_constant__ problem p) {
  enum { TILE = R * SIDE, LD = TILE + 1 };
  __shared__ C room[ROOM<R>], weights[TILE * LD];
  const int y = (int)threadIdx.x / SIDE, x = (int)threadIdx.x % SIDE;
  const int64_t tiles = (p.length + TILE - 1) / TILE, head = blockIdx.x / tiles, t0 = blockIdx.x % tiles * TILE;
  const int64_t b = head / p.heads, h = head % p.heads, kv = h / p.group;
  C sum[R][WIDTH / SIDE] = {}, most[R], total[R];
#pragma unroll
  for (int i = 0; i < R; i++) most[i] = -(C)INFINITY, total[i] = 0;
  const int64_t end = p.causal && t0 + TILE < p.keys ? t0 + TILE : p.keys;
  for (int64_t s0 = 0; s0 < end; s0 += TILE) {
    C s[R][R];
    products<R>(s, p.dtype, p.q.head(b, h), t0, p.length, p.k.head(b, kv), s0, p.keys, p.width, room);
    keep_some<R>(p, b, h, t0, s0, weights);
#pragma unroll
    for (int i = 0; i < R; i++) {
      const int64_t t = t0 + y + SIDE * i;
      C top = most[i], part = 0;
#pragma unroll
      for (int j = 0; j < R; j++) {
        s[i][j] = score(p, s[i][j], b, h, t, s0 + x + SIDE * j);
        top = s[i][j] > top ? s[i][j] : top;
      }
      top = gpu_warp_reduce<SIDE>(top, gpu_largest());
      const C shift = top == -(C)INFINITY ? (C)0 : top, factor = f_exp(most[i] - shift);
#pragma unroll
      for (int j = 0; j < R; j++) {
        const C e = f_exp(s[i][j] - shift);
        const int at = (y + SIDE * i) * LD + x + SIDE * j;
        part += e;
        weights[at] = p.drop_below == 0 ? e : e * weights[at];
      }
      total[i] = total[i] * factor + gpu_warp_reduce<SIDE>(part, gpu_sum());
      most[i] = top;
#pragma unroll
      for (int j = 0; j < WIDTH / SIDE; j++) sum[i][j] *= factor;
    }
    add_products<R, WIDTH, false>(sum, weights, p.dtype, p.v.head(b, kv), s0, p.keys, p.v_width, room);
  }
  const rows out = p.out.head(b, h);
#pragma unroll
  for (int i = 0; i < R; i++) {
    const int64_t t = t0 + y + SIDE * i;
    if (t >= p.length) continue;
    const C inverse = 1 / total[i];
#pragma unroll
    for (int j = 0; j < WIDTH / SIDE; j++)
      if (x + SIDE * j < p.v_width)
        store<C>(p.dtype, out, t, x + SIDE * j, total[i] == 0 ? (C)0 : sum[i][j] * inverse);
    if (p.lse != nullptr && x == 0)
      ((C *)p.lse)[head * p.length + t] = total[i] == 0 ? -(C)INFINITY : most[i] + f_log(total[i]);
  }
}

/* ---- backward: P = exp(scores - lse), dS = P (g V^T - delta), delta the sum of g out over a row ---- */

template <typename C> __global__ void attention_delta_kernel(const __grid_constant__ problem p, int64_t queries) {
  for (int64_t i = (int64_t)blockIdx.x * gpu_warps() + gpu_warp_of_block(); i < queries;
       i += (int64_t)gridDim.x * gpu_warps()) {
    const int64_t head = i / p.length, t = i % p.length;
    const rows g = p.g.head(head / p.heads, head % p.heads), out = p.out.head(head / p.heads, head % p.heads);
    C sum = 0;
    for (int d = gpu_lane(); d < p.v_width; d += GPU_WARP)
      sum += load<C>(p.dtype, g, t, d) * load<C>(p.dtype, out, t, d);
    sum = gpu_warp_reduce(sum, gpu_sum());
    if (gpu_lane() == 0) ((C *)p.delta)[i] = sum;
  }
}

/* dS of a pair of tiles, rows of queries, or P as it weights the values: where it is not NULL */
template <int R, typename C>
__device__ void weights_grad(const problem &p, int64_t b, int64_t h, int64_t t0, int64_t s0, C *room, C *ds, C *w) {
  enum { LD = R * SIDE + 1 };
  const int y = (int)threadIdx.x / SIDE, x = (int)threadIdx.x % SIDE;
  C s[R][R], d[R][R];
  products<R>(s, p.dtype, p.q.head(b, h), t0, p.length, p.k.head(b, h / p.group), s0, p.keys, p.width, room);
  products<R>(d, p.dtype, p.g.head(b, h), t0, p.length, p.v.head(b, h / p.group), s0, p.keys, p.v_width, room);
  keep_some<R>(p, b, h, t0, s0, w != nullptr ? w : ds);
#pragma unroll
  for (int i = 0; i < R; i++) {
    const int64_t t = t0 + y + SIDE * i, row = (b * p.heads + h) * p.length + t;
    const C lse = t < p.length ? ((const C *)p.lse)[row] : -(C)INFINITY;
    const C delta = t < p.length ? ((const C *)p.delta)[row] : (C)0;
#pragma unroll
    for (int j = 0; j < R; j++) {
      const int64_t k = s0 + x + SIDE * j;
      const C e = lse == -(C)INFINITY ? (C)0 : f_exp(score(p, s[i][j], b, h, t, k) - lse);
      const int at = (y + SIDE * i) * LD + x + SIDE * j;
      const C keep = p.drop_below == 0 ? (C)1 : (w != nullptr ? w : ds)[at];
      if (w != nullptr) w[at] = e * keep;
      if (ds != nullptr) ds[at] = e == 0 ? (C)0 : e * (d[i][j] * keep - delta);
    }
  }
}

/* Row (y + SIDE i) of sum, times factor, is row (first + y + SIDE i) of to. */
template <int R, int WIDTH, typename C>
__device__ void store_tile(const C sum[R][WIDTH / SIDE], int dtype, const rows &to, int64_t first, int64_t end, int width, C factor) {
  const int y = (int)threadIdx.x / SIDE, x = (int)threadIdx.x % SIDE;
#pragma unroll
  for (int i = 0; i < R; i++) {
    const int64_t r = first + y + SIDE * i;
#pragma unroll
    for (int j = 0; j < WIDTH / SIDE; j++)
      if (r < end && x + SIDE * j < width)
        store<C>(dtype, to, r, x + SIDE * j, sum[i][j] * factor);
  }
}

template <typename C, int WIDTH, int R>
__global__ void __launch_bounds__(SIDE *SIDE, 1) attention_dq_kernel(const __grid_constant__ problem p) {
  enum { TILE = R * SIDE, LD = TILE + 1 };
  __shared__ C room[ROOM<R>], ds[TILE * LD];
  const int64_t tiles = (p.length + TILE - 1) / TILE, head = blockIdx.x / tiles, t0 = blockIdx.x % tiles * TILE;
  const int64_t b = head / p.heads, h = head % p.heads;
  C sum[R][WIDTH / SIDE] = {};
  const int64_t end = p.causal && t0 + TILE < p.keys ? t0 + TILE : p.keys;
  for (int64_t s0 = 0; s0 < end; s0 += TILE) {
    weights_grad<R>(p, b, h, t0, s0, room, ds, (C *)nullptr);
    add_products<R, WIDTH, false>(sum, ds, p.dtype, p.k.head(b, h / p.group), s0, p.keys, p.width, room);
  }
  store_tile<R, WIDTH>(sum, p.dtype, p.dq.head(b, h), t0, p.length, p.width, (C)p.scale);
}

/* The gradients of a tile of keys, or (VALUES) of values, from all queries of the heads that share them. */
template <typename C, int WIDTH, int R, bool VALUES>
__global__ void __launch_bounds__(SIDE *SIDE, 1) attention_dkv_kernel(const __grid_constant__ problem p) {
  enum { TILE = R * SIDE, LD = TILE + 1 };
  __shared__ C room[ROOM<R>], w[TILE * LD];
  const int64_t tiles = (p.keys + TILE - 1) / TILE, head = blockIdx.x / tiles, s0 = blockIdx.x % tiles * TILE;
  const int64_t b = head / p.kv_heads, kv = head % p.kv_heads;
  C sum[R][WIDTH / SIDE] = {};
  for (int64_t h = kv * p.group; h < (kv + 1) * p.group; h++)
    for (int64_t t0 = p.causal ? s0 : 0; t0 < p.length; t0 += TILE) { /* both tiles are as large */
      weights_grad<R>(p, b, h, t0, s0, room, VALUES ? (C *)nullptr : w, VALUES ? w : (C *)nullptr);
      const rows x = VALUES ? p.g.head(b, h) : p.q.head(b, h);
      add_products<R, WIDTH, true>(sum, w, p.dtype, x, t0, p.length, VALUES ? p.v_width : p.width, room);
    }
  if (VALUES) store_tile<R, WIDTH>(sum, p.dtype, p.dv.head(b, kv), s0, p.keys, p.v_width, (C)1);
  else store_tile<R, WIDTH>(sum, p.dtype, p.dk.head(b, kv), s0, p.keys, p.width, (C)p.scale);
}

/* ---- entries ---- */

view view_of(tl_tensor *t) {
  view v = {};
  if (t == nullptr) return v;
  v.data = tl_first(t);
  for (int d = 0; d < 4; d++) v.stride[d] = t->strides[d];
  return v;
}

problem problem_of(const tl_attention_args *a) {
  problem p = {};
  p.heads = a->q->shape[1];
  p.kv_heads = a->k->shape[1];
  p.group = p.heads / p.kv_heads;
  p.length = a->q->shape[2];
  p.keys = a->k->shape[2];
  p.width = (int)a->q->shape[3];
  p.v_width = (int)a->v->shape[3];
  p.dtype = a->q->dtype;
  p.q = view_of(a->q);
  p.k = view_of(a->k);
  p.v = view_of(a->v);
  p.out = view_of(a->out);
  p.mask = view_of(a->mask);
  p.causal = a->causal;
  p.masked = a->mask != nullptr;
  p.bool_mask = p.masked && a->mask->dtype == TL_BOOL;
  p.scale = a->scale;
  p.keep_scale = a->dropout < 1 ? 1 / (1 - a->dropout) : 0;
  p.drop_below = (uint32_t)ceil(a->dropout * 0x1p24);
  p.seed = a->seed;
  p.offset = a->offset;
  p.base = tl_cuda_here()->random;
  p.lse = a->lse == nullptr ? nullptr : tl_first(a->lse);
  return p;
}

tl_status check(const char *op, const tl_attention_args *a) {
  const int64_t width = a->q->shape[3], v_width = a->v->shape[3];
  if (width <= WIDEST && v_width <= WIDEST) return TL_OK;
  return TL_FAIL(TL_ERR_UNSUPPORTED, op, "heads of %lld and %lld elements: on CUDA they have at most %d",
                 (long long)width, (long long)v_width, (int)WIDEST);
}

tl_status grid(const char *op, int64_t batch, int64_t heads, int64_t length, int tile, unsigned *blocks) {
  const int64_t n = batch * heads * ((length + tile - 1) / tile);
  if (n > INT32_MAX) return TL_FAIL(TL_ERR_UNSUPPORTED, op, "%lld tiles: a launch has at most 2^31", (long long)n);
  *blocks = (unsigned)n;
  return TL_OK;
}

template <typename C, int WIDTH, int R> tl_status forward(const tl_attention_args *a) {
  const problem p = problem_of(a);
  const char *op = "scaled_dot_product_attention";
  unsigned blocks = 0;
  TL_TRY(grid(op, a->q->shape[0], p.heads, p.length, R * SIDE, &blocks));
  return gpu_launch(op, attention_kernel<C, WIDTH, R>, blocks, SIDE * SIDE, 0, p);
}

template <typename C, int WIDTH, int R> tl_status backward_tiles(const tl_attention_grad_args *a, const problem &p) {
  const char *op = "scaled_dot_product_attention_grad";
  const int64_t batch = a->in.q->shape[0];
  unsigned queries = 0, keys = 0;
  TL_TRY(grid(op, batch, p.heads, p.length, R * SIDE, &queries));
  TL_TRY(grid(op, batch, p.kv_heads, p.keys, R * SIDE, &keys));
  if (a->dq != nullptr) TL_TRY(gpu_launch(op, attention_dq_kernel<C, WIDTH, R>, queries, SIDE * SIDE, 0, p));
  if (a->dk != nullptr) TL_TRY(gpu_launch(op, attention_dkv_kernel<C, WIDTH, R, false>, keys, SIDE * SIDE, 0, p));
  if (a->dv != nullptr) TL_TRY(gpu_launch(op, attention_dkv_kernel<C, WIDTH, R, true>, keys, SIDE * SIDE, 0, p));
  return TL_OK;
}

template <typename C, int WIDTH, int R> tl_status backward(const tl_attention_grad_args *a) {
  const char *op = "scaled_dot_product_attention_grad";
  problem p = problem_of(&a->in);
  p.g = view_of(a->g);
  p.dq = view_of(a->dq);
  p.dk = view_of(a->dk);
  p.dv = view_of(a->dv);
  const int64_t rows = a->in.q->shape[0] * p.heads * p.length;
  const size_t bytes = (size_t)rows * sizeof(C);
  p.delta = tl_cuda_scratch(op, bytes);
  if (p.delta == nullptr) return TL_ERR_MEMORY;
  tl_status st = gpu_launch(op, attention_delta_kernel<C>, gpu_blocks(rows * GPU_WARP), GPU_BLOCK, 0, p, rows);
  if (st == TL_OK) st = backward_tiles<C, WIDTH, R>(a, p);
  tl_cuda_scratch_free(p.delta, bytes);
  return st;
}

/* The type that is computed in, the width of rows, and the tiles that leave their sums in registers. float64 is for
 * checks: one kernel serves all widths. */
#define DISPATCH(dtype, width, function, args)                                 \
  do {                                                                         \
    if ((dtype) == TL_FLOAT64) return function<double, WIDEST, 1>(args);       \
    if ((width) <= 64) return function<float, 64, 4>(args);                    \
    if ((width) <= 128) return function<float, 128, 4>(args);                  \
    return function<float, WIDEST, 2>(args);                                   \
  } while (0)

} // namespace

TL_CUDA_ENTRY(attention)(const tl_attention_args *a) {
  TL_TRY(check("scaled_dot_product_attention", a));
  const int64_t width = a->q->shape[3] > a->v->shape[3] ? a->q->shape[3] : a->v->shape[3];
  DISPATCH(a->q->dtype, width, forward, a);
}

TL_CUDA_ENTRY(attention_grad)(const tl_attention_grad_args *a) {
  TL_TRY(check("scaled_dot_product_attention_grad", &a->in));
  const int64_t width = a->in.q->shape[3] > a->in.v->shape[3] ? a->in.q->shape[3] : a->in.v->shape[3];
  DISPATCH(a->g->dtype, width, backward, a);
}
