-- dist.lua: several processes that train together: ranks, collectives. Ranks are data: they count from 0.
local base = require "tlua.base"
local ffi, C, check, wrap, fail, out = base.ffi, base.C, base.check, base.wrap, base.fail, base.out
local native = ffi.C

local dist = {}

local operations = { sum = 0, mean = 1, max = 2, min = 3 }

local function operation(name, op)
  if name ~= nil and type(name) ~= "string" then
    fail(("%s: the reduction is a name like \"sum\", got %s"):format(op, base.kind(name)))
  end
  local number = operations[name or "sum"]
  if not number then
    fail(("%s: there is no reduction '%s'%s"):format(op, tostring(name), base.suggestion(tostring(name), operations)))
  end
  return number
end

--- init{timeout=600, backend=}: joins the other ranks of mpirun, `tlua --ranks`, srun or torchrun. Alone it is rank 0
--- of 1. Ranks meet over MPI, over TCP where torchrun's variables are all there is; tensors of a GPU go over NCCL,
--- others over MPI or TCP, whatever `backend` says.
function dist.init(options)
  local o = base.options("dist.init", options, { timeout = 600, backend = base.optional })
  if o.backend ~= nil and o.backend ~= "mpi" and o.backend ~= "nccl" then
    fail(("dist.init: there is no backend '%s' (\"mpi\", \"nccl\")"):format(tostring(o.backend)))
  end
  check(C.tl_dist_init(o.timeout))
end

--- Leaves the group, after all ranks did what they have queued.
function dist.destroy() check(C.tl_dist_destroy()) end

function dist.is_initialized() return native.tl_dist_initialized() end
function dist.rank() return native.tl_dist_rank() end
function dist.world_size() return native.tl_dist_size() end
function dist.local_rank() return native.tl_dist_local_rank() end

-- ---- collectives ----

local Work = {}
Work.__index = Work
local work_out = ffi.new("tl_work *[1]")

--- Waits until the result is there.
function Work:wait()
  local handle = self.handle
  if not handle then fail("wait: this collective was waited for already") end
  self.handle = nil
  ffi.gc(handle, nil)
  check(C.tl_work_wait(handle))
  return self.result
end

--- Is it done? Does not wait.
function Work:is_completed() return not self.handle or native.tl_work_done(self.handle) end

local function take(result)
  return setmetatable({ handle = ffi.gc(work_out[0], native.tl_work_free), result = result }, Work)
end

local function wants_work(op, options)
  return base.options(op, options, { async = false }).async
end

--- all_reduce(t, "sum" | "mean" | "max" | "min", {async=false}): t becomes the reduction over all ranks. async:
--- returns at once what to :wait() for.
function dist.all_reduce(t, name, options)
  base.check_tensor(t, "all_reduce", 1)
  if wants_work("all_reduce", options) then
    check(C.tl_all_reduce_(t, operation(name, "all_reduce"), work_out))
    return take(t)
  end
  check(C.tl_all_reduce_(t, operation(name, "all_reduce"), nil))
  return t
end

--- broadcast(t, rank, {async=false}): t becomes that rank's.
function dist.broadcast(t, src, options)
  base.check_tensor(t, "broadcast", 1)
  base.check_integer(src or 0, "broadcast", "the rank")
  if wants_work("broadcast", options) then
    check(C.tl_broadcast_(t, src or 0, work_out))
    return take(t)
  end
  check(C.tl_broadcast_(t, src or 0, nil))
  return t
end

--- all_gather(t, {async=false}): a tensor of one more dim: everybody's t, by rank.
function dist.all_gather(t, options)
  base.check_tensor(t, "all_gather", 1)
  if wants_work("all_gather", options) then
    check(C.tl_all_gather(t, out, work_out))
    return take(wrap(out[0]))
  end
  check(C.tl_all_gather(t, out, nil))
  return wrap(out[0])
end

--- reduce_scatter(t, "sum", {async=false}): this rank's part (along dim 1) of the reduction of t.
function dist.reduce_scatter(t, name, options)
  base.check_tensor(t, "reduce_scatter", 1)
  if wants_work("reduce_scatter", options) then
    check(C.tl_reduce_scatter(t, operation(name, "reduce_scatter"), out, work_out))
    return take(wrap(out[0]))
  end
  check(C.tl_reduce_scatter(t, operation(name, "reduce_scatter"), out, nil))
  return wrap(out[0])
end

--- Waits for all ranks.
function dist.barrier() check(C.tl_dist_barrier()) end

--- print on rank 0 only.
function dist.print(...)
  if dist.rank() == 0 then print(...) end
end

--- print on every rank, with "[rank 1]" before the text where there are several.
function dist.log(...)
  if dist.world_size() == 1 then return print(...) end
  print(("[rank %d]"):format(dist.rank()), ...)
end

-- ---- agreement ----

local function bytes_of(text)
  local t = base.tl.zeros(#text, { dtype = "uint8", device = "cpu" })
  if #text > 0 then ffi.copy(native.tl_data(t), text, #text) end
  return t
end

--- Is `text` the same on all ranks? Returns true, or false and rank 0's text.
function dist.same(text)
  local tl = base.tl
  local length = tl.tensor({ #text }, { dtype = "int64", device = "cpu" })
  dist.broadcast(length, 0)
  local theirs = tl.zeros(length:item(), { dtype = "uint8", device = "cpu" })
  if dist.rank() == 0 then theirs = bytes_of(text) end
  dist.broadcast(theirs, 0)
  local other = ffi.string(native.tl_data(theirs), theirs:numel())
  local differs = tl.tensor({ other == text and 0 or 1 }, { dtype = "int32", device = "cpu" })
  dist.all_reduce(differs, "max")
  return differs:item() == 0, other
end

return base.namespace(dist, "dist")
