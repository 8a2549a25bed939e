-- backward, hooks, custom functions, checkpoint.
local tl = require "tlua"
local autograd = tl.autograd

local function raises(pattern, f, ...)
  local ok, message = pcall(f, ...)
  assert.is_false(ok)
  assert.matches(pattern, message)
end

local function leaf(values) return tl.tensor(values, { requires_grad = true }) end

describe("backward", function()
  it("accumulates into .grad", function()
    local x = leaf({ 1, 2 })
    x:square():sum():backward()
    assert.are.same({ 2, 4 }, x.grad:tolist())
    x:square():sum():backward()
    assert.are.same({ 4, 8 }, x.grad:tolist())
    x.grad = nil
    assert.is_nil(x.grad)
    x.grad = tl.ones(2)
    assert.are.same({ 1, 1 }, x.grad:tolist())
    raises("grad: must be a tensor or nil", function() x.grad = 1 end)
  end)

  it("takes a gradient for more than one element", function()
    local x = leaf({ 1, 2 })
    x:square():backward(tl.tensor({ 1, 10 }))
    assert.are.same({ 2, 40 }, x.grad:tolist())
    raises("only one element needs none", function() x:square():backward() end)
    raises("backward: the gradient must be a tensor", function() x:square():backward(1) end)
    raises("does not depend on anything", function() tl.ones(1):backward() end)
  end)

  it("frees the graph unless told otherwise", function()
    local x = leaf({ 3 })
    local y = x:square():sum()
    y:backward(nil, { retain_graph = true })
    y:backward()
    assert.are.same({ 12 }, x.grad:tolist())
    raises("retain_graph=true", function() y:backward() end)
    raises("there is no option 'retain'", function() x:square():sum():backward(nil, { retain = true }) end)
  end)

  it("keeps the gradient of a computed tensor on request", function()
    local x = leaf({ 3 })
    local y = x:square():retain_grad()
    ;(y * 2):sum():backward()
    assert.are.same({ 2 }, y.grad:tolist())
    assert.is_false(y.is_leaf)
    assert.are.equal("square", y.grad_fn)
  end)

  it("notices a saved value that was changed", function()
    local x = leaf({ 3 })
    local y = x:exp()
    local z = y:square():sum()
    y:add_(1)
    raises("modified in place", function() z:backward() end)
  end)
end)

describe("recording", function()
  it("is off inside no_grad and back afterwards", function()
    local x = leaf({ 1 })
    local y, n = tl.no_grad(function(a, k) return a * k, k end, x, 3)
    assert.is_false(y.requires_grad)
    assert.are.equal(3, n)
    raises("oops", tl.no_grad, function() error("oops") end)
    assert.is_true(tl.is_grad_enabled())
    tl.no_grad(function()
      assert.is_true(tl.enable_grad(function() return (x * 2).requires_grad end))
      assert.is_false(tl.is_grad_enabled())
    end)
    raises("argument 1 must be a function, got nil", tl.no_grad)
  end)

  it("is for leaves of a floating dtype", function()
    raises("only floating tensors", function() tl.ones(1, { dtype = "int64" }):requires_grad_() end)
    local x = leaf({ 1 })
    raises("leaf that requires gradients cannot be changed in place", function() x:add_(1) end)
    tl.no_grad(function() x:add_(1) end)
    assert.are.same({ 2 }, x:tolist())
    x.requires_grad = false
    assert.is_false(x.requires_grad)
    assert.is_false((leaf({ 1 }) * 2):detach().requires_grad)
  end)
end)

describe("autograd.grad", function()
  it("leaves .grad alone", function()
    local x, y = leaf({ 2 }), leaf({ 3 })
    local g = autograd.grad((x * y):sum(), { x, y })
    assert.are.same({ 3 }, g[1]:tolist())
    assert.are.same({ 2 }, g[2]:tolist())
    assert.is_nil(x.grad)
    assert.are.same({ 30 }, autograd.grad(x * y, x, { grad_outputs = tl.tensor({ 10 }) }):tolist())
    local both = autograd.grad({ x * y, x * 2 }, x, { grad_outputs = { tl.ones(1), tl.ones(1) } })
    assert.are.same({ 5 }, both:tolist())
  end)

  it("tells of inputs that were not used", function()
    local x, y = leaf({ 2 }), leaf({ 3 })
    raises("input 1 was not used", function() autograd.grad((x * 2):sum(), y) end)
    assert.is_nil(autograd.grad((x * 2):sum(), y, { allow_unused = true }))
    raises("create_graph is not built", function() autograd.grad((x * 2):sum(), x, { create_graph = true }) end)
    raises("does not require gradients", function() autograd.grad((x * 2):sum(), tl.ones(1)) end)
  end)
end)

describe("hooks", function()
  it("see and replace gradients of leaves and computed tensors", function()
    local x = leaf({ 1, 2 })
    local seen
    local y = x * 3
    y:register_hook(function(g) seen = g:tolist() end)
    local handle = x:register_hook(function(g) return g * 10 end)
    y:sum():backward()
    assert.are.same({ 1, 1 }, seen)
    assert.are.same({ 30, 30 }, x.grad:tolist())
    handle:remove()
    x.grad = nil
    ;(x * 3):sum():backward()
    assert.are.same({ 3, 3 }, x.grad:tolist())
  end)

  it("run in the order they were added, with recording off", function()
    local x, order = leaf({ 1 }), {}
    x:register_hook(function() order[#order + 1] = tl.is_grad_enabled() and "recording" or "a" end)
    x:register_hook(function() order[#order + 1] = "b" end)
    x:sum():backward()
    assert.are.same({ "a", "b" }, order)
    assert.is_true(tl.is_grad_enabled())
  end)

  it("pass errors on, and the next backward is fine", function()
    local x = leaf({ 1 })
    local handle = x:register_hook(function() error("from the hook") end)
    raises("from the hook", function() x:sum():backward() end)
    handle:remove()
    x:sum():backward()
    assert.are.same({ 1 }, x.grad:tolist())
    raises("must return a tensor", function()
      local y = x * 1
      y:register_hook(function() return 3 end)
      y:sum():backward()
    end)
    raises("a hook returned a gradient of %(2%)", function()
      local y = x * 1
      y:register_hook(function() return tl.ones(2) end)
      y:sum():backward()
    end)
    raises("does not require gradients", function() tl.ones(1):register_hook(print) end)
  end)

  it("are forgotten with their tensor", function()
    local alive = setmetatable({}, { __mode = "v" })
    local function step()
      local x = leaf({ 1 })
      local y = x * 2
      alive[1] = { 0 }
      local kept = alive[1]
      y:register_hook(function() return kept and nil end)
      y:sum():backward()
    end
    step()
    jit.flush() -- a trace may hold the closure
    require("tlua.base").collect()
    require("tlua.base").collect()
    assert.is_nil(alive[1])
  end)
end)

describe("autograd.Function", function()
  local Scale = autograd.Function {
    name = "scale",
    forward = function(ctx, x, k)
      ctx:save_for_backward(x)
      ctx.k = k
      return x * x * k
    end,
    backward = function(ctx, g)
      local x = unpack(ctx.saved_tensors)
      return g * x * 2 * ctx.k
    end,
  }

  it("computes its own gradient, with arguments of any kind", function()
    local x = leaf({ 1, 3 })
    local y = Scale(x, 10)
    assert.are.same({ 10, 90 }, y:tolist())
    assert.is_true(y.requires_grad)
    y:sum():backward()
    assert.are.same({ 20, 60 }, x.grad:tolist())
    assert.is_true(autograd.gradcheck(function(a) return Scale.apply(a, 2) end, { tl.randn(2, 2) }))
    assert.is_false(Scale(tl.ones(1), 2).requires_grad)
    assert.is_false(tl.no_grad(Scale, x, 2).requires_grad)
  end)

  it("has several outputs; a gradient that did not arrive is zero", function()
    local got
    local Two = autograd.Function {
      forward = function(_, x)
        local ids = x:gt(0)
        return x * 2, x * 3, ids, "text"
      end,
      backward = function(_, a, b, c, d)
        got = { a:tolist(), b:tolist(), c == nil, d == nil }
        return a * 2 + b * 3
      end,
    }
    local x = leaf({ 1, 2 })
    local a, _, ids, text = Two(x)
    assert.is_false(ids.requires_grad)
    assert.are.equal("text", text)
    a:sum():backward()
    assert.are.same({ { 1, 1 }, { 0, 0 }, true, true }, got)
    assert.are.same({ 2, 2 }, x.grad:tolist())
  end)

  it("may give nil for inputs without a gradient", function()
    local Mul = autograd.Function {
      forward = function(ctx, a, b)
        ctx:save_for_backward(a, b)
        return a * b
      end,
      backward = function(ctx, g)
        local a, b = unpack(ctx.saved_tensors)
        return ctx.needs_input_grad[1] and g * b or nil, ctx.needs_input_grad[2] and g * a or nil
      end,
    }
    local a, b = leaf({ 2 }), tl.tensor({ 3 })
    Mul(a, b):sum():backward()
    assert.are.same({ 3 }, a.grad:tolist())
    Mul(b, a):sum():backward()
    assert.are.same({ 6 }, a.grad:tolist())
  end)

  it("says what backward did wrong", function()
    local function broken(backward)
      local f = autograd.Function { name = "broken", forward = function(_, x) return x * 1 end, backward = backward }
      return function() f(leaf({ 1, 2 }), 5):sum():backward() end
    end
    raises("broken: backward returned a gradient of %(3%) for argument 1 of %(2%)",
      broken(function() return tl.ones(3) end))
    raises("must return a tensor or nil for argument 1, got a number", broken(function() return 1 end))
    raises("argument 2, which is not a tensor", broken(function(_, g) return g, g end))
    raises("my own", broken(function() error("my own") end))
    raises("forward must be a function", autograd.Function, { backward = print })
    raises("did you mean 'forward'", autograd.Function, { forwad = print, backward = print })
  end)

  it("checks the versions of what it saved", function()
    local x = leaf({ 1 })
    local y = x * 1
    local z = Scale(y, 2):sum()
    y:add_(1)
    raises("modified in place", function() z:backward() end)
  end)

  it("casts gradients to the input's dtype", function()
    local x = tl.ones(2, { dtype = "float64", requires_grad = true })
    local F = autograd.Function {
      forward = function(_, a) return a:float() end,
      backward = function(_, g) return g end,
    }
    F(x):sum():backward()
    assert.are.equal("float64", x.grad.dtype)
  end)

  it("may walk another graph in its backward", function()
    local w = leaf({ 5 })
    local Nested = autograd.Function {
      forward = function(ctx, x)
        ctx:save_for_backward(x)
        return x * w:detach()
      end,
      backward = function(ctx, g)
        local x = ctx.saved_tensors[1]:detach():requires_grad_()
        tl.enable_grad(function() (x * w):backward(g) end)
        return x.grad
      end,
    }
    local x = leaf({ 2 })
    ;(Nested(x) * w):sum():backward()
    assert.are.same({ 25 }, x.grad:tolist())
    assert.are.same({ 20 }, w.grad:tolist()) -- 2 * 5 from inside, 10 from outside
  end)
end)

describe("gradcheck", function()
  it("finds a wrong derivative", function()
    local Wrong = autograd.Function {
      forward = function(_, x) return x * 1 end,
      backward = function(_, g) return g * 2 end,
    }
    raises("backward says 2, finite differences", autograd.gradcheck, function(x) return Wrong(x) end, { tl.ones(1) })
    local ok, message = autograd.gradcheck(function(x) return Wrong(x) end, { tl.ones(1) }, { raise_exception = false })
    assert.is_false(ok)
    assert.matches("output 1, element 1, by input 1, element 1", message)
    assert.is_true(autograd.gradcheck(function(a, b) return a:exp() * b, a / b end, { tl.randn(2, 3), tl.rand(3) + 1 }))
  end)
end)

describe("detect_anomaly", function()
  it("names the operation whose derivative made the first nan", function()
    local former = autograd.detect_anomaly(true)
    local x = leaf({ -1 })
    local ok, message = pcall(function() x:log():sqrt():sum():backward() end)
    autograd.detect_anomaly(former)
    assert.is_false(ok)
    assert.matches("the backward of 'sqrt' made the first nan", message)
  end)
end)

describe("checkpoint", function()
  it("gives the gradients of a plain call, also to captured parameters", function()
    local w = leaf({ 2, 3 })
    local x = leaf({ 1, 4 })
    local calls = 0
    local function f(a, k)
      calls = calls + 1
      return (a * w):exp() * k, a:square()
    end
    local y, z = tl.utils.checkpoint(f, x, 0.5)
    ;(y:sum() + z:sum()):backward()
    local by_checkpoint = { x.grad:tolist(), w.grad:tolist() }
    assert.are.equal(2, calls)
    x.grad, w.grad = nil, nil
    y, z = f(x, 0.5)
    ;(y:sum() + z:sum()):backward()
    assert.are.same({ x.grad:tolist(), w.grad:tolist() }, by_checkpoint)
  end)

  it("draws the same random numbers again", function()
    local w, masks = leaf({ 1, 1, 1 }), {}
    local y = tl.utils.checkpoint(function(a)
      local mask = tl.rand(3)
      masks[#masks + 1] = mask:tolist()
      return a * w * mask
    end, tl.ones(3))
    local after = tl.get_rng_state()
    y:sum():backward()
    assert.are.same(masks[1], masks[2])
    assert.are.same(masks[1], w.grad:tolist())
    assert.are.same(after, tl.get_rng_state())
  end)
end)

describe("parts of one tensor", function()
  -- The gradient of x for sum(weights * part) over the parts, one element at a time.
  local function check(x, whole, parts)
    local loss, expected = tl.zeros({}), tl.zeros(whole.shape)
    for i, cut in ipairs(parts) do
      local w = tl.randn(cut(whole).shape)
      loss = loss + (cut(whole) * w):sum()
      local place = tl.zeros(whole.shape)
      cut(place):copy_(w)
      expected = expected + place
      if i == 2 then -- the whole between the parts
        loss = loss + (whole * 3):sum()
        expected = expected + 3
      end
    end
    for times = 1, 2 do
      loss:backward(nil, { retain_graph = times == 1 })
      local got = whole.grad
      assert.is_true(got:allclose(expected * times, { rtol = 1e-5, atol = 1e-5 }))
    end
    return x.grad
  end

  local cuts = {
    function(t) return t:narrow(1, 1, 2) end,
    function(t) return t:select(3, 2) end,
    function(t) return t:narrow(1, 2, 2) end, -- overlaps the first
    function(t) return t:slice(2, 1, 4, 2) end,
    function(t) return t:narrow(2, 2, 0) end,
    function(t) return t:select(1, 1):select(1, 1) end,
  }

  it("add up in one gradient", function()
    local x = tl.randn(3, 4, 5, { requires_grad = true })
    check(x, x, cuts)
  end)

  it("add up in any layout of the whole", function()
    for _, make in ipairs {
      function(x) return x:permute(3, 1, 2) end, function(x) return x:transpose(1, 2) end,
      function(x) return x:narrow(3, 1, 4) end, function(x) return x:narrow(1, 1, 1):expand(3, 4, 5) end,
      function(x) return x * 1 end,
    } do
      local x = tl.randn(5, 4, 5, { requires_grad = true })
      local whole = make(x)
      whole:retain_grad()
      local grad = check(x, whole, cuts)
      assert.are.same({ 5, 4, 5 }, grad.shape)
    end
  end)

  it("have the gradient that one product of them has", function()
    local w = tl.randn(6, 12, { requires_grad = true })
    local x = tl.randn(2, 3, 6)
    local parts = x:matmul(w):view(2, 3, 3, 2, 2):permute(3, 1, 4, 2, 5)
    local q, k, v = parts:select(1, 1), parts:select(1, 2), parts:select(1, 3)
    q:matmul(k:transpose(-2, -1)):matmul(v):sum():backward()
    local by_parts = w.grad
    w.grad = nil
    local y = x:matmul(w)
    local function head(i)
      local pick = tl.zeros(12, 4)
      for c = 1, 4 do pick[4 * (i - 1) + c][c] = 1 end
      return y:matmul(pick):view(2, 3, 2, 2):transpose(2, 3)
    end
    head(1):matmul(head(2):transpose(-2, -1)):matmul(head(3)):sum():backward()
    assert.is_true(by_parts:allclose(w.grad, { rtol = 1e-4, atol = 1e-5 }))
  end)
end)
