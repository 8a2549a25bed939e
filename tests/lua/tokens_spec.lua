-- tl.data.TokenDataset and write_tokens.
local tl = require "tlua"
local data = tl.data

local function raises(pattern, f, ...)
  local ok, message = pcall(f, ...)
  assert.is_false(ok)
  assert.matches(pattern, message)
end

local path = os.tmpname()

local function ids(n) return tl.arange(n, { dtype = "int64", device = "cpu" }) end

describe("token files", function()
  after_each(function() os.remove(path) end)

  it("give windows and the tokens that follow", function()
    assert.equal(10, data.write_tokens(path, ids(10)))
    local ds = data.TokenDataset(path, { context = 3 })
    assert.same({ 3, 10, "uint16" }, { ds:size(), ds.tokens, ds.dtype })
    local x, y = ds:get(2)
    assert.same({ 3, 4, 5 }, x:tolist())
    assert.same({ 4, 5, 6 }, y:tolist())
    assert.same({ 8, 9 }, ds:read(9, 2):tolist())
    assert.equal(7, data.TokenDataset(path, { context = 3, stride = 1 }):size())
    raises("there is no window 4, they are 1 to 3", ds.get, ds, 4)
    raises("there are no 2 tokens from 10 on, there are 10", ds.read, ds, 10, 2)
    raises("10 tokens are too few for a window of 10", data.TokenDataset, path, { context = 10 })
    raises("option 'context' is missing", data.TokenDataset, path)
    raises("context must be at least 1", data.TokenDataset, path, { context = 0 })
    raises("did you mean 'stride'", data.TokenDataset, path, { context = 1, strid = 2 })
    raises("20 bytes, which are no whole number of int64", data.TokenDataset, path, { context = 1, dtype = "int64" })
  end)

  it("are cut into batches by a DataLoader", function()
    data.write_tokens(path, ids(1000))
    local ds = data.TokenDataset(path, { context = 9 })
    local function epoch(dataset, options)
      local seen = {}
      for x, y in data.DataLoader(dataset, options) do
        assert.equal("int64", x.dtype)
        assert.same((x + 1):tolist(), y:tolist())
        for _, first in ipairs(x:select(2, 1):tolist()) do seen[#seen + 1] = first end
      end
      return seen
    end
    local plain = epoch(ds, { batch_size = 8 })
    assert.same({ 111, 0, 9, 990 }, { #plain, plain[1], plain[2], plain[111] })
    for workers = 0, 2 do
      local seen = epoch(ds, { batch_size = 8, num_workers = workers, shuffle = true, generator = tl.Generator(1) })
      assert.are_not.same(plain, seen)
      table.sort(seen)
      assert.same(plain, seen)
    end
    local parts = data.random_split(ds, { 0.9, 0.1 }, { generator = tl.Generator(2) })
    local both = epoch(parts[1], { batch_size = 8 })
    for _, first in ipairs(epoch(parts[2], { batch_size = 8, num_workers = 1 })) do both[#both + 1] = first end
    table.sort(both)
    assert.same(plain, both)
    local anywhere = data.TokenDataset(path, { context = 9, stride = 1 })
    local sampler = data.RandomSampler(anywhere, { replacement = true, num_samples = 40, generator = tl.Generator(3) })
    assert.equal(40, #epoch(anywhere, { batch_size = 8, sampler = sampler }))
    -- the way of datasets written in Lua gives the same
    local collate = require("tlua.data.collate").default_collate
    assert.same(plain, epoch(ds, { batch_size = 8, collate = collate }))
  end)

  it("are written from an iterator, whole or not at all", function()
    local left = 3
    local function pull()
      left = left - 1
      if left >= 0 then return ids(2) + left end
    end
    assert.equal(6, data.write_tokens(path, pull, { dtype = "int32" }))
    assert.same({ 2, 3, 1, 2, 0, 1 }, data.TokenDataset(path, { context = 1, dtype = "int32" }):read(1, 6):tolist())
    raises("id 256 at place 1 is not 0 to 255", data.write_tokens, path, { ids(3), ids(1) + 256 }, { dtype = "uint8" })
    raises("stopped", data.write_tokens, path, function() error "stopped" end)
    raises("argument 2 must be a tensor of ids", data.write_tokens, path, 7)
    raises("argument 2 must be a tensor", data.write_tokens, path, { 7 })
    raises("not as 'float32'", data.write_tokens, path, ids(1), { dtype = "float32" })
    assert.equal(6, data.TokenDataset(path, { context = 1, dtype = "int32" }).tokens)
  end)
end)
