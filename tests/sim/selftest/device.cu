// device.cu: faults of kernels that every build of the simulator reports.
#include "selftest.h"
#include "sim_device.h"

static const unsigned ALL = 0xffffffffu;

// Runs a kernel to its end on n ints that are 0.
template <typename K> static void run_on(int n, K kernel, dim3 grid, dim3 block, size_t shared = 0) {
  int *p;
  SIM_OK(cudaMalloc(reinterpret_cast<void **>(&p), sizeof(int) * n));
  SIM_OK(cudaMemset(p, 0, sizeof(int) * n));
  SIM_OK(sim_launch("planted", kernel, grid, block, shared, nullptr, p));
  SIM_OK(cudaDeviceSynchronize());
  SIM_OK(cudaFree(p));
}

// ---- barriers ----

static __global__ void divergent(int *p) {
  if (threadIdx.x < 7) __syncthreads();
  else __syncthreads();
  p[threadIdx.x] = 1;
}
SIM_FAULT(divergent_barrier, "barrier", "device.cu:") { run_on(64, divergent, 1, 64); }

static __global__ void early_exit(int *p) {
  if (threadIdx.x >= 50) return;
  p[threadIdx.x] = 1;
  __syncthreads();
}
SIM_FAULT(early_exit_barrier, "barrier", "left the kernel") { run_on(64, early_exit, 1, 64); }

static __global__ void mixed(int *p) {
  if (threadIdx.x < 32) __syncthreads();
  else if (threadIdx.x == 40) __syncwarp(0xffffff00u);
  else if (threadIdx.x < 48) __syncthreads();
  else p[threadIdx.x] = __shfl_sync(0xffff0000u, 1, 20);
}
SIM_FAULT(barrier_against_warp, "barrier", "__syncthreads") { run_on(64, mixed, 1, 64); }

static __global__ void uniform(int *p) {
  __syncthreads();
  if (blockIdx.x == 1) return; // the whole block
  for (int i = 0; i < 3; i++) __syncthreads();
  p[blockIdx.x * blockDim.x + threadIdx.x] = __syncthreads_count(threadIdx.x % 3 == 0) + __syncthreads_and(1) * 100;
}
SIM_CLEAN(uniform_barriers) { run_on(300, uniform, 3, 100); }

// ---- warps ----

static __global__ void from_absent(int *p) { p[threadIdx.x] = __shfl_down_sync(ALL, (int)threadIdx.x, 1); }
SIM_FAULT(shuffle_from_absent_lane, "shuffle", "is not there") { run_on(48, from_absent, 1, 48); }
SIM_CLEAN(shuffle_whole_warps) { run_on(64, from_absent, 1, 64); }

static __global__ void not_named(int *p) { p[threadIdx.x] = __shfl_sync(0x0000ffffu, 1, 0); }
SIM_FAULT(shuffle_lane_not_in_mask, "shuffle", "does not name it") { run_on(32, not_named, 1, 32); }

static __global__ void source_outside(int *p) {
  if (threadIdx.x < 16) p[threadIdx.x] = __shfl_sync(0x0000ffffu, (int)threadIdx.x, threadIdx.x + 1);
}
SIM_FAULT(shuffle_source_not_in_mask, "shuffle", "takes no part") { run_on(32, source_outside, 1, 32); }

static __global__ void never_come(int *p) {
  if (threadIdx.x % 32 < 20) p[threadIdx.x] = __shfl_xor_sync(ALL, 1, 1);
  else __syncthreads();
}
static __global__ void other_mask(int *p) { p[threadIdx.x] = (int)__ballot_sync(threadIdx.x < 20 ? ALL : ALL << 3, 1); }
SIM_FAULT(shuffle_lanes_never_come, "shuffle", "for ever") { run_on(32, other_mask, 1, 32); }
SIM_FAULT(shuffle_against_barrier, "barrier", "warp function") { run_on(64, never_come, 1, 64); }

static __global__ void active(int *p) {
  if (threadIdx.x < 16) p[threadIdx.x] = __shfl_sync(__activemask(), (int)threadIdx.x, 3);
}
SIM_FAULT(shuffle_trusts_activemask, "shuffle", "takes no part") { run_on(32, active, 1, 32); }

static __global__ void halves(int *p) {
  unsigned half = threadIdx.x % 32 < 16 ? 0x0000ffffu : 0xffff0000u;
  int v = (int)threadIdx.x;
  for (int o = 8; o > 0; o /= 2) v += __shfl_xor_sync(half, v, o, 16);
  if (__any_sync(half, threadIdx.x == 17)) v = -1;
  if (threadIdx.x % 2) v += __popc(__match_any_sync(0xaaaaaaaau, v));
  __syncwarp();
  p[threadIdx.x] = v;
}
SIM_CLEAN(shuffle_halves) { run_on(64, halves, 1, 64); }

static __global__ void other_kind(int *p) {
  p[threadIdx.x] = threadIdx.x < 16 ? __shfl_sync(ALL, 1, 0) : (int)__ballot_sync(ALL, 1);
}
SIM_FAULT(shuffle_against_ballot, "shuffle", "another kind") { run_on(32, other_kind, 1, 32); }

// ---- launches ----

static __global__ void one(int *p) {
  if (blockIdx.x + blockIdx.y + blockIdx.z + threadIdx.x + threadIdx.y + threadIdx.z == 0) *p = 1;
}
static cudaError_t launch_of(dim3 grid, dim3 block, size_t shared) {
  int *p;
  SIM_OK(cudaMalloc(reinterpret_cast<void **>(&p), 4));
  cudaError_t e = sim_launch("one", one, grid, block, shared, nullptr, p);
  SIM_EXPECT(cudaGetLastError() == e);
  SIM_OK(cudaDeviceSynchronize());
  SIM_OK(cudaFree(p));
  return e;
}
SIM_CLEAN(launch_configurations) {
  SIM_EXPECT(launch_of(0, 32, 0) == cudaErrorInvalidConfiguration);
  SIM_EXPECT(launch_of(1, 0, 0) == cudaErrorInvalidConfiguration);
  SIM_EXPECT(launch_of(1, 1025, 0) == cudaErrorInvalidConfiguration);
  SIM_EXPECT(launch_of(1, dim3(32, 33), 0) == cudaErrorInvalidConfiguration);
  SIM_EXPECT(launch_of(1, dim3(1, 1, 65), 0) == cudaErrorInvalidConfiguration);
  SIM_EXPECT(launch_of(dim3(1, 65536), 1, 0) == cudaErrorInvalidConfiguration);
  SIM_EXPECT(launch_of(1, 32, (48 << 10) + 1) == cudaErrorInvalidValue);
  SIM_EXPECT(launch_of(dim3(3, 5, 7), dim3(4, 8, 32), 48 << 10) == cudaSuccess);
  SIM_OK(cudaFuncSetAttribute(reinterpret_cast<const void *>(one), cudaFuncAttributeMaxDynamicSharedMemorySize, 64 << 10));
  SIM_EXPECT(launch_of(1, 32, 64 << 10) == cudaSuccess);
  SIM_EXPECT(launch_of(1, 32, (64 << 10) + 1) == cudaErrorInvalidValue);
  SIM_EXPECT(cudaFuncSetAttribute(reinterpret_cast<const void *>(one), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  1 << 20) == cudaErrorInvalidValue);
}

// ---- results ----

static __global__ void scan(int *p) {
  __shared__ int totals[8];
  int *whole = static_cast<int *>(sim_dynamic_shared());
  int v = (int)threadIdx.x, lane = (int)threadIdx.x % 32;
  for (int o = 1; o < 32; o *= 2) {
    int left = __shfl_up_sync(ALL, v, o);
    if (lane >= o) v += left;
  }
  if (lane == 31) totals[threadIdx.x / 32] = v;
  __syncthreads();
  for (unsigned w = 0; w < threadIdx.x / 32; w++) v += totals[w];
  whole[threadIdx.x] = v;
  __syncthreads();
  p[blockIdx.x * blockDim.x + threadIdx.x] = whole[blockDim.x - 1 - threadIdx.x];
  atomicAdd(&p[gridDim.x * blockDim.x], 1);
}
SIM_CLEAN(scan_is_right) {
  enum { BLOCKS = 5, THREADS = 256, N = BLOCKS * THREADS };
  static int host[N + 1];
  int *p;
  SIM_OK(cudaMalloc(reinterpret_cast<void **>(&p), sizeof host));
  SIM_OK(cudaMemset(p, 0, sizeof host));
  SIM_OK(sim_launch("scan", scan, BLOCKS, THREADS, THREADS * sizeof(int), nullptr, p));
  SIM_OK(cudaMemcpy(host, p, sizeof host, cudaMemcpyDeviceToHost));
  for (int i = 0; i < N; i++) {
    int t = THREADS - 1 - i % THREADS;
    SIM_EXPECT(host[i] == t * (t + 1) / 2);
  }
  SIM_EXPECT(host[N] == N);
  SIM_OK(cudaFree(p));
}

// ---- shared memory ----

#ifndef SIM_CHECK // which would blame it
static __global__ void keeps(int *p) {
  __shared__ int sum;
  if (blockIdx.x == 0 || sum != 5) sum = 5;
  else *p = 1; // found what another block left
}
SIM_CLEAN(shared_memory_of_another_block) {
  int *p, host = -1;
  SIM_OK(cudaMalloc(reinterpret_cast<void **>(&p), 4));
  SIM_OK(cudaMemset(p, 0, 4));
  for (int i = 0; i < 2; i++) SIM_OK(sim_launch("keeps", keeps, 4, 1, 0, nullptr, p));
  SIM_OK(cudaMemcpy(&host, p, 4, cudaMemcpyDeviceToHost));
  SIM_EXPECT(host == 0);
  SIM_OK(cudaFree(p));
}
#endif

static __global__ void large(int *p) {
  __shared__ int a[6 << 10];
  int *b = static_cast<int *>(sim_dynamic_shared());
  b[threadIdx.x] = a[threadIdx.x] = (int)threadIdx.x;
  __syncthreads();
  if (threadIdx.x == 0) *p = a[blockDim.x - 1] + b[blockDim.x - 1];
}
SIM_FAULT(shared_memory_static_and_dynamic, "shared", "24576 bytes of static and 28672 bytes of dynamic") {
  run_on(1, large, 1, 32, 28 << 10);
}
SIM_CLEAN(shared_memory_fits) { run_on(1, large, 1, 32, 24 << 10); }
