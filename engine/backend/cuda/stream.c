/* stream.c: streams and events. Streams are lent from a pool and never destroyed: memory that was used on one goes to
 * later work on it, and a new stream must not inherit an old one's name. */
#include "backend/cuda/stream.h"

#include <pthread.h>
#include <stdlib.h>

#include "backend/cuda/memory.h"

typedef struct list {
  void **at;
  int count, room;
} list;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static list events[TL_CUDA_DEVICES], streams[TL_CUDA_DEVICES][2]; /* [urgent] */

static void *pop(list *l) {
  pthread_mutex_lock(&lock);
  void *p = l->count > 0 ? l->at[--l->count] : NULL;
  pthread_mutex_unlock(&lock);
  return p;
}

/* False when there is no host memory to keep it. */
static bool push(list *l, void *p) {
  pthread_mutex_lock(&lock);
  if (l->count == l->room) {
    int room = l->room == 0 ? 16 : 2 * l->room;
    void **at = realloc(l->at, (size_t)room * sizeof *at);
    if (at != NULL) {
      l->at = at;
      l->room = room;
    }
  }
  bool kept = l->count < l->room;
  if (kept) l->at[l->count++] = p;
  pthread_mutex_unlock(&lock);
  return kept;
}

/* Events belong to the device that is current when they are made: blocks of another one may be freed meanwhile. */
static cudaError_t new_event(int index, unsigned flags, cudaEvent_t *event) {
  int current = index;
  cudaGetDevice(&current);
  if (current != index) cudaSetDevice(index);
  cudaError_t e = cudaEventCreateWithFlags(event, flags);
  if (current != index) cudaSetDevice(current);
  return e;
}

cudaEvent_t tl_cuda_take_event(int index) {
  cudaEvent_t event = pop(&events[index]);
  if (event != NULL) return event;
  if (new_event(index, cudaEventDisableTiming, &event) == cudaSuccess) return event;
  cudaGetLastError();
  return NULL;
}

void tl_cuda_give_event(int index, cudaEvent_t event) {
  if (!push(&events[index], event)) cudaEventDestroy(event);
}

bool tl_cuda_event_done(cudaEvent_t event) {
  if (cudaEventQuery(event) != cudaErrorNotReady) return true;
  cudaGetLastError(); /* or the next launch would report it */
  return false;
}

static tl_status refuse_recording(const char *op) {
  if (!tl_cuda_recording()) return TL_OK;
  return TL_FAIL(TL_ERR_STATE, op, "a step that is recorded cannot wait for the device");
}

tl_status tl_cuda_order(int index_before, void *before, void *after) {
  TL_TRY(refuse_recording("stream"));
  if (before == after) return TL_OK;
  cudaEvent_t event = tl_cuda_take_event(index_before);
  if (event == NULL) return TL_FAIL(TL_ERR_MEMORY, "stream", "CUDA gives no further event");
  cudaError_t e = cudaEventRecord(event, before);
  if (e == cudaSuccess) e = cudaStreamWaitEvent(after, event, 0);
  tl_cuda_give_event(index_before, event); /* the wait is for what was recorded, whatever becomes of the event */
  TL_CUDA_TRY("stream", e);
  return TL_OK;
}

/* ---- streams ---- */

tl_status tl_cuda_stream_new(int index, bool urgent, void **stream) {
  *stream = pop(&streams[index][urgent]);
  if (*stream != NULL) return TL_OK;
  tl_cuda_use(index);
  int least = 0, greatest = 0;
  TL_CUDA_TRY("Stream", cudaDeviceGetStreamPriorityRange(&least, &greatest));
  cudaStream_t s;
  TL_CUDA_TRY("Stream", cudaStreamCreateWithPriority(&s, cudaStreamNonBlocking, urgent ? greatest : least));
  *stream = s;
  return TL_OK;
}

void tl_cuda_stream_free(int index, bool urgent, void *stream) { push(&streams[index][urgent], stream); }

void *tl_cuda_stream_current(int index) { return tl_cuda_context_of(index)->stream; }

tl_status tl_cuda_stream_use(int index, void *stream) {
  tl_cuda_context *c = tl_cuda_context_of(index);
  cudaStream_t s = stream == NULL ? c->work : (cudaStream_t)stream;
  if (tl_cuda_recording() && s != c->stream)
    return TL_FAIL(TL_ERR_STATE, "stream", "a step that is recorded stays on its stream");
  c->stream = s;
  return TL_OK;
}

/* done or not ready; anything else is a failure */
static tl_status answered(cudaError_t e, bool *done) {
  *done = e == cudaSuccess;
  if (e == cudaErrorNotReady) cudaGetLastError();
  else TL_CUDA_TRY("query", e);
  return TL_OK;
}

tl_status tl_cuda_stream_query(int index, void *stream, bool *done) {
  tl_cuda_use(index);
  TL_TRY(refuse_recording("Stream.query"));
  return answered(cudaStreamQuery(stream), done);
}

tl_status tl_cuda_stream_synchronize(int index, void *stream) {
  tl_cuda_use(index);
  TL_TRY(refuse_recording("Stream.synchronize"));
  TL_CUDA_TRY("Stream.synchronize", cudaStreamSynchronize(stream));
  return TL_OK;
}

tl_status tl_cuda_stream_wait(int index, void *stream, void *event) {
  tl_cuda_use(index);
  TL_TRY(refuse_recording("Stream.wait"));
  TL_CUDA_TRY("Stream.wait", cudaStreamWaitEvent(stream, event, 0));
  return TL_OK;
}

/* ---- events ---- */

tl_status tl_cuda_event_new(int index, bool timing, void **event) {
  cudaEvent_t e;
  TL_CUDA_TRY("Event", new_event(index, timing ? cudaEventDefault : cudaEventDisableTiming, &e));
  *event = e;
  return TL_OK;
}

void tl_cuda_event_free(int index, void *event) {
  (void)index;
  cudaEventDestroy(event);
}

tl_status tl_cuda_event_record(int index, void *event, void *stream) {
  tl_cuda_use(index);
  TL_TRY(refuse_recording("Event.record"));
  TL_CUDA_TRY("Event.record", cudaEventRecord(event, stream));
  return TL_OK;
}

tl_status tl_cuda_event_query(void *event, bool *done) {
  TL_TRY(refuse_recording("Event.query"));
  return answered(cudaEventQuery(event), done);
}

tl_status tl_cuda_event_synchronize(void *event) {
  TL_TRY(refuse_recording("Event.synchronize"));
  TL_CUDA_TRY("Event.synchronize", cudaEventSynchronize(event));
  return TL_OK;
}

tl_status tl_cuda_event_elapsed(void *from, void *to, double *milliseconds) {
  TL_TRY(refuse_recording("Event.elapsed"));
  float ms = 0;
  TL_CUDA_TRY("Event.elapsed", cudaEventElapsedTime(&ms, from, to));
  *milliseconds = ms;
  return TL_OK;
}
