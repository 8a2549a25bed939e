/* inplace.h: histories of views and bases when either is changed in place. */
#ifndef TL_AUTOGRAD_INPLACE_H
#define TL_AUTOGRAD_INPLACE_H

#include "autograd/tape.h"

/* A view whose base got a new history since: its own history becomes "a view of the base as it is now". Out of memory
 * leaves the old history in place. */
void tl_view_refresh(tl_tensor *view);
/* The view was just written by an operation whose node is n: the base's history becomes old base + n. */
tl_status tl_view_wrote(tl_tensor *view, tl_node *n);
/* Gradient of a base from the gradient of any strided view of it; `base` and `view` are geometries (aliases). */
tl_status tl_view_gradient(tl_node *n, tl_tensor *const *grad_out, tl_tensor **grad_in);
extern const tl_node_class tl_strided_class;

#endif
