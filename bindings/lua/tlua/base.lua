-- base.lua: what every file of the library shares: the C functions, the one `check`, wrapping of handles, options.
--
-- The rules of this binding (docs/bindings.md): statuses go through `check`; every handle that C hands out gets its C
-- finaliser at once; hot functions have a fixed arity and no closures; positions are 1-based here, 0-based in C.
local ffi = require "ffi"
require "tlua.cdef"

local C = ffi.C
if C.tl_abi() ~= C.TL_ABI then
  error("tlua: the library is ABI " .. C.tl_abi() .. ", its Lua side was made for ABI " .. C.TL_ABI)
end
C.tl_error_index_base(1)

local base = { ffi = ffi, C = C }

local tensor_type = ffi.typeof("tl_tensor *")
local istype, gc = ffi.istype, ffi.gc
local free = C.tl_tensor_free
local collect_flag = C.tl_collect_flag()

-- Scratch for results: C writes here, wrap() takes them away before anything else runs.
base.out = ffi.new("tl_tensor *[1]")
base.out2 = ffi.new("tl_tensor *[2]")
base.number = ffi.new("double[1]")
base.boolean = ffi.new("bool[1]")
base.integer = ffi.new("int[1]")

-- Is this chunk part of the library (baked, or from TLUA_PATH)?
local function is_library(source)
  return source:find("^@tlua/") ~= nil or source:find("/lua/tlua/[%w_/]+%.lua$") ~= nil
end

-- The stack level of the user's line: the first frame outside the library.
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

--- The status of every C call goes through here; a failure raises "op: message" at the user's line.
function base.check(status)
  if status == 0 then return end
  local e = C.tl_last_error()
  local op, message = ffi.string(e.op), ffi.string(e.message)
  C.tl_clear_error()
  if status == C.TL_ERR_INTERRUPT then error("interrupted", 0) end
  error(op == "" and message or op .. ": " .. message, user_level())
end

local function collect()
  collectgarbage()
  collectgarbage() -- finalisers of the first pass dropped further handles
  C.tl_collected()
end

--- A handle that C handed out (with one reference) becomes a Lua tensor.
function base.wrap(pointer)
  local t = gc(pointer, free)
  if collect_flag[0] ~= 0 then collect() end
  return t
end

--- Is x a tensor?
function base.is_tensor(x) return istype(tensor_type, x) end

--- x must be a tensor: argument `n` of `op`.
function base.check_tensor(x, op, n)
  if not istype(tensor_type, x) then
    base.fail(("%s: argument %d must be a tensor, got %s"):format(op, n, type(x) == "cdata" and tostring(ffi.typeof(x)) or type(x)))
  end
end

--- A position (dim or index) as C wants it: 1 -> 0, -1 stays.
function base.position(i, op)
  if type(i) ~= "number" or i ~= math.floor(i) then base.fail(op .. ": a position must be an integer, got " .. tostring(i)) end
  if i == 0 then base.fail(op .. ": positions count from 1 (or from -1 at the end), got 0") end
  return i > 0 and i - 1 or i
end

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

--- Checks an options table against its defaults and returns it completed: options("Conv2d", {stride=2}, {stride=1,
--- bias=true}). A default of base.optional stands for "no default". Unknown keys are errors that name the nearest one.
base.optional = setmetatable({}, { __tostring = function() return "optional" end })
function base.options(op, given, defaults)
  local complete = {}
  for key, default in pairs(defaults) do
    if default ~= base.optional then complete[key] = default end
  end
  if given == nil then return complete end
  if type(given) ~= "table" then base.fail(op .. ": options are a table, got " .. type(given)) end
  for key, value in pairs(given) do
    if defaults[key] == nil then
      local names = {}
      for name in pairs(defaults) do names[#names + 1] = name end
      table.sort(names)
      local near = type(key) == "string" and #names > 0 and base.nearest(key, names)
      base.fail(("%s: there is no option '%s'%s"):format(op, tostring(key), near and ", did you mean '" .. near .. "'?" or ""))
    end
    local default = defaults[key]
    if default ~= base.optional and type(default) == "number" and type(value) ~= "number" then
      base.fail(("%s: option '%s' must be a number, got %s"):format(op, key, type(value)))
    end
    complete[key] = value
  end
  return complete
end

return base
