-- memory_plan.lua: tl.memory_plan: what a training step needs, before it runs.
--
-- Two steps run on the device "meta", which has shapes but no bytes: every allocation of the real run happens there,
-- and is counted. The second step is measured: gradients come and go in it, the optimizer's state is there.
local base = require "tlua.base"
local registry = require "tlua.nn.registry"

local tl, fail, ffi = base.tl, base.fail, base.ffi
local native = ffi.C

local NAME = "memory_plan"
local defaults = {
  loss = base.optional, optimizer = base.optional, amp = base.optional, device = "meta",
}

-- ---- the plan as text ----

local Plan = {}
Plan.__index = Plan

local function text_of(bytes)
  if bytes >= 2 ^ 30 then return ("%9.2f GB"):format(bytes / 2 ^ 30) end
  if bytes >= 2 ^ 20 then return ("%9.2f MB"):format(bytes / 2 ^ 20) end
  return ("%9.2f KB"):format(bytes / 2 ^ 10)
end

local lines = {
  { "parameters", "parameters" }, { "buffers", "buffers" }, { "gradients", "gradients" },
  { "optimizer", "optimizer state" }, { "batch", "batch" }, { "other", "made by the first step, and kept" },
  { "activations", "kept by forward for backward" }, { "forward", "peak in forward" },
  { "backward", "peak in backward" }, { "step", "peak in the optimizer's step" }, { "peak", "peak" },
}

function Plan:__tostring()
  local list = {}
  for _, line in ipairs(lines) do
    local bytes = self[line[1]]
    if bytes and (bytes > 0 or line[1] == "peak") then list[#list + 1] = text_of(bytes) .. "  " .. line[2] end
  end
  return table.concat(list, "\n")
end

-- ---- measuring ----

local function live(device) return tl.memory(device).live end

local function peak_of(device, f, ...)
  tl.reset_peak_memory(device)
  local result = f(...)
  return tl.memory(device).peak, result
end

local function bytes_of(t) return t:numel() * tonumber(native.tl_dtype_size(native.tl_dtype_of(t))) end

local function forget_gradients(params)
  for _, p in ipairs(params) do p.grad = nil end
end

-- The plan of a model whose tensors are on the device, as the batch is.
local function measure(plan, model, batch, o, start)
  local device, params = o.device, model:parameters()
  local function forward()
    local function run()
      if o.loss then return o.loss(model, unpack(batch)) end
      return model(unpack(batch)):sum()
    end
    local loss = o.amp and tl.amp.autocast({ device = device, dtype = o.amp }, run) or run()
    if not base.is_tensor(loss) or loss:numel() ~= 1 then
      fail(NAME .. ": the loss must be a tensor of one element, got " .. base.kind(loss))
    end
    return loss
  end
  local function backward(loss) loss:backward() end

  local before = live(device)
  forward():backward()
  base.collect()
  plan.gradients = 0
  for _, p in ipairs(params) do plan.gradients = plan.gradients + (p.grad and bytes_of(p.grad) or 0) end
  plan.other = live(device) - before - plan.gradients
  local optimizer = o.optimizer and o.optimizer(params)
  if optimizer then optimizer:step() end
  forget_gradients(params)
  base.collect()
  plan.optimizer = live(device) - before - plan.other

  local ready = live(device)
  do
    local loss
    plan.forward, loss = peak_of(device, forward)
    base.collect()
    plan.activations = live(device) - ready
    plan.backward = peak_of(device, backward, loss)
  end
  base.collect()
  plan.step = optimizer and peak_of(device, optimizer.step, optimizer) or 0
  forget_gradients(params)
  for _, name in ipairs { "forward", "backward", "step" } do plan[name] = math.max(plan[name] - start, 0) end
  plan.peak = math.max(plan.forward, plan.backward, plan.step)
end

-- ---- a model for the time of the plan ----

-- A copy on the device: elsewhere for data that stays, here without its elements.
local function on(device, t)
  t = t:detach()
  return t.device == device and t:clone() or t:to(device)
end

-- Puts the model's tensors on the device; returns what puts the former ones back.
local function move(plan, model, device)
  local undo, moved = {}, {}
  local before = live(device)
  for _, p in ipairs(model:parameters()) do
    local data, grad = p.data, p.grad
    undo[#undo + 1] = function()
      p.grad = nil
      p.data = data
      p.grad = grad
    end
    p.grad = nil
    p.data = on(device, data)
  end
  plan.parameters = live(device) - before
  registry.each_module(model, function(_, m)
    registry.each_own(m, "buffer", function(_, t, field)
      local key = base.address(t)
      moved[key] = moved[key] or on(device, t)
      undo[#undo + 1] = function() rawset(m, field, t) end
      rawset(m, field, moved[key])
    end)
  end)
  plan.buffers = live(device) - before - plan.parameters
  return function()
    for _, f in ipairs(undo) do f() end
  end
end

local function batch_on(device, batch)
  local list = {}
  for i, t in ipairs(base.is_tensor(batch) and { batch } or batch) do
    base.check_tensor(t, NAME, "2, element " .. i .. ",")
    list[i] = on(device, t)
  end
  return list
end

local function run(model, batch, o)
  local plan = setmetatable({}, Plan)
  base.collect()
  base.collect() -- what the first one's finalizers let go of
  local start = live(o.device)
  local restore = function() end
  if type(model) == "function" then
    model = model()
    if not tl.nn.is_module(model) then fail(NAME .. ": the function must return a module, got " .. base.kind(model)) end
    plan.parameters, plan.buffers = 0, 0
    for _, p in ipairs(model:parameters()) do plan.parameters = plan.parameters + bytes_of(p) end
    for _, b in ipairs(model:buffers()) do plan.buffers = plan.buffers + bytes_of(b) end
  else
    restore = move(plan, model, o.device)
  end
  local ok, message = pcall(function()
    local before = live(o.device)
    batch = batch_on(o.device, batch)
    plan.batch = live(o.device) - before
    base.collect()
    tl.enable_grad(measure, plan, model, batch, o, start)
  end)
  restore()
  if not ok then error(message, 0) end
  return plan
end

-- While f runs there is next to no garbage, new tensors are on the device, and random numbers are taken from elsewhere.
local function aside(device, f, ...)
  local limits = ffi.new("double[2]", 1.001, 0)
  local former, rng = tl.get_default_device(), tl.get_rng_state()
  native.tl_garbage_limits(limits, limits + 1)
  local results = { pcall(function(...)
    tl.set_default_device(device)
    return f(...)
  end, ...) }
  native.tl_garbage_limits(limits, limits + 1)
  tl.set_default_device(former)
  tl.set_rng_state(rng)
  base.collect()
  if not results[1] then error(results[2], 0) end
  return results[2]
end

--- memory_plan(model, batch, {loss=, optimizer=, amp=, device="meta"}): the bytes of a training step.
return function(model, batch, options)
  local o = base.options(NAME, options, defaults)
  if type(model) ~= "function" and not tl.nn.is_module(model) then
    fail(NAME .. ": argument 1 must be a module or a function that makes one, got " .. base.kind(model))
  end
  if type(batch) ~= "table" and not base.is_tensor(batch) then
    fail(NAME .. ": argument 2 must be a tensor or a list of tensors, got " .. base.kind(batch))
  end
  for _, name in ipairs { "loss", "optimizer" } do
    if o[name] ~= nil and type(o[name]) ~= "function" then
      fail(("%s: option '%s' must be a function, got %s"):format(NAME, name, base.kind(o[name])))
    end
  end
  return aside(o.device, run, model, batch, o)
end
