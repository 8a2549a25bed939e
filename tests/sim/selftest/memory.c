/* memory.c: host code that touches what it must not, bounds and lifetimes of allocations, devices mixed up. */
#include <string.h>

#include "selftest.h"

enum { BYTES = 1000 };

static char *device_memory(size_t bytes) {
  void *p;
  SIM_OK(cudaMalloc(&p, bytes));
  return p;
}

static char *pinned_memory(size_t bytes) {
  void *p;
  SIM_OK(cudaMallocHost(&p, bytes));
  return p;
}

static cudaStream_t a_stream(void) {
  cudaStream_t s;
  SIM_OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
  return s;
}

static volatile char sink;

/* ---- host dereference ---- */

SIM_FAULT(host_reads_device_memory, "host-dereference", "host code reads") { sink = device_memory(BYTES)[7]; }
SIM_FAULT(host_writes_device_memory, "host-dereference", "byte 7 of the 1000 bytes") { device_memory(BYTES)[7] = 1; }
SIM_FAULT(host_reads_after_work, "host-dereference", "of device 0") {
  char *p = device_memory(BYTES);
  SIM_OK(cudaMemset(p, 0, BYTES));
  SIM_OK(cudaDeviceSynchronize());
  sink = *p;
}
static void host_function(void *p) { sink = *(char *)p; }
SIM_FAULT(host_function_reads_device_memory, "host-dereference", "host code reads") {
  cudaStream_t s = a_stream();
  SIM_OK(cudaLaunchHostFunc(s, host_function, device_memory(BYTES)));
  SIM_OK(cudaStreamSynchronize(s));
}
SIM_CLEAN(host_reads_a_copy) {
  static char host[BYTES];
  char *p = device_memory(BYTES);
  SIM_OK(cudaMemset(p, 3, BYTES));
  SIM_OK(cudaMemcpy(host, p, BYTES, cudaMemcpyDeviceToHost));
  SIM_EXPECT(host[0] == 3 && host[BYTES - 1] == 3);
  SIM_OK(cudaFree(p));
}

/* ---- pinned memory of copies that have not run ---- */

SIM_FAULT(reads_before_the_stream_is_done, "pinned-destination", "before cudaMemcpyAsync, which writes them, has run") {
  cudaStream_t s = a_stream();
  char *host = pinned_memory(BYTES), *p = device_memory(BYTES);
  SIM_OK(cudaMemsetAsync(p, 3, BYTES, s));
  SIM_OK(cudaMemcpyAsync(host, p, BYTES, cudaMemcpyDeviceToHost, s));
  sink = host[5];
}
SIM_FAULT(reuses_a_pinned_source, "pinned-source", "host code writes byte 5 of the 1000 pinned bytes") {
  cudaStream_t s = a_stream();
  char *host = pinned_memory(BYTES), *p = device_memory(BYTES);
  SIM_OK(cudaMemcpyAsync(p, host, BYTES, cudaMemcpyHostToDevice, s));
  host[5] = 1;
}
SIM_FAULT(reuses_a_pinned_source_beside_other_use, "pinned-source", "was changed before the copy ran") {
  cudaStream_t s = a_stream();
  char *host = pinned_memory(2 * BYTES), *p = device_memory(BYTES);
  SIM_OK(cudaMemcpyAsync(p, host, BYTES, cudaMemcpyHostToDevice, s));
  host[BYTES] = 1;
  host[5] = 1;
  SIM_OK(cudaStreamSynchronize(s));
}
SIM_CLEAN(uses_pinned_memory_in_time) {
  cudaStream_t s = a_stream();
  char *host = pinned_memory(2 * BYTES), *p = device_memory(BYTES);
  for (int i = 0; i < 3; i++) {
    memset(host, i, BYTES);
    SIM_OK(cudaMemcpyAsync(p, host, BYTES, cudaMemcpyHostToDevice, s));
    SIM_EXPECT(host[5] == i); /* reading a source is fine */
    host[BYTES + 5] = 1;      /* and so is what lies beside it */
    SIM_OK(cudaStreamSynchronize(s));
    memset(host, 77, BYTES);
    SIM_OK(cudaMemcpyAsync(host, p, BYTES, cudaMemcpyDeviceToHost, s));
    SIM_OK(cudaStreamSynchronize(s));
    SIM_EXPECT(host[0] == i && host[BYTES - 1] == i);
  }
  SIM_OK(cudaFreeHost(host));
  SIM_OK(cudaFree(p));
  SIM_OK(cudaStreamDestroy(s));
}
SIM_CLEAN(pageable_source_is_taken_at_once) {
  cudaStream_t s = a_stream();
  static char host[BYTES];
  char *p = device_memory(BYTES);
  memset(host, 3, BYTES);
  SIM_OK(cudaMemcpyAsync(p, host, BYTES, cudaMemcpyHostToDevice, s));
  memset(host, 4, BYTES);
  SIM_OK(cudaMemcpyAsync(host, p, BYTES, cudaMemcpyDeviceToHost, s));
  SIM_EXPECT(host[0] == 3 && host[BYTES - 1] == 3);
}

/* ---- bounds and lifetimes ---- */

SIM_FAULT(copy_past_the_end, "out-of-bounds", "1001 bytes") { SIM_OK(cudaMemset(device_memory(BYTES), 0, BYTES + 1)); }
SIM_FAULT(copy_into_freed_memory, "use-after-free", "nothing is allocated") {
  char *p = device_memory(BYTES);
  SIM_OK(cudaFree(p));
  SIM_OK(cudaMemset(p, 0, BYTES));
}
SIM_FAULT(copy_after_free_in_the_stream, "use-after-free", "nothing is allocated") {
  cudaStream_t s = a_stream();
  char *p = device_memory(BYTES);
  SIM_OK(cudaFreeAsync(p, s));
  SIM_OK(cudaMemsetAsync(p, 0, BYTES, s));
  SIM_OK(cudaStreamSynchronize(s));
}
SIM_FAULT(frees_twice, "bad-free", "is no allocation") {
  char *p = device_memory(BYTES);
  SIM_OK(cudaFree(p));
  SIM_OK(cudaFree(p));
}
SIM_FAULT(frees_twice_in_a_stream, "bad-free", "is no allocation") {
  cudaStream_t s = a_stream();
  char *p = device_memory(BYTES);
  SIM_OK(cudaFreeAsync(p, s));
  SIM_OK(cudaFreeAsync(p, s));
}
SIM_FAULT(frees_a_middle, "bad-free", "is no allocation") { SIM_OK(cudaFree(device_memory(BYTES) + 256)); }
SIM_FAULT(frees_pinned_twice, "bad-free", "is no pinned allocation") {
  char *p = pinned_memory(BYTES);
  SIM_OK(cudaFreeHost(p));
  SIM_OK(cudaFreeHost(p));
}
SIM_CLEAN(frees_in_order) {
  cudaStream_t s = a_stream();
  char *p = device_memory(BYTES), *host = pinned_memory(BYTES);
  void *q;
  SIM_OK(cudaMemsetAsync(p, 0, BYTES, s));
  SIM_OK(cudaFreeAsync(p, s));
  SIM_OK(cudaMallocAsync(&q, BYTES, s));
  SIM_OK(cudaMemsetAsync(q, 0, BYTES, s));
  SIM_OK(cudaFreeAsync(q, s));
  SIM_OK(cudaFreeAsync(NULL, s));
  SIM_OK(cudaFree(NULL));
  SIM_OK(cudaFreeHost(host));
  SIM_OK(cudaStreamSynchronize(s));
}

/* ---- devices ---- */

SIM_CLEAN(wrong_devices_are_refused) {
  cudaStream_t s = a_stream(), t;
  cudaEvent_t e;
  char *p = device_memory(BYTES);
  SIM_EXPECT(cudaSetDevice(2) == cudaErrorInvalidDevice);
  SIM_OK(cudaSetDevice(1));
  t = a_stream();
  char *q = device_memory(BYTES);
  SIM_OK(cudaEventCreate(&e));
  SIM_EXPECT(cudaEventRecord(e, s) == cudaErrorInvalidResourceHandle);
  SIM_EXPECT(cudaMemcpyPeerAsync(p, 1, q, 0, BYTES, t) == cudaErrorInvalidValue);
  SIM_EXPECT(cudaFreeAsync(p, t) == cudaErrorInvalidValue);
  SIM_EXPECT(cudaMemcpyAsync(p, q, BYTES, cudaMemcpyHostToDevice, t) == cudaErrorInvalidValue);
  SIM_EXPECT(cudaGetLastError() == cudaErrorInvalidValue);
  SIM_EXPECT(cudaGetLastError() == cudaSuccess);
  SIM_OK(cudaMemsetAsync(q, 9, BYTES, t));
  SIM_OK(cudaMemcpyPeerAsync(p, 0, q, 1, BYTES, t));
  SIM_OK(cudaEventRecord(e, t));
  SIM_OK(cudaStreamWaitEvent(s, e, 0));
  static char host[BYTES];
  SIM_OK(cudaMemcpyAsync(host, p, BYTES, cudaMemcpyDeviceToHost, s));
  SIM_EXPECT(host[0] == 9 && host[BYTES - 1] == 9);
}

/* ---- out of memory ---- */

SIM_CLEAN_WITH(memory_has_an_end, "TLUA_SIM_MEMORY=1048576") {
  void *p, *q;
  size_t unused, total;
  SIM_OK(cudaMalloc(&p, 600000));
  SIM_EXPECT(cudaMalloc(&q, 600000) == cudaErrorMemoryAllocation && q == NULL);
  SIM_OK(cudaMemGetInfo(&unused, &total));
  SIM_EXPECT(total == 1048576 && unused < 448576);
  SIM_OK(cudaFree(p));
  SIM_OK(cudaMalloc(&q, 600000));
  cudaStream_t s = a_stream();
  SIM_OK(cudaFreeAsync(q, s)); /* not reached yet, but the driver would wait for it */
  SIM_OK(cudaMallocAsync(&p, 600000, s));
}
