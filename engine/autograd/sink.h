/* sink.h: where gradients of leaves end. */
#ifndef TL_AUTOGRAD_SINK_H
#define TL_AUTOGRAD_SINK_H

#include "autograd/tape.h"

/* The accumulation node of a leaf (kept in leaf->sink while any graph refers to it). */
tl_status tl_sink_new(tl_tensor *leaf, tl_node **out);
tl_tensor *tl_sink_leaf(const tl_node *n); /* NULL if n is no sink */
/* leaf.grad += g. Takes over g's reference. */
tl_status tl_sink_add(tl_tensor *leaf, tl_tensor *g);

tl_node *tl_walk_node(const tl_walk *w); /* backward.c: the node whose event is being served */

/* tape.c, for the other files of this folder */
tl_status tl_node_new(const tl_node_class *cls, int outputs, int inputs, int saved, size_t payload_bytes,
                      tl_node **out);
void tl_node_release_saved(tl_node *n);
void tl_tensor_set_node(tl_tensor *t, tl_node *n); /* takes over n's reference */

#endif
