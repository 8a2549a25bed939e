-- trainer.lua: fashion.lua's network and data, trained by tl.train.Trainer: stop it with Ctrl-C, start it again, and it
-- goes on where it was.
--     build/tlua examples/trainer.lua [DIRECTORY [DEVICE [LIMIT]]]     (runs/fashion, cpu, all images)
local tl = require "tlua"
local optim, data, F = tl.optim, tl.data, tl.F
package.path = (arg[0]:match("^(.*)/[^/]*$") or ".") .. "/?.lua;" .. package.path
local Net = require "fashion_net"

local directory, device, limit = arg[1] or "runs/fashion", arg[2] or "cpu", tonumber(arg[3] or 60000)

local function dataset(train)
  local images, labels = data.fashion_mnist { train = train }
  local n = math.min(limit, #images)
  return data.TensorDataset(images:narrow(1, 1, n), labels:narrow(1, 1, n))
end

tl.manual_seed(1)
local model = Net():to(device)
local optimizer = optim.AdamW(model:parameters(), { lr = 0.003 })
local train = data.DataLoader(dataset(true), { batch_size = 64, shuffle = true, drop_last = true, num_workers = 1 })

local trainer = tl.train.Trainer {
  model = model,
  optimizer = optimizer,
  scheduler = optim.lr_scheduler.OneCycleLR(optimizer, { max_lr = 0.003, total_steps = 5 * train:size() }),
  train = train,
  validation = data.DataLoader(dataset(false), { batch_size = 500 }),
  loss = function(net, images, labels)
    local logits = net(((images:float() - 72.94) / 90.02):unsqueeze(2))
    local right = logits:argmax(2):eq(labels):sum()
    return F.cross_entropy(logits, labels, { reduction = "sum" }), #labels, { accuracy = right }
  end,
  epochs = 5,
  ema = { decay = 0.998, warmup = true },
  monitor = "validation/accuracy", mode = "max",
  directory = directory, resume = true,
  log_every = 100, unit = "images", loggers = { "csv", "tensorboard" },
}
local result = trainer:fit()
print(("best test accuracy %.2f %% after step %d"):format(100 * result.best, result.best_step))
print(("with averaged weights %.2f %%"):format(100 * trainer:evaluate()["ema/accuracy"]))
