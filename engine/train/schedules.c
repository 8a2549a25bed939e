/* schedules.c: the formulas of the learning-rate schedules. */
#include <math.h>

#include "train/scheduler.h"

static const double pi = 3.14159265358979323846;

static const char *const names[TL_SCHEDULES] = {
    [TL_LAMBDA_LR] = "LambdaLR",
    [TL_MULTIPLICATIVE_LR] = "MultiplicativeLR",
    [TL_STEP_LR] = "StepLR",
    [TL_MULTI_STEP_LR] = "MultiStepLR",
    [TL_CONSTANT_LR] = "ConstantLR",
    [TL_LINEAR_LR] = "LinearLR",
    [TL_EXPONENTIAL_LR] = "ExponentialLR",
    [TL_POLYNOMIAL_LR] = "PolynomialLR",
    [TL_COSINE_LR] = "CosineAnnealingLR",
    [TL_COSINE_RESTARTS_LR] = "CosineAnnealingWarmRestarts",
    [TL_CYCLIC_LR] = "CyclicLR",
    [TL_ONE_CYCLE_LR] = "OneCycleLR",
    [TL_PLATEAU_LR] = "ReduceLROnPlateau",
    [TL_ADAM_LR] = "AdamLR",
    [TL_SEQUENTIAL_LR] = "SequentialLR",
    [TL_CHAINED_LR] = "ChainedScheduler",
};

const char *tl_schedule_name(int kind) { return kind >= 0 && kind < TL_SCHEDULES ? names[kind] : NULL; }

tl_status tl_schedule_defaults(int kind, tl_schedule_options *options) {
  if (tl_schedule_name(kind) == NULL) return TL_FAIL(TL_ERR_VALUE, "schedule", "there is no schedule number %d", kind);
  bool decays = kind == TL_STEP_LR || kind == TL_MULTI_STEP_LR;
  *options = (tl_schedule_options){
      .last_epoch = -1,
      .gamma = decays                 ? 0.1
               : kind == TL_CYCLIC_LR ? 1
                                      : NAN,
      .factor = kind == TL_PLATEAU_LR ? 0.1 : 1.0 / 3,
      .start_factor = 1.0 / 3,
      .end_factor = 1,
      .power = 1,
      .lr_decay = NAN,
      .step_size = NAN,
      .total_iters = 5,
      .T_max = NAN,
      .T_0 = NAN,
      .T_mult = 1,
      .step_size_up = 2000,
      .step_size_down = NAN, /* as step_size_up */
      .total_steps = NAN,
      .pct_start = 0.3,
      .div_factor = 25,
      .final_div_factor = 1e4,
      .patience = 10,
      .threshold = 1e-4,
      .eps = 1e-8,
      .cycle_momentum = true,
  };
  return TL_OK;
}

double *tl_momentum_of(const tl_optimizer *o, int group) {
  tl_param_group *g = &o->groups[group]->options;
  if (o->kind == TL_SGD || o->kind == TL_RMSPROP) return &g->momentum;
  return o->kind == TL_ADAGRAD ? NULL : &g->beta1;
}

/* ---- are the options in their domain? ---- */

static tl_status between(int kind, const char *name, double value, double low, double high) {
  if (value >= low && value <= high) return TL_OK;
  if (value != value) return TL_FAIL(TL_ERR_VALUE, names[kind], "%s is missing", name);
  if (high == INFINITY) return TL_FAIL(TL_ERR_VALUE, names[kind], "%s must be at least %g, got %g", name, low, value);
  return TL_FAIL(TL_ERR_VALUE, names[kind], "%s must be between %g and %g, got %g", name, low, high, value);
}

static tl_status whole(int kind, const char *name, double value, double low) {
  TL_TRY(between(kind, name, value, low, INFINITY));
  if (value == floor(value) && value < 9007199254740992.0) return TL_OK;
  return TL_FAIL(TL_ERR_VALUE, names[kind], "%s must be a whole number, got %g", name, value);
}

static tl_status check_array(int kind, const char *name, const double *values, int n, double high) {
  if (values == NULL) return TL_FAIL(TL_ERR_VALUE, names[kind], "%s is missing", name);
  for (int i = 0; i < n; i++) TL_TRY(between(kind, name, values[i], 0, high));
  return TL_OK;
}

static tl_status check_momentum(int kind, const tl_optimizer *o, const tl_schedule_options *by) {
  if (!by->cycle_momentum) return TL_OK;
  if (tl_momentum_of(o, 0) == NULL)
    return TL_FAIL(TL_ERR_VALUE, names[kind], "%s has no momentum that could be cycled: pass cycle_momentum=false",
                   tl_optimizer_name(o->kind));
  double high = o->kind == TL_SGD || o->kind == TL_RMSPROP ? INFINITY : 1;
  TL_TRY(check_array(kind, "base_momentum", by->base_momentum, o->group_count, high));
  return check_array(kind, "max_momentum", by->max_momentum, o->group_count, high);
}

static tl_status check_one_cycle(int kind, const tl_optimizer *o, const tl_schedule_options *by) {
  TL_TRY(whole(kind, "total_steps", by->total_steps, 1));
  TL_TRY(between(kind, "pct_start", by->pct_start, 0, 1));
  TL_TRY(check_array(kind, "max_lr", by->max_lr, o->group_count, INFINITY));
  if (!(by->div_factor > 0) || !(by->final_div_factor > 0))
    return TL_FAIL(TL_ERR_VALUE, names[kind], "div_factor and final_div_factor must be above 0");
  return check_momentum(kind, o, by);
}

static tl_status check_cyclic(int kind, const tl_optimizer *o, const tl_schedule_options *by) {
  TL_TRY(between(kind, "step_size_up", by->step_size_up, 1, INFINITY));
  if (by->step_size_down == by->step_size_down)
    TL_TRY(between(kind, "step_size_down", by->step_size_down, 1, INFINITY));
  TL_TRY(check_array(kind, "base_lr", by->base_lr, o->group_count, INFINITY));
  TL_TRY(check_array(kind, "max_lr", by->max_lr, o->group_count, INFINITY));
  TL_TRY(between(kind, "gamma", by->gamma, 0, INFINITY));
  if (by->mode < 0 || by->mode > 3) return TL_FAIL(TL_ERR_VALUE, names[kind], "there is no mode %d", by->mode);
  return check_momentum(kind, o, by);
}

static tl_status check_plateau(int kind, const tl_optimizer *o, const tl_schedule_options *by) {
  if (!(by->factor >= 0 && by->factor < 1))
    return TL_FAIL(TL_ERR_VALUE, names[kind], "factor must be at least 0 and below 1, got %g", by->factor);
  TL_TRY(between(kind, "patience", by->patience, 0, INFINITY));
  TL_TRY(between(kind, "threshold", by->threshold, 0, INFINITY));
  TL_TRY(between(kind, "cooldown", by->cooldown, 0, INFINITY));
  TL_TRY(between(kind, "eps", by->eps, 0, INFINITY));
  return check_array(kind, "min_lr", by->min_lr, o->group_count, INFINITY);
}

static tl_status check_linear(int kind, const tl_schedule_options *by) {
  if (!(by->start_factor > 0 && by->start_factor <= 1))
    return TL_FAIL(TL_ERR_VALUE, names[kind], "start_factor must be above 0 and at most 1, got %g", by->start_factor);
  TL_TRY(between(kind, "end_factor", by->end_factor, 0, 1));
  return whole(kind, "total_iters", by->total_iters, 0);
}

tl_status tl_check_schedule(int kind, const tl_optimizer *o, const tl_schedule_options *by) {
  TL_TRY(whole(kind, "last_epoch", by->last_epoch, -1));
  switch (kind) {
    case TL_STEP_LR:
      TL_TRY(whole(kind, "step_size", by->step_size, 1));
      return between(kind, "gamma", by->gamma, 0, INFINITY);
    case TL_MULTI_STEP_LR:
      if (by->milestones == NULL) return TL_FAIL(TL_ERR_VALUE, names[kind], "milestones is missing");
      for (int i = 0; i < by->milestone_count; i++) TL_TRY(whole(kind, "a milestone", by->milestones[i], 0));
      return between(kind, "gamma", by->gamma, 0, INFINITY);
    case TL_EXPONENTIAL_LR: return between(kind, "gamma", by->gamma, 0, INFINITY);
    case TL_CONSTANT_LR:
      TL_TRY(between(kind, "factor", by->factor, 0, 1));
      return whole(kind, "total_iters", by->total_iters, 0);
    case TL_LINEAR_LR: return check_linear(kind, by);
    case TL_POLYNOMIAL_LR:
      TL_TRY(between(kind, "power", by->power, 0, INFINITY));
      return whole(kind, "total_iters", by->total_iters, 0);
    case TL_COSINE_LR:
      TL_TRY(whole(kind, "T_max", by->T_max, 1));
      return between(kind, "eta_min", by->eta_min, 0, INFINITY);
    case TL_COSINE_RESTARTS_LR:
      TL_TRY(whole(kind, "T_0", by->T_0, 1));
      TL_TRY(whole(kind, "T_mult", by->T_mult, 1));
      return between(kind, "eta_min", by->eta_min, 0, INFINITY);
    case TL_CYCLIC_LR: return check_cyclic(kind, o, by);
    case TL_ONE_CYCLE_LR: return check_one_cycle(kind, o, by);
    case TL_PLATEAU_LR: return check_plateau(kind, o, by);
    case TL_ADAM_LR: return between(kind, "lr_decay", by->lr_decay, 0, INFINITY);
    default: return TL_OK;
  }
}

/* ---- the recursive forms: the factor that the current lr is multiplied with ---- */

static int count_of(const tl_scheduler *s, double epoch) {
  int n = 0;
  for (int i = 0; i < s->milestone_count; i++) n += s->milestones[i] == epoch;
  return n;
}

static double step_factor(const tl_scheduler *s, double t, bool initial) {
  const tl_schedule_options *by = &s->by;
  double n = by->total_iters, slope = by->end_factor - by->start_factor;
  switch (s->kind) {
    case TL_STEP_LR: return t == 0 || fmod(t, by->step_size) != 0 ? 1 : by->gamma;
    case TL_MULTI_STEP_LR: return pow(by->gamma, count_of(s, t));
    case TL_CONSTANT_LR: return t == 0 ? by->factor : t == n ? 1 / by->factor : 1;
    case TL_LINEAR_LR:
      if (t == 0) return by->start_factor;
      return initial || t > n ? 1 : 1 + slope / (n * by->start_factor + (t - 1) * slope);
    case TL_EXPONENTIAL_LR: return initial ? 1 : by->gamma;
    case TL_POLYNOMIAL_LR: return initial || t > n ? 1 : pow((1 - t / n) / (1 - (t - 1) / n), by->power);
    case TL_ADAM_LR: return initial ? 1 : (1 + by->lr_decay * (t - 1)) / (1 + by->lr_decay * t);
    default: return 1;
  }
}

/* ---- the closed forms at t = 0, for a part of a sequence that starts ---- */

static double first_factor(const tl_scheduler *s) {
  const tl_schedule_options *by = &s->by;
  switch (s->kind) {
    case TL_MULTI_STEP_LR: return pow(by->gamma, count_of(s, 0));
    case TL_CONSTANT_LR: return by->total_iters == 0 ? 1 : by->factor;
    case TL_LINEAR_LR: return by->total_iters == 0 ? by->end_factor : by->start_factor;
    case TL_POLYNOMIAL_LR: return by->total_iters == 0 ? 0 : 1;
    default: return 1;
  }
}

static double cosine(const tl_scheduler *s, double t, double lr, double base) {
  double T = s->by.T_max, low = s->by.eta_min;
  if (fmod(t - 1 - T, 2 * T) == 0) return lr + (base - low) * (1 - cos(pi / T)) / 2; /* up from the bottom */
  return (1 + cos(pi * t / T)) / (1 + cos(pi * (t - 1) / T)) * (lr - low) + low;
}

/* ---- cycles ---- */

static void cyclic(tl_scheduler *s, double t) {
  const tl_schedule_options *by = &s->by;
  double down = by->step_size_down == by->step_size_down ? by->step_size_down : by->step_size_up;
  double total = by->step_size_up + down, ratio = by->step_size_up / total;
  double cycle = floor(1 + t / total), x = 1 + t / total - cycle;
  double height = x <= ratio ? x / ratio : (x - 1) / (ratio - 1);
  for (int i = 0; i < s->groups; i++) {
    double scale = by->mode == 1   ? pow(2, 1 - cycle)
                   : by->mode == 2 ? pow(by->gamma, t)
                   : by->mode == 3 ? s->row[TL_FACTOR][i]
                                   : 1;
    double low = s->row[TL_BASE_LR][i], high = s->row[TL_MAX_LR][i];
    s->row[TL_NEXT_LR][i] = low + (high - low) * height * scale;
    double least = s->row[TL_BASE_MOMENTUM][i], most = s->row[TL_MAX_MOMENTUM][i];
    s->row[TL_NEXT_MOMENTUM][i] = most - (most - least) * height * scale;
  }
}

static double anneal(const tl_scheduler *s, double from, double to, double part) {
  return s->by.linear ? (to - from) * part + from : to + (from - to) / 2 * (cos(pi * part) + 1);
}

/* Phases: up to max_lr, (three_phase: back,) down to min_lr. */
static void one_cycle(tl_scheduler *s, double t) {
  const tl_schedule_options *by = &s->by;
  int phases = by->three_phase ? 3 : 2, phase = 0;
  double ends[3] = {by->pct_start * by->total_steps - 1, 2 * by->pct_start * by->total_steps - 2, by->total_steps - 1};
  ends[phases - 1] = by->total_steps - 1;
  double start = 0;
  while (phase < phases - 1 && t > ends[phase]) start = ends[phase++];
  /* A phase of no length is at its end; so is whatever comes after the last step. */
  double length = ends[phase] - start, part = length > 0 ? (t - start) / length : 1;
  if (part > 1) part = 1;
  bool last = phase == phases - 1;
  for (int i = 0; i < s->groups; i++) {
    double low = s->row[TL_MAX_LR][i] / by->div_factor, high = s->row[TL_MAX_LR][i], least = low / by->final_div_factor;
    double slow = s->row[TL_BASE_MOMENTUM][i], fast = s->row[TL_MAX_MOMENTUM][i];
    double from = phase == 0 || (last && phases == 3) ? low : high, to = phase == 0 ? high : last ? least : low;
    s->row[TL_NEXT_LR][i] = anneal(s, from, to, part);
    double momentum = phase == 0 || (last && phases == 3) ? fast : slow;
    s->row[TL_NEXT_MOMENTUM][i] = anneal(s, momentum, phase == 0 ? slow : fast, part);
  }
}

static double one_value(const tl_scheduler *s, int i, double t, int how) {
  double lr = s->o->groups[i]->options.lr, base = s->row[TL_BASE_LR][i];
  bool initial = how == TL_ADVANCE_INITIAL;
  switch (s->kind) {
    case TL_LAMBDA_LR: return base * s->row[TL_FACTOR][i];
    case TL_MULTIPLICATIVE_LR: return initial ? lr : lr * s->row[TL_FACTOR][i];
    case TL_COSINE_LR: return initial ? lr : how == TL_ADVANCE_RESTART ? base : cosine(s, t, lr, base);
    case TL_COSINE_RESTARTS_LR:
      return s->by.eta_min + (base - s->by.eta_min) * (1 + cos(pi * s->at.T_cur / s->at.T_i)) / 2;
    case TL_CONSTANT_LR:
      if (how == TL_ADVANCE_STEP && s->by.factor == 0 && t == s->by.total_iters) return base; /* 0 has no way back */
      break;
  }
  return how == TL_ADVANCE_RESTART ? base * first_factor(s) : lr * step_factor(s, t, initial);
}

void tl_schedule_values(tl_scheduler *s, double epoch, int how) {
  if (s->kind == TL_CYCLIC_LR) cyclic(s, epoch);
  else if (s->kind == TL_ONE_CYCLE_LR) one_cycle(s, epoch);
  else
    for (int i = 0; i < s->groups; i++) s->row[TL_NEXT_LR][i] = one_value(s, i, epoch, how);
}
