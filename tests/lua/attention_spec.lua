-- F.scaled_dot_product_attention against PyTorch (tests/golden/attention.py), against the same composed from smaller
-- operations, and against finite differences; its options.
local tl = require "tlua"
local F = tl.F
local here = debug.getinfo(1, "S").source:match("^@(.*)lua/[^/]*$")
package.path = here .. "golden/?.lua;" .. package.path
local numbers, golden = require "numbers", require "attention"

local function raises(pattern, f, ...)
  local ok, message = pcall(f, ...)
  assert.is_false(ok)
  assert.matches(pattern, message)
end

local function close(a, b, tolerance)
  assert.are.same(a.shape, b.shape)
  assert.is_true((a - b):abs():max():item() <= tolerance)
end

local function random(...) return tl.rand({ ... }, { dtype = "float64" }) * 2 - 1 end

describe("scaled_dot_product_attention", function()
  it("gives what PyTorch gives", function()
    local hidden = {}
    for i = 0, 2 do
      hidden[i + 1] = {}
      for j = 0, 4 do hidden[i + 1][j + 1] = (i + j) % 3 ~= 0 end
    end
    for _, case in ipairs(golden) do
      for dtype, tolerance in pairs { float64 = 1e-8, float32 = 1e-5, bfloat16 = 0.05 } do
        local x = {}
        for i, shape in ipairs(case.shapes) do
          x[i] = numbers.tensor(shape, i, { dtype = dtype }):requires_grad_()
        end
        local bias = numbers.tensor({ 2, 1, 5 }, 9, { dtype = dtype })
        local environment = { BOOL = tl.tensor(hidden, { dtype = "bool" }), BIAS = bias }
        local y = F.scaled_dot_product_attention(x[1], x[2], x[3],
          setfenv(assert(loadstring("return " .. case.options)), environment)())
        y:backward(numbers.tensor(y.shape, 4, { dtype = dtype }))
        close(y:detach():to("float64"), numbers.shaped(y.shape, case.y, { dtype = "float64" }), tolerance)
        for i, name in ipairs { "q", "k", "v" } do
          local expected = numbers.shaped(case.shapes[i], case[name], { dtype = "float64" })
          close(x[i].grad:to("float64"), expected, tolerance)
        end
      end
    end
  end)

  it("has the gradients that finite differences give", function()
    local q, k, v = random(1, 2, 2, 2), random(1, 1, 3, 2), random(1, 1, 3, 1)
    for _, x in ipairs { q, k, v } do x:requires_grad_() end
    local mask = tl.tensor({ { true, true, false }, { false, false, false } }, { dtype = "bool" })
    for _, opts in ipairs { {}, { is_causal = true, scale = 0.5 }, { attn_mask = mask }, { dropout_p = 0.4 } } do
      opts.enable_gqa = true
      assert.is_true(tl.autograd.gradcheck(function(a, b, c)
        tl.manual_seed(3)
        return F.scaled_dot_product_attention(a, b, c, opts)
      end, { q, k, v }))
    end
  end)

  it("drops the weights that dropout of the whole matrix drops", function()
    local q, k, v = random(2, 3, 5, 4), random(2, 3, 6, 4), random(2, 3, 6, 4)
    tl.manual_seed(7)
    local y = F.scaled_dot_product_attention(q, k, v, { dropout_p = 0.3 })
    local after = tl.rand(1):item()
    tl.manual_seed(7)
    local weights = F.dropout(F.softmax(tl.matmul(q, k:transpose(-1, -2)) / 2, -1), { p = 0.3 })
    close(y, tl.matmul(weights, v), 1e-12)
    assert.equal(after, tl.rand(1):item())
  end)

  it("gives a row that sees nothing zeros, and no gradient", function()
    local q, k, v = random(1, 3, 4), random(1, 5, 4), random(1, 5, 4)
    for _, x in ipairs { q, k, v } do x:requires_grad_() end
    local mask = tl.tensor({ { true }, { false }, { true } }, { dtype = "bool" })
    for _, m in ipairs { mask, tl.log(mask:to("float64")) } do
      q.grad = nil
      local y = F.scaled_dot_product_attention(q, k, v, { attn_mask = m })
      y:sum():backward()
      assert.are.same({ 0, 0, 0, 0 }, y[1][2]:tolist())
      assert.are.same({ 0, 0, 0, 0 }, q.grad[1][2]:tolist())
      assert.is_true(v.grad:isfinite():all():item())
    end
  end)

  it("is a low precision operation of autocast", function()
    local q = tl.randn(2, 3, 4)
    local type_of = q.device:find("cuda") and "cuda" or "cpu"
    tl.amp.autocast({ device = type_of, dtype = "bfloat16" }, function()
      assert.equal("bfloat16", F.scaled_dot_product_attention(q, q, q).dtype)
    end)
  end)

  it("keeps heads inside positions, where they came from", function()
    local x = tl.randn(2, 5, 3, 4)
    local y = F.scaled_dot_product_attention(x:transpose(2, 3), x:transpose(2, 3), x:transpose(2, 3), {})
    assert.is_true(y:transpose(2, 3):is_contiguous())
  end)

  it("names what is wrong", function()
    local q = tl.randn(2, 3, 4)
    raises("did you mean 'is_causal'", F.scaled_dot_product_attention, q, q, q, { causal = true })
    raises("'is_causal' must be a boolean", F.scaled_dot_product_attention, q, q, q, { is_causal = 1 })
    raises("'scale' must be a number", F.scaled_dot_product_attention, q, q, q, { scale = "1" })
    raises("'attn_mask'", F.scaled_dot_product_attention, q, q, q, { attn_mask = true })
    raises("argument 3 must be a tensor", F.scaled_dot_product_attention, q, q)
    raises("do not fit", F.scaled_dot_product_attention, q, q, tl.randn(2, 4, 4))
    raises("requires a gradient", F.scaled_dot_product_attention, q, q, q,
      { attn_mask = tl.zeros({ 3, 3 }, { requires_grad = true }) })
  end)
end)
