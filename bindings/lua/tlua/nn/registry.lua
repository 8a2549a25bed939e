-- registry.lua: what a module owns, in the order of assignment.
--
-- A module is a plain table: its children, parameters and buffers are ordinary fields, so that reading self.fc1 is one
-- table access. Beside them it keeps two hidden tables: _names, the order in which fields were first assigned, and
-- _kinds, what a tensor field is ("parameter" or "buffer"). What a field holds is looked up when it is asked for, so
-- fields may be assigned anew at any time. A field with an integer name i is called i - 1, as PyTorch calls it.
--
-- Lua stores the values of `self.a, self.b = A(), B()` from right to left. Modules and parameters therefore carry
-- serial numbers: what one line of code assigns is put in the order of creation.
local base = require "tlua.base"
local C, is_tensor, address = base.C, base.is_tensor, base.address
local rawget, rawset, type, getmetatable = rawget, rawset, type, getmetatable

local registry = {}

local classes = setmetatable({}, { __mode = "k" })

--- Remembers a module class.
function registry.add_class(class) classes[class] = true end

--- Is x a module (not a class)?
function registry.is_module(x) return type(x) == "table" and classes[getmetatable(x)] ~= nil end
local is_module = registry.is_module

local created = 0
local serials = setmetatable({}, { __mode = "k" }) -- of parameters

--- Remembers when a parameter was made.
function registry.number(t)
  created = created + 1
  serials[t] = created
end

--- The hidden tables of a new module.
function registry.prepare(m)
  created = created + 1
  rawset(m, "_serial", created)
  rawset(m, "training", true)
  rawset(m, "_names", {})
  rawset(m, "_kinds", {})
  rawset(m, "_statement", false) -- the newest assignment of children or parameters: see place()
  rawset(m, "_hooks", false)
end

local function check_name(m, name)
  if type(name) == "number" then return end
  if type(name) ~= "string" or name == "" or name:find(".", 1, true) then
    base.fail(("%s: '%s' cannot name a child, parameter or buffer"):format(m:label(), tostring(name)))
  end
end

local function serial_of(value) return is_module(value) and value._serial or serials[value] end

-- Where a new field belongs in the order: at the end, but before what the same statement assigned and was made later.
-- One statement's values are made before the first of them is stored, and stored by one line of code.
local function place(m, value, site)
  local names, statement = m._names, m._statement
  if not statement or statement.site ~= site or statement.created ~= created then
    local before = statement and statement.created or m._serial
    statement = { site = site, created = created, before = before, first = #names + 1 }
    rawset(m, "_statement", statement)
  end
  local at, serial = #names + 1, serial_of(value)
  while serial and serial > statement.before and at > statement.first do
    local other = serial_of(rawget(m, names[at - 1]))
    if not other or other < serial then break end
    at = at - 1
  end
  return at
end

-- Takes a field off the list; returns where it was.
local function unlist(m, name)
  local names = m._names
  for i = 1, #names do
    if names[i] == name then
      table.remove(names, i)
      return i
    end
  end
end

local function remember(m, name, kind, at)
  local former = unlist(m, name)
  if at and former and at > former then at = at - 1 end
  table.insert(m._names, at or #m._names + 1, name)
  m._kinds[name] = kind
end

--- Field `name` is nothing that m owns any more; what it holds stays there, as a plain value.
function registry.forget(m, name)
  unlist(m, name)
  m._kinds[name] = nil
end

--- __newindex of modules: a field's first assignment.
function registry.assign(m, name, value)
  local kind
  if is_tensor(value) then
    if C.tl_requires_grad(value) and C.tl_is_leaf(value) then kind = "parameter"
    elseif m._kinds[name] == "buffer" then kind = "buffer" end
  end
  local at
  if kind or is_module(value) then
    check_name(m, name)
    if type(name) == "string" then
      local info = debug.getinfo(2, "Sl")
      at = place(m, value, info.short_src .. ":" .. info.currentline)
    end
  end
  remember(m, name, kind, at)
  rawset(m, name, value)
end

--- A field's value as `kind` ("parameter" or "buffer"); value may be nil: the place is kept, nothing is listed.
function registry.register(m, op, name, value, kind)
  check_name(m, name)
  if value ~= nil and not is_tensor(value) then
    base.fail(("%s: '%s' must be a tensor or nil, got %s"):format(op, name, base.kind(value)))
  end
  if rawget(m, name) ~= nil and m._kinds[name] ~= kind then
    base.fail(("%s: %s has a field '%s' already"):format(op, m:label(), name))
  end
  remember(m, name, kind)
  rawset(m, name, value)
end

-- What field `name` is now: "module", "parameter", "buffer" or nil; and its value.
local function kind_of(m, name)
  local value = rawget(m, name)
  if value == nil then return nil end
  if is_module(value) then return "module", value end
  if not is_tensor(value) then return nil end
  local kind = m._kinds[name]
  if kind == "buffer" then return "buffer", value end
  if not C.tl_is_leaf(value) then return nil end
  if kind == "parameter" or C.tl_requires_grad(value) then return "parameter", value end
end

local function spell(name) return type(name) == "number" and tostring(name - 1) or name end

--- Calls visit(name, value) for m's own fields of this kind, in order.
local function each_own(m, kind, visit)
  local names = m._names
  for i = 1, #names do
    local found, value = kind_of(m, names[i])
    if found == kind then visit(spell(names[i]), value, names[i]) end
  end
end
registry.each_own = each_own

--- Calls visit(name, module) for m and everything below it, each module once, parents first.
local function each_module(m, visit, prefix, seen)
  prefix, seen = prefix or "", seen or {}
  if seen[m] then return end
  seen[m] = true
  visit(prefix, m)
  each_own(m, "module", function(name, child)
    each_module(child, visit, prefix == "" and name or prefix .. "." .. name, seen)
  end)
end
registry.each_module = each_module

--- Lists of names and of tensors of this kind in m and below it, each tensor once.
function registry.tensors(m, kind)
  local names, list, seen = {}, {}, {}
  each_module(m, function(prefix, module)
    each_own(module, kind, function(name, t)
      local key = address(t)
      if seen[key] then return end
      seen[key] = true
      list[#list + 1] = t
      names[#list] = prefix == "" and name or prefix .. "." .. name
    end)
  end)
  return names, list
end

--- Calls visit(key, tensor) for every entry of m's state dict: shared tensors under each of their names.
function registry.each_state(m, visit, prefix)
  prefix = prefix or ""
  each_own(m, "parameter", function(name, t) visit(prefix .. name, t) end)
  each_own(m, "buffer", function(name, t, field)
    if not (m._transient and m._transient[field]) then visit(prefix .. name, t) end
  end)
  each_own(m, "module", function(name, child) registry.each_state(child, visit, prefix .. name .. ".") end)
end

--- A deep copy: tensors are copied (with their gradients), modules and plain tables as well, each once; functions and
--- other cdata are shared.
function registry.copy(x, seen)
  if is_tensor(x) then
    local key = address(x)
    if not seen[key] then seen[key] = registry.copy_tensor(x) end
    return seen[key]
  end
  if type(x) ~= "table" or classes[x] then return x end
  if seen[x] then return seen[x] end
  local y = {}
  seen[x] = y
  for name, value in next, x do rawset(y, name, registry.copy(value, seen)) end
  return setmetatable(y, getmetatable(x))
end

--- A leaf with the same elements, gradient and need of gradients as t (one that an operation computed becomes a leaf).
function registry.copy_tensor(t)
  local check, wrap, out = base.check, base.wrap, base.out
  check(C.tl_detach(t, out))
  local detached = wrap(out[0])
  check(C.tl_clone(detached, out))
  local copy = wrap(out[0])
  if C.tl_is_leaf(t) and C.tl_requires_grad(t) then check(C.tl_set_requires_grad(copy, true)) end
  check(C.tl_grad(t, out))
  if out[0] ~= nil then
    local grad = wrap(out[0])
    check(C.tl_clone(grad, out))
    grad = wrap(out[0])
    check(C.tl_set_grad(copy, grad))
  end
  return copy
end

return registry
