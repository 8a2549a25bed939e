-- pointwise.lua: methods and functions of the rows of ops.def. A new row needs nothing here.
--
-- Every operation is compiled from a template of its own, so that each one is a prototype that the JIT specialises: a
-- shared closure over the C function would make one trace of one op fail for the next.
local base = require "tlua.base"

local ffi, methods, tl = base.ffi, base.methods, base.tl
local fail, check = base.fail, base.check
local is_tensor, check_tensor = base.is_tensor, base.check_tensor

local prologue = [[
local C, tensor, wrap, again, check, out, istype, type, wrong, number, no_more, INF = ...
]]

-- A call that may run out of memory is tried twice; again() raises whatever else it was.
local templates = {
  unary = [[
local function NAME(x, extra)
  if not istype(tensor, x) then wrong("NAME", x) end
  if extra ~= nil then no_more("NAME", extra) end
  local status = C.tl_NAME(x, out)
  if status ~= 0 then again(status) check(C.tl_NAME(x, out)) end
  return wrap(out[0])
end
local function NAME_(x, extra)
  if not istype(tensor, x) then wrong("NAME_", x) end
  if extra ~= nil then no_more("NAME_", extra) end
  check(C.tl_NAME_(x))
  return x
end
return NAME, NAME_]],

  unary1 = [[
local function NAME(x, p)
  if not istype(tensor, x) then wrong("NAME", x) end
  p = number("NAME", p, P)
  local status = C.tl_NAME(x, p, out)
  if status ~= 0 then again(status) check(C.tl_NAME(x, p, out)) end
  return wrap(out[0])
end
local function NAME_(x, p)
  if not istype(tensor, x) then wrong("NAME_", x) end
  check(C.tl_NAME_(x, number("NAME_", p, P)))
  return x
end
return NAME, NAME_]],

  unary2 = [[
local function NAME(x, p, q)
  if not istype(tensor, x) then wrong("NAME", x) end
  p, q = number("NAME", p, P), number("NAME", q, Q)
  local status = C.tl_NAME(x, p, q, out)
  if status ~= 0 then again(status) check(C.tl_NAME(x, p, q, out)) end
  return wrap(out[0])
end
local function NAME_(x, p, q)
  if not istype(tensor, x) then wrong("NAME_", x) end
  check(C.tl_NAME_(x, number("NAME_", p, P), number("NAME_", q, Q)))
  return x
end
return NAME, NAME_]],

  binary = [[
local function NAME(a, b)
  local status
  if istype(tensor, a) then
    if istype(tensor, b) then
      status = C.tl_NAME(a, b, out)
      if status ~= 0 then again(status) check(C.tl_NAME(a, b, out)) end
    elseif type(b) == "number" then
      status = C.tl_NAME_scalar(a, b, out)
      if status ~= 0 then again(status) check(C.tl_NAME_scalar(a, b, out)) end
    elseif type(b) == "boolean" then
      return NAME(a, b and 1 or 0)
    else
      wrong("NAME", a, b)
    end
  elseif type(a) == "number" and istype(tensor, b) then
    status = C.tl_NAME_rscalar(a, b, out)
    if status ~= 0 then again(status) check(C.tl_NAME_rscalar(a, b, out)) end
  elseif type(a) == "boolean" and istype(tensor, b) then
    return NAME(a and 1 or 0, b)
  else
    wrong("NAME", a, b)
  end
  return wrap(out[0])
end
local function NAME_(a, b)
  if not istype(tensor, a) then wrong("NAME_", a, b) end
  if istype(tensor, b) then
    check(C.tl_NAME_(a, b))
  elseif type(b) == "number" then
    check(C.tl_NAME_scalar_(a, b))
  elseif type(b) == "boolean" then
    check(C.tl_NAME_scalar_(a, b and 1 or 0))
  else
    wrong("NAME_", a, b)
  end
  return a
end
return NAME, NAME_]],
}

-- Parameters that may be left out, as Lua text.
local defaults = {
  leaky_relu = { "0.01" },
  elu = { "1" },
  softplus = { "1", "20" },
  clamp = { "-INF", "INF" },
}

local function wrong_unary(op, x) fail(op .. ": argument 1 must be a tensor, got " .. base.kind(x)) end

local function wrong_binary(op, a, b)
  if not is_tensor(a) and type(a) ~= "number" then
    fail(op .. ": argument 1 must be a tensor or a number, got " .. base.kind(a))
  end
  if not is_tensor(b) and type(b) ~= "number" then
    fail(op .. ": argument 2 must be a tensor or a number, got " .. base.kind(b))
  end
  fail(op .. ": one of the two arguments must be a tensor")
end

local function number(op, value, default)
  if value == nil then value = default end
  if type(value) ~= "number" then fail(op .. ": the parameter must be a number, got " .. base.kind(value)) end
  return value
end

for _, row in ipairs(base.ops) do
  local name, kind = row[1], row[2]
  local parameters = defaults[name] or {}
  local source = templates[kind]:gsub("%f[%w]NAME", name):gsub("tl_NAME", "tl_" .. name)
  source = source:gsub("%f[%w][PQ]%f[%W]", { P = parameters[1] or "nil", Q = parameters[2] or "nil" })
  local make = assert(loadstring(prologue .. source, "@tlua/" .. name))
  local op, in_place = make(ffi.C, ffi.typeof("tl_tensor"), base.wrap, base.again, check, base.out, ffi.istype, type,
    kind == "binary" and wrong_binary or wrong_unary, number, base.no_more, math.huge)
  methods[name], methods[name .. "_"], tl[name] = op, in_place, op
end

-- ---- those with options ----

local C, out, wrap = base.C, base.out, base.wrap

local add, sub, div, clamp = methods.add, methods.sub, methods.div, methods.clamp
local add_, sub_, div_, clamp_ = methods.add_, methods.sub_, methods.div_, methods.clamp_

-- a + alpha * b
local function scaled(op, plain, a, b, options, sign)
  local alpha = base.options(op, options, { alpha = 1 }).alpha
  if type(b) == "number" then return plain(a, alpha * b) end
  check_tensor(a, op, 1)
  check_tensor(b, op, 2)
  check(C.tl_add_scaled(a, b, sign * alpha, out))
  return wrap(out[0])
end

local function scaled_(op, plain, a, b, options, sign)
  local alpha = base.options(op, options, { alpha = 1 }).alpha
  if type(b) == "number" then return plain(a, alpha * b) end
  check_tensor(a, op, 1)
  check_tensor(b, op, 2)
  check(C.tl_add_scaled_(a, b, sign * alpha))
  return a
end

--- x:add(y), x:add(y, {alpha=2}): x + alpha * y.
function methods.add(a, b, options)
  if options == nil then return add(a, b) end
  return scaled("add", add, a, b, options, 1)
end

function methods.add_(a, b, options)
  if options == nil then return add_(a, b) end
  return scaled_("add_", add_, a, b, options, 1)
end

function methods.sub(a, b, options)
  if options == nil then return sub(a, b) end
  return scaled("sub", sub, a, b, options, -1)
end

function methods.sub_(a, b, options)
  if options == nil then return sub_(a, b) end
  return scaled_("sub_", sub_, a, b, options, -1)
end

-- The division of {rounding_mode=}: as true division, "floor" or "trunc".
local function rounding(op, options)
  local mode = base.options(op, options, { rounding_mode = base.optional }).rounding_mode
  if mode ~= nil and mode ~= "floor" and mode ~= "trunc" then
    fail(op .. ": rounding_mode is \"floor\" or \"trunc\", got " .. tostring(mode))
  end
  return mode
end

--- x:div(y), x:div(y, {rounding_mode="floor"|"trunc"}).
function methods.div(a, b, options)
  if options == nil then return div(a, b) end
  local mode = rounding("div", options)
  if mode == "floor" then return methods.floor_divide(a, b) end
  local quotient = div(a, b)
  if mode ~= "trunc" then return quotient end
  quotient = quotient:trunc()
  local integers = (not is_tensor(a) or not a:is_floating_point()) and (not is_tensor(b) or not b:is_floating_point())
  local like = is_tensor(a) and a or b
  return integers and quotient:type_as(like) or quotient
end

function methods.div_(a, b, options)
  if options == nil then return div_(a, b) end
  local mode = rounding("div_", options)
  if mode == "floor" then return methods.floor_divide_(a, b) end
  if mode == "trunc" then return a:copy_(methods.div(a, b, options)) end
  return div_(a, b)
end

-- The bounds of clamp: numbers or nil, or {min=, max=}.
local function bounds(op, low, high)
  if type(low) == "table" then
    local o = base.options(op, low, { min = base.optional, max = base.optional })
    low, high = o.min, o.max
  end
  if low == nil and high == nil then fail(op .. ": a lower or an upper bound is needed") end
  return low, high
end

--- x:clamp(low, high), either may be nil; x:clamp{max=1}.
function methods.clamp(x, low, high)
  low, high = bounds("clamp", low, high)
  return clamp(x, low, high)
end

function methods.clamp_(x, low, high)
  low, high = bounds("clamp_", low, high)
  return clamp_(x, low, high)
end

tl.add, tl.sub, tl.div, tl.clamp = methods.add, methods.sub, methods.div, methods.clamp

--- x:gelu(), x:gelu{approximate="tanh"}.
local gelu = methods.gelu
function methods.gelu(x, options)
  if options == nil then return gelu(x) end
  local how = base.options("gelu", options, { approximate = "none" }).approximate
  if how == "tanh" then return methods.gelu_tanh(x) end
  if how ~= "none" then fail("gelu: approximate is \"none\" or \"tanh\", got " .. tostring(how)) end
  return gelu(x)
end
tl.gelu = methods.gelu

-- ---- three operands ----

local function value_option(op, options)
  if options == nil then return 1 end
  return base.options(op, options, { value = 1 }).value
end

--- x:addcmul(a, b, {value=1}): x + value * a * b.
function methods.addcmul(x, a, b, options)
  check_tensor(x, "addcmul", 1)
  check_tensor(a, "addcmul", 2)
  check_tensor(b, "addcmul", 3)
  check(C.tl_addcmul(x, a, b, value_option("addcmul", options), out))
  return wrap(out[0])
end

function methods.addcmul_(x, a, b, options)
  check_tensor(x, "addcmul_", 1)
  check_tensor(a, "addcmul_", 2)
  check_tensor(b, "addcmul_", 3)
  check(C.tl_addcmul_(x, a, b, value_option("addcmul_", options)))
  return x
end

--- x:addcdiv(a, b, {value=1}): x + value * a / b.
function methods.addcdiv(x, a, b, options)
  check_tensor(x, "addcdiv", 1)
  check_tensor(a, "addcdiv", 2)
  check_tensor(b, "addcdiv", 3)
  check(C.tl_addcdiv(x, a, b, value_option("addcdiv", options), out))
  return wrap(out[0])
end

function methods.addcdiv_(x, a, b, options)
  check_tensor(x, "addcdiv_", 1)
  check_tensor(a, "addcdiv_", 2)
  check_tensor(b, "addcdiv_", 3)
  check(C.tl_addcdiv_(x, a, b, value_option("addcdiv_", options)))
  return x
end

--- x:lerp(y, weight): x + weight * (y - x).
function methods.lerp(x, y, weight)
  check_tensor(x, "lerp", 1)
  check_tensor(y, "lerp", 2)
  base.check_number(weight, "lerp", "the weight")
  check(C.tl_lerp(x, y, weight, out))
  return wrap(out[0])
end

local BOOL = tonumber(ffi.C.TL_BOOL)

-- A number where a tensor is wanted becomes a 0-d tensor: of `like`'s dtype if that can hold it. A boolean, too.
local function operand(op, value, n, like)
  if is_tensor(value) then return value end
  if type(value) == "boolean" then
    check(C.tl_full(0, nil, value and 1 or 0, BOOL, like and ffi.C.tl_device_of(like) or base.default_device, out))
    return wrap(out[0])
  end
  if type(value) ~= "number" then
    fail(op .. ": argument " .. n .. " must be a tensor or a number, got " .. base.kind(value))
  end
  local dtype = like and ffi.C.tl_dtype_of(like) or 0
  if dtype > 3 and value ~= math.floor(value) then dtype = 0 end
  check(C.tl_full(0, nil, value, dtype, like and ffi.C.tl_device_of(like) or base.default_device, out))
  return wrap(out[0])
end

--- tl.where(cond, a, b): a where cond is true, b elsewhere; a and b are tensors or numbers. tl.where(cond) is
--- nonzero(cond).
function tl.where(cond, a, b)
  check_tensor(cond, "where", 1)
  if a == nil and b == nil then return methods.nonzero(cond) end
  local x = operand("where", a, 2, is_tensor(b) and b)
  local y = operand("where", b, 3, is_tensor(a) and a)
  check(C.tl_where(cond, x, y, out))
  return wrap(out[0])
end

--- x:where(cond, y): x where cond is true, y elsewhere.
function methods.where(x, cond, y) return tl.where(cond, x, y) end

--- x:masked_fill(mask, value).
function methods.masked_fill(x, mask, value)
  check_tensor(x, "masked_fill", 1)
  check_tensor(mask, "masked_fill", 2)
  if is_tensor(value) then value = value:item() end
  base.check_number(value, "masked_fill", "the value")
  check(C.tl_masked_fill(x, mask, value, out))
  return wrap(out[0])
end

function methods.masked_fill_(x, mask, value)
  check_tensor(x, "masked_fill_", 1)
  check_tensor(mask, "masked_fill_", 2)
  if is_tensor(value) then value = value:item() end
  base.check_number(value, "masked_fill_", "the value")
  check(C.tl_masked_fill_(x, mask, value))
  return x
end

for _, name in ipairs { "addcmul", "addcdiv", "lerp", "masked_fill" } do tl[name] = methods[name] end

-- PyTorch's other names.
local aliases = {
  multiply = "mul", divide = "div", true_divide = "div", subtract = "sub", negative = "neg", absolute = "abs",
  clip = "clamp",
  greater = "gt", greater_equal = "ge", less = "lt", less_equal = "le", not_equal = "ne", arctan2 = "atan2",
}
for alias, name in pairs(aliases) do
  methods[alias], tl[alias] = methods[name], methods[name]
  if methods[name .. "_"] then methods[alias .. "_"] = methods[name .. "_"] end
end

-- The operators take no options: they go straight to the plain ones.
return {
  add = add, sub = sub, mul = methods.mul, div = div, pow = methods.pow, remainder = methods.remainder,
  neg = methods.neg,
}
