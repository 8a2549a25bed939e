-- support.lua: what the models share: options, activations, attention over a cache.
local base = require "tlua.base"
local nn = require "tlua.nn"
local F = require "tlua.nn.functional"
local size = require("tlua.nn.support").size

local fail = base.fail

local support = {}

-- ---- options ----

local LARGEST, MOST_LAYERS = 2 ^ 31 - 1, 10000 -- what a file asks for is made before its tensors are looked at

--- `c[name]`, for every name, must be an integer of at least 1; the first is the number of layers.
function support.check_sizes(op, c, ...)
  for i = 1, select("#", ...) do
    local name, most = select(i, ...), i == 1 and MOST_LAYERS or LARGEST
    size(op, "option '" .. name .. "'", c[name])
    if c[name] > most then fail(("%s: option '%s' must be at most %d, got %g"):format(op, name, most, c[name])) end
  end
end

--- `c[name]`, for every name, must be a probability below 1.
function support.check_probabilities(op, c, ...)
  for i = 1, select("#", ...) do
    local p = c[select(i, ...)]
    if not (p >= 0 and p < 1) then
      fail(("%s: option '%s' must be at least 0 and below 1, got %g"):format(op, select(i, ...), p))
    end
  end
end

-- ---- layers ----

--- A dropout layer; nothing at all when p is 0.
function support.dropout(p) return p > 0 and nn.Dropout(p) or nn.Identity() end

local function gelu_tanh(x) return F.gelu(x, { approximate = "tanh" }) end

local activations = {
  gelu_new = gelu_tanh, gelu_pytorch_tanh = gelu_tanh, gelu = F.gelu, relu = F.relu, silu = F.silu, swish = F.silu,
  tanh = F.tanh,
}

--- The function that config.json calls `name`.
function support.activation(op, key, name)
  local f = type(name) == "string" and activations[name]
  if not f then
    fail(("%s: %s '%s' is not supported%s"):format(op, key, tostring(name),
      base.suggestion(tostring(name), activations)))
  end
  return f
end

--- Is that F.linear_gelu's function?
function support.is_gelu_tanh(name) return activations[name] == gelu_tanh end

--- x through layers, which are called as layer(x, cache, ...). checkpointing: backward computes each anew (without a
--- cache).
function support.through(layers, checkpointing, x, cache, ...)
  for i = 1, #layers do
    if checkpointing and not cache then x = base.tl.utils.checkpoint(layers[i], x, nil, ...)
    else x = layers[i](x, cache, ...) end
  end
  return x
end

--- Does calling this layer do what its class does, and no more? (No adapter, no hook.)
function support.is_plain(layer) return not layer._hooks and rawget(layer, "forward") == nil end

return support
