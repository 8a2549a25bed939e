-- graph.lua: tl.cuda.graph: a training step, recorded once and replayed.
local base = require "tlua.base"

local ffi, C = base.ffi, base.C
local check, fail = base.check, base.fail
local native = ffi.C

local graph_out = ffi.new("tl_graph *[1]")

-- The recording is ended whatever happened; an error of f is raised as it was.
local function finish(handle, ok, ...)
  if not ok then
    graph_out[0] = handle
    native.tl_graph_end(graph_out, false)
    error((...), 0)
  end
  graph_out[0] = handle
  check(C.tl_graph_end(graph_out, true))
  return { n = select("#", ...), ... }
end

--- graph(f, {warmup=3, device=}): runs f() warmup times (real steps: the first makes gradients, optimizer state and
--- what libraries keep), records one more run without running it, and returns step: step() replays it and returns what
--- f returned, the same tensors with new values.
return function(f, options)
  if type(f) ~= "function" then fail("graph: argument 1 must be a function, got " .. base.kind(f)) end
  local o = base.options("graph", options, { warmup = 3, device = "cuda" })
  base.check_integer(o.warmup, "graph", "warmup")
  if o.warmup < 1 then fail("graph: warmup must be at least 1: the first run makes what later ones use") end
  local device = base.device(o.device, "graph")
  for _ = 1, o.warmup do f() end
  base.collect() -- what is dead now would be kept as long as the graph
  check(C.tl_graph_begin(device, graph_out))
  local handle = graph_out[0]
  local results = finish(handle, pcall(f))
  ffi.gc(handle, native.tl_graph_free)
  return function()
    check(C.tl_graph_replay(handle))
    local _ = f -- holds the tensors that the recording works on
    return unpack(results, 1, results.n)
  end
end
