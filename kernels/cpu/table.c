/* table.c: this instruction set's kernels as the table that the backend hands out. */
#include "cpu.h"


extern const tl_kernels TL_ISA_NAME(tl_cpu_kernels);
const tl_kernels TL_ISA_NAME(tl_cpu_kernels) = {
    .pointwise = tl_cpu_pointwise,
    .copy = tl_cpu_copy,
    .random = tl_cpu_random,
    .range = tl_cpu_range,
    .reduce = tl_cpu_reduce,
    .gemm = tl_cpu_gemm,
    .update = tl_cpu_update,
    .conv_forward = tl_cpu_conv_forward,
    .conv_backward = tl_cpu_conv_backward,
};
