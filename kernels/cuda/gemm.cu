// gemm.cu: the products that cuBLASLt does not do: integers, and sums over nothing.
#include "element.h"
#include "launch.h"

#include "backend/cuda/table.h"
#include "backend/gemm.h"

enum { TILE = 16 };

// Elements from an operand's data to batch item i.
static __device__ inline int64_t batch_offset(const tl_gemm &g, const tl_matrix &x, int64_t i) {
  int64_t offset = 0;
  for (int d = g.batch_ndim - 1; d >= 0; d--) {
    offset += i % g.batch[d] * x.batch[d];
    i /= g.batch[d];
  }
  return offset;
}

// c = alpha * sum + beta * c + bias; unsigned, because integers wrap
template <typename T>
static __device__ inline void finish(const tl_gemm &g, T *c, int64_t i, int64_t j, uint64_t sum) {
  uint64_t y = (uint64_t)(int64_t)g.alpha * sum;
  T *at = c + i * g.c.row + j;
  if (g.beta != 0) y += (uint64_t)(int64_t)g.beta * (uint64_t)(int64_t)*at;
  if (g.bias != NULL) y += (uint64_t)(int64_t)((const T *)g.bias)[j * g.bias_stride];
  *at = (T)y;
}

// A block computes tiles of TILE x TILE elements; its threads bring the tiles of a and b that meet there.
template <typename T> static __global__ void integer_kernel(tl_gemm g, int64_t items) {
  __shared__ T as[TILE][TILE + 1], bs[TILE][TILE + 1];
  const int tx = (int)threadIdx.x, ty = (int)threadIdx.y;
  const int64_t tiles_m = (g.m + TILE - 1) / TILE, tiles_n = (g.n + TILE - 1) / TILE;
  for (int64_t item = blockIdx.z; item < items; item += gridDim.z) {
    const T *a = (const T *)g.a.data + batch_offset(g, g.a, item), *b = (const T *)g.b.data + batch_offset(g, g.b, item);
    T *c = (T *)g.c.data + batch_offset(g, g.c, item);
    for (int64_t tm = blockIdx.y; tm < tiles_m; tm += gridDim.y)
      for (int64_t tn = blockIdx.x; tn < tiles_n; tn += gridDim.x) {
        const int64_t i = tm * TILE + ty, j = tn * TILE + tx;
        uint64_t sum = 0;
        for (int64_t first = 0; first < g.k; first += TILE) {
          as[ty][tx] = i < g.m && first + tx < g.k ? a[i * g.a.row + (first + tx) * g.a.col] : (T)0;
          bs[ty][tx] = first + ty < g.k && j < g.n ? b[(first + ty) * g.b.row + j * g.b.col] : (T)0;
          __syncthreads();
          for (int p = 0; p < TILE; p++) sum += (uint64_t)(int64_t)as[ty][p] * (uint64_t)(int64_t)bs[p][tx];
          __syncthreads();
        }
        if (i < g.m && j < g.n) finish(g, c, i, j, sum);
      }
  }
}

static unsigned at_most(int64_t n, int64_t most) { return (unsigned)(n < most ? n : most); }

template <typename T> static tl_status integers(const tl_gemm *g, int64_t items) {
  const dim3 grid(at_most((g->n + TILE - 1) / TILE, 1 << 20), at_most((g->m + TILE - 1) / TILE, 1 << 15),
                  at_most(items, 1 << 15));
  return gpu_launch(g->op, integer_kernel<T>, grid, dim3(TILE, TILE), 0, *g, items);
}

// k = 0: c = beta * c + bias
template <typename C> static __global__ void nothing_kernel(tl_gemm g, int64_t size, int64_t elements) {
  const int dtype = g.wide ? (int)TL_FLOAT32 : g.dtype;
  GPU_LOOP(e, elements) {
    const int64_t j = e % g.n, i = e / g.n % g.m, item = e / g.n / g.m;
    char *at = (char *)g.c.data + (batch_offset(g, g.c, item) + i * g.c.row + j) * size;
    C y = g.beta == 0 ? (C)0 : (C)g.beta * gpu_load_as<C>(dtype, at);
    if (g.bias != NULL) y += gpu_load_as<C>(g.dtype, (const char *)g.bias + j * g.bias_stride * size);
    gpu_store_as<C>(dtype, at, y);
  }
}

extern "C" tl_status tl_cuda_own_gemm(const tl_gemm *g) {
  const int64_t items = tl_gemm_batch_count(g), elements = items * g->m * g->n;
  const int64_t size = (int64_t)tl_dtype_size(g->wide ? TL_FLOAT32 : g->dtype);
  if (!tl_is_floating(g->dtype)) switch (g->dtype) {
      case TL_INT64: return integers<int64_t>(g, items);
      case TL_INT32: return integers<int32_t>(g, items);
      case TL_UINT8: return integers<uint8_t>(g, items);
      default: return TL_FAIL(TL_ERR_DTYPE, g->op, "dtype number %d has no product", g->dtype);
    }
  if (g->dtype == TL_FLOAT64)
    return gpu_launch(g->op, nothing_kernel<double>, gpu_blocks(elements), GPU_BLOCK, 0, *g, size, elements);
  return gpu_launch(g->op, nothing_kernel<float>, gpu_blocks(elements), GPU_BLOCK, 0, *g, size, elements);
}
