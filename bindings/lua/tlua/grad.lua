-- grad.lua: whether gradients are recorded, and backward. The rarer parts of autograd are in autograd.lua.
local base = require "tlua.base"

local ffi, C, methods, tl = base.ffi, base.C, base.methods, base.tl
local check, fail = base.check, base.fail
local check_tensor, is_tensor = base.check_tensor, base.is_tensor
local native = ffi.C

-- ---- recording ----

-- f(...) with recording on or off; the former state comes back even after an error.
local function finish(former, ok, ...)
  native.tl_set_grad_enabled(former)
  if not ok then error((...), 0) end
  return ...
end

local function with(op, on, f, ...)
  if type(f) ~= "function" and not (type(f) == "table" and getmetatable(f) and getmetatable(f).__call) then
    fail(op .. ": argument 1 must be a function, got " .. base.kind(f))
  end
  return finish(native.tl_set_grad_enabled(on), pcall(f, ...))
end

--- tl.no_grad(f, ...): f(...) without recording; returns what f returns.
function tl.no_grad(f, ...) return with("no_grad", false, f, ...) end

--- tl.enable_grad(f, ...): f(...) with recording, also inside no_grad.
function tl.enable_grad(f, ...) return with("enable_grad", true, f, ...) end

--- Are gradients recorded?
function tl.is_grad_enabled() return native.tl_grad_enabled() end

--- tl.set_grad_enabled(on): from now on; returns the former state.
function tl.set_grad_enabled(on) return native.tl_set_grad_enabled(on and true or false) end

-- ---- tensors ----

--- x:requires_grad_(on): on is true by default; returns x.
function methods.requires_grad_(x, on)
  check_tensor(x, "requires_grad_", 1)
  if on == nil then on = true end
  if type(on) ~= "boolean" then fail("requires_grad: must be true or false, got " .. base.kind(on)) end
  check(C.tl_set_requires_grad(x, on))
  return x
end

--- x:retain_grad(): a tensor that was computed keeps its gradient in x.grad, too.
function methods.retain_grad(x)
  check_tensor(x, "retain_grad", 1)
  check(C.tl_retain_grad(x))
  return x
end

local walk, stats = ffi.new("tl_walk *[1]"), ffi.new("tl_memory_stats")
local MUCH = 2 ^ 30

-- What only dead Lua handles keep goes before backward, during which nobody can collect it: where there is much, and a
-- tenth more than the last collection left (the soft limit is 1.4 times that).
local function make_room(x)
  if native.tl_memory(native.tl_device_of(x), stats) ~= 0 or stats.live < MUCH then return end
  if stats.live > 0.8 * stats.soft_limit then base.collect() end
end

--- loss:backward(), x:backward(grad, {retain_graph=false}): adds gradients to .grad of every leaf that x depends on.
function methods.backward(x, grad, options)
  check_tensor(x, "backward", 1)
  if type(grad) == "table" and options == nil then grad, options = nil, grad end
  if grad ~= nil and not is_tensor(grad) then
    fail("backward: the gradient must be a tensor, got " .. base.kind(grad))
  end
  local retain = options ~= nil and base.flag("backward", options, "retain_graph")
  make_room(x)
  walk[0] = nil
  check(C.tl_backward(x, grad, retain, walk))
  if walk[0] ~= nil then require("tlua.autograd").serve(walk[0]) end
end

-- autograd.lua puts the real one in its place.
function methods.register_hook(x, f)
  require "tlua.autograd"
  return methods.register_hook(x, f)
end
