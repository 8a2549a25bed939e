/* backward.c: the walk over the tape.
 *
 * A first pass counts how many gradients every reachable node will get; a node runs when all have arrived. The walk is a
 * state machine: it stops where the host has to run a hook or a custom function and goes on after the reply, so the
 * engine never calls back. Walks nest (a custom function's backward may walk another graph): what an inner walk does to
 * nodes that an outer one has already counted is undone at its end. */
#include <string.h>

#include "autograd/hook.h"
#include "autograd/inplace.h"
#include "autograd/sink.h"
#include "autograd/tape.h"
#include "autograd/watch.h"
#include "backend/device.h"
#include "core/memory.h"
#include "ops/autocast.h"

typedef struct node_list {
  tl_node **at;
  int count, room;
} node_list;

typedef struct outer_state { /* of a node that an enclosing walk has counted */
  tl_node *node;
  uint64_t visit;
  int pending;
  tl_tensor **grads; /* node->outputs of them */
} outer_state;

typedef struct capture { /* autograd.grad wants this one */
  tl_node *node;
  int slot;
  tl_tensor *grad;
} capture;

struct tl_walk {
  uint64_t id;
  struct tl_walk *outer;
  bool retain_graph, keep_leaves; /* keep_leaves: .grad of leaves stays as it is */
  node_list seen, ready;
  outer_state *saved;
  int saved_count, saved_room;
  capture *captures;
  int capture_count;
  /* where the walk stands */
  tl_node *node;
  int *hook_ids, *hook_slots;
  int hook_count, hook_room, hook_next;
  bool waiting, done;
  tl_walk_event event;
  tl_tensor *offered; /* the gradient under a hook */
  tl_watch *watches;  /* those that saw a gradient */
};

static _Thread_local uint64_t walks = 0;
static _Thread_local tl_walk *active = NULL;
static _Thread_local bool detect_anomaly = false;

bool tl_set_detect_anomaly(bool on) {
  bool former = detect_anomaly;
  detect_anomaly = on;
  return former;
}

static tl_status no_memory(void) { return TL_FAIL(TL_ERR_MEMORY, "backward", "no memory for the walk over the tape"); }

static tl_status push(node_list *list, tl_node *n) {
  if (list->count == list->room) {
    int room = list->room == 0 ? 64 : 2 * list->room;
    tl_node **at = tl_host_alloc((size_t)room * sizeof *at);
    if (at == NULL) return no_memory();
    if (list->count > 0) memcpy(at, list->at, (size_t)list->count * sizeof *at);
    tl_host_free(list->at);
    list->at = at;
    list->room = room;
  }
  list->at[list->count++] = n;
  return TL_OK;
}

bool tl_walk_retains(void) { return active != NULL && active->retain_graph; }

/* ---- counting ---- */

static bool in_outer_walk(const tl_node *n) {
  for (const tl_walk *w = active; w != NULL; w = w->outer)
    if (n->visit == w->id) return true;
  return false;
}

static tl_status save_outer(tl_walk *w, tl_node *n) {
  if (w->saved_count == w->saved_room) {
    int room = w->saved_room == 0 ? 16 : 2 * w->saved_room;
    outer_state *s = tl_host_alloc((size_t)room * sizeof *s);
    if (s == NULL) return no_memory();
    if (w->saved_count > 0) memcpy(s, w->saved, (size_t)w->saved_count * sizeof *s);
    tl_host_free(w->saved);
    w->saved = s;
    w->saved_room = room;
  }
  tl_tensor **grads = tl_host_alloc((size_t)n->outputs * sizeof *grads);
  if (grads == NULL) return no_memory();
  memcpy(grads, n->grads, (size_t)n->outputs * sizeof *grads);
  memset(n->grads, 0, (size_t)n->outputs * sizeof *grads);
  w->saved[w->saved_count++] = (outer_state){n, n->visit, n->pending, grads};
  return TL_OK;
}

static tl_status see(tl_walk *w, tl_node *n) {
  if (n->visit == w->id) return TL_OK;
  if (in_outer_walk(n)) TL_TRY(save_outer(w, n));
  TL_TRY(push(&w->seen, n));
  n->refs++;
  n->visit = w->id;
  n->pending = 0;
  return TL_OK;
}

static tl_status count(tl_walk *w) {
  for (int i = 0; i < w->seen.count; i++) { /* seen grows while we read it */
    tl_node *n = w->seen.at[i];
    for (int e = 0; e < n->inputs; e++)
      if (n->edges[e].node != NULL) {
        TL_TRY(see(w, n->edges[e].node));
        n->edges[e].node->pending++;
      }
  }
  return TL_OK;
}

/* ---- running ---- */

static tl_status deliver(tl_walk *w, tl_node *n, tl_tensor **grads) {
  tl_status st = TL_OK;
  for (int e = 0; e < n->inputs; e++) {
    tl_node *up = n->edges[e].node;
    tl_tensor *g = grads == NULL ? NULL : grads[e];
    if (grads != NULL) grads[e] = NULL;
    if (up == NULL || st != TL_OK) {
      tl_tensor_free(g);
      continue;
    }
    if (g != NULL) st = tl_accumulate(&up->grads[n->edges[e].slot], g);
    if (--up->pending == 0 && st == TL_OK) st = push(&w->ready, up);
  }
  return st;
}

static tl_status check_anomaly(tl_node *n, tl_tensor *const *grads) {
  for (int e = 0; e < n->inputs; e++) {
    if (grads[e] == NULL) continue;
    tl_tensor *nan = NULL, *any = NULL;
    double found = 0;
    tl_status st = tl_isnan(grads[e], &nan);
    if (st == TL_OK) st = tl_any(nan, 0, NULL, false, &any);
    if (st == TL_OK) st = tl_item(any, &found);
    tl_tensor_free(nan);
    tl_tensor_free(any);
    TL_TRY(st);
    if (found != 0)
      return TL_FAIL(TL_ERR_VALUE, "backward",
                     "the backward of '%s' made the first nan, in the gradient of its input %d", n->cls->name, e + 1);
  }
  return TL_OK;
}

#define FEW 8 /* inputs of almost every node */

static tl_status finish_node(tl_walk *w, tl_node *n, tl_tensor **grad_in) {
  tl_status st = detect_anomaly ? check_anomaly(n, grad_in) : TL_OK;
  for (int i = 0; i < n->outputs; i++) {
    tl_tensor_free(n->grads[i]);
    n->grads[i] = NULL;
  }
  if (!w->retain_graph && n->saved_count > 0) tl_node_release_saved(n);
  if (st == TL_OK) return deliver(w, n, grad_in);
  for (int e = 0; e < n->inputs; e++) tl_tensor_free(grad_in[e]);
  return st;
}

static tl_status run_node(tl_walk *w, tl_node *n) {
  tl_tensor *few[FEW] = {0}, **grad_in = few;
  if (n->inputs > FEW) {
    grad_in = tl_host_calloc(n->inputs, sizeof *grad_in);
    if (grad_in == NULL) return no_memory();
  }
  const tl_accelerator *ranges = tl_ranges;
  if (ranges != NULL) ranges->range_push(n->cls->name);
  tl_status st = n->cls->backward(n, n->grads, grad_in);
  if (ranges != NULL) ranges->range_pop();
  if (st == TL_OK) st = finish_node(w, n, grad_in);
  else
    for (int e = 0; e < n->inputs; e++) tl_tensor_free(grad_in[e]);
  if (grad_in != few) tl_host_free(grad_in);
  return st;
}

static void capture_grads(tl_walk *w, tl_node *n) {
  for (int i = 0; i < w->capture_count; i++)
    if (w->captures[i].node == n && n->grads[w->captures[i].slot] != NULL)
      w->captures[i].grad = tl_hold(n->grads[w->captures[i].slot]);
}

static tl_status run_sink(tl_walk *w, tl_node *n, tl_tensor *leaf) {
  tl_tensor *g = n->grads[0];
  n->grads[0] = NULL;
  if (g == NULL) return TL_OK;
  if (w->keep_leaves) {
    tl_tensor_free(g);
    return TL_OK;
  }
  TL_TRY(tl_sink_add(leaf, g));
  tl_walk *all = w; /* what a custom function's backward walks is a part of it */
  while (all->outer != NULL) all = all->outer;
  for (const struct tl_hook *h = leaf->hooks; h != NULL; h = h->next) {
    if (h->watch == NULL) continue;
    if (!h->watch->seen) {
      h->watch->seen = true;
      h->watch->next = all->watches;
      all->watches = h->watch;
    }
    TL_TRY(h->watch->ready(h->watch, h->slot));
  }
  return TL_OK;
}

static tl_status end_watches(tl_walk *w) {
  tl_status st = TL_OK;
  while (w->watches != NULL) {
    tl_watch *one = w->watches;
    w->watches = one->next;
    one->seen = false;
    if (st == TL_OK) st = one->end(one);
    else one->left(one);
  }
  return st;
}

/* Copies the hooks of the node that is about to run: the host may remove hooks while it serves one. */
static tl_status list_hooks(tl_walk *w, const struct tl_hook *h) {
  w->hook_count = w->hook_next = 0;
  int n = 0;
  for (const struct tl_hook *k = h; k != NULL; k = k->next) n++;
  if (n == 0) return TL_OK;
  if (n > w->hook_room) {
    tl_host_free(w->hook_ids);
    tl_host_free(w->hook_slots);
    w->hook_room = 0;
    w->hook_ids = tl_host_alloc((size_t)n * sizeof *w->hook_ids);
    w->hook_slots = tl_host_alloc((size_t)n * sizeof *w->hook_slots);
    if (w->hook_ids == NULL || w->hook_slots == NULL) return no_memory();
    w->hook_room = n;
  }
  for (; h != NULL; h = h->next) {
    if (h->id < 0) continue; /* the engine's own */
    w->hook_ids[w->hook_count] = h->id;
    w->hook_slots[w->hook_count++] = h->slot;
  }
  return TL_OK;
}

static tl_status store_retained(const tl_node *n) {
  for (const struct tl_hook *h = n->hooks; h != NULL; h = h->next)
    if (h->id == TL_HOOK_RETAIN_GRAD && n->grads[h->slot] != NULL) {
      if (h->keeper->grad == NULL) TL_TRY(tl_clone(n->grads[h->slot], &h->keeper->grad));
      else TL_TRY(tl_add_(h->keeper->grad, n->grads[h->slot]));
    }
  return TL_OK;
}

static bool has_grads(const tl_node *n) {
  for (int i = 0; i < n->outputs; i++)
    if (n->grads[i] != NULL) return true;
  return false;
}

/* Runs until the host is needed (w->waiting) or everything is done (w->done). */
static tl_status advance(tl_walk *w) {
  for (;;) {
    if (w->node == NULL) {
      if (w->ready.count == 0) {
        w->done = true;
        return w->watches == NULL ? TL_OK : end_watches(w);
      }
      TL_CHECK_INTERRUPT("backward");
      w->node = w->ready.at[--w->ready.count];
      tl_tensor *leaf = tl_sink_leaf(w->node);
      const struct tl_hook *hooks = leaf != NULL ? leaf->hooks : w->node->hooks;
      if (hooks != NULL || w->hook_count > 0) TL_TRY(list_hooks(w, hooks));
    }
    tl_node *n = w->node;
    while (w->hook_next < w->hook_count) {
      int h = w->hook_next++;
      if (n->grads[w->hook_slots[h]] == NULL) continue;
      w->offered = n->grads[w->hook_slots[h]];
      w->event = (tl_walk_event){1, w->hook_ids[h], 1, &w->offered, 1};
      w->waiting = true;
      return TL_OK;
    }
    if (w->capture_count > 0) capture_grads(w, n);
    tl_tensor *leaf = tl_sink_leaf(n);
    if (leaf != NULL) {
      TL_TRY(run_sink(w, n, leaf));
    } else if (!has_grads(n)) {
      TL_TRY(deliver(w, n, NULL));
    } else {
      if (n->hooks != NULL) TL_TRY(store_retained(n));
      if (n->released && n->saved_count > 0) {
        tl_tensor *none;
        return tl_node_saved(n, 0, &none);
      }
      if (n->cls->backward == NULL) {
        w->event = (tl_walk_event){2, n->host_id, n->outputs, n->grads, n->inputs};
        w->waiting = true;
        return TL_OK;
      }
      TL_TRY(run_node(w, n));
    }
    w->node = NULL;
  }
}

/* ---- the walk as an object ---- */

void tl_walk_free(tl_walk *w) {
  if (w == NULL) return;
  for (; w->watches != NULL; w->watches = w->watches->next) {
    w->watches->seen = false;
    w->watches->left(w->watches);
  }
  for (int i = 0; i < w->seen.count; i++) { /* after a failure gradients may still wait here */
    tl_node *n = w->seen.at[i];
    for (int o = 0; o < n->outputs; o++) {
      tl_tensor_free(n->grads[o]);
      n->grads[o] = NULL;
    }
  }
  for (int i = 0; i < w->saved_count; i++) {
    outer_state *s = &w->saved[i];
    memcpy(s->node->grads, s->grads, (size_t)s->node->outputs * sizeof *s->grads);
    s->node->visit = s->visit;
    s->node->pending = s->pending;
    tl_host_free(s->grads);
  }
  for (tl_walk **a = &active; *a != NULL; a = &(*a)->outer)
    if (*a == w) {
      *a = w->outer;
      break;
    }
  for (int i = 0; i < w->capture_count; i++) {
    tl_tensor_free(w->captures[i].grad);
    tl_node_drop(w->captures[i].node);
  }
  for (int i = 0; i < w->seen.count; i++) tl_node_drop(w->seen.at[i]);
  tl_host_free(w->captures);
  tl_host_free(w->seen.at);
  tl_host_free(w->ready.at);
  tl_host_free(w->saved);
  tl_host_free(w->hook_ids);
  tl_host_free(w->hook_slots);
  tl_small_free(w, sizeof *w);
}

static tl_status root_gradient(tl_tensor *t, tl_tensor *grad, tl_tensor **out) {
  if (!tl_requires_grad(t))
    return TL_FAIL(TL_ERR_STATE, "backward", "the tensor of %s does not depend on anything that requires gradients",
                   tl_shape_of(t));
  if (grad == NULL) {
    if (t->numel != 1)
      return TL_FAIL(TL_ERR_SHAPE, "backward",
                     "a tensor of %s needs a gradient argument of its shape; only one element needs none",
                     tl_shape_of(t));
    return tl_full(t->ndim, t->shape, 1, t->dtype, t->device, out);
  }
  if (!tl_same_shape(t, grad))
    return TL_FAIL(TL_ERR_SHAPE, "backward", "a gradient of %s for a tensor of %s", tl_shape_of(grad), tl_shape_of(t));
  TL_TRY(tl_check_same_device("backward", t, grad));
  if (grad->dtype != t->dtype)
    return TL_FAIL(TL_ERR_DTYPE, "backward", "a %s gradient for a %s tensor", tl_dtype_name(grad->dtype),
                   tl_dtype_name(t->dtype));
  return tl_alias(grad, out);
}

static tl_status start(tl_walk *w, int n, tl_tensor *const *outputs, tl_tensor *const *grads) {
  for (int i = 0; i < n; i++) {
    tl_edge edge;
    tl_tensor *g;
    TL_TRY(root_gradient(outputs[i], grads == NULL ? NULL : grads[i], &g));
    tl_status st = tl_edge_of(outputs[i], &edge);
    if (st == TL_OK) {
      st = see(w, edge.node);
      if (st == TL_OK) st = tl_accumulate(&edge.node->grads[edge.slot], g);
      else tl_tensor_free(g);
      tl_node_drop(edge.node);
    } else {
      tl_tensor_free(g);
    }
    TL_TRY(st);
  }
  int roots = w->seen.count;
  TL_TRY(count(w));
  for (int i = 0; i < roots; i++)
    if (w->seen.at[i]->pending == 0) TL_TRY(push(&w->ready, w->seen.at[i]));
  return TL_OK;
}

static tl_status walk_new(bool retain_graph, tl_walk **out) {
  tl_walk *w = tl_small_alloc(sizeof *w);
  if (w == NULL) return no_memory();
  memset(w, 0, sizeof *w);
  w->id = ++walks;
  w->retain_graph = retain_graph;
  *out = w;
  return TL_OK;
}

/* Runs w as far as it goes without the host. Meanwhile gradients are not recorded and autocast converts nothing. */
static tl_status go(tl_walk *w) {
  bool former = tl_set_grad_enabled(false), casts = tl_autocast_pause();
  tl_status st = advance(w);
  tl_autocast_on = casts;
  tl_set_grad_enabled(former);
  return st;
}

static tl_status first_run(tl_walk *w, int n, tl_tensor *const *outputs, tl_tensor *const *grads) {
  bool former = tl_set_grad_enabled(false), casts = tl_autocast_pause();
  tl_status st = start(w, n, outputs, grads);
  w->outer = active;
  active = w;
  if (st == TL_OK) st = advance(w);
  tl_autocast_on = casts;
  tl_set_grad_enabled(former);
  return st;
}

tl_status tl_backward(tl_tensor *t, tl_tensor *grad, bool retain_graph, tl_walk **walk) {
  tl_walk *w = NULL;
  TL_TRY(walk_new(retain_graph, &w));
  tl_status st = first_run(w, 1, &t, &grad);
  if (st != TL_OK || w->done) {
    tl_walk_free(w);
    w = NULL;
  }
  if (st == TL_OK) *walk = w;
  return st;
}

tl_status tl_autograd_grad(int n, tl_tensor *const *outputs, tl_tensor *const *grads, int m, tl_tensor *const *inputs,
                           bool retain_graph, tl_walk **walk) {
  tl_walk *w = NULL;
  TL_TRY(walk_new(retain_graph, &w));
  w->keep_leaves = true;
  tl_status st = TL_OK;
  w->captures = tl_host_calloc((size_t)m, sizeof *w->captures);
  if (w->captures == NULL) st = no_memory();
  for (int i = 0; i < m && st == TL_OK; i++) {
    tl_edge edge;
    if (!tl_requires_grad(inputs[i]))
      st = TL_FAIL(TL_ERR_STATE, "autograd.grad", "input %d does not require gradients", i + 1);
    else st = tl_edge_of(inputs[i], &edge);
    if (st == TL_OK) w->captures[w->capture_count++] = (capture){edge.node, edge.slot, NULL};
  }
  if (st == TL_OK) st = first_run(w, n, outputs, grads);
  if (st != TL_OK) {
    tl_walk_free(w);
    return st;
  }
  *walk = w;
  return TL_OK;
}

tl_status tl_walk_next(tl_walk *w, tl_walk_event *event) {
  if (!w->waiting && !w->done) TL_TRY(go(w));
  *event = w->done ? (tl_walk_event){0} : w->event;
  return TL_OK;
}

static tl_status check_reply(const char *what, const tl_tensor *expected, const tl_tensor *g) {
  if (g == NULL || expected == NULL) return TL_OK;
  if (!tl_same_shape(expected, g))
    return TL_FAIL(TL_ERR_SHAPE, "backward", "%s returned a gradient of %s where %s was expected", what, tl_shape_of(g),
                   tl_shape_of(expected));
  return TL_OK;
}

tl_status tl_walk_reply(tl_walk *w, int n, tl_tensor *const *grads) {
  if (!w->waiting) return TL_FAIL(TL_ERR_STATE, "backward", "no reply was asked for");
  tl_node *node = w->node;
  if (w->event.kind == 1) {
    tl_tensor *g = n > 0 ? grads[0] : NULL;
    TL_TRY(check_reply("a hook", w->offered, g));
    if (g != NULL) {
      tl_tensor **at = &node->grads[w->hook_slots[w->hook_next - 1]];
      tl_hold(g);
      tl_tensor_free(*at);
      *at = g;
    }
    w->waiting = false;
    return TL_OK;
  }
  if (n > node->inputs)
    return TL_FAIL(TL_ERR_VALUE, "backward", "'%s' returned %d gradients for %d inputs", node->cls->name, n,
                   node->inputs);
  tl_tensor **grad_in = tl_host_calloc(node->inputs, sizeof *grad_in);
  if (grad_in == NULL) return no_memory();
  for (int e = 0; e < n; e++)
    if (tl_node_needs(node, e)) grad_in[e] = tl_hold(grads[e]);
  bool former = tl_set_grad_enabled(false), casts = tl_autocast_pause();
  tl_status st = finish_node(w, node, grad_in);
  tl_autocast_on = casts;
  tl_set_grad_enabled(former);
  tl_host_free(grad_in);
  w->waiting = false;
  w->node = NULL;
  return st;
}

tl_status tl_walk_grads(tl_walk *w, int n, tl_tensor **grads) {
  if (!w->done || n != w->capture_count)
    return TL_FAIL(TL_ERR_STATE, "autograd.grad", "%d gradients asked for, the walk has %d", n,
                   w->done ? w->capture_count : 0);
  for (int i = 0; i < n; i++) {
    grads[i] = w->captures[i].grad;
    w->captures[i].grad = NULL;
  }
  return TL_OK;
}

tl_node *tl_walk_node(const tl_walk *w) { return w->node; }
