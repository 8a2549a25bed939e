-- lr_scheduler.lua: tl.optim.lr_scheduler: learning-rate schedules. The arithmetic is the engine's (engine/train); only
-- the functions that a user passes (LambdaLR, MultiplicativeLR, CyclicLR's scale_fn) are called here.
local base = require "tlua.base"
local optim = require "tlua.optim"

local ffi, C, check, fail = base.ffi, base.C, base.check, base.fail
local early = base.boolean

local lr_scheduler = {}

local Scheduler = {}
local metatable = { __index = Scheduler }

local doubles = ffi.typeof("double[?]")
local restarts = ffi.new("bool[1]")

-- ---- the user's functions ----

local function factors_of(self, argument, factors)
  for i = 1, #self.functions do
    local factor = self.functions[i](argument)
    if type(factor) ~= "number" then
      fail(("%s: the function of group %d must return a number, got %s"):format(self.name, i, type(factor)))
    end
    factors[i - 1] = factor
  end
end

-- Hands the factors of the coming step to every schedule that will need some.
local function prepare(self, restart)
  if self.functions then
    factors_of(self, C.tl_scheduler_argument(self.handle, restart), self.factors)
    check(C.tl_scheduler_set_factors(self.handle, #self.functions, self.factors))
  elseif self.kind == C.TL_SEQUENTIAL_LR then
    local i = C.tl_scheduler_next_part(self.handle, restart, restarts)
    prepare(self.parts[i + 1], restarts[0])
  elseif self.parts then
    for _, part in ipairs(self.parts) do prepare(part, restart) end
  end
end

-- ---- steps ----

local function warn(self)
  io.stderr:write("tlua: ", self.name, ": step() before the optimizer's first step(): the first learning rate of the ",
    "schedule is skipped\n")
end

local function number(op, value)
  if base.is_tensor(value) then
    check(C.tl_item(value, base.number))
    return base.number[0]
  end
  if type(value) ~= "number" then fail(("%s: the metric must be a number, got %s"):format(op, type(value))) end
  return value
end

--- One step: after the optimizer's. ReduceLROnPlateau takes the metric (a number or a one-element tensor),
--- CosineAnnealingWarmRestarts may be given an epoch (also a fraction).
function Scheduler:step(value)
  if self.kind == C.TL_PLATEAU_LR and value ~= nil then
    check(C.tl_scheduler_step_metric(self.handle, number(self.name, value)))
    return
  end
  if self.calls_lua then prepare(self, false) end
  early[0] = false
  if value == nil then check(C.tl_scheduler_step(self.handle, early))
  else check(C.tl_scheduler_step_to(self.handle, number(self.name, value), early)) end
  if early[0] then warn(self) end
end

local function list(values, n)
  local t = {}
  for i = 1, n do t[i] = values[i - 1] end
  return t
end

--- What the last step set: one learning rate a parameter group.
function Scheduler:get_last_lr()
  return list(C.tl_scheduler_last_lrs(self.handle), C.tl_scheduler_groups(self.handle))
end

-- ---- state ----

local fields = { "last_epoch", "step_count", "T_cur", "T_i", "best", "num_bad_epochs", "cooldown_counter" }

-- Fields that mean something to this kind; an infinite best (nothing seen yet) and nan are left out.
local function says(value) return value == value and value ~= math.huge and value ~= -math.huge end

--- What the schedule needs to go on; the options are not in it: they come from the construction.
function Scheduler:state_dict()
  local progress, n = C.tl_scheduler_progress(self.handle), C.tl_scheduler_groups(self.handle)
  local dict = { base_lrs = list(C.tl_scheduler_base_lrs(self.handle), n), last_lr = self:get_last_lr() }
  for _, name in ipairs(fields) do
    if says(progress[name]) then dict[name] = progress[name] end
  end
  if self.parts then
    dict.schedulers = {}
    for i, part in ipairs(self.parts) do dict.schedulers[i] = part:state_dict() end
  end
  return dict
end

local function check_state(self, dict)
  local n = C.tl_scheduler_groups(self.handle)
  if type(dict) ~= "table" or type(dict.last_epoch) ~= "number" or type(dict.step_count) ~= "number" then
    fail(self.name .. ": a schedule's state is a table with last_epoch and step_count")
  end
  for name, value in pairs(dict) do
    if name == "base_lrs" or name == "last_lr" then
      if type(value) ~= "table" or #value ~= n then fail(("%s: %s must have %d values"):format(self.name, name, n)) end
    elseif name ~= "schedulers" and type(value) ~= "number" then
      fail(("%s: '%s' must be a number, got %s"):format(self.name, tostring(name), type(value)))
    end
  end
  local parts = dict.schedulers or {}
  if #parts ~= #(self.parts or {}) then
    fail(("%s: the state has %d schedules, this one %d"):format(self.name, #parts, #(self.parts or {})))
  end
  for i, part in ipairs(parts) do check_state(self.parts[i], part) end
end

local function restore(self, dict)
  local progress = C.tl_scheduler_progress(self.handle)
  for _, name in ipairs(fields) do
    if dict[name] then progress[name] = dict[name] end
  end
  for i, lr in ipairs(dict.base_lrs or {}) do C.tl_scheduler_base_lrs(self.handle)[i - 1] = lr end
  for i, lr in ipairs(dict.last_lr or {}) do C.tl_scheduler_last_lrs(self.handle)[i - 1] = lr end
  for i, part in ipairs(dict.schedulers or {}) do restore(self.parts[i], part) end
end

--- Goes on where state_dict() was taken. The optimizer's learning rates are in the optimizer's own state.
function Scheduler:load_state_dict(dict)
  check_state(self, dict)
  restore(self, dict)
end

-- ---- construction ----

local per_group = { base_lr = true, max_lr = true, min_lr = true, base_momentum = true, max_momentum = true }
local booleans = { cycle_momentum = true, three_phase = true }
local choices = {
  mode = { triangular = 0, triangular2 = 1, exp_range = 2, min = 0, max = 1 },
  threshold_mode = { rel = 0, abs = 1 },
  scale_mode = { cycle = 0, iterations = 1 },
  anneal_strategy = { cos = false, linear = true },
}
local field_of = { scale_mode = "threshold_mode", anneal_strategy = "linear" }

-- One value for each group of the optimizer.
local function spread(op, optimizer, name, value)
  local n = #optimizer.param_groups
  local array = doubles(n)
  if type(value) == "table" and #value ~= n then
    fail(("%s: %s has %d values, the optimizer %d groups"):format(op, name, #value, n))
  end
  for i = 1, n do
    local v = value
    if type(value) == "table" then v = value[i] end
    if type(v) ~= "number" then fail(("%s: %s must be a number or a list of numbers"):format(op, name)) end
    array[i - 1] = v
  end
  return array
end

local function functions_of(op, optimizer, name, value)
  local n = #optimizer.param_groups
  local functions = {}
  for i = 1, n do
    functions[i] = value
    if type(value) == "table" then functions[i] = value[i] end
    if type(functions[i]) ~= "function" then
      fail(("%s: %s must be a function, or a list of one for each of the %d groups"):format(op, name, n))
    end
  end
  return functions
end

local function is_options(x)
  if type(x) ~= "table" or getmetatable(x) == metatable then return false end
  local key = next(x)
  return key == nil or type(key) == "string"
end

-- (opt, 30, {gamma=.1}) and (opt, {step_size=30, gamma=.1}) say the same.
local function gather(class, ...)
  local given, n = {}, select("#", ...)
  for i = 1, n do
    local value = select(i, ...)
    if i == n and is_options(value) then
      for key, v in pairs(value) do given[key] = v end
    elseif value ~= nil then
      if not class.positional[i] then fail(("%s: too many arguments"):format(class.name)) end
      given[class.positional[i]] = value
    end
  end
  return base.options(class.name, given, class.options)
end

local function pick(op, name, value)
  local choice = choices[name][value]
  if choice == nil then fail(("%s: there is no %s '%s'"):format(op, name, tostring(value))) end
  return choice
end

-- Writes an option into the engine's struct; what it points to is kept in `alive` during the call.
local function put(class, optimizer, c, name, value, alive)
  local op = class.name
  if per_group[name] then
    alive[name] = spread(op, optimizer, name, value)
    c[name] = alive[name]
  elseif choices[name] then
    c[field_of[name] or name] = pick(op, name, value)
  elseif name == "milestones" then
    if type(value) ~= "table" then fail(op .. ": milestones are a list of numbers") end
    alive[name] = doubles(#value, value)
    c.milestones, c.milestone_count = alive[name], #value
  else
    local kind = booleans[name] and "boolean" or "number"
    if type(value) ~= kind then fail(("%s: option '%s' must be a %s, got %s"):format(op, name, kind, type(value))) end
    c[name] = value
  end
end

local function object(class, optimizer, handle, more)
  more.kind, more.name, more.optimizer = class.kind, class.name, optimizer
  more.handle = ffi.gc(handle, C.tl_scheduler_free)
  return setmetatable(more, metatable)
end

local function new(class, optimizer, ...)
  local op = class.name
  if not optim.is_optimizer(optimizer) then fail(op .. ": argument 1 must be an optimizer, got " .. type(optimizer)) end
  local options = gather(class, ...)
  for name, value in pairs(class.defaults or {}) do
    if options[name] == nil then options[name] = value end
  end
  if class.complete then class.complete(options) end
  local c, alive = ffi.new("tl_schedule_options"), {}
  check(C.tl_schedule_defaults(class.kind, c))
  local self = { name = op }
  for name, value in pairs(options) do
    if name == "lr_lambda" or name == "scale_fn" then self.functions = functions_of(op, optimizer, name, value)
    else put(class, optimizer, c, name, value, alive) end
  end
  if class.needs_function and not self.functions then fail(op .. ": lr_lambda is missing") end
  if self.functions then
    self.factors, self.calls_lua = doubles(#self.functions), true
    if options.scale_fn then c.mode = 3 end
    if class.kind ~= C.TL_MULTIPLICATIVE_LR then
      local first = class.kind == C.TL_LAMBDA_LR and c.last_epoch + 1 or c.threshold_mode == 0 and 1 or 0
      factors_of(self, first, self.factors)
    end
    c.factors = self.factors
  end
  local out = ffi.new("tl_scheduler *[1]")
  check(C.tl_scheduler_new(class.kind, optimizer.handle, c, out))
  return object(class, optimizer, out[0], self)
end

local optional = base.optional

local function define(kind, positional, options, more)
  options.last_epoch = optional
  local class = more or {}
  class.kind, class.positional, class.options = kind, positional, options
  class.name = ffi.string(C.tl_schedule_name(kind))
  lr_scheduler[class.name] = function(optimizer, ...) return new(class, optimizer, ...) end
end

define(C.TL_LAMBDA_LR, { "lr_lambda" }, { lr_lambda = optional }, { needs_function = true })
define(C.TL_MULTIPLICATIVE_LR, { "lr_lambda" }, { lr_lambda = optional }, { needs_function = true })
define(C.TL_STEP_LR, { "step_size", "gamma" }, { step_size = optional, gamma = optional })
define(C.TL_MULTI_STEP_LR, { "milestones", "gamma" }, { milestones = optional, gamma = optional })
define(C.TL_CONSTANT_LR, { "factor", "total_iters" }, { factor = optional, total_iters = optional })
define(C.TL_LINEAR_LR, { "start_factor", "end_factor", "total_iters" },
  { start_factor = optional, end_factor = optional, total_iters = optional })
define(C.TL_EXPONENTIAL_LR, { "gamma" }, { gamma = optional })
define(C.TL_POLYNOMIAL_LR, { "total_iters", "power" }, { total_iters = optional, power = optional })
define(C.TL_COSINE_LR, { "T_max", "eta_min" }, { T_max = optional, eta_min = optional })
define(C.TL_COSINE_RESTARTS_LR, { "T_0", "T_mult", "eta_min" },
  { T_0 = optional, T_mult = optional, eta_min = optional })
define(C.TL_ADAM_LR, { "lr_decay" }, { lr_decay = optional })
define(C.TL_CYCLIC_LR, { "base_lr", "max_lr" }, {
  base_lr = optional, max_lr = optional, step_size_up = optional, step_size_down = optional, mode = optional,
  gamma = optional, scale_fn = optional, scale_mode = optional, cycle_momentum = optional, base_momentum = optional,
  max_momentum = optional,
}, { defaults = { base_momentum = 0.8, max_momentum = 0.9 } })
define(C.TL_ONE_CYCLE_LR, { "max_lr" }, {
  max_lr = optional, total_steps = optional, epochs = optional, steps_per_epoch = optional, pct_start = optional,
  anneal_strategy = optional, cycle_momentum = optional, base_momentum = optional, max_momentum = optional,
  div_factor = optional, final_div_factor = optional, three_phase = optional,
}, {
  defaults = { base_momentum = 0.85, max_momentum = 0.95 },
  complete = function(options)
    local epochs, steps = options.epochs, options.steps_per_epoch
    options.epochs, options.steps_per_epoch = nil, nil
    if options.total_steps or (epochs == nil and steps == nil) then return end
    if type(epochs) ~= "number" or type(steps) ~= "number" then
      fail("OneCycleLR: epochs and steps_per_epoch go together, or give total_steps")
    end
    options.total_steps = epochs * steps
  end,
})
define(C.TL_PLATEAU_LR, {}, {
  mode = optional, factor = optional, patience = optional, threshold = optional, threshold_mode = optional,
  cooldown = optional, min_lr = optional, eps = optional,
}, { defaults = { min_lr = 0 } })

-- ---- schedules of schedules ----

local function parts_of(op, parts)
  if type(parts) ~= "table" or #parts == 0 then fail(op .. ": the schedules are a list of at least one") end
  local handles, calls_lua = ffi.new("tl_scheduler *[?]", #parts), false
  for i, part in ipairs(parts) do
    if getmetatable(part) ~= metatable then
      fail(("%s: schedule %d must be a schedule, got %s"):format(op, i, type(part)))
    end
    handles[i - 1] = part.handle
    calls_lua = calls_lua or part.calls_lua
  end
  return handles, calls_lua
end

local sequential = { kind = C.TL_SEQUENTIAL_LR, name = "SequentialLR", positional = { "schedulers", "milestones" },
  options = { schedulers = optional, milestones = optional } }

-- The initial step of a sequence's first part may need a function's value.
local function prepare_first(parts, milestones)
  local first = 1
  while milestones[first] == 0 do first = first + 1 end
  if parts[first] and parts[first].calls_lua then prepare(parts[first], true) end
end

--- SequentialLR(opt, {a, b, c}, {10, 20}): a until step 10, b until 20, then c.
function lr_scheduler.SequentialLR(optimizer, ...)
  local op = sequential.name
  if not optim.is_optimizer(optimizer) then fail(op .. ": argument 1 must be an optimizer, got " .. type(optimizer)) end
  local options = gather(sequential, ...)
  local parts, milestones = options.schedulers, options.milestones or {}
  local handles, calls_lua = parts_of(op, parts)
  if type(milestones) ~= "table" or #milestones ~= #parts - 1 then
    fail(("%s: %d schedules need %d milestones, got %s"):format(op, #parts, #parts - 1,
      type(milestones) == "table" and tostring(#milestones) or type(milestones)))
  end
  prepare_first(parts, milestones)
  local out = ffi.new("tl_scheduler *[1]")
  check(C.tl_scheduler_sequence(optimizer.handle, #parts, handles, doubles(#milestones, milestones), out))
  return object(sequential, optimizer, out[0], { parts = parts, calls_lua = calls_lua })
end

local chained = { kind = C.TL_CHAINED_LR, name = "ChainedScheduler" }

--- ChainedScheduler{a, b}: both at every step.
function lr_scheduler.ChainedScheduler(parts)
  local handles, calls_lua = parts_of(chained.name, parts)
  local out = ffi.new("tl_scheduler *[1]")
  check(C.tl_scheduler_chain(#parts, handles, out))
  return object(chained, parts[1].optimizer, out[0], { parts = parts, calls_lua = calls_lua })
end

return base.namespace(lr_scheduler, "optim.lr_scheduler")
