/* optimizer.c: parameter groups, state, and the step that updates all parameters in one kernel call. */
#include "train/optimizer.h"

#include <string.h>

#include "autograd/tape.h"
#include "backend/backend.h"
#include "core/memory.h"
#include "core/random.h"
#include "train/progress.h"

static const char *name_of(const tl_optimizer *o) { return tl_optimizer_name(o->kind); }

tl_status tl_optimizer_new(int kind, tl_optimizer **out) {
  if (tl_optimizer_name(kind) == NULL)
    return TL_FAIL(TL_ERR_VALUE, "optimizer", "there is no optimizer number %d", kind);
  tl_optimizer *o = tl_host_calloc(1, sizeof *o);
  if (o == NULL) return TL_FAIL(TL_ERR_MEMORY, tl_optimizer_name(kind), "no memory for an optimizer");
  o->refs = 1;
  o->kind = kind;
  *out = o;
  return TL_OK;
}

void tl_optimizer_free(tl_optimizer *o) {
  if (o == NULL || --o->refs > 0) return;
  tl_counts_free(o);
  for (int i = 0; i < o->slot_count; i++) {
    tl_tensor_free(o->slots[i].param);
    for (int k = 0; k < TL_SLOT_TENSORS; k++) tl_tensor_free(o->slots[i].state[k]);
  }
  for (int i = 0; i < o->group_count; i++) tl_host_free(o->groups[i]);
  tl_host_free(o->groups);
  tl_host_free(o->slots);
  tl_host_free(o->updates);
  tl_host_free(o->coefs);
  tl_host_free(o->updated);
  tl_host_free(o);
}

/* ---- groups ---- */

static tl_status check_param(const tl_optimizer *o, int i, const tl_tensor *p) {
  if (p == NULL) return TL_FAIL(TL_ERR_VALUE, name_of(o), "parameter %lld is missing", (long long)tl_position(i));
  if (!tl_is_floating(p->dtype))
    return TL_FAIL(TL_ERR_DTYPE, name_of(o), "parameter %lld is %s: only floating tensors can be optimized",
                   (long long)tl_position(i), tl_dtype_name(p->dtype));
  if (!tl_is_leaf(p))
    return TL_FAIL(TL_ERR_STATE, name_of(o),
                   "parameter %lld of %s is a result, not a leaf: only leaves can be optimized",
                   (long long)tl_position(i), tl_shape_of(p));
  if (tl_overlaps_itself(p))
    return TL_FAIL(TL_ERR_VALUE, name_of(o), "parameter %lld of %s is expanded: several of its elements share memory",
                   (long long)tl_position(i), tl_shape_of(p));
  for (int k = 0; k < o->slot_count; k++)
    if (o->slots[k].param == p)
      return TL_FAIL(TL_ERR_VALUE, name_of(o), "parameter %lld of %s is in another group already",
                     (long long)tl_position(i), tl_shape_of(p));
  return TL_OK;
}

/* A larger copy of an array; the old one stays. */
static void *grown(const void *old, int count, int more, size_t size) {
  void *p = tl_host_alloc((size_t)(count + more) * size);
  if (p != NULL && count > 0) memcpy(p, old, (size_t)count * size);
  return p;
}

/* Room for one more group with n parameters; all or nothing. */
static tl_status reserve(tl_optimizer *o, int n, tl_group **group) {
  tl_group *g = tl_host_calloc(1, sizeof *g);
  tl_group **groups = grown(o->groups, o->group_count, 1, sizeof *groups);
  tl_slot *slots = grown(o->slots, o->slot_count, n, sizeof *slots);
  tl_update *updates = tl_host_alloc((size_t)(o->slot_count + n) * sizeof *updates);
  tl_update_coefficients *coefs = tl_host_alloc((size_t)(o->slot_count + n) * sizeof *coefs);
  int *updated = tl_host_alloc((size_t)(o->slot_count + n) * sizeof *updated);
  bool ok = g != NULL && groups != NULL && slots != NULL && updates != NULL && coefs != NULL && updated != NULL;
  tl_host_free(ok ? o->groups : groups);
  tl_host_free(ok ? o->slots : slots);
  tl_host_free(ok ? o->updates : updates);
  tl_host_free(ok ? o->coefs : coefs);
  tl_host_free(ok ? o->updated : updated);
  if (!ok) {
    tl_host_free(g);
    return TL_FAIL(TL_ERR_MEMORY, name_of(o), "no memory for a group of %d parameters", n);
  }
  o->groups = groups;
  o->slots = slots;
  o->updates = updates;
  o->coefs = coefs;
  o->updated = updated;
  *group = g;
  return TL_OK;
}

static bool listed(const tl_group *g, const tl_slot *slots, const tl_tensor *p) {
  for (int i = 0; i < g->count; i++)
    if (slots[g->first + i].param == p) return true;
  return false;
}

tl_status tl_optimizer_add_group(tl_optimizer *o, int n, tl_tensor *const *params, const tl_param_group *options,
                                 tl_param_group **group) {
  if (n < 1) return TL_FAIL(TL_ERR_VALUE, name_of(o), "a group without parameters");
  TL_TRY(tl_check_options(o->kind, options));
  for (int i = 0; i < n; i++) TL_TRY(check_param(o, i, params[i]));
  tl_group *g = NULL;
  TL_TRY(tl_counts_pull(o)); /* they are made anew, with room for more */
  TL_TRY(reserve(o, n, &g));
  tl_counts_free(o);
  g->options = *options;
  g->first = o->slot_count;
  for (int i = 0; i < n; i++) {
    if (listed(g, o->slots, params[i])) continue;
    o->slots[g->first + g->count++] = (tl_slot){.param = tl_hold(params[i]), .mu_product = 1};
  }
  o->slot_count += g->count;
  o->groups[o->group_count++] = g;
  if (group != NULL) *group = &g->options;
  return TL_OK;
}

int tl_optimizer_groups(const tl_optimizer *o) { return o->group_count; }

tl_param_group *tl_optimizer_group(const tl_optimizer *o, int group) {
  return group >= 0 && group < o->group_count ? &o->groups[group]->options : NULL;
}

int tl_optimizer_group_size(const tl_optimizer *o, int group) {
  return group >= 0 && group < o->group_count ? o->groups[group]->count : 0;
}

/* ---- the step ---- */

static tl_status check_slot(const tl_optimizer *o, int i, const tl_slot *s) {
  const tl_tensor *p = s->param, *g = p->grad;
  if (!tl_same_shape(p, g))
    return TL_FAIL(TL_ERR_SHAPE, name_of(o), "parameter %lld is %s, its gradient %s", (long long)tl_position(i),
                   tl_shape_of(p), tl_shape_of(g));
  if (p->dtype != g->dtype)
    return TL_FAIL(TL_ERR_DTYPE, name_of(o), "parameter %lld is %s, its gradient %s", (long long)tl_position(i),
                   tl_dtype_name(p->dtype), tl_dtype_name(g->dtype));
  return tl_check_same_device(name_of(o), p, g);
}

/* The slot's line in the list that the kernel gets. Expanded or transposed tensors are stood in for by copies. */
static tl_status prepare(tl_optimizer *o, int i, const tl_param_group *g, unsigned states, tl_update *u) {
  tl_slot *s = &o->slots[i];
  TL_TRY(check_slot(o, i, s));
  TL_TRY(tl_state_ensure(o, i, g, states));
  if (!s->param->contiguous) TL_TRY(tl_contiguous(s->param, &s->param_copy));
  if (!s->param->grad->contiguous) TL_TRY(tl_contiguous(s->param->grad, &s->grad_copy));
  u->dtype = s->param->dtype;
  u->n = s->param->numel;
  u->param = tl_data(s->param_copy != NULL ? s->param_copy : s->param);
  u->grad = tl_data(s->grad_copy != NULL ? s->grad_copy : s->param->grad);
  u->master = s->state[TL_MASTER] == NULL ? NULL : tl_data(s->state[TL_MASTER]);
  u->seed = u->offset = 0;
  if (u->dtype == TL_BFLOAT16 && u->master == NULL) tl_generator_take(NULL, u->n, &u->seed, &u->offset);
  int next = 0;
  for (int k = 0; k < TL_UPDATE_STATES; k++)
    if (states & 1u << k) u->state[next++] = tl_data(s->state[k]);
  while (next < TL_UPDATE_STATES) u->state[next++] = NULL;
  u->state_dtype = tl_state_dtype(s->param, g);
  u->key = (uint32_t)i;
  for (int k = 0; k < TL_SMALL_STATES; k++)
    u->absmax[k] = s->state[TL_ABSMAX + k] == NULL ? NULL : tl_data(s->state[TL_ABSMAX + k]);
  return TL_OK;
}

/* Rule and coefficients of one after another of a group's parameters. Most are at the same step: what was computed for
 * one is taken for the next. */
typedef struct chooser {
  const tl_param_group *g;
  const tl_slot *last;              /* counted by the host */
  const tl_update_coefficients *by; /* its */
  int rule;
  unsigned states;
  double mu_product;
} chooser;

static tl_status choose_on_host(tl_optimizer *o, chooser *c, tl_slot *s, tl_update_coefficients *room) {
  if (s->counted_on != TL_CPU) { /* the parameter came back from a device */
    TL_TRY(tl_counts_pull(o));
    s->counted_on = TL_CPU;
  }
  bool same = c->last != NULL && c->last->step == s->step && c->last->primed == s->primed &&
              c->last->mu_product == s->mu_product;
  if (!same) {
    c->rule = tl_choose_rule(o->kind, c->g, s, room, &c->states, &c->mu_product);
    c->by = room;
  }
  s->next_mu_product = c->mu_product;
  c->last = s;
  return TL_OK;
}

/* The device computes: the host only knows where. */
static tl_status choose_on_device(tl_optimizer *o, chooser *c, int i) {
  tl_counts *counts = NULL;
  TL_TRY(tl_counts_on(o, o->slots[i].param->device, &counts));
  c->rule = tl_group_rule(o->kind, c->g, &c->states);
  c->by = tl_counts_by(counts, i);
  c->last = NULL;
  return TL_OK;
}

/* Lines for every parameter with a gradient. */
static tl_status prepare_all(tl_optimizer *o, int *count) {
  for (int k = 0; k < o->group_count; k++) {
    const tl_group *g = o->groups[k];
    chooser c = {.g = &g->options, .mu_product = 1};
    for (int i = g->first; i < g->first + g->count; i++) {
      tl_slot *s = &o->slots[i];
      if (s->param->grad == NULL) continue;
      int n = (*count)++;
      o->updated[n] = i;
      if (tl_counts_itself(s->param)) TL_TRY(choose_on_device(o, &c, i));
      else TL_TRY(choose_on_host(o, &c, s, &o->coefs[n]));
      o->updates[n].by = c.by;
      o->updates[n].rule = c.rule;
      TL_TRY(prepare(o, i, c.g, c.states, &o->updates[n]));
    }
  }
  return TL_OK;
}

static const float *flag_of(tl_device device, int n, const tl_found *found) {
  for (int i = 0; i < n; i++)
    if (found[i].device == device) return found[i].flag;
  return NULL;
}

/* One kernel call for each run of parameters on one device: nearly always one in all. */
static tl_status run(tl_optimizer *o, int count, int flags, const tl_found *found) {
  for (int first = 0, end; first < count; first = end) {
    const tl_tensor *p = o->slots[o->updated[first]].param;
    for (end = first + 1; end < count && o->slots[o->updated[end]].param->device == p->device;) end++;
    TL_KERNEL(p, update, name_of(o));
    if (tl_counts_itself(p)) {
      tl_counts *counts = NULL;
      TL_TRY(tl_counts_on(o, p->device, &counts));
      const float *flag = flag_of(p->device, flags, found);
      TL_TRY(tl_counts_plan(o, counts, end - first, o->updated + first, flag));
    }
    TL_TRY(tl_kernels_of(p)->update(end - first, o->updates + first));
  }
  return TL_OK;
}

/* What a finished update means for the slots. */
static tl_status commit(tl_optimizer *o, int count) {
  for (int i = 0; i < count; i++) {
    tl_slot *s = &o->slots[o->updated[i]];
    if (!tl_counts_itself(s->param)) {
      s->step++;
      s->mu_product = s->next_mu_product;
      s->primed = s->primed || o->updates[i].state[0] != NULL;
    }
    tl_touch(s->param);
    if (s->param_copy != NULL) TL_TRY(tl_write_back(s->param, s->param_copy));
  }
  return TL_OK;
}

static void drop_copies(tl_optimizer *o, int count) {
  for (int i = 0; i < count; i++) {
    tl_slot *s = &o->slots[o->updated[i]];
    if (s->param_copy != NULL) tl_tensor_free(s->param_copy), s->param_copy = NULL;
    if (s->grad_copy != NULL) tl_tensor_free(s->grad_copy), s->grad_copy = NULL;
  }
}

tl_status tl_optimizer_step(tl_optimizer *o) { return tl_optimizer_step_unless(o, 0, NULL); }

tl_status tl_optimizer_step_unless(tl_optimizer *o, int n, const tl_found *found) {
  TL_CHECK_INTERRUPT(name_of(o));
  bool recording = tl_set_grad_enabled(false);
  int count = 0;
  tl_status st = prepare_all(o, &count);
  if (st == TL_OK) st = run(o, count, n, found);
  if (st == TL_OK) st = commit(o, count);
  if (st == TL_OK) o->calls++;
  drop_copies(o, count);
  tl_set_grad_enabled(recording);
  return st;
}

tl_device tl_optimizer_device(const tl_optimizer *o) { return o->slot_count == 0 ? TL_CPU : o->slots[0].param->device; }

void tl_optimizer_skip(tl_optimizer *o) { o->calls++; }

tl_status tl_optimizer_zero_grad(tl_optimizer *o, bool set_to_nil) {
  for (int i = 0; i < o->slot_count; i++)
    if (o->slots[i].param->grad != NULL) TL_TRY(tl_zero_grad(1, &o->slots[i].param, set_to_nil));
  return TL_OK;
}
