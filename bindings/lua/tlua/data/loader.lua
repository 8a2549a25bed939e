-- loader.lua: DataLoader, which gives out a dataset in batches. `for x, y in loader do` is one epoch: the loader itself
-- is the iterator, and a call without a control value starts an epoch.
--
-- A position in the middle of an epoch is the random numbers that the order was drawn with and the number of batches
-- given out: what was gathered ahead is gathered again.
local base = require "tlua.base"
local datasets = require "tlua.data.datasets"
local samplers = require "tlua.data.samplers"
local random = require "tlua.random"
local ffi, C, check, fail, wrap = base.ffi, base.C, base.check, base.fail, base.wrap
local rawequal = rawequal

local handle_out, more = ffi.new("tl_loader *[1]"), ffi.new("bool[1]")

-- per_rank: its state is every rank's own (tl.train.save_checkpoint).
local DataLoader = { per_rank = true }
DataLoader.__index = DataLoader

-- ---- the order of an epoch ----

-- f(...) with the random numbers of `state` from the generator g (nil: the default one), which then goes on as before.
local function replay(g, state, f, ...)
  local now = random.get_state(g)
  random.set_state(g, state)
  local function restore(ok, ...)
    random.set_state(g, now)
    if not ok then error((...), 0) end
    return ...
  end
  return restore(pcall(f, ...))
end

-- As an int64 tensor of ids. Ids that do not exist are found when batches are made of them.
local function order_of(loader)
  local order = loader.sampler:order()
  if base.is_tensor(order) and order.dtype == "int64" and order:dim() == 1 then return order end
  return datasets.read_ids(order, loader.dataset:size(), "DataLoader")
end

-- What is left of the epoch: after `given` batches.
local function rest_of(loader, order)
  local done = math.min(loader.given * loader.batch_size, #order)
  return done == 0 and order or order:narrow(1, done + 1, #order - done)
end

-- ---- batches gathered in C: samples are rows of tensors, or windows of a token file ----

local Gathered = {}
Gathered.__index = Gathered

local function gathered(loader, order, tensors, ids)
  if ids then order = ids:index_select(1, order) end
  local n = 2
  if tensors.open then
    check(tensors:open(order, loader, handle_out))
  else
    local list
    list, n = base.tensors(tensors, "DataLoader")
    check(C.tl_loader_new(n, list, order, loader.batch_size, loader.drop_last, loader.num_workers, loader.prefetch,
      handle_out))
  end
  local handle = ffi.gc(handle_out[0], ffi.C.tl_loader_free)
  if loader.pin_memory then check(C.tl_loader_pin(handle)) end
  return setmetatable({
    handle = handle, n = n, out = ffi.new("tl_tensor *[?]", n), tensors = tensors,
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

local function collated(loader, order)
  order = order:contiguous()
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

-- ---- batches in pinned memory, or on a GPU ----

-- f(tensor) for all tensors of a value, which may be a table of more.
local function each(f, value)
  if base.is_tensor(value) then return f(value) end
  if type(value) ~= "table" or getmetatable(value) ~= nil then return value end
  local copy = {}
  for key, v in pairs(value) do copy[key] = each(f, v) end
  return copy
end

local function pinned(value) return value.device == "cpu" and value:pin_memory() or value end

local Pinned = {}
Pinned.__index = Pinned

local function pin_all(first, ...)
  if first == nil then return nil end
  if select("#", ...) == 0 then return each(pinned, first) end
  return each(pinned, first), pin_all(...)
end

function Pinned:next() return pin_all(self.epoch:next()) end
function Pinned:close() self.epoch:close() end

-- One batch ahead: its copy to the device runs on a stream of its own while the caller computes with the one before.
local Moved = {}
Moved.__index = Moved

local function move_all(self, batch)
  local options = { device = self.device, non_blocking = true }
  for i = 1, batch.n do
    batch[i] = each(function(t) return t:to(options) end, batch[i])
  end
end

local function fetch(self)
  local function pack(...) return { n = select("#", ...), ... } end
  self.fetched_with = self.replayed or random.get_state()
  local batch
  if self.replayed then batch = pack(replay(nil, self.replayed, self.epoch.next, self.epoch))
  else batch = pack(self.epoch:next()) end
  self.replayed = nil
  if batch[1] == nil then return nil end
  base.tl.cuda.stream(self.stream, move_all, self, batch)
  return batch
end

function Moved:next()
  local batch = self.ahead
  if batch == nil and not self.done then batch = fetch(self) end
  if batch == nil then return nil end
  local current = base.tl.cuda.current_stream(self.device)
  current:wait(self.stream)
  for i = 1, batch.n do
    each(function(t) t:record_stream(current) return t end, batch[i])
  end
  self.ahead = fetch(self)
  self.done = self.ahead == nil
  return unpack(batch, 1, batch.n)
end

function Moved:close()
  self.ahead, self.done = nil, true
  self.epoch:close()
end

-- The epoch as the loader's options want it. fetched_with: the random numbers of its first batch, where they are known.
local function placed(loader, epoch, fetched_with)
  if loader.pin_memory then epoch = setmetatable({ epoch = epoch }, Pinned) end
  if not loader.device then return epoch end
  local stream = base.tl.cuda.Stream { device = loader.device }
  return setmetatable({ epoch = epoch, device = loader.device, stream = stream, replayed = fetched_with }, Moved)
end

-- ---- the loader ----

-- A new epoch, or the rest of the one that load_state_dict() told of.
local function begin(self)
  local saved, g = self.saved, self.generator
  self:close()
  local order
  if saved then
    self.drawn_with, self.given = saved.drawn_with, saved.batch
    order = replay(g, saved.drawn_with, order_of, self)
  else
    self.drawn_with, self.given, self.epochs = random.get_state(g), 0, self.epochs + 1
    order = order_of(self)
  end
  local tensors, ids
  if self.gather and self.dataset.rows then tensors, ids = self.dataset:rows() end
  order = rest_of(self, order)
  self.epoch = placed(self, tensors and gathered(self, order, tensors, ids) or collated(self, order),
    saved and saved.fetched_with)
end

-- The next batch; at the end the epoch is closed.
local function keep(self, first, ...)
  self.last = first
  if first == nil then self:close() else self.given = self.given + 1 end
  return first, ...
end

function DataLoader:__call(_, control)
  if control == nil then
    begin(self)
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
  self.epoch, self.last, self.saved, self.given = nil, nil, nil, 0
end

--- The number of batches of an epoch.
function DataLoader:size()
  local n = self.sampler:size()
  return self.drop_last and math.floor(n / self.batch_size) or math.ceil(n / self.batch_size)
end

-- ---- where it stands ----

--- The position, for a checkpoint: {epoch = epochs begun, batch = batches given out in it, ...}. Numbers only: the
--- order is drawn again.
function DataLoader:state_dict()
  if self.saved then return self.saved end
  local sampler = self.sampler
  local state = { epoch = self.epochs, batch = self.given, samples = sampler:size(), batch_size = self.batch_size }
  if self.epoch then state.drawn_with, state.fetched_with = self.drawn_with, self.epoch.fetched_with end
  if self.generator then state.generator = self.generator:get_state() end
  if sampler.state_dict then state.sampler = sampler:state_dict() end
  return state
end

--- Takes over a state_dict(): the next `for` gives the rest of that epoch. The default generator is the caller's: its
--- state must be restored, too (tl.set_rng_state), if the later epochs are to be the same.
function DataLoader:load_state_dict(state)
  if type(state) ~= "table" or type(state.epoch) ~= "number" or type(state.batch) ~= "number"
    or state.batch < 0 or state.batch % 1 ~= 0 then
    fail("DataLoader: load_state_dict takes what state_dict() gave")
  end
  for name, here in pairs { samples = self.sampler:size(), batch_size = self.batch_size } do
    if state[name] ~= here then
      fail(("DataLoader: the state has %s=%s, this loader %d"):format(name, tostring(state[name]), here))
    end
  end
  local sampler = self.sampler
  if (self.generator == nil) ~= (state.generator == nil) then
    fail("DataLoader: a generator of its own is in " .. (state.generator and "the state" or "this loader") .. " only")
  end
  self:close()
  if self.generator then self.generator:set_state(state.generator) end
  if sampler.load_state_dict then sampler:load_state_dict(state.sampler) end
  self.epochs, self.given = state.epoch, state.batch
  if state.drawn_with then self.saved = state end
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
  generator = base.optional, collate = base.optional, prefetch = 2, device = base.optional,
}

--- DataLoader(dataset, {batch_size=1, shuffle=false, drop_last=false, num_workers=0, prefetch=2, sampler=, generator=,
--- collate=, pin_memory=false, device=}). pin_memory: batches lie in pinned memory (where there is a GPU).
--- device="cuda": they are on it, copied from pinned memory one batch ahead.
local function new(dataset, options)
  datasets.check(dataset, "DataLoader")
  local o = base.options("DataLoader", options, defaults)
  check_count(o.batch_size, 1, "batch_size")
  check_count(o.num_workers, 0, "num_workers")
  check_count(o.prefetch, 1, "prefetch")
  if o.collate ~= nil and type(o.collate) ~= "function" then
    fail("DataLoader: collate must be a function, got " .. base.kind(o.collate))
  end
  local device = o.device ~= nil and base.device(o.device, "DataLoader") or 0
  local sampler = choose_sampler(dataset, o)
  local loader = {
    dataset = dataset, batch_size = o.batch_size, drop_last = o.drop_last and true or false,
    num_workers = o.num_workers, prefetch = o.prefetch, sampler = sampler,
    gather = o.collate == nil,
    collate = o.collate or require("tlua.data.collate").default_collate,
    pin_memory = device ~= 0 or (o.pin_memory and base.tl.device_count("cuda") > 0),
    device = device ~= 0 and base.device_name(device) or nil, epochs = 0, given = 0,
    generator = base.is_generator(sampler.generator) and sampler.generator or nil,
  }
  return setmetatable(loader, DataLoader)
end

return { DataLoader = new }
