-- linear.lua: nn.Linear.
local base = require "tlua.base"
local Module = require("tlua.nn.module").Module
local support = require "tlua.nn.support"
local C, wrap, out, check_tensor = base.C, base.wrap, base.out, base.check_tensor

local Linear = Module:extend("Linear")

--- y = x W^T + b: (.., in_features) -> (.., out_features). weight (out, in), bias (out), both U(+-1/sqrt(in)).
function Linear:init(in_features, out_features, options)
  local o = base.options("Linear", options, { bias = true, dtype = "float32", device = base.optional })
  self.in_features = support.size("Linear", "in_features", in_features, 0)
  self.out_features = support.size("Linear", "out_features", out_features, 0)
  local dtype, device = support.placement("Linear", o)
  local bound = in_features > 0 and 1 / math.sqrt(in_features) or 0
  self.weight = support.uniform({ out_features, in_features }, bound, dtype, device)
  if o.bias then self.bias = support.uniform({ out_features }, bound, dtype, device)
  else self:register_parameter("bias", nil) end
end

local function reject(self, x, status)
  local n = C.tl_ndim(x)
  local fits = n > 0 and C.tl_size(x, n - 1) == self.in_features
  support.reject(self, status, x, fits, ("(..x%d)"):format(self.in_features))
end

function Linear:forward(x)
  check_tensor(x, "Linear", 1)
  local status = C.tl_linear(x, support.weight(self), self.bias, out)
  if status ~= 0 then reject(self, x, status) end
  return wrap(out[0])
end

function Linear:extra_repr()
  return ("%d, %d%s"):format(self.in_features, self.out_features, not self.bias and ", bias=false" or "")
end

return { Linear = Linear }
