-- pruners.lua: which trials end early.
--
-- A pruner looks at the values that a trial reports. rung(self, trial, step, last_rung) says whether this report
-- reaches a rung (a whole number above last_rung, or nil); hopeless(self, view) -> boolean decides. `view` has step,
-- value, rung (nil between rungs), sign (1 when minimizing, else -1), best (the best value so far) and two questions
-- to the storage: at_rung(rung): the values that all trials reported there; at_step(step): those of complete trials at
-- that step.
local base = require "tlua.base"
local random = require "tlua.sweep.random"

local pruners = {}

local function whole(op, options, name, least)
  local x = options[name]
  if x ~= math.floor(x) or x < least then
    base.fail(("%s: %s is a whole number from %d, got %g"):format(op, name, least, x))
  end
end

-- Better first; nan is worse than everything.
local function ascending(values, sign)
  local list = {}
  for i, v in ipairs(values) do list[i] = v == v and sign * v or math.huge end
  table.sort(list)
  return list
end

-- ---- Median ----

local Median = {}
Median.__index = Median

function Median:rung() return nil end

function Median:hopeless(view)
  if view.step < self.warmup or (view.step - self.warmup) % self.interval ~= 0 then return false end
  local others = ascending(view.at_step(view.step), view.sign)
  if #others < self.startup then return false end
  local middle = math.floor(#others / 2)
  local median = #others % 2 == 1 and others[middle + 1] or (others[middle] + others[middle + 1]) / 2
  return not (view.sign * view.best <= median)
end

--- Median{startup=5, warmup=0, interval=1}: ends a trial whose best value so far is worse than the median of what
--- complete trials had at the same step, once there are `startup` of these; not before step `warmup`, and then at every
--- `interval`-th step.
function pruners.Median(options)
  local o = base.options("Median", options, { startup = 5, warmup = 0, interval = 1 })
  whole("Median", o, "startup", 1)
  whole("Median", o, "warmup", 0)
  whole("Median", o, "interval", 1)
  o.name = "Median"
  return setmetatable(o, Median)
end

-- ---- ASHA ----

local ASHA = {}
ASHA.__index = ASHA

local function rungs(grace, eta, max_steps)
  local list, step = {}, grace
  while step < max_steps do
    list[#list + 1] = step
    step = step * eta
  end
  return list
end

-- The highest rung that `step` reaches.
local function reached(list, step)
  local rung
  for i, at in ipairs(list) do
    if step >= at then rung = i end
  end
  return rung
end

function ASHA:rung(_, step, last)
  local rung = reached(self.rungs, step)
  return rung and rung > last and rung or nil
end

-- Is the value outside the best 1/eta of those at its rung (it is among them)?
local function outside(view, eta)
  local values = ascending(view.at_rung(view.rung), view.sign)
  local last = values[math.max(1, math.floor(#values / eta))]
  return last ~= nil and not (view.sign * view.value <= last)
end

function ASHA:hopeless(view) return view.rung ~= nil and outside(view, self.eta) end

local function halving(op, options)
  local o = base.options(op, options, { grace = 1, eta = 3, max_steps = base.optional })
  whole(op, o, "grace", 1)
  whole(op, o, "eta", 2)
  if o.max_steps == nil then base.fail(op .. ": needs max_steps, the steps of a trial that is not ended early") end
  whole(op, o, "max_steps", 1)
  o.name = op
  return o
end

--- ASHA{grace=1, eta=3, max_steps=N}: asynchronous successive halving (Li et al. 2020): at steps grace, grace*eta,
--- grace*eta^2, ... a trial goes on if it is among the best 1/eta of all that came so far.
function pruners.ASHA(options)
  local o = halving("ASHA", options)
  o.rungs = rungs(o.grace, o.eta, o.max_steps)
  return setmetatable(o, ASHA)
end

-- ---- Hyperband ----

local Hyperband = {}
Hyperband.__index = Hyperband

-- The bracket of a trial: by chance, in proportion to the number of trials that Hyperband gives it.
local function bracket_of(self, trial)
  return random.stream(trial.study_seed, "bracket", trial.number):pick(self.shares)
end

-- Rungs of different brackets have different numbers: trials compete within a bracket.
local ROOM = 100

function Hyperband:rung(trial, step, last)
  local bracket = bracket_of(self, trial)
  local rung = reached(self.brackets[bracket], step)
  rung = rung and rung + ROOM * bracket
  return rung and rung > last and rung or nil
end

function Hyperband:hopeless(view) return view.rung ~= nil and outside(view, self.eta) end

--- Hyperband{grace=1, eta=3, max_steps=N}: ASHA in several brackets (Li et al. 2018), which differ in how early they
--- end trials: bracket b starts at grace * eta^b.
function pruners.Hyperband(options)
  local o = halving("Hyperband", options)
  o.brackets, o.shares = {}, {}
  local all = rungs(o.grace, o.eta, o.max_steps)
  local most = #all
  for b = 0, most do
    o.brackets[b + 1] = rungs(o.grace * o.eta ^ b, o.eta, o.max_steps)
    -- ceil((s_max + 1) / (s + 1) * eta^s) with s = the number of halvings in this bracket
    o.shares[b + 1] = math.ceil((most + 1) / (most - b + 1) * o.eta ^ (most - b))
  end
  return setmetatable(o, Hyperband)
end

-- ---- none ----

local None = {}
None.__index = None

function None:rung() return nil end
function None:hopeless() return false end

--- none: every trial runs to its end.
pruners.none = setmetatable({ name = "none" }, None)

return pruners
