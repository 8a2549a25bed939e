-- complete.lua: what the tab key offers: names, fields, methods, option keys, file names.
local base = require "tlua.base"
local doc = require "tlua.doc"

local ffi = base.ffi

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

-- The value of "tl.nn.Linear" or "model.layers[1]" without calling anything of the user's.
local function value_of(path, environment)
  local value = environment
  local first = true
  for name, index in path:gmatch("([%a_][%w_]*)()") do
    local ok, found = pcall(function() return value[name] end)
    if not ok or found == nil then return nil end
    value, first = found, false
    for number in path:sub(index):gmatch("^%[(%d+)%]") do
      ok, found = pcall(function() return value[tonumber(number)] end)
      if not ok or found == nil then return nil end
      value = found
    end
  end
  if first then return nil end
  return value
end

-- Documented names below a path: what is only loaded when used has no key yet.
local function add_documented(set, path)
  for _, name in ipairs(doc.names()) do
    local rest = name:match("^" .. path:gsub("%p", "%%%0") .. "[.:]([%a_][%w_]*)")
    if rest then set[rest] = true end
  end
end

-- ---- where the cursor stands ----

-- The quote that is open at the end of the text, and the text after it.
local function open_string(text)
  local quote, start
  local i = 1
  while i <= #text do
    local c = text:sub(i, i)
    if quote then
      if c == "\\" then i = i + 1 elseif c == quote then quote = nil end
    elseif c == '"' or c == "'" then
      quote, start = c, i + 1
    elseif text:sub(i, i + 1) == "--" then
      return nil
    end
    i = i + 1
  end
  return quote, quote and text:sub(start)
end

-- The function whose options table is open at the end of the text: "nn.Conv2d(1, 2, {str" -> "nn.Conv2d".
local function open_call(text)
  local depth = 0
  for i = #text, 1, -1 do
    local c = text:sub(i, i)
    if c == "}" or c == ")" or c == "]" then depth = depth + 1
    elseif c == "{" or c == "(" or c == "[" then
      if depth > 0 then depth = depth - 1
      elseif c == "{" then
        local direct = text:sub(1, i - 1):match("([%a_][%w_.:]*)%s*$")
        if direct then return direct end
        local outer = 0
        for k = i - 1, 1, -1 do
          local d = text:sub(k, k)
          if d == "}" or d == ")" or d == "]" then outer = outer + 1
          elseif d == "{" or d == "[" then outer = outer - 1
          elseif d == "(" then
            if outer == 0 then return text:sub(1, k - 1):match("([%a_][%w_.:]*)%s*$") end
            outer = outer - 1
          end
        end
        return nil
      end
    end
  end
end

-- The options that a function's text mentions: "stride=1", "opts: dtype, device".
local function add_options(set, name)
  local text = doc.find(name) or doc.find("tl." .. name)
  if not text and name:find(":", 1, true) then text = doc.find("x:" .. name:match(":([%w_]+)$")) end
  if not text then return end
  for key in text:gmatch("([%a_][%w_]*)%s*=") do set[key] = true end
  local list = text:match("opts:?%s*([^\n.]*)")
  for key in (list or ""):gsub("%b()", ""):gmatch("[%a_][%w_]*") do set[key] = true end
end

-- ---- files ----

local function files(prefix)
  local folder, start = prefix:match("^(.*/)([^/]*)$")
  folder, start = folder or "", start or prefix
  local list = {}
  local open = folder == "" and "." or folder:gsub("^~", os.getenv("HOME") or "~")
  local directory = ffi.C.tlua_opendir(open)
  if directory == nil then return list, start end
  while true do
    local entry = ffi.C.tlua_readdir(directory)
    if entry == nil then break end
    local name = ffi.string(entry.d_name)
    local hidden = name:sub(1, 1) == "." and start:sub(1, 1) ~= "."
    if name:sub(1, #start) == start and not hidden and name ~= "." and name ~= ".." then
      list[#list + 1] = name .. (entry.d_type == 4 and "/" or "")
    end
  end
  ffi.C.tlua_closedir(directory)
  table.sort(list)
  return list, start
end

ffi.cdef [[
typedef struct { uint64_t d_ino; int64_t d_off; unsigned short d_reclen; unsigned char d_type; char d_name[256]; } tlua_dirent;
void *tlua_opendir(const char *name) __asm__("opendir");
tlua_dirent *tlua_readdir(void *directory) __asm__("readdir");
int tlua_closedir(void *directory) __asm__("closedir");
]]

-- ---- candidates ----

local commands = require "tlua.repl.commands"

--- The candidates for the end of `text`, sorted, and the part of a name that is there already.
function complete.candidates(text, environment)
  local command = text:match("^:(%a*)$")
  if command then return commands.names(command), command end
  if text:find("^:load%s") or text:find("^:save%s") then return files(text:match("%s+(.*)$")) end
  local topic = text:match("^%?%s*([%w_.:]*)$")
  local quote, inside = open_string(text)
  if quote then return files(inside) end
  local path = topic or text:match("[%a_][%w_.:%[%]]*$") or ""
  local parent, word = path:match("^(.*)[.:]([%w_]*)$")
  word = word or path
  local set = {}
  if parent then
    local value = value_of(parent, environment)
    if value ~= nil then add_fields(set, value, 0) end
    add_documented(set, parent)
    if parent ~= "tl" and parent:sub(1, 3) ~= "tl." then add_documented(set, "tl." .. parent) end
  elseif text:find("[%)%]}][.:][%w_]*$") then
    -- what a call returns is not known without calling it: mostly a tensor
    word = text:match("([%w_]*)$")
    add_keys(set, base.methods)
    add_keys(set, base.field_names)
  else
    local called = open_call(text:sub(1, #text - #word))
    if called then add_options(set, called) end
    local fits = false
    for name in pairs(set) do fits = fits or name:sub(1, #word) == word end
    if not fits then
      add_fields(set, environment, 0)
      for _, name in ipairs(complete.visible(environment)) do set[name] = true end
      for _, name in ipairs(keywords) do set[name] = true end
    end
  end
  local list = {}
  for name in pairs(set) do
    if name:sub(1, #word) == word and (word ~= "" or name:sub(1, 1) ~= "_") then list[#list + 1] = name end
  end
  table.sort(list)
  return list, word
end

--- Names that an environment has besides its own keys; the session of a frame replaces it.
function complete.visible() return {} end

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
function complete.at_cursor(text, environment, width)
  local list, word = complete.candidates(text, environment)
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
