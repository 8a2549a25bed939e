/* dnnl.h: what the CPU kernels take from oneDNN. dnnl.c is the one file that names its API (2.x of Debian 12); another
 * version of the library is a second implementation of that file alone. */
#ifndef TL_BACKEND_DNNL_H
#define TL_BACKEND_DNNL_H

#include "backend/kernels.h"

/* c = alpha * op(a) op(b) + beta * c, row-major float32: op(a) (m, k), op(b) (k, n), c (m, n). op(x) is x, or its
 * transpose when transposed; ld is the distance of two rows of what is stored. May be called inside a parallel
 * region. */
tl_status tl_dnnl_sgemm(const char *op, bool a_transposed, bool b_transposed, int64_t m, int64_t n, int64_t k,
                        float alpha, const float *a, int64_t lda, const float *b, int64_t ldb, float beta, float *c,
                        int64_t ldc);

/* Does this processor multiply bfloat16 matrices faster than float32 ones (AMX)? */
bool tl_dnnl_fast_bfloat16(void);
/* c = a b + bias in bfloat16 with float32 sums: element (i, j) of x lies i * row + j * col elements after data, c has
 * col 1; bias (n) may be NULL. wide: c is float32; add: the product is added to c. Setting it up costs microseconds: for
 * large products. */
tl_status tl_dnnl_bfloat16_gemm(const char *op, int64_t m, int64_t n, int64_t k, const tl_matrix *a, const tl_matrix *b,
                                const void *bias, int64_t bias_stride, bool wide, bool add, const tl_matrix *c);

/* tl_kernels.conv_forward and conv_backward for float32, and for bfloat16 where the processor is fast at it, with float32
 * sums. Plans are made once for each shape and kept (a bounded number). */
tl_status tl_dnnl_conv_forward(const tl_convolution *c, const void *x, const void *w, const void *bias, void *y);
tl_status tl_dnnl_conv_backward(const tl_convolution *c, const void *x, const void *w, const void *dy, void *dx,
                                void *dw, void *dbias);

#endif
