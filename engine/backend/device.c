/* device.c: what accelerators offer beside kernels: streams, events, waiting, pinned memory, properties. */
#include "backend/device.h"

#include <string.h>

#include "autograd/tape.h"
#include "core/memory.h"

struct tl_stream {
  const tl_accelerator *on;
  tl_device device;
  bool urgent, lent; /* lent: a handle on a stream that somebody else gives back */
  void *native;
};

/* An event comes into being on the device of the stream that records it first. */
struct tl_event {
  const tl_accelerator *on;
  tl_device device;
  bool timing;
  void *native; /* NULL: not recorded yet */
};

const tl_accelerator *tl_ranges;

void tl_range_push(const char *name) {
  if (tl_backends[1] != NULL) tl_backends[1]->accelerator->range_push(name);
}

void tl_range_pop(void) {
  if (tl_backends[1] != NULL) tl_backends[1]->accelerator->range_pop();
}

tl_status tl_accelerator_of(const char *op, tl_device device, const tl_accelerator **out) {
  const tl_backend *b;
  TL_TRY(tl_backend_open(device, &b));
  if (b->accelerator == NULL) return TL_FAIL(TL_ERR_DEVICE, op, "the %s has none: this is for \"cuda\"", b->name);
  *out = b->accelerator;
  return TL_OK;
}

tl_status tl_device_properties_of(tl_device device, tl_device_properties *properties) {
  const tl_accelerator *a = NULL;
  TL_TRY(tl_accelerator_of("get_device_properties", device, &a));
  return a->properties(device & 255, properties);
}

tl_status tl_synchronize(tl_device device) {
  const tl_backend *b;
  TL_TRY(tl_backend_open(device, &b));
  return b->synchronize(device & 255);
}

/* ---- streams ---- */

static tl_status new_stream(const tl_accelerator *a, tl_device device, tl_stream **out) {
  tl_stream *s = tl_small_alloc(sizeof *s);
  if (s == NULL) return TL_FAIL(TL_ERR_MEMORY, "Stream", "no memory for a stream");
  *s = (tl_stream){.on = a, .device = device, .lent = true};
  *out = s;
  return TL_OK;
}

tl_status tl_stream_new(tl_device device, bool urgent, tl_stream **out) {
  const tl_accelerator *a = NULL;
  tl_stream *s = NULL;
  TL_TRY(tl_accelerator_of("Stream", device, &a));
  TL_TRY(new_stream(a, device, &s));
  tl_status st = a->stream_new(device & 255, urgent, &s->native);
  if (st != TL_OK) {
    tl_small_free(s, sizeof *s);
    return st;
  }
  s->urgent = urgent;
  s->lent = false;
  *out = s;
  return TL_OK;
}

void tl_stream_free(tl_stream *s) {
  if (s == NULL) return;
  if (!s->lent) s->on->stream_free(s->device & 255, s->urgent, s->native);
  tl_small_free(s, sizeof *s);
}

tl_device tl_stream_device(const tl_stream *s) { return s->device; }

tl_status tl_stream_current(tl_device device, tl_stream **out) {
  const tl_accelerator *a = NULL;
  tl_stream *s = NULL;
  TL_TRY(tl_accelerator_of("stream", device, &a));
  TL_TRY(new_stream(a, device, &s));
  s->native = a->stream_current(device & 255);
  *out = s;
  return TL_OK;
}

tl_status tl_stream_use(tl_device device, tl_stream *s, tl_stream **former) {
  const tl_accelerator *a = NULL;
  TL_TRY(tl_accelerator_of("stream", device, &a));
  if (s != NULL && s->device != device)
    return TL_FAIL(TL_ERR_DEVICE, "stream", "the stream belongs to cuda:%d, not to cuda:%d", s->device & 255,
                   device & 255);
  tl_stream *before = NULL;
  if (former != NULL) TL_TRY(tl_stream_current(device, &before));
  tl_status st = a->stream_use(device & 255, s == NULL ? NULL : s->native);
  if (st != TL_OK) tl_stream_free(before);
  else if (former != NULL) *former = before;
  return st;
}

tl_status tl_stream_query(tl_stream *s, bool *done) { return s->on->stream_query(s->device & 255, s->native, done); }

tl_status tl_stream_synchronize(tl_stream *s) { return s->on->stream_synchronize(s->device & 255, s->native); }

tl_status tl_stream_wait(tl_stream *s, tl_event *e) {
  return e->native == NULL ? TL_OK : s->on->stream_wait(s->device & 255, s->native, e->native);
}

tl_status tl_stream_wait_stream(tl_stream *s, tl_stream *before) {
  return s->on->stream_order(before->device & 255, before->native, s->native);
}

tl_status tl_record_stream(tl_tensor *t, tl_stream *s) {
  if (t->device != s->device)
    return TL_FAIL(TL_ERR_DEVICE, "record_stream", "the tensor and the stream are on different devices");
  s->on->record_stream(t->device & 255, t->storage->data, s->native);
  return TL_OK;
}

/* ---- events ---- */

tl_status tl_event_new(bool timing, tl_event **out) {
  tl_event *e = tl_small_alloc(sizeof *e);
  if (e == NULL) return TL_FAIL(TL_ERR_MEMORY, "Event", "no memory for an event");
  *e = (tl_event){.timing = timing};
  *out = e;
  return TL_OK;
}

void tl_event_free(tl_event *e) {
  if (e == NULL) return;
  if (e->native != NULL) e->on->event_free(e->device & 255, e->native);
  tl_small_free(e, sizeof *e);
}

tl_status tl_event_record(tl_event *e, tl_stream *s) {
  if (e->native == NULL) {
    TL_TRY(s->on->event_new(s->device & 255, e->timing, &e->native));
    e->on = s->on;
    e->device = s->device;
  }
  if (e->device != s->device)
    return TL_FAIL(TL_ERR_DEVICE, "Event.record", "the event was recorded on cuda:%d before, the stream is cuda:%d's",
                   e->device & 255, s->device & 255);
  return s->on->event_record(s->device & 255, e->native, s->native);
}

tl_status tl_event_query(tl_event *e, bool *done) {
  *done = true;
  return e->native == NULL ? TL_OK : e->on->event_query(e->native, done);
}

tl_status tl_event_synchronize(tl_event *e) { return e->native == NULL ? TL_OK : e->on->event_synchronize(e->native); }

tl_status tl_event_elapsed(tl_event *from, tl_event *to, double *milliseconds) {
  const char *op = "Event.elapsed";
  if (!from->timing || !to->timing)
    return TL_FAIL(TL_ERR_STATE, op, "the events were made without {timing=true}: they do not know the time");
  if (from->native == NULL || to->native == NULL)
    return TL_FAIL(TL_ERR_STATE, op, "the %s event was not recorded", from->native == NULL ? "first" : "second");
  bool done = false;
  TL_TRY(from->on->event_query(from->native, &done));
  if (done) TL_TRY(to->on->event_query(to->native, &done));
  if (!done) return TL_FAIL(TL_ERR_STATE, op, "the work before the events is not done: synchronize first");
  return from->on->event_elapsed(from->native, to->native, milliseconds);
}

/* ---- pinned memory ---- */

bool tl_is_pinned(const tl_tensor *t) { return t->storage->pinned != NULL; }

tl_status tl_pin_memory(tl_tensor *t, tl_tensor **out) {
  const char *op = "pin_memory";
  const tl_accelerator *a = NULL;
  if (t->device != TL_CPU) return TL_FAIL(TL_ERR_DEVICE, op, "only tensors on the CPU can be pinned");
  if (tl_is_pinned(t)) return tl_tensor_retain(t, out);
  TL_TRY(tl_accelerator_of(op, TL_CUDA, &a));
  tl_tensor *y;
  TL_TRY(tl_empty_pinned(t->ndim, t->shape, t->dtype, &y));
  bool recording = tl_set_grad_enabled(false);
  tl_status st = tl_copy_(y, t);
  tl_set_grad_enabled(recording);
  return tl_give(st, y, out);
}
