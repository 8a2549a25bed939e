-- files.lua: tl.save and tl.load, on safetensors files.
--
-- A flat table name -> tensor is a plain safetensors file. Any other value is one with notes (__metadata__) beside the
-- tensors: "tlua" = "1" marks it, "value:PATH" holds a number, string, boolean or empty table, "path:NAME" the place of
-- a tensor whose name is not its place. A PATH is keys joined by dots: a string key with %XX for bytes that would
-- confuse, a number key as [1].
local base = require "tlua.base"
local readers = require "tlua.data.readers"
local ffi, C, check, fail = base.ffi, base.C, base.check, base.fail
local is_tensor = base.is_tensor

local files = {}

local FORMAT = "1"
local SAVED = "tensors, numbers, strings, booleans and tables of them can be saved"

-- ---- texts ----

local function escape(text, pattern)
  return (text:gsub(pattern, function(c) return ("%%%02X"):format(c:byte()) end))
end

local function unescape(text)
  return (text:gsub("%%(%x%x)", function(hex) return string.char(tonumber(hex, 16)) end))
end

local CONFUSING = "[%%%.%[%]%z\1-\31\127-\255]" -- in a key
local UNPRINTABLE = "[%%%z\1-\31\127-\255]" -- in a value, or a name for other tools

local function encode_key(key, place)
  if type(key) == "string" then return key == "" and "%" or escape(key, CONFUSING) end
  if type(key) == "number" and key == math.floor(key) and math.abs(key) <= 2 ^ 53 then return ("[%.0f]"):format(key) end
  fail(("save: a key of %s is %s %s; keys are strings and integers"):format(place, type(key), tostring(key)))
end

local function decode_key(text)
  if text == "%" then return "" end
  local number = text:match("^%[(%-?%d+)%]$")
  return number and tonumber(number) or unescape(text)
end

local function encode_value(value)
  local kind = type(value)
  if kind == "number" then return ("n:%.17g"):format(value) end
  if kind == "string" then return "s:" .. escape(value, UNPRINTABLE) end
  if kind == "boolean" then return "b:" .. tostring(value) end
end

local special = { inf = math.huge, ["-inf"] = -math.huge, nan = 0 / 0, ["-nan"] = 0 / 0 }

local function decode_value(text)
  local kind, rest = text:match("^(%a):(.*)$")
  if kind == "n" then return special[rest] or tonumber(rest) end
  if kind == "s" then return unescape(rest) end
  if kind == "b" then return rest == "true" end
  if kind == "t" then return {} end
end

-- ---- saving ----

local function sorted_keys(t)
  local keys = {}
  for key in pairs(t) do keys[#keys + 1] = key end
  table.sort(keys, function(a, b)
    if type(a) == type(b) and (type(a) == "number" or type(a) == "string") then return a < b end
    return type(a) == "number" and type(b) ~= "number"
  end)
  return keys
end

-- parts: names, tensors, keys, values of the file to be. taken: names that are used.
local function add_tensor(parts, t, path, name)
  local unique, n = name, 1
  while parts.taken[unique] or unique == "__metadata__" do
    n = n + 1
    unique = name .. "#" .. n
  end
  parts.taken[unique] = true
  parts.names[#parts.names + 1], parts.tensors[#parts.tensors + 1] = unique, t
  if unique ~= path then parts:note("path:" .. unique, path) end
end

local flatten

local function flatten_table(parts, value, path, name, place)
  if parts.open[value] then fail("save: " .. place .. " holds itself") end
  if type(value.state_dict) == "function" then fail("save: " .. place .. " is an object; save its :state_dict()") end
  parts.open[value] = true
  local keys = sorted_keys(value)
  if #keys == 0 then parts:note("value:" .. path, "t:") end
  for _, key in ipairs(keys) do
    local text = encode_key(key, place)
    local readable = type(key) == "string" and escape(key, UNPRINTABLE) or ("%.0f"):format(key)
    local dot = path ~= "" and "." or ""
    flatten(parts, value[key], path .. dot .. text, name .. dot .. readable,
      place .. (type(key) == "string" and "." .. key or "[" .. tostring(key) .. "]"))
  end
  parts.open[value] = nil
end

flatten = function(parts, value, path, name, place)
  if is_tensor(value) then return add_tensor(parts, value, path, name) end
  if type(value) == "table" then return flatten_table(parts, value, path, name, place) end
  local text = encode_value(value)
  if not text then fail(("save: %s is %s; %s"):format(place, base.kind(value), SAVED)) end
  parts:note("value:" .. path, text)
end

-- A flat table name -> tensor whose names every tool can read.
local function is_plain(value)
  if type(value) ~= "table" or next(value) == nil then return false end
  for key, t in pairs(value) do
    if type(key) ~= "string" or not is_tensor(t) then return false end
    if key == "__metadata__" or key:find(UNPRINTABLE) then return false end
  end
  return true
end

local function note(parts, key, value)
  parts.keys[#parts.keys + 1], parts.values[#parts.values + 1] = key, value
end

local function collect(value)
  local parts = { names = {}, tensors = {}, keys = {}, values = {}, taken = {}, open = {}, note = note }
  if is_plain(value) then
    for _, name in ipairs(sorted_keys(value)) do
      parts.names[#parts.names + 1], parts.tensors[#parts.tensors + 1] = name, value[name]
    end
    return parts
  end
  parts:note("tlua", FORMAT)
  if is_tensor(value) then add_tensor(parts, value, "", "tensor")
  else flatten(parts, value, "", "", "the value") end
  return parts
end

local function strings(list)
  return ffi.new("const char *[?]", math.max(#list, 1), list)
end

--- tl.save(path, value): tensors, numbers, strings, booleans and nested tables of them as a safetensors file. A flat
--- table name -> tensor is a plain one, which every other tool reads.
function files.save(path, value)
  readers.check_path(path, "save")
  if type(value) ~= "table" and not is_tensor(value) and not encode_value(value) then
    fail("save: argument 2 is " .. base.kind(value) .. "; " .. SAVED)
  end
  local parts = collect(value)
  local tensors, n = base.tensors(parts.tensors, "save")
  local names, keys, values = strings(parts.names), strings(parts.keys), strings(parts.values)
  check(C.tl_write_safetensors(path, n, names, tensors, #parts.keys, keys, values))
  return nil -- parts stays alive until here: C pointed into its strings
end

-- ---- loading ----

local function damaged(path, what) fail(("load: %s: %s contradicts the rest of the file"):format(path, what)) end

-- Puts a value at the place that `path` spells, below root.value.
local function place_at(root, path, value, file)
  local at, key = root, "value"
  if path ~= "" then
    for text in (path .. "."):gmatch("(.-)%.") do
      if at[key] == nil then at[key] = {} end
      at, key = at[key], decode_key(text)
      if type(at) ~= "table" then damaged(file, "'" .. path .. "'") end
    end
  end
  if at[key] ~= nil then damaged(file, "'" .. path .. "'") end
  at[key] = value
end

local function rebuild(file, names, tensors, notes)
  local root = {}
  for _, name in ipairs(names) do place_at(root, notes["path:" .. name] or name, tensors[name], file) end
  for key, text in pairs(notes) do
    local path = key:match("^value:(.*)$")
    if path then
      local value = decode_value(text)
      if value == nil then damaged(file, "'" .. key .. "'") end
      place_at(root, path, value, file)
    end
  end
  return root.value
end

local archive_out = ffi.new("tl_archive *[1]")

--- tl.load(path, {device="cpu"}): what tl.save wrote, or of any other safetensors file a table name -> tensor. A second
--- result holds the file's __metadata__ (key -> string).
function files.load(path, options)
  readers.check_path(path, "load")
  local o = base.options("load", options, { device = "cpu" })
  local device = base.device(o.device, "load")
  check(C.tl_read_safetensors(path, archive_out))
  local names, tensors, archive = readers.open_archive(archive_out[0])
  local notes = {}
  for i = 0, ffi.C.tl_archive_notes(archive) - 1 do
    notes[ffi.string(ffi.C.tl_archive_note_key(archive, i))] = ffi.string(ffi.C.tl_archive_note(archive, i))
  end
  if device ~= 0 then
    for name, t in pairs(tensors) do tensors[name] = t:to(o.device) end
  end
  if notes.tlua == nil then return tensors, notes end
  if notes.tlua ~= FORMAT then fail(("load: %s: written by a newer tlua (format %s)"):format(path, notes.tlua)) end
  return rebuild(path, names, tensors, notes), notes
end

return files
