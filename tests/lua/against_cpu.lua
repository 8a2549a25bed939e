-- against_cpu.lua: the device that the suite runs on compared with the CPU, for the specs that do so.
local assert = require "luassert"
local tl = require "tlua"

local device = tl.get_default_device()
local M = {
  ALL = { "float32", "float16", "bfloat16", "float64", "int64", "int32", "uint8", "bool" },
  FLOATING = { "float32", "float16", "bfloat16", "float64" },
  TOLERANCE = { float32 = 2e-5, float16 = 4e-3, bfloat16 = 3e-2, float64 = 1e-11 },
}

-- Random numbers on the CPU; integers in about -60..60.
function M.signed(shape, dtype)
  local x = tl.randn(shape, { device = "cpu" })
  if dtype == "uint8" then x = x:abs() end
  return (dtype:find("int") and x * 20 or x):to(dtype)
end
function M.ids(limit, shape) return tl.randint(0, limit, shape, { device = "cpu" }) end

-- |a - b| / (|a| + 1) is at most the tolerance, and nan stands where nan stands.
function M.same(a, b, tolerance, what)
  b = b:to("cpu")
  assert.are.same(a.shape, b.shape, what)
  assert.are.equal(a.dtype, b.dtype, what)
  if a:numel() == 0 then return end
  local x, y = a:to("float64"), b:to("float64")
  local equal = x:eq(y):logical_or(x:isnan():logical_and(y:isnan()))
  local gap = tl.where(equal, tl.zeros_like(x), (x - y):abs() / (x:abs() + 1))
  local worst = gap:max():item()
  assert.is_true(worst <= tolerance, ("%s: off by %g"):format(what, worst))
end

-- f of the same tensors on both sides: what it returns agrees.
function M.agree(what, tolerance, f, ...)
  local moved = {}
  for i, t in ipairs { ... } do moved[i] = t:to(device) end
  local here, there = { f(...) }, { f(unpack(moved)) }
  for i = 1, #here do M.same(here[i], there[i], tolerance, ("%s, result %d"):format(what, i)) end
end

-- f's results and its inputs' gradients, when those of the results are slope * y + 1. Integers have none.
function M.differentiated(f, slope)
  return function(...)
    local inputs, results = {}, {}
    for i, t in ipairs { ... } do
      inputs[i] = t:is_floating_point() and t:detach():clone():requires_grad_(true) or t
    end
    local y = f(unpack(inputs))
    y:backward(y:detach() * (slope or 3) + 1)
    results[1] = y
    for _, t in ipairs(inputs) do results[#results + 1] = t.grad end
    return unpack(results)
  end
end

function M.text(shape) return table.concat(shape, "x") end

return M
