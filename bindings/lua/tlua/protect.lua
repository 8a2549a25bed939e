-- protect.lua: running the user's code so that its errors come back as text.
local native = require "tlua.native"
local is_library = require("tlua.source").is_library

local protect = {}

-- ---- the end of the program from inside ----

--- Raised by ":quit" where the REPL stands inside running code: ends the program without a message.
protect.quit = setmetatable({}, { __tostring = function() return "quit" end })

-- How often has it been raised? A script that catches errors (pcall in its loop) must not live on.
local quits, compiled = 0, false
local PATIENCE = 1000000 -- instructions: long enough to close a file or to save what there is

--- Ends the program: the error quit. Where somebody catches it and goes on, it comes again at the next moment for it,
--- or after a million instructions, and then at every instruction of the user's until nobody is left to catch it.
function protect.leave()
  if quits == 0 then compiled = jit.status() end
  quits = quits + 1
  jit.off() -- compiled code runs no hooks
  jit.flush()
  debug.sethook(function()
    if not is_library(debug.getinfo(2, "S").source) then protect.leave() end
  end, "", quits == 1 and PATIENCE or 1)
  error(protect.quit, 0)
end

--- Is the program about to end so?
function protect.leaving() return quits > 0 end

--- For the outermost caller, who has got quit: all is as it was.
function protect.left()
  if quits == 0 then return end
  quits = 0
  debug.sethook()
  if compiled then jit.on() end
end

-- ---- errors as text ----

-- What stands for an error: a string, or what its __tostring says.
local function message_of(err)
  if type(err) == "string" then return err end
  local meta = debug.getmetatable(err)
  if type(meta) == "table" and meta.__tostring then
    local ok, text = pcall(tostring, err)
    if ok and type(text) == "string" then return text end
    return ("(error object is a %s value whose __tostring failed)"):format(type(err))
  end
  return ("(error object is a %s value)"):format(type(err))
end

--- The message as text plus the stack of the user's code (of `thread`, in an error handler there): what lies below,
--- this file and its callers, is cut off.
function protect.traceback(err, level, thread)
  local message = message_of(err)
  local text = thread and debug.traceback(thread, message, 2) or debug.traceback(message, (level or 1) + 1)
  for _, file in ipairs { "protect", "host" } do
    local cut = text:find("\n%s*%[C%]: in function 'xpcall'\n%s*%S*tlua/" .. file .. "%.lua:[^\n]*")
    if cut then text = text:sub(1, cut - 1) end
  end
  return text
end

-- f's errors become text, but quit passes as it is.
local function handler(err)
  if protect.leaving() then return err end
  local text = protect.traceback(err, 2) -- no tail call: this function's frame counts
  return text
end

local function ended(ok, ...)
  local interrupted = native.disarm()
  if ok then return true, ... end
  return false, (...), interrupted
end

--- Runs f(...). Ctrl-C is an error ("stop", the default), or pauses ("pause": native.on_pause). `failed(err)` is called
--- where the error is, with the stack as it was, and gives what is returned as the message. Returns false, message,
--- interrupted (whether Ctrl-C came), or true and what f returned.
function protect.call(mode, failed, f, ...)
  native.arm(mode or "stop")
  return ended(xpcall(f, failed or handler, ...))
end

return protect
