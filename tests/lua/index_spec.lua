-- x[i], x[{...}], assignments through them, and picking by ids.
local tl = require "tlua"

local function raises(pattern, f, ...)
  local ok, message = pcall(f, ...)
  assert.is_false(ok)
  assert.matches(pattern, message)
end

local function grid() return tl.arange(12):view(3, 4) end

describe("x[i]", function()
  it("selects in dim 1, from 1 or from the end", function()
    local x = grid()
    assert.are.same({ 0, 1, 2, 3 }, x[1]:tolist())
    assert.are.same({ 8, 9, 10, 11 }, x[-1]:tolist())
    assert.are.equal(6, x[2][3]:item())
  end)

  it("refuses what is not a position", function()
    local x = grid()
    raises("positions count from 1", function() return x[0] end)
    raises("index 4 is out of range for dim 1 of %(3x4%)", function() return x[4] end)
    raises("index %-4 is out of range", function() return x[-4] end)
    raises("must be an integer, got 1.5", function() return x[1.5] end)
    raises("0%-d", function() return tl.ones({})[1] end)
  end)

  it("is a view", function()
    local x = grid()
    x[1]:fill_(7)
    assert.are.same({ 7, 7, 7, 7 }, x[1]:tolist())
  end)
end)

describe("x[{...}]", function()
  it("takes ranges, everything and single positions", function()
    local x = grid()
    assert.are.same({ { 1, 2 }, { 5, 6 } }, x[{ { 1, 2 }, { 2, 3 } }]:tolist())
    assert.are.same({ 2, 6, 10 }, x[{ {}, 3 }]:tolist())
    assert.are.same({ 4, 6 }, x[{ 2, { 1, 4, 2 } }]:tolist())
    assert.are.same({ 10, 11 }, x[{ -1, { -2, -1 } }]:tolist())
    assert.are.equal(11, x[{ 3, 4 }]:item())
    assert.are.same({ 0, 4 }, x[{ { 1, 0 } }].shape)
    assert.are.same({ 3, 4 }, x[{}].shape)
  end)

  it("says what is wrong", function()
    local x = grid()
    raises("the range {1, 4} does not lie in 1..3", function() return x[{ { 1, 4 } }] end)
    raises("a range is {first, last}", function() return x[{ { 1 } }] end)
    raises("3 entries for a tensor of 2 dims", function() return x[{ 1, 2, 3 }] end)
    raises("an entry is a number", function() return x[{ "a" }] end)
    raises("at least 1", function() return x[{ { 1, 3, 0 } }] end)
  end)

  it("takes tensors of ids and masks", function()
    local x = grid()
    local ids = tl.tensor({ 2, 0 }, { dtype = "int64" })
    assert.are.same({ { 8, 9, 10, 11 }, { 0, 1, 2, 3 } }, x[ids]:tolist())
    assert.are.same({ 10, 2 }, x[{ ids, 3 }]:tolist())
    assert.are.same({ 9, 10, 11 }, x[x:gt(8)]:tolist())
    assert.are.same({ { 4, 5, 6, 7 } }, x[tl.tensor({ false, true, false })]:tolist())
    assert.are.same({ 1, 2, 4 }, x[ids:view(1, 2)].shape)
    raises("a mask has the shape", function() return x[tl.tensor({ true })] end)
  end)
end)

describe("assignment", function()
  it("writes numbers and tensors", function()
    local x = tl.zeros(3, 3)
    x[1] = 5
    x[{ 2, { 2, 3 } }] = tl.tensor({ 7, 8 })
    x[{ {}, 1 }] = 1
    x[{ 3, 3 }] = true
    x[-1] = x[-1] + 1
    assert.are.same({ { 1, 5, 5 }, { 1, 7, 8 }, { 2, 1, 2 } }, x:tolist())
    x[x:gt(4)] = -1
    assert.are.same({ { 1, -1, -1 }, { 1, -1, -1 }, { 2, 1, 2 } }, x:tolist())
  end)

  it("broadcasts and refuses what does not fit", function()
    local x = tl.zeros(2, 2)
    x[{}] = tl.tensor({ 1, 2 })
    assert.are.same({ { 1, 2 }, { 1, 2 } }, x:tolist())
    raises("copy_: %(2%) and %(3%) do not broadcast", function() x[1] = tl.ones(3) end)
    raises("only numbers, booleans and tensors", function() x[1] = "a" end)
    raises("index_add_", function() x[tl.tensor({ 0 }, { dtype = "int64" })] = 1 end)
    raises("through a mask", function() x[x:gt(0)] = tl.ones(4) end)
  end)

  it("is recorded", function()
    local w = tl.tensor({ 1, 2 }, { requires_grad = true })
    local y = tl.zeros(3)
    y[{ { 2, 3 } }] = w * 3
    y:sum():backward()
    assert.are.same({ 3, 3 }, w.grad:tolist())
  end)
end)

describe("parts", function()
  it("select, narrow and slice count from 1", function()
    local x = grid()
    assert.are.same({ 1, 5, 9 }, x:select(2, 2):tolist())
    assert.are.same({ { 1, 2 }, { 5, 6 }, { 9, 10 } }, x:narrow(2, 2, 2):tolist())
    assert.are.same({ { 4, 5, 6, 7 }, { 8, 9, 10, 11 } }, x:slice(1, 2):tolist())
    assert.are.same({ { 0, 2 }, { 4, 6 }, { 8, 10 } }, x:slice(-1, 1, -1, 2):tolist())
  end)

  it("split, chunk and unbind", function()
    local function shapes(list)
      local out = {}
      for i, t in ipairs(list) do out[i] = t.shape end
      return out
    end
    assert.are.same({ { 2, 4 }, { 1, 4 } }, shapes(grid():split(2)))
    assert.are.same({ { 3, 1 }, { 3, 3 } }, shapes(grid():split({ 1, 3 }, 2)))
    assert.are.same({ { 3, 2 }, { 3, 2 } }, shapes(grid():chunk(2, -1)))
    assert.are.same({ { 4 }, { 4 }, { 4 } }, shapes(grid():unbind()))
    raises("add up to 4", function() grid():split({ 1, 3 }, 1) end)
  end)
end)

describe("picking by ids (0-based)", function()
  local ids = tl.tensor({ 2, 0 }, { dtype = "int64" })

  it("index_select, gather and scatter_add", function()
    assert.are.same({ { 2, 0 }, { 6, 4 }, { 10, 8 } }, grid():index_select(2, ids):tolist())
    assert.are.same({ { 1 }, { 4 } },
      tl.tensor({ { 1, 2 }, { 3, 4 } }):gather(2, tl.tensor({ { 0 }, { 1 } }, { dtype = "int64" })):tolist())
    assert.are.same({ 4, 1, 3 }, tl.ones(3):scatter_add(1, ids, tl.tensor({ 2, 3 })):tolist())
    assert.are.same({ 1, 0, 1 }, tl.zeros(3):index_add_(1, ids, tl.ones(2)):tolist())
    raises("argument 3 must be a tensor, got nil", function() grid():gather(1) end)
  end)

  it("nonzero, masked_select and one_hot", function()
    assert.are.same({ { 0 }, { 2 } }, tl.tensor({ 1, 0, 5 }):nonzero():tolist())
    assert.are.same({ 1, 5 }, tl.tensor({ 1, 0, 5 }):masked_select(tl.tensor({ true, false, true })):tolist())
    assert.are.same({ { 0, 0, 1 }, { 1, 0, 0 } }, ids:one_hot():tolist())
    assert.are.same({ 2, 4 }, ids:one_hot(4).shape)
  end)
end)
