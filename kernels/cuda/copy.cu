// copy.cu: copies with conversion between any dtypes and strides.
//
// Where the dtype stays, bytes move in words as wide as the rows and their addresses allow (16 where they can), and a
// transposition goes through shared memory, so that both sides are read and written in rows. Conversions are pointwise.
#include "pointwise.h"

// ---- bytes that only move ----

struct alignas(16) word16 {
  uint64_t a, b;
};

struct mover {
  gpu_walk<2> walk;
  char *to;
  const char *from;
  uint32_t n;
};

template <typename W> static __global__ void __launch_bounds__(GPU_BLOCK) move_kernel(mover m) {
#pragma unroll 1
  for (uint32_t i = blockIdx.x * GPU_BLOCK + threadIdx.x; i < m.n; i += gridDim.x * GPU_BLOCK) {
    int64_t at[2];
    gpu_offsets<2>(m.walk, i, at);
    *(W *)(m.to + at[0]) = *(const W *)(m.from + at[1]);
  }
}

enum { TILE = 32, TILE_ROWS = GPU_BLOCK / TILE };

// Rows of the target are columns of the source: `rows` lie `step` bytes apart in the target and side by side in the
// source, `columns` the other way round. m.walk leads to the matrices.
struct turner {
  mover m; // m.n: matrices
  uint32_t rows, columns;
  int64_t row_step, column_step; // bytes: of the target's rows, of the source's columns
};

template <typename W> static __global__ void __launch_bounds__(GPU_BLOCK) turn_kernel(turner t) {
  __shared__ W tile[TILE][TILE + 1];
  const uint32_t x = threadIdx.x % TILE, y = threadIdx.x / TILE;
  const uint32_t across = (t.columns + TILE - 1) / TILE, tiles = (t.rows + TILE - 1) / TILE * across;
  const uint64_t all = (uint64_t)tiles * t.m.n;
#pragma unroll 1
  for (uint64_t i = blockIdx.x; i < all; i += gridDim.x) {
    const uint32_t matrix = (uint32_t)(i / tiles), here = (uint32_t)(i % tiles);
    const uint32_t row = here / across * TILE, column = here % across * TILE;
    int64_t at[2];
    gpu_offsets<2>(t.m.walk, matrix, at);
    const char *from = t.m.from + at[1] + (int64_t)(row + x) * (int64_t)sizeof(W);
    for (uint32_t k = y; k < TILE; k += TILE_ROWS)
      if (row + x < t.rows && column + k < t.columns) tile[k][x] = *(const W *)(from + (column + k) * t.column_step);
    __syncthreads();
    char *to = t.m.to + at[0] + (int64_t)(column + x) * (int64_t)sizeof(W);
    for (uint32_t k = y; k < TILE; k += TILE_ROWS)
      if (column + x < t.columns && row + k < t.rows) *(W *)(to + (row + k) * t.row_step) = tile[x][k];
    __syncthreads();
  }
}

// The dim along which the source is contiguous, if it is worth a transposition; else -1.
static int turned_dim(const tl_iter *it, int64_t size) {
  int inner = it->ndim - 1;
  if (it->op[0].stride[inner] != size || it->op[1].stride[inner] == size || it->shape[inner] < 8) return -1;
  for (int d = 0; d < inner; d++)
    if (it->op[1].stride[d] == size && it->shape[d] >= 8) return d;
  return -1;
}

template <typename W> static tl_status turn(const tl_iter *it, int dim) {
  turner t = {};
  int inner = it->ndim - 1;
  t.rows = (uint32_t)it->shape[dim];
  t.columns = (uint32_t)it->shape[inner];
  t.row_step = it->op[0].stride[dim];
  t.column_step = it->op[1].stride[inner];
  tl_iter rest = *it;
  for (int d = dim; d < inner - 1; d++) {
    rest.shape[d] = rest.shape[d + 1];
    for (int o = 0; o < 2; o++) rest.op[o].stride[d] = rest.op[o].stride[d + 1];
  }
  rest.ndim = it->ndim - 2;
  t.m.n = (uint32_t)(it->numel / it->shape[dim] / it->shape[inner]);
  if (rest.ndim == 0) {
    rest.ndim = 1;
    rest.shape[0] = 1;
    rest.op[0].stride[0] = rest.op[1].stride[0] = 0;
  }
  t.m.walk = gpu_walk_of<2>(&rest, 0, rest.ndim);
  t.m.to = it->op[0].data;
  t.m.from = it->op[1].data;
  int64_t tiles = (int64_t)((t.rows + TILE - 1) / TILE) * ((t.columns + TILE - 1) / TILE) * t.m.n;
  return gpu_launch("transpose", turn_kernel<W>, gpu_blocks(tiles * GPU_BLOCK), GPU_BLOCK, 0, t);
}

template <typename W> static tl_status move(const tl_iter *it) {
  int dim = turned_dim(it, sizeof(W));
  if (sizeof(W) <= 8 && dim >= 0) return turn<W>(it, dim);
  mover m = {gpu_walk_of<2>(it, 0, it->ndim), it->op[0].data, it->op[1].data, (uint32_t)it->numel};
  return gpu_launch("copy", move_kernel<W>, gpu_blocks(m.n), GPU_BLOCK, 0, m);
}

// Rows of neighbours become rows of the widest words that sizes, steps and addresses are multiples of.
static int64_t widen(tl_iter *it, int64_t size) {
  int inner = it->ndim - 1;
  if (it->op[0].stride[inner] != size || it->op[1].stride[inner] != size) return size;
  uint64_t all = (uint64_t)(it->shape[inner] * size) | 16;
  for (int o = 0; o < 2; o++) {
    all |= (uint64_t)(uintptr_t)it->op[o].data;
    for (int d = 0; d < inner; d++) all |= (uint64_t)it->op[o].stride[d];
  }
  int64_t word = (int64_t)(all & (~all + 1));
  if (word <= size) return size;
  it->shape[inner] = it->shape[inner] * size / word;
  it->numel = it->numel / (word / size);
  it->op[0].stride[inner] = it->op[1].stride[inner] = word;
  return word;
}

static tl_status move_all(const tl_iter *it) {
  tl_iter wide = *it;
  int64_t word = widen(&wide, (int64_t)tl_dtype_size(it->op[0].dtype));
  return gpu_split(&wide, wide.ndim, GPU_MAX_INDEX, 0, [=](const tl_iter *part, int64_t) {
    switch (word) {
      case 1: return move<uint8_t>(part);
      case 2: return move<uint16_t>(part);
      case 4: return move<uint32_t>(part);
      case 8: return move<uint64_t>(part);
      default: return move<word16>(part);
    }
  });
}

// ---- conversions ----

struct fn_same {
  template <typename T, typename P> static __device__ inline T run(const T *in, P, P) { return in[0]; }
};

// The type a conversion goes through: wide enough that nothing is lost which the target could hold.
static int route(int to, int from) {
  bool integers = !tl_is_floating(to) && !tl_is_floating(from);
  if (integers) return TL_INT64;
  if (to == TL_FLOAT64 || from == TL_FLOAT64 || from == TL_INT64 || to == TL_INT64) return TL_FLOAT64;
  return TL_FLOAT32;
}

TL_CUDA_ENTRY(copy)(const tl_iter *it) {
  if (it->numel == 0) return TL_OK;
  const tl_operand *to = &it->op[0], *from = &it->op[1];
  if (to->dtype == from->dtype && from->data != NULL) return move_all(it);
  // a number is one of the floats that are stored, or else any
  int through = from->data == NULL && tl_is_floating(to->dtype) ? tl_compute_type(to->dtype) : route(to->dtype, from->dtype);
  return gpu_split(it, it->ndim, GPU_MAX_INDEX, 0, [=](const tl_iter *part, int64_t) {
    gpu_pointwise a = gpu_pointwise_of(part, through, 0, 0);
    if (through == TL_INT64) return gpu_strided<fn_same, 1, int64_t>("copy", &a);
    return gpu_floating<fn_same, 1>("copy", &a);
  });
}
