-- jsonl.lua: metrics as lines of JSON: {"lr":0.1,"step":1}.
local base = require "tlua.base"
local json = require "tlua.json"
local rows = require "tlua.train.log.rows"

local JSONL = {}
JSONL.__index = JSONL

--- jsonl:log(step, {name = number, ...}): a line, which is in the file when this returns. What JSON has no number for
--- is a string: "nan", "inf", "-inf".
function JSONL:log(step, values)
  local line = { step = step }
  for _, name in ipairs(rows.check("JSONL", step, values)) do line[name] = values[name] end
  if not self.file then
    if not self.continues then rows.replace("JSONL", self.path, {}) end
    self.file, self.continues = rows.append("JSONL", self.path), true
  end
  self.file:write(json.encode(line), "\n")
  self.file:flush()
end

--- jsonl:rewind(step, n): the file that is there is continued, without its lines after this step; of the lines of this
--- step itself the first n stay (all).
function JSONL:rewind(step, n)
  self:close()
  local lines, steps, kept = rows.read(self.path), {}, {}
  if not lines then return end
  for i, line in ipairs(lines) do
    local ok, value = pcall(json.decode, line)
    if not ok or type(value) ~= "table" or type(value.step) ~= "number" then
      base.fail(("JSONL: %s has a line that is not of this logger: %s"):format(self.path, line:sub(1, 60)))
    end
    steps[i] = value.step
  end
  for _, i in ipairs(rows.kept(steps, step, n)) do kept[#kept + 1] = lines[i] end
  rows.replace("JSONL", self.path, kept)
  self.continues = true
end

function JSONL:close()
  if self.file then self.file:close() end
  self.file = nil
end

--- JSONL(path): a new file, which replaces an old one at its first line unless rewind(step) comes before.
local function new(path)
  if type(path) ~= "string" then base.fail("JSONL: argument 1 must be a path, got " .. base.kind(path)) end
  return setmetatable({ path = path, continues = false }, JSONL)
end

return { JSONL = new }
