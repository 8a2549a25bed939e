/* random.c: generators. The numbers themselves come from kernels/philox.h. */
#include "core/random.h"

#include "core/error.h"
#include "core/memory.h"

static _Thread_local tl_generator standard = {0, 0};
_Thread_local bool tl_other_generator_used;

void tl_generator_take(tl_generator *g, int64_t n, uint64_t *seed, uint64_t *offset) {
  if (g == NULL) g = &standard;
  else tl_other_generator_used = true;
  *seed = g->seed;
  *offset = g->offset;
  g->offset += ((uint64_t)n + 3) / 4 * 4; /* whole blocks: every fill starts at the first word of one */
}

tl_status tl_generator_end(tl_generator *g, uint64_t offset, tl_status status) {
  if (status != TL_OK) (g == NULL ? &standard : g)->offset = offset;
  return status;
}

static bool is_counter(double x) { return x >= 0 && x <= 9007199254740992.0 && x == (double)(uint64_t)x; }

static tl_status check_seed(const char *op, double seed) {
  if (is_counter(seed)) return TL_OK;
  return TL_FAIL(TL_ERR_VALUE, op, "a seed is an integer from 0 to 2^53, got %g", seed);
}

tl_status tl_generator_new(double seed, tl_generator **out) {
  TL_TRY(check_seed("Generator", seed));
  tl_generator *g = tl_small_alloc(sizeof *g);
  if (g == NULL) return TL_FAIL(TL_ERR_MEMORY, "Generator", "no memory for a generator");
  *g = (tl_generator){(uint64_t)seed, 0};
  *out = g;
  return TL_OK;
}

void tl_generator_free(tl_generator *g) {
  if (g != NULL) tl_small_free(g, sizeof *g);
}

tl_status tl_generator_seed(tl_generator *g, double seed) {
  TL_TRY(check_seed("manual_seed", seed));
  *(g == NULL ? &standard : g) = (tl_generator){(uint64_t)seed, 0};
  return TL_OK;
}

tl_status tl_generator_state(tl_generator *g, double *seed, double *offset) {
  if (g == NULL) g = &standard;
  *seed = (double)g->seed;
  *offset = (double)g->offset;
  return TL_OK;
}

tl_status tl_generator_set_state(tl_generator *g, double seed, double offset) {
  TL_TRY(check_seed("set_state", seed));
  if (!is_counter(offset))
    return TL_FAIL(TL_ERR_VALUE, "set_state", "an offset is an integer from 0 to 2^53, got %g", offset);
  *(g == NULL ? &standard : g) = (tl_generator){(uint64_t)seed, (uint64_t)offset};
  return TL_OK;
}
