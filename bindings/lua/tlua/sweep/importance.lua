-- importance.lua: how much each parameter matters: functional analysis of variance on a random forest (fANOVA; Hutter,
-- Hoos, Leyton-Brown 2014). A parameter's importance is the share of the forest's variance that it explains alone.
local random = require "tlua.sweep.random"

local TREES, LEAF, DEPTH, ROWS = 64, 3, 16, 400

-- ---- parameters as numbers in [0, 1] ----

-- From what the trials have: numbers by their range (of logarithms, if the space says so), all else by its place in a
-- list. Trials that lack the parameter get a region of their own, as wide as their share.
local function scale_of(list, name, described)
  local numbers, places, n, low, high, absent = true, {}, 0, math.huge, -math.huge, 0
  for _, t in ipairs(list) do
    local v = t.params[name]
    if v == nil then
      absent = absent + 1
    else
      if not places[v] then places[v], n = n, n + 1 end
      if type(v) ~= "number" then numbers = false else low, high = math.min(low, v), math.max(high, v) end
    end
  end
  local d = described and described[name] or {}
  local log = d.log and low > 0
  local from = absent / #list
  local numeric = numbers and d.kind ~= "choice" and low < high
  if log then low, high = math.log(low), math.log(high) end
  return function(v)
    local u
    if v == nil then return from / 2 end
    if numeric then
      u = ((log and math.log(v) or v) - low) / (high - low)
    else
      u = (places[v] + 0.5) / n
    end
    return from + (1 - from) * u
  end
end

-- ---- one tree ----

-- The best split of rows[first .. last] along dim: threshold and how much the sum of squares falls.
local function best_split(rows, first, last, dim)
  table.sort(rows, function(a, b) return a[dim] < b[dim] end)
  local total, n = 0, #rows
  for i = 1, n do total = total + rows[i].y end
  local left, gain, at = 0, 0, nil
  for i = 1, n - 1 do
    left = left + rows[i].y
    if i >= first and i <= last and rows[i][dim] < rows[i + 1][dim] then
      local g = left * left / i + (total - left) ^ 2 / (n - i) - total * total / n
      if g > gain then gain, at = g, (rows[i][dim] + rows[i + 1][dim]) / 2 end
    end
  end
  return at, gain
end

-- Grows the tree below a box (low, high for each dim); adds its leaves to `leaves`.
local function grow(rows, low, high, depth, stream, leaves)
  local n, dims = #rows, #low
  local best_gain, best_at, best_dim = 1e-12, nil, nil
  if n >= 2 * LEAF and depth < DEPTH then
    for dim = 1, dims do
      -- a part of the parameters at each split, so that the trees differ
      if dims < 3 or stream:uniform() < 0.7 then
        local at, gain = best_split(rows, LEAF, n - LEAF, dim)
        if at and gain > best_gain then best_gain, best_at, best_dim = gain, at, dim end
      end
    end
  end
  if not best_dim then
    local sum = 0
    for _, row in ipairs(rows) do sum = sum + row.y end
    leaves[#leaves + 1] = { low = low, high = high, value = sum / n }
    return
  end
  local left, right = {}, {}
  for _, row in ipairs(rows) do
    local side = row[best_dim] < best_at and left or right
    side[#side + 1] = row
  end
  local middle_high, middle_low = { unpack(high) }, { unpack(low) }
  middle_high[best_dim], middle_low[best_dim] = best_at, best_at
  grow(left, low, middle_high, depth + 1, stream, leaves)
  grow(right, middle_low, high, depth + 1, stream, leaves)
end

local function volume(leaf, without)
  local v = 1
  for dim = 1, #leaf.low do
    if dim ~= without then v = v * (leaf.high[dim] - leaf.low[dim]) end
  end
  return v
end

-- The variance of the tree's mean over all other parameters, as a function of this one.
local function marginal_variance(leaves, dim, mean)
  local cuts = { 0, 1 }
  for _, leaf in ipairs(leaves) do
    cuts[#cuts + 1] = leaf.low[dim]
    cuts[#cuts + 1] = leaf.high[dim]
  end
  table.sort(cuts)
  local variance = 0
  for i = 1, #cuts - 1 do
    local width = cuts[i + 1] - cuts[i]
    if width > 0 then
      local middle, marginal = (cuts[i] + cuts[i + 1]) / 2, 0
      for _, leaf in ipairs(leaves) do
        if leaf.low[dim] <= middle and middle < leaf.high[dim] then
          marginal = marginal + leaf.value * volume(leaf, dim)
        end
      end
      variance = variance + width * (marginal - mean) ^ 2
    end
  end
  return variance
end

-- Best first; pruned trials after the complete ones, those that came further first.
local function order(sign)
  return function(a, b)
    if a.state ~= b.state then return a.state == "complete" end
    if a.state == "pruned" and a.step ~= b.step then return (a.step or 0) > (b.step or 0) end
    if a.value ~= b.value then return sign * a.value < sign * b.value end
    return a.number < b.number
  end
end

--- trials: of a study that is there to `direction`; names: of parameters; described: the space's record. Returns
--- name -> importance, which sum to 1; nil if the values do not differ or fewer than 8 trials have one.
return function(trials, names, described, direction)
  local list = {}
  for _, t in ipairs(trials) do
    local over = t.state == "complete" or t.state == "pruned"
    if over and t.value and t.value == t.value and math.abs(t.value) < math.huge then list[#list + 1] = t end
  end
  if #list < 8 or #names == 0 then return nil end
  local scales, data = {}, {}
  for d, name in ipairs(names) do scales[d] = scale_of(list, name, described) end
  -- Ranks, not values: one trial that diverged shall not be all there is to explain.
  table.sort(list, order(direction == "minimize" and 1 or -1))
  if list[1].value == list[#list].value then return nil end
  local rank = 0
  for i, t in ipairs(list) do
    if i == 1 or t.value ~= list[i - 1].value then rank = i end
    local row = { y = rank / #list }
    for d, name in ipairs(names) do row[d] = scales[d](t.params[name]) end
    data[i] = row
  end
  local sums, total = {}, 0
  for d = 1, #names do sums[d] = 0 end
  for tree = 1, TREES do
    local stream, rows, leaves, low, high = random.stream("forest", tree), {}, {}, {}, {}
    for i = 1, math.min(#data, ROWS) do rows[i] = data[stream:integer(#data) + 1] end
    for d = 1, #names do low[d], high[d] = 0, 1 end
    grow(rows, low, high, 0, stream, leaves)
    local mean, variance = 0, 0
    for _, leaf in ipairs(leaves) do mean = mean + leaf.value * volume(leaf) end
    for _, leaf in ipairs(leaves) do variance = variance + volume(leaf) * (leaf.value - mean) ^ 2 end
    if variance > 0 then
      for d = 1, #names do sums[d] = sums[d] + marginal_variance(leaves, d, mean) / variance end
    end
  end
  for d = 1, #names do total = total + sums[d] end
  if total == 0 then return nil end
  local importance = {}
  for d, name in ipairs(names) do importance[name] = sums[d] / total end
  return importance
end
