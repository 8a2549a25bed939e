-- trainer.lua: the Trainer on several ranks: unequal counts equal one big batch, metrics are those of all ranks, a
-- signal to one rank stops all, and a run that goes on ends with the file of the uninterrupted one.
-- trainer.lua FOLDER equal | whole | signal | resume
local tl = require "tlua"
local process = require "tlua.sweep.process"
local nn, dist, optim, data = tl.nn, tl.dist, tl.optim, tl.data
local folder, mode = arg[1], arg[2]

dist.init { timeout = 60 }
local rank, size = dist.rank(), dist.world_size()
if os.getenv "TLUA_TEST_DEVICE" == "cuda" then tl.set_default_device("cuda:" .. dist.local_rank()) end
local SAMPLES, WIDTH, BATCH, ACCUMULATE = 46, 6, 3, 2

tl.manual_seed(2)
local host = { device = "cpu" }
local x, y = tl.randn(SAMPLES, WIDTH, host), tl.randn(SAMPLES, WIDTH, host)
local mask = tl.rand(SAMPLES, WIDTH, host):lt(tl.linspace(0.1, 0.9, SAMPLES, host):unsqueeze(2)):float()
local set = data.TensorDataset(x, y, mask)

local function net(dropout)
  tl.manual_seed(3)
  return nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, WIDTH))
end

local function loss(model, a, b, m)
  return ((model(a) - b):pow(2) * m):sum(), m:sum()
end

local function loader(options)
  local sampler = data.DistributedSampler(set, options)
  return data.DataLoader(set, { batch_size = BATCH, sampler = sampler })
end

local function equal()
  local model, reference = net(0), net(0)
  local rows = {}
  local logger = { log = function(_, step, values) rows[step] = values end }
  local trainer = tl.train.Trainer {
    model = model, optimizer = optim.SGD(model:parameters(), { lr = 0.1 }), loss = loss, accumulate = ACCUMULATE,
    train = loader { shuffle = false, drop_last = true }, validation = loader { shuffle = false }, epochs = 2,
    clip = 0.5, console = false, loggers = { logger }, log_every = 1,
  }
  trainer:fit()
  local optimizer = optim.SGD(reference:parameters(), { lr = 0.1 })
  local used, per_step, step = SAMPLES - SAMPLES % size, BATCH * ACCUMULATE * size, 0
  local device = reference:parameters()[1].device
  for _ = 1, 2 do
    for first = 1, used, per_step do
      local n = math.min(per_step, used - first + 1)
      local function part(t) return t:narrow(1, first, n):to(device) end
      optimizer:zero_grad()
      local sum, count = loss(reference, part(x), part(y), part(mask))
      local mean = sum / count
      mean:backward()
      local norm = nn.utils.clip_grad_norm_(reference:parameters(), 0.5)
      optimizer:step()
      step = step + 1
      if rank == 0 then
        local row = rows[step]
        if not row["validation/loss"] then -- else that row came later, and has no steps to tell of
          assert(math.abs(row.grad_norm - (tl.tensor(norm) + 0):item()) < 1e-5, "the gradient's norm")
          assert(math.abs(row["train/loss"] - mean:item()) < 1e-5, "the training loss")
        end
      end
    end
  end
  for i, p in ipairs(reference:parameters()) do
    assert(model:parameters()[i]:allclose(p, { rtol = 1e-5, atol = 1e-6 }), "parameter " .. i)
  end
  if rank == 0 then
    local sum, count = loss(reference, x:to(device), y:to(device), mask:to(device))
    assert(math.abs(rows[step]["validation/loss"] - (sum / count):item()) < 1e-5, "the validation loss")
  end
end

local function long(directory)
  local model, steps = net(0.3), 0
  local trainer = tl.train.Trainer {
    model = model, optimizer = optim.AdamW(model:parameters()), train = loader { shuffle = true },
    loss = function(m, ...)
      steps = steps + 1
      if mode == "signal" and steps == 11 and rank == size - 1 then process.kill(process.pid(), 15) end
      return loss(m, ...)
    end,
    accumulate = ACCUMULATE, epochs = 3, directory = directory, resume = true, save_every = 2, seed = 5,
    console = false,
  }
  tl.rand(rank + 1) -- ranks need not be alike
  trainer:fit()
end

if mode == "equal" then equal() else long(folder .. (mode == "whole" and "/whole" or "/cut")) end
dist.barrier()
dist.print(("ok trainer on %d"):format(size))
