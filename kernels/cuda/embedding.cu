// embedding.cu: rows of a table by id, and the sums of gradients by id: the ids are sorted, and a thread adds up one
// column of the rows that one id names, in the order of the ids. That equals the CPU's sums and needs no atomics; a
// thread's time is the number of times that its id occurs.
#include "element.h"
#include "ids.h"

/* dw was zeroed, or is added to; pairs are (id, place), the padding row is left out. 1 << shift threads share a row of dw. */
template <typename T>
static __global__ void embedding_grad_kernel(const T *g, const gpu_pair *pairs, int64_t n, int64_t width, int shift,
                                             T *dw) {
  typedef gpu_compute_t<T> C;
  const int lane = (int)threadIdx.x & ((1 << shift) - 1), at_once = GPU_BLOCK >> shift;
  for (int64_t i = (int64_t)blockIdx.x * at_once + ((int)threadIdx.x >> shift); i < n;
       i += (int64_t)gridDim.x * at_once) {
    if (!gpu_key_begins(pairs, i)) continue;
    T *to = dw + gpu_key(pairs[i]) * width;
    for (int64_t c = lane; c < width; c += 1 << shift) {
      C sum = gpu_load<C>(to[c]);
      gpu_each_of_key<C>(
          pairs, i, n, [&](uint32_t place) { return gpu_load<C>(g[place * width + c]); }, [&](C v) { sum += v; });
      to[c] = gpu_store<T>(sum);
    }
  }
}

TL_CUDA_ENTRY(embedding)(const tl_embedding_args *a) {
  return tl_cuda_select_rows("embedding", tl_first(a->w), 1, a->rows, (size_t)a->width * tl_dtype_size(a->w->dtype),
                             a->n, (const int64_t *)tl_first(a->ids), tl_first(a->out), TL_CUDA_FAULT_EMBEDDING);
}

TL_CUDA_ENTRY(embedding_grad)(const tl_embedding_grad_args *a) {
  const char *op = "embedding";
  if (a->dw->numel == 0) return TL_OK;
  if (!a->add)
    TL_CUDA_TRY(op, cudaMemsetAsync(tl_first(a->dw), 0, (size_t)a->dw->numel * tl_dtype_size(a->dw->dtype),
                                    tl_cuda_here()->stream));
  if (a->n == 0) return TL_OK;
  if (!tl_cuda_fits_pairs(a->rows, a->n))
    return TL_FAIL(TL_ERR_UNSUPPORTED, op, "%lld ids of a table of %lld rows: fewer than 2^32-1 work on a CUDA device",
                   (long long)a->n, (long long)a->rows);
  int shift = 0;
  while (shift < 8 && (int64_t)1 << shift < a->width) shift++;
  tl_cuda_pairs p;
  TL_TRY(tl_cuda_pairs_of_ids(op, (const int64_t *)tl_first(a->ids), a->n, a->rows, a->padding, &p));
  tl_status st = TL_OK;
  GPU_DISPATCH_FLOATING(a->dw->dtype, T, {
    st = gpu_launch(op, embedding_grad_kernel<T>, gpu_blocks(a->n << shift), GPU_BLOCK, 0, (const T *)tl_first(a->g),
                    p.at, a->n, a->width, shift, (T *)tl_first(a->dw));
  })
  tl_cuda_pairs_end(&p);
  return st;
}
