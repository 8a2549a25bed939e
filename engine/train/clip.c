/* clip.c: the gradients of a list of parameters: clipping, and forgetting. */
#include <math.h>

#include "autograd/tape.h"
#include "backend/backend.h"
#include "core/tensor.h"

static tl_status zero(tl_tensor *p) {
  tl_tensor *g = p->grad;
  if (g->node == NULL && !tl_overlaps_itself(g)) return tl_fill_(g, 0);
  tl_tensor *fresh;
  TL_TRY(tl_full(p->ndim, p->shape, 0, p->dtype, p->device, &fresh));
  p->grad = fresh;
  tl_tensor_free(g);
  return TL_OK;
}

tl_status tl_zero_grad(int n, tl_tensor *const *params, bool set_to_nil) {
  for (int i = 0; i < n; i++) {
    tl_tensor *g = params[i]->grad;
    if (g == NULL) continue;
    if (set_to_nil) {
      params[i]->grad = NULL;
      tl_tensor_free(g);
    } else {
      TL_TRY(zero(params[i]));
    }
  }
  return TL_OK;
}
