-- cuda.lua: what the REPL's ?name shows of tl.cuda: pure data.
return {
  ["tl.cuda"] = [[
CUDA devices: their memory, streams, events, recorded steps. Tensors get there by {device="cuda"} or x:to("cuda").
Work on a GPU is asynchronous: an operation returns when its work was handed over; item(), tolist(), print and copies to
the CPU wait. An id that a kernel found out of range is raised by the next call that waits.
tl.cuda.allow_tf32 = true lets float32 products and convolutions use the matrix units (10 bits of mantissa).
Environment: TLUA_CUDA=sim runs on a simulated GPU, TLUA_SYNC=1 waits after every kernel (to find the guilty one),
TLUA_NVTX=1 shows modules and backward nodes on NVIDIA's profilers, CUDA_VISIBLE_DEVICES chooses GPUs.]],
  ["tl.cuda.is_available"] = "is_available(): is there a CUDA device?",
  ["tl.cuda.device_count"] = "device_count(): how many CUDA devices there are; if none, also why.",
  ["tl.cuda.get_device_name"] = "get_device_name(i?): the name of a device (0-based index, name, or the current one).",
  ["tl.cuda.get_device_properties"] = [[
get_device_properties(i?): {name=, major=, minor=, multi_processor_count=, warp_size=, total_memory=,
shared_memory_per_block=, L2_cache_size=}.]],
  ["tl.cuda.get_device_capability"] = "get_device_capability(i?): compute capability, two numbers.",
  ["tl.cuda.set_device"] = 'set_device(i): "cuda" without an index means device i (from 0) from now on.',
  ["tl.cuda.current_device"] = 'current_device(): the index that "cuda" stands for.',
  ["tl.cuda.synchronize"] = "synchronize(i?): waits for all work of the device, and raises what kernels found wrong.",
  ["tl.cuda.manual_seed"] = "manual_seed(n): the same as tl.manual_seed: one default generator serves all devices.",
  ["tl.cuda.memory_allocated"] = "memory_allocated(i?): bytes in blocks that are in use, rounded to 512.",
  ["tl.cuda.max_memory_allocated"] = "max_memory_allocated(i?): its largest value since reset_peak_memory_stats().",
  ["tl.cuda.memory_reserved"] = "memory_reserved(i?): bytes taken from the device: in use or cached for reuse.",
  ["tl.cuda.max_memory_reserved"] = "max_memory_reserved(i?): its largest value since reset_peak_memory_stats().",
  ["tl.cuda.mem_get_info"] = "mem_get_info(i?): free and all bytes of the device, as it says itself.",
  ["tl.cuda.reset_peak_memory_stats"] = "reset_peak_memory_stats(i?): peaks start again from what is in use.",
  ["tl.cuda.empty_cache"] = "empty_cache(i?): waits for the device and gives cached memory back to it.",
  ["tl.cuda.memory_stats"] = "memory_stats(i?): the allocator's numbers as a table; memory_summary(i?) as text.",
  ["tl.cuda.memory_summary"] = "memory_summary(i?): what is in use, cached, reserved; fragmentation; device calls.",
  ["tl.cuda.Stream"] = [[
Stream{device=, priority=0}: work on it runs beside other streams' (priority=-1: before it). Methods: synchronize(),
query(), wait(event or stream), record_event(e?). Tensors made on one stream and used on another: s:wait(), and
x:record_stream(s) before x is let go.]],
  ["tl.cuda.Event"] = [[
Event{timing=false}: a mark in a stream's work: record(stream?), wait(stream?), query(), synchronize(),
a:elapsed(b) in milliseconds (both with timing=true).]],
  ["tl.cuda.stream"] = "stream(s, f, ...): f(...) with s as the current stream.",
  ["tl.cuda.current_stream"] = "current_stream(i?): the stream that work on the device goes to.",
  ["tl.cuda.graph"] = [[
local step = tl.cuda.graph(f, {warmup=3}): runs f() warmup times (real steps), records one more without running it.
step() replays it with one call and returns what f returned: the same tensors, new values. Input is copied into the
tensors that f reads: x:copy_(batch). Changed learning rates count, dropout draws new numbers, a GradScaler adapts.
Errors: values for the host (item), copies from it, an optimizer's first step, generators of one's own inside of f;
momentum that becomes or was 0, new parameter groups afterwards. Tensors that f used stay as long as step.]],
  ["tl.cuda.nvtx"] = "nvtx.range_push(name), range_pop(), range(name, f, ...): ranges in NVIDIA's profilers.",
}
