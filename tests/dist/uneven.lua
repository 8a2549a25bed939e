-- uneven.lua: 11 rows among the ranks in batches of 4: every row comes, all ranks have equally many batches, training
-- ends where one process ends that sees the same rows in the same order, evaluation counts every row once.
local tl = require "tlua"
local nn, dist, data = tl.nn, tl.dist, tl.data

dist.init { timeout = 60 }
local rank, size = dist.rank(), dist.world_size()
if os.getenv "TLUA_TEST_DEVICE" == "cuda" then tl.set_default_device("cuda:" .. dist.local_rank()) end

local N, BATCH, EPOCHS = 11, 4, 3
tl.manual_seed(1)
local x, y = tl.randn(N, 6), tl.randint(0, 3, { N })
local set = data.TensorDataset(x:cpu(), y:cpu(), tl.arange(N, { dtype = "int64", device = "cpu" }))

local function make()
  tl.manual_seed(2)
  return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
end

local function loader_of(options, drop)
  local sampler = data.DistributedSampler(set, options)
  return data.DataLoader(set, { batch_size = BATCH, sampler = sampler, drop_last = drop }), sampler
end

-- The rows (0-based) of each batch of every rank, by batch: what the ranks took.
local function gathered(taken)
  local length = tl.tensor({ #taken }, { dtype = "int64", device = "cpu" })
  local most = dist.all_reduce(length:clone(), "max"):item()
  assert(most == dist.all_reduce(length, "min"):item(), "the ranks have different numbers of batches")
  local batches = {}
  for i = 1, most do
    local ids = dist.all_gather(taken[i])
    batches[i] = ids:view(ids:numel())
  end
  return batches
end

local function counts(batches)
  local count = tl.zeros(N, { device = "cpu" })
  for _, ids in ipairs(batches) do
    for _, id in ipairs(ids:tolist()) do count[id + 1] = count[id + 1]:item() + 1 end
  end
  return count
end

local loss_of = nn.CrossEntropyLoss()

-- drop: "rows" that would make the ranks uneven, "batches" that are not full, or nothing
for _, drop in ipairs { "nothing", "rows", "batches" } do
  local model, reference = make(), make()
  local ddp = nn.parallel.DistributedDataParallel(model)
  local function adam(m) return tl.optim.Adam(m:parameters(), { lr = 0.01, eps = 1e-4 }) end
  local opt, plain = adam(model), adam(reference)
  local loader, sampler = loader_of({ seed = 5, drop_last = drop == "rows" }, drop == "batches")
  local orders = {}
  for epoch = 1, EPOCHS do
    sampler:set_epoch(epoch)
    local taken = {}
    for inputs, labels, ids in loader do
      opt:zero_grad()
      loss_of(ddp(inputs:to(x.device)), labels:to(x.device)):backward()
      opt:step()
      taken[#taken + 1] = ids
    end
    assert(#taken == loader:size())
    local batches = gathered(taken)
    local count, total = counts(batches), 0
    for _, ids in ipairs(batches) do
      total = total + #ids
      plain:zero_grad()
      loss_of(reference(x:index_select(1, ids:to(x.device))), y:index_select(1, ids:to(x.device))):backward()
      plain:step()
    end
    local each = drop == "rows" and math.floor(N / size) or math.ceil(N / size)
    if drop == "batches" then each = each - each % BATCH end
    assert(total == each * size, ("%d rows on %d ranks"):format(total, size))
    if drop == "nothing" then
      assert(count:min():item() >= 1 and count:sum():item() == N + (-N) % size, "not every row")
    else
      assert(count:max():item() <= 1 or drop == "batches", "a row twice")
    end
    orders[epoch] = #batches > 0 and tostring(tl.cat(batches, 1)) or ""
  end
  assert(#orders[1] == 0 or orders[1] ~= orders[2] and orders[2] ~= orders[3], "every epoch has its own order")
  for key, value in pairs(reference:state_dict()) do
    local other = model:state_dict()[key]
    local worst = (other - value):abs():max():item() / value:abs():max():item()
    assert(worst <= 1e-6, ("without %s: %s of rank %d differs by %g"):format(drop, key, rank, worst))
  end
end

-- evaluation: own rows only, as many batches as they need
do
  local model = make()
  local loader = loader_of { shuffle = false, even = false }
  local sum = tl.zeros(2, { dtype = "float64", device = "cpu" }) -- of losses, of rows
  for inputs, labels in loader do
    local losses = nn.CrossEntropyLoss { reduction = "sum" }(model(inputs:to(x.device)), labels:to(x.device))
    sum = sum + tl.tensor({ losses:item(), #labels }, { dtype = "float64", device = "cpu" })
  end
  dist.all_reduce(sum, "sum")
  local mean = loss_of(model(x), y):item()
  assert(sum[2]:item() == N and math.abs(sum[1]:item() / N - mean) <= 1e-6 * mean, tostring(sum))
end
dist.print("ok uneven on " .. size)
