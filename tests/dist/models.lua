-- models.lua: DistributedDataParallel on models of every kind, and on what happens to them: each case leaves the same
-- gradients on all ranks, or the error that it says.
local tl = require "tlua"
local nn, dist = tl.nn, tl.dist
local DDP = nn.parallel.DistributedDataParallel

dist.init { timeout = 20 }
local rank, size = dist.rank(), dist.world_size()
local on_cuda = os.getenv "TLUA_TEST_DEVICE" == "cuda"
if on_cuda then tl.set_default_device("cuda:" .. dist.local_rank()) end

local function x() return tl.ones(2, 3) * (rank + 1) end
local function two() return nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2)) end

-- Every gradient is the same on all ranks.
local function agrees(model, what)
  for i, p in ipairs(model:parameters()) do
    local all = dist.all_gather(p.grad:float())
    for r = 2, size do assert(all[r]:equal(all[1]), what .. ": parameter " .. i) end
  end
end

local cases = {}

function cases.tied()
  local Tied = nn.Module:extend("Tied")
  function Tied:init()
    self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)
    self.b.weight = self.a.weight
  end
  function Tied:forward(input) return self.b(self.a(input)) end
  local model = Tied()
  assert(#model:parameters() == 3)
  DDP(model)(x()):sum():backward()
  agrees(model, "tied")
end

function cases.two_models()
  local a, b = DDP(two()), DDP(two())
  local loss = a(x()):sum() + b(x()):sum()
  loss:backward()
  agrees(a.module, "first")
  agrees(b.module, "second")
end

function cases.frozen()
  local model = two()
  for _, p in ipairs(model[1]:parameters()) do p.requires_grad = false end
  local ddp = DDP(model)
  ddp(x()):sum():backward()
  agrees(model[2], "frozen before")
  assert(model[1].weight.grad == nil)
  model[2].weight.requires_grad, model[2].weight.grad = false, nil -- and later
  model[2].bias.grad = nil
  ddp(x()):sum():backward()
  assert(model[2].weight.grad == nil, "frozen later")
  local ok, message = pcall(DDP, nn.ReLU())
  assert(not ok and message:find "no parameters that require")
end

function cases.freed()
  local model = two()
  local loss = DDP(model)(x()):sum()
  collectgarbage()
  collectgarbage()
  loss:backward() -- nobody averages
  local ddp = DDP(model)
  loss = ddp(x()):sum()
  model[1].weight:register_hook(function()
    ddp = nil -- luacheck: ignore 311
    collectgarbage()
    collectgarbage()
  end)
  for _, p in ipairs(model:parameters()) do p.grad = nil end
  loss:backward() -- freed in the walk that it serves, which it serves to its end
  agrees(model, "freed")
end

function cases.failed_backward()
  local model, fails = two(), true
  local ddp = DDP(model)
  model[1].bias:register_hook(function()
    if fails then error "in the hook" end
  end)
  local ok, message = pcall(function() ddp(x()):sum():backward() end)
  assert(not ok and message:find "in the hook")
  fails = false
  for _, p in ipairs(model:parameters()) do p.grad = nil end
  ddp(x()):sum():backward()
  agrees(model, "after an error")
end

function cases.copies()
  local ddp = DDP(two())
  local ok, message = pcall(ddp.clone, ddp)
  assert(not ok and message:find "clone its .module")
  assert(#ddp.module:clone():parameters() == 4)
  local other = two()
  other:load_state_dict(ddp:state_dict())
  assert(other[1].weight:equal(ddp.module[1].weight))
end

function cases.pruned()
  local model = two()
  nn.utils.prune.l1_unstructured(model[1], "weight", { amount = 0.5 })
  local ddp = DDP(model)
  ddp(x()):sum():backward()
  agrees(model, "pruned")
  assert(model[1].weight:eq(0):sum():item() == 3)
end

-- mixed precision, clipped: one rank's overflow makes all ranks skip
function cases.mixed()
  local model = two()
  local ddp = DDP(model)
  local opt = tl.optim.SGD(model:parameters(), { lr = 0.1 })
  local scaler = tl.amp.GradScaler { init_scale = 1024 }
  local weight = model[1].weight
  for step = 1, 3 do
    local before = weight.data:clone()
    opt:zero_grad()
    local y = tl.amp.autocast({ device = on_cuda and "cuda" or "cpu" }, function() return ddp(x()) end)
    local loss = y:float():pow(2):mean()
    if step == 2 and rank == 0 then loss = loss * math.huge end
    scaler:scale(loss):backward()
    scaler:unscale_(opt)
    nn.utils.clip_grad_norm_(model:parameters(), 0.5)
    scaler:step(opt)
    scaler:update()
    assert((step == 2) == before:equal(weight.data), "step " .. step)
    local all = dist.all_gather(weight.data)
    for r = 2, size do assert(all[r]:equal(all[1]), "weights of rank " .. r - 1) end
  end
  assert(scaler:get_scale() == 512)
end

-- a recorded step: its exchanges are part of what is replayed
function cases.recorded()
  if not on_cuda then return end
  tl.cuda.set_device(dist.local_rank())
  local model, reference = two(), two()
  local ddp = DDP(model)
  reference:load_state_dict(model:state_dict())
  local opt = tl.optim.SGD(model:parameters(), { lr = 0.1 })
  local plain = tl.optim.SGD(reference:parameters(), { lr = 0.1 })
  local input = tl.zeros(2, 3)
  local function of(r, step) return tl.ones(2, 3) * ((r + 1) * step * 0.1) end
  local function refer(step)
    plain:zero_grad()
    local loss = 0
    for r = 0, size - 1 do loss = loss + reference(of(r, step)):pow(2):mean() / size end
    loss:backward()
    plain:step()
  end
  input:copy_(of(rank, 1))
  local step = tl.cuda.graph(function()
    opt:zero_grad()
    ddp(input):pow(2):mean():backward()
    opt:step()
  end, { warmup = 3 })
  for _ = 1, 3 do refer(1) end
  for i = 1, 4 do
    input:copy_(of(rank, i))
    step()
    refer(i)
  end
  for i, p in ipairs(model:parameters()) do
    assert(p:allclose(reference:parameters()[i], { rtol = 1e-5, atol = 1e-6 }), "parameter " .. i)
  end
end

local names = { "tied", "two_models", "frozen", "freed", "failed_backward", "copies", "pruned", "mixed", "recorded" }
for _, name in ipairs(names) do
  local ok, message = pcall(cases[name])
  if not ok then error(name .. ": " .. message, 0) end
  dist.print("ok " .. name)
end
dist.print "done"
