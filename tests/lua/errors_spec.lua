-- errors stand at the user's line, name what is wrong, and leave the process alive.
local tl = require "tlua"

local here = debug.getinfo(1, "S").short_src

local function at_line(f)
  local line = debug.getinfo(f, "S").linedefined + 1
  local ok, message = pcall(f)
  assert.is_false(ok)
  assert.are.equal(here .. ":" .. line .. ": ", message:match("^(.-:%d+: )"))
end

describe("an error", function()
  local x = tl.ones(2, 3)

  it("stands at the line of the script", function()
    at_line(function()
      local _ = x + tl.ones(4)
    end)
    at_line(function()
      x:view(5)
    end)
    at_line(function()
      local _ = x[7]
    end)
    at_line(function()
      x[7] = 1
    end)
    at_line(function()
      local _ = x.shap
    end)
    at_line(function()
      tl.tensor({ { 1 }, {} })
    end)
    at_line(function()
      x:exp():add(nil)
    end)
    at_line(function()
      tl.zeros(2, { dtyp = "float32" })
    end)
    at_line(function()
      tl.no_grad(tl.add, x, "a")
    end)
  end)

  it("stands at the line of the script inside coroutines and xpcall", function()
    local line = debug.getinfo(1, "l").currentline + 1
    local co = coroutine.create(function() local _ = x + tl.ones(4) end)
    local ok, message = coroutine.resume(co)
    assert.is_false(ok)
    assert.matches(":" .. line .. ": add", message)
    line = debug.getinfo(1, "l").currentline + 1
    ok, message = xpcall(function() local _ = x + tl.ones(4) end, function(m) return m end)
    assert.is_false(ok)
    assert.matches(":" .. line .. ": add", message)
  end)

  it("survives being raised in a compiled loop", function()
    local ok, message
    for i = 1, 300 do
      ok, message = pcall(function() return i < 300 and x + 1 or x + tl.ones(4) end)
    end
    assert.is_false(ok)
    assert.matches("do not broadcast", message)
  end)

  it("names the argument that is missing", function()
    for i, call in ipairs {
      function() tl.exp() end, function() tl.add(x) end, function() tl.matmul(x) end, function() tl.cat() end,
      function() tl.zeros() end, function() tl.arange() end, function() tl.eye() end, function() tl.full({ 1 }) end,
      function() x:select(1) end, function() x:narrow(1, 1) end, function() x:transpose(1) end,
      function() x:masked_fill(nil, 1) end, function() x:copy_() end, function() tl.where(x, 1) end,
      function() tl.randint(5) end, function() tl.randperm() end, function() x:softmax() end,
      function() x:topk() end, function() x:gather(1) end, function() x:to() end, function() x:expand() end,
      function() x:permute() end, function() x:unsqueeze() end, function() x:flip() end, function() x:cumsum() end,
      function() x:index_select(1) end, function() tl.stack() end, function() tl.einsum() end,
      function() tl.einsum("ij") end, function() x:lerp(x) end, function() tl.manual_seed() end,
      function() x:fill_() end, function() tl.linspace(0, 1) end, function() x:register_hook() end,
    } do
      local ok, message = pcall(call)
      assert.is_false(ok, "call " .. i)
      assert.matches("^[^\n]*errors_spec.lua:%d+: ", message)
    end
  end)

  it("names tensors on the wrong side of a call", function()
    assert.has_error(function() tl.sum({}) end)
    assert.has_error(function() x.sum(5) end)
    assert.has_error(function() tl.zeros(x) end)
    assert.has_error(function() x:sum(x) end)
  end)

  it("does not leak", function()
    require("tlua.base").collect()
    require("tlua.base").collect() -- what finalisers of the first time let go
    local before = tl.memory().tensors
    for _ = 1, 50 do
      pcall(function() return x + tl.ones(4) end)
      pcall(function() return x:view(7) end)
    end
    require("tlua.base").collect()
    assert.are.equal(before, tl.memory().tensors)
  end)
end)

describe("an interrupt", function()
  it("is an error at the next operation", function()
    local C = require("tlua.base").C
    local x = tl.ones(2)
    C.tl_interrupt()
    local ok, message = pcall(function() return x + 1 end)
    assert.is_false(ok)
    assert.are.equal("interrupted", message)
    assert.are.same({ 2, 2 }, (x + 1):tolist())
  end)
end)

describe("a part that is not built", function()
  it("is named", function()
    local ok, message = pcall(function() return tl.nothing_of_the_kind end)
    assert.is_false(ok)
    assert.matches("there is no tl.nothing_of_the_kind", message)
  end)
end)
