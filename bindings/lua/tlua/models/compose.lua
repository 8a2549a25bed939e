-- compose.lua: attention, rotary positions and the loss of large vocabularies, made of smaller operations.
local base = require "tlua.base"
local F = require "tlua.nn.functional"

local tl = base.tl

local compose = {}

local function causal_mask(T, S, device)
  return tl.ones(T, S, { dtype = "bool", device = device }):tril(S - T):logical_not()
end

--- q (.., H, T, D), k and v (.., Hk, S, D): softmax(q k^T / sqrt(D)) v.
function compose.scaled_dot_product_attention(q, k, v, o)
  if o.enable_gqa and k:size(-3) ~= q:size(-3) then
    local times = q:size(-3) / k:size(-3)
    k, v = k:repeat_interleave(times, -3), v:repeat_interleave(times, -3)
  end
  local scores = (q * (q:size(-1) ^ -0.5)):matmul(k:transpose(-2, -1))
  if o.is_causal then
    scores = scores:masked_fill(causal_mask(q:size(-2), k:size(-2), q.device), -math.huge)
  elseif o.attn_mask then
    scores = scores:masked_fill(o.attn_mask:logical_not(), -math.huge)
  end
  local p = scores:softmax(-1)
  if o.dropout_p and o.dropout_p > 0 then p = p:dropout(o.dropout_p) end
  return p:matmul(v)
end

--- The cross entropy of x W^T: x (.., C), weight (V, C), target (..).
function compose.linear_cross_entropy(x, weight, target, o)
  local logits = F.linear(x, weight)
  return F.cross_entropy(logits:reshape(-1, weight:size(1)), target:reshape(-1), o)
end

-- cos and sin (T, D/2) turn the pairs (x[i], x[i + D/2]) of x (.., T, D).
function compose.rope(x, cos, sin)
  local a, b = unpack(x:chunk(2, -1))
  cos, sin = cos:to(x.dtype), sin:to(x.dtype)
  return tl.cat({ a * cos - b * sin, b * cos + a * sin }, -1)
end

return compose
