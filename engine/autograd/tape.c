/* tape.c: recording nodes, saved values, edges. The walk is in backward.c, in-place changes in inplace.c. */
#include "autograd/tape.h"

#include <string.h>

#include "autograd/hook.h"
#include "autograd/inplace.h"
#include "autograd/sink.h"
#include "autograd/trace.h"
#include "core/memory.h"

static TL_HOT_THREAD_LOCAL bool grad_enabled = true;
static TL_HOT_THREAD_LOCAL uint64_t next_seq = 1;

bool tl_grad_enabled(void) { return grad_enabled; }

bool tl_set_grad_enabled(bool on) {
  bool former = grad_enabled;
  grad_enabled = on;
  return former;
}

bool tl_records(int n, tl_tensor *const *inputs) {
  if (!grad_enabled) return false;
  for (int i = 0; i < n; i++) {
    tl_tensor *t = inputs[i];
    if (t == NULL) continue;
    /* A view that cannot be brought up to date counts as one that does: tl_edge_of() will try again and report. */
    if (t->base != NULL && tl_view_refresh(t) != TL_OK) return true;
    if (t->requires_grad) return true;
  }
  return false;
}

static size_t align16(size_t n) { return (n + 15) & ~(size_t)15; }

tl_status tl_node_new(const tl_node_class *cls, int outputs, int inputs, int saved, size_t payload_bytes,
                      tl_node **out) {
  size_t at_edges = align16(sizeof(tl_node));
  size_t at_saved = at_edges + (size_t)inputs * sizeof(tl_edge);
  size_t at_grads = at_saved + (size_t)saved * sizeof(tl_saved);
  size_t at_payload = align16(at_grads + (size_t)outputs * sizeof(tl_tensor *));
  size_t bytes = at_payload + payload_bytes;
  char *block = tl_small_alloc(bytes);
  if (block == NULL) return TL_FAIL(TL_ERR_MEMORY, cls->name, "no memory for a tape node of %zu bytes", bytes);
  memset(block, 0, at_payload);
  tl_node *n = (tl_node *)block;
  n->cls = cls;
  n->refs = 1;
  n->inputs = (uint16_t)inputs;
  n->outputs = (uint16_t)outputs;
  n->saved_count = (uint16_t)saved;
  n->payload_bytes = (uint32_t)payload_bytes;
  n->bytes = (uint32_t)bytes;
  n->seq = next_seq++;
  n->edges = (tl_edge *)(block + at_edges);
  n->saved = (tl_saved *)(block + at_saved);
  n->grads = (tl_tensor **)(block + at_grads);
  n->payload = block + at_payload;
  *out = n;
  return TL_OK;
}

void tl_node_release_saved(tl_node *n) {
  for (int i = 0; i < n->saved_count; i++) {
    tl_tensor_free(n->saved[i].tensor);
    n->saved[i].tensor = NULL;
  }
  n->released = true;
}

static void free_node(tl_node *n) {
  tl_node_release_saved(n);
  if (n->cls->release != NULL) n->cls->release(n);
  for (int i = 0; i < n->outputs; i++) tl_tensor_free(n->grads[i]);
  tl_hooks_free(&n->hooks);
  tl_small_free(n, n->bytes);
}

void tl_node_drop(tl_node *n) {
  static _Thread_local tl_node *dead;
  static _Thread_local bool draining;
  if (n == NULL || --n->refs > 0) return;
  n->next_dead = dead;
  dead = n;
  if (draining) return;
  draining = true;
  while (dead != NULL) {
    n = dead;
    dead = n->next_dead;
    for (int i = 0; i < n->inputs; i++) {
      tl_node *up = n->edges[i].node;
      if (up == NULL || --up->refs > 0) continue;
      up->next_dead = dead;
      dead = up;
    }
    free_node(n); /* may drop further nodes: they join the list */
  }
  draining = false;
}

tl_status tl_edge_of(tl_tensor *t, tl_edge *edge) {
  edge->node = NULL;
  edge->slot = 0;
  if (t == NULL) return TL_OK;
  if (t->base != NULL) TL_TRY(tl_view_refresh(t));
  if (!t->requires_grad) return TL_OK;
  if (t->node != NULL) {
    edge->node = t->node;
    edge->slot = t->slot;
  } else {
    if (t->sink == NULL) return tl_sink_new(t, &edge->node);
    edge->node = t->sink;
  }
  edge->node->refs++;
  return TL_OK;
}

/* A node with its edges and saved aliases, not yet tied to outputs. */
static tl_status build(const tl_node_class *cls, int outputs, int inputs, tl_tensor *const *in, int saved,
                       tl_tensor *const *save, const void *payload, size_t payload_bytes, tl_node **out) {
  tl_node *n;
  TL_TRY(tl_node_new(cls, outputs, inputs, saved, payload_bytes, &n));
  /* The payload is copied last: on failure before that, release() must not see half of it. */
  tl_status st = TL_OK;
  for (int i = 0; i < inputs && st == TL_OK; i++) st = tl_edge_of(in[i], &n->edges[i]);
  for (int i = 0; i < saved && st == TL_OK; i++)
    if (save[i] != NULL) {
      st = tl_alias(save[i], &n->saved[i].tensor);
      n->saved[i].version = save[i]->storage->version;
    }
  if (st != TL_OK) {
    static const tl_node_class failed = {"failed", NULL, NULL};
    n->cls = &failed;
    tl_node_drop(n);
    return st;
  }
  if (payload_bytes > 0) memcpy(n->payload, payload, payload_bytes);
  *out = n;
  return TL_OK;
}

tl_status tl_record(const tl_node_class *cls, int outputs, tl_tensor *const *out, int inputs, tl_tensor *const *in,
                    int saved, tl_tensor *const *save, const void *payload, size_t payload_bytes, tl_node **node) {
  if (node != NULL) *node = NULL;
  if (!tl_records(inputs, in)) return TL_OK;
  tl_node *n;
  TL_TRY(build(cls, outputs, inputs, in, saved, save, payload, payload_bytes, &n));
  for (int i = 0; i < outputs; i++) {
    if (out[i] == NULL || !tl_is_floating(out[i]->dtype)) continue;
    n->refs++;
    out[i]->node = n;
    out[i]->slot = (uint16_t)i;
    out[i]->requires_grad = true;
  }
  if (tl_trace_running != NULL) tl_trace_note(cls->name, inputs, in, outputs, out);
  if (node != NULL && n->refs > 1) *node = n; /* borrowed from the outputs */
  tl_node_drop(n);
  return TL_OK;
}

tl_status tl_node_saved(tl_node *n, int i, tl_tensor **out) {
  tl_saved *s = &n->saved[i];
  if (n->released)
    return TL_FAIL(TL_ERR_STATE, "backward",
                   "the graph of '%s' was already used and freed: pass {retain_graph=true} to the first backward",
                   n->cls->name);
  if (s->tensor != NULL && s->tensor->storage->version != s->version)
    return TL_FAIL(
        TL_ERR_STATE, "backward",
        "a tensor of %s that '%s' needs for its gradient was modified in place afterwards (version %u, saved at %u)",
        tl_shape_of(s->tensor), n->cls->name, s->tensor->storage->version, s->version);
  *out = s->tensor;
  return TL_OK;
}

/* ---- what a program asks about a tensor ---- */

bool tl_requires_grad(const tl_tensor *t) {
  if (t->base != NULL) tl_view_refresh((tl_tensor *)t);
  return t->requires_grad;
}

bool tl_is_leaf(const tl_tensor *t) {
  if (t->base != NULL) tl_view_refresh((tl_tensor *)t);
  return t->node == NULL;
}

const char *tl_grad_fn_name(const tl_tensor *t) { return tl_is_leaf(t) ? NULL : t->node->cls->name; }

tl_status tl_set_requires_grad(tl_tensor *t, bool on) {
  if (!tl_is_leaf(t)) {
    if (on) return TL_OK;
    return TL_FAIL(TL_ERR_STATE, "requires_grad_", "only leaves can stop requiring gradients: use detach()");
  }
  if (on && !tl_is_floating(t->dtype))
    return TL_FAIL(TL_ERR_DTYPE, "requires_grad_", "only floating tensors can require gradients, this one is %s",
                   tl_dtype_name(t->dtype));
  t->requires_grad = on;
  return TL_OK;
}

tl_status tl_grad(const tl_tensor *t, tl_tensor **out) {
  *out = tl_hold(t->grad);
  return TL_OK;
}

tl_status tl_set_grad(tl_tensor *t, tl_tensor *grad) {
  if (grad != NULL) {
    if (!tl_same_shape(t, grad))
      return TL_FAIL(TL_ERR_SHAPE, "grad", "a gradient of %s for a tensor of %s", tl_shape_of(grad), tl_shape_of(t));
    if (grad->dtype != t->dtype)
      return TL_FAIL(TL_ERR_DTYPE, "grad", "a %s gradient for a %s tensor", tl_dtype_name(grad->dtype),
                     tl_dtype_name(t->dtype));
    TL_TRY(tl_check_same_device("grad", t, grad));
  }
  tl_tensor *former = t->grad;
  t->grad = tl_hold(grad);
  tl_tensor_free(former);
  return TL_OK;
}

/* ---- in-place: the plain case; views go through inplace.c ---- */

tl_status tl_check_inplace(const char *op, tl_tensor *t) {
  TL_CHECK_INTERRUPT(op);
  tl_view_check(t);
  if (tl_overlaps_itself(t) || (t->base != NULL && tl_overlaps_itself(t->base)))
    return TL_FAIL(TL_ERR_VALUE, op,
                   "the target of %s is expanded: several of its elements share memory; clone() it first",
                   tl_shape_of(t));
  if (!grad_enabled) return TL_OK;
  const tl_tensor *root = t->base != NULL ? t->base : t;
  if (root->node == NULL && root->requires_grad)
    return TL_FAIL(TL_ERR_STATE, op,
                   "%s leaf that requires gradients cannot be changed in place while they are recorded: use tl.no_grad",
                   t->base != NULL ? "a view of a" : "a");
  return TL_OK;
}

tl_status tl_write_begin(tl_write *w, const tl_node_class *cls, tl_tensor *t, int inputs, tl_tensor *const *in,
                         int saved, tl_tensor *const *save, const void *payload, size_t payload_bytes) {
  *w = (tl_write){NULL, NULL};
  if (!tl_is_floating(t->dtype)) return TL_OK;
  /* A plain overwrite (in[0] == NULL) of something with history cuts that history, too. */
  bool cuts = grad_enabled && in[0] == NULL && (t->base != NULL || t->node != NULL) && tl_requires_grad(t);
  if (!tl_records(inputs, in) && !cuts) return TL_OK;
  TL_TRY(build(cls, 1, inputs, in, saved, save, payload, payload_bytes, &w->node));
  for (int i = 0; i < saved; i++)
    if (save[i] == t) w->node->saved[i].version++; /* of the value that is to come */
  if (tl_trace_running != NULL) tl_trace_note(t->base != NULL ? "write through a view" : cls->name, inputs, in, 1, &t);
  if (t->base == NULL) return TL_OK;
  tl_status st = tl_view_write(t, w->node, &w->through);
  if (st != TL_OK) {
    tl_node_drop(w->node);
    w->node = NULL;
  }
  return st;
}

static tl_status overwrite_backward(tl_node *n, tl_tensor *const *grad_out, tl_tensor **grad_in) {
  (void)n, (void)grad_out, (void)grad_in; /* it has no inputs that a gradient could go to */
  return TL_OK;
}

tl_status tl_overwrite_begin(tl_write *w, tl_tensor *t) {
  static const tl_node_class overwrite_class = {"overwrite", overwrite_backward, NULL};
  tl_tensor *none = NULL;
  return tl_write_begin(w, &overwrite_class, t, 1, &none, 0, NULL, NULL, 0);
}

tl_status tl_write_end(tl_write *w, tl_tensor *t, tl_status status) {
  if (status != TL_OK) {
    tl_node_drop(w->through);
    tl_node_drop(w->node);
    return status;
  }
  tl_touch(t);
  if (w->through != NULL) tl_view_wrote(t, w->node, w->through);
  else if (w->node != NULL) tl_tensor_set_node(t, w->node);
  return TL_OK;
}

void tl_tensor_set_node(tl_tensor *t, tl_node *n) {
  if (t->retains_grad && t->node != NULL) tl_hooks_forget(&t->node->hooks, t);
  t->retains_grad = false;
  tl_node *former = t->node;
  t->node = n;
  t->slot = 0;
  t->requires_grad = true;
  tl_node_drop(former);
}
