-- checkpoint.lua: DistributedDataParallel over a model whose layers are computed anew in backward, the last one too:
-- the gradients of the plain model, averaged once.
local tl = require "tlua"
local nn, dist = tl.nn, tl.dist

dist.init { timeout = 60 }
local rank, size = dist.rank(), dist.world_size()
if os.getenv "TLUA_TEST_DEVICE" == "cuda" then tl.set_default_device("cuda:" .. dist.local_rank()) end

local Model = nn.Module:extend("Model")
function Model:init()
  self.layers = nn.ModuleList()
  for i = 1, 3 do self.layers:add(nn.Sequential(nn.Linear(6, 6), nn.Dropout(i == 2 and 0.3 or 0), nn.Tanh())) end
end
function Model:forward(x)
  for _, layer in ipairs(self.layers) do
    if self.again then x = tl.utils.checkpoint(layer, x) else x = layer(x) end
  end
  return x
end

local function gradients(again)
  tl.manual_seed(5)
  local model = Model()
  rawset(model, "again", again)
  -- small buckets: several are under way while a layer is computed anew
  local ddp = nn.parallel.DistributedDataParallel(model, { bucket_cap_mb = 1e-4 })
  tl.manual_seed(10 + rank)
  local x = tl.randn(4, 6)
  for _ = 1, 2 do
    model:zero_grad()
    ddp(x):backward(tl.ones(4, 6))
  end
  return model:parameters()
end

local plain, checkpointed = gradients(false), gradients(true)
for i, p in ipairs(checkpointed) do assert(p.grad:eq(plain[i].grad):all():item(), "parameter " .. i) end
dist.print(("ok checkpoint on %d"):format(size))
