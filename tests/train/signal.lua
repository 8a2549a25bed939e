-- signal.lua: signal.lua DIRECTORY WHERE SIGNAL [TWICE]: sends itself a signal in its third step ("step") or in its
-- second evaluation ("evaluation"); "none": none. It goes on from what it finds in the folder.
local tl = require "tlua"
local process = require "tlua.sweep.process"
local directory, where, signal, twice = arg[1], arg[2], tonumber(arg[3]), arg[4] ~= nil
local nn, data, optim = tl.nn, tl.data, tl.optim

tl.manual_seed(1)
local x = tl.randn(12, 3)
local set = data.TensorDataset(x, x:sum(2))
local model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 1))
local optimizer = optim.AdamW(model:parameters())
local losses = { step = 0, evaluation = 0 }

local trainer = tl.train.Trainer {
  model = model, optimizer = optimizer, train = data.DataLoader(set, { batch_size = 2, shuffle = true }),
  validation = data.DataLoader(set, { batch_size = 6, shuffle = true }), evaluate_every = 2, steps = 9, log_every = 1,
  loss = function(m, a, b)
    local kind = m.training and "step" or "evaluation"
    losses[kind] = losses[kind] + 1
    if kind == where and losses[kind] == 3 then
      for _ = 1, twice and 2 or 1 do process.kill(process.pid(), signal) end
    end
    return tl.F.mse_loss(m(a):squeeze(2), b)
  end,
  directory = directory, resume = true, loggers = { "csv" }, console = false,
}
trainer:fit()
print "done"
