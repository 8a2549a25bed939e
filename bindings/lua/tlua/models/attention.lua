-- attention.lua: self-attention of new tokens over all tokens so far.
local base = require "tlua.base"
local F = require "tlua.nn.functional"

local tl = base.tl

-- New token i (of T, after `past` others) sees the first past + i tokens.
local function mask_of(T, past, device)
  return tl.ones(T, past + T, { dtype = "bool", device = device }):tril(past)
end

--- q (B, H, T, D), k and v (B, Hk, T, D) of the new tokens -> (B, H, T, D). With a cache the tokens in it come first.
return function(q, k, v, cache, layer, dropout_p)
  local T, past = q:size(3), cache and cache.length or 0
  if cache then k, v = cache:append(layer, k, v) end
  return F.scaled_dot_product_attention(q, k, v, {
    is_causal = T > 1 and past == 0, attn_mask = T > 1 and past > 0 and mask_of(T, past, q.device) or nil,
    dropout_p = dropout_p, enable_gqa = k:size(2) ~= q:size(2),
  })
end
