-- sweep.lua: searches learning rate, width, depth, dropout and optimizer of a multilayer perceptron on Fashion-MNIST.
-- Trials that lag behind at epochs 1, 3 and 9 end early (ASHA).
--
--   tlua sweep examples/sweep.lua                          starts it; again after Ctrl-C or a crash: goes on
--   tlua sweep examples/sweep.lua lr=0.001,0.01 width=64   with other choices
--   tlua sweep --best examples/sweep.lua                   what it found
--   tlua report sweep.db -o report.html                    the same as a page of plots
local usage = [[
usage: tlua sweep examples/sweep.lua [options of tlua sweep] [-- options]
  --epochs N     passes over the training images of a trial that is not ended early (default 9)
  --limit N      only the first N training images (default 20000)
  --device NAME  cpu, cuda:0, or cuda:0,cuda:1 (the trials are shared out; default cpu)]]

local tl = require "tlua"
local nn, optim, data, sweep = tl.nn, tl.optim, tl.data, tl.sweep

local function read_options(words)
  local o = { epochs = 9, limit = 20000, device = "cpu" }
  for i = 1, #words, 2 do
    local name, value = words[i]:match("^%-%-(%l+)$"), words[i + 1]
    if name and type(o[name]) == "number" then value = tonumber(value) end
    if not name or o[name] == nil or value == nil then
      io.stderr:write(usage, "\n")
      os.exit(2)
    end
    o[name] = value
  end
  return o
end

local o = read_options(arg)

-- The last 10,000 training images judge a trial; the test images are for whoever uses what was found.
local function datasets()
  local images, labels = data.fashion_mnist { train = true }
  local function part(first, n)
    local x = (images:narrow(1, first, n):flatten(2):float() - 72.94) / 90.02
    return x, labels:narrow(1, first, n)
  end
  local x, y = part(1, math.min(o.limit, 50000))
  return x, y, part(50001, 10000)
end

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

local function objective(p, trial)
  local x, y, test_x, test_y = datasets()
  test_x, test_y = test_x:to(trial.device), test_y:to(trial.device)
  local model = make_model(p):to(trial.device)
  local optimizer, criterion = make_optimizer(p, model:parameters()), nn.CrossEntropyLoss()
  local loader = data.DataLoader(data.TensorDataset(x, y), { batch_size = 128, shuffle = true, drop_last = true })
  local wrong
  for epoch = 1, o.epochs do
    model:train()
    for images, labels in loader do
      optimizer:zero_grad()
      criterion(model(images:to(trial.device)), labels:to(trial.device)):backward()
      optimizer:step()
    end
    model:eval()
    wrong = tl.no_grad(function()
      return 1 - model(test_x):argmax(2):eq(test_y):float():mean():item()
    end)
    if trial:report(epoch, wrong) then return trial:prune() end
  end
  return wrong
end

local devices = {}
for name in o.device:gmatch("[^,]+") do devices[#devices + 1] = name end

local study = sweep.run {
  name = "fashion-mlp", storage = "sweep.db", trials = 30, workers = 2, direction = "minimize", devices = devices,
  sampler = sweep.TPE { seed = 1 }, pruner = sweep.ASHA { grace = 1, eta = 3, max_steps = o.epochs },
  space = {
    lr = sweep.loguniform(1e-4, 0.3), width = sweep.choice { 32, 64, 128, 256 }, depth = sweep.int(1, 3),
    dropout = sweep.uniform(0, 0.5), optimizer = sweep.choice { "sgd", "adam" },
    momentum = function(p) return p.optimizer == "sgd" and sweep.uniform(0, 0.95) or nil end,
  },
  objective = objective,
}

local best = study:best()
if best then print(("best: trial %d, %.2f %% wrong"):format(best.number, 100 * best.value)) end
