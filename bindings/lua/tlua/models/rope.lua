-- rope.lua: rotary positions (Su et al. 2021): the angles by which queries and keys are turned.
local base = require "tlua.base"

local tl, fail = base.tl, base.fail

local rope = {}

local CHUNK = 256 -- positions by which the tables grow at least

-- The numbers that a kind of scaling needs.
local needs = {
  default = {}, linear = { "factor" },
  llama3 = { "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings" },
}

local function check_scaling(op, scaling)
  local kind = scaling.rope_type or scaling.type or "default"
  if not needs[kind] then
    fail(("%s: rope_scaling of type '%s' is not supported%s"):format(op, tostring(kind),
      base.suggestion(tostring(kind), needs)))
  end
  for _, name in ipairs(needs[kind]) do base.check_number(scaling[name], op, "rope_scaling's " .. name) end
  return kind
end

-- Llama 3.1: long waves are stretched by `factor`, short ones stay, those between go from one to the other.
local function llama3(frequency, s)
  local turns = s.original_max_position_embeddings * frequency / (2 * math.pi) -- over the original context
  if turns > s.high_freq_factor then return frequency end
  if turns < s.low_freq_factor then return frequency / s.factor end
  local smooth = (turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor)
  return (1 - smooth) * frequency / s.factor + smooth * frequency
end

--- The angle from one position to the next, of each of the D/2 pairs of a head.
function rope.frequencies(op, dim, theta, scaling)
  scaling = scaling or {}
  local kind, list = check_scaling(op, scaling), {}
  for i = 1, dim / 2 do
    local frequency = theta ^ (-2 * (i - 1) / dim)
    if kind == "linear" then frequency = frequency / scaling.factor
    elseif kind == "llama3" then frequency = llama3(frequency, scaling) end
    list[i] = frequency
  end
  return list
end

--- A function (past, T, device) that gives cos and sin (T, D/2), float32, of the T positions after the first `past`.
function rope.tables(frequencies)
  local cos, sin, room, place = nil, nil, 0, nil
  return function(past, T, device)
    if past + T > room or device ~= place then
      room, place = math.max(past + T, 2 * room, CHUNK), device
      local angles = tl.arange(room, { device = device }):unsqueeze(2) * tl.tensor(frequencies, { device = device })
      cos, sin = angles:cos(), angles:sin()
    end
    return cos:narrow(1, past + 1, T), sin:narrow(1, past + 1, T)
  end
end

return rope
