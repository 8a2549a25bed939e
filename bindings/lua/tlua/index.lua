-- index.lua: x[i], x[{...}] and their assignments, and the operations that pick elements by stored numbers.
--
-- What is written in Lua (x[3], {1,4}) is a position from 1; what a tensor of ids holds is data, from 0.
local base = require "tlua.base"

local ffi, C, methods, tl = base.ffi, base.C, base.methods, base.tl
local check, fail, wrap, out, position = base.check, base.fail, base.wrap, base.out, base.position
local check_tensor, check_integer, is_tensor = base.check_tensor, base.check_integer, base.is_tensor
local native = ffi.C
local BOOL = tonumber(native.TL_BOOL)

local indexing = {}

--- x[i]: a view of part i of dim 1.
function indexing.select(x, i)
  check(C.tl_select(x, 0, position(i, "index"), out))
  return wrap(out[0])
end

-- A range {first, last} or {first, last, step} of a dim of `size`, inclusive, as 0-based first and end.
local function read_range(op, range, size)
  local n = #range
  if n < 2 or n > 3 then
    fail(op .. ": a range is {first, last} or {first, last, step}, and {} is everything; got " .. n .. " numbers")
  end
  local first, last, step = range[1], range[2], range[3] or 1
  check_integer(first, op, "the start of a range")
  check_integer(last, op, "the end of a range")
  check_integer(step, op, "the step of a range")
  if step < 1 then fail(op .. ": the step of a range is at least 1, got " .. step) end
  local from = first < 0 and first + size + 1 or first
  local to = last < 0 and last + size + 1 or last
  if from < 1 or from > size + 1 or to < 0 or to > size then
    fail(("%s: the range {%d, %d} does not lie in 1..%d"):format(op, first, last, size))
  end
  return from - 1, math.max(to, from - 1), step
end

local function as_ids(entry)
  if native.tl_dtype_of(entry) ~= BOOL then return entry end
  return methods.reshape(methods.nonzero(entry), -1)
end

-- One entry of x[{...}] on dim d (0-based). Returns the part and whether the dim is still there.
local function apply(x, entry, d)
  if type(entry) == "number" then
    check(C.tl_select(x, d, position(entry, "index"), out))
    return wrap(out[0]), false
  end
  if is_tensor(entry) then
    check(C.tl_index_select(x, d, as_ids(entry), out))
    return wrap(out[0]), true
  end
  if type(entry) ~= "table" then
    fail("index: an entry is a number, a range {first, last}, {} or a tensor of ids, got " .. base.kind(entry))
  end
  if next(entry) == nil then return x, true end
  local first, last, step = read_range("index", entry, native.tl_size(x, d))
  check(C.tl_slice(x, d, first, last, step, out))
  return wrap(out[0]), true
end

local function part(x, list)
  local n = #list
  if n == 0 and next(list) ~= nil then fail("index: a table of entries counts from 1, this one has other keys") end
  if n > native.tl_ndim(x) then
    fail(("index: %d entries for a tensor of %d dims"):format(n, native.tl_ndim(x)))
  end
  local d = 0
  for i = 1, n do
    local kept
    x, kept = apply(x, list[i], d)
    if kept then d = d + 1 end
  end
  return x
end

local function same_shape(a, b)
  local n = native.tl_ndim(a)
  if n ~= native.tl_ndim(b) then return false end
  for d = 0, n - 1 do
    if native.tl_size(a, d) ~= native.tl_size(b, d) then return false end
  end
  return true
end

--- x[{...}]: a view (a copy where an entry is a tensor). x[mask]: the chosen elements (or rows). x[ids]: rows by id.
function indexing.get(x, key)
  if not is_tensor(key) then return part(x, key) end
  if native.tl_dtype_of(key) == BOOL then
    if same_shape(x, key) then return methods.masked_select(x, key) end
    if native.tl_ndim(key) == 1 and native.tl_ndim(x) > 0 and native.tl_size(key, 0) == native.tl_size(x, 0) then
      return methods.index_select(x, 1, as_ids(key))
    end
    fail("index: a mask has the shape of the tensor, or one element for each of its rows")
  end
  local shape = key.shape
  for d = 1, native.tl_ndim(x) - 1 do shape[#shape + 1] = native.tl_size(x, d) end
  return methods.reshape(methods.index_select(x, 1, methods.reshape(key, -1)), shape)
end

local function assign(view, value)
  if type(value) == "number" then
    check(C.tl_fill_(view, value))
  elseif type(value) == "boolean" then
    check(C.tl_fill_(view, value and 1 or 0))
  elseif is_tensor(value) then
    check(C.tl_copy_(view, value))
  else
    fail("index: only numbers, booleans and tensors can be assigned, got " .. base.kind(value))
  end
end

--- x[i] = v, x[{...}] = v, x[mask] = number.
function indexing.set(x, key, value)
  if type(key) == "number" then return assign(indexing.select(x, key), value) end
  if is_tensor(key) then
    if native.tl_dtype_of(key) ~= BOOL then
      fail("index: assigning through a tensor of ids is not possible: use index_add_ or scatter_add_")
    end
    if type(value) == "boolean" then value = value and 1 or 0 end
    if type(value) ~= "number" then fail("index: only a number can be assigned through a mask: use tl.where") end
    methods.masked_fill_(x, key, value)
    return
  end
  if type(key) ~= "table" then fail("index: a position is a number, a table or a tensor, got " .. base.kind(key)) end
  for i = 1, #key do
    if is_tensor(key[i]) then
      fail("index: assigning through a tensor of ids is not possible: use index_add_ or scatter_add_")
    end
  end
  assign(part(x, key), value)
end

-- ---- views of a part ----

--- x:select(d, i): part i of dim d, without the dim.
function methods.select(x, d, i)
  check_tensor(x, "select", 1)
  check(C.tl_select(x, position(d, "select"), position(i, "select"), out))
  return wrap(out[0])
end

--- x:narrow(d, first, length).
function methods.narrow(x, d, first, length)
  check_tensor(x, "narrow", 1)
  check_integer(length, "narrow", "the length")
  check(C.tl_narrow(x, position(d, "narrow"), position(first, "narrow"), length, out))
  return wrap(out[0])
end

--- x:slice(d, first, last, step): the inclusive range; last and step may be left out (-1, 1).
function methods.slice(x, d, first, last, step)
  check_tensor(x, "slice", 1)
  local n, i = native.tl_ndim(x), position(d, "slice")
  if i < 0 then i = i + n end
  if i < 0 or i >= n then fail(("slice: dim %d is out of range for %d dims"):format(d, n)) end
  local from, to, by = read_range("slice", { first or 1, last or -1, step or 1 }, native.tl_size(x, i))
  check(C.tl_slice(x, i, from, to, by, out))
  return wrap(out[0])
end

-- ---- picking by ids ----

local function dim_and_ids(op, x, d, ids)
  check_tensor(x, op, 1)
  check_tensor(ids, op, 3)
  return position(d, op)
end

--- x:index_select(d, ids): the parts of dim d that ids (1-d, 0-based) name.
function methods.index_select(x, d, ids)
  check(C.tl_index_select(x, dim_and_ids("index_select", x, d, ids), ids, out))
  return wrap(out[0])
end

--- x:gather(d, ids): out[i][j] = x[ids[i][j]][j] for d = 1, and so on; ids (0-based) has out's shape.
function methods.gather(x, d, ids)
  check(C.tl_gather(x, dim_and_ids("gather", x, d, ids), ids, out))
  return wrap(out[0])
end

--- x:scatter_add(d, ids, src): adds src's elements where ids say, the inverse of gather.
function methods.scatter_add(x, d, ids, src)
  local dim = dim_and_ids("scatter_add", x, d, ids)
  check_tensor(src, "scatter_add", 4)
  check(C.tl_scatter_add(x, dim, ids, src, out))
  return wrap(out[0])
end

function methods.scatter_add_(x, d, ids, src)
  local dim = dim_and_ids("scatter_add_", x, d, ids)
  check_tensor(src, "scatter_add_", 4)
  check(C.tl_scatter_add_(x, dim, ids, src))
  return x
end

--- x:index_add_(d, ids, src, {alpha=1}): x's part ids[k] of dim d += alpha * src's part k.
function methods.index_add_(x, d, ids, src, options)
  local dim = dim_and_ids("index_add_", x, d, ids)
  check_tensor(src, "index_add_", 4)
  check(C.tl_index_add_(x, dim, ids, src, base.options("index_add_", options, { alpha = 1 }).alpha))
  return x
end

--- x:masked_select(mask): the chosen elements, 1-d.
function methods.masked_select(x, mask)
  check_tensor(x, "masked_select", 1)
  check_tensor(mask, "masked_select", 2)
  check(C.tl_masked_select(x, mask, out))
  return wrap(out[0])
end

--- x:nonzero(): the indices (0-based) of the elements that are not 0, int64 (n, dims).
function methods.nonzero(x)
  check_tensor(x, "nonzero", 1)
  check(C.tl_nonzero(x, out))
  return wrap(out[0])
end

--- ids:one_hot(classes): int64 (.., classes); classes left out: the largest id + 1.
function methods.one_hot(ids, classes)
  check_tensor(ids, "one_hot", 1)
  if classes ~= nil then check_integer(classes, "one_hot", "the number of classes") end
  check(C.tl_one_hot(ids, classes or -1, out))
  return wrap(out[0])
end

for _, name in ipairs {
  "select", "narrow", "index_select", "gather", "scatter_add", "masked_select", "nonzero", "one_hot",
} do tl[name] = methods[name] end

return indexing
