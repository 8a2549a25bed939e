/* calls.c: calls that fail on request, machines without a device, leaks. */
#include <unistd.h>
#include <sys/wait.h>

#include "selftest.h"

SIM_CLEAN_WITH(third_call_fails, "TLUA_SIM_FAIL=3") {
  int device;
  void *p, *q;
  SIM_OK(cudaGetDevice(&device));
  SIM_OK(cudaMalloc(&p, 100));
  SIM_EXPECT(cudaMalloc(&q, 100) == cudaErrorMemoryAllocation);
  SIM_EXPECT(cudaPeekAtLastError() == cudaErrorMemoryAllocation);
  SIM_EXPECT(cudaGetLastError() == cudaErrorMemoryAllocation);
  SIM_EXPECT(cudaGetLastError() == cudaSuccess);
  SIM_OK(cudaMalloc(&q, 100));
}
SIM_CLEAN_WITH(second_synchronize_fails, "TLUA_SIM_FAIL=cudaStreamSynchronize:2") {
  for (int i = 1; i <= 3; i++)
    SIM_EXPECT(cudaStreamSynchronize(NULL) == (i == 2 ? cudaErrorLaunchFailure : cudaSuccess));
}
SIM_CLEAN_WITH(no_device, "TLUA_SIM_DEVICES=0") {
  int n = 7;
  void *p;
  SIM_EXPECT(cudaGetDeviceCount(&n) == cudaErrorNoDevice && n == 0);
  SIM_EXPECT(cudaMalloc(&p, 1) == cudaErrorNoDevice);
}
SIM_CLEAN_WITH(old_driver, "TLUA_SIM_DRIVER=old") {
  int n = 7;
  SIM_EXPECT(cudaGetDeviceCount(&n) == cudaErrorInsufficientDriver && n == 0);
}
SIM_CLEAN_WITH(three_devices, "TLUA_SIM_DEVICES=3") {
  int n;
  SIM_OK(cudaGetDeviceCount(&n));
  SIM_EXPECT(n == 3);
}
SIM_CLEAN(unknown_attributes_are_refused) {
  int v;
  SIM_OK(cudaDeviceGetAttribute(&v, cudaDevAttrWarpSize, 0));
  SIM_EXPECT(v == 32);
  SIM_EXPECT(cudaDeviceGetAttribute(&v, cudaDevAttrMaxTexture1DWidth, 0) == cudaErrorNotSupported);
}
SIM_CLEAN(child_of_a_user_has_no_device) {
  void *p;
  SIM_OK(cudaMalloc(&p, 1));
  int status;
  pid_t child = fork();
  if (child == 0) _exit(cudaMalloc(&p, 1) == cudaErrorInitializationError ? 0 : 1);
  SIM_EXPECT(waitpid(child, &status, 0) == child && status == 0);
}

static void use_and_leave(int what) {
  void *p, *host;
  cudaStream_t s;
  cudaEvent_t e;
  cudaGraph_t g;
  cudaGraphExec_t x;
  SIM_OK(cudaMalloc(&p, 100));
  SIM_OK(cudaMallocHost(&host, 100));
  SIM_OK(cudaStreamCreate(&s));
  SIM_OK(cudaEventCreate(&e));
  SIM_OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
  SIM_OK(cudaMemsetAsync(p, 0, 100, s));
  SIM_OK(cudaStreamEndCapture(s, &g));
  SIM_OK(cudaGraphInstantiate(&x, g, 0));
  if (what != 0) SIM_OK(cudaFree(p));
  if (what != 1) SIM_OK(cudaFreeHost(host));
  if (what != 2) SIM_OK(cudaStreamDestroy(s));
  if (what != 3) SIM_OK(cudaEventDestroy(e));
  if (what != 4) SIM_OK(cudaGraphDestroy(g));
  if (what != 5) SIM_OK(cudaGraphExecDestroy(x));
}
SIM_FAULT_WITH(leaks_memory, "leak", "100 bytes of device 0", "TLUA_SIM_LEAKS=1") { use_and_leave(0); }
SIM_FAULT_WITH(leaks_pinned_memory, "leak", "100 pinned bytes", "TLUA_SIM_LEAKS=1") { use_and_leave(1); }
SIM_FAULT_WITH(leaks_a_stream, "leak", "a stream of device 0", "TLUA_SIM_LEAKS=1") { use_and_leave(2); }
SIM_FAULT_WITH(leaks_an_event, "leak", "an event of device 0", "TLUA_SIM_LEAKS=1") { use_and_leave(3); }
SIM_FAULT_WITH(leaks_a_graph, "leak", "a graph of 1 nodes", "TLUA_SIM_LEAKS=1") { use_and_leave(4); }
SIM_FAULT_WITH(leaks_an_executable_graph, "leak", "an executable graph of 1 nodes", "TLUA_SIM_LEAKS=1") {
  use_and_leave(5);
}
SIM_CLEAN_WITH(leaks_nothing, "TLUA_SIM_LEAKS=1") { use_and_leave(-1); }
