-- checkpoint.lua: tl.utils.checkpoint and checkpoint_sequential: memory for time (Chen et al. 2016).
local base = require "tlua.base"

local tl = base.tl
local fail, is_tensor = base.fail, base.is_tensor

local native = base.ffi.C
local KINDS = 3 -- of devices: cpu, cuda, meta
local former = base.ffi.new("int[1]")

-- What the results of f depend on besides its arguments: random numbers and, by kind of device, autocast.
local function surroundings()
  local s = { rng = tl.get_rng_state(), enabled = {}, dtype = {} }
  for kind = 0, KINDS - 1 do
    s.enabled[kind], s.dtype[kind] = native.tl_autocast_enabled(kind), native.tl_autocast_dtype(kind)
  end
  return s
end

-- f(...) in the surroundings of the first run; the present ones come back afterwards.
local function replay(first, f, ...)
  local now = tl.get_rng_state()
  tl.set_rng_state(first.rng)
  local before = {}
  for kind = 0, KINDS - 1 do
    base.check(native.tl_autocast_enter(kind, first.dtype[kind], first.enabled[kind], former))
    before[kind] = former[0]
  end
  local results = { pcall(f, ...) }
  for kind = KINDS - 1, 0, -1 do native.tl_autocast_leave(before[kind]) end
  tl.set_rng_state(now)
  if not results[1] then error(results[2], 0) end
  return unpack(results, 2, table.maxn(results))
end

-- The arguments of the first run; tensors without their history.
local function arguments_of(ctx)
  local list = {}
  for i = 1, ctx.n do
    local k = ctx.places[i]
    list[i] = ctx.plain[i]
    if k then
      list[i] = ctx.saved_tensors[k]:detach()
      list[i].requires_grad = ctx.needs_input_grad[3 + i] -- the anchor, f and n come before
    end
  end
  return list
end

-- Tensors are saved (and their versions checked), the rest stays as it is.
local function keep_arguments(ctx, ...)
  local tensors, places, plain = {}, {}, {}
  for i = 1, ctx.n do
    local x = select(i, ...)
    if is_tensor(x) then
      tensors[#tensors + 1] = x
      places[i] = #tensors
    else
      plain[i] = x
    end
  end
  ctx.places, ctx.plain = places, plain
  ctx:save_for_backward(unpack(tensors))
end

-- Recomputes with recording and walks that graph: captured parameters get their gradients there, arguments in .grad.
local function recompute(ctx, ...)
  local grads, n = { ... }, ctx.n
  local inputs = arguments_of(ctx)
  tl.enable_grad(function()
    local results = { replay(ctx.surroundings, ctx.f, unpack(inputs, 1, n)) }
    local outputs, given = {}, {}
    for i = 1, table.maxn(results) do
      if is_tensor(results[i]) and results[i].requires_grad and grads[i] ~= nil then
        outputs[#outputs + 1], given[#given + 1] = results[i], grads[i]
      end
    end
    if #outputs > 0 then tl.autograd.backward(outputs, given) end
  end)
  local result = { nil } -- the anchor's
  for i = 1, n do
    if is_tensor(inputs[i]) then result[i + 1] = inputs[i].grad end
  end
  return unpack(result, 1, n + 1)
end

local function is_callable(f)
  if type(f) == "function" then return true end
  local meta = type(f) == "table" and getmetatable(f)
  return meta and meta.__call ~= nil
end

local operation

-- The anchor requires gradients, so that the call is recorded even when only parameters inside f do.
local function checkpoint_function()
  operation = operation or tl.autograd.Function {
    name = "checkpoint",
    forward = function(ctx, _, f, n, ...)
      ctx:set_materialize_grads(false)
      ctx.f, ctx.n, ctx.surroundings = f, n, surroundings()
      keep_arguments(ctx, ...)
      return f(...)
    end,
    backward = function(ctx, ...)
      local result = { recompute(ctx, ...) }
      -- f and n stand between the anchor and the arguments
      return nil, nil, nil, unpack(result, 2, ctx.n + 1)
    end,
  }
  return operation
end

--- tl.utils.checkpoint(f, ...): f(...) without keeping what its backward needs: backward runs f again, with the same
--- random numbers and the same autocast. Arguments and parameters inside f get their gradients; other tensors that f
--- uses must not depend on anything that does.
local function checkpoint(f, ...)
  if not is_callable(f) then fail("checkpoint: argument 1 must be a function, got " .. base.kind(f)) end
  if not tl.is_grad_enabled() then return f(...) end
  local anchor = tl.zeros({ 0 }, { requires_grad = true })
  return checkpoint_function()(anchor, f, select("#", ...), ...)
end

-- modules[first..last], one after the other.
local function run_of(modules, first, last)
  return function(x)
    for i = first, last do x = modules[i](x) end
    return x
  end
end

--- tl.utils.checkpoint_sequential(modules, segments, x): a Sequential, or a list of modules and functions, in so many
--- parts of nearly equal length: only what goes from one part to the next is kept, and the last part.
local function checkpoint_sequential(modules, segments, x)
  local op = "checkpoint_sequential"
  if type(modules) ~= "table" then fail(op .. ": argument 1 must be a list of modules, got " .. base.kind(modules)) end
  if #modules == 0 then fail(op .. ": the list of modules is empty") end
  for i = 1, #modules do
    if not is_callable(modules[i]) then
      fail(("%s: element %d must be a module or function, got %s"):format(op, i, base.kind(modules[i])))
    end
  end
  base.check_integer(segments, op, "the number of segments")
  if segments < 1 or segments > #modules then
    fail(("%s: %d segments of %d modules: from 1 to %d are possible"):format(op, segments, #modules, #modules))
  end
  local first = 1
  for k = 1, segments do
    local last = math.floor(k * #modules / segments)
    local part = run_of(modules, first, last)
    x = k < segments and checkpoint(part, x) or part(x)
    first = last + 1
  end
  return x
end

return { checkpoint = checkpoint, checkpoint_sequential = checkpoint_sequential }
