-- activation.lua: activation functions as modules.
local base = require "tlua.base"
local Module = require("tlua.nn.module").Module
local C, check, wrap, out, check_tensor = base.C, base.check, base.wrap, base.out, base.check_tensor

local activation = {}

local function inplace_repr(self) return self.inplace and "inplace=true" or "" end

local function inplace_option(name)
  return function(self, options) self.inplace = base.options(name, options, { inplace = false }).inplace end
end

local ReLU = Module:extend("ReLU")
ReLU.init, ReLU.extra_repr = inplace_option("ReLU"), inplace_repr
function ReLU:forward(x)
  check_tensor(x, "ReLU", 1)
  if self.inplace then
    check(C.tl_relu_(x))
    return x
  end
  check(C.tl_relu(x, out))
  return wrap(out[0])
end

local SiLU = Module:extend("SiLU")
SiLU.init, SiLU.extra_repr = inplace_option("SiLU"), inplace_repr
function SiLU:forward(x)
  check_tensor(x, "SiLU", 1)
  if self.inplace then
    check(C.tl_silu_(x))
    return x
  end
  check(C.tl_silu(x, out))
  return wrap(out[0])
end

local GELU = Module:extend("GELU")
--- {approximate="none"} is exact, "tanh" the approximation that GPT-2 uses.
function GELU:init(options)
  self.approximate = base.options("GELU", options, { approximate = "none" }).approximate
  if self.approximate ~= "none" and self.approximate ~= "tanh" then
    base.fail("GELU: option 'approximate' is 'none' or 'tanh', got '" .. tostring(self.approximate) .. "'")
  end
end
function GELU:forward(x)
  check_tensor(x, "GELU", 1)
  if self.approximate == "tanh" then check(C.tl_gelu_tanh(x, out)) else check(C.tl_gelu(x, out)) end
  return wrap(out[0])
end
function GELU:extra_repr() return self.approximate == "tanh" and "approximate=tanh" or "" end

local function no_options(name)
  return function(_, extra) base.no_more(name, extra) end
end

local Tanh = Module:extend("Tanh")
Tanh.init = no_options("Tanh")
function Tanh:forward(x)
  check_tensor(x, "Tanh", 1)
  check(C.tl_tanh(x, out))
  return wrap(out[0])
end

local Sigmoid = Module:extend("Sigmoid")
Sigmoid.init = no_options("Sigmoid")
function Sigmoid:forward(x)
  check_tensor(x, "Sigmoid", 1)
  check(C.tl_sigmoid(x, out))
  return wrap(out[0])
end

local LeakyReLU = Module:extend("LeakyReLU")
--- x where it is positive, negative_slope (0.01) times x elsewhere.
function LeakyReLU:init(options)
  self.negative_slope = base.options("LeakyReLU", options, { negative_slope = 0.01 }).negative_slope
end
function LeakyReLU:forward(x)
  check_tensor(x, "LeakyReLU", 1)
  check(C.tl_leaky_relu(x, self.negative_slope, out))
  return wrap(out[0])
end
function LeakyReLU:extra_repr() return ("negative_slope=%g"):format(self.negative_slope) end

local ELU = Module:extend("ELU")
--- x where it is positive, alpha (1) times exp(x) - 1 elsewhere.
function ELU:init(options) self.alpha = base.options("ELU", options, { alpha = 1 }).alpha end
function ELU:forward(x)
  check_tensor(x, "ELU", 1)
  check(C.tl_elu(x, self.alpha, out))
  return wrap(out[0])
end
function ELU:extra_repr() return ("alpha=%g"):format(self.alpha) end

local function set_dim(name)
  return function(self, dim, extra)
    base.no_more(name, extra)
    if type(dim) == "table" then dim = base.options(name, dim, { dim = base.optional }).dim end
    self.dim = dim
    rawset(self, "_position", base.position(dim, name))
  end
end
local function dim_repr(self) return ("dim=%d"):format(self.dim) end

local Softmax = Module:extend("Softmax")
Softmax.init, Softmax.extra_repr = set_dim("Softmax"), dim_repr
function Softmax:forward(x)
  check_tensor(x, "Softmax", 1)
  check(C.tl_softmax(x, self._position, out))
  return wrap(out[0])
end

local LogSoftmax = Module:extend("LogSoftmax")
LogSoftmax.init, LogSoftmax.extra_repr = set_dim("LogSoftmax"), dim_repr
function LogSoftmax:forward(x)
  check_tensor(x, "LogSoftmax", 1)
  check(C.tl_log_softmax(x, self._position, out))
  return wrap(out[0])
end

activation.ReLU, activation.SiLU, activation.GELU, activation.Tanh, activation.Sigmoid = ReLU, SiLU, GELU, Tanh, Sigmoid
activation.LeakyReLU, activation.ELU, activation.Softmax, activation.LogSoftmax = LeakyReLU, ELU, Softmax, LogSoftmax
return activation
