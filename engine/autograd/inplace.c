/* inplace.c: in-place changes through views.
 *
 * A differentiable view keeps its base. When a view is written, the base's new node sends the gradient of the written
 * part to the write and the rest to the base's former history. When the base (or another view of it) was written, a view
 * notices that the base's node is not the one it was made from and becomes a fresh view of the new state. */
#include "autograd/inplace.h"

#include "autograd/sink.h"

/* Geometry of a view relative to its base: enough to rebuild both on a fresh, flat buffer. */
typedef struct geometry {
  int base_ndim, view_ndim;
  int64_t base_shape[TL_MAX_DIMS], base_strides[TL_MAX_DIMS];
  int64_t view_shape[TL_MAX_DIMS], view_strides[TL_MAX_DIMS];
  int64_t offset, extent; /* of the view's first element; elements that the base spans */
} geometry;

static geometry geometry_of(const tl_tensor *base, const tl_tensor *view) {
  geometry g = {.base_ndim = base->ndim, .view_ndim = view->ndim, .offset = view->offset - base->offset, .extent = 1};
  for (int d = 0; d < base->ndim; d++) {
    g.base_shape[d] = base->shape[d];
    g.base_strides[d] = base->strides[d];
    g.extent += base->shape[d] == 0 ? 0 : (base->shape[d] - 1) * base->strides[d];
  }
  for (int d = 0; d < view->ndim; d++) {
    g.view_shape[d] = view->shape[d];
    g.view_strides[d] = view->strides[d];
  }
  return g;
}

/* The view's place in `flat` (which has the base's geometry); expanded dims become size 1. */
static tl_status view_in(const geometry *g, const tl_tensor *flat, bool collapse, tl_tensor **out) {
  int64_t shape[TL_MAX_DIMS];
  for (int d = 0; d < g->view_ndim; d++)
    shape[d] = collapse && g->view_strides[d] == 0 && g->view_shape[d] > 1 ? 1 : g->view_shape[d];
  return tl_alias_as(flat, g->view_ndim, shape, g->view_strides, g->offset, out);
}

static tl_status base_in(const geometry *g, const tl_tensor *flat, tl_tensor **out) {
  return tl_alias_as(flat, g->base_ndim, g->base_shape, g->base_strides, 0, out);
}

/* grad of the base = zeros with grad of the view in its place */
static tl_status view_gradient(tl_node *n, tl_tensor *const *grad_out, tl_tensor **grad_in) {
  const geometry *g = n->payload;
  tl_tensor *flat = NULL, *place = NULL, *part = NULL;
  tl_status st = tl_full(1, &g->extent, 0, grad_out[0]->dtype, grad_out[0]->device, &flat);
  if (st == TL_OK) st = view_in(g, flat, true, &place);
  if (st == TL_OK) st = tl_sum_to(grad_out[0], place->ndim, place->shape, &part);
  if (st == TL_OK) st = tl_copy_(place, part);
  if (st == TL_OK) st = base_in(g, flat, &grad_in[0]);
  tl_tensor_free(flat);
  tl_tensor_free(place);
  tl_tensor_free(part);
  return st;
}

static const tl_node_class strided_class = {"view", view_gradient, NULL};

static uint64_t state_of(const tl_tensor *base) { return base->node == NULL ? 0 : base->node->seq; }

static bool lies_inside(const tl_tensor *base, const tl_tensor *view) {
  if (base->storage != view->storage || view->offset < base->offset) return false;
  int64_t first = view->offset - base->offset, last = 0, extent = 0;
  for (int d = 0; d < view->ndim; d++) last += view->shape[d] == 0 ? 0 : (view->shape[d] - 1) * view->strides[d];
  for (int d = 0; d < base->ndim; d++) extent += base->shape[d] == 0 ? 0 : (base->shape[d] - 1) * base->strides[d];
  return first + last <= extent;
}

void tl_view_check(tl_tensor *view) {
  if (view->base == NULL || lies_inside(view->base, view)) return;
  tl_tensor_free(view->base);
  view->base = NULL;
}

tl_status tl_view_refresh(tl_tensor *view) {
  tl_view_check(view);
  tl_tensor *base = view->base;
  if (base == NULL) return TL_OK;
  if (state_of(base) == view->base_state) return TL_OK;
  geometry g = geometry_of(base, view);
  tl_node *n;
  TL_TRY(tl_node_new(&strided_class, 1, 1, 0, sizeof g, &n));
  *(geometry *)n->payload = g;
  tl_status st = tl_edge_of(base, &n->edges[0]);
  if (st != TL_OK) {
    tl_node_drop(n);
    return st;
  }
  tl_tensor_set_node(view, n);
  view->base_state = state_of(base);
  return TL_OK;
}

/* inputs: the base's former history, the write; grad_out: of the whole base */
static tl_status written_backward(tl_node *n, tl_tensor *const *grad_out, tl_tensor **grad_in) {
  const geometry *g = n->payload;
  tl_tensor *flat = NULL, *whole = NULL, *place = NULL;
  tl_status st = tl_empty(1, &g->extent, grad_out[0]->dtype, grad_out[0]->device, &flat);
  if (st == TL_OK) st = base_in(g, flat, &whole);
  if (st == TL_OK) st = tl_copy_(whole, grad_out[0]);
  if (st == TL_OK) st = view_in(g, flat, false, &place);
  if (st == TL_OK && tl_node_needs(n, 1)) st = tl_clone(place, &grad_in[1]);
  if (st == TL_OK && tl_node_needs(n, 0)) {
    st = tl_fill_(place, 0);
    if (st == TL_OK) grad_in[0] = tl_hold(whole);
  }
  tl_tensor_free(flat);
  tl_tensor_free(whole);
  tl_tensor_free(place);
  return st;
}

static const tl_node_class written_class = {"write through a view", written_backward, NULL};

tl_status tl_view_write(tl_tensor *view, tl_node *n, tl_node **through) {
  tl_tensor *base = view->base;
  tl_node *w;
  TL_TRY(tl_node_new(&written_class, 1, 2, 0, sizeof(geometry), &w));
  *(geometry *)w->payload = geometry_of(base, view);
  tl_status st = tl_edge_of(base, &w->edges[0]);
  if (st != TL_OK) {
    tl_node_drop(w);
    return st;
  }
  w->edges[1] = (tl_edge){n, 0};
  n->refs++;
  *through = w;
  return TL_OK;
}

void tl_view_wrote(tl_tensor *view, tl_node *n, tl_node *through) {
  tl_tensor *base = view->base;
  tl_tensor_set_node(base, through);
  tl_tensor_set_node(view, n);
  view->base_state = state_of(base);
}

tl_status tl_record_view(const tl_node_class *cls, tl_tensor *view, tl_tensor *t, const void *payload, size_t bytes) {
  if (!tl_grad_enabled() || !tl_is_floating(t->dtype)) return TL_OK;
  TL_TRY(tl_record1(cls, view, 1, &t, 0, NULL, payload, bytes));
  tl_tensor *base = t->base != NULL ? t->base : t;
  view->base = tl_hold(base);
  view->base_state = state_of(base);
  return TL_OK;
}
