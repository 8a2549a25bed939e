// create.cu: tensors from nothing: ranges.
#include "launch.h"
#include "element.h"

// out[i] = first + i * step, computed in double as on the CPU.
template <typename T>
static __global__ void range_kernel(T *out, int64_t n, double first, double step) {
  GPU_LOOP(i, n) out[i] = gpu_store<T>(first + (double)i * step);
}

TL_CUDA_ENTRY(range)(tl_tensor *out, double first, double step) {
  if (out->numel == 0) return TL_OK;
  GPU_DISPATCH(out->dtype, T, {
    return gpu_launch("range", range_kernel<T>, gpu_blocks(out->numel), GPU_BLOCK, 0, (T *)tl_first(out), out->numel,
                      first, step);
  })
  return TL_OK;
}
