/* cpu.h: what every CPU kernel file shares. The files of this folder are compiled once for each instruction set; TL_ISA
 * is its suffix, TL_ISA_NAME(f) the name of f in this build. */
#ifndef TL_KERNELS_CPU_H
#define TL_KERNELS_CPU_H

#include "backend/kernels.h"

#ifndef TL_ISA
#define TL_ISA generic
#endif
#define TL_PASTE_(a, b) a##_##b
#define TL_PASTE(a, b) TL_PASTE_(a, b)
#define TL_ISA_NAME(f) TL_PASTE(f, TL_ISA)

#define tl_cpu_pointwise TL_ISA_NAME(tl_cpu_pointwise)
#define tl_cpu_copy TL_ISA_NAME(tl_cpu_copy)
#define tl_cpu_random TL_ISA_NAME(tl_cpu_random)
#define tl_cpu_range TL_ISA_NAME(tl_cpu_range)
#define tl_cpu_reduce TL_ISA_NAME(tl_cpu_reduce)
#define tl_cpu_max_pool TL_ISA_NAME(tl_cpu_max_pool)
#define tl_cpu_max_pool_backward TL_ISA_NAME(tl_cpu_max_pool_backward)
#define tl_cpu_avg_pool TL_ISA_NAME(tl_cpu_avg_pool)
#define tl_cpu_avg_pool_backward TL_ISA_NAME(tl_cpu_avg_pool_backward)
#define tl_cpu_gemm TL_ISA_NAME(tl_cpu_gemm)
#define tl_cpu_update TL_ISA_NAME(tl_cpu_update)
#define tl_cpu_span_norm TL_ISA_NAME(tl_cpu_span_norm)
#define tl_cpu_span_scale TL_ISA_NAME(tl_cpu_span_scale)
#define tl_cpu_span_clamp TL_ISA_NAME(tl_cpu_span_clamp)
#define tl_cpu_span_unscale TL_ISA_NAME(tl_cpu_span_unscale)
#define tl_cpu_conv_forward TL_ISA_NAME(tl_cpu_conv_forward)
#define tl_cpu_conv_backward TL_ISA_NAME(tl_cpu_conv_backward)

/* normalisation, softmax, losses, embedding, attention: see backend/nn.h */
#define tl_cpu_softmax TL_ISA_NAME(tl_cpu_softmax)
#define tl_cpu_softmax_grad TL_ISA_NAME(tl_cpu_softmax_grad)
#define tl_cpu_loss TL_ISA_NAME(tl_cpu_loss)
#define tl_cpu_loss_grad TL_ISA_NAME(tl_cpu_loss_grad)
#define tl_cpu_class_loss TL_ISA_NAME(tl_cpu_class_loss)
#define tl_cpu_class_loss_grad TL_ISA_NAME(tl_cpu_class_loss_grad)
#define tl_cpu_batch_norm TL_ISA_NAME(tl_cpu_batch_norm)
#define tl_cpu_batch_norm_grad TL_ISA_NAME(tl_cpu_batch_norm_grad)
#define tl_cpu_row_norm TL_ISA_NAME(tl_cpu_row_norm)
#define tl_cpu_row_norm_grad TL_ISA_NAME(tl_cpu_row_norm_grad)
#define tl_cpu_embedding TL_ISA_NAME(tl_cpu_embedding)
#define tl_cpu_embedding_grad TL_ISA_NAME(tl_cpu_embedding_grad)
#define tl_cpu_rope TL_ISA_NAME(tl_cpu_rope)
#define tl_cpu_attention TL_ISA_NAME(tl_cpu_attention)
#define tl_cpu_attention_grad TL_ISA_NAME(tl_cpu_attention_grad)
tl_status tl_cpu_softmax(const tl_softmax_args *a);
tl_status tl_cpu_softmax_grad(const tl_softmax_grad_args *a);
tl_status tl_cpu_loss(const tl_loss_args *a);
tl_status tl_cpu_loss_grad(const tl_loss_grad_args *a);
tl_status tl_cpu_class_loss(const tl_class_loss_args *a);
tl_status tl_cpu_class_loss_grad(const tl_class_loss_grad_args *a);
tl_status tl_cpu_batch_norm(const tl_batch_norm_args *a);
tl_status tl_cpu_batch_norm_grad(const tl_batch_norm_grad_args *a);
tl_status tl_cpu_row_norm(const tl_row_norm_args *a);
tl_status tl_cpu_row_norm_grad(const tl_row_norm_grad_args *a);
tl_status tl_cpu_embedding(const tl_embedding_args *a);
tl_status tl_cpu_embedding_grad(const tl_embedding_grad_args *a);
tl_status tl_cpu_rope(const tl_rope_args *a);
tl_status tl_cpu_attention(const tl_attention_args *a);
tl_status tl_cpu_attention_grad(const tl_attention_grad_args *a);
#define tl_cpu_arg_extreme TL_ISA_NAME(tl_cpu_arg_extreme)
#define tl_cpu_cumsum TL_ISA_NAME(tl_cpu_cumsum)
#define tl_cpu_find_bad_id TL_ISA_NAME(tl_cpu_find_bad_id)
#define tl_cpu_index_select TL_ISA_NAME(tl_cpu_index_select)
#define tl_cpu_index_add TL_ISA_NAME(tl_cpu_index_add)
#define tl_cpu_gather TL_ISA_NAME(tl_cpu_gather)
#define tl_cpu_scatter_add TL_ISA_NAME(tl_cpu_scatter_add)
#define tl_cpu_nonzero TL_ISA_NAME(tl_cpu_nonzero)
#define tl_cpu_triangle TL_ISA_NAME(tl_cpu_triangle)
#define tl_cpu_sort TL_ISA_NAME(tl_cpu_sort)
#define tl_cpu_dropout TL_ISA_NAME(tl_cpu_dropout)
#define tl_cpu_permutation TL_ISA_NAME(tl_cpu_permutation)
#define tl_cpu_multinomial TL_ISA_NAME(tl_cpu_multinomial)
#define tl_cpu_sparse_linear TL_ISA_NAME(tl_cpu_sparse_linear)

tl_status tl_cpu_pointwise(int fn, int compute, const tl_iter *it, double p, double q);
tl_status tl_cpu_copy(const tl_iter *it);
tl_status tl_cpu_random(int kind, const tl_iter *it, uint64_t seed, uint64_t offset, double p, double q);
tl_status tl_cpu_range(tl_tensor *out, double first, double step);
tl_status tl_cpu_reduce(int kind, const tl_iter *it, int reduced, double p);
tl_status tl_cpu_max_pool(const tl_pooling *p, const void *x, void *y, void *where);
tl_status tl_cpu_max_pool_backward(const tl_pooling *p, const void *dy, const void *where, void *dx);
tl_status tl_cpu_avg_pool(const tl_pooling *p, const void *x, void *y);
tl_status tl_cpu_avg_pool_backward(const tl_pooling *p, const void *dy, void *dx);
tl_status tl_cpu_gemm(const tl_gemm *g);
tl_status tl_cpu_update(int n, const tl_update *list);
tl_status tl_cpu_span_norm(int n, const tl_span *list, double p, double *result);
tl_status tl_cpu_span_scale(int n, const tl_span *list, double factor);
tl_status tl_cpu_span_clamp(int n, const tl_span *list, double limit);
tl_status tl_cpu_span_unscale(int n, const tl_span *list, const float *inverse, float *found);
tl_status tl_cpu_conv_forward(const tl_convolution *c, const void *x, const void *w, const void *bias, void *y);
tl_status tl_cpu_conv_backward(const tl_convolution *c, const void *x, const void *w, const void *dy, void *dx,
                               void *dw, void *dbias);
tl_status tl_cpu_arg_extreme(bool largest, int dtype, const void *x, int64_t outer, int64_t n, int64_t inner,
                             int64_t *ids);
tl_status tl_cpu_cumsum(int from, const void *x, int to, void *y, int64_t outer, int64_t n, int64_t inner,
                        bool reverse);
tl_status tl_cpu_find_bad_id(const int64_t *ids, int64_t n, int64_t limit, int64_t *at);
tl_status tl_cpu_index_select(size_t size, const void *x, int64_t outer, int64_t n, int64_t inner, int64_t m,
                              const int64_t *ids, void *y);
tl_status tl_cpu_index_add(int dtype, const void *x, int64_t outer, int64_t n, int64_t inner, int64_t m,
                           const int64_t *ids, double alpha, void *y);
tl_status tl_cpu_gather(const tl_iter *it, int64_t stride, int64_t n);
tl_status tl_cpu_scatter_add(const tl_iter *it, int64_t stride, int64_t n);
tl_status tl_cpu_nonzero(const uint8_t *flags, int ndim, const int64_t *shape, int64_t *out);
tl_status tl_cpu_triangle(size_t size, const void *x, int64_t batch, int64_t rows, int64_t columns, int64_t diagonal,
                          bool upper, void *y);
tl_status tl_cpu_sort(int dtype, const void *x, int64_t outer, int64_t n, int64_t inner, bool descending, int64_t k,
                      void *values, int64_t *ids);
tl_status tl_cpu_dropout(int dtype, const void *x, void *y, int64_t n, uint64_t seed, uint64_t offset, double p);
tl_status tl_cpu_permutation(int64_t n, uint64_t seed, uint64_t offset, int64_t *out);
tl_status tl_cpu_multinomial(const double *weights, int64_t rows, int64_t c, int64_t n, bool replacement, uint64_t seed,
                             uint64_t offset, int64_t *out);
tl_status tl_cpu_sparse_linear(const tl_sparse *w, const float *x, int64_t batch, float *y);

/* Work (elements, roughly) below which a second thread costs more than it brings. */
#define TL_PARALLEL_MIN 32768

/* f16 <-> f32 without hardware help where the compiler has none; bf16 rounds to nearest even, nan stays nan. */
typedef uint16_t tl_half;
typedef struct tl_bf16 {
  uint16_t bits;
} tl_bf16;

#endif
