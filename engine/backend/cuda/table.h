/* table.h: filling the kernel table (table.c). */
#ifndef TL_BACKEND_CUDA_TABLE_H
#define TL_BACKEND_CUDA_TABLE_H

#include "backend/kernels.h"

void tl_cuda_fill_table(tl_kernels *table, const tl_kernels *cpu);

#endif
