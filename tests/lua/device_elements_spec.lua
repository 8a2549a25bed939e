-- The device that the suite runs on against the CPU: pointwise functions on the layouts that have paths of their own,
-- copies, reductions of every shape of problem, running sums. Random numbers, dropout, ranges and optimizer steps are
-- the same bits.
local tl = require "tlua"
local F = tl.F

local device = tl.get_default_device()
if device == "cpu" then return end -- nothing to compare

local against = require "against_cpu"
local ALL, FLOATING, TOLERANCE = against.ALL, against.FLOATING, against.TOLERANCE
local signed, same, agree, differentiated, text =
  against.signed, against.same, against.agree, against.differentiated, against.text

-- Pairs of operands: long rows, one value for a row, for a column, for all, what is no multiple of a vector.
local PAIRS = {
  { { 40, 512 }, { 40, 512 } },
  { { 40, 512 }, { 512 } },
  { { 40, 512 }, { 40, 1 } },
  { { 9, 16, 12, 20 }, { 16, 1, 1 } },
  { { 33, 67 }, { 33, 67 } },
  { { 20011 }, {} },
}

describe(device .. " computes elements as the CPU does", function()
  for _, dtype in ipairs(ALL) do
    it(dtype, function()
      for _, pair in ipairs(PAIRS) do
        local a, b = signed(pair[1], dtype), signed(pair[2], dtype)
        local what = text(pair[1]) .. " and " .. text(pair[2])
        local tolerance = TOLERANCE[dtype] or 0
        agree("less, " .. what, 0, function(x, y) return x:lt(y) end, a, b)
        agree("where, " .. what, 0, function(x, y) return tl.where(x:lt(y), x, y) end, a, b)
        if dtype ~= "bool" then
          agree("add, " .. what, tolerance, function(x, y) return x + y end, a, b)
          agree("maximum, " .. what, 0, function(x, y) return x:maximum(y) end, a, b)
        end
        if TOLERANCE[dtype] and #pair[2] > 0 then
          agree("mul, " .. what, tolerance, differentiated(function(x, y) return x * y end, 0), a, b)
        end
        if TOLERANCE[dtype] then agree("gelu, " .. what, tolerance, differentiated(F.gelu), a) end
        if #pair[1] == 2 then
          agree("transposed, " .. what, 0, function(x) return x:t():neg() end, dtype == "bool" and a:to("uint8") or a)
          agree("unaligned, " .. what, 0, function(x) return x:narrow(2, 3, 60):abs() end,
            dtype == "bool" and a:to("uint8") or a)
        end
      end
    end)
  end
end)

describe(device .. " copies as the CPU does", function()
  for _, dtype in ipairs(ALL) do
    it(dtype, function()
      local x, images = signed({ 70, 300 }, dtype), signed({ 3, 20, 9, 40 }, dtype)
      for _, to in ipairs(ALL) do agree("to " .. to, 0, function(t) return t:to(to) end, x) end
      agree("turned", 0, function(t) return t:t():contiguous() end, x)
      agree("rows", 0, function(t) return t:narrow(2, 17, 96):contiguous() end, x)
      agree("channels last", 0, function(t) return t:permute(1, 3, 4, 2):contiguous() end, images)
      agree("reversed dims", 0, function(t) return t:permute(4, 3, 2, 1):contiguous() end, images)
    end)
  end
end)

describe(device .. " reduces as the CPU does", function()
  for _, dtype in ipairs(ALL) do
    it(dtype, function()
      local tolerance = TOLERANCE[dtype] or 0
      for _, shape in ipairs { { 3 }, { 17000 }, { 12, 1100 }, { 1100, 12 }, { 3000, 2 }, { 5, 6, 30 } } do
        for _, turned in ipairs { false, true } do
          local x = signed(shape, dtype)
          if turned then x = x:transpose(1, -1) end
          for d = 1, #shape do
            local what = text(shape) .. (turned and " turned" or "") .. " along " .. d
            agree("sum, " .. what, tolerance, function(t) return t:sum(d) end, x)
            agree("any, " .. what, 0, function(t) return t:any(d), t:all(d) end, x)
            agree("cumsum, " .. what, tolerance, function(t) return t:cumsum(d) end, x)
            agree("argmax, " .. what, 0, function(t) return t:argmax(d), t:argmin(d) end, x)
            if TOLERANCE[dtype] then
              agree("moments, " .. what, tolerance, function(t) return t:mean(d), t:std(d), t:var(d) end, x)
              for _, p in ipairs { 0, 2, 3, -1 / 0 } do
                agree("norm " .. p .. ", " .. what, tolerance, function(t) return t:norm(p, d) end, x)
              end
            end
          end
          if dtype ~= "bool" then
            agree("all of " .. text(shape), tolerance, function(t) return t:sum(), t:max(), t:min() end, x)
          end
        end
      end
      agree("nothing", 0, function(t) return t:narrow(1, 1, 0):sum(1) end, signed({ 4, 5 }, dtype))
    end)
  end
end)

-- f(device) with the generator at the same place, on both sides.
local function seeded(what, f)
  tl.manual_seed(11)
  local here = f("cpu")
  tl.manual_seed(11)
  same(here, f(device), 0, what)
end

describe(device .. " gives the CPU's random numbers", function()
  local fills = {
    uniform = function(x) return x:uniform_(-2, 3.3) end,
    normal = function(x) return x:normal_(1, 2.5) end,
    bernoulli = function(x) return x:bernoulli_(0.3) end,
    random = function(x) return x:random_(2, 200) end,
  }
  for name, fill in pairs(fills) do
    it(name, function()
      for _, dtype in ipairs((name == "uniform" or name == "normal") and FLOATING or ALL) do
        if not (name == "random" and dtype == "bool") then
          for _, shape in ipairs { { 1 }, { 30011 }, { 33, 45 } } do
            seeded(dtype .. " " .. text(shape), function(where)
              local x = tl.zeros(shape, { dtype = dtype, device = where })
              fill(#shape == 2 and x:t():narrow(1, 3, 11) or x)
              fill(x:narrow(1, 1, shape[1]))
              return x
            end)
          end
        end
      end
    end)
  end

  it("for dropout", function()
    for _, dtype in ipairs(FLOATING) do
      local x = signed({ 10007 }, dtype)
      seeded(dtype, function(where) return F.dropout(x:to(where), { p = 0.3, training = true }) end)
    end
  end)

  it("and ranges", function()
    for _, dtype in ipairs { "float32", "float64", "int64" } do
      seeded(dtype, function(where) return tl.arange(-3, 50, 0.1, { dtype = dtype, device = where }) end)
    end
  end)
end)

describe(device .. " moves parameters to where the CPU does", function()
  local optimizers = {
    { "SGD" }, { "SGD", momentum = 0.9 }, { "SGD", momentum = 0.9, nesterov = true, weight_decay = 0.01 },
    { "Adam" }, { "AdamW" }, { "Adam", amsgrad = true }, { "RMSprop" }, { "RMSprop", momentum = 0.9 },
    { "RMSprop", centered = true }, { "RMSprop", centered = true, momentum = 0.9 }, { "Adagrad" }, { "NAdam" },
    { "RAdam" },
  }
  local sizes = { 3, 9001, 16 }
  local function trained(where, dtype, choice, stochastic)
    local list, options = {}, { lr = 0.01, stochastic_rounding = stochastic or nil }
    for k, v in pairs(choice) do
      if type(k) == "string" then options[k] = v end
    end
    for i, n in ipairs(sizes) do
      list[i] = (tl.randn(n, { device = "cpu" }) * 2):to(dtype):to(where):requires_grad_(true)
    end
    local optimizer = tl.optim[choice[1]](list, options)
    for _ = 1, 7 do -- RAdam's rule changes after five
      for i, n in ipairs(sizes) do list[i].grad = tl.randn(n, { device = "cpu" }):to(dtype):to(where) end
      tl.nn.utils.clip_grad_value_(list, 1.5)
      optimizer:step()
    end
    for i, p in ipairs(list) do list[i] = p:detach() end
    return tl.cat(list, 1)
  end
  for _, dtype in ipairs { "float32", "float64", "float16", "bfloat16", "bfloat16 stochastically" } do
    it(dtype, function()
      local name, stochastic = dtype:match("^%w+"), dtype:find("stochastically") ~= nil
      for i, choice in ipairs(optimizers) do
        seeded(choice[1] .. " " .. i, function(where) return trained(where, name, choice, stochastic) end)
      end
    end)
  end
end)
