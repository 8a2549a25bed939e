-- tl.optim: PyTorch's curves, groups, options, closures, state dicts, errors; nn.utils.
local tl = require "tlua"
local optim, utils = tl.optim, tl.nn.utils
local golden = dofile("tests/golden/optim.lua")

local function raises(pattern, f, ...)
  local ok, message = pcall(f, ...)
  assert.is_false(ok)
  assert.matches(pattern, message)
end

local function parameter(values, dtype) return tl.tensor(values, { dtype = dtype, requires_grad = true }) end

local function near(expected, value, tolerance)
  assert.is_true(math.abs(expected - value) <= tolerance * math.max(1, math.abs(expected)),
    ("%.12g is not %.12g"):format(value, expected))
end

-- f(op, ...) as the parameters move; the gradient is the parameter itself
local function train(opt, params, steps)
  for _ = 1, steps do
    for _, p in ipairs(params) do p.grad = p:detach():clone() end
    opt:step()
  end
end

describe("PyTorch's curves", function()
  for i, case in ipairs(golden) do
    for dtype, tolerance in pairs { float64 = 1e-10, float32 = 1e-5 } do
      it(("%d: %s in %s"):format(i, case.name, dtype), function()
        local p = parameter(golden.start, dtype)
        local opt = optim[case.name]({ p }, case.options)
        if case.name == "NAdam" then tolerance = math.max(tolerance, 1e-6) end -- PyTorch keeps mu_product in float32
        for step, grad in ipairs(golden.grads) do
          p.grad = tl.tensor(grad, { dtype = dtype })
          opt:step()
          local values = p:tolist()
          for k = 1, 3 do near(case.steps[step][k], values[k], tolerance) end
        end
      end)
    end
  end
end)

describe("groups", function()
  it("share memory with the engine", function()
    local a, b = parameter { 1 }, parameter { 1 }
    local opt = optim.SGD({ { params = { a } }, { params = b, lr = 0.5 } }, { lr = 0.1 })
    assert.are.equal(0.1, opt.param_groups[1].lr)
    assert.are.equal(0.5, opt.param_groups[2].lr)
    opt.param_groups[1].lr = 0.25
    a.grad, b.grad = tl.ones(1), tl.ones(1)
    opt:step()
    near(0.75, a:item(), 1e-7)
    near(0.5, b:item(), 1e-7)
  end)

  it("can be added", function()
    local a, b = parameter { 1 }, parameter { 1 }
    local opt = optim.Adam({ a }, { lr = 0.1, betas = { 0.8, 0.9 } })
    opt:add_param_group { params = { b }, lr = 0.2 }
    assert.are.same({ 0.8, 0.9 }, opt.param_groups[2].betas)
    assert.are.equal(0.2, opt.param_groups[2].lr)
    raises("another group", opt.add_param_group, opt, { params = { a } })
    assert.are.equal(2, #opt.param_groups)
  end)

  it("take a repeated parameter once", function()
    local a = parameter { 1 }
    local opt = optim.SGD({ a, a }, { lr = 0.1 })
    assert.are.equal(1, #opt.param_groups[1].params)
    a.grad = tl.ones(1)
    opt:step()
    near(0.9, a:item(), 1e-7)
  end)

  it("refuse what they do not know", function()
    local opt = optim.SGD({ parameter { 1 } }, { lr = 0.1 })
    local group = opt.param_groups[1]
    raises("did you mean 'momentum'", function() group.momentun = 0.9 end)
    raises("'lr' must be a number, got string", function() group.lr = "0.1" end)
    raises("'nesterov' must be a boolean", function() group.nesterov = 1 end)
    raises("parameters stay", function() group.params = {} end)
    assert.is_nil(group.betas)
    assert.is_nil(group.initial_lr)
  end)

  it("outlive their optimizer", function()
    local group = optim.SGD({ parameter { 1 } }, { lr = 0.3 }).param_groups[1]
    collectgarbage()
    collectgarbage()
    assert.are.equal(0.3, group.lr)
  end)
end)

describe("options", function()
  it("have PyTorch's defaults", function()
    local p = { parameter { 1 } }
    local lrs = { SGD = 1e-3, Adam = 1e-3, AdamW = 1e-3, RMSprop = 1e-2, Adagrad = 1e-2, NAdam = 2e-3, RAdam = 1e-3 }
    for name, lr in pairs(lrs) do assert.are.equal(lr, optim[name](p).param_groups[1].lr) end
    assert.are.equal(0.01, optim.AdamW(p).param_groups[1].weight_decay)
    assert.are.equal(1e-10, optim.Adagrad(p).param_groups[1].eps)
  end)

  it("are checked", function()
    local p = { parameter { 1 } }
    raises("SGD: there is no option 'learning_rate'", optim.SGD, p, { learning_rate = 1 })
    raises("Adam: there is no option 'beta', did you mean 'betas'", optim.Adam, p, { beta = { 0.9, 0.99 } })
    raises("Adam: there is no option 'momentum'", optim.Adam, p, { momentum = 0.9 })
    raises("lr must be at least 0", optim.SGD, p, { lr = -1 })
    raises("eps must be at least 0", optim.Adam, p, { eps = -1 })
    raises("beta 1 must be", optim.Adam, p, { betas = { 1, 0.9 } })
    raises("table of two numbers", optim.Adam, p, { betas = 0.9 })
    raises("nesterov needs", optim.SGD, p, { nesterov = true })
    raises("list of parameters is empty", optim.SGD, {}, { lr = 1 })
    raises("as model:parameters%(%) gives, got nil", optim.SGD)
    raises("as model:parameters%(%) gives, got a module", optim.SGD, tl.nn.Linear(1, 1))
    raises("parameter 2 must be a tensor, got string", optim.SGD, { p[1], "w" })
    raises("options are a table", optim.SGD, p, 0.1)
    raises("a group is a table", optim.SGD, { {} })
    raises("not a leaf", optim.SGD, { p[1] * 2 })
    raises("int64", optim.SGD, { tl.tensor({ 1 }, { dtype = "int64" }) })
  end)
end)

describe("a step", function()
  it("follows backward, in place and unrecorded", function()
    local w = parameter { 1, 2 }
    local opt = optim.SGD({ w }, { lr = 0.1 })
    local loss = (w * w):sum()
    loss:backward()
    opt:step()
    assert.is_true(w.is_leaf)
    near(0.8, w:tolist()[1], 1e-6)
    opt:zero_grad()
    assert.is_nil(w.grad)
    raises("modified in place", function()
      local product = (w * w):sum()
      w.grad = tl.ones(2)
      opt:step()
      product:backward()
    end)
  end)

  it("calls a closure with gradients on, and returns its loss", function()
    local w = parameter { 3 }
    local opt = optim.SGD({ w }, { lr = 0.1 })
    local loss = tl.no_grad(function()
      return opt:step(function()
        opt:zero_grad()
        local l = (w * w):sum()
        l:backward()
        return l
      end)
    end)
    assert.are.equal(9, loss:item())
    near(2.4, w:item(), 1e-6)
    raises("no luck", opt.step, opt, function() error("no luck") end)
    assert.is_true((w * 2).requires_grad)
  end)

  it("leaves parameters without a gradient alone", function()
    local a, b = parameter { 1 }, parameter { 1 }
    local opt = optim.AdamW({ a, b }, { lr = 0.1, weight_decay = 0.5 })
    a.grad = tl.zeros(1)
    opt:step()
    near(0.95, a:item(), 1e-6)
    assert.are.equal(1, b:item())
  end)

  it("can fill gradients with zeros instead of forgetting them", function()
    local a = parameter { 1 }
    local opt = optim.SGD({ a }, { lr = 0.1 })
    a.grad = tl.ones(1)
    local kept = a.grad
    opt:zero_grad(false)
    assert.are.equal(0, kept:item())
    opt:zero_grad { set_to_none = true }
    assert.is_nil(a.grad)
    raises("did you mean 'set_to_none'", opt.zero_grad, opt, { set_to_nil = true })
  end)
end)

describe("state dicts", function()
  local cases = {
    { "SGD", { lr = 0.1, momentum = 0.9, nesterov = true } }, { "Adam", { lr = 0.1, amsgrad = true } }, { "AdamW", {} },
    { "RMSprop", { momentum = 0.9, centered = true } }, { "Adagrad", { lr_decay = 0.1 } },
    { "NAdam", {} }, { "RAdam", {} },
  }
  for _, case in ipairs(cases) do
    it("let " .. case[1] .. " go on, whatever options the new one was made with", function()
      for _, dtype in ipairs { "float32", "float64", "bfloat16" } do
        local a, b = parameter({ 1, -2 }, dtype), parameter({ 3 }, dtype)
        local opt = optim[case[1]]({ { params = { a } }, { params = { b }, lr = 0.05 } }, case[2])
        train(opt, { a, b }, 2)
        local c, d = a:detach():clone():requires_grad_(true), b:detach():clone():requires_grad_(true)
        local other = optim[case[1]]({ { params = { c } }, { params = { d } } }, { lr = 7 })
        other:load_state_dict(opt:state_dict())
        assert.are.equal(0.05, other.param_groups[2].lr)
        train(opt, { a, b }, 8)
        train(other, { c, d }, 8)
        assert.are.same(a:tolist(), c:tolist())
        assert.are.same(b:tolist(), d:tolist())
      end
    end)
  end

  it("have PyTorch's form", function()
    local a, b = parameter { 1 }, parameter { 1 }
    local opt = optim.Adam({ a, b }, { betas = { 0.8, 0.9 } })
    a.grad = tl.ones(1)
    opt:step()
    local dict = opt:state_dict()
    assert.are.equal(1, dict.state[1].step)
    near(0.2, dict.state[1].exp_avg:item(), 1e-7)
    assert.is_nil(dict.state[1].max_exp_avg_sq)
    assert.is_nil(dict.state[2])
    assert.are.same({ 1, 2 }, dict.param_groups[1].params)
    assert.are.same({ 0.8, 0.9 }, dict.param_groups[1].betas)
  end)

  it("take PyTorch's 0-based numbers and tensor steps", function()
    local a = parameter { 1 }
    local opt = optim.Adam({ a })
    opt:load_state_dict {
      state = { [0] = { step = tl.tensor(3), exp_avg = tl.ones(1), exp_avg_sq = tl.ones(1) } },
      param_groups = { { lr = 0.5, params = { 0 }, foreach = false } },
    }
    assert.are.equal(3, opt:state_dict().state[1].step)
    assert.are.equal(0.5, opt.param_groups[1].lr)
  end)

  it("survive a file, together with a schedule's", function()
    local path = os.tmpname()
    local a, b = parameter { 1, 2 }, parameter { 3 }
    local opt = optim.Adam({ a, b }, { lr = 0.1 })
    local schedule = optim.lr_scheduler.OneCycleLR(opt, 1, { total_steps = 10 })
    train(opt, { b }, 2) -- a has no state
    schedule:step()
    tl.save(path, { opt = opt:state_dict(), schedule = schedule:state_dict() })
    local saved = tl.load(path)
    os.remove(path)
    local c = b:detach():clone():requires_grad_(true)
    local other = optim.Adam({ parameter { 1, 2 }, c })
    local again = optim.lr_scheduler.OneCycleLR(other, 1, { total_steps = 10 })
    other:load_state_dict(saved.opt)
    again:load_state_dict(saved.schedule)
    for _ = 1, 3 do
      train(opt, { b }, 1)
      train(other, { c }, 1)
      schedule:step()
      again:step()
    end
    assert.are.equal(b:item(), c:item())
    assert.are.same(schedule:get_last_lr(), again:get_last_lr())
  end)

  it("that do not fit change nothing", function()
    local a = parameter { 1 }
    local opt = optim.Adam({ a }, { lr = 0.1 })
    local function group(more)
      local g = { params = { 1 }, lr = 9 }
      for k, v in pairs(more or {}) do g[k] = v end
      return { g }
    end
    raises("state is a table", opt.load_state_dict, opt, {})
    raises("has 2 groups, the optimizer 1", opt.load_state_dict, opt, { state = {}, param_groups = { {}, {} } })
    raises("has 2 parameters", opt.load_state_dict, opt, { state = {}, param_groups = { { params = { 1, 2 } } } })
    raises("no option 'momentum'", opt.load_state_dict, opt, { state = {}, param_groups = group { momentum = 1 } })
    local function state(pattern, s)
      raises(pattern, opt.load_state_dict, opt, { state = { s }, param_groups = group() })
    end
    state("shape", { step = 1, exp_avg = tl.ones(2) })
    state("unknown entry", { step = 1, avg = tl.ones(1) })
    state("'step' must be a number", { step = "1" })
    assert.are.equal(0.1, opt.param_groups[1].lr)
  end)
end)

describe("low precision", function()
  it("keeps a float32 master that small steps add up in", function()
    for _, dtype in ipairs { "float16", "bfloat16" } do
      local a = parameter({ 1 }, dtype)
      local opt = optim.SGD({ a }, { lr = 1e-4 })
      a.grad = tl.ones(1, { dtype = dtype })
      for _ = 1, 100 do opt:step() end
      near(0.99, opt:state_dict().state[1].master:item(), 1e-5)
      assert.are.equal("float32", opt:state_dict().state[1].master.dtype)
    end
  end)
end)

describe("an optimizer", function()
  it("prints its options", function()
    local text = tostring(optim.Adam({ parameter { 1 } }, { lr = 0.125 }))
    assert.matches("^Adam %(", text)
    assert.matches("lr: 0.125", text)
    assert.matches("betas: {0.9, 0.999}", text)
  end)

  it("steps without allocating Lua memory", function()
    local a = parameter { 1 }
    local opt = optim.Adam({ a })
    a.grad = tl.ones(1)
    for _ = 1, 300 do opt:step() end
    collectgarbage()
    collectgarbage("stop")
    local before = collectgarbage("count")
    for _ = 1, 1000 do opt:step() end
    local after = collectgarbage("count")
    collectgarbage("restart")
    assert.is_true(after - before < 16, (after - before) .. " KB") -- traces may be compiled meanwhile
  end)
end)

describe("nn.utils", function()
  local function clip(...) -- the norm, which on a GPU is a tensor
    local norm = utils.clip_grad_norm_(...)
    return type(norm) == "number" and norm or norm:item()
  end

  it("clips by norm: 100 ones, max 1", function()
    local a, b = tl.zeros(60, { requires_grad = true }), tl.zeros(8, 5, { requires_grad = true })
    a.grad, b.grad = tl.ones(60), tl.ones(8, 5)
    near(10, clip({ a, b }, 1), 1e-12)
    near(0.1, a.grad:tolist()[60], 2e-7)
    near(0.1, b.grad:tolist()[8][5], 2e-7)
    near(0.1, clip({ a, b }, 100, { norm_type = "inf" }), 2e-7)
    near(0.1, clip(a, 100, { norm_type = math.huge }), 2e-7)
    near(6, clip(a, 100, { norm_type = 1 }), 1e-6)
  end)

  it("raises on request when the norm is not finite", function()
    local a = tl.zeros(2, { requires_grad = true })
    a.grad = tl.tensor { 1, 0 / 0 }
    raises("left as they are", utils.clip_grad_norm_, { a }, 1, { error_if_nonfinite = true })
    assert.are.equal(1, a.grad:tolist()[1])
    raises("did you mean 'norm_type'", utils.clip_grad_norm_, { a }, 1, { norm = 2 })
    raises("max_norm must be a number", utils.clip_grad_norm_, { a })
  end)

  it("clips by value", function()
    local a = tl.zeros(3, { requires_grad = true })
    a.grad = tl.tensor { -5, 0.5, 5 }
    utils.clip_grad_value_({ a }, 1)
    assert.are.same({ -1, 0.5, 1 }, a.grad:tolist())
    raises("must be a number", utils.clip_grad_value_, { a })
  end)

  it("makes one vector of all parameters, and back", function()
    local a, b = parameter { { 1, 2 }, { 3, 4 } }, parameter { 5 }
    local vector = utils.parameters_to_vector { a, b }
    assert.are.same({ 1, 2, 3, 4, 5 }, vector:tolist())
    vector:sum():backward()
    assert.are.same({ 1 }, b.grad:tolist())
    utils.vector_to_parameters(tl.arange(5) * 1.5, { a, b })
    assert.are.same({ { 0, 1.5 }, { 3, 4.5 } }, a:tolist())
    assert.are.same({ 6 }, b:tolist())
    assert.is_true(a.is_leaf)
    raises("5 elements", utils.vector_to_parameters, tl.zeros(4), { a, b })
  end)
end)
