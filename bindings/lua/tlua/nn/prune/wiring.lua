-- wiring.lua: how the channels of a model hang together, read off the trace of one forward pass.
--
-- A value is a tensor at one time of the pass. Its channels, along one axis, belong to units: what must leave together.
-- Linear and Conv make new units; BatchNorm, activations, pooling and Flatten hand them on, an addition joins those of
-- its operands, cat lines them up, a grouped convolution joins the inputs and outputs of each group. A value without an
-- axis is one whose channels have to stay, for a reason that its units (if it had some) got: they are blocked.
-- A channel is `fixed` if nothing that the model is given changes it: its weights are zero.
local base = require "tlua.base"
local registry = require "tlua.nn.registry"
local C, address = base.C, base.address

local wiring = {}

-- ---- units ----

local function find(u)
  while u.parent do
    if u.parent.parent then u.parent = u.parent.parent end
    u = u.parent
  end
  return u
end
wiring.find = find

local function block(u, reason)
  u = find(u)
  u.blocked = u.blocked or reason
end

local function join(a, b)
  a, b = find(a), find(b)
  if a == b then return end
  b.parent = a
  a.blocked = a.blocked or b.blocked
end

local function new_units(n)
  local list = {}
  for i = 1, n do list[i] = {} end
  return list
end

local function block_all(value, reason)
  for _, u in ipairs(value.units or {}) do block(u, reason) end
end

local function join_all(a, b)
  for i = 1, #a do join(a[i], b[i]) end
end

-- ---- values ----

local function shape_of(t)
  local shape = {}
  for d = 1, C.tl_ndim(t) do shape[d] = C.tl_size(t, d - 1) end
  return shape
end

local function new_value(t, axis, units, fixed)
  return { tensor = t, shape = shape_of(t), axis = axis, units = units, fixed = fixed, readers = 0 }
end

local function is_plain(value) return value.axis == nil end

local function same_shape(a, b)
  if #a ~= #b then return false end
  for d = 1, #a do
    if a[d] ~= b[d] then return false end
  end
  return true
end

local function product(list, first, last)
  local n = 1
  for d = first, last do n = n * list[d] end
  return n
end

-- The constant of every channel (nil where it differs between places), read from what the pass computed.
local function constants(value)
  local n = value.shape[value.axis]
  local rows = value.tensor:detach():to("float64"):transpose(1, value.axis):reshape(n, -1)
  if rows:size(2) == 0 then return {} end
  local low, high = rows:min(2):tolist(), rows:max(2):tolist()
  local list = {}
  for c = 1, n do
    local k = (low[c] + high[c]) / 2
    if high[c] - low[c] <= 1e-6 * math.max(1, math.abs(k)) then list[c] = k end
  end
  return list
end

--- The constants of a value's fixed channels, by channel; a channel that is no constant has none.
function wiring.constants(value)
  if not value.constants then
    local any = false
    for _, f in ipairs(value.fixed) do any = any or f end
    value.constants = any and not value.overwritten and constants(value) or {}
  end
  return value.constants
end

-- ---- layers ----

--- Which weights of a Linear or Conv are not zero: a matrix (outputs, inputs of a group) of 0 and 1, float32.
function wiring.used_weights(m)
  local w = m.weight:detach():ne(0)
  if C.tl_ndim(w) > 2 then w = w:flatten(3, -1):any(3) end
  return w:to("float32")
end

local function to_vector(flags, wanted, device)
  local list = {}
  for i, f in ipairs(flags) do list[i] = f == wanted and 1 or 0 end
  return base.tl.tensor(list, { device = device })
end

-- Outputs of a layer that depend on fixed inputs only.
local function fixed_outputs(layer, x)
  local fixed, groups = {}, layer.groups
  if groups == 1 and not is_plain(x) then
    local counts = layer.used:matmul(to_vector(x.fixed, false, layer.used.device)):tolist()
    for o, n in ipairs(counts) do fixed[o] = n == 0 end
    return fixed
  end
  local used = groups == 1 and layer.used:any(2):tolist() or layer.used:tolist()
  local outputs, inputs = layer.outputs / groups, layer.inputs / groups
  for o = 1, layer.outputs do
    if groups == 1 then
      fixed[o] = not used[o]
    else
      fixed[o] = true
      local first = math.floor((o - 1) / outputs) * inputs
      for i = 1, inputs do
        if used[o][i] ~= 0 and (is_plain(x) or not x.fixed[first + i]) then fixed[o] = false end
      end
    end
  end
  return fixed
end

local Wiring = {}
Wiring.__index = Wiring

function Wiring:name_of(m) return self.names[m] or m:label() end

function Wiring:value_of(t)
  local key = address(t)
  local value = self.now[key]
  if not value then
    value = new_value(t)
    self.now[key] = value
  end
  return value
end

function Wiring:give(t, axis, units, fixed)
  local key = address(t)
  if self.now[key] then self.now[key].overwritten = true end
  local value = new_value(t, axis, units, fixed)
  self.now[key] = value
  self.values[#self.values + 1] = value
  return value
end

-- An operation that this file cannot see through: whatever it reads stays as it is.
function Wiring:stop(op, reason)
  reason = reason or ("%s reads all of its channels"):format(op.name)
  for _, t in ipairs(op.inputs) do
    local value = self:value_of(t)
    block_all(value, reason)
    self.locked[address(t)] = reason
  end
  for _, t in ipairs(op.outputs) do self:give(t) end
end

-- The input of a layer, whose channels must be along `axis`; else they stay.
local function layer_input(value, axis, name)
  if is_plain(value) or value.axis == axis then return value end
  block_all(value, name .. " takes another of its dims for the channels")
  return new_value(value.tensor)
end

local function join_groups(layer, x)
  local inputs, outputs = layer.inputs / layer.groups, layer.outputs / layer.groups
  for g = 0, layer.groups - 1 do
    local first = layer.units[g * outputs + 1]
    for o = 2, outputs do join(first, layer.units[g * outputs + o]) end
    for i = 1, inputs do
      if is_plain(x) then block(first, "the inputs of its group have to stay")
      else join(first, x.units[g * inputs + i]) end
    end
  end
end

-- A layer that is used again gets the same channels of another value.
local function join_inputs(layer, x)
  local former = layer.input
  if is_plain(former) and is_plain(x) then return end
  local reason = layer.name .. " is also used on channels that have to stay"
  if is_plain(former) then block_all(x, reason)
  elseif is_plain(x) then block_all(former, reason)
  else join_all(former.units, x.units) end
end

function Wiring:layer_of(m, x, outputs, inputs)
  local layer = self.layers[m]
  if layer then
    join_inputs(layer, x)
    layer.uses = layer.uses + 1
    return layer
  end
  layer = {
    module = m, name = self:name_of(m), uses = 1, input = x, outputs = outputs, inputs = inputs,
    groups = m.groups or 1, units = new_units(outputs), used = wiring.used_weights(m),
  }
  self.layers[m] = layer
  self.order[#self.order + 1] = layer
  return layer
end

-- Linear and Conv: inputs x, weight, bias
function Wiring:weighted(op)
  local m = op.owner
  local linear = op.name == "linear"
  local x = self:value_of(op.inputs[1])
  x = layer_input(x, linear and #x.shape or 2, self:name_of(m))
  local y = op.outputs[1]
  local axis = linear and C.tl_ndim(y) or 2
  local w = m.weight
  local layer = self:layer_of(m, x, C.tl_size(w, 0), C.tl_size(w, 1) * (m.groups or 1))
  if layer.groups > 1 then join_groups(layer, x) end
  local fixed = fixed_outputs(layer, x)
  local value = self:give(y, axis, layer.units, fixed)
  if layer.uses == 1 then layer.output = value end
  if layer.groups == 1 and not is_plain(x) then self.sites[#self.sites + 1] = { layer = layer, x = x } end
end

function Wiring:batch_norm(op)
  local m = op.owner
  local x = layer_input(self:value_of(op.inputs[1]), 2, self:name_of(m))
  if is_plain(x) then
    self.plain_norms[m] = true
    local former = self.norms[m]
    if former then for _, u in ipairs(former.units) do block(u, former.name .. " is also used elsewhere") end end
    return self:give(op.outputs[1])
  end
  local norm = self.norms[m]
  if norm then join_all(norm.units, x.units) else
    norm = { module = m, name = self:name_of(m), units = x.units }
    self.norms[m] = norm
    self.order[#self.order + 1] = norm
  end
  if self.plain_norms[m] then block_all(x, norm.name .. " is also used elsewhere") end
  local fixed, zero = {}, m.weight and m.weight:detach():eq(0):tolist() or {}
  for c, f in ipairs(x.fixed) do fixed[c] = f or (zero[c] == true or zero[c] == 1) end
  self:give(op.outputs[1], 2, x.units, fixed)
end

-- ---- operations that hand channels on ----

function Wiring:pass(op)
  local x = self:value_of(op.inputs[1])
  self:give(op.outputs[1], x.axis, x.units, x.fixed)
end

local function broadcast_axis(value, shape) return value.axis and value.axis + #shape - #value.shape end

-- What a binary operation makes of a channel: constant if both are, or if one is 0 in a product.
local function combined(op, a, b)
  local fixed = {}
  local product_op = op.name == "mul"
  local ka, kb = product_op and wiring.constants(a) or {}, product_op and wiring.constants(b) or {}
  for c = 1, #a.fixed do
    local zero = (a.fixed[c] and ka[c] == 0) or (b.fixed[c] and kb[c] == 0)
    fixed[c] = (a.fixed[c] and b.fixed[c]) or zero
  end
  return fixed
end

-- b has no axis: if it is one number a channel of a, or more, a's channels must stay.
function Wiring:with_plain(op, a, b, shape)
  local axis = broadcast_axis(a, shape)
  local at = axis - (#shape - #b.shape)
  if at >= 1 and b.shape[at] ~= 1 then
    block_all(a, ("%s combines it with channels that have to stay"):format(op.name))
    return self:give(op.outputs[1])
  end
  local fixed, k = {}, op.name == "mul" and wiring.constants(a) or {}
  for c, f in ipairs(a.fixed) do fixed[c] = f and k[c] == 0 end
  self:give(op.outputs[1], axis, a.units, fixed)
end

function Wiring:binary(op)
  local shape = shape_of(op.outputs[1])
  local a, b = self:value_of(op.inputs[1]), self:value_of(op.inputs[2])
  if is_plain(a) then a, b = b, a end
  if is_plain(a) then return self:give(op.outputs[1]) end
  if is_plain(b) then return self:with_plain(op, a, b, shape) end
  local axis = broadcast_axis(a, shape)
  if axis ~= broadcast_axis(b, shape) or #a.units ~= #b.units then return self:stop(op) end
  join_all(a.units, b.units)
  self:give(op.outputs[1], axis, a.units, combined(op, a, b))
end

function Wiring:pointwise(op)
  local shape = shape_of(op.outputs[1])
  if #op.inputs == 2 then return self:binary(op) end
  if #op.inputs == 1 and same_shape(shape, shape_of(op.inputs[1])) then return self:pass(op) end
  self:stop(op)
end

function Wiring:pool(op)
  local x = self:value_of(op.inputs[1])
  if is_plain(x) or (x.axis == 2 and #x.shape == 4) then return self:pass(op) end
  self:stop(op)
end

-- Where the channels of `shape` at `axis` are after a reshape to `new`: the new axis and how many entries a channel has
-- there (Flatten gives a channel all its places).
local function reshaped_axis(shape, axis, new)
  local before, channels = product(shape, 1, axis - 1), shape[axis]
  local after = product(shape, axis + 1, #shape)
  local n = 1
  for d = 1, #new do
    local each = new[d] / channels
    if n == before and each >= 1 and each % 1 == 0 and after % each == 0 then return d, each end
    n = n * new[d]
  end
end

function Wiring:view(op)
  local x = self:value_of(op.inputs[1])
  if is_plain(x) then return self:give(op.outputs[1]) end
  local new = shape_of(op.outputs[1])
  local axis, each = nil, nil
  if product(new, 1, #new) > 0 then axis, each = reshaped_axis(x.shape, x.axis, new) end
  if not axis then return self:stop(op, "a reshape mixes its channels") end
  local units, fixed = {}, {}
  for i = 1, new[axis] do
    local c = math.floor((i - 1) / each) + 1
    units[i], fixed[i] = x.units[c], x.fixed[c]
  end
  self:give(op.outputs[1], axis, units, fixed)
end

-- Could (N, C) have come from other dims of this shape, too?
local function ambiguous(shape, new)
  local pairs_found = 0
  for a = 1, #shape do
    for b = a + 1, #shape do
      if shape[a] == new[1] and shape[b] == new[2] then pairs_found = pairs_found + 1 end
    end
  end
  return pairs_found > 1
end

-- A mean or sum over everything behind the channels: (N, C, ..) -> (N, C) or (N, C, 1, ..)
function Wiring:reduce(op)
  local x, new = self:value_of(op.inputs[1]), shape_of(op.outputs[1])
  if is_plain(x) then return self:give(op.outputs[1]) end
  local fits = x.axis == 2 and #x.shape > 2 and new[1] == x.shape[1] and new[2] == x.shape[2]
  for d = 3, #new do fits = fits and new[d] == 1 end
  if #new == 2 then fits = fits and not ambiguous(x.shape, new) else fits = fits and #new == #x.shape end
  if not fits then return self:stop(op) end
  self:give(op.outputs[1], 2, x.units, x.fixed)
end

local function joined_dim(op)
  local new, first = shape_of(op.outputs[1]), shape_of(op.inputs[1])
  local dim
  for d = 1, #new do
    if new[d] ~= first[d] then
      if dim then return nil end
      dim = d
    end
  end
  return dim
end

local function all_false(n)
  local list = {}
  for i = 1, n do list[i] = false end
  return list
end

function Wiring:cat_channels(op, parts, axis)
  local units, fixed = {}, {}
  for _, part in ipairs(parts) do
    local n = part.shape[axis]
    local these = part.units
    if is_plain(part) then
      these = new_units(n)
      for _, u in ipairs(these) do block(u, "it comes from channels that have to stay") end
    end
    local flags = part.fixed or all_false(n)
    for i = 1, n do units[#units + 1], fixed[#fixed + 1] = these[i], flags[i] end
  end
  self:give(op.outputs[1], axis, units, fixed)
end

function Wiring:cat(op)
  local dim, axis = joined_dim(op), nil
  local parts, agree, any_plain = {}, true, false
  for i, t in ipairs(op.inputs) do
    parts[i] = self:value_of(t)
    if is_plain(parts[i]) then any_plain = true
    elseif axis and axis ~= parts[i].axis then agree = false
    else axis = parts[i].axis end
  end
  if not axis then return self:give(op.outputs[1]) end
  if not agree or not dim then return self:stop(op) end
  if dim == axis then return self:cat_channels(op, parts, axis) end
  if any_plain then return self:stop(op) end
  local fixed = parts[1].fixed
  for i = 2, #parts do
    join_all(parts[1].units, parts[i].units)
    fixed = combined(op, { fixed = fixed }, parts[i])
  end
  self:give(op.outputs[1], axis, parts[1].units, fixed)
end

-- ---- the walk over the trace ----

local handlers = {
  linear = "weighted", conv1d = "weighted", conv2d = "weighted", batch_norm = "batch_norm",
  max_pool2d = "pool", avg_pool2d = "pool", adaptive_avg_pool2d = "pool", view = "view", cat = "cat",
  mean = "reduce", sum = "reduce", amax = "reduce", to = "pass", dropout = "pass",
}
for _, row in ipairs(base.ops) do handlers[row[1]] = handlers[row[1]] or "pointwise" end

local function owned(op, handler)
  if handler == "weighted" then
    return op.owner and op.owner.weight ~= nil and address(op.inputs[2]) == address(op.owner.weight)
  end
  return handler ~= "batch_norm" or op.owner ~= nil
end

function Wiring:visit(op)
  local handler = handlers[op.name]
  for _, t in ipairs(op.inputs) do
    local value = self:value_of(t)
    value.readers = value.readers + 1
  end
  if not handler then return self:stop(op) end
  if not owned(op, handler) then return self:stop(op, op.name .. " is called outside of a layer that could be cut") end
  self[handler](self, op)
end

-- Parameters that something else reads as well keep their shape.
function Wiring:apply_locks()
  for _, layer in ipairs(self.order) do
    registry.each_own(layer.module, "parameter", function(_, p)
      local reason = self.locked[address(p)]
      if not reason then return end
      for _, u in ipairs(layer.units) do block(u, reason) end
      if layer.input then block_all(layer.input, reason) end
    end)
  end
end

--- ops: {name=, inputs={tensors}, outputs={tensors}, owner=the Linear, Conv or BatchNorm layer that called it}, in
--- order; result: what the model returned; names: module -> name. Gives layers (order), sites where a layer reads
--- channels, and blocked units.
function wiring.read(ops, result, names)
  local self = setmetatable({
    now = {}, values = {}, layers = {}, norms = {}, plain_norms = {}, order = {}, sites = {}, locked = {},
    names = names,
  }, Wiring)
  for _, op in ipairs(ops) do self:visit(op) end
  block_all(self:value_of(result), "it is the model's output")
  for _, value in ipairs(self.values) do
    if value.readers == 0 then block_all(value, "what reads it was not recorded") end
  end
  self:apply_locks()
  return self
end

return wiring
