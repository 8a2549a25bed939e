/* state.c: an optimizer's state tensors: made at the first step, handed out, restored; float32, bfloat16 or 8-bit codes. */
#include "quantise.h"

#include <string.h>

#include "backend/backend.h"
#include "core/memory.h"
#include "train/optimizer.h"
#include "train/progress.h"

/* Below this 8-bit state saves next to nothing, and the paper found small tensors sensitive. */
#define CODES_MIN 4096

static const char *name_of(const tl_optimizer *o) { return tl_optimizer_name(o->kind); }

int tl_state_dtype(const tl_tensor *p, const tl_param_group *g) {
  if (p->dtype == TL_FLOAT64) return TL_FLOAT64;
  return g->state_dtype == TL_UINT8 && p->numel < CODES_MIN ? TL_FLOAT32 : g->state_dtype;
}

static int64_t blocks_of(const tl_tensor *p) { return (p->numel + TL_QUANT_BLOCK - 1) / TL_QUANT_BLOCK; }

/* What tensor k of a slot has to be like. */
static int dtype_of(const tl_tensor *p, const tl_param_group *g, int k) {
  return k < TL_MASTER ? tl_state_dtype(p, g) : p->dtype == TL_FLOAT64 ? TL_FLOAT64 : TL_FLOAT32;
}

static bool fits(const tl_tensor *state, const tl_tensor *p, const tl_param_group *g, int k) {
  if (state->device != p->device || state->dtype != dtype_of(p, g, k)) return false;
  return k < TL_ABSMAX ? tl_same_shape(state, p) : state->ndim == 1 && state->shape[0] == blocks_of(p);
}

/* Contiguous, of the parameter's shape; code 0 is 0. */
static tl_status make_state(const tl_tensor *p, const tl_param_group *g, int k, double value, tl_tensor **out) {
  const int64_t blocks = blocks_of(p);
  if (k >= TL_ABSMAX) return tl_full(1, &blocks, 0, TL_FLOAT32, p->device, out);
  return tl_full(p->ndim, p->shape, value, dtype_of(p, g, k), p->device, out);
}

/* ---- at a step ---- */

/* State that is made while a step is recorded would be made again by each replay. */
static tl_status check_recording(const tl_optimizer *o, const tl_tensor *p) {
  const tl_accelerator *a = tl_backend_of(p->device)->accelerator;
  if (a == NULL || !a->recording()) return TL_OK;
  return TL_FAIL(TL_ERR_STATE, name_of(o), "its first step makes its state: that cannot be the recorded one");
}

static tl_status check_options(const tl_optimizer *o, int i, const tl_param_group *g) {
  if (g->state_dtype == TL_FLOAT32) return TL_OK;
  TL_TRY(tl_check_options(o->kind, g));
  if (g->amsgrad)
    return TL_FAIL(TL_ERR_UNSUPPORTED, name_of(o),
                   "amsgrad keeps a largest value, which rounding would push up: it needs float32 state");
  if (o->slots[i].param->dtype == TL_FLOAT64)
    return TL_FAIL(TL_ERR_DTYPE, name_of(o), "parameter %lld is float64: its state cannot be smaller",
                   (long long)tl_position(i));
  return TL_OK;
}

static tl_status check_fits(const tl_optimizer *o, int i, const tl_param_group *g) {
  const tl_slot *s = &o->slots[i];
  for (int k = 0; k < TL_SLOT_TENSORS; k++)
    if (s->state[k] != NULL && !fits(s->state[k], s->param, g, k))
      return TL_FAIL(
          TL_ERR_STATE, name_of(o),
          "parameter %lld of %s changed its shape, dtype or device, or its group the state's dtype, after the "
          "first step",
          (long long)tl_position(i), tl_shape_of(s->param));
  return TL_OK;
}

static bool needs_master(const tl_tensor *p, const tl_param_group *g) {
  return p->dtype == TL_FLOAT16 || (p->dtype == TL_BFLOAT16 && !g->stochastic_rounding);
}

static tl_status ensure_master(const tl_optimizer *o, tl_slot *s, const tl_param_group *g) {
  bool master = needs_master(s->param, g);
  if (!master && s->state[TL_MASTER] != NULL) { /* the parameter goes on without it */
    tl_tensor_free(s->state[TL_MASTER]);
    s->state[TL_MASTER] = NULL;
  }
  if (!master || s->state[TL_MASTER] != NULL) return TL_OK;
  tl_tensor *copy;
  TL_TRY(check_recording(o, s->param));
  TL_TRY(make_state(s->param, g, TL_MASTER, 0, &copy));
  tl_status st = tl_copy_(copy, s->param);
  return tl_give(st, copy, &s->state[TL_MASTER]);
}

tl_status tl_state_ensure(const tl_optimizer *o, int i, const tl_param_group *g, unsigned states) {
  tl_slot *s = &o->slots[i];
  TL_TRY(check_options(o, i, g));
  TL_TRY(check_fits(o, i, g));
  if (tl_state_dtype(s->param, g) == TL_UINT8) states |= ((1u << TL_SMALL_STATES) - 1) << TL_ABSMAX;
  for (int k = 0; k < TL_SLOT_TENSORS; k++)
    if ((states & 1u << k) && s->state[k] == NULL) {
      TL_TRY(check_recording(o, s->param));
      TL_TRY(make_state(s->param, g, k, g->initial_accumulator_value, &s->state[k]));
    }
  return ensure_master(o, s, g);
}

/* ---- codes and numbers, in host memory ---- */

static void decode(const uint8_t *codes, const float *absmax, bool with_sign, int64_t n, float *to) {
  for (int64_t i = 0; i < n; i++) to[i] = tl_quant_value(with_sign, codes[i]) * absmax[i / TL_QUANT_BLOCK];
}

static void encode(const float *from, bool with_sign, int64_t n, uint8_t *codes, float *absmax) {
  for (int64_t first = 0; first < n; first += TL_QUANT_BLOCK) {
    const int64_t end = first + TL_QUANT_BLOCK < n ? first + TL_QUANT_BLOCK : n;
    int32_t most = 0;
    for (int64_t i = first; i < end; i++) {
      const int32_t bits = i32_bits(from[i]) & 0x7fffffff;
      most = bits > most ? bits : most;
    }
    const float largest = f32_bits(most), divisor = tl_quant_divisor(largest);
    absmax[first / TL_QUANT_BLOCK] = largest;
    for (int64_t i = first; i < end; i++)
      codes[i] = with_sign ? tl_quant_signed(from[i], divisor, 0.5f) : tl_quant_unsigned(from[i], divisor, 0.5f);
  }
}

/* Codes (of p's shape) and absmax become float32 numbers on the CPU. */
static tl_status decoded(tl_tensor *codes, tl_tensor *absmax, bool with_sign, tl_tensor **out) {
  tl_tensor *c = NULL, *a = NULL, *flat = NULL, *y = NULL;
  tl_status st = tl_to(codes, TL_UINT8, TL_CPU, &flat);
  if (st == TL_OK) st = tl_contiguous(flat, &c);
  tl_tensor_free(flat);
  flat = NULL;
  if (st == TL_OK) st = tl_to(absmax, TL_FLOAT32, TL_CPU, &flat);
  if (st == TL_OK) st = tl_contiguous(flat, &a);
  tl_tensor_free(flat);
  if (st == TL_OK) st = tl_empty(codes->ndim, codes->shape, TL_FLOAT32, TL_CPU, &y);
  if (st == TL_OK) decode(tl_data(c), tl_data(a), with_sign, c->numel, tl_data(y));
  tl_tensor_free(c);
  tl_tensor_free(a);
  return tl_give(st, y, out);
}

/* Numbers become codes and absmax on the CPU. */
static tl_status encoded(tl_tensor *value, bool with_sign, tl_tensor **codes, tl_tensor **absmax) {
  const int64_t blocks = blocks_of(value);
  tl_tensor *moved = NULL, *x = NULL, *c = NULL, *a = NULL;
  tl_status st = tl_to(value, TL_FLOAT32, TL_CPU, &moved);
  if (st == TL_OK) st = tl_contiguous(moved, &x);
  if (st == TL_OK) st = tl_empty(value->ndim, value->shape, TL_UINT8, TL_CPU, &c);
  if (st == TL_OK) st = tl_empty(1, &blocks, TL_FLOAT32, TL_CPU, &a);
  if (st == TL_OK) encode(tl_data(x), with_sign, x->numel, tl_data(c), tl_data(a));
  tl_tensor_free(moved);
  tl_tensor_free(x);
  if (st == TL_OK) {
    *codes = c;
    *absmax = a;
  } else {
    tl_tensor_free(c);
    tl_tensor_free(a);
  }
  return st;
}

/* ---- in and out ---- */

static tl_status slot_of(const tl_optimizer *o, int i, tl_slot **out) {
  if (i < 0 || i >= o->slot_count)
    return TL_FAIL(TL_ERR_INDEX, name_of(o), "parameter %lld was asked for, there are %d", (long long)tl_position(i),
                   o->slot_count);
  *out = &o->slots[i];
  return TL_OK;
}

/* The place of the k-th named tensor. */
static tl_status place_of(const tl_optimizer *o, int i, int k, tl_slot **slot, int *place) {
  TL_TRY(slot_of(o, i, slot));
  if (tl_optimizer_state_name(o->kind, k) == NULL)
    return TL_FAIL(TL_ERR_INDEX, name_of(o), "there is no state tensor number %d", k);
  *place = tl_optimizer_state_name(o->kind, k + 1) == NULL ? TL_MASTER : k;
  return TL_OK;
}

static const tl_param_group *options_of(const tl_optimizer *o, int i) {
  int k = 0;
  while (i >= o->groups[k]->first + o->groups[k]->count) k++;
  return &o->groups[k]->options;
}

tl_status tl_optimizer_state(const tl_optimizer *o, int i, int k, tl_tensor **out) {
  tl_slot *s = NULL;
  int place = 0;
  TL_TRY(place_of(o, i, k, &s, &place));
  *out = tl_hold(s->state[place]);
  return TL_OK;
}

tl_status tl_optimizer_absmax(const tl_optimizer *o, int i, int k, tl_tensor **out) {
  tl_slot *s = NULL;
  int place = 0;
  TL_TRY(place_of(o, i, k, &s, &place));
  *out = place < TL_SMALL_STATES ? tl_hold(s->state[TL_ABSMAX + place]) : NULL;
  return TL_OK;
}

static tl_status check_shape(const tl_optimizer *o, int i, int k, const tl_tensor *value) {
  const tl_tensor *p = o->slots[i].param;
  if (tl_same_shape(value, p)) return TL_OK;
  return TL_FAIL(TL_ERR_SHAPE, name_of(o), "%s of parameter %lld is %s, the parameter %s",
                 tl_optimizer_state_name(o->kind, k), (long long)tl_position(i), tl_shape_of(value), tl_shape_of(p));
}

/* A copy of value, as tensor k of the slot has to be. */
static tl_status copy_of(const tl_tensor *p, const tl_param_group *g, int k, tl_tensor *value, tl_tensor **out) {
  tl_tensor *copy = NULL, *moved = NULL;
  TL_TRY(make_state(p, g, k, 0, &copy));
  tl_status st = tl_to(value, copy->dtype, copy->device, &moved);
  if (st == TL_OK) st = tl_copy_(copy, moved);
  tl_tensor_free(moved);
  return tl_give(st, copy, out);
}

/* Both become the slot's, or are freed. absmax may be NULL. */
static tl_status put(tl_optimizer *o, tl_slot *s, int place, tl_tensor *state, tl_tensor *absmax) {
  tl_status st = place == 0 ? tl_counts_pull(o) : TL_OK;
  if (st != TL_OK) {
    tl_tensor_free(state);
    tl_tensor_free(absmax);
    return st;
  }
  tl_tensor_free(s->state[place]);
  s->state[place] = state;
  if (place < TL_SMALL_STATES) {
    tl_tensor_free(s->state[TL_ABSMAX + place]);
    s->state[TL_ABSMAX + place] = absmax;
  }
  if (place == 0) {
    s->primed = state != NULL;
    tl_counts_changed(o);
  }
  return TL_OK;
}

/* Codes and absmax, fit for the slot. */
static tl_status put_codes(tl_optimizer *o, int i, int place, tl_tensor *codes, tl_tensor *absmax) {
  tl_slot *s = &o->slots[i];
  const tl_param_group *g = options_of(o, i);
  tl_tensor *c = NULL, *a = NULL;
  TL_TRY(copy_of(s->param, g, place, codes, &c));
  tl_status st = copy_of(s->param, g, TL_ABSMAX + place, absmax, &a);
  if (st == TL_OK) return put(o, s, place, c, a);
  tl_tensor_free(c);
  return st;
}

static tl_status put_numbers(tl_optimizer *o, int i, int place, tl_tensor *value) {
  tl_slot *s = &o->slots[i];
  const tl_param_group *g = options_of(o, i);
  if (dtype_of(s->param, g, place) != TL_UINT8) {
    tl_tensor *copy = NULL;
    TL_TRY(copy_of(s->param, g, place, value, &copy));
    return put(o, s, place, copy, NULL);
  }
  tl_tensor *codes = NULL, *absmax = NULL;
  TL_TRY(encoded(value, place == 0, &codes, &absmax));
  tl_status st = put_codes(o, i, place, codes, absmax);
  tl_tensor_free(codes);
  tl_tensor_free(absmax);
  return st;
}

tl_status tl_optimizer_set_state(tl_optimizer *o, int i, int k, tl_tensor *value) {
  tl_slot *s = NULL;
  int place = 0;
  TL_TRY(place_of(o, i, k, &s, &place));
  if (value == NULL) return put(o, s, place, NULL, NULL);
  TL_TRY(check_shape(o, i, k, value));
  bool recording = tl_set_grad_enabled(false);
  tl_status st = put_numbers(o, i, place, value);
  tl_set_grad_enabled(recording);
  return st;
}

tl_status tl_optimizer_set_codes(tl_optimizer *o, int i, int k, tl_tensor *codes, tl_tensor *absmax) {
  tl_slot *s = NULL;
  int place = 0;
  TL_TRY(place_of(o, i, k, &s, &place));
  const char *name = tl_optimizer_state_name(o->kind, k);
  if (place >= TL_SMALL_STATES || (o->kind != TL_ADAM && o->kind != TL_ADAMW))
    return TL_FAIL(TL_ERR_UNSUPPORTED, name_of(o), "%s cannot be 8-bit codes", name);
  TL_TRY(check_shape(o, i, k, codes));
  if (codes->dtype != TL_UINT8 || absmax->dtype != TL_FLOAT32)
    return TL_FAIL(TL_ERR_DTYPE, name_of(o), "%s of parameter %lld: codes are uint8 and absmax float32, not %s and %s",
                   name, (long long)tl_position(i), tl_dtype_name(codes->dtype), tl_dtype_name(absmax->dtype));
  if (absmax->ndim != 1 || absmax->shape[0] != blocks_of(codes))
    return TL_FAIL(TL_ERR_SHAPE, name_of(o), "absmax of parameter %lld's %s is %s, it has %lld blocks of %d",
                   (long long)tl_position(i), name, tl_shape_of(absmax), (long long)blocks_of(codes), TL_QUANT_BLOCK);
  bool recording = tl_set_grad_enabled(false);
  tl_tensor *numbers = NULL;
  tl_status st;
  if (dtype_of(s->param, options_of(o, i), place) == TL_UINT8) {
    st = put_codes(o, i, place, codes, absmax);
  } else {
    st = decoded(codes, absmax, place == 0, &numbers);
    if (st == TL_OK) st = put_numbers(o, i, place, numbers);
    tl_tensor_free(numbers);
  }
  tl_set_grad_enabled(recording);
  return st;
}

tl_status tl_optimizer_progress(const tl_optimizer *o, int i, double *step, double *mu_product) {
  tl_slot *s = NULL;
  TL_TRY(slot_of(o, i, &s));
  TL_TRY(tl_counts_pull(o));
  *step = (double)s->step;
  *mu_product = s->mu_product;
  return TL_OK;
}

tl_status tl_optimizer_set_progress(tl_optimizer *o, int i, double step, double mu_product) {
  tl_slot *s = NULL;
  TL_TRY(slot_of(o, i, &s));
  if (!(step >= 0 && step < 9007199254740992.0) || step != (double)(int64_t)step)
    return TL_FAIL(TL_ERR_VALUE, name_of(o), "the step of parameter %lld must be a whole number, got %g",
                   (long long)tl_position(i), step);
  TL_TRY(tl_counts_pull(o));
  s->step = (int64_t)step;
  s->mu_product = mu_product;
  tl_counts_changed(o);
  return TL_OK;
}
