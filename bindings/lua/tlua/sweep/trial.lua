-- trial.lua: one trial: what the objective gets, and running the objective to an entry in the storage.
local base = require "tlua.base"
local process = require "tlua.sweep.process"
local random = require "tlua.sweep.random"

local Trial = {}
Trial.__index = Trial

local trial = {}

-- What trial:prune() returns: the objective hands it on.
local pruned = setmetatable({}, { __tostring = function() return "a pruned trial" end })

--- row: of the storage; study: its row; pruner; device: what the objective shall use.
function trial.new(store, study, row, pruner, device)
  return setmetatable({
    number = row.number, claim = row.claim, params = row.params, seed = row.seed, attempt = row.failures + 1,
    device = device or "cpu", store = store, study = study, pruner = pruner, study_seed = study.seed,
    sign = study.direction == "minimize" and 1 or -1, last_rung = 0,
  }, Trial)
end

local function number_of(x, what)
  if base.is_tensor(x) then x = x:item() end
  if type(x) ~= "number" then
    base.fail(("%s must be a number or a tensor of one element, got %s"):format(what, base.kind(x)))
  end
  return x
end

--- trial:report(step, value): records a value on the way. True: the trial should end early (return trial:prune()).
function Trial:report(step, value)
  base.check_integer(step, "report", "the step")
  value = number_of(value, "report: the value")
  local rung = self.pruner:rung(self, step, self.last_rung)
  self.store:report(self.study, self, step, value, rung)
  self.last_rung = rung or self.last_rung
  self.latest = value
  if value == value and (not self.best or self.sign * value < self.sign * self.best) then self.best = value end
  self.should_end = self.pruner:hopeless {
    step = step, value = value, rung = rung, sign = self.sign, best = self.best or value,
    at_rung = function(r) return self.store:at_rung(self.study, r) end,
    at_step = function(s) return self.store:at_step(self.study, s) end,
  }
  return self.should_end
end

--- trial:should_prune(): what the last report() answered.
function Trial:should_prune() return self.should_end or false end

--- return trial:prune(): ends the trial early; its value is the one reported last.
function Trial:prune() return pruned end

--- trial:set(name, value): records a number, string, boolean or a table of them.
function Trial:set(name, value)
  if type(name) ~= "string" then base.fail("set: argument 1 must be a name, got " .. base.kind(name)) end
  if base.is_tensor(value) then value = value:tolist() end
  self.store:set_attribute(self.study, self, name, value)
end

-- ---- running it ----

local function message_of(err)
  if type(err) ~= "string" then
    local meta = debug.getmetatable(err)
    err = meta and meta.__tostring and tostring(err) or ("(error object is a %s value)"):format(type(err))
  end
  if err == base.interrupted then return { text = err, interrupted = true } end
  -- The stack of the objective: what lies below it is the machinery of the sweep.
  local text = debug.traceback(err, 2):gsub("\n[^\n]*sweep/trial%.lua:.*$", "")
  text = text:gsub("\nstack traceback:\n%s*%[C%]: in function 'error'$", ""):gsub("\nstack traceback:$", "")
  return { text = text }
end

-- Copies: the objective may change what it gets.
local function copy(params)
  local c = {}
  for name, v in pairs(params) do c[name] = v end
  return c
end

local function call(objective, t)
  local result = objective(copy(t.params), t)
  if result == pruned then return "pruned", t.latest end
  local value = number_of(result, "the objective's result")
  if value ~= value then error("the objective's result is nan", 0) end
  return "complete", value
end

--- Runs the objective and records how it went. Returns the state the trial has now ("waiting": it broke, and will be
--- tried again), its value or error text, and whether Ctrl-C ended the whole sweep.
function trial.run(t, objective, retries)
  base.tl.manual_seed(t.seed % 2 ^ 48)
  math.randomseed(random.hash(t.seed, "math") % 2 ^ 31)
  local ok, state, value = xpcall(call, message_of, objective, t)
  if ok then
    t.store:finish(t.study, t, state, value)
    return state, value
  end
  local broken = state
  if broken.interrupted and not t.apart then -- Ctrl-C is for the sweep: the trial will be run again
    t.store:release(t.study, t)
    return "waiting", broken.text, true
  end
  return t.store:fail(t.study, t, broken.text, retries) or "failed", broken.text
end

-- ---- the process of one trial ----

--- Runs the trial that this process was started for (the environment's TLUA_SWEEP_TRIAL), and ends the process.
function trial.work(order, open_store, o)
  if not process.die_with(order.parent) then os.exit(3) end
  local store, study = open_store()
  local t = trial.new(store, study, order.row, o.pruner, order.device)
  t.apart = true
  local ok, message = pcall(trial.run, t, o.objective, o.retries)
  if not ok then io.stderr:write(tostring(message), "\n") end
  io.stdout:flush()
  os.exit(ok and 0 or 3)
end

return trial
