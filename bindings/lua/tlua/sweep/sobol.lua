-- sobol.lua: points of the Sobol sequence, by the direction numbers of Joe and Kuo (2008, new-joe-kuo-6; their first 64
-- dimensions), with Owen's scrambling by hashing (Burley 2020): every seed gives other points, as evenly spread.
local bit = require "bit"
local random = require "tlua.sweep.random"

local band, bor, bxor, lshift, rshift, tobit = bit.band, bit.bor, bit.bxor, bit.lshift, bit.rshift, bit.tobit

local sobol = { dims = 64 }

-- For each dimension from the second: the primitive polynomial as a binary number, then the initial numbers m_1, m_2,
-- ...
local initial = {
  { 3, 1 }, { 7, 1, 3 }, { 11, 1, 3, 1 }, { 13, 1, 1, 1 }, { 19, 1, 1, 3, 3 }, { 25, 1, 3, 5, 13 },
  { 37, 1, 1, 5, 5, 17 }, { 41, 1, 1, 5, 5, 5 }, { 47, 1, 1, 7, 11, 19 }, { 55, 1, 1, 5, 1, 1 },
  { 59, 1, 1, 1, 3, 11 }, { 61, 1, 3, 5, 5, 31 }, { 67, 1, 3, 3, 9, 7, 49 }, { 91, 1, 1, 1, 15, 21, 21 },
  { 97, 1, 3, 1, 13, 27, 49 }, { 103, 1, 1, 1, 15, 7, 5 }, { 109, 1, 3, 1, 15, 13, 25 }, { 115, 1, 1, 5, 5, 19, 61 },
  { 131, 1, 3, 7, 11, 23, 15, 103 }, { 137, 1, 3, 7, 13, 13, 15, 69 }, { 143, 1, 1, 3, 13, 7, 35, 63 },
  { 145, 1, 3, 5, 9, 1, 25, 53 }, { 157, 1, 3, 1, 13, 9, 35, 107 }, { 167, 1, 3, 1, 5, 27, 61, 31 },
  { 171, 1, 1, 5, 11, 19, 41, 61 }, { 185, 1, 3, 5, 3, 3, 13, 69 }, { 191, 1, 1, 7, 13, 1, 19, 1 },
  { 193, 1, 3, 7, 5, 13, 19, 59 }, { 203, 1, 1, 3, 9, 25, 29, 41 }, { 211, 1, 3, 5, 13, 23, 1, 55 },
  { 213, 1, 3, 7, 3, 13, 59, 17 }, { 229, 1, 3, 1, 3, 5, 53, 69 }, { 239, 1, 1, 5, 5, 23, 33, 13 },
  { 241, 1, 1, 7, 7, 1, 61, 123 }, { 247, 1, 1, 7, 9, 13, 61, 49 }, { 253, 1, 3, 3, 5, 3, 55, 33 },
  { 285, 1, 3, 1, 15, 31, 13, 49, 245 }, { 299, 1, 3, 5, 15, 31, 59, 63, 97 }, { 301, 1, 3, 1, 11, 11, 11, 77, 249 },
  { 333, 1, 3, 1, 11, 27, 43, 71, 9 }, { 351, 1, 1, 7, 15, 21, 11, 81, 45 }, { 355, 1, 3, 7, 3, 25, 31, 65, 79 },
  { 357, 1, 3, 1, 1, 19, 11, 3, 205 }, { 361, 1, 1, 5, 9, 19, 21, 29, 157 }, { 369, 1, 3, 7, 11, 1, 33, 89, 185 },
  { 391, 1, 3, 3, 3, 15, 9, 79, 71 }, { 397, 1, 3, 7, 11, 15, 39, 119, 27 }, { 425, 1, 1, 3, 1, 11, 31, 97, 225 },
  { 451, 1, 1, 1, 3, 23, 43, 57, 177 }, { 463, 1, 3, 7, 7, 17, 17, 37, 71 }, { 487, 1, 3, 1, 5, 27, 63, 123, 213 },
  { 501, 1, 1, 3, 5, 11, 43, 53, 133 }, { 529, 1, 3, 5, 5, 29, 17, 47, 173, 479 },
  { 539, 1, 3, 3, 11, 3, 1, 109, 9, 69 }, { 545, 1, 1, 1, 5, 17, 39, 23, 5, 343 },
  { 557, 1, 3, 1, 5, 25, 15, 31, 103, 499 }, { 563, 1, 1, 1, 11, 11, 17, 63, 105, 183 },
  { 601, 1, 1, 5, 11, 9, 29, 97, 231, 363 }, { 607, 1, 1, 5, 15, 19, 45, 41, 7, 383 },
  { 617, 1, 3, 7, 7, 31, 19, 83, 137, 221 }, { 623, 1, 1, 1, 3, 23, 15, 111, 223, 83 },
  { 631, 1, 1, 5, 13, 31, 15, 55, 25, 161 }, { 637, 1, 1, 3, 13, 25, 47, 39, 87, 257 },
}

local directions = {} -- dimension -> 32 numbers, made when first asked for

local function make_directions(dim)
  local m, v = {}, {}
  if dim == 1 then
    for i = 1, 32 do m[i] = 1 end
  else
    local row = initial[dim - 1]
    local poly, degree = row[1], #row - 1
    for i = 1, 32 do
      if i <= degree then
        m[i] = row[i + 1]
      else
        local x = bxor(m[i - degree], lshift(m[i - degree], degree))
        for k = 1, degree - 1 do
          if band(rshift(poly, degree - k), 1) == 1 then x = bxor(x, lshift(m[i - k], k)) end
        end
        m[i] = x
      end
    end
  end
  for i = 1, 32 do v[i] = lshift(m[i], 32 - i) end
  return v
end

-- 32-bit product of two 32-bit numbers, in pieces that doubles hold exactly.
local function multiply(a, b)
  local low, high = band(a, 0xffff), rshift(a, 16)
  b = b % 4294967296
  return tobit((low * b % 4294967296 + (high * b % 65536) * 65536) % 4294967296)
end

local function reverse(x)
  x = bor(rshift(x, 16), lshift(x, 16))
  x = bor(lshift(band(x, 0x00ff00ff), 8), band(rshift(x, 8), 0x00ff00ff))
  x = bor(lshift(band(x, 0x0f0f0f0f), 4), band(rshift(x, 4), 0x0f0f0f0f))
  x = bor(lshift(band(x, 0x33333333), 2), band(rshift(x, 2), 0x33333333))
  return bor(lshift(band(x, 0x55555555), 1), band(rshift(x, 1), 0x55555555))
end

-- The hash of Laine and Karras with Burley's constants: a bit changes with the bits below it only, which, on the
-- reversed number, is a nested uniform scrambling.
local function scramble(x, seed)
  x = reverse(x)
  x = bxor(x, multiply(x, 0x3d20adea))
  x = tobit(x + seed)
  x = multiply(x, bor(rshift(seed, 16), 1))
  x = bxor(x, multiply(x, 0x05526c56))
  x = bxor(x, multiply(x, 0x53a22864))
  return reverse(x)
end

--- Coordinate `dim` (1 .. 64) of point `index` (0, 1, ...), in [0, 1). Without a seed: not scrambled.
function sobol.point(index, dim, seed)
  local v = directions[dim]
  if not v then
    v = make_directions(dim)
    directions[dim] = v
  end
  local x, i = 0, 1
  while index > 0 do
    if index % 2 == 1 then x = bxor(x, v[i]) end
    index, i = math.floor(index / 2), i + 1
  end
  if seed then x = scramble(x, tobit(random.hash(seed, "sobol", dim))) end
  return (x % 4294967296) / 4294967296
end

return sobol
