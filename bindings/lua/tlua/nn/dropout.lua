-- dropout.lua: nn.Dropout (Srivastava et al. 2014).
local base = require "tlua.base"
local Module = require("tlua.nn.module").Module
local C, check, wrap, out, check_tensor = base.C, base.check, base.wrap, base.out, base.check_tensor

local Dropout = Module:extend("Dropout")

--- In training each element becomes 0 with probability p (0.5), the others are scaled by 1/(1-p); in eval nothing
--- happens. {inplace=true} writes to the input.
function Dropout:init(p, options)
  if type(p) == "table" then
    base.no_more("Dropout", options)
    p, options = nil, p
  end
  local o = base.options("Dropout", options, { p = base.optional, inplace = false })
  self.inplace = o.inplace
  if p == nil then p = o.p end
  if p == nil then p = 0.5 end
  if type(p) ~= "number" or not (p >= 0 and p <= 1) then
    base.fail("Dropout: the probability must be a number from 0 to 1, got " .. tostring(p))
  end
  self.p = p
end

function Dropout:forward(x)
  check_tensor(x, "Dropout", 1)
  if not self.training then return x end
  check(C.tl_dropout(x, self.p, true, nil, out))
  local y = wrap(out[0])
  if not self.inplace then return y end
  check(C.tl_copy_(x, y))
  return x
end

function Dropout:extra_repr() return ("p=%g%s"):format(self.p, self.inplace and ", inplace=true" or "") end

return { Dropout = Dropout }
