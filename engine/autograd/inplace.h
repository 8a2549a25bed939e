/* inplace.h: histories of views and bases when either is changed in place. */
#ifndef TL_AUTOGRAD_INPLACE_H
#define TL_AUTOGRAD_INPLACE_H

#include "autograd/tape.h"

/* A view whose base shows other elements by now (tl_set_data, released storage) goes on without it. */
void tl_view_check(tl_tensor *view);
/* A view whose base got a new history since: its own history becomes "a view of the base as it is now". On
 * failure (no memory) the old history is still there: the caller must not build on it. */
tl_status tl_view_refresh(tl_tensor *view);
/* The view is about to be written by an operation whose node is n: *through becomes the base's history then, which is
 * the base's old one + n. */
tl_status tl_view_write(tl_tensor *view, tl_node *n, tl_node **through);
/* It was written. Takes over both references. */
void tl_view_wrote(tl_tensor *view, tl_node *n, tl_node *through);

#endif
