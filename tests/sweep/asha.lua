-- asha.lua: tlua tests/sweep/asha.lua [SEEDS [TRIALS [IMAGES [EPOCHS]]]]: a sweep like that of examples/sweep.lua, once
-- without a pruner, once with ASHA and a third of the epochs: the best validation error of each, and the test error of
-- that trial (the best of more complete trials is also the luckiest of more; the test images do not know that).
local tl = require "tlua"
local nn, optim, data, sweep = tl.nn, tl.optim, tl.data, tl.sweep

local seeds, trials = tonumber(arg[1] or 12), tonumber(arg[2] or 27)
local images_used, epochs = tonumber(arg[3] or 2048), tonumber(arg[4] or 27)

local images, labels = data.fashion_mnist { train = true }
local function part(first, n)
  return (images:narrow(1, first, n):flatten(2):float() - 72.94) / 90.02, labels:narrow(1, first, n)
end
local x, y = part(1, images_used)
local valid_x, valid_y = part(50001, 10000)
images, labels = data.fashion_mnist { train = false }
local test_x, test_y = part(1, 10000)

local function make_model(p)
  local model, inputs = nn.Sequential(), 784
  for _ = 1, p.depth do
    model:add(nn.Linear(inputs, p.width)):add(nn.ReLU()):add(nn.Dropout(p.dropout))
    inputs = p.width
  end
  return model:add(nn.Linear(inputs, 10))
end

local function make_optimizer(p, parameters)
  if p.optimizer == "sgd" then return optim.SGD(parameters, { lr = p.lr, momentum = p.momentum }) end
  return optim.Adam(parameters, { lr = p.lr })
end

local criterion = nn.CrossEntropyLoss()

local function error_of(model, input, label)
  model:eval()
  return tl.no_grad(function() return 1 - model(input):argmax(2):eq(label):float():mean():item() end)
end

local function objective(p, trial)
  local model = make_model(p)
  local optimizer = make_optimizer(p, model:parameters())
  local loader = data.DataLoader(data.TensorDataset(x, y), { batch_size = 128, shuffle = true, drop_last = true })
  local best = 1
  for epoch = 1, epochs do
    model:train()
    for input, label in loader do
      optimizer:zero_grad()
      criterion(model(input), label):backward()
      optimizer:step()
    end
    local wrong = error_of(model, valid_x, valid_y)
    if wrong < best then
      best = wrong
      trial:set("test", error_of(model, test_x, test_y))
    end
    if trial:report(epoch, wrong) then return trial:prune() end
  end
  return best
end

-- Up to n trials, as many as `budget` epochs allow. Returns {best=, test= in per cent, epochs=, trials=}.
local function run(seed, n, pruner, budget)
  local study = sweep.run {
    storage = ":memory:", workers = 0, quiet = true, trials = n, sampler = sweep.TPE { seed = seed },
    pruner = pruner, objective = objective,
    space = {
      lr = sweep.loguniform(1e-4, 0.3), width = sweep.choice { 32, 64 }, depth = sweep.int(1, 2),
      dropout = sweep.uniform(0, 0.5), optimizer = sweep.choice { "sgd", "adam" },
      momentum = function(p) return p.optimizer == "sgd" and sweep.uniform(0, 0.95) or nil end,
    },
  }
  local best, test, spent, count = 1, 1, 0, 0
  for _, t in ipairs(study:trials()) do
    if spent + #t.reports > budget then break end
    spent, count = spent + #t.reports, count + 1
    if t.state == "complete" and t.value < best then best, test = t.value, t.attributes.test end
  end
  study:close()
  return { best = 100 * best, test = 100 * test, epochs = spent, trials = count }
end

-- "mean +- its standard error" of a list.
local function mean_text(list)
  local sum, squares = 0, 0
  for _, gap in ipairs(list) do sum = sum + gap end
  local mean = sum / #list
  for _, gap in ipairs(list) do squares = squares + (gap - mean) ^ 2 end
  return ("%+.2f +- %.2f points"):format(mean, math.sqrt(squares / (#list - 1) / #list))
end

io.stdout:setvbuf "line"
print("| seed | no pruner: error (on the test images) | trials | epochs | ASHA | trials | epochs |")
print("|---|---|---|---|---|---|---|")
local validation_gaps, test_gaps = {}, {} -- ASHA's errors over those without a pruner
for seed = 1, seeds do
  local full = run(seed, trials, sweep.none, math.huge)
  local asha = run(seed, 2 * trials, sweep.ASHA { grace = 1, eta = 3, max_steps = epochs }, full.epochs / 3)
  print(("| %d | %.2f %% (%.2f %%) | %d | %d | %.2f %% (%.2f %%) | %d | %d |"):format(seed, full.best, full.test,
    full.trials, full.epochs, asha.best, asha.test, asha.trials, asha.epochs))
  validation_gaps[seed], test_gaps[seed] = asha.best - full.best, asha.test - full.test
end
if seeds > 1 then
  print("\nASHA's error less that without a pruner:")
  print(("validation %s, test %s"):format(mean_text(validation_gaps), mean_text(test_gaps)))
end
