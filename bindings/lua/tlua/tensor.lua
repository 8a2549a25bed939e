-- tensor.lua: the tensor type: fields, methods' lookup, items, conversions between dtypes and devices.
--
-- A tensor is a cdata reference to a C handle. Its metatable is fixed here, once; what it finds comes from
-- base.methods, which every file of the library extends.
local base = require "tlua.base"
local operators = require "tlua.pointwise"
local indexing = require "tlua.index"

local ffi, C, methods, tl = base.ffi, base.C, base.methods, base.tl
local check, fail, wrap, wrap_optional = base.check, base.fail, base.wrap, base.wrap_optional
local check_tensor, is_tensor, out = base.check_tensor, base.is_tensor, base.out
local istype, type, rawequal = ffi.istype, type, rawequal
local native = ffi.C
local tensor_type = ffi.typeof("tl_tensor")
local pointer_type = ffi.typeof("const void *")

-- ---- fields ----

local fields = {}
base.field_names = fields -- for the REPL's completion

function fields.shape(x)
  local shape = {}
  for d = 1, native.tl_ndim(x) do shape[d] = native.tl_size(x, d - 1) end
  return shape
end

function fields.dtype(x) return base.dtype_names[native.tl_dtype_of(x)] end
function fields.device(x) return base.device_name(native.tl_device_of(x)) end
function fields.requires_grad(x) return native.tl_requires_grad(x) end
function fields.is_leaf(x) return native.tl_is_leaf(x) end

function fields.grad(x)
  check(C.tl_grad(x, out))
  return wrap_optional(out[0])
end

function fields.grad_fn(x)
  local name = native.tl_grad_fn_name(x)
  return name ~= nil and ffi.string(name) or nil
end

function fields.T(x)
  local n = native.tl_ndim(x)
  if n > 2 then fail("T: a matrix is transposed, this tensor has " .. n .. " dims: use permute or transpose") end
  if n < 2 then return x end
  check(C.tl_transpose(x, 0, 1, out))
  return wrap(out[0])
end

function fields.ndim(x) return native.tl_ndim(x) end

--- The same elements without a history; assigning exchanges them and keeps the handle.
function fields.data(x)
  check(C.tl_detach(x, out))
  return wrap(out[0])
end

local setters = {}

function setters.data(x, value)
  check_tensor(value, "data", 1)
  check(C.tl_set_data(x, value))
end

function setters.grad(x, value)
  if value ~= nil and not is_tensor(value) then fail("grad: must be a tensor or nil, got " .. base.kind(value)) end
  check(C.tl_set_grad(x, value))
end

function setters.requires_grad(x, value) methods.requires_grad_(x, value) end

-- ---- the metatable ----

local function no_member(key)
  local name = tostring(key)
  fail(("there is no method or field '%s' of a tensor%s"):format(name, base.suggestion(name, methods, fields)))
end

local function index(x, key)
  local method = methods[key]
  if method then return method end
  if type(key) == "number" then return indexing.select(x, key) end
  local field = fields[key]
  if field then return field(x) end
  if type(key) == "table" or istype(tensor_type, key) then return indexing.get(x, key) end
  no_member(key)
end

local function newindex(x, key, value)
  local setter = setters[key]
  if setter then return setter(x, value) end
  if type(key) == "string" then
    fail(("cannot assign '%s' of a tensor: only grad, requires_grad and data can be set"):format(key))
  end
  indexing.set(x, key, value)
end

-- Identity: do both refer to one C handle?
local function same(a, b)
  if rawequal(a, b) then return true end
  if not (istype(tensor_type, a) and istype(tensor_type, b)) then return false end
  return ffi.cast(pointer_type, a) == ffi.cast(pointer_type, b)
end

local function length(x)
  if native.tl_ndim(x) == 0 then fail("#: a 0-d tensor has no length") end
  return native.tl_size(x, 0)
end

local function next_row(x, i)
  if i < native.tl_size(x, 0) then return i + 1, indexing.select(x, i + 1) end
end

-- for i, row in ipairs(x): the parts of dim 1.
local function rows(x)
  if native.tl_ndim(x) == 0 then fail("ipairs: a 0-d tensor has no rows") end
  return next_row, x, 0
end

ffi.metatype(tensor_type, {
  __index = index,
  __newindex = newindex,
  __eq = same,
  __len = length,
  __ipairs = rows,
  __tostring = function(x) return require("tlua.print").text(x) end,
  __add = operators.add,
  __sub = operators.sub,
  __mul = operators.mul,
  __div = operators.div,
  __pow = operators.pow,
  __mod = operators.remainder,
  __unm = function(x) return operators.neg(x) end,
  __lt = function() fail("< and > between tensors: use x:lt(y), x:gt(y)") end,
  __le = function() fail("<= and >= between tensors: use x:le(y), x:ge(y)") end,
  __concat = function() fail("..: tensors are joined by tl.cat") end,
  __call = function() fail("a tensor is not a function") end,
})

--- Is x a tensor?
tl.is_tensor = is_tensor

-- ---- what a tensor is ----

--- x:size() is the shape as a table, x:size(d) one size.
function methods.size(x, d)
  check_tensor(x, "size", 1)
  if d == nil then return fields.shape(x) end
  local n, i = native.tl_ndim(x), base.position(d, "size")
  if i < 0 then i = i + n end
  if i < 0 or i >= n then fail(("size: dim %d is out of range for %d dims"):format(d, n)) end
  return native.tl_size(x, i)
end

--- x:stride() in elements, as a table, or of one dim.
function methods.stride(x, d)
  check_tensor(x, "stride", 1)
  local n = native.tl_ndim(x)
  if d == nil then
    local strides = {}
    for k = 1, n do strides[k] = native.tl_stride(x, k - 1) end
    return strides
  end
  local i = base.position(d, "stride")
  if i < 0 then i = i + n end
  if i < 0 or i >= n then fail(("stride: dim %d is out of range for %d dims"):format(d, n)) end
  return native.tl_stride(x, i)
end

function methods.dim(x)
  check_tensor(x, "dim", 1)
  return native.tl_ndim(x)
end

function methods.numel(x)
  check_tensor(x, "numel", 1)
  return native.tl_numel(x)
end

function methods.is_contiguous(x)
  check_tensor(x, "is_contiguous", 1)
  return native.tl_is_contiguous(x)
end

function methods.is_floating_point(x)
  check_tensor(x, "is_floating_point", 1)
  return native.tl_dtype_of(x) <= 3
end

--- The bytes of one element.
function methods.element_size(x)
  check_tensor(x, "element_size", 1)
  return tonumber(native.tl_dtype_size(native.tl_dtype_of(x)))
end

--- A pointer to the first element, typed by the dtype (float *, int64_t *, ...; raw bits for float16 and bfloat16). CPU
--- tensors only; it is valid while x lives, and x's strides say where the other elements are.
local pointer_types = {
  float32 = "float *", float64 = "double *", float16 = "uint16_t *", bfloat16 = "uint16_t *",
  int64 = "int64_t *", int32 = "int32_t *", uint8 = "uint8_t *", bool = "bool *",
}
function methods.data_ptr(x)
  check_tensor(x, "data_ptr", 1)
  if native.tl_device_of(x) ~= 0 then
    fail("data_ptr: the tensor is on " .. fields.device(x) .. ": call x:cpu() first")
  end
  return ffi.cast(pointer_types[fields.dtype(x)], native.tl_data(x))
end

function methods.is_same_storage(x, y)
  check_tensor(x, "is_same_storage", 1)
  check_tensor(y, "is_same_storage", 2)
  return native.tl_same_storage(x, y)
end

-- ---- out to Lua ----

local number = base.number
local BOOL = tonumber(native.TL_BOOL)

--- The value of a one-element tensor: a number, or a boolean for dtype bool.
function methods.item(x)
  check_tensor(x, "item", 1)
  check(C.tl_item(x, number))
  if native.tl_dtype_of(x) == BOOL then return number[0] ~= 0 end
  return number[0]
end

-- Nested tables from row-major doubles. Returns the table and where the next one starts.
local function nest(values, at, shape, d, convert)
  local list = {}
  if d == #shape then
    for i = 1, shape[d] do list[i] = convert(values[at + i - 1]) end
    return list, at + shape[d]
  end
  for i = 1, shape[d] do list[i], at = nest(values, at, shape, d + 1, convert) end
  return list, at
end

local function as_number(v) return v end
local function as_boolean(v) return v ~= 0 end

--- Nested tables of the values (numbers, or booleans for dtype bool); of a 0-d tensor the value itself.
function methods.tolist(x)
  check_tensor(x, "tolist", 1)
  if native.tl_ndim(x) == 0 then return methods.item(x) end
  local n = native.tl_numel(x)
  local values = ffi.new("double[?]", n)
  check(C.tl_to_doubles(x, n, values))
  local list = nest(values, 0, fields.shape(x), 1, native.tl_dtype_of(x) == BOOL and as_boolean or as_number)
  return list
end

--- Gives the memory back now. The tensor is empty afterwards (0 elements).
function methods.free(x)
  check_tensor(x, "free", 1)
  native.tl_tensor_release_storage(x)
end

-- ---- conversions ----

local function convert(x, dtype, device, non_blocking)
  dtype, device = dtype or native.tl_dtype_of(x), device or native.tl_device_of(x)
  if non_blocking then check(C.tl_to_async(x, dtype, device, out))
  else check(C.tl_to(x, dtype, device, out)) end
  if ffi.cast(pointer_type, out[0]) == ffi.cast(pointer_type, x) then -- nothing to do: the same handle, retained
    native.tl_tensor_free(out[0])
    return x
  end
  return wrap(out[0])
end

--- x:to("float16"), x:to("cuda"), x:to("cuda", "float16"), x:to(other): another dtype and/or device. x itself when
--- nothing changes. {non_blocking=true} at the end: a copy from pinned memory to a GPU returns at once.
function methods.to(x, a, b, options)
  check_tensor(x, "to", 1)
  if type(b) == "table" then b, options = nil, b end
  local non_blocking = options ~= nil and base.flag("to", options, "non_blocking")
  if is_tensor(a) then return convert(x, native.tl_dtype_of(a), native.tl_device_of(a), non_blocking) end
  if type(a) == "table" then
    local o = base.options("to", a, { dtype = base.optional, device = base.optional, non_blocking = false })
    return convert(x, o.dtype and base.dtype(o.dtype, "to"), o.device and base.device(o.device, "to"), o.non_blocking)
  end
  local dtype, device = base.find_dtype(a), nil
  if type(a) ~= "string" then fail("to: needs the name of a dtype or device, or a tensor, got " .. base.kind(a)) end
  if not dtype then
    local hint = base.suggestion(a, base.dtype_numbers)
    if hint ~= "" then fail("to: there is no dtype or device '" .. a .. "'" .. hint) end
    device = base.device(a, "to")
  end
  if b ~= nil then
    local other = base.find_dtype(b)
    if dtype and not other then device = base.device(b, "to")
    elseif not dtype then dtype = base.dtype(b, "to")
    else fail("to: two dtypes given, '" .. a .. "' and '" .. b .. "'") end
  end
  return convert(x, dtype, device, non_blocking)
end

--- x:type("int64") and x:type_as(y) convert the dtype alone.
function methods.type(x, dtype)
  check_tensor(x, "type", 1)
  return convert(x, base.dtype(dtype, "type"))
end

function methods.type_as(x, y)
  check_tensor(x, "type_as", 1)
  check_tensor(y, "type_as", 2)
  return convert(x, native.tl_dtype_of(y))
end

local conversions = {
  half = "float16", bfloat16 = "bfloat16", float = "float32", double = "float64",
  long = "int64", int = "int32", byte = "uint8", bool = "bool",
}
for name, dtype in pairs(conversions) do
  local number_of_it = base.find_dtype(dtype)
  methods[name] = function(x)
    check_tensor(x, name, 1)
    return convert(x, number_of_it)
  end
end

function methods.cpu(x)
  check_tensor(x, "cpu", 1)
  return convert(x, nil, 0)
end

--- x:cuda() is the current GPU, x:cuda(i) number i (0-based, as in "cuda:1").
function methods.cuda(x, i, options)
  check_tensor(x, "cuda", 1)
  if type(i) == "table" then i, options = nil, i end
  local non_blocking = options ~= nil and base.flag("cuda", options, "non_blocking")
  return convert(x, nil, base.device(i and "cuda:" .. i or "cuda", "cuda"), non_blocking)
end

--- A copy in pinned memory, from which a GPU copies by itself; x itself if it is pinned.
function methods.pin_memory(x)
  check_tensor(x, "pin_memory", 1)
  if native.tl_is_pinned(x) then return x end
  check(C.tl_pin_memory(x, out))
  return wrap(out[0])
end

function methods.is_pinned(x)
  check_tensor(x, "is_pinned", 1)
  return native.tl_is_pinned(x)
end

--- x's memory is used by work on stream s, too: freed, it is not used again before that work is done.
function methods.record_stream(x, s)
  check_tensor(x, "record_stream", 1)
  check(C.tl_record_stream(x, tl.cuda.check_stream(s, "record_stream", 2)))
end

--- A copy with x's values; gradients pass through.
function methods.clone(x)
  check_tensor(x, "clone", 1)
  check(C.tl_clone(x, out))
  return wrap(out[0])
end

--- The same elements without a history.
function methods.detach(x)
  check_tensor(x, "detach", 1)
  check(C.tl_detach(x, out))
  return wrap(out[0])
end

--- x itself when its elements lie in row-major order, else a copy.
function methods.contiguous(x)
  check_tensor(x, "contiguous", 1)
  if native.tl_is_contiguous(x) then return x end
  check(C.tl_contiguous(x, out))
  return wrap(out[0])
end

--- Copies src (broadcast, converted) into x; returns x. {non_blocking=true}: as for to.
function methods.copy_(x, src, options)
  check_tensor(x, "copy_", 1)
  check_tensor(src, "copy_", 2)
  if options ~= nil and base.flag("copy_", options, "non_blocking") then check(C.tl_copy_async_(x, src))
  else check(C.tl_copy_(x, src)) end
  return x
end

function methods.fill_(x, value)
  check_tensor(x, "fill_", 1)
  if is_tensor(value) then return methods.copy_(x, value) end
  if type(value) == "boolean" then value = value and 1 or 0 end
  base.check_number(value, "fill_", "the value")
  check(C.tl_fill_(x, value))
  return x
end

function methods.zero_(x) return methods.fill_(x, 0) end

tl.clone, tl.detach, tl.numel = methods.clone, methods.detach, methods.numel

-- dtype names as constants: tl.float32 == "float32".
for _, name in pairs(base.dtype_names) do tl[name] = name end
