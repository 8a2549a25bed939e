-- step.lua: one step of the optimizer over one or several micro-batches, with mixed precision, clipping and ranks.
--
-- The gradient is that of (sum of all losses) / (count of all items), over all micro-batches and ranks: where they hold
-- unequal numbers of tokens they equal one big batch. What the count will be is known only after the last forward, and
-- float16 gradients must not overflow meanwhile: losses are divided by a guess (the first count, times the number of
-- micro-batches), and where that was wrong the gradients are corrected once, before clipping.
local base = require "tlua.base"
local tl, fail = base.tl, base.fail

local step = {}

-- ---- batches ----

local function move(t, value)
  if base.is_tensor(value) then
    if value.device == t.device then return value end
    return value:to({ device = t.device, non_blocking = true })
  end
  if type(value) ~= "table" or getmetatable(value) ~= nil then return value end
  local copy = {}
  for key, v in pairs(value) do copy[key] = move(t, v) end
  return copy
end

--- Fails unless what a function given as batches returned can be called.
function step.check_iterator(iterator, name)
  if type(iterator) == "function" or (type(iterator) == "table" and getmetatable(iterator)) then return end
  fail(("Trainer: the function `%s` must return an iterator, got %s"):format(name, base.kind(iterator)))
end

--- The tensors of a packed batch {n=, ...} where the model is.
function step.place(t, batch)
  for i = 1, batch.n do batch[i] = move(t, batch[i]) end
  return batch
end

-- The number of samples.
local function samples_of(batch)
  local first = batch[1]
  if base.is_tensor(first) and first:dim() > 0 then return #first end
  fail("Trainer: how many samples a batch has cannot be seen: let the loss function return the sum of losses and their "
    .. "count")
end

-- ---- losses ----

local function check_loss(loss)
  if not base.is_tensor(loss) or loss:numel() ~= 1 then
    fail("Trainer: the loss function must return a loss of one element, got " .. base.kind(loss)
      .. (base.is_tensor(loss) and " of " .. loss:numel() .. " elements" or ""))
  end
end

-- The names of what the loss function sums.
local function check_names(more)
  for name in pairs(more) do
    if type(name) ~= "string" or name == "loss" then
      fail("Trainer: the third result of the loss function is a table name -> sum, 'loss' is taken, got "
        .. (name == "loss" and "it" or base.kind(name)) .. " as a name")
    end
  end
end

local function number_of(x, name)
  if base.is_tensor(x) then return x:item() end
  if type(x) ~= "number" then fail(("Trainer: %s must be a number or a tensor, got %s"):format(name, base.kind(x))) end
  return x
end

--- Calls the loss function. Returns { loss=, count=, summed=, more= }: summed: loss is a sum over count items, not
--- their mean.
function step.forward(t, batch)
  local loss, count, more
  if t.amp then loss, count, more = tl.amp.autocast(t.amp, t.loss, t.model, unpack(batch, 1, batch.n))
  else loss, count, more = t.loss(t.model, unpack(batch, 1, batch.n)) end
  check_loss(loss)
  if more ~= nil and type(more) ~= "table" then
    fail("Trainer: the third result of the loss function is a table name -> sum, got " .. base.kind(more))
  end
  local summed = count ~= nil
  t.unit = t.unit or (summed and "tokens" or "samples")
  count = summed and number_of(count, "the count") or samples_of(batch)
  if not (count >= 0 and count < math.huge) then
    fail(("Trainer: the count must be 0 or more, got %g"):format(count))
  end
  check_names(more or {})
  return { loss = loss, count = count, summed = summed, more = more }
end

-- ---- sums ----

--- Sums of losses: { loss=, count=, name = ... }; on a GPU they stay there until they are read.
function step.no_sums() return { count = 0, more = {} } end

local function is_on_cpu(t) return base.ffi.C.tl_device_of(t) == 0 end

local function as_sum(value, weight)
  if not base.is_tensor(value) then return value * weight end
  if is_on_cpu(value) then return value:item() * weight end
  return value:detach():double():reshape({}):mul(weight)
end

function step.add(sums, result)
  local weight = result.summed and 1 or result.count
  local loss = as_sum(result.loss, weight)
  sums.loss = sums.loss and sums.loss + loss or loss
  sums.count = sums.count + result.count
  for name, value in pairs(result.more or {}) do
    number_of(base.is_tensor(value) and 0 or value, "'" .. tostring(name) .. "'")
    value = as_sum(value, weight)
    sums.more[name] = sums.more[name] and sums.more[name] + value or value
  end
end

local function item(x) return base.is_tensor(x) and x:item() or x end

--- The sums as numbers, for a checkpoint.
function step.read(sums)
  local read = { count = sums.count, loss = item(sums.loss), more = {} }
  for name, value in pairs(sums.more) do read.more[name] = item(value) end
  return read
end

--- The means by name, over all ranks; of no items: an empty table.
function step.means(sums, ranks)
  sums = step.read(sums)
  local names = { "loss" }
  for name in pairs(sums.more) do names[#names + 1] = name end
  table.sort(names)
  local values = { sums.count }
  for _, name in ipairs(names) do values[#values + 1] = name == "loss" and (sums.loss or 0) or sums.more[name] end
  if ranks then
    local t = tl.tensor(values, { dtype = "float64", device = "cpu" })
    values = ranks.all_reduce(t, "sum"):tolist()
  end
  local means = {}
  if values[1] == 0 then return means end
  for i, name in ipairs(names) do means[name] = values[i + 1] / values[1] end
  return means
end

-- ---- a step ----

-- What the ranks tell one another after the first forward: the counts' sum, and whether a signal came to any of them.
local function agree(t, count)
  if not t.ranks then return count end
  local mine = t.signal or t.poll_signal()
  local told = tl.tensor({ count, mine == 2 and 1 or 0, mine == 15 and 1 or 0 }, { dtype = "float64", device = "cpu" })
  told = t.ranks.all_reduce(told, "sum"):tolist()
  if told[2] > 0 then t.signal = 2 elseif told[3] > 0 then t.signal = 15 end
  return told[1]
end

local function backward(t, result, guess)
  local loss = result.loss
  if result.summed then loss = loss / guess
  elseif result.count ~= guess then loss = loss * (result.count / guess) end
  if t.scaler then loss = t.scaler:scale(loss) end
  loss:backward()
end

local function correct(t, factor)
  if factor == 1 then return end
  tl.no_grad(function()
    for _, p in ipairs(t.parameters) do
      if p.grad then p.grad:mul_(factor) end
    end
  end)
end

-- Unscale, clip, step, update: in this order.
local function update(t)
  if t.scaler and t.clip then t.scaler:unscale_(t.optimizer) end
  if t.clip then t.grad_norm = tl.nn.utils.clip_grad_norm_(t.parameters, t.clip) end
  if t.scaler then
    t.scaler:step(t.optimizer)
    t.scaler:update()
  else
    t.optimizer:step()
  end
  if t.ema then t.ema:update() end
end

--- One step over what next_batch() gives: up to t.accumulate micro-batches. Returns false, and does nothing, when there
--- is none. is_last() tells, as far as it is known, that the batch given last was the epoch's.
function step.run(t, next_batch, is_last)
  local size = t.ranks and t.ranks.world_size() or 1
  local micro, total, first_total, guess, synced = 0, 0, nil, nil, false
  t.optimizer:zero_grad()
  repeat
    local batch = next_batch()
    if not batch then break end
    micro = micro + 1
    local last = micro == t.accumulate or is_last()
    local function work()
      local result = step.forward(t, step.place(t, batch))
      if micro == 1 then
        first_total = agree(t, result.count)
        guess = math.max(first_total / size, 1) * t.accumulate
      end
      total = total + result.count
      backward(t, result, guess)
      step.add(t.sums, result)
    end
    if t.ddp and not last then t.ddp:no_sync(work) else work() end
    synced = last
  until last
  if micro == 0 then return false end
  if t.ddp and not synced then
    fail("Trainer: the batches ended in the middle of an accumulated step; with several ranks `train` needs size()")
  end
  if t.ranks then
    total = micro == 1 and first_total
      or t.ranks.all_reduce(tl.tensor({ total }, { dtype = "float64", device = "cpu" }), "sum"):item()
  end
  t.counted = t.counted + total
  correct(t, total > 0 and guess * size / total or 1)
  update(t)
  return true
end

return step
