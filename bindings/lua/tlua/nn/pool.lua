-- pool.lua: pooling.
local base = require "tlua.base"
local Module = require("tlua.nn.module").Module
local support = require "tlua.nn.support"
local C, check, wrap, out, check_tensor = base.C, base.check, base.wrap, base.out, base.check_tensor

-- Pooling takes (N, C, H, W), or (C, H, W) as a batch of one.
local function enter(x, name)
  check_tensor(x, name, 1)
  if C.tl_ndim(x) ~= 3 then return x, false end
  check(C.tl_unsqueeze(x, 0, out))
  return wrap(out[0]), true
end

local function leave(self, x, single, status)
  if status ~= 0 then support.reject(self, status, x, C.tl_ndim(x) == 4, "(NxCxHxW)") end
  local y = wrap(out[0])
  if not single then return y end
  check(C.tl_squeeze(y, 0, out))
  return wrap(out[0])
end

local function geometry(self, kernel_size, o)
  local name = self._name
  self.kernel_size = support.sizes(name, "kernel_size", kernel_size, 2)
  self.stride = support.sizes(name, "stride", o.stride or kernel_size, 2)
  self.padding = support.sizes(name, "padding", o.padding or 0, 2, 0)
  self.ceil_mode = o.ceil_mode
  for _, key in ipairs { "kernel_size", "stride", "padding" } do rawset(self, "_" .. key, support.array(self[key])) end
end

local function spell(self)
  local text = "kernel_size=" .. support.spell(self.kernel_size)
  local stride, padding = support.spell(self.stride), support.spell(self.padding)
  if stride ~= support.spell(self.kernel_size) then text = text .. ", stride=" .. stride end
  if padding ~= "0" then text = text .. ", padding=" .. padding end
  return text .. (self.ceil_mode and ", ceil_mode=true" or "")
end

local MaxPool2d = Module:extend("MaxPool2d")

--- The largest value under a kernel_size window that moves by stride (kernel_size unless given); padding counts as
--- -inf.
function MaxPool2d:init(kernel_size, options)
  local o = base.options("MaxPool2d", options, {
    stride = base.optional, padding = base.optional, dilation = base.optional, ceil_mode = false,
  })
  geometry(self, kernel_size, o)
  self.dilation = support.sizes("MaxPool2d", "dilation", o.dilation or 1, 2)
  rawset(self, "_dilation", support.array(self.dilation))
end

function MaxPool2d:forward(x)
  local input, single = enter(x, "MaxPool2d")
  return leave(self, input, single,
    C.tl_max_pool2d(input, self._kernel_size, self._stride, self._padding, self._dilation, self.ceil_mode, out))
end

function MaxPool2d:extra_repr()
  local dilation = support.spell(self.dilation)
  return spell(self) .. (dilation ~= "1" and ", dilation=" .. dilation or "")
end

local AvgPool2d = Module:extend("AvgPool2d")

--- The mean under a kernel_size window; count_include_pad=false leaves the padding out of the count.
function AvgPool2d:init(kernel_size, options)
  local o = base.options("AvgPool2d", options,
    { stride = base.optional, padding = base.optional, ceil_mode = false, count_include_pad = true })
  geometry(self, kernel_size, o)
  self.count_include_pad = o.count_include_pad
end

function AvgPool2d:forward(x)
  local input, single = enter(x, "AvgPool2d")
  return leave(self, input, single,
    C.tl_avg_pool2d(input, self._kernel_size, self._stride, self._padding, self.ceil_mode, self.count_include_pad, out))
end

function AvgPool2d:extra_repr() return spell(self) .. (self.count_include_pad and "" or ", count_include_pad=false") end

local AdaptiveAvgPool2d = Module:extend("AdaptiveAvgPool2d")

--- Means over windows chosen so that the result is output_size: a number, or {H, W}.
function AdaptiveAvgPool2d:init(output_size, extra)
  base.no_more("AdaptiveAvgPool2d", extra)
  self.output_size = support.sizes("AdaptiveAvgPool2d", "output_size", output_size, 2)
end

function AdaptiveAvgPool2d:forward(x)
  local input, single = enter(x, "AdaptiveAvgPool2d")
  return leave(self, input, single, C.tl_adaptive_avg_pool2d(input, self.output_size[1], self.output_size[2], out))
end

function AdaptiveAvgPool2d:extra_repr() return support.spell(self.output_size) end

return { MaxPool2d = MaxPool2d, AvgPool2d = AvgPool2d, AdaptiveAvgPool2d = AdaptiveAvgPool2d }
