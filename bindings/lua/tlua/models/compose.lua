-- compose.lua: attention made of smaller operations.
local base = require "tlua.base"

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

return compose
