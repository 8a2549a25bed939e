-- equal.lua: N ranks give the gradients of one process with their batches together. Run as `tlua --ranks N equal.lua`:
-- every case prints "ok NAME" on rank 0 or fails.
local tl = require "tlua"
local nn, dist = tl.nn, tl.dist

dist.init { timeout = 60 }
local rank, size = dist.rank(), dist.world_size()
if os.getenv "TLUA_TEST_DEVICE" == "cuda" then tl.set_default_device("cuda:" .. dist.local_rank()) end

-- Rows first..last of this rank: uneven where the total is not divisible.
local function part(total)
  local per = math.ceil(total / size)
  local first = math.min(rank * per + 1, total + 1)
  return first, math.min(first + per - 1, total)
end

local function copy_of(model, make)
  local other = make()
  other:load_state_dict(model:state_dict())
  return other
end

local function largest_difference(a, b)
  local worst = 0
  for i, p in ipairs(a) do
    local scale = math.max(b[i]:abs():max():item(), 1e-30)
    worst = math.max(worst, (p - b[i]):abs():max():item() / scale)
  end
  return worst
end

local function grads(model)
  local list = {}
  for i, p in ipairs(model:parameters()) do list[i] = p.grad:double() end
  return list
end

-- The gradient of the mean over all rows from every rank's part: each rank's loss is its sum times size / total.
local function compare(name, make, x, y, limit)
  tl.manual_seed(3 + rank) -- the ranks begin differently; DDP makes them rank 0's
  local model = make()
  local ddp = nn.parallel.DistributedDataParallel(model)
  local reference = copy_of(model, make)
  local total = x:size(1)
  local first, last = part(total)
  local loss_of = nn.CrossEntropyLoss { reduction = "sum" }
  local mine = loss_of(ddp(x:narrow(1, first, last - first + 1)), y:narrow(1, first, last - first + 1))
  ;(mine * (size / total)):backward()
  ;(loss_of(reference(x), y) / total):backward()
  local worst = largest_difference(grads(model), grads(reference))
  assert(worst <= limit, ("%s: rank %d differs by %g"):format(name, rank, worst))
  for key, value in pairs(reference:state_dict()) do
    local other = ddp:state_dict()[key]
    assert(other:allclose(value, { rtol = 1e-5, atol = 1e-6 }), name .. ": " .. key)
  end
  dist.barrier()
  dist.print("ok " .. name .. (" (%.1e)"):format(worst))
  return ddp
end

local function mlp() return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 10)) end

-- A bias before a batch norm has no gradient but rounding: left out.
local function cnn()
  return nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(
    nn.Conv2d(1, 4, 3, { bias = false }), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
    nn.Linear(4 * 3 * 3, 10)))
end

-- The same with plain batch norm: what one process makes of all rows.
local function plain_cnn()
  return nn.Sequential(
    nn.Conv2d(1, 4, 3, { bias = false }), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
    nn.Linear(4 * 3 * 3, 10))
end

tl.manual_seed(1)
local x, y = tl.randn(12, 20), tl.randint(0, 10, { 12 })
compare("mlp", mlp, x, y, 1e-6)
compare("mlp, uneven parts", mlp, x:narrow(1, 1, 11), y:narrow(1, 1, 11), 1e-6)

-- SyncBatchNorm on ranks against BatchNorm in one process
do
  tl.manual_seed(4)
  local images = tl.randn(size * 3 + 1, 1, 8, 8) * 3 + 5
  local labels = tl.randint(0, 10, { size * 3 + 1 })
  tl.manual_seed(5 + rank)
  local model = cnn()
  local ddp = nn.parallel.DistributedDataParallel(model)
  local reference = copy_of(model, plain_cnn)
  local total = images:size(1)
  local first, last = part(total)
  local loss_of = nn.CrossEntropyLoss { reduction = "sum" }
  local mine = loss_of(ddp(images:narrow(1, first, last - first + 1)), labels:narrow(1, first, last - first + 1))
  ;(mine * (size / total)):backward()
  ;(loss_of(reference(images), labels) / total):backward()
  local worst = largest_difference(grads(model), grads(reference))
  assert(worst <= 2e-5, "SyncBatchNorm: rank " .. rank .. " differs by " .. worst)
  for key, value in pairs(reference:state_dict()) do
    assert(model:state_dict()[key]:allclose(value, { rtol = 1e-5, atol = 1e-6 }), "SyncBatchNorm: " .. key)
  end
  dist.print(("ok SyncBatchNorm (%.1e)"):format(worst))
end

-- no_sync: two local backwards and one that synchronises are the mean of the sums
do
  tl.manual_seed(9)
  local model = mlp()
  local ddp = nn.parallel.DistributedDataParallel(model)
  local function loss(from) return ddp(x:narrow(1, from, 2)):sum() * (rank + 1) end
  ddp:no_sync(function() loss(1):backward() end)
  local local_grad = model:parameters()[1].grad:clone()
  loss(3):backward()
  local reference = copy_of(model, mlp)
  ;((reference(x:narrow(1, 1, 2)):sum() + reference(x:narrow(1, 3, 2)):sum()) * ((size + 1) / 2)):backward()
  assert(largest_difference(grads(model), grads(reference)) <= 1e-6, "no_sync")
  assert(size == 1 or not local_grad:equal(model:parameters()[1].grad))
  dist.print "ok no_sync"
end

-- a parameter that one rank does not use, and one that nobody uses
do
  local Two = nn.Module:extend("Two")
  function Two:init() self.a, self.b, self.c = nn.Linear(3, 2), nn.Linear(3, 2), nn.Linear(3, 2) end
  function Two:forward(input) return rank == 0 and self.a(input) + self.b(input) or self.a(input) end
  for _, find in ipairs { true, false } do
    local model = Two()
    local ddp = nn.parallel.DistributedDataParallel(model, { find_unused_parameters = find })
    for _ = 1, 2 do
      for _, p in ipairs(model:parameters()) do p.grad = nil end
      ddp(tl.ones(4, 3)):sum():backward()
      assert(model.b.bias.grad:allclose(tl.full({ 2 }, 4 / size)), "unused on one rank")
      assert((model.c.bias.grad == nil) == find, "used by nobody")
    end
  end
  dist.print "ok unused parameters"
end

-- communication begins while backward still computes
do
  local layers = {}
  for i = 1, 8 do layers[i] = nn.Linear(64, 64) end
  local ddp = nn.parallel.DistributedDataParallel(nn.Sequential(unpack(layers)), { bucket_cap_mb = 0.02 })
  ddp(tl.ones(2, 64)):sum():backward()
  local launches = ddp:launches()
  assert(#launches > 4 and launches[1] > 10 and launches[#launches] == 0, table.concat(launches, " "))
  dist.print("ok overlap: parameters left at each launch: " .. table.concat(launches, " "))
end

-- models that differ
do
  local ok, message = pcall(nn.parallel.DistributedDataParallel, nn.Linear(3, rank == 0 and 4 or 5))
  if size > 1 then
    assert(not ok and message:find("models differ", 1, true), message)
    local text = ("rank 0 has weight (4x3, float32), rank %d has weight (5x3"):format(rank)
    assert(rank == 0 or message:find(text, 1, true), message)
  end
  dist.print "ok different models"
end

-- autocast and a scaler: all ranks skip together
do
  tl.manual_seed(2)
  local model = mlp()
  local ddp = nn.parallel.DistributedDataParallel(model)
  local opt = tl.optim.SGD(model:parameters(), { lr = 0.1 })
  local scaler = tl.amp.GradScaler { init_scale = 1024, growth_interval = 1000, device = "cpu" }
  local before = model:state_dict()["0.weight"]:clone()
  local loss = ddp(x):sum()
  if rank == size - 1 then loss = loss * math.huge end
  scaler:scale(loss):backward()
  scaler:step(opt)
  scaler:update()
  assert(scaler:get_scale() == 512 and model:state_dict()["0.weight"]:equal(before), "the scaler of rank " .. rank)
  dist.print "ok scaler"
end

dist.print(("done on %d"):format(size))
