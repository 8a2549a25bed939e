-- gpt2.lua: tl.models.gpt2: GPT-2 (Radford et al. 2019). Modules are called as in Hugging Face's files, options as in
-- their config.json; the weights of a layer are (out, in) here, (in, out) there.
local base = require "tlua.base"
local nn = require "tlua.nn"
local F = require "tlua.nn.functional"
local support = require "tlua.models.support"
local attention = require "tlua.models.attention"
local Causal = require "tlua.models.causal"

local tl, fail = base.tl, base.fail
local Module = nn.Module

local NAME = "models.gpt2"

local defaults = {
  vocab_size = 50257, n_positions = 1024, n_embd = 768, n_layer = 12, n_head = 12, n_inner = base.optional,
  activation_function = "gelu_new", resid_pdrop = 0.1, embd_pdrop = 0.1, attn_pdrop = 0.1,
  layer_norm_epsilon = 1e-5, initializer_range = 0.02, tie_word_embeddings = true, bias = true,
  bos_token_id = base.optional, eos_token_id = base.optional, pad_token_id = base.optional,
}

local function read(options)
  local c = base.options(NAME, options, defaults)
  c.n_inner = c.n_inner or 4 * c.n_embd
  support.check_sizes(NAME, c, "n_layer", "n_head", "n_embd", "n_inner", "n_positions", "vocab_size")
  support.check_probabilities(NAME, c, "resid_pdrop", "embd_pdrop", "attn_pdrop")
  if c.n_embd % c.n_head ~= 0 then
    fail(("%s: n_embd %d cannot be divided among %d heads"):format(NAME, c.n_embd, c.n_head))
  end
  return c
end

-- ---- one block ----

local Attention = Module:extend("GPT2Attention")

function Attention:init(c, layer)
  self.c_attn = nn.Linear(c.n_embd, 3 * c.n_embd, { bias = c.bias })
  self.c_proj = nn.Linear(c.n_embd, c.n_embd, { bias = c.bias })
  self.resid_dropout = support.dropout(c.resid_pdrop)
  self.layer, self.n_head, self.attn_pdrop = layer, c.n_head, c.attn_pdrop
end

-- x (B, T, C); the heads' queries, keys and values (B, H, T, D) are views of one product.
function Attention:forward(x, cache)
  local B, T, C, H = x:size(1), x:size(2), x:size(3), self.n_head
  local parts = self.c_attn(x):view(B, T, 3, H, C / H):permute(3, 1, 4, 2, 5)
  local y = attention(parts:select(1, 1), parts:select(1, 2), parts:select(1, 3), cache, self.layer,
    self.training and self.attn_pdrop or 0)
  return self.resid_dropout(self.c_proj(y:transpose(2, 3):reshape(B, T, C)))
end

local MLP = Module:extend("GPT2MLP")

function MLP:init(c)
  self.c_fc = nn.Linear(c.n_embd, c.n_inner, { bias = c.bias })
  self.c_proj = nn.Linear(c.n_inner, c.n_embd, { bias = c.bias })
  self.dropout = support.dropout(c.resid_pdrop)
  self.act = support.activation(NAME, "activation_function", c.activation_function)
  self.fused = support.is_gelu_tanh(c.activation_function)
end

function MLP:forward(x)
  local fc = self.c_fc
  local fused = self.fused and support.is_plain(fc)
  local h = fused and F.linear_gelu(x, fc.weight, fc.bias) or self.act(fc(x))
  return self.dropout(self.c_proj(h))
end

local Block = Module:extend("GPT2Block")

function Block:init(c, layer)
  local norm = { eps = c.layer_norm_epsilon, bias = c.bias }
  self.ln_1 = nn.LayerNorm(c.n_embd, norm)
  self.attn = Attention(c, layer)
  self.ln_2 = nn.LayerNorm(c.n_embd, norm)
  self.mlp = MLP(c)
end

function Block:forward(x, cache)
  x = x + self.attn(self.ln_1(x), cache)
  return x + self.mlp(self.ln_2(x))
end

-- ---- the model ----

local Transformer = Module:extend("GPT2Model")

function Transformer:init(c)
  self.wte = nn.Embedding(c.vocab_size, c.n_embd)
  self.wpe = nn.Embedding(c.n_positions, c.n_embd)
  self.drop = support.dropout(c.embd_pdrop)
  self.h = nn.ModuleList()
  for i = 1, c.n_layer do self.h:add(Block(c, i)) end
  self.ln_f = nn.LayerNorm(c.n_embd, { eps = c.layer_norm_epsilon, bias = c.bias })
end

function Transformer:forward(ids, cache)
  local T, past = ids:size(2), cache and cache.length or 0
  local x = self.drop(self.wte(ids) + self.wpe.weight:narrow(1, past + 1, T))
  x = support.through(self.h, self.checkpointing, x, cache)
  if cache then cache:advance(T) end
  return self.ln_f(x)
end

local GPT2 = Causal:extend("GPT2")
GPT2.model_type, GPT2.architecture, GPT2.defaults = "gpt2", "GPT2LMHeadModel", defaults

--- tl.models.gpt2{n_layer=12, n_head=12, n_embd=768, ...}: model(ids) takes ids (B, T) and gives logits (B, T, V).
function GPT2:init(options)
  local c = read(options)
  rawset(self, "config", c)
  self.transformer = Transformer(c)
  if not c.tie_word_embeddings then self.lm_head = nn.Linear(c.n_embd, c.vocab_size, { bias = false }) end
  self:initialise()
end

--- Weights N(0, initializer_range), those that lead back into the residual stream scaled by 1/sqrt(2 n_layer); biases
--- zero.
function GPT2:initialise()
  local c = self.config
  for name, p in self:named_parameters() do
    if name:find "c_proj%.weight$" then
      nn.init.normal_(p, { std = c.initializer_range / math.sqrt(2 * c.n_layer) })
    elseif p:dim() == 2 then
      nn.init.normal_(p, { std = c.initializer_range })
    elseif name:find "%.bias$" then
      nn.init.zeros_(p)
    end
  end
end

function GPT2:body() return self.transformer end
function GPT2:output_weight() return (self.lm_head or self.transformer.wte).weight end

-- ---- Hugging Face's files ----

GPT2.unsupported = {
  scale_attn_weights = true, scale_attn_by_inverse_layer_idx = false, add_cross_attention = false,
  quantization_config = false,
}

--- The prefix may be absent; old files have the causal mask among their tensors.
function GPT2.rename(name)
  if name:find "%.attn%.bias$" or name:find "%.attn%.masked_bias$" then return nil end
  if name:find "^lm_head%." or name:find "^transformer%." then return name end
  return "transformer." .. name
end

--- Their layers keep weights as (in, out).
function GPT2.transposed(name) return name:find "%.c_%l+%.weight$" ~= nil end

--- Their layers all have biases.
function GPT2.to_config(model, config, dict)
  config.bias = nil
  for name, m in model:named_modules() do
    if (m:is_a(nn.Linear) or m:is_a(nn.LayerNorm)) and not m.bias and name ~= "lm_head" then
      dict[name .. ".bias"] = tl.zeros(m.weight:size(1))
    end
  end
end

return GPT2
