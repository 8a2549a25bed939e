-- zero.lua: ZeroRedundancy equals the plain optimizer, holds its part of the state only, and goes on from a checkpoint.
local tl = require "tlua"
local nn, dist, optim = tl.nn, tl.dist, tl.optim

dist.init { timeout = 60 }
local rank, size = dist.rank(), dist.world_size()
if os.getenv "TLUA_TEST_DEVICE" == "cuda" then tl.set_default_device("cuda:" .. dist.local_rank()) end

local function make()
  tl.manual_seed(3)
  return nn.Sequential(nn.Linear(7, 13), nn.Tanh(), nn.Linear(13, 5))
end

-- 6 steps of `opt` on all ranks' rows: own rows with zero (gradients averaged by it), all rows in the reference
local function train(model, opt, rows, first, last)
  for step = first, last do
    tl.manual_seed(100 + step)
    local x, y = tl.randn(4 * size, 7), tl.randn(4 * size, 5)
    if rows then x, y = x:narrow(1, rank * 4 + 1, 4), y:narrow(1, rank * 4 + 1, 4) end
    opt:zero_grad()
    nn.MSELoss()(model(x), y):backward()
    opt:step()
  end
end

for _, case in ipairs {
  { optim.AdamW, { lr = 0.01, weight_decay = 0.1 } }, { optim.SGD, { lr = 0.05, momentum = 0.9 } },
  { optim.Adagrad, { lr = 0.1 } },
} do
  local class, options = case[1], case[2]
  local model, reference = make(), make()
  local zero = optim.ZeroRedundancy(class, model:parameters(), options)
  local plain = class(reference:parameters(), options)
  train(model, zero, true, 1, 3)
  -- a checkpoint, taken over by new objects
  local saved, weights = zero:state_dict(), model:state_dict()
  model = make()
  model:load_state_dict(weights)
  zero = optim.ZeroRedundancy(class, model:parameters(), options)
  zero:load_state_dict(saved)
  train(model, zero, true, 4, 6)
  train(reference, plain, false, 1, 6)
  for key, value in pairs(reference:state_dict()) do
    local other = model:state_dict()[key]
    assert(other:allclose(value, { rtol = 1e-5, atol = 1e-6 }), ("%s of rank %d"):format(key, rank))
  end
  local whole_state = {} -- of the parameters one after the other
  for i, state in ipairs(plain:state_dict().state) do
    for name, value in pairs(state) do
      if type(value) ~= "number" and value:numel() > 1 then
        whole_state[name] = whole_state[name] or {}
        whole_state[name][i] = value:reshape(-1)
      end
    end
  end
  local divided = zero:state_dict().state[1]
  for name, parts in pairs(whole_state) do
    assert(divided[name]:allclose(tl.cat(parts), { rtol = 1e-4, atol = 1e-6 }), ("%s of rank %d"):format(name, rank))
  end
  local whole = 0
  for _, p in ipairs(reference:parameters()) do whole = whole + p:numel() end
  assert(zero:state_bytes() <= math.ceil(whole / size) * 8 + 64, "state of rank " .. rank)
end
dist.print(("ok zero on %d"):format(size))
