-- frame.lua: the frames of code that stopped (a breakpoint, an error, Ctrl-C): names and values, readable and writable.
--
-- A frame is remembered by its height above the bottom of its coroutine's stack: that does not change while the REPL
-- runs on top of it.
local frame = {}

local library = { ["@tlua/"] = true }
local development = os.getenv "TLUA_PATH"
if development then library["@" .. development:gsub("/+$", "") .. "/tlua/"] = true end

local function is_library(source)
  for prefix in pairs(library) do
    if source:sub(1, #prefix) == prefix then return true end
  end
  return false
end

--- The user's frames of the running coroutine, innermost first: { { height=, thread=, func=, source=, line=, name= } }.
--- Frames of C functions and of the library are left out.
function frame.stack()
  local total, list = 0, {}
  while debug.getinfo(total, "S") do total = total + 1 end
  for level = 1, total - 1 do
    local info = debug.getinfo(level, "Slnf")
    if info and info.what ~= "C" and not is_library(info.source) then
      list[#list + 1] = {
        height = total - level, thread = coroutine.running(), func = info.func, source = info.short_src,
        file = info.source, line = info.currentline, what = info.what, name = info.name, defined = info.linedefined,
      }
    end
  end
  return list
end

--- "train.lua:12 in function 'step'"
function frame.describe(f)
  local where = f.what == "main" and "main chunk" or f.name and "function '" .. f.name .. "'"
    or ("function <%s:%d>"):format(f.source, f.defined)
  return ("%s:%d in %s"):format(f.source, f.line, where)
end

-- Calls debug.getlocal or debug.setlocal on a frame. Both count levels from the function that calls them: this one.
local function local_of(f, access, ...)
  local total = 0
  if coroutine.running() == f.thread then
    while debug.getinfo(total, "S") do total = total + 1 end
    local name, value = access(total - f.height, ...)
    return name, value
  end
  -- another coroutine (started from the REPL) asks: the stack of the frame's own one, where it is not the main one
  if f.thread == nil then return nil end
  while debug.getinfo(f.thread, total, "S") do total = total + 1 end
  return access(f.thread, total - f.height + 1, ...)
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
