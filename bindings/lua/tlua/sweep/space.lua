-- space.lua: what a parameter can be, and drawing all of them.
--
-- A distribution is a table: kind "float" or "int" with low, high, log, step; kind "choice" with values. A space maps
-- names to distributions, to fixed values, or to functions of the parameters drawn so far (conditional parameters).
local base = require "tlua.base"
local fail = base.fail

local Distribution = {}
Distribution.__index = Distribution

local space = {}

local function make(d) return setmetatable(d, Distribution) end

function space.is_distribution(x) return getmetatable(x) == Distribution end

local function check_range(op, low, high, log)
  for i, x in ipairs { low, high } do
    if type(x) ~= "number" or x ~= x or math.abs(x) == math.huge then
      fail(("%s: argument %d must be a finite number, got %s"):format(op, i, tostring(x)))
    end
  end
  if low == nil or high == nil then fail(op .. ": takes the least and the largest value") end
  if low > high then fail(("%s: the least value %g is above the largest %g"):format(op, low, high)) end
  if log and low <= 0 then fail(("%s: a logarithmic range starts above 0, got %g"):format(op, low)) end
end

local function check_step(op, step)
  if type(step) ~= "number" or not (step > 0 and step < math.huge) then
    fail(("%s: the step must be a number above 0, got %s"):format(op, tostring(step)))
  end
end

-- ---- making them ----

--- Evenly in [low, high].
function space.uniform(low, high)
  check_range("uniform", low, high)
  return make { kind = "float", low = low, high = high }
end

--- Evenly in the logarithm of [low, high].
function space.loguniform(low, high)
  check_range("loguniform", low, high, true)
  return make { kind = "float", low = low, high = high, log = true }
end

-- The largest low + k * step within high; a hair's breadth above counts as within.
local function last_step(low, high, step) return low + math.floor((high - low) / step + 1e-9) * step end

--- One of low, low + step, low + 2 step, ... up to high.
function space.quniform(low, high, step)
  check_range("quniform", low, high)
  check_step("quniform", step)
  return make { kind = "float", low = low, high = last_step(low, high, step), step = step }
end

--- Those of quniform, evenly in the logarithm.
function space.qloguniform(low, high, step)
  check_range("qloguniform", low, high, true)
  check_step("qloguniform", step)
  return make { kind = "float", low = low, high = last_step(low, high, step), step = step, log = true }
end

local function integers(op, low, high, step, log)
  check_range(op, low, high, log)
  step = step == nil and 1 or step
  check_step(op, step)
  for _, x in ipairs { low, high, step } do
    if x ~= math.floor(x) then fail(("%s: takes whole numbers, got %g"):format(op, x)) end
  end
  return make { kind = "int", low = low, high = last_step(low, high, step), step = step, log = log }
end

--- A whole number from low to high, both included; with a step: low, low + step, ...
function space.int(low, high, step) return integers("int", low, high, step) end

--- A whole number, evenly in the logarithm.
function space.logint(low, high) return integers("logint", low, high, 1, true) end

--- One of a list of numbers, strings and booleans.
function space.choice(values)
  if type(values) ~= "table" or #values == 0 then fail("choice: takes a list of values") end
  local seen, list = {}, {}
  for i, v in ipairs(values) do
    local kind = type(v)
    if (kind ~= "number" and kind ~= "string" and kind ~= "boolean") or v ~= v then
      fail(("choice: value %d must be a number, a string or a boolean, got %s"):format(i, base.kind(v)))
    end
    if seen[v] then fail(("choice: %s is there twice"):format(tostring(v))) end
    seen[v], list[i] = true, v
  end
  return make { kind = "choice", values = list }
end

-- ---- using one ----

--- Is v a value of this distribution?
function Distribution:contains(v)
  if self.kind == "choice" then return self:position(v) ~= nil end
  return type(v) == "number" and v >= self.low and v <= self.high
end

--- The place of v among a choice's values; nil if it is none.
function Distribution:position(v)
  for i, x in ipairs(self.values) do
    if x == v then return i end
  end
end

--- The range in which samplers work: logarithms where the range is logarithmic; half a step more at either end where
--- there are steps.
function Distribution:inner_range()
  local low, high = self.low, self.high
  if self.step and low < high then
    low, high = self.log and math.max(low - self.step / 2, low / 2) or low - self.step / 2, high + self.step / 2
  end
  if self.log then return math.log(low), math.log(high) end
  return low, high
end

--- The number at x of the inner range: rounded to a step, within the bounds.
function Distribution:outer(x)
  if self.log then x = math.exp(x) end
  if self.step then x = self.low + math.floor((x - self.low) / self.step + 0.5) * self.step end
  return math.min(math.max(x, self.low), self.high)
end

--- Where the number v lies in the inner range.
function Distribution:inner(v) return self.log and math.log(v) or v end

--- The value at u, 0 <= u < 1, so that evenly spread u follow the distribution.
function Distribution:at(u)
  if self.kind == "choice" then return self.values[math.floor(u * #self.values) + 1] end
  local low, high = self:inner_range()
  return self:outer(low + u * (high - low))
end

--- Its values for a grid; a continuous range gives `points` of them, evenly spaced from end to end.
function Distribution:grid(points)
  if self.kind == "choice" then return self.values end
  local list = {}
  if self.step and not self.log then
    for i = 0, math.floor((self.high - self.low) / self.step + 0.5) do list[i + 1] = self.low + i * self.step end
    return list
  end
  local low, high = self:inner(self.low), self:inner(self.high)
  local n = low == high and 1 or points
  for i = 1, n do
    local v = self:outer(n == 1 and low or low + (high - low) * ((i - 1) / (n - 1)))
    v = math.min(math.max(tonumber(("%.14g"):format(v)), self.low), self.high) -- 10, not 10.000000000000002
    if v ~= list[#list] then list[#list + 1] = v end
  end
  return list
end

-- ---- whole spaces ----

--- Checks a space and returns its names, sorted.
function space.names(s)
  if type(s) ~= "table" then fail("run: the space is a table of parameters, got " .. base.kind(s)) end
  local names = {}
  for name, d in pairs(s) do
    if type(name) ~= "string" then fail("run: parameters have names, got " .. tostring(name)) end
    local kind = type(d)
    if not space.is_distribution(d) and kind ~= "function" and kind ~= "number" and kind ~= "string"
      and kind ~= "boolean" then
      fail(("run: parameter '%s' must be a distribution, a value or a function, got %s"):format(name, base.kind(d)))
    end
    names[#names + 1] = name
  end
  table.sort(names)
  return names
end

--- Draws every parameter: pick(name, distribution, params) chooses a value. In the order of names; a function that asks
--- for a parameter that is yet to be drawn gets it drawn first.
function space.draw(s, pick)
  local params, state = {}, {}
  local resolve

  local seen = setmetatable({}, {
    __index = function(_, name)
      if s[name] == nil then
        error(("the space has no parameter '%s'%s"):format(tostring(name), base.suggestion(tostring(name), s)), 2)
      end
      return resolve(name)
    end,
    __newindex = function() error("a conditional parameter must not change others", 2) end,
  })

  function resolve(name)
    if state[name] == "drawn" then return params[name] end
    if state[name] then fail(("run: parameter '%s' depends on itself"):format(name)) end
    state[name] = "being drawn"
    local d = s[name]
    if type(d) == "function" then d = d(seen) end
    if space.is_distribution(d) then
      d = pick(name, d, params)
    elseif type(d) == "table" or type(d) == "function" then
      fail(("run: parameter '%s' must be a distribution or a value, got %s"):format(name, base.kind(d)))
    end
    params[name], state[name] = d, "drawn"
    return d
  end

  for _, name in ipairs(space.names(s)) do resolve(name) end
  return params
end

--- What a space looks like, for the record: name -> { kind=, low=, ... }; functions are { kind = "function" }.
function space.describe(s)
  local described = {}
  for name, d in pairs(s) do
    if space.is_distribution(d) then
      described[name] = { kind = d.kind, low = d.low, high = d.high, log = d.log, step = d.step, values = d.values }
    elseif type(d) == "function" then
      described[name] = { kind = "function" }
    else
      described[name] = { kind = "choice", values = { d } }
    end
  end
  return described
end

return space
