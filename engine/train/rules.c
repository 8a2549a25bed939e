/* rules.c: the optimizers' options, and the numbers of a step that follow from them. */
#include <math.h>

#include "train/optimizer.h"

/* The state tensors' names, PyTorch's; kernels/update_rules.h says what they hold. */
static const struct {
  const char *name, *state[TL_UPDATE_STATES];
} kinds[TL_OPTIMIZERS] = {
    [TL_SGD] = {"SGD", {"momentum_buffer"}},
    [TL_ADAM] = {"Adam", {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}},
    [TL_ADAMW] = {"AdamW", {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}},
    [TL_RMSPROP] = {"RMSprop", {"square_avg", "momentum_buffer", "grad_avg"}},
    [TL_ADAGRAD] = {"Adagrad", {"sum"}},
    [TL_NADAM] = {"NAdam", {"exp_avg", "exp_avg_sq"}},
    [TL_RADAM] = {"RAdam", {"exp_avg", "exp_avg_sq"}},
};

const char *tl_optimizer_name(int kind) { return kind >= 0 && kind < TL_OPTIMIZERS ? kinds[kind].name : NULL; }

const char *tl_optimizer_state_name(int kind, int k) {
  if (kind < 0 || kind >= TL_OPTIMIZERS || k < 0) return NULL;
  int count = 0;
  while (count < TL_UPDATE_STATES && kinds[kind].state[count] != NULL) count++;
  return k < count ? kinds[kind].state[k] : k == count ? "master" : NULL;
}

tl_status tl_optimizer_defaults(int kind, tl_param_group *options) {
  if (tl_optimizer_name(kind) == NULL)
    return TL_FAIL(TL_ERR_VALUE, "optimizer", "there is no optimizer number %d", kind);
  static const double lr[TL_OPTIMIZERS] = {
      [TL_SGD] = 1e-3,     [TL_ADAM] = 1e-3,  [TL_ADAMW] = 1e-3, [TL_RMSPROP] = 1e-2,
      [TL_ADAGRAD] = 1e-2, [TL_NADAM] = 2e-3, [TL_RADAM] = 1e-3};
  *options = (tl_param_group){
      .lr = lr[kind],
      .initial_lr = NAN,
      .weight_decay = kind == TL_ADAMW ? 1e-2 : 0,
      .beta1 = 0.9,
      .beta2 = 0.999,
      .eps = kind == TL_ADAGRAD ? 1e-10 : 1e-8,
      .alpha = 0.99,
      .momentum_decay = 4e-3,
      .decoupled_weight_decay = kind == TL_ADAMW,
  };
  return TL_OK;
}

/* Written so that nan is refused, too. */
static tl_status at_least_zero(int kind, const char *name, double value) {
  if (value >= 0) return TL_OK;
  return TL_FAIL(TL_ERR_VALUE, kinds[kind].name, "%s must be at least 0, got %g", name, value);
}

static tl_status check_beta(int kind, int i, double value) {
  if (value >= 0 && value < 1) return TL_OK;
  return TL_FAIL(TL_ERR_VALUE, kinds[kind].name, "beta %d must be at least 0 and below 1, got %g", i, value);
}

tl_status tl_check_options(int kind, const tl_param_group *g) {
  TL_TRY(at_least_zero(kind, "lr", g->lr));
  TL_TRY(at_least_zero(kind, "weight_decay", g->weight_decay));
  TL_TRY(at_least_zero(kind, "eps", g->eps));
  TL_TRY(at_least_zero(kind, "momentum", g->momentum));
  TL_TRY(at_least_zero(kind, "alpha", g->alpha));
  TL_TRY(at_least_zero(kind, "lr_decay", g->lr_decay));
  TL_TRY(at_least_zero(kind, "initial_accumulator_value", g->initial_accumulator_value));
  TL_TRY(at_least_zero(kind, "momentum_decay", g->momentum_decay));
  TL_TRY(check_beta(kind, 1, g->beta1));
  TL_TRY(check_beta(kind, 2, g->beta2));
  if (g->dampening != g->dampening)
    return TL_FAIL(TL_ERR_VALUE, kinds[kind].name, "dampening must be a number, got nan");
  if (g->nesterov && (g->momentum <= 0 || g->dampening != 0))
    return TL_FAIL(TL_ERR_VALUE, kinds[kind].name, "nesterov needs a momentum above 0 and no dampening");
  return TL_OK;
}

static int sgd_rule(const tl_param_group *g, const tl_slot *s, tl_update_coefficients *c, unsigned *states) {
  c->rate = g->lr;
  c->beta1 = g->momentum;
  c->rest1 = 1 - g->dampening;
  *states = g->momentum != 0 ? 1 : 0;
  if (g->momentum == 0) return TL_UPDATE_sgd;
  if (g->nesterov) return s->primed ? TL_UPDATE_nesterov : TL_UPDATE_nesterov_first;
  return s->primed ? TL_UPDATE_sgd_momentum : TL_UPDATE_sgd_first;
}

static int rmsprop_rule(const tl_param_group *g, tl_update_coefficients *c, unsigned *states) {
  c->rate = g->lr;
  c->beta1 = g->momentum;
  c->beta2 = g->alpha;
  c->rest2 = 1 - g->alpha;
  bool momentum = g->momentum > 0;
  *states = 1u | (momentum ? 2u : 0) | (g->centered ? 4u : 0);
  if (g->centered) return momentum ? TL_UPDATE_rmsprop_centered_momentum : TL_UPDATE_rmsprop_centered;
  return momentum ? TL_UPDATE_rmsprop_momentum : TL_UPDATE_rmsprop;
}

static int adam_rule(const tl_param_group *g, double t, tl_update_coefficients *c, unsigned *states) {
  c->rate = g->lr / (1 - pow(g->beta1, t));
  c->scale = 1 / sqrt(1 - pow(g->beta2, t));
  *states = g->amsgrad ? 7 : 3;
  return g->amsgrad ? TL_UPDATE_amsgrad : TL_UPDATE_adam;
}

/* Dozat's momentum schedule: mu_t = beta1 (1 - 0.96^(t psi) / 2), psi = momentum_decay */
static double mu_at(const tl_param_group *g, double t) {
  return g->beta1 * (1 - 0.5 * pow(0.96, t * g->momentum_decay));
}

static int nadam_rule(const tl_param_group *g, double t, tl_update_coefficients *c, double *mu_product) {
  double mu = mu_at(g, t), next = mu_at(g, t + 1);
  *mu_product *= mu;
  c->rate2 = g->lr * (1 - mu) / (1 - *mu_product);
  c->rate = g->lr * next / (1 - *mu_product * next);
  c->scale = 1 / sqrt(1 - pow(g->beta2, t));
  return TL_UPDATE_nadam;
}

/* rho: the length of the simple moving average that approximates beta2's (Liu et al., algorithm 2) */
static int radam_rule(const tl_param_group *g, double t, tl_update_coefficients *c) {
  double power = pow(g->beta2, t), limit = 2 / (1 - g->beta2) - 1;
  double rho = limit - 2 * t * power / (1 - power);
  c->rate = g->lr / (1 - pow(g->beta1, t));
  if (!(rho > 5)) return TL_UPDATE_radam;
  c->rate *= sqrt((rho - 4) * (rho - 2) * limit / ((limit - 4) * (limit - 2) * rho)) * sqrt(1 - power);
  return TL_UPDATE_radam_rectified;
}

int tl_choose_rule(int kind, const tl_param_group *g, const tl_slot *s, tl_update_coefficients *c, unsigned *states,
                   double *mu_product) {
  bool decoupled = g->decoupled_weight_decay;
  double t = (double)s->step + 1;
  *mu_product = s->mu_product;
  *states = 3;
  *c = (tl_update_coefficients){
      .sign = g->maximize ? -1 : 1,
      .decay = decoupled ? 0 : g->weight_decay,
      .keep = decoupled ? 1 - g->lr * g->weight_decay : 1,
      .beta1 = g->beta1,
      .rest1 = 1 - g->beta1,
      .beta2 = g->beta2,
      .rest2 = 1 - g->beta2,
      .eps = g->eps,
  };
  switch (kind) {
    case TL_SGD: return sgd_rule(g, s, c, states);
    case TL_RMSPROP: return rmsprop_rule(g, c, states);
    case TL_ADAGRAD:
      *states = 1;
      c->rate = g->lr / (1 + (t - 1) * g->lr_decay);
      return TL_UPDATE_adagrad;
    case TL_NADAM: return nadam_rule(g, t, c, mu_product);
    case TL_RADAM: return radam_rule(g, t, c);
    default: return adam_rule(g, t, c, states);
  }
}
