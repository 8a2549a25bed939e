-- csv.lua: metrics as a table of comma-separated values: the column "step", then one for each name (RFC 4180).
--
-- The columns are those of the first row. A name that appears later gets a column at the right, empty in the rows
-- before; the file is written anew for it. What a row does not have is empty.
local base = require "tlua.base"
local rows = require "tlua.train.log.rows"

local CSV = {}
CSV.__index = CSV

local function field(text)
  if not text:find('[,"\r\n]') then return text end
  return '"' .. text:gsub('"', '""') .. '"'
end

local function header_of(columns)
  local list = { "step" }
  for i, name in ipairs(columns) do list[i + 1] = field(name) end
  return table.concat(list, ",")
end

-- The columns behind "step" in a header that header_of() wrote.
local function columns_of(header)
  local list, at = {}, #"step" + 1
  while at <= #header do
    local quoted, stop = header:match('^,"(.-)"()%f[,%z]', at)
    local plain
    if quoted then quoted = quoted:gsub('""', '"')
    else plain, stop = header:match("^,([^,]*)()", at) end
    list[#list + 1] = quoted or plain
    at = stop
  end
  return list
end

local function add_columns(self, names)
  local known, added = {}, 0
  for _, name in ipairs(self.columns) do known[name] = true end
  for _, name in ipairs(names) do
    if not known[name] then
      self.columns[#self.columns + 1] = name
      added = added + 1
    end
  end
  if added == 0 and self.file then return end
  local lines = self.continues and rows.read(self.path) or {}
  for i = 2, #lines do lines[i] = lines[i] .. (","):rep(added) end
  lines[1] = header_of(self.columns)
  self:close()
  rows.replace("CSV", self.path, lines)
  self.file, self.continues = rows.append("CSV", self.path), true
end

--- csv:log(step, {name = number, ...}): a row, which is in the file when this returns.
function CSV:log(step, values)
  add_columns(self, rows.check("CSV", step, values))
  local list = { rows.number(step) }
  for i, name in ipairs(self.columns) do list[i + 1] = values[name] and rows.number(values[name]) or "" end
  self.file:write(table.concat(list, ","), "\n")
  self.file:flush()
end

--- csv:rewind(step, n): the file that is there is continued, without its rows after this step; of the rows of this step
--- itself the first n stay (all).
function CSV:rewind(step, n)
  self:close()
  local lines = rows.read(self.path)
  if not lines or not lines[1] then return end
  local header = table.remove(lines, 1)
  if not header:find("^step%f[,%z]") then base.fail("CSV: " .. self.path .. " has no column 'step' at the left") end
  local steps, kept = {}, { header }
  for i, line in ipairs(lines) do
    steps[i] = tonumber(line:match("^[^,]*")) or base.fail(("CSV: %s has a row without a step"):format(self.path))
  end
  for _, i in ipairs(rows.kept(steps, step, n)) do kept[#kept + 1] = lines[i] end
  rows.replace("CSV", self.path, kept)
  self.columns, self.continues = columns_of(header), true
  self.file = rows.append("CSV", self.path)
end

function CSV:close()
  if self.file then self.file:close() end
  self.file = nil
end

--- CSV(path): a new file, which replaces an old one at its first row unless rewind(step) comes before.
local function new(path)
  if type(path) ~= "string" then base.fail("CSV: argument 1 must be a path, got " .. base.kind(path)) end
  return setmetatable({ path = path, columns = {}, continues = false }, CSV)
end

return { CSV = new }
