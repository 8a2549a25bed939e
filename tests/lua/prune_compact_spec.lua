-- prune.compact: what leaves, what stays and why, and that the smaller model computes the same.
local tl = require "tlua"
local nn, optim, prune = tl.nn, tl.optim, tl.nn.utils.prune

-- Masks the channels that a layer makes, with the bias and the batch norm behind it.
local function prune_channels(layer, norm, count)
  prune.ln_structured(layer, "weight", { count = count })
  local channels = layer.weight_mask:flatten(2, -1):any(2)
  if layer.bias then prune.custom_from_mask(layer, "bias", channels) end
  if norm then
    prune.custom_from_mask(norm, "weight", channels)
    prune.custom_from_mask(norm, "bias", channels)
  end
end

-- Statistics and parameters of batch norms that are not 0 and 1.
local function shake(model, ...)
  model:apply(function(m)
    if m:is_a(nn.BatchNorm2d) or m:is_a(nn.BatchNorm1d) then
      tl.no_grad(function()
        m.weight:copy_(tl.rand(m.num_features) + 0.5)
        m.bias:copy_(tl.randn(m.num_features))
      end)
    end
  end)
  for _ = 1, 3 do model(...) end
  return model
end

local function check(model, x, pattern)
  local small, report = prune.compact(model, { example = x })
  local modes = { model.training, small.training }
  assert.equal(modes[1], modes[2])
  model:eval()
  small:eval()
  local y = x:size(1) > 1 and x:narrow(1, 1, 1) * 2 + 1 or x -- not only on the example
  for _, input in ipairs { x, y } do
    assert.is_true(tl.allclose(model(input), small(input), { rtol = 1e-5, atol = 1e-5 }))
  end
  if pattern then assert.matches(pattern, tostring(report)) end
  model:train(modes[1])
  small:train(modes[2])
  return small, report
end

local function sizes(report)
  local list = {}
  for i, layer in ipairs(report.layers) do list[i] = ("%s:%d-%d"):format(layer.name, layer.before, layer.after) end
  return table.concat(list, " ")
end

describe("prune.compact", function()
  before_each(function() tl.manual_seed(5) end)

  it("removes neurons of Linear layers and folds constants into the next bias", function()
    local m = nn.Sequential(nn.Linear(6, 8), nn.Sigmoid(), nn.Linear(8, 5, { bias = false }), nn.Tanh(),
      nn.Linear(5, 3))
    prune.ln_structured(m[1], "weight", { count = 5 }) -- biases stay: their neurons are constants, not 0
    prune.ln_structured(m[3], "weight", { count = 2 })
    local small, report = check(m, tl.randn(4, 6))
    assert.equal("0:8-3 2:5-3 4:3-3", sizes(report))
    assert.are.same({ 3, 3 }, small[3].weight.shape)
    assert.is_truthy(small[3].bias)
    assert.equal(3, small[1].out_features)
    assert.equal(3, small[5].in_features)
    assert.is_false(prune.is_pruned(small))
    assert.is_true(prune.is_pruned(m))
    assert.are.same({ 8, 6 }, m[1].weight_orig.shape)
    assert.is_true(report.parameters < report.parameters_before and report.bytes == 4 * report.parameters)
  end)

  it("removes neurons whose outputs nobody uses", function()
    local m = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 3))
    prune.ln_structured(m[5], "weight", { count = 3, dim = 2 })
    local _, report = check(m, tl.randn(4, 6))
    assert.equal("0:8-8 2:5-2 4:3-3", sizes(report))
  end)

  it("follows convolution, batch norm, activation, pooling and Flatten", function()
    local m = shake(nn.Sequential(
      nn.Conv2d(1, 8, 3, { padding = 1, bias = false }), nn.BatchNorm2d(8), nn.ReLU { inplace = true }, nn.MaxPool2d(2),
      nn.Conv2d(8, 6, 3, { padding = 1 }), nn.BatchNorm2d(6), nn.GELU(), nn.AvgPool2d(2),
      nn.Flatten(), nn.Dropout(0.5), nn.Linear(24, 7), nn.BatchNorm1d(7), nn.SiLU(), nn.Linear(7, 3)),
      tl.randn(4, 1, 8, 8))
    prune_channels(m[1], m[2], 3)
    prune_channels(m[5], m[6], 2)
    prune_channels(m[11], m[12], 4)
    local small, report = check(m, tl.randn(3, 1, 8, 8))
    assert.equal("0:8-5 4:6-4 10:7-3 13:3-3", sizes(report))
    assert.are.same({ 3, 16 }, small[11].weight.shape)
    assert.are.same({ 5 }, small[2].running_var.shape)
    assert.equal(0, #report.kept)
    -- and it trains
    local opt = optim.Adam(small:parameters())
    small(tl.randn(3, 1, 8, 8)):sum():backward()
    opt:step()
  end)

  it("follows one-dimensional convolutions and a mean over places", function()
    local M = nn.Module:extend "M"
    function M:init()
      self.a, self.b, self.c = nn.Conv1d(2, 6, 3, { stride = 2 }), nn.Conv1d(6, 5, 3), nn.Linear(5, 2)
    end
    function M:forward(x) return self.c(self.b(self.a(x):relu() * 2):leaky_relu(0.1):mean(3)) end
    local m = M()
    prune.ln_structured(m.a, "weight", { count = 2 })
    prune.ln_structured(m.b, "weight", { count = 3 })
    local _, report = check(m, tl.randn(4, 2, 20))
    assert.equal("a:6-4 b:5-2 c:2-2", sizes(report))
  end)

  it("removes channels of residual additions from both sides, when both lost them", function()
    local Block = nn.Module:extend "Block"
    function Block:init(masked)
      self.stem, self.bn = nn.Conv2d(2, 6, 3, { padding = 1 }), nn.BatchNorm2d(6)
      self.conv, self.bn2 = nn.Conv2d(6, 6, 3, { padding = 1 }), nn.BatchNorm2d(6)
      self.head = nn.Linear(6, 3)
      shake(self, tl.randn(4, 2, 5, 5))
      local keep = tl.tensor(masked):reshape(6, 1, 1, 1)
      for _, pair in ipairs { { self.stem, self.bn }, { self.conv, self.bn2 } } do
        prune.custom_from_mask(pair[1], "weight", keep:expand(pair[1].weight.shape))
        for _, m in ipairs(pair) do prune.custom_from_mask(m, "bias", keep:reshape(6)) end
        prune.custom_from_mask(pair[2], "weight", keep:reshape(6))
      end
    end
    function Block:forward(x)
      local y = self.bn(self.stem(x)):relu()
      y = (self.bn2(self.conv(y)) + y):relu()
      return self.head(y:mean { 3, 4 })
    end
    local m = Block { 1, 0, 1, 0, 0, 1 }
    local _, report = check(m, tl.randn(2, 2, 5, 5))
    assert.equal("stem:6-3 conv:6-3 head:3-3", sizes(report))
    -- with the sum alive on one side only, the channel stays
    prune.remove(m.bn2, "bias")
    tl.no_grad(function() m.bn2.bias:fill_(0.5) end)
    prune.remove(m.stem, "weight")
    prune.remove(m.bn, "weight")
    tl.no_grad(function()
      m.stem.weight:fill_(0.3)
      m.bn.weight:fill_(1)
    end)
    _, report = check(m, tl.randn(2, 2, 5, 5), "stays: conv, 3 channels: %w+ uses it")
    assert.equal("stem:6-6 conv:6-6 head:3-3", sizes(report))
  end)

  it("follows concatenation", function()
    local M = nn.Module:extend "M"
    function M:init()
      self.a, self.b, self.c = nn.Conv2d(1, 4, 3), nn.Conv2d(1, 5, 3), nn.Conv2d(10, 2, 1)
    end
    function M:forward(x)
      local inner = x:narrow(3, 2, x:size(3) - 2):narrow(4, 2, x:size(4) - 2)
      return self.c(tl.cat({ self.a(x):relu(), self.b(x):tanh(), inner }, 2))
    end
    local m = M()
    prune_channels(m.a, nil, 1)
    prune_channels(m.b, nil, 3)
    local small, report = check(m, tl.randn(2, 1, 6, 6))
    assert.equal("a:4-3 b:5-2 c:2-2", sizes(report))
    assert.equal(6, small.c.in_channels)
  end)

  it("removes whole groups of grouped convolutions, single channels of depthwise ones", function()
    local function net(groups)
      local m = shake(nn.Sequential(nn.Conv2d(2, 8, 1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 8, 3, { padding = 1, groups = groups }), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 3, 1)),
        tl.randn(4, 2, 4, 4))
      local keep = tl.tensor { 1, 1, 1, 0, 0, 0, 1, 1 }
      for _, i in ipairs { 1, 2, 4, 5 } do
        prune.custom_from_mask(m[i], "bias", keep)
        local w = m[i].weight
        prune.custom_from_mask(m[i], "weight", w:dim() == 1 and keep or keep:reshape(8, 1, 1, 1):expand(w.shape))
      end
      return m
    end
    local small, report = check(net(8), tl.randn(2, 2, 4, 4))
    assert.equal("0:8-5 3:8-5 6:3-3", sizes(report))
    assert.equal(5, small[4].groups)
    small, report = check(net(4), tl.randn(2, 2, 4, 4))
    assert.equal("0:8-6 3:8-6 6:3-3", sizes(report))
    assert.equal(3, small[4].groups)
    assert.are.same({ 6, 2, 3, 3 }, small[4].weight.shape)
  end)

  it("cuts a layer that is used twice once, for both uses", function()
    local M = nn.Module:extend "M"
    function M:init() self.a, self.b, self.c = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 2) end
    function M:forward(x) return self.c(self.b(self.b(self.a(x):relu()):relu()):relu()) end
    local m = M()
    local keep = tl.tensor { 1, 0, 1, 1, 0, 1 }
    for _, l in ipairs { m.a, m.b } do
      prune.custom_from_mask(l, "weight", keep:reshape(6, 1):expand(l.weight.shape))
      prune.custom_from_mask(l, "bias", keep)
    end
    local _, report = check(m, tl.randn(3, 4))
    assert.equal("a:6-4 b:6-4 c:2-2", sizes(report))
  end)

  it("says why something stays", function()
    local m = nn.Sequential(nn.Conv2d(1, 4, 3, { padding = 1 }), nn.Sigmoid(), nn.Conv2d(4, 4, 3, { padding = 1 }))
    prune.ln_structured(m[1], "weight", { count = 2 })
    prune.ln_structured(m[3], "weight", { count = 1 })
    local _, report = check(m, tl.randn(2, 1, 5, 5), "stays: 0, 2 channels: its output is a constant but not 0")
    assert.matches("no constant beside the zero padding of 2", tostring(report))
    assert.matches("stays: 2, 1 channels: it is the model's output", tostring(report))
    m = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm { 4 }, nn.Linear(4, 2))
    prune_channels(m[1], nil, 2)
    check(m, tl.randn(2, 3), "stays: 0, 2 channels: layer_norm reads all of its channels")
    m = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    prune_channels(m[1], nil, 4)
    local small = check(m, tl.randn(2, 3), "stays: 0, 1 channels: it is the last one of 0")
    assert.are.same({ 1, 3 }, small[1].weight_mask.shape)
  end)

  it("keeps the masks of single weights", function()
    local m = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    prune_channels(m[1], nil, 4)
    prune.l1_unstructured(m[3], "weight", { amount = 0.5 })
    local small = check(m, tl.randn(4, 6), "stays: 2.weight, %d+ weights: single weights")
    assert.are.same({ 3, 4 }, small[3].weight_mask.shape)
    assert.is_nil(rawget(small[1], "weight_mask"))
  end)

  it("leaves a model without zeros as it is", function()
    local m = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    local small, report = check(m, tl.randn(4, 6))
    assert.equal("0:8-8 2:3-3", sizes(report))
    assert.is_false(small == m)
    assert.equal(0, #report.kept)
  end)

  it("refuses what it cannot do, and tells", function()
    local function fails(pattern, f, ...)
      local ok, message = pcall(f, ...)
      assert.is_false(ok)
      assert.matches(pattern, message)
    end
    local m = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2))
    fails("prune.compact%(model, {example=x}%)", prune.compact, m)
    fails("argument 1 must be a module", prune.compact, {}, { example = tl.ones(1) })
    local Fixed = nn.Module:extend "Fixed"
    function Fixed:init() self.a, self.b = nn.Conv2d(1, 4, 1), nn.Linear(4, 2) end
    function Fixed:forward(x) return self.b(self.a(x):view(-1, 4)) end
    local fixed = Fixed()
    prune_channels(fixed.a, nil, 2)
    fails("does its forward name a size", prune.compact, fixed, { example = tl.ones(2, 1, 1, 1) })
    assert.are.same({ 4, 1, 1, 1 }, fixed.a.weight_orig.shape)
    local Cut = nn.Module:extend "Cut"
    function Cut:init() self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2) end
    function Cut:forward(x) return self.b(self.a(x):detach()) end
    local unseen = Cut()
    prune_channels(unseen.a, nil, 2)
    local _, report = prune.compact(unseen, { example = tl.randn(2, 3) })
    assert.matches("what reads it was not recorded", tostring(report))
  end)

  it("takes several arguments", function()
    local Two = nn.Module:extend "Two"
    function Two:init() self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2) end
    function Two:forward(x, y) return self.b(self.a(x):relu() * y) end
    local m = Two()
    prune_channels(m.a, nil, 2)
    local _, report = prune.compact(m, { example = { tl.randn(2, 3), tl.randn(2, 1) } })
    assert.equal("a:4-2 b:2-2", sizes(report))
    _, report = prune.compact(m, { example = { tl.randn(2, 3), tl.randn(2, 4) } })
    assert.equal("a:4-4 b:2-2", sizes(report))
    assert.matches("mul combines it with channels that have to stay", tostring(report))
  end)
end)

-- A network of random blocks: plain, depthwise, residual, concatenating, gated; every convolution has a batch norm.
local Random = nn.Module:extend "Random"

function Random:init(draw)
  self.convs, self.norms, self.kinds = nn.ModuleList(), nn.ModuleList(), {}
  local c = 3
  for i = 1, draw(2, 5) do
    local kind = draw(5)
    local wide = kind == 1 and draw(4, 9) or kind == 4 and draw(2, 4) or c
    self.kinds[i] = kind
    self.convs:add(nn.Conv2d(c, wide, 3, { padding = 1, groups = kind == 2 and c or 1 }))
    self.norms:add(nn.BatchNorm2d(wide))
    c = kind == 4 and c + wide or wide
  end
  self.hidden, self.out = nn.Linear(c * 16, 7), nn.Linear(7, 3)
end

function Random:forward(x)
  for i, kind in ipairs(self.kinds) do
    local y = self.norms[i](self.convs[i](x))
    if kind <= 2 then x = y:relu()
    elseif kind == 3 then x = (y + x):relu()
    elseif kind == 4 then x = tl.cat({ x, y:tanh() }, 2)
    else x = x * y:sigmoid() end
  end
  return self.out(self.hidden(x:flatten(2, -1)):relu())
end

describe("prune.compact on random networks", function()
  it("computes the same", function()
    local before, after = 0, 0
    for seed = 1, 25 do
      tl.manual_seed(seed)
      local function draw(low, high)
        if not high then low, high = 1, low end
        return tl.randint(low, high + 1, { 1 }):item()
      end
      local function share() return tl.rand(1):item() end
      local m = shake(Random(draw), tl.randn(4, 3, 4, 4))
      for i, conv in ipairs(m.convs) do
        prune.ln_structured(conv, "weight", { amount = share() })
        local channels = conv.weight_mask:flatten(2, -1):any(2)
        if share() < 0.8 then prune.custom_from_mask(conv, "bias", channels) end
        if share() < 0.8 then
          prune.custom_from_mask(m.norms[i], "weight", channels)
          prune.custom_from_mask(m.norms[i], "bias", channels)
        end
      end
      if share() < 0.5 then prune.ln_structured(m.hidden, "weight", { amount = share(), dim = draw(2) }) end
      if share() < 0.5 then prune.ln_structured(m.out, "weight", { amount = share(), dim = draw(2) }) end
      local _, report = check(m, tl.randn(3, 3, 4, 4))
      before, after = before + report.parameters_before, after + report.parameters
    end
    assert.is_true(after < 0.7 * before)
  end)
end)

describe("a compacted model", function()
  local device = tl.get_default_device()

  local function live()
    collectgarbage()
    collectgarbage()
    return tl.memory(device).live
  end

  -- Bytes that make() leaves behind, and the most that a forward pass has besides.
  local function cost(make, x)
    local before = live()
    local m = make()
    local held = live() - before
    tl.reset_peak_memory(device)
    tl.no_grad(m, x)
    return held, tl.memory(device).peak - before - held
  end

  it("takes as much less memory as it has fewer channels", function()
    local function masked()
      local m = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 64))
      m:eval()
      for i = 1, 3, 2 do prune_channels(m[i], nil, 768) end
      return m
    end
    local x = tl.randn(512, 256)
    local big, big_peak = cost(masked, x)
    local small, small_peak = cost(function() return (prune.compact(masked(), { example = x })) end, x)
    local dense = 4 * (257 * 1024 + 1025 * 1024 + 1025 * 64)
    local left = 4 * (257 * 256 + 257 * 256 + 257 * 64)
    assert.is_true(big >= 2 * dense, ("masked: %d bytes"):format(big)) -- weights and masks, and their product
    assert.is_true(small >= left and small <= 1.1 * left + 8192, ("compact: %d bytes, not %d"):format(small, left))
    assert.is_true(small_peak < 0.35 * big_peak, ("forward: %d of %d bytes"):format(small_peak, big_peak))
  end)
end)
