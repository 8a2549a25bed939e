/* capture.c: what stream capture records, replays and refuses. */
#include <pthread.h>
#include <string.h>

#include "selftest.h"

enum { BYTES = 1000 };

static cudaStream_t a_stream(void) {
  cudaStream_t s;
  SIM_OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
  return s;
}

static cudaEvent_t an_event(void) {
  cudaEvent_t e;
  SIM_OK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
  return e;
}

static char *device_memory(void) {
  void *p;
  SIM_OK(cudaMalloc(&p, BYTES));
  return p;
}

static cudaStream_t begin(enum cudaStreamCaptureMode mode) {
  cudaStream_t s = a_stream();
  SIM_OK(cudaStreamBeginCapture(s, mode));
  return s;
}

/* `error` came from a forbidden call: it must be that one, and the capture must be lost. */
static void lost(cudaStream_t s, cudaError_t error, cudaError_t expected) {
  cudaGraph_t g = (cudaGraph_t)1;
  enum cudaStreamCaptureStatus status;
  SIM_EXPECT(error == expected);
  SIM_OK(cudaStreamIsCapturing(s, &status));
  SIM_EXPECT(status == cudaStreamCaptureStatusInvalidated);
  SIM_EXPECT(cudaStreamEndCapture(s, &g) == cudaErrorStreamCaptureInvalidated && g == NULL);
  SIM_OK(cudaStreamIsCapturing(s, &status));
  SIM_EXPECT(status == cudaStreamCaptureStatusNone);
  SIM_OK(cudaStreamSynchronize(s));
}

SIM_CLEAN(graph_replays) {
  char *p = device_memory(), *q = device_memory(), *host;
  SIM_OK(cudaMallocHost((void **)&host, BYTES));
  cudaStream_t s = begin(cudaStreamCaptureModeThreadLocal), side = a_stream();
  cudaEvent_t fork = an_event(), join = an_event();
  cudaGraph_t g;
  cudaGraphExec_t x;
  size_t nodes;
  SIM_OK(cudaMemcpyAsync(p, host, BYTES, cudaMemcpyHostToDevice, s));
  SIM_OK(cudaEventRecord(fork, s));
  SIM_OK(cudaStreamWaitEvent(side, fork, 0));
  SIM_OK(cudaMemcpyAsync(q, p, BYTES / 2, cudaMemcpyDeviceToDevice, side));
  SIM_OK(cudaMemsetAsync(q + BYTES / 2, 8, BYTES / 2, s));
  SIM_OK(cudaEventRecord(join, side));
  SIM_OK(cudaStreamWaitEvent(s, join, 0));
  SIM_OK(cudaMemcpyAsync(host, q, BYTES, cudaMemcpyDeviceToHost, s));
  SIM_OK(cudaStreamEndCapture(s, &g));
  SIM_OK(cudaGraphGetNodes(g, NULL, &nodes));
  SIM_EXPECT(nodes == 4);
  SIM_OK(cudaGraphInstantiate(&x, g, 0));
  SIM_OK(cudaGraphDestroy(g));
  for (int i = 0; i < 3; i++) {
    memset(host, i, BYTES);
    SIM_OK(cudaGraphLaunch(x, i == 1 ? side : s));
    SIM_OK(cudaStreamSynchronize(i == 1 ? side : s));
    SIM_EXPECT(host[0] == i && host[BYTES / 2] == 8);
  }
  SIM_OK(cudaGraphExecDestroy(x));
}
SIM_FAULT(graph_branches_race, "stream-race", "nothing orders the two") {
  char *p = device_memory();
  cudaStream_t s = begin(cudaStreamCaptureModeThreadLocal), side = a_stream();
  cudaEvent_t fork = an_event(), join = an_event();
  cudaGraph_t g;
  cudaGraphExec_t x;
  SIM_OK(cudaEventRecord(fork, s));
  SIM_OK(cudaStreamWaitEvent(side, fork, 0));
  SIM_OK(cudaMemsetAsync(p, 7, BYTES, side));
  SIM_OK(cudaMemsetAsync(p, 8, BYTES, s));
  SIM_OK(cudaEventRecord(join, side));
  SIM_OK(cudaStreamWaitEvent(s, join, 0));
  SIM_OK(cudaStreamEndCapture(s, &g));
  SIM_OK(cudaGraphInstantiate(&x, g, 0));
  SIM_OK(cudaGraphLaunch(x, s));
  SIM_OK(cudaStreamSynchronize(s));
}
SIM_FAULT(graph_memory_freed, "use-after-free", "nothing is allocated") {
  char *p = device_memory();
  cudaStream_t s = begin(cudaStreamCaptureModeThreadLocal);
  cudaGraph_t g;
  cudaGraphExec_t x;
  SIM_OK(cudaMemsetAsync(p, 7, BYTES, s));
  SIM_OK(cudaStreamEndCapture(s, &g));
  SIM_OK(cudaGraphInstantiate(&x, g, 0));
  SIM_OK(cudaFree(p));
  SIM_OK(cudaGraphLaunch(x, s));
}
SIM_FAULT(graph_destroyed, "handle", "an executable graph that was destroyed") {
  cudaStream_t s = begin(cudaStreamCaptureModeThreadLocal);
  cudaGraph_t g;
  cudaGraphExec_t x;
  SIM_OK(cudaStreamEndCapture(s, &g));
  SIM_OK(cudaGraphInstantiate(&x, g, 0));
  SIM_OK(cudaGraphExecDestroy(x));
  SIM_OK(cudaGraphLaunch(x, s));
}

SIM_CLEAN(capture_refuses_waits) {
  cudaStream_t s = begin(cudaStreamCaptureModeThreadLocal);
  lost(s, cudaStreamSynchronize(s), cudaErrorStreamCaptureUnsupported);
  s = begin(cudaStreamCaptureModeRelaxed);
  lost(s, cudaStreamQuery(s), cudaErrorStreamCaptureUnsupported);
  s = begin(cudaStreamCaptureModeRelaxed);
  lost(s, cudaDeviceSynchronize(), cudaErrorStreamCaptureUnsupported);
  s = begin(cudaStreamCaptureModeRelaxed);
  cudaEvent_t e = an_event();
  SIM_OK(cudaEventRecord(e, s));
  lost(s, cudaEventQuery(e), cudaErrorCapturedEvent);
}
SIM_CLEAN(capture_refuses_allocation) {
  void *p;
  cudaStream_t s = begin(cudaStreamCaptureModeThreadLocal);
  lost(s, cudaMalloc(&p, 8), cudaErrorStreamCaptureUnsupported);
  s = begin(cudaStreamCaptureModeGlobal);
  lost(s, cudaMallocHost(&p, 8), cudaErrorStreamCaptureUnsupported);
  s = begin(cudaStreamCaptureModeRelaxed);
  SIM_OK(cudaMalloc(&p, 8));
  cudaGraph_t g;
  SIM_OK(cudaStreamEndCapture(s, &g));
  enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  s = begin(cudaStreamCaptureModeThreadLocal);
  SIM_OK(cudaThreadExchangeStreamCaptureMode(&mode));
  SIM_EXPECT(mode == cudaStreamCaptureModeGlobal);
  SIM_OK(cudaMalloc(&p, 8));
  SIM_OK(cudaThreadExchangeStreamCaptureMode(&mode));
  lost(s, cudaFree(p), cudaErrorStreamCaptureUnsupported);
}
SIM_CLEAN(capture_refuses_pageable_copies) {
  char host[8] = {0}, *p = device_memory();
  cudaStream_t s = begin(cudaStreamCaptureModeThreadLocal);
  lost(s, cudaMemcpyAsync(p, host, 8, cudaMemcpyHostToDevice, s), cudaErrorStreamCaptureUnsupported);
  s = begin(cudaStreamCaptureModeThreadLocal);
  lost(s, cudaMemcpyAsync(host, p, 8, cudaMemcpyDeviceToHost, s), cudaErrorStreamCaptureUnsupported);
}
SIM_CLEAN(capture_refuses_other_work) {
  cudaEvent_t e = an_event();
  cudaStream_t other = a_stream(), s;
  SIM_OK(cudaMemsetAsync(device_memory(), 0, BYTES, other));
  SIM_OK(cudaEventRecord(e, other));
  s = begin(cudaStreamCaptureModeThreadLocal);
  lost(s, cudaStreamWaitEvent(s, e, 0), cudaErrorStreamCaptureIsolation);
  SIM_OK(cudaStreamCreate(&s)); /* a blocking one */
  SIM_OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
  lost(s, cudaMemsetAsync(device_memory(), 0, BYTES, NULL), cudaErrorStreamCaptureImplicit);
  s = begin(cudaStreamCaptureModeRelaxed);
  SIM_OK(cudaEventRecord(e, s));
  cudaStream_t second = begin(cudaStreamCaptureModeRelaxed);
  lost(second, cudaStreamWaitEvent(second, e, 0), cudaErrorStreamCaptureMerge);
  SIM_EXPECT(cudaStreamBeginCapture(NULL, cudaStreamCaptureModeRelaxed) == cudaErrorStreamCaptureUnsupported);
}
SIM_CLEAN(capture_ends_where_it_began) {
  char *p = device_memory();
  cudaStream_t s = begin(cudaStreamCaptureModeThreadLocal), side = a_stream();
  cudaEvent_t e = an_event();
  cudaGraph_t g;
  SIM_OK(cudaEventRecord(e, s));
  SIM_OK(cudaStreamWaitEvent(side, e, 0));
  SIM_OK(cudaMemsetAsync(p, 0, BYTES, side));
  lost(s, cudaStreamEndCapture(side, &g), cudaErrorStreamCaptureUnmatched);
}
SIM_CLEAN(capture_unjoined) {
  char *p = device_memory();
  cudaStream_t s = begin(cudaStreamCaptureModeThreadLocal), side = a_stream();
  cudaEvent_t e = an_event();
  cudaGraph_t g;
  SIM_OK(cudaEventRecord(e, s));
  SIM_OK(cudaStreamWaitEvent(side, e, 0));
  SIM_OK(cudaMemsetAsync(p, 0, BYTES, side));
  SIM_EXPECT(cudaStreamEndCapture(s, &g) == cudaErrorStreamCaptureUnjoined && g == NULL);
  SIM_OK(cudaStreamSynchronize(side)); /* it works again */
  SIM_EXPECT(cudaStreamEndCapture(s, &g) == cudaErrorIllegalState);
}

static void *allocate_elsewhere(void *error) {
  void *p;
  *(cudaError_t *)error = cudaMalloc(&p, 8);
  return NULL;
}
SIM_CLEAN(capture_and_other_threads) {
  cudaError_t error;
  pthread_t thread;
  cudaGraph_t g;
  cudaStream_t s = begin(cudaStreamCaptureModeThreadLocal);
  SIM_EXPECT(pthread_create(&thread, NULL, allocate_elsewhere, &error) == 0 && pthread_join(thread, NULL) == 0);
  SIM_OK(error);
  SIM_OK(cudaStreamEndCapture(s, &g));
  s = begin(cudaStreamCaptureModeGlobal);
  SIM_EXPECT(pthread_create(&thread, NULL, allocate_elsewhere, &error) == 0 && pthread_join(thread, NULL) == 0);
  lost(s, error, cudaErrorStreamCaptureUnsupported);
}
