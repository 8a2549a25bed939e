/* threads.c: several host threads at once, with host functions between their work. */
#include <pthread.h>
#include <string.h>

#include "selftest.h"

enum { BYTES = 10000, ROUNDS = 60, THREADS = 4 };

static void count(void *n) { ++*(int *)n; }

static void *use_a_device(void *device) {
  cudaStream_t s, side;
  cudaEvent_t there, back;
  char *host, *p, *copy;
  int calls = 0;
  SIM_OK(cudaSetDevice(*(int *)device));
  SIM_OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
  SIM_OK(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
  SIM_OK(cudaEventCreate(&there));
  SIM_OK(cudaEventCreate(&back));
  SIM_OK(cudaMallocHost((void **)&host, BYTES));
  SIM_OK(cudaMalloc((void **)&p, BYTES));
  for (int i = 0; i < ROUNDS; i++) {
    memset(host, i, BYTES);
    SIM_OK(cudaMemcpyAsync(p, host, BYTES, cudaMemcpyHostToDevice, s));
    SIM_OK(cudaEventRecord(there, s));
    SIM_OK(cudaStreamWaitEvent(side, there, 0));
    SIM_OK(cudaMallocAsync((void **)&copy, BYTES, side));
    SIM_OK(cudaMemcpyAsync(copy, p, BYTES, cudaMemcpyDeviceToDevice, side));
    SIM_OK(cudaLaunchHostFunc(side, count, &calls));
    SIM_OK(cudaEventRecord(back, side));
    SIM_OK(cudaStreamWaitEvent(s, back, 0));
    SIM_OK(cudaFreeAsync(copy, s));
    while (i % 3 == 0 && cudaEventQuery(back) == cudaErrorNotReady) continue;
    SIM_OK(cudaMemcpyAsync(host, p, BYTES, cudaMemcpyDeviceToHost, s));
    SIM_OK(cudaStreamSynchronize(s));
    SIM_EXPECT(host[0] == i && host[BYTES - 1] == i && calls == i + 1);
  }
  SIM_OK(cudaFree(p));
  SIM_OK(cudaFreeHost(host));
  SIM_OK(cudaEventDestroy(there));
  SIM_OK(cudaEventDestroy(back));
  SIM_OK(cudaStreamDestroy(s));
  SIM_OK(cudaStreamDestroy(side));
  return NULL;
}

SIM_CLEAN_WITH(threads_share_devices, "TLUA_SIM_LEAKS=1") {
  pthread_t thread[THREADS];
  int device[THREADS];
  for (int i = 0; i < THREADS; i++) {
    device[i] = i % 2;
    SIM_EXPECT(pthread_create(&thread[i], NULL, use_a_device, &device[i]) == 0);
  }
  for (int i = 0; i < THREADS; i++) SIM_EXPECT(pthread_join(thread[i], NULL) == 0);
}
