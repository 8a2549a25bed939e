/* watch.h: being told in C when gradients of leaves are complete. */
#ifndef TL_AUTOGRAD_WATCH_H
#define TL_AUTOGRAD_WATCH_H

#include "core/tensor.h"

typedef struct tl_watch tl_watch;
struct tl_watch {
  tl_status (*ready)(tl_watch *w, int index); /* the leaf's .grad has all that this walk adds to it */
  tl_status (*end)(tl_watch *w);              /* of a walk in which ready() was called */
  void (*left)(tl_watch *w);                  /* instead of end: the walk failed or was left */
  bool seen;                                  /* in the walk that runs */
  tl_watch *next;                             /* of the walk's list */
};

/* Calls w->ready(index) for this leaf from now on. w must live until tl_unwatch_leaf(). */
tl_status tl_watch_leaf(tl_tensor *leaf, tl_watch *w, int index);
void tl_unwatch_leaf(tl_tensor *leaf, const tl_watch *w);

#endif
