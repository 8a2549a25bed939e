-- create.lua: tensors from numbers, tables and generators.
local base = require "tlua.base"

local ffi, C, tl = base.ffi, base.C, base.tl
local check, fail, wrap, out = base.check, base.fail, base.wrap, base.out
local check_number, check_integer = base.check_number, base.check_integer
local is_tensor, check_tensor = base.is_tensor, base.check_tensor
local sizes, shape = base.sizes, base.shape
local native = ffi.C
local BOOL, INT64 = tonumber(native.TL_BOOL), tonumber(native.TL_INT64)

local default_dtype = 0

--- The dtype of new floating tensors ("float32" at first).
function tl.get_default_dtype() return base.dtype_names[default_dtype] end

--- Only floating dtypes.
function tl.set_default_dtype(name)
  local dtype = base.dtype(name, "set_default_dtype")
  if dtype > 3 then fail("set_default_dtype: must be a floating dtype, got " .. name) end
  default_dtype = dtype
end

--- The device of new tensors that no option places ("cpu" at first).
function tl.get_default_device() return base.device_name(base.default_device) end

--- tl.set_default_device("cuda"): where creation functions and layers make their tensors from now on. What reads files
--- or orders samples stays on the CPU.
function tl.set_default_device(name) base.default_device = base.device(name, "set_default_device") end

local known = { dtype = base.optional, device = base.optional, requires_grad = false, generator = base.optional }

-- The options of a creation function: dtype, device, requires_grad, generator (numbers and handles).
local function read(op, options, dtype, device)
  if options == nil then return dtype or default_dtype, device or base.default_device, false, nil end
  local o = base.options(op, options, known)
  if o.generator ~= nil and not base.is_generator(o.generator) then
    fail(op .. ": option 'generator' must be a tl.Generator, got " .. base.kind(o.generator))
  end
  dtype = o.dtype and base.dtype(o.dtype, op) or dtype or default_dtype
  device = o.device and base.device(o.device, op) or device or base.default_device
  return dtype, device, o.requires_grad, o.generator
end
base.creation_options = read

-- Hands out what C made.
local function give(requires_grad)
  local t = wrap(out[0])
  if requires_grad then check(C.tl_set_requires_grad(t, true)) end
  return t
end

-- The sizes that sizes() read are none below 0.
local function check_shape(op, n)
  for d = 0, n - 1 do
    if shape[d] < 0 then fail(("%s: size %d of dim %d is negative"):format(op, tonumber(shape[d]), d + 1)) end
  end
end

-- ---- filled ----

local function filled(op, value)
  return function(a, b, c, d, e, f, g, h, i)
    local n, options = sizes(op, a, b, c, d, e, f, g, h, i)
    check_shape(op, n)
    local dtype, device, requires_grad = read(op, options)
    check(C.tl_full(n, shape, value, dtype, device, out))
    return give(requires_grad)
  end
end

--- tl.zeros(2, 3, opts), tl.zeros({2, 3}, opts); ones likewise. opts: dtype, device, requires_grad.
tl.zeros = filled("zeros", 0)
tl.ones = filled("ones", 1)

--- tl.empty(sizes, opts): uninitialised.
function tl.empty(a, b, c, d, e, f, g, h, i)
  local n, options = sizes("empty", a, b, c, d, e, f, g, h, i)
  check_shape("empty", n)
  local dtype, device, requires_grad = read("empty", options)
  check(C.tl_empty(n, shape, dtype, device, out))
  return give(requires_grad)
end

--- tl.full({2, 3}, value, opts); a boolean value makes a bool tensor.
function tl.full(list, value, options)
  if type(list) == "number" then list = { list } end
  local n = sizes("full", list)
  check_shape("full", n)
  local dtype, device, requires_grad = read("full", options, type(value) == "boolean" and BOOL or nil)
  if type(value) == "boolean" then value = value and 1 or 0 end
  check_number(value, "full", "the value")
  check(C.tl_full(n, shape, value, dtype, device, out))
  return give(requires_grad)
end

--- tl.arange(n), tl.arange(first, last, step, opts): last excluded.
function tl.arange(first, last, step, options)
  if type(last) == "table" then last, options = nil, last end
  if type(step) == "table" then step, options = nil, step end
  if last == nil then first, last = 0, first end
  step = step or 1
  check_number(first, "arange", "the first value")
  check_number(last, "arange", "the end")
  check_number(step, "arange", "the step")
  local dtype, device, requires_grad = read("arange", options)
  check(C.tl_arange(first, last, step, dtype, device, out))
  return give(requires_grad)
end

--- tl.linspace(first, last, n, opts): n values, both ends included.
function tl.linspace(first, last, n, options)
  check_number(first, "linspace", "the first value")
  check_number(last, "linspace", "the last value")
  check_integer(n, "linspace", "the number of values")
  local dtype, device, requires_grad = read("linspace", options)
  check(C.tl_linspace(first, last, n, dtype, device, out))
  return give(requires_grad)
end

--- tl.eye(n, opts), tl.eye(rows, columns, opts).
function tl.eye(rows, columns, options)
  if type(columns) == "table" then columns, options = nil, columns end
  check_integer(rows, "eye", "the number of rows")
  columns = columns or rows
  check_integer(columns, "eye", "the number of columns")
  local dtype, device, requires_grad = read("eye", options)
  check(C.tl_eye(rows, columns, dtype, device, out))
  return give(requires_grad)
end

-- ---- random ----

--- tl.rand(sizes, opts): uniform in [0, 1). opts also: generator.
function tl.rand(a, b, c, d, e, f, g, h, i)
  local n, options = sizes("rand", a, b, c, d, e, f, g, h, i)
  check_shape("rand", n)
  local dtype, device, requires_grad, generator = read("rand", options)
  check(C.tl_empty(n, shape, dtype, device, out))
  local t = wrap(out[0])
  check(C.tl_uniform_(t, 0, 1, generator))
  if requires_grad then check(C.tl_set_requires_grad(t, true)) end
  return t
end

--- tl.randn(sizes, opts): normal with mean 0 and variance 1.
function tl.randn(a, b, c, d, e, f, g, h, i)
  local n, options = sizes("randn", a, b, c, d, e, f, g, h, i)
  check_shape("randn", n)
  local dtype, device, requires_grad, generator = read("randn", options)
  check(C.tl_empty(n, shape, dtype, device, out))
  local t = wrap(out[0])
  check(C.tl_normal_(t, 0, 1, generator))
  if requires_grad then check(C.tl_set_requires_grad(t, true)) end
  return t
end

--- tl.randint(low, high, {2, 3}, opts), tl.randint(high, {2, 3}, opts): integers low .. high-1, int64.
function tl.randint(low, high, list, options)
  if type(high) == "table" then low, high, list, options = 0, low, high, list end
  check_integer(low, "randint", "the lower bound")
  check_integer(high, "randint", "the upper bound")
  local n = sizes("randint", list)
  check_shape("randint", n)
  local dtype, device, requires_grad, generator = read("randint", options, INT64)
  check(C.tl_empty(n, shape, dtype, device, out))
  local t = wrap(out[0])
  check(C.tl_randint_(t, low, high, generator))
  if requires_grad then check(C.tl_set_requires_grad(t, true)) end
  return t
end

--- tl.randperm(n, opts): the numbers 0 .. n-1 in random order, int64.
function tl.randperm(n, options)
  check_integer(n, "randperm", "the length")
  local dtype, device, requires_grad, generator = read("randperm", options, INT64)
  check(C.tl_randperm(n, dtype, device, generator, out))
  return give(requires_grad)
end

-- ---- like another tensor ----

-- What read() gave, as options again.
local function options_of(dtype, device, requires_grad, generator)
  return {
    dtype = base.dtype_names[dtype], device = base.device_name(device), requires_grad = requires_grad,
    generator = generator,
  }
end

local function like(name, op)
  tl[name] = function(x, options)
    check_tensor(x, name, 1)
    local dtype, device, requires_grad, generator = read(name, options, native.tl_dtype_of(x), native.tl_device_of(x))
    return op(options_of(dtype, device, requires_grad, generator), x.shape)
  end
end

like("zeros_like", function(o, list) return tl.zeros(list, o) end)
like("ones_like", function(o, list) return tl.ones(list, o) end)
like("empty_like", function(o, list) return tl.empty(list, o) end)
like("rand_like", function(o, list) return tl.rand(list, o) end)
like("randn_like", function(o, list) return tl.randn(list, o) end)

--- tl.full_like(x, value, opts).
function tl.full_like(x, value, options)
  check_tensor(x, "full_like", 1)
  local dtype, device, requires_grad = read("full_like", options, native.tl_dtype_of(x), native.tl_device_of(x))
  return tl.full(x.shape, value, options_of(dtype, device, requires_grad))
end

--- tl.randint_like(x, low, high, opts).
function tl.randint_like(x, low, high, options)
  check_tensor(x, "randint_like", 1)
  local dtype, device, _, generator = read("randint_like", options, native.tl_dtype_of(x), native.tl_device_of(x))
  return tl.randint(low, high, x.shape, options_of(dtype, device, false, generator))
end

-- ---- from Lua tables ----

-- "[2][3]"
local function place(path, depth)
  local text = {}
  for d = 1, depth do text[d] = "[" .. path[d] .. "]" end
  return table.concat(text)
end

-- The shape of a nested table, from its first elements.
local function shape_of(value)
  local list = {}
  while type(value) == "table" do
    list[#list + 1] = #value
    value = value[1]
  end
  return list, type(value)
end

local function number_of_keys(t)
  local n = 0
  for _ in pairs(t) do n = n + 1 end
  return n
end

local function check_row(value, path, depth, wanted)
  if type(value) ~= "table" then
    local what = depth == 0 and "the value" or "element " .. place(path, depth)
    fail(("tensor: %s is %s, expected a table of %d"):format(what, base.kind(value), wanted))
  end
  if #value ~= wanted then
    local row = place(path, depth)
    fail(("tensor: row %s has %d elements, the first one of its level has %d"):format(row, #value, wanted))
  end
  if number_of_keys(value) ~= wanted then
    local what = depth == 0 and "the table" or "row " .. place(path, depth)
    fail(("tensor: %s has keys that are not 1..%d"):format(what, wanted))
  end
end

-- Writes value's numbers to buffer from `at` on; returns where the next ones go.
local function flatten(value, list, depth, path, buffer, at, want)
  local n = list[depth + 1]
  check_row(value, path, depth, n)
  if depth + 1 < #list then
    for i = 1, n do
      path[depth + 1] = i
      at = flatten(value[i], list, depth + 1, path, buffer, at, want)
    end
    return at
  end
  for i = 1, n do
    local v = value[i]
    if type(v) ~= want then
      path[depth + 1] = i
      fail(("tensor: element %s is %s, expected a %s"):format(place(path, depth + 1), base.kind(v), want))
    end
    buffer[at] = want == "boolean" and (v and 1 or 0) or v
    at = at + 1
  end
  return at
end

--- tl.tensor(number, boolean or nested table, opts): float32 from numbers, bool from booleans, unless opts.dtype says
--- otherwise. A ragged table, or one that holds anything else, is an error that names the place. A tensor is copied.
function tl.tensor(value, options)
  if is_tensor(value) then
    local dtype, device, requires_grad = read("tensor", options, native.tl_dtype_of(value), native.tl_device_of(value))
    local copy = value:detach():clone():to(base.dtype_names[dtype]):to(base.device_name(device))
    if requires_grad then check(C.tl_set_requires_grad(copy, true)) end
    return copy
  end
  local list, want = shape_of(value)
  if want == "nil" and #list > 0 and list[#list] == 0 then want = "number" end
  if want ~= "number" and want ~= "boolean" then
    local path = {}
    for d = 1, #list do path[d] = 1 end
    if #list == 0 then fail("tensor: expected a number, a boolean or a table, got " .. base.kind(value)) end
    local first = value
    for _ = 1, #list do first = first[1] end
    if is_tensor(first) then
      fail("tensor: element " .. place(path, #list) .. " is a tensor: tl.stack joins tensors")
    end
    fail(("tensor: element %s is %s, expected a number"):format(place(path, #list), base.kind(first)))
  end
  local count = 1
  for d = 1, #list do count = count * list[d] end
  local buffer = ffi.new("double[?]", math.max(count, 1))
  if #list == 0 then buffer[0] = want == "boolean" and (value and 1 or 0) or value
  else flatten(value, list, 0, {}, buffer, 0, want) end
  local dtype, device, requires_grad = read("tensor", options, want == "boolean" and BOOL or nil)
  local n = sizes("tensor", list)
  check(C.tl_from_doubles(n, shape, dtype, device, buffer, out))
  return give(requires_grad)
end
