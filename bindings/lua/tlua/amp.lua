-- amp.lua: tl.amp: mixed precision (Micikevicius et al. 2018): autocast and the gradient scaler. The lists of
-- operations and the arithmetic are the engine's (engine/ops/autocast.c, engine/train/scaler.c).
local base = require "tlua.base"

local ffi, C, tl = base.ffi, base.C, base.tl
local check, fail, wrap, out = base.check, base.fail, base.wrap, base.out
local native = ffi.C
local is_tensor = base.is_tensor

local amp = {}

-- ---- autocast ----

local former = ffi.new("int[1]")
local CUDA = 1
local usual = { [0] = "bfloat16", [CUDA] = "float16", [2] = "bfloat16" } -- by kind of device: cpu, cuda, meta

local function is_callable(f)
  if type(f) == "function" then return true end
  local meta = type(f) == "table" and getmetatable(f)
  return meta and meta.__call ~= nil
end

-- 0 for cpu, 1 for cuda, 2 for meta. A block that does nothing (enabled = false) may name a device that is not there.
local function kind_of(device, enabled, op)
  if device == nil then return tl.device_count("cuda") > 0 and CUDA or 0 end
  if not enabled and type(device) == "string" and device:find("^cuda") then return CUDA end
  return math.floor(base.device(device, op) / 256)
end

local autocast_options = { device = base.optional, dtype = base.optional, enabled = true }

local function finish(state, ok, ...)
  native.tl_autocast_leave(state)
  if not ok then error((...), 0) end
  return ...
end

--- amp.autocast({device=, dtype=, enabled=true}, f, ...): returns f(...), whose operations on tensors of that device
--- run in the low precision type where that is safe, and in float32 where its range is needed.
function amp.autocast(options, f, ...)
  local o = base.options("autocast", options, autocast_options)
  if not is_callable(f) then fail("autocast: argument 2 must be a function, got " .. base.kind(f)) end
  local kind = kind_of(o.device, o.enabled, "autocast")
  check(native.tl_autocast_enter(kind, base.dtype(o.dtype or usual[kind], "autocast"), o.enabled, former))
  return finish(former[0], pcall(f, ...))
end

--- amp.is_autocast_enabled(device?): is a block open for it that converts? Without a device: for any?
function amp.is_autocast_enabled(device)
  if device == nil then
    return native.tl_autocast_enabled(0) or native.tl_autocast_enabled(CUDA) or native.tl_autocast_enabled(2)
  end
  return native.tl_autocast_enabled(kind_of(device, false, "is_autocast_enabled"))
end

--- amp.get_autocast_dtype(device?): the low precision type of the innermost block.
function amp.get_autocast_dtype(device)
  return base.dtype_names[native.tl_autocast_dtype(kind_of(device, false, "get_autocast_dtype"))]
end

-- ---- the gradient scaler ----

local GradScaler = {}
local metatable = { __index = GradScaler }
local state = ffi.new("tl_scaler_state")

local scaler_options = {
  init_scale = 65536, growth_factor = 2, backoff_factor = 0.5, growth_interval = 2000, enabled = true,
  device = base.optional,
}

--- amp.GradScaler{init_scale=65536, growth_factor=2, backoff_factor=0.5, growth_interval=2000, enabled=true}. PyTorch's
--- option device is taken and means nothing: gradients are unscaled where they are.
function amp.GradScaler(options)
  local o = base.options("GradScaler", options, scaler_options)
  C.tl_scaler_defaults(state)
  state.scale, state.growth_factor, state.backoff_factor = o.init_scale, o.growth_factor, o.backoff_factor
  state.growth_interval, state.enabled = o.growth_interval, o.enabled
  local handle = ffi.new("tl_scaler *[1]")
  check(C.tl_scaler_new(state, handle))
  return setmetatable({ handle = ffi.gc(handle[0], C.tl_scaler_free), enabled = o.enabled }, metatable)
end

--- scaler:scale(loss): loss * scale, recorded. A table of tensors gives a table.
function GradScaler:scale(loss)
  if is_tensor(loss) then
    check(C.tl_scaler_scale(self.handle, loss, out))
    return wrap(out[0])
  end
  if type(loss) ~= "table" then fail("GradScaler.scale: argument 1 must be a tensor, got " .. base.kind(loss)) end
  local scaled = {}
  for key, value in pairs(loss) do scaled[key] = self:scale(value) end
  return scaled
end

local function handle_of(optimizer, op)
  if not tl.optim.is_optimizer(optimizer) then
    fail(op .. ": argument 1 must be an optimizer, got " .. base.kind(optimizer))
  end
  return optimizer.handle
end

--- scaler:unscale_(optimizer): divides its gradients by the scale now, for clipping before the step.
function GradScaler:unscale_(optimizer)
  local handle = handle_of(optimizer, "GradScaler.unscale_")
  local function unscale() check(C.tl_scaler_unscale(self.handle, handle)) end
  if not optimizer.average_gradients then return unscale() end
  optimizer:average_gradients(self.enabled and unscale or nil)
end

-- Did it step? nil: the device decides.
local function step(self, handle)
  if native.tl_optimizer_device(handle) ~= 0 then
    check(C.tl_scaler_step(self.handle, handle, nil))
    return nil
  end
  check(C.tl_scaler_step(self.handle, handle, base.boolean))
  return base.boolean[0]
end

--- scaler:step(optimizer): unscales if need be, and steps if all gradients are finite. Returns whether it did; nil
--- where the parameters are on a GPU, which decides by itself.
function GradScaler:step(optimizer, closure)
  if closure ~= nil then
    fail("GradScaler.step: closures are not taken: the loss they compute would have to be scaled")
  end
  local handle = handle_of(optimizer, "GradScaler.step")
  if not optimizer.step_by then return step(self, handle) end
  local stepped
  optimizer:step_by(function() stepped = step(self, handle) end, self.enabled)
  return stepped
end

--- scaler:update(new_scale?): the scale for the next iteration, after every optimizer's step.
function GradScaler:update(new_scale)
  if new_scale == nil then
    new_scale = 0 / 0
  elseif is_tensor(new_scale) then
    check(C.tl_item(new_scale, base.number))
    new_scale = base.number[0]
  else
    base.check_number(new_scale, "GradScaler.update", "the scale")
  end
  check(C.tl_scaler_update(self.handle, new_scale))
end

local function get(self)
  check(C.tl_scaler_get(self.handle, state))
  return state
end

--- Is it enabled?
function GradScaler:is_enabled() return self.enabled end

--- The current scale; 1 when disabled.
function GradScaler:get_scale()
  return self.enabled and get(self).scale or 1
end

for _, name in ipairs { "growth_factor", "backoff_factor", "growth_interval" } do
  GradScaler["get_" .. name] = function(self) return get(self)[name] end
  GradScaler["set_" .. name] = function(self, value)
    base.check_number(value, "GradScaler.set_" .. name, "the value")
    get(self)[name] = value
    check(C.tl_scaler_set(self.handle, state))
  end
end

--- scaler:state_dict(): {scale=, growth_factor=, backoff_factor=, growth_interval=, _growth_tracker=}; {} when
--- disabled.
function GradScaler:state_dict()
  local s = get(self)
  if not s.enabled then return {} end
  return {
    scale = s.scale, growth_factor = s.growth_factor, backoff_factor = s.backoff_factor,
    growth_interval = s.growth_interval, _growth_tracker = s.growth_tracker,
  }
end

--- scaler:load_state_dict(dict): goes on where the other one stopped. A disabled scaler ignores it.
function GradScaler:load_state_dict(dict)
  local op = "GradScaler.load_state_dict"
  if not get(self).enabled then return end
  if type(dict) ~= "table" then fail(op .. ": argument 1 must be a table, got " .. base.kind(dict)) end
  if next(dict) == nil then fail(op .. ": the state is empty: it was saved by a disabled scaler") end
  local names = { "scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker" }
  for _, name in ipairs(names) do base.check_number(dict[name], op, name) end
  for _, name in ipairs(names) do state[name:match "^_?(.*)$"] = dict[name] end
  check(C.tl_scaler_set(self.handle, state))
end

return amp
