-- Gradient accumulation with public parts: micro-batches of any sizes give the gradients of their whole batch.
local tl = require "tlua"
local nn, F = tl.nn, tl.F

local IGNORED = -100

local function make()
  tl.manual_seed(9)
  return nn.Sequential(nn.Embedding(11, 6), nn.Linear(6, 11)):to("float64")
end

-- Sequences of 8 tokens whose tails do not count, and the targets that do.
local function batch()
  tl.manual_seed(10)
  local x, y = tl.randint(0, 11, { 7, 8 }, { dtype = "int64" }), tl.randint(0, 11, { 7, 8 }, { dtype = "int64" })
  for i = 1, 7 do
    if i < 7 then y[{ i, { i + 1, 8 } }] = IGNORED end
  end
  return x, y
end

local function gradients(model)
  local list = {}
  for i, p in ipairs(model:parameters()) do list[i] = p.grad end
  return list
end

local function close(a, b)
  for i = 1, #a do
    if not a[i]:allclose(b[i], { rtol = 1e-10, atol = 1e-13 }) then return false end
  end
  return true
end

describe("unequal micro-batches", function()
  local x, y = batch()
  local whole = make()
  F.cross_entropy(whole(x):flatten(1, 2), y:flatten(), { ignore_index = IGNORED }):backward()
  local parts = { { 1, 2 }, { 3, 1 }, { 4, 4 } } -- first row, rows

  it("summed and divided by the count of all tokens, are the whole batch", function()
    local model = make()
    local count = y:ne(IGNORED):sum():item()
    for _, part in ipairs(parts) do
      local a, b = x:narrow(1, part[1], part[2]), y:narrow(1, part[1], part[2])
      local loss = F.cross_entropy(model(a):flatten(1, 2), b:flatten(), { ignore_index = IGNORED, reduction = "sum" })
      ;(loss / count):backward()
    end
    assert.is_true(close(gradients(whole), gradients(model)))
  end)

  it("each averaged over its own tokens, are not", function()
    local model = make()
    for _, part in ipairs(parts) do
      local a, b = x:narrow(1, part[1], part[2]), y:narrow(1, part[1], part[2])
      local loss = F.cross_entropy(model(a):flatten(1, 2), b:flatten(), { ignore_index = IGNORED })
      ;(loss / #parts):backward()
    end
    assert.is_false(close(gradients(whole), gradients(model)))
  end)

  it("of which one has no token, too", function()
    local model = make()
    local count = y:narrow(1, 1, 3):ne(IGNORED):sum():item()
    local none = tl.full({ 2, 8 }, IGNORED, { dtype = "int64" })
    local function add(a, b)
      local loss = F.cross_entropy(model(a):flatten(1, 2), b:flatten(), { ignore_index = IGNORED, reduction = "sum" })
      ;(loss / count):backward()
    end
    add(x:narrow(1, 1, 3), y:narrow(1, 1, 3))
    add(x:narrow(1, 4, 2), none)
    local plain = make()
    local logits = plain(x:narrow(1, 1, 3)):flatten(1, 2)
    F.cross_entropy(logits, y:narrow(1, 1, 3):flatten(), { ignore_index = IGNORED }):backward()
    assert.is_true(close(gradients(plain), gradients(model)))
  end)
end)
