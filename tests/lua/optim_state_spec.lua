-- Adam and AdamW with state_dtype: options, state dicts and files, gradient scaling, other devices, recorded steps.
local tl = require "tlua"
local optim = tl.optim
local against = dofile "tests/lua/against_cpu.lua"

local function raises(pattern, f, ...)
  local ok, message = pcall(f, ...)
  assert.is_false(ok)
  assert.matches(pattern, message)
end

local function train(opt, params, steps)
  for _ = 1, steps do
    for _, p in ipairs(params) do p.grad = p:detach():clone() end
    opt:step()
  end
end

local function start(dtype, device)
  tl.manual_seed(5)
  local p = tl.randn(4200, { device = "cpu" }):to(dtype or "float32")
  return p:to(device or tl.get_default_device()):requires_grad_(true)
end

describe("state_dtype", function()
  it("is an option of Adam and AdamW, for each group", function()
    local p, q = start(), start()
    local groups = { { params = { p } }, { params = { q }, state_dtype = "int8" } }
    local opt = optim.AdamW(groups, { state_dtype = "bfloat16" })
    assert.are.equal("float32", optim.Adam({ p }).param_groups[1].state_dtype)
    assert.are.equal("bfloat16", opt.param_groups[1].state_dtype)
    assert.are.equal("int8", opt.param_groups[2].state_dtype)
    assert.matches("state_dtype: int8", tostring(opt))
    train(opt, { p, q }, 1)
    local state = opt:state_dict().state
    assert.are.equal("bfloat16", state[1].exp_avg_sq.dtype)
    assert.is_nil(state[1].exp_avg_sq_absmax)
    assert.are.equal("uint8", state[2].exp_avg.dtype)
    assert.are.same({ 17 }, state[2].exp_avg_absmax.shape)
    raises('"float32", "bfloat16" or "int8", got float16', optim.Adam, { p }, { state_dtype = "float16" })
    raises("got 8", optim.Adam, { p }, { state_dtype = 8 })
    raises("no option 'state_dtype'", optim.SGD, { p }, { state_dtype = "int8" })
    raises("did you mean 'state_dtype'", optim.Adam, { p }, { statedtype = "int8" })
    local wide = start "float64"
    raises("parameter 1 is float64", train, optim.Adam({ wide }, { state_dtype = "int8" }), { wide }, 1)
    raises("amsgrad", train, optim.Adam({ p }, { state_dtype = "int8", amsgrad = true }), { p }, 1)
  end)

  for _, state_dtype in ipairs { "bfloat16", "int8" } do
    for _, dtype in ipairs { "float32", "float16", "bfloat16" } do
      it(state_dtype .. " of " .. dtype .. " survives a file", function()
        local p, path = start(dtype), os.tmpname()
        local opt = optim.AdamW({ p }, { lr = 0.01, state_dtype = state_dtype })
        train(opt, { p }, 3)
        tl.save(path, opt:state_dict())
        local q = p:detach():clone():requires_grad_(true)
        local other = optim.AdamW({ q })
        other:load_state_dict(tl.load(path))
        os.remove(path)
        train(opt, { p }, 4)
        train(other, { q }, 4)
        assert.is_true(p:eq(q):all():item())
        assert.are.equal(state_dtype, other.param_groups[1].state_dtype)
      end)
    end
  end

  it("takes float32 state over, and gives it back", function()
    local p = start()
    local opt = optim.Adam({ p })
    train(opt, { p }, 2)
    local dict = opt:state_dict()
    local exact = dict.state[1].exp_avg:clone()
    dict.param_groups[1].state_dtype = "int8"
    local other = optim.Adam({ p })
    other:load_state_dict(dict)
    dict = other:state_dict()
    assert.are.equal("uint8", dict.state[1].exp_avg.dtype)
    dict.param_groups[1].state_dtype = "float32"
    opt:load_state_dict(dict)
    local most = exact:abs():max():item()
    assert.is_true(opt:state_dict().state[1].exp_avg:allclose(exact, { rtol = 0, atol = most * 0.0071 }))
  end)

  it("refuses codes that are not whole, and keeps what it has", function()
    local p = start()
    local opt = optim.Adam({ p }, { state_dtype = "int8" })
    train(opt, { p }, 1)
    local function state(pattern, change)
      local dict = opt:state_dict()
      for name, value in pairs(change) do dict.state[1][name] = value or nil end
      raises(pattern, opt.load_state_dict, opt, dict)
    end
    state("needs the codes", { exp_avg = false })
    state("codes need their 'exp_avg_absmax'", { exp_avg_absmax = false })
    state("needs the codes that belong to it", { exp_avg_absmax = 3 })
    state("unknown entry 'avg_absmax'", { avg_absmax = tl.ones(17) })
    state("it has 17 blocks", { exp_avg_absmax = tl.ones(16) })
    train(opt, { p }, 1)
  end)

  it("works with a gradient scaler", function()
    for _, state_dtype in ipairs { "bfloat16", "int8" } do
      local p, q = start(), start()
      local scaler = tl.amp.GradScaler { init_scale = 1024 }
      local opt = optim.AdamW({ p }, { state_dtype = state_dtype })
      local plain = optim.AdamW({ q }, { state_dtype = state_dtype })
      for step = 1, 4 do
        p.grad, q.grad = nil, nil
        local bad = step == 2
        scaler:scale((p * p):sum() * (bad and math.huge or 1)):backward()
        scaler:step(opt)
        scaler:update()
        if not bad then
          (q * q):sum():backward()
          plain:step()
        end
      end
      assert.are.equal(3, opt:state_dict().state[1].step)
      assert.is_true(p:eq(q):all():item())
    end
  end)

  it("gives the same bits on every device", function()
    for _, state_dtype in ipairs { "bfloat16", "int8" } do
      for _, dtype in ipairs { "float32", "float16", "bfloat16" } do
        for _, stochastic in ipairs { false, true } do
          local options = { lr = 0.01, state_dtype = state_dtype, stochastic_rounding = stochastic }
          local here = start(dtype, "cpu")
          train(optim.AdamW({ here }, options), { here }, 3)
          local there = start(dtype)
          train(optim.AdamW({ there }, options), { there }, 3)
          against.same(here:detach(), there:detach(), 0, state_dtype .. " of " .. dtype)
        end
      end
    end
  end)

  local gpu = tl.get_default_device():find "cuda";
  (gpu and it or pending)("goes on in recorded steps", function()
    for _, state_dtype in ipairs { "bfloat16", "int8" } do
      local p, q = start(), start()
      local recorded = optim.AdamW({ p }, { state_dtype = state_dtype })
      local plain = optim.AdamW({ q }, { state_dtype = state_dtype })
      train(recorded, { p }, 1)
      train(plain, { q }, 8) -- one, three to warm up, four replays
      local replay = tl.cuda.graph(function()
        p.grad:copy_(p:detach())
        recorded:step()
      end)
      for _ = 1, 4 do replay() end
      against.same(q:detach():cpu(), p:detach(), 0, state_dtype)
    end
  end)
end)
