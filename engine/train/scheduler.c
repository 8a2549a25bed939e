/* scheduler.c: schedules as objects: construction, steps, sequences and chains. The formulas are in schedules.c. */
#include "train/scheduler.h"

#include <math.h>
#include <string.h>

#include "core/memory.h"

static const char *name_of(const tl_scheduler *s) { return tl_schedule_name(s->kind); }

void tl_scheduler_free(tl_scheduler *s) {
  if (s == NULL || --s->refs > 0) return;
  for (int i = 0; i < s->part_count; i++) tl_scheduler_free(s->parts[i]);
  tl_host_free(s->parts);
  tl_host_free(s->row[0]);
  tl_host_free(s->milestones);
  tl_optimizer_free(s->o);
  tl_host_free(s);
}

/* The object with its arrays, before the first step. */
static tl_status make(int kind, tl_optimizer *o, const tl_schedule_options *by, int parts, tl_scheduler **out) {
  tl_scheduler *s = tl_host_calloc(1, sizeof *s);
  int n = o->group_count;
  double *rows = tl_host_calloc((size_t)n * TL_ROWS, sizeof *rows);
  double *milestones = tl_host_alloc((size_t)by->milestone_count * sizeof *milestones);
  tl_scheduler **list = tl_host_alloc((size_t)parts * sizeof *list);
  if (s == NULL || rows == NULL || milestones == NULL || list == NULL) {
    tl_host_free(s);
    tl_host_free(rows);
    tl_host_free(milestones);
    tl_host_free(list);
    return TL_FAIL(TL_ERR_MEMORY, tl_schedule_name(kind), "no memory for a schedule of %d groups", n);
  }
  s->refs = 1;
  s->kind = kind;
  s->groups = n;
  s->o = o;
  o->refs++;
  s->by = *by;
  for (int k = 0; k < TL_ROWS; k++) s->row[k] = rows + (size_t)k * (size_t)n;
  s->milestones = milestones;
  s->milestone_count = by->milestone_count;
  if (by->milestone_count > 0) memcpy(milestones, by->milestones, (size_t)by->milestone_count * sizeof *milestones);
  s->parts = list;
  const double *given[TL_ROWS] = {[TL_FACTOR] = by->factors,
                                  [TL_MAX_LR] = by->max_lr,
                                  [TL_MIN_LR] = by->min_lr,
                                  [TL_BASE_MOMENTUM] = by->base_momentum,
                                  [TL_MAX_MOMENTUM] = by->max_momentum};
  for (int k = 0; k < TL_ROWS; k++)
    if (given[k] != NULL) memcpy(s->row[k], given[k], (size_t)n * sizeof *rows);
  s->at = (tl_schedule_progress){.last_epoch = by->last_epoch, .best = by->mode == 1 ? -INFINITY : INFINITY};
  s->at.T_i = by->T_0;
  s->at.T_cur = by->last_epoch;
  *out = s;
  return TL_OK;
}

static void remember(tl_scheduler *s) {
  for (int i = 0; i < s->groups; i++) s->row[TL_LAST_LR][i] = s->o->groups[i]->options.lr;
}

/* ---- steps ---- */

/* Which part is active at `epoch` of a sequence. */
static int part_at(const tl_scheduler *s, double epoch) {
  int i = 0;
  while (i < s->milestone_count && s->milestones[i] <= epoch) i++;
  return i;
}

int tl_scheduler_next_part(const tl_scheduler *s, bool restart, bool *part_restarts) {
  double epoch = restart ? 0 : s->at.last_epoch + 1;
  int i = part_at(s, epoch);
  *part_restarts = restart || (i > 0 && s->milestones[i - 1] == epoch);
  return i;
}

/* Everything that can refuse a step, so that none is taken by half. */
static tl_status check_step(const tl_scheduler *s, int how) {
  if (s->groups != s->o->group_count)
    return TL_FAIL(TL_ERR_STATE, name_of(s), "the optimizer has %d groups, the schedule was made for %d",
                   s->o->group_count, s->groups);
  if (s->kind == TL_ONE_CYCLE_LR && how == TL_ADVANCE_STEP && s->at.last_epoch + 1 > s->by.total_steps)
    return TL_FAIL(TL_ERR_STATE, name_of(s), "step %.0f of a schedule of %.0f", s->at.last_epoch + 1,
                   s->by.total_steps);
  if (s->kind == TL_SEQUENTIAL_LR) {
    bool restarts;
    int i = tl_scheduler_next_part(s, how != TL_ADVANCE_STEP, &restarts);
    return check_step(s->parts[i], restarts ? TL_ADVANCE_RESTART : TL_ADVANCE_STEP);
  }
  for (int i = 0; i < s->part_count; i++) TL_TRY(check_step(s->parts[i], how));
  return TL_OK;
}

static void reset_lr(tl_scheduler *s) {
  for (int i = 0; i < s->groups; i++) s->o->groups[i]->options.lr = s->o->groups[i]->options.initial_lr;
}

static void advance(tl_scheduler *s, int how);

/* As if it had just been constructed, but for its first step. */
static void rewind_parts(tl_scheduler *s) {
  for (int i = 0; i < s->part_count; i++) {
    tl_scheduler *part = s->parts[i];
    part->at.last_epoch = -1;
    part->at.T_cur = -1;
    part->at.T_i = part->by.T_0;
    rewind_parts(part);
  }
}

static void advance_sequence(tl_scheduler *s, int how) {
  bool restarts, starts = how != TL_ADVANCE_STEP;
  int i = tl_scheduler_next_part(s, starts, &restarts);
  s->at.last_epoch = starts ? 0 : s->at.last_epoch + 1;
  if (starts) {
    reset_lr(s);
    rewind_parts(s);
  }
  advance(s->parts[i], starts ? TL_ADVANCE_INITIAL : restarts ? TL_ADVANCE_RESTART : TL_ADVANCE_STEP);
}

static void advance_chain(tl_scheduler *s, int how) {
  if (how != TL_ADVANCE_STEP) {
    reset_lr(s);
    rewind_parts(s);
  }
  s->at.last_epoch = how == TL_ADVANCE_STEP ? s->at.last_epoch + 1 : 0;
  for (int i = 0; i < s->part_count; i++) advance(s->parts[i], how == TL_ADVANCE_STEP ? how : TL_ADVANCE_INITIAL);
}

/* CosineAnnealingWarmRestarts: the place within the current period. */
static void next_period(tl_scheduler *s, int how) {
  if (how == TL_ADVANCE_RESTART || s->at.last_epoch < 0) {
    s->at.T_cur = 0;
    s->at.T_i = s->by.T_0;
    return;
  }
  s->at.T_cur++;
  if (s->at.T_cur >= s->at.T_i) {
    s->at.T_cur = fmod(s->at.T_cur, s->at.T_i);
    s->at.T_i *= s->by.T_mult;
  }
}

static void apply(tl_scheduler *s) {
  bool cycles = s->by.cycle_momentum && (s->kind == TL_CYCLIC_LR || s->kind == TL_ONE_CYCLE_LR);
  for (int i = 0; i < s->groups; i++) {
    s->o->groups[i]->options.lr = s->row[TL_NEXT_LR][i];
    if (cycles) *tl_momentum_of(s->o, i) = s->row[TL_NEXT_MOMENTUM][i];
  }
}

static void advance(tl_scheduler *s, int how) {
  if (s->kind == TL_SEQUENTIAL_LR) {
    advance_sequence(s, how);
  } else if (s->kind == TL_CHAINED_LR) {
    advance_chain(s, how);
  } else {
    if (s->kind == TL_COSINE_RESTARTS_LR) next_period(s, how);
    s->at.last_epoch = how == TL_ADVANCE_RESTART ? 0 : s->at.last_epoch + 1;
    tl_schedule_values(s, s->at.last_epoch, how);
    apply(s);
  }
  s->at.step_count++;
  remember(s);
}

static void tell_early(tl_scheduler *s, bool *early) {
  bool first = s->at.step_count == 1 && s->o->calls == 0 && !s->o->warned;
  if (early != NULL) *early = first;
  if (early != NULL && first) s->o->warned = true;
}

tl_status tl_scheduler_step(tl_scheduler *s, bool *early) {
  if (s->kind == TL_PLATEAU_LR) return TL_FAIL(TL_ERR_VALUE, name_of(s), "a step needs the metric that it watches");
  TL_TRY(check_step(s, TL_ADVANCE_STEP));
  tell_early(s, early);
  advance(s, TL_ADVANCE_STEP);
  return TL_OK;
}

tl_status tl_scheduler_step_to(tl_scheduler *s, double epoch, bool *early) {
  if (s->kind != TL_COSINE_RESTARTS_LR)
    return TL_FAIL(TL_ERR_VALUE, name_of(s), "only CosineAnnealingWarmRestarts steps to a given epoch");
  if (!(epoch >= 0 && epoch < INFINITY))
    return TL_FAIL(TL_ERR_VALUE, name_of(s), "an epoch is at least 0, got %g", epoch);
  TL_TRY(check_step(s, TL_ADVANCE_STEP));
  tell_early(s, early);
  s->at.T_cur = epoch;
  s->at.T_i = s->by.T_0;
  while (s->at.T_cur >= s->at.T_i && s->by.T_mult > 1) {
    s->at.T_cur -= s->at.T_i;
    s->at.T_i *= s->by.T_mult;
  }
  if (s->by.T_mult == 1) s->at.T_cur = fmod(epoch, s->by.T_0);
  s->at.last_epoch = floor(epoch);
  s->at.step_count++;
  tl_schedule_values(s, s->at.last_epoch, TL_ADVANCE_STEP);
  apply(s);
  remember(s);
  return TL_OK;
}

/* rel compares with |best|: a negative metric can improve, too. */
static bool is_better(const tl_scheduler *s, double metric) {
  double best = s->at.best, margin = s->by.threshold * (s->by.threshold_mode == 0 ? fabs(best) : 1);
  if (isinf(best)) margin = 0;
  return s->by.mode == 0 ? metric < best - margin : metric > best + margin;
}

tl_status tl_scheduler_step_metric(tl_scheduler *s, double metric) {
  if (s->kind != TL_PLATEAU_LR) return TL_FAIL(TL_ERR_VALUE, name_of(s), "only ReduceLROnPlateau watches a metric");
  TL_TRY(check_step(s, TL_ADVANCE_STEP));
  tl_schedule_progress *at = &s->at;
  at->last_epoch++;
  at->step_count++;
  if (is_better(s, metric)) {
    at->best = metric;
    at->num_bad_epochs = 0;
  } else {
    at->num_bad_epochs++;
  }
  if (at->cooldown_counter > 0) {
    at->cooldown_counter--;
    at->num_bad_epochs = 0;
  }
  if (at->num_bad_epochs > s->by.patience) {
    for (int i = 0; i < s->groups; i++) {
      double *lr = &s->o->groups[i]->options.lr, lower = fmax(*lr * s->by.factor, s->row[TL_MIN_LR][i]);
      if (*lr - lower > s->by.eps) *lr = lower;
    }
    at->cooldown_counter = s->by.cooldown;
    at->num_bad_epochs = 0;
  }
  remember(s);
  return TL_OK;
}

/* ---- construction ---- */

/* initial_lr of the groups: kept if they have one, except by OneCycleLR, which has its own idea. */
static tl_status start_from(tl_scheduler *s) {
  const tl_schedule_options *by = &s->by;
  for (int i = 0; i < s->groups; i++) {
    tl_param_group *g = &s->o->groups[i]->options;
    if (by->last_epoch >= 0 && g->initial_lr != g->initial_lr)
      return TL_FAIL(TL_ERR_STATE, name_of(s), "last_epoch is %g, but group %lld has no initial_lr to resume from",
                     by->last_epoch, (long long)tl_position(i));
  }
  for (int i = 0; i < s->groups; i++) {
    tl_param_group *g = &s->o->groups[i]->options;
    if (by->last_epoch < 0) {
      if (s->kind == TL_ONE_CYCLE_LR) g->initial_lr = by->max_lr[i] / by->div_factor;
      if (s->kind == TL_CYCLIC_LR) g->lr = by->base_lr[i];
      if (g->initial_lr != g->initial_lr) g->initial_lr = g->lr;
    }
    s->row[TL_BASE_LR][i] = s->kind == TL_CYCLIC_LR ? by->base_lr[i] : g->initial_lr;
  }
  return TL_OK;
}

tl_status tl_scheduler_new(int kind, tl_optimizer *o, const tl_schedule_options *options, tl_scheduler **out) {
  if (tl_schedule_name(kind) == NULL || kind == TL_SEQUENTIAL_LR || kind == TL_CHAINED_LR)
    return TL_FAIL(TL_ERR_VALUE, "schedule", "schedule number %d is not made by tl_scheduler_new", kind);
  if (o->group_count == 0) return TL_FAIL(TL_ERR_VALUE, tl_schedule_name(kind), "the optimizer has no parameters yet");
  TL_TRY(tl_check_schedule(kind, o, options));
  tl_scheduler *s;
  TL_TRY(make(kind, o, options, 0, &s));
  tl_status st = kind == TL_PLATEAU_LR ? TL_OK : start_from(s);
  if (st == TL_OK && kind == TL_ONE_CYCLE_LR) st = check_step(s, TL_ADVANCE_STEP);
  if (st != TL_OK) {
    tl_scheduler_free(s);
    return st;
  }
  if (kind == TL_PLATEAU_LR) {
    s->at.last_epoch = 0;
    remember(s);
  } else {
    advance(s, TL_ADVANCE_INITIAL);
  }
  /* the caller's arrays are not ours to keep */
  s->by.milestones = s->by.base_lr = s->by.max_lr = s->by.min_lr = NULL;
  s->by.base_momentum = s->by.max_momentum = s->by.factors = NULL;
  *out = s;
  return TL_OK;
}

static tl_status check_parts(const char *op, const tl_optimizer *o, int n, tl_scheduler *const *parts) {
  for (int i = 0; i < n; i++) {
    if (parts[i]->kind == TL_PLATEAU_LR)
      return TL_FAIL(TL_ERR_VALUE, op, "schedule %lld is a ReduceLROnPlateau, which needs a metric",
                     (long long)tl_position(i));
    if (parts[i]->o != o)
      return TL_FAIL(TL_ERR_VALUE, op, "schedule %lld belongs to another optimizer", (long long)tl_position(i));
    if (parts[i]->groups != o->group_count)
      return TL_FAIL(TL_ERR_STATE, op, "the optimizer has %d groups, schedule %lld was made for %d", o->group_count,
                     (long long)tl_position(i), parts[i]->groups);
    for (int k = 0; k < i; k++)
      if (parts[k] == parts[i])
        return TL_FAIL(TL_ERR_VALUE, op, "schedule %lld is listed twice", (long long)tl_position(i));
  }
  return TL_OK;
}

static tl_status compose(int kind, tl_optimizer *o, int n, tl_scheduler *const *parts, int milestones, const double *at,
                         tl_scheduler **out) {
  tl_schedule_options by = {.last_epoch = -1, .milestones = at, .milestone_count = milestones};
  tl_scheduler *s;
  TL_TRY(check_parts(tl_schedule_name(kind), o, n, parts));
  TL_TRY(make(kind, o, &by, n, &s));
  for (int i = 0; i < n; i++) {
    s->parts[i] = parts[i];
    parts[i]->refs++;
  }
  s->part_count = n;
  s->by.milestones = NULL;
  for (int i = 0; i < s->groups; i++) s->row[TL_BASE_LR][i] = o->groups[i]->options.initial_lr;
  *out = s;
  return TL_OK;
}

tl_status tl_scheduler_sequence(tl_optimizer *o, int n, tl_scheduler *const *parts, const double *milestones,
                                tl_scheduler **out) {
  const char *op = tl_schedule_name(TL_SEQUENTIAL_LR);
  if (n < 1) return TL_FAIL(TL_ERR_VALUE, op, "there are no schedules to put in sequence");
  for (int i = 0; i < n - 1; i++)
    if (!(milestones[i] >= 0) || (i > 0 && milestones[i] < milestones[i - 1]))
      return TL_FAIL(TL_ERR_VALUE, op, "milestones must be at least 0 and ascend, milestone %lld is %g",
                     (long long)tl_position(i), milestones[i]);
  tl_scheduler *s;
  TL_TRY(compose(TL_SEQUENTIAL_LR, o, n, parts, n - 1, milestones, &s));
  advance(s, TL_ADVANCE_INITIAL);
  *out = s;
  return TL_OK;
}

tl_status tl_scheduler_chain(int n, tl_scheduler *const *parts, tl_scheduler **out) {
  const char *op = tl_schedule_name(TL_CHAINED_LR);
  if (n < 1) return TL_FAIL(TL_ERR_VALUE, op, "there are no schedules to chain");
  tl_scheduler *s;
  TL_TRY(compose(TL_CHAINED_LR, parts[0]->o, n, parts, 0, NULL, &s));
  /* The parts have taken their initial steps already. */
  s->at.last_epoch = 0;
  s->at.step_count = 1;
  remember(s);
  *out = s;
  return TL_OK;
}

/* ---- the host's side ---- */

double tl_scheduler_argument(const tl_scheduler *s, bool restart) {
  double epoch = restart ? 0 : s->at.last_epoch + 1;
  if (s->kind != TL_CYCLIC_LR || s->by.threshold_mode == 1) return epoch;
  double down = s->by.step_size_down == s->by.step_size_down ? s->by.step_size_down : s->by.step_size_up;
  return floor(1 + epoch / (s->by.step_size_up + down));
}

tl_status tl_scheduler_set_factors(tl_scheduler *s, int n, const double *factors) {
  if (n != s->groups) return TL_FAIL(TL_ERR_VALUE, name_of(s), "%d factors for a schedule of %d groups", n, s->groups);
  memcpy(s->row[TL_FACTOR], factors, (size_t)n * sizeof *factors);
  return TL_OK;
}

tl_schedule_progress *tl_scheduler_progress(tl_scheduler *s) { return &s->at; }
int tl_scheduler_groups(const tl_scheduler *s) { return s->groups; }
double *tl_scheduler_base_lrs(tl_scheduler *s) { return s->row[TL_BASE_LR]; }
double *tl_scheduler_last_lrs(tl_scheduler *s) { return s->row[TL_LAST_LR]; }
