/* random.h: the kinds of tl_kernels.random. */
#ifndef TL_BACKEND_RANDOM_H
#define TL_BACKEND_RANDOM_H

enum tl_random_kind {
  TL_RANDOM_UNIFORM,  /* [p, q) */
  TL_RANDOM_NORMAL,   /* mean p, standard deviation q */
  TL_RANDOM_INTEGER,  /* p .. q-1 */
  TL_RANDOM_BERNOULLI /* 1 with probability p */
};

#endif
