-- schedule.lua: prune.schedule: how sparse a model shall be at which step of its training.
local base = require "tlua.base"
local registry = require "tlua.nn.registry"
local masks = require "tlua.nn.prune.masks"
local C, check, fail = base.C, base.check, base.fail

local Cubic = {}
Cubic.__index = Cubic

--- The sparsity that is wanted at step t (the first step is 1): initial up to start, then
--- final + (initial - final) * (1 - (t - start) / (stop - start))^3, final from stop on.
function Cubic:at(t)
  if t <= self.start then return self.initial end
  if t >= self.stop then return self.final end
  return self.final + (self.initial - self.final) * (1 - (t - self.start) / (self.stop - self.start)) ^ 3
end

-- Is step t one at which weights are pruned?
local function is_due(self, t)
  if t < self.start or t > self.stop then return false end
  return t == self.stop or (t - self.start) % self.every == 0
end

-- How many weights, or channels of dim, a parameter has, and how many of them are pruned.
local function counts(m, name, dim)
  local p, mask = masks.original(m, name), masks.current(m, name)
  local total = dim and C.tl_size(p, dim - 1) or C.tl_numel(p)
  if not mask then return total, 0 end
  local standing = mask:ne(0)
  if dim then
    local others = {}
    for d = 1, C.tl_ndim(p) do if d ~= dim then others[#others + 1] = d end end
    standing = standing:any(others)
  end
  return total, total - standing:sum():item()
end

local function prune_to(self, m, name, sparsity)
  local prune = require "tlua.nn.prune"
  local structured = self.method == prune.ln_structured or self.method == prune.random_structured
  local total, gone = counts(m, name, structured and (self.dim or 1) or nil)
  check(C.tl_prune_count(sparsity, total, base.number))
  local more = base.number[0] - gone
  if more > 0 then self.method(m, name, { count = more, dim = structured and self.dim or nil, n = self.n }) end
end

--- schedule:step(parameters): counts one training step; at every `every`-th one from start to stop, and at stop, prunes
--- the parameters, a list of {module, name}, to what at() says of each of them. Returns that sparsity when it pruned,
--- else nil.
function Cubic:step(list)
  if type(list) ~= "table" or registry.is_module(list) then
    fail('schedule:step: argument 1 must be a list of {module, name}, as in schedule:step{{layer, "weight"}}')
  end
  for _, pair in ipairs(list) do
    if type(pair) ~= "table" then
      fail("schedule:step: the list holds {module, name} pairs, got " .. base.kind(pair))
    end
    masks.check_parameter(pair[1], pair[2], "schedule:step", 'schedule:step{{layer, "weight"}}')
  end
  self.last_step = self.last_step + 1
  if not is_due(self, self.last_step) then return nil end
  local sparsity = self:at(self.last_step)
  for _, pair in ipairs(list) do prune_to(self, pair[1], pair[2], sparsity) end
  return sparsity
end

function Cubic:state_dict() return { last_step = self.last_step } end

function Cubic:load_state_dict(state)
  if type(state) ~= "table" or type(state.last_step) ~= "number" then
    fail("load_state_dict: not the state of a schedule")
  end
  self.last_step = state.last_step
end

local schedule = {}

local function fraction(o, key)
  if not (o[key] >= 0 and o[key] <= 1) then
    fail(("schedule.cubic: %s is a sparsity from 0 to 1, got %g"):format(key, o[key]))
  end
end

--- cubic{start=0, stop=, final=, every=1, initial=0, method=prune.l1_unstructured}: gradual pruning (Zhu & Gupta 2017):
--- fast at first, while there is much to spare, and slower towards the end. dim and n go to ln_structured.
function schedule.cubic(options)
  local o = base.options("schedule.cubic", options, {
    start = 0, stop = base.optional, final = base.optional, every = 1, initial = 0, method = base.optional,
    dim = base.optional, n = base.optional,
  })
  for _, key in ipairs { "start", "stop", "every" } do base.check_integer(o[key], "schedule.cubic", key) end
  base.check_number(o.final, "schedule.cubic", "final")
  fraction(o, "final")
  fraction(o, "initial")
  if o.every < 1 then fail(("schedule.cubic: every must be at least 1, got %d"):format(o.every)) end
  if o.start < 0 or o.stop <= o.start then
    fail(("schedule.cubic: needs 0 <= start < stop, got %d and %d"):format(o.start, o.stop))
  end
  o.method, o.last_step = o.method or require("tlua.nn.prune").l1_unstructured, 0
  if type(o.method) ~= "function" then fail("schedule.cubic: method is a pruning such as prune.l1_unstructured") end
  return setmetatable(o, Cubic)
end

return schedule
