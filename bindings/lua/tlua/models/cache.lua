-- cache.lua: the keys and values of the tokens that a model has seen, so that the next token costs one row.
local base = require "tlua.base"

local tl, fail = base.tl, base.fail

local Cache = {}
Cache.__index = Cache

local CHUNK = 256 -- tokens by which room grows at least

local cache = {}

--- A cache for that model. length: the tokens in it; keys, values: a tensor each layer.
function cache.new(model)
  return setmetatable({ model = model, length = 0, limit = model:limit(), keys = {}, values = {} }, Cache)
end

--- Fails unless `c` is a cache of this model, with as many rows as ids (B, T).
function cache.check(c, model, ids)
  if type(c) ~= "table" or getmetatable(c) ~= Cache then
    fail(("%s: argument 2 must be a cache, as model:cache() makes it, got %s"):format(model._name, base.kind(c)))
  end
  if c.model ~= model then fail(model._name .. ": the cache is another model's") end
  local rows = c.length > 0 and c.keys[1]:size(1) or ids:size(1)
  if rows ~= ids:size(1) then
    fail(("%s: the cache holds tokens of %d rows, the ids have %d"):format(model._name, rows, ids:size(1)))
  end
end

-- `store` (B, H, room, D), or a larger one with the same first `length` tokens; made for tensors like x.
local function with_room(self, store, x, needed)
  if store and store:size(3) >= needed then return store end
  local room = math.min(self.limit, math.max(needed, store and 2 * store:size(3) or 0, CHUNK))
  local larger = tl.empty({ x:size(1), x:size(2), room, x:size(4) }, { dtype = x.dtype, device = x.device })
  if store and self.length > 0 then
    larger:narrow(3, 1, self.length):copy_(store:narrow(3, 1, self.length))
  end
  return larger
end

local function append(self, list, layer, x)
  local needed = self.length + x:size(3)
  list[layer] = with_room(self, list[layer], x, needed)
  list[layer]:narrow(3, self.length + 1, x:size(3)):copy_(x)
  return list[layer]:narrow(3, 1, needed)
end

--- Adds a layer's keys and values (B, H, T, D) of the next T tokens; returns those of all tokens, views.
function Cache:append(layer, k, v)
  if tl.is_grad_enabled() and k.requires_grad then fail "a cache keeps no graph: call the model inside tl.no_grad" end
  return append(self, self.keys, layer, k), append(self, self.values, layer, v)
end

--- All layers have seen n more tokens.
function Cache:advance(n) self.length = self.length + n end

return cache
