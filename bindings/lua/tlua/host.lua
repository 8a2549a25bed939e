-- host.lua: what host.c calls: running code with a traceback, tensors in and out.
local base = require "tlua.base"
local protect = require "tlua.protect"
local ffi = base.ffi

local pointer = ffi.typeof("tl_tensor *")

local host = {}

local function traceback(err)
  if protect.leaving() then return "quit" end
  local text = protect.traceback(err, 2) -- no tail call: this function's frame counts
  return text
end

--- Runs f(...). Returns the error's text, or nil.
function host.call(f, ...)
  local ok, message = xpcall(f, traceback, ...)
  protect.left()
  if not ok then return message end
end

--- A light userdata that is a handle with one reference becomes a tensor.
function host.wrap(address) return base.wrap(ffi.cast(pointer, address)) end

--- A tensor's handle as a number.
function host.address(value)
  if not base.is_tensor(value) then error("a tensor was expected, got " .. base.kind(value), 0) end
  return base.address(value)
end

return host
