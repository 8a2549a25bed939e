-- support.lua: what the files of nn share: sizes as C wants them, placement options, fresh parameters, complaints about
-- a layer's input.
local base = require "tlua.base"
local ffi, C, check, wrap, out = base.ffi, base.C, base.check, base.wrap, base.out

local support = {}

local sizes_type = ffi.typeof("int64_t[?]")

--- "(64x784)", as the engine's messages spell a shape.
function support.shape(t)
  local sizes = {}
  for d = 0, C.tl_ndim(t) - 1 do sizes[d + 1] = ("%d"):format(C.tl_size(t, d)) end
  return "(" .. table.concat(sizes, "x") .. ")"
end

local function whole(x, lowest) return type(x) == "number" and x == math.floor(x) and x >= lowest end

--- `value` must be an integer of at least `lowest` (1 unless given); returned.
function support.size(op, name, value, lowest)
  if not whole(value, lowest or 1) then
    base.fail(("%s: %s must be an integer of at least %d, got %s"):format(op, name, lowest or 1,
      type(value) == "number" and tostring(value) or base.kind(value)))
  end
  return value
end

--- One number for all, or a table of `n`, as a table of `n` integers.
function support.sizes(op, name, value, n, lowest)
  local list = {}
  if type(value) == "table" then
    if #value ~= n then base.fail(("%s: %s needs %d numbers, got %d"):format(op, name, n, #value)) end
    for i = 1, n do list[i] = support.size(op, name, value[i], lowest) end
  else
    for i = 1, n do list[i] = support.size(op, name, value, lowest) end
  end
  return list
end

--- A Lua list as int64_t[n].
function support.array(list) return sizes_type(#list, list) end

--- "3" or "3x5": a list of sizes for printing.
function support.spell(list)
  for i = 2, #list do
    if list[i] ~= list[1] then return table.concat(list, "x") end
  end
  return tostring(list[1])
end

--- The numbers of a dtype and a device that were named, in any order; nil for what is not named.
function support.destination(op, first, second)
  local dtype, device
  for i = 1, 2 do
    local name = i == 1 and first or second
    if name ~= nil then
      local number = base.find_dtype(name)
      if number then dtype = number else device = base.device(name, op) end
    end
  end
  return dtype, device
end

--- The `dtype` and `device` options of a layer, as numbers; float32 on the default device, unless they say otherwise.
function support.placement(op, options)
  local dtype = base.dtype(options.dtype, op)
  if dtype > C.TL_FLOAT64 then
    base.fail(("%s: option 'dtype' must be a floating dtype, got '%s'"):format(op, options.dtype))
  end
  return dtype, options.device and base.device(options.device, op) or base.default_device
end

--- A tensor filled with `value` (not a parameter yet).
function support.full(shape, value, dtype, device)
  check(C.tl_full(#shape, support.array(shape), value, dtype, device, out))
  return wrap(out[0])
end

local function as_parameter(t)
  check(C.tl_set_requires_grad(t, true))
  return t
end
support.as_parameter = as_parameter

--- A parameter with elements uniform in [-bound, bound).
function support.uniform(shape, bound, dtype, device)
  check(C.tl_empty(#shape, support.array(shape), dtype, device, out))
  local t = wrap(out[0])
  check(C.tl_uniform_(t, -bound, bound, nil))
  return as_parameter(t)
end

--- A parameter whose elements are all `value`.
function support.constant(shape, value, dtype, device)
  return as_parameter(support.full(shape, value, dtype, device))
end

--- A layer's weight, which C must not get as nil.
function support.weight(layer)
  local weight = layer.weight
  if not base.is_tensor(weight) then
    base.fail(("%s: its weight must be a tensor, got %s"):format(layer:label(), base.kind(weight)))
  end
  return weight
end

--- Options of this function that are tensors, or absent.
function support.check_tensors(op, options, ...)
  for i = 1, select("#", ...) do
    local name = select(i, ...)
    local value = options[name]
    if value ~= nil and not base.is_tensor(value) then
      base.fail(("%s: option '%s' must be a tensor, got %s"):format(op, name, base.kind(value)))
    end
  end
end

--- A layer's C call failed: says what the layer expected of its input if that is what was wrong, else what C said.
--- `expected` describes the input's shape, `fits` is whether x has it.
function support.reject(layer, status, x, fits, expected)
  if fits or status == C.TL_ERR_INTERRUPT then return check(status) end
  C.tl_clear_error()
  base.fail(("%s: expected an input of %s, got %s"):format(layer:label(), expected, support.shape(x)))
end

local steps = {
  [C.TL_FLOAT32] = 2 ^ -23, [C.TL_FLOAT16] = 2 ^ -10, [C.TL_BFLOAT16] = 2 ^ -7, [C.TL_FLOAT64] = 2 ^ -52,
}

--- The machine epsilon of x's dtype: RMSNorm's eps unless given.
function support.epsilon(x) return steps[C.tl_dtype_of(x)] or 0 end

--- Numbers of the reductions that losses take.
support.reductions = {
  none = C.TL_REDUCE_NONE, mean = C.TL_REDUCE_MEAN, sum = C.TL_REDUCE_SUM, batchmean = C.TL_REDUCE_BATCHMEAN,
}

--- The number of a loss's reduction; only KLDivLoss has "batchmean".
function support.reduction(op, name, batchmean)
  local code = support.reductions[name]
  if code == nil or (name == "batchmean" and not batchmean) then
    base.fail(("%s: option 'reduction' is 'none', 'mean'%s or 'sum', got '%s'"):format(op,
      batchmean and ", 'batchmean'" or "", tostring(name)))
  end
  return code
end

return support
