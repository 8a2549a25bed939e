// devices.cu: kernels and the device they run on.
#include "selftest.h"
#include "sim_device.h"

static __global__ void one(int *p) { *p = 1; }

static int *memory_of(int device) {
  int *p;
  SIM_OK(cudaSetDevice(device));
  SIM_OK(cudaMalloc(reinterpret_cast<void **>(&p), 4));
  SIM_OK(cudaMemset(p, 0, 4));
  SIM_OK(cudaDeviceSynchronize());
  return p;
}

SIM_FAULT(kernel_gets_memory_of_another_device, "wrong-device", "one on device 0 writes") {
  int *p = memory_of(1);
  SIM_OK(cudaSetDevice(0));
  SIM_OK(sim_launch("one", one, 1, 1, 0, nullptr, p));
  SIM_OK(cudaDeviceSynchronize());
}
SIM_CLEAN(kernel_gets_memory_of_a_peer) {
  int *p = memory_of(1), can, host;
  SIM_OK(cudaSetDevice(0));
  SIM_OK(cudaDeviceCanAccessPeer(&can, 0, 1));
  SIM_EXPECT(can == 1);
  SIM_OK(cudaDeviceEnablePeerAccess(1, 0));
  SIM_OK(sim_launch("one", one, 1, 1, 0, nullptr, p));
  SIM_OK(cudaMemcpy(&host, p, 4, cudaMemcpyDeviceToHost));
  SIM_EXPECT(host == 1);
}
SIM_CLEAN(kernel_in_a_stream_of_another_device) {
  cudaStream_t s;
  int *p = memory_of(1), host;
  SIM_OK(cudaStreamCreate(&s));
  SIM_OK(cudaSetDevice(0));
  SIM_EXPECT(sim_launch("one", one, 1, 1, 0, s, p) == cudaErrorInvalidResourceHandle);
  SIM_EXPECT(cudaGetLastError() == cudaErrorInvalidResourceHandle);
  SIM_OK(cudaSetDevice(1));
  SIM_OK(sim_launch("one", one, 1, 1, 0, s, p));
  SIM_OK(cudaMemcpy(&host, p, 4, cudaMemcpyDeviceToHost));
  SIM_EXPECT(host == 1);
}
SIM_FAULT(kernel_gets_a_wild_pointer, "illegal-address", "nobody's memory") {
  SIM_OK(sim_launch("one", one, 1, 1, 0, nullptr, reinterpret_cast<int *>(4096)));
  SIM_OK(cudaDeviceSynchronize());
}
SIM_CLEAN(kernel_is_captured_and_replayed) {
  cudaStream_t s;
  cudaGraph_t g;
  cudaGraphExec_t x;
  int *p = memory_of(0), host;
  SIM_OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
  SIM_OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
  SIM_OK(sim_launch("one", one, 1, 1, 0, s, p));
  SIM_OK(cudaStreamEndCapture(s, &g));
  SIM_OK(cudaGraphInstantiate(&x, g, 0));
  SIM_OK(cudaMemcpy(&host, p, 4, cudaMemcpyDeviceToHost));
  SIM_EXPECT(host == 0);
  SIM_OK(cudaGraphLaunch(x, s));
  SIM_OK(cudaMemcpyAsync(&host, p, 4, cudaMemcpyDeviceToHost, s));
  SIM_EXPECT(host == 1);
}

static __global__ void far_away(int *p) { p[100 << 20] = 1; }
SIM_FAULT(kernel_writes_far_away, "out-of-bounds", "") {
  SIM_OK(sim_launch("far", far_away, 1, 1, 0, nullptr, memory_of(0)));
  SIM_OK(cudaDeviceSynchronize());
}
