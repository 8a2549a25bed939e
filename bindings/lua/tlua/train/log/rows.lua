-- rows.lua: what CSV and JSONL share: a text file of one line a step, which grows, and goes back to an earlier step.
local base = require "tlua.base"
local fail = base.fail

local rows = {}

--- A number as the shortest of the usual texts that reads back as the same.
function rows.number(x)
  if x ~= x then return "nan" end
  for digits = 15, 17 do
    local text = ("%." .. digits .. "g"):format(x)
    if tonumber(text) == x then return text end
  end
end

--- Fails unless a row's step and values are what a logger takes. Returns the names, sorted.
function rows.check(op, step, values)
  base.check_integer(step, op, "the step")
  if type(values) ~= "table" then fail(op .. ": values are a table name -> number, got " .. base.kind(values)) end
  local names = {}
  for name, value in pairs(values) do
    if type(name) ~= "string" then fail(op .. ": names are strings, got " .. base.kind(name)) end
    if name == "step" or name:find("[\r\n]") then fail(("%s: the name %q cannot be a column"):format(op, name)) end
    if type(value) ~= "number" then fail(("%s: '%s' must be a number, got %s"):format(op, name, base.kind(value))) end
    names[#names + 1] = name
  end
  table.sort(names)
  return names
end

--- The whole lines of a file; nil if there is none. What follows the last newline was being written when its writer was
--- killed.
function rows.read(path)
  local file = io.open(path, "rb")
  if not file then return nil end
  local text, message = file:read("*a")
  file:close()
  if not text then fail(("%s cannot be read: %s"):format(path, message)) end
  local lines = {}
  for line in text:gmatch("([^\n]*)\n") do lines[#lines + 1] = line end
  return lines
end

--- Of lines with these steps, in order: which stay when a run goes on after `step`, of whose rows it had written `n`
--- (nil: all)? A list of places.
function rows.kept(steps, step, n)
  local places, same = {}, 0
  for i, s in ipairs(steps) do
    if s == step then same = same + 1 end
    if s < step or (s == step and (n == nil or same <= n)) then places[#places + 1] = i end
  end
  return places
end

--- Replaces a file by these lines: the old or the new one is there at any moment.
function rows.replace(op, path, lines)
  local new = path .. ".new"
  local file, message = io.open(new, "wb")
  if not file then fail(op .. ": " .. message) end
  for _, line in ipairs(lines) do file:write(line, "\n") end
  file:close()
  local ok, reason = os.rename(new, path)
  if not ok then fail(op .. ": " .. reason) end
end

--- Opens a file to add lines to it.
function rows.append(op, path)
  local file, message = io.open(path, "ab")
  if not file then fail(op .. ": " .. message) end
  return file
end

return rows
