/* widen.h: whole contiguous operands of a half type as float32, and back. */
#ifndef TL_KERNELS_CPU_WIDEN_H
#define TL_KERNELS_CPU_WIDEN_H

#include "convert.h"
#include "cpu.h"

static inline void tl_widen(float *dst, int dtype, const void *src, int64_t n) {
#pragma omp parallel for if (n > TL_PARALLEL_MIN) schedule(static)
  for (int64_t i = 0; i < n; i += TL_CHUNK)
    tl_load_f32(dst + i, dtype, (const char *)src + i * 2, 2, n - i < TL_CHUNK ? (int)(n - i) : TL_CHUNK);
}

static inline void tl_narrow_to(void *dst, int dtype, const float *src, int64_t n) {
#pragma omp parallel for if (n > TL_PARALLEL_MIN) schedule(static)
  for (int64_t i = 0; i < n; i += TL_CHUNK)
    tl_store_f32((char *)dst + i * 2, dtype, 2, src + i, n - i < TL_CHUNK ? (int)(n - i) : TL_CHUNK);
}

#endif
