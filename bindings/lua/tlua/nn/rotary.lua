-- rotary.lua: nn.RotaryEmbedding: the angles of rotary position embedding (Su et al. 2021), for F.rope.
local base = require "tlua.base"
local Module = require("tlua.nn.module").Module
local support = require "tlua.nn.support"
local C = base.C

local RotaryEmbedding = Module:extend("RotaryEmbedding")

-- ---- frequencies ----

local function frequencies(dim, theta)
  local list = {}
  for i = 1, dim / 2 do list[i] = theta ^ (-2 * (i - 1) / dim) end
  return list
end

-- Ways to reach positions beyond those that a model was trained on; each gives the frequencies for `length` positions.
local scalings = {}

scalings.none = { options = {}, frequencies = function(self) return frequencies(self.dim, self.base) end }

-- Positions are pressed together (Chen et al. 2023).
scalings.linear = {
  options = { factor = base.optional },
  frequencies = function(self, s)
    local list = frequencies(self.dim, self.base)
    for i = 1, #list do list[i] = list[i] / s.factor end
    return list
  end,
}

-- The base grows with the length (NTK-aware scaling).
scalings.dynamic = {
  options = { factor = base.optional, original_max_position_embeddings = base.optional },
  grows_from = "original_max_position_embeddings",
  frequencies = function(self, s, length)
    local trained = s.original_max_position_embeddings
    if length <= trained then return frequencies(self.dim, self.base) end
    local stretch = s.factor * length / trained - (s.factor - 1)
    return frequencies(self.dim, self.base * stretch ^ (self.dim / (self.dim - 2)))
  end,
}

-- Long waves are slowed down, short ones stay, those between are blended (Llama 3.1).
scalings.llama3 = {
  options = {
    factor = base.optional, low_freq_factor = 1, high_freq_factor = 4,
    original_max_position_embeddings = base.optional,
  },
  frequencies = function(self, s)
    local list = frequencies(self.dim, self.base)
    for i, f in ipairs(list) do
      local waves = s.original_max_position_embeddings * f / (2 * math.pi) -- of this one in the trained length
      local share = (waves - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor)
      share = math.max(0, math.min(1, share))
      list[i] = f * (share + (1 - share) / s.factor)
    end
    return list
  end,
}

local function check_scaling(scaling)
  if scaling == nil then return "none", {} end
  if type(scaling) ~= "table" then
    base.fail("RotaryEmbedding: option 'scaling' must be a table with a type, got " .. base.kind(scaling))
  end
  local given = {}
  for key, value in pairs(scaling) do given[key] = value end
  local kind = given.type
  given.type = nil
  if not scalings[kind] then
    base.fail(("RotaryEmbedding: scaling type is 'linear', 'dynamic', 'llama3' or 'none', got '%s'"):format(
      tostring(kind)))
  end
  local known = {}
  for key, value in pairs(scalings[kind].options) do known[key] = value end
  local s = base.options("RotaryEmbedding: scaling", given, known)
  for key in pairs(known) do
    if type(s[key]) ~= "number" or not (s[key] > 0) then
      base.fail(("RotaryEmbedding: scaling '%s' needs a positive number '%s'"):format(kind, key))
    end
  end
  if kind == "llama3" and s.low_freq_factor >= s.high_freq_factor then
    base.fail("RotaryEmbedding: low_freq_factor must be below high_freq_factor")
  end
  return kind, s
end

-- ---- the module ----

--- Angles for rows of `dim` elements (even): position p turns pair i by p * base^(-2i/dim). Options base (10000),
--- scaling { type = "linear", factor = }, { type = "dynamic", factor =, original_max_position_embeddings = },
--- { type = "llama3", factor =, low_freq_factor = 1, high_freq_factor = 4, original_max_position_embeddings = };
--- device.
function RotaryEmbedding:init(dim, options)
  local o = base.options("RotaryEmbedding", options,
    { base = 10000, scaling = base.optional, device = base.optional })
  if support.size("RotaryEmbedding", "dim", dim, 2) % 2 ~= 0 then
    base.fail("RotaryEmbedding: dim must be even, got " .. dim)
  end
  if type(o.base) ~= "number" or not (o.base > 0) then
    base.fail("RotaryEmbedding: base must be a positive number, got " .. tostring(o.base))
  end
  self.dim, self.base = dim, o.base
  local kind, scaling = check_scaling(o.scaling)
  self.scaling_type = kind
  rawset(self, "_scaling", scaling)
  local inv_freq = base.tl.tensor(scalings[kind].frequencies(self, scaling, 0), { device = o.device })
  self:register_buffer("inv_freq", inv_freq, { persistent = false })
end

-- cos and sin of the first `rows` positions, where those of `length` positions are wanted
local function compute(self, rows, length)
  local tl, device = base.tl, C.tl_device_of(self.inv_freq)
  local f = tl.tensor(scalings[self.scaling_type].frequencies(self, self._scaling, length), { dtype = "float64" })
  local angles = tl.arange(rows, { dtype = "float64" }):outer(f)
  local function placed(t)
    base.check(C.tl_to(t, C.TL_FLOAT32, device, base.out))
    return base.wrap(base.out[0])
  end
  return { cos = placed(angles:cos()), sin = placed(angles:sin()), rows = rows, device = device }
end

local function table_for(self, last)
  local s = scalings[self.scaling_type]
  local trained = s.grows_from and self._scaling[s.grows_from]
  if trained and last > trained then return compute(self, last, last) end
  local kept = rawget(self, "_table")
  if not kept or kept.rows < last or kept.device ~= C.tl_device_of(self.inv_freq) then
    local rows = math.max(last, kept and 2 * kept.rows or 128)
    kept = compute(self, trained and math.min(rows, trained) or rows, 0)
    rawset(self, "_table", kept)
  end
  return kept
end

--- cos and sin (count, dim/2) in float32 of the positions first, first + 1, ..; the first position is 1, where nothing
--- turns. They are kept from call to call.
function RotaryEmbedding:forward(first, count)
  support.size("RotaryEmbedding", "the first position", first)
  support.size("RotaryEmbedding", "the number of positions", count)
  local t = table_for(self, first + count - 1)
  return t.cos:narrow(1, first, count), t.sin:narrow(1, first, count)
end

function RotaryEmbedding:extra_repr()
  return ("%d, base=%g%s"):format(self.dim, self.base,
    self.scaling_type == "none" and "" or ", scaling=" .. self.scaling_type)
end

return { RotaryEmbedding = RotaryEmbedding }
