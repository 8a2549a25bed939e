/* prune.c: which weights a pruning takes away. The choice is made in host memory whatever the device: it is exact, does
 * not depend on threads, and happens once in hundreds of steps; the mask then lives where the weights do. */
#include <math.h>
#include <string.h>

#include "core/memory.h"
#include "core/tensor.h"

enum { DIGIT_BITS = 16, DIGITS = 1 << DIGIT_BITS };

/* The order of magnitudes as an order of integers: the bits of |x|. nan is larger than everything. */
static inline uint64_t magnitude32(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  bits &= 0x7fffffffu;
  return (uint64_t)(bits > 0x7f800000u ? 0x7fffffffu : bits) << 32;
}

static inline uint64_t magnitude64(double x) {
  uint64_t bits;
  memcpy(&bits, &x, 8);
  bits &= ~(uint64_t)0 >> 1;
  return bits > 0x7ff0000000000000u ? ~(uint64_t)0 >> 1 : bits;
}

/* Scores and mask in host memory, contiguous: float32 or float64 (wide), and one mask element each in the same dtype. */
typedef struct candidates {
  tl_tensor *scores, *mask; /* owned */
  const void *x;
  void *m;
  int64_t n;
  bool wide;
} candidates;

static inline uint64_t key_of(const candidates *c, int64_t i) {
  return c->wide ? magnitude64(((const double *)c->x)[i]) : magnitude32(((const float *)c->x)[i]);
}
static inline bool stands(const candidates *c, int64_t i) {
  return c->wide ? ((const double *)c->m)[i] != 0 : ((const float *)c->m)[i] != 0;
}
static inline void strike(const candidates *c, int64_t i) {
  if (c->wide) ((double *)c->m)[i] = 0;
  else ((float *)c->m)[i] = 0;
}

static void drop_candidates(candidates *c) {
  tl_tensor_free(c->scores);
  tl_tensor_free(c->mask);
}

static tl_status own_copy(tl_tensor *t, int dtype, tl_tensor **out) {
  tl_tensor *host;
  TL_TRY(tl_empty(t->ndim, t->shape, dtype, TL_CPU, &host));
  return tl_give(tl_copy_(host, t), host, out);
}

static tl_status check_scores(const char *op, const tl_tensor *scores, const tl_tensor *mask) {
  TL_CHECK_INTERRUPT(op);
  TL_TRY(tl_check_floating(op, scores));
  if (mask == NULL) return TL_OK;
  if (!tl_same_shape(scores, mask))
    return TL_FAIL(TL_ERR_SHAPE, op, "a mask of %s for scores of %s", tl_shape_of(mask), tl_shape_of(scores));
  return tl_check_same_device(op, scores, mask);
}

static tl_status load(tl_tensor *scores, tl_tensor *mask, candidates *c) {
  memset(c, 0, sizeof *c);
  const int dtype = scores->dtype == TL_FLOAT64 ? TL_FLOAT64 : TL_FLOAT32;
  const bool recording = tl_set_grad_enabled(false); /* scores may be a parameter */
  tl_status st = own_copy(scores, dtype, &c->scores);
  if (st == TL_OK && mask != NULL) st = own_copy(mask, dtype, &c->mask);
  else if (st == TL_OK) st = tl_full(scores->ndim, scores->shape, 1, dtype, TL_CPU, &c->mask);
  tl_set_grad_enabled(recording);
  if (st != TL_OK) {
    drop_candidates(c);
    return st;
  }
  c->x = tl_data(c->scores);
  c->m = tl_data(c->mask);
  c->n = c->scores->numel;
  c->wide = dtype == TL_FLOAT64;
  return TL_OK;
}

/* The mask in the scores' dtype, where the scores are. Takes c apart. */
static tl_status finish(candidates *c, tl_status st, const tl_tensor *scores, tl_tensor **out) {
  if (st == TL_OK) st = tl_to(c->mask, scores->dtype, scores->device, out);
  drop_candidates(c);
  return st;
}

/* The largest key of the `count` smallest (count >= 1), digit by digit from the top; *ties: how many of the candidates
 * with just this key belong to them. */
static uint64_t select_key(const candidates *c, int64_t count, int64_t *histogram, int64_t *ties) {
  uint64_t prefix = 0, decided = 0; /* the digits known so far, and the bits that they are */
  for (int shift = 64 - DIGIT_BITS; shift >= (c->wide ? 0 : 32); shift -= DIGIT_BITS) {
    memset(histogram, 0, DIGITS * sizeof *histogram);
    for (int64_t i = 0; i < c->n; i++) {
      const uint64_t key = key_of(c, i);
      if (stands(c, i) && (key & decided) == prefix) histogram[key >> shift & (DIGITS - 1)]++;
    }
    int64_t digit = 0;
    while (histogram[digit] < count) count -= histogram[digit++];
    prefix |= (uint64_t)digit << shift;
    decided |= (uint64_t)(DIGITS - 1) << shift;
  }
  *ties = count;
  return prefix;
}

static void strike_smallest(const candidates *c, uint64_t limit, int64_t ties) {
  for (int64_t i = 0; i < c->n; i++) {
    if (!stands(c, i)) continue;
    const uint64_t key = key_of(c, i);
    if (key < limit) strike(c, i);
    else if (key == limit && ties > 0) {
      strike(c, i);
      ties--;
    }
  }
}

tl_status tl_prune_count(double amount, double n, double *count) {
  if (!(amount >= 0 && amount <= 1))
    return TL_FAIL(TL_ERR_VALUE, "prune", "a fraction lies between 0 and 1, got %g", amount);
  *count = nearbyint(amount * n); /* half to even */
  return TL_OK;
}

static tl_status prune(const candidates *c, int64_t count) {
  int64_t standing = 0;
  for (int64_t i = 0; i < c->n; i++) standing += stands(c, i);
  if (count < 0 || count > standing)
    return TL_FAIL(TL_ERR_VALUE, "prune", "%lld cannot be pruned: there are %lld left", (long long)count,
                   (long long)standing);
  if (count == 0) return TL_OK;
  int64_t *histogram = tl_host_alloc(DIGITS * sizeof *histogram);
  if (histogram == NULL) return TL_FAIL(TL_ERR_MEMORY, "prune", "no memory for a histogram");
  int64_t ties;
  const uint64_t limit = select_key(c, count, histogram, &ties);
  tl_host_free(histogram);
  strike_smallest(c, limit, ties);
  return TL_OK;
}

tl_status tl_prune_smallest(tl_tensor *scores, tl_tensor *mask, int64_t count, tl_tensor **out) {
  TL_TRY(check_scores("prune", scores, mask));
  candidates c;
  TL_TRY(load(scores, mask, &c));
  return finish(&c, prune(&c, count), scores, out);
}

/* Keeps `keep` of the `group` elements from `first` on, `step` apart; what is masked already counts as 0. */
static void prune_group(const candidates *c, int64_t first, int64_t step, int keep, int group) {
  for (int pruned = 0; pruned < group - keep; pruned++) {
    int64_t least = -1;
    uint64_t least_key = 0;
    for (int k = 0; k < group; k++) {
      const int64_t i = first + k * step;
      if (!stands(c, i)) continue;
      const uint64_t key = key_of(c, i);
      if (least >= 0 && key >= least_key) continue;
      least = i;
      least_key = key;
    }
    if (least >= 0) strike(c, least);
  }
}

tl_status tl_prune_groups(tl_tensor *scores, tl_tensor *mask, int d, int keep, int group, tl_tensor **out) {
  const char *op = "two_four";
  TL_TRY(check_scores(op, scores, mask));
  TL_TRY(tl_check_dim(op, scores->ndim, &d));
  if (keep < 0 || group < 1 || keep > group)
    return TL_FAIL(TL_ERR_VALUE, op, "%d of every %d cannot stay", keep, group);
  const int64_t n = scores->ndim == 0 ? 1 : scores->shape[d];
  if (n % group != 0)
    return TL_FAIL(TL_ERR_SHAPE, op, "dim %lld of %s is not a multiple of %d", (long long)tl_position(d),
                   tl_shape_of(scores), group);
  candidates c;
  TL_TRY(load(scores, mask, &c));
  int64_t inner = 1;
  for (int k = d + 1; k < scores->ndim; k++) inner *= scores->shape[k];
  for (int64_t i = 0; i < c.n; i += group * inner) {
    for (int64_t j = 0; j < inner; j++) {
      int standing = 0;
      for (int k = 0; k < group; k++) standing += stands(&c, i + j + k * inner);
      /* the masked ones are among those that go */
      const int gone = group - standing;
      if (gone < group - keep) prune_group(&c, i + j, inner, keep + gone, group);
    }
  }
  return finish(&c, TL_OK, scores, out);
}
