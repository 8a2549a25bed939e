-- tl.train.Trainer and the parts it is made of.
local tl = require "tlua"
local system = require "tlua.system"
local nn, optim, data, train, F = tl.nn, tl.optim, tl.data, tl.train, tl.F

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

local function read(path)
  local file = assert(io.open(path, "rb"))
  local text = file:read("*a")
  file:close()
  return text
end

-- Loaders read host memory, whatever the default device is.
local function samples(n)
  local x = tl.randn(n, 3, { device = "cpu" })
  return data.TensorDataset(x, x:sum(2))
end

-- The same ones each time.
local function fixed(n)
  tl.manual_seed(7)
  return samples(n)
end

local function net() return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1)) end

local function mse(model, x, y) return F.mse_loss(model(x):squeeze(2), y) end

-- A Trainer without a word, of these options over usual ones.
local function trainer(options)
  tl.manual_seed(1)
  local o = {
    model = net(), loss = mse, train = data.DataLoader(samples(20), { batch_size = 4 }), epochs = 1, console = false,
  }
  for name, value in pairs(options) do o[name] = value end
  o.optimizer = type(options.optimizer) == "function" and options.optimizer(o.model) or options.optimizer
    or optim.SGD(o.model:parameters(), { lr = 0.1 })
  if type(options.scheduler) == "function" then o.scheduler = options.scheduler(o.optimizer) end
  return train.Trainer(o), o
end

local function weights(model)
  local list = {}
  for _, p in ipairs(model:parameters()) do
    for _, v in ipairs(p:flatten():tolist()) do list[#list + 1] = v end
  end
  return list
end

local function close(a, b, tolerance)
  assert.equal(#a, #b)
  for i = 1, #a do assert.is_true(math.abs(a[i] - b[i]) <= tolerance, ("%.9g %.9g"):format(a[i], b[i])) end
end

-- A logger that keeps its rows.
local function keeper()
  local k = { rows = {} }
  function k:log(step, values)
    values.step = step
    self.rows[#self.rows + 1] = values
  end
  return k
end

describe("Trainer", function()
  it("computes what the plain loop does, to the bit", function()
    local t, o = trainer { epochs = 2, scheduler = function(opt) return optim.lr_scheduler.ExponentialLR(opt, 0.9) end }
    local result = t:fit()
    assert.equal(10, result.step)
    local trained = weights(o.model)

    tl.manual_seed(1)
    local model, loader = net(), data.DataLoader(samples(20), { batch_size = 4 })
    local optimizer = optim.SGD(model:parameters(), { lr = 0.1 })
    local scheduler = optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    for _ = 1, 2 do
      for x, y in loader do
        optimizer:zero_grad()
        mse(model, x:to(model:parameters()[1].device), y:to(model:parameters()[1].device)):backward()
        optimizer:step()
        scheduler:step()
      end
    end
    assert.same(weights(model), trained)
  end)

  -- 20 samples in batches of 3: the last of the accumulated ones is smaller.
  for name, loss in pairs {
    means = mse,
    sums = function(model, x, y) return F.mse_loss(model(x):squeeze(2), y, { reduction = "sum" }), #y end,
    tensor_counts = function(model, x, y)
      return F.mse_loss(model(x):squeeze(2), y, { reduction = "sum" }), tl.ones(#y):sum()
    end,
  } do
    it("accumulates unequal batches to exactly the big batch: " .. name, function()
      local big, o = trainer { epochs = 3, loss = loss, train = data.DataLoader(fixed(20), { batch_size = 20 }) }
      assert.equal(3, big:fit().step)
      local small = data.DataLoader(fixed(20), { batch_size = 3 })
      local t, p = trainer { epochs = 3, loss = loss, accumulate = 9, train = small }
      assert.equal(3, t:fit().step)
      close(weights(o.model), weights(p.model), 2e-6)
    end)
  end

  it("makes a step of the micro-batches that are left", function()
    local t = trainer { accumulate = 2 }
    assert.equal(3, t:fit().step) -- 5 batches
  end)

  it("ends after so many steps, in the middle of an epoch", function()
    local t = trainer { epochs = 5, steps = 7 }
    local result = t:fit()
    assert.same({ 7, 2 }, { result.step, result.epoch })
    assert.equal(0, trainer { epochs = 0 }:fit().step)
  end)

  it("takes any iterator", function()
    local epochs = {}
    local function batches(epoch, used)
      epochs[#epochs + 1] = { epoch, used }
      local i = 0
      return function()
        i = i + 1
        if i <= 3 then return tl.ones(2, 3), tl.ones(2) end
      end
    end
    assert.equal(6, trainer { train = batches, epochs = 2 }:fit().step)
    assert.same({ { 1, 0 }, { 2, 0 } }, epochs)
    raises("`train` gave no batch", function()
      trainer { train = function() return function() end end, epochs = 2 }:fit()
    end)
  end)

  it("clips, with the scaler's order", function()
    local k = keeper()
    local t, o = trainer {
      clip = 0.01, amp = "float16", scaler = tl.amp.GradScaler { init_scale = 4096 }, loggers = { k }, log_every = 1,
      optimizer = function(m) return optim.SGD(m:parameters(), { lr = 1 }) end,
    }
    local before = weights(o.model)
    t.steps = 1
    t:fit()
    local norm = 0
    for i, w in ipairs(weights(o.model)) do norm = norm + (w - before[i]) ^ 2 end
    assert.is_true(math.abs(math.sqrt(norm) - 0.01) < 1e-5)
    assert.is_true(k.rows[1].grad_norm > 0.01 and k.rows[1].grad_norm < 100)
    assert.equal(4096, k.rows[1].loss_scale)
  end)

  it("makes a scaler for float16, and none for bfloat16", function()
    assert.is_truthy((trainer { amp = "float16" }).scaler)
    assert.is_nil((trainer { amp = "bfloat16" }).scaler)
    assert.is_nil((trainer { amp = { dtype = "float16" }, scaler = false }).scaler)
    raises("there is no dtype 'float15'", trainer, { amp = "float15" })
  end)

  it("logs means of what it saw, weighed by their counts", function()
    local k, seen = keeper(), {}
    local t = trainer {
      loggers = { k }, log_every = 2, epochs = 1,
      loss = function(model, x, y)
        local sum = F.mse_loss(model(x):squeeze(2), y, { reduction = "sum" })
        local n = #seen + 1
        seen[n] = sum:item() / 4
        return sum * n, 4 * n, { double = sum:detach() * 2 * n, one = 4 * n }
      end,
    }
    t:fit()
    assert.same({ 2, 4, 5 }, { k.rows[1].step, k.rows[2].step, k.rows[3].step })
    local wanted = (seen[1] + 2 * seen[2]) / 3
    assert.is_true(math.abs(k.rows[1]["train/loss"] - wanted) < 1e-6)
    assert.is_true(math.abs(k.rows[1]["train/double"] - 2 * wanted) < 1e-6)
    assert.equal(1, k.rows[1]["train/one"])
    assert.equal(0.1, k.rows[1].lr)
    assert.is_number(k.rows[1]["train/tokens_per_second"])
  end)

  it("evaluates without a trace", function()
    local validation = data.DataLoader(samples(10), { batch_size = 3, shuffle = true })
    local t, o = trainer { validation = validation, model = nn.Sequential(nn.Linear(3, 1), nn.Dropout(0.5)) }
    o.model:modules()[2]:eval()
    local rng = tl.get_rng_state()
    local a, b = t:evaluate(), t:evaluate(data.DataLoader(validation.dataset, { batch_size = 10 }))
    assert.is_true(math.abs(a.loss - b.loss) < 1e-6)
    assert.same(rng, tl.get_rng_state())
    assert.is_true(o.model.training)
    assert.is_false(o.model:modules()[2].training)
    raises("there is nothing to evaluate on", function() trainer {}:evaluate() end)
  end)

  it("evaluates at the end of each epoch, or every so many steps, and at the end", function()
    local function steps(options)
      local k = keeper()
      options.loggers, options.validation = { k }, data.DataLoader(samples(6), { batch_size = 6 })
      trainer(options):fit()
      local list = {}
      for _, row in ipairs(k.rows) do
        if row["validation/loss"] then list[#list + 1] = row.step end
      end
      return list
    end
    assert.same({ 5, 10 }, steps { epochs = 2 })
    assert.same({ 4, 8, 10 }, steps { epochs = 2, evaluate_every = 4 })
    assert.same({ 5, 7 }, steps { epochs = 3, steps = 7 })
  end)

  it("keeps what the last evaluation found", function()
    local validation = data.DataLoader(samples(6), { batch_size = 6 })
    local t, o = trainer { steps = 7, epochs = 2, directory = folder, validation = validation }
    o.model:eval()
    local result = t:fit()
    assert.is_true(o.model.training)
    local saved = tl.load(t.checkpoints:newest())
    assert.same({ 7, 7, result.best }, { saved.trainer.step, saved.trainer.evaluated, saved.trainer.best })
  end)

  it("leaves out the samples that a DistributedSampler repeats", function()
    local ds = samples(7)
    local sampler = data.DistributedSampler(ds, { num_replicas = 4, rank = 3, shuffle = false }) -- 3 and a repeat
    local t = trainer { validation = data.DataLoader(ds, { batch_size = 2, sampler = sampler }) }
    local one = t:evaluate(data.DataLoader(data.Subset(ds, { 4 }), { batch_size = 1 }))
    assert.equal(one.loss, t:evaluate().loss)
  end)

  it("stops early", function()
    local losses, at = { 3, 2, 2.5, 1.95, 2.2 }, 0
    local function loss(model, x, y)
      if model.training then return mse(model, x, y) end
      at = at + 1
      return tl.tensor(losses[at] or 9), 1
    end
    local t = trainer {
      epochs = 9, loss = loss, validation = data.DataLoader(samples(2), { batch_size = 2 }),
      early_stopping = { patience = 3, min_delta = 0.1 },
    }
    local result = t:fit()
    assert.same({ 25, 10, true }, { result.step, result.best_step, result.stopped_early })
    assert.equal(2, result.best)
    raises("there is no metric 'validation/los' to monitor, there are .*validation/loss", function()
      trainer { monitor = "validation/los", validation = data.DataLoader(samples(2)) }:fit()
    end)
  end)

  it("steps a schedule each epoch, or by the metric", function()
    local function rate(options)
      options.epochs = 3
      local t = trainer(options)
      t:fit()
      return t.optimizer.param_groups[1].lr
    end
    local function halve(opt) return optim.lr_scheduler.ExponentialLR(opt, 0.5) end
    local function plateau(opt) return optim.lr_scheduler.ReduceLROnPlateau(opt, { patience = 0, factor = 0.1 }) end
    assert.is_true(math.abs(rate { scheduler = halve, scheduler_every = "epoch" } - 0.1 / 8) < 1e-12)
    local function constant(model, x, y)
      if model.training then return mse(model, x, y) end
      return tl.tensor(1), 1
    end
    local validation = data.DataLoader(samples(2), { batch_size = 2 })
    assert.is_true(math.abs(rate { scheduler = plateau, loss = constant, validation = validation } - 0.001) < 1e-12)
  end)

  it("calls on_step and on_evaluate", function()
    local steps, losses = 0, {}
    local t = trainer {
      validation = data.DataLoader(samples(2), { batch_size = 2 }), evaluate_every = 2,
      on_step = function(self) steps = steps + self.step end,
      on_evaluate = function(_, values) losses[#losses + 1] = values["validation/loss"] end,
    }
    t:fit()
    assert.equal(15, steps)
    assert.equal(3, #losses)
  end)

  it("goes on from its newest checkpoint, and only when asked to", function()
    local function make(options)
      options.directory, options.save_every, options.epochs = folder, 2, 9
      options.train = options.train or data.DataLoader(fixed(20), { batch_size = 4, shuffle = true })
      return trainer(options)
    end
    make { steps = 4 }:fit()
    raises("has checkpoints already: resume=true goes on", function() make { steps = 8 }:fit() end)
    local calls = {}
    local t, o = make {
      steps = 8, resume = true, on_step = function(self) calls[#calls + 1] = self.step end,
      state = { extra = tl.Generator(1) }, train = data.DataLoader(fixed(20), { batch_size = 4, shuffle = true }),
    }
    raises("holds nothing for 'extra'", t.fit, t)
    t.state = {}
    t:fit()
    assert.same({ 5, 6, 7, 8 }, calls)
    local loader = data.DataLoader(fixed(20), { batch_size = 4, shuffle = true })
    local whole, p = trainer { steps = 8, epochs = 9, train = loader }
    whole:fit()
    assert.same(weights(p.model), weights(o.model))
    raises("the name 'model' in state is taken",
      function() make { resume = true, state = { model = o.model } }:fit() end)
  end)

  it("keeps its place when it goes on with fewer epochs than were begun", function()
    local function run(options)
      options.directory, options.resume = folder, true
      options.train = data.DataLoader(fixed(20), { batch_size = 4, shuffle = true })
      return trainer(options):fit()
    end
    run { epochs = 9, steps = 12 } -- 5 steps an epoch
    local ended = run { epochs = 1 }
    assert.same({ 12, 3 }, { ended.step, ended.epoch })
    local result = run { epochs = 4 }
    assert.same({ 20, 4 }, { result.step, result.epoch })
  end)

  it("keeps the best checkpoints", function()
    local losses, at = { 3, 1, 2, 4 }, 0
    local t = trainer {
      epochs = 4, directory = folder, keep_last = 1, keep_best = 2,
      validation = data.DataLoader(samples(2), { batch_size = 2 }),
      loss = function(model, x, y)
        if model.training then return mse(model, x, y) end
        at = at + 1
        return tl.tensor(losses[at]), 1
      end,
    }
    t:fit()
    local names = {}
    for name in pairs(system.entries(folder)) do names[#names + 1] = name end
    table.sort(names)
    assert.same({ "step-00000010.safetensors", "step-00000015.safetensors", "step-00000020.safetensors" }, names)
    assert.matches("step%-00000010", (t.checkpoints:best()))
  end)

  it("checks its options", function()
    for pattern, options in pairs {
      ["there is no option 'optimiser', did you mean 'optimizer'"] = { optimiser = 1 },
      ["model must be a module, got a number"] = { model = 1, optimizer = {} },
      ["optimizer must have the method step"] = { optimizer = {} },
      ["loss must be a function%(model, batch...%), got a number"] = { loss = 1 },
      ["train must be a DataLoader, or a function that gives an iterator, got a table"] = { train = {} },
      ["validation must be a DataLoader"] = { validation = 1 },
      ["accumulate must be at least 1, got 0"] = { accumulate = 0 },
      ["evaluate_every needs validation"] = { evaluate_every = 1 },
      ["early_stopping needs validation"] = { early_stopping = 1 },
      ["resume needs the directory"] = { resume = true },
      ["save_every needs a directory"] = { save_every = 1 },
      ["scheduler_every is \"step\" or \"epoch\", got \"day\""] = { scheduler_every = "day" },
      ["mode is \"min\" or \"max\", got \"best\""] = { mode = "best" },
      ["there is no logger 'cvs', did you mean 'csv'"] = { loggers = { "cvs" } },
      ["the logger 'csv' needs a directory"] = { loggers = { "csv" } },
      ["a logger is a table with the method log"] = { loggers = { {} } },
      ["on_step must be a function, got a number"] = { on_step = 1 },
      ["decay must be in %[0, 1%), got 2"] = { ema = 2 },
      ["scaler must have the method unscale_"] = { scaler = {} },
      ["seed must be an integer, got a string"] = { seed = "x" },
      ["config must be a string, got a number"] = { config = 1 },
      ["state is a table name %-> object, got a string"] = { state = "model" },
      ["names in state are strings, got a number"] = { state = { net() } },
      ["'lr' in state must have state_dict%(%) and load_state_dict%(%), or be a generator, got a number"] =
        { state = { lr = 1 } },
      ["the name 'checkpoints' in state is taken"] = { state = { checkpoints = net() } },
      ["the name 'rng' in state is taken"] = { state = { rng = tl.Generator(1) } },
    } do raises(pattern, trainer, options) end
    raises("options are a table, got nil", train.Trainer)
    raises("epochs or steps must say when training ends", function()
      local m = net()
      train.Trainer { model = m, optimizer = optim.SGD(m:parameters(), { lr = 1 }), loss = mse, train = function() end }
    end)
    raises("must return a loss of one element, got a tensor of 4 elements",
      function() trainer { loss = function(m, x) return m(x) end }:fit() end)
    raises("must return a loss of one element, got nil", function() trainer { loss = function() end }:fit() end)
    raises("the third result of the loss function is a table",
      function() trainer { loss = function(m, x, y) return mse(m, x, y), nil, 1 end }:fit() end)
    local sums = { ["'loss' is taken, got it as a name"] = { loss = 1 }, ["got a number as a name"] = { 1 } }
    for pattern, more in pairs(sums) do
      raises(pattern, function()
        trainer { loss = function(m, x, y) return mse(m, x, y), 4, more end }:fit()
      end)
    end
    for _, count in ipairs { -1, 0 / 0, 1 / 0 } do
      raises("the count must be 0 or more, got", function()
        trainer { loss = function(m, x, y) return mse(m, x, y), count end }:fit()
      end)
    end
    raises("the function `train` must return an iterator, got nil", function()
      trainer { train = function() end }:fit()
    end)
    raises("the function `validation` must return an iterator, got nil", function()
      trainer { validation = function() end }:fit()
    end)
    raises("how many samples a batch has cannot be seen", function()
      local function loss(m) return m(tl.ones(1, 3)):sum() end
      trainer { train = function() return function() return 1 end end, loss = loss }:fit()
    end)
  end)
end)

describe("EMA", function()
  it("averages weights, and takes buffers as they are", function()
    local model = nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1))
    local w, mean = model:parameters()[1], model:buffers()[1]
    tl.no_grad(function() w:fill_(1) end)
    local ema = train.EMA(model, { decay = 0.75 })
    tl.no_grad(function() w:fill_(5) mean:fill_(3) end)
    ema:update()
    assert.equal(2, ema.weights["0.weight"]:item())
    ema:apply(function()
      assert.equal(2, w:item())
      assert.equal(3, mean:item())
    end)
    assert.equal(5, w:item())
    raises("oops", function() ema:apply(function() error "oops" end) end)
    assert.equal(5, w:item())

    local other = train.EMA(model, { decay = 0.75 })
    other:load_state_dict(ema:state_dict())
    assert.same({ 2, 1 }, { other.weights["0.weight"]:item(), other.updates })
    raises("takes what state_dict", ema.load_state_dict, ema, {})
    raises("the state has no tensor '", ema.load_state_dict, ema, { updates = 1, weights = {} })
  end)

  it("warms up", function()
    local model = nn.Linear(1, 1, { bias = false })
    local ema = train.EMA(model, { decay = 0.9, warmup = true })
    tl.no_grad(function() model.weight:fill_(11) ema.weights.weight:zero_() end)
    ema:update() -- decay 2/11
    assert.is_true(math.abs(ema.weights.weight:item() - 9) < 1e-5)
  end)

  it("has an evaluation of its own in the Trainer", function()
    local t = trainer { ema = 0.5, validation = data.DataLoader(samples(8), { batch_size = 3 }), epochs = 3 }
    t:fit()
    local means = t:evaluate()
    assert.are_not.equal(means.loss, means["ema/loss"])
    local averaged = t.ema:apply(t.evaluate, setmetatable({ ema = false }, { __index = t }))
    assert.equal(means["ema/loss"], averaged.loss)
  end)
end)

describe("loggers", function()
  it("CSV has a column for each name, also for one that comes later", function()
    local csv = train.CSV(folder)
    csv:log(1, { b = 2, a = 0.1 })
    csv:log(2, { a = 1 / 3, ['c,"d'] = 0 / 0 })
    csv:log(3, { b = math.huge })
    assert.equal('step,a,b,"c,""d"\n1,0.1,2,\n2,0.3333333333333333,,nan\n3,,inf,\n', read(folder))
    csv:close()
    local again = train.CSV(folder)
    again:rewind(2)
    again:log(5, { ['c,"d'] = 1, e = 2 })
    assert.equal('step,a,b,"c,""d",e\n1,0.1,2,,\n2,0.3333333333333333,,nan,\n5,,,1,2\n', read(folder))
    again:close()
    train.CSV(folder):log(1, { z = 1 })
    assert.equal("step,z\n1,1\n", read(folder))
  end)

  it("refuse what they could not give back", function()
    for _, log in ipairs { train.CSV(folder), train.JSONL(folder), train.Console() } do
      raises('the name "step" cannot be a column', log.log, log, 1, { step = 2 })
      raises("cannot be a column", log.log, log, 1, { ["a\nb"] = 2 })
      raises("'a' must be a number, got a string", log.log, log, 1, { a = "x" })
    end
  end)

  it("CSV and JSONL name what cannot be read", function()
    for _, class in ipairs { "CSV", "JSONL" } do
      local log = train[class]("/")
      raises("/ cannot be read: ", log.rewind, log, 1)
    end
  end)

  it("CSV and JSONL drop what was not whole, and rows of the same step that were written later", function()
    for _, class in ipairs { "CSV", "JSONL" } do
      os.remove(folder)
      local log = train[class](folder)
      log:rewind(4) -- there is nothing yet
      log:log(1, { a = 1 })
      log:log(2, { a = 2 })
      local wanted = read(folder)
      log:log(2, { a = 3 })
      log:log(3, { a = 4 })
      log:close()
      local file = io.open(folder, "ab")
      file:write('{"a":')
      file:close()
      local again = train[class](folder)
      again:rewind(2, 1)
      again:close()
      assert.equal(wanted, read(folder))
    end
  end)

  it("JSONL writes a line a row", function()
    local jsonl = train.JSONL(folder)
    jsonl:log(1, { b = 2, a = 0.1 })
    jsonl:log(2, { c = 0 / 0 })
    jsonl:close()
    assert.equal('{"a":0.1,"b":2,"step":1}\n{"c":"nan","step":2}\n', read(folder))
  end)

  it("refuse what is no row, and files of others", function()
    local file = io.open(folder, "w")
    file:write("x,y\n1,2\n")
    file:close()
    raises("has no column 'step' at the left", function() train.CSV(folder):rewind(1) end)
    raises("has a line that is not of this logger: x,y", function() train.JSONL(folder):rewind(1) end)
    raises("'a' must be a number, got a string", function() train.CSV(folder):log(1, { a = "b" }) end)
    raises("values are a table name %-> number, got nil", function() train.CSV(folder):log(1) end)
    raises("No such file", function() train.CSV("/nowhere/x"):log(1, { a = 1 }) end)
    raises("must be a path, got nil", train.CSV)
    raises("must be a path, got nil", train.JSONL)
  end)

  it("Console writes a line a row where there is no terminal", function()
    local console = train.Console { file = io.open(folder, "w") }
    console:start { total = 10 }
    for _ = 1, 5 do console:tick() end
    console:log(5, { lr = 0.001, epoch = 1, ["train/loss"] = 1 / 3 })
    console:write "note"
    console:close()
    console.file:close()
    assert.matches("^step 5/10  epoch 1  train/loss 0.33333  lr 0.001  %d+:00:0%d left\nnote\n$", read(folder))
  end)
end)

describe("a signal #once", function()
  local program = system.program()
  local script = debug.getinfo(1, "S").source:match("^@(.*)lua/[^/]*$") .. "train/signal.lua"

  -- The exit status as a shell sees it, and what was said.
  local function run(...)
    local command = ("'%s' '%s' %s"):format(program, script, table.concat({ folder, ... }, " "))
    local pipe = io.popen("exec 2>/dev/null; (" .. command .. " 2>&1); echo status $?")
    local text = pipe:read("*a")
    pipe:close()
    return tonumber(text:match("status (%d+)\n$")), text
  end

  local function checkpoint() return read(folder .. "/step-00000009.safetensors") end

  local function without_rates(text)
    return (text:gsub("[^\n]+", function(line) return (line:gsub("^(%d+,[^,]*,[^,]*,[^,]*),[^,]*", "%1")) end))
  end

  local whole, rows
  setup(function()
    folder = os.tmpname()
    os.remove(folder)
    assert.equal(0, (run("none", 15)))
    whole, rows = checkpoint(), without_rates(read(folder .. "/metrics.csv"))
    for name in pairs(system.entries(folder)) do os.remove(folder .. "/" .. name) end
    os.remove(folder)
  end)

  for _, where in ipairs { "step", "evaluation" } do
    for signal, status in pairs { [2] = 130, [15] = 143 } do
      local name = "%d in the middle of a %s is answered by a checkpoint, from which the run goes on"
      it(name:format(signal, where), function()
        local code, text = run(where, signal)
        assert.equal(status, code, text)
        assert.matches((signal == 2 and "Ctrl%-C" or "SIGTERM") .. " after step %d, saved in .*/step%-0000000%d", text)
        assert.is_nil(text:find("done", 1, true))
        assert.equal(0, (run("none", 15)))
        assert.is_true(whole == checkpoint())
        assert.equal(rows, without_rates(read(folder .. "/metrics.csv")))
      end)
    end
  end

  it("that comes twice kills", function()
    local code, text = run("step", 15, "twice")
    assert.equal(143, code)
    assert.is_nil(text:find("after step", 1, true))
    assert.is_nil(io.open(folder .. "/step-00000003.safetensors"))
  end)
end)

describe("docs/training.md #once", function()
  it("shows code that works", function()
    local blocks = {}
    for block in read("docs/training.md"):gmatch("\n```lua\n(.-)\n```") do blocks[#blocks + 1] = block end
    assert.equal(2, #blocks)
    for _ = 1, 2 do -- the second time from the checkpoints
      for i, block in ipairs(blocks) do
        local model = net()
        local optimizer = optim.SGD(model:parameters(), { lr = 0.1 })
        local set = data.TensorDataset(tl.randn(1300, 3, { device = "cpu" }), tl.zeros(1300, 1, { device = "cpu" }))
        local environment = {
          F = { cross_entropy = F.mse_loss }, model = model, optimizer = optimizer, data = data, train_set = set,
          test_set = set, scheduler = optim.lr_scheduler.StepLR(optimizer, 100), print = function() end,
          loader = data.DataLoader(set, { batch_size = 20 }), tl = tl,
        }
        local code = block:gsub('"runs/%a+', '"' .. folder .. i):gsub('resume = true', "%0, console = false")
        setfenv(assert(loadstring(code)), setmetatable(environment, { __index = _G }))()
      end
    end
    assert.equal("step,loss", read(folder .. "2/metrics.csv"):match("^[^\n]*"))
    for i = 1, 2 do
      for name in pairs(system.entries(folder .. i)) do os.remove(folder .. i .. "/" .. name) end
      os.remove(folder .. i)
    end
  end)
end)
