-- ddp.lua: data parallelism: the same script on many processes, each with its part of every batch.
--
--     tlua examples/ddp.lua                      one process
--     tlua --ranks 2 examples/ddp.lua            two on this machine
--     mpirun -n 8 -H host1:4,host2:4 tlua examples/ddp.lua
--     tlua --ranks 2 --restarts 3 examples/ddp.lua --save run.safetensors     goes on after a crash
--
-- Options: --epochs N (2), --limit N images (all), --batch N of all ranks together (128), --lr X (1e-3), --save FILE,
-- --device cuda (a GPU for each rank).
local tl = require "tlua"
local nn, optim, data, dist = tl.nn, tl.optim, tl.data, tl.dist

local options = { epochs = 2, limit = math.huge, batch = 128, lr = 1e-3, device = "cpu", save = false }
for i = 1, #arg, 2 do
  local name, value = arg[i]:match("^%-%-(%a+)$"), arg[i + 1]
  if options[name] == nil or value == nil then
    io.stderr:write(("ddp.lua: %s is no option, or its value is missing\n"):format(arg[i]))
    os.exit(2)
  end
  options[name] = tonumber(value) or value
end

-- 1. Join the other ranks. Alone this is rank 0 of 1, and everything below is the same.
dist.init()
local rank, size = dist.rank(), dist.world_size()
local device = options.device == "cuda" and "cuda:" .. dist.local_rank() or options.device
tl.manual_seed(1 + rank)

-- 2. Each rank reads its share: another part in every epoch, the same number of batches everywhere.
local function images(train)
  local pixels, labels = data.fashion_mnist { train = train }
  local n = math.min(options.limit, #pixels)
  return pixels:narrow(1, 1, n):reshape(n, 784):float() / 255, labels:narrow(1, 1, n)
end
local x, y = images(true)
local train_set = data.TensorDataset(x, y)
local sampler = data.DistributedSampler(train_set, { num_replicas = size, rank = rank, seed = 1 })
local batch = math.max(1, math.floor(options.batch / size)) -- of each rank
local loader = data.DataLoader(train_set, { batch_size = batch, sampler = sampler })

-- 3. The model begins as rank 0's; backward leaves the mean gradient of all ranks in every parameter.
local model = nn.Sequential(
  nn.Linear(784, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 10))
model = nn.SyncBatchNorm.convert_sync_batchnorm(model):to(device)
local ddp = nn.parallel.DistributedDataParallel(model)
local optimizer = optim.Adam(model:parameters(), { lr = options.lr })
local loss_of = nn.CrossEntropyLoss()

-- 4. Go on from the last checkpoint, if there is one: tl.save replaces the file at once or not at all.
local first = 1
local file = options.save and io.open(options.save)
if file then
  file:close()
  local saved = tl.load(options.save)
  model:load_state_dict(saved.model)
  optimizer:load_state_dict(saved.optimizer)
  first = saved.epoch + 1
  dist.print(("going on with epoch %d"):format(first))
end

-- Correct answers over all ranks: every image counts once, for nothing is repeated to make the parts even.
local test_set = data.TensorDataset(images(false))
local test_sampler = data.DistributedSampler(test_set,
  { num_replicas = size, rank = rank, shuffle = false, even = false })
local test_loader = data.DataLoader(test_set, { batch_size = 1000, sampler = test_sampler })
local function accuracy()
  model:eval()
  local right = tl.zeros(1, { device = device })
  tl.no_grad(function()
    for inputs, labels in test_loader do
      right = right + model(inputs:to(device)):argmax(2):eq(labels:to(device)):sum():float()
    end
  end)
  model:train()
  return dist.all_reduce(right, "sum"):item() / test_set:size()
end

for epoch = first, options.epochs do
  sampler:set_epoch(epoch)
  local sum, batches = 0, 0
  for inputs, labels in loader do
    optimizer:zero_grad()
    local loss = loss_of(ddp(inputs:to(device)), labels:to(device))
    loss:backward()
    optimizer:step()
    sum, batches = sum + loss:item(), batches + 1
  end
  local mean = dist.all_reduce(tl.tensor({ sum / batches }, { device = device }), "mean"):item()
  dist.print(("epoch %d: loss %.4f, test accuracy %.2f %%"):format(epoch, mean, 100 * accuracy()))
  if options.save and rank == 0 then
    tl.save(options.save, { model = model:state_dict(), optimizer = optimizer:state_dict(), epoch = epoch })
  end
  dist.barrier()
end
dist.destroy()
