-- tl.optim.lr_scheduler: PyTorch's curves, functions of the user, saving, warnings, errors.
local tl = require "tlua"
local optim = tl.optim
local S = optim.lr_scheduler
local golden = dofile("tests/golden/lr_scheduler.lua")

local function raises(pattern, f, ...)
  local ok, message = pcall(f, ...)
  assert.is_false(ok)
  assert.matches(pattern, message)
end

local function near(expected, value)
  assert.is_true(math.abs(expected - value) <= 1e-9 * math.max(1, math.abs(expected)),
    ("%.12g is not %.12g"):format(value, expected))
end

-- SGD with momentum over two groups that has stepped, as optim.py makes it
local function optimizer()
  local opt = optim.SGD({
    { params = tl.zeros(1, { requires_grad = true }), lr = 0.5 },
    { params = tl.zeros(1, { requires_grad = true }), lr = 0.1 },
  }, { lr = 1, momentum = 0.9 })
  opt:step()
  return opt
end

local function make(code, opt)
  local chunk = assert(loadstring("local opt, S = ... return " .. code))
  return chunk(opt, S)
end

local function sgd(lr)
  local opt = optim.SGD({ tl.zeros(1, { requires_grad = true }) }, { lr = lr })
  opt:step()
  return opt
end

local function row(opt) return opt.param_groups[1].lr, opt.param_groups[2].lr, opt.param_groups[1].momentum end

describe("PyTorch's curves", function()
  for _, case in ipairs(golden) do
    it(case.make, function()
      local opt = optimizer()
      local schedule = make(case.make, opt)
      for i, expected in ipairs(case.rows) do
        local a, b, momentum = row(opt)
        near(expected[1], a)
        near(expected[2], b)
        near(expected[3], momentum)
        assert.are.same({ a, b }, schedule:get_last_lr())
        if case.metric then schedule:step(golden.metrics[i])
        elseif i < 30 then schedule:step() end
      end
    end)
  end
end)

describe("a state dict", function()
  for _, case in ipairs(golden) do
    it("resumes " .. case.make, function()
      for _, at in ipairs { 1, 8, 15 } do
        local opt = optimizer()
        local schedule = make(case.make, opt)
        for i = 1, at - 1 do schedule:step(case.metric and golden.metrics[i] or nil) end
        local saved, saved_schedule = opt:state_dict(), schedule:state_dict()
        opt = optimizer()
        schedule = make(case.make, opt)
        opt:load_state_dict(saved)
        schedule:load_state_dict(saved_schedule)
        for i = at, 30 do
          local a, b, momentum = row(opt)
          near(case.rows[i][1], a)
          near(case.rows[i][2], b)
          near(case.rows[i][3], momentum)
          if case.metric then schedule:step(golden.metrics[i])
          elseif i < 30 then schedule:step() end
        end
      end
    end)
  end

  it("that does not fit is refused", function()
    local s = S.StepLR(sgd(1), 3)
    raises("last_epoch and step_count", s.load_state_dict, s, {})
    raises("base_lrs must have 1 values", s.load_state_dict, s, { last_epoch = 1, step_count = 2, base_lrs = { 1, 2 } })
    raises("'T_cur' must be a number", s.load_state_dict, s, { last_epoch = 1, step_count = 2, T_cur = "1" })
    raises("1 schedules, this one 0", s.load_state_dict, s, { last_epoch = 1, step_count = 2, schedulers = { {} } })
    assert.are.equal(0, s:state_dict().last_epoch)
  end)
end)

describe("AdamLR", function()
  it("is inverse-time decay", function()
    local opt = optim.Adam({ tl.zeros(1, { requires_grad = true }) }, { lr = 0.01 })
    local s = S.AdamLR(opt, { lr_decay = 0.01 })
    opt:step()
    for t = 0, 50 do
      near(0.01 / (1 + 0.01 * t), opt.param_groups[1].lr)
      s:step()
    end
  end)
end)

describe("OneCycleLR", function()
  it("cycles beta1 of Adam, and leaves beta2", function()
    local opt = optim.Adam({ tl.zeros(1, { requires_grad = true }) }, { lr = 0.01 })
    local s = S.OneCycleLR(opt, 1, { total_steps = 10 })
    assert.are.same({ 0.95, 0.999 }, opt.param_groups[1].betas)
    opt:step()
    s:step()
    s:step()
    near(0.85, opt.param_groups[1].betas[1])
  end)

  it("ends after total_steps", function()
    local s = S.OneCycleLR(sgd(1), 1, { epochs = 1, steps_per_epoch = 2 })
    s:step()
    s:step()
    raises("step 3 of a schedule of 2", s.step, s)
    raises("go together", S.OneCycleLR, sgd(1), 1, { epochs = 1 })
    raises("total_steps is missing", S.OneCycleLR, sgd(1), 1)
  end)
end)

describe("CosineAnnealingWarmRestarts", function()
  it("steps to fractions of an epoch", function()
    local opt = sgd(1)
    local s = S.CosineAnnealingWarmRestarts(opt, 10, { T_mult = 2 })
    s:step(2.5)
    near((1 + math.cos(math.pi * 0.25)) / 2, opt.param_groups[1].lr)
    s:step(20) -- 10 into a period of 20
    near(0.5, opt.param_groups[1].lr)
    s:step()
    near((1 + math.cos(math.pi * 11 / 20)) / 2, opt.param_groups[1].lr)
  end)
end)

describe("functions of the user", function()
  it("are called with the number of steps, from 0", function()
    local seen = {}
    local s = S.LambdaLR(sgd(1), function(t)
      seen[#seen + 1] = t
      return 1
    end)
    s:step()
    s:step()
    assert.are.same({ 0, 1, 2 }, seen)
  end)

  it("may fail: the schedule stays where it was", function()
    local opt = sgd(2)
    local good = true
    local s = S.LambdaLR(opt, function() return good and 1 or error("bad day") end)
    good = false
    raises("bad day", s.step, s)
    assert.are.equal(0, s:state_dict().last_epoch)
    good = true
    s:step()
    assert.are.equal(1, s:state_dict().last_epoch)
    raises("must return a number, got nil", S.LambdaLR, opt, function() end)
    raises("must be a function", S.LambdaLR, opt, 3)
    raises("lr_lambda is missing", S.LambdaLR, opt)
  end)
end)

describe("changes from outside", function()
  it("compose with the recursive forms", function()
    local opt = sgd(1)
    local s = S.ExponentialLR(opt, 0.5)
    s:step()
    opt.param_groups[1].lr = opt.param_groups[1].lr * 10
    s:step()
    near(2.5, opt.param_groups[1].lr)
  end)
end)

describe("the warning about a step before the optimizer's", function()
  local function warnings(f)
    local stderr, text = io.stderr, {}
    io.stderr = { write = function(_, ...) text[#text + 1] = table.concat({ ... }) end } -- luacheck: ignore
    local ok, message = pcall(f)
    io.stderr = stderr -- luacheck: ignore
    assert(ok, message)
    return text
  end

  it("comes once", function()
    local text = warnings(function()
      local s = S.StepLR(optim.SGD({ tl.zeros(1, { requires_grad = true }) }, { lr = 1 }), 3)
      s:step()
      s:step()
    end)
    assert.are.equal(1, #text)
    assert.matches("StepLR: step%(%) before the optimizer's first step", text[1])
  end)

  it("stays away in the right order", function()
    assert.are.same({}, warnings(function()
      local s = S.StepLR(sgd(1), 3)
      s:step()
    end))
  end)
end)

describe("misuse", function()
  it("is told", function()
    local opt = sgd(1)
    raises("argument 1 must be an optimizer, got table", S.StepLR, {}, 3)
    raises("did you mean 'step_size'", S.StepLR, opt, { stepsize = 3 })
    raises("step_size is missing", S.StepLR, opt)
    raises("T_max must be at least 1", S.CosineAnnealingLR, opt, 0)
    raises("whole number", S.StepLR, opt, 2.5)
    raises("there is no mode 'square'", S.CyclicLR, opt, 0.1, 1, { mode = "square" })
    raises("no anneal_strategy 'cosine'", S.OneCycleLR, opt, 1, { total_steps = 3, anneal_strategy = "cosine" })
    raises("too many arguments", S.ExponentialLR, opt, 0.1, 0.2)
    raises("max_lr has 2 values, the optimizer 1 groups", S.OneCycleLR, opt, { 1, 2 }, { total_steps = 3 })
    raises("2 schedules need 1 milestones, got 0", S.SequentialLR, opt, { S.StepLR(opt, 1), S.StepLR(opt, 2) }, {})
    raises("schedule 2 must be a schedule, got string", S.ChainedScheduler, { S.StepLR(opt, 1), "StepLR" })
    raises("needs the metric", function() S.ReduceLROnPlateau(opt):step() end)
    raises("metric must be a number", function() S.ReduceLROnPlateau(opt):step("low") end)
    raises("another optimizer", S.SequentialLR, sgd(1), { S.StepLR(opt, 1) })
    local adagrad = optim.Adagrad({ tl.zeros(1, { requires_grad = true }) })
    raises("no momentum", S.OneCycleLR, adagrad, 1, { total_steps = 3 })
  end)
end)

describe("ReduceLROnPlateau", function()
  it("takes a one-element tensor", function()
    local opt = sgd(1)
    local s = S.ReduceLROnPlateau(opt, { patience = 0, factor = 0.5 })
    s:step(tl.tensor(1))
    s:step(tl.tensor(2))
    assert.are.equal(0.5, opt.param_groups[1].lr)
  end)
end)
