-- fashion_table.lua: tlua tests/sweep/fashion_table.lua: trains a multilayer perceptron on Fashion-MNIST at every
-- point of a grid (with sweep.Grid, two at a time) and writes fashion_table.csv: the table on which quality.lua and
-- quality_optuna.py compare samplers with many seeds.
local tl = require "tlua"
local nn, optim, data, sweep = tl.nn, tl.optim, tl.data, tl.sweep

local here = arg[0]:match("^(.*)/[^/]*$") or "."

local function objective(p)
  local images, labels = data.fashion_mnist { train = true }
  local function part(first, n)
    return (images:narrow(1, first, n):flatten(2):float() - 72.94) / 90.02, labels:narrow(1, first, n)
  end
  local x, y = part(1, 4096)
  local test_x, test_y = part(50001, 5000)
  local model, inputs = nn.Sequential(), 784
  for _ = 1, p.depth do
    model:add(nn.Linear(inputs, 2 ^ p.width)):add(nn.ReLU()):add(nn.Dropout(p.dropout))
    inputs = 2 ^ p.width
  end
  model:add(nn.Linear(inputs, 10))
  local lr = 10 ^ p.lr
  local optimizer = p.optimizer == "sgd" and optim.SGD(model:parameters(), { lr = lr, momentum = 0.9 })
    or optim.Adam(model:parameters(), { lr = lr })
  local criterion = nn.CrossEntropyLoss()
  local loader = data.DataLoader(data.TensorDataset(x, y), { batch_size = 64, shuffle = true, drop_last = true })
  for _ = 1, 4 do
    for input, label in loader do
      optimizer:zero_grad()
      criterion(model(input), label):backward()
      optimizer:step()
    end
  end
  model:eval()
  return tl.no_grad(function() return 1 - model(test_x):argmax(2):eq(test_y):float():mean():item() end)
end

local study = sweep.run {
  name = "table", storage = here .. "/fashion_table.db", workers = 2, sampler = sweep.Grid { seed = 1 },
  objective = objective,
  space = {
    lr = sweep.quniform(-4, -0.5, 0.5), width = sweep.int(5, 7), depth = sweep.int(1, 2),
    dropout = sweep.quniform(0, 0.4, 0.2), optimizer = sweep.choice { "sgd", "adam" },
  },
}
local file = assert(io.open(here .. "/fashion_table.csv", "w"))
file:write("lr,width,depth,dropout,optimizer,error\n")
for _, t in ipairs(study:trials()) do
  local p = t.params
  file:write(("%g,%d,%d,%g,%s,%.4f\n"):format(p.lr, p.width, p.depth, p.dropout, p.optimizer, t.value))
end
file:close()
