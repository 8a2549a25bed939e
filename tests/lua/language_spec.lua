-- What language models are made of: the classifier's loss in chunks, rotary positions, gated units.
local tl = require "tlua"
local here = debug.getinfo(1, "S").source:match("^@(.*)lua/[^/]*$")
package.path = here .. "golden/?.lua;" .. package.path
local numbers = require "numbers"
local nn, F, amp = tl.nn, tl.F, tl.amp

local function raises(pattern, f, ...)
  local ok, message = pcall(f, ...)
  assert.is_false(ok)
  assert.matches(pattern, message)
end

local function near(what, expected, t, tolerance)
  local got = t:detach():reshape(-1):tolist()
  assert.equal(#expected, #got, what)
  for i, wanted in ipairs(expected) do
    if not (math.abs(got[i] - wanted) <= tolerance * math.max(1, math.abs(wanted))) then
      error(("%s: element %d is %.9g, expected %.9g"):format(what, i, got[i], wanted))
    end
  end
end

describe("linear_cross_entropy", function()
  local function ids(...) return tl.tensor({ ... }, { dtype = "int64" }) end

  it("is cross_entropy of linear, for inputs of any shape", function()
    local x, w, b = tl.randn(2, 3, 4), tl.randn(5, 4), tl.randn(5)
    local target = ids({ 1, 0, 4 }, { 2, 2, 3 })
    local class = tl.rand(5)
    for _, reduction in ipairs { "mean", "sum", "none" } do
      for _, chunk in ipairs { false, 2 } do
        local options = { weight = class, ignore_index = 2, label_smoothing = 0.1, reduction = reduction }
        local expected = F.cross_entropy(F.linear(x, w, b):reshape(6, 5), target:reshape(6), options)
        options.linear_bias, options.chunk = b, chunk or nil
        local y = F.linear_cross_entropy(x, w, target, options)
        assert.are.same(reduction == "none" and { 2, 3 } or {}, y.shape)
        assert.is_true(y:reshape(expected.shape):allclose(expected))
      end
    end
    assert.is_true(F.linear_cross_entropy(x:select(1, 1):select(1, 1), w, ids(1):squeeze()):allclose(
      F.cross_entropy(F.linear(x:select(1, 1):select(1, 1), w), ids(1):squeeze())))
  end)

  -- The table of an embedding as the classifier's weight gets both gradients, and one step of the optimizer.
  local function tied(fused, chunk, scaler)
    local table_of = nn.Embedding(7, 4)
    tl.no_grad(function() table_of.weight:copy_(numbers.tensor({ 7, 4 }, 5)) end)
    local input, target = ids(1, 2, 3, 1, 6), ids(2, 3, 1, 6, 0)
    local h = table_of(input):tanh()
    local loss
    if fused then
      loss = F.linear_cross_entropy(h, table_of.weight, target, { chunk = chunk })
    else
      loss = F.cross_entropy(F.linear(h, table_of.weight), target)
    end
    if scaler then scaler:scale(loss):backward() else loss:backward() end
    local optimizer = tl.optim.SGD(table_of:parameters(), { lr = 0.5 })
    if scaler then
      scaler:step(optimizer)
      scaler:update()
    else
      optimizer:step()
    end
    return table_of.weight:detach()
  end

  it("shares its weight with an embedding", function()
    local expected = tied(false)
    assert.is_true(tied(true):allclose(expected, { atol = 1e-6 }))
    assert.is_true(tied(true, 2):allclose(expected, { atol = 1e-6 }))
  end)

  it("takes the scale of a GradScaler", function()
    local expected = tied(false)
    for _, chunk in ipairs { 5, 2 } do
      local scaler = amp.GradScaler { init_scale = 1024 }
      assert.is_true(tied(true, chunk, scaler):allclose(expected, { atol = 1e-6 }))
    end
  end)

  it("keeps the logits of one chunk at a time", function()
    local x, w = tl.randn(64, 8):requires_grad_(), tl.randn(4096, 8):requires_grad_()
    local target = tl.randint(0, 4096, { 64 }, { dtype = "int64" })
    local function peak(f)
      collectgarbage()
      collectgarbage()
      local former = tl.memory(x.device).live
      tl.reset_peak_memory(x.device)
      f():backward()
      return tl.memory(x.device).peak - former
    end
    local apart = peak(function() return F.cross_entropy(F.linear(x, w), target) end)
    x.grad, w.grad = nil, nil
    local fused = peak(function() return F.linear_cross_entropy(x, w, target, { chunk = 8 }) end)
    assert.is_true(apart > 2 * 64 * 4096 * 4)
    assert.is_true(fused < 0.4 * apart)
  end)

  it("refuses what it does not know", function()
    local x, w, t = tl.randn(2, 3), tl.randn(4, 3), ids(0, 1)
    raises("did you mean 'linear_bias'", F.linear_cross_entropy, x, w, t, { linear_bia = w })
    raises("option 'reduction' is", F.linear_cross_entropy, x, w, t, { reduction = "average" })
    raises("chunk must be an integer", F.linear_cross_entropy, x, w, t, { chunk = 0 })
    raises("option 'weight' must be a tensor", F.linear_cross_entropy, x, w, t, { weight = 1 })
    raises("label 4 %(element 3 of the target%) is ", function() -- on a GPU, when it is waited for
      return F.linear_cross_entropy(tl.randn(2, 2, 3), w, ids(0, 1, 4, 2):view(2, 2)):item()
    end)
  end)
end)

describe("rotary positions", function()
  it("are those of transformers", function()
    local golden = require "rope"
    for i, case in ipairs(golden) do
      local rope = nn.RotaryEmbedding(case.dim, { base = case.base, scaling = case.scaling })
      local cos, sin = rope(golden.first, golden.count)
      near("cos " .. i, case.cos, cos, 2e-5)
      near("sin " .. i, case.sin, sin, 2e-5)
      local x = numbers.tensor({ 1, 2, golden.count, case.dim }, 3)
      near("halves " .. i, case.halves, F.rope(x, cos, sin), 5e-5)
      near("pairs " .. i, case.pairs, F.rope(x, cos, sin, { interleaved = true }), 5e-5)
    end
  end)

  it("begin with 1, where nothing turns, and are the same however many are asked for", function()
    local rope = nn.RotaryEmbedding(4)
    local x = tl.randn(1, 4)
    assert.is_true(F.rope(x, rope(1, 1)):equal(x))
    local cos = rope(1, 300)
    assert.are.same({ 300, 2 }, cos.shape)
    assert.is_true(rope(200, 5):equal(cos:narrow(1, 200, 5)))
    assert.equal("RotaryEmbedding(4, base=10000)", tostring(rope))
    assert.are.same({}, rope:state_dict())
  end)

  it("turn back in backward, whatever the layout", function()
    local rope = nn.RotaryEmbedding(6)
    local cos, sin = rope(1, 3)
    for _, interleaved in ipairs { false, true } do
      local x = tl.randn(2, 3, 4, 7, { dtype = "float64" }):transpose(2, 3):requires_grad_() -- (2, 4, 3, 7)
      local y = F.rope(x, cos, sin, { interleaved = interleaved })
      assert.is_true(y:is_contiguous())
      assert.is_true(y:norm():allclose(x:norm()))
      y:backward(y:detach())
      assert.is_true(x.grad:allclose(x:detach()))
      assert.is_true(y:select(-1, 7):equal(x:select(-1, 7)))
      assert.is_true(tl.autograd.gradcheck(function(z)
        return F.rope(z, cos, sin, { interleaved = interleaved })
      end, { tl.randn(3, 6, { dtype = "float64" }):requires_grad_() }))
    end
  end)

  it("stay apart by as much wherever they are", function()
    local rope = nn.RotaryEmbedding(8)
    local q, k = tl.randn(1, 8, { dtype = "float64" }), tl.randn(1, 8, { dtype = "float64" })
    local function product(i, j) return (F.rope(q, rope(i, 1)) * F.rope(k, rope(j, 1))):sum():item() end
    assert.is_true(math.abs(product(3, 1) - product(103, 101)) < 1e-5)
  end)

  it("refuse what does not fit", function()
    local rope = nn.RotaryEmbedding(4)
    raises("dim must be even", nn.RotaryEmbedding, 5)
    raises("scaling type is", nn.RotaryEmbedding, 4, { scaling = { type = "yarn" } })
    raises("needs a positive number 'factor'", nn.RotaryEmbedding, 4, { scaling = { type = "linear" } })
    raises("low_freq_factor must be below", nn.RotaryEmbedding, 4,
      { scaling = { type = "llama3", factor = 8, low_freq_factor = 4, original_max_position_embeddings = 64 } })
    raises("first position", rope, 0, 4)
    raises("number of positions", rope, 1, 0)
    local cos, sin = rope(1, 3)
    raises("cos is %(3x2%)", F.rope, tl.randn(2, 4), cos, sin)
    raises("cos is %(3x2%)", F.rope, tl.randn(3, 2), cos, sin)
    raises("cos is %(3x2%) but sin %(3x1%)", F.rope, tl.randn(3, 4), cos, sin:narrow(2, 1, 1))
    raises("the input is %(.., T, D%)", F.rope, tl.randn(4), cos, sin)
    raises("int64", F.rope, tl.zeros(3, 4, { dtype = "int64" }), cos, sin)
  end)
end)

describe("swiglu", function()
  it("is silu(gate) * up, in one pass", function()
    local gate, up = tl.randn(3, 4):requires_grad_(), tl.randn(3, 4):requires_grad_()
    local y = F.swiglu(gate, up)
    assert.is_true(y:allclose(F.silu(gate) * up))
    y:sum():backward()
    local one, two = gate.grad, up.grad
    gate.grad, up.grad = nil, nil
    (F.silu(gate) * up):sum():backward()
    assert.is_true(one:allclose(gate.grad))
    assert.is_true(two:allclose(up.grad))
    raises("swiglu", F.swiglu, gate)
  end)
end)
