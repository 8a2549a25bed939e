/* gradients.c: see gradients.h. */
#include "train/gradients.h"

#include "autograd/tape.h"
#include "core/memory.h"

void tl_gradients_release(tl_gradients *g) {
  for (int i = 0; i < g->n; i++) tl_tensor_free(g->copy[i]);
  tl_host_free(g->span);
  tl_host_free(g->owner);
  tl_host_free(g->copy);
}

tl_status tl_gradients_gather(const char *op, int n, tl_tensor *const *params, tl_gradients *g) {
  *g = (tl_gradients){0};
  g->span = tl_host_alloc((size_t)n * sizeof *g->span);
  g->owner = tl_host_alloc((size_t)n * sizeof(tl_tensor *));
  g->copy = tl_host_alloc((size_t)n * sizeof(tl_tensor *));
  if (g->span == NULL || g->owner == NULL || g->copy == NULL)
    return TL_FAIL(TL_ERR_MEMORY, op, "no memory for a list of %d gradients", n);
  for (int i = 0; i < n; i++) {
    tl_tensor *x = params[i]->grad;
    if (x == NULL) continue;
    g->owner[g->n] = params[i];
    g->copy[g->n++] = NULL;
    if (!x->contiguous) TL_TRY(tl_contiguous(x, &g->copy[g->n - 1]));
    const tl_tensor *dense = x->contiguous ? x : g->copy[g->n - 1];
    g->span[g->n - 1] = (tl_span){.data = tl_data(dense), .n = dense->numel, .dtype = dense->dtype};
  }
  return TL_OK;
}

tl_status tl_gradients_scatter(tl_gradients *g) {
  for (int i = 0; i < g->n; i++) {
    tl_tensor *p = g->owner[i], *x = p->grad;
    if (g->copy[i] == NULL || !tl_overlaps_itself(x)) {
      tl_touch(x);
      if (g->copy[i] != NULL) TL_TRY(tl_write_back(x, g->copy[i]));
    } else {
      p->grad = g->copy[i];
      g->copy[i] = x; /* dropped with the list */
    }
  }
  return TL_OK;
}

const tl_tensor *tl_gradients_run(const tl_gradients *g, int first, int *end) {
  const tl_tensor *x = g->owner[first]->grad;
  for (*end = first + 1; *end < g->n && g->owner[*end]->grad->device == x->device;) ++*end;
  return x;
}
