-- init.lua: what require "tlua" gives.
local base = require "tlua.base"
require "tlua.tensor"
require "tlua.create"
require "tlua.random"
require "tlua.shape"
require "tlua.reduce"
require "tlua.matrix"
require "tlua.device"
require "tlua.grad"

local tl = base.tl

-- Loaded when first used: start-up stays a matter of milliseconds. Each names a module, and the field of it if it is
-- not the module itself that is wanted.
local lazy = {
  nn = { "tlua.nn" },
  F = { "tlua.nn.functional" },
  optim = { "tlua.optim" },
  amp = { "tlua.amp" },
  data = { "tlua.data" },
  dist = { "tlua.dist" },
  sweep = { "tlua.sweep" },
  cuda = { "tlua.cuda" },
  autograd = { "tlua.autograd" },
  utils = { "tlua.utils" },
  progress = { "tlua.progress" },
  save = { "tlua.files", "save" },
  load = { "tlua.files", "load" },
}

local function is_missing(message, module)
  return message:find("module '" .. module .. "' not found", 1, true) ~= nil
end

return setmetatable(tl, {
  __index = function(_, key)
    local from = lazy[key]
    if not from then
      base.fail(("there is no tl.%s%s"):format(tostring(key), base.suggestion(tostring(key), tl, lazy)))
    end
    local ok, module = pcall(require, from[1])
    if not ok then
      if is_missing(tostring(module), from[1]) then base.fail(("tl.%s is not built into this tlua"):format(key)) end
      error(module, 0)
    end
    local value = module
    if from[2] then value = module[from[2]] end
    tl[key] = value
    return value
  end,
})
