-- What layers do beyond the golden values: statistics, initial values, messages, modes.
local tl = require "tlua"
local nn = tl.nn

local function raises(pattern, f, ...)
  local ok, message = pcall(f, ...)
  assert.is_false(ok)
  assert.matches(pattern, message)
end

local function near(expected, t, tolerance)
  local wanted = tl.tensor(expected)
  if not t:allclose(wanted, { rtol = 1e-5, atol = tolerance or 1e-5 }) then
    error("got " .. tostring(t) .. "\nexpected " .. tostring(wanted), 2)
  end
end

describe("BatchNorm", function()
  it("normalises with the biased variance and keeps the unbiased one", function()
    local bn = nn.BatchNorm1d(1)
    near({ { -.999995 }, { .999995 } }, bn(tl.tensor { { 1 }, { 3 } }), 1e-6)
    near({ .2 }, bn.running_mean)
    near({ 1.1 }, bn.running_var)
    assert.equal(1, bn.num_batches_tracked:item())
  end)

  it("with momentum 1 keeps the newest batch's statistics", function()
    local bn = nn.BatchNorm1d(4, { momentum = 1 })
    bn(tl.tensor { { 2, 15, 2, 1 }, { 2, 17, 2, 1 }, { -4, -2, -2, -1 } })
    near({ 0, 10, 2 / 3, 1 / 3 }, bn.running_mean)
    near({ 12, 109, 16 / 3, 4 / 3 }, bn.running_var)
  end)

  it("with momentum=false averages over all batches", function()
    local bn = nn.BatchNorm1d(1, { momentum = false })
    bn(tl.tensor { { 1 }, { 3 } })
    bn(tl.tensor { { 5 }, { 9 } })
    near({ 4.5 }, bn.running_mean)
    near({ 5 }, bn.running_var)
    assert.equal(2, bn.num_batches_tracked:item())
  end)

  it("uses the running statistics in eval and leaves them alone", function()
    local bn = nn.BatchNorm1d(1, { eps = 0 }):eval()
    tl.no_grad(function()
      bn.running_mean:fill_(1)
      bn.running_var:fill_(4)
    end)
    near({ { 0 }, { 1 } }, bn(tl.tensor { { 1 }, { 3 } }))
    near({ { 2 } }, bn(tl.tensor { { 5 } }))
    assert.equal(0, bn.num_batches_tracked:item())
    near({ 1 }, bn.running_mean)
  end)

  it("refuses one value per channel in training, and changes nothing then", function()
    local bn = nn.BatchNorm1d(2)
    raises("one value", bn, tl.ones(1, 2))
    near({ 0, 0 }, bn.running_mean)
    near({ 1, 1 }, bn.running_var)
    assert.equal(0, bn.num_batches_tracked:item())
    assert.are.same({ 1, 2 }, bn:eval()(tl.ones(1, 2)).shape)
    assert.are.same({ 1, 2, 2, 1 }, nn.BatchNorm2d(2)(tl.ones(1, 2, 2, 1)).shape)
  end)

  it("affine=false keeps the three buffers, track_running_stats=false the parameters", function()
    local plain = nn.BatchNorm2d(2, { affine = false })
    assert.equal(0, #plain:parameters())
    assert.equal(3, #plain:buffers())
    local untracked = nn.BatchNorm2d(2, { track_running_stats = false })
    assert.equal(2, #untracked:parameters())
    assert.equal(0, #untracked:buffers())
    local x = tl.randn(3, 2, 2, 2) * 5 + 3
    assert.is_true(untracked(x):allclose(untracked:eval()(x)))
  end)

  it("does not lose the variance beside a large mean", function()
    local bn = nn.BatchNorm1d(1, { momentum = 1, eps = 0 })
    near({ { -1.2247449 }, { 0 }, { 1.2247449 } }, bn(tl.tensor { { 10000 }, { 10001 }, { 10002 } }), 1e-4)
    near({ 1 }, bn.running_var)
  end)

  it("names the shape that it expected", function()
    raises("BatchNorm1d%(3%): expected an input of %(Nx3%[xL%]%), got %(4x2%)", nn.BatchNorm1d(3), tl.ones(4, 2))
    raises("BatchNorm2d%(3%): expected an input of %(Nx3xHxW%), got %(4x3%)", nn.BatchNorm2d(3), tl.ones(4, 3))
    raises("BatchNorm3d%(3%): expected an input of %(Nx3xDxHxW%), got", nn.BatchNorm3d(3), tl.ones(4, 3, 1, 1))
    raises("'momentum' is a number or false", nn.BatchNorm1d, 3, { momentum = "x" })
    raises("did you mean 'momentum'", nn.BatchNorm1d, 3, { momentun = 1 })
  end)

  it("becomes SyncBatchNorm with the same state", function()
    local net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Sequential(nn.BatchNorm1d(2)))
    local weight = net[2].weight
    assert.equal(net, nn.SyncBatchNorm.convert_sync_batchnorm(net))
    assert.is_true(net[2]:is_a(nn.SyncBatchNorm) and net[3][1]:is_a(nn.SyncBatchNorm))
    assert.is_true(net[2].weight == weight)
    net(tl.randn(4, 2))
    assert.equal(1, net[2].num_batches_tracked:item())
    assert.is_true(nn.SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm2d(2)):is_a(nn.SyncBatchNorm))
  end)
end)

describe("initial values", function()
  it("of Linear and Conv are uniform within 1/sqrt(fan_in)", function()
    tl.manual_seed(1)
    for _, case in ipairs {
      { nn.Linear(100, 200), 100 }, { nn.Conv2d(8, 64, 5, { groups = 2 }), 100 }, { nn.Conv1d(20, 64, 5), 100 },
      { nn.ConvTranspose2d(64, 4, 5), 100 },
    } do
      local layer, bound = case[1], 1 / math.sqrt(case[2])
      for _, p in ipairs(layer:parameters()) do
        assert.is_true(p:abs():max():item() <= bound)
      end
      assert.is_true(layer.weight:abs():max():item() > 0.99 * bound)
      assert.is_true(math.abs(layer.weight:std():item() * math.sqrt(3) / bound - 1) < 0.03)
      assert.is_true(math.abs(layer.weight:mean():item()) < 0.03 * bound)
    end
  end)

  it("of Embedding are normal, its padding row is zero", function()
    local layer = nn.Embedding(500, 20, { padding_idx = 3 })
    assert.is_true(math.abs(layer.weight:std():item() - 1) < 0.03)
    assert.equal(0, layer.weight[4]:abs():sum():item())
    assert.is_true(layer.weight.requires_grad)
    assert.equal(499, nn.Embedding(500, 2, { padding_idx = -1 }).padding_idx)
  end)

  it("of norms are ones and zeros", function()
    for _, layer in ipairs { nn.LayerNorm { 2, 3 }, nn.GroupNorm(2, 4), nn.BatchNorm1d(3) } do
      assert.equal(layer.weight:numel(), layer.weight:sum():item())
      assert.equal(0, layer.bias:abs():sum():item())
    end
  end)

  it("follow the seed", function()
    tl.manual_seed(7)
    local a = nn.Linear(3, 3)
    tl.manual_seed(7)
    assert.is_true(a.weight:equal(nn.Linear(3, 3).weight))
  end)

  it("have the dtype that was asked for", function()
    local layer = nn.Linear(2, 2, { dtype = "float64" })
    assert.equal("float64", layer.weight.dtype)
    assert.equal("float64", layer.bias.dtype)
    raises("must be a floating dtype, got 'int64'", nn.Linear, 2, 2, { dtype = "int64" })
  end)
end)

describe("Dropout", function()
  it("scales what it keeps in training and does nothing in eval", function()
    tl.manual_seed(3)
    local layer = nn.Dropout(0.25)
    local y = layer(tl.ones(10000))
    local kept = y:ne(0):sum():item()
    assert.is_true(math.abs(kept / 10000 - 0.75) < 0.02)
    assert.is_true(math.abs(y:max():item() - 1 / 0.75) < 1e-6)
    local x = tl.ones(10)
    assert.is_true(layer:eval()(x) == x)
    assert.equal(0, nn.Dropout(1)(x):abs():sum():item())
    assert.is_true(nn.Dropout(0)(x):equal(x))
    assert.equal(0.5, nn.Dropout().p)
  end)

  it("passes gradients where it passed values", function()
    local x = tl.ones(100, { requires_grad = true })
    local y = nn.Dropout(0.5)(x)
    y:sum():backward()
    assert.is_true(x.grad:equal(y:detach()))
  end)

  it("takes a probability", function()
    raises("must be a number from 0 to 1, got 2", nn.Dropout, 2)
    raises("must be a number from 0 to 1, got half", nn.Dropout, "half")
    raises("did you mean .inplace.", nn.Dropout, { in_place = true })
  end)
end)

describe("messages", function()
  it("name the layer, what it expected and what it got", function()
    raises("Linear%(10, 1%): expected an input of %(%.%.x10%), got %(4x5%)", nn.Linear(10, 1), tl.ones(4, 5))
    raises("Conv2d%(3, 8, kernel_size=3%): expected an input of %(Nx3xHxW%), got %(1x1x28x28%)", nn.Conv2d(3, 8, 3),
      tl.ones(1, 1, 28, 28))
    raises("Conv1d%(3, 8, kernel_size=3%): expected an input of %(Nx3xL%)", nn.Conv1d(3, 8, 3), tl.ones(3))
    raises("ConvTranspose2d%(2, 1, kernel_size=2%): expected", nn.ConvTranspose2d(2, 1, 2), tl.ones(1, 3, 2, 2))
    raises("LayerNorm%(2x3%): expected an input of %(%.%.x2x3%), got %(2x4%)", nn.LayerNorm { 2, 3 }, tl.ones(2, 4))
    raises("RMSNorm%(3%): expected an input of %(%.%.x3%), got %(2x4%)", nn.RMSNorm(3), tl.ones(2, 4))
    raises("GroupNorm%(2, 4%): expected an input of %(Nx4%.%.%), got %(2x6%)", nn.GroupNorm(2, 4), tl.ones(2, 6))
    raises("MaxPool2d%(kernel_size=2%): expected an input of %(NxCxHxW%), got %(2x2%)", nn.MaxPool2d(2), tl.ones(2, 2))
  end)

  it("say what else is wrong with an input of the right shape", function()
    raises("linear: ", nn.Linear(2, 2), tl.ones(2, { dtype = "float64" }))
    raises("Linear: argument 1 must be a tensor, got nil", nn.Linear(2, 2))
  end)

  it("survive a weight that is gone or no tensor", function()
    for _, layer in ipairs { nn.Linear(2, 2), nn.Conv2d(2, 2, 1), nn.ConvTranspose2d(2, 2, 1), nn.Embedding(2, 2) } do
      layer.weight = nil
      raises("its weight must be a tensor, got nil", layer, tl.zeros(1, 2, 2, 2))
      layer.weight = 3
      raises("its weight must be a tensor, got a number", layer, tl.zeros(1, 2, 2, 2))
    end
    raises("option 'weight' must be a tensor, got a number", tl.F.batch_norm, tl.ones(2, 2), { weight = 3 })
    raises("option 'pos_weight' must be a tensor", nn.BCEWithLogitsLoss, { pos_weight = 3 })
  end)

  it("come from the constructors", function()
    raises("option 'bias' must be a boolean, got a number", nn.Linear, 2, 1, { bias = 0 })
    raises("option 'ceil_mode' must be a boolean, got a string", nn.MaxPool2d, 2, { ceil_mode = "yes" })
    raises("Linear: in_features must be an integer of at least 0, got 1.5", nn.Linear, 1.5, 2)
    raises("Linear: out_features must be an integer of at least 0, got nil", nn.Linear, 2)
    raises("there is no option 'biass', did you mean 'bias'", nn.Linear, 2, 2, { biass = false })
    raises("4 and 6 channels cannot be divided into 4 groups", nn.Conv2d, 4, 6, 3, { groups = 4 })
    raises("kernel_size needs 2 numbers, got 3", nn.Conv2d, 1, 1, { 1, 2, 3 })
    raises("'same' needs a stride of 1", nn.Conv2d, 1, 1, 3, { stride = 2, padding = "same" })
    raises("to be even, got 3", nn.Conv2d, 1, 1, 4, { padding = "same" })
    raises("3 channels cannot be divided into 2 groups", nn.GroupNorm, 2, 3)
    raises("padding_idx 5 is not an id of 5 embeddings", nn.Embedding, 5, 2, { padding_idx = 5 })
    raises("'approximate' is 'none' or 'tanh', got 'x'", nn.GELU, { approximate = "x" })
    raises("positions count from 1", nn.Softmax, 0)
    raises("a position must be an integer", nn.Softmax)
    raises("options are a table", nn.MaxPool2d, 2, 2)
    raises("normalized_shape needs at least one size", nn.LayerNorm, {})
  end)
end)

describe("Embedding", function()
  it("names an id that is not in the table", function()
    local embedding = nn.Embedding(5, 2)
    raises("id 7", function() embedding(tl.tensor({ 1, 7 }, { dtype = "int64" })):sum():item() end)
  end)
end)

describe("losses", function()
  it("divide by the weights of the targets that count", function()
    local x = tl.tensor { { 0, 0 }, { 0, math.log(3) } }
    near(.693147, nn.CrossEntropyLoss()(x, tl.tensor({ 0, -100 }, { dtype = "int64" })), 1e-6)
    local loss = nn.CrossEntropyLoss { weight = tl.tensor { .2, .3 }, label_smoothing = .1 }
    near(2.5404506, loss(tl.tensor { { 1, 2 }, { 3, .4 } }, tl.tensor({ -100, 1 }, { dtype = "int64" })), 1e-6)
  end)

  it("are 0 when every target is ignored, and so are the gradients", function()
    local x = tl.randn(2, 3, { requires_grad = true })
    local loss = nn.CrossEntropyLoss()(x, tl.tensor({ -100, -100 }, { dtype = "int64" }))
    assert.equal(0, loss:item())
    loss:backward()
    assert.equal(0, x.grad:abs():sum():item())
  end)

  it("name a label out of range, and its row", function()
    local function loss_of(loss, labels) return loss(tl.ones(2, 3), tl.tensor(labels, { dtype = "int64" })):item() end
    local on_cpu = tl.get_default_device() == "cpu" -- a GPU says it late, when it knows the place but no rows
    raises(on_cpu and "label 3 in row 2" or "label 3 .element", loss_of, nn.CrossEntropyLoss(), { 0, 3 })
    raises(on_cpu and "label %-1 in row 1" or "label %-1 .element", loss_of, nn.NLLLoss(), { -1, 0 })
  end)

  it("check their options and arguments", function()
    raises("'reduction' is 'none', 'mean' or 'sum', got 'average'", nn.MSELoss, { reduction = "average" })
    raises("'reduction' is 'none', 'mean', 'batchmean' or 'sum'", nn.KLDivLoss, { reduction = "average" })
    raises("got 'batchmean'", nn.MSELoss, { reduction = "batchmean" })
    raises("option 'weight' must be a tensor, got a table", nn.CrossEntropyLoss, { weight = { 1, 2 } })
    raises("did you mean 'label_smoothing'", nn.CrossEntropyLoss, { label_smothing = 0.1 })
    raises("MSELoss: argument 2 must be a tensor, got nil", nn.MSELoss(), tl.ones(1))
    raises("mse_loss: .*%(2%).*%(3%)", nn.MSELoss(), tl.ones(2), tl.ones(3))
  end)
end)
