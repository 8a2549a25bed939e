-- tpe.lua: the tree-structured Parzen estimator (Bergstra et al. 2011), multivariate (Falkner et al. 2018), with the
-- rules of Optuna 5: the best ceil(n / 10) trials, at most 25, are "good"; the value chosen is, of 24 drawn from the
-- density of the good ones, the one where that density exceeds the density of the others most. Trials that are running
-- count as bad ones (constant liar), which keeps parallel workers apart.
local base = require "tlua.base"
local ffi = require "ffi"
local random = require "tlua.sweep.random"
local space = require "tlua.sweep.space"
local sobol = require "tlua.sweep.sobol"

ffi.cdef [[
double tlua_sweep_erf(double) __asm__("erf");
]]

local erf, exp, log, sqrt, floor = ffi.C.tlua_sweep_erf, math.exp, math.log, math.sqrt, math.floor

local function normal_cdf(z) return 0.5 + 0.5 * erf(z * sqrt(0.5)) end

-- ---- the densities of one parameter: one kernel for each observation, and a broad one for what is not known ----

local Numbers = {}
Numbers.__index = Numbers

-- The width of a kernel: the larger gap to its neighbours, within limits. (The outermost look inwards only.) The lower
-- limit is half of Optuna's: with it, the best value of Branin's function after 20 to 100 trials is nearer to the
-- minimum, that of Hartmann's in six dimensions as near (tests/sweep/quality.lua).
local function widths(mus, low, high)
  local n, order, sigmas = #mus, {}, {}
  for i = 1, n do order[i] = i end
  table.sort(order, function(a, b)
    if mus[a] ~= mus[b] then return mus[a] < mus[b] end
    return a < b
  end)
  local range = high - low
  local least = range / math.min(100, 2 * (n + 2))
  for k = 1, n do
    local left = k > 1 and mus[order[k]] - mus[order[k - 1]] or mus[order[k]] - low
    local right = k < n and mus[order[k + 1]] - mus[order[k]] or high - mus[order[k]]
    local sigma = math.max(left, right)
    if n > 1 and k == 1 then sigma = right elseif n > 1 and k == n then sigma = left end
    sigmas[order[k]] = math.min(math.max(sigma, least), range)
  end
  return sigmas
end

--- Kernels at `values` in distribution d; the last one is the prior.
function Numbers.new(d, values)
  local low, high = d:inner_range()
  local mus = {}
  for i, v in ipairs(values) do mus[i] = d:inner(v) end
  local sigmas = widths(mus, low, high)
  mus[#mus + 1], sigmas[#sigmas + 1] = (low + high) / 2, high - low
  local scale = {} -- log of 1 / (sigma * mass within the bounds), less the constant of the normal density
  for i = 1, #mus do
    local mass = normal_cdf((high - mus[i]) / sigmas[i]) - normal_cdf((low - mus[i]) / sigmas[i])
    scale[i] = -log(d.step and mass or sigmas[i] * sqrt(2 * math.pi) * mass)
  end
  return setmetatable({ d = d, low = low, high = high, mus = mus, sigmas = sigmas, scale = scale }, Numbers)
end

--- Draws from kernel k. Rejection: the centre is within the bounds, a kernel no wider than they are.
function Numbers:draw(stream, k)
  local mu, sigma = self.mus[k], self.sigmas[k]
  while true do
    local x = mu + sigma * stream:normal()
    if x >= self.low and x <= self.high then return self.d:outer(x) end
  end
end

--- Adds the log density of v under each kernel to sums[].
function Numbers:add_log_density(v, sums)
  local d, mus, sigmas, scale = self.d, self.mus, self.sigmas, self.scale
  if d.step then -- the mass of the interval that rounds to v
    local low, high = v - d.step / 2, v + d.step / 2
    if d.log then low, high = log(math.max(low, d.low / 2)), log(high) end
    for k = 1, #mus do
      local mass = normal_cdf((high - mus[k]) / sigmas[k]) - normal_cdf((low - mus[k]) / sigmas[k])
      sums[k] = sums[k] + log(math.max(mass, 1e-300)) + scale[k]
    end
  else
    local x = d:inner(v)
    for k = 1, #mus do
      local z = (x - mus[k]) / sigmas[k]
      sums[k] = sums[k] - 0.5 * z * z + scale[k]
    end
  end
end

local Choices = {}
Choices.__index = Choices

function Choices.new(d, values)
  local n, rows = #values + 1, {}
  for i = 1, n do
    local row, at = {}, values[i] ~= nil and d:position(values[i])
    local total = #d.values / n + (at and 1 or 0)
    for c = 1, #d.values do row[c] = (1 / n + (c == at and 1 or 0)) / total end
    rows[i] = row
  end
  return setmetatable({ d = d, rows = rows }, Choices)
end

function Choices:draw(stream, k) return self.d.values[stream:pick(self.rows[k])] end

function Choices:add_log_density(v, sums)
  local at = self.d:position(v)
  for k, row in ipairs(self.rows) do sums[k] = sums[k] + log(row[at]) end
end

-- ---- the joint density: a mixture of products ----

-- Old observations fade: all but the latest 25 have falling weights.
local function weights_of(n)
  local weights = {}
  for i = 1, n do
    weights[i] = 1
    if i <= n - 25 then weights[i] = n - 25 == 1 and 1 / n or 1 / n + (1 - 1 / n) * (i - 1) / (n - 26) end
  end
  weights[n + 1] = 1 -- the prior
  return weights
end

local Mixture = {}
Mixture.__index = Mixture

--- names, dists: the parameters; trials: those that have all of them.
function Mixture.new(names, dists, trials)
  local self = { weights = weights_of(#trials), marginals = {}, names = names, sums = {} }
  local total = 0
  for _, w in ipairs(self.weights) do total = total + w end
  self.log_weights = {}
  for i, w in ipairs(self.weights) do self.log_weights[i] = log(w / total) end
  for _, name in ipairs(names) do
    local values = {}
    for i, t in ipairs(trials) do values[i] = t.params[name] end
    self.marginals[name] = (dists[name].kind == "choice" and Choices or Numbers).new(dists[name], values)
  end
  return setmetatable(self, Mixture)
end

function Mixture:draw(stream)
  local k, params = stream:pick(self.weights), {}
  for _, name in ipairs(self.names) do params[name] = self.marginals[name]:draw(stream, k) end
  return params
end

function Mixture:log_density(params)
  local sums = self.sums
  for k, w in ipairs(self.log_weights) do sums[k] = w end
  for _, name in ipairs(self.names) do self.marginals[name]:add_log_density(params[name], sums) end
  local largest, total = -math.huge, 0
  for k = 1, #sums do largest = math.max(largest, sums[k]) end
  for k = 1, #sums do total = total + exp(sums[k] - largest) end
  return largest + log(total)
end

-- ---- good and bad trials ----

-- Best first: complete ones by value, then pruned ones, those that came further first. Running ones are not compared.
local function better(sign)
  return function(a, b)
    if a.state ~= b.state then return a.state == "complete" end
    if a.state == "pruned" and a.step ~= b.step then return (a.step or -1) > (b.step or -1) end
    local va, vb = sign * (a.value or math.huge), sign * (b.value or math.huge)
    if va ~= vb then return va < vb end
    return a.number < b.number
  end
end

--- history -> good, bad (each in order of number), how many are finished.
local function split(history, direction)
  local finished, good, bad, is_good = {}, {}, {}, {}
  for _, t in ipairs(history) do
    if t.state == "complete" or t.state == "pruned" then finished[#finished + 1] = t end
  end
  table.sort(finished, better(direction == "minimize" and 1 or -1))
  for i = 1, math.min(math.ceil(0.1 * #finished), 25) do is_good[finished[i]] = true end
  for _, t in ipairs(history) do
    if is_good[t] then good[#good + 1] = t
    elseif t.state ~= "failed" and t.params then bad[#bad + 1] = t end
  end
  return good, bad, #finished
end

-- Those that have all these parameters, with values that the distributions know.
local function with(trials, names, dists)
  local list = {}
  for _, t in ipairs(trials) do
    local all = true
    for _, name in ipairs(names) do
      local v = t.params[name]
      if v == nil or not dists[name]:contains(v) then all = false end
    end
    if all then list[#list + 1] = t end
  end
  return list
end

-- ---- the sampler ----

local TPE = {}
TPE.__index = TPE

local function point_of(params, names)
  local values = {}
  for i, name in ipairs(names) do values[i] = tostring(params[name]) end
  return table.concat(values, "\n")
end

-- The points that were tried, in a space that has steps and choices only.
local function tried(trials, names)
  local points = {}
  for _, list in ipairs(trials) do
    for _, t in ipairs(list) do points[point_of(t.params, names)] = true end
  end
  return points
end

-- Does the space have nothing but these parameters and fixed values, and all of them steps or choices?
local function is_discrete(s, dists)
  for name, d in pairs(s) do
    if type(d) == "function" then return false end
    if dists[name] and d.kind ~= "choice" and not d.step then return false end
  end
  return true
end

-- The best of the candidates; one at a point of `points` only if all are.
local function best_of(self, stream, good, bad, names, dists, points)
  local l = Mixture.new(names, dists, with(good, names, dists))
  local g = Mixture.new(names, dists, with(bad, names, dists))
  local best, best_gain, best_known
  for _ = 1, self.candidates do
    local params = l:draw(stream)
    local gain = l:log_density(params) - g:log_density(params)
    local known = points and points[point_of(params, names)] or false
    local ahead = not best or (best_known and not known) or (best_known == known and gain > best_gain)
    if ahead then best, best_gain, best_known = params, gain, known end
  end
  return best
end

function TPE:suggest(ask)
  local stream = random.stream(ask.seed, "tpe", ask.slot)
  local good, bad, finished = split(ask.history(), ask.direction)
  if finished < self.startup then
    local place = {}
    for i, name in ipairs(space.names(ask.space)) do place[name] = i end
    return space.draw(ask.space, function(name, d)
      if place[name] > sobol.dims then return d:at(stream:uniform()) end
      return d:at(sobol.point(ask.slot, place[name], ask.seed))
    end)
  end
  local names, dists = {}, {}
  for _, name in ipairs(space.names(ask.space)) do
    local d = ask.space[name]
    if space.is_distribution(d) and (d.low ~= d.high or d.kind == "choice") then
      names[#names + 1], dists[name] = name, d
    end
  end
  local points = is_discrete(ask.space, dists) and tried({ good, bad }, names)
  local joint = #names > 0 and best_of(self, stream, good, bad, names, dists, points) or {}
  return space.draw(ask.space, function(name, d)
    if dists[name] then return joint[name] end
    if d.low == d.high and d.kind ~= "choice" then return d.low end
    return best_of(self, stream, good, bad, { name }, { [name] = d })[name] -- conditional: by itself
  end)
end

--- TPE{seed=, startup=10, candidates=24}: learns from the finished trials where good values lie. The first `startup`
--- trials are points of a scrambled Sobol sequence.
return function(options)
  local o = base.options("TPE", options, { seed = base.optional, startup = 10, candidates = 24 })
  for _, name in ipairs { "startup", "candidates" } do
    if o[name] < 1 or o[name] ~= floor(o[name]) then
      base.fail(("TPE: %s is a whole number from 1, got %g"):format(name, o[name]))
    end
  end
  return setmetatable({ name = "TPE", seed = o.seed, startup = o.startup, candidates = o.candidates }, TPE)
end
