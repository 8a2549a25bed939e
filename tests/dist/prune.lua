-- prune.lua: pruned models on N ranks: the masks are rank 0's, whenever they were made, and training with them is that
-- of one process. Run as `tlua --ranks N prune.lua`: every case prints "ok NAME" on rank 0 or fails.
local tl = require "tlua"
local nn, optim, dist, prune = tl.nn, tl.optim, tl.dist, tl.nn.utils.prune

dist.init { timeout = 60 }
local rank, size = dist.rank(), dist.world_size()
if os.getenv "TLUA_TEST_DEVICE" == "cuda" then tl.set_default_device("cuda:" .. dist.local_rank()) end

local function mlp() return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 10)) end

-- Is t the same on all ranks?
local function same(t, what)
  local all = dist.all_gather(t:detach():double())
  for r = 1, size do assert(all:select(1, r):equal(all:select(1, 1)), what .. " differs on rank " .. r - 1) end
end

local function done(name)
  dist.barrier()
  dist.print("ok " .. name)
end

local function prune_all(model, seed)
  tl.manual_seed(seed)
  prune.random_unstructured(model[1], "weight", { amount = 0.5 })
  prune.random_structured(model[3], "weight", { count = 3, dim = 1 })
end

tl.manual_seed(1)
local x, y = tl.randn(4 * size, 20), tl.randint(0, 10, { 4 * size })

local function mine(t) return t:narrow(1, 4 * rank + 1, 4) end

local function step(model, optimizer, input, target, low)
  local loss_of = nn.CrossEntropyLoss()
  optimizer:zero_grad()
  local function loss() return loss_of(model(input), target) end
  local value = low and tl.amp.autocast(low, loss) or loss()
  value:backward()
  optimizer:step()
end

local function check_masks(model, what)
  for i = 1, 3, 2 do
    same(model[i].weight_mask, what .. ": a mask")
    same(model[i].weight_orig, what .. ": a weight")
    local gone = model[i].weight_mask:eq(0)
    assert(gone:any():item(), what .. ": nothing is masked")
    local grad = model[i].weight_orig.grad:masked_select(gone)
    assert(not grad:ne(0):any():item(), what .. ": a masked weight has a gradient")
  end
end

-- Three steps of the ranks against three of one process that has all rows. `early`: pruned before DDP takes the model.
local function compare(name, early, low, limit)
  tl.manual_seed(3 + rank)
  local model = mlp()
  if early then prune_all(model, 10 + rank) end
  local ddp = nn.parallel.DistributedDataParallel(model)
  if not early then prune_all(model, 10 + rank) end
  local reference = mlp()
  local optimizer, other
  for k = 1, 3 do
    optimizer = optimizer or optim.SGD(model:parameters(), { lr = 0.1, momentum = 0.9 })
    if k == 1 then -- what every rank starts from is known after the first forward
      ddp(mine(x))
      prune.identity(reference[1], "weight")
      prune.identity(reference[3], "weight")
      reference:load_state_dict(model:state_dict())
      other = optim.SGD(reference:parameters(), { lr = 0.1, momentum = 0.9 })
    end
    step(ddp, optimizer, mine(x), mine(y), low)
    step(reference, other, x, y, low)
    check_masks(model, name)
  end
  for key, value in pairs(reference:state_dict()) do
    local worst = (model:state_dict()[key] - value):abs():max():item()
    assert(worst <= limit, ("%s: %s differs by %g"):format(name, key, worst))
  end
  done(name)
end

compare("pruned before", true, nil, 1e-5)
compare("pruned after", false, nil, 1e-5)
compare("under autocast", true, { device = tl.get_default_device():match("^%a+"), dtype = "bfloat16" }, 2e-2)

-- Channels are masked on every rank by itself; what leaves is the same.
local model = mlp()
local ddp = nn.parallel.DistributedDataParallel(model)
local optimizer = optim.Adam(model:parameters(), { lr = 0.01 })
for count = 4, 12, 4 do
  step(ddp, optimizer, mine(x), mine(y))
  local gone = prune.is_pruned(model) and count - 4 or 0
  prune.ln_structured(model[1], "weight", { count = count - gone, dim = 1 })
  prune.custom_from_mask(model[1], "bias", model[1].weight_mask:any(2))
end
step(ddp, optimizer, mine(x), mine(y))
model:eval()
local small = prune.compact(model, { example = x })
assert(small[1].weight:size(1) == 20, "12 channels of 32 did not leave")
same(small[1].weight, "compact: the weight")
same(small(x), "compact: the output")
done "compact"

dist.print("done on " .. size)
