/* rules.c: the optimizers' options, and the numbers of a step that follow from them. */
#include "step.h"

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
  if (g->state_dtype != TL_FLOAT32 && g->state_dtype != TL_BFLOAT16 && g->state_dtype != TL_UINT8)
    return TL_FAIL(TL_ERR_VALUE, kinds[kind].name, "there is no state in dtype number %d", g->state_dtype);
  if (g->state_dtype != TL_FLOAT32 && kind != TL_ADAM && kind != TL_ADAMW)
    return TL_FAIL(TL_ERR_UNSUPPORTED, kinds[kind].name, "only Adam and AdamW have state smaller than float32");
  if (g->nesterov && (g->momentum <= 0 || g->dampening != 0))
    return TL_FAIL(TL_ERR_VALUE, kinds[kind].name, "nesterov needs a momentum above 0 and no dampening");
  return TL_OK;
}

int tl_group_rule(int kind, const tl_param_group *g, unsigned *states) {
  tl_update_coefficients c;
  double mu_product = 1;
  *states = step_states(kind, g);
  return step_rule(kind, g, 0, true, &mu_product, &c);
}

int tl_choose_rule(int kind, const tl_param_group *g, const tl_slot *s, tl_update_coefficients *c, unsigned *states,
                   double *mu_product) {
  *mu_product = s->mu_product;
  *states = step_states(kind, g);
  return step_rule(kind, g, (double)s->step, s->primed, mu_product, c);
}
