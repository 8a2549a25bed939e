-- samplers.lua: the order of samples in an epoch.
--
-- A sampler has size(), how many samples an epoch takes, and order(), which is called once an epoch and gives an int64
-- tensor of 0-based ids or a table of positions (from 1).
local tl = require "tlua"
local base = require "tlua.base"
local fail = base.fail

local samplers = {}

-- A dataset, or a number of samples.
local function size_of(source, op)
  if type(source) == "number" then
    base.check_integer(source, op, "the number of samples")
    if source < 0 then fail(op .. ": the number of samples is negative") end
    return source
  end
  require("tlua.data.datasets").check(source, op)
  return source:size()
end

local function class(name)
  local c = {}
  c.__index = c
  c._name = name
  return c
end

-- ---- in order ----

local Sequential = class "SequentialSampler"

--- SequentialSampler(dataset or n): 0, 1, 2, ...
function samplers.SequentialSampler(source)
  return setmetatable({ source = source, n = size_of(source, "SequentialSampler") }, Sequential)
end

function Sequential:size() return self.n end
function Sequential:order() return tl.arange(self.n, { dtype = "int64", device = "cpu" }) end

-- ---- at random ----

local Random = class "RandomSampler"

--- RandomSampler(dataset or n, {replacement=false, num_samples=, generator=}).
function samplers.RandomSampler(source, options)
  local o = base.options("RandomSampler", options,
    { replacement = false, num_samples = base.optional, generator = base.optional })
  local n = size_of(source, "RandomSampler")
  local count = o.num_samples or n
  base.check_integer(count, "RandomSampler", "num_samples")
  if count < 0 then fail("RandomSampler: num_samples is negative") end
  if n == 0 and count > 0 then fail("RandomSampler: there are no samples to draw from") end
  return setmetatable({ n = n, count = count, replacement = o.replacement, generator = o.generator }, Random)
end

function Random:size() return self.count end

function Random:order()
  local draw = { generator = self.generator, device = "cpu" }
  if self.replacement and self.count > 0 then return tl.randint(0, self.n, { self.count }, draw) end
  local parts, have = {}, 0
  while have < self.count or #parts == 0 do -- more samples than there are: one permutation after the other
    parts[#parts + 1] = tl.randperm(self.n, draw)
    have = have + self.n
  end
  local order = #parts == 1 and parts[1] or tl.cat(parts, 1)
  return have == self.count and order or order:narrow(1, 1, self.count)
end

-- ---- weighted ----

local Weighted = class "WeightedRandomSampler"

--- WeightedRandomSampler(weights, num_samples, {replacement=true, generator=}): sample i with a probability
--- proportional to weights[i] (a table or a 1-d tensor).
function samplers.WeightedRandomSampler(weights, num_samples, options)
  local o = base.options("WeightedRandomSampler", options, { replacement = true, generator = base.optional })
  if type(weights) == "table" then weights = tl.tensor(weights, { dtype = "float64", device = "cpu" }) end
  base.check_tensor(weights, "WeightedRandomSampler", 1)
  if weights:dim() ~= 1 then
    fail("WeightedRandomSampler: weights must be 1-d, they have " .. weights:dim() .. " dims")
  end
  base.check_integer(num_samples, "WeightedRandomSampler", "num_samples")
  if num_samples < 1 then fail("WeightedRandomSampler: num_samples must be at least 1, got " .. num_samples) end
  return setmetatable(
    { weights = weights, count = num_samples, replacement = o.replacement, generator = o.generator }, Weighted)
end

function Weighted:size() return self.count end
function Weighted:order()
  return self.weights:multinomial(self.count, { replacement = self.replacement, generator = self.generator })
end

-- ---- one part a process ----

local Distributed = class "DistributedSampler"

local function from_group(op)
  local dist = package.loaded["tlua.dist"]
  if not (dist and dist.is_initialized()) then
    fail(op .. ": num_replicas and rank must be given as long as tl.dist is not initialised")
  end
  return dist.world_size(), dist.rank()
end

--- DistributedSampler(dataset or n, {num_replicas=, rank=, shuffle=true, seed=0, drop_last=false, even=true}): the part
--- of this rank (0-based). Without drop_last the order is padded from its start until all ranks have equally many;
--- padding() tells how many of this rank's last samples are such repeats. even=false: nothing is repeated or dropped,
--- some ranks have one sample less: for evaluation. Call set_epoch(e) before each epoch for another order.
function samplers.DistributedSampler(source, options)
  local o = base.options("DistributedSampler", options,
    { num_replicas = base.optional, rank = base.optional, shuffle = true, seed = 0, drop_last = false,
      even = true })
  local replicas, rank = o.num_replicas, o.rank
  if replicas == nil or rank == nil then
    local world, me = from_group("DistributedSampler")
    replicas, rank = replicas or world, rank or me
  end
  base.check_integer(replicas, "DistributedSampler", "num_replicas")
  base.check_integer(rank, "DistributedSampler", "rank")
  if replicas < 1 or rank < 0 or rank >= replicas then
    fail(("DistributedSampler: rank %d of %d (ranks count from 0)"):format(rank, replicas))
  end
  local n = size_of(source, "DistributedSampler")
  if o.drop_last and not o.even then fail("DistributedSampler: drop_last and even=false: leave one of them out") end
  if n == 0 and not o.drop_last then fail("DistributedSampler: there are no samples") end
  local each = o.drop_last and math.floor(n / replicas) or math.ceil(n / replicas)
  if not o.even then each = math.max(0, math.ceil((n - rank) / replicas)) end
  return setmetatable(
    { n = n, each = each, replicas = replicas, rank = rank, shuffle = o.shuffle, seed = o.seed, epoch = 0 },
    Distributed)
end

function Distributed:size() return self.each end

function Distributed:set_epoch(epoch)
  base.check_integer(epoch, "set_epoch", "the epoch")
  self.epoch = epoch
end

--- What decides the order, for a checkpoint.
function Distributed:state_dict() return { seed = self.seed, epoch = self.epoch } end

function Distributed:load_state_dict(state)
  if type(state) ~= "table" or type(state.seed) ~= "number" or type(state.epoch) ~= "number" then
    fail("DistributedSampler: load_state_dict takes what state_dict() gave")
  end
  self.seed, self.epoch = state.seed, state.epoch
end

function Distributed:padding()
  local own = math.max(0, math.ceil((self.n - self.rank) / self.replicas)) -- samples of this rank before padding
  return math.max(0, self.each - own)
end

function Distributed:order()
  local order
  if self.shuffle then order = tl.randperm(self.n, { generator = tl.Generator(self.seed + self.epoch), device = "cpu" })
  else order = tl.arange(self.n, { dtype = "int64", device = "cpu" }) end
  if self.each == 0 then return order:narrow(1, 1, 0) end
  local total = self.each * self.replicas -- rounds, of one sample for each rank
  if total > self.n then
    local parts = {}
    for k = 1, math.ceil(total / self.n) do parts[k] = order end
    order = tl.cat(parts, 1)
  end
  return order:narrow(1, 1, total):view(self.each, self.replicas):select(2, self.rank + 1)
end

return samplers
