-- tl.train: checkpoints, and loaders that go on in the middle of an epoch.
local tl = require "tlua"
local system = require "tlua.system"
local nn, optim, data, train = tl.nn, tl.optim, tl.data, tl.train

local function raises(pattern, f, ...)
  local ok, message = pcall(f, ...)
  assert.is_false(ok)
  assert.matches(pattern, message)
end

local folder
before_each(function() folder = os.tmpname() os.remove(folder) end)
after_each(function()
  for name in pairs(system.entries(folder) or {}) do os.remove(folder .. "/" .. name) end
  os.remove(folder)
end)

local function files()
  local list = {}
  for name in pairs(system.entries(folder)) do list[#list + 1] = name end
  table.sort(list)
  return list
end

local function damage(path)
  local file = assert(io.open(path, "rb"))
  local text = file:read("*a")
  file:close()
  file = assert(io.open(path, "wb"))
  file:write(text:sub(1, #text - 5))
  file:close()
end

-- A dataset whose samples are drawn when they are asked for.
local noisy = { size = function() return 11 end }
function noisy:get(i) return tl.rand(2, { device = "cpu" }) + i, i end

local function rows(n)
  return data.TensorDataset(tl.arange(n, { device = "cpu" }), tl.arange(n, { dtype = "int64", device = "cpu" }))
end

-- Loops over `epochs` epochs, drawing a number in each step; after `stop` steps the position and the random numbers go
-- through a file and another loader continues. Returns a line for each step.
local function walk(make, epochs, stop)
  tl.manual_seed(5)
  local loader, lines, step = make(), {}, 0
  local first = 1
  while first <= epochs do
    local again
    for epoch = first, epochs do
      for x in loader do
        step = step + 1
        local drawn = tl.rand(1, { device = "cpu" }):item()
        lines[#lines + 1] = ("%d %.9g %.9g %d"):format(epoch, x:sum():item(), drawn, #x)
        if step == stop then
          train.save_checkpoint(folder, { loader = loader, epoch = epoch })
          again = true
          break
        end
      end
      if again then break end
      first = epoch + 1
    end
    if again then
      loader:close()
      tl.manual_seed(99)
      loader = make()
      first = train.load_checkpoint(folder, { loader = loader }).epoch
    end
  end
  os.remove(folder)
  return lines
end

describe("a loader's position", function()
  local makers = {
    in_order = function() return data.DataLoader(rows(11), { batch_size = 3 }) end,
    shuffled = function() return data.DataLoader(rows(11), { batch_size = 3, shuffle = true, drop_last = true }) end,
    prefetched = function() return data.DataLoader(rows(11), { batch_size = 3, shuffle = true, num_workers = 2 }) end,
    own_generator = function()
      return data.DataLoader(rows(11), { batch_size = 3, shuffle = true, generator = tl.Generator(7) })
    end,
    in_lua = function() return data.DataLoader(noisy, { batch_size = 3, shuffle = true }) end,
    a_part = function()
      return data.DataLoader(data.Subset(rows(20), { 3, 1, 4, 11, 5, 9, 2, 6 }), { batch_size = 3, shuffle = true })
    end,
  }
  local corpus = os.tmpname()
  local file = assert(io.open(corpus, "wb"))
  for i = 1, 45 do file:write(string.char(i, 0)) end
  file:close()
  local tokens = data.TokenDataset(corpus, { context = 4, dtype = "uint16" }) -- 11 windows
  os.remove(corpus)
  function makers.of_tokens() return data.DataLoader(tokens, { batch_size = 3, shuffle = true, num_workers = 2 }) end

  for name, make in pairs(makers) do
    it("continues the epoch after any batch: " .. name, function()
      local whole = walk(make, 3)
      for stop = 1, #whole do assert.same(whole, walk(make, 3, stop)) end
    end)
  end

  it("survives a batch that is ahead on a GPU", function()
    if tl.device_count("cuda") == 0 then return pending "needs a GPU" end
    local function make() return data.DataLoader(noisy, { batch_size = 3, shuffle = true, device = "cuda" }) end
    local whole = walk(make, 2)
    for stop = 1, #whole do assert.same(whole, walk(make, 2, stop)) end
  end)

  it("is that of the sampler, too", function()
    local function make()
      local sampler = data.DistributedSampler(10, { num_replicas = 2, rank = 1, seed = 3 })
      return data.DataLoader(rows(10), { batch_size = 2, sampler = sampler }), sampler
    end
    local function labels(loader)
      local list = {}
      for _, y in loader do for _, v in ipairs(y:tolist()) do list[#list + 1] = v end end
      return list
    end
    local a, sampler = make()
    sampler:set_epoch(4)
    local wanted = labels(a)
    local b, other = make()
    sampler:set_epoch(4)
    a() -- one batch
    b:load_state_dict(a:state_dict())
    assert.equal(4, other.epoch)
    assert.same({ unpack(wanted, 3) }, labels(b))
    a:close()
    raises("load_state_dict takes what", other.load_state_dict, other, { seed = 1 })
  end)

  it("between epochs is the next one", function()
    local a = data.DataLoader(rows(4), { batch_size = 2, shuffle = true })
    for _ in a do end -- luacheck: ignore
    assert.same({ epoch = 1, batch = 0, samples = 4, batch_size = 2 }, a:state_dict())
    a()
    a:close()
    assert.same({ epoch = 2, batch = 0, samples = 4, batch_size = 2 }, a:state_dict())
  end)

  it("is refused by another loader", function()
    local a = data.DataLoader(rows(4), { batch_size = 2 })
    local state = a:state_dict()
    raises("the state has samples=4, this loader 5",
      function() data.DataLoader(rows(5), { batch_size = 2 }):load_state_dict(state) end)
    raises("the state has batch_size=2, this loader 1", function() data.DataLoader(rows(4)):load_state_dict(state) end)
    raises("a generator of its own is in this loader only", function()
      data.DataLoader(rows(4), { batch_size = 2, shuffle = true, generator = tl.Generator(1) }):load_state_dict(state)
    end)
    raises("takes what state_dict%(%) gave", a.load_state_dict, a, {})
    raises("takes what state_dict%(%) gave", a.load_state_dict, a, nil)
  end)
end)

local function parts()
  local model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 1))
  local optimizer = optim.AdamW(model:parameters(), { lr = 0.1 })
  return { model = model, optimizer = optimizer, scheduler = optim.lr_scheduler.ExponentialLR(optimizer, 0.9) }
end

local function step(p)
  p.optimizer:zero_grad()
  p.model(tl.ones(2, 3)):pow(2):mean():backward()
  p.optimizer:step()
  p.scheduler:step()
end

local function weights(p)
  local text = {}
  for name, t in pairs(p.model:state_dict()) do
    for _, v in ipairs(t:flatten():tolist()) do text[#text + 1] = ("%s %.9g"):format(name, v) end
  end
  table.sort(text)
  return text
end

describe("a checkpoint", function()
  it("lets a run go on as if nothing had happened", function()
    tl.manual_seed(1)
    local a, generator = parts(), tl.Generator(3)
    tl.rand(5, { generator = generator, device = "cpu" })
    for _ = 1, 3 do step(a) end
    a.generator, a.step, a.name, a.list = generator, 3, "x", { 1, { 2 } }
    train.save_checkpoint(folder, a)
    for _ = 1, 3 do step(a) end

    tl.manual_seed(2)
    local b = parts()
    b.generator = tl.Generator()
    local values = train.load_checkpoint(folder, b)
    assert.same({ step = 3, name = "x", list = { 1, { 2 } } }, values)
    assert.equal(0.1 * 0.9 * 0.9 * 0.9, b.optimizer.param_groups[1].lr)
    for _ = 1, 3 do step(b) end
    assert.same(weights(a), weights(b))
    assert.equal(tl.rand(1, { generator = generator, device = "cpu" }):item(),
      tl.rand(1, { generator = b.generator, device = "cpu" }):item())
  end)

  it("gives out a part of itself", function()
    local a = parts()
    step(a)
    train.save_checkpoint(folder, a)
    tl.manual_seed(17)
    local before, b = tl.get_rng_state(), parts()
    local after = tl.get_rng_state()
    local rest = train.load_checkpoint(folder, { model = b.model }, { rng = false })
    assert.same(after, tl.get_rng_state())
    assert.are_not.same(before, after)
    assert.same(weights(a), weights(b))
    assert.equal(1, rest.scheduler.last_epoch)
    assert.is_nil(rest.model)
  end)

  it("says what does not fit", function()
    raises("names are strings, got a number", train.save_checkpoint, folder, { 1 })
    raises("the name 'ranks' is taken", train.save_checkpoint, folder, { ranks = 1 })
    raises("the name 'rng' is taken", train.save_checkpoint, folder, { rng = tl.Generator(1) })
    raises("what is kept is a table", train.save_checkpoint, folder, 1)
    local c = train.Checkpoints(folder .. "s")
    raises("the step must be at least 0, got %-1", c.save, c, -1, {})
    raises("the metric must be a number, got a string", c.save, c, 1, {}, "x")
    raises("the name 'checkpoints' is taken", c.save, c, 1, { checkpoints = 1 })
    os.remove(folder .. "s")
    local ema = train.EMA(tl.nn.Linear(1, 1))
    raises("argument 1 must be a function, got nil", ema.apply, ema)
    local loader = tl.data.DataLoader(tl.data.TensorDataset(tl.ones(2, { device = "cpu" })), { batch_size = 1 })
    for _, batch in ipairs { -1, 0.5 } do
      local state = { epoch = 1, batch = batch, samples = 2, batch_size = 1 }
      raises("takes what state_dict%(%) gave", loader.load_state_dict, loader, state)
    end
    local a = parts()
    train.save_checkpoint(folder, { model = a.model })
    raises("holds nothing for 'optimizer', 'scheduler'$", train.load_checkpoint, folder, a)
    raises("'step' is a number; what takes", train.load_checkpoint, folder, { step = 1 })
    raises("there is no option 'rgn', did you mean 'rng'", train.load_checkpoint, folder, {}, { rgn = 1 })
    tl.save(folder, { 1, 2 })
    raises("is no checkpoint", train.load_checkpoint, folder, {})
    raises("Not a directory", train.load_checkpoint, folder .. "/none", {})
    raises("there is no tl.train.Checkpoint, did you mean 'Checkpoints'", function() return train.Checkpoint end)
  end)
end)

describe("Checkpoints", function()
  it("keeps the newest and the best", function()
    local c = train.Checkpoints(folder .. "/", { keep_last = 2, keep_best = 2 })
    local metrics = { 5, 1, 4, 2, 3, 0 / 0, nil, 6 }
    for i = 1, 8 do c:save(i, { value = i }, metrics[i]) end
    assert.same({
      "step-00000002.safetensors", "step-00000004.safetensors", "step-00000007.safetensors",
      "step-00000008.safetensors",
    }, files())
    local path, metric = c:best()
    assert.matches("/step%-00000002%.safetensors$", path)
    assert.equal(1, metric)
    assert.is_true(c:wants(1.5))
    assert.is_false(c:wants(2))
    assert.is_false(c:wants(0 / 0))
    assert.is_false(c:wants(nil))

    local d = train.Checkpoints(folder, { keep_last = 1, keep_best = 1, mode = "min" })
    assert.is_nil(d:best())
    assert.same({ value = 8 }, d:load {})
    assert.equal(1, select(2, d:best()))
    d:save(9, { value = 9 }, 0.5)
    assert.same({ "step-00000009.safetensors" }, files())
  end)

  it("knows where more is better", function()
    local c = train.Checkpoints(folder, { keep_last = 1, mode = "max" })
    for i, m in ipairs { 1, 3, 2, 3 } do c:save(i, {}, m) end
    assert.same({ "step-00000002.safetensors", "step-00000004.safetensors" }, files())
  end)

  it("takes the one before, when the newest is damaged, and says so", function()
    local c = train.Checkpoints(folder, { keep_last = 3 })
    assert.is_nil(c:load {})
    for i = 1, 3 do c:save(i, { value = i, t = tl.ones(3) }) end
    damage(c:path(3))
    local said = os.tmpname()
    local stderr = io.stderr
    rawset(io, "stderr", assert(io.open(said, "w")))
    local ok, values = pcall(c.load, c, {})
    io.stderr:close()
    rawset(io, "stderr", stderr)
    local file = io.open(said)
    local text = file:read("*a")
    file:close()
    os.remove(said)
    assert.is_true(ok)
    assert.equal(2, values.value)
    assert.matches("step%-00000003.safetensors: .*; the checkpoint before it is used\n$", text)
    damage(c:path(2))
    os.remove(c:path(3))
    damage(c:path(1))
    os.remove(c:path(2))
    raises("no checkpoint in .* can be read: load: [^:]*step%-00000001", c.load, c, {})
  end)

  it("sweeps up what a killed process left", function()
    train.Checkpoints(folder):save(1, {})
    local left = folder .. "/step-00000002.safetensors.tmp-4194304-0" -- above the largest pid
    local mine = ("%s/step-00000002.safetensors.tmp-%d-0"):format(folder, system.pid())
    for _, path in ipairs { left, mine } do assert(io.open(path, "w")):close() end
    train.Checkpoints(folder)
    assert.same({ "step-00000001.safetensors", (mine:match "[^/]*$") }, files())
  end)

  it("checks its options", function()
    raises("keep_last must be at least 1, got 0", train.Checkpoints, folder, { keep_last = 0 })
    raises("keep_best must be at least 0", train.Checkpoints, folder, { keep_best = -1 })
    raises('mode is "min" or "max", got "best"', train.Checkpoints, folder, { mode = "best" })
    raises("must be a folder's path, got a number", train.Checkpoints, 1)
    raises("there is no option 'keep', did you mean", train.Checkpoints, folder, { keep = 1 })
    raises("cannot be made or read", train.Checkpoints, "/proc/none/x")
  end)
end)
