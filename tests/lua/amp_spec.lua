-- tl.amp: autocast blocks, the gradient scaler against PyTorch's curves, bfloat16 training without a scaler.
local tl = require "tlua"
local amp, nn, optim, F = tl.amp, tl.nn, tl.optim, tl.F
local golden = dofile("tests/golden/amp.lua")

local function raises(pattern, f, ...)
  local ok, message = pcall(f, ...)
  assert.is_false(ok)
  assert.matches(pattern, message)
end

local here = tl.get_default_device()
local half = { device = here, dtype = "float16" }
local function parameter(values, dtype) return tl.tensor(values, { dtype = dtype, requires_grad = true }) end

describe("autocast", function()
  it("returns what f returns, and hands it its arguments", function()
    local function f(...) return select("#", ...), nil, ... end
    assert.are.same({ 2, nil, "a", nil, n = 5 }, (function(...)
      return { n = select("#", ...) + 1, ... }
    end)(amp.autocast(half, f, "a", nil)))
  end)

  it("casts by its lists", function()
    local x, w = tl.rand(2, 3, 8, 8), tl.rand(4, 3, 3, 3)
    local low, full = tl.rand(4, 4):half(), tl.rand(4, 4)
    amp.autocast(half, function()
      for name, y in pairs {
        matmul = full:matmul(full), mm = full:mm(low), bmm = tl.rand(2, 3, 4):bmm(tl.rand(2, 4, 3)),
        addmm = full:addmm(full, full), linear = F.linear(full, full), conv = F.conv2d(x, w),
        einsum = tl.einsum("ij,jk->ik", full, low), module = nn.Conv2d(3, 2, 3)(x),
        transpose = nn.ConvTranspose2d(3, 2, 3)(x), relu = low:relu(), mean = low:mean(), add = low + low,
        batch_norm = nn.BatchNorm2d(3)(x:half()),
      } do
        assert.are.equal("float16", y.dtype, name)
      end
      for name, y in pairs {
        softmax = low:softmax(1), log_softmax = low:log_softmax(1), exp = low:exp(), log = low:log(), pow = low ^ 2,
        rsqrt = low:rsqrt(), sum = low:sum(), prod = low:prod(), cumsum = low:cumsum(1), norm = low:norm(),
        layer_norm = nn.LayerNorm(4)(low), group_norm = nn.GroupNorm(2, 4)(low), rms_norm = nn.RMSNorm(4)(low),
        mse = F.mse_loss(low, low),
        cross_entropy = F.cross_entropy(low, tl.tensor({ 0, 1, 2, 3 }, { dtype = "int64" })),
        bce = F.binary_cross_entropy_with_logits(low, low), cosine = F.cosine_similarity(low, low),
        cat = tl.cat({ low, full }, 1), stack = tl.stack({ full, low }, 1), addcmul = low:addcmul(full, low),
        dot = low:select(1, 1):dot(full:select(1, 1)), plain = full + full,
      } do
        assert.are.equal("float32", y.dtype, name)
      end
      assert.are.equal("float64", full:double():matmul(full:double()).dtype)
      raises("BCEWithLogits", F.binary_cross_entropy, full, full)
    end)
    assert.are.equal("float32", full:matmul(full).dtype)
  end)

  it("is bfloat16 on the CPU unless something else is asked for", function()
    local x = tl.rand(2, 2, { device = "cpu" })
    assert.are.equal("bfloat16", amp.autocast({ device = "cpu" }, function() return x:mm(x) end).dtype)
    assert.are.equal("bfloat16", amp.autocast({ device = "cpu" }, amp.get_autocast_dtype, "cpu"))
    assert.are.equal("float16", amp.get_autocast_dtype "cuda")
  end)

  it("nests, and an error leaves no block open", function()
    local x = tl.rand(2, 2)
    amp.autocast(half, function()
      assert.is_true(amp.is_autocast_enabled())
      amp.autocast({ device = here, enabled = false }, function()
        assert.is_false(amp.is_autocast_enabled(here))
        assert.are.equal("float32", x:mm(x).dtype)
      end)
      local ok, message = pcall(amp.autocast, { device = here, dtype = "bfloat16" }, function() error({ "mine" }) end)
      assert.is_false(ok)
      assert.are.same({ "mine" }, message)
      assert.are.equal("float16", x:mm(x).dtype)
    end)
    assert.is_false(pcall(amp.autocast, half, error, "oops"))
    assert.is_false(amp.is_autocast_enabled())
    assert.are.equal("float32", x:mm(x).dtype)
  end)

  it("refuses what it cannot do", function()
    raises("did you mean 'dtype'", amp.autocast, { dtyp = "float16" }, print)
    raises("argument 2 must be a function, got nil", amp.autocast, half)
    raises("float16 or bfloat16, got float32", amp.autocast, { device = "cpu", dtype = "float32" }, print)
    if tl.device_count "cuda" == 0 then
      raises("libtlua%-cuda", amp.autocast, { device = "cuda" }, print)
      assert.are.equal(7, amp.autocast({ device = "cuda", enabled = false }, function() return 7 end))
    end
    assert.is_false(amp.is_autocast_enabled())
  end)

  it("keeps gradients float32, and those of a forward after one without gradients", function()
    local m, x = nn.Linear(4, 3), tl.rand(5, 4)
    local loss = amp.autocast(half, function()
      tl.no_grad(function() return m(x) end)
      return m(x):sum()
    end)
    loss:backward()
    assert.are.equal("float32", m.weight.grad.dtype)
    assert.is_true(m.weight.grad:allclose(x:half():float():sum(1):expand(3, 4), { rtol = 2e-3, atol = 1e-3 }))
  end)

  it("comes back for a checkpoint's second run", function()
    local m, x = nn.Linear(4, 4), tl.rand(2, 4)
    local seen = {}
    local y = amp.autocast(half, function()
      return tl.utils.checkpoint(function(a)
        local y = m(a)
        seen[#seen + 1] = y.dtype
        return y
      end, x)
    end)
    y:sum():backward()
    assert.are.same({ "float16", "float16" }, seen)
    assert.is_false(amp.is_autocast_enabled())
    y = tl.utils.checkpoint(function(a)
      local h = m(a)
      seen[#seen + 1] = h.dtype
      return h
    end, x)
    amp.autocast(half, function() y:sum():backward() end) -- and does not come from where backward is called
    assert.are.same({ "float16", "float16", "float32", "float32" }, seen)
  end)

  it("does not convert in backward, wherever that is called", function()
    local m, x = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 1)), tl.rand(6, 4)
    local function gradient(inside)
      m:zero_grad()
      local loss = amp.autocast(half, function()
        local loss = F.mse_loss(m(x), tl.ones(6, 1))
        if inside then loss:backward() end
        return loss
      end)
      if not inside then loss:backward() end
      return m[1].weight.grad:clone()
    end
    assert.is_true(gradient(true):allclose(gradient(false), { rtol = 0, atol = 0 }))
  end)
end)

describe("GradScaler", function()
  local function near(expected, value)
    if expected ~= expected then return assert.is_true(value ~= value) end
    if expected == value then return end
    assert.is_true(math.abs(expected - value) <= 2e-5 * math.max(1, math.abs(expected)),
      ("%.9g is not %.9g"):format(value, expected))
  end

  it("goes PyTorch's way with two optimizers, overflows and clipping", function()
    local a, b = parameter { 1, -2, 0.5 }, parameter { 0.3, -0.7 }
    local first = optim.SGD({ a }, { lr = 0.1, momentum = 0.9 })
    local second = optim.Adam({ b }, { lr = 0.05 })
    local scaler = amp.GradScaler(golden.options)
    for i, step in ipairs(golden.steps) do
      first:zero_grad()
      second:zero_grad()
      local loss = (a * tl.tensor(step.ga)):sum() + (b * tl.tensor(step.gb)):sum()
      loss = loss + (a * a):sum() / 2 + (b * b):sum() / 2
      scaler:scale(loss):backward()
      if i % 2 == 0 then
        scaler:unscale_(first)
        nn.utils.clip_grad_norm_({ a }, 0.5)
      end
      scaler:step(first)
      scaler:step(second)
      scaler:update()
      near(step.loss, loss:item())
      assert.are.equal(step.scale, scaler:get_scale())
      assert.are.equal(step.tracker, scaler:state_dict()._growth_tracker)
      local va, vb = a:tolist(), b:tolist()
      for k = 1, 3 do near(step.a[k], va[k]) end
      for k = 1, 2 do near(step.b[k], vb[k]) end
    end
  end)

  it("halves at an overflow, grows at the interval, and moves nothing else", function()
    local p = parameter { 1, 2 }
    local opt = optim.Adam({ p }, { lr = 0.1 })
    local scaler = amp.GradScaler { init_scale = 8, growth_interval = 3 }
    local scales = {}
    for step = 1, 8 do
      p.grad = tl.tensor { step == 4 and math.huge or 8, 8 }
      local before, count = p:tolist(), (opt:state_dict().state[1] or { step = 0 }).step
      local stepped = scaler:step(opt)
      if here == "cpu" then assert.are.equal(step ~= 4, stepped) end -- a GPU is not asked
      if step == 4 then
        assert.are.same(before, p:tolist())
        assert.are.equal(count, opt:state_dict().state[1].step)
      end
      scaler:update()
      scales[step] = scaler:get_scale()
    end
    assert.are.same({ 8, 8, 16, 8, 8, 8, 16, 16 }, scales)
  end)

  it("does not let a schedule warn of a skipped first step", function()
    local p = parameter { 1 }
    local opt = optim.SGD({ p }, { lr = 1 })
    local schedule = optim.lr_scheduler.StepLR(opt, { step_size = 1, gamma = 0.5 })
    local scaler, said = amp.GradScaler {}, {}
    p.grad = tl.tensor { math.huge }
    scaler:step(opt)
    scaler:update()
    local stderr = io.stderr
    rawset(io, "stderr", { write = function(_, ...) said[#said + 1] = table.concat { ... } end })
    schedule:step()
    rawset(io, "stderr", stderr)
    assert.are.same({}, said)
  end)

  it("saves and restores its state", function()
    local scaler = amp.GradScaler { init_scale = 12, growth_factor = 3, backoff_factor = 0.25, growth_interval = 7 }
    local p = parameter { 1 }
    local opt = optim.SGD({ p }, { lr = 1 })
    p.grad = tl.tensor { 1 }
    scaler:step(opt)
    scaler:update()
    local expected = { scale = 12, growth_factor = 3, backoff_factor = 0.25, growth_interval = 7, _growth_tracker = 1 }
    assert.are.same(expected, scaler:state_dict())
    local other = amp.GradScaler {}
    other:load_state_dict(scaler:state_dict())
    assert.are.same(expected, other:state_dict())
    raises("empty", other.load_state_dict, other, {})
    raises("growth_factor must be a number", other.load_state_dict, other, { scale = 1 })
    other:set_growth_interval(3)
    other:set_growth_factor(4)
    other:set_backoff_factor(0.125)
    assert.are.equal(3, other:get_growth_interval())
    assert.are.equal(4, other:get_growth_factor())
    assert.are.equal(0.125, other:get_backoff_factor())
    raises("growth_factor must be greater than 1", other.set_growth_factor, other, 1)
    other:update(32)
    assert.are.equal(32, other:get_scale())
    other:update(tl.tensor(64))
    assert.are.equal(64, other:get_scale())
  end)

  it("is nothing when disabled", function()
    local scaler, p = amp.GradScaler { enabled = false }, parameter { 1 }
    local opt = optim.SGD({ p }, { lr = 1 })
    assert.are.same({}, scaler:state_dict())
    assert.are.equal(1, scaler:get_scale())
    assert.is_false(scaler:is_enabled())
    local loss = p * 1
    assert.are.equal(loss:item(), scaler:scale(loss):item())
    p.grad = tl.tensor { math.huge }
    scaler:unscale_(opt)
    scaler:step(opt)
    scaler:update()
    assert.are.equal(-math.huge, p:item())
    scaler:load_state_dict { scale = 3 }
    assert.are.same({}, scaler:state_dict())
  end)

  it("scales tables of losses", function()
    local scaler = amp.GradScaler { init_scale = 4 }
    local scaled = scaler:scale { a = tl.tensor { 1 }, { tl.tensor { 2 } } }
    assert.are.equal(4, scaled.a:item())
    assert.are.equal(8, scaled[1][1]:item())
  end)

  it("refuses calls out of order and wrong arguments", function()
    local p, scaler = parameter { 1 }, amp.GradScaler {}
    local opt = optim.SGD({ p }, { lr = 1 })
    raises("GradScaler.update: no optimizer", scaler.update, scaler)
    p.grad = tl.tensor { 1 }
    scaler:unscale_(opt)
    raises("GradScaler.unscale_: .* already", scaler.unscale_, scaler, opt)
    scaler:step(opt)
    raises("GradScaler.step: .* already", scaler.step, scaler, opt)
    raises("must be an optimizer, got nil", scaler.step, scaler)
    raises("closures", scaler.step, scaler, opt, print)
    raises("must be a tensor, got nil", scaler.scale, scaler)
    raises("must be a number", scaler.update, scaler, "2")
    raises("did you mean 'init_scale'", amp.GradScaler, { init_scal = 2 })
    local low = parameter({ 1 }, "float16")
    low.grad = tl.ones(1, { dtype = "float16" })
    raises("parameter 1 is float16", scaler.unscale_, scaler, optim.SGD({ low }, { lr = 1 }))
  end)
end)

describe("training in low precision", function()
  -- The loss of a small regression after some steps.
  local function learn(dtype, options, wrap)
    tl.manual_seed(3)
    local x = tl.randn(128, 8)
    local y = x:matmul(tl.arange(1, 9):view(8, 1) / 8)
    local m = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)):to(dtype)
    local opt = optim.Adam(m:parameters(), options)
    local last
    for _ = 1, 150 do
      opt:zero_grad()
      last = wrap(m, x, y, opt)
    end
    return last, m
  end

  local function plain(m, x, y, opt)
    local dtype = m:parameters()[1].dtype
    local loss = F.mse_loss(m(x:to(dtype)), y:to(dtype))
    loss:backward()
    opt:step()
    return loss:item()
  end

  it("needs no scaler in bfloat16, with masters or stochastic rounding", function()
    local full = learn("float32", { lr = 0.02 }, plain)
    local master, m = learn("bfloat16", { lr = 0.02 }, plain)
    local stochastic = learn("bfloat16", { lr = 0.02, stochastic_rounding = true }, plain)
    assert.are.equal("bfloat16", m[1].weight.dtype)
    assert.is_true(full < 0.03 and master < 0.06 and stochastic < 0.1, ("%g %g %g"):format(full, master, stochastic))
  end)

  it("learns under autocast with a scaler as in float32", function()
    local scaler = amp.GradScaler {}
    local full = learn("float32", { lr = 0.02 }, plain)
    local mixed = learn("float32", { lr = 0.02 }, function(m, x, y, opt)
      local loss = amp.autocast(half, function() return F.mse_loss(m(x), y) end)
      scaler:scale(loss):backward()
      scaler:unscale_(opt)
      nn.utils.clip_grad_norm_(m:parameters(), 10)
      scaler:step(opt)
      scaler:update()
      return loss:item()
    end)
    assert.is_true(mixed < 0.03 and math.abs(mixed - full) < 0.02, ("%g %g"):format(mixed, full))
  end)

  it("rounds stochastically without a bias, by the seed, whatever the threads", function()
    local n = 200000
    local function step(value, delta, seed)
      tl.manual_seed(seed)
      local p = tl.full({ n }, value, { dtype = "bfloat16", requires_grad = true })
      p.grad = tl.full({ n }, -delta, { dtype = "bfloat16" })
      local opt = optim.SGD({ p }, { lr = 1, stochastic_rounding = true })
      opt:step()
      assert.is_nil((opt:state_dict().state[1] or {}).master)
      return p:detach():float()
    end
    -- 1 and its upper neighbour 1 + 2^-7: the share of those that round up is delta * 2^7
    for _, share in ipairs { 1 / 16, 1 / 4, 0.75 } do
      local y = step(1, share / 128, 5)
      local up = (y:double():mean():item() - 1) * 128
      assert.is_true(math.abs(up - share) < 5 * math.sqrt(share * (1 - share) / n), ("%g %g"):format(up, share))
      assert.is_true(y:min():item() == 1 and y:max():item() == 1 + 1 / 128)
    end
    local below = (-1 - step(-1, -1 / 512, 5):double():mean():item()) * 128
    assert.is_true(math.abs(below - 0.25) < 0.01, tostring(below))
    assert.are.equal(2, step(1, 1, 5):mean():item()) -- what fits is not rounded
    local threads = tl.get_num_threads()
    local first = step(1, 1 / 512, 9)
    tl.set_num_threads(threads == 1 and 2 or 1)
    local second = step(1, 1 / 512, 9)
    tl.set_num_threads(threads)
    assert.is_true(first:allclose(second, { rtol = 0, atol = 0 }))
    assert.is_false(first:allclose(step(1, 1 / 512, 10), { rtol = 0, atol = 0 }))
    assert.are.equal(math.huge, step(3.38e38, 1e37, 1):min():item())
    local nan = step(0 / 0, 1, 1):max():item()
    assert.is_true(nan ~= nan)
  end)
end)
