-- protect.lua: running the user's code so that its errors come back as text.
local native = require "tlua.native"

local protect = {}

--- Raised by ":quit" where the REPL stands inside running code: ends the program without a message.
protect.quit = setmetatable({}, { __tostring = function() return "quit" end })

--- The message as text plus the stack of the user's code: what lies below (this file and its callers) is cut off.
function protect.traceback(err, level)
  local message = err
  if type(err) ~= "string" then
    local meta = debug.getmetatable(err)
    message = meta and meta.__tostring and tostring(err) or ("(error object is a %s value)"):format(type(err))
  end
  local text = debug.traceback(message, (level or 1) + 1)
  local cut = text:find("\n%s*%[C%]: in function 'xpcall'\n%s*%S*tlua/protect%.lua:[^\n]*")
  return cut and text:sub(1, cut - 1) or text
end

-- f's errors become text, but quit passes as it is.
local function handler(err)
  if err == protect.quit then return err end
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
