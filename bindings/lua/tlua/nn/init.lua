-- nn: modules, losses and their functional forms. Files load when one of their names is first used.
local base = require "tlua.base"

-- name -> the file that defines it; "=" before the file: the file itself is the value
local home = {
  Module = "module", is_module = "module", Parameter = "parameter",
  Linear = "linear",
  Conv1d = "conv", Conv2d = "conv", ConvTranspose2d = "conv",
  BatchNorm1d = "batchnorm", BatchNorm2d = "batchnorm", BatchNorm3d = "batchnorm", SyncBatchNorm = "batchnorm",
  LayerNorm = "norm", GroupNorm = "norm", RMSNorm = "norm",
  Embedding = "embedding",
  RotaryEmbedding = "rotary",
  Dropout = "dropout",
  MaxPool2d = "pool", AvgPool2d = "pool", AdaptiveAvgPool2d = "pool",
  Sequential = "container", ModuleList = "container", Flatten = "container", Identity = "container",
  ReLU = "activation", GELU = "activation", SiLU = "activation", Tanh = "activation", Sigmoid = "activation",
  LeakyReLU = "activation", ELU = "activation", Softmax = "activation", LogSoftmax = "activation",
  MSELoss = "loss", L1Loss = "loss", SmoothL1Loss = "loss", HuberLoss = "loss", CrossEntropyLoss = "loss",
  NLLLoss = "loss", BCELoss = "loss", BCEWithLogitsLoss = "loss", KLDivLoss = "loss",
  functional = "=functional", init = "=initialise", utils = "=utils",
}

local nn = {}

local function load(_, name)
  local file = home[name]
  if not file then
    local names = {}
    for known in pairs(home) do names[#names + 1] = known end
    table.sort(names)
    if name == "parallel" then return base.built_in("tlua.nn.parallel", "nn.parallel") end
    base.fail(("nn: there is no '%s', did you mean '%s'?"):format(tostring(name), base.nearest(tostring(name), names)))
  end
  if file:sub(1, 1) == "=" then
    nn[name] = require("tlua.nn." .. file:sub(2))
  else
    for known, value in pairs(require("tlua.nn." .. file)) do nn[known] = value end
  end
  return rawget(nn, name)
end

return setmetatable(nn, { __index = load, names = home })
