/* trace.c: the operations of a forward pass as a list, for hosts that want to know how a model is wired. */
#include "autograd/trace.h"

#include <string.h>

#include "core/memory.h"

typedef struct entry {
  const char *op;
  int inputs, outputs;
  size_t first; /* place of its inputs in the list of tensors, its outputs follow */
} entry;

struct tl_trace {
  entry *entries;
  size_t count, entry_room;
  tl_tensor **tensors; /* one reference each, NULL for absent ones */
  size_t used, tensor_room;
  bool short_of_memory;
};

TL_HOT_THREAD_LOCAL tl_trace *tl_trace_running;

/* Makes room for `more` elements behind `used`. */
static bool reserve(void **block, size_t *room, size_t used, size_t more, size_t element) {
  if (used + more <= *room) return true;
  const size_t wanted = 2 * (used + more) + 32;
  void *wider = tl_host_alloc(wanted * element);
  if (wider == NULL) return false;
  if (used > 0) memcpy(wider, *block, used * element);
  tl_host_free(*block);
  *block = wider;
  *room = wanted;
  return true;
}

static void keep(tl_trace *t, int n, tl_tensor *const *list) {
  for (int i = 0; i < n; i++) t->tensors[t->used++] = tl_hold(list[i]);
}

void tl_trace_note(const char *op, int inputs, tl_tensor *const *in, int outputs, tl_tensor *const *out) {
  tl_trace *t = tl_trace_running;
  const size_t more = (size_t)inputs + (size_t)outputs;
  if (!reserve((void **)&t->entries, &t->entry_room, t->count, 1, sizeof *t->entries) ||
      !reserve((void **)&t->tensors, &t->tensor_room, t->used, more, sizeof *t->tensors)) {
    t->short_of_memory = true;
    return;
  }
  t->entries[t->count++] = (entry){op, inputs, outputs, t->used};
  keep(t, inputs, in);
  keep(t, outputs, out);
}

tl_status tl_trace_begin(tl_trace **out) {
  if (tl_trace_running != NULL) return TL_FAIL(TL_ERR_STATE, "trace", "a trace is running already");
  tl_trace *t = tl_host_alloc(sizeof *t);
  if (t == NULL) return TL_FAIL(TL_ERR_MEMORY, "trace", "no memory for a trace");
  memset(t, 0, sizeof *t);
  tl_trace_running = t;
  *out = t;
  return TL_OK;
}

tl_status tl_trace_end(tl_trace *t) {
  if (tl_trace_running == t) tl_trace_running = NULL;
  if (t->short_of_memory) return TL_FAIL(TL_ERR_MEMORY, "trace", "no memory for the list of operations");
  return TL_OK;
}

void tl_trace_free(tl_trace *t) {
  if (t == NULL) return;
  if (tl_trace_running == t) tl_trace_running = NULL;
  for (size_t i = 0; i < t->used; i++) tl_tensor_free(t->tensors[i]);
  tl_host_free(t->tensors);
  tl_host_free(t->entries);
  tl_host_free(t);
}

int tl_trace_length(const tl_trace *t) { return (int)t->count; }

static const entry *at(const tl_trace *t, int i) { return i >= 0 && (size_t)i < t->count ? &t->entries[i] : NULL; }

const char *tl_trace_op(const tl_trace *t, int i) { return at(t, i) == NULL ? NULL : at(t, i)->op; }
int tl_trace_inputs(const tl_trace *t, int i) { return at(t, i) == NULL ? 0 : at(t, i)->inputs; }
int tl_trace_outputs(const tl_trace *t, int i) { return at(t, i) == NULL ? 0 : at(t, i)->outputs; }

tl_status tl_trace_tensor(const tl_trace *t, int i, int k, tl_tensor **out) {
  const entry *e = at(t, i);
  if (e == NULL || k < 0 || k >= e->inputs + e->outputs)
    return TL_FAIL(TL_ERR_INDEX, "trace", "operation %d has no tensor %d", i, k);
  *out = tl_hold(t->tensors[e->first + (size_t)k]);
  return TL_OK;
}
