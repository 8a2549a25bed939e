-- study.lua: what a script holds of a study: its results, and a way to add trials.
local base = require "tlua.base"
local json = require "tlua.json"
local storage = require "tlua.sweep.storage"

local Study = {}
Study.__index = Study

local study = {}

--- A study over an open store; row: its row in the storage.
function study.wrap(store, row)
  return setmetatable({ store = store, row = row, name = row.name, direction = row.direction, seed = row.seed }, Study)
end

--- open(storage, name): a study that exists. The name may be left out if the storage holds one study only.
function study.open(where, name)
  if type(where) ~= "string" then base.fail("open: argument 1 must be a storage's name, got " .. base.kind(where)) end
  local store = storage.open(where)
  local names = store:names()
  if name == nil then
    if #names ~= 1 then
      store:close()
      base.fail(("open: %s holds %d studies%s"):format(where, #names,
        #names > 0 and ", name one: " .. table.concat(names, ", ") or ""))
    end
    name = names[1]
  end
  local row = store:find_study(name)
  if not row then
    store:close()
    base.fail(("open: %s holds no study '%s'%s"):format(where, tostring(name),
      #names > 0 and ", only " .. table.concat(names, ", ") or ""))
  end
  return study.wrap(store, row)
end

-- A row of the storage as a script sees it.
local function public(row)
  return row and {
    number = row.number, state = row.state, params = row.params or {}, value = row.value, seed = row.seed,
    step = row.step, latest = row.latest, failures = row.failures, error = row.error, started = row.started,
    finished = row.finished,
    duration = row.finished and row.started and row.finished - row.started or nil,
  }
end

--- study:best(): the best complete trial {number=, value=, params=, ...}; nil if there is none.
function Study:best() return public(self.store:best(self.row)) end

--- study:trials(): all trials, in order of number; each with its attributes, and reports: a list of {step, value}.
function Study:trials()
  local curves, attributes, list = self.store:reports(self.row), self.store:attributes(self.row), {}
  for i, row in ipairs(self.store:trials(self.row)) do
    local t = public(row)
    t.reports, t.attributes = curves[row.number] or {}, attributes[row.number] or {}
    list[i] = t
  end
  return list
end

--- study:counts(): {waiting=, running=, complete=, pruned=, failed=}
function Study:counts() return self.store:counts(self.row) end

--- study:failures(): every try that broke: a list of {trial=, claim=, error=}.
function Study:failures() return self.store:failures(self.row) end

--- study:enqueue(params): these are tried next. Parameters of the space that are missing are drawn.
function Study:enqueue(params)
  if type(params) ~= "table" then base.fail("enqueue: argument 1 must be a table, got " .. base.kind(params)) end
  return self.store:enqueue(self.row, params)
end

local function cell(x)
  if x == nil then return "" end
  local text = type(x) == "table" and json.encode(x) or type(x) == "number" and json.encode(x):gsub('"', "")
    or tostring(x)
  return text:find('[",\r\n]') and '"' .. text:gsub('"', '""') .. '"' or text
end

local function keys_of(list, field)
  local seen, names = {}, {}
  for _, t in ipairs(list) do
    for name in pairs(t[field]) do
      if not seen[name] then seen[name], names[#names + 1] = true, name end
    end
  end
  table.sort(names)
  return names
end

--- study:to_csv(path): one line a trial; without a path: returns the text.
function Study:to_csv(path)
  local list = self:trials()
  local params, attributes = keys_of(list, "params"), keys_of(list, "attributes")
  local head = { "number", "state", "value", "step", "duration", "failures", "seed" }
  for _, name in ipairs(params) do head[#head + 1] = cell("param_" .. name) end
  for _, name in ipairs(attributes) do head[#head + 1] = cell("attr_" .. name) end
  head[#head + 1] = "error"
  local lines = { table.concat(head, ",") }
  for _, t in ipairs(list) do
    local row = {
      cell(t.number), t.state, cell(t.value), cell(t.step), cell(t.duration), cell(t.failures), cell(t.seed),
    }
    for _, name in ipairs(params) do row[#row + 1] = cell(t.params[name]) end
    for _, name in ipairs(attributes) do row[#row + 1] = cell(t.attributes[name]) end
    row[#row + 1] = cell(t.error)
    lines[#lines + 1] = table.concat(row, ",")
  end
  local text = table.concat(lines, "\n") .. "\n"
  if not path then return text end
  local file, message = io.open(path, "w")
  if not file then base.fail("to_csv: " .. message) end
  file:write(text)
  file:close()
end

--- study:close(): closes the storage. Otherwise the end of the process does.
function Study:close() self.store:close() end

return study
