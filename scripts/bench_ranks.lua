-- bench_ranks.lua: the time of a training step, each rank with a batch of its own. With one thread a rank:
--     OMP_NUM_THREADS=1 tlua scripts/bench_ranks.lua; OMP_NUM_THREADS=1 tlua --ranks 2 scripts/bench_ranks.lua
-- The efficiency of N ranks is the first time divided by theirs.
local tl = require "tlua"
local nn, dist, now = tl.nn, tl.dist, require("tlua.system").now

dist.init { timeout = 60 }
tl.manual_seed(1)
local model = nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
local ddp = nn.parallel.DistributedDataParallel(model)
local opt = tl.optim.SGD(model:parameters(), { lr = 0.01 })
local x, y = tl.randn(256, 784), tl.randint(0, 10, { 256 })
local criterion = nn.CrossEntropyLoss()

local function step()
  opt:zero_grad()
  criterion(ddp(x), y):backward()
  opt:step()
end

for _ = 1, 3 do step() end
local best = math.huge
for _ = 1, 20 do
  dist.barrier()
  local begin = now()
  step()
  dist.barrier()
  best = math.min(best, now() - begin)
end
dist.print(("%d ranks: %.2f ms a step, the best of 20"):format(dist.world_size(), best * 1e3))
dist.destroy()
