-- checkpoint.lua: tl.utils.checkpoint: memory for time (Chen et al. 2016).
local base = require "tlua.base"

local tl = base.tl
local fail, is_tensor = base.fail, base.is_tensor

local native = base.ffi.C
local former = base.ffi.new("int[2]")

-- What the results of f depend on besides its arguments: random numbers and, by kind of device, autocast.
local function surroundings()
  return {
    rng = tl.get_rng_state(),
    enabled = { native.tl_autocast_enabled(0), native.tl_autocast_enabled(1) },
    dtype = { native.tl_autocast_dtype(0), native.tl_autocast_dtype(1) },
  }
end

-- f(...) in the surroundings of the first run; the present ones come back afterwards.
local function replay(first, f, ...)
  local now = tl.get_rng_state()
  tl.set_rng_state(first.rng)
  for i = 1, 2 do base.check(native.tl_autocast_enter(i - 1, first.dtype[i], first.enabled[i], former + (i - 1))) end
  local cpu, cuda = former[0], former[1]
  local results = { pcall(f, ...) }
  native.tl_autocast_leave(cuda)
  native.tl_autocast_leave(cpu)
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
--- random numbers and the same autocast. Arguments and parameters inside f get their gradients.
return function(f, ...)
  if type(f) ~= "function" and not (type(f) == "table" and getmetatable(f) and getmetatable(f).__call) then
    fail("checkpoint: argument 1 must be a function, got " .. base.kind(f))
  end
  if not tl.is_grad_enabled() then return f(...) end
  local anchor = tl.zeros({ 0 }, { requires_grad = true })
  return checkpoint_function()(anchor, f, select("#", ...), ...)
end
