-- causal.lua: what all causal language models have: logits, loss, caches, generation, saving. A model has a table
-- `config` and methods body(), the module that turns ids and a cache into states (B, T, C), and output_weight(), the
-- (V, C) that turns a state into logits.
local base = require "tlua.base"
local nn = require "tlua.nn"
local F = require "tlua.nn.functional"
local generation = require "tlua.models.generate"
local caches = require "tlua.models.cache"

local tl, fail = base.tl, base.fail

local Causal = nn.Module:extend("CausalLM")

--- The most tokens that the model can look at.
function Causal:limit() return self.config.n_positions or self.config.max_position_embeddings end

-- ids must be (B, T), and fit behind the tokens of the cache.
function Causal:check_ids(ids, cache)
  base.check_tensor(ids, self._name, 1)
  if ids:dim() ~= 2 then fail(("%s: ids must be (B, T), got %d dims"):format(self._name, ids:dim())) end
  if cache then caches.check(cache, self, ids) end
  local T = ids:size(2) + (cache and cache.length or 0)
  if T > self:limit() then fail(("%s: %d tokens, the model takes %d at most"):format(self._name, T, self:limit())) end
end

-- States x (.., C) and the weight (V, C) whose product is the logits. Adapters of the output layer (tl.lora) are more
-- columns of both: x W' + (scale A x) B'.
local function factors(model, x)
  local weight, head = model:output_weight(), model.lm_head
  local A = head and head.lora_A
  if not A then return x, weight end
  local change = A(head.lora_dropout(x:to(A.weight.dtype))) * head.lora_scale
  return tl.cat({ x, change:to(x.dtype) }, -1), tl.cat({ weight, head.lora_B.weight:to(weight.dtype) }, 2)
end

-- The output layer if it has hooks, pruning's for one: only a call runs them.
local function hooked(model)
  local head = model.lm_head
  return head and head._hooks and head or nil
end

local function logits(model, x)
  local head = hooked(model)
  if head then return head(x) end
  return F.linear(factors(model, x))
end

-- The loss of an output layer that has to be called: all logits are there at once.
local function hooked_loss(head, x, targets, options)
  local o = {}
  for key, value in pairs(options or {}) do o[key] = value end
  o.chunk = nil
  local loss = F.cross_entropy(head(x):flatten(1, 2), targets:flatten(), o)
  return loss:dim() == 0 and loss or loss:view(targets.shape)
end

--- model(ids, cache): ids (B, T) -> logits (B, T, V). With a cache (model:cache()) the ids continue what it holds.
function Causal:forward(ids, cache)
  self:check_ids(ids, cache)
  return logits(self, self:body()(ids, cache))
end

--- The logits (B, V) behind the last of ids (B, T).
function Causal:next_logits(ids, cache)
  self:check_ids(ids, cache)
  return logits(self, self:body()(ids, cache):select(2, -1))
end

--- model:loss(ids, targets, {ignore_index=-100, label_smoothing=0, reduction="mean", ...}): the cross entropy of
--- targets (B, T) with the logits of ids (B, T), which are never all in memory at once: F.linear_cross_entropy.
function Causal:loss(ids, targets, options)
  self:check_ids(ids)
  local states, head = self:body()(ids), hooked(self)
  if head then return hooked_loss(head, states, targets, options) end
  local x, weight = factors(self, states)
  return F.linear_cross_entropy(x, weight, targets, options)
end

--- model:gradient_checkpointing(on): keeps the input of each layer only, and computes the rest anew in backward: memory
--- for time (tl.utils.checkpoint). Returns the model.
function Causal:gradient_checkpointing(on)
  if type(on) ~= "boolean" then fail("gradient_checkpointing: must be true or false, got " .. base.kind(on)) end
  rawset(self:body(), "checkpointing", on)
  return self
end

--- model:cache(): an empty cache for model(ids, cache).
function Causal:cache() return caches.new(self) end

--- model:save_pretrained(folder): writes config.json and model.safetensors, as transformers reads them.
function Causal:save_pretrained(folder) require("tlua.models.pretrained").save(self, folder) end

Causal.generate, Causal.stream = generation.generate, generation.stream

return Causal
