-- options.lua: the options of Trainer: checked, completed, and made into the parts it works with.
local base = require "tlua.base"
local checkpoint = require "tlua.train.checkpoint"
local tl, fail = base.tl, base.fail

local options = {}

local optional = base.optional
local defaults = {
  model = optional, optimizer = optional, loss = optional, train = optional, validation = optional,
  scheduler = optional, scheduler_every = "step", scaler = optional, amp = optional, ema = optional, clip = optional,
  accumulate = 1, epochs = optional, steps = optional, evaluate_every = optional, log_every = 50, save_every = optional,
  monitor = optional, mode = "min", early_stopping = optional, directory = optional, keep_last = 2, keep_best = 1,
  resume = false, seed = optional, loggers = optional, console = true, config = optional, state = optional,
  on_step = optional, on_evaluate = optional, unit = optional,
}

-- ---- checks ----

local function is_module(x) return type(x) == "table" and type(x.named_parameters) == "function" end

local function is_callable(x)
  local meta = type(x) == "table" and getmetatable(x)
  return type(x) == "function" or (type(meta) == "table" and meta.__call ~= nil)
end

local function check_count(o, name, least)
  local value = o[name]
  if value == nil then return end
  base.check_integer(value, "Trainer", name)
  if value < least then fail(("Trainer: %s must be at least %d, got %d"):format(name, least, value)) end
end

local function check_object(o, name, method)
  local value = o[name]
  if type(value) ~= "table" or type(value[method]) ~= "function" then
    fail(("Trainer: %s must have the method %s(), got %s"):format(name, method, base.kind(value)))
  end
end

local function check_batches(o, name)
  if not is_callable(o[name]) then
    fail(("Trainer: %s must be a DataLoader, or a function that gives an iterator, got %s"):format(name,
      base.kind(o[name])))
  end
end

-- What a run that goes on could not take back is found before the run, not after it.
local function check_state(state)
  if state == nil then return end
  if type(state) ~= "table" then fail("Trainer: state is a table name -> object, got " .. base.kind(state)) end
  for name, value in pairs(state) do
    if type(name) ~= "string" then fail("Trainer: names in state are strings, got " .. base.kind(name)) end
    if name == "ranks" or name == "checkpoints" or name == "rng" then
      fail(("Trainer: the name '%s' in state is taken"):format(name))
    end
    if not checkpoint.takes_state(value) then
      fail(("Trainer: '%s' in state must have state_dict() and load_state_dict(), or be a generator, got %s"):format(
        name, base.kind(value)))
    end
  end
end

local function check(o)
  if not is_module(o.model) then fail("Trainer: model must be a module, got " .. base.kind(o.model)) end
  check_object(o, "optimizer", "step")
  if not is_callable(o.loss) then
    fail("Trainer: loss must be a function(model, batch...), got " .. base.kind(o.loss))
  end
  check_batches(o, "train")
  if o.validation ~= nil then check_batches(o, "validation") end
  if o.scheduler ~= nil then check_object(o, "scheduler", "get_last_lr") end
  if o.scaler then check_object(o, "scaler", "unscale_") end
  if o.scheduler_every ~= "step" and o.scheduler_every ~= "epoch" then
    fail(('Trainer: scheduler_every is "step" or "epoch", got %q'):format(o.scheduler_every))
  end
  if o.mode ~= "min" and o.mode ~= "max" then fail(('Trainer: mode is "min" or "max", got %q'):format(o.mode)) end
  if o.epochs == nil and o.steps == nil then fail("Trainer: epochs or steps must say when training ends") end
  for _, name in ipairs { "epochs", "steps" } do check_count(o, name, 0) end
  for _, name in ipairs { "accumulate", "evaluate_every", "log_every", "save_every" } do check_count(o, name, 1) end
  if o.clip ~= nil then base.check_number(o.clip, "Trainer", "clip") end
  if o.seed ~= nil then base.check_integer(o.seed, "Trainer", "seed") end
  check_state(o.state)
  if o.config ~= nil and type(o.config) ~= "string" then
    fail("Trainer: config must be a string, got " .. base.kind(o.config))
  end
  if o.unit ~= nil and type(o.unit) ~= "string" then
    fail("Trainer: unit must be a string, got " .. base.kind(o.unit))
  end
  for _, name in ipairs { "on_step", "on_evaluate" } do
    if o[name] ~= nil and not is_callable(o[name]) then
      fail(("Trainer: %s must be a function, got %s"):format(name, base.kind(o[name])))
    end
  end
  if not o.validation then
    for _, name in ipairs { "evaluate_every", "early_stopping", "monitor" } do
      if o[name] ~= nil then fail(("Trainer: %s needs validation"):format(name)) end
    end
  end
  if o.resume and not o.directory then fail("Trainer: resume needs the directory with the checkpoints") end
  if o.save_every and not o.directory then fail("Trainer: save_every needs a directory") end
end

-- ---- parts ----

local function parallel(t, model)
  t.ranks = checkpoint.group()
  local wrapped = type(model.no_sync) == "function" and is_module(model.module)
  if t.ranks and not wrapped then
    model, wrapped = tl.nn.parallel.DistributedDataParallel(model), true
  end
  t.model, t.ddp = model, wrapped and model or nil
  t.module = wrapped and model.module or model
end

local function precision(t, amp, scaler)
  if amp == nil then
    t.scaler = scaler or nil
    return
  end
  if type(amp) == "string" then amp = { dtype = amp } end
  local a = base.options("Trainer: amp", amp, { dtype = "bfloat16", device = optional })
  t.amp = { dtype = a.dtype, device = a.device or t.device }
  base.dtype(a.dtype, "Trainer: amp")
  if scaler == nil and base.dtype(a.dtype, "Trainer") == base.dtype("float16", "Trainer") then
    scaler = tl.amp.GradScaler {}
  end
  t.scaler = scaler or nil
end

local function average(t, ema)
  if ema == nil then return end
  local module = require "tlua.train.ema"
  if module.is_ema(ema) then t.ema = ema return end
  if type(ema) == "number" then ema = { decay = ema } end
  t.ema = module.EMA(t.module, ema)
end

local files = { csv = "metrics.csv", jsonl = "metrics.jsonl", tensorboard = "" }
local classes = { csv = "CSV", jsonl = "JSONL", tensorboard = "TensorBoard" }

local function logger_of(o, logger)
  if type(logger) ~= "string" then
    if type(logger) ~= "table" or type(logger.log) ~= "function" then
      fail("Trainer: a logger is a table with the method log(step, values), got " .. base.kind(logger))
    end
    return logger
  end
  if not classes[logger] then
    fail(("Trainer: there is no logger '%s'%s"):format(logger, base.suggestion(logger, classes)))
  end
  if not o.directory then fail(("Trainer: the logger '%s' needs a directory"):format(logger)) end
  return tl.train[classes[logger]](o.directory .. "/" .. files[logger])
end

-- Rank 0 logs.
local function loggers(t, o)
  t.loggers = {}
  if o.loggers ~= nil and type(o.loggers) ~= "table" then
    fail("Trainer: loggers are a list, got " .. base.kind(o.loggers))
  end
  if checkpoint.rank() ~= 0 then return end
  for i, logger in ipairs(o.loggers or {}) do t.loggers[i] = logger_of(o, logger) end
  if o.console then
    t.console = tl.train.Console()
    t.loggers[#t.loggers + 1] = t.console
  end
  if o.config == nil then return end
  for _, logger in ipairs(t.loggers) do
    if logger.text then logger:text("config", o.config) end
  end
end

local function stopping(t, o)
  t.monitor, t.mode, t.min_delta = o.monitor or (o.validation and "validation/loss" or nil), o.mode, 0
  local early = o.early_stopping
  if early == nil then return end
  if type(early) == "number" then early = { patience = early } end
  local e = base.options("Trainer: early_stopping", early, { patience = 3, min_delta = 0 })
  base.check_integer(e.patience, "Trainer", "patience")
  if e.patience < 1 then fail(("Trainer: patience must be at least 1, got %d"):format(e.patience)) end
  t.patience, t.min_delta = e.patience, e.min_delta
end

-- How many steps there will be; nil: nobody knows.
local function total_of(t)
  if t.epochs == math.huge or type(t.train) ~= "table" or type(t.train.size) ~= "function" then
    return t.steps < math.huge and t.steps or nil
  end
  return math.min(t.steps, t.epochs * math.ceil(t.train:size() / t.accumulate))
end

--- The Trainer's fields.
function options.read(given)
  if type(given) ~= "table" then fail("Trainer: options are a table, got " .. base.kind(given)) end
  local o = base.options("Trainer", given, defaults)
  check(o)
  local t = {
    optimizer = o.optimizer, loss = o.loss, train = o.train, validation = o.validation, scheduler = o.scheduler,
    scheduler_every = o.scheduler_every, plateau = o.scheduler and o.scheduler.name == "ReduceLROnPlateau",
    accumulate = o.accumulate, clip = o.clip, epochs = o.epochs or math.huge, steps = o.steps or math.huge,
    evaluate_every = o.evaluate_every, log_every = o.log_every, save_every = o.save_every, resume = o.resume,
    seed = o.seed, state = o.state or {}, on_step = o.on_step, on_evaluate = o.on_evaluate, unit = o.unit,
  }
  parallel(t, o.model)
  t.parameters = t.module:parameters()
  if #t.parameters == 0 then fail("Trainer: the model has no parameters") end
  t.device = t.parameters[1].device
  precision(t, o.amp, o.scaler)
  average(t, o.ema)
  stopping(t, o)
  if t.plateau and not t.validation then fail("Trainer: ReduceLROnPlateau needs validation") end
  if o.directory then
    t.checkpoints = tl.train.Checkpoints(o.directory,
      { keep_last = o.keep_last, keep_best = o.keep_best, mode = o.mode })
  end
  loggers(t, o)
  function t.total_steps() return total_of(t) end
  return t
end

return options
