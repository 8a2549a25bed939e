-- running out of memory anywhere in a training step: an error or the right result, never a leak.
local tl = require "tlua"
local base = require "tlua.base"
local C = base.C

local Twice = tl.autograd.Function {
  forward = function(ctx, x)
    ctx:save_for_backward(x)
    return x * 2, x:exp()
  end,
  backward = function(ctx, g, h) return g * 2 + h * ctx.saved_tensors[1]:exp() end,
}

local w = tl.ones(3, 4, { requires_grad = true })

-- Views, joins, in-place writes, a hook, a custom function and a checkpoint, forward and backward.
local function step()
  local a, b = Twice(tl.ones(2, 3):matmul(w))
  a:register_hook(function(g) return g * 1 end)
  local y = tl.cat({ a, b }, 1):softmax(2) * 1
  y[1]:mul_(3)
  y[{ { 1, 2 }, 1 }] = a[{ { 1, 2 }, 1 }]
  local loss = (y:sum(1) * tl.stack({ a[1], b[2] })):mean()
  local again = tl.utils.checkpoint(function(t) return t:tanh() * w end, w * 2)
  ;(loss + again:sum()):backward()
  return w.grad:sum():item()
end

describe("an allocation that fails", function()
  it("at any place of a training step leaks nothing and harms nothing", function()
    local expected = step()
    w.grad = nil
    base.collect()
    local before, failures = tl.memory().tensors, 0
    for k = 1, 220 do
      C.tl_fail_allocation(k)
      local ok, result = pcall(step)
      C.tl_fail_allocation(0)
      if ok then
        assert.are.equal(expected, result)
      else
        failures = failures + 1
        assert.matches("asked for on c", (result:gsub("no memory for .*", "asked for on c")))
      end
      w.grad = nil
      base.collect()
      assert.are.equal(before, tl.memory().tensors)
      assert.is_true(tl.is_grad_enabled())
    end
    assert.is_true(failures > 20)
    assert.are.equal(expected, step())
    w.grad = nil
  end)
end)
