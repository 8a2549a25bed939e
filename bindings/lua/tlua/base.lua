-- base.lua: what every file of the library shares: the C functions, the one `check`, wrapping of handles, arguments.
--
-- The rules of this binding: statuses go through `check`; every handle that C hands out gets its C finaliser at once;
-- hot functions have a fixed arity and no closures; positions are 1-based here, 0-based in C.
local ffi = require "ffi"
local header = require "tlua.cdef"
local is_library = require("tlua.source").is_library

if ffi.C.tl_abi() ~= ffi.C.TL_ABI then
  error("tlua: the library is ABI " .. ffi.C.tl_abi() .. ", its Lua side was made for ABI " .. ffi.C.TL_ABI)
end
ffi.C.tl_error_index_base(1)

-- methods: of tensors. tl: what require "tlua" returns. The files of the library fill both.
local base = { ffi = ffi, ops = header.ops, methods = {}, tl = {} }

local native = ffi.C
local istype, gc, cast = ffi.istype, ffi.gc, ffi.cast
local type, tostring, floor = type, tostring, math.floor
local free = native.tl_tensor_free
local collect_flag = native.tl_collect_flag()
local ERR_MEMORY = tonumber(native.TL_ERR_MEMORY)
local ERR_INTERRUPT = tonumber(native.TL_ERR_INTERRUPT)

local tensor_type = ffi.typeof("tl_tensor")
-- A tensor in Lua is a C++-like reference, not a pointer: indexing a pointer with a number is pointer arithmetic to
-- LuaJIT, a reference hands x[1] to the metatable. Everywhere else the two are the same; C functions take either.
local reference = ffi.typeof("tl_tensor &")

-- Scratch for results: C writes here, wrap() takes them away before anything else runs.
base.out = ffi.new("tl_tensor *[1]")
base.out2 = ffi.new("tl_tensor *[2]")
base.number = ffi.new("double[1]")
base.boolean = ffi.new("bool[1]")
base.integer = ffi.new("int[1]")

-- ---- errors ----

-- The stack level of the user's line, as the caller of this function passes it to error(): the first Lua function that
-- is not the library's. 0 when there is none (a tail call dropped it).
local function user_level()
  local level = 2
  while true do
    local info = debug.getinfo(level, "S")
    if not info then return 0 end
    if info.what ~= "C" and not is_library(info.source) then return level - 1 end
    level = level + 1
  end
end

--- Raises `message` at the user's file and line.
function base.fail(message) error(message, user_level()) end
local fail = base.fail

--- What an interrupt (Ctrl-C) raises, as it is: without a position.
base.interrupted = "interrupted"

--- The status of every C call goes through here; a failure raises "op: message" at the user's line.
function base.check(status)
  if status == 0 then return end
  local e = native.tl_last_error()
  local op, message = ffi.string(e.op), ffi.string(e.message)
  native.tl_clear_error()
  if status == ERR_INTERRUPT then error(base.interrupted, 0) end
  error(op == "" and message or op .. ": " .. message, user_level())
end
local check = base.check

-- ---- memory ----

-- Handles come and go faster than Lua's own objects: a collector that sweeps at twice its usual pace leaves fewer dead
-- ones behind, and allocations stay in the processor's cache (an add of small tensors takes half the time). Somebody's
-- own setting stays.
local STEP_MULTIPLIER, USUAL = 400, 200
local former = collectgarbage("setstepmul", STEP_MULTIPLIER)
if former ~= USUAL then collectgarbage("setstepmul", former) end

-- Called after a collection: forgets what C's dead objects kept alive here. autograd.lua replaces it. True: there was
-- some.
base.forget = function() return false end

local function collect()
  collectgarbage()
  if base.forget() then collectgarbage() end
  native.tl_collected()
end
base.collect = collect

--- Called once a step by loops that others may look into (DataLoader, Trainer). `tlua --control` replaces it.
base.poll = function() end

-- The flag is up: memory is short, or somebody wants to look in.
local function attend()
  if native.tl_take_pause() then require("tlua.native").pause() end
  if collect_flag[0] ~= 0 then collect() end
end

--- A C call failed. Out of memory: makes room and returns, so that the caller tries once more. All else is raised.
function base.again(status)
  if status ~= ERR_MEMORY then check(status) end
  collect()
  native.tl_empty_cache(0)
end

--- A handle that C handed out (with one reference) becomes a Lua tensor.
local function wrap(pointer)
  local t = gc(cast(reference, pointer), free)
  if collect_flag[0] ~= 0 then attend() end
  return t
end
base.wrap = wrap

--- The same for results that may be absent: NULL becomes nil.
function base.wrap_optional(pointer)
  if pointer == nil then return nil end
  return wrap(pointer)
end

-- ---- the C functions ----

-- Calls that must not be repeated when memory was short: they may have done a part of their work. (Those that take
-- arrays of tensors have no arity and are not repeated, either.)
local function once(name) return name:find("_$") or name == "tl_backward" or name:find("^tl_walk_") end

local parameters = {}
for i = 1, 16 do parameters[i] = "a" .. i end

-- A fallible function becomes a Lua function that, when memory is short, collects and tries once more.
local function bind(name)
  local arity = header.arity[name]
  if not arity or once(name) then return native[name] end
  local list = table.concat(parameters, ", ", 1, arity)
  local source = ([[
local C, ERR_MEMORY, again = ...
return function(LIST)
  local status = C.NAME(LIST)
  if status == ERR_MEMORY then
    again(status)
    status = C.NAME(LIST)
  end
  return status
end]]):gsub("%u+", { LIST = list, NAME = name })
  local _ = native[name] -- a missing symbol is an error now, not at the call
  return assert(loadstring(source, "@tlua/" .. name))(native, ERR_MEMORY, base.again)
end

--- The engine's functions and constants, bound at first use.
base.C = setmetatable({}, {
  __index = function(C, name)
    local value = bind(name)
    C[name] = value
    return value
  end,
})
local C = base.C

-- ---- arguments ----

--- Is x a tensor?
function base.is_tensor(x) return istype(tensor_type, x) end

local pointer_type, address_type = ffi.typeof("const void *"), ffi.typeof("uintptr_t")

--- The address of a tensor's handle: what two Lua values that are one tensor have in common.
function base.address(t) return tonumber(cast(address_type, cast(pointer_type, t))) end

--- What x is, for messages.
local function kind(x)
  if istype(tensor_type, x) then return "a tensor" end
  if x == nil then return "nil" end
  local t = type(x)
  if t == "cdata" then return tostring(ffi.typeof(x)) end
  return "a " .. t
end
base.kind = kind

--- x must be a tensor: argument `n` of `op`.
function base.check_tensor(x, op, n)
  if not istype(tensor_type, x) then fail(op .. ": argument " .. n .. " must be a tensor, got " .. kind(x)) end
end

--- x must be a number; `what` names it.
function base.check_number(x, op, what)
  if type(x) ~= "number" then fail(op .. ": " .. what .. " must be a number, got " .. kind(x)) end
end

local MAX_EXACT = 2 ^ 53

--- x must be an integral number; `what` names it.
local function check_integer(x, op, what)
  if type(x) ~= "number" or x ~= floor(x) then
    fail(op .. ": " .. what .. " must be an integer, got " .. (type(x) == "number" and tostring(x) or kind(x)))
  end
  if x > MAX_EXACT or x < -MAX_EXACT then fail(op .. ": " .. what .. " is out of range: " .. tostring(x)) end
end
base.check_integer = check_integer

--- A position (dim or index) as C wants it: 1 -> 0, -1 stays.
local function position(i, op)
  if type(i) ~= "number" or i ~= floor(i) then
    fail(op .. ": a position must be an integer, got " .. (type(i) == "number" and tostring(i) or kind(i)))
  end
  if i == 0 then fail(op .. ": positions count from 1 (or from -1 at the end), got 0") end
  if i > MAX_EXACT or i < -MAX_EXACT then fail(op .. ": a position is out of range: " .. tostring(i)) end
  return i > 0 and i - 1 or i
end
base.position = position

local MAX_DIMS = tonumber(native.TL_MAX_DIMS)
--- Sizes that sizes() read, for C.
base.shape = ffi.new("int64_t[?]", MAX_DIMS)
--- Positions that positions() read, for C.
base.dims = ffi.new("int[?]", MAX_DIMS)
local shape, dims = base.shape, base.dims

local function sizes_of_table(list, op)
  local n = #list
  if n > MAX_DIMS then fail(op .. ": " .. n .. " sizes, there are at most " .. MAX_DIMS .. " dims") end
  for i = 1, n do
    check_integer(list[i], op, "a size")
    shape[i - 1] = list[i]
  end
  return n
end

local function check_end(op, rest)
  if rest == nil then return end
  fail(op .. ": nothing may follow the last size but the options (is one of the sizes nil?)")
end

--- Reads sizes from the arguments (2, 3, options) or ({2, 3}, options) into base.shape. Returns how many there are,
--- and what follows them.
function base.sizes(op, a, b, c, d, e, f, g, h, i)
  if type(a) == "table" then
    if c ~= nil then fail(op .. ": nothing may follow the table of sizes and the options") end
    return sizes_of_table(a, op), b
  end
  check_integer(a, op, "a size")
  shape[0] = a
  if type(b) ~= "number" then check_end(op, c) return 1, b end
  check_integer(b, op, "a size")
  shape[1] = b
  if type(c) ~= "number" then check_end(op, d) return 2, c end
  check_integer(c, op, "a size")
  shape[2] = c
  if type(d) ~= "number" then check_end(op, e) return 3, d end
  check_integer(d, op, "a size")
  shape[3] = d
  if type(e) ~= "number" then check_end(op, f) return 4, e end
  local list, n = { a, b, c, d, e, f, g, h, i }, 5
  while type(list[n + 1]) == "number" do n = n + 1 end
  if n > MAX_DIMS then fail(op .. ": " .. n .. " sizes or more, there are at most " .. MAX_DIMS .. " dims") end
  local options = list[n + 1]
  check_end(op, list[n + 2])
  for k = 1, n do
    check_integer(list[k], op, "a size")
    shape[k - 1] = list[k]
  end
  return n, options
end

--- Reads a position, a list of positions or nil into base.dims. Returns how many there are (0: all dims).
function base.positions(op, list)
  if list == nil then return 0 end
  if type(list) == "number" then
    dims[0] = position(list, op)
    return 1
  end
  if type(list) ~= "table" then fail(op .. ": dims are a number or a table of numbers, got " .. kind(list)) end
  local n = #list
  if n > MAX_DIMS then fail(op .. ": " .. n .. " dims named, there are at most " .. MAX_DIMS) end
  for i = 1, n do dims[i - 1] = position(list[i], op) end
  return n
end

local pointers_room = 64
local pointers = ffi.new("tl_tensor *[?]", pointers_room)

--- A list of tensors as a C array (one shared buffer: use it in the next C call) and its length. The caller's list
--- keeps the tensors alive for that call.
function base.tensors(list, op)
  if type(list) ~= "table" then fail(op .. ": argument 1 must be a table of tensors, got " .. kind(list)) end
  local n = #list
  if n > pointers_room then
    pointers_room = 2 * n
    pointers = ffi.new("tl_tensor *[?]", pointers_room)
  end
  for i = 1, n do
    if not istype(tensor_type, list[i]) then
      fail(op .. ": element " .. i .. " must be a tensor, got " .. kind(list[i]))
    end
    pointers[i - 1] = list[i]
  end
  return pointers, n
end

-- ---- names ----

local function distance(a, b) -- Levenshtein's
  local row = {}
  for j = 0, #b do row[j] = j end
  for i = 1, #a do
    local diagonal = row[0]
    row[0] = i
    for j = 1, #b do
      local cost = a:byte(i) == b:byte(j) and 0 or 1
      local value = math.min(row[j] + 1, row[j - 1] + 1, diagonal + cost)
      diagonal, row[j] = row[j], value
    end
  end
  return row[#b]
end

--- The nearest of `names` (a list) to `name`, and how far away it is.
function base.nearest(name, names)
  local best, best_distance
  for _, candidate in ipairs(names) do
    local d = distance(name, candidate)
    if not best or d < best_distance then best, best_distance = candidate, d end
  end
  return best, best_distance
end

--- ", did you mean 'x'?" for the nearest key of the tables, or "".
function base.suggestion(name, ...)
  local names = {}
  for i = 1, select("#", ...) do
    for key in pairs((select(i, ...))) do
      if type(key) == "string" then names[#names + 1] = key end
    end
  end
  table.sort(names)
  local near, far = base.nearest(name, names)
  return near and far <= math.max(2, #name / 3) and ", did you mean '" .. near .. "'?" or ""
end

--- What `require file` gives: a part of the library, called `name`, that this build may lack.
function base.built_in(file, name)
  local ok, module = pcall(require, file)
  if ok then return module end
  local absent = tostring(module):find("module '" .. file .. "' not found", 1, true)
  if absent then fail(name .. " is not built into this tlua") end
  error(module, 0)
end

--- Makes a table of functions refuse names that it does not have. `later`: name -> the file to load when it is used.
function base.namespace(t, name, later)
  later = later or {}
  return setmetatable(t, {
    __index = function(_, key)
      if not later[key] then
        fail(("there is no %s.%s%s"):format(name, tostring(key), base.suggestion(tostring(key), t, later)))
      end
      local value = base.built_in(later[key], name .. "." .. key)
      t[key] = value
      return value
    end,
  })
end

--- Fails if there is a further argument: `op` does not know it.
function base.no_more(op, extra)
  if extra ~= nil then fail(op .. ": there is an argument too many: " .. kind(extra)) end
end

--- Checks an options table against its defaults and returns it completed: options("Conv2d", {stride=2}, {stride=1,
--- bias=true}). A default of base.optional stands for "no default". Unknown keys are errors that name the nearest one.
base.optional = setmetatable({}, { __tostring = function() return "optional" end })
function base.options(op, given, defaults)
  local complete = {}
  for key, default in pairs(defaults) do
    if default ~= base.optional then complete[key] = default end
  end
  if given == nil then return complete end
  if type(given) ~= "table" then fail(op .. ": options are a table, got " .. kind(given)) end
  for key, value in pairs(given) do
    local default = defaults[key]
    if default == nil then
      local names = {}
      for name in pairs(defaults) do names[#names + 1] = name end
      table.sort(names)
      local near = type(key) == "string" and #names > 0 and base.nearest(key, names)
      local hint = near and ", did you mean '" .. near .. "'?" or ""
      fail(("%s: there is no option '%s'%s"):format(op, tostring(key), hint))
    end
    local wanted = type(default)
    if (wanted == "number" or wanted == "boolean" or wanted == "string") and type(value) ~= wanted then
      fail(("%s: option '%s' must be a %s, got %s"):format(op, key, wanted, kind(value)))
    end
    complete[key] = value
  end
  return complete
end

--- The value of the one boolean option `name` that `op` takes; cheaper than options().
function base.flag(op, given, name)
  if given == nil then return false end
  if type(given) ~= "table" then fail(op .. ": options are a table, got " .. kind(given)) end
  local key, value = next(given)
  if key == nil then return false end
  if key ~= name or next(given, key) ~= nil then
    base.options(op, given, { [name] = false })
  end
  if value ~= true and value ~= false then
    fail(("%s: option '%s' must be true or false, got %s"):format(op, name, kind(value)))
  end
  return value
end

-- ---- dtypes and devices ----

local dtype_names = {} -- number -> name
local dtype_numbers = {} -- name or alias -> number
base.dtype_numbers = dtype_numbers
for i = 0, tonumber(native.TL_DTYPES) - 1 do
  local name = ffi.string(native.tl_dtype_name(i))
  dtype_names[i], dtype_numbers[name] = name, i
end
base.dtype_names = dtype_names

local function parse_dtype(name)
  if type(name) ~= "string" then return nil end
  if native.tl_dtype_parse(name, base.integer) ~= 0 then
    native.tl_clear_error()
    return nil
  end
  dtype_numbers[name] = base.integer[0]
  return base.integer[0]
end

--- A dtype's number, nil if there is no such dtype.
function base.find_dtype(name) return dtype_numbers[name] or parse_dtype(name) end

--- A dtype's number from its name ("float32", "int64", ... or an alias as "half", "long").
function base.dtype(name, op)
  local number = dtype_numbers[name] or parse_dtype(name)
  if number then return number end
  if type(name) ~= "string" then fail(op .. ": a dtype is a name such as \"float32\", got " .. kind(name)) end
  fail(op .. ": there is no dtype '" .. name .. "'" .. base.suggestion(name, dtype_numbers))
end

base.default_device = 0 -- of new tensors: tl.set_default_device

local device_numbers = { cpu = 0 }
local device_names = { [0] = "cpu" }

--- A device's number from its name ("cpu", "cuda", "cuda:1"). Opens the device's plug-in.
function base.device(name, op)
  local number = device_numbers[name]
  if number then return number end
  if type(name) ~= "string" then
    fail(op .. ": a device is a name such as \"cpu\" or \"cuda:0\", got " .. kind(name))
  end
  check(C.tl_device_parse(name, base.integer))
  number = base.integer[0]
  device_numbers[name] = number
  return number
end

--- Makes "cuda" stand for that device.
function base.use_cuda(number) device_numbers.cuda = number end

--- A device's name from its number.
function base.device_name(number)
  local name = device_names[number]
  if name then return name end
  local buffer = ffi.new("char[64]")
  check(C.tl_device_name(number, buffer, 64))
  name = ffi.string(buffer)
  device_names[number] = name
  return name
end

return base
