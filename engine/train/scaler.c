/* scaler.c: gradient scaling for float16: one pass that divides all gradients and looks for what is not finite. */
#include <float.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "autograd/tape.h"
#include "backend/backend.h"
#include "core/memory.h"
#include "train/gradients.h"
#include "train/optimizer.h"

enum stage { READY, UNSCALED, STEPPED };

#define FLAGS 30  /* optimizers between two updates whose gradients are on a device */
#define PLACES 16 /* devices whose gradients one scaler divides */

/* What an optimizer did since the last update. */
typedef struct record {
  tl_optimizer *optimizer; /* held */
  enum stage stage;
  bool checked;            /* it had gradients */
  bool on_host, on_device; /* where those were, */
  int places;              /* on how many devices */
  float found;             /* 1: one of them was not finite, as far as the host knows */
  int flag;                /* its place among the device's flags */
} record;

/* The state where gradients are on a device: a step asks it nothing. Each device has its own, and they change alike. */
typedef struct on_device {
  tl_scale scale;
  float found[FLAGS];
} on_device;

struct tl_scaler {
  tl_scaler_state state; /* scale and growth_tracker: as far as the host knows */
  record *records;
  int count, room;
  tl_tensor *memory[PLACES]; /* an on_device on its device; the first one is the host's source */
  int places;
  int flags;     /* used since the last update */
  bool ahead;    /* the device may have changed the scale since the host last asked */
  bool recorded; /* a recorded step does: it always may have */
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
  for (int i = 0; i < s->places; i++) tl_tensor_free(s->memory[i]);
  tl_host_free(s->records);
  tl_host_free(s);
}

/* ---- the state on a device ---- */

static bool scales_itself(const tl_tensor *x) {
  return x->device != TL_CPU && tl_backend_of(x->device)->kernels->scale_update != NULL;
}

static bool recording(tl_device device) {
  const tl_accelerator *a = tl_backend_of(device)->accelerator;
  return a != NULL && a->recording();
}

static on_device *at(const tl_scaler *s, int place) { return tl_data(s->memory[place]); }

static tl_status found_at(const tl_scaler *s, int place, tl_tensor **out) {
  return tl_narrow(s->memory[place], 0, offsetof(on_device, found) / sizeof(float), FLAGS, out);
}

/* What one place found the others find, too. Nothing waits. */
static tl_status share(const tl_scaler *s) {
  bool grads = tl_set_grad_enabled(false);
  tl_tensor *all = NULL;
  tl_status st = TL_OK;
  for (int i = 1; i < s->places && st == TL_OK; i++) {
    tl_tensor *one = NULL, *here = NULL, *both = NULL;
    st = all == NULL ? found_at(s, 0, &all) : TL_OK;
    if (st == TL_OK) st = found_at(s, i, &one);
    if (st == TL_OK) st = tl_to(one, TL_FLOAT32, all->device, &here);
    if (st == TL_OK) st = tl_maximum(all, here, &both);
    if (st == TL_OK) st = tl_copy_(all, both);
    tl_tensor *const rest[] = {one, here, both};
    for (int k = 0; k < 3; k++) tl_tensor_free(rest[k]);
  }
  for (int i = 1; i < s->places && st == TL_OK; i++) {
    tl_tensor *one = NULL;
    st = found_at(s, i, &one);
    if (st == TL_OK) st = tl_copy_(one, all);
    tl_tensor_free(one);
  }
  tl_tensor_free(all);
  tl_set_grad_enabled(grads);
  return st;
}

/* The host learns the scale, and what was found in `found` (may be NULL). */
static tl_status pull(tl_scaler *s, float found[FLAGS]) {
  on_device d;
  if (s->places == 0 || (found == NULL && !s->ahead && !s->recorded)) return TL_OK;
  if (found != NULL) TL_TRY(share(s));
  tl_device device = s->memory[0]->device;
  TL_TRY(tl_backend_of(device)->copy_out(device & 255, &d, at(s, 0), sizeof d));
  s->state.scale = d.scale.scale;
  s->state.growth_tracker = d.scale.tracker;
  s->ahead = false;
  if (found != NULL) memcpy(found, d.found, sizeof d.found);
  return TL_OK;
}

/* The devices learn the scale; their flags are 0. */
static tl_status push(tl_scaler *s) {
  const on_device d = {.scale = {.scale = (float)s->state.scale,
                                 .inverse = (float)(1 / s->state.scale),
                                 .tracker = (int32_t)s->state.growth_tracker}};
  for (int i = 0; i < s->places; i++) {
    tl_device device = s->memory[i]->device;
    TL_TRY(tl_backend_of(device)->copy_in(device & 255, at(s, i), &d, sizeof d));
  }
  return TL_OK;
}

/* One more device: it gets what the first one has, or the host's numbers. */
static tl_status add_place(const char *op, tl_scaler *s, tl_device device) {
  if (s->places == PLACES) return TL_FAIL(TL_ERR_UNSUPPORTED, op, "one scaler works for at most %d devices", PLACES);
  TL_TRY(tl_empty(1, (const int64_t[]){sizeof(on_device) / sizeof(float)}, TL_FLOAT32, device, &s->memory[s->places]));
  s->places++;
  bool grads = tl_set_grad_enabled(false);
  tl_status st = s->places == 1 ? push(s) : tl_copy_(s->memory[s->places - 1], s->memory[0]);
  tl_set_grad_enabled(grads);
  if (st != TL_OK) tl_tensor_free(s->memory[--s->places]);
  return st;
}

/* The place of x's device. */
static tl_status place_of(const char *op, tl_scaler *s, const tl_tensor *x, int *place) {
  for (*place = 0; *place < s->places && s->memory[*place]->device != x->device;) ++*place;
  if (*place == s->places) TL_TRY(add_place(op, s, x->device));
  s->recorded = s->recorded || recording(x->device);
  return TL_OK;
}

tl_status tl_scaler_get(const tl_scaler *s, tl_scaler_state *state) {
  TL_TRY(pull((tl_scaler *)s, NULL));
  *state = s->state;
  return TL_OK;
}

tl_status tl_scaler_set(tl_scaler *s, const tl_scaler_state *state) {
  TL_TRY(check_state("GradScaler", state));
  bool enabled = s->state.enabled;
  s->state = *state;
  s->state.scale = (float)state->scale;
  s->state.enabled = enabled;
  s->ahead = false;
  return push(s);
}

/* x times the device's scale, of x's dtype. */
static tl_status scale_there(tl_scaler *s, tl_tensor *x, tl_tensor **out) {
  int place = 0;
  TL_TRY(place_of("GradScaler.scale", s, x, &place));
  tl_tensor *scale = NULL, *y = NULL;
  tl_status st = tl_select(s->memory[place], 0, 0, &scale);
  if (st == TL_OK) st = tl_mul(x, scale, &y);
  if (st == TL_OK) st = tl_to(y, x->dtype, x->device, out); /* a 0-d x of less than float32 was promoted */
  tl_tensor_free(scale);
  tl_tensor_free(y);
  return st;
}

tl_status tl_scaler_scale(tl_scaler *s, tl_tensor *x, tl_tensor **out) {
  TL_TRY(tl_check_floating("GradScaler.scale", x));
  if (!s->state.enabled) return tl_tensor_retain(x, out);
  if (scales_itself(x)) return scale_there(s, x, out);
  TL_TRY(pull(s, NULL));
  return tl_mul_scalar(x, s->state.scale, out);
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

/* A run of gradients on a device: it knows the scale, and keeps what it finds. */
static tl_status divide_there(const char *op, tl_scaler *s, record *r, const tl_tensor *x, int n, const tl_span *list) {
  int place = 0;
  TL_TRY(place_of(op, s, x, &place));
  if (!r->on_device && s->flags == FLAGS)
    return TL_FAIL(TL_ERR_UNSUPPORTED, op, "more than %d optimizers between two updates", FLAGS);
  if (!r->on_device) r->flag = s->flags++;
  r->on_device = true;
  r->places++;
  return tl_kernels_of(x)->span_unscale(n, list, &at(s, place)->scale.inverse, &at(s, place)->found[r->flag]);
}

static tl_status divide_here(tl_scaler *s, record *r, const tl_tensor *x, int n, const tl_span *list) {
  TL_TRY(pull(s, NULL));
  float inverse = (float)(1 / s->state.scale);
  r->on_host = true;
  return tl_kernels_of(x)->span_unscale(n, list, &inverse, &r->found);
}

static tl_status divide(const char *op, tl_scaler *s, record *r, tl_gradients *g) {
  for (int first = 0, end; first < g->n; first = end) {
    const tl_tensor *x = tl_gradients_run(g, first, &end);
    TL_KERNEL(x, span_unscale, op);
    if (scales_itself(x)) TL_TRY(divide_there(op, s, r, x, end - first, g->span + first));
    else TL_TRY(divide_here(s, r, x, end - first, g->span + first));
  }
  return tl_gradients_scatter(g);
}

static tl_status unscale(const char *op, tl_scaler *s, record *r) {
  const tl_optimizer *o = r->optimizer;
  TL_TRY(check_gradients(op, o));
  tl_tensor **params = tl_host_alloc((size_t)o->slot_count * sizeof(tl_tensor *));
  if (params == NULL) return TL_FAIL(TL_ERR_MEMORY, op, "no memory for a list of %d parameters", o->slot_count);
  for (int i = 0; i < o->slot_count; i++) params[i] = o->slots[i].param;
  bool recording = tl_set_grad_enabled(false);
  tl_gradients g;
  tl_status st = tl_gradients_gather(op, o->slot_count, params, &g);
  if (st == TL_OK) st = divide(op, s, r, &g);
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
  return unscale(op, s, r);
}

/* ---- step, update ---- */

/* The host has to know what was found: some of the gradients are its own, or somebody asks. */
static tl_status learn(tl_scaler *s, record *r) {
  float found[FLAGS];
  TL_TRY(pull(s, found));
  if (found[r->flag] != 0) r->found = 1;
  return TL_OK;
}

/* The devices look for themselves. */
static tl_status step_there(const tl_scaler *s, const record *r) {
  tl_found found[PLACES];
  if (r->places > 1) TL_TRY(share(s));
  for (int i = 0; i < s->places; i++)
    found[i] = (tl_found){.device = s->memory[i]->device, .flag = &at(s, i)->found[r->flag]};
  return tl_optimizer_step_unless(r->optimizer, s->places, found);
}

tl_status tl_scaler_step(tl_scaler *s, tl_optimizer *o, bool *stepped) {
  const char *op = "GradScaler.step";
  bool finite = true;
  if (s->state.enabled) {
    record *r;
    TL_CHECK_INTERRUPT(op);
    TL_TRY(record_of(s, o, &r));
    if (r->stage == STEPPED)
      return TL_FAIL(TL_ERR_STATE, op, "this optimizer has stepped already since the last update()");
    if (r->stage == READY) TL_TRY(unscale(op, s, r));
    if (!r->checked)
      return TL_FAIL(TL_ERR_STATE, op,
                     "none of the optimizer's parameters has a gradient: there is nothing to step with");
    if (r->on_device && (r->on_host || stepped != NULL)) TL_TRY(learn(s, r));
    finite = r->found == 0;
    if (!finite) tl_optimizer_skip(o);
    else if (r->on_device && !r->on_host) TL_TRY(step_there(s, r));
    else TL_TRY(tl_optimizer_step(o));
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

/* Gradients were on the host, and perhaps on a device, too. */
static tl_status update_here(tl_scaler *s, bool found) {
  float flags[FLAGS] = {0};
  TL_TRY(pull(s, s->flags > 0 ? flags : NULL));
  for (int i = 0; i < s->flags; i++) found = found || flags[i] != 0;
  adapt(&s->state, found);
  return push(s);
}

static tl_status update_there(tl_scaler *s) {
  if (s->places > 1) TL_TRY(share(s));
  s->ahead = true;
  for (int i = 0; i < s->places; i++) {
    const tl_scale_update u = {
        .growth_factor = s->state.growth_factor,
        .backoff_factor = s->state.backoff_factor,
        .growth_interval = s->state.growth_interval,
        .at = &at(s, i)->scale,
        .found = at(s, i)->found,
        .n = s->flags,
    };
    TL_TRY(tl_kernels_of(s->memory[i])->scale_update(&u));
  }
  return TL_OK;
}

tl_status tl_scaler_update(tl_scaler *s, double new_scale) {
  const char *op = "GradScaler.update";
  if (!s->state.enabled) return TL_OK;
  if (!isnan(new_scale)) {
    tl_scaler_state changed = s->state;
    changed.scale = new_scale;
    TL_TRY(check_state(op, &changed));
    TL_TRY(pull(s, NULL));
    s->state.scale = (float)new_scale;
    TL_TRY(push(s));
  } else {
    bool checked = false, found = false, on_host = false;
    for (int i = 0; i < s->count; i++) {
      checked = checked || s->records[i].checked;
      found = found || s->records[i].found != 0;
      on_host = on_host || s->records[i].on_host;
    }
    if (!checked)
      return TL_FAIL(TL_ERR_STATE, op,
                     "no optimizer was unscaled or stepped since the last update(): nothing is known of its gradients");
    TL_TRY(on_host ? update_here(s, found) : update_there(s));
  }
  forget_records(s);
  s->flags = 0;
  return TL_OK;
}
