/* ranges.h: NVTX ranges: names on the time line of NVIDIA's profilers (ranges.c). */
#ifndef TL_BACKEND_CUDA_RANGES_H
#define TL_BACKEND_CUDA_RANGES_H

#ifdef __cplusplus
extern "C" {
#endif

void tl_cuda_range_push(const char *name);
void tl_cuda_range_pop(void);

#ifdef __cplusplus
}
#endif
#endif
