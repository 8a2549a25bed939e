/* random.h: generators: a seed and how many numbers have been taken. */
#ifndef TL_CORE_RANDOM_H
#define TL_CORE_RANDOM_H

#include "tlua.h"

struct tl_generator {
  uint64_t seed, offset;
};

/* Reserves n numbers of g (NULL: this thread's default generator): they start at *offset of stream *seed. */
void tl_generator_take(tl_generator *g, int64_t n, uint64_t *seed, uint64_t *offset);
/* A generator of its own was taken from, in this thread: set for whoever wants to know and clears it. */
extern _Thread_local bool tl_other_generator_used;
/* After a failure: the numbers from `offset` on are there again. Returns status. */
tl_status tl_generator_end(tl_generator *g, uint64_t offset, tl_status status);

#endif
