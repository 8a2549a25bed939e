-- show.lua: values as the REPL prints them: tables laid out and limited, tensors, colours on a terminal.
local base = require "tlua.base"

local show = {
  depth = 4, -- tables inside tables
  width = 80, -- characters in a line
  items = 40, -- entries of a table
  total = 1000, -- entries of all tables of a value
  length = 400, -- bytes of a string inside a table
}

-- ---- colours (ECMA-48) ----

local codes = { key = "36", string = "32", number = "33", word = "35", dim = "2", error = "31" }

--- A function that colours text by kind; the text itself where colours are off.
function show.painter(coloured)
  if not coloured then return function(_, text) return text end end
  return function(kind, text) return "\27[" .. codes[kind] .. "m" .. text .. "\27[0m" end
end

-- ---- single values ----

local escapes = { ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t", ["\\"] = "\\\\", ['"'] = '\\"' }

local function quoted(s)
  local cut = #s > show.length and (" .. (%d bytes more)"):format(#s - show.length) or ""
  return '"' .. s:sub(1, show.length):gsub('[%c"\\]', function(c)
    return escapes[c] or ("\\%d"):format(c:byte())
  end) .. '"' .. cut
end

local keywords = {}
for word in ([[and break do else elseif end false for function goto if in local nil not or repeat return then true until
  while]]):gmatch("%a+") do keywords[word] = true end

local function function_text(f)
  local info = debug.getinfo(f, "S")
  if info.what == "C" then return "function: builtin" end
  return ("function: %s:%d"):format(info.short_src, info.linedefined)
end

local function tensor_text(t)
  return ("[%s %s %s]"):format(t.dtype, t.ndim == 0 and "scalar" or table.concat(t.shape, "x"), t.device)
end

-- A value that is no plain table.
local function leaf(value, paint)
  local kind = type(value)
  if kind == "string" then return paint("string", quoted(value)) end
  if kind == "number" then return paint("number", tostring(value)) end
  if kind == "function" then return paint("dim", function_text(value)) end
  if base.is_tensor(value) then return paint("dim", tensor_text(value)) end
  if kind == "boolean" or kind == "nil" then return paint("word", tostring(value)) end
  local ok, text = pcall(tostring, value)
  return ok and type(text) == "string" and text or "(" .. kind .. " whose __tostring failed)"
end

local function describes_itself(value)
  local meta = debug.getmetatable(value)
  return type(meta) == "table" and rawget(meta, "__tostring") ~= nil
end

-- ---- tables ----

local rank = { number = 1, string = 2, boolean = 3 }

local function before(a, b)
  local ra, rb = rank[type(a)] or 4, rank[type(b)] or 4
  if ra ~= rb then return ra < rb end
  if ra <= 2 then return a < b end
  return ra == 3 and b and not a -- the others as they come: they have no order
end

-- How many characters a terminal shows: without colours, a UTF-8 character once.
local function columns(text) return #text:gsub("\27%[[%d;]*m", ""):gsub("[\128-\191]", "") end

local render

-- The entries of a table as texts: first 1..n, then the other keys in order.
local function entries(t, paint, indent, depth, seen)
  local list, n, total = {}, 0, 0
  while rawget(t, n + 1) ~= nil do n = n + 1 end
  local keys = {}
  for key in next, t do
    total = total + 1
    local positional = type(key) == "number" and key >= 1 and key <= n and key == math.floor(key)
    if not positional then keys[#keys + 1] = key end
  end
  for i = 1, math.min(n, show.items) do
    if seen.left <= 0 then break end
    seen.left = seen.left - 1
    list[i] = render(rawget(t, i), paint, indent, depth, seen)
  end
  table.sort(keys, before)
  for _, key in ipairs(keys) do
    if #list >= show.items or seen.left <= 0 then break end
    seen.left = seen.left - 1
    local plain = type(key) == "string" and key:find("^[%a_][%w_]*$") and not keywords[key]
    local name = plain and paint("key", key) or "[" .. leaf(key, paint) .. "]"
    list[#list + 1] = name .. " = " .. render(rawget(t, key), paint, indent, depth, seen)
  end
  if total > #list then list[#list + 1] = paint("dim", ("... %d more"):format(total - #list)) end
  return list
end

function render(value, paint, indent, depth, seen)
  if type(value) ~= "table" or describes_itself(value) then return leaf(value, paint) end
  if seen[value] then return paint("dim", "{cycle}") end
  if next(value) == nil then return "{}" end
  if depth >= show.depth then return paint("dim", "{...}") end
  seen[value] = true
  local inner = indent .. "  "
  local list = entries(value, paint, inner, depth + 1, seen)
  seen[value] = nil
  local line = "{ " .. table.concat(list, ", ") .. " }"
  if columns(indent .. line) <= show.width and not line:find("\n", 1, true) then return line end
  return "{\n" .. inner .. table.concat(list, ",\n" .. inner) .. "\n" .. indent .. "}"
end

--- One value as text. Strings by themselves are as they are; tables show what they hold unless they have __tostring.
function show.text(value, paint)
  if type(value) == "string" then return value end
  if base.is_tensor(value) then
    local text = tostring(value)
    return (text:gsub("(%[[^%[%]\n]*%])$", function(footer) return paint("dim", footer) end))
  end
  return render(value, paint, "", 0, { left = show.total })
end

--- One value in one line, for lists of names.
function show.brief(value, paint)
  if type(value) == "table" and not describes_itself(value) then
    local n = 0
    for _ in next, value do n = n + 1 end
    if n > 8 then return paint("dim", ("{%d entries}"):format(n)) end
  end
  local text = leaf(value, paint)
  if type(value) == "table" and not describes_itself(value) then
    text = render(value, paint, "", show.depth - 1, { left = show.total })
  end
  return (text:gsub("\n%s*", " "))
end

return show
