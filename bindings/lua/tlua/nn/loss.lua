-- loss.lua: losses as modules. All take (input, target) and the option `reduction`: "mean" (default), "sum" or "none".
local base = require "tlua.base"
local Module = require("tlua.nn.module").Module
local support = require "tlua.nn.support"
local C, check, wrap, out, check_tensor = base.C, base.check, base.wrap, base.out, base.check_tensor
local reduction = support.reduction

local function check_pair(x, target, op)
  check_tensor(x, op, 1)
  check_tensor(target, op, 2)
end

local function reduction_repr(self) return self.reduction ~= "mean" and "reduction=" .. self.reduction or "" end

-- A loss without options of its own.
local function simple(name)
  local class = Module:extend(name)
  function class:init(options)
    self.reduction = base.options(name, options, { reduction = "mean" }).reduction
    reduction(name, self.reduction)
  end
  class.extra_repr = reduction_repr
  return class
end

local MSELoss = simple("MSELoss")
function MSELoss:forward(x, target)
  check_pair(x, target, "MSELoss")
  check(C.tl_mse_loss(x, target, reduction("MSELoss", self.reduction), out))
  return wrap(out[0])
end

local L1Loss = simple("L1Loss")
function L1Loss:forward(x, target)
  check_pair(x, target, "L1Loss")
  check(C.tl_l1_loss(x, target, reduction("L1Loss", self.reduction), out))
  return wrap(out[0])
end

local SmoothL1Loss = Module:extend("SmoothL1Loss")
--- 0.5 d^2 / beta where |d| < beta (1), |d| - 0.5 beta elsewhere.
function SmoothL1Loss:init(options)
  local o = base.options("SmoothL1Loss", options, { reduction = "mean", beta = 1 })
  self.reduction, self.beta = o.reduction, o.beta
  reduction("SmoothL1Loss", o.reduction)
end
function SmoothL1Loss:forward(x, target)
  check_pair(x, target, "SmoothL1Loss")
  check(C.tl_smooth_l1_loss(x, target, self.beta, reduction("SmoothL1Loss", self.reduction), out))
  return wrap(out[0])
end
SmoothL1Loss.extra_repr = reduction_repr

local HuberLoss = Module:extend("HuberLoss")
--- 0.5 d^2 where |d| <= delta (1), delta (|d| - 0.5 delta) elsewhere.
function HuberLoss:init(options)
  local o = base.options("HuberLoss", options, { reduction = "mean", delta = 1 })
  self.reduction, self.delta = o.reduction, o.delta
  reduction("HuberLoss", o.reduction)
end
function HuberLoss:forward(x, target)
  check_pair(x, target, "HuberLoss")
  check(C.tl_huber_loss(x, target, self.delta, reduction("HuberLoss", self.reduction), out))
  return wrap(out[0])
end
HuberLoss.extra_repr = reduction_repr

local CrossEntropyLoss = Module:extend("CrossEntropyLoss")
--- Logits (N, C, ..) or (C) against labels 0..C-1 (N, ..), or against probabilities of the logits' shape. Options
--- weight (C), ignore_index (-100), label_smoothing (0), reduction.
function CrossEntropyLoss:init(options)
  local o = base.options("CrossEntropyLoss", options,
    { weight = base.optional, ignore_index = -100, label_smoothing = 0, reduction = "mean" })
  support.check_tensors("CrossEntropyLoss", o, "weight")
  self:register_buffer("weight", o.weight)
  self.ignore_index, self.label_smoothing, self.reduction = o.ignore_index, o.label_smoothing, o.reduction
  reduction("CrossEntropyLoss", o.reduction)
end
function CrossEntropyLoss:forward(x, target)
  check_pair(x, target, "CrossEntropyLoss")
  check(C.tl_cross_entropy(x, target, self.weight, self.ignore_index, self.label_smoothing,
    reduction("CrossEntropyLoss", self.reduction), out))
  return wrap(out[0])
end
CrossEntropyLoss.extra_repr = reduction_repr

local NLLLoss = Module:extend("NLLLoss")
--- Log-probabilities (N, C, ..) or (C) against labels 0..C-1 (N, ..).
function NLLLoss:init(options)
  local o = base.options("NLLLoss", options, { weight = base.optional, ignore_index = -100, reduction = "mean" })
  support.check_tensors("NLLLoss", o, "weight")
  self:register_buffer("weight", o.weight)
  self.ignore_index, self.reduction = o.ignore_index, o.reduction
  reduction("NLLLoss", o.reduction)
end
function NLLLoss:forward(x, target)
  check_pair(x, target, "NLLLoss")
  check(C.tl_nll_loss(x, target, self.weight, self.ignore_index, reduction("NLLLoss", self.reduction), out))
  return wrap(out[0])
end
NLLLoss.extra_repr = reduction_repr

local BCELoss = Module:extend("BCELoss")
--- Probabilities against targets in 0..1, both of one shape; weight broadcasts to it.
function BCELoss:init(options)
  local o = base.options("BCELoss", options, { weight = base.optional, reduction = "mean" })
  support.check_tensors("BCELoss", o, "weight")
  self:register_buffer("weight", o.weight)
  self.reduction = o.reduction
  reduction("BCELoss", o.reduction)
end
function BCELoss:forward(x, target)
  check_pair(x, target, "BCELoss")
  check(C.tl_bce_loss(x, target, self.weight, reduction("BCELoss", self.reduction), out))
  return wrap(out[0])
end
BCELoss.extra_repr = reduction_repr

local BCEWithLogitsLoss = Module:extend("BCEWithLogitsLoss")
--- Logits against targets in 0..1; pos_weight weighs the positive term and broadcasts, as weight does.
function BCEWithLogitsLoss:init(options)
  local o = base.options("BCEWithLogitsLoss", options,
    { weight = base.optional, pos_weight = base.optional, reduction = "mean" })
  support.check_tensors("BCEWithLogitsLoss", o, "weight", "pos_weight")
  self:register_buffer("weight", o.weight)
  self:register_buffer("pos_weight", o.pos_weight)
  self.reduction = o.reduction
  reduction("BCEWithLogitsLoss", o.reduction)
end
function BCEWithLogitsLoss:forward(x, target)
  check_pair(x, target, "BCEWithLogitsLoss")
  check(C.tl_bce_with_logits_loss(x, target, self.weight, self.pos_weight,
    reduction("BCEWithLogitsLoss", self.reduction), out))
  return wrap(out[0])
end
BCEWithLogitsLoss.extra_repr = reduction_repr

local KLDivLoss = Module:extend("KLDivLoss")
--- target * (log target - input), input being log-probabilities; log_target=true: the target is too. reduction also
--- takes "batchmean": the sum divided by the size of the first dim, which is the divergence proper.
function KLDivLoss:init(options)
  local o = base.options("KLDivLoss", options, { reduction = "mean", log_target = false })
  self.reduction, self.log_target = o.reduction, o.log_target
  reduction("KLDivLoss", o.reduction, true)
end
function KLDivLoss:forward(x, target)
  check_pair(x, target, "KLDivLoss")
  check(C.tl_kl_div_loss(x, target, self.log_target, reduction("KLDivLoss", self.reduction, true), out))
  return wrap(out[0])
end
KLDivLoss.extra_repr = reduction_repr

return {
  MSELoss = MSELoss, L1Loss = L1Loss, SmoothL1Loss = SmoothL1Loss, HuberLoss = HuberLoss,
  CrossEntropyLoss = CrossEntropyLoss, NLLLoss = NLLLoss, BCELoss = BCELoss, BCEWithLogitsLoss = BCEWithLogitsLoss,
  KLDivLoss = KLDivLoss,
}
