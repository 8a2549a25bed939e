-- samplers.lua: Random, Grid and Sobol. TPE is in tpe.lua.
--
-- A sampler has suggest(self, ask) -> params, and may have limit(self, space): how many trials there are at most. `ask`
-- is what it may know: space, seed (of the study), slot (0, 1, 2, ... : the how-manieth sampled trial this is), number
-- (of the trial), direction, and history(): the trials that were started before, in order of number. It must depend on
-- nothing else, so that any process can draw for any trial.
local base = require "tlua.base"
local random = require "tlua.sweep.random"
local space = require "tlua.sweep.space"
local sobol = require "tlua.sweep.sobol"

local samplers = {}

-- ---- Random ----

local Random = {}
Random.__index = Random

function Random:suggest(ask)
  local stream = random.stream(ask.seed, "random", ask.slot)
  return space.draw(ask.space, function(_, d) return d:at(stream:uniform()) end)
end

--- Random{seed=}: every trial independent of all others.
function samplers.Random(options)
  local o = base.options("Random", options, { seed = base.optional })
  return setmetatable({ name = "Random", seed = o.seed }, Random)
end

-- ---- Grid ----

local Grid = {}
Grid.__index = Grid

-- Enumerates the whole space: draws again and again, each time with the last open choice moved on by one (an odometer
-- whose wheels may depend on the wheels before them: conditional parameters).
local function enumerate(s, points)
  local list, wheels = {}, {}
  repeat
    local depth = 0
    list[#list + 1] = space.draw(s, function(name, d)
      depth = depth + 1
      local wheel = wheels[depth]
      if not wheel then
        wheel = { at = 1, values = d:grid(points[name] or points.all) }
        wheels[depth] = wheel
      end
      return wheel.values[wheel.at]
    end)
    while #wheels > 0 do
      local last = wheels[#wheels]
      last.at = last.at + 1
      if last.at <= #last.values then break end
      wheels[#wheels] = nil
    end
  until #wheels == 0
  return list
end

local function points_of(self, s)
  if self.space ~= s then self.space, self.list = s, enumerate(s, self.points) end
  return self.list
end

function Grid:limit(s) return #points_of(self, s) end

function Grid:suggest(ask)
  local point = points_of(self, ask.space)[ask.slot + 1]
  local copy = {}
  for name, v in pairs(point) do copy[name] = v end
  return copy
end

--- Grid{points=5}: every combination once. A continuous range gives `points` values, evenly spaced; points={lr=3,
--- all=5} sets them one by one.
function samplers.Grid(options)
  local o = base.options("Grid", options, { points = base.optional, seed = base.optional })
  local points = o.points or 5
  if type(points) == "number" then points = { all = points } end
  if type(points) ~= "table" then base.fail("Grid: points is a number or a table of numbers") end
  local complete = { all = 5 }
  for name, n in pairs(points) do
    base.check_integer(n, "Grid", "the number of points")
    if n < 1 then base.fail("Grid: needs at least one point, got " .. n) end
    complete[name] = n
  end
  return setmetatable({ name = "Grid", points = complete, seed = o.seed }, Grid)
end

-- ---- Sobol ----

local Sobol = {}
Sobol.__index = Sobol

function Sobol:suggest(ask)
  local dims = {}
  for i, name in ipairs(space.names(ask.space)) do dims[name] = i end
  return space.draw(ask.space, function(name, d)
    if dims[name] > sobol.dims then
      base.fail(("Sobol: at most %d parameters, the space has more"):format(sobol.dims))
    end
    return d:at(sobol.point(ask.slot, dims[name], ask.seed))
  end)
end

--- Sobol{seed=}: a scrambled Sobol sequence: fills the space more evenly than Random.
function samplers.Sobol(options)
  local o = base.options("Sobol", options, { seed = base.optional })
  return setmetatable({ name = "Sobol", seed = o.seed }, Sobol)
end

return samplers
