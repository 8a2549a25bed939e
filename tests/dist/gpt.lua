-- gpt.lua: a GPT-2 under DistributedDataParallel, with AdamW and with ZeroRedundancy, ends where one rank alone ends.
local tl = require "tlua"
local nn, dist, optim = tl.nn, tl.dist, tl.optim

dist.init { timeout = 60 }
local rank, size = dist.rank(), dist.world_size()
if os.getenv "TLUA_TEST_DEVICE" == "cuda" then tl.set_default_device("cuda:" .. dist.local_rank()) end

local function make_model()
  tl.manual_seed(7)
  return tl.models.gpt2 {
    vocab_size = 31, n_positions = 12, n_embd = 16, n_layer = 2, n_head = 2, resid_pdrop = 0, embd_pdrop = 0,
    attn_pdrop = 0, initializer_range = 0.2,
  }
end

-- A key's bias has no gradient but rounding errors, which a smaller eps would blow up.
local adamw = { lr = 0.01, weight_decay = 0.1, eps = 1e-4 }

-- 8 steps; every rank sees its rows, or all of them (rows = false). Returns the last loss.
local function train(model, optimizer, rows)
  local loss
  for step = 1, 8 do
    tl.manual_seed(100 + step)
    local text = tl.randint(0, 31, { 2 * size, 13 })
    if rows then text = text:narrow(1, 2 * rank + 1, 2) end
    optimizer:zero_grad()
    loss = model:loss(text:narrow(2, 1, 12), text:narrow(2, 2, 12))
    loss:backward()
    nn.utils.clip_grad_norm_(model:parameters(), 0.5)
    optimizer:step()
  end
  return rows and dist.all_reduce(loss:detach(), "mean"):item() or loss:item()
end

local alone = make_model()
local expected = train(alone, optim.AdamW(alone:parameters(), adamw), false)

local function zero(params, options) return optim.ZeroRedundancy(optim.AdamW, params, options) end

for _, case in ipairs { { "AdamW", optim.AdamW }, { "ZeroRedundancy", zero } } do
  local name, make = unpack(case)
  local model = make_model()
  local ddp = nn.parallel.DistributedDataParallel(model)
  local loss = train(ddp, make(model:parameters(), adamw), true)
  assert(math.abs(loss - expected) < 1e-5, ("%s: loss %.8f, alone %.8f"):format(name, loss, expected))
  local dict = model:state_dict()
  for key, t in pairs(alone:state_dict()) do
    local far = (dict[key] - t):abs():max():item()
    assert(far < 1e-5, ("%s: %s is %g away"):format(name, key, far))
  end
end
dist.print(("ok gpt on %d"):format(size))
