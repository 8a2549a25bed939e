-- train.lua CHECKPOINT STEPS [KILL_STEP]: a run that goes on from its checkpoint. At KILL_STEP the last rank of the
-- first attempt kills itself. The end prints the loss of a fixed batch with all its digits.
local tl = require "tlua"
local nn, dist = tl.nn, tl.dist

local path, steps, kill = arg[1], tonumber(arg[2]), tonumber(arg[3] or 0)
dist.init { timeout = 10 }
local rank, size = dist.rank(), dist.world_size()
if os.getenv "TLUA_TEST_DEVICE" == "cuda" then tl.set_default_device("cuda:" .. dist.local_rank()) end
tl.manual_seed(1)
local model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 1))
local ddp = nn.parallel.DistributedDataParallel(model)
local opt = tl.optim.Adam(model:parameters(), { lr = 0.01 })
local first = 1
local file = io.open(path)
if file then
  file:close()
  local saved = tl.load(path)
  model:load_state_dict(saved.model)
  opt:load_state_dict(saved.opt)
  first = saved.step + 1
end
for step = first, steps do
  local g = tl.Generator(1000 * step + rank)
  local x = tl.randn(6, 8, { generator = g })
  opt:zero_grad()
  local difference = ddp(x) - x:sum(2, { keepdim = true })
  difference:pow(2):mean():backward()
  if step == kill and rank == size - 1 and os.getenv("TLUA_RESTART") == "0" then os.execute("kill -9 $PPID") end
  opt:step()
  if step % 5 == 0 and rank == 0 then
    tl.save(path, { model = model:state_dict(), opt = opt:state_dict(), step = step })
  end
end
model:eval()
local x = tl.randn(32, 8, { generator = tl.Generator(7) })
local loss = tl.no_grad(function() return (model(x) - x:sum(2, { keepdim = true })):pow(2):mean():item() end)
dist.print(("final %.9g"):format(loss))
