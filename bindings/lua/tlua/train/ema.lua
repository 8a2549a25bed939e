-- ema.lua: an exponential moving average of a model's weights: average = decay * average + (1 - decay) * weight.
local base = require "tlua.base"
local tl, fail = base.tl, base.fail

local EMA = {}
EMA.__index = EMA

-- f(...) without recording.
local no_grad = tl.no_grad

-- name -> tensor of all parameters and buffers; what is shared comes once.
local function tensors_of(model)
  local list = {}
  for name, p in model:named_parameters() do list[#list + 1] = { name = name, tensor = p.data, averaged = true } end
  for name, b in model:named_buffers() do list[#list + 1] = { name = name, tensor = b } end
  return list
end

local function update(self)
  self.updates = self.updates + 1
  local decay = self.decay
  if self.warmup then decay = math.min(decay, (1 + self.updates) / (10 + self.updates)) end
  for _, entry in ipairs(tensors_of(self.model)) do
    local average = self.weights[entry.name]
    if entry.averaged then average:mul_(decay):add_(entry.tensor, { alpha = 1 - decay })
    else average:copy_(entry.tensor) end
  end
end

--- ema:update(): after each step of the optimizer. Buffers are taken as they are.
function EMA:update() no_grad(update, self) end

local function exchange(self)
  for _, entry in ipairs(tensors_of(self.model)) do
    local average = self.weights[entry.name]
    local former = entry.tensor:clone()
    entry.tensor:copy_(average)
    average:copy_(former)
  end
end

--- ema:apply(f, ...): f(...) while the model has the averaged weights; its own come back afterwards, also after errors.
function EMA:apply(f, ...)
  if type(f) ~= "function" and type(f) ~= "table" then
    fail("EMA:apply: argument 1 must be a function, got " .. base.kind(f))
  end
  no_grad(exchange, self)
  local function restore(ok, ...)
    no_grad(exchange, self)
    if not ok then error((...), 0) end
    return ...
  end
  return restore(pcall(f, ...))
end

--- {updates =, weights = {name = tensor}}: the tensors are the average's own, not copies.
function EMA:state_dict() return { updates = self.updates, weights = self.weights } end

function EMA:load_state_dict(state)
  if type(state) ~= "table" or type(state.updates) ~= "number" or type(state.weights) ~= "table" then
    fail("EMA: load_state_dict takes what state_dict() gave")
  end
  for name, average in pairs(self.weights) do
    local t = state.weights[name]
    if not base.is_tensor(t) then fail(("EMA: the state has no tensor '%s'"):format(name)) end
    if table.concat(t.shape, "x") ~= table.concat(average.shape, "x") then
      fail(("EMA: '%s' is %s here and %s in the state"):format(name, table.concat(average.shape, "x"),
        table.concat(t.shape, "x")))
    end
  end
  no_grad(function()
    for name, average in pairs(self.weights) do average:copy_(state.weights[name]) end
  end)
  self.updates = state.updates
end

--- EMA(model, {decay=0.999, warmup=false}): begins as the weights of now. warmup: the first updates weigh more: the
--- decay of update t is at most (1 + t) / (10 + t).
local function new(model, options)
  if type(model) ~= "table" or not model.named_parameters then
    fail("EMA: argument 1 must be a module, got " .. base.kind(model))
  end
  local o = base.options("EMA", options, { decay = 0.999, warmup = false })
  if not (o.decay >= 0 and o.decay < 1) then fail(("EMA: decay must be in [0, 1), got %g"):format(o.decay)) end
  local self = setmetatable({ model = model, decay = o.decay, warmup = o.warmup, updates = 0, weights = {} }, EMA)
  no_grad(function()
    for _, entry in ipairs(tensors_of(model)) do self.weights[entry.name] = entry.tensor:clone() end
  end)
  return self
end

return { EMA = new, is_ema = function(x) return getmetatable(x) == EMA end }
