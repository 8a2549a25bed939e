-- choice.lua: which units of a wiring can leave without changing what the model computes, and why the others cannot.
--
-- A unit leaves if every layer that reads it either does not use it (its weights there are zero, or only outputs that
-- leave themselves use it) or reads a constant from it, which then goes into that layer's bias.
local base = require "tlua.base"
local wiring = require "tlua.nn.prune.wiring"
local find = wiring.find

local choice = {}

-- Has this layer zeros around its input that a constant channel would not be?
local function pads(layer)
  for _, p in ipairs(layer.module.padding or {}) do
    if p ~= 0 then return true end
  end
  return false
end

-- Why the constant k of a channel cannot go into the layer's bias, or nil.
local function unfoldable(layer, k)
  if k == nil then return "it is constant, but not the same in all places, where " .. layer.name .. " reads it" end
  if k == 0 then return nil end
  local text = "its output is a constant but not 0 (prune bias and BatchNorm along with the weight), "
  if pads(layer) then return text .. "which is no constant beside the zero padding of " .. layer.name end
  if layer.uses > 1 then return text .. "and " .. layer.name .. ", which reads it, is used more than once" end
end

-- How strongly the outputs of a layer that stay use each input: 0 is not at all.
local function uses(layer, gone)
  local live = {}
  for o, u in ipairs(layer.units) do live[o] = gone[find(u)] and 0 or 1 end
  return base.tl.tensor(live, { device = layer.used.device }):matmul(layer.used):tolist()
end

-- reasons[unit]: why it must stay, as long as `gone` is all that leaves.
local function refusals(w, gone)
  local reasons = {}
  for _, site in ipairs(w.sites) do
    local used, constants = uses(site.layer, gone), wiring.constants(site.x)
    for c, u in ipairs(site.x.units) do
      u = find(u)
      if used[c] ~= 0 and not gone[u] and not reasons[u] then
        if not site.x.fixed[c] then reasons[u] = site.layer.name .. " uses it"
        else reasons[u] = unfoldable(site.layer, constants[c]) end
      end
    end
  end
  return reasons
end

-- Takes unit u out of the layers' counts, unless one of them would be left without channels.
local function leaves(w, u, left)
  local members = w.members[u]
  for layer, n in pairs(members) do
    if left[layer] - n < 1 then return nil, "it is the last one of " .. layer.name end
  end
  for layer, n in pairs(members) do left[layer] = left[layer] - n end
  return true
end

local function count_members(w)
  local left, units = {}, {}
  w.members = {}
  for _, layer in ipairs(w.order) do
    left[layer] = #layer.units
    for _, u in ipairs(layer.units) do
      u = find(u)
      if not w.members[u] then
        w.members[u] = {}
        units[#units + 1] = u
      end
      w.members[u][layer] = (w.members[u][layer] or 0) + 1
    end
  end
  return left, units
end

--- gone[unit] = true for what leaves, reasons[unit] for what stays.
function choice.make(w)
  local left, units = count_members(w)
  local gone, last, reasons = {}, {}, nil
  local changed = true
  while changed do
    changed = false
    reasons = refusals(w, gone)
    for _, u in ipairs(units) do
      if not gone[u] and not u.blocked and not reasons[u] and not last[u] then
        local ok, reason = leaves(w, u, left)
        if ok then gone[u], changed = true, true else last[u] = reason end
      end
    end
  end
  for _, u in ipairs(units) do reasons[u] = u.blocked or last[u] or reasons[u] end
  return gone, reasons
end

--- Outputs of the layers whose weights are pruned but that stay: a list of {layer=, channels=, reason=}.
function choice.kept(w, gone, reasons)
  local list, places = {}, {}
  for _, layer in ipairs(w.order) do
    if layer.output then
      for o, u in ipairs(layer.units) do
        u = find(u)
        if layer.output.fixed[o] and not gone[u] then
          local key = layer.name .. "\n" .. reasons[u]
          if not places[key] then
            places[key] = { layer = layer.name, channels = 0, reason = reasons[u] }
            list[#list + 1] = places[key]
          end
          places[key].channels = places[key].channels + 1
        end
      end
    end
  end
  return list
end

return choice
