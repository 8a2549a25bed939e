-- bench_language.lua: the cases of `tlua bench` that train language models.

-- Dense bfloat16 products a second of a card, float32 sums: NVIDIA's data sheets. By a part of the device's name.
local peaks = {
  { "H200", 989e12 }, { "H100", 989e12 }, { "A100", 312e12 }, { "L40S", 362e12 }, { "4090", 165e12 }, { "3090", 71e12 },
}

local function peak_of(device)
  local name = require("tlua").cuda.get_device_name(tonumber(device:match ":(%d+)$" or 0))
  for _, row in ipairs(peaks) do
    if name:find(row[1], 1, true) then return row[2] end
  end
end

-- A GPT-2 without dropout and its AdamW step with gradient clipping on a fixed batch of B windows of T tokens.
local function gpt_step(config, B, T, low)
  local tl = require "tlua"
  local model = tl.models.gpt2 {
    n_layer = config.n_layer, n_head = config.n_head, n_embd = config.n_embd, n_positions = config.n_positions,
    vocab_size = config.vocab_size, resid_pdrop = 0, embd_pdrop = 0, attn_pdrop = 0,
  }
  local optimizer = tl.optim.AdamW(model:parameters(), { lr = 1e-4, betas = { 0.9, 0.99 }, weight_decay = 0.1 })
  local ids, targets = tl.randint(0, config.vocab_size, { B, T }), tl.randint(0, config.vocab_size, { B, T })
  local function forward() return model:loss(ids, targets) end
  local cast = { device = ids.device, dtype = low }
  local function step(n)
    for _ = 1, n do
      optimizer:zero_grad()
      local loss = low and tl.amp.autocast(cast, forward) or forward()
      loss:backward()
      tl.nn.utils.clip_grad_norm_(model:parameters(), 1)
      optimizer:step()
    end
  end
  return step, model
end

local gpt2 = { n_layer = 12, n_head = 12, n_embd = 768, n_positions = 1024, vocab_size = 50257 }

--- Adds the cases; `measure` is bench.lua's.
return function(case, measure)
  case("gpt", "GPT 4 layers, width 128, context 64, 65 characters, AdamW step, batch 12", { ratio = 1 }, function(o)
    local config = { n_layer = 4, n_head = 4, n_embd = 128, n_positions = 64, vocab_size = 65 }
    local seconds = measure(gpt_step(config, 12, 64), o.seconds)
    return { seconds = seconds, tokens = 12 * 64 / seconds }
  end)

  case("gpt2", "GPT-2 124M, AdamW step, batch 4 x 64", { ratio = 1 }, function(o)
    local seconds = measure(gpt_step(gpt2, 4, 64), o.seconds)
    return { seconds = seconds, tokens = 4 * 64 / seconds }
  end)

  case("gpt2_bfloat16", "GPT-2 124M, AdamW step in bfloat16 autocast, batch 8 x 1024", { ratio = 1 }, function(o)
    local B, T = 8, 1024
    local step, model = gpt_step(gpt2, B, T, "bfloat16")
    local weights = -model.transformer.wpe.weight:numel() -- looked up, not multiplied
    for _, p in ipairs(model:parameters()) do weights = weights + p:numel() end
    local seconds = measure(step, o.seconds)
    -- Chowdhery et al. 2022 (PaLM), appendix B: 6 flop a weight and token, 12 T a layer and channel for attention
    local flops = (6 * weights + 12 * gpt2.n_layer * gpt2.n_embd * T) * B * T
    local peak = peak_of(o.device)
    return {
      seconds = seconds, tokens = B * T / seconds, gflops = flops / seconds / 1e9,
      utilisation = peak and flops / seconds / peak,
    }
  end, "cuda")
end
