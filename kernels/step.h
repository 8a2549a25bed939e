/* step.h: the numbers of an optimizer's step: which rule moves a parameter, and its coefficients.
 *
 * Shared by engine/train/rules.c, which computes them for parameters on the CPU, and kernels/cuda/step.cu, which does so
 * on the device, where the count of steps lives. All in double, in the order of PyTorch's operations. */
#ifndef TL_KERNELS_STEP_H
#define TL_KERNELS_STEP_H

#include "backend/update.h"
#include "formula.h"
#include "tlua.h"

/* The state tensors (bits) that the rules of this kind and these options work on: they do not change from step to step. */
TL_FN unsigned step_states(int kind, const tl_param_group *g) {
  switch (kind) {
    case TL_SGD: return g->momentum != 0 ? 1 : 0;
    case TL_RMSPROP: return 1u | (g->momentum > 0 ? 2u : 0) | (g->centered ? 4u : 0);
    case TL_ADAGRAD: return 1;
    case TL_NADAM:
    case TL_RADAM: return 3;
    default: return g->amsgrad ? 7 : 3;
  }
}

/* primed: the momentum buffer has its first value */
TL_FN int step_sgd(const tl_param_group *g, bool primed, tl_update_coefficients *c) {
  c->rate = g->lr;
  c->beta1 = g->momentum;
  c->rest1 = 1 - g->dampening;
  if (g->momentum == 0) return TL_UPDATE_sgd;
  if (g->nesterov) return primed ? TL_UPDATE_nesterov : TL_UPDATE_nesterov_first;
  return primed ? TL_UPDATE_sgd_momentum : TL_UPDATE_sgd_first;
}

TL_FN int step_rmsprop(const tl_param_group *g, tl_update_coefficients *c) {
  bool momentum = g->momentum > 0;
  c->rate = g->lr;
  c->beta1 = g->momentum;
  c->beta2 = g->alpha;
  c->rest2 = 1 - g->alpha;
  if (g->centered) return momentum ? TL_UPDATE_rmsprop_centered_momentum : TL_UPDATE_rmsprop_centered;
  return momentum ? TL_UPDATE_rmsprop_momentum : TL_UPDATE_rmsprop;
}

TL_FN int step_adam(const tl_param_group *g, double t, tl_update_coefficients *c) {
  c->rate = g->lr / (1 - pow(g->beta1, t));
  c->scale = 1 / sqrt(1 - pow(g->beta2, t));
  return g->amsgrad ? TL_UPDATE_amsgrad : TL_UPDATE_adam;
}

/* Dozat's momentum schedule: mu_t = beta1 (1 - 0.96^(t psi) / 2), psi = momentum_decay */
TL_FN double step_mu(const tl_param_group *g, double t) {
  return g->beta1 * (1 - 0.5 * pow(0.96, t * g->momentum_decay));
}

TL_FN int step_nadam(const tl_param_group *g, double t, tl_update_coefficients *c, double *mu_product) {
  double mu = step_mu(g, t), next = step_mu(g, t + 1);
  *mu_product *= mu;
  c->rate2 = g->lr * (1 - mu) / (1 - *mu_product);
  c->rate = g->lr * next / (1 - *mu_product * next);
  c->scale = 1 / sqrt(1 - pow(g->beta2, t));
  return TL_UPDATE_nadam;
}

/* rho: the length of the simple moving average that approximates beta2's (Liu et al., algorithm 2) */
TL_FN int step_radam(const tl_param_group *g, double t, tl_update_coefficients *c) {
  double power = pow(g->beta2, t), limit = 2 / (1 - g->beta2) - 1;
  double rho = limit - 2 * t * power / (1 - power);
  c->rate = g->lr / (1 - pow(g->beta1, t));
  if (!(rho > 5)) return TL_UPDATE_radam;
  c->rate *= sqrt((rho - 4) * (rho - 2) * limit / ((limit - 4) * (limit - 2) * rho)) * sqrt(1 - power);
  return TL_UPDATE_radam_rectified;
}

/* The rule of a parameter's step after `step` ones, and its coefficients. *mu_product becomes NAdam's after this step. */
TL_FN int step_rule(int kind, const tl_param_group *g, double step, bool primed, double *mu_product,
                    tl_update_coefficients *c) {
  bool decoupled = g->decoupled_weight_decay;
  double t = step + 1;
  c->sign = g->maximize ? -1 : 1;
  c->decay = decoupled ? 0 : g->weight_decay;
  c->keep = decoupled ? 1 - g->lr * g->weight_decay : 1;
  c->rate = c->rate2 = c->scale = 0;
  c->beta1 = g->beta1;
  c->rest1 = 1 - g->beta1;
  c->beta2 = g->beta2;
  c->rest2 = 1 - g->beta2;
  c->eps = g->eps;
  c->skip = 0;
  c->step = (int64_t)step;
  switch (kind) {
    case TL_SGD: return c->rule = step_sgd(g, primed, c);
    case TL_RMSPROP: return c->rule = step_rmsprop(g, c);
    case TL_ADAGRAD: c->rate = g->lr / (1 + (t - 1) * g->lr_decay); return c->rule = TL_UPDATE_adagrad;
    case TL_NADAM: return c->rule = step_nadam(g, t, c, mu_product);
    case TL_RADAM: return c->rule = step_radam(g, t, c);
    default: return c->rule = step_adam(g, t, c);
  }
}

#endif
