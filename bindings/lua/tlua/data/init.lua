-- data: datasets, samplers, loaders and readers of data files. Files load when one of their names is first used.
local base = require "tlua.base"

-- name -> the file that defines it
local home = {
  TensorDataset = "datasets", Subset = "datasets", ConcatDataset = "datasets", random_split = "datasets",
  SequentialSampler = "samplers", RandomSampler = "samplers", WeightedRandomSampler = "samplers",
  DistributedSampler = "samplers",
  DataLoader = "loader", default_collate = "collate",
  idx = "readers", csv = "readers", npy = "readers", npz = "readers", image = "readers", text = "readers",
  TokenDataset = "tokens", write_tokens = "tokens",
  save_npy = "readers", mnist = "mnist", fashion_mnist = "mnist",
}

return setmetatable({}, {
  __index = function(data, name)
    local file = home[name]
    if not file then
      base.fail(("there is no tl.data.%s%s"):format(tostring(name), base.suggestion(tostring(name), home)))
    end
    local value = require("tlua.data." .. file)[name]
    data[name] = value
    return value
  end,
})
