/* function.c: operations whose backward the host computes (custom functions written in Lua), and the numbers of hooks and
 * functions that are gone. */
#include <string.h>

#include "autograd/sink.h"
#include "autograd/tape.h"
#include "core/memory.h"

/* Numbers of hooks and functions whose nodes are gone, waiting for the host to forget them. */
static _Thread_local int *dead;
static _Thread_local int dead_count, dead_room;

void tl_host_number_dead(int id) {
  if (dead_count == dead_room) {
    int room = dead_room == 0 ? 64 : 2 * dead_room;
    int *more = tl_host_alloc((size_t)room * sizeof *more);
    if (more == NULL) return; /* the host keeps a few numbers too many */
    if (dead_count > 0) memcpy(more, dead, (size_t)dead_count * sizeof *more);
    tl_host_free(dead);
    dead = more;
    dead_room = room;
  }
  dead[dead_count++] = id;
}

int tl_function_dead(void) {
  if (dead_count > 0) return dead[--dead_count];
  tl_host_free(dead);
  dead = NULL;
  dead_room = 0;
  return -1;
}

static void release(tl_node *n) {
  if (n->host_id >= 0) tl_host_number_dead(n->host_id);
}

static const tl_node_class function_class = {"custom function", NULL, release};

tl_status tl_function_record(const char *name, int id, int n, tl_tensor *const *inputs, int m,
                             tl_tensor *const *outputs, int k, tl_tensor *const *saved, bool *recorded) {
  (void)name; /* classes are static: every custom function is called that in messages */
  *recorded = false;
  for (int i = 0; i < m; i++)
    if (outputs[i]->node != NULL || outputs[i]->requires_grad)
      return TL_FAIL(TL_ERR_STATE, "autograd.Function",
                     "output %d already has a history: forward must return new tensors (clone() an input)", i + 1);
  tl_node *node;
  TL_TRY(tl_record(&function_class, m, outputs, n, inputs, k, saved, NULL, 0, &node));
  if (node == NULL) return TL_OK;
  node->host_id = id;
  *recorded = true;
  return TL_OK;
}

tl_status tl_function_saved(tl_walk *walk, int k, tl_tensor **saved) {
  tl_node *n = tl_walk_node(walk);
  if (n == NULL || n->cls != &function_class || k != n->saved_count)
    return TL_FAIL(TL_ERR_STATE, "autograd.Function", "%d saved tensors asked for", k);
  for (int i = 0; i < k; i++) {
    tl_tensor *t = NULL;
    tl_status st = tl_node_saved(n, i, &t);
    if (st != TL_OK) {
      while (i-- > 0) tl_tensor_free(saved[i]);
      return st;
    }
    saved[i] = tl_hold(t);
  }
  return TL_OK;
}
