-- tl.utils.checkpoint: gradients as without it: nested, with dropout, autocast, several results, plain arguments,
-- modules; errors inside; recorded steps. memory_plan_spec.lua has how much memory it saves.
local tl = require "tlua"
local nn, F, checkpoint = tl.nn, tl.F, tl.utils.checkpoint

local function raises(part, f, ...)
  local ok, message = pcall(f, ...)
  assert.is_false(ok)
  assert.is_truthy(tostring(message):find(part, 1, true), tostring(message))
end

-- What run(call) leaves: its result, the gradients of `params`, and the generator's next number.
local function outcome(params, run, call)
  for _, p in ipairs(params) do p.grad = nil end
  tl.manual_seed(11)
  local loss = run(call)
  loss:backward()
  local list = { loss:item(), tl.rand(1):item() }
  for _, p in ipairs(params) do list[#list + 1] = p.grad and p.grad:tolist() or false end
  return list
end

local function plain(f, ...) return f(...) end

local function same(params, run)
  assert.are.same(outcome(params, run, plain), outcome(params, run, checkpoint))
end

local function leaf(...) return tl.randn(...):requires_grad_(true) end

describe("checkpoint", function()
  before_each(function() tl.manual_seed(3) end)

  it("inside checkpoint, with dropout in both", function()
    local x, a, b = leaf(4, 6), nn.Linear(6, 6), nn.Linear(6, 6)
    local params = { x, a.weight, a.bias, b.weight, b.bias }
    same(params, function(call)
      return call(function(h)
        h = F.dropout(a(h), { p = 0.5 })
        return call(function(i) return F.dropout(b(i):tanh(), { p = 0.3 }) * i end, h)
      end, x):sum()
    end)
  end)

  it("of one layer after another", function()
    local x, layers, params = leaf(4, 6), {}, {}
    for i = 1, 4 do layers[i] = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.2), nn.GELU()) end
    for _, layer in ipairs(layers) do
      for _, p in ipairs(layer:parameters()) do params[#params + 1] = p end
    end
    params[#params + 1] = x
    same(params, function(call)
      local h = x
      for _, layer in ipairs(layers) do h = call(layer, h) end
      return h:square():sum()
    end)
  end)

  it("takes anything and gives several results", function()
    local x, y, n = leaf(3), leaf(3), leaf(3)
    same({ x, y, n }, function(call)
      local p, q, text, r, none = call(function(a, scale, b, options, absent)
        assert.is_nil(absent)
        return a * b * scale, (a + b + n):exp(), options.name, a:gt(0), nil
      end, x, 2.5, y, { name = "yes" }, nil)
      assert.are.equal("yes", text)
      assert.are.equal("bool", r.dtype)
      assert.is_nil(none)
      return p:sum() + q:sum()
    end)
    -- a result without a gradient
    same({ x, y }, function(call)
      local p = call(function(a, b) return a * b, a:exp() end, x, y)
      return p:sum()
    end)
  end)

  it("keeps autocast and its caches apart", function()
    local x, w = leaf(4, 8), leaf(8, 8)
    local device = tl.get_default_device()
    same({ x, w }, function(call)
      local y = tl.amp.autocast({ device = device, dtype = "bfloat16" }, function()
        return call(function(h) return h:matmul(w):gelu():matmul(w) end, x)
      end)
      assert.are.equal("bfloat16", y.dtype)
      return y:float():sum()
    end)
  end)

  it("gives parameters their gradients when its arguments need none", function()
    local x, a = tl.randn(4, 6), nn.Linear(6, 2)
    same({ a.weight, a.bias }, function(call) return call(a, x):sum() end)
  end)

  it("adds to gradients that are there", function()
    local x, a = leaf(4, 6), nn.Linear(6, 2)
    local function twice(call)
      call(a, x):sum():backward()
      return call(a, x):sum()
    end
    same({ x, a.weight, a.bias }, twice)
  end)

  it("does nothing where gradients are not recorded", function()
    local runs = 0
    local y = tl.no_grad(checkpoint, function(a)
      runs = runs + 1
      return a * 2
    end, leaf(3))
    assert.is_false(y.requires_grad)
    assert.are.equal(1, runs)
  end)

  it("leaves everything as it was after an error in the second run", function()
    local x, runs = leaf(3), 0
    local function f(a)
      runs = runs + 1
      tl.rand(5)
      if runs == 2 then error("second run", 0) end
      return a:exp()
    end
    local y = checkpoint(f, x):sum()
    local state, on = tl.get_rng_state(), tl.is_grad_enabled()
    raises("second run", y.backward, y)
    assert.are.same(state, tl.get_rng_state())
    assert.are.equal(on, tl.is_grad_enabled())
    assert.is_false(tl.amp.is_autocast_enabled())
    assert.is_nil(x.grad)
    checkpoint(f, x):sum():backward() -- and works again
    assert.is_truthy(x.grad)
  end)

  it("sees changes of what it kept", function()
    local x = leaf(3)
    local h = x * 2
    local y = checkpoint(function(a) return a:exp() end, h)
    tl.no_grad(h.mul_, h, 2)
    raises("modified in place", function() y:sum():backward() end)
  end)

  it("refuses what cannot be called", function()
    raises("argument 1 must be a function", checkpoint, 3)
    raises("argument 1 must be a function", checkpoint, tl.ones(1))
  end)

  local gpu = tl.get_default_device():find "cuda";
  (gpu and it or pending)("is recorded with its step", function()
    local function training(use)
      tl.manual_seed(5)
      local model, x = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2)), tl.randn(6, 4)
      local opt = tl.optim.SGD(model:parameters(), { lr = 0.1 })
      local function step()
        opt:zero_grad()
        use(model, x):square():sum():backward()
        opt:step()
      end
      return model, step
    end
    tl.manual_seed(1)
    local model, step = training(checkpoint)
    local replay = tl.cuda.graph(step)
    for _ = 1, 3 do replay() end
    local other, eager = training(checkpoint)
    for _ = 1, 6 do eager() end
    for i, p in ipairs(model:parameters()) do assert.is_true(p:eq(other:parameters()[i]):all():item()) end
  end)
end)

describe("checkpoint_sequential", function()
  it("divides a Sequential", function()
    tl.manual_seed(4)
    local x, model = leaf(3, 5), nn.Sequential()
    for _ = 1, 7 do model:add(nn.Linear(5, 5)):add(nn.Tanh()) end
    local params = model:parameters()
    params[#params + 1] = x
    local expected = outcome(params, function() return model(x):sum() end)
    for segments = 1, 14 do
      local run = function() return tl.utils.checkpoint_sequential(model, segments, x):sum() end
      assert.are.same(expected, outcome(params, run))
    end
    raises("15 segments of 14 modules", tl.utils.checkpoint_sequential, model, 15, x)
    raises("0 segments", tl.utils.checkpoint_sequential, model, 0, x)
    raises("list of modules, got nil", tl.utils.checkpoint_sequential, nil, 1, x)
    raises("list of modules is empty", tl.utils.checkpoint_sequential, {}, 1, x)
    raises("element 1 must be a module or function, got a number", tl.utils.checkpoint_sequential, { 3 }, 1, x)
  end)
end)
