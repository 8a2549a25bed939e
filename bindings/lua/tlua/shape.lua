-- shape.lua: views of other shapes, joining and splitting.
local base = require "tlua.base"

local ffi, C, methods, tl = base.ffi, base.C, base.methods, base.tl
local check, fail, wrap, out = base.check, base.fail, base.wrap, base.out
local check_tensor, check_integer = base.check_tensor, base.check_integer
local position, positions, sizes = base.position, base.positions, base.sizes
local shape, dims = base.shape, base.dims
local native = ffi.C

local function no_more(op, rest)
  if rest ~= nil then fail(op .. ": unexpected argument: " .. base.kind(rest)) end
end

--- x:view(2, -1): the same elements in another shape; one size may be -1. An error if that needs a copy (see reshape).
function methods.view(x, a, b, c, d, e, f, g, h)
  check_tensor(x, "view", 1)
  local n, rest = sizes("view", a, b, c, d, e, f, g, h)
  no_more("view", rest)
  check(C.tl_view(x, n, shape, out))
  return wrap(out[0])
end

--- x:reshape(2, -1): a view where possible, else a copy.
function methods.reshape(x, a, b, c, d, e, f, g, h)
  check_tensor(x, "reshape", 1)
  local n, rest = sizes("reshape", a, b, c, d, e, f, g, h)
  no_more("reshape", rest)
  check(C.tl_reshape(x, n, shape, out))
  return wrap(out[0])
end

--- x:view_as(y), x:reshape_as(y), x:expand_as(y).
function methods.view_as(x, y)
  check_tensor(y, "view_as", 2)
  return methods.view(x, y.shape)
end

function methods.reshape_as(x, y)
  check_tensor(y, "reshape_as", 2)
  return methods.reshape(x, y.shape)
end

function methods.expand_as(x, y)
  check_tensor(y, "expand_as", 2)
  return methods.expand(x, y.shape)
end

--- x:expand(3, -1): dims of size 1 grow without a copy; -1 keeps a size.
function methods.expand(x, a, b, c, d, e, f, g, h)
  check_tensor(x, "expand", 1)
  local n, rest = sizes("expand", a, b, c, d, e, f, g, h)
  no_more("expand", rest)
  check(C.tl_expand(x, n, shape, out))
  return wrap(out[0])
end
tl.broadcast_to = function(x, list) return methods.expand(x, list) end

--- x:permute(2, 1, 3): dims in a new order.
function methods.permute(x, a, b, c, d, e, f, g, h)
  check_tensor(x, "permute", 1)
  local n
  if type(a) == "table" then
    n = positions("permute", a)
  else
    n = sizes("permute", a, b, c, d, e, f, g, h)
    for i = 0, n - 1 do dims[i] = position(tonumber(shape[i]), "permute") end
  end
  check(C.tl_permute(x, n, dims, out))
  return wrap(out[0])
end

--- x:transpose(a, b): two dims change places.
function methods.transpose(x, a, b)
  check_tensor(x, "transpose", 1)
  check(C.tl_transpose(x, position(a, "transpose"), position(b, "transpose"), out))
  return wrap(out[0])
end

--- x:t(): the transposed matrix (a 0-d or 1-d tensor is itself).
function methods.t(x)
  check_tensor(x, "t", 1)
  local n = native.tl_ndim(x)
  if n > 2 then fail("t: a matrix is transposed, this tensor has " .. n .. " dims") end
  if n < 2 then return x end
  check(C.tl_transpose(x, 0, 1, out))
  return wrap(out[0])
end

--- x:movedim(from, to): one dim moves, the others keep their order.
function methods.movedim(x, from, to)
  check_tensor(x, "movedim", 1)
  local n = native.tl_ndim(x)
  local function absolute(d)
    local i = position(d, "movedim")
    if i < 0 then i = i + n end
    if i < 0 or i >= n then fail(("movedim: dim %d is out of range for %d dims"):format(d, n)) end
    return i + 1
  end
  local order = {}
  for d = 1, n do order[d] = d end
  table.insert(order, absolute(to), table.remove(order, absolute(from)))
  return methods.permute(x, order)
end

--- x:flatten(first, last): dims first..last become one; all of them by default.
function methods.flatten(x, first, last)
  check_tensor(x, "flatten", 1)
  local a = first == nil and 0 or position(first, "flatten")
  local b = last == nil and -1 or position(last, "flatten")
  check(C.tl_flatten(x, a, b, out))
  return wrap(out[0])
end

--- x:unflatten(d, sizes): one dim becomes several.
function methods.unflatten(x, d, list)
  check_tensor(x, "unflatten", 1)
  if type(list) ~= "table" then fail("unflatten: argument 3 must be a table of sizes, got " .. base.kind(list)) end
  local whole = x.shape
  local i = position(d, "unflatten")
  if i < 0 then i = i + #whole end
  if i < 0 or i >= #whole then fail(("unflatten: dim %d is out of range for %d dims"):format(d, #whole)) end
  local given, free = 1, nil
  local new = {}
  for k = 1, i do new[k] = whole[k] end
  for k = 1, #list do
    check_integer(list[k], "unflatten", "a size")
    if list[k] == -1 then free = i + k else given = given * list[k] end
    new[i + k] = list[k]
  end
  if free then new[free] = whole[i + 1] / given end
  for k = i + 2, #whole do new[#new + 1] = whole[k] end
  local product = 1
  for k = i + 1, i + #list do product = product * new[k] end
  if product ~= whole[i + 1] then
    fail(("unflatten: size %d of dim %d does not split into (%s)"):format(whole[i + 1], d, table.concat(list, "x")))
  end
  return methods.view(x, new)
end

--- x:squeeze(), x:squeeze(d), x:squeeze{1, 3}: dims of size 1 go.
function methods.squeeze(x, d)
  check_tensor(x, "squeeze", 1)
  if d == nil then
    check(C.tl_squeeze_all(x, out))
    return wrap(out[0])
  end
  if type(d) == "table" then
    local n = native.tl_ndim(x)
    local list = {}
    for k = 1, #d do
      local i = position(d[k], "squeeze")
      list[k] = i < 0 and i + n or i
    end
    table.sort(list, function(a, b) return a > b end)
    for k = 1, #list do x = methods.squeeze(x, list[k] + 1) end
    return x
  end
  check(C.tl_squeeze(x, position(d, "squeeze"), out))
  return wrap(out[0])
end

--- x:unsqueeze(d): a dim of size 1 becomes dim d.
function methods.unsqueeze(x, d)
  check_tensor(x, "unsqueeze", 1)
  check(C.tl_unsqueeze(x, position(d, "unsqueeze"), out))
  return wrap(out[0])
end

-- ---- joining ----

local join = [[
local C, check, again, wrap, out, tensors, position = ...
return function(list, d)
  local pointers, n = tensors(list, "NAME")
  d = d == nil and 0 or position(d, "NAME")
  local status = C.tl_NAME(n, pointers, d, out)
  if status ~= 0 then
    again(status)
    pointers, n = tensors(list, "NAME")
    check(C.tl_NAME(n, pointers, d, out))
  end
  return wrap(out[0])
end]]

--- tl.cat({a, b, ...}, d): along dim d (1). tl.stack: along a new dim d (1).
for _, name in ipairs { "cat", "stack" } do
  local make = assert(loadstring(join:gsub("NAME", name), "@tlua/" .. name))
  tl[name] = make(C, check, base.again, wrap, out, base.tensors, position)
end
tl.concat = tl.cat

--- x:tile(2, 3): repeats whole dims. (PyTorch's repeat is this, too; repeat is a word of Lua.)
function methods.tile(x, a, b, c, d, e, f, g, h)
  check_tensor(x, "tile", 1)
  local n, rest = sizes("tile", a, b, c, d, e, f, g, h)
  no_more("tile", rest)
  check(C.tl_tile(x, n, shape, out))
  return wrap(out[0])
end

--- x:repeat_interleave(times, d): every part of dim d `times` times in a row; without d of the flattened tensor.
function methods.repeat_interleave(x, times, d)
  check_tensor(x, "repeat_interleave", 1)
  check_integer(times, "repeat_interleave", "the number of repeats")
  if d == nil then x, d = methods.flatten(x), 1 end
  check(C.tl_repeat_interleave(x, times, position(d, "repeat_interleave"), out))
  return wrap(out[0])
end

--- x:flip(d) or x:flip{1, 2}: reverses dims.
function methods.flip(x, d)
  check_tensor(x, "flip", 1)
  if d == nil then fail("flip: which dims?") end
  local n = positions("flip", d)
  check(C.tl_flip(x, n, dims, out))
  return wrap(out[0])
end

-- ---- splitting ----

-- dim d (1 by default) as 0-based, and its size
local function dim_of(op, x, d)
  check_tensor(x, op, 1)
  local n, i = native.tl_ndim(x), d == nil and 0 or position(d, op)
  if i < 0 then i = i + n end
  if i < 0 or i >= n then fail(("%s: dim %d is out of range for %d dims"):format(op, d or 1, n)) end
  return i, native.tl_size(x, i)
end

local function part(x, i, first, length)
  check(C.tl_narrow(x, i, first, length, out))
  return wrap(out[0])
end

--- x:split(size, d) or x:split({2, 3}, d): a list of parts of dim d (1); the last one may be smaller.
function methods.split(x, size, d)
  local i, whole = dim_of("split", x, d)
  local parts, first = {}, 0
  if type(size) == "table" then
    local sum = 0
    for k = 1, #size do
      check_integer(size[k], "split", "a size")
      sum = sum + size[k]
    end
    if sum ~= whole then fail(("split: the sizes add up to %d, dim %d has %d"):format(sum, i + 1, whole)) end
    for k = 1, #size do
      parts[k] = part(x, i, first, size[k])
      first = first + size[k]
    end
    return parts
  end
  check_integer(size, "split", "the size of a part")
  if size < 1 then fail("split: the size of a part is at least 1, got " .. size) end
  repeat
    parts[#parts + 1] = part(x, i, first, math.min(size, whole - first))
    first = first + size
  until first >= whole
  return parts
end

--- x:chunk(n, d): at most n parts of equal size (the last may be smaller).
function methods.chunk(x, n, d)
  local _, whole = dim_of("chunk", x, d)
  check_integer(n, "chunk", "the number of parts")
  if n < 1 then fail("chunk: the number of parts is at least 1, got " .. n) end
  return methods.split(x, math.max(1, math.ceil(whole / n)), d)
end

--- x:unbind(d): the list of parts of dim d (1), without the dim.
function methods.unbind(x, d)
  local i, whole = dim_of("unbind", x, d)
  local parts = {}
  for k = 1, whole do
    check(C.tl_select(x, i, k - 1, out))
    parts[k] = wrap(out[0])
  end
  return parts
end

for _, name in ipairs {
  "reshape", "permute", "transpose", "t", "movedim", "flatten", "unflatten", "squeeze", "unsqueeze", "tile",
  "repeat_interleave", "flip", "split", "chunk", "unbind",
} do tl[name] = methods[name] end
