/* random.c: filling tensors with random numbers, permutations, draws, dropout. */
#include "backend/random.h"

#include <math.h>

#include "autograd/tape.h"
#include "backend/backend.h"
#include "core/random.h"
#include "core/tensor.h"

/* Fills in row-major order; a tensor of other strides goes through a contiguous one. */
static tl_status fill(const char *op, int kind, tl_tensor *t, double p, double q, tl_generator *g) {
  TL_TRY(tl_check_inplace(op, t));
  TL_KERNEL(t, random, op);
  if (!t->contiguous) {
    tl_tensor *flat;
    TL_TRY(tl_empty_like(t, t->dtype, &flat));
    tl_status st = fill(op, kind, flat, p, q, g);
    if (st == TL_OK) st = tl_copy_(t, flat);
    tl_tensor_free(flat);
    return st;
  }
  uint64_t seed, offset;
  tl_generator_take(g, t->numel, &seed, &offset);
  tl_iter it;
  tl_iter_init(&it, 1, &t, NULL, t->ndim, t->shape);
  TL_TRY(tl_kernels_of(t)->random(kind, &it, seed, offset, p, q));
  tl_touch(t);
  return TL_OK;
}

tl_status tl_uniform_(tl_tensor *t, double low, double high, tl_generator *g) {
  TL_TRY(tl_check_floating("uniform_", t));
  if (!(low <= high) || !isfinite(high - low)) return TL_FAIL(TL_ERR_VALUE, "uniform_", "the range %g to %g is empty", low, high);
  return fill("uniform_", TL_RANDOM_UNIFORM, t, low, high, g);
}

tl_status tl_normal_(tl_tensor *t, double mean, double std, tl_generator *g) {
  TL_TRY(tl_check_floating("normal_", t));
  if (!(std >= 0)) return TL_FAIL(TL_ERR_VALUE, "normal_", "the standard deviation is %g", std);
  return fill("normal_", TL_RANDOM_NORMAL, t, mean, std, g);
}

tl_status tl_randint_(tl_tensor *t, double low, double high, tl_generator *g) {
  if (!(low < high) || fabs(low) > 9007199254740992.0 || fabs(high) > 9007199254740992.0)
    return TL_FAIL(TL_ERR_VALUE, "randint", "the range %g to %g (excluded) holds no integers", low, high);
  if (low != floor(low) || high != floor(high))
    return TL_FAIL(TL_ERR_VALUE, "randint", "%g and %g must be integers", low, high);
  return fill("randint", TL_RANDOM_INTEGER, t, low, high, g);
}

tl_status tl_bernoulli_(tl_tensor *t, double p, tl_generator *g) {
  if (!(p >= 0 && p <= 1)) return TL_FAIL(TL_ERR_VALUE, "bernoulli_", "the probability is %g", p);
  return fill("bernoulli_", TL_RANDOM_BERNOULLI, t, p, 0, g);
}
