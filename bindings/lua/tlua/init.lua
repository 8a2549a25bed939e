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
  text = { "tlua.text" },
  sweep = { "tlua.sweep" },
  models = { "tlua.models" },
  lora = { "tlua.lora" },
  train = { "tlua.train" },
  cuda = { "tlua.cuda" },
  autograd = { "tlua.autograd" },
  utils = { "tlua.utils" },
  progress = { "tlua.progress" },
  breakpoint = { "tlua.repl.breakpoint" },
  memory_plan = { "tlua.memory_plan" },
  save = { "tlua.files", "save" },
  load = { "tlua.files", "load" },
}

--- Lets `tlua attach` in: runs what an attached terminal asks for. Loops without a DataLoader call it once a step.
function tl.poll() base.poll() end

return setmetatable(tl, {
  __index = function(_, key)
    local from = lazy[key]
    if not from then
      base.fail(("there is no tl.%s%s"):format(tostring(key), base.suggestion(tostring(key), tl, lazy)))
    end
    local value = base.built_in(from[1], "tl." .. key)
    if from[2] then value = value[from[2]] end
    tl[key] = value
    return value
  end,
})
