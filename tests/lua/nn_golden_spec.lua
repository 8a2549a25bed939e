-- Every layer and loss against PyTorch: outputs, gradients of inputs and parameters, buffers (tests/golden/nn.py).
local tl = require "tlua"
local here = debug.getinfo(1, "S").source:match("^@(.*)lua/[^/]*$")
package.path = here .. "golden/?.lua;" .. package.path
local numbers = require "numbers"

-- In float64 every digit of the files counts; in the others their own precision does.
local precisions = {
  float64 = { rtol = 2e-6, atol = 2e-7 },
  float32 = { rtol = 2e-4, atol = 2e-5 },
  float16 = { rtol = 1e-2, atol = 1e-2 },
  bfloat16 = { rtol = 6e-2, atol = 6e-2 },
}

local function make(source)
  local environment = { nn = tl.nn, W3 = numbers.tensor({ 3 }, 7, { dtype = "float64" }):abs() }
  return setfenv(assert(loadstring("return " .. source)), environment)()
end

local function same(what, dtype, expected, t)
  assert.are.same(expected[1], t.shape, what)
  local p, got = precisions[dtype], t:detach():reshape(-1):tolist()
  assert.equal(#expected[2], #got)
  for i, wanted in ipairs(expected[2]) do
    if not (math.abs(got[i] - wanted) <= p.atol + p.rtol * math.abs(wanted)) then
      error(("%s in %s: element %d is %.9g, PyTorch has %.9g"):format(what, dtype, i, got[i], wanted))
    end
  end
end

-- The same values through other strides.
local layouts = {
  contiguous = function(t) return t end,
  transposed = function(t)
    if t:dim() < 2 then return t end
    return t:transpose(1, -1):contiguous():transpose(1, -1)
  end,
  narrowed = function(t)
    if t:dim() == 0 then return t end
    return tl.cat({ t, t, t }, -1):narrow(-1, t:size(-1) + 1, t:size(-1))
  end,
}

local function check_layer(case, dtype, layout)
  local layer = make(case.lua):to(dtype)
  local parameters = layer:parameters()
  for i, p in ipairs(parameters) do
    tl.no_grad(function() p:copy_(numbers.tensor(p.shape, 9 + i)) end)
  end
  local x
  if case.ids then
    x = layout(tl.tensor({ { 0, 1, 4 }, { 1, 2, 1 } }, { dtype = "int64" }))
  else
    x = layout(numbers.tensor(case.x, 1, { dtype = dtype })):requires_grad_()
  end
  local y = layer(x)
  same("output", dtype, case.y, y)
  assert.equal(dtype, y.dtype)
  y:backward(layout(numbers.tensor(y.shape, 2, { dtype = dtype })))
  if case.gx then same("gradient of the input", dtype, case.gx, x.grad) end
  assert.equal(#case.gp, #parameters)
  for i, p in ipairs(parameters) do same("gradient of parameter " .. i, dtype, case.gp[i], p.grad) end
  local buffers = layer:buffers()
  assert.equal(#case.buffers, #buffers)
  for i, b in ipairs(buffers) do same("buffer " .. i, dtype, case.buffers[i], b) end
end

describe("layers as PyTorch has them:", function()
  for _, case in ipairs(require "nn_layers") do
    it(case.lua, function()
      for dtype in pairs(precisions) do
        for _, layout in pairs(layouts) do check_layer(case, dtype, layout) end
      end
    end)
  end
end)

local function unit(shape, seed) return (numbers.tensor(shape, seed, { dtype = "float64" }) + 1.05) / 2.1 end

local function labels(shape, ignored)
  local list, n = {}, shape[1] * (shape[3] or 1)
  for i = 0, n - 1 do list[i + 1] = (i * 2 + 1) % shape[2] end
  if ignored then list[2] = -100 end
  return numbers.shaped({ shape[1], shape[3] }, list, { dtype = "int64" })
end

local function value_of(kind, shape, seed)
  if kind == "real" then return numbers.tensor(shape, seed, { dtype = "float64" }) end
  if kind == "unit" then return unit(shape, seed) end
  if kind == "logp" then return unit(shape, seed):log() end
  if kind == "label" then return tl.tensor(1, { dtype = "int64" }) end
  return labels(shape, kind == "ignored")
end

local function check_loss(case, dtype, layout)
  local loss = make(case.lua):to(dtype)
  local x = layout(value_of(case.kind, case.x, 1):to(dtype)):requires_grad_()
  local target = layout(value_of(case.target, case.x, 3))
  if target.dtype == "float64" then target = target:to(dtype) end
  local y = loss(x, target)
  same("loss", dtype, case.y, y)
  y:backward(#y.shape > 0 and layout(numbers.tensor(y.shape, 2, { dtype = dtype })) or nil)
  same("gradient", dtype, case.gx, x.grad)
end

describe("losses as PyTorch has them:", function()
  for _, case in ipairs(require "nn_losses") do
    it(("%s of %s, %s"):format(case.lua, case.kind, case.target), function()
      for dtype in pairs(precisions) do
        for _, layout in pairs(layouts) do check_loss(case, dtype, layout) end
      end
    end)
  end
end)

describe("a model from PyTorch", function()
  it("loads by its own names and answers the same", function()
    local nn = tl.nn
    local Model = nn.Module:extend("Model")
    function Model:init()
      self.features = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU())
      self.norm, self.fc = nn.LayerNorm(8), nn.Linear(8, 3)
    end
    function Model:forward(x) return self.fc(self.norm(self.features(x):flatten(2))) end
    local model = Model():eval()
    model:load_state_dict(tl.load(here .. "golden/nn_model.safetensors"))
    assert.equal(2, model.features[2].num_batches_tracked:item())
    same("output", "float32", require("nn_model").y, model(numbers.tensor({ 2, 1, 4, 4 }, 3)))
  end)
end)
