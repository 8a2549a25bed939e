-- conv.lua: convolutions.
local base = require "tlua.base"
local Module = require("tlua.nn.module").Module
local support = require "tlua.nn.support"
local C, check, wrap, out, check_tensor = base.C, base.check, base.wrap, base.out, base.check_tensor

-- stride, padding and dilation: one number, or one for each dim
local sizes = base.optional
local defaults = {
  stride = sizes, padding = sizes, dilation = sizes, groups = 1, bias = true, dtype = "float32", device = base.optional,
}

-- padding="same" keeps the size: dilation * (kernel - 1) zeros in all, which must be even to go half on each side.
local function padding_of(self, name, padding, n)
  if padding == "valid" then return support.sizes(name, "padding", 0, n, 0) end
  if padding ~= "same" then return support.sizes(name, "padding", padding, n, 0) end
  local list = {}
  for i = 1, n do
    local total = self.dilation[i] * (self.kernel_size[i] - 1)
    if self.stride[i] ~= 1 then base.fail(name .. ": padding 'same' needs a stride of 1") end
    if total % 2 ~= 0 then
      base.fail(("%s: padding 'same' needs dilation * (kernel_size - 1) to be even, got %d"):format(name, total))
    end
    list[i] = total / 2
  end
  return list
end

-- What all convolutions have.
local function setup(self, in_channels, out_channels, kernel_size, o, n)
  local name = self._name
  self.in_channels = support.size(name, "in_channels", in_channels)
  self.out_channels = support.size(name, "out_channels", out_channels)
  self.kernel_size = support.sizes(name, "kernel_size", kernel_size, n)
  self.stride = support.sizes(name, "stride", o.stride or 1, n)
  self.dilation = support.sizes(name, "dilation", o.dilation or 1, n)
  self.padding = padding_of(self, name, o.padding or 0, n)
  self.groups = support.size(name, "groups", o.groups)
  if in_channels % self.groups ~= 0 or out_channels % self.groups ~= 0 then
    base.fail(("%s: %d and %d channels cannot be divided into %d groups"):format(name, in_channels, out_channels,
      self.groups))
  end
  for _, key in ipairs { "stride", "padding", "dilation" } do rawset(self, "_" .. key, support.array(self[key])) end
end

-- Both are U(+-1/sqrt(fan_in)), fan_in = the weight's elements behind its first dim.
local function make_parameters(self, shape, o)
  local dtype, device = support.placement(self._name, o)
  local fan_in = 1
  for d = 2, #shape do fan_in = fan_in * shape[d] end
  self.weight = support.uniform(shape, 1 / math.sqrt(fan_in), dtype, device)
  if o.bias then self.bias = support.uniform({ self.out_channels }, 1 / math.sqrt(fan_in), dtype, device)
  else self:register_parameter("bias", nil) end
end

local function reject(self, x, status, n)
  local dims = C.tl_ndim(x)
  local fits = (dims == n + 2 or dims == n + 1) and C.tl_size(x, dims - n - 1) == self.in_channels
  support.reject(self, status, x, fits, ("(Nx%dx%s)"):format(self.in_channels, n == 1 and "L" or "HxW"))
end

-- Without a batch dim, (C, L..) is a batch of one.
local function as_batch(x)
  check(C.tl_unsqueeze(x, 0, out))
  return wrap(out[0])
end

local function without_batch(y)
  check(C.tl_squeeze(y, 0, out))
  return wrap(out[0])
end

local function extra_repr(self)
  local text = ("%d, %d, kernel_size=%s"):format(self.in_channels, self.out_channels, support.spell(self.kernel_size))
  local function add(key, default)
    local value = support.spell(self[key])
    if value ~= default then text = text .. (", %s=%s"):format(key, value) end
  end
  add("stride", "1")
  add("padding", "0")
  if self.output_padding then add("output_padding", "0") end
  add("dilation", "1")
  if self.groups ~= 1 then text = text .. (", groups=%d"):format(self.groups) end
  return text .. (not self.bias and ", bias=false" or "")
end

local function convolution(name, n)
  local Conv = Module:extend(name)

  function Conv:init(in_channels, out_channels, kernel_size, options)
    local o = base.options(name, options, defaults)
    setup(self, in_channels, out_channels, kernel_size, o, n)
    make_parameters(self, { out_channels, in_channels / self.groups, unpack(self.kernel_size) }, o)
  end

  function Conv:forward(x)
    check_tensor(x, name, 1)
    local single = C.tl_ndim(x) == n + 1
    if single then x = as_batch(x) end
    local weight = support.weight(self)
    local status = C.tl_conv(x, weight, self.bias, n, self._stride, self._padding, self._dilation, self.groups, out)
    if status ~= 0 then reject(self, x, status, n) end
    local y = wrap(out[0])
    if single then return without_batch(y) end
    return y
  end

  Conv.extra_repr = extra_repr
  return Conv
end

local ConvTranspose2d = Module:extend("ConvTranspose2d")

--- The gradient of Conv2d as a layer: (N, in, H, W) -> (N, out, (H-1)*stride - 2*padding + dilation*(kernel-1) +
--- output_padding + 1, ..). weight (in, out/groups, KH, KW).
function ConvTranspose2d:init(in_channels, out_channels, kernel_size, options)
  local o = base.options("ConvTranspose2d", options, {
    stride = sizes, padding = sizes, output_padding = sizes, dilation = sizes, groups = 1, bias = true,
    dtype = "float32", device = base.optional,
  })
  if type(o.padding) == "string" then base.fail("ConvTranspose2d: option 'padding' must be a number or two") end
  setup(self, in_channels, out_channels, kernel_size, o, 2)
  self.output_padding = support.sizes("ConvTranspose2d", "output_padding", o.output_padding or 0, 2, 0)
  rawset(self, "_output_padding", support.array(self.output_padding))
  make_parameters(self, { in_channels, out_channels / self.groups, unpack(self.kernel_size) }, o)
end

function ConvTranspose2d:forward(x)
  check_tensor(x, "ConvTranspose2d", 1)
  local single = C.tl_ndim(x) == 3
  if single then x = as_batch(x) end
  local status = C.tl_conv_transpose2d(x, support.weight(self), self.bias, self._stride, self._padding,
    self._output_padding, self._dilation, self.groups, out)
  if status ~= 0 then reject(self, x, status, 2) end
  local y = wrap(out[0])
  if single then return without_batch(y) end
  return y
end

ConvTranspose2d.extra_repr = extra_repr

return { Conv1d = convolution("Conv1d", 1), Conv2d = convolution("Conv2d", 2), ConvTranspose2d = ConvTranspose2d }
