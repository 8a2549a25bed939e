-- parallel.lua: nn.parallel: one model, many ranks.
local base = require "tlua.base"
local dist = require "tlua.dist"
local Module = require("tlua.nn.module").Module

local C, ffi, check, fail = base.C, base.ffi, base.check, base.fail
local native = ffi.C

local parallel = {}

local DDP = Module:extend("DistributedDataParallel")
parallel.DistributedDataParallel = DDP

local MB = 2 ^ 20
local FIRST = 1 -- MB: the first bucket is small, so that communication begins early

-- What must be equal on all ranks, a line each.
local function description(model)
  local lines = {}
  local function add(name, t, more)
    lines[#lines + 1] = ("%s (%s, %s%s)"):format(name, table.concat(t.shape, "x"), t.dtype, more or "")
  end
  for name, p in model:named_parameters() do add(name, p, not p.requires_grad and ", frozen" or nil) end
  for name, b in model:named_buffers() do add(name, b) end
  return table.concat(lines, "\n")
end

local function lines_of(text)
  local list = {}
  for line in (text .. "\n"):gmatch("(.-)\n") do list[#list + 1] = line end
  return list
end

local function check_same_model(model)
  local mine = description(model)
  local same, theirs = dist.same(mine)
  if same then return end
  local a, b = lines_of(theirs), lines_of(mine)
  for i = 1, math.max(#a, #b) do
    if a[i] ~= b[i] then
      local text = "DistributedDataParallel: the ranks' models differ: rank 0 has %s, rank %d has %s"
      fail(text:format(a[i] or "no more", dist.rank(), b[i] or "no more"))
    end
  end
  fail("DistributedDataParallel: the ranks' models differ: another rank's is unlike this one")
end

local function broadcast_all(tensors)
  local works = {}
  for i, t in ipairs(tensors) do works[i] = dist.broadcast(t.data, 0, { async = true }) end
  for _, w in ipairs(works) do w:wait() end
end

--- DistributedDataParallel(model, {bucket_cap_mb=25, find_unused_parameters=false, broadcast_buffers=true}): calls go
--- to the model; backward leaves the mean of all ranks' gradients in every parameter. Parameters and buffers begin as
--- rank 0's. find_unused_parameters: a parameter without a gradient on every rank keeps grad = nil (else: zeros).
function DDP:init(model, options)
  if type(model) ~= "table" or not model.named_parameters then
    fail("DistributedDataParallel: argument 1 must be a module, got " .. base.kind(model))
  end
  local o = base.options("DistributedDataParallel", options, {
    bucket_cap_mb = 25, find_unused_parameters = false, broadcast_buffers = true,
  })
  if not dist.is_initialized() then fail("DistributedDataParallel: dist.init comes first") end
  if not (o.bucket_cap_mb > 0) then fail("DistributedDataParallel: bucket_cap_mb must be positive") end
  check_same_model(model)
  self.module = model
  self._broadcast_buffers = o.broadcast_buffers
  local list = {}
  for _, p in ipairs(model:parameters()) do
    if p.requires_grad then list[#list + 1] = p end
  end
  broadcast_all(model:parameters())
  broadcast_all(model:buffers())
  local handle = ffi.new("tl_ddp *[1]")
  local array, n = base.tensors(list, "DistributedDataParallel")
  local first, others = math.min(FIRST, o.bucket_cap_mb) * MB, o.bucket_cap_mb * MB
  check(C.tl_ddp_new(n, array, first, others, o.find_unused_parameters, handle))
  self._ddp = ffi.gc(handle[0], native.tl_ddp_free)
  self._synchronises = true
end

local function begin(self)
  if self._broadcast_buffers and self._synchronises and self.training then broadcast_all(self.module:buffers()) end
end

function DDP:forward(...)
  begin(self)
  return self.module(...)
end

--- ddp:loss(...) is module:loss(...), of models that have a loss of their own.
function DDP:loss(...)
  if type(self.module.loss) ~= "function" then
    fail("DistributedDataParallel: the model has no method loss()")
  end
  begin(self)
  return self.module:loss(...)
end

--- no_sync(f, ...): inside, backward adds local gradients only; the next backward outside averages their sum.
function DDP:no_sync(f, ...)
  if type(f) ~= "function" and type(f) ~= "table" then
    fail("no_sync: argument 1 must be a function, got " .. base.kind(f))
  end
  local before = self._synchronises
  local function restore(ok, ...)
    self._synchronises = before
    native.tl_ddp_sync(self._ddp, before)
    if not ok then error((...), 0) end
    return ...
  end
  self._synchronises = false
  native.tl_ddp_sync(self._ddp, false)
  return restore(pcall(f, ...))
end

--- For tests and traces: { parameters without a gradient when bucket i was launched in the last backward }.
function DDP:launches()
  local list = {}
  for b = 1, native.tl_ddp_buckets(self._ddp) do list[b] = native.tl_ddp_launch(self._ddp, b - 1) end
  return list
end

--- A copy would be a model of this rank alone: copies are made of the module.
function DDP:clone() fail("DistributedDataParallel: clone its .module, and wrap that on all ranks to train it") end

-- Keys are the model's own: a checkpoint does not say how it was trained.
function DDP:state_dict(...) return self.module:state_dict(...) end
function DDP:load_state_dict(...) return self.module:load_state_dict(...) end

return parallel
