-- complete.lua: what the tab key offers: names, fields, methods, option keys, file names.
local base = require "tlua.base"
local doc = require "tlua.doc"
local system = require "tlua.system"

local complete = {}

local keywords = {}
for word in ([[and break do else elseif end false for function goto if in local nil not or repeat return then true until
  while]]):gmatch("%a+") do keywords[#keywords + 1] = word end

-- ---- the names that a value has ----

local function add_keys(set, t)
  for key in next, t do
    if type(key) == "string" and key:find("^[%a_][%w_]*$") then set[key] = true end
  end
end

-- Through the metatables, as indexing would find them.
local function add_fields(set, value, depth)
  if type(value) == "table" then add_keys(set, value) end
  if base.is_tensor(value) then
    for _, names in ipairs { base.methods, base.field_names } do add_keys(set, names) end
    return
  end
  local meta = debug.getmetatable(value)
  local index = type(meta) == "table" and rawget(meta, "__index")
  if type(index) == "table" and depth < 16 then add_fields(set, index, depth + 1) end
  -- classes that look names up by a function keep them in the metatable itself
  if type(index) == "function" and type(meta) == "table" and depth < 16 then add_fields(set, meta, depth + 1) end
end

-- Documented names below a path: what is only loaded when used has no key yet.
local function add_documented(set, path)
  for _, name in ipairs(doc.names()) do
    local rest = name:match("^" .. path:gsub("%p", "%%%0") .. "[.:]([%a_][%w_]*)")
    if rest then set[rest] = true end
  end
end

-- ---- where the cursor stands ----

-- What a text is at its end: { inside = what an open string holds so far, quote = its quote }, { comment = true }, or
-- { masked = the text with ' ' for comments and '"' for strings }.
local function scan(text)
  local parts, at = {}, 1
  local function take(last, mask)
    parts[#parts + 1] = mask and mask:rep(last - at + 1) or text:sub(at, last)
    at = last + 1
  end
  while at <= #text do
    local start = text:find("[-\"'%[]", at)
    if not start then
      take(#text)
      break
    end
    take(start - 1)
    local c = text:sub(at, at)
    local comment = text:sub(at, at + 1) == "--"
    local level = text:match("^%[(=*)%[", comment and at + 2 or at)
    if level then
      local body = at + #level + (comment and 4 or 2)
      local _, last = text:find("]" .. level .. "]", body, true)
      if not last then return comment and { comment = true } or { inside = text:sub(body), quote = "[" } end
      take(last, comment and " " or '"')
    elseif comment then
      local line_end = text:find("\n", at, true)
      if not line_end then return { comment = true } end
      take(line_end, " ")
    elseif c == '"' or c == "'" then
      local last = at
      repeat
        last = text:find("[\\" .. c .. "\n]", last + 1)
        local escaped = last and text:sub(last, last) == "\\"
        if escaped then last = last + 1 end
      until not escaped
      if not last then return { inside = text:sub(at + 1), quote = c } end
      take(last, '"')
    else
      take(at)
    end
  end
  return { masked = table.concat(parts) }
end

local closing = { [")"] = "(", ["]"] = "[", ["}"] = "{" }

-- The bracket that is open before position `last`, and where; nil where none is.
local function open_before(masked, last)
  local depth = 0
  for i = last, 1, -1 do
    local c = masked:sub(i, i)
    if closing[c] then depth = depth + 1
    elseif c == "(" or c == "[" or c == "{" then
      if depth == 0 then return c, i end
      depth = depth - 1
    end
  end
end

-- The name that is called (or indexed) where it ends at position `last`: "nn.Conv2d".
local function name_before(masked, last) return masked:sub(1, last):match("([%a_][%w_.:]*)%s*$") end

-- The function whose options table is open at the end of the text: "nn.Conv2d(1, 2, {str" -> "nn.Conv2d".
local function open_call(masked)
  local bracket, at = open_before(masked, #masked)
  if bracket ~= "{" then return nil end
  local direct = name_before(masked, at - 1)
  if direct then return direct end
  bracket, at = open_before(masked, at - 1)
  return bracket == "(" and name_before(masked, at - 1) or nil
end

-- The object before a "." or ":", which ends at position `last`: its root name and the keys from there, { "a", 1 }; or
-- nil and what is known of it: "string", "call" (the result of one), nil (nothing).
local function object_before(text, masked, last, environment)
  local keys = {}
  while true do
    last = masked:sub(1, last):match("()%s*$") - 1
    local c = masked:sub(last, last)
    if c == "]" then
      local _, at = open_before(masked, last - 1)
      if not at then return nil end
      local key = text:sub(at + 1, last - 1):match("^%s*(.-)%s*$")
      local value = tonumber(key) or key:match("^([\"'])[^\\]*%1$") and key:sub(2, -2)
      if not value and key:find("^[%a_][%w_]*$") then value = environment[key] end
      if value == nil then return nil, "call" end
      table.insert(keys, 1, value)
      last = at - 1
    elseif c:find("[%w_]") then
      local start, name = masked:sub(1, last):match("()([%w_]+)$")
      if name:find("^%d") then return nil end
      last = masked:sub(1, start - 1):match("()%s*$") - 1
      local before = masked:sub(last, last)
      if before ~= "." and before ~= ":" or masked:sub(last - 1, last) == ".." then return name, keys end
      table.insert(keys, 1, name)
      last = last - 1
    elseif c == ")" then
      local _, at = open_before(masked, last - 1)
      local string = at and masked:sub(at + 1, last - 1):find('^%s*"+%s*$')
      return nil, string and "string" or "call"
    else
      return nil, c == '"' and "call" or c == "}" and "call" or nil
    end
  end
end

-- A value by its root and keys. Nothing is called but what indexing calls.
local function value_of(root, keys, environment)
  local ok, value = pcall(function()
    local value = environment[root]
    for _, key in ipairs(keys) do value = value[key] end
    return value
  end)
  if ok then return value end
end

-- "tl.nn" of a root and keys, where all are names.
local function path_of(root, keys)
  for _, key in ipairs(keys) do
    if type(key) ~= "string" then return nil end
  end
  return table.concat({ root, unpack(keys) }, ".")
end

-- The options that a function's text mentions: "stride=1", "opts: dtype, device".
local function add_options(set, name)
  local text = doc.find(name) or doc.find("tl." .. name)
  if not text and name:find(":", 1, true) then text = doc.find("x:" .. name:match(":([%w_]+)$")) end
  if not text then return end
  for key in text:gmatch("([%a_][%w_]*)%s*=") do set[key] = true end
  if text:find("opts", 1, true) then -- of whatever makes a tensor
    for _, key in ipairs { "device", "dtype", "requires_grad" } do set[key] = true end
  end
  local list = text:match("opts[%a ]*:%s*([^\n.]*)")
  for key in (list or ""):gsub("%b()", ""):gmatch("[%a_][%w_]*") do set[key] = true end
end

-- ---- files ----

local DIRECTORY, LINK, UNKNOWN = 4, 10, 0 -- d_type

local function files(prefix)
  local folder, start = prefix:match("^(.*/)([^/]*)$")
  folder, start = folder or "", start or prefix
  local list = {}
  local open = folder == "" and "./" or folder:gsub("^~", os.getenv("HOME") or "~")
  for name, kind in pairs(system.entries(open) or {}) do
    local hidden = name:sub(1, 1) == "." and start:sub(1, 1) ~= "."
    if name:sub(1, #start) == start and not hidden then
      local into = kind == DIRECTORY or (kind == LINK or kind == UNKNOWN) and system.entries(open .. name)
      list[#list + 1] = name .. (into and "/" or "")
    end
  end
  table.sort(list)
  return list, start
end

-- The same inside a string: what has a meaning there is written with a backslash.
local function files_in_string(inside, quote)
  if quote == "[" then return files(inside) end
  local function written(name) return (name:gsub("[\\" .. quote .. "]", "\\%0")) end
  local list, start = files((inside:gsub("\\(.)", "%1")))
  for i, name in ipairs(list) do list[i] = written(name) end
  return list, written(start)
end

-- ---- candidates ----

local commands = require "tlua.repl.commands"

-- Those of `set` that go on from `word`, sorted.
local function fitting(set, word)
  local list = {}
  for name in pairs(set) do
    if name:sub(1, #word) == word and (word ~= "" or name:sub(1, 1) ~= "_") then list[#list + 1] = name end
  end
  table.sort(list)
  return list
end

-- After ":": what can be called. Fields whose value cannot be read without calling something stay.
local function callable(value, name)
  if type(value) ~= "table" then return true end
  local field = rawget(value, name)
  if field == nil then return true end
  local meta = debug.getmetatable(field)
  return type(field) == "function" or type(meta) == "table" and meta.__call ~= nil
end

-- Fields and methods of the object that ends at position `last`, which `separator` follows.
local function members(text, masked, last, separator, environment)
  local set = {}
  local root, keys = object_before(text, masked, last, environment)
  if root then
    local value = value_of(root, keys, environment)
    if value ~= nil then add_fields(set, value, 0) end
    for name in pairs(set) do
      if separator == ":" and not callable(value, name) then set[name] = nil end
    end
    local path = path_of(root, keys)
    if path then
      add_documented(set, path)
      if path ~= "tl" and path:sub(1, 3) ~= "tl." then add_documented(set, "tl." .. path) end
    end
  elseif keys == "string" then
    add_keys(set, string)
  elseif keys == "call" then
    -- what a call returns is not known without calling it: mostly a tensor
    add_keys(set, base.methods)
    add_keys(set, base.field_names)
  end
  return set
end

-- Topics of "?": full names, and their last parts.
local function topics(text)
  local set = {}
  for _, name in ipairs(doc.names()) do
    set[name] = true
    set[name:match("[%w_]+$") or name] = true
  end
  return fitting(set, text), text
end

--- The candidates for the end of `text`, sorted, and the part of a name that is there already. `visible`: names that
--- the environment has besides its own keys.
function complete.candidates(text, environment, visible)
  local command = text:match("^%s*:(%a*)$")
  if command then return commands.names(command), command end
  if text:find("^%s*:load%s") or text:find("^%s*:save%s") then return files(text:match("^%s*:%a+%s+(.*)$")) end
  local topic = text:match("^%s*%?%s*([%w_.:]*)$")
  if topic then
    local list, word = topics(topic)
    if list[1] or not topic:find("[.:]") then return list, word end
    text = topic
  end
  text = text:gsub("^%s*:%a+%s", "")
  local at = scan(text)
  if at.comment then return {}, "" end
  if at.inside then return files_in_string(at.inside, at.quote) end
  local masked = at.masked
  local start, word = masked:match("()([%w_]*)$")
  if word:find("^%d") then return {}, word end
  local last = masked:sub(1, start - 1):match("()%s*$") - 1
  local separator = masked:sub(last, last)
  if (separator == "." or separator == ":") and masked:sub(last - 1, last) ~= ".." then
    return fitting(members(text, masked, last - 1, separator, environment), word), word
  end
  local options = {}
  local called = masked:find("[{,]%s*$", 1) and open_call(masked) or word ~= "" and open_call(masked:sub(1, start - 1))
  if called and not masked:sub(1, start - 1):find("=%s*$") then add_options(options, called) end
  local list = fitting(options, word)
  if list[1] then return list, word end
  local set = {}
  add_fields(set, environment, 0)
  for _, name in ipairs(visible or {}) do set[name] = true end
  for _, name in ipairs(keywords) do set[name] = true end
  return fitting(set, word), word
end

-- The longest beginning that all have.
local function common(list)
  local text = list[1]
  for _, other in ipairs(list) do
    while other:sub(1, #text) ~= text do text = text:sub(1, -2) end
  end
  return text
end

-- Names in columns, as wide as the terminal allows.
local function in_columns(list, width)
  local widest = 0
  for _, name in ipairs(list) do widest = math.max(widest, #name + 2) end
  local per_line = math.max(1, math.floor(width / widest))
  local rows = math.ceil(#list / per_line)
  local lines = {}
  for row = 1, rows do
    local cells = {}
    for column = 0, per_line - 1 do
      local name = list[row + column * rows]
      if name then cells[#cells + 1] = name .. (" "):rep(widest - #name) end
    end
    lines[row] = (table.concat(cells):gsub("%s+$", ""))
  end
  return table.concat(lines, "\n")
end

local MOST = 120

--- For the reader: what to insert at the cursor, and what to show when it cannot go further alone.
function complete.at_cursor(text, environment, visible, width)
  if text:find("\n%s*$") then return "  ", nil end -- in front of a later line: it is set in
  local list, word = complete.candidates(text, environment, visible)
  if #list == 0 then return nil, nil end
  local more = common(list):sub(#word + 1)
  if #list == 1 or more ~= "" then return more, nil end
  local shown, left = list, #list - MOST
  if left > 0 then
    shown = {}
    for i = 1, MOST do shown[i] = list[i] end
  end
  return nil, in_columns(shown, width or 80) .. (left > 0 and ("\n... %d more"):format(left) or "")
end

return complete
