/* autocast.c: the state of autocast blocks, and the cache of converted parameters.
 *
 * A parameter (a float32 leaf that requires gradients) is converted once in the outermost block. The conversion is a
 * recorded operation, so all uses send their gradients through it. Nothing is put into the cache while gradients are
 * off: such a conversion has no history, and a later use would lose its gradient. */
#include "ops/autocast.h"

#include <string.h>

#include "backend/backend.h"
#include "core/memory.h"

TL_HOT_THREAD_LOCAL bool tl_autocast_on;

static _Thread_local struct {
  bool enabled[TL_DEVICE_KINDS];
  int dtype[TL_DEVICE_KINDS];
  int depth;
} state = {.dtype = {TL_BFLOAT16, TL_FLOAT16, TL_BFLOAT16}};

/* ---- the cache: parameter -> conversion, by address ---- */

typedef struct cached {
  tl_tensor *parameter; /* held, so that its address stays its own */
  tl_tensor *source;    /* an alias of what it was at the conversion, */
  uint32_t version;     /* and the storage's version then */
  tl_tensor *converted;
} cached;

static _Thread_local struct {
  cached *at;
  size_t count, room; /* room is a power of two */
} cache;

static size_t slot_of(const tl_tensor *t) {
  size_t i = ((size_t)t >> 6) * 0x9E3779B97F4A7C15u & (cache.room - 1);
  while (cache.at[i].parameter != NULL && cache.at[i].parameter != t) i = (i + 1) & (cache.room - 1);
  return i;
}

static void clear_cache(void) {
  for (size_t i = 0; i < cache.room; i++) {
    tl_tensor_free(cache.at[i].converted);
    tl_tensor_free(cache.at[i].source);
    tl_tensor_free(cache.at[i].parameter);
  }
  tl_host_free(cache.at);
  memset(&cache, 0, sizeof cache);
}

/* Room for one more; false when there is no memory: then the conversion is simply not kept. */
static bool grow_cache(void) {
  if (2 * (cache.count + 1) <= cache.room) return true;
  cached *old = cache.at;
  size_t old_room = cache.room, room = old_room == 0 ? 64 : 2 * old_room;
  cached *at = tl_host_calloc(room, sizeof *at);
  if (at == NULL) return false;
  cache.at = at;
  cache.room = room;
  for (size_t i = 0; i < old_room; i++)
    if (old[i].parameter != NULL) cache.at[slot_of(old[i].parameter)] = old[i];
  tl_host_free(old);
  return true;
}

static bool is_parameter(const tl_tensor *t) {
  return t->dtype == TL_FLOAT32 && t->node == NULL && t->base == NULL && t->requires_grad;
}

/* Is the entry a conversion of what its parameter is now? It may have been written to, or taken over other data. */
static bool is_current(const cached *c, int dtype) {
  const tl_tensor *t = c->parameter, *s = c->source;
  bool same = c->converted->dtype == dtype && t->storage == s->storage && c->version == t->storage->version &&
              t->offset == s->offset && tl_same_shape(t, s);
  for (int d = 0; d < t->ndim && same; d++) same = t->strides[d] == s->strides[d];
  return same;
}

/* Remembers y, a recorded conversion of t. Without memory it is not kept: the next use converts again. */
static void keep(tl_tensor *t, tl_tensor *y) {
  tl_tensor *source;
  if (!grow_cache() || tl_alias(t, &source) != TL_OK) {
    tl_clear_error();
    return;
  }
  cached *c = &cache.at[slot_of(t)];
  if (c->parameter == NULL) {
    c->parameter = tl_hold(t);
    cache.count++;
  }
  tl_tensor_free(c->source);
  tl_tensor_free(c->converted);
  c->source = source;
  c->converted = tl_hold(y);
  c->version = t->storage->version;
}

static tl_status convert(tl_tensor *t, int dtype, tl_tensor **out) {
  bool parameter = is_parameter(t);
  if (parameter && cache.room > 0) {
    const cached *c = &cache.at[slot_of(t)];
    if (c->parameter != NULL && is_current(c, dtype)) return tl_tensor_retain(c->converted, out);
  }
  TL_TRY(tl_to(t, dtype, t->device, out));
  if (parameter && tl_grad_enabled()) keep(t, *out);
  return TL_OK;
}

/* ---- operations ---- */

static int kind_of(const tl_tensor *t) { return t->device >> 8; }

static int wanted(enum tl_cast policy, const tl_tensor *t) {
  if (!tl_is_floating(t->dtype)) return t->dtype;
  return policy == TL_CAST_LOW ? state.dtype[kind_of(t)] : TL_FLOAT32;
}

bool tl_autocast_wants(enum tl_cast policy, int n, tl_tensor *const *in) {
  bool differs = false, mixed = false;
  int seen = -1;
  for (int i = 0; i < n; i++) {
    if (in[i] == NULL || !tl_is_floating(in[i]->dtype)) continue;
    if (!state.enabled[kind_of(in[i])] || in[i]->dtype == TL_FLOAT64) return false;
    differs = differs || in[i]->dtype != wanted(policy, in[i]);
    mixed = mixed || (seen >= 0 && seen != in[i]->dtype);
    seen = in[i]->dtype;
  }
  return policy == TL_CAST_WIDEST ? mixed : differs;
}

tl_status tl_autocast_convert(enum tl_cast policy, int n, tl_tensor **in) {
  for (int i = 0; i < n; i++) {
    if (in[i] == NULL) continue;
    int dtype = wanted(policy, in[i]);
    tl_status st = in[i]->dtype == dtype ? tl_tensor_retain(in[i], &in[i]) : convert(in[i], dtype, &in[i]);
    if (st != TL_OK) {
      while (i-- > 0) tl_tensor_free(in[i]);
      return st;
    }
  }
  return TL_OK;
}

/* ---- blocks ---- */

static void set_flag(void) {
  tl_autocast_on = false;
  for (int kind = 0; kind < TL_DEVICE_KINDS; kind++) tl_autocast_on = tl_autocast_on || state.enabled[kind];
}

tl_status tl_autocast_enter(int kind, int dtype, bool enabled, int *former) {
  if (kind < 0 || kind >= TL_DEVICE_KINDS)
    return TL_FAIL(TL_ERR_DEVICE, "autocast", "there is no device kind %d", kind);
  if (dtype != TL_FLOAT16 && dtype != TL_BFLOAT16)
    return TL_FAIL(TL_ERR_DTYPE, "autocast", "the low type is float16 or bfloat16, got %s",
                   tl_dtype_name(dtype) == NULL ? "an unknown dtype" : tl_dtype_name(dtype));
  *former = kind | (state.enabled[kind] ? 4 : 0) | state.dtype[kind] << 3;
  state.enabled[kind] = enabled;
  state.dtype[kind] = dtype;
  state.depth++;
  set_flag();
  return TL_OK;
}

void tl_autocast_leave(int former) {
  int kind = former & 3;
  state.enabled[kind] = former >> 2 & 1;
  state.dtype[kind] = former >> 3;
  if (--state.depth == 0) clear_cache();
  set_flag();
}

bool tl_autocast_enabled(int kind) { return kind >= 0 && kind < TL_DEVICE_KINDS && state.enabled[kind]; }

int tl_autocast_dtype(int kind) { return kind >= 0 && kind < TL_DEVICE_KINDS ? state.dtype[kind] : -1; }
