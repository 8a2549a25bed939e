/* rounding.h: how a parameter is stored, and rounding to bfloat16 at random: for the files with optimizer steps. */
#ifndef TL_KERNELS_CUDA_ROUNDING_H
#define TL_KERNELS_CUDA_ROUNDING_H

#include "element.h"
#include "philox.h"
#include "quantise.h"

/* float32 and float64; with a float32 master; bfloat16 without one. */
enum rounding { PLAIN, MASTERED, STOCHASTIC };

/* By the lower 16 of the random bits. */
static __device__ inline __nv_bfloat16 gpu_stochastic(float x, uint32_t random) {
  __nv_bfloat16_raw r;
  r.x = tl_bf16_stochastic(x, random);
  return r;
}

#endif
