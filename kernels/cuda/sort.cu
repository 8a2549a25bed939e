// sort.cu: stable sorting. Every dtype becomes an unsigned key of the same order, as on the CPU; with its place behind
// it no two are equal, so that any comparison sort is stable. Tiles of TILE elements are sorted in shared memory (short
// rows share a tile), then runs are merged two by two: O(n log n) comparisons, ceil(log2(n / TILE)) passes over memory,
// of which only the first k elements of each run take part where k of n are wanted.
#include "element.h"
#include "ids.h"

namespace {

enum { TILE = 1024 };

/* Keys of 64 bits: float64 and int64 values. */
struct alignas(16) wide_pair {
  uint64_t key, place;
};
__device__ bool before(gpu_pair a, gpu_pair b) { return a < b; }
__device__ bool before(wide_pair a, wide_pair b) { return a.key < b.key || (a.key == b.key && a.place < b.place); }
__device__ int64_t place_of(gpu_pair p) { return gpu_place(p); }
__device__ int64_t place_of(wide_pair p) { return (int64_t)p.place; }

/* What stands behind everything. */
template <typename P> __device__ P last_pair();
template <> __device__ gpu_pair last_pair<gpu_pair>() { return UINT64_MAX; }
template <> __device__ wide_pair last_pair<wide_pair>() { return {UINT64_MAX, UINT64_MAX}; }

// ---- where pairs come from ----

/* Floats: the sign bit flips (positive) or all bits flip (negative); -0 is 0, every nan is the largest. */
__device__ uint32_t key_of(float f) {
  if (f != f) return UINT32_MAX;
  const uint32_t bits = __float_as_uint(f == 0 ? 0.0f : f);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}
__device__ uint64_t key_of(double f) {
  if (f != f) return UINT64_MAX;
  const uint64_t bits = (uint64_t)__double_as_longlong(f == 0 ? 0.0 : f);
  return bits >> 63 ? ~bits : bits | 1ull << 63;
}

/* Rows of a tensor (outer, n, inner). */
struct tensor_rows {
  int dtype, size;
  bool descending;
  const char *x;
  int64_t n, inner;

  __device__ const char *element(int64_t row, int64_t i) const {
    const uint64_t o = (uint64_t)row / (uint64_t)inner, c = (uint64_t)row % (uint64_t)inner;
    return x + (((int64_t)o * n + i) * inner + (int64_t)c) * size;
  }
  __device__ void get(int64_t row, int64_t i, gpu_pair *p) const {
    const char *at = element(row, i);
    const uint32_t key = dtype <= TL_BFLOAT16 ? key_of(gpu_load_as<float>(dtype, at))
                                              : (uint32_t)(gpu_load_as<int64_t>(dtype, at) + 0x80000000ll);
    *p = gpu_pair_of(descending ? ~key : key, (uint32_t)i);
  }
  __device__ void get(int64_t row, int64_t i, wide_pair *p) const {
    const char *at = element(row, i);
    const uint64_t key = dtype == TL_FLOAT64 ? key_of(*(const double *)at) : *(const uint64_t *)at ^ 1ull << 63;
    *p = {descending ? ~key : key, (uint64_t)i};
  }
};
static_assert(TL_FLOAT32 <= TL_BFLOAT16 && TL_FLOAT16 <= TL_BFLOAT16 && TL_FLOAT64 > TL_BFLOAT16, "order of dtypes");

/* One row of pairs that exist already. */
struct ready_pairs {
  const gpu_pair *pairs;
  __device__ void get(int64_t, int64_t i, gpu_pair *p) const { *p = pairs[i]; }
};

// ---- sorting ----

/* Sorts the tiles of rows of n pairs: `tiles` a row, or 1 and TILE / width rows a block when rows are short. A bitonic
 * network over groups of `width` (a power of 2) elements. */
template <typename P, typename S>
__global__ void sort_tiles(S source, int64_t rows, int64_t n, int64_t tiles, int width, P *out) {
  __shared__ P tile[TILE];
  const int64_t block = blockIdx.x, row = tiles > 1 ? block / tiles : block * (TILE / width);
  const int64_t first = tiles > 1 ? block % tiles * TILE : 0;
  for (int e = (int)threadIdx.x; e < TILE; e += GPU_BLOCK) {
    const int64_t r = row + e / width, i = first + e % width;
    if (r < rows && i < n) source.get(r, i, &tile[e]);
    else tile[e] = last_pair<P>();
  }
  for (int size = 2; size <= width; size *= 2)
    for (int step = size / 2; step > 0; step /= 2) {
      __syncthreads();
      for (int t = (int)threadIdx.x; t < TILE / 2; t += GPU_BLOCK) {
        const int a = 2 * t - (t & (step - 1)), b = a + step; /* t with a 0 put in at the bit of `step` */
        const bool rising = (a & (width - 1) & size) == 0;
        const P p = tile[a], q = tile[b];
        if (before(q, p) != rising) continue;
        tile[a] = q;
        tile[b] = p;
      }
    }
  __syncthreads();
  for (int e = (int)threadIdx.x; e < TILE; e += GPU_BLOCK) {
    const int64_t r = row + e / width, i = first + e % width;
    if (r < rows && i < n) out[r * n + i] = tile[e];
  }
}

/* Of the first `count` elements of a and b merged, how many come from a (na elements; b has nb)? */
template <typename P> __device__ int64_t share_of(const P *a, int64_t na, const P *b, int64_t nb, int64_t count) {
  int64_t low = count > nb ? count - nb : 0, high = count < na ? count : na;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (before(a[middle], b[count - 1 - middle])) low = middle + 1;
    else high = middle;
  }
  return low;
}

/* Elements of p[0..n-1], which is in order, that stand before v. */
template <typename P> __device__ int rank_of(const P *p, int n, P v) {
  int low = 0, high = n;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (before(p[middle], v)) low = middle + 1;
    else high = middle;
  }
  return low;
}

/* Merges runs of `run` elements, of which the first k count, two by two; a block makes TILE elements of the result.
 * `merges` results a row, `pieces` blocks a result. */
template <typename P>
__global__ void merge_runs(const P *from, P *to, int64_t n, int64_t k, int64_t run, int64_t merges, int64_t pieces) {
  __shared__ P in[TILE], out[TILE];
  __shared__ int64_t share[2];
  const int64_t block = blockIdx.x, piece = block % pieces, merge = block / pieces % merges,
                row = block / pieces / merges;
  const int64_t begin = merge * 2 * run, middle = begin + run;
  const int64_t la = n - begin < run ? n - begin : run, lb = n <= middle ? 0 : n - middle < run ? n - middle : run;
  const int64_t na = la < k ? la : k, nb = lb < k ? lb : k, count = na + nb < k ? na + nb : k;
  const P *a = from + row * n + begin, *b = from + row * n + middle;
  const int64_t first = piece * TILE, end = first + TILE < count ? first + TILE : count;
  if (first >= end) return;
  if (threadIdx.x < 2) share[threadIdx.x] = share_of(a, na, b, nb, threadIdx.x == 0 ? first : end);
  __syncthreads();
  const int64_t a0 = share[0], b0 = first - a0;
  const int wa = (int)(share[1] - a0), wide = (int)(end - first), wb = wide - wa;
  for (int e = (int)threadIdx.x; e < wide; e += GPU_BLOCK) in[e] = e < wa ? a[a0 + e] : b[b0 + e - wa];
  __syncthreads();
  for (int e = (int)threadIdx.x; e < wide; e += GPU_BLOCK) {
    const P v = in[e];
    out[e < wa ? e + rank_of(in + wa, wb, v) : e - wa + rank_of(in, wa, v)] = v;
  }
  __syncthreads();
  P *result = to + row * n + begin + first;
  for (int e = (int)threadIdx.x; e < wide; e += GPU_BLOCK) result[e] = out[e];
}

/* The first k of each of `rows` rows of n pairs, sorted: in *at, which may be swapped with *spare (NULL is enough where
 * n <= TILE). */
template <typename P, typename S>
tl_status sort_rows(const char *op, S source, int64_t rows, int64_t n, int64_t k, P **at, P **spare) {
  int width = 2;
  while (width < n && width < TILE) width *= 2;
  const int64_t tiles = (n + TILE - 1) / TILE,
                blocks = tiles > 1 ? rows * tiles : (rows + TILE / width - 1) / (TILE / width);
  TL_TRY(gpu_launch(op, sort_tiles<P, S>, (unsigned)blocks, GPU_BLOCK, 0, source, rows, n, tiles, width, *at));
  for (int64_t run = TILE; run < n; run *= 2) {
    const int64_t merges = (n + 2 * run - 1) / (2 * run), longest = k < 2 * run ? k : 2 * run;
    const int64_t pieces = (longest + TILE - 1) / TILE;
    TL_TRY(gpu_launch(op, merge_runs<P>, (unsigned)(rows * merges * pieces), GPU_BLOCK, 0, *at, *spare, n, k, run,
                      merges, pieces));
    P *swap = *at;
    *at = *spare;
    *spare = swap;
  }
  return TL_OK;
}

// ---- values and ids ----

__device__ void move(int size, void *to, const void *from) {
  switch (size) {
    case 1: *(uint8_t *)to = *(const uint8_t *)from; break;
    case 2: *(uint16_t *)to = *(const uint16_t *)from; break;
    case 4: *(uint32_t *)to = *(const uint32_t *)from; break;
    default: *(uint64_t *)to = *(const uint64_t *)from; break;
  }
}

template <typename P>
__global__ void emit_kernel(tensor_rows x, const P *pairs, int64_t outer, int64_t k, char *values, int64_t *ids) {
  const int64_t count = outer * k * x.inner;
  GPU_LOOP(i, count) {
    const uint64_t line = (uint64_t)i / (uint64_t)x.inner, c = (uint64_t)i % (uint64_t)x.inner;
    const int64_t o = (int64_t)(line / (uint64_t)k), j = (int64_t)(line % (uint64_t)k), row = o * x.inner + (int64_t)c;
    const int64_t place = place_of(pairs[row * x.n + j]);
    ids[i] = place;
    move(x.size, values + i * x.size, x.element(row, place));
  }
}

template <typename P>
tl_status sort_tensor(const tensor_rows &x, int64_t outer, int64_t k, void *values, int64_t *ids) {
  const int64_t rows = outer * x.inner;
  const size_t bytes = (size_t)(rows * x.n) * sizeof(P);
  P *at = (P *)tl_cuda_scratch("sort", bytes), *spare = NULL;
  tl_status st = at == NULL ? TL_ERR_MEMORY : TL_OK;
  if (st == TL_OK && x.n > TILE) {
    spare = (P *)tl_cuda_scratch("sort", bytes);
    st = spare == NULL ? TL_ERR_MEMORY : TL_OK;
  }
  if (st == TL_OK) st = sort_rows("sort", x, rows, x.n, k, &at, &spare);
  if (st == TL_OK)
    st = gpu_launch("sort", emit_kernel<P>, gpu_blocks(rows * k), GPU_BLOCK, 0, x, at, outer, k, (char *)values, ids);
  tl_cuda_scratch_free(at, bytes);
  tl_cuda_scratch_free(spare, bytes);
  return st;
}

__global__ void id_pairs_kernel(const int64_t *ids, int64_t n, int64_t limit, int64_t skip, gpu_pair *pairs) {
  GPU_LOOP(i, n) {
    const int64_t id = ids[i];
    pairs[i] = gpu_pair_of(id < 0 || id >= limit || id == skip ? GPU_NO_KEY : (uint32_t)id, (uint32_t)i);
  }
}

} // namespace

TL_CUDA_ENTRY(sort)
(int dtype, const void *x, int64_t outer, int64_t n, int64_t inner, bool descending, int64_t k, void *values,
 int64_t *ids) {
  if (outer * inner == 0 || n == 0 || k == 0) return TL_OK;
  const tensor_rows rows = {dtype, (int)tl_dtype_size(dtype), descending, (const char *)x, n, inner};
  if (dtype == TL_FLOAT64 || dtype == TL_INT64) return sort_tensor<wide_pair>(rows, outer, k, values, ids);
  if (!tl_cuda_fits_pairs(0, n))
    return TL_FAIL(TL_ERR_UNSUPPORTED, "sort", "rows of %lld elements: fewer than 2^32-1 are sorted on a CUDA device",
                   (long long)n);
  return sort_tensor<gpu_pair>(rows, outer, k, values, ids);
}

tl_status tl_cuda_pairs_begin(const char *op, int64_t n, tl_cuda_pairs *p) {
  p->n = n;
  p->spare = NULL;
  p->at = (gpu_pair *)tl_cuda_scratch(op, 2 * (size_t)n * sizeof *p->at);
  if (p->at == NULL) return TL_ERR_MEMORY;
  p->spare = p->at + n;
  return TL_OK;
}

void tl_cuda_pairs_end(tl_cuda_pairs *p) {
  gpu_pair *base = p->spare < p->at ? p->spare : p->at; /* sorting may have swapped them */
  tl_cuda_scratch_free(base, 2 * (size_t)p->n * sizeof *base);
}

tl_status tl_cuda_pairs_sort(const char *op, tl_cuda_pairs *p) {
  if (p->n < 2) return TL_OK;
  return sort_rows(op, ready_pairs{p->at}, 1, p->n, p->n, &p->at, &p->spare);
}

tl_status tl_cuda_pairs_of_ids(const char *op, const int64_t *ids, int64_t n, int64_t limit, int64_t skip,
                               tl_cuda_pairs *p) {
  TL_TRY(tl_cuda_pairs_begin(op, n, p));
  tl_status st = gpu_launch(op, id_pairs_kernel, gpu_blocks(n), GPU_BLOCK, 0, ids, n, limit, skip, p->at);
  if (st == TL_OK) st = tl_cuda_pairs_sort(op, p);
  if (st != TL_OK) tl_cuda_pairs_end(p);
  return st;
}
