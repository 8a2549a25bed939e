-- container.lua: modules made of modules, and the two layers that only shape the data: Flatten and Identity.
local base = require "tlua.base"
local registry = require "tlua.nn.registry"
local Module = require("tlua.nn.module").Module
local C, check, wrap, out, check_tensor = base.C, base.check, base.wrap, base.out, base.check_tensor

local function append(self, m, op)
  if not registry.is_module(m) then
    base.fail(("%s: element %d must be a module, got %s"):format(op, #self + 1, base.kind(m)))
  end
  self[#self + 1] = m
  return self
end

local Sequential = Module:extend("Sequential")

--- nn.Sequential(a, b, ...) calls one after the other; seq[1] is a, #seq the number, seq:add(m) appends. In the state
--- dict they are called 0, 1, ... as in PyTorch.
function Sequential:init(...)
  for i = 1, select("#", ...) do append(self, (select(i, ...)), "Sequential") end
end

--- Appends a module; returns the container.
function Sequential:add(m) return append(self, m, "Sequential:add") end

function Sequential:forward(x)
  for i = 1, #self do x = self[i](x) end
  return x
end

local ModuleList = Module:extend("ModuleList")

--- nn.ModuleList{a, b, ...}: a list whose modules are registered; list[i], #list, ipairs(list), list:add(m).
function ModuleList:init(list)
  if list ~= nil and (type(list) ~= "table" or registry.is_module(list)) then
    base.fail("ModuleList: needs a list of modules, as in nn.ModuleList{a, b}")
  end
  for _, m in ipairs(list or {}) do append(self, m, "ModuleList") end
end

--- Appends a module; returns the list.
function ModuleList:add(m) return append(self, m, "ModuleList:add") end

local Flatten = Module:extend("Flatten")

--- Makes dims first (2) to last (-1) one: (N, C, H, W) -> (N, C*H*W). Also as {start_dim=2, end_dim=-1}.
function Flatten:init(first, last)
  if type(first) == "table" then
    base.no_more("Flatten", last)
    local o = base.options("Flatten", first, { start_dim = 2, end_dim = -1 })
    first, last = o.start_dim, o.end_dim
  end
  self.first, self.last = first or 2, last or -1
  rawset(self, "_first", base.position(self.first, "Flatten"))
  rawset(self, "_last", base.position(self.last, "Flatten"))
end

function Flatten:forward(x)
  check_tensor(x, "Flatten", 1)
  check(C.tl_flatten(x, self._first, self._last, out))
  return wrap(out[0])
end

function Flatten:extra_repr() return ("%d, %d"):format(self.first, self.last) end

local Identity = Module:extend("Identity")
function Identity:forward(x) return x end -- luacheck: ignore self

return { Sequential = Sequential, ModuleList = ModuleList, Flatten = Flatten, Identity = Identity }
