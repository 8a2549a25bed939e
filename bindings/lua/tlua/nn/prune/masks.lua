-- masks.lua: a module with pruned parameters. In place of `weight` it owns `weight_orig`, the Parameter itself, and the
-- buffer `weight_mask`; a hook before forward makes weight = weight_orig * weight_mask, one kernel call a parameter.
local base = require "tlua.base"
local registry = require "tlua.nn.registry"
local support = require "tlua.nn.support"
local C, check, wrap, out = base.C, base.check, base.wrap, base.out

local masks = {}

-- The hidden list module._pruned names what is pruned: {name="weight", orig="weight_orig", mask="weight_mask"}.
-- The hook is one function for all modules, so that a clone's copy of the hooks masks the clone.
local function apply(m)
  local list = m._pruned
  for i = 1, #list do
    local entry = list[i]
    check(C.tl_mul(m[entry.orig], m[entry.mask], out))
    rawset(m, entry.name, wrap(out[0]))
  end
end

--- What is known of a pruned parameter, nil if it is not pruned; its place in the list.
function masks.find(m, name)
  for i, entry in ipairs(rawget(m, "_pruned") or {}) do
    if entry.name == name then return entry, i end
  end
end

--- All pruned parameters of one module: a list of {name=, orig=, mask=}.
function masks.list(m) return rawget(m, "_pruned") or {} end

--- m must be a module, `name` a parameter of it (pruned or not); `call` is the right call, for the message.
function masks.check_parameter(m, name, op, call)
  if not registry.is_module(m) then
    base.fail(("%s: argument 1 must be a module, got %s; the call is %s"):format(op, base.kind(m), call))
  end
  if type(name) ~= "string" then
    base.fail(("%s: argument 2 must be a parameter's name, got %s; the call is %s"):format(op, base.kind(name), call))
  end
  if masks.find(m, name) then return end
  local names = {}
  registry.each_own(m, "parameter", function(own) names[own] = true end)
  if not names[name] then
    base.fail(("%s: %s has no parameter '%s'%s"):format(op, m:label(), name, base.suggestion(name, names)))
  end
end

--- f() without recording gradients.
function masks.unrecorded(f, ...)
  local recording = C.tl_set_grad_enabled(false)
  local ok, first = pcall(f, ...)
  C.tl_set_grad_enabled(recording)
  if not ok then error(first, 0) end
  return first
end

local function ones_like(t)
  local shape = {}
  for d = 0, C.tl_ndim(t) - 1 do shape[d + 1] = C.tl_size(t, d) end
  return support.full(shape, 1, C.tl_dtype_of(t), C.tl_device_of(t))
end

local function add_hook(m)
  for _, f in ipairs(m._hooks and m._hooks.before or {}) do
    if f == apply then return end
  end
  m:register_forward_pre_hook(apply)
end

local function remove_hook(m)
  local before = m._hooks.before
  for i = #before, 1, -1 do
    if before[i] == apply then table.remove(before, i) end
  end
  if #before == 0 and #m._hooks.after == 0 then m._hooks = false end
end

-- The parameter gets its mask, all ones.
local function start(m, name)
  local entry = { name = name, orig = name .. "_orig", mask = name .. "_mask" }
  local p = m[name]
  registry.forget(m, name)
  m:register_parameter(entry.orig, p)
  m:register_buffer(entry.mask, ones_like(p))
  if not rawget(m, "_pruned") then rawset(m, "_pruned", {}) end
  table.insert(m._pruned, entry)
  add_hook(m)
  return entry
end

--- The parameter itself, whether it is pruned or not.
function masks.original(m, name)
  local entry = masks.find(m, name)
  return m[entry and entry.orig or name]
end

--- The mask, nil if the parameter is not pruned.
function masks.current(m, name)
  local entry = masks.find(m, name)
  return entry and m[entry.mask]
end

--- The parameter's values as the module uses them: detached, masked.
function masks.effective(m, name)
  local p, mask = masks.original(m, name):detach(), masks.current(m, name)
  return mask and p * mask or p
end

--- Sets the mask (a tensor of the parameter's shape, dtype and device). masks.refresh() shows it in the module.
function masks.set(m, name, mask)
  local entry = masks.find(m, name) or start(m, name)
  rawset(m, entry.mask, mask)
end

--- Computes the module's masked parameters now; forward does it each time.
masks.refresh = apply

--- Bakes the mask into the parameter, which gets its name back; the mask is gone.
function masks.remove(m, name)
  local entry, place = masks.find(m, name)
  local p = m[entry.orig]
  masks.unrecorded(function() check(C.tl_mul_(p, m[entry.mask])) end)
  for _, field in ipairs { entry.orig, entry.mask, name } do
    registry.forget(m, field)
    rawset(m, field, nil)
  end
  table.remove(m._pruned, place)
  if #m._pruned == 0 then
    rawset(m, "_pruned", nil)
    remove_hook(m)
  end
  m:register_parameter(name, p)
end

return masks
