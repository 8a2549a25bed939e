-- json.lua: JSON: numbers, strings, booleans, lists and tables of them.
local json = {}

local escapes = { ['"'] = '\\"', ["\\"] = "\\\\", ["\n"] = "\\n", ["\t"] = "\\t", ["\r"] = "\\r" }

local function quote(text)
  return '"' .. text:gsub('[%c"\\\127]', function(c) return escapes[c] or ("\\u%04x"):format(c:byte()) end) .. '"'
end

-- The shortest of the usual forms that reads back as the same number. JSON has no infinities: they become strings.
local function number(x)
  if x ~= x then return '"nan"' end
  if x == math.huge then return '"inf"' end
  if x == -math.huge then return '"-inf"' end
  for digits = 15, 17 do
    local text = ("%." .. digits .. "g"):format(x)
    if tonumber(text) == x then return text end
  end
end

--- Stands for null in lists and tables.
json.null = setmetatable({}, { __tostring = function() return "null" end })

local encode

local function encode_table(x)
  local parts = {}
  if x[1] ~= nil or getmetatable(x) == json.list then
    for i = 1, #x do parts[i] = encode(x[i]) end
    return "[" .. table.concat(parts, ",") .. "]"
  end
  local keys = {}
  for key in pairs(x) do keys[#keys + 1] = key end
  table.sort(keys)
  for i, key in ipairs(keys) do parts[i] = quote(key) .. ":" .. encode(x[key]) end
  return "{" .. table.concat(parts, ",") .. "}"
end

--- The metatable of a table that is a list though it may be empty.
json.list = {}

--- Value -> text. Keys are sorted: the same value gives the same text.
function encode(x)
  local kind = type(x)
  if x == nil or x == json.null then return "null" end
  if kind == "number" then return number(x) end
  if kind == "string" then return quote(x) end
  if kind == "boolean" then return tostring(x) end
  if kind == "table" then return encode_table(x) end
  error("json: cannot write " .. kind, 0)
end
json.encode = encode

-- ---- reading ----

local unescape = { b = "\b", f = "\f", n = "\n", r = "\r", t = "\t" }

local function utf8(code)
  if code < 0x80 then return string.char(code) end
  if code < 0x800 then return string.char(0xC0 + math.floor(code / 64), 0x80 + code % 64) end
  local tail = string.char(0x80 + math.floor(code / 64) % 64, 0x80 + code % 64)
  if code < 0x10000 then return string.char(0xE0 + math.floor(code / 4096)) .. tail end
  return string.char(0xF0 + math.floor(code / 262144), 0x80 + math.floor(code / 4096) % 64) .. tail
end

local function bad(text, at) error(("json: cannot read %q at character %d"):format(text:sub(1, 60), at), 0) end

local function read_string(text, at)
  local stop = at + 1
  while true do
    local c = text:sub(stop, stop)
    if c == "" then bad(text, at) end
    if c == '"' then break end
    stop = stop + (c == "\\" and 2 or 1)
  end
  local raw = text:sub(at + 1, stop - 1)
  if not raw:find("\\", 1, true) then return raw, stop + 1 end
  raw = raw:gsub("\\(u?)(.)(%x?%x?%x?)", function(u, first, rest)
    if u == "u" then return utf8(#rest == 3 and tonumber(first .. rest, 16) or bad(text, at)) end
    return (unescape[first] or first) .. rest
  end)
  -- Characters above U+FFFF come as two halves.
  raw = raw:gsub("\237([\160-\175])([\128-\191])\237([\176-\191])([\128-\191])", function(a, b, c, d)
    return utf8(0x10000 + (a:byte() - 160) * 65536 + (b:byte() - 128) * 1024 + (c:byte() - 176) * 64 + d:byte() - 128)
  end)
  return raw, stop + 1
end

local read

local function read_items(text, at, close, item)
  local result = {}
  at = text:match("^%s*()", at + 1)
  if text:sub(at, at) == close then return result, at + 1 end
  while true do
    at = item(result, at)
    local mark
    mark, at = text:match("^%s*(.)()", at)
    if mark == close then return result, at end
    if mark ~= "," then bad(text, at or #text) end
    at = text:match("^%s*()", at)
  end
end

local words = { ["true"] = true, ["false"] = false, null = json.null }

function read(text, at)
  at = text:match("^%s*()", at)
  local c = text:sub(at, at)
  if c == '"' then return read_string(text, at) end
  if c == "[" then
    local value, stop = read_items(text, at, "]", function(list, p)
      list[#list + 1], p = read(text, p)
      return p
    end)
    return #value == 0 and setmetatable(value, json.list) or value, stop
  end
  if c == "{" then
    return read_items(text, at, "}", function(map, p)
      local key
      if text:sub(p, p) ~= '"' then bad(text, p) end
      key, p = read_string(text, p)
      p = text:match("^%s*:()", p) or bad(text, p)
      map[key], p = read(text, p)
      return p
    end)
  end
  local word, stop = text:match("^(%a+)()", at)
  if word and words[word] ~= nil then return words[word], stop end
  word, stop = text:match("^([%-%d%.eE%+]+)()", at)
  if not tonumber(word) then bad(text, at) end
  return tonumber(word), stop
end

--- Text -> value. null becomes json.null.
function json.decode(text)
  local value, at = read(text, 1)
  if text:find("%S", at) then bad(text, at) end
  return value
end

return json
