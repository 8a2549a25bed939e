-- state.lua: a module's state dict and its printed tree.
local base = require "tlua.base"
local registry = require "tlua.nn.registry"
local support = require "tlua.nn.support"
local C, check, wrap, out = base.C, base.check, base.wrap, base.out

local state = {}

function state.state_dict(m)
  local dict = {}
  registry.each_state(m, function(key, t)
    check(C.tl_detach(t, out))
    dict[key] = wrap(out[0])
  end)
  return dict
end

local function same_shape(a, b)
  local n = C.tl_ndim(a)
  if n ~= C.tl_ndim(b) then return false end
  for d = 0, n - 1 do
    if C.tl_size(a, d) ~= C.tl_size(b, d) then return false end
  end
  return true
end

local function quoted(names) return "'" .. table.concat(names, "', '") .. "'" end

function state.load_state_dict(m, dict, options)
  local o = base.options("load_state_dict", options, { strict = true })
  if type(dict) ~= "table" then base.fail("load_state_dict: a state dict is a table, got " .. base.kind(dict)) end
  local known, targets, sources, missing, unexpected, faults = {}, {}, {}, {}, {}, {}
  registry.each_state(m, function(key, t)
    known[key] = true
    local value = dict[key]
    if value == nil then
      missing[#missing + 1] = key
    elseif not base.is_tensor(value) then
      faults[#faults + 1] = ("'%s' must be a tensor, got %s"):format(key, base.kind(value))
    elseif not same_shape(t, value) then
      faults[#faults + 1] = ("'%s' is %s here and %s in the state dict"):format(key, support.shape(t),
        support.shape(value))
    else
      targets[#targets + 1], sources[#sources + 1] = t, value
    end
  end)
  for key in pairs(dict) do
    if not known[key] then unexpected[#unexpected + 1] = tostring(key) end
  end
  table.sort(unexpected)
  if o.strict and #missing > 0 then faults[#faults + 1] = "missing keys " .. quoted(missing) end
  if o.strict and #unexpected > 0 then faults[#faults + 1] = "unexpected keys " .. quoted(unexpected) end
  if #faults > 0 then base.fail(("load_state_dict: %s: %s"):format(m._name, table.concat(faults, "; "))) end
  local recording = C.tl_set_grad_enabled(false)
  local status = 0
  for i = 1, #targets do
    status = C.tl_copy_(targets[i], sources[i])
    if status ~= 0 then break end
  end
  C.tl_set_grad_enabled(recording)
  check(status)
  return missing, unexpected
end

-- ---- the printed tree ----

local function thousands(n)
  local s = ("%d"):format(n)
  return (s:reverse():gsub("(%d%d%d)", "%1,"):reverse():gsub("^,", ""))
end

local function count(list)
  local all, trained = 0, 0
  for _, p in ipairs(list) do
    local n = C.tl_numel(p)
    all = all + n
    if C.tl_requires_grad(p) then trained = trained + n end
  end
  return all, trained
end

local function own_count(m)
  local list = {}
  registry.each_own(m, "parameter", function(_, p) list[#list + 1] = p end)
  return (count(list))
end

local function add_lines(m, indent, head, lines)
  local children = {}
  registry.each_own(m, "module", function(name, child) children[#children + 1] = { name, child } end)
  local own = own_count(m)
  local text = #children == 0 and m:label() or m._name .. "(" .. m:extra_repr()
  lines[#lines + 1] = { text = indent .. head .. text, own = own }
  if #children == 0 then return end
  for _, entry in ipairs(children) do add_lines(entry[2], indent .. "  ", "(" .. entry[1] .. "): ", lines) end
  lines[#lines + 1] = { text = indent .. ")", own = 0 }
end

--- The tree of m, the number of its own parameters beside every module, the sum in the last line.
function state.describe(m)
  local lines = {}
  add_lines(m, "", "", lines)
  local width = 0
  for _, line in ipairs(lines) do
    if line.own > 0 then width = math.max(width, #line.text) end
  end
  local text = {}
  for i, line in ipairs(lines) do
    text[i] = line.text
    if line.own > 0 then
      local number = thousands(line.own)
      text[i] = ("%-" .. width .. "s  %10s"):format(line.text, number)
    end
  end
  local _, list = registry.tensors(m, "parameter")
  local all, trained = count(list)
  if #lines > 1 or all > 0 then
    text[#text + 1] = ("%s parameters%s"):format(thousands(all),
      trained < all and (", %s of them trained"):format(thousands(trained)) or "")
  end
  return table.concat(text, "\n")
end

return state
