// index.cu: moving and adding elements by stored indices. Bad ids are reported by find_bad_id; whoever meets one later
// reads zeros or adds nothing. Sums run in the order of the ids without atomics, equal to the CPU's, in one of two
// ways: a thread owns all sums of a line and goes through the line's ids (few ids, or lines enough to fill the device),
// or the ids are sorted, O(m log m), and a thread owns one sum: its time is the number of ids that name it.
#include "element.h"
#include "ids.h"

namespace {

__global__ void find_bad_id_kernel(const int64_t *ids, int64_t n, int64_t limit, tl_cuda_fault *fault) {
  GPU_LOOP(i, n) {
    const int64_t id = ids[i];
    if (id < 0 || id >= limit) gpu_report(fault, TL_CUDA_FAULT_ID, id, limit, i);
  }
}

// ---- rows ----

enum { UNITS = 8 }; /* that a thread moves of a row */

/* Rows of `units` units of type U; 1 << shift threads share a piece of a row, of which there are `pieces`. */
template <typename U>
__global__ void select_kernel(const U *x, int64_t outer, int64_t n, int64_t units, int64_t m, const int64_t *ids, U *y,
                              int shift, int64_t pieces, tl_cuda_fault *fault, int code) {
  const int lane = (int)threadIdx.x & ((1 << shift) - 1), at_once = GPU_BLOCK >> shift;
  const int64_t work = outer * m * pieces;
  for (int64_t i = (int64_t)blockIdx.x * at_once + ((int)threadIdx.x >> shift); i < work;
       i += (int64_t)gridDim.x * at_once) {
    const int64_t row = pieces == 1 ? i : i / pieces, first = (i - row * pieces) << shift;
    const int64_t o = outer == 1 ? 0 : row / m, id = ids[row - o * m];
    const bool good = id >= 0 && id < n;
    if (!good && code != TL_CUDA_FAULT_NONE && first + lane == 0) gpu_report(fault, code, id, n, row - o * m);
    const U *from = x + (o * n + (good ? id : 0)) * units;
    U *to = y + row * units;
    const int64_t step = pieces << shift;
    int64_t u = first + lane;
    for (; u + 3 * step < units; u += 4 * step) { /* four loads in flight */
      U part[4] = {};
      if (good) {
#pragma unroll
        for (int k = 0; k < 4; k++) part[k] = from[u + k * step];
      }
#pragma unroll
      for (int k = 0; k < 4; k++) to[u + k * step] = part[k];
    }
    for (; u < units; u += step) to[u] = good ? from[u] : U{};
  }
}

template <typename U>
tl_status select_rows(const char *op, const void *x, int64_t outer, int64_t n, size_t bytes, int64_t m,
                      const int64_t *ids, void *y, int code) {
  const int64_t units = (int64_t)(bytes / sizeof(U));
  int shift = 0;
  while (shift < 8 && (int64_t)1 << shift < units) shift++;
  static_assert(GPU_BLOCK == 1 << 8, "a row is shared by one block at most");
  const int64_t piece = (int64_t)UNITS << shift, pieces = (units + piece - 1) / piece;
  return gpu_launch(op, select_kernel<U>, gpu_blocks(outer * m * pieces << shift), GPU_BLOCK, 0, (const U *)x, outer, n,
                    units, m, ids, (U *)y, shift, pieces, tl_cuda_here()->fault, code);
}

/* y[ids[j]] += alpha x[j] in the wrapping arithmetic of T. */
template <typename T> __device__ T sum_of(T a, T alpha, T b) {
  if constexpr (std::is_floating_point_v<T>) return a + alpha * b;
  else if constexpr (sizeof(T) == 8) return (T)((uint64_t)a + (uint64_t)alpha * (uint64_t)b);
  else return (T)((uint32_t)a + (uint32_t)alpha * (uint32_t)b);
}

/* Column c of `inner` in o of `outer`: its thread goes through all ids. */
template <typename T>
__global__ void add_columns_kernel(const T *x, int64_t outer, int64_t n, int64_t inner, int64_t m, const int64_t *ids,
                                   T alpha, T *y) {
  GPU_LOOP(i, outer * inner) {
    const int64_t o = (int64_t)((uint64_t)i / (uint64_t)inner), c = i - o * inner;
    const T *from = x + o * m * inner + c;
    T *to = y + o * n * inner + c;
    for (int64_t j = 0; j < m; j++) {
      const int64_t id = ids[j];
      if (id >= 0 && id < n) to[id * inner] = sum_of(to[id * inner], alpha, from[j * inner]);
    }
  }
}

/* The rows that one id names lie one behind the other in `pairs`: threads of the first of them add them all up. */
template <typename T>
__global__ void add_sorted_kernel(const T *x, int64_t outer, int64_t n, int64_t inner, int64_t m, const gpu_pair *pairs,
                                  T alpha, T *y) {
  GPU_LOOP(i, outer * m * inner) {
    const uint64_t line = (uint64_t)i / (uint64_t)inner;
    const int64_t c = i - (int64_t)line * inner, o = (int64_t)(line / (uint64_t)m), j = (int64_t)line - o * m;
    if (!gpu_key_begins(pairs, j)) continue;
    T *to = y + (o * n + gpu_key(pairs[j])) * inner + c;
    T sum = *to;
    const T *from = x + o * m * inner + c;
    gpu_each_of_key<T>(
        pairs, j, m, [&](uint32_t place) { return from[place * inner]; }, [&](T v) { sum = sum_of(sum, alpha, v); });
    *to = sum;
  }
}

enum {
  FEW_IDS = 64,           /* a thread goes through them all */
  MANY_COLUMNS = 1 << 18, /* threads that fill the device whatever each has to do */
  MANY_LINES = 1 << 14    /* the same where sorting is dearer: as many pairs as elements */
};

template <typename T>
tl_status add_rows(const void *x, int64_t outer, int64_t n, int64_t inner, int64_t m, const int64_t *ids, double factor,
                   void *y) {
  const char *op = "index_add";
  const T alpha = std::is_integral_v<T> ? (T)(int64_t)factor : (T)factor;
  if (m <= FEW_IDS || outer * inner >= MANY_COLUMNS || !tl_cuda_fits_pairs(n, m))
    return gpu_launch(op, add_columns_kernel<T>, gpu_blocks(outer * inner), GPU_BLOCK, 0, (const T *)x, outer, n, inner,
                      m, ids, alpha, (T *)y);
  tl_cuda_pairs p;
  TL_TRY(tl_cuda_pairs_of_ids(op, ids, m, n, -1, &p));
  tl_status st = gpu_launch(op, add_sorted_kernel<T>, gpu_blocks(outer * m * inner), GPU_BLOCK, 0, (const T *)x, outer,
                            n, inner, m, p.at, alpha, (T *)y);
  tl_cuda_pairs_end(&p);
  return st;
}

// ---- single elements through an iterator ----

/* The iterator with its operands' strides side by side. `along`: steps of the indexed dim, which operand 0
 * (scatter_add) does not move along; the other dims make `lines`. */
struct elements {
  int ndim;
  int64_t numel, shape[TL_MAX_DIMS], stride[3][TL_MAX_DIMS];
  char *data[3];
};

elements elements_of(const tl_iter *it) {
  elements e = {};
  e.ndim = it->ndim;
  e.numel = it->numel;
  for (int d = 0; d < it->ndim; d++) e.shape[d] = it->shape[d];
  for (int i = 0; i < 3; i++) {
    e.data[i] = it->op[i].data;
    for (int d = 0; d < it->ndim; d++) e.stride[i][d] = it->op[i].stride[d];
  }
  return e;
}

/* Byte offsets of element i of the operands, of which the kernel uses some. */
struct offsets {
  int64_t at[3];
};
__device__ offsets offsets_of(const elements &e, int64_t i) {
  offsets o = {};
#pragma unroll 1
  for (int d = e.ndim - 1; d >= 0; d--) {
    int64_t index = i;
    if (d > 0) {
      i = (int64_t)((uint64_t)i / (uint64_t)e.shape[d]);
      index -= i * e.shape[d];
    }
    for (int k = 0; k < 3; k++) o.at[k] += index * e.stride[k][d];
  }
  return o;
}

template <typename U> __device__ void move(char *to, const char *from, bool good) {
  *(U *)to = good ? *(const U *)from : 0;
}

__global__ void gather_kernel(elements e, int size, int64_t stride, int64_t n) {
  GPU_LOOP(i, e.numel) {
    const offsets at = offsets_of(e, i);
    const int64_t id = *(const int64_t *)(e.data[1] + at.at[1]);
    const bool good = id >= 0 && id < n;
    char *to = e.data[0] + at.at[0];
    const char *from = e.data[2] + at.at[2] + (good ? id : 0) * stride;
    switch (size) {
      case 1: move<uint8_t>(to, from, good); break;
      case 2: move<uint16_t>(to, from, good); break;
      case 4: move<uint32_t>(to, from, good); break;
      default: move<uint64_t>(to, from, good); break;
    }
  }
}

/* What an element of the iterator adds to: with the indexed dim taken out of the iterator, line l and one of n targets.
 * */
struct lines {
  elements e;                       /* the dims that are left */
  int64_t m, stride_id, stride_src; /* the indexed dim: its steps */
  int64_t stride, n;                /* of the targets */
};

lines lines_of(const tl_iter *it, int64_t stride, int64_t n) {
  lines l = {elements_of(it), 1, 0, 0, stride, n};
  int kept = 0;
  l.e.numel = 1;
  for (int d = 0; d < it->ndim; d++) {
    if (it->op[0].stride[d] == 0) {
      l.m = it->shape[d];
      l.stride_id = it->op[1].stride[d];
      l.stride_src = it->op[2].stride[d];
      continue;
    }
    l.e.shape[kept] = it->shape[d];
    l.e.numel *= it->shape[d];
    for (int i = 0; i < 3; i++) l.e.stride[i][kept] = it->op[i].stride[d];
    kept++;
  }
  l.e.ndim = kept;
  return l;
}

template <typename T> __global__ void scatter_lines_kernel(lines l) {
  GPU_LOOP(i, l.e.numel) {
    const offsets at = offsets_of(l.e, i);
    for (int64_t j = 0; j < l.m; j++) {
      const int64_t id = *(const int64_t *)(l.e.data[1] + at.at[1] + j * l.stride_id);
      if (id < 0 || id >= l.n) continue;
      T *to = (T *)(l.e.data[0] + at.at[0] + id * l.stride);
      *to = sum_of(*to, (T)1, *(const T *)(l.e.data[2] + at.at[2] + j * l.stride_src));
    }
  }
}

/* Key: line * n + id. Place: line * m + step. */
__global__ void scatter_pairs_kernel(lines l, gpu_pair *pairs) {
  GPU_LOOP(i, l.e.numel * l.m) {
    const int64_t line = (int64_t)((uint64_t)i / (uint64_t)l.m);
    const offsets at = offsets_of(l.e, line);
    const int64_t id = *(const int64_t *)(l.e.data[1] + at.at[1] + (i - line * l.m) * l.stride_id);
    pairs[i] = gpu_pair_of(id < 0 || id >= l.n ? GPU_NO_KEY : (uint32_t)(line * l.n + id), (uint32_t)i);
  }
}

template <typename T> __global__ void scatter_sorted_kernel(lines l, const gpu_pair *pairs) {
  const int64_t count = l.e.numel * l.m;
  GPU_LOOP(i, count) {
    if (!gpu_key_begins(pairs, i)) continue;
    const uint32_t key = gpu_key(pairs[i]), line = key / (uint32_t)l.n, id = key % (uint32_t)l.n;
    const offsets at = offsets_of(l.e, line);
    T *to = (T *)(l.e.data[0] + at.at[0] + id * l.stride);
    T sum = *to;
    const char *from = l.e.data[2] + at.at[2] - (int64_t)line * l.m * l.stride_src;
    gpu_each_of_key<T>(
        pairs, i, count, [&](uint32_t place) { return *(const T *)(from + place * l.stride_src); },
        [&](T v) { sum = sum_of(sum, (T)1, v); });
    *to = sum;
  }
}

template <typename T> tl_status scatter(const lines &l) {
  const char *op = "scatter_add";
  const int64_t count = l.e.numel * l.m;
  /* Both factors may be as large as memory: their product is tested by a division. */
  const bool fits = l.n > 0 && l.e.numel < UINT32_MAX / l.n && tl_cuda_fits_pairs(l.e.numel * l.n, count);
  if (l.m <= FEW_IDS || l.e.numel >= MANY_LINES || !fits)
    return gpu_launch(op, scatter_lines_kernel<T>, gpu_blocks(l.e.numel), GPU_BLOCK, 0, l);
  tl_cuda_pairs p;
  TL_TRY(tl_cuda_pairs_begin(op, count, &p));
  tl_status st = gpu_launch(op, scatter_pairs_kernel, gpu_blocks(count), GPU_BLOCK, 0, l, p.at);
  if (st == TL_OK) st = tl_cuda_pairs_sort(op, &p);
  if (st == TL_OK) st = gpu_launch(op, scatter_sorted_kernel<T>, gpu_blocks(count), GPU_BLOCK, 0, l, p.at);
  tl_cuda_pairs_end(&p);
  return st;
}

tl_status no_sum(int dtype) {
  return TL_FAIL(TL_ERR_UNSUPPORTED, "index_add", "there is no sum of dtype number %d on a CUDA device", dtype);
}

/* The dtypes that sum, as on the CPU: float16 and bfloat16 come as float32. */
#define DISPATCH_SUMS(dtype, T, ...)             \
  switch (dtype) {                               \
    GPU_CASE(TL_FLOAT32, float, T, __VA_ARGS__)  \
    GPU_CASE(TL_FLOAT64, double, T, __VA_ARGS__) \
    GPU_CASE(TL_INT64, int64_t, T, __VA_ARGS__)  \
    GPU_CASE(TL_INT32, int32_t, T, __VA_ARGS__)  \
    GPU_CASE(TL_UINT8, uint8_t, T, __VA_ARGS__)  \
    default: return no_sum(dtype);               \
  }

// ---- triangles ----

template <typename U>
__global__ void triangle_kernel(const U *x, int64_t batch, int64_t rows, int64_t columns, int64_t diagonal, bool upper,
                                U *y) {
  GPU_LOOP(i, batch * rows * columns) {
    const uint64_t line = (uint64_t)i / (uint64_t)columns;
    const int64_t c = i - (int64_t)line * columns, r = (int64_t)(line % (uint64_t)rows);
    y[i] = (upper ? c - r >= diagonal : c - r <= diagonal) ? x[i] : (U)0;
  }
}

template <typename U>
tl_status triangle(const void *x, int64_t batch, int64_t rows, int64_t columns, int64_t diagonal, bool upper, void *y) {
  return gpu_launch("triangle", triangle_kernel<U>, gpu_blocks(batch * rows * columns), GPU_BLOCK, 0, (const U *)x,
                    batch, rows, columns, diagonal, upper, (U *)y);
}

} // namespace

TL_CUDA_ENTRY(find_bad_id)(const int64_t *ids, int64_t n, int64_t limit, int64_t *at) {
  *at = -1;
  if (n == 0) return TL_OK;
  return gpu_launch("index", find_bad_id_kernel, gpu_blocks(n), GPU_BLOCK, 0, ids, n, limit, tl_cuda_here()->fault);
}

tl_status tl_cuda_select_rows(const char *op, const void *x, int64_t outer, int64_t n, size_t bytes, int64_t m,
                              const int64_t *ids, void *y, int fault) {
  if (outer * m == 0 || bytes == 0) return TL_OK;
  const size_t fit = bytes | (size_t)(uintptr_t)x | (size_t)(uintptr_t)y; /* its lowest bit: the widest unit */
  if (fit % 16 == 0) return select_rows<uint4>(op, x, outer, n, bytes, m, ids, y, fault);
  if (fit % 8 == 0) return select_rows<uint64_t>(op, x, outer, n, bytes, m, ids, y, fault);
  if (fit % 4 == 0) return select_rows<uint32_t>(op, x, outer, n, bytes, m, ids, y, fault);
  if (fit % 2 == 0) return select_rows<uint16_t>(op, x, outer, n, bytes, m, ids, y, fault);
  return select_rows<uint8_t>(op, x, outer, n, bytes, m, ids, y, fault);
}

TL_CUDA_ENTRY(index_select)
(size_t size, const void *x, int64_t outer, int64_t n, int64_t inner, int64_t m, const int64_t *ids, void *y) {
  return tl_cuda_select_rows("index_select", x, outer, n, (size_t)inner * size, m, ids, y, TL_CUDA_FAULT_NONE);
}

TL_CUDA_ENTRY(index_add)
(int dtype, const void *x, int64_t outer, int64_t n, int64_t inner, int64_t m, const int64_t *ids, double alpha,
 void *y) {
  if (outer * inner * m * n == 0) return TL_OK;
  DISPATCH_SUMS(dtype, T, { return add_rows<T>(x, outer, n, inner, m, ids, alpha, y); })
  return TL_OK;
}

TL_CUDA_ENTRY(gather)(const tl_iter *it, int64_t stride, int64_t n) {
  if (it->numel == 0) return TL_OK;
  return gpu_launch("gather", gather_kernel, gpu_blocks(it->numel), GPU_BLOCK, 0, elements_of(it),
                    (int)tl_dtype_size(it->op[0].dtype), stride, n);
}

TL_CUDA_ENTRY(scatter_add)(const tl_iter *it, int64_t stride, int64_t n) {
  if (it->numel == 0) return TL_OK;
  const lines l = lines_of(it, stride, n);
  DISPATCH_SUMS(it->op[0].dtype, T, { return scatter<T>(l); })
  return TL_OK;
}

TL_CUDA_ENTRY(triangle)
(size_t size, const void *x, int64_t batch, int64_t rows, int64_t columns, int64_t diagonal, bool upper, void *y) {
  if (batch * rows * columns == 0) return TL_OK;
  switch (size) {
    case 1: return triangle<uint8_t>(x, batch, rows, columns, diagonal, upper, y);
    case 2: return triangle<uint16_t>(x, batch, rows, columns, diagonal, upper, y);
    case 4: return triangle<uint32_t>(x, batch, rows, columns, diagonal, upper, y);
    default: return triangle<uint64_t>(x, batch, rows, columns, diagonal, upper, y);
  }
}
