-- sensitivity.lua: prune.sensitivity: what pruning costs, layer by layer.
local base = require "tlua.base"
local registry = require "tlua.nn.registry"
local masks = require "tlua.nn.prune.masks"
local C, fail = base.C, base.fail

local Sensitivity = {}
Sensitivity.__index = Sensitivity

function Sensitivity:__tostring()
  local lines = { ("%-24s"):format("unpruned: " .. ("%.4g"):format(self.unpruned)) }
  for _, amount in ipairs(self.amounts) do lines[1] = lines[1] .. ("%10.3g"):format(amount) end
  for _, row in ipairs(self) do
    local text = ("%-24s"):format(row.name)
    for _, amount in ipairs(self.amounts) do text = text .. ("%10.4g"):format(row[amount]) end
    lines[#lines + 1] = text
  end
  return table.concat(lines, "\n")
end

local function module_at(m, path)
  local found
  registry.each_module(m, function(name, below) if name == path then found = below end end)
  return found
end

-- The weights of two dims or more: what a layer multiplies by.
local function weights_of(m)
  local list = {}
  registry.each_module(m, function(prefix, below)
    local name = "weight"
    local p = masks.find(below, name) and masks.original(below, name) or rawget(below, name)
    if base.is_tensor(p) and below._kinds[name] ~= "buffer" and C.tl_ndim(p) >= 2 then
      list[#list + 1] = { prefix = prefix, name = name }
    end
  end)
  return list
end

local defaults = { amounts = base.optional, method = base.optional, dim = base.optional, n = base.optional }

--- sensitivity(model, evaluate, {amounts={0.1, 0.3, 0.5, 0.7, 0.9}, method=prune.l1_unstructured}): evaluate(copy) of
--- copies of the model in which one layer's weight is pruned by each amount. A list of {name=, [amount]=value}, with
--- unpruned and amounts; the model stays as it is. dim and n are handed on to ln_structured.
local function sensitivity(m, evaluate, options)
  local op = "sensitivity"
  if not registry.is_module(m) then fail(op .. ": argument 1 must be a module, got " .. base.kind(m)) end
  if type(evaluate) ~= "function" then
    fail(op .. ": argument 2 must be a function of a model, got " .. base.kind(evaluate))
  end
  local o = base.options(op, options, defaults)
  local amounts = o.amounts or { 0.1, 0.3, 0.5, 0.7, 0.9 }
  local method = o.method or require("tlua.nn.prune").l1_unstructured
  local rows = setmetatable({ amounts = amounts, unpruned = evaluate(m:clone()) }, Sensitivity)
  for _, place in ipairs(weights_of(m)) do
    local row = { name = place.prefix == "" and place.name or place.prefix .. "." .. place.name }
    for _, amount in ipairs(amounts) do
      local copy = m:clone()
      method(module_at(copy, place.prefix), place.name, { amount = amount, dim = o.dim, n = o.n })
      row[amount] = evaluate(copy)
    end
    rows[#rows + 1] = row
  end
  return rows
end

return sensitivity
