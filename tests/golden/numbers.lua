-- numbers.lua: the inputs of the golden tests, as nn.py computes them.
local tl = require "tlua"

local numbers = {}

--- n numbers in [-1, 1), no two of the first 2003 alike.
function numbers.list(n, seed)
  local list = {}
  for i = 0, n - 1 do list[i + 1] = ((i * 7919 + seed * 104729) % 2003) / 1001 - 1 end
  return list
end

--- The same as a tensor of this shape (a list of sizes).
function numbers.tensor(shape, seed, options)
  local n = 1
  for _, size in ipairs(shape) do n = n * size end
  return numbers.shaped(shape, numbers.list(n, seed), options)
end

--- A flat list of values as a tensor.
function numbers.shaped(shape, values, options)
  if #shape == 0 then return tl.tensor(values[1], options) end
  return tl.tensor(values, options):reshape(shape)
end

return numbers
