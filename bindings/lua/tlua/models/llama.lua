-- llama.lua: tl.models.llama: Llama (Touvron et al. 2023): RMSNorm, rotary positions, SwiGLU, grouped-query attention.
-- Modules are called as in Hugging Face's files, options as in their config.json.
local base = require "tlua.base"
local nn = require "tlua.nn"
local F = require "tlua.nn.functional"
local attention = require "tlua.models.attention"
local support = require "tlua.models.support"
local Causal = require "tlua.models.causal"

local fail = base.fail
local Module = nn.Module

local NAME = "models.llama"

local defaults = {
  vocab_size = 32000, hidden_size = 4096, intermediate_size = 11008, num_hidden_layers = 32, num_attention_heads = 32,
  num_key_value_heads = base.optional, head_dim = base.optional, hidden_act = "silu", max_position_embeddings = 2048,
  initializer_range = 0.02, rms_norm_eps = 1e-6, rope_theta = 10000, rope_scaling = base.optional,
  attention_bias = false, attention_dropout = 0, mlp_bias = false, tie_word_embeddings = false,
  bos_token_id = base.optional, eos_token_id = base.optional, pad_token_id = base.optional,
}

local function read(options)
  local c = base.options(NAME, options, defaults)
  c.num_key_value_heads = c.num_key_value_heads or c.num_attention_heads
  c.head_dim = c.head_dim or c.hidden_size / c.num_attention_heads
  support.check_sizes(NAME, c, "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "hidden_size", "intermediate_size", "max_position_embeddings", "vocab_size")
  support.check_probabilities(NAME, c, "attention_dropout")
  if c.head_dim % 2 ~= 0 then fail(("%s: head_dim must be even, got %d"):format(NAME, c.head_dim)) end
  if c.num_attention_heads % c.num_key_value_heads ~= 0 then
    fail(("%s: %d heads cannot share %d keys and values"):format(NAME, c.num_attention_heads, c.num_key_value_heads))
  end
  if c.rope_scaling ~= nil and type(c.rope_scaling) ~= "table" then
    fail(("%s: option 'rope_scaling' must be a table, got %s"):format(NAME, base.kind(c.rope_scaling)))
  end
  return c
end

-- The keys of rope_scaling that each type needs.
local scaling_keys = {
  linear = { "factor" },
  llama3 = { "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings" },
}

-- rope_scaling as nn.RotaryEmbedding takes it.
local function scaling_of(c)
  local given = c.rope_scaling or {}
  local kind = given.rope_type or given.type or "default"
  if kind == "default" then return nil end
  if not scaling_keys[kind] then
    fail(("%s: rope_scaling of type '%s' is not supported%s"):format(NAME, tostring(kind),
      base.suggestion(tostring(kind), scaling_keys)))
  end
  local scaling = { type = kind }
  for _, key in ipairs(scaling_keys[kind]) do
    base.check_number(given[key], NAME, "rope_scaling's " .. key)
    scaling[key] = given[key]
  end
  return scaling
end

-- ---- one layer ----

local Attention = Module:extend("LlamaAttention")

function Attention:init(c, layer)
  local q, kv, options = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim,
    { bias = c.attention_bias }
  self.q_proj = nn.Linear(c.hidden_size, q, options)
  self.k_proj = nn.Linear(c.hidden_size, kv, options)
  self.v_proj = nn.Linear(c.hidden_size, kv, options)
  self.o_proj = nn.Linear(q, c.hidden_size, options)
  self.layer, self.head_dim, self.dropout = layer, c.head_dim, c.attention_dropout
end

-- (B, T, H D) -> (B, H, T, D)
local function heads(x, D) return x:view(x:size(1), x:size(2), -1, D):transpose(2, 3) end

function Attention:forward(x, cache, cos, sin)
  local D = self.head_dim
  local q = F.rope(heads(self.q_proj(x), D), cos, sin)
  local k = F.rope(heads(self.k_proj(x), D), cos, sin)
  local v = heads(self.v_proj(x), D)
  local y = attention(q, k, v, cache, self.layer, self.training and self.dropout or 0)
  return self.o_proj(y:transpose(2, 3):reshape(x:size(1), x:size(2), -1))
end

local MLP = Module:extend("LlamaMLP")

function MLP:init(c)
  local options = { bias = c.mlp_bias }
  self.gate_proj = nn.Linear(c.hidden_size, c.intermediate_size, options)
  self.up_proj = nn.Linear(c.hidden_size, c.intermediate_size, options)
  self.down_proj = nn.Linear(c.intermediate_size, c.hidden_size, options)
  self.act_fn = support.activation(NAME, "hidden_act", c.hidden_act)
  self.fused = self.act_fn == F.silu
end

function MLP:forward(x)
  local gate, up = self.gate_proj(x), self.up_proj(x)
  return self.down_proj(self.fused and F.swiglu(gate, up) or self.act_fn(gate) * up)
end

local Layer = Module:extend("LlamaDecoderLayer")

function Layer:init(c, layer)
  local norm = { eps = c.rms_norm_eps }
  self.self_attn = Attention(c, layer)
  self.mlp = MLP(c)
  self.input_layernorm = nn.RMSNorm(c.hidden_size, norm)
  self.post_attention_layernorm = nn.RMSNorm(c.hidden_size, norm)
end

function Layer:forward(x, cache, cos, sin)
  x = x + self.self_attn(self.input_layernorm(x), cache, cos, sin)
  return x + self.mlp(self.post_attention_layernorm(x))
end

-- ---- the model ----

local Model = Module:extend("LlamaModel")

function Model:init(c)
  self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
  self.layers = nn.ModuleList()
  for i = 1, c.num_hidden_layers do self.layers:add(Layer(c, i)) end
  self.norm = nn.RMSNorm(c.hidden_size, { eps = c.rms_norm_eps })
  self.rotary_emb = nn.RotaryEmbedding(c.head_dim, { base = c.rope_theta, scaling = scaling_of(c) })
end

function Model:forward(ids, cache)
  local T, past = ids:size(2), cache and cache.length or 0
  local x = self.embed_tokens(ids)
  local cos, sin = self.rotary_emb(past + 1, T)
  x = support.through(self.layers, self.checkpointing, x, cache, cos, sin)
  if cache then cache:advance(T) end
  return self.norm(x)
end

local Llama = Causal:extend("Llama")
Llama.model_type, Llama.architecture, Llama.defaults = "llama", "LlamaForCausalLM", defaults

--- tl.models.llama{hidden_size=4096, ...}: model(ids) takes ids (B, T) and gives logits (B, T, V).
function Llama:init(options)
  local c = read(options)
  rawset(self, "config", c)
  self.model = Model(c)
  if not c.tie_word_embeddings then self.lm_head = nn.Linear(c.hidden_size, c.vocab_size, { bias = false }) end
  for _, p in ipairs(self:parameters()) do
    if p:dim() == 2 then nn.init.normal_(p, { std = c.initializer_range }) end
  end
  for name, p in self:named_parameters() do
    if name:find "%.bias$" then nn.init.zeros_(p) end
  end
end

function Llama:body() return self.model end
function Llama:output_weight() return (self.lm_head or self.model.embed_tokens).weight end

-- ---- Hugging Face's files ----

Llama.unsupported = { quantization_config = false, partial_rotary_factor = 1 }

--- Newer files have rope_theta and rope_scaling in one table, rope_parameters.
function Llama.from_config(op, path, config, options)
  local new = config.rope_parameters
  if type(new) ~= "table" or next(new) == nil then return end
  if new.partial_rotary_factor ~= nil and new.partial_rotary_factor ~= 1 then
    fail(("%s: %s: rope_parameters.partial_rotary_factor is not supported"):format(op, path))
  end
  options.rope_theta, options.rope_scaling = new.rope_theta, new
end

function Llama.to_config(model, config)
  if config.rope_parameters == nil then return end
  local c, merged = model.config, {}
  for key, value in pairs(c.rope_scaling or { rope_type = "default" }) do merged[key] = value end
  merged.rope_theta = c.rope_theta
  config.rope_parameters, config.rope_theta, config.rope_scaling = merged, nil, nil
end

function Llama.rename(name)
  if name:find "rotary_emb%.inv_freq$" then return nil end
  if name:find "^lm_head%." or name:find "^model%." then return name end
  return "model." .. name
end

function Llama.transposed() return false end

return Llama
