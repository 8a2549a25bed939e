-- device.lua: threads, devices and memory.
local base = require "tlua.base"

local ffi, C, tl = base.ffi, base.C, base.tl
local check = base.check

--- tl.set_num_threads(n): threads of the CPU kernels.
function tl.set_num_threads(n)
  base.check_integer(n, "set_num_threads", "the number of threads")
  check(C.tl_set_num_threads(n))
end

function tl.get_num_threads() return ffi.C.tl_get_num_threads() end

--- The engine's version, "0.1.0".
tl.version = ffi.string(ffi.C.tl_version())

--- The instruction set whose CPU kernels run, e.g. "x86-64-v4".
function tl.cpu_kernel_set() return ffi.string(ffi.C.tl_cpu_kernel_set()) end

--- tl.device_count("cuda"): how many there are; if none, also why.
function tl.device_count(kind)
  if type(kind) ~= "string" then
    base.fail("device_count: argument 1 must be \"cpu\" or \"cuda\", got " .. base.kind(kind))
  end
  local why = ffi.new("const char *[1]")
  local n = ffi.C.tl_device_count(kind, why)
  if n == 0 then return 0, why[0] ~= nil and ffi.string(why[0]) or nil end
  return n
end

local stats = ffi.new("tl_memory_stats")

--- tl.memory(device): bytes {live=, peak=, cached=, soft_limit=} and live tensor handles {tensors=} ("cpu" by default).
function tl.memory(device)
  check(C.tl_memory(device and base.device(device, "memory") or 0, stats))
  return {
    live = stats.live, peak = stats.peak, cached = stats.cached, soft_limit = stats.soft_limit, tensors = stats.tensors,
  }
end

--- tl.reset_peak_memory(device): peak starts again from what is live.
function tl.reset_peak_memory(device)
  check(C.tl_reset_peak_memory(device and base.device(device, "reset_peak_memory") or 0))
end

--- tl.empty_cache(device): gives cached memory back to the system.
function tl.empty_cache(device) check(C.tl_empty_cache(device and base.device(device, "empty_cache") or 0)) end
