/* table.c: the CUDA kernels as the engine's kernel table. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/table.h"

/* permutation and multinomial work in host memory on every device: the CPU's are taken (plugin.c). */
/* clang-format off */
#define TL_CUDA_ENTRIES(X) \
  X(pointwise) X(copy) X(random) X(range) X(reduce) X(gemm) X(gemm_sums) X(gemm_gelu) X(update) \
  X(max_pool) X(max_pool_backward) X(avg_pool) X(avg_pool_backward) X(span_norm) X(span_scale) \
  X(span_clamp) X(span_unscale) X(conv_forward) X(conv_backward) X(softmax) X(softmax_grad) X(loss) \
  X(loss_grad) X(class_loss) X(class_loss_grad) X(batch_norm) X(batch_norm_grad) X(row_norm) \
  X(row_norm_grad) X(embedding) X(embedding_grad) X(rope) X(attention) X(attention_grad) X(arg_extreme) \
  X(cumsum) X(find_bad_id) X(index_select) X(index_add) X(gather) X(scatter_add) X(nonzero) X(triangle) X(sort) X(dropout) \
  X(plan) X(scale_update) X(span_clip)
/* clang-format on */

#define X(name) extern __typeof__(*((tl_kernels *)0)->name) tl_cuda_##name;
TL_CUDA_ENTRIES(X)
#undef X

void tl_cuda_fill_table(tl_kernels *table, const tl_kernels *cpu) {
#define X(name) table->name = tl_cuda_##name;
  TL_CUDA_ENTRIES(X)
#undef X
  table->permutation = cpu->permutation;
  table->multinomial = cpu->multinomial;
}
