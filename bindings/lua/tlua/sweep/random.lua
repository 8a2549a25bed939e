-- random.lua: streams of random numbers for samplers: splitmix64 (Steele, Lea, Flood 2014). A stream is named by
-- numbers and strings, so that trial 17 of a study draws the same whichever process draws it.
local ffi = require "ffi"
local bit = require "bit"

local bxor, rshift = bit.bxor, bit.rshift
local golden = 0x9E3779B97F4A7C15ULL

local function mix(z)
  z = bxor(z, rshift(z, 30)) * 0xBF58476D1CE4E5B9ULL
  z = bxor(z, rshift(z, 27)) * 0x94D049BB133111EBULL
  return bxor(z, rshift(z, 31))
end

local Stream = {}
Stream.__index = Stream

--- stream:bits(): 64 random bits (uint64_t).
function Stream:bits()
  self.state = self.state + golden
  return mix(self.state)
end

--- stream:uniform(): in [0, 1).
function Stream:uniform() return tonumber(rshift(self:bits(), 11)) * 2 ^ -53 end

--- stream:integer(n): one of 0 .. n-1.
function Stream:integer(n) return math.floor(self:uniform() * n) end

--- stream:normal(): mean 0, deviation 1 (the polar method of Marsaglia and Bray).
function Stream:normal()
  while true do
    local u, v = 2 * self:uniform() - 1, 2 * self:uniform() - 1
    local s = u * u + v * v
    if s > 0 and s < 1 then return u * math.sqrt(-2 * math.log(s) / s) end
  end
end

--- stream:pick(weights): the position of one of them, with that probability (they need not sum to 1).
function Stream:pick(weights)
  local total = 0
  for i = 1, #weights do total = total + weights[i] end
  local left = self:uniform() * total
  for i = 1, #weights do
    left = left - weights[i]
    if left < 0 then return i end
  end
  return #weights
end

local random = {}

--- A number of 53 bits that depends on all arguments (numbers, strings).
function random.hash(...)
  local state = 0ULL
  for i = 1, select("#", ...) do
    local x = select(i, ...)
    if type(x) == "number" then
      state = mix(state + golden + ffi.cast("uint64_t", ffi.cast("int64_t", x)))
    else
      for k = 1, #x do state = mix(state + golden + x:byte(k)) end
    end
  end
  return tonumber(rshift(state, 11))
end

--- The stream that these arguments name.
function random.stream(...) return setmetatable({ state = ffi.cast("uint64_t", random.hash(...)) }, Stream) end

--- A seed that nobody chose, from the kernel.
function random.fresh_seed()
  local file = assert(io.open("/dev/urandom", "rb"))
  local a, b, c, d = file:read(4):byte(1, 4)
  file:close()
  return a + 256 * b + 65536 * c + 16777216 * (d % 128)
end

return random
