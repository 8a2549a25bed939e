/* order.c: streams, events, host functions: what is ordered and what is not. */
#include <string.h>

#include "selftest.h"
#include "sim.h"

enum { BYTES = 1000 };

static cudaStream_t a_stream(unsigned flags) {
  cudaStream_t s;
  SIM_OK(cudaStreamCreateWithFlags(&s, flags));
  return s;
}

static char *device_memory(void) {
  void *p;
  SIM_OK(cudaMalloc(&p, BYTES));
  return p;
}

/* One stream fills, another copies; `link` may order them. */
static void fill_and_copy(void (*link)(cudaStream_t first, cudaStream_t second), unsigned flags) {
  static char host[BYTES];
  cudaStream_t first = a_stream(flags), second = a_stream(flags);
  char *p = device_memory();
  SIM_OK(cudaMemsetAsync(p, 5, BYTES, first));
  if (link != NULL) link(first, second);
  SIM_OK(cudaMemcpyAsync(host, p, BYTES, cudaMemcpyDeviceToHost, second));
  SIM_OK(cudaStreamSynchronize(first));
  SIM_EXPECT(host[0] == 5 && host[BYTES - 1] == 5);
  SIM_OK(cudaFree(p));
  SIM_OK(cudaStreamDestroy(first));
  SIM_OK(cudaStreamDestroy(second));
}

static void by_event(cudaStream_t first, cudaStream_t second) {
  cudaEvent_t e;
  SIM_OK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
  SIM_OK(cudaEventRecord(e, first));
  SIM_OK(cudaStreamWaitEvent(second, e, 0));
  SIM_OK(cudaEventDestroy(e));
}

static void by_old_event(cudaStream_t first, cudaStream_t second) {
  cudaEvent_t e;
  SIM_OK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
  SIM_OK(cudaStreamWaitEvent(second, e, 0)); /* not recorded: no wait */
  SIM_OK(cudaEventRecord(e, first));
}

static void by_host(cudaStream_t first, cudaStream_t second) {
  (void)second;
  SIM_OK(cudaStreamSynchronize(first));
}

static void by_query(cudaStream_t first, cudaStream_t second) {
  (void)second;
  cudaError_t e;
  while ((e = cudaStreamQuery(first)) == cudaErrorNotReady) continue;
  SIM_OK(e);
}

static void by_default_stream(cudaStream_t first, cudaStream_t second) {
  static char *p;
  (void)first, (void)second;
  p = device_memory();
  SIM_OK(cudaMemset(p, 0, BYTES));
}

SIM_FAULT(missing_event_wait, "stream-race", "nothing orders the two") { fill_and_copy(NULL, cudaStreamNonBlocking); }
SIM_FAULT(missing_event_wait_of_blocking_streams, "stream-race", "cudaStreamWaitEvent") {
  fill_and_copy(NULL, cudaStreamDefault);
}
SIM_FAULT(event_recorded_too_late, "stream-race", "cudaStreamWaitEvent") {
  fill_and_copy(by_old_event, cudaStreamNonBlocking);
}
SIM_FAULT(default_stream_and_non_blocking_streams, "stream-race", "") {
  fill_and_copy(by_default_stream, cudaStreamNonBlocking);
}
SIM_CLEAN(ordered_by_an_event) { fill_and_copy(by_event, cudaStreamNonBlocking); }
SIM_CLEAN(ordered_by_the_host) { fill_and_copy(by_host, cudaStreamNonBlocking); }
SIM_CLEAN(ordered_by_a_query) { fill_and_copy(by_query, cudaStreamNonBlocking); }
SIM_CLEAN(ordered_by_the_default_stream) { fill_and_copy(by_default_stream, cudaStreamDefault); }

SIM_FAULT(frees_what_another_stream_uses, "stream-race", "cudaFreeAsync") {
  cudaStream_t first = a_stream(cudaStreamNonBlocking), second = a_stream(cudaStreamNonBlocking);
  void *p;
  SIM_OK(cudaMallocAsync(&p, BYTES, first));
  by_event(first, second);
  SIM_OK(cudaMemsetAsync(p, 0, BYTES, second));
  by_event(second, second);
  SIM_OK(cudaFreeAsync(p, first));
  SIM_OK(cudaStreamSynchronize(second));
  SIM_OK(cudaStreamSynchronize(first));
}
SIM_FAULT(uses_memory_before_it_is_there, "stream-race", "cudaMallocAsync") {
  cudaStream_t first = a_stream(cudaStreamNonBlocking), second = a_stream(cudaStreamNonBlocking);
  void *p;
  SIM_OK(cudaMallocAsync(&p, BYTES, first));
  SIM_OK(cudaMemsetAsync(p, 0, BYTES, second));
  SIM_OK(cudaStreamSynchronize(first));
  SIM_OK(cudaStreamSynchronize(second));
}
SIM_CLEAN(reads_and_parts_need_no_order) {
  cudaStream_t s[2] = {a_stream(cudaStreamNonBlocking), a_stream(cudaStreamNonBlocking)};
  static char host[2][BYTES];
  char *p = device_memory();
  for (int i = 0; i < 2; i++) SIM_OK(cudaMemsetAsync(p + i * (BYTES / 2), i, BYTES / 2, s[i]));
  SIM_OK(cudaDeviceSynchronize());
  for (int i = 0; i < 2; i++) SIM_OK(cudaMemcpyAsync(host[i], p, BYTES, cudaMemcpyDeviceToHost, s[i]));
  for (int i = 0; i < 2; i++) SIM_EXPECT(host[i][0] == 0 && host[i][BYTES - 1] == 1);
}

static int calls;
static void count(void *from) {
  int device;
  SIM_EXPECT(calls++ == *(int *)from);
  SIM_EXPECT(cudaGetDevice(&device) == cudaErrorNotPermitted);
}
SIM_CLEAN(host_functions_run_in_order) {
  static int numbers[3] = {0, 1, 2};
  cudaStream_t s = a_stream(cudaStreamNonBlocking);
  for (int i = 0; i < 3; i++) SIM_OK(cudaLaunchHostFunc(s, count, &numbers[i]));
  SIM_EXPECT(calls == 0);
  SIM_OK(cudaStreamSynchronize(s));
  SIM_EXPECT(calls == 3);
}

SIM_CLEAN(events_take_time) {
  cudaStream_t s = a_stream(cudaStreamNonBlocking);
  cudaEvent_t first, second;
  float ms = -1;
  char *p = device_memory();
  SIM_OK(cudaEventCreate(&first));
  SIM_OK(cudaEventCreate(&second));
  SIM_OK(cudaEventRecord(first, s));
  SIM_OK(cudaMemsetAsync(p, 0, BYTES, s));
  SIM_OK(cudaEventRecord(second, s));
  SIM_EXPECT(cudaEventElapsedTime(&ms, first, second) == cudaErrorNotReady);
  SIM_OK(cudaEventSynchronize(second));
  SIM_OK(cudaEventQuery(first));
  SIM_OK(cudaEventElapsedTime(&ms, first, second));
  SIM_EXPECT(ms > 0);
}

SIM_CLEAN(more_work_than_a_queue_holds) {
  cudaStream_t s = a_stream(cudaStreamNonBlocking);
  static char host[BYTES];
  char *p = device_memory();
  for (int i = 0; i < 5000; i++) SIM_OK(cudaMemsetAsync(p, i % 100, BYTES, s));
  SIM_OK(cudaMemcpyAsync(host, p, BYTES, cudaMemcpyDeviceToHost, s));
  SIM_EXPECT(host[3] == 4999 % 100);
}

SIM_FAULT(destroyed_stream, "handle", "a stream that was destroyed") {
  cudaStream_t s = a_stream(0);
  SIM_OK(cudaStreamDestroy(s));
  SIM_OK(cudaStreamSynchronize(s));
}
SIM_FAULT(destroyed_event, "handle", "an event that was destroyed") {
  cudaEvent_t e;
  SIM_OK(cudaEventCreate(&e));
  SIM_OK(cudaEventDestroy(e));
  SIM_OK(cudaEventRecord(e, NULL));
}

static int never(void *data, int device) { return (void)data, (void)device, 0; }
static int third_time(void *data, int device) { return (void)device, ++**(int **)data == 3; }
SIM_FAULT_WITH(waits_for_ever, "deadlock", "device 0 waits in vain for a collective", "TLUA_SIM_TIMEOUT=1") {
  cudaStream_t s = a_stream(cudaStreamNonBlocking);
  SIM_OK(sim_enqueue_poll(s, "a collective", never, NULL, 0, 0, NULL));
  SIM_OK(cudaStreamSynchronize(s));
}
SIM_CLEAN_WITH(waits_until_it_is_done, "TLUA_SIM_TIMEOUT=1") {
  static int asked, *where = &asked;
  cudaStream_t s = a_stream(cudaStreamNonBlocking);
  SIM_OK(sim_enqueue_poll(s, "a collective", third_time, &where, sizeof where, 0, NULL));
  SIM_OK(cudaStreamSynchronize(s));
  SIM_EXPECT(asked == 3);
}
