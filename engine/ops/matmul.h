/* matmul.h: products of tensors as problems for the gemm kernel; shared by matmul.c and linear.c. */
#ifndef TL_OPS_MATMUL_H
#define TL_OPS_MATMUL_H

#include "backend/kernels.h"

/* A tensor seen as a batch of rows x cols matrices. */
typedef struct tl_matrices {
  tl_tensor *t;
  int batch_ndim;
  const int64_t *batch, *batch_strides; /* of the batch dims, the tensor's own */
  int64_t rows, cols, row, col;         /* sizes and strides */
} tl_matrices;

/* t's last two dims as the matrix; a 1-d tensor is a single row, or a single column. */
tl_matrices tl_matrices_of(tl_tensor *t, bool vector_is_column);
tl_matrices tl_matrices_transposed(tl_matrices m);

/* y = alpha * a b + beta * y + bias, unrecorded. y is contiguous with a's and b's broadcast batch dims (they fit);
 * inner sizes agree. bias (n) may be NULL. A float32 y of half operands gets the unrounded sums: no batch, no bias. */
tl_status tl_gemm_into(const char *op, const tl_matrices *a, const tl_matrices *b, tl_tensor *bias, double alpha,
                       double beta, tl_tensor *y);

/* y = a b, and sums (a's rows) = the sums of a's rows, for y's device if its kernels have gemm_sums (and as they say). */
tl_status tl_gemm_sums_into(const char *op, const tl_matrices *a, const tl_matrices *b, tl_tensor *y, tl_tensor *sums);

/* y = gelu_tanh(a b + bias), whose argument goes to `pre` or nowhere, if y's kernels have gemm_gelu (and as they say). */
tl_status tl_gemm_gelu_into(const char *op, const tl_matrices *a, const tl_matrices *b, tl_tensor *bias, tl_tensor *pre,
                            tl_tensor *y, bool *done);
/* The node of y = gelu_tanh(x), which somebody else computed (pointwise.c). */
tl_status tl_record_gelu_tanh(tl_tensor *x, tl_tensor *y);

/* Same device, same dtype, not bool. */
tl_status tl_check_factors(const char *op, const tl_tensor *a, const tl_tensor *b);

#endif
