-- norm.lua: normalisation of each sample by itself: LayerNorm, GroupNorm, RMSNorm.
local base = require "tlua.base"
local Module = require("tlua.nn.module").Module
local support = require "tlua.nn.support"
local C, wrap, out, check_tensor = base.C, base.wrap, base.out, base.check_tensor

-- ---- over the last dims ----

local function normalized_shape(name, shape)
  if type(shape) ~= "table" then shape = { shape } end
  if #shape == 0 then base.fail(name .. ": normalized_shape needs at least one size") end
  return support.sizes(name, "normalized_shape", shape, #shape)
end

local function ends_with(x, shape)
  local first = C.tl_ndim(x) - #shape
  if first < 0 then return false end
  for i = 1, #shape do
    if C.tl_size(x, first + i - 1) ~= shape[i] then return false end
  end
  return true
end

local function reject(self, x, status)
  local shape = self.normalized_shape
  support.reject(self, status, x, ends_with(x, shape), ("(..x%s)"):format(table.concat(shape, "x")))
end

local LayerNorm = Module:extend("LayerNorm")

--- (x - mean) / sqrt(var + eps) * weight + bias over the last dims, which have the sizes normalized_shape (a number
--- or a list). Ba, Kiros & Hinton 2016.
function LayerNorm:init(shape, options)
  local o = base.options("LayerNorm", options,
    { eps = 1e-5, elementwise_affine = true, bias = true, dtype = "float32", device = base.optional })
  self.normalized_shape = normalized_shape("LayerNorm", shape)
  self.eps, self.elementwise_affine = o.eps, o.elementwise_affine
  rawset(self, "_shape", support.array(self.normalized_shape))
  local dtype, device = support.placement("LayerNorm", o)
  local affine = o.elementwise_affine
  self:register_parameter("weight", affine and support.constant(self.normalized_shape, 1, dtype, device) or nil)
  self:register_parameter("bias",
    affine and o.bias and support.constant(self.normalized_shape, 0, dtype, device) or nil)
end

function LayerNorm:forward(x)
  check_tensor(x, "LayerNorm", 1)
  local status = C.tl_layer_norm(x, #self.normalized_shape, self._shape, self.weight, self.bias, self.eps, out)
  if status ~= 0 then reject(self, x, status) end
  return wrap(out[0])
end

function LayerNorm:extra_repr()
  return table.concat(self.normalized_shape, "x") .. (self.eps ~= 1e-5 and (", eps=%g"):format(self.eps) or "")
    .. (self.elementwise_affine and (not self.bias and ", bias=false" or "") or ", elementwise_affine=false")
end

local RMSNorm = Module:extend("RMSNorm")

--- x / sqrt(mean(x^2) + eps) * weight over the last dims. Without eps it is the machine epsilon of x's dtype.
function RMSNorm:init(shape, options)
  local o = base.options("RMSNorm", options,
    { eps = base.optional, elementwise_affine = true, dtype = "float32", device = base.optional })
  if o.eps ~= nil then base.check_number(o.eps, "RMSNorm", "option 'eps'") end
  self.normalized_shape = normalized_shape("RMSNorm", shape)
  self.eps, self.elementwise_affine = o.eps, o.elementwise_affine
  rawset(self, "_shape", support.array(self.normalized_shape))
  local dtype, device = support.placement("RMSNorm", o)
  self:register_parameter("weight",
    o.elementwise_affine and support.constant(self.normalized_shape, 1, dtype, device) or nil)
end

function RMSNorm:forward(x)
  check_tensor(x, "RMSNorm", 1)
  local eps = self.eps or support.epsilon(x)
  local status = C.tl_rms_norm(x, #self.normalized_shape, self._shape, self.weight, eps, out)
  if status ~= 0 then reject(self, x, status) end
  return wrap(out[0])
end

function RMSNorm:extra_repr()
  return table.concat(self.normalized_shape, "x") .. (self.eps and (", eps=%g"):format(self.eps) or "")
    .. (self.elementwise_affine and "" or ", elementwise_affine=false")
end

-- ---- over groups of channels ----

local GroupNorm = Module:extend("GroupNorm")

--- Normalises each of num_groups groups of channels of (N, C, ..) by itself. Wu & He 2018.
function GroupNorm:init(num_groups, num_channels, options)
  local o = base.options("GroupNorm", options, { eps = 1e-5, affine = true, dtype = "float32", device = base.optional })
  self.num_groups = support.size("GroupNorm", "num_groups", num_groups)
  self.num_channels = support.size("GroupNorm", "num_channels", num_channels)
  if num_channels % num_groups ~= 0 then
    base.fail(("GroupNorm: %d channels cannot be divided into %d groups"):format(num_channels, num_groups))
  end
  self.eps, self.affine = o.eps, o.affine
  local dtype, device = support.placement("GroupNorm", o)
  self:register_parameter("weight", o.affine and support.constant({ num_channels }, 1, dtype, device) or nil)
  self:register_parameter("bias", o.affine and support.constant({ num_channels }, 0, dtype, device) or nil)
end

local function reject_channels(self, x, status)
  local fits = C.tl_ndim(x) >= 2 and C.tl_size(x, 1) == self.num_channels
  support.reject(self, status, x, fits, ("(Nx%d..)"):format(self.num_channels))
end

function GroupNorm:forward(x)
  check_tensor(x, "GroupNorm", 1)
  if C.tl_ndim(x) < 2 or C.tl_size(x, 1) ~= self.num_channels then reject_channels(self, x, C.TL_ERR_SHAPE) end
  local status = C.tl_group_norm(x, self.num_groups, self.weight, self.bias, self.eps, out)
  if status ~= 0 then reject_channels(self, x, status) end
  return wrap(out[0])
end

function GroupNorm:extra_repr()
  return ("%d, %d%s%s"):format(self.num_groups, self.num_channels,
    self.eps ~= 1e-5 and (", eps=%g"):format(self.eps) or "", self.affine and "" or ", affine=false")
end

return { LayerNorm = LayerNorm, RMSNorm = RMSNorm, GroupNorm = GroupNorm }
