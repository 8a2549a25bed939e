-- module.lua: nn.Module: classes, calls, hooks, modes, moving.
local base = require "tlua.base"
local registry = require "tlua.nn.registry"
local state = require "tlua.nn.state"
local support = require "tlua.nn.support"
local C, ffi, check, wrap, out = base.C, base.ffi, base.check, base.wrap, base.out

local Module = { _name = "Module" }
Module.__index = Module
registry.add_class(Module)

-- ---- classes ----

local function construct(class, ...)
  local m = {}
  registry.prepare(m)
  setmetatable(m, class)
  m:init(...)
  return m
end

--- A new class of modules below this one: local Net = nn.Module:extend("Net"), then Net:init(...), Net:forward(...).
--- Net(...) makes one: init need not call the parent's init unless the parent has one of its own.
function Module:extend(name)
  if type(name) ~= "string" then base.fail("extend: a class needs a name (a string), got " .. base.kind(name)) end
  local class = {
    _name = name, __newindex = registry.assign, __call = self.__call, __tostring = self.__tostring,
  }
  class.__index = class
  registry.add_class(class)
  local function describe() return "class " .. name end
  return setmetatable(class, { __index = self, __call = construct, __tostring = describe })
end

function Module:init() end

function Module:forward() base.fail(self._name .. ": the class has no forward") end

--- Is this module of `class` or of one below it?
function Module:is_a(class)
  local c = getmetatable(self)
  while c do
    if c == class then return true end
    local above = getmetatable(c)
    c = above and above.__index
  end
  return false
end

-- ---- calls ----

local function call_with_hooks(self, ...)
  local hooks = self._hooks
  local inputs = { n = select("#", ...), ... }
  for i = 1, #hooks.before do
    local changed = hooks.before[i](self, inputs)
    if changed ~= nil then
      if base.is_tensor(changed) or type(changed) ~= "table" then changed = { n = 1, changed } end
      inputs = changed
      inputs.n = inputs.n or #inputs
    end
  end
  local output = self:forward(unpack(inputs, 1, inputs.n))
  for i = 1, #hooks.after do
    local changed = hooks.after[i](self, inputs, output)
    if changed ~= nil then output = changed end
  end
  return output
end

--- model(...) is model:forward(...), between the hooks if there are any.
function Module:__call(...)
  if self._hooks then return call_with_hooks(self, ...) end
  return self:forward(...)
end

-- On a profiler's time line: see tl.cuda.nvtx.
if os.getenv("TLUA_NVTX") == "1" then
  local native, call = base.ffi.C, Module.__call
  local function closed(...)
    native.tl_range_pop()
    return ...
  end
  function Module:__call(...)
    native.tl_range_push(self._name)
    return closed(call(self, ...))
  end
end

local function register_hook(self, op, place, f)
  if type(f) ~= "function" then base.fail(("%s: a hook is a function, got %s"):format(op, base.kind(f))) end
  local hooks = self._hooks or { before = {}, after = {} }
  self._hooks = hooks
  local list = hooks[place]
  list[#list + 1] = f
  return {
    remove = function()
      for i = 1, #list do
        if list[i] == f then
          table.remove(list, i)
          break
        end
      end
      if #hooks.before == 0 and #hooks.after == 0 and self._hooks == hooks then self._hooks = false end
    end,
  }
end

--- f(module, inputs) runs before forward; inputs is the list of arguments. What it returns (a value or a list) replaces
--- them. The handle's handle:remove() takes the hook away.
function Module:register_forward_pre_hook(f) return register_hook(self, "register_forward_pre_hook", "before", f) end

--- f(module, inputs, output) runs after forward; what it returns replaces the output (the first result; a module with a
--- forward hook returns one).
function Module:register_forward_hook(f) return register_hook(self, "register_forward_hook", "after", f) end

-- ---- what it owns ----

--- Adds a tensor that is part of the state but not trained. {persistent=false} keeps it out of the state dict.
function Module:register_buffer(name, t, options)
  local o = base.options("register_buffer", options, { persistent = true })
  registry.register(self, "register_buffer", name, t, "buffer")
  local transient = rawget(self, "_transient")
  if not o.persistent then
    transient = transient or {}
    transient[name] = true
    rawset(self, "_transient", transient)
  elseif transient then
    transient[name] = nil
  end
end

--- Adds a parameter, whether it requires gradients or not; nil keeps its place.
function Module:register_parameter(name, t)
  if t ~= nil and base.is_tensor(t) and not C.tl_is_leaf(t) then
    base.fail(("register_parameter: '%s' was computed by %s: a parameter is a leaf"):format(name,
      ffi.string(C.tl_grad_fn_name(t))))
  end
  registry.register(self, "register_parameter", name, t, "parameter")
end

local function list_of(self, kind)
  local _, list = registry.tensors(self, kind)
  return list
end

local function iterator(names, list)
  local i = 0
  return function()
    i = i + 1
    if list[i] ~= nil then return names[i], list[i] end
  end
end

--- The parameters of this module and of everything below it: a list without duplicates, in registration order.
function Module:parameters() return list_of(self, "parameter") end

--- for name, p in model:named_parameters() do ... end
function Module:named_parameters() return iterator(registry.tensors(self, "parameter")) end

function Module:buffers() return list_of(self, "buffer") end
function Module:named_buffers() return iterator(registry.tensors(self, "buffer")) end

local function all_modules(self)
  local names, list = {}, {}
  registry.each_module(self, function(name, m)
    list[#list + 1] = m
    names[#list] = name
  end)
  return names, list
end

--- This module and everything below it, each once, parents first. Its own name is "".
function Module:modules()
  local _, list = all_modules(self)
  return list
end
function Module:named_modules() return iterator(all_modules(self)) end

local function own_modules(self)
  local names, list, seen = {}, {}, {}
  registry.each_own(self, "module", function(name, m)
    if seen[m] then return end
    seen[m] = true
    list[#list + 1] = m
    names[#list] = name
  end)
  return names, list
end

--- The modules that are fields of this one.
function Module:children()
  local _, list = own_modules(self)
  return list
end
function Module:named_children() return iterator(own_modules(self)) end

--- name -> tensor of all parameters and buffers, with PyTorch's names. The tensors share memory with the module.
function Module:state_dict() return state.state_dict(self) end

--- Copies a state dict's values into the parameters and buffers. With strict (the default) missing and unexpected keys
--- are errors; a wrong shape always is. Nothing is copied when there is an error. Returns the missing and the
--- unexpected keys: two lists.
function Module:load_state_dict(dict, options) return state.load_state_dict(self, dict, options) end

--- A deep copy: own parameters, buffers, children; shared parameters stay shared among the copies; hooks come along.
function Module:clone() return registry.copy(self, {}) end

-- ---- doing something to all of it ----

--- Calls f(module) for everything below this module, then for itself. Returns the module.
function Module:apply(f)
  if type(f) ~= "function" then base.fail("apply: argument 1 must be a function, got " .. base.kind(f)) end
  for _, child in ipairs(self:children()) do child:apply(f) end
  f(self)
  return self
end

--- Training mode (the default) on or off: BatchNorm and Dropout behave differently. Returns the module.
function Module:train(on)
  if on == nil then on = true end
  if type(on) ~= "boolean" then base.fail("train: the mode is true or false, got " .. base.kind(on)) end
  registry.each_module(self, function(_, m) m.training = on end)
  return self
end

--- train(false)
function Module:eval() return self:train(false) end

--- Clears the gradients: to nil, or to zeros with {set_to_none=false}.
function Module:zero_grad(options)
  local o = base.options("zero_grad", options, { set_to_none = true })
  local list = self:parameters()
  local array = ffi.new("tl_tensor *[?]", #list + 1)
  for i = 1, #list do array[i - 1] = list[i] end
  check(C.tl_zero_grad(#list, array, o.set_to_none))
end

--- Freezes (false) or unfreezes all parameters. Returns the module.
function Module:requires_grad_(on)
  if on == nil then on = true end
  for _, p in ipairs(self:parameters()) do check(C.tl_set_requires_grad(p, on)) end
  return self
end

-- t in another dtype (if it is a floating tensor) and on another device; nil if that changes nothing.
local function converted(t, dtype, device)
  local old_dtype, old_device = C.tl_dtype_of(t), C.tl_device_of(t)
  if old_dtype > C.TL_FLOAT64 then dtype = nil end
  dtype, device = dtype or old_dtype, device or old_device
  if dtype == old_dtype and device == old_device then return nil end
  local recording = C.tl_set_grad_enabled(false)
  local status = C.tl_to(t, dtype, device, out)
  C.tl_set_grad_enabled(recording)
  check(status)
  return wrap(out[0])
end

-- Buffers are replaced, as PyTorch does: what was handed in (a loss's weight) stays as it is for its owner.
local function convert_buffers(self, dtype, device)
  local moved = {}
  registry.each_module(self, function(_, m)
    registry.each_own(m, "buffer", function(_, t, field)
      local key = base.address(t)
      if moved[key] == nil then moved[key] = converted(t, dtype, device) or t end
      rawset(m, field, moved[key])
    end)
  end)
end

--- Moves all parameters and buffers: model:to("cuda"), model:to("float64"), model:to("cuda:1", "float16"). Only
--- floating tensors change dtype. Parameters stay the same tensors (their gradients move along), so optimizers that
--- hold them keep working; make the optimizer after the move all the same, its own state does not follow. Returns the
--- module.
function Module:to(first, second)
  if first == nil then base.fail("to: needs the name of a dtype or device, got nil") end
  local dtype, device = support.destination("to", first, second)
  if dtype and dtype > C.TL_FLOAT64 then
    base.fail("to: a module can only become a floating dtype, got " .. base.dtype_names[dtype])
  end
  for _, p in ipairs(list_of(self, "parameter")) do
    local moved = converted(p, dtype, device)
    if moved then check(C.tl_set_data(p, moved)) end
  end
  convert_buffers(self, dtype, device)
  return self
end

function Module:cpu() return self:to("cpu") end
function Module:cuda(device) return self:to(device or "cuda") end
function Module:float() return self:to("float32") end
function Module:double() return self:to("float64") end
function Module:half() return self:to("float16") end
function Module:bfloat16() return self:to("bfloat16") end

-- ---- printing ----

--- What stands between the parentheses when the module is printed; layers override it.
function Module:extra_repr() return "" end

--- "Linear(10, 1)": the module in one line, without what is below it. A subclass may lack what its parent's
--- extra_repr() reads: messages need a label all the same.
function Module:label()
  local ok, text = pcall(self.extra_repr, self)
  return ("%s(%s)"):format(self._name, ok and text or "...")
end

Module.__tostring = state.describe
Module.__newindex = registry.assign
setmetatable(Module, { __call = construct, __tostring = function() return "class Module" end })

return { Module = Module, is_module = registry.is_module }
