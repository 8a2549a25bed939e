/* table.c: this instruction set's kernels as the table that the backend hands out. */
#include "cpu.h"


extern const tl_kernels TL_ISA_NAME(tl_cpu_kernels);
const tl_kernels TL_ISA_NAME(tl_cpu_kernels) = {
    .pointwise = tl_cpu_pointwise,
    .copy = tl_cpu_copy,
    .random = tl_cpu_random,
    .range = tl_cpu_range,
    .reduce = tl_cpu_reduce,
    .max_pool = tl_cpu_max_pool,
    .max_pool_backward = tl_cpu_max_pool_backward,
    .avg_pool = tl_cpu_avg_pool,
    .avg_pool_backward = tl_cpu_avg_pool_backward,
    .gemm = tl_cpu_gemm,
    .update = tl_cpu_update,
    .conv_forward = tl_cpu_conv_forward,
    .conv_backward = tl_cpu_conv_backward,
    .softmax = tl_cpu_softmax,
    .softmax_grad = tl_cpu_softmax_grad,
    .loss = tl_cpu_loss,
    .loss_grad = tl_cpu_loss_grad,
    .class_loss = tl_cpu_class_loss,
    .class_loss_grad = tl_cpu_class_loss_grad,
    .batch_norm = tl_cpu_batch_norm,
    .batch_norm_grad = tl_cpu_batch_norm_grad,
    .row_norm = tl_cpu_row_norm,
    .row_norm_grad = tl_cpu_row_norm_grad,
    .embedding = tl_cpu_embedding,
    .embedding_grad = tl_cpu_embedding_grad,
};
