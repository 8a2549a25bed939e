-- parameter.lua: nn.Parameter.
local base = require "tlua.base"
local registry = require "tlua.nn.registry"
local support = require "tlua.nn.support"
local C, check, wrap, out = base.C, base.check, base.wrap, base.out

--- Marks a tensor as a parameter: it then requires gradients, and a module that gets it as a field registers it. A
--- tensor that an operation computed is detached first.
local function Parameter(t)
  base.check_tensor(t, "Parameter", 1)
  if not C.tl_is_leaf(t) then
    check(C.tl_detach(t, out))
    t = wrap(out[0])
  end
  registry.number(t)
  return support.as_parameter(t)
end

return { Parameter = Parameter }
