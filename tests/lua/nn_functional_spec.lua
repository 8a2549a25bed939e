-- nn.functional computes what the modules compute; nn.init fills as its documents say.
local tl = require "tlua"
local nn, F = tl.nn, tl.F

local function raises(pattern, f, ...)
  local ok, message = pcall(f, ...)
  assert.is_false(ok)
  assert.matches(pattern, message)
end

local function labels(...) return tl.tensor({ ... }, { dtype = "int64" }) end

describe("nn.functional", function()
  it("is tl.F", function() assert.equal(nn.functional, F) end)

  it("computes as the layers do", function()
    local x, image = tl.randn(3, 4), tl.randn(2, 4, 6, 6)
    local linear = nn.Linear(4, 2)
    local conv = nn.Conv2d(4, 6, 3, { stride = 2, padding = { 1, 0 }, groups = 2 })
    local conv1 = nn.Conv1d(3, 2, 2)
    local transposed = nn.ConvTranspose2d(4, 3, 3, { stride = 2, output_padding = 1 })
    local bn = nn.BatchNorm2d(4):eval()
    local embedding, ids = nn.Embedding(5, 2, { padding_idx = 1 }), labels(0, 1, 4)
    local pairs_of = {
      { linear(x), F.linear(x, linear.weight, linear.bias) },
      { conv(image), F.conv2d(image, conv.weight, conv.bias, { stride = 2, padding = { 1, 0 }, groups = 2 }) },
      { conv1(x:unsqueeze(1)), F.conv1d(x:unsqueeze(1), conv1.weight, conv1.bias) },
      { transposed(image),
        F.conv_transpose2d(image, transposed.weight, transposed.bias, { stride = 2, output_padding = 1 }) },
      { bn(image),
        F.batch_norm(image,
          { running_mean = bn.running_mean, running_var = bn.running_var, weight = bn.weight, bias = bn.bias }) },
      { nn.LayerNorm(4)(x), F.layer_norm(x, 4) },
      { nn.RMSNorm(4)(x), F.rms_norm(x, { 4 }) },
      { nn.GroupNorm(2, 4)(image), F.group_norm(image, 2) },
      { embedding(ids), F.embedding(ids, embedding.weight, { padding_idx = 1 }) },
      { nn.MaxPool2d(3, { stride = 2, padding = 1 })(image), F.max_pool2d(image, 3, { stride = 2, padding = 1 }) },
      { nn.AvgPool2d(2)(image), F.avg_pool2d(image, 2) },
      { nn.AdaptiveAvgPool2d(2)(image), F.adaptive_avg_pool2d(image, 2) },
      { nn.ReLU()(x), F.relu(x) }, { nn.GELU()(x), F.gelu(x) }, { nn.SiLU()(x), F.silu(x) },
      { nn.GELU { approximate = "tanh" }(x), F.gelu(x, { approximate = "tanh" }) },
      { nn.Tanh()(x), F.tanh(x) }, { nn.Sigmoid()(x), F.sigmoid(x) }, { nn.ELU()(x), F.elu(x) },
      { nn.LeakyReLU { negative_slope = 0.3 }(x), F.leaky_relu(x, { negative_slope = 0.3 }) },
      { nn.Softmax(2)(x), F.softmax(x, 2) }, { nn.LogSoftmax(1)(x), F.log_softmax(x, 1) },
      { x, F.dropout(x, { training = false }) },
    }
    for i, pair in ipairs(pairs_of) do assert.is_true(pair[1]:equal(pair[2]), "pair " .. i) end
  end)

  it("computes losses as the modules do", function()
    local x, y, p = tl.randn(3, 4), tl.randn(3, 4), tl.rand(3, 4)
    local t, w = labels(1, 3, 0), tl.rand(4)
    local pairs_of = {
      { nn.MSELoss { reduction = "sum" }(x, y), F.mse_loss(x, y, { reduction = "sum" }) },
      { nn.L1Loss()(x, y), F.l1_loss(x, y) },
      { nn.SmoothL1Loss { beta = 0.5 }(x, y), F.smooth_l1_loss(x, y, { beta = 0.5 }) },
      { nn.HuberLoss { delta = 0.5 }(x, y), F.huber_loss(x, y, { delta = 0.5 }) },
      { nn.CrossEntropyLoss { weight = w }(x, t), F.cross_entropy(x, t, { weight = w }) },
      { nn.NLLLoss { ignore_index = 3 }(x, t), F.nll_loss(x, t, { ignore_index = 3 }) },
      { nn.BCELoss()(p, p), F.binary_cross_entropy(p, p) },
      { nn.BCEWithLogitsLoss { pos_weight = w }(x, p), F.binary_cross_entropy_with_logits(x, p, { pos_weight = w }) },
      { nn.KLDivLoss { reduction = "batchmean" }(x, p), F.kl_div(x, p, { reduction = "batchmean" }) },
    }
    for i, pair in ipairs(pairs_of) do assert.is_true(pair[1]:equal(pair[2]), "pair " .. i) end
  end)

  it("normalises and compares directions", function()
    local x = tl.tensor { { 3, 4 }, { 0, 0 } }
    assert.is_true(F.normalize(x):allclose(tl.tensor { { .6, .8 }, { 0, 0 } }))
    assert.is_true(F.cosine_similarity(x, tl.tensor { { 6, 8 }, { 1, 1 } }):allclose(tl.tensor { 1, 0 }))
    assert.is_true(F.softplus(tl.tensor { 0, 30 }):allclose(tl.tensor { math.log(2), 30 }))
    assert.are.same({ { 0, 1 }, { 1, 0 } }, F.one_hot(labels(1, 0)):tolist())
    assert.are.same({ 2, 3 }, F.one_hot(labels(1, 0), 3).shape)
  end)

  it("checks its arguments", function()
    raises("linear: argument 2 must be a tensor, got nil", F.linear, tl.ones(1))
    raises("did you mean 'stride'", F.conv2d, tl.ones(1, 1, 2, 2), tl.ones(1, 1, 1, 1), nil, { strid = 1 })
    raises("'reduction' is", F.mse_loss, tl.ones(1), tl.ones(1), { reduction = "x" })
  end)
end)

-- mean, standard deviation, least and largest value
local function moments(t) return t:mean():item(), t:std():item(), t:min():item(), t:max():item() end
local function close(expected, value, tolerance)
  assert.is_true(math.abs(value - expected) <= tolerance, tostring(value))
end

describe("nn.init", function()
  local init = nn.init

  it("fills with constants", function()
    local t = tl.empty(2, 3)
    assert.is_true(init.constant_(t, 3) == t)
    assert.equal(18, t:sum():item())
    assert.equal(6, init.ones_(t):sum():item())
    assert.equal(0, init.zeros_(t):sum():item())
    assert.are.same({ { 1, 0, 0 }, { 0, 1, 0 } }, init.eye_(t):tolist())
    raises("needs a matrix, got a tensor of %(3%)", init.eye_, tl.empty(3))
    raises("the value must be a number", init.constant_, t)
  end)

  it("changes parameters without recording", function()
    local p = nn.Parameter(tl.zeros(2, 2))
    init.ones_(p)
    assert.is_true(p.is_leaf and p.requires_grad)
    assert.equal(4, p:sum():item())
    assert.is_true(tl.is_grad_enabled())
  end)

  it("draws uniform and normal numbers", function()
    tl.manual_seed(1)
    local t = tl.empty(100, 200)
    local mean, std, low, high = moments(init.uniform_(t, { a = -2, b = 4 }))
    close(1, mean, 0.05)
    close(6 / math.sqrt(12), std, 0.03)
    assert.is_true(low >= -2 and high < 4)
    mean, std = moments(init.normal_(t, { mean = 3, std = 2 }))
    close(3, mean, 0.05)
    close(2, std, 0.03)
    assert.is_true(init.normal_(t, { generator = tl.Generator(5) }):equal(init.normal_(tl.empty(100, 200),
      { generator = tl.Generator(5) })))
  end)

  it("scales by the fans", function()
    tl.manual_seed(1)
    local t = tl.empty(60, 40, 3, 3) -- fan_in 360, fan_out 540
    local function std(f, options) return select(2, moments(f(t, options))) end
    close(math.sqrt(2 / 900), std(init.xavier_normal_), 1e-3)
    close(3 * math.sqrt(2 / 900), std(init.xavier_uniform_, { gain = 3 }), 3e-3)
    close(math.sqrt(2 / 360), std(init.kaiming_normal_), 1e-3)
    close(math.sqrt(2 / 540), std(init.kaiming_uniform_, { mode = "fan_out", nonlinearity = "relu" }), 1e-3)
    local bound = math.sqrt(3) * math.sqrt(2 / 6) / math.sqrt(360)
    init.kaiming_uniform_(t, { a = math.sqrt(5) })
    close(bound, t:max():item(), bound / 100)
    assert.is_true(t:abs():max():item() <= bound)
    raises("at least 2 dims, got a tensor of %(3%)", init.xavier_normal_, tl.empty(3))
    raises("'mode' is 'fan_in' or 'fan_out'", init.kaiming_normal_, t, { mode = "fan" })
  end)

  it("knows the gains", function()
    assert.equal(5 / 3, init.calculate_gain("tanh"))
    assert.equal(math.sqrt(2), init.calculate_gain("relu"))
    close(math.sqrt(2 / 1.04), init.calculate_gain("leaky_relu", 0.2), 1e-12)
    raises("did you mean 'relu'", init.calculate_gain, "rellu")
  end)

  it("cuts the normal distribution", function()
    tl.manual_seed(1)
    local t = tl.empty(100, 200)
    local mean, std, low, high = moments(init.trunc_normal_(t))
    close(0, mean, 0.02)
    close(0.8796, std, 0.01)
    assert.is_true(low >= -2 and high <= 2)
    mean, std, low, high = moments(init.trunc_normal_(t, { mean = 1, std = 2, a = 0, b = 5 }))
    close(1 + 2 * 0.44575, mean, 0.03)
    assert.is_true(low >= 0 and high <= 5 and std < 2)
  end)

  it("makes rows or columns orthonormal", function()
    for _, shape in ipairs { { 5, 8 }, { 8, 5 }, { 4, 2, 3 } } do
      local t = init.orthogonal_(tl.empty(shape, { dtype = "float64" }), { gain = 2 }):flatten(2)
      local wide = t:size(1) <= t:size(2)
      local product = wide and t:matmul(t:t()) or t:t():matmul(t)
      assert.is_true(product:allclose(tl.eye(product:size(1), { dtype = "float64" }) * 4, { atol = 1e-12 }))
    end
    assert.is_true(init.orthogonal_(nn.Parameter(tl.empty(3, 3))).is_leaf)
  end)
end)

describe("documentation", function()
  it("has a text for every name of nn, nn.functional and nn.init", function()
    local doc = require "tlua.doc.nn"
    for name in pairs(getmetatable(nn).names) do
      if name ~= "utils" then assert.is_string(doc["tl.nn." .. name], name) end
    end
    for name in pairs(F) do assert.is_string(doc["tl.F." .. name], name) end
    for name in pairs(nn.init) do assert.is_string(doc["tl.nn.init." .. name], name) end
  end)
end)
