-- program.lua: program.lua DIRECTORY DEVICE: a short training with everything whose state a checkpoint must have. It
-- goes on from what it finds in the folder.
local tl = require "tlua"
local nn, data, optim = tl.nn, tl.data, tl.optim
local directory, device = arg[1], arg[2]

tl.manual_seed(1)
local x = tl.randn(45, 6, { device = "cpu" })
local y = (x:sum(2):gt(0)):to("int64")
local model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2))
model:to(device)
local optimizer = optim.AdamW(model:parameters(), { lr = 0.01 })

local trainer = tl.train.Trainer {
  model = model,
  optimizer = optimizer,
  scheduler = optim.lr_scheduler.OneCycleLR(optimizer, { max_lr = 0.02, total_steps = 60 }),
  scaler = tl.amp.GradScaler { init_scale = 1024, growth_interval = 4 },
  amp = "bfloat16",
  loss = function(m, a, b)
    local z = m(a)
    return tl.F.cross_entropy(z, b, { reduction = "sum" }), #b, { accuracy = z:argmax(2):eq(b):sum() }
  end,
  train = data.DataLoader(data.TensorDataset(x, y),
    { batch_size = 6, shuffle = true, num_workers = 2, generator = tl.Generator(4) }),
  validation = data.DataLoader(data.TensorDataset(x, y), { batch_size = 20, shuffle = true }),
  steps = 30, accumulate = 2, clip = 1, ema = 0.9,
  evaluate_every = 7, log_every = 2, save_every = 3,
  directory = directory, resume = true, loggers = { "csv", "jsonl" }, console = false, seed = 3,
}
trainer:fit()
