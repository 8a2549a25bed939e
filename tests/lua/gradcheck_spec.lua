-- derivatives of every operation that a script can call, against finite differences in float64, on contiguous,
-- transposed, narrowed, expanded, one-element and empty inputs.
local tl = require "tlua"
local base = require "tlua.base"

local gradcheck = tl.autograd.gradcheck

-- Inputs of shape (3, 4) whose elements keep a distance from each other, from 0 and from 1.
local function values()
  local order = tl.randperm(12, { dtype = "float64" })
  return (order - 5.7):mul(0.31):view(3, 4)
end

-- Each takes a leaf and gives a (3, 4) or smaller view of it: the operation under test sees that layout.
local layouts = {
  contiguous = { values, function(x) return x end },
  transposed = { function() return values().T:contiguous() end, function(x) return x.T end },
  narrowed = {
    function() return tl.cat({ values(), values() + 0.013 }, 2) end,
    function(x) return x:slice(2, 2, 8, 2) end,
  },
  expanded = { function() return values()[1]:view(1, 4):contiguous() end, function(x) return x:expand(3, 4) end },
}

local function check(name, f, make)
  for layout, l in pairs(layouts) do
    it(name .. " (" .. layout .. ")", function()
      tl.manual_seed(7)
      assert.is_true(gradcheck(function(x, ...) return f(l[2](x), ...) end, { l[1](), make and make() }))
    end)
  end
end

local function ids(...) return tl.tensor({ ... }, { dtype = "int64" }) end

describe("gradcheck of reductions:", function()
  for _, name in ipairs { "sum", "mean", "prod", "logsumexp", "var", "std" } do
    check(name, function(x) return x[name](x) end)
    check(name .. " of a dim", function(x)
      x = x + tl.arange(12, { dtype = "float64" }):view(3, 4):square() * 0.1 -- std has no derivative where it is 0
      return x[name](x, 1), x[name](x, -1, { keepdim = true })
    end)
    check(name .. " of two dims", function(x) return x[name](x, { 1, 2 }) end)
  end
  check("amax, amin", function(x) return x:amax(2), x:amin(1), x:amax() end)
  check("max, min", function(x) return (x:max(2)), (x:min(-1, { keepdim = true })) end)
  check("norm", function(x) return x:norm(), x:norm(1, 2), x:norm(3, 2), x:norm(math.huge, 2) end)
  check("cumsum", function(x) return x:cumsum(1), x:cumsum(2) end)
  check("softmax", function(x) return x:softmax(1), x:softmax(2), x:log_softmax(1), x:log_softmax(2) end)
  check("sort, topk", function(x) return (x:sort(2)), (x:topk(2, 2)) end)
end)

describe("gradcheck of views and joins:", function()
  check("reshape", function(x) return x:reshape(2, 6), x:flatten(), x:unsqueeze(2), x:reshape(3, 4, 1):squeeze() end)
  check("permute", function(x) return x:permute(2, 1), x:transpose(1, 2), x.T, x:reshape(3, 2, 2):movedim(1, 3) end)
  check("expand", function(x) return x:unsqueeze(1):expand(2, 3, 4), x:tile(2, 2), x:repeat_interleave(2, 2) end)
  check("parts", function(x)
    return x[2], x[{ { 1, 2 }, 3 }], x:narrow(2, 2, 2), x:slice(2, 1, 4, 3), x:select(1, 3)
  end)
  check("split", function(x) return x:split(2)[2], x:chunk(2, 2)[1], x:unbind(2)[4] end)
  check("cat, stack", function(x)
    return tl.cat({ x, x * 2 }), tl.stack({ x, x }, 2), tl.cat({ x, x[{ {}, { 1, 2 } }] }, 2)
  end)
  check("flip, triu, tril", function(x) return x:flip({ 1, 2 }), x:triu(), x:tril(-1) end)
  check("clone, to", function(x) return x:clone(), x:contiguous() end)
end)

describe("gradcheck of picking:", function()
  check("index_select", function(x)
    return x:index_select(1, ids(2, 0, 2)), x:index_select(2, ids(3, 3)), x[ids(1, 1)]
  end)
  check("gather", function(x)
    return x:gather(2, ids(0, 1, 1, 3, 2, 2):view(3, 2)), x:gather(1, ids(2, 2, 0, 1):view(1, 4))
  end)
  check("scatter_add", function(x, src) return x:scatter_add(2, ids(0, 1, 1, 3, 2, 2):view(3, 2), src) end,
    function() return tl.randn(3, 2) end)
  check("index_add_", function(x, src) return x:clone():index_add_(1, ids(0, 0), src, { alpha = 2 }) end,
    function() return tl.randn(2, 4) end)
  check("masks", function(x)
    local mask = tl.tensor({ { true, false, true, true } }):expand(3, 4)
    return x:masked_select(mask), x:masked_fill(mask, 3), tl.where(mask, x, x * 2), x[mask]
  end)
end)

describe("gradcheck of products:", function()
  local function other() return tl.randn(4, 2) end
  check("matmul", function(x, y) return x:matmul(y), x:mm(y), x:matmul(y[{ {}, 1 }]), x[1]:matmul(y) end, other)
  check("batches", function(x, y)
    return x:reshape(3, 1, 4):matmul(y), x:reshape(3, 2, 2):bmm(x:reshape(3, 2, 2))
  end, other)
  check("addmm", function(x, y) return y[1]:addmm(x, y, { beta = 2, alpha = 3 }) end, other)
  check("dot, outer", function(x, y) return x[1]:dot(y[{ {}, 1 }]), x[1]:outer(y[1]) end, other)
  check("einsum", function(x, y)
    return tl.einsum("ij,jk->ik", x, y), tl.einsum("ij,jk->", x, y), tl.einsum("ij->ji", x)
  end, other)
end)

describe("gradcheck of pointwise operations:", function()
  local positive = { log = true, log2 = true, log10 = true, log1p = true, sqrt = true, rsqrt = true, softsign = true }
  local unit = { asin = true, acos = true }
  for _, row in ipairs(base.ops) do
    local name, kind = row[1], row[2]
    local f = tl[name]
    local one = tl.ones(1, { requires_grad = true })
    if kind ~= "binary" and (name == "clamp" and f(one, 0, 1) or f(one)).requires_grad then
      check(name, function(x)
        if positive[name] then x = x:abs() + 0.1 elseif unit[name] then x = x * 0.2 end
        if name == "clamp" then return f(x, -1, 1.2) end
        return f(x)
      end)
    elseif kind == "binary" and f(one, 2).requires_grad then
      check(name, function(x, z)
        if name == "pow" then x = x:abs() + 0.1 end
        return f(x, z), f(x, 1.9), f(2.3, x:abs() + 0.45)
      end, function() return tl.rand(4, { dtype = "float64" }) + 0.57 end)
    end
  end
  check("three operands", function(x, z)
    return x:addcmul(x, z, { value = 2 }), x:addcdiv(x, z), x:lerp(z, 0.3), x:add(z, { alpha = 3 })
  end, function() return tl.rand(4) + 1 end)
end)

describe("gradcheck of in-place operations:", function()
  local function once(name, f)
    it(name, function()
      tl.manual_seed(7)
      assert.is_true(gradcheck(f, { values(), tl.rand(4) + 0.5 }))
    end)
  end
  once("on a whole tensor", function(x, z) return (x * 1):mul_(z):add_(x):div_(z):exp_() end)
  once("on a view", function(x, z)
    local y = x * 2
    y[2]:mul_(z)
    y[{ {}, 1 }] = z[1]
    y[{ { 2, 3 }, { 3, 4 } }]:square_()
    return y
  end)
  once("copy_ and masked_fill_", function(x, z)
    return (x * 1):copy_(z):mul_(x), (x * z):masked_fill_(x:gt(0), 2)
  end)
  once("scatter_add_", function(x, z)
    return (x * 1):scatter_add_(1, ids(0, 1, 2, 0):view(1, 4), z:view(1, 4))
  end)
end)

describe("gradcheck of small and empty inputs:", function()
  it("0-d", function()
    local scalar = tl.tensor(0.7)
    assert.is_true(gradcheck(function(x) return x:exp(), x:sum(), x:reshape(1), x:mean(), x * x end, { scalar }))
  end)

  it("empty", function()
    assert.is_true(gradcheck(function(x)
      return x:exp(), x:sum(), x:sum(1), x.T, tl.cat({ x, x })
    end, { tl.zeros(0, 3) }))
    assert.is_true(gradcheck(function(x, y) return x:matmul(y) end, { tl.zeros(2, 0), tl.zeros(0, 3) }))
  end)
end)
