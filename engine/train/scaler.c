/* scaler.c: gradient scaling for float16: one pass that divides all gradients and looks for what is not finite. */
#include <float.h>
#include <math.h>

#include "autograd/tape.h"
#include "backend/backend.h"
#include "core/memory.h"
#include "train/gradients.h"
#include "train/optimizer.h"

enum stage { READY, UNSCALED, STEPPED };

/* What an optimizer did since the last update. */
typedef struct record {
  tl_optimizer *optimizer; /* held */
  enum stage stage;
  bool checked; /* it had gradients */
  float found;  /* 1: one of them was not finite */
} record;

struct tl_scaler {
  tl_scaler_state state;
  record *records;
  int count, room;
};

static tl_status check_state(const char *op, const tl_scaler_state *s) {
  if (!(s->scale > 0 && s->scale <= FLT_MAX && (float)s->scale >= FLT_MIN))
    return TL_FAIL(TL_ERR_VALUE, op, "the scale must be a positive float32 number, got %g", s->scale);
  if (!(s->growth_factor > 1))
    return TL_FAIL(TL_ERR_VALUE, op, "growth_factor must be greater than 1, got %g", s->growth_factor);
  if (!(s->backoff_factor > 0 && s->backoff_factor < 1))
    return TL_FAIL(TL_ERR_VALUE, op, "backoff_factor must lie between 0 and 1, got %g", s->backoff_factor);
  if (!(s->growth_interval >= 1) || s->growth_interval != floor(s->growth_interval))
    return TL_FAIL(TL_ERR_VALUE, op, "growth_interval must be a whole number of at least 1, got %g",
                   s->growth_interval);
  if (!(s->growth_tracker >= 0) || s->growth_tracker != floor(s->growth_tracker))
    return TL_FAIL(TL_ERR_VALUE, op, "the growth tracker must be a whole number, got %g", s->growth_tracker);
  return TL_OK;
}

void tl_scaler_defaults(tl_scaler_state *state) {
  *state = (tl_scaler_state){.scale = 65536,
                             .growth_factor = 2,
                             .backoff_factor = 0.5,
                             .growth_interval = 2000,
                             .growth_tracker = 0,
                             .enabled = true};
}

tl_status tl_scaler_new(const tl_scaler_state *state, tl_scaler **out) {
  TL_TRY(check_state("GradScaler", state));
  tl_scaler *s = tl_host_calloc(1, sizeof *s);
  if (s == NULL) return TL_FAIL(TL_ERR_MEMORY, "GradScaler", "no memory for a scaler");
  s->state = *state;
  s->state.scale = (float)state->scale;
  *out = s;
  return TL_OK;
}

static void forget_records(tl_scaler *s) {
  for (int i = 0; i < s->count; i++) tl_optimizer_free(s->records[i].optimizer);
  s->count = 0;
}

void tl_scaler_free(tl_scaler *s) {
  if (s == NULL) return;
  forget_records(s);
  tl_host_free(s->records);
  tl_host_free(s);
}

void tl_scaler_get(const tl_scaler *s, tl_scaler_state *state) { *state = s->state; }

tl_status tl_scaler_set(tl_scaler *s, const tl_scaler_state *state) {
  TL_TRY(check_state("GradScaler", state));
  bool enabled = s->state.enabled;
  s->state = *state;
  s->state.scale = (float)state->scale;
  s->state.enabled = enabled;
  return TL_OK;
}

tl_status tl_scaler_scale(const tl_scaler *s, tl_tensor *x, tl_tensor **out) {
  TL_TRY(tl_check_floating("GradScaler.scale", x));
  return s->state.enabled ? tl_mul_scalar(x, s->state.scale, out) : tl_tensor_retain(x, out);
}

/* ---- records ---- */

static tl_status record_of(tl_scaler *s, tl_optimizer *o, record **out) {
  for (int i = 0; i < s->count; i++)
    if (s->records[i].optimizer == o) {
      *out = &s->records[i];
      return TL_OK;
    }
  if (s->count == s->room) {
    int room = s->room == 0 ? 4 : 2 * s->room;
    record *records = tl_host_alloc((size_t)room * sizeof *records);
    if (records == NULL) return TL_FAIL(TL_ERR_MEMORY, "GradScaler", "no memory for %d optimizers", room);
    for (int i = 0; i < s->count; i++) records[i] = s->records[i];
    tl_host_free(s->records);
    s->records = records;
    s->room = room;
  }
  o->refs++;
  s->records[s->count] = (record){.optimizer = o};
  *out = &s->records[s->count++];
  return TL_OK;
}

/* ---- unscale ---- */

static tl_status check_gradients(const char *op, const tl_optimizer *o) {
  for (int i = 0; i < o->slot_count; i++) {
    const tl_tensor *g = o->slots[i].param->grad;
    if (g != NULL && g->dtype == TL_FLOAT16)
      return TL_FAIL(TL_ERR_DTYPE, op,
                     "the gradient of parameter %lld is float16: parameters stay float32, autocast converts them",
                     (long long)tl_position(i));
  }
  return TL_OK;
}

static tl_status divide(const char *op, tl_gradients *g, float inverse, float *found) {
  for (int first = 0, end; first < g->n; first = end) {
    const tl_tensor *x = tl_gradients_run(g, first, &end);
    TL_KERNEL(x, span_unscale, op);
    TL_TRY(tl_kernels_of(x)->span_unscale(end - first, g->span + first, &inverse, found));
  }
  return tl_gradients_scatter(g);
}

static tl_status unscale(const char *op, double scale, record *r) {
  const tl_optimizer *o = r->optimizer;
  TL_TRY(check_gradients(op, o));
  tl_tensor **params = tl_host_alloc((size_t)o->slot_count * sizeof(tl_tensor *));
  if (params == NULL) return TL_FAIL(TL_ERR_MEMORY, op, "no memory for a list of %d parameters", o->slot_count);
  for (int i = 0; i < o->slot_count; i++) params[i] = o->slots[i].param;
  bool recording = tl_set_grad_enabled(false);
  tl_gradients g;
  tl_status st = tl_gradients_gather(op, o->slot_count, params, &g);
  if (st == TL_OK) st = divide(op, &g, (float)(1 / scale), &r->found);
  r->checked = g.n > 0;
  tl_gradients_release(&g);
  tl_set_grad_enabled(recording);
  tl_host_free(params);
  if (st == TL_OK) r->stage = UNSCALED;
  return st;
}

tl_status tl_scaler_unscale(tl_scaler *s, tl_optimizer *o) {
  const char *op = "GradScaler.unscale_";
  if (!s->state.enabled) return TL_OK;
  TL_CHECK_INTERRUPT(op);
  record *r;
  TL_TRY(record_of(s, o, &r));
  if (r->stage == UNSCALED)
    return TL_FAIL(TL_ERR_STATE, op, "the gradients of this optimizer were unscaled already since the last update()");
  if (r->stage == STEPPED)
    return TL_FAIL(TL_ERR_STATE, op, "this optimizer has stepped already: unscale_() comes before step()");
  return unscale(op, s->state.scale, r);
}

/* ---- step, update ---- */

tl_status tl_scaler_step(tl_scaler *s, tl_optimizer *o, bool *stepped) {
  const char *op = "GradScaler.step";
  bool finite = true;
  if (s->state.enabled) {
    record *r;
    TL_CHECK_INTERRUPT(op);
    TL_TRY(record_of(s, o, &r));
    if (r->stage == STEPPED)
      return TL_FAIL(TL_ERR_STATE, op, "this optimizer has stepped already since the last update()");
    if (r->stage == READY) TL_TRY(unscale(op, s->state.scale, r));
    if (!r->checked)
      return TL_FAIL(TL_ERR_STATE, op,
                     "none of the optimizer's parameters has a gradient: there is nothing to step with");
    finite = r->found == 0;
    if (finite) TL_TRY(tl_optimizer_step(o));
    else tl_optimizer_skip(o);
    r->stage = STEPPED;
  } else {
    TL_TRY(tl_optimizer_step(o));
  }
  if (stepped != NULL) *stepped = finite;
  return TL_OK;
}

/* The rule, in PyTorch's arithmetic: a product in double, kept as float32. Below the smallest normal number its
 * reciprocal would be infinite. */
static void adapt(tl_scaler_state *s, bool found) {
  if (found) {
    float smaller = (float)(s->scale * s->backoff_factor);
    s->scale = smaller < FLT_MIN ? FLT_MIN : smaller;
    s->growth_tracker = 0;
  } else if (s->growth_tracker + 1 < s->growth_interval) {
    s->growth_tracker++;
  } else {
    double larger = s->scale * s->growth_factor;
    if (larger <= FLT_MAX) s->scale = (float)larger;
    s->growth_tracker = 0;
  }
}

tl_status tl_scaler_update(tl_scaler *s, double new_scale) {
  const char *op = "GradScaler.update";
  if (!s->state.enabled) return TL_OK;
  if (!isnan(new_scale)) {
    tl_scaler_state changed = s->state;
    changed.scale = new_scale;
    TL_TRY(check_state(op, &changed));
    s->state.scale = (float)new_scale;
  } else {
    bool checked = false, found = false;
    for (int i = 0; i < s->count; i++) {
      checked = checked || s->records[i].checked;
      found = found || s->records[i].found != 0;
    }
    if (!checked)
      return TL_FAIL(TL_ERR_STATE, op,
                     "no optimizer was unscaled or stepped since the last update(): nothing is known of its gradients");
    adapt(&s->state, found);
  }
  forget_records(s);
  return TL_OK;
}
