-- init.lua: tl.optim: the optimizers. The arithmetic is the engine's (engine/train); a step is one call.
local base = require "tlua.base"
local group = require "tlua.optim.group"

local ffi, C, check, fail = base.ffi, base.C, base.check, base.fail
local wrap, out, is_tensor = base.wrap, base.out, base.is_tensor

local optim = {}

local Optimizer = {}
local metatable = { __index = Optimizer }

local progress = ffi.new("double[2]")
local tensor_array = ffi.typeof("tl_tensor *[?]")

-- ---- construction ----

local function params_of(op, list)
  if is_tensor(list) then return { list } end
  if type(list) ~= "table" or list.parameters then
    local got = type(list) == "table" and "a module" or base.kind(list)
    fail(("%s: parameters are a list of tensors, as model:parameters() gives, got %s"):format(op, got))
  end
  if #list == 0 then fail(op .. ": the list of parameters is empty") end
  local params, seen = {}, {}
  for i = 1, #list do
    local p = list[i]
    if not is_tensor(p) then fail(("%s: parameter %d must be a tensor, got %s"):format(op, i, type(p))) end
    local address = base.address(p)
    if not seen[address] then
      seen[address] = true
      params[#params + 1] = p
    end
  end
  return params
end

--- Adds a group {params=, lr=, ...}; what it does not say is the optimizer's.
function Optimizer:add_param_group(given)
  local class = self.class
  if type(given) ~= "table" or given.params == nil then
    fail(class.name .. ": a group is a table {params=..., lr=...}")
  end
  local options = group.copy(self.options)
  for name, value in pairs(given) do
    if name ~= "params" then
      group.check_name(class, name)
      group.set(class.name, options, name, value)
    end
  end
  local params = params_of(class.name, given.params)
  local place = ffi.new("tl_param_group *[1]")
  check(C.tl_optimizer_add_group(self.handle, #params, tensor_array(#params, params), options, place))
  self.param_groups[#self.param_groups + 1] = group.new(class, self.handle, place[0], params)
end

local function new(class, params, given)
  local op = class.name
  if given ~= nil and type(given) ~= "table" then fail(op .. ": options are a table {lr=...}, got " .. type(given)) end
  local options = ffi.new("tl_param_group")
  check(C.tl_optimizer_defaults(class.kind, options))
  for name, value in pairs(given or {}) do
    group.check_name(class, name)
    group.set(op, options, name, value)
  end
  local handle = ffi.new("tl_optimizer *[1]")
  check(C.tl_optimizer_new(class.kind, handle))
  local self = setmetatable({
    class = class,
    options = options,
    handle = ffi.gc(handle[0], C.tl_optimizer_free),
    param_groups = {},
  }, metatable)
  local grouped = type(params) == "table" and type(params[1]) == "table"
  if params == nil then params_of(op, nil) end
  if not grouped then params = { { params = params } } end
  for _, g in ipairs(params) do self:add_param_group(g) end
  return self
end

-- ---- training ----

local function step_with(self, closure)
  local former = C.tl_set_grad_enabled(true)
  local ok, loss = pcall(closure)
  C.tl_set_grad_enabled(former)
  if not ok then error(loss, 0) end
  check(C.tl_optimizer_step(self.handle))
  return loss
end

--- Updates every parameter that has a gradient. closure() computes the loss anew before that; it is returned.
function Optimizer:step(closure)
  if closure ~= nil then return step_with(self, closure) end
  check(C.tl_optimizer_step(self.handle))
end

--- Forgets the gradients; zero_grad(false) fills them with zeros instead.
function Optimizer:zero_grad(set_to_none)
  if type(set_to_none) == "table" then
    set_to_none = base.options("zero_grad", set_to_none, { set_to_none = true }).set_to_none
  end
  check(C.tl_optimizer_zero_grad(self.handle, set_to_none ~= false))
end

-- ---- state ----

local function state_of(self, i)
  check(C.tl_optimizer_progress(self.handle, i, progress, progress + 1))
  if progress[0] == 0 then return nil end
  local state = { step = progress[0] }
  if self.class.kind == C.TL_NADAM then state.mu_product = progress[1] end
  for k, name in ipairs(self.class.states) do
    check(C.tl_optimizer_state(self.handle, i, k - 1, out))
    if out[0] ~= nil then state[name] = wrap(out[0]) end
    check(C.tl_optimizer_absmax(self.handle, i, k - 1, out))
    if out[0] ~= nil then state[name .. "_absmax"] = wrap(out[0]) end
  end
  return state
end

--- {state = {[i] = {step=, exp_avg=...}}, param_groups = {{lr=, ..., params={i, ...}}}}: i counts the parameters over
--- all groups, from 1. 8-bit state comes as codes (exp_avg) and each block's largest value (exp_avg_absmax). The
--- tensors are the optimizer's own, not copies.
function Optimizer:state_dict()
  local dict = { state = {}, param_groups = {} }
  local i = 0
  for k, g in ipairs(self.param_groups) do
    local saved = { params = {} }
    for _, name in ipairs(self.class.options) do saved[name] = g[name] end
    for j = 1, #g.params do
      i = i + 1
      saved.params[j] = i
      dict.state[i] = state_of(self, i - 1)
    end
    dict.param_groups[k] = saved
  end
  return dict
end

local function number(op, name, value)
  if is_tensor(value) then
    check(C.tl_item(value, base.number))
    return base.number[0]
  end
  if type(value) ~= "number" then fail(("%s: '%s' must be a number, got %s"):format(op, name, type(value))) end
  return value
end

local function same_shape(a, b)
  if C.tl_ndim(a) ~= C.tl_ndim(b) then return false end
  for d = 0, C.tl_ndim(a) - 1 do
    if C.tl_size(a, d) ~= C.tl_size(b, d) then return false end
  end
  return true
end

-- PyTorch's choices of an implementation: they change no number and are not kept here.
local elsewhere = { foreach = true, fused = true, capturable = true, differentiable = true }

-- Do the groups fit? The list of {state, parameter}, in the order of the parameters.
local function match(self, op, dict)
  if type(dict) ~= "table" or type(dict.state) ~= "table" or type(dict.param_groups) ~= "table" then
    fail(op .. ": an optimizer's state is a table {state=, param_groups=}")
  end
  if #dict.param_groups ~= #self.param_groups then
    fail(("%s: the state has %d groups, the optimizer %d"):format(op, #dict.param_groups, #self.param_groups))
  end
  local pairs_, known = {}, { step = true, mu_product = true }
  for _, name in ipairs(self.class.states) do known[name] = true end
  local function absmax_of(name) return self.class.has.state_dtype and known[name:match("^(.*)_absmax$")] end
  for k, g in ipairs(self.param_groups) do
    local saved = dict.param_groups[k]
    if type(saved.params) ~= "table" or #saved.params ~= #g.params then
      fail(("%s: group %d of the state has %d parameters, the optimizer's %d"):format(op, k, #(saved.params or {}),
        #g.params))
    end
    for name, value in pairs(saved) do
      if name ~= "params" and not elsewhere[name] then
        group.check_name(self.class, name)
        group.set(op, group.copy(self.options), name, value)
      end
    end
    for j, id in ipairs(saved.params) do
      local state = dict.state[id]
      for name, value in pairs(state or {}) do
        if not known[name] and not absmax_of(name) then
          fail(("%s: the state of parameter %s has an unknown entry '%s'"):format(op, id, name))
        end
        if absmax_of(name) then
          local codes = state[name:match("^(.*)_absmax$")]
          if not is_tensor(value) or not is_tensor(codes) then
            fail(("%s: '%s' of parameter %s needs the codes that belong to it"):format(op, name, id))
          end
        elseif name == "step" or name == "mu_product" then
          number(op, name, value)
        elseif not is_tensor(value) or not same_shape(value, g.params[j]) then
          fail(("%s: '%s' of parameter %s does not have the parameter's shape"):format(op, name, id))
        elseif not value:is_floating_point() and state[name .. "_absmax"] == nil then
          fail(("%s: '%s' of parameter %s is %s: codes need their '%s_absmax'"):format(op, name, id, value.dtype, name))
        end
      end
      pairs_[#pairs_ + 1] = state or false
    end
  end
  return pairs_
end

--- Takes over a state_dict(): options of the groups and copies of the tensors. What does not fit is an error before
--- anything changes.
function Optimizer:load_state_dict(dict)
  local op, handle = self.class.name, self.handle
  local states = match(self, op, dict)
  for k, g in ipairs(self.param_groups) do
    for name, value in pairs(dict.param_groups[k]) do
      if name ~= "params" and not elsewhere[name] then g[name] = value end
    end
  end
  for i, state in ipairs(states) do
    state = state or {}
    for k, name in ipairs(self.class.states) do
      local absmax = state[name .. "_absmax"]
      if absmax then check(C.tl_optimizer_set_codes(handle, i - 1, k - 1, state[name], absmax)) else
        check(C.tl_optimizer_set_state(handle, i - 1, k - 1, state[name]))
      end
    end
    check(C.tl_optimizer_set_progress(handle, i - 1, number(op, "step", state.step or 0),
      number(op, "mu_product", state.mu_product or 1)))
  end
end

function metatable:__tostring()
  local lines = { self.class.name .. " (" }
  for i, g in ipairs(self.param_groups) do
    lines[#lines + 1] = ("  group %d: %d parameters"):format(i, #g.params)
    for _, name in ipairs(self.class.options) do
      local value = g[name]
      if name == "betas" then value = ("{%g, %g}"):format(value[1], value[2]) end
      if value ~= nil then lines[#lines + 1] = ("    %s: %s"):format(name, tostring(value)) end
    end
  end
  return table.concat(lines, "\n") .. "\n)"
end

-- ---- the classes ----

local function define(kind, options)
  options[#options + 1] = "stochastic_rounding"
  options[#options + 1] = "initial_lr"
  local class = { kind = kind, name = ffi.string(C.tl_optimizer_name(kind)), options = options, has = {}, states = {} }
  for _, name in ipairs(options) do class.has[name] = true end
  local name = C.tl_optimizer_state_name(kind, 0)
  while name ~= nil do
    class.states[#class.states + 1] = ffi.string(name)
    name = C.tl_optimizer_state_name(kind, #class.states)
  end
  optim[class.name] = function(params, given) return new(class, params, given) end
end

define(C.TL_SGD, { "lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize" })
for _, kind in ipairs { C.TL_ADAM, C.TL_ADAMW } do
  define(kind, { "lr", "betas", "eps", "weight_decay", "amsgrad", "maximize", "decoupled_weight_decay", "state_dtype" })
end
define(C.TL_RMSPROP, { "lr", "alpha", "eps", "weight_decay", "momentum", "centered", "maximize" })
define(C.TL_ADAGRAD, { "lr", "lr_decay", "weight_decay", "initial_accumulator_value", "eps", "maximize" })
define(C.TL_NADAM, { "lr", "betas", "eps", "weight_decay", "momentum_decay", "decoupled_weight_decay", "maximize" })
define(C.TL_RADAM, { "lr", "betas", "eps", "weight_decay", "decoupled_weight_decay", "maximize" })

--- Is x an optimizer, or one that drives another (ZeroRedundancy)?
function optim.is_optimizer(x)
  local its = getmetatable(x)
  return its == metatable or (type(its) == "table" and its.is_optimizer == true)
end

return base.namespace(optim, "optim", { lr_scheduler = "tlua.optim.lr_scheduler", ZeroRedundancy = "tlua.optim.zero" })
