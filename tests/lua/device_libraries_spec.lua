-- The device that the suite runs on against the CPU: products and convolutions in every layout that the libraries can
-- or cannot take, softmax and losses of every length.
local tl = require "tlua"
local F = tl.F

local device = tl.get_default_device()
if device == "cpu" then return end -- nothing to compare

local against = require "against_cpu"
local FLOATING, agree, differentiated, text = against.FLOATING, against.agree, against.differentiated, against.text
local NUMBERS = { "float32", "float16", "bfloat16", "float64", "int64", "int32", "uint8" }
-- sums of products of a few dozen terms
local TOLERANCE = { float32 = 2e-5, float16 = 1e-2, bfloat16 = 6e-2, float64 = 1e-11, int64 = 0, int32 = 0, uint8 = 0 }

local function raises(pattern, f)
  local ok, message = pcall(f)
  assert.is_false(ok)
  assert.matches(pattern, message)
end

local function few(shape, dtype) return against.signed(shape, dtype) end

-- A matrix of r x c in a layout: the shape of what is moved to the device, and the view of it there.
local LAYOUTS = {
  plain = { function(r, c) return { r, c } end, function(t) return t end },
  transposed = { function(r, c) return { c, r } end, function(t) return t:transpose(1, 2) end },
  narrowed = { function(r, c) return { r + 2, c + 3 } end,
               function(t, r, c) return t:narrow(1, 2, r):narrow(2, 3, c) end },
  skipping = { function(r, c) return { r, c, 2 } end, function(t) return t:select(3, 1) end },
  one_row = { function(_, c) return { 1, c } end, function(t, r, c) return t:expand(r, c) end },
  one_column = { function(r) return { r, 1 } end, function(t, r, c) return t:expand(r, c) end },
}

describe(device .. " multiplies as the CPU does", function()
  for _, dtype in ipairs(NUMBERS) do
    it(dtype .. " matrices of every layout", function()
      for _, size in ipairs { { 1, 1, 1 }, { 17, 33, 20 }, { 1, 8, 3 }, { 5, 1, 7 }, { 4, 6, 1 }, { 3, 0, 2 } } do
        local m, k, n = unpack(size)
        for left, a in pairs(LAYOUTS) do
          for right, b in pairs(LAYOUTS) do
            agree(text(size) .. " " .. left .. " " .. right, TOLERANCE[dtype], function(x, y)
              return tl.mm(a[2](x, m, k), b[2](y, k, n))
            end, few(a[1](m, k), dtype), few(b[1](k, n), dtype))
          end
        end
      end
    end)

    it(dtype .. " batches of every kind", function()
      local function product(what, f, ...)
        local operands = {}
        for i, shape in ipairs { ... } do operands[i] = few(shape, dtype) end
        agree(what, TOLERANCE[dtype], f, unpack(operands))
      end
      product("bmm", tl.bmm, { 4, 5, 6 }, { 4, 6, 3 })
      product("a shared right factor", tl.matmul, { 4, 5, 6 }, { 6, 3 })
      product("a shared left factor", tl.matmul, { 5, 6 }, { 3, 6, 2 })
      product("heads", function(q, k) return tl.matmul(q:transpose(2, 3), k:permute(1, 3, 4, 2)) end, { 2, 5, 3, 4 },
        { 2, 5, 3, 4 })
      product("a batch dim each", tl.matmul, { 2, 1, 5, 4 }, { 1, 3, 4, 2 })
      product("a vector on the left", tl.matmul, { 4 }, { 2, 4, 3 })
      product("a vector on the right", tl.matmul, { 2, 3, 4 }, { 4 })
      product("dot", tl.dot, { 400 }, { 400 })
      product("dot of nothing", tl.dot, { 0 }, { 0 })
      product("a row to add", tl.addmm, { 5 }, { 3, 4 }, { 4, 5 })
      product("a strided row to add", function(c, a, b) return tl.addmm(c:select(2, 1), a, b) end, { 5, 2 }, { 3, 4 },
        { 4, 5 })
      product("an expanded row to add", function(c, a, b) return tl.addmm(c:expand(5), a, b) end, { 1 }, { 3, 4 },
        { 4, 5 })
      product("a matrix to add", function(c, a, b) return tl.addmm(c, a, b, { beta = 2, alpha = 3 }) end, { 3, 5 },
        { 3, 4 }, { 4, 5 })
      product("a row to add to nothing", tl.addmm, { 5 }, { 3, 0 }, { 0, 5 })
    end)
  end

  it("more matrices than a grid has places for", function()
    agree("70000", 1e-5, tl.bmm, few({ 70000, 1, 2 }, "float32"), few({ 70000, 2, 1 }, "float32"))
  end)

  it("more shapes than are remembered, again and again", function()
    local a, b = few({ 20, 20 }, "float32"), few({ 20, 20 }, "float32")
    agree("shapes", 1e-5, function(x, y)
      local sums = {}
      for _ = 1, 2 do
        for i = 1, 20 do
          for j = 1, 20 do sums[#sums + 1] = tl.mm(x:narrow(1, 1, i), y:narrow(2, 1, j)):view(-1):narrow(1, 1, 1) end
        end
      end
      return tl.cat(sums)
    end, a, b)
  end)

  for _, dtype in ipairs(FLOATING) do
    it(dtype .. " linear layers and their gradients", function()
      for _, shape in ipairs { { 4 }, { 1, 4 }, { 70, 4 }, { 7, 3, 4 }, { 0, 4 } } do
        agree(text(shape), 4 * TOLERANCE[dtype], differentiated(F.linear), few(shape, dtype), few({ 5, 4 }, dtype),
          few({ 5 }, dtype))
        agree(text(shape) .. " bare", 4 * TOLERANCE[dtype], differentiated(F.linear), few(shape, dtype),
          few({ 5, 4 }, dtype))
      end
      for _, features in ipairs { 5, 8 } do -- only the second can be one call that keeps what gradients need
        local x, w, b = few({ 6, 4 }, dtype), few({ features, 4 }, dtype), few({ features }, dtype)
        agree(features .. " gelu", 4 * TOLERANCE[dtype], F.linear_gelu, x, w, b)
        agree(features .. " gelu, bare", 4 * TOLERANCE[dtype], F.linear_gelu, x, w)
        agree(features .. " gelu, gradients", 4 * TOLERANCE[dtype], differentiated(F.linear_gelu), x, w, b)
      end
    end)
  end
end)

describe(device .. " convolves as the CPU does", function()
  local cases = {
    plain = { {}, { 2, 3, 8, 7 }, { 4, 3, 3, 3 }, { 4 } },
    bare = { {}, { 2, 3, 8, 7 }, { 4, 3, 3, 3 } },
    strided = { { stride = 2, padding = 1 }, { 2, 3, 9, 10 }, { 4, 3, 3, 2 }, { 4 } },
    dilated = { { dilation = 2, padding = 2, groups = 2 }, { 2, 4, 9, 10 }, { 6, 2, 3, 3 }, { 6 } },
    depthwise = { { padding = 1, groups = 4 }, { 2, 4, 9, 10 }, { 4, 1, 3, 3 }, { 4 } },
    pointwise = { {}, { 2, 8, 5, 5 }, { 16, 8, 1, 1 }, { 16 } },
    padded = { { padding = 3 }, { 1, 1, 3, 3 }, { 1, 1, 2, 2 }, { 1 } },
    flat = { { stride = 3, padding = 2 }, { 2, 3, 20 }, { 4, 3, 5 }, { 4 }, F.conv1d },
    transposed = { { stride = 2, padding = 1, output_padding = 1 }, { 2, 3, 5, 4 }, { 3, 4, 3, 3 }, { 4 },
                   F.conv_transpose2d },
    transposed_groups = { { groups = 2, dilation = 2 }, { 2, 4, 5, 4 }, { 4, 3, 3, 3 }, { 6 }, F.conv_transpose2d },
  }
  for name, case in pairs(cases) do
    it(name, function()
      for _, dtype in ipairs(FLOATING) do
        local operands = {}
        for i = 2, 4 do operands[i - 1] = case[i] and (few(case[i], "float32") / 4):to(dtype) end
        agree(dtype, 4 * TOLERANCE[dtype], differentiated(function(x, w, b)
          return (case[5] or F.conv2d)(x, w, b, case[1])
        end), unpack(operands))
      end
    end)
  end
end)

describe(device .. " takes softmax as the CPU does", function()
  -- the gradient of log-softmax takes a sum of thousands from each element
  local small = { float32 = 1e-4, float16 = 4e-3, bfloat16 = 3e-2, float64 = 1e-12 }
  for _, name in ipairs { "softmax", "log_softmax" } do
    it(name, function()
      for _, dtype in ipairs(FLOATING) do
        for _, shape in ipairs { { 5 }, { 1, 1 }, { 0, 4 }, { 3, 10 }, { 2, 64 }, { 4, 100 }, { 3, 300 }, { 2, 1025 },
                                 { 2, 2048 }, { 1, 5000 }, { 2, 7, 5 }, { 2, 300, 3 } } do
          for d = 1, #shape do
            agree(dtype .. " " .. text(shape), small[dtype],
              differentiated(function(x) return F[name](x, d) end), few(shape, dtype) * 3)
          end
        end
      end
    end)

    it(name .. " of lines with infinities and nan", function()
      local inf = math.huge
      local x = tl.tensor({ { -inf, -inf, -inf }, { 1, inf, 2 }, { 0 / 0, 1, 2 }, { -inf, 1, 2 }, { 1e30, -1e30, 0 } },
        { device = "cpu" })
      local long = tl.full({ 2, 3000 }, -inf, { device = "cpu" })
      long[{ 1, 5 }] = 2
      for d = 1, 2 do
        agree("short", 1e-6, differentiated(function(t) return F[name](t, d) end), x)
        agree("long", 1e-6, differentiated(function(t) return F[name](t, d) end), long)
      end
    end)
  end
end)

describe(device .. " computes losses as the CPU does", function()
  local small = { float32 = 3e-6, float16 = 3e-3, bfloat16 = 2e-2, float64 = 1e-12 }

  for _, reduction in ipairs { "mean", "sum", "none" } do
    it("of classes, " .. reduction, function()
      for _, dtype in ipairs(FLOATING) do
        for _, shape in ipairs { { 6, 10 }, { 40, 17 }, { 3, 2050 }, { 600, 10 }, { 4, 5, 3 }, { 0, 5 } } do
          local classes, labels = shape[2], {}
          for i, n in ipairs(shape) do if i ~= 2 then labels[#labels + 1] = n end end
          local x, weight = few(shape, dtype) * 2, tl.rand({ classes }, { device = "cpu" })
          if dtype == "float64" then weight = weight:double() end
          local ids = against.ids(classes, labels)
          local ignored = tl.full(labels, -100, { dtype = "int64", device = "cpu" })
          ids = tl.where(tl.rand(labels, { device = "cpu" }):lt(0.2), ignored, ids)
          local chances = F.softmax(few(shape, "float32"), 2):to(dtype)
          for smoothing = 0, 0.1, 0.1 do
            for _, weighted in ipairs { false, true } do
              local function loss(input, target)
                return F.cross_entropy(input, target, {
                  weight = weighted and weight:to(input.device) or nil, reduction = reduction,
                  label_smoothing = smoothing,
                })
              end
              local extra = weighted and " weighted" or ""
              local what = ("%s %s smoothing %g%s"):format(dtype, text(shape), smoothing, extra)
              agree(what, small[dtype], differentiated(loss, 0), x, ids)
              if x:numel() > 0 then agree(what .. " chances", small[dtype], differentiated(loss, 0), x, chances) end
            end
          end
          agree(dtype .. " nll", small[dtype], differentiated(function(input, target)
            return F.nll_loss(input, target, { reduction = reduction })
          end, 0), x, ids)
        end
      end
    end)

    it("element by element, " .. reduction, function()
      for _, dtype in ipairs(FLOATING) do
        for _, n in ipairs { 0, 1, 5, 1000, 40000 } do
          local x, t = tl.rand({ n }, { device = "cpu" }):to(dtype), tl.rand({ n }, { device = "cpu" }):to(dtype)
          for _, name in ipairs { "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy",
                                  "binary_cross_entropy_with_logits", "kl_div" } do
            agree(("%s %s of %d"):format(dtype, name, n), small[dtype], differentiated(function(a, b)
              return F[name](a, b, { reduction = reduction })
            end, 0), x, t)
          end
        end
      end
    end)
  end

  it("and names a label that is no class at the next answer", function()
    local x, labels = tl.randn(3, 4), tl.tensor({ 1, 9, 0 }, { dtype = "int64" })
    raises("label 9", function() F.cross_entropy(x, labels):item() end)
    assert.is_true(F.cross_entropy(x, labels:clamp(0, 3)):item() > 0) -- the device goes on
  end)

  it("and says where a probability is none", function()
    raises("outside 0..1", function() F.binary_cross_entropy(tl.tensor { 0.5, 2 }, tl.tensor { 1, 0 }):item() end)
    assert.is_true(F.binary_cross_entropy(tl.tensor { 0.5 }, tl.tensor { 1 }):item() > 0)
  end)
end)
