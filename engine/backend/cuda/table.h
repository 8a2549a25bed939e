/* table.h: filling the kernel table (table.c), and the kernels that other files of the plug-in call. */
#ifndef TL_BACKEND_CUDA_TABLE_H
#define TL_BACKEND_CUDA_TABLE_H

#include "backend/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

void tl_cuda_fill_table(tl_kernels *table, const tl_kernels *cpu);

/* Entries (kernels.h). */
tl_status tl_cuda_copy(const tl_iter *it);
tl_status tl_cuda_reduce(int kind, const tl_iter *it, int reduced, double p);

/* Any strides, no size but k is 0: of integers, or for k = 0 (kernels/cuda/gemm.cu). */
tl_status tl_cuda_own_gemm(const tl_gemm *g);
/* Batch norm of any layout and dtype (kernels/cuda/norm.cu). */
tl_status tl_cuda_own_batch_norm(const tl_batch_norm_args *a);
tl_status tl_cuda_own_batch_norm_grad(const tl_batch_norm_grad_args *a);

/* The updates of a list with moments in bfloat16 or 8-bit codes (kernels/cuda/small_state.cu). */
tl_status tl_cuda_update_small(int count, const tl_update *list);

#ifdef __cplusplus
}
#endif
#endif
