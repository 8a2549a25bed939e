/* program.c: what a program outside the tree does with an installed libtlua: y = relu(2 x - 3), and its gradient. */
#include <stdio.h>

#include "tlua.h"

static int fail(void) {
  fprintf(stderr, "%s: %s\n", tl_last_error()->op, tl_last_error()->message);
  return 1;
}

int main(void) {
  const int64_t shape[] = {2, 2};
  const double values[] = {0, 1, 2, 3};
  double y[4], g[4];
  tl_tensor *x = NULL, *twice = NULL, *shifted = NULL, *relu = NULL, *sum = NULL, *grad = NULL;
  tl_walk *walk = NULL;

  if (tl_abi() != TL_ABI) return 2;
  if (tl_from_doubles(2, shape, TL_FLOAT32, TL_CPU, values, &x) || tl_set_requires_grad(x, true)) return fail();
  if (tl_mul_scalar(x, 2, &twice) || tl_sub_scalar(twice, 3, &shifted) || tl_relu(shifted, &relu)) return fail();
  if (tl_sum(relu, 0, NULL, false, &sum) || tl_backward(sum, NULL, false, &walk) || tl_grad(x, &grad)) return fail();
  if (tl_to_doubles(relu, 4, y) || tl_to_doubles(grad, 4, g)) return fail();
  printf("y %g %g %g %g, dy/dx %g %g %g %g\n", y[0], y[1], y[2], y[3], g[0], g[1], g[2], g[3]);

  tl_tensor *all[] = {x, twice, shifted, relu, sum, grad};
  for (int i = 0; i < 6; i++) tl_tensor_free(all[i]);
  return 0;
}
