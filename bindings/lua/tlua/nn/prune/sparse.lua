-- sparse.lua: prune.sparse: a copy of a model for inference on the CPU whose very sparse Linear layers keep only the
-- weights that are not 0, in compressed rows.
local base = require "tlua.base"
local registry = require "tlua.nn.registry"
local support = require "tlua.nn.support"
local masks = require "tlua.nn.prune.masks"
local Module = require("tlua.nn.module").Module
local tl = base.tl
local ffi, C, check, wrap, out, fail = base.ffi, base.C, base.check, base.wrap, base.out, base.fail

-- ---- the layer ----

local SparseLinear = Module:extend("SparseLinear")

-- values, columns, first: see tl_sparse_rows. All of it are buffers: nothing here is trained.
function SparseLinear:init(in_features, out_features, parts)
  self.in_features, self.out_features = in_features, out_features
  self:register_buffer("weight_values", parts.values)
  self:register_buffer("weight_columns", parts.columns)
  self:register_buffer("weight_first", parts.first)
  self:register_buffer("bias", parts.bias)
  self.training = false
end

function SparseLinear:forward(x)
  base.check_tensor(x, "SparseLinear", 1)
  if self.training then
    fail(self:label() .. ": a sparse layer is for inference: call model:eval(); train the model that it was made of")
  end
  local status = C.tl_sparse_linear(x, self.weight_values, self.weight_columns, self.weight_first, self.bias,
    self.in_features, out)
  if status ~= 0 then
    local n = C.tl_ndim(x)
    support.reject(self, status, x, n > 0 and C.tl_size(x, n - 1) == self.in_features,
      ("(..x%d)"):format(self.in_features))
  end
  return wrap(out[0])
end

function SparseLinear:extra_repr()
  return ("%d, %d%s, %d weights"):format(self.in_features, self.out_features, not self.bias and ", bias=false" or "",
    C.tl_numel(self.weight_values))
end

local parts_out = ffi.new("tl_tensor *[3]")

local function compressed(layer)
  check(C.tl_sparse_rows(layer.weight, parts_out, parts_out + 1, parts_out + 2))
  local parts = { values = wrap(parts_out[0]), columns = wrap(parts_out[1]), first = wrap(parts_out[2]) }
  parts.bias = layer.bias and layer.bias:detach()
  return parts
end

-- ---- where it pays ----

-- The share of zeros from which on compressed rows are faster than the dense product, as scripts/bench_csr.c measures
-- it (docs/pruning.md has its table): for layers of so many weights at most, in calls of so many samples at least.
local cross_over = {
  { weights = 256 * 256, [1] = 0.97, [4] = 0.95, [16] = 0.9 },
  { weights = 512 * 512, [1] = 0.95, [4] = 0.95, [16] = 0.8 },
  { weights = math.huge, [1] = 0.9, [4] = 0.85, [16] = 0.75 },
}

local function worth(weights, batch)
  local samples = batch >= 16 and 16 or batch >= 4 and 4 or 1
  for _, row in ipairs(cross_over) do
    if weights <= row.weights then return row[samples] end
  end
end

-- ---- the copy ----

-- Puts other modules in the place of some: replacement(module, name) is one, or nil.
local function replace(m, replacement)
  local made = {}
  local function new(child, name)
    if made[child] == nil then made[child] = replacement(child, name) or false end
    return made[child]
  end
  local root = new(m, "")
  if root then return root end
  registry.each_module(m, function(prefix, parent)
    registry.each_own(parent, "module", function(own, child, field)
      local other = new(child, prefix == "" and own or prefix .. "." .. own)
      if other then rawset(parent, field, other) end
    end)
  end)
  return m
end

local Linear = tl.nn.Linear

local function zeros_of(layer) return masks.effective(layer, "weight"):eq(0):sum():item() end

-- Why a Linear layer stays as it is; nil if it does not.
local function reason_against(layer, zeros, total, least)
  local w = masks.original(layer, "weight")
  local device = C.tl_device_of(w)
  if device ~= C.TL_CPU then return ("on %s: only the CPU has it"):format(base.device_name(device)) end
  if C.tl_dtype_of(w) ~= C.TL_FLOAT32 then
    return base.dtype_names[C.tl_dtype_of(w)] .. ": only float32 has it"
  end
  if total == 0 or zeros / total < least then
    return ("dense is faster below %.0f %% zeros"):format(100 * least)
  end
end

local function in_rows(layer)
  local names = {}
  for i, entry in ipairs(masks.list(layer)) do names[i] = entry.name end
  for _, name in ipairs(names) do masks.remove(layer, name) end
  local other = SparseLinear(layer.in_features, layer.out_features, compressed(layer))
  rawset(other, "_hooks", layer._hooks)
  return other
end

-- ---- the report ----

local Report = {}
Report.__index = Report

function Report:__tostring()
  local lines = {}
  for _, row in ipairs(self) do
    lines[#lines + 1] = ("%-24s %6.2f %% of %d zero  %s"):format(row.name, 100 * row.sparsity, row.total,
      row.sparse and "sparse" or "dense: " .. row.reason)
  end
  lines[#lines + 1] = ("%d -> %d bytes"):format(self.bytes_before, self.bytes)
  return table.concat(lines, "\n")
end

local function bytes_of(m)
  local n = 0
  registry.each_state(m, function(_, t) n = n + C.tl_numel(t) * tonumber(C.tl_dtype_size(C.tl_dtype_of(t))) end)
  return n
end

-- ---- from a state dict ----

-- A layer for the tensors that the state dict has of it; what they hold is loaded afterwards.
local function as_in(state, layer, name)
  local prefix = name == "" and "" or name .. "."
  local values, first = state[prefix .. "weight_values"], state[prefix .. "weight_first"]
  if values == nil then return nil end
  if not base.is_tensor(values) then fail(("sparse: '%sweight_values' must be a tensor"):format(prefix)) end
  if not base.is_tensor(first) then fail(("sparse: the state has no tensor '%sweight_first'"):format(prefix)) end
  local n = C.tl_numel(values)
  local function zeros(count, dtype) return support.full({ count }, 0, dtype, C.TL_CPU) end
  return SparseLinear(layer.in_features, layer.out_features, {
    values = zeros(n, C.TL_FLOAT32), columns = zeros(n, C.TL_INT32),
    first = zeros(layer.out_features + 1, C.TL_INT32), bias = layer.bias and zeros(layer.out_features, C.TL_FLOAT32),
  })
end

local function from_state(model, state)
  if type(state) ~= "table" then fail("sparse: a state dict is a table, got " .. base.kind(state)) end
  local copy = replace(model:clone(), function(layer, name)
    if getmetatable(layer) == Linear then return as_in(state, layer, name) end
  end)
  copy:load_state_dict(state)
  return copy:eval()
end

local function check_options(o)
  support.size("sparse", "batch", o.batch)
  if o.least == nil then return end
  base.check_number(o.least, "sparse", "least")
  if not (o.least >= 0 and o.least <= 1) then
    fail(("sparse: least is a share from 0 to 1, got %g"):format(o.least))
  end
end

--- sparse(model, {batch=1, least=, state=}): a copy of the model in eval mode whose Linear layers with enough zeros are
--- kept in compressed rows, and a report. batch: how many samples a call will have; least: the share of zeros from
--- which on a layer is taken, in place of the measured one. state: the layers become what this state dict of such a
--- copy has.
local function sparse(model, options)
  if not registry.is_module(model) then fail("sparse: argument 1 must be a module, got " .. base.kind(model)) end
  local o = base.options("sparse", options, { batch = 1, least = base.optional, state = base.optional })
  check_options(o)
  if o.state ~= nil then return from_state(model, o.state) end
  local report = setmetatable({ bytes_before = bytes_of(model) }, Report)
  local copy = masks.unrecorded(function()
    return replace(model:clone(), function(layer, name)
      if getmetatable(layer) ~= Linear then return nil end
      local total, zeros = C.tl_numel(masks.original(layer, "weight")), zeros_of(layer)
      local reason = reason_against(layer, zeros, total, o.least or worth(total, o.batch))
      report[#report + 1] = {
        name = name == "" and layer._name or name, zeros = zeros, total = total,
        sparsity = total > 0 and zeros / total or 0, sparse = reason == nil, reason = reason,
      }
      return reason == nil and in_rows(layer) or nil
    end)
  end)
  report.bytes = bytes_of(copy)
  return copy:eval(), report
end

return sparse
