-- cuda.lua: tl.cuda: devices, their memory, streams, events, profiler ranges and recorded steps.
local base = require "tlua.base"
require "tlua.device"

local ffi, C, tl = base.ffi, base.C, base.tl
local check, fail = base.check, base.fail
local native = ffi.C

local cuda = {}
local CUDA = tonumber(native.TL_CUDA)
local current = 0 -- "cuda" without an index

-- ---- devices ----

--- Is there a CUDA device?
function cuda.is_available() return (tl.device_count("cuda")) > 0 end

--- How many there are; if none, also why.
function cuda.device_count() return tl.device_count("cuda") end

-- A device's number from nil (the current one), an index or a name.
local function device_of(device, op)
  if device == nil then return base.device("cuda", op) end
  if type(device) == "number" then
    base.check_integer(device, op, "a device's index")
    if device < 0 then fail(op .. ": a device's index counts from 0, got " .. device) end
    return base.device("cuda:" .. device, op)
  end
  local number = base.device(device, op)
  if number < CUDA then fail(op .. ": '" .. device .. "' is no CUDA device") end
  return number
end

--- set_device(i): "cuda" without an index means this one from now on (0-based index or "cuda:1").
function cuda.set_device(device)
  if device == nil then fail("set_device: argument 1 must be an index or a name, got nil") end
  local number = device_of(device, "set_device")
  base.use_cuda(number)
  current = number - CUDA
end

--- The index that "cuda" stands for.
function cuda.current_device() return current end

local properties = ffi.new("tl_device_properties")

--- {name=, major=, minor=, multi_processor_count=, warp_size=, total_memory=, shared_memory_per_block=,
--- L2_cache_size=} of a device.
function cuda.get_device_properties(device)
  check(C.tl_device_properties_of(device_of(device, "get_device_properties"), properties))
  local p = properties
  return {
    name = ffi.string(p.name), major = p.major, minor = p.minor, multi_processor_count = p.multiprocessors,
    warp_size = p.warp, total_memory = p.total_memory,
    shared_memory_per_block = p.shared_memory, L2_cache_size = p.l2_cache,
  }
end

function cuda.get_device_name(device)
  check(C.tl_device_properties_of(device_of(device, "get_device_name"), properties))
  return ffi.string(properties.name)
end

--- Its compute capability: major, minor.
function cuda.get_device_capability(device)
  check(C.tl_device_properties_of(device_of(device, "get_device_capability"), properties))
  return properties.major, properties.minor
end

--- Waits for all work of a device. What kernels found wrong (an id out of range) is raised here at the latest.
function cuda.synchronize(device) check(C.tl_synchronize(device_of(device, "synchronize"))) end

--- manual_seed(n): seeds the default generator, which serves all devices.
function cuda.manual_seed(seed) return tl.manual_seed(seed) end
cuda.manual_seed_all = cuda.manual_seed

-- ---- memory ----

local details = ffi.new("tl_memory_details")
local function details_of(device, op)
  check(C.tl_memory_details_of(device_of(device, op), details))
  return details
end

--- Bytes in blocks that are in use, as the allocator rounded them, now and at most.
function cuda.memory_allocated(device) return details_of(device, "memory_allocated").allocated end
function cuda.max_memory_allocated(device) return details_of(device, "max_memory_allocated").allocated_peak end

--- Bytes taken from the device, in use or cached, now and at most.
function cuda.memory_reserved(device) return details_of(device, "memory_reserved").reserved end
function cuda.max_memory_reserved(device) return details_of(device, "max_memory_reserved").reserved_peak end

--- Free and all bytes of the device, as it says itself.
function cuda.mem_get_info(device)
  local d = details_of(device, "mem_get_info")
  return d.device_free, d.device_total
end

function cuda.reset_peak_memory_stats(device)
  check(C.tl_reset_peak_memory(device_of(device, "reset_peak_memory_stats")))
end

--- Gives cached memory back to the device. Waits for it.
function cuda.empty_cache(device) check(C.tl_empty_cache(device_of(device, "empty_cache"))) end

--- Share of the cached memory that its largest block does not cover: 0 when all of it is in one piece.
local function fragmentation(d)
  local cached = d.reserved - d.allocated
  return cached > 0 and 1 - d.largest_free / cached or 0
end

--- All numbers of the allocator as a table.
function cuda.memory_stats(device)
  local d = details_of(device, "memory_stats")
  return {
    allocated = d.allocated, allocated_peak = d.allocated_peak, reserved = d.reserved, reserved_peak = d.reserved_peak,
    cached = d.reserved - d.allocated, largest_free = d.largest_free, fragmentation = fragmentation(d),
    segments = d.segments, blocks = d.blocks, free_blocks = d.free_blocks, device_allocations = d.device_allocations,
    retries = d.retries, device_free = d.device_free, device_total = d.device_total, pinned = d.pinned,
  }
end

--- The same as text.
function cuda.memory_summary(device)
  local number = device_of(device, "memory_summary")
  local d = details_of(device, "memory_summary")
  local function mb(bytes) return ("%.1f MB"):format(bytes / 2 ^ 20) end
  return table.concat({
    ("%s (%s)"):format(base.device_name(number), cuda.get_device_name(device)),
    ("  in use      %12s in %.0f blocks, at most %s"):format(mb(d.allocated), d.blocks, mb(d.allocated_peak)),
    ("  cached      %12s in %.0f blocks, the largest %s, fragmentation %.0f %%"):format(mb(d.reserved - d.allocated),
      d.free_blocks, mb(d.largest_free), 100 * fragmentation(d)),
    ("  reserved    %12s in %.0f segments, at most %s"):format(mb(d.reserved), d.segments, mb(d.reserved_peak)),
    ("  device      %12s of %s are free"):format(mb(d.device_free), mb(d.device_total)),
    ("  allocations %12.0f by the device, %.0f of them after the cache was emptied"):format(d.device_allocations,
      d.retries),
    ("  pinned      %12s of host memory"):format(mb(d.pinned)),
  }, "\n")
end

-- ---- streams ----

local stream_type, event_type = ffi.typeof("tl_stream"), ffi.typeof("tl_event")
local stream_out, event_out = ffi.new("tl_stream *[1]"), ffi.new("tl_event *[1]")

--- s must be a stream: argument n of op. Returns it.
function cuda.check_stream(s, op, n)
  if ffi.istype(stream_type, s) then return s end
  fail(("%s: argument %d must be a stream, got %s"):format(op, n, base.kind(s)))
end
local check_stream = cuda.check_stream

local function check_event(e, op, n)
  if ffi.istype(event_type, e) then return e end
  fail(("%s: argument %d must be an event, got %s"):format(op, n, base.kind(e)))
end

--- Stream{device=, priority=0}: work on it runs beside that of other streams; priority -1: before it.
function cuda.Stream(options)
  local o = base.options("Stream", options, { device = base.optional, priority = 0 })
  check(C.tl_stream_new(device_of(o.device, "Stream"), o.priority < 0, stream_out))
  return ffi.gc(stream_out[0], native.tl_stream_free)
end

--- The stream that work on a device goes to.
function cuda.current_stream(device)
  local number = device_of(device, "current_stream")
  check(C.tl_stream_current(number, stream_out))
  return ffi.gc(stream_out[0], native.tl_stream_free)
end

-- The former stream comes back, whatever happened.
local function finish(number, former, ok, ...)
  check(C.tl_stream_use(number, former, nil))
  if not ok then error((...), 0) end
  return ...
end

--- stream(s, f, ...): f(...) with s as the current stream of its device; returns what f returns.
function cuda.stream(s, f, ...)
  check_stream(s, "stream", 1)
  if type(f) ~= "function" then fail("stream: argument 2 must be a function, got " .. base.kind(f)) end
  local number = native.tl_stream_device(s)
  check(C.tl_stream_use(number, s, stream_out))
  local former = ffi.gc(stream_out[0], native.tl_stream_free)
  return finish(number, former, pcall(f, ...))
end

local Stream = {}

--- s:synchronize() waits for what s holds now; s:query(): is that done?
function Stream.synchronize(s) check(C.tl_stream_synchronize(check_stream(s, "Stream.synchronize", 1))) end

function Stream.query(s)
  check(C.tl_stream_query(check_stream(s, "Stream.query", 1), base.boolean))
  return base.boolean[0]
end

--- s:wait(e): later work of s waits for an event, or for what another stream holds now.
function Stream.wait(s, e)
  check_stream(s, "Stream.wait", 1)
  if ffi.istype(stream_type, e) then check(C.tl_stream_wait_stream(s, e))
  else check(C.tl_stream_wait(s, check_event(e, "Stream.wait", 2))) end
end
Stream.wait_event, Stream.wait_stream = Stream.wait, Stream.wait

--- s:record_event(e?): records e, or a new event; returns it.
function Stream.record_event(s, e)
  e = e or cuda.Event()
  check(C.tl_event_record(check_event(e, "Stream.record_event", 2), check_stream(s, "Stream.record_event", 1)))
  return e
end

ffi.metatype(stream_type, {
  __index = function(s, key)
    if key == "device" then return base.device_name(native.tl_stream_device(s)) end
    local name = tostring(key)
    return Stream[key] or fail(("there is no %s of streams%s"):format(name, base.suggestion(name, Stream)))
  end,
  __tostring = function(s) return "tl.cuda.Stream(" .. s.device .. ")" end,
})

-- ---- events ----

--- Event{timing=false}: a mark in a stream's work.
function cuda.Event(options)
  check(C.tl_event_new(base.flag("Event", options, "timing"), event_out))
  return ffi.gc(event_out[0], native.tl_event_free)
end

local Event = {}

--- e:record(s?): e stands for what the stream (the current one) holds now.
function Event.record(e, s)
  check_event(e, "Event.record", 1)
  check(C.tl_event_record(e, check_stream(s or cuda.current_stream(), "Event.record", 2)))
end

--- e:wait(s?): later work of the stream (the current one) waits for e.
function Event.wait(e, s)
  check_event(e, "Event.wait", 1)
  check(C.tl_stream_wait(check_stream(s or cuda.current_stream(), "Event.wait", 2), e))
end

--- e:query(): is the work that it stands for done? e:synchronize() waits for it.
function Event.query(e)
  check(C.tl_event_query(check_event(e, "Event.query", 1), base.boolean))
  return base.boolean[0]
end

function Event.synchronize(e) check(C.tl_event_synchronize(check_event(e, "Event.synchronize", 1))) end

--- a:elapsed(b): milliseconds from a to b, both made with timing and done.
function Event.elapsed(a, b)
  check_event(a, "Event.elapsed", 1)
  check(C.tl_event_elapsed(a, check_event(b, "Event.elapsed", 2), base.number))
  return base.number[0]
end
Event.elapsed_time = Event.elapsed

ffi.metatype(event_type, {
  __index = function(_, key)
    local name = tostring(key)
    return Event[key] or fail(("there is no %s of events%s"):format(name, base.suggestion(name, Event)))
  end,
  __tostring = function() return "tl.cuda.Event" end,
})

-- ---- profiler ranges ----

local nvtx = {}

local function range_pop(...)
  native.tl_range_pop()
  return ...
end

--- nvtx.range_push(name), nvtx.range_pop(): a range on a profiler's time line; nvtx.range(name, f, ...): f(...) in one.
function nvtx.range_push(name)
  if type(name) ~= "string" then fail("range_push: argument 1 must be a string, got " .. base.kind(name)) end
  native.tl_range_push(name)
end

function nvtx.range_pop() native.tl_range_pop() end

function nvtx.range(name, f, ...)
  nvtx.range_push(name)
  return range_pop(f(...))
end

cuda.nvtx = base.namespace(nvtx, "tl.cuda.nvtx")

-- ---- the namespace: allow_tf32 is a field ----

base.namespace(cuda, "tl.cuda", { graph = "tlua.graph" })
local meta = getmetatable(cuda)
local lookup = meta.__index

function meta.__index(t, key)
  if key == "allow_tf32" then return native.tl_tf32_allowed() end
  return lookup(t, key)
end

function meta.__newindex(t, key, value)
  if key ~= "allow_tf32" then
    rawset(t, key, value)
    return
  end
  if type(value) ~= "boolean" then fail("allow_tf32: must be true or false, got " .. base.kind(value)) end
  native.tl_allow_tf32(value)
end

return cuda
