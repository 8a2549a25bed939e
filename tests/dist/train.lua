-- train.lua CHECKPOINT STEPS [KILL_STEP [KILL_RANK [DELAY]]]: a run that goes on from its checkpoint. DELAY (0) ms
-- after KILL_STEP began, KILL_RANK (the last) of the first attempt is killed; CHECKPOINT.killed and .again say
-- when that was and when the next attempt began. The end prints the loss of a fixed batch with all its digits.
local tl = require "tlua"
local nn, dist = tl.nn, tl.dist

local path, steps, kill = arg[1], tonumber(arg[2]), tonumber(arg[3] or 0)
dist.init { timeout = 10 }
local rank, size = dist.rank(), dist.world_size()
local attempt = os.getenv "TLUA_RESTART" or "0"
if attempt ~= "0" and rank == 0 then os.execute(("date +%%s.%%N > '%s.again'"):format(path)) end
local killed = attempt == "0" and kill > 0 and rank == tonumber(arg[4] or size - 1)
local killing = "(sleep %g; date +%%s.%%N > '%s.killed'; kill -9 $PPID) > /dev/null 2>&1 &"
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
  if killed and step == kill then os.execute(killing:format(tonumber(arg[5] or 0) / 1000, path)) end
  opt:zero_grad()
  local difference = ddp(x) - x:sum(2, { keepdim = true })
  difference:pow(2):mean():backward()
  opt:step()
  if step % 5 == 0 and rank == 0 then
    tl.save(path, { model = model:state_dict(), opt = opt:state_dict(), step = step })
  end
end
if killed then os.execute "sleep 10" end -- it comes
model:eval()
local x = tl.randn(32, 8, { generator = tl.Generator(7) })
local loss = tl.no_grad(function() return (model(x) - x:sum(2, { keepdim = true })):pow(2):mean():item() end)
dist.print(("final %.9g"):format(loss))
