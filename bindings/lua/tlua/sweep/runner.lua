-- runner.lua: sweep.run: hands out trials until there are enough.
--
-- Each trial runs in a process of its own: this very command line once more, with the order in the environment's
-- TLUA_SWEEP_TRIAL; there, sweep.run runs the objective once and ends the process. With workers=0 trials run here, one
-- after the other.
local base = require "tlua.base"
local json = require "tlua.json"
local process = require "tlua.sweep.process"
local pruners = require "tlua.sweep.pruners"
local samplers = require "tlua.sweep.samplers"
local space = require "tlua.sweep.space"
local storage = require "tlua.sweep.storage"
local study_of = require "tlua.sweep.study"
local trial = require "tlua.sweep.trial"

local runner = {
  -- What `tlua sweep` sets: overrides of parameters and of options, whether the study must exist (join), and what to do
  -- instead of running it.
  space = {}, options = {}, join = false, instead = nil,
}

local fail = base.fail

-- ---- options ----

local defaults = {
  name = "sweep", storage = "sweep.db", trials = base.optional, workers = base.optional, direction = "minimize",
  sampler = base.optional, pruner = base.optional, space = base.optional, objective = base.optional, retries = 0,
  devices = base.optional, pin = true, patience = 60, quiet = false,
}

local function whole(o, name, least)
  local x = o[name]
  if type(x) ~= "number" or x ~= math.floor(x) or x < least then
    fail(("run: %s is a whole number from %d, got %s"):format(name, least, tostring(x)))
  end
end

local function has_methods(x, ...)
  if type(x) ~= "table" then return false end
  for _, name in ipairs { ... } do
    if type(x[name]) ~= "function" then return false end
  end
  return true
end

local function check_devices(o)
  if o.devices == nil then return end
  if type(o.devices) ~= "table" or #o.devices == 0 then fail("run: devices is a list of names") end
  for _, name in ipairs(o.devices) do
    if type(name) ~= "string" or not (name == "cpu" or name:find("^cuda:%d+$")) then
      fail(("run: a device is \"cpu\" or \"cuda:0\", \"cuda:1\", ..., got %s"):format(tostring(name)))
    end
  end
end

-- The space with the command line's overrides, and names that do not exist refused.
local function overridden(s)
  local merged = {}
  for name, d in pairs(s) do merged[name] = d end
  for name, d in pairs(runner.space) do
    if s[name] == nil then
      fail(("run: the space has no parameter '%s'%s"):format(name, base.suggestion(name, s)))
    end
    merged[name] = d
  end
  return merged
end

local function complete_options(given)
  local merged = {}
  for name, v in pairs(given or {}) do merged[name] = v end
  for name, v in pairs(runner.options) do merged[name] = v end
  local o = base.options("run", merged, defaults)
  if type(o.objective) ~= "function" then fail("run: needs objective, a function of (params, trial)") end
  if o.space == nil then fail("run: needs space, a table of parameters") end
  space.names(o.space)
  o.space = overridden(o.space)
  if o.direction ~= "minimize" and o.direction ~= "maximize" then
    fail(("run: direction is \"minimize\" or \"maximize\", got '%s'"):format(o.direction))
  end
  o.sampler = o.sampler or require("tlua.sweep.tpe")()
  o.pruner = o.pruner or pruners.none
  if not has_methods(o.sampler, "suggest") then fail("run: sampler is one such as sweep.TPE{}") end
  if o.sampler.seed ~= nil then
    base.check_integer(o.sampler.seed, "run", "the sampler's seed")
    if o.sampler.seed < 0 then fail("run: the sampler's seed is a whole number from 0, got " .. o.sampler.seed) end
  end
  if not has_methods(o.pruner, "rung", "hopeless") then fail("run: pruner is one such as sweep.ASHA{...}") end
  check_devices(o)
  o.workers = o.workers or (o.devices and #o.devices) or 1
  whole(o, "workers", 0)
  whole(o, "retries", 0)
  if o.trials ~= nil then whole(o, "trials", 1) end
  if o.trials == nil and not o.sampler.limit then fail("run: needs trials, how many there shall be") end
  if o.workers > 0 and o.storage == ":memory:" then
    fail("run: storage \":memory:\" cannot be shared; workers=0 runs the trials in this process")
  end
  return o
end

-- ---- a study at work ----

local Run = {}
Run.__index = Run

local function open_run(o)
  local store = storage.open(o.storage, true)
  local row = store:enter(o.name, {
    direction = o.direction, trials = o.trials, seed = o.sampler.seed, space = space.describe(o.space),
  })
  local limit = o.sampler.limit and o.sampler:limit(o.space)
  return setmetatable({
    o = o, store = store, study = row, limit = limit, history = {}, low = 0, goal = row.trials,
    finished = 0, began = process.now(),
  }, Run)
end

-- All trials so far but one, in order of number. Those that are over are read once.
local function history_of(self, except)
  local rows = self.store:trials(self.study, self.low)
  for _, row in ipairs(rows) do self.history[row.number + 1] = row end
  while true do
    local next_row = self.history[self.low + 1]
    if not next_row or next_row.state == "running" or next_row.state == "waiting" then break end
    self.low = self.low + 1
  end
  local list = {}
  for _, row in ipairs(self.history) do
    if row.number ~= except then list[#list + 1] = row end
  end
  return list
end

-- The space with some parameters fixed; names that it lacks are added.
local function with_fixed(s, fixed)
  local merged = {}
  for name, d in pairs(s) do merged[name] = d end
  for name, v in pairs(fixed) do merged[name] = v end
  return merged
end

local function draw(self, row)
  if row.params and row.slot then return end -- a trial that is run again
  local o = self.o
  local sampler, s, slot = o.sampler, o.space, row.slot
  if not slot then -- enqueued: what it lacks is drawn
    s, slot = with_fixed(s, row.params), row.number
    if sampler.limit then sampler = samplers.Random() end
  end
  row.params = sampler:suggest {
    space = s, seed = self.study.seed, slot = slot, number = row.number, direction = self.study.direction,
    history = function() return history_of(self, row.number) end,
  }
  self.store:set_params(self.study, row, row.params)
end

--- Takes a trial that waits, or a new one. Nil and "busy" or "done": there is none.
function Run:take()
  local row, why = self.store:claim(self.study, self.limit, self.o.patience)
  if not row then return nil, why end
  local ok, message = pcall(draw, self, row)
  if not ok then
    self.store:release(self.study, row)
    error(message, 0)
  end
  return row
end

-- ---- in this process ----

local function run_here(self)
  local o = self.o
  local device = o.devices and o.devices[1] or "cpu"
  while true do
    local row, why = self:take()
    if not row then
      if why == "done" then return end
      process.sleep(0.2)
    else
      local t = trial.new(self.store, self.study, row, o.pruner, device)
      local state, value, interrupted = trial.run(t, o.objective, o.retries)
      if interrupted then error(base.interrupted, 0) end
      self.view:finished(row, state, value)
    end
  end
end

-- ---- in processes of their own ----

-- The cores of each worker: equal shares; with more workers than cores, a core each in turn.
local function shares(workers, cores)
  local list, each = {}, math.max(1, math.floor(#cores / workers))
  for w = 1, workers do
    list[w] = {}
    for k = 1, each do list[w][k] = cores[((w - 1) * each + k - 1) % #cores + 1] end
  end
  return list
end
runner.shares = shares -- for tests

-- The device that a worker's script uses, and what the driver shall show it: one GPU is always "cuda:0".
local function device_of(o, worker)
  local name = o.devices and o.devices[(worker - 1) % #o.devices + 1] or "cpu"
  local index = name:match("^cuda:(%d+)$")
  if not index then return name, nil end
  local visible = os.getenv("CUDA_VISIBLE_DEVICES")
  if visible and visible ~= "" then
    local list = {}
    for entry in visible:gmatch("[^,]+") do list[#list + 1] = entry end
    local entry = list[index + 1]
    if not entry then fail(("run: there is no device %s: CUDA_VISIBLE_DEVICES is %s"):format(name, visible)) end
    return "cuda:0", entry
  end
  return "cuda:0", index
end

local function start(self, worker, row)
  local o = self.o
  local device, visible = device_of(o, worker)
  local order = {
    storage = o.storage, study = o.name, parent = process.pid(), device = device,
    row = { number = row.number, claim = row.claim, seed = row.seed, failures = row.failures, params = row.params },
  }
  if o.pin then process.use_cores(self.shares[worker]) end
  local ok, pid, pipe = pcall(process.spawn, self.words, {
    TLUA_SWEEP_TRIAL = json.encode(order), CUDA_VISIBLE_DEVICES = visible,
  })
  if o.pin then process.use_cores(self.cores) end
  if not ok then
    self.store:release(self.study, row)
    error(pid, 0)
  end
  self.children[worker] = { pid = pid, pipe = pipe, row = row, tail = "", line = "", worker = worker }
end

-- What a child prints: shown line by line, the end of it kept for its epitaph.
local function drain(self, child)
  while child.pipe do
    local text = process.read(child.pipe)
    if text == "" then return end
    if text == nil then
      process.close(child.pipe)
      child.pipe = nil
      text = child.line ~= "" and "\n" or ""
    end
    child.tail = (child.tail .. text):sub(-2000)
    child.line = child.line .. text
    if #child.line > 65536 then child.line = child.line .. "\n" end -- whoever writes no line ends
    child.line = child.line:gsub("([^\n]*)\n", function(line)
      self.view:output(child.row, line)
      return ""
    end)
  end
end

local function epitaph(child, how, number)
  local text
  if how == "signal" then
    text = ("killed by signal %d (%s)"):format(number, process.strsignal(number))
    if number == process.SIGKILL then text = text .. ": somebody did, or the kernel, for want of memory" end
  elseif number == 0 then
    text = "the process ended before its trial did"
  else
    text = ("the process ended with code %d before its trial did"):format(number)
  end
  local tail = child.tail:gsub("%s+$", "")
  return tail == "" and text or text .. "; its last words:\n" .. tail
end

-- A child is gone: what it recorded counts; if it recorded nothing, that it broke.
local function bury(self, child, how, number)
  drain(self, child)
  if child.pipe then process.close(child.pipe) end
  self.children[child.worker] = nil
  local row = self.store:trial(self.study, child.row.number)
  if row.claim == child.row.claim and row.state == "running" then
    local text = epitaph(child, how, number)
    local state = self.store:fail(self.study, child.row, text, self.o.retries)
    self.view:finished(child.row, state or "failed", text)
    -- Nothing at all came of it: the script does not reach sweep.run, and would not for the other trials.
    if how == "exit" and number == 0 and self.finished == 0 then
      error("sweep: the script ended before it reached sweep.run, or the objective ended the process; it printed:\n" ..
        child.tail, 0)
    end
    return
  end
  self.finished = self.finished + 1
  local text = row.state ~= "complete" and row.state ~= "pruned" and row.error
  self.view:finished(child.row, row.state, text or row.value)
end

local function reap(self)
  for _, child in pairs(self.children) do
    local how, number = process.reap(child.pid)
    if how then bury(self, child, how, number) end
  end
end

-- Ends all children at once; their trials wait for the next start.
local function stop(self)
  for _, child in pairs(self.children) do process.kill(child.pid, process.SIGKILL) end
  for worker, child in pairs(self.children) do
    process.reap(child.pid, true)
    if child.pipe then process.close(child.pipe) end
    self.store:release(self.study, child.row)
    self.children[worker] = nil
  end
end

local function fill(self)
  for worker = 1, self.o.workers do
    if not self.children[worker] then
      local row, why = self:take()
      if not row then return why end
      start(self, worker, row)
    end
  end
  return "full"
end

-- What signals ask for: "wait": start no more, "stop": at once. Ctrl-C asks for the one, then for the other.
local function asked(self, signals)
  for _, signal in ipairs(signals) do
    if signal == process.SIGTERM then
      self.leaving, self.reason = "stop", signal
    elseif signal == process.SIGINT then
      self.leaving, self.reason = self.leaving and "stop" or "wait", signal
    end
    if signal ~= process.SIGCHLD then self.view:leaving(self.leaving, next(self.children) ~= nil) end
  end
end

local HEARTBEAT, POLL = 5, 0.5

local function files_of(self)
  local files = { self.signals }
  for _, child in pairs(self.children) do
    if child.pipe then files[#files + 1] = child.pipe end
  end
  return files
end

local function loop(self)
  local beat = process.now()
  while true do
    local why = not self.leaving and fill(self)
    if not next(self.children) and (self.leaving or why == "done") then return end
    if self.leaving == "stop" then return end
    process.wait(files_of(self), POLL)
    asked(self, process.signals(self.signals))
    for _, child in pairs(self.children) do drain(self, child) end
    reap(self)
    if process.now() - beat > HEARTBEAT then
      self.store:heartbeat(self.study)
      beat = process.now()
    end
    self.view:update()
  end
end

local function run_apart(self)
  self.words = process.command_line()
  self.children = {}
  self.cores = process.cores()
  self.shares = shares(self.o.workers, self.cores)
  local release
  self.signals, release = process.catch { process.SIGINT, process.SIGTERM, process.SIGCHLD }
  local ok, message = pcall(loop, self)
  stop(self)
  release()
  if not ok then error(message, 0) end
  -- The signal that was held back does now what it does to any script.
  if self.leaving then
    self.view:close()
    process.kill(process.pid(), self.reason)
    process.sleep(1)
  end
end

-- ---- sweep.run ----

-- In the process of a trial: the study of another name was run before, or will be later; here it is only looked at.
local function other_study(o)
  local store = storage.open(o.storage, true)
  return study_of.wrap(store, store:find_study(o.name) or store:enter(o.name,
    { direction = o.direction, trials = o.trials, seed = o.sampler.seed, space = space.describe(o.space) }))
end

local function work(o, order)
  if o.name ~= order.study then return other_study(o) end
  trial.work(order, function()
    local store = storage.open(order.storage)
    return store, store:find_study(order.study)
  end, o)
end

--- run{space=, objective=, trials=, ...}: see docs/sweep.md. Returns the study.
function runner.run(options)
  local o = complete_options(options)
  local order = os.getenv("TLUA_SWEEP_TRIAL")
  if order then return work(o, json.decode(order)) end
  if runner.instead then return runner.instead(o) end
  if runner.join then -- the study is as it is: it must exist, and keeps its number of trials
    study_of.open(o.storage, o.name):close()
    o.trials = runner.options.trials
  end
  local self = open_run(o)
  self.view = require("tlua.sweep.view").new(self)
  local ok, message = pcall(o.workers == 0 and run_here or run_apart, self)
  self.view:close()
  if not ok then
    self.store:release_all(self.study)
    error(message, 0)
  end
  return study_of.wrap(self.store, self.study)
end

return runner
