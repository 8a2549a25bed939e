-- semantics_spec.lua: the exact behaviour that users rely on, number by number, through the library as they call it.
-- The numbers come from PyTorch on the CPU or from its documentation.
local tl = require "tlua"
local nn, optim = tl.nn, tl.optim
local S = optim.lr_scheduler

local function raises(pattern, f, ...)
  local ok, message = pcall(f, ...)
  assert.is_false(ok)
  assert.matches(pattern, message)
end

local function near(expected, t, tolerance)
  local wanted = tl.tensor(expected, { dtype = "float64" })
  local got = type(t) == "number" and tl.tensor(t, { dtype = "float64" }) or t:double()
  if not got:allclose(wanted, { rtol = 0, atol = tolerance or 1e-6 }) then
    error("got " .. tostring(t) .. "\nexpected " .. tostring(wanted), 2)
  end
end

local function scalar(value) return tl.tensor({ value }, { requires_grad = true }) end
local function labels(list) return tl.tensor(list, { dtype = "int64" }) end

-- The parameter (from 1) after a step on each gradient.
local function path(make, grads, options)
  local p, values = scalar(1), {}
  local opt = optim[make]({ p }, options)
  for i, g in ipairs(grads) do
    p.grad = tl.tensor { g }
    opt:step()
    values[i] = p:item()
  end
  return tl.tensor(values)
end

-- The rates before each of n steps (and after the last one, as entry n + 1).
local function rates(opt, schedule, n)
  local list = { opt.param_groups[1].lr }
  for i = 1, n do
    opt:step()
    schedule:step()
    list[i + 1] = opt.param_groups[1].lr
  end
  return tl.tensor(list, { dtype = "float64" })
end

local function sgd(lr) return optim.SGD({ scalar(1) }, { lr = lr }) end

describe("optimizers", function()
  it("Adam adds eps after the bias correction, AdamW decays first", function()
    local grads = { .5, -1, 2 }
    near({ .9, .9366104, .8946449 }, path("Adam", grads, { lr = .1 }))
    near({ .9, .9252635, .8776172 }, path("Adam", grads, { lr = .1, weight_decay = .1 }))
    near({ .89, .9177104, .8665678 }, path("AdamW", grads, { lr = .1, weight_decay = .1 }))
    near({ .9909091, .9818182, .9727273 }, path("Adam", { 1e-4, 1e-4, 1e-4 }, { lr = .1, eps = 1e-3 }))
    near({ .99 }, path("AdamW", { 0 }, { lr = .1, weight_decay = .1 }))
  end)

  it("maximize negates the gradient, before weight decay", function()
    near({ 1.1, 1.0633896, 1.1053551 }, path("Adam", { .5, -1, 2 }, { lr = .1, maximize = true }))
    near({ 1 + .1 * 1 - .1 * .5 }, path("SGD", { 1 }, { lr = .1, weight_decay = .5, maximize = true }))
  end)

  it("amsgrad keeps the largest uncorrected second moment", function()
    local betas = { 0, .5 } -- v: 2, 1 (the maximum stays 2); divided by 1 - .5^t afterwards
    local values = path("Adam", { 2, 0, 1 }, { lr = .1, betas = betas, amsgrad = true, eps = 0 })
    local second = 0
    local third = .1 * 1 / math.sqrt(2 / (1 - .5 ^ 3))
    near({ .9, .9 - second, .9 - third }, values)
  end)

  it("SGD's first momentum buffer is the gradient itself", function()
    local ones = { 1, 1, 1, 1 }
    near({ .9, .76, .584, .3756 }, path("SGD", ones, { lr = .1, momentum = .9, dampening = .5 }))
    near({ .81, .539, .1951 }, path("SGD", { 1, 1, 1 }, { lr = .1, momentum = .9, nesterov = true }))
  end)

  it("a shared parameter is stepped once, one without a gradient is left alone", function()
    local a, b = nn.Linear(2, 2, { bias = false }), nn.Linear(2, 2, { bias = false })
    b.weight = a.weight
    local unused = scalar(7)
    local list = nn.Sequential(a, b):parameters()
    assert.equal(1, #list)
    list[2] = unused
    local opt = optim.SGD(list, { lr = 1, momentum = .9, weight_decay = .1 })
    local before = a.weight:detach():clone()
    a.weight.grad = tl.ones(2, 2)
    opt:step()
    near((before * .9 - 1):tolist(), a.weight:detach())
    assert.equal(7, unused:item())
    assert.is_nil(opt:state_dict().state[2])
  end)

  it("zero_grad sets gradients to nil", function()
    local p = scalar(1)
    p.grad = tl.ones(1)
    optim.SGD({ p }, { lr = 1 }):zero_grad()
    assert.is_nil(p.grad)
  end)

  it("a new optimizer with other betas goes on exactly as the saved one", function()
    local p, q = scalar(1), scalar(1)
    local first, second = optim.Adam({ p }, { lr = .1 }), optim.Adam({ q }, { lr = .5, betas = { .1, .2 } })
    local grads = { .5, -1, 2, .25 }
    local file = os.tmpname()
    for i, g in ipairs(grads) do
      if i == 3 then
        tl.save(file, { opt = first:state_dict(), p = p:detach() })
        local saved = tl.load(file, { device = tl.get_default_device() })
        second:load_state_dict(saved.opt)
        q.data = saved.p
      end
      for _, pair in ipairs { { p, first }, { q, second } } do
        pair[1].grad = tl.tensor { g }
        if i > 2 or pair[2] == first then pair[2]:step() end
      end
    end
    os.remove(file)
    assert.equal(p:item(), q:item())
  end)
end)

describe("learning-rate schedules", function()
  it("cosine annealing comes back up", function()
    local opt = sgd(1)
    near({ 1, .75, .25, 0, .25, .75, 1, .75, .25, 0 }, rates(opt, S.CosineAnnealingLR(opt, { T_max = 3 }), 9))
  end)

  it("cosine annealing resumes identically", function()
    local opt = sgd(.5)
    local schedule = S.CosineAnnealingLR(opt, { T_max = 5 })
    near({ .5, .452254, .327254, .172746 }, rates(opt, schedule, 3))
    local other = sgd(.5)
    local resumed = S.CosineAnnealingLR(other, { T_max = 5 })
    other:load_state_dict(opt:state_dict())
    resumed:load_state_dict(schedule:state_dict())
    local rest = rates(other, resumed, 2)
    near({ .172746, .047746, 0 }, rest)
    assert.same(rates(opt, schedule, 2):tolist(), rest:tolist())
  end)

  it("reading the rate changes nothing", function()
    local opt = sgd(.2)
    local schedule = S.MultiStepLR(opt, { milestones = { 2, 8 }, gamma = .1 })
    local list = {}
    for i = 1, 10 do
      for _ = 1, 3 do list[i] = schedule:get_last_lr()[1] end
      opt:step()
      schedule:step()
    end
    near({ .2, .2, .02, .02, .02, .02, .02, .02, .002, .002 }, tl.tensor(list, { dtype = "float64" }))
  end)

  it("follow each other; a milestone at 0 starts with the second", function()
    local opt = sgd(1)
    local linear = S.LinearLR(opt, { start_factor = .1, total_iters = 3 })
    local cosine = S.CosineAnnealingLR(opt, { T_max = 4 })
    local both = S.SequentialLR(opt, { schedulers = { linear, cosine }, milestones = { 3 } })
    near({ .1, .4, .7, 1, .853553, .5, .146447, 0 }, rates(opt, both, 7))
    opt = sgd(1)
    linear = S.LinearLR(opt, { start_factor = .1, total_iters = 3 })
    local exponential = S.ExponentialLR(opt, { gamma = .9 })
    both = S.SequentialLR(opt, { schedulers = { linear, exponential }, milestones = { 0 } })
    near({ 1, .9, .81, .729 }, rates(opt, both, 3))
  end)

  it("compose with changes from outside", function()
    local opt = sgd(1)
    local schedule = S.ExponentialLR(opt, { gamma = .5 })
    opt:step()
    schedule:step()
    opt.param_groups[1].lr = 8
    opt:step()
    schedule:step()
    assert.equal(4, opt.param_groups[1].lr)
  end)

  it("one cycle", function()
    local opt = sgd(1)
    local expected = { .04, .52, 1, .950485, .811746, .611262, .388742, .188258, .049519, 4e-6 }
    near(expected, rates(opt, S.OneCycleLR(opt, { max_lr = 1, total_steps = 10, cycle_momentum = false }), 9))
  end)

  it("one cycle without a phase is a number or an error that says what is wrong", function()
    for _, options in ipairs {
      { max_lr = 1, total_steps = 10, pct_start = 0 }, { max_lr = 1, total_steps = 10, pct_start = 1 },
      { max_lr = 1, total_steps = 1 }, { max_lr = 1, total_steps = 2 },
      { max_lr = 1, total_steps = 3, three_phase = true },
    } do
      local opt = optim.SGD({ scalar(1) }, { lr = 1, momentum = .9 })
      local ok, schedule = pcall(S.OneCycleLR, opt, options)
      if ok then
        for _ = 2, options.total_steps do
          opt:step()
          schedule:step()
          local lr = opt.param_groups[1].lr
          assert.is_true(lr > 0 and lr <= 1)
        end
      else
        assert.matches("OneCycleLR: ", schedule)
      end
    end
  end)

  it("plateau: patience, cooldown, eps, negative metrics", function()
    local opt = sgd(1)
    local schedule = S.ReduceLROnPlateau(opt, { patience = 1, factor = .5, cooldown = 2 })
    local list = {}
    for i = 1, 8 do
      schedule:step(1)
      list[i] = opt.param_groups[1].lr
    end
    near({ 1, 1, .5, .5, .5, .5, .25, .25 }, tl.tensor(list))
    opt = sgd(1e-8)
    schedule = S.ReduceLROnPlateau(opt, { patience = 0, factor = .5 })
    for _ = 1, 3 do schedule:step(1) end
    assert.equal(1e-8, opt.param_groups[1].lr)
    opt = sgd(1)
    schedule = S.ReduceLROnPlateau(opt, { patience = 0, factor = .5, threshold = .1 })
    for _, metric in ipairs { -1, -1.2, -1.5 } do schedule:step(metric) end -- each better by more than a tenth
    assert.equal(1, opt.param_groups[1].lr)
    schedule:step(-1.55) -- better by less
    assert.equal(.5, opt.param_groups[1].lr)
  end)

  it("AdamLR decays with the inverse of time", function()
    local opt = optim.Adam({ scalar(1) }, { lr = .01 })
    near({ .01, .00990099, .00980392 }, rates(opt, S.AdamLR(opt, { lr_decay = .01 }), 2), 1e-8)
  end)
end)

describe("batch norm", function()
  it("momentum=false averages all batches", function()
    local bn = nn.BatchNorm1d(1, { momentum = false })
    bn(tl.tensor { { 1 }, { 3 } })
    bn(tl.tensor { { 5 }, { 9 } })
    near({ 4.5 }, bn.running_mean)
    near({ 5 }, bn.running_var)
    assert.equal("int64", bn.num_batches_tracked.dtype)
    assert.equal(2, bn.num_batches_tracked:item())
  end)

  it("normalises with the biased variance and keeps the unbiased one", function()
    local bn = nn.BatchNorm1d(1)
    near({ { -.999995 }, { .999995 } }, bn(tl.tensor { { 1 }, { 3 } }):detach())
    near({ .2 }, bn.running_mean)
    near({ 1.1 }, bn.running_var)
    bn = nn.BatchNorm1d(4, { momentum = 1 })
    bn(tl.tensor { { 2, 15, 2, 1 }, { 2, 17, 2, 1 }, { -4, -2, -2, -1 } })
    near({ 0, 10, .6667, .3333 }, bn.running_mean, 1e-4)
    near({ 12, 109, 5.3333, 1.3333 }, bn.running_var, 1e-4)
  end)

  it("one value per channel is an error that moves nothing; one sample of several values is fine", function()
    local bn = nn.BatchNorm2d(2)
    raises("one value per channel: there is no variance", bn, tl.ones(1, 2, 1, 1))
    near({ 1, 1 }, bn.running_var)
    assert.equal(0, bn.num_batches_tracked:item())
    bn(tl.rand(1, 2, 1, 2))
    assert.equal(1, bn.num_batches_tracked:item())
  end)

  it("keeps the entries that its options leave", function()
    local function keys(m)
      local list = {}
      for name in pairs(m:state_dict()) do list[#list + 1] = name end
      table.sort(list)
      return table.concat(list, " ")
    end
    assert.equal("num_batches_tracked running_mean running_var", keys(nn.BatchNorm1d(2, { affine = false })))
    local bn = nn.BatchNorm1d(1, { track_running_stats = false })
    assert.equal("bias weight", keys(bn))
    bn:eval()
    near({ { -.999995 }, { .999995 } }, bn(tl.tensor { { 1 }, { 3 } }):detach())
  end)

  it("keeps the variance beside a large mean", function()
    local y = nn.BatchNorm1d(1)(tl.tensor { { 10000 }, { 10001 }, { 10002 }, { 10003 } })
    near({ { -1.341636 }, { -.447212 }, { .447212 }, { 1.341636 } }, y:detach(), 1e-5)
  end)
end)

describe("losses", function()
  it("cross entropy divides by the weights of the targets that count", function()
    near(.693147, nn.CrossEntropyLoss()(tl.tensor { { 0, 0 }, { 0, math.log(3) } }, labels { 0, -100 }))
    local loss = nn.CrossEntropyLoss { weight = tl.tensor { .2, .3 }, label_smoothing = .1 }
    near(2.5404506, loss(tl.tensor { { 1, 2 }, { 3, .4 } }, labels { -100, 1 }))
  end)

  it("cross entropy of nothing is 0, and so is its gradient", function()
    local x = tl.randn(2, 3, { requires_grad = true })
    local loss = nn.CrossEntropyLoss()(x, labels { -100, -100 })
    loss:backward()
    assert.equal(0, loss:item())
    assert.equal(0, x.grad:abs():sum():item())
  end)

  it("a label that is no class is named with its row", function()
    local where = tl.get_default_device() == "cpu" and " in row 2 is outside 0%.%.2" or " .*of 0%.%.2"
    raises("label 3" .. where, function() nn.CrossEntropyLoss()(tl.ones(2, 3), labels { 0, 3 }):item() end)
  end)

  it("a softmax row that is all -inf is zeros, and the others are untouched", function()
    for _, kind in ipairs { "softmax", "F" } do
      local inf = math.huge
      local x = tl.tensor({ { 0, math.log(3) }, { -inf, -inf } }, { requires_grad = true })
      local y = kind == "F" and tl.F.softmax(x, 2) or x:softmax(2)
      near({ { .25, .75 }, { 0, 0 } }, y:detach())
      ;(y * tl.tensor { { 1, 2 }, { 3, 4 } }):sum():backward()
      near({ { -.1875, .1875 }, { 0, 0 } }, x.grad)
    end
  end)

  it("nan stays nan in max and min", function()
    local nan = 0 / 0
    for _, at in ipairs { 1, 5, 9 } do
      local x = tl.arange(9)
      x[at] = nan
      for _, y in ipairs { x:max(), x:min(), (x:max(1)), (x:min(1)), x:maximum(tl.zeros(9)):sum(),
        tl.zeros(9):minimum(x):sum() } do
        assert.is_true(y:isnan():item())
      end
    end
  end)

  it("where passes a gradient of 0 through the branch that was not taken", function()
    local n, x = tl.tensor { 0, 2 }, tl.tensor({ 0, 1 }, { requires_grad = true })
    tl.where(n:eq(0), 0, x / n):sum():backward()
    near({ 0, .5 }, x.grad)
    local z = tl.zeros(1, { requires_grad = true })
    ;(z ^ 2):sum():backward()
    assert.equal(0, z.grad:item())
  end)
end)

describe("clipping and accumulation", function()
  it("returns the norm before clipping", function()
    local p = tl.zeros(100, { requires_grad = true })
    p.grad = tl.ones(100)
    local norm = nn.utils.clip_grad_norm_({ p }, 1)
    assert.equal(10, type(norm) == "number" and norm or norm:item()) -- a tensor on a GPU
    near(tl.full({ 100 }, .1):tolist(), p.grad)
    p.grad[1] = math.huge
    local before = p.grad:tolist()
    raises("is inf", nn.utils.clip_grad_norm_, { p }, 1, { error_if_nonfinite = true })
    assert.same(before, p.grad:tolist())
  end)

  it("micro-batches of unequal counts sum to the big batch when divided by the total count", function()
    local model = nn.Linear(3, 4):double()
    local x, y = tl.randn(6, 3, { dtype = "float64" }), labels { 0, 1, -100, 3, -100, 2 }
    nn.CrossEntropyLoss()(model(x), y):backward()
    local whole = model.weight.grad:clone()
    model:zero_grad()
    local total = nn.CrossEntropyLoss { reduction = "sum" }
    for _, part in ipairs { { 1, 1 }, { 2, 5 }, { 6, 6 } } do
      (total(model(x[{ part }]), y[{ part }]) / 4):backward()
    end
    near(whole:tolist(), model.weight.grad, 1e-12)
  end)
end)

describe("initialisation and random numbers", function()
  it("Linear and Conv are uniform within 1/sqrt(fan_in), Embedding normal, norms 1 and 0", function()
    for _, case in ipairs { { nn.Linear(16, 2000), 16 }, { nn.Conv2d(4, 500, 3), 36 }, { nn.Conv1d(4, 500, 3), 12 } } do
      local bound = 1 / math.sqrt(case[2])
      for _, name in ipairs { "weight", "bias" } do
        local w = case[1][name]:detach():abs()
        assert.is_true(w:max():item() <= bound)
        assert.is_true(w:max():item() > .97 * bound)
        assert.is_true(math.abs(w:mean():item() / bound - .5) < .05)
      end
    end
    local e = nn.Embedding(1000, 20).weight:detach()
    assert.is_true(math.abs(e:mean():item()) < .05 and math.abs(e:std():item() - 1) < .05)
    for _, m in ipairs { nn.BatchNorm1d(3), nn.LayerNorm(3), nn.GroupNorm(1, 3) } do
      near({ 1, 1, 1 }, m.weight:detach())
      near({ 0, 0, 0 }, m.bias:detach())
    end
  end)

  it("dropout scales what it keeps, and is the identity in eval", function()
    local drop, x = nn.Dropout(.75), tl.ones(10000)
    local y = drop(x)
    assert.is_true(y:eq(0):logical_or(y:eq(4)):all():item())
    assert.is_true(math.abs(y:mean():item() - 1) < .1)
    drop:eval()
    assert.is_true(drop(x):eq(1):all():item())
  end)

  it("a seed fixes a loader's samples whatever num_workers is", function()
    local ds = { size = function() return 40 end, get = function(_, i) return tl.tensor(i) + tl.rand(1):mul(0) end }
    local first
    for workers = 0, 3 do
      for _, set in ipairs { ds, tl.data.TensorDataset(tl.arange(1, 41, 1, { device = "cpu" }):reshape(40, 1)) } do
        local loader = tl.data.DataLoader(set,
          { batch_size = 7, shuffle = true, num_workers = workers, generator = tl.Generator(5) })
        local seen = {}
        for _ = 1, 2 do
          for x in loader do seen[#seen + 1] = x:reshape(-1):tolist() end
        end
        first = first or seen
        assert.same(first, seen)
      end
    end
  end)
end)

describe("views and strides", function()
  local function same(a, b)
    assert.same(a.shape, b.shape)
    assert.is_true(a:allclose(b, { rtol = 1e-12, atol = 1e-12 }))
  end

  it("a strided view computes what its contiguous copy does", function()
    local x = tl.randn(6, 5, { dtype = "float64" })
    for _, view in ipairs { x:t(), x[{ {}, { 2, 4 } }], x:slice(1, 1, 6, 2), x[{ {}, 3 }]:unsqueeze(2):expand(6, 4),
      x:narrow(1, 1, 0), x[{ { 2, 2 }, {} }] } do
      local copy = view:contiguous():clone()
      for d = 1, 2 do
        same(copy:sum(d), view:sum(d))
        local ids = tl.arange(0, view:size(d), 1, { dtype = "int64" })
        same(copy:index_select(d, ids), view:index_select(d, ids))
      end
      local w = tl.randn(view:size(2), 3, { dtype = "float64" })
      same(copy:mm(w), view:mm(w))
    end
    assert.equal(3, tl.tensor(3):sum():item())
  end)

  it("in-place through a view changes the base, overlapping in-place writes are refused", function()
    local x = tl.zeros(3, 4)
    x:t()[2]:add_(1)
    near({ { 0, 1, 0, 0 }, { 0, 1, 0, 0 }, { 0, 1, 0, 0 } }, x)
    raises("expanded", function() tl.zeros(1):expand(3):add_(1) end)
    raises("expanded", function() tl.zeros(3, 1):expand(3, 2):fill_(1) end)
    raises("expanded", function() tl.zeros(1):expand(3):copy_(tl.ones(3)) end)
  end)

  it("a failed operation leaves its arguments as they were", function()
    local x, y = tl.arange(6):reshape(2, 3), tl.ones(4)
    local failing = {
      function() x:add_(y) end, function() x:copy_(y) end, function() x[1] = y end, function() x:mm(y) end,
      function() x:view(4) end, function() tl.cat({ x, y }) end, function() x:masked_fill_(y:gt(0), 1) end,
      function() x:addmm(x, x) end,
    }
    if tl.get_default_device() == "cpu" then -- a GPU meets the bad id when the others have been served
      failing[#failing + 1] = function() x:index_add_(1, labels { 0, 7 }, tl.ones(2, 3)) end
    end
    for _, f in ipairs(failing) do
      assert.is_false((pcall(f)))
      assert.same({ 2, 3 }, x.shape)
      assert.same({ { 0, 1, 2 }, { 3, 4, 5 } }, x:tolist())
      assert.same({ 1, 1, 1, 1 }, y:tolist())
    end
  end)
end)
