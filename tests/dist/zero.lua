-- zero.lua: ZeroRedundancy equals the plain optimizer, holds its part of the state only, and goes on from a checkpoint.
local tl = require "tlua"
local nn, dist, optim = tl.nn, tl.dist, tl.optim

dist.init { timeout = 60 }
local rank, size = dist.rank(), dist.world_size()
if os.getenv "TLUA_TEST_DEVICE" == "cuda" then tl.set_default_device("cuda:" .. dist.local_rank()) end

local function make(hidden)
  tl.manual_seed(3)
  return nn.Sequential(nn.Linear(7, hidden or 13), nn.Tanh(), nn.Linear(hidden or 13, 5))
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

-- Smaller state: a checkpoint goes on exactly, near float32's way; a rank holds its part.
for _, case in ipairs { { "bfloat16", 4 }, { "int8", 2.04 } } do
  local state_dtype, bytes = case[1], case[2]
  local options = { lr = 0.01, state_dtype = state_dtype }
  local model, twin, reference = make(1500), make(1500), make(1500)
  local zero = optim.ZeroRedundancy(optim.AdamW, model:parameters(), options)
  train(model, zero, true, 1, 3)
  local saved = zero:state_dict()
  twin:load_state_dict(model:state_dict())
  local other = optim.ZeroRedundancy(optim.AdamW, twin:parameters(), options)
  other:load_state_dict(saved)
  train(model, zero, true, 4, 6)
  train(twin, other, true, 4, 6)
  train(reference, optim.AdamW(reference:parameters(), { lr = 0.01 }), false, 1, 6)
  local whole, start = 0, make(1500):parameters()
  for i, p in ipairs(model:parameters()) do
    whole = whole + p:numel()
    assert(p:eq(twin:parameters()[i]):all():item(), state_dtype .. " after a checkpoint")
    local there, way = reference:parameters()[i]:detach(), start[i]:detach()
    assert((p:detach() - there):norm():item() < 0.1 * (there - way):norm():item(), state_dtype .. " against float32")
  end
  assert(zero:state_bytes() <= (whole / size + 256) * bytes, "bytes of " .. state_dtype)
  if state_dtype == "int8" then
    local plain = optim.ZeroRedundancy(optim.AdamW, make(1500):parameters(), { lr = 0.01 })
    local ok, message = pcall(plain.load_state_dict, plain, saved)
    assert(not ok and tostring(message):find("state_dtype", 1, true), message)
  end
end

-- ---- a scaler, clipping, a schedule: as in one process that has all rows ----

-- Weights after 6 steps, and what happened in each. lost: an inf in one element of one rank's gradient in step 3.
local function scaled(rows, o)
  local model = make()
  local opt = rows and optim.ZeroRedundancy(optim.AdamW, model:parameters(), { lr = 0.01 })
    or optim.AdamW(model:parameters(), { lr = 0.01 })
  local scaler = tl.amp.GradScaler { init_scale = 1024, growth_interval = 2, enabled = o.scaler }
  local schedule = optim.lr_scheduler.StepLR(opt, 2, 0.5)
  local log = {}
  for step = 1, 6 do
    tl.manual_seed(100 + step)
    local x, y = tl.randn(4 * size, 7), tl.randn(4 * size, 5)
    if rows then x, y = x:narrow(1, rank * 4 + 1, 4), y:narrow(1, rank * 4 + 1, 4) end
    opt:zero_grad()
    scaler:scale(nn.MSELoss()(model(x), y)):backward()
    if step == 3 and o.lost and (not rows or rank == o.lost) then
      model:parameters()[o.of].grad:view(-1):narrow(1, 1, 1):fill_(math.huge)
    end
    local norm
    if o.clip then
      if o.scaler then scaler:unscale_(opt) elseif rows then opt:average_gradients() end
      norm = nn.utils.clip_grad_norm_(model:parameters(), o.clip)
      norm = type(norm) == "number" and norm or norm:item()
    end
    scaler:step(opt)
    scaler:update()
    schedule:step()
    log[step] = { scale = scaler:get_scale(), norm = norm or 0, lr = opt.param_groups[1].lr }
  end
  return model, log
end

local function near(a, b) return a == b or (a ~= a and b ~= b) or math.abs(a - b) <= 1e-5 * math.abs(b) end

for _, o in ipairs {
  { scaler = false, clip = 0.1 }, { scaler = true }, { scaler = true, clip = 0.1 },
  { scaler = true, lost = 0, of = 1 }, { scaler = true, lost = 0, of = 4 }, { scaler = true, lost = size - 1, of = 1 },
  { scaler = true, clip = 0.1, lost = 0, of = 4 }, { scaler = true, clip = 0.1, lost = size - 1, of = 1 },
} do
  local model, log = scaled(true, o)
  local reference, expected = scaled(false, o)
  local what = ("scaler %s, clip %s, lost %s of %s, rank %d"):format(o.scaler, o.clip, o.lost, o.of, rank)
  for step, e in ipairs(expected) do
    for name, value in pairs(e) do
      assert(near(log[step][name], value), ("%s: %s of step %d is %g, not %g"):format(what, name, step, log[step][name],
        value))
    end
  end
  assert(not o.scaler or expected[3].scale == (o.lost and 1024 or 2048), what)
  for key, value in pairs(reference:state_dict()) do
    assert(model:state_dict()[key]:allclose(value, { rtol = 1e-5, atol = 1e-6 }), what .. ": " .. key)
  end
end
dist.print(("ok zero on %d"):format(size))
