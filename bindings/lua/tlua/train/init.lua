-- init.lua: tl.train: the Trainer, and the parts it is made of: checkpoints, loggers, the average of the weights. Files
-- load when one of their names is first used.
local base = require "tlua.base"

-- name -> the file that defines it
local home = {
  save_checkpoint = "checkpoint", load_checkpoint = "checkpoint", Checkpoints = "checkpoints", EMA = "ema",
  Trainer = "trainer", Console = "log.console", CSV = "log.csv", JSONL = "log.jsonl",
  TensorBoard = "log.tensorboard",
}

return setmetatable({}, {
  __index = function(train, name)
    local file = home[name]
    if not file then
      base.fail(("there is no tl.train.%s%s"):format(tostring(name), base.suggestion(tostring(name), home)))
    end
    local value = require("tlua.train." .. file)[name]
    train[name] = value
    return value
  end,
  names = home,
})
