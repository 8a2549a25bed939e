-- sparsity.lua: prune.sparsity: how many weights are zero, and where.
local base = require "tlua.base"
local registry = require "tlua.nn.registry"
local masks = require "tlua.nn.prune.masks"
local C, fail = base.C, base.fail

-- Calls visit(key, module, name) for every parameter of m under the name that it has without pruning, each tensor once.
local function each_parameter(m, visit)
  local seen = {}
  registry.each_module(m, function(prefix, below)
    local pruned = {}
    for _, entry in ipairs(masks.list(below)) do pruned[entry.orig] = entry.name end
    registry.each_own(below, "parameter", function(own, p)
      if seen[base.address(p)] then return end
      seen[base.address(p)] = true
      local name = pruned[own] or own
      visit(prefix == "" and name or prefix .. "." .. name, below, name)
    end)
  end)
end

local Sparsity = {}
Sparsity.__index = Sparsity

local function line(name, zeros, total, mark)
  local percent = total > 0 and 100 * zeros / total or 0
  return ("%-32s %12d of %12d zero  %6.2f %%%s"):format(name, zeros, total, percent, mark)
end

function Sparsity:__tostring()
  local lines = {}
  for i, row in ipairs(self) do lines[i] = line(row.name, row.zeros, row.total, row.pruned and "  pruned" or "") end
  lines[#lines + 1] = line("all", self.zeros, self.total, "")
  return table.concat(lines, "\n")
end

--- sparsity(model): a list of {name=, zeros=, total=, sparsity=, pruned=}, one a parameter, with the sums zeros, total
--- and sparsity; print() shows it as a table.
local function sparsity(m)
  if not registry.is_module(m) then fail("sparsity: argument 1 must be a module, got " .. base.kind(m)) end
  local rows = setmetatable({ zeros = 0, total = 0 }, Sparsity)
  each_parameter(m, function(key, below, name)
    local total = C.tl_numel(masks.original(below, name))
    local zeros = masks.unrecorded(function() return masks.effective(below, name):eq(0):sum():item() end)
    rows[#rows + 1] = {
      name = key, zeros = zeros, total = total, sparsity = total > 0 and zeros / total or 0,
      pruned = masks.find(below, name) ~= nil,
    }
    rows.zeros, rows.total = rows.zeros + zeros, rows.total + total
  end)
  rows.sparsity = rows.total > 0 and rows.zeros / rows.total or 0
  return rows
end

return sparsity
