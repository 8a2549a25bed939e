-- evaluate.lua: the mean loss over a set of batches, in evaluation mode, without touching what training depends on.
local base = require "tlua.base"
local step = require "tlua.train.step"
local tl = base.tl

-- A batch without its last rows; nil: nothing is left.
local function cut(batch, rows)
  local kept = #batch[1] - rows
  if kept <= 0 then return nil end
  for i = 1, batch.n do
    local x = batch[i]
    if base.is_tensor(x) and x:dim() > 0 and #x == kept + rows then batch[i] = x:narrow(1, 1, kept) end
  end
  return batch
end

-- How many of the epoch's last samples repeat others (DistributedSampler), and how many samples there are.
local function padding_of(batches)
  local sampler = type(batches) == "table" and batches.sampler
  if not (sampler and sampler.padding) then return 0, 0 end
  return sampler:padding(), sampler:size()
end

-- nil: a signal came meanwhile.
local function sums_over(t, batches)
  local sums, seen = step.no_sums(), 0
  local padding, samples = padding_of(batches)
  local function pack(...) return { n = select("#", ...), ... } end
  local iterator, state, control = batches, nil, nil
  if type(batches) == "function" then
    iterator, state, control = batches(t.epoch, 0)
    step.check_iterator(iterator, "validation")
  end
  while true do
    local batch = pack(iterator(state, control))
    control = batch[1]
    if control == nil then return sums end
    if padding > 0 then
      local rows = #batch[1]
      seen = seen + rows
      batch = cut(batch, math.min(rows, math.max(0, seen - (samples - padding))))
    end
    if batch then step.add(sums, step.forward(t, step.place(t, batch))) end
    if not t.ranks and t.poll_signal() then
      if type(batches) == "table" and batches.close then batches:close() end
      return nil
    end
  end
end

local function run(t, batches)
  local rng, modes = tl.get_rng_state(), {}
  for _, m in ipairs(t.module:modules()) do modes[m] = m.training end
  t.module:eval()
  local ok, sums = pcall(tl.no_grad, sums_over, t, batches)
  for m, training in pairs(modes) do m.training = training end
  tl.set_rng_state(rng)
  if not ok then error(sums, 0) end
  return sums and step.means(sums, t.ranks)
end

--- { loss=, ... } over the batches (a DataLoader, or a function that gives an iterator); with an average of the
--- weights, its values as "ema/loss", ... Modes and random numbers are as before. nil: a signal came meanwhile.
return function(t, batches)
  local means = run(t, batches)
  if not means or not t.ema then return means end
  local averaged = t.ema:apply(run, t, batches)
  if not averaged then return nil end
  for name, value in pairs(averaged) do means["ema/" .. name] = value end
  return means
end
