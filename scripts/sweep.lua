-- tlua sweep: runs a script that calls sweep.run, with overrides, or shows what a study has found.
local base = require "tlua.base"
local sweep = require "tlua.sweep"
local runner = require "tlua.sweep.runner"
local space = require "tlua.sweep.space"
local view = require "tlua.sweep.view"

local usage = [[
usage: tlua sweep [options] SCRIPT [NAME=VALUE ...] [-- ARGUMENTS OF THE SCRIPT]
       tlua sweep --status|--best|--csv SCRIPT|STORAGE
  NAME=VALUE      instead of what the script's space says: lr=0.1 (fixed), lr=0.01,0.1 (one of these),
                  "lr=loguniform(1e-4, 1e-1)", uniform, quniform, qloguniform, int, logint, choice, range(1, 9, 2)
  --trials N      how many trials there shall be      --workers N   how many at a time
  --name NAME     the study's name                    --storage S   file, or postgresql://...
  --retries N     tries after a failure               --quiet       no table, no lines
  --join          take part in a study that exists
  --status        how far it is
  --best          the best trial
  --csv[=FILE]    all trials, as a table]]

local function refuse(message)
  io.stderr:write("tlua sweep: ", message, "\n", usage, "\n")
  os.exit(2)
end

-- ---- values on the command line ----

local function scalar(word)
  word = word:match("^%s*(.-)%s*$")
  local quoted = word:match("^'(.*)'$") or word:match('^"(.*)"$')
  if quoted then return quoted end
  if word == "true" or word == "false" then return word == "true" end
  return tonumber(word) or word
end

local function split(text)
  local items = {}
  for item in (text .. ","):gmatch("([^,]*),") do
    if not item:find("%S") then return nil end
    items[#items + 1] = scalar(item)
  end
  return items
end

-- Hydra's range: the end is not part of it.
local function range(first, last, step)
  local values = {}
  step = step or 1
  if not tonumber(first) or not tonumber(last) or not tonumber(step) or step == 0 then
    error("range takes numbers: (first, end, step)", 0)
  end
  for x = first, last - (step > 0 and 1e-9 or -1e-9), step do values[#values + 1] = x end
  return space.choice(values)
end

local makers = {
  uniform = space.uniform, interval = space.uniform, loguniform = space.loguniform, quniform = space.quniform,
  qloguniform = space.qloguniform, int = space.int, logint = space.logint, range = range,
  choice = function(...) return space.choice { ... } end,
}

local function parse_value(text)
  local name, inside = text:match("^(%a+)%((.*)%)$")
  if name then
    if not makers[name] then refuse(("there is no %s(...)%s"):format(name, base.suggestion(name, makers))) end
    local items = split(inside)
    if not items then refuse("cannot read " .. text) end
    local ok, made = pcall(makers[name], unpack(items))
    if not ok then refuse(text .. ": " .. tostring(made)) end
    return made
  end
  local items = split(text)
  if not items then refuse("cannot read the value '" .. text .. "'") end
  if #items == 1 then return items[1] end
  return space.choice(items)
end

-- ---- the command line ----

local numbers = { trials = true, workers = true, retries = true }
local texts = { name = true, storage = true }
local actions = { status = true, best = true, csv = true, join = true, quiet = true }

local function parse(words)
  local o, i = { options = {}, space = {}, rest = {} }, 1
  while words[i] do
    local word = words[i]
    local name, value = word:match("^%-%-(%l+)=?(.*)$")
    if word == "--" then
      for k = i + 1, #words do o.rest[#o.rest + 1] = words[k] end
      break
    elseif word == "-h" or word == "--help" then
      print(usage)
      os.exit(0)
    elseif name and (numbers[name] or texts[name]) then
      if not word:find("=", 1, true) then
        i = i + 1
        value = words[i]
      end
      if numbers[name] then value = tonumber(value) end
      if value == nil then refuse(("--%s needs a %s"):format(name, numbers[name] and "number" or "value")) end
      o.options[name] = value
    elseif name and actions[name] then
      o[name] = value ~= "" and value or true
    elseif word:sub(1, 1) == "-" then
      refuse("there is no option " .. word)
    elseif not o.target then
      o.target = word
    else
      local key, text = word:match("^([%a_][%w_]*)=(.*)$")
      if not key then refuse(("'%s' is not NAME=VALUE (arguments of the script follow --)"):format(word)) end
      o.space[key] = parse_value(text)
    end
    i = i + 1
  end
  if not o.target then refuse("names no script") end
  return o
end

-- ---- showing ----

local function exists(path)
  local file = io.open(path)
  if file then file:close() end
  return file ~= nil
end

local function show_status(study)
  local c = study:counts()
  local over = c.complete + c.pruned + c.failed
  print(("%s  %d%s trials  %d running  %d waiting  %d complete  %d pruned  %d failed"):format(study.name, over,
    study.row.trials and "/" .. study.row.trials or "", c.running, c.waiting, c.complete, c.pruned, c.failed))
  for _, row in ipairs(study.store:running(study.row)) do
    print(("  running %-5d %6.1f s  %s  %s"):format(row.number, row.seconds,
      row.step and ("step %d: %.4g"):format(row.step, row.latest or 0 / 0) or "", view.params(row.params)))
  end
  local failures = study:failures()
  for i = math.max(1, #failures - 2), #failures do
    print(("  failed  %-5d %s"):format(failures[i].trial, failures[i].error:match("^[^\n]*")))
  end
end

local function show_best(study)
  local best = study:best()
  if not best then
    io.stderr:write("tlua sweep: no trial is complete\n")
    os.exit(1)
  end
  print(("trial %d  value %.10g"):format(best.number, best.value))
  local names = {}
  for name in pairs(best.params) do names[#names + 1] = name end
  table.sort(names)
  for _, name in ipairs(names) do print(("  %s = %s"):format(name, tostring(best.params[name]))) end
end

local function show(o, study)
  if o.status then show_status(study) end
  if o.best then show_best(study) end
  if o.csv == true then io.write(study:to_csv()) elseif o.csv then study:to_csv(o.csv) end
end

local function run_script(o)
  local chunk, message = loadfile(o.target)
  if not chunk then error(message, 0) end
  rawset(_G, "arg", { [0] = o.target, unpack(o.rest) })
  chunk(unpack(o.rest))
end

local o = parse(arg)
if not (o.target:find("%.lua$") or o.target:find("://", 1, true)) and not exists(o.target) then
  refuse(("there is no file '%s'"):format(o.target))
end
if o.status or o.best or o.csv then
  if not o.target:find("%.lua$") then
    show(o, sweep.open(o.target, o.options.name))
    return
  end
  runner.instead = function(run)
    show(o, sweep.open(run.storage, run.name))
    os.exit(0)
  end
end
runner.space, runner.options = o.space, o.options
if o.quiet then runner.options.quiet = true end
runner.join = o.join
local run = runner.run
local ran = false
sweep.run = function(...)
  ran = true
  return run(...)
end
run_script(o)
if not ran then
  io.stderr:write(("tlua sweep: %s does not call sweep.run\n"):format(o.target))
  os.exit(1)
end
