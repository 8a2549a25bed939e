-- frame.lua: the frames of code that stopped (a breakpoint, an error, Ctrl-C): names and values, readable and writable.
--
-- A frame is remembered by its height above the bottom of its coroutine's stack: that does not change while the REPL
-- runs on top of it.
local native = require "tlua.native"
local is_library = require("tlua.source").is_library

local frame = {}

-- debug.getinfo of a coroutine's level; without a coroutine: of the running one, as the caller of this function counts.
local function info_at(thread, level, what)
  if thread then return debug.getinfo(thread, level, what) end
  local info = debug.getinfo(level + 1, what)
  return info
end

-- How many levels there are, as the caller counts. A stack may have ten thousand, and each look walks down to its own.
local function levels(thread)
  local low, high, own = 0, 16, thread and 0 or 1
  while info_at(thread, high + own, "S") do low, high = high, 2 * high end
  while high - low > 1 do
    local middle = math.floor((low + high) / 2)
    if info_at(thread, middle + own, "S") then low = middle else high = middle end
  end
  return high
end

-- The coroutine that an error has just ended, where the function is one of coroutine.wrap's.
local function dead_inside(func)
  local ok, _, thread = pcall(debug.getupvalue, func, 1)
  if ok and type(thread) == "thread" and coroutine.status(thread) == "dead" then return thread end
end

-- Adds the user's frames of a coroutine (of the running one without), from a level on, to the list.
local function add_frames(list, thread, first)
  local own = native.thread()
  local total = levels(thread)
  for level = first, total - 1 do
    local info = info_at(thread, level, "Slnf")
    if info and info.what == "C" and not list[1] then
      local inside = dead_inside(info.func)
      if inside then add_frames(list, inside, 0) end
    elseif info and info.what ~= "C" and not is_library(info.source) then
      list[#list + 1] = {
        height = total - level, thread = thread or own, func = info.func, source = info.short_src,
        file = info.source, line = info.currentline, what = info.what, name = info.name, defined = info.linedefined,
      }
    end
  end
end

--- The user's frames of the running coroutine (or of `thread`), innermost first: { { height=, thread=, func=,
--- source=, line=, name= } }. Frames of C functions and of the library are left out; where an error came out of a
--- coroutine.wrap, those inside come first.
function frame.stack(thread)
  local list = {}
  add_frames(list, thread, thread and 0 or 1)
  return list
end

--- "train.lua:12 in function 'step'"
function frame.describe(f)
  local where = f.what == "main" and "main chunk" or f.name and "function '" .. f.name .. "'"
    or ("function <%s:%d>"):format(f.source, f.defined)
  return ("%s:%d in %s"):format(f.source, f.line, where)
end

-- Calls debug.getlocal or debug.setlocal on a frame. Both count levels from the function that calls them: this one.
-- Nothing where the frame has ended: functions that were made in it live longer.
local function local_of(f, access, ...)
  if native.thread() == f.thread then
    local level = levels() - f.height
    if level < 1 or debug.getinfo(level, "f").func ~= f.func then return nil end
    local name, value = access(level, ...)
    return name, value
  end
  local level = levels(f.thread) - f.height
  if level < 0 or debug.getinfo(f.thread, level, "f").func ~= f.func then return nil end
  return access(f.thread, level, ...)
end

--- The arguments `...` of the frame's function: a list with their number n.
function frame.varargs(f)
  local list = { n = 0 }
  while true do
    local name, value = local_of(f, debug.getlocal, -(list.n + 1))
    if not name then return list end
    list.n = list.n + 1
    list[list.n] = value
  end
end

--- The visible locals, { { name, value, index } }; a name that hides another comes later.
function frame.locals(f)
  local list, i = {}, 1
  while true do
    local name, value = local_of(f, debug.getlocal, i)
    if not name then return list end
    if name:sub(1, 1) ~= "(" then list[#list + 1] = { name, value, i } end
    i = i + 1
  end
end

--- The upvalues of the frame's function.
function frame.upvalues(f)
  local list, i = {}, 1
  while true do
    local name, value = debug.getupvalue(f.func, i)
    if not name then return list end
    list[#list + 1] = { name, value, i }
    i = i + 1
  end
end

local function find(list, name)
  for i = #list, 1, -1 do
    if list[i][1] == name then return list[i] end
  end
end

--- A table of names for chunks that are to run as if they stood in the frame: locals, upvalues, globals.
function frame.environment(f)
  local globals = getfenv(f.func)
  return setmetatable({}, {
    __index = function(_, name)
      local found = find(frame.locals(f), name) or find(frame.upvalues(f), name)
      if found then return found[2] end
      return globals[name]
    end,
    __newindex = function(_, name, value)
      local found = find(frame.locals(f), name)
      if found then
        local_of(f, debug.setlocal, found[3], value)
        return
      end
      found = find(frame.upvalues(f), name)
      if found then debug.setupvalue(f.func, found[3], value) else globals[name] = value end
    end,
  })
end

return frame
