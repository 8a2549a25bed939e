-- Every pointwise operation against PyTorch: values and gradients at ordinary points and where formulas go wrong
-- (tests/golden/pointwise.py).
local tl = require "tlua"
local here = debug.getinfo(1, "S").source:match "^@(.*)lua/[^/]*$"
local golden = dofile(here .. "golden/pointwise.lua")

-- Where a gradient is meant to differ: PyTorch's softsign makes nan of infinities, its elu hides a nan.
local function differs(name, x) return name == "softsign" and math.abs(x) == math.huge or name == "elu" and x ~= x end

local function same(expected, got, tolerance)
  if expected ~= expected then return got ~= got end
  if math.abs(expected) == math.huge then return expected == got end
  return math.abs(expected - got) <= tolerance * math.max(1, math.abs(expected))
end

-- what: "the value", "the gradient ..."; a and b: the points
local function compare(name, what, expected, got, tolerance, a, b)
  for i = 1, #expected do
    if not same(expected[i], got[i], tolerance) and (what == "the value" or not differs(name, a[i])) then
      local at = b and ("%g, %g"):format(a[i], b[i]) or ("%g"):format(a[i])
      error(("%s of %s at %s: %.12g, expected %.12g"):format(what, name, at, got[i], expected[i]))
    end
  end
end

for dtype, tolerance in pairs { float64 = 1e-11, float32 = 1e-5 } do
  local function leaf(values) return tl.tensor(values, { dtype = dtype, requires_grad = true }) end

  describe("PyTorch's values and gradients, in " .. dtype .. ", of", function()
    for _, case in ipairs(golden.unary) do
      local name = case[1]
      it(name, function()
        local x = leaf(golden.points)
        local y = tl[name](x)
        compare(name, "the value", case[2], y:double():tolist(), tolerance, golden.points)
        assert.equal(case[3] ~= nil, y.requires_grad)
        if not case[3] then return end
        y:backward(tl.ones_like(y))
        compare(name, "the gradient", case[3], x.grad:tolist(), tolerance, golden.points)
      end)
    end

    for _, case in ipairs(golden.binary) do
      local name = case[1]
      it(name, function()
        local a, b = leaf(golden.a), leaf(golden.b)
        local y = tl[name](a, b)
        compare(name, "the value", case[2], y:double():tolist(), tolerance, golden.a, golden.b)
        assert.equal(case[3] ~= nil, y.requires_grad)
        if not case[3] then return end
        y:backward(tl.ones_like(y))
        compare(name, "the first gradient", case[3], a.grad:tolist(), tolerance, golden.a, golden.b)
        compare(name, "the second gradient", case[4], b.grad:tolist(), tolerance, golden.a, golden.b)
      end)
    end
  end)
end

describe("PyTorch's integers of", function()
  for _, case in ipairs(golden.integer) do
    local name = case[1]
    it(name, function()
      local y = tl[name](tl.tensor(golden.ia, { dtype = "int64" }), tl.tensor(golden.ib, { dtype = "int64" }))
      assert.equal(case[2], y.dtype)
      compare(name, "the value", case[3], y:double():tolist(), 1e-7, golden.ia, golden.ib)
    end)
  end
end)

describe("the golden values", function()
  it("miss no operation", function()
    local there = {}
    for _, list in ipairs { golden.unary, golden.binary } do
      for _, case in ipairs(list) do there[case[1]] = true end
    end
    for _, row in ipairs(require("tlua.base").ops) do
      assert.is_true(there[row[1]] or row[1] == "clamp", row[1]) -- clamp needs bounds: its tests are elsewhere
    end
  end)
end)
