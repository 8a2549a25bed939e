-- collate.lua: samples become a batch.
local tl = require "tlua"
local base = require "tlua.base"
local fail = base.fail

local collate

local function same_kind(list, is, place)
  for i = 2, #list do
    if not is(list[i]) then
      fail(("DataLoader: %s is %s in sample 1 of the batch and %s in sample %d"):format(place, base.kind(list[1]),
        base.kind(list[i]), i))
    end
  end
end

local function collate_tensors(list, place)
  local first = table.concat(list[1].shape, "x")
  for i = 2, #list do
    local shape = table.concat(list[i].shape, "x")
    if shape ~= first then
      fail(("DataLoader: %s is (%s) in sample 1 of the batch and (%s) in sample %d: pass a `collate`"):format(
        place, first, shape, i))
    end
  end
  return tl.stack(list, 1)
end

local function collate_tables(list, place)
  local joined = {}
  for key in pairs(list[1]) do
    local column = {}
    for i, sample in ipairs(list) do
      if sample[key] == nil then
        fail(("DataLoader: %s.%s is missing in sample %d of the batch"):format(place, tostring(key), i))
      end
      column[i] = sample[key]
    end
    joined[key] = collate(column, place .. "." .. tostring(key))
  end
  return joined
end

local by_type = {
  number = function(list) return tl.tensor(list, { device = "cpu" }) end,
  boolean = function(list) return tl.tensor(list, { device = "cpu" }) end,
  string = function(list) return list end,
  table = collate_tables,
}

collate = function(list, place)
  local first = list[1]
  if base.is_tensor(first) then
    same_kind(list, base.is_tensor, place)
    return collate_tensors(list, place)
  end
  local kind = type(first)
  local join = by_type[kind]
  if not join then
    fail(("DataLoader: %s is %s: pass `collate` to join such values"):format(place, base.kind(first)))
  end
  same_kind(list, function(x) return type(x) == kind end, place)
  return join(list, place)
end

--- default_collate(samples): samples are a list of {value, ...}; returns one joined value for each. Tensors of one
--- shape are stacked, numbers become a tensor of the default dtype, booleans a bool tensor, strings a list, tables are
--- joined key by key.
local function default_collate(samples)
  local values = {}
  for k = 1, #samples[1] do
    local column = {}
    for i, sample in ipairs(samples) do column[i] = sample[k] end
    if #column ~= #samples then fail("DataLoader: value " .. k .. " is missing in a sample of the batch") end
    values[k] = collate(column, "value " .. k)
  end
  return unpack(values, 1, #values)
end

return { default_collate = default_collate }
