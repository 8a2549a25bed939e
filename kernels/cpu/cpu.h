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
#define tl_cpu_gemm TL_ISA_NAME(tl_cpu_gemm)
#define tl_cpu_update TL_ISA_NAME(tl_cpu_update)
#define tl_cpu_conv_forward TL_ISA_NAME(tl_cpu_conv_forward)
#define tl_cpu_conv_backward TL_ISA_NAME(tl_cpu_conv_backward)

tl_status tl_cpu_pointwise(int fn, int compute, const tl_iter *it, double p, double q);
tl_status tl_cpu_copy(const tl_iter *it);
tl_status tl_cpu_random(int kind, const tl_iter *it, uint64_t seed, uint64_t offset, double p, double q);
tl_status tl_cpu_range(tl_tensor *out, double first, double step);
tl_status tl_cpu_reduce(int kind, const tl_iter *it, int reduced, double p);
tl_status tl_cpu_gemm(const tl_gemm *g);
tl_status tl_cpu_update(int n, const tl_update *list);
tl_status tl_cpu_conv_forward(const tl_convolution *c, const void *x, const void *w, const void *bias, void *y);
tl_status tl_cpu_conv_backward(const tl_convolution *c, const void *x, const void *w, const void *dy, void *dx, void *dw,
                               void *dbias);

/* Work (elements, roughly) below which a second thread costs more than it brings. */
#define TL_PARALLEL_MIN 32768

/* f16 <-> f32 without hardware help where the compiler has none; bf16 rounds to nearest even, nan stays nan. */
typedef uint16_t tl_half;
typedef struct tl_bf16 { uint16_t bits; } tl_bf16;

#endif
