-- tl.data: datasets, samplers, loaders, readers.
local tl = require "tlua"
local data = tl.data

local function raises(pattern, f, ...)
  local ok, message = pcall(f, ...)
  assert.is_false(ok)
  assert.matches(pattern, message)
end

-- Loaders read host memory, whatever the default device is.
local function numbers(n)
  local labels = tl.arange(n, { dtype = "int64", device = "cpu" }) + 100
  return data.TensorDataset(tl.arange(n, { device = "cpu" }), labels)
end

-- All labels that an epoch gives out, in order, and the sizes of its batches.
local function epoch(loader)
  local labels, sizes = {}, {}
  for x, y in loader do
    assert.equal(#x, #y)
    sizes[#sizes + 1] = #y
    for i, v in ipairs(y:tolist()) do
      assert.equal(v - 100, x[i]:item())
      labels[#labels + 1] = v
    end
  end
  return labels, sizes
end

local function write(path, text)
  local file = assert(io.open(path, "wb"))
  file:write(text)
  file:close()
end

describe("datasets", function()
  it("TensorDataset gives rows", function()
    local ds = data.TensorDataset(tl.arange(6):reshape(3, 2), tl.tensor { 7, 8, 9 })
    assert.equal(3, ds:size())
    local x, y = ds:get(2)
    assert.same({ 2, 3 }, x:tolist())
    assert.equal(8, y:item())
    raises("there is no sample 4, they are 1 to 3", ds.get, ds, 4)
    raises("argument 1 has 3 samples, argument 2 has 2", data.TensorDataset, tl.ones(3), tl.ones(2))
    raises("argument 1 is a 0%-d tensor", data.TensorDataset, tl.tensor(1))
    raises("at least one tensor", data.TensorDataset)
  end)

  it("Subset takes positions from 1 or ids from 0", function()
    local ds = numbers(5)
    local a, b = data.Subset(ds, { 5, 1 }), data.Subset(ds, tl.tensor({ 4, 0 }, { dtype = "int64", device = "cpu" }))
    for _, s in ipairs { a, b } do
      assert.equal(2, s:size())
      assert.equal(4, (s:get(1)):item())
      assert.same({ 104, 100 }, (epoch(data.DataLoader(s, { batch_size = 2 }))))
    end
    assert.same({ 100 }, (epoch(data.DataLoader(data.Subset(a, { 2 })))))
    raises("position 2 is 0, samples are 1 to 5", data.Subset, ds, { 1, 0 })
    raises("position 1 is 6, samples are 1 to 5", data.Subset, ds, { 6 })
    raises("ids are 0 to 5, samples are 0 to 4", data.Subset, ds, tl.tensor({ 5, 0 }, { dtype = "int64" }))
    raises("indices are a table", data.Subset, ds, tl.tensor { 1, 2 })
  end)

  it("random_split shares all samples out", function()
    local ds = numbers(10)
    local function labels(parts)
      local all = {}
      for _, p in ipairs(parts) do
        for _, v in ipairs((epoch(data.DataLoader(p, { batch_size = 3 })))) do all[#all + 1] = v end
      end
      return all
    end
    local parts = data.random_split(ds, { 7, 3 }, { generator = tl.Generator(1) })
    assert.equal(7, parts[1]:size())
    local first = labels(parts)
    assert.same(first, labels(data.random_split(ds, { 7, 3 }, { generator = tl.Generator(1) })))
    table.sort(first)
    assert.same({ 100, 101, 102, 103, 104, 105, 106, 107, 108, 109 }, first)
    -- fractions are rounded down, the rest goes round: .25 and .75 of 10 are 2 and 7, then 3 and 7
    parts = data.random_split(ds, { .25, .75 })
    assert.equal(3, parts[1]:size())
    assert.equal(7, parts[2]:size())
    raises("the lengths sum to 9, the dataset has 10 samples", data.random_split, ds, { 4, 5 })
  end)

  it("ConcatDataset joins", function()
    local ds = data.ConcatDataset { numbers(2), numbers(3) }
    assert.equal(5, ds:size())
    assert.same({ 100, 101, 100, 101, 102 }, (epoch(data.DataLoader(ds, { batch_size = 2 }))))
    raises("there is no sample 6", ds.get, ds, 6)
  end)

  it("misspelt names are errors", function()
    raises("there is no tl.data.TensorDataSet, did you mean 'TensorDataset'%?",
      function() return data.TensorDataSet end)
  end)
end)

describe("DataLoader", function()
  it("gives out all samples in batches", function()
    local loader = data.DataLoader(numbers(7), { batch_size = 3 })
    assert.equal(3, loader:size())
    local labels, sizes = epoch(loader)
    assert.same({ 100, 101, 102, 103, 104, 105, 106 }, labels)
    assert.same({ 3, 3, 1 }, sizes)
    loader = data.DataLoader(numbers(7), { batch_size = 3, drop_last = true })
    assert.equal(2, loader:size())
    labels, sizes = epoch(loader)
    assert.same({ 3, 3 }, sizes)
    assert.equal(6, #labels)
  end)

  it("shuffles anew each epoch, the same for one seed whatever the number of threads", function()
    local function two_epochs(options)
      options.batch_size, options.shuffle, options.generator = 4, true, tl.Generator(5)
      local loader = data.DataLoader(numbers(50), options)
      return { (epoch(loader)), (epoch(loader)) }
    end
    local expected = two_epochs {}
    assert.not_same(expected[1], expected[2])
    for workers = 1, 3 do
      assert.same(expected, two_epochs { num_workers = workers })
      assert.same(expected, two_epochs { num_workers = workers, prefetch = 1 })
    end
    assert.same(expected, two_epochs { pin_memory = true })
    table.sort(expected[1])
    assert.equal(149, expected[1][50])
    -- without a generator: the default one
    local function seeded()
      tl.manual_seed(3)
      return (epoch(data.DataLoader(numbers(20), { shuffle = true })))
    end
    assert.same(seeded(), seeded())
  end)

  it("gives the same batches for tensors and for a dataset in Lua", function()
    local inner = numbers(11)
    local ds = { size = function() return 11 end, get = function(_, i) return inner:get(i) end }
    local options = { batch_size = 4, shuffle = true }
    options.generator = tl.Generator(2)
    local a = { epoch(data.DataLoader(inner, options)) }
    options.generator = tl.Generator(2)
    local b = { epoch(data.DataLoader(ds, options)) }
    assert.same(a, b)
  end)

  it("can be left early, any number of times", function()
    local loader = data.DataLoader(numbers(100), { num_workers = 2 })
    for _ = 1, 5 do
      for x in loader do -- luacheck: ignore 512
        assert.equal(0, x:item())
        break
      end
    end
    loader:close()
    loader:close()
    assert.equal(100, #epoch(loader))
  end)

  it("notices a second loop over it", function()
    local loader = data.DataLoader(numbers(4))
    raises("another `for` over the same loader has begun", function()
      for _ in loader do
        for _ in loader do break end -- luacheck: ignore 512
      end
    end)
  end)

  it("collates numbers, booleans, strings and tables", function()
    local ds = {
      size = function() return 3 end,
      get = function(_, i)
        return { x = tl.full({ 2 }, i), n = i }, i / 2, i > 1, "s" .. i
      end,
    }
    for t, half, flag, name in data.DataLoader(ds, { batch_size = 3 }) do
      assert.same({ { 1, 1 }, { 2, 2 }, { 3, 3 } }, t.x:tolist())
      assert.same({ 1, 2, 3 }, t.n:tolist())
      assert.same({ .5, 1, 1.5 }, half:tolist())
      assert.same({ false, true, true }, flag:tolist())
      assert.same({ "s1", "s2", "s3" }, name)
    end
    local joined
    local function collate(samples) return #samples + samples[1][2] end
    for sum in data.DataLoader(ds, { batch_size = 2, collate = collate }) do joined = sum end
    assert.equal(2.5, joined)
  end)

  it("says which samples do not fit together", function()
    local function of(get) return data.DataLoader({ size = function() return 2 end, get = get }, { batch_size = 2 }) end
    raises("value 1 is %(1%) in sample 1 of the batch and %(2%) in sample 2", of(function(_, i) return tl.ones(i) end))
    raises("value 1 is a number in sample 1 of the batch and a string in sample 2",
      of(function(_, i) return i == 1 and 1 or "x" end))
    raises("value 1.k is missing in sample 2", of(function(_, i) return { k = i == 1 and 1 or nil } end))
    raises("get%(1%) returned nil", of(function() end))
    raises("collate returned nil", data.DataLoader(numbers(2), { collate = function() end }))
  end)

  it("takes any sampler", function()
    local function sampler(list) return { size = function() return #list end, order = function() return list end } end
    assert.same({ 104, 100 }, (epoch(data.DataLoader(numbers(5), { sampler = sampler { 5, 1 } }))))
    local loader = data.DataLoader(numbers(5), { sampler = sampler { 6 } })
    raises("position 1 is 6, samples are 1 to 5", epoch, loader)
  end)

  it("refuses bad options", function()
    local ds = numbers(3)
    raises("there is no option 'batchsize', did you mean 'batch_size'%?", data.DataLoader, ds, { batchsize = 2 })
    raises("batch_size must be at least 1, got 0", data.DataLoader, ds, { batch_size = 0 })
    raises("num_workers must be at least 0", data.DataLoader, ds, { num_workers = -1 })
    raises("a sampler decides the order itself", data.DataLoader, ds,
      { shuffle = true, sampler = data.SequentialSampler(ds) })
    raises("a sampler is a table", data.DataLoader, ds, { sampler = 1 })
    raises("a dataset is a table with the methods size", data.DataLoader, tl.ones(3))
  end)
end)

describe("samplers", function()
  it("sequential and random", function()
    assert.same({ 0, 1, 2 }, data.SequentialSampler(3):order():tolist())
    local s = data.RandomSampler(5, { generator = tl.Generator(1) })
    local order = s:order():tolist()
    table.sort(order)
    assert.same({ 0, 1, 2, 3, 4 }, order)
    s = data.RandomSampler(3, { num_samples = 7 })
    assert.equal(7, s:size())
    assert.equal(7, #s:order())
    assert.equal(100, #data.RandomSampler(3, { replacement = true, num_samples = 100 }):order())
    assert.equal(0, #data.RandomSampler(0):order())
  end)

  it("weighted", function()
    local s = data.WeightedRandomSampler({ 0, 1, 0, 3 }, 200, { generator = tl.Generator(1) })
    local count = { [0] = 0, 0, 0, 0 }
    for _, id in ipairs(s:order():tolist()) do count[id] = count[id] + 1 end
    assert.equal(0, count[0] + count[2])
    assert.is_true(count[3] > 2 * count[1] and count[1] > 20)
  end)

  it("distributed: every rank its part, padded from the start", function()
    local function ranks(n, replicas, options)
      local all = {}
      for rank = 0, replicas - 1 do
        local o = { num_replicas = replicas, rank = rank, shuffle = false }
        for k, v in pairs(options or {}) do o[k] = v end
        all[rank + 1] = data.DistributedSampler(n, o):order():tolist()
      end
      return all
    end
    assert.same({ { 0 }, { 1 }, { 2 }, { 0 }, { 1 }, { 2 }, { 0 } }, ranks(3, 7))
    assert.same({ { 0, 2, 4 }, { 1, 3, 0 } }, ranks(5, 2))
    assert.same({ { 0, 2 }, { 1, 3 } }, ranks(5, 2, { drop_last = true }))
    assert.same({ {}, {}, {} }, ranks(2, 3, { drop_last = true }))
    assert.same({ { 0, 2, 4 }, { 1, 3 } }, ranks(5, 2, { even = false }))
    assert.same({ { 0, 2 }, { 1, 3 } }, ranks(4, 2, { even = false }))
    assert.same({ { 0 }, { 1 }, {}, {}, {} }, ranks(2, 5, { even = false }))
    local function padding(n, replicas, rank)
      return data.DistributedSampler(n, { num_replicas = replicas, rank = rank }):padding()
    end
    assert.equal(0, padding(5, 2, 0))
    assert.equal(1, padding(5, 2, 1))
    assert.equal(1, padding(3, 7, 6))
    -- shuffled: the ranks share one permutation, another one each epoch
    local seen = {}
    for _, part in ipairs(ranks(6, 2, { shuffle = true, seed = 4 })) do
      for _, id in ipairs(part) do seen[#seen + 1] = id end
    end
    table.sort(seen)
    assert.same({ 0, 1, 2, 3, 4, 5 }, seen)
    local s = data.DistributedSampler(50, { num_replicas = 2, rank = 0 })
    local first = s:order():tolist()
    assert.same(first, s:order():tolist())
    s:set_epoch(1)
    assert.not_same(first, s:order():tolist())
    raises("num_replicas and rank must be given", data.DistributedSampler, 3)
    raises("leave one of them out", data.DistributedSampler, 3,
      { num_replicas = 2, rank = 1, even = false, drop_last = true })
    raises("rank 2 of 2", data.DistributedSampler, 3, { num_replicas = 2, rank = 2 })
  end)
end)

describe("readers", function()
  local path = os.tmpname()
  after_each(function() os.remove(path) end)

  it("idx, npy and text", function()
    write(path, "\0\0\8\1\0\0\0\2\5\6")
    assert.same({ 5, 6 }, data.idx(path):tolist())
    data.save_npy(path, tl.arange(6):reshape(2, 3).T)
    assert.same({ { 0, 3 }, { 1, 4 }, { 2, 5 } }, data.npy(path):tolist())
    write(path, "a\0b\n")
    assert.equal("a\0b\n", data.text(path))
    assert.same({ 97, 0, 98, 10 }, data.text(path, { bytes = true }):tolist())
    raises("holds more than the 3 bytes allowed", data.text, path, { limit = 3 })
    raises("neither PNG nor JPEG", function()
      write(path, "GIF89a..")
      data.image(path)
    end)
    raises("not a zip file", data.npz, path)
    raises("No such file", data.npy, "/no/such/file")
    raises("idx: argument 1 must be a path, got a number", data.idx, 1)
  end)

  it("csv", function()
    write(path, "name,x,y\nann,1,2\nbob,3,4\n")
    local x, names, columns = data.csv(path, { columns = { "y", 2 } })
    assert.same({ { 2, 1 }, { 4, 3 } }, x:tolist())
    assert.same({ "y", "x" }, names)
    assert.same({ 1, 3 }, columns.x:tolist())
    assert.equal("int64", data.csv(path, { columns = "y", dtype = "int64" }).dtype)
    raises("line 2, column 1: 'ann' is not a number", data.csv, path)
    raises("has no column 'z'", data.csv, path, { columns = { "z" } })
    raises("there is no column 4, line 1 has 3", data.csv, path, { columns = { 4 } })
    raises("positions count from 1", data.csv, path, { columns = { 0 } })
    raises("delimiter", data.csv, path, { delimiter = "ab" })
    write(path, "1;2\n;4\n")
    x, names = data.csv(path, { delimiter = ";", missing = true, dtype = "float64" })
    assert.same({ "1", "2" }, names)
    assert.is_true(x[2][1]:item() ~= x[2][1]:item())
  end)

  it("fashion_mnist", function()
    local x, y = data.fashion_mnist { train = false }
    assert.same({ 10000, 28, 28 }, x.shape)
    assert.equal("uint8", x.dtype)
    assert.equal("int64", y.dtype)
    assert.equal(9, y[1]:item()) -- the first test image is an ankle boot
    raises("there is no train%-images%-idx3%-ubyte%(.gz%) with its labels in /nowhere", data.fashion_mnist,
      { root = "/nowhere" })
  end)
end)
