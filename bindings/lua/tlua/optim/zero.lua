-- zero.lua: optim.ZeroRedundancy: optimizer state divided among ranks (ZeRO stage 1: Rajbhandari et al., SC 2020).
--
-- The parameters of a group lie in one flat tensor, of which each rank updates its part: gradients are averaged part by
-- part (reduce-scatter), an ordinary optimizer moves the rank's part, and the parts come together again (all-gather).
local base = require "tlua.base"
local dist = require "tlua.dist"

local tl, fail = base.tl, base.fail
local C = base.C

local NAME = "ZeroRedundancy"
local BLOCK = 256 -- elements that 8-bit state has one largest value for: a rank's part has whole blocks

local Zero = { is_optimizer = true } -- to schedulers and GradScaler, which work with `handle`
Zero.__index = Zero

-- ---- flat parameters ----

-- One dtype and device for all parameters of a group.
local function check_alike(params)
  for i, p in ipairs(params) do
    if not base.is_tensor(p) then fail(("%s: parameter %d must be a tensor, got %s"):format(NAME, i, base.kind(p))) end
    if p.dtype ~= params[1].dtype or p.device ~= params[1].device then
      local text = "%s: a group has one dtype and device; parameter %d is %s on %s, the first %s on %s"
      fail(text:format(NAME, i, p.dtype, p.device, params[1].dtype, params[1].device))
    end
  end
end

-- { params=, n= elements, flat= (padded so that it can be divided), shard= this rank's part, a leaf, of which there are
-- `per`: a multiple of `unit` elements }
local function flatten(params, unit)
  if #params == 0 then fail(NAME .. ": a group has no parameters") end
  check_alike(params)
  local n = 0
  for _, p in ipairs(params) do n = n + p:numel() end
  local size = dist.world_size()
  local per = math.ceil(n / size / unit) * unit
  local flat = tl.zeros(per * size, { dtype = params[1].dtype, device = params[1].device })
  local at = 1
  for _, p in ipairs(params) do
    local count = p:numel()
    if count > 0 then
      local part = flat:narrow(1, at, count)
      part:copy_(p.data:reshape(count))
      p.data = part:view(p.shape)
    end
    at = at + count
  end
  dist.broadcast(flat, 0)
  local shard = flat:narrow(1, dist.rank() * per + 1, per):detach() -- what loads weights into the model loads it, too
  shard.requires_grad = true
  return { params = params, n = n, flat = flat, per = per, shard = shard }
end

-- All gradients one after the other (zeros where there is none), and: is there any?
local function flat_gradient(group)
  local g = tl.zeros(group.flat:numel(), { dtype = group.flat.dtype, device = group.flat.device })
  local at, any = 1, false
  for _, p in ipairs(group.params) do
    local count = p:numel()
    if p.grad and count > 0 then
      g:narrow(1, at, count):copy_(p.grad:reshape(count))
      any = true
    end
    at = at + count
  end
  return g, any
end

local function own_part(group, flat) return flat:narrow(1, dist.rank() * group.per + 1, group.per) end

-- This rank's part of the mean gradient; nil where no rank has one.
local function reduce(group, averaged)
  local g, any = flat_gradient(group)
  if averaged then
    group.shard.grad = any and own_part(group, g):clone() or nil
    return
  end
  local here = tl.tensor({ any }, { device = "cpu" })
  group.shard.grad = dist.all_reduce(here, "max"):item() ~= 0 and dist.reduce_scatter(g, "mean") or nil
end

-- What one rank's part overflowed in, all are to find: an inf in their own. Nothing waits for the device.
local function share_overflow(group)
  local g = group.shard.grad
  if not g or group.per == 0 then return end
  local lost = dist.all_reduce(g:isfinite():all():logical_not():float(), "max")
  g:narrow(1, 1, 1):add_((lost / (1 - lost)):to(g.dtype)) -- 0 or inf
end

-- Every parameter's gradient becomes its part of the mean.
local function spread(group)
  if not group.shard.grad then return end
  local whole, at = dist.all_gather(group.shard.grad):view(group.flat:numel()), 1
  for _, p in ipairs(group.params) do
    if p:numel() > 0 then p.grad = whole:narrow(1, at, p:numel()):view(p.shape) end
    at = at + p:numel()
  end
  group.shard.grad = nil
end

-- ---- the optimizer ----

--- ZeroRedundancy(class, params, options): an optimizer of this class (optim.AdamW) whose state is divided among the
--- ranks. Gradients may be each rank's own (their mean is taken) or averaged already by DistributedDataParallel.
local function new(class, params, options)
  if not dist.is_initialized() then fail(NAME .. ": dist.init comes first") end
  if type(class) ~= "function" then fail(NAME .. ": argument 1 must be an optimizer such as optim.AdamW") end
  local groups = {}
  if type(params) ~= "table" or #params == 0 then fail(NAME .. ": the list of parameters is empty") end
  local lists = base.is_tensor(params[1]) and { { params = params } } or params
  local inner = {}
  tl.no_grad(function()
    for i, g in ipairs(lists) do
      local state = g.state_dtype or (type(options) == "table" and options.state_dtype)
      groups[i] = flatten(g.params, state == "int8" and BLOCK or 1)
      inner[i] = {}
      for key, value in pairs(g) do inner[i][key] = value end
      inner[i].params = { groups[i].shard }
    end
  end)
  local optimizer = class(inner, options)
  return setmetatable({
    groups = groups, inner = optimizer, handle = optimizer.handle, param_groups = optimizer.param_groups,
  }, Zero)
end

--- Leaves the mean of all ranks' gradients in every parameter, as DistributedDataParallel does, for clipping between
--- the last backward and step(). GradScaler's unscale_ does it, with `unscale` for the parts.
function Zero:average_gradients(unscale)
  tl.no_grad(function()
    for _, group in ipairs(self.groups) do
      reduce(group, self.averaged)
      if unscale then share_overflow(group) end
    end
    if unscale then unscale() end
    for _, group in ipairs(self.groups) do spread(group) end
  end)
  self.averaged = true
end

--- A step of which the optimizer's part is `move`: GradScaler's.
function Zero:step_by(move, scaled)
  tl.no_grad(function()
    for _, group in ipairs(self.groups) do
      reduce(group, self.averaged)
      if scaled then share_overflow(group) end
    end
    self.averaged = nil
    move()
    for _, group in ipairs(self.groups) do
      group.shard.grad = nil
      group.flat:copy_(dist.all_gather(group.shard.data):view(group.flat:numel()))
    end
  end)
end

--- One step of all ranks. Returns what the closure returns.
function Zero:step(closure)
  local loss = closure and tl.enable_grad(closure) or nil
  self:step_by(function() self.inner:step() end)
  return loss
end

function Zero:zero_grad(set_to_none)
  self.averaged = nil
  for _, group in ipairs(self.groups) do
    for _, p in ipairs(group.params) do
      if set_to_none == false and p.grad then p.grad:zero_() else p.grad = nil end
    end
  end
end

-- ---- checkpoints: state of the whole model, whatever the number of ranks ----

-- Of 8-bit state: a number for each block.
local function is_absmax(name) return name:find("_absmax$") ~= nil end

-- The names of a state's tensors in an order that is the same on every rank: pairs() has another in each
-- process.
local function tensor_names(state)
  local names = {}
  for name, value in pairs(state) do
    if base.is_tensor(value) then names[#names + 1] = name end
  end
  table.sort(names)
  return names
end

-- This rank's part of a whole state tensor, which is padded with zeros.
local function part_of(group, name, value)
  local n, per = group.n, group.per
  if is_absmax(name) then
    if per % BLOCK ~= 0 then fail(NAME .. ": this is 8-bit state: make the optimizer with {state_dtype=\"int8\"}") end
    n, per = math.ceil(n / BLOCK), per / BLOCK
  end
  if value:numel() ~= n then
    fail(("%s: '%s' has %d elements, the group %d"):format(NAME, name, value:numel(), n))
  end
  local whole = tl.zeros(per * dist.world_size(), { dtype = value.dtype })
  whole:narrow(1, 1, n):copy_(value)
  return whole:narrow(1, dist.rank() * per + 1, per):clone()
end

--- Called on every rank; every rank gets the whole state.
function Zero:state_dict()
  local dict = self.inner:state_dict()
  for i, group in ipairs(self.groups) do
    local state = dict.state[i] or {}
    for _, name in ipairs(tensor_names(state)) do
      local whole = dist.all_gather(state[name]):view(-1)
      state[name] = whole:narrow(1, 1, is_absmax(name) and math.ceil(group.n / BLOCK) or group.n):clone()
    end
  end
  return dict
end

function Zero:load_state_dict(dict)
  if type(dict) ~= "table" or type(dict.state) ~= "table" or type(dict.param_groups) ~= "table" then
    fail(NAME .. ": load_state_dict takes what state_dict() gave")
  end
  local mine = { param_groups = dict.param_groups, state = {} }
  for i, group in ipairs(self.groups) do
    local state = dict.state[i]
    mine.state[i] = state and {}
    for name, value in pairs(state or {}) do
      if base.is_tensor(value) and name ~= "step" and name ~= "mu_product" then value = part_of(group, name, value) end
      mine.state[i][name] = value
    end
  end
  self.inner:load_state_dict(mine)
end

function Zero:__tostring() return NAME .. " of " .. tostring(self.inner) end

--- Bytes of optimizer state that this rank holds.
function Zero:state_bytes()
  local bytes = 0
  for _, state in pairs(self.inner:state_dict().state) do
    for _, value in pairs(state) do
      if base.is_tensor(value) then bytes = bytes + value:numel() * tonumber(C.tl_dtype_size(C.tl_dtype_of(value))) end
    end
  end
  return bytes
end

return new
