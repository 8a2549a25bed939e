-- cut.lua: makes the layers of a wiring as small as the choice allows, in place.
local base = require "tlua.base"
local registry = require "tlua.nn.registry"
local support = require "tlua.nn.support"
local wiring = require "tlua.nn.prune.wiring"
local C, check, find = base.C, base.check, wiring.find
local tl = base.tl

local Cut = {}
Cut.__index = Cut

-- 0-based places of the units that stay
local function staying(units, gone)
  local ids = {}
  for i, u in ipairs(units) do
    if not gone[find(u)] then ids[#ids + 1] = i - 1 end
  end
  return ids
end

local function cut_tensor(t, dim, ids)
  if #ids == C.tl_size(t, dim - 1) then return t end
  return t:detach():index_select(dim, tl.tensor(ids, { dtype = "int64", device = base.device_name(C.tl_device_of(t)) }))
end

-- Cuts a field of a module (and its mask, if it had one) along dim.
function Cut:field(m, name, dim, ids)
  local t = m[name]
  if t == nil then return end
  local smaller = cut_tensor(t, dim, ids)
  if m._kinds[name] == "buffer" then rawset(m, name, smaller)
  elseif smaller ~= t then check(C.tl_set_data(t, smaller)) end
  local masks = self.masks[m]
  if masks and masks[name] then masks[name] = cut_tensor(masks[name], dim, ids) end
end

-- The constants of inputs that leave, through the layer's weights, into its bias.
function Cut:fold(site)
  local m = site.layer.module
  local constants, vector, any = wiring.constants(site.x), {}, false
  for c, u in ipairs(site.x.units) do
    local leaves = self.gone[find(u)] and site.x.fixed[c]
    vector[c] = leaves and constants[c] or 0
    any = any or vector[c] ~= 0
  end
  if not any then return end
  local w = m.weight:detach():to("float64")
  if C.tl_ndim(w) > 2 then w = w:flatten(3, -1):sum(3) end
  local k = tl.tensor(vector, { dtype = "float64", device = base.device_name(C.tl_device_of(w)) })
  local more = w:matmul(k)
  local dtype = base.dtype_names[C.tl_dtype_of(m.weight)]
  if m.bias then check(C.tl_set_data(m.bias, (m.bias:detach():to("float64") + more):to(dtype)))
  else m.bias = support.as_parameter(more:to(dtype)) end
  if self.masks[m] then self.masks[m].bias = nil end -- what is folded in must not be masked
end

function Cut:weighted(layer)
  local m, gone = layer.module, self.gone
  local outputs = staying(layer.units, gone)
  if layer.groups == 1 and layer.input.units then
    local inputs = staying(layer.input.units, gone)
    self:field(m, "weight", 2, inputs)
    layer.inputs_left = #inputs
  end
  self:field(m, "weight", 1, outputs)
  self:field(m, "bias", 1, outputs)
  local inputs_left = layer.inputs_left or layer.inputs
  if layer.groups > 1 then
    m.groups = #outputs / (layer.outputs / layer.groups)
    inputs_left = m.groups * layer.inputs / layer.groups
  end
  if m.in_features then m.in_features, m.out_features = inputs_left, #outputs
  else m.in_channels, m.out_channels = inputs_left, #outputs end
end

function Cut:norm(norm)
  local m = norm.module
  local ids = staying(norm.units, self.gone)
  for _, name in ipairs { "weight", "bias", "running_mean", "running_var" } do self:field(m, name, 1, ids) end
  m.num_features = #ids
end

local cut = {}

--- masks: module -> name -> mask of the parameters that were pruned, cut along with them.
function cut.apply(w, gone, masks)
  local self = setmetatable({ gone = gone, masks = masks }, Cut)
  for _, site in ipairs(w.sites) do self:fold(site) end
  for _, layer in ipairs(w.order) do
    if layer.used then self:weighted(layer) else self:norm(layer) end
  end
end

--- The number of a model's parameters and the bytes of its parameters and buffers.
function cut.measure(m)
  local parameters, bytes = 0, 0
  for _, p in ipairs(m:parameters()) do parameters = parameters + C.tl_numel(p) end
  registry.each_state(m, function(_, t) bytes = bytes + C.tl_numel(t) * tonumber(C.tl_dtype_size(C.tl_dtype_of(t))) end)
  return parameters, bytes
end

return cut
