-- loader.lua: DataLoader, which gives out a dataset in batches. `for x, y in loader do` is one epoch: the loader itself
-- is the iterator, and a call without a control value starts an epoch.
local base = require "tlua.base"
local datasets = require "tlua.data.datasets"
local samplers = require "tlua.data.samplers"
local ffi, C, check, fail, wrap = base.ffi, base.C, base.check, base.fail, base.wrap
local rawequal = rawequal

local handle_out, more = ffi.new("tl_loader *[1]"), ffi.new("bool[1]")

local DataLoader = {}
DataLoader.__index = DataLoader

-- ---- the order of an epoch ----

-- As an int64 tensor of ids. Ids that do not exist are found when batches are made of them.
local function order_of(loader)
  local order = loader.sampler:order()
  if base.is_tensor(order) and order.dtype == "int64" and order:dim() == 1 then return order end
  return datasets.read_ids(order, loader.dataset:size(), "DataLoader")
end

-- ---- batches gathered in C: samples are rows of tensors ----

local Gathered = {}
Gathered.__index = Gathered

local function gathered(loader, tensors, ids)
  local order = order_of(loader)
  if ids then order = ids:index_select(1, order) end
  local list, n = base.tensors(tensors, "DataLoader")
  check(C.tl_loader_new(n, list, order, loader.batch_size, loader.drop_last, loader.num_workers, loader.prefetch,
    handle_out))
  return setmetatable({
    handle = ffi.gc(handle_out[0], ffi.C.tl_loader_free), n = n, out = ffi.new("tl_tensor *[?]", n), tensors = tensors,
  }, Gathered)
end

local function wrap_all(out, i, n)
  if i == n then return end
  return wrap(out[i]), wrap_all(out, i + 1, n)
end

function Gathered:next()
  local out = self.out
  local status = C.tl_loader_next(self.handle, out, more)
  if status ~= 0 then
    base.again(status)
    check(C.tl_loader_next(self.handle, out, more))
  end
  if not more[0] then return nil end
  if self.n == 1 then return wrap(out[0]) end
  if self.n == 2 then
    local x = wrap(out[0])
    return x, wrap(out[1])
  end
  return wrap_all(out, 0, self.n)
end

function Gathered:close()
  ffi.C.tl_loader_free(ffi.gc(self.handle, nil))
  self.handle = nil
end

-- ---- batches of a dataset written in Lua ----

local Collated = {}
Collated.__index = Collated

local function collated(loader)
  local order = order_of(loader):contiguous()
  return setmetatable({ loader = loader, order = order, ids = order:data_ptr(), n = #order, at = 0 }, Collated)
end

-- nil would end the epoch.
local function joined(first, ...)
  if first == nil then fail("DataLoader: collate returned nil") end
  return first, ...
end

function Collated:next()
  local loader = self.loader
  local last = math.min(self.at + loader.batch_size, self.n)
  if last == self.at or (loader.drop_last and last - self.at < loader.batch_size) then return nil end
  local samples = {}
  for i = self.at, last - 1 do
    local sample = { loader.dataset:get(tonumber(self.ids[i]) + 1) }
    if sample[1] == nil then
      fail(("DataLoader: the dataset's get(%d) returned nil"):format(tonumber(self.ids[i]) + 1))
    end
    samples[#samples + 1] = sample
  end
  self.at = last
  return joined(loader.collate(samples))
end

function Collated:close() end

-- ---- the loader ----

-- The next batch; at the end the epoch is closed.
local function keep(self, first, ...)
  self.last = first
  if first == nil then self:close() end
  return first, ...
end

function DataLoader:__call(_, control)
  if control == nil then
    self:close()
    local tensors, ids
    if self.gather and self.dataset.rows then tensors, ids = self.dataset:rows() end
    self.epoch = tensors and gathered(self, tensors, ids) or collated(self)
  elseif not self.epoch or not rawequal(control, self.last) then
    fail("DataLoader: another `for` over the same loader has begun meanwhile; make a loader for each")
  end
  base.poll()
  return keep(self, self.epoch:next())
end

--- Ends an epoch that was left early: its threads stop and its batches are freed. The next `for` and the garbage
--- collector do so, too.
function DataLoader:close()
  if self.epoch then self.epoch:close() end
  self.epoch, self.last = nil, nil
end

--- The number of batches of an epoch.
function DataLoader:size()
  local n = self.sampler:size()
  return self.drop_last and math.floor(n / self.batch_size) or math.ceil(n / self.batch_size)
end

local function choose_sampler(dataset, o)
  if o.sampler == nil then
    if o.shuffle then return samplers.RandomSampler(dataset, { generator = o.generator }) end
    return samplers.SequentialSampler(dataset)
  end
  if o.shuffle then fail("DataLoader: a sampler decides the order itself: leave shuffle out") end
  if type(o.sampler) ~= "table" or type(o.sampler.order) ~= "function" or type(o.sampler.size) ~= "function" then
    fail("DataLoader: a sampler is a table with the methods size() and order(), got " .. base.kind(o.sampler))
  end
  return o.sampler
end

local function check_count(value, least, name)
  base.check_integer(value, "DataLoader", name)
  if value < least then fail(("DataLoader: %s must be at least %d, got %d"):format(name, least, value)) end
end

local defaults = {
  batch_size = 1, shuffle = false, drop_last = false, num_workers = 0, pin_memory = false, sampler = base.optional,
  generator = base.optional, collate = base.optional, prefetch = 2,
}

--- DataLoader(dataset, {batch_size=1, shuffle=false, drop_last=false, num_workers=0, prefetch=2, sampler=, generator=,
--- collate=, pin_memory=false}).
local function new(dataset, options)
  datasets.check(dataset, "DataLoader")
  local o = base.options("DataLoader", options, defaults)
  check_count(o.batch_size, 1, "batch_size")
  check_count(o.num_workers, 0, "num_workers")
  check_count(o.prefetch, 1, "prefetch")
  if o.collate ~= nil and type(o.collate) ~= "function" then
    fail("DataLoader: collate must be a function, got " .. base.kind(o.collate))
  end
  local loader = {
    dataset = dataset, batch_size = o.batch_size, drop_last = o.drop_last and true or false,
    num_workers = o.num_workers, prefetch = o.prefetch, pin_memory = o.pin_memory, sampler = choose_sampler(dataset, o),
    gather = o.collate == nil, collate = o.collate or require("tlua.data.collate").default_collate,
  }
  return setmetatable(loader, DataLoader)
end

return { DataLoader = new }
