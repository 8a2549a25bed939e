-- compact.lua: prune.compact: a copy of a model without the channels that pruning made useless.
local base = require "tlua.base"
local registry = require "tlua.nn.registry"
local masks = require "tlua.nn.prune.masks"
local wiring = require "tlua.nn.prune.wiring"
local choice = require "tlua.nn.prune.choice"
local cut = require "tlua.nn.prune.cut"
local ffi, C, check, wrap, out, fail = base.ffi, base.C, base.check, base.wrap, base.out, base.fail

-- ---- one forward pass, traced ----

local nn = base.tl.nn

local function may_be_cut(m)
  return m:is_a(nn.Linear) or m:is_a(nn.Conv1d) or m:is_a(nn.Conv2d) or m:is_a(nn.BatchNorm1d)
    or m:is_a(nn.BatchNorm2d) or m:is_a(nn.BatchNorm3d) or m:is_a(nn.SyncBatchNorm)
end

local trace_out = ffi.new("tl_trace *[1]")

-- Remembers in owners[i] the layer that called operation i (from 0).
local function watch(m, trace, owners)
  local handles, begin = {}, {}
  registry.each_module(m, function(_, layer)
    if not may_be_cut(layer) then return end
    handles[#handles + 1] = layer:register_forward_pre_hook(function() begin[layer] = C.tl_trace_length(trace) end)
    handles[#handles + 1] = layer:register_forward_hook(function()
      for i = begin[layer], C.tl_trace_length(trace) - 1 do owners[i] = layer end
    end)
  end)
  return handles
end

local function tensors_of(trace, i, first, n)
  local list = {}
  for k = first, first + n - 1 do
    check(C.tl_trace_tensor(trace, i, k, out))
    list[#list + 1] = base.wrap_optional(out[0])
  end
  return list
end

local function list_operations(trace, owners)
  local ops = {}
  for i = 0, C.tl_trace_length(trace) - 1 do
    local inputs = C.tl_trace_inputs(trace, i)
    ops[i + 1] = {
      name = ffi.string(C.tl_trace_op(trace, i)), owner = owners[i],
      inputs = tensors_of(trace, i, 0, inputs),
      outputs = tensors_of(trace, i, inputs, C.tl_trace_outputs(trace, i)),
    }
  end
  return ops
end

-- Floating arguments get a history, so that everything that is computed from them is recorded; the copy may be changed
-- in place.
local function as_input(t)
  if not base.is_tensor(t) or C.tl_dtype_of(t) > C.TL_FLOAT64 then return t end
  check(C.tl_detach(t, out))
  local leaf = wrap(out[0])
  check(C.tl_set_requires_grad(leaf, true))
  return leaf:clone()
end

local function trace_forward(m, example)
  local arguments = {}
  local recording = C.tl_set_grad_enabled(true)
  for i = 1, example.n do arguments[i] = as_input(example[i]) end
  check(C.tl_trace_begin(trace_out))
  local trace, owners = ffi.gc(trace_out[0], C.tl_trace_free), {}
  local handles = watch(m, trace, owners)
  local ok, result = pcall(m, unpack(arguments, 1, example.n))
  local status = C.tl_trace_end(trace)
  C.tl_set_grad_enabled(recording)
  for _, handle in ipairs(handles) do handle:remove() end
  if not ok then error(result, 0) end
  check(status)
  local ops = list_operations(trace, owners)
  C.tl_trace_free(ffi.gc(trace, nil))
  return ops, result
end

-- ---- the copy ----

-- The masks of a model, taken out of it: module -> name -> mask.
local function bake(m)
  local all = {}
  registry.each_module(m, function(_, below)
    local names = {}
    for i, entry in ipairs(masks.list(below)) do names[i] = entry.name end
    for _, name in ipairs(names) do
      all[below] = all[below] or {}
      all[below][name] = masks.current(below, name)
      masks.remove(below, name)
    end
  end)
  return all
end

-- Single weights that are still masked stay so. Reported, since nothing got smaller by them.
local function restore_masks(all, names, kept)
  for m, list in pairs(all) do
    for name, mask in pairs(list) do
      local zeros = mask:eq(0):sum():item()
      if zeros > 0 then
        masks.set(m, name, mask)
        masks.refresh(m)
        kept[#kept + 1] = {
          layer = names[m] .. "." .. name, weights = zeros, reason = "single weights: only whole channels can leave",
        }
      end
    end
  end
end

local function forward(m, example)
  local recording = C.tl_set_grad_enabled(false)
  local ok, y = pcall(m, unpack(example, 1, example.n))
  C.tl_set_grad_enabled(recording)
  if not ok then error(y, 0) end
  return y
end

local function modes_of(m)
  local list = {}
  registry.each_module(m, function(_, below) list[#list + 1] = below.training end)
  return list
end

local function set_modes(m, list)
  local i = 0
  registry.each_module(m, function(_, below)
    i = i + 1
    below.training = list[i]
  end)
end

local CLOSE = 1e-5

-- The smaller model must compute the same.
local function verify(small, example, expected)
  local ok, y = pcall(forward, small, example)
  if not ok then
    fail("compact: the smaller model does not run on the example (does its forward name a size?): " .. tostring(y))
  end
  local scale = math.max(1, expected:abs():max():item())
  local difference = (y:to("float64") - expected:to("float64")):abs():max():item() / scale
  local close = C.tl_dtype_of(expected) == C.TL_FLOAT32 or C.tl_dtype_of(expected) == C.TL_FLOAT64
  if not (difference <= (close and CLOSE or 1e-2)) then
    fail(("compact: the smaller model's output is off by %.3g: something in its forward is not recorded"):format(
      difference))
  end
  return difference
end

-- ---- the report ----

local Report = {}
Report.__index = Report

function Report:__tostring()
  local lines = {}
  for _, l in ipairs(self.layers) do
    lines[#lines + 1] = ("%-24s %6d -> %d channels"):format(l.name, l.before, l.after)
  end
  lines[#lines + 1] = ("%d -> %d parameters, %d -> %d bytes"):format(self.parameters_before, self.parameters,
    self.bytes_before, self.bytes)
  for _, k in ipairs(self.kept) do
    lines[#lines + 1] = ("stays: %s, %d %s: %s"):format(k.layer, k.channels or k.weights,
      k.channels and "channels" or "weights", k.reason)
  end
  return table.concat(lines, "\n")
end

local function layers_of(w, gone)
  local list = {}
  for _, layer in ipairs(w.order) do
    if layer.used then
      local after = 0
      for _, u in ipairs(layer.units) do
        if not gone[wiring.find(u)] then after = after + 1 end
      end
      list[#list + 1] = { name = layer.name, before = #layer.units, after = after }
    end
  end
  return list
end

local function names_of(m)
  local names = {}
  registry.each_module(m, function(name, below) names[below] = name == "" and below._name or name end)
  return names
end

--- compact(model, {example=x}): a smaller copy of the model that computes the same in eval mode, and a report. example
--- is an input of the model, or a list of its arguments.
local function compact(model, options)
  if not registry.is_module(model) then fail("compact: argument 1 must be a module, got " .. base.kind(model)) end
  local o = base.options("compact", options, { example = base.optional })
  if o.example == nil then fail("compact: needs an input to trace: prune.compact(model, {example=x})") end
  local example = o.example
  if base.is_tensor(example) then example = { n = 1, example } end
  if type(example) ~= "table" then fail("compact: the example is a tensor or a list, got " .. base.kind(example)) end
  example.n = example.n or #example

  local small = model:clone()
  local modes = modes_of(small)
  local removed = bake(small)
  small:eval()
  local expected = forward(small, example)
  if not base.is_tensor(expected) then
    fail("compact: the model must return one tensor, got " .. base.kind(expected))
  end
  local report = setmetatable({}, Report)
  report.parameters_before, report.bytes_before = cut.measure(small)
  local names = names_of(small)
  local ops, result = trace_forward(small, example)
  local w = wiring.read(ops, result, names)
  local gone, reasons = choice.make(w)
  report.layers, report.kept = layers_of(w, gone), choice.kept(w, gone, reasons)
  cut.apply(w, gone, removed)
  report.difference = verify(small, example, expected)
  report.parameters, report.bytes = cut.measure(small)
  restore_masks(removed, names, report.kept)
  set_modes(small, modes)
  return small, report
end

return compact
