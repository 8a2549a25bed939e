-- optim.lua: what the REPL's ?name shows of tl.optim and of the utilities for gradients: pure data.
return {
  ["tl.optim"] = [[
Optimizers and learning-rate schedules, with PyTorch's names, options and defaults.
local opt = optim.Adam(model:parameters(), {lr=1e-3}); then loss:backward(); opt:step(); opt:zero_grad().
The first argument is a list of tensors or of groups {params=..., lr=...}; opt.param_groups[i].lr reads and writes the
option that the next step uses. Methods: step, zero_grad, add_param_group, state_dict, load_state_dict.
float16 and bfloat16 parameters keep a float32 master copy; with stochastic_rounding=true bfloat16 ones do without: each
update is rounded up or down at random (numbers of the default generator) so that the mean is right.
Errors: unknown option, value out of its domain, parameter that is no floating leaf or is in two groups.]],

  ["tl.optim.SGD"] = [[
SGD(params, {lr=1e-3, momentum=0, dampening=0, weight_decay=0, nesterov=false, maximize=false})
Stochastic gradient descent. The first momentum buffer is the gradient itself, without dampening. nesterov needs a
momentum and no dampening. Sutskever et al. 2013.]],
  ["tl.optim.Adam"] = [[
Adam(params, {lr=1e-3, betas={0.9, 0.999}, eps=1e-8, weight_decay=0, amsgrad=false, maximize=false,
decoupled_weight_decay=false, state_dtype="float32"})
weight_decay adds weight_decay * p to the gradient. eps is added after the bias correction. Kingma & Ba 2015; amsgrad:
Reddi et al. 2018.
state_dtype: how the two moments are kept (also an option of a group): "float32", 8 bytes a parameter; "bfloat16", 4;
"int8", 2.03: codes for x / the largest |x| of each block of 256 elements (Dettmers et al. 2022). Parameters of less than
4096 elements stay float32 in "int8". Both are rounded stochastically, by numbers that depend on the parameter's place
and the step alone: runs repeat bit for bit. Not for amsgrad or float64 parameters.]],
  ["tl.optim.AdamW"] = [[
AdamW(params, {lr=1e-3, betas={0.9, 0.999}, eps=1e-8, weight_decay=0.01, amsgrad=false, maximize=false,
state_dtype="float32"})
Adam whose weight decay shrinks the parameter by 1 - lr * weight_decay instead. Loshchilov & Hutter 2019.]],
  ["tl.optim.RMSprop"] = [[
RMSprop(params, {lr=0.01, alpha=0.99, eps=1e-8, weight_decay=0, momentum=0, centered=false, maximize=false})
Divides by the root of the running mean square; centered: by the running standard deviation (Graves 2013). Hinton,
lecture 6e.]],
  ["tl.optim.Adagrad"] = [[
Adagrad(params, {lr=0.01, lr_decay=0, weight_decay=0, initial_accumulator_value=0, eps=1e-10, maximize=false})
Divides by the root of the sum of squares. Duchi et al. 2011.]],
  ["tl.optim.NAdam"] = [[
NAdam(params, {lr=2e-3, betas={0.9, 0.999}, eps=1e-8, weight_decay=0, momentum_decay=4e-3,
decoupled_weight_decay=false, maximize=false})
Adam with Nesterov momentum. Dozat 2016.]],
  ["tl.optim.RAdam"] = [[
RAdam(params, {lr=1e-3, betas={0.9, 0.999}, eps=1e-8, weight_decay=0, decoupled_weight_decay=false, maximize=false})
Adam that waits with its second moment until that can be trusted. Liu et al. 2020.]],

  ["tl.optim.Optimizer.step"] = [[
opt:step(closure?): updates every parameter that has a gradient, in place and unrecorded; the others are left alone.
closure() is called first, with gradients on, and its value is returned.]],
  ["tl.optim.Optimizer.zero_grad"] = [[
opt:zero_grad(set_to_none?): forgets all gradients; zero_grad(false) fills them with zeros.]],
  ["tl.optim.Optimizer.add_param_group"] = [[
opt:add_param_group{params=..., lr=...}: one more group; what it does not say is as the optimizer was made with.]],
  ["tl.optim.Optimizer.state_dict"] = [[
opt:state_dict(): {state = {[i] = {step=, exp_avg=, ...}}, param_groups = {{lr=, ..., params={i, ...}}}}. i counts the
parameters over all groups, from 1. The tensors share memory with the optimizer.]],
  ["tl.optim.Optimizer.load_state_dict"] = [[
opt:load_state_dict(dict): options of the groups, and copies of the state. Training goes on as if it had never stopped.
What does not fit (groups, numbers of parameters, shapes) is an error before anything changes.]],

  ["tl.optim.lr_scheduler"] = [[
Schedules change the lr of an optimizer's groups. S.StepLR(opt, 30, {gamma=0.1}) takes its initial step at once,
s:step() comes after each opt:step() (or epoch). Required options may be given by position or by name. Methods: step,
get_last_lr, state_dict, load_state_dict. The recursive ones multiply the current lr, so changes from outside stay.]],
  ["tl.optim.lr_scheduler.LambdaLR"] = [[
LambdaLR(opt, f, {last_epoch=-1}): initial lr * f(t), t = 0, 1, ... f may be a list of one function a group.]],
  ["tl.optim.lr_scheduler.MultiplicativeLR"] = "MultiplicativeLR(opt, f): lr * f(t) at each step, t from 1.",
  ["tl.optim.lr_scheduler.StepLR"] = "StepLR(opt, step_size, {gamma=0.1}): times gamma every step_size steps.",
  ["tl.optim.lr_scheduler.MultiStepLR"] = "MultiStepLR(opt, {30, 80}, {gamma=0.1}): times gamma at each milestone.",
  ["tl.optim.lr_scheduler.ConstantLR"] = [[
ConstantLR(opt, {factor=1/3, total_iters=5}): times factor for the first total_iters steps.]],
  ["tl.optim.lr_scheduler.LinearLR"] = [[
LinearLR(opt, {start_factor=1/3, end_factor=1, total_iters=5}): the factor moves in a line: a warm-up.]],
  ["tl.optim.lr_scheduler.ExponentialLR"] = "ExponentialLR(opt, gamma): times gamma at every step.",
  ["tl.optim.lr_scheduler.PolynomialLR"] = [[
PolynomialLR(opt, {total_iters=5, power=1}): initial lr * (1 - t / total_iters)^power, then 0.]],
  ["tl.optim.lr_scheduler.CosineAnnealingLR"] = [[
CosineAnnealingLR(opt, T_max, {eta_min=0}): half a cosine from the lr to eta_min in T_max steps, and back in as many.
Loshchilov & Hutter 2017.]],
  ["tl.optim.lr_scheduler.CosineAnnealingWarmRestarts"] = [[
CosineAnnealingWarmRestarts(opt, T_0, {T_mult=1, eta_min=0}): starts again after T_0 steps, then T_0 * T_mult, ...
s:step(epoch) goes to an epoch, also to a fraction. Loshchilov & Hutter 2017.]],
  ["tl.optim.lr_scheduler.CyclicLR"] = [[
CyclicLR(opt, base_lr, max_lr, {step_size_up=2000, step_size_down=step_size_up, mode="triangular", gamma=1, scale_fn=,
scale_mode="cycle", cycle_momentum=true, base_momentum=0.8, max_momentum=0.9}): modes "triangular", "triangular2" (half
the height every cycle), "exp_range" (gamma^t). Momentum, or Adam's beta1, runs the other way. Smith 2017.]],
  ["tl.optim.lr_scheduler.OneCycleLR"] = [[
OneCycleLR(opt, max_lr, {total_steps=, epochs=, steps_per_epoch=, pct_start=0.3, anneal_strategy="cos",
cycle_momentum=true, base_momentum=0.85, max_momentum=0.95, div_factor=25, final_div_factor=1e4, three_phase=false}):
up from max_lr / div_factor, then down to that over final_div_factor. More than total_steps steps are an error. Smith &
Topin 2018.]],
  ["tl.optim.lr_scheduler.ReduceLROnPlateau"] = [[
ReduceLROnPlateau(opt, {mode="min", factor=0.1, patience=10, threshold=1e-4, threshold_mode="rel", cooldown=0, min_lr=0,
eps=1e-8}); s:step(metric): times factor after more than patience steps without an improvement. "rel" asks for
threshold * |best|, so it works for negative metrics, too.]],
  ["tl.optim.lr_scheduler.SequentialLR"] = [[
SequentialLR(opt, {a, b, c}, {10, 20}): a until step 10, b until step 20, then c, each from its own beginning.]],
  ["tl.optim.lr_scheduler.ChainedScheduler"] = "ChainedScheduler{a, b}: both at every step.",
  ["tl.optim.lr_scheduler.AdamLR"] = [[
AdamLR(opt, {lr_decay=}): inverse-time decay: lr_t = lr_0 / (1 + lr_decay * t). PyTorch has none of this name.]],
  ["tl.optim.lr_scheduler.Scheduler.step"] = [[
s:step(): after the optimizer's step. ReduceLROnPlateau: s:step(metric), a number or a one-element tensor. Warns once if
the optimizer has not stepped yet.]],
  ["tl.optim.lr_scheduler.Scheduler.get_last_lr"] = "s:get_last_lr(): list of what the last step set, one a group.",

  ["tl.nn.utils.clip_grad_norm_"] = [[
clip_grad_norm_(params, max_norm, {norm_type=2, error_if_nonfinite=false}): scales all gradients by min(1, max_norm /
(norm + 1e-6)), where norm is that of all of them as one vector; returns it, as a number. norm_type may be "inf".
Of parameters on a GPU it is a 0-d tensor, and nothing waits for it (a number with error_if_nonfinite). Pascanu et al.
2013.]],
  ["tl.nn.utils.clip_grad_value_"] = "clip_grad_value_(params, value): every gradient element into [-value, value].",
  ["tl.nn.utils.parameters_to_vector"] = [[
parameters_to_vector(params): all elements in one dim, with a gradient path to each parameter.]],
  ["tl.nn.utils.vector_to_parameters"] = "vector_to_parameters(vector, params): copies the slices into the parameters.",
}
