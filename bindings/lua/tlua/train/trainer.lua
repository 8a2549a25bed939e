-- trainer.lua: Trainer: the training loop with everything around it: one step is step.lua's, the rest of the parts
-- (Checkpoints, EMA, the loggers) serve any loop.
--
-- What happens after a step, in this order: schedule, on_step, evaluation, log, early stopping, checkpoint. A signal is
-- looked at before evaluation: what is due then is kept as `pending` in the checkpoint, for the run that goes on.
local base = require "tlua.base"
local system = require "tlua.system"
local step = require "tlua.train.step"
local evaluate = require "tlua.train.evaluate"
local options = require "tlua.train.options"
local tl, fail = base.tl, base.fail

local Trainer = {}
Trainer.__index = Trainer

-- ---- state ----

-- What a checkpoint holds besides the objects. name -> the value of a run that begins.
local counters = { step = 0, epoch = 1, batch = 0, ended = false, evaluated = 0, bad = 0, rows = 0 }
local optional_counters = { "best", "best_step", "pending", "grad_norm" }

-- A part of the trainer as an object with a state of its own.
local function progress_of(t)
  return {
    state_dict = function()
      local state = { sums = step.read(t.sums) }
      if base.is_tensor(t.grad_norm) then t.grad_norm = t.grad_norm:item() end
      for name in pairs(counters) do state[name] = t[name] end
      for _, name in ipairs(optional_counters) do state[name] = t[name] end
      return state
    end,
    load_state_dict = function(_, state)
      for name in pairs(counters) do t[name] = state[name] end
      for _, name in ipairs(optional_counters) do t[name] = state[name] end
      t.sums = state.sums
    end,
  }
end

local function objects_of(t)
  local objects = {
    model = t.module, optimizer = t.optimizer, scheduler = t.scheduler, scaler = t.scaler, ema = t.ema,
    trainer = progress_of(t),
  }
  if type(t.train) == "table" and type(t.train.state_dict) == "function" then objects.train = t.train end
  for name, object in pairs(t.state) do
    if objects[name] then fail(("Trainer: the name '%s' in state is taken"):format(name)) end
    objects[name] = object
  end
  return objects
end

local function save(t, metric)
  if not t.checkpoints then return end
  t.checkpoints:save(t.step, objects_of(t), metric)
  t.saved = true
end

-- Takes up the newest checkpoint, if there is one.
local function resume(t)
  local newest = t.checkpoints and t.checkpoints:newest()
  if newest and not t.resume then
    local text = "Trainer: %s has checkpoints already: resume=true goes on from the newest, or choose another directory"
    fail(text:format(t.checkpoints.directory))
  end
  if newest then
    t.checkpoints:load(objects_of(t))
    t.saved = true
    for _, logger in ipairs(t.loggers) do
      if logger.rewind then logger:rewind(t.step, t.rows) end
    end
  elseif t.seed then
    tl.manual_seed(t.seed + (t.ranks and t.ranks.rank() or 0)) -- ranks drop other elements
  end
end

-- ---- logging ----

-- Of what this process has counted since the last row.
local function add_rate(t, values)
  local now = system.now()
  if t.counted > 0 and now > t.since then
    values["train/" .. t.unit .. "_per_second"] = t.counted / (now - t.since)
  end
  t.counted, t.since = 0, now
end

-- A row for the loggers: what was summed since the last one, and `more`. Returns it.
local function log(t, more)
  local values = { epoch = t.epoch }
  for name, value in pairs(step.means(t.sums, t.ranks)) do values["train/" .. name] = value end
  t.sums = step.no_sums()
  for i, group in ipairs(t.optimizer.param_groups) do values[i == 1 and "lr" or "lr/" .. i] = group.lr end
  if t.scaler then values.loss_scale = t.scaler:get_scale() end
  if t.grad_norm then values.grad_norm = base.is_tensor(t.grad_norm) and t.grad_norm:item() or t.grad_norm end
  t.grad_norm = nil -- a row tells of the steps since the last one
  add_rate(t, values)
  for name, value in pairs(more or {}) do values[name] = value end
  for _, logger in ipairs(t.loggers) do logger:log(t.step, values) end
  t.rows, t.saved = t.rows + 1, false
  return values
end

-- ---- after a step, after an epoch ----

local function better(t, metric)
  if t.best == nil then return metric == metric end
  if t.mode == "min" then return metric < t.best - t.min_delta end
  return metric > t.best + t.min_delta
end

-- Keeps the best metric, and decides whether there is hope.
local function judge(t, values)
  local metric = values[t.monitor]
  if metric == nil then
    local names = {}
    for name in pairs(values) do names[#names + 1] = name end
    table.sort(names)
    fail(("Trainer: there is no metric '%s' to monitor, there are %s"):format(t.monitor, table.concat(names, ", ")))
  end
  if better(t, metric) then t.best, t.best_step, t.bad = metric, t.step, 0
  else t.bad = t.bad + 1 end
  if t.plateau then t.scheduler:step(metric) end
  return metric
end

local function every(n, value) return n ~= nil and value % n == 0 end

-- What is due: "step" after a step, "epoch" at the end of one, "end" of training.
local function due(t, moment)
  if moment == "step" then
    return every(t.evaluate_every, t.step), every(t.log_every, t.step), every(t.save_every, t.step)
  elseif moment == "epoch" then
    return t.evaluate_every == nil, false, t.save_every == nil
  end
  return true, t.sums.count > 0, false
end

-- Stops here; the run that goes on does what is due.
local function interrupt(t, moment)
  t.pending = moment
  save(t)
  t.pending = nil
end

local function finish(t, moment)
  if not t.ranks then t.signal = t.signal or t.poll_signal() end
  if t.signal then return interrupt(t, moment) end
  local evaluating, logging, saving = due(t, moment)
  local values, metric
  if evaluating and t.validation and t.evaluated < t.step then
    local means = evaluate(t, t.validation)
    if not means then
      t.signal = t.poll_signal()
      return interrupt(t, moment)
    end
    values = {}
    for name, value in pairs(means) do values["validation/" .. name] = value end
    t.evaluated, t.saved = t.step, false
    if t.on_evaluate then t.on_evaluate(t, values) end
  end
  if logging or values then
    local row = log(t, values)
    if values then metric = judge(t, row) end
  end
  if moment == "end" then saving = not t.saved end
  if saving or (t.checkpoints and t.checkpoints:wants(metric)) then save(t, metric) end
end

local function has_ended(t)
  return t.signal ~= nil or t.step >= t.steps or t.epoch > t.epochs or (t.ended and t.epoch == t.epochs)
    or (t.patience ~= nil and t.bad >= t.patience)
end

-- ---- an epoch ----

-- next_batch() and is_last() of the epoch, or of what is left of it.
local function batches_of(t)
  local train, iterator, state, control = t.train
  if type(train) == "function" then
    iterator, state, control = train(t.epoch, t.batch)
    step.check_iterator(iterator, "train")
  else
    local sampler = train.sampler
    if t.batch == 0 and type(sampler) == "table" and sampler.set_epoch then sampler:set_epoch(t.epoch) end
    iterator = train
  end
  local size = type(train) == "table" and type(train.size) == "function" and train:size() or nil
  local function pack(...) return { n = select("#", ...), ... } end
  local function next_batch()
    local batch = pack(iterator(state, control))
    control = batch[1]
    if control == nil then return nil end
    t.batch = t.batch + 1
    return batch
  end
  return next_batch, function() return size ~= nil and t.batch == size end
end

local function end_epoch(t)
  t.ended, t.batch, t.saved = true, 0, false
  if t.scheduler and t.scheduler_every == "epoch" and not t.plateau then t.scheduler:step() end
  finish(t, "epoch")
end

local function run_epoch(t)
  if t.ended then t.epoch, t.ended = t.epoch + 1, false end
  local next_batch, is_last = batches_of(t)
  while not has_ended(t) do
    base.poll()
    if not step.run(t, next_batch, is_last) then
      if t.batch == 0 then fail("Trainer: `train` gave no batch") end
      return end_epoch(t)
    end
    t.step, t.rows, t.saved = t.step + 1, 0, false
    if t.scheduler and t.scheduler_every == "step" and not t.plateau then t.scheduler:step() end
    if t.console then t.console:tick() end
    if t.on_step then t.on_step(t) end
    finish(t, "step")
  end
end

-- ---- the whole ----

local function run(t)
  local pending = t.pending
  t.pending = nil
  if not t.module.training then t.module:train() end
  if pending == "step" or pending == "epoch" then finish(t, pending) end
  while not has_ended(t) do run_epoch(t) end
  if not t.signal then finish(t, "end") end
  if type(t.train) == "table" and t.train.close then t.train:close() end
end

local signal_names = { [2] = "Ctrl-C", [15] = "SIGTERM" }

-- After a signal: the program ends as the signal asks, but in order.
local function leave(t)
  local where = t.checkpoints and ", saved in " .. t.checkpoints:path(t.step) or ""
  if not t.ranks or t.ranks.rank() == 0 then
    io.stderr:write(("tlua: %s after step %d%s\n"):format(signal_names[t.signal], t.step, where))
  end
  if t.ranks then t.ranks.destroy() end
  if t.signal == 2 then error(base.interrupted, 0) end
  io.stdout:flush()
  os.exit(128 + t.signal)
end

--- Trains until `steps`, `epochs` or early stopping. Returns {step=, epoch=, best=, best_step=, stopped_early=}.
function Trainer:fit()
  local native = require "tlua.native"
  resume(self)
  self.counted, self.since = 0, system.now()
  if self.console then self.console:start { done = self.step, total = self.total_steps() } end
  local armed = native.defer()
  self.poll_signal = armed and native.signalled or function() end
  local ok, message = pcall(run, self)
  for _, logger in ipairs(self.loggers) do
    if logger.close then logger:close() end
  end
  if armed then native.disarm() end
  if not ok then error(message, 0) end
  if self.signal then leave(self) end
  return {
    step = self.step, epoch = self.epoch, best = self.best, best_step = self.best_step,
    stopped_early = self.patience ~= nil and self.bad >= self.patience,
  }
end

--- The mean loss, and what else the loss function sums, over `batches` (the option validation): {loss=, ...}; with an
--- average of the weights its values too, as "ema/loss".
function Trainer:evaluate(batches)
  batches = batches or self.validation
  if batches == nil then fail("Trainer: there is nothing to evaluate on: give batches, or the option validation") end
  self.poll_signal = function() end
  return evaluate(self, batches)
end

--- Trainer{model=, optimizer=, loss=, train=, ...}: the options are checked, nothing runs before fit().
local function new(given)
  local t = options.read(given)
  t.sums = step.no_sums()
  for name, value in pairs(counters) do t[name] = value end
  return setmetatable(t, Trainer)
end

return { Trainer = new }
