-- strings.lua: what vocabularies share: text and ids as arguments, bytes as strings, saving.
local tl = require "tlua"
local base = require "tlua.base"
local ffi, C, check, fail = base.ffi, base.C, base.check, base.fail

local strings = {}

--- `text` must be a string.
function strings.check(text, op)
  if type(text) ~= "string" then fail(op .. ": argument 1 must be a string, got " .. base.kind(text)) end
end

local integers = { int64 = true, int32 = true, uint8 = true }

--- ids as a tensor: an integer tensor of any shape, a table of numbers, or one number.
function strings.ids(ids, op)
  if base.is_tensor(ids) then
    if not integers[ids.dtype] then fail(op .. ": ids are integers, got a tensor of " .. ids.dtype) end
    return ids
  end
  if type(ids) == "number" then ids = { ids } end
  if type(ids) ~= "table" then
    fail(op .. ": argument 1 must be a tensor or a table of token ids, got " .. base.kind(ids))
  end
  for i = 1, #ids do base.check_integer(ids[i], op, "id " .. i) end
  return tl.tensor(ids, { dtype = "int64", device = "cpu" })
end

--- A uint8 tensor, which is freed, as a string.
function strings.of(bytes)
  local text = ffi.string(ffi.C.tl_data(bytes), ffi.C.tl_numel(bytes))
  bytes:free()
  return text
end

--- Writes a file whole or not at all.
function strings.write(path, text)
  require("tlua.data.readers").check_path(path, "save")
  check(C.tl_write_bytes(path, text, #text))
end

return strings
