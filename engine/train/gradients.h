/* gradients.h: the gradients of a list of parameters, as kernels over spans get them: for clipping and unscaling. */
#ifndef TL_TRAIN_GRADIENTS_H
#define TL_TRAIN_GRADIENTS_H

#include "backend/update.h"
#include "core/tensor.h"

/* The gradients that are there. Transposed and expanded ones are worked on in a contiguous copy. */
typedef struct tl_gradients {
  int n;
  tl_span *span;
  tl_tensor **owner; /* the parameters, borrowed */
  tl_tensor **copy;  /* NULL where the gradient is contiguous */
} tl_gradients;

/* To be called while gradients are not recorded. Whatever it returns, the list goes to tl_gradients_release(). */
tl_status tl_gradients_gather(const char *op, int n, tl_tensor *const *params, tl_gradients *g);
/* The spans were changed: copies go back to where they came from, or take its place where that is expanded. */
tl_status tl_gradients_scatter(tl_gradients *g);
void tl_gradients_release(tl_gradients *g);
/* Gradients first .. *end-1 are on one device, that of the tensor returned. */
const tl_tensor *tl_gradients_run(const tl_gradients *g, int first, int *end);

#endif
