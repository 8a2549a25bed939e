-- sweep: hyperparameter sweeps: spaces, samplers, pruners, studies that any number of processes work on. Files load
-- when one of their names is first used.
local base = require "tlua.base"

-- name -> the file that defines it; { file } if the file is the value
local home = {
  uniform = "space", loguniform = "space", quniform = "space", qloguniform = "space", int = "space", logint = "space",
  choice = "space",
  Random = "samplers", Grid = "samplers", Sobol = "samplers", TPE = { "tpe" },
  Median = "pruners", ASHA = "pruners", Hyperband = "pruners", none = "pruners",
  run = "runner", open = "study",
}

return setmetatable({}, {
  __index = function(sweep, name)
    local file = home[name]
    if not file then
      base.fail(("there is no tl.sweep.%s%s"):format(tostring(name), base.suggestion(tostring(name), home)))
    end
    local value
    if type(file) == "table" then value = require("tlua.sweep." .. file[1])
    else value = require("tlua.sweep." .. file)[name] end
    sweep[name] = value
    return value
  end,
})
