/* stream.c: streams and events. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>

#include "runtime.h"

enum { MOST_NEEDS = 256 };

static struct CUstream_st legacy[SIM_MAX_DEVICES];
static struct CUstream_st *streams; /* all that live */
static struct CUevent_st *events;

struct CUstream_st *sim_streams(void) {
  return streams;
}

static struct CUstream_st *legacy_stream(int device) {
  struct CUstream_st *s = &legacy[device];
  if (s->kind != SIM_STREAM)
    *s = (struct CUstream_st){
        .kind = SIM_STREAM, .device = device, .blocking = true, .legacy = true, .lane = sim_lane_open()};
  return s;
}

cudaError_t sim_stream_of(cudaStream_t handle, struct CUstream_st **stream) {
  if (handle == NULL || handle == cudaStreamLegacy) {
    *stream = legacy_stream(sim_current_device());
    return cudaSuccess;
  }
  if (handle == cudaStreamPerThread)
    return sim_error(cudaErrorNotSupported, "the per-thread default stream is not modelled");
  if (handle->kind != SIM_STREAM) {
    sim_fault("handle", "%p is %s", (void *)handle,
              handle->kind == SIM_DEAD ? "a stream that was destroyed" : "no stream");
    return cudaErrorInvalidResourceHandle;
  }
  *stream = handle;
  return cudaSuccess;
}

/* What comes next in a stream waits for: its last item, and where the legacy stream is concerned the other side's. */
static int needs_of(struct CUstream_st *stream, sim_item **needs) {
  int n = 0;
  needs[n++] = stream->last;
  if (stream->legacy) {
    for (struct CUstream_st *s = streams; s != NULL; s = s->next)
      if (s->blocking && s->device == stream->device && n < MOST_NEEDS) needs[n++] = s->last;
  } else if (stream->blocking) {
    needs[n++] = legacy_stream(stream->device)->last;
  }
  return n;
}

static sim_item *append(struct CUstream_st *stream, const sim_work *work, sim_item *also) {
  sim_item *needs[MOST_NEEDS + 1];
  sim_keep(also);
  sim_make_room();
  int n = needs_of(stream, needs);
  if (also != NULL) needs[n++] = also;
  sim_work w = *work;
  w.lane = stream->lane;
  sim_item *item = sim_submit(&w, n, needs);
  sim_replace(&stream->last, item);
  sim_drop(also);
  return item;
}

cudaError_t sim_append(struct CUstream_st *stream, const sim_work *work, sim_item **item) {
  if (stream->capture != NULL)
    return item != NULL ? sim_refuse_captured(stream, work->name) : sim_capture_work(stream, work);
  cudaError_t e = stream->legacy ? sim_refuse_implicit(stream->device, work->name) : cudaSuccess;
  if (e != cudaSuccess) return e;
  sim_item *appended = append(stream, work, NULL);
  if (item != NULL) *item = appended;
  else sim_drop(appended);
  return cudaSuccess;
}

static void wait_stream(struct CUstream_st *stream) {
  sim_item *needs[MOST_NEEDS];
  int n = needs_of(stream, needs);
  for (int i = 0; i < n; i++) sim_keep(needs[i]);
  for (int i = 0; i < n; i++) sim_host_wait(needs[i]);
  for (int i = 0; i < n; i++) sim_drop(needs[i]);
}

/* ---- streams ---- */

static cudaError_t create(cudaStream_t *out, unsigned flags, int priority) {
  if (flags > cudaStreamNonBlocking) return sim_error(cudaErrorInvalidValue, "stream flags %u", flags);
  struct CUstream_st *s = calloc(1, sizeof *s);
  if (s == NULL) return cudaErrorMemoryAllocation;
  *s = (struct CUstream_st){.kind = SIM_STREAM,
                            .device = sim_current_device(),
                            .blocking = flags == cudaStreamDefault,
                            .priority = priority,
                            .lane = sim_lane_open(),
                            .next = streams};
  streams = s;
  *out = s;
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaStreamCreate(cudaStream_t *stream) {
  SIM_API(cudaErrorUnknown, create(stream, cudaStreamDefault, 0));
}

cudaError_t CUDARTAPI cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
  SIM_API(cudaErrorUnknown, create(stream, flags, 0));
}

cudaError_t CUDARTAPI cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) {
  SIM_API(cudaErrorUnknown, create(stream, flags, priority));
}

static cudaError_t priority_range(int *least, int *greatest) {
  if (least != NULL) *least = 0;
  if (greatest != NULL) *greatest = -5;
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  SIM_API(cudaErrorUnknown, priority_range(least, greatest));
}

static cudaError_t destroy(cudaStream_t handle) {
  struct CUstream_st *s;
  cudaError_t e = sim_stream_of(handle, &s);
  if (e != cudaSuccess) return e;
  if (s->legacy) return sim_error(cudaErrorInvalidResourceHandle, "the default stream cannot be destroyed");
  if (s->capture != NULL) return sim_refuse_captured(s, "cudaStreamDestroy");
  for (struct CUstream_st **at = &streams; *at != NULL; at = &(*at)->next)
    if (*at == s) {
      *at = s->next;
      break;
    }
  sim_replace(&s->last, NULL);
  sim_lane_close(s->lane);
  free(s->frontier.list);
  s->kind = SIM_DEAD;
  sim_bury(s);
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaStreamDestroy(cudaStream_t stream) { SIM_API(cudaSuccess, destroy(stream)); }

static cudaError_t get_priority(cudaStream_t handle, int *priority) {
  struct CUstream_st *s;
  cudaError_t e = sim_stream_of(handle, &s);
  if (e == cudaSuccess) *priority = s->priority;
  return e;
}

cudaError_t CUDARTAPI cudaStreamGetPriority(cudaStream_t stream, int *priority) {
  SIM_API(cudaErrorUnknown, get_priority(stream, priority));
}

static cudaError_t get_flags(cudaStream_t handle, unsigned *flags) {
  struct CUstream_st *s;
  cudaError_t e = sim_stream_of(handle, &s);
  if (e == cudaSuccess) *flags = s->blocking ? cudaStreamDefault : cudaStreamNonBlocking;
  return e;
}

cudaError_t CUDARTAPI cudaStreamGetFlags(cudaStream_t stream, unsigned *flags) {
  SIM_API(cudaErrorUnknown, get_flags(stream, flags));
}

/* May the host wait for a stream now, or ask after it? */
static cudaError_t may_wait(struct CUstream_st *s, const char *function) {
  if (s->capture != NULL) return sim_refuse_captured(s, function);
  if (s->legacy) {
    cudaError_t e = sim_refuse_implicit(s->device, function);
    if (e != cudaSuccess) return e;
  }
  return sim_refuse_unsafe(function);
}

static cudaError_t synchronize(cudaStream_t handle) {
  struct CUstream_st *s;
  cudaError_t e = sim_stream_of(handle, &s);
  if (e == cudaSuccess) e = may_wait(s, "cudaStreamSynchronize");
  if (e == cudaSuccess) wait_stream(s);
  return e;
}

cudaError_t CUDARTAPI cudaStreamSynchronize(cudaStream_t stream) {
  SIM_API(cudaErrorLaunchFailure, synchronize(stream));
}

/* Time passes while the host asks: is it done now? */
static bool asked(sim_item *item) {
  sim_keep(item);
  sim_progress(item);
  bool done = item->done;
  if (done) sim_host_saw(item);
  sim_drop(item);
  return done;
}

static cudaError_t query(cudaStream_t handle) {
  struct CUstream_st *s;
  cudaError_t e = sim_stream_of(handle, &s);
  if (e == cudaSuccess) e = may_wait(s, "cudaStreamQuery");
  if (e != cudaSuccess) return e;
  sim_item *needs[MOST_NEEDS];
  int n = needs_of(s, needs);
  for (int i = 0; i < n; i++) sim_keep(needs[i]);
  for (int i = 0; i < n && e == cudaSuccess; i++)
    if (needs[i] != NULL && !asked(needs[i])) e = cudaErrorNotReady;
  for (int i = 0; i < n; i++) sim_drop(needs[i]);
  return e;
}

cudaError_t CUDARTAPI cudaStreamQuery(cudaStream_t stream) { SIM_API(cudaErrorLaunchFailure, query(stream)); }

static cudaError_t device_synchronize(void) {
  for (struct CUstream_st *s = streams; s != NULL; s = s->next)
    if (s->device == sim_current_device() && s->capture != NULL) return sim_refuse_captured(s, "cudaDeviceSynchronize");
  cudaError_t e = sim_refuse_unsafe("cudaDeviceSynchronize");
  if (e != cudaSuccess) return e;
  sim_wait_device(sim_current_device());
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaDeviceSynchronize(void) { SIM_API(cudaErrorLaunchFailure, device_synchronize()); }

/* ---- events ---- */

static cudaError_t check_event(cudaEvent_t event) {
  if (event != NULL && event->kind == SIM_EVENT) return cudaSuccess;
  if (event == NULL) return sim_error(cudaErrorInvalidResourceHandle, "the event is NULL");
  sim_fault("handle", "%p is %s", (void *)event, event->kind == SIM_DEAD ? "an event that was destroyed" : "no event");
  return cudaErrorInvalidResourceHandle;
}

static cudaError_t create_event(cudaEvent_t *out, unsigned flags) {
  if ((flags & ~(unsigned)(cudaEventBlockingSync | cudaEventDisableTiming)) != 0)
    return sim_error(cudaErrorNotSupported, "event flags %u are not modelled", flags);
  struct CUevent_st *e = calloc(1, sizeof *e);
  if (e == NULL) return cudaErrorMemoryAllocation;
  *e = (struct CUevent_st){.kind = SIM_EVENT, .device = sim_current_device(), .flags = flags, .next = events};
  events = e;
  *out = e;
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaEventCreate(cudaEvent_t *event) {
  SIM_API(cudaErrorUnknown, create_event(event, cudaEventDefault));
}

cudaError_t CUDARTAPI cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
  SIM_API(cudaErrorUnknown, create_event(event, flags));
}

static cudaError_t destroy_event(cudaEvent_t event) {
  cudaError_t e = check_event(event);
  if (e != cudaSuccess) return e;
  for (struct CUevent_st **at = &events; *at != NULL; at = &(*at)->next)
    if (*at == event) {
      *at = event->next;
      break;
    }
  sim_replace(&event->item, NULL);
  free(event->frontier.list);
  event->kind = SIM_DEAD;
  sim_bury(event);
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaEventDestroy(cudaEvent_t event) { SIM_API(cudaSuccess, destroy_event(event)); }

static cudaError_t record(cudaEvent_t event, cudaStream_t handle) {
  struct CUstream_st *s;
  cudaError_t e = check_event(event);
  if (e == cudaSuccess) e = sim_stream_of(handle, &s);
  if (e != cudaSuccess) return e;
  if (s->device != event->device)
    return sim_error(cudaErrorInvalidResourceHandle, "an event of device %d is recorded in a stream of device %d",
                     event->device, s->device);
  if (s->capture != NULL) return sim_capture_record(s, event);
  e = s->legacy ? sim_refuse_implicit(s->device, "cudaEventRecord") : cudaSuccess;
  if (e != cudaSuccess) return e;
  event->capture = 0;
  sim_item *marker = append(s, &(sim_work){.name = "event", .device = s->device}, NULL);
  sim_replace(&event->item, marker);
  sim_drop(marker);
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  SIM_API(cudaErrorUnknown, record(event, stream));
}

static cudaError_t wait_event(cudaStream_t handle, cudaEvent_t event, unsigned flags) {
  struct CUstream_st *s;
  cudaError_t e = check_event(event);
  if (e == cudaSuccess) e = sim_stream_of(handle, &s);
  if (e != cudaSuccess) return e;
  if (flags != cudaEventWaitDefault) return sim_error(cudaErrorNotSupported, "cudaStreamWaitEvent: flags %u", flags);
  if (event->capture != 0 || (s->capture != NULL && event->item != NULL)) return sim_capture_wait(s, event);
  if (event->item == NULL) return cudaSuccess; /* never recorded: the runtime does not wait either */
  sim_drop(append(s, &(sim_work){.name = "wait", .device = s->device}, event->item));
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  SIM_API(cudaErrorUnknown, wait_event(stream, event, flags));
}

static cudaError_t may_ask(cudaEvent_t event, const char *function) {
  return event->capture != 0 ? sim_refuse_captured_event(event, function) : sim_refuse_unsafe(function);
}

static cudaError_t query_event(cudaEvent_t event) {
  cudaError_t e = check_event(event);
  if (e == cudaSuccess) e = may_ask(event, "cudaEventQuery");
  if (e != cudaSuccess || event->item == NULL) return e;
  return asked(event->item) ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t CUDARTAPI cudaEventQuery(cudaEvent_t event) { SIM_API(cudaErrorLaunchFailure, query_event(event)); }

static cudaError_t synchronize_event(cudaEvent_t event) {
  cudaError_t e = check_event(event);
  if (e == cudaSuccess) e = may_ask(event, "cudaEventSynchronize");
  if (e == cudaSuccess) sim_host_wait(event->item);
  return e;
}

cudaError_t CUDARTAPI cudaEventSynchronize(cudaEvent_t event) {
  SIM_API(cudaErrorLaunchFailure, synchronize_event(event));
}

static cudaError_t elapsed(float *ms, cudaEvent_t start, cudaEvent_t end) {
  cudaError_t e = check_event(start);
  if (e == cudaSuccess) e = check_event(end);
  if (e != cudaSuccess) return e;
  if (start->capture != 0 || end->capture != 0)
    return sim_error(cudaErrorCapturedEvent, "cudaEventElapsedTime: an event was last recorded in a capture");
  if (start->item == NULL || end->item == NULL || ((start->flags | end->flags) & cudaEventDisableTiming) != 0 ||
      start->device != end->device)
    return sim_error(cudaErrorInvalidResourceHandle,
                     "cudaEventElapsedTime: an event was not recorded, has no timing or "
                     "belongs to another device");
  if (!start->item->done || !end->item->done) return cudaErrorNotReady;
  *ms = (float)(1e3 * (end->item->finish - start->item->finish));
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end) {
  SIM_API(cudaErrorUnknown, elapsed(ms, start, end));
}

int sim_report_handles(void) {
  int found = 0;
  for (struct CUstream_st *s = streams; s != NULL; s = s->next, found++)
    fprintf(stderr, "tlua-sim: leak: a stream of device %d\n", s->device);
  for (struct CUevent_st *e = events; e != NULL; e = e->next, found++)
    fprintf(stderr, "tlua-sim: leak: an event of device %d\n", e->device);
  return found;
}

/* ---- host functions ---- */

typedef struct host_call {
  cudaHostFn_t function;
  void *argument;
} host_call;

static void run_host_call(void *data, int device) {
  (void)device;
  host_call *call = data;
  call->function(call->argument);
}

static cudaError_t launch_host(cudaStream_t handle, cudaHostFn_t function, void *argument) {
  struct CUstream_st *s;
  cudaError_t e = sim_stream_of(handle, &s);
  if (e != cudaSuccess) return e;
  host_call call = {function, argument};
  sim_work w = {.name = "host function",
                .device = s->device,
                .run = run_host_call,
                .callback = true,
                .data = &call,
                .bytes = sizeof call,
                .seconds = 1e-5};
  return sim_append(s, &w, NULL);
}

cudaError_t CUDARTAPI cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *argument) {
  SIM_API(cudaErrorUnknown, launch_host(stream, function, argument));
}
