// access.cu: faults that only the checkers see, as they watch every access of a kernel.
#include "selftest.h"
#include "sim_device.h"

enum { N = 256 };

// n ints of device memory, written or not.
static int *ints(int n, bool written = true) {
  int *p;
  SIM_OK(cudaMalloc(reinterpret_cast<void **>(&p), sizeof(int) * n));
  if (written) SIM_OK(cudaMemset(p, 0, sizeof(int) * n));
  return p;
}

template <typename... P, typename... A>
static void run(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared, A... args) {
  SIM_OK(sim_launch("planted", kernel, grid, block, shared, nullptr, static_cast<P>(args)...));
  SIM_OK(cudaDeviceSynchronize());
}

// ---- bounds and lifetime of device memory ----

static __global__ void fill(int *p, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i <= n) p[i] = i; // one too many
}
SIM_CHECK_FAULT(write_behind_the_end, "out-of-bounds", "access.cu:") { run(fill, 2, N, 0, ints(N), N); }
SIM_CLEAN(write_up_to_the_end) { run(fill, 2, N, 0, ints(N), N - 1); }

static __global__ void sum_to(const int *p, int n, int *out) {
  int s = 0;
  for (int i = 0; i < n; i++) s += p[i];
  *out = s;
}
SIM_CHECK_FAULT(read_behind_the_end, "out-of-bounds", "read of 4 bytes at access.cu:") {
  run(sum_to, 1, 1, 0, ints(N), N + 1, ints(1));
}
SIM_CHECK_FAULT(read_before_the_start, "out-of-bounds", "read of 4 bytes") { run(sum_to, 1, 1, 0, ints(N) - 1, 1, ints(1)); }
SIM_CLEAN(read_all) { run(sum_to, 1, 1, 0, ints(N), N, ints(1)); }

SIM_CHECK_FAULT(use_after_free, "use-after-free", "it was freed") {
  int *p = ints(N), *out = ints(1);
  SIM_OK(cudaFree(p));
  run(sum_to, 1, 1, 0, p, N, out);
}
SIM_CLEAN(free_after_use) {
  int *p = ints(N);
  run(sum_to, 1, 1, 0, p, N, ints(1));
  SIM_OK(cudaFree(p));
}

SIM_CHECK_FAULT(kernel_reads_the_host, "not-device", "access.cu:") {
  static int *host;
  host = static_cast<int *>(malloc(sizeof(int) * N));
  run(sum_to, 1, 1, 0, host, N, ints(1));
}
SIM_CLEAN(kernel_reads_pinned_memory) {
  int *host;
  SIM_OK(cudaMallocHost(reinterpret_cast<void **>(&host), sizeof(int) * N));
  run(sum_to, 1, 1, 0, host, N, ints(1));
}

static __global__ void wide(const char *p, float4 *out) { *out = *reinterpret_cast<const float4 *>(p); }
SIM_CHECK_FAULT(vector_load_at_an_odd_address, "misaligned", "read of 16 bytes") {
  run(wide, 1, 1, 0, reinterpret_cast<char *>(ints(N)) + 4, reinterpret_cast<float4 *>(ints(4)));
}
SIM_CLEAN(vector_load) { run(wide, 1, 1, 0, reinterpret_cast<char *>(ints(N)) + 16, reinterpret_cast<float4 *>(ints(4))); }

// ---- values that nobody wrote ----

SIM_CHECK_FAULT(read_of_new_memory, "uninitialised", "since it was allocated") {
  run(sum_to, 1, 1, 0, ints(N, false), N, ints(1));
}
static __global__ void fill_first(int *p, int n) {
  if ((int)threadIdx.x < n) p[threadIdx.x] = 1;
}
SIM_CHECK_FAULT(read_of_half_written_memory, "uninitialised", "byte 1020 of the 1024") {
  int *p = ints(N, false);
  run(fill_first, 1, N, 0, p, N - 1);
  run(sum_to, 1, 1, 0, p, N, ints(1));
}
SIM_CLEAN(read_of_written_memory) {
  int *p = ints(N, false);
  run(fill_first, 1, N, 0, p, N);
  run(sum_to, 1, 1, 0, p, N, ints(1));
}
SIM_CHECK_FAULT(count_in_new_memory, "uninitialised", "atomic of 4 bytes") {
  run(+[](int *p) { atomicAdd(p, 1); }, 1, N, 0, ints(1, false));
}

static __global__ void shared_part(int *p, int n) {
  __shared__ int part[N];
  if ((int)threadIdx.x < n) part[threadIdx.x] = 1;
  __syncthreads();
  p[threadIdx.x] = part[threadIdx.x];
}
SIM_CHECK_FAULT(read_of_unwritten_shared_memory, "uninitialised", "static shared memory") {
  run(shared_part, 2, N, 0, ints(N), N - 1);
}
static __global__ void shared_once(int *p) {
  __shared__ int part[N];
  if (blockIdx.x == 0) part[threadIdx.x] = 1;
  __syncthreads();
  p[blockIdx.x * N + threadIdx.x] = part[threadIdx.x];
}
SIM_CHECK_FAULT(read_of_another_blocks_shared_memory, "uninitialised", "no thread of the block") {
  run(shared_once, 2, N, 0, ints(2 * N));
}
SIM_CLEAN(read_of_written_shared_memory) { run(shared_part, 1, N, 0, ints(N), N); }

static __global__ void dynamic_reverse(int *p, int n) {
  int *s = static_cast<int *>(sim_dynamic_shared());
  s[threadIdx.x] = (int)threadIdx.x;
  __syncthreads();
  if ((int)threadIdx.x < n) p[threadIdx.x] = s[n - 1 - threadIdx.x];
}
SIM_CHECK_FAULT(write_behind_dynamic_shared_memory, "out-of-bounds", "outside the block's 1020 bytes") {
  run(dynamic_reverse, 1, N, (N - 1) * sizeof(int), ints(N), N);
}
SIM_CLEAN(dynamic_shared_memory) { run(dynamic_reverse, 1, N, N * sizeof(int), ints(N), N); }

// ---- races in shared memory ----

// Sums of a block in a tree, of two arrays one after the other, given to all threads; `leave_out` is the barrier that is
// missing.
enum { NONE, TREE, REUSE, BROADCAST };
template <int leave_out> static __device__ int block_sum(int v) {
  __shared__ int s[N];
  __shared__ int total;
  s[threadIdx.x] = v;
  if (threadIdx.x == 0) total = 0;
  __syncthreads();
  for (int o = N / 2; o > 0; o /= 2) {
    if ((int)threadIdx.x < o) s[threadIdx.x] += s[threadIdx.x + o];
    if (leave_out != TREE) __syncthreads();
  }
  if (threadIdx.x == N / 2) total = s[0];
  if (leave_out != BROADCAST) __syncthreads();
  int result = total;
  if (leave_out != REUSE) __syncthreads();
  return result;
}
template <int leave_out> static __global__ void two_sums(int *p) {
  int a = block_sum<leave_out>(1), b = block_sum<leave_out>(2);
  p[blockIdx.x * N + threadIdx.x] = a + b;
}
SIM_CHECK_FAULT(missing_barrier_in_a_tree, "race", "access.cu") { run(two_sums<TREE>, 2, N, 0, ints(2 * N)); }
SIM_CHECK_FAULT(missing_barrier_before_a_broadcast, "race", "access.cu") { run(two_sums<BROADCAST>, 2, N, 0, ints(2 * N)); }
SIM_CHECK_FAULT(missing_barrier_before_reuse, "race", "access.cu") {
  run(+[](int *p) {
    __shared__ int s[N];
    for (int i = 0; i < 2; i++) {
      s[threadIdx.x] = i;
      __syncthreads();
      p[threadIdx.x] += s[N - 1 - threadIdx.x]; // the next turn overwrites it
    }
  }, 1, N, 0, ints(N));
}
SIM_CLEAN(all_barriers) { run(two_sums<NONE>, 2, N, 0, ints(2 * N)); }

static __global__ void warp_tree(int *p, int sync) {
  __shared__ volatile int s[32];
  s[threadIdx.x] = 1;
  __syncwarp();
  for (int o = 16; o > 0; o /= 2) {
    int v = (int)threadIdx.x < o ? s[threadIdx.x + o] : 0;
    if (sync) __syncwarp();
    if ((int)threadIdx.x < o) s[threadIdx.x] = s[threadIdx.x] + v;
    if (sync) __syncwarp();
  }
  if (threadIdx.x == 0) *p = s[0];
}
SIM_CHECK_FAULT(warp_that_trusts_lockstep, "race", "access.cu") { run(warp_tree, 1, 32, 0, ints(1), 0); }
SIM_CLEAN(warp_that_synchronises) { run(warp_tree, 1, 32, 0, ints(1), 1); }

// ---- races in device memory ----

static __global__ void histogram(const int *p, int *bins, int atomic) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (atomic) atomicAdd(&bins[p[i] % 4], 1);
  else bins[p[i] % 4] += 1;
}
SIM_CHECK_FAULT(missing_atomic, "race", "access.cu:") { run(histogram, 2, N, 0, ints(2 * N), ints(4), 0); }
SIM_CLEAN(atomic) { run(histogram, 2, N, 0, ints(2 * N), ints(4), 1); }

static __global__ void atomic_and_not(int *p) {
  if (blockIdx.x == 0) atomicAdd(p, 1);
  else *p = 1;
}
SIM_CHECK_FAULT(atomic_against_plain, "race", "atomic") { run(atomic_and_not, 2, 1, 0, ints(1)); }

static __global__ void shift(int *p, int step) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  p[i] = p[i + step] + 1;
}
SIM_CHECK_FAULT(in_place_with_a_neighbour, "race", "nothing orders") { run(shift, 2, N, 0, ints(2 * N + 1), 1); }
SIM_CLEAN(in_place) { run(shift, 2, N, 0, ints(2 * N), 0); }

static __global__ void bytes(unsigned char *p) { p[blockIdx.x * blockDim.x + threadIdx.x] = 1; }
SIM_CLEAN(neighbouring_bytes) { run(bytes, 3, N, 0, reinterpret_cast<unsigned char *>(ints(N))); }

static __global__ void same_value(int *flag) { *flag = 1; }
SIM_CHECK_FAULT(everybody_writes, "race", "write") { run(same_value, 1, N, 0, ints(1)); }

// ---- streams ----

static __global__ void put(int *p, int v) { p[threadIdx.x] = v; }
static __global__ void get(const int *p, int *out) { out[threadIdx.x] = p[threadIdx.x]; }

// A kernel of one stream writes, one of another reads; `ordered`: an event lies between.
static void two_streams(bool ordered, bool reads_first) {
  cudaStream_t a, b;
  cudaEvent_t e;
  int *p = ints(N), *out = ints(N);
  SIM_OK(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
  SIM_OK(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
  SIM_OK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
  SIM_OK(cudaDeviceSynchronize());
  if (reads_first) SIM_OK(sim_launch("get", get, 1, N, 0, a, (const int *)p, out));
  else SIM_OK(sim_launch("put", put, 1, N, 0, a, p, 1));
  SIM_OK(cudaEventRecord(e, a));
  if (ordered) SIM_OK(cudaStreamWaitEvent(b, e, 0));
  if (reads_first) SIM_OK(sim_launch("put", put, 1, N, 0, b, p, 1));
  else SIM_OK(sim_launch("get", get, 1, N, 0, b, (const int *)p, out));
  SIM_OK(cudaDeviceSynchronize());
  SIM_OK(cudaEventDestroy(e));
  SIM_OK(cudaStreamDestroy(a));
  SIM_OK(cudaStreamDestroy(b));
}
SIM_CHECK_FAULT(missing_event_between_kernels, "stream-race", "nothing orders the two") { two_streams(false, false); }
SIM_CHECK_FAULT(missing_event_before_an_overwrite, "stream-race", "nothing orders the two") { two_streams(false, true); }
SIM_CLEAN(event_between_kernels) { two_streams(true, false); }
SIM_CLEAN(event_before_an_overwrite) { two_streams(true, true); }

static void copy_after_kernel(bool waits) {
  cudaStream_t a, b;
  int *p = ints(N), *pinned;
  SIM_OK(cudaMallocHost(reinterpret_cast<void **>(&pinned), sizeof(int) * N));
  SIM_OK(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
  SIM_OK(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
  SIM_OK(cudaDeviceSynchronize());
  SIM_OK(sim_launch("put", put, 1, N, 0, a, p, 1));
  if (waits) SIM_OK(cudaStreamSynchronize(a));
  SIM_OK(cudaMemcpyAsync(pinned, p, sizeof(int) * N, cudaMemcpyDeviceToHost, b));
  SIM_OK(cudaDeviceSynchronize());
  SIM_EXPECT(pinned[N - 1] == 1);
}
SIM_CHECK_FAULT(copy_without_waiting_for_a_kernel, "stream-race", "nothing orders the two") { copy_after_kernel(false); }
SIM_CLEAN(copy_after_waiting_for_a_kernel) { copy_after_kernel(true); }
