/* sink.c: accumulation of gradients in leaves. */
#include "autograd/sink.h"

static void release(tl_node *n) {
  tl_tensor *leaf = *(tl_tensor **)n->payload;
  leaf->sink = NULL;
  tl_tensor_free(leaf);
}

static tl_status unreachable(tl_node *n, tl_tensor *const *grad_out, tl_tensor **grad_in) {
  (void)grad_out, (void)grad_in;
  return TL_FAIL(TL_ERR_STATE, n->cls->name, "a sink has no backward of its own");
}

static const tl_node_class sink_class = {"accumulate", unreachable, release};

tl_status tl_sink_new(tl_tensor *leaf, tl_node **out) {
  tl_node *n;
  TL_TRY(tl_node_new(&sink_class, 1, 0, 0, sizeof leaf, &n));
  *(tl_tensor **)n->payload = tl_hold(leaf);
  leaf->sink = n;
  *out = n;
  return TL_OK;
}

tl_tensor *tl_sink_leaf(const tl_node *n) { return n->cls == &sink_class ? *(tl_tensor **)n->payload : NULL; }

/* Nobody else sees these elements: they may be taken over or changed. */
static bool exclusive(const tl_tensor *t) {
  return t->refs == 1 && atomic_load_explicit(&t->storage->refs, memory_order_relaxed) == 1 && t->node == NULL;
}

tl_tensor *tl_node_arrived(const tl_node *n, int input) {
  tl_tensor *sum = n->edges[input].node->grads[n->edges[input].slot];
  return sum != NULL && exclusive(sum) && !tl_overlaps_itself(sum) ? sum : NULL;
}

tl_tensor *tl_node_sum(const tl_node *n, int i) {
  tl_tensor *sum = n->edges[i].node->grads[n->edges[i].slot];
  return sum != NULL && exclusive(sum) && sum->contiguous ? sum : NULL;
}

tl_status tl_accumulate(tl_tensor **sum, tl_tensor *g) {
  if (*sum == NULL) {
    *sum = g;
    return TL_OK;
  }
  tl_status st;
  if (exclusive(*sum) && !tl_overlaps_itself(*sum) && (*sum)->dtype == g->dtype) {
    st = tl_add_(*sum, g);
  } else {
    tl_tensor *total = NULL;
    st = tl_add(*sum, g, &total);
    if (st == TL_OK) {
      tl_tensor_free(*sum);
      *sum = total;
    }
  }
  tl_tensor_free(g);
  return st;
}

tl_status tl_sink_add(tl_tensor *leaf, tl_tensor *g) {
  tl_status st = TL_OK;
  if (!tl_same_shape(leaf, g)) {
    st = TL_FAIL(TL_ERR_SHAPE, "backward", "a gradient of %s arrived at a leaf of %s", tl_shape_of(g),
                 tl_shape_of(leaf));
  } else if (leaf->grad != NULL) {
    st = tl_add_(leaf->grad, g);
  } else if (exclusive(g) && g->contiguous && g->dtype == leaf->dtype) {
    leaf->grad = g;
    return TL_OK;
  } else { /* shared with the graph or with another leaf: .grad gets its own elements */
    st = tl_empty_like(leaf, leaf->dtype, &leaf->grad);
    if (st == TL_OK) st = tl_copy_(leaf->grad, g);
  }
  tl_tensor_free(g);
  return st;
}
