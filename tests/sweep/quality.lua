-- quality.lua: tlua tests/sweep/quality.lua [TRIALS [SEEDS [OPTUNA.txt]]]: the best value after each trial of TPE on
-- Branin's function, on Hartmann's in six dimensions, and on a multilayer perceptron for Fashion-MNIST, whose
-- validation error at every point of a grid is in fashion_table.csv (fashion_table.lua made it). Prints the lines that
-- quality_optuna.py prints or, given the file of these, a table of medians over the seeds.
local sweep = require("tlua").sweep

local trials, seeds, other = tonumber(arg[1] or 100), tonumber(arg[2] or 20), arg[3]

local function branin(x)
  local a, b = x[1], x[2]
  return (b - 5.1 / (4 * math.pi ^ 2) * a * a + 5 / math.pi * a - 6) ^ 2
    + 10 * (1 - 1 / (8 * math.pi)) * math.cos(a) + 10
end

local A = { { 10, 3, 17, 3.5, 1.7, 8 }, { 0.05, 10, 17, 0.1, 8, 14 }, { 3, 3.5, 1.7, 10, 17, 8 },
  { 17, 8, 0.05, 10, 0.1, 14 } }
local P = { { 0.1312, 0.1696, 0.5569, 0.0124, 0.8283, 0.5886 }, { 0.2329, 0.4135, 0.8307, 0.3736, 0.1004, 0.9991 },
  { 0.2348, 0.1451, 0.3522, 0.2883, 0.3047, 0.6650 }, { 0.4047, 0.8828, 0.8732, 0.5743, 0.1091, 0.0381 } }
local weights = { 1, 1.2, 3, 3.2 }

local function hartmann6(x)
  local sum = 0
  for i = 1, 4 do
    local e = 0
    for j = 1, 6 do e = e + A[i][j] * (x[j] - P[i][j]) ^ 2 end
    sum = sum - weights[i] * math.exp(-e)
  end
  return sum
end

local function numbers(n, low, high)
  local space = {}
  for i = 1, n do space["x" .. i] = sweep.uniform(low[i] or low[1], high[i] or high[1]) end
  return space
end

local function of_list(f, n)
  return function(p)
    local x = {}
    for i = 1, n do x[i] = p["x" .. i] end
    return f(x)
  end
end

local function key(p) return ("%g,%d,%d,%g,%s"):format(p.lr, p.width, p.depth, p.dropout, p.optimizer) end

local function read_table()
  local errors = {}
  for line in io.lines((arg[0]:match("^(.*)/[^/]*$") or ".") .. "/fashion_table.csv") do
    local point, value = line:match("^(.*),([%d.]+)$")
    if point then errors[point] = tonumber(value) end
  end
  return errors
end
local errors = read_table()

local functions = {
  { name = "branin", f = of_list(branin, 2), space = numbers(2, { -5, 0 }, { 10, 15 }) },
  { name = "hartmann6", f = of_list(hartmann6, 6), space = numbers(6, { 0 }, { 1 }) },
  {
    name = "fashion", f = function(p) return errors[key(p)] end,
    space = {
      lr = sweep.quniform(-4, -0.5, 0.5), width = sweep.int(5, 7), depth = sweep.int(1, 2),
      dropout = sweep.quniform(0, 0.4, 0.2), optimizer = sweep.choice { "sgd", "adam" },
    },
  },
}

-- The best value after each trial.
local function curve(case, seed)
  local study = sweep.run {
    storage = ":memory:", workers = 0, quiet = true, trials = trials, sampler = sweep.TPE { seed = seed },
    space = case.space, objective = case.f,
  }
  local best, list = math.huge, {}
  for i, t in ipairs(study:trials()) do
    best = math.min(best, t.value)
    list[i] = best
  end
  study:close()
  return list
end

local function read_curves(path)
  local curves = {}
  for line in io.lines(path) do
    local name, rest = line:match("^(%S+) %S+ (.*)$")
    local list = {}
    for word in rest:gmatch("%S+") do list[#list + 1] = tonumber(word) end
    curves[name] = curves[name] or {}
    table.insert(curves[name], list)
  end
  return curves
end

local function quantile(curves, at, q)
  local values = {}
  for i, c in ipairs(curves) do values[i] = c[at] end
  table.sort(values)
  local place = 1 + q * (#values - 1)
  local low = math.floor(place)
  return values[low] + (place - low) * ((values[low + 1] or values[low]) - values[low])
end

local theirs = other and read_curves(other)
if theirs then
  print("| function | trials | tlua: median (quartiles) | Optuna: median (quartiles) |\n|---|---|---|---|")
end
for _, case in ipairs(functions) do
  local curves = {}
  for seed = 0, seeds - 1 do
    curves[seed + 1] = curve(case, seed)
    if not theirs then
      local words = {}
      for i, v in ipairs(curves[seed + 1]) do words[i] = ("%.6g"):format(v) end
      print(case.name, seed, table.concat(words, " "))
    end
  end
  for _, at in ipairs(theirs and { 10, 20, 30, 50, 75, 100, 150, 200 } or {}) do
    if at <= trials and theirs[case.name][1][at] then
      local cells = {}
      for i, list in ipairs { curves, theirs[case.name] } do
        cells[i] = ("%.4f (%.4f, %.4f)"):format(quantile(list, at, 0.5), quantile(list, at, 0.25),
          quantile(list, at, 0.75))
      end
      print(("| %s | %d | %s |"):format(case.name, at, table.concat(cells, " | ")))
    end
  end
end
