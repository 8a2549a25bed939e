/* launch.h: what every .cu file starts with: launches, sizes of grids, errors that kernels report.
 *
 * A kernel file defines entries of tl_kernels (engine/backend/kernels.h) under the name tl_cuda_ENTRY:
 *
 *     TL_CUDA_ENTRY(softmax)(const tl_softmax_args *a) { ... return gpu_launch("softmax", kernel<float>, grid, block, 0, ...); }
 *
 * gpu_launch is the one way to start a kernel: nvcc's <<<>>> on a GPU, a queue entry in the simulator. Not used, because
 * the simulator runs these files as plain C++: inline PTX, cooperative groups, CUB, device globals. Dynamic shared memory
 * is declared with GPU_SHARED(type, name). */
#ifndef TL_KERNELS_CUDA_LAUNCH_H
#define TL_KERNELS_CUDA_LAUNCH_H

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <type_traits>

#include "backend/cuda/cuda.h"
#include "backend/kernels.h"

#ifndef __CUDACC__
#include "sim_device.h"
#endif

/* Defines the entry and checks at compile time that its type is the table's. */
#define TL_CUDA_ENTRY(name)                                                    \
  extern "C" std::remove_pointer_t<decltype(tl_kernels::name)> tl_cuda_##name; \
  extern "C" tl_status tl_cuda_##name

#ifdef __CUDACC__
#define GPU_SHARED(type, name)                         \
  extern __shared__ __align__(16) char name##_bytes[]; \
  type *name = reinterpret_cast<type *>(name##_bytes)
#else
#define GPU_SHARED(type, name) type *name = static_cast<type *>(sim_dynamic_shared())
#endif

/* Arguments are converted to the kernel's parameter types. `name` is for messages and must live for ever. */
template <typename... P, typename... A>
static inline tl_status gpu_launch(const char *name, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared,
                                   A... args) {
  static_assert(sizeof...(P) == sizeof...(A), "as many arguments as the kernel has parameters");
  cudaStream_t stream = tl_cuda_here()->stream;
#ifdef __CUDACC__
  kernel<<<grid, block, shared, stream>>>(static_cast<P>(args)...);
#else
  sim_launch(name, kernel, grid, block, shared, stream, static_cast<P>(args)...);
#endif
  return tl_cuda_launched(name);
}

enum { GPU_BLOCK = 256, GPU_WARP = 32 };

/* Blocks for n pieces of work at GPU_BLOCK threads each, for kernels with a grid-stride loop: at most 8 blocks a
 * multiprocessor, which fills the device. */
static inline unsigned gpu_blocks(int64_t n) {
  int64_t blocks = (n + GPU_BLOCK - 1) / GPU_BLOCK, most = (int64_t)tl_cuda_here()->multiprocessors * 8;
  return (unsigned)(blocks < 1 ? 1 : blocks < most ? blocks : most);
}

/* for (int64_t i ...) over 0..n-1 by all threads of the grid */
#define GPU_LOOP(i, n)                                                                                          \
  for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, gpu_step_ = (int64_t)gridDim.x * blockDim.x; \
       i < (n); i += gpu_step_)

/* Records what is wrong; the first report wins and the kernel goes on with a harmless value. */
static __device__ inline void gpu_report(tl_cuda_fault *fault, int code, int64_t value, int64_t limit, int64_t at) {
  if (atomicCAS(&fault->code, (int)TL_CUDA_FAULT_NONE, code) != TL_CUDA_FAULT_NONE) return;
  fault->value = value;
  fault->limit = limit;
  fault->at = at;
}

#endif
