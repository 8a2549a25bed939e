-- tlua report: writes a study's page: one HTML file that needs nothing else.
local importance = require "tlua.sweep.importance"
local json = require "tlua.json"
local page = require "tlua.sweep.page"
local sweep = require "tlua.sweep"

local usage = [[
usage: tlua report STORAGE [-o FILE] [--name STUDY]
  STORAGE      the file of a sweep, or postgresql://...
  -o FILE      the page (default report.html)
  --name NAME  the study, if there are several]]

local function refuse(message)
  io.stderr:write("tlua report: ", message, "\n", usage, "\n")
  os.exit(2)
end

local function parse(words)
  local o, i = { out = "report.html" }, 1
  while words[i] do
    local word = words[i]
    if word == "-h" or word == "--help" then
      print(usage)
      os.exit(0)
    elseif word == "-o" or word == "--name" then
      i = i + 1
      if not words[i] then refuse(word .. " needs a value") end
      o[word == "-o" and "out" or "name"] = words[i]
    elseif word:sub(1, 1) == "-" or o.storage then
      refuse("cannot make sense of " .. word)
    else
      o.storage = word
    end
    i = i + 1
  end
  if not o.storage then refuse("names no storage") end
  return o
end

local function list_of(t) return setmetatable(t, json.list) end

-- What the page draws from.
local function data_of(study)
  local trials, seen, names = list_of {}, {}, {}
  local all = study:trials()
  for i, t in ipairs(all) do
    for _, r in ipairs(t.reports) do list_of(r) end
    trials[i] = {
      number = t.number, state = t.state, value = t.value, params = t.params, step = t.step, duration = t.duration,
      error = t.error, reports = list_of(t.reports), attributes = t.attributes,
    }
    for name in pairs(t.params) do
      if not seen[name] then seen[name], names[#names + 1] = true, name end
    end
  end
  table.sort(names)
  local described = study.row.space and json.decode(study.row.space) or {}
  return {
    name = study.name, direction = study.direction, trials = trials, space = described,
    importance = importance(all, names, described, study.direction),
  }
end

local function html(text)
  return (text:gsub("[&<>]", { ["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;" }))
end

local o = parse(arg)
local file = not o.storage:find("://", 1, true) and io.open(o.storage)
if file == nil then refuse(("there is no file '%s'"):format(o.storage)) end
if file then file:close() end
local study = sweep.open(o.storage, o.name)
-- In a script element nothing ends the text but "<": it is written in JSON's other way.
local data = json.encode(data_of(study)):gsub("<", "\\u003c")
local text = page:gsub("@(%u+)@", { TITLE = html(study.name), DATA = data })
local out, message = io.open(o.out, "w")
if not out then
  io.stderr:write("tlua report: ", message, "\n")
  os.exit(1)
end
out:write(text)
out:close()
print(o.out)
