-- rewind.lua: prune.rewind: the masks stay, the weights go back to what they were (Frankle & Carbin 2019).
local base = require "tlua.base"
local registry = require "tlua.nn.registry"
local masks = require "tlua.nn.prune.masks"
local support = require "tlua.nn.support"
local C, check, fail = base.C, base.check, base.fail

local function lookup(state, prefix, name, orig)
  if state[prefix .. name] ~= nil then return state[prefix .. name], prefix .. name end
  return orig and state[prefix .. orig], prefix .. (orig or name)
end

--- rewind(model, state): copies a state dict that was taken before the pruning (or after: both spellings are known)
--- into the parameters and buffers; masks are not touched. Missing keys and wrong shapes are errors, and nothing is
--- copied then. A state dict shares memory with its model: keep a clone of its tensors, or tl.save it.
local function rewind(m, state)
  if not registry.is_module(m) then fail("rewind: argument 1 must be a module, got " .. base.kind(m)) end
  if type(state) ~= "table" then fail("rewind: argument 2 must be a state dict, got " .. base.kind(state)) end
  local targets, sources = {}, {}
  registry.each_module(m, function(path, below)
    local prefix, names, is_mask = path == "" and "" or path .. ".", {}, {}
    for _, entry in ipairs(masks.list(below)) do names[entry.orig], is_mask[entry.mask] = entry.name, true end
    local function take(own, t)
      if is_mask[own] or (below._transient and below._transient[own]) then return end
      local value, key = lookup(state, prefix, names[own] or own, names[own] and own)
      if not base.is_tensor(value) then fail(("rewind: the state has no tensor '%s'"):format(key)) end
      if support.shape(value) ~= support.shape(t) then
        fail(("rewind: '%s' is %s here and %s in the state"):format(key, support.shape(t), support.shape(value)))
      end
      targets[#targets + 1], sources[#sources + 1] = t, value
    end
    registry.each_own(below, "parameter", take)
    registry.each_own(below, "buffer", take)
  end)
  masks.unrecorded(function()
    for i, t in ipairs(targets) do check(C.tl_copy_(t, sources[i])) end
  end)
  registry.each_module(m, function(_, below) if #masks.list(below) > 0 then masks.refresh(below) end end)
  return m
end

return rewind
