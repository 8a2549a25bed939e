-- memory_table.lua: what fits into a card's memory: the tables of docs/memory.md, from planned bytes (tl.memory_plan).
--
--   tlua scripts/memory_table.lua [--budget GB]     which batch of 1024 tokens fits, by size of GPT-2 and options
--   tlua scripts/memory_table.lua --check           GPT-2 124M, 1 x 256 tokens: planned bytes beside a real step's
--   tlua scripts/memory_table.lua --checkpoint      12 layers of width 128, 4 x 256 tokens: bytes and time
local tl = require "tlua"
local optim = tl.optim

local GB = 2 ^ 30
local CONTEXT = 1024

local sizes = {
  { "124M", { n_layer = 12, n_head = 12, n_embd = 768 } },
  { "355M", { n_layer = 24, n_head = 16, n_embd = 1024 } },
  { "774M", { n_layer = 36, n_head = 20, n_embd = 1280 } },
  { "1.5B", { n_layer = 48, n_head = 25, n_embd = 1600 } },
}

local choices = {
  { name = "float32" },
  { name = "bfloat16 autocast", amp = "bfloat16" },
  { name = "+ checkpoint", amp = "bfloat16", checkpoint = true },
  { name = "+ int8 state", amp = "bfloat16", checkpoint = true, state_dtype = "int8" },
  { name = "bfloat16 weights, checkpoint, int8 state", dtype = "bfloat16", checkpoint = true, state_dtype = "int8" },
}

local function plan(size, choice, batch, context, device)
  local config = { resid_pdrop = 0, embd_pdrop = 0, attn_pdrop = 0 }
  for k, v in pairs(size[2]) do config[k] = v end
  local ids = tl.zeros({ batch, context }, { dtype = "int64", device = device })
  return tl.memory_plan(function()
    local model = tl.models.gpt2(config)
    if choice.dtype then model:to(choice.dtype) end
    if choice.checkpoint then model:gradient_checkpointing(true) end
    return model
  end, { ids, ids }, {
    device = device,
    amp = choice.amp,
    loss = choice.logits and function(model, x, y)
      return tl.F.cross_entropy(model(x):flatten(1, 2), y:flatten())
    end or function(model, x, y) return model:loss(x, y) end,
    optimizer = function(params)
      return optim.AdamW(params, { state_dtype = choice.state_dtype, stochastic_rounding = choice.dtype == "bfloat16" })
    end,
  })
end

-- The largest batch whose peak is within the budget (0: there is none), and its plan.
local function largest(size, choice, budget)
  local fits, best, first = 0, nil, plan(size, choice, 1, CONTEXT, "meta")
  local function try(batch)
    local p = plan(size, choice, batch, CONTEXT, "meta")
    if p.peak > budget then return false end
    fits, best = batch, p
    return true
  end
  local step = 1
  while try(fits + step) do step = 2 * step end
  while step > 1 do
    step = step / 2
    try(fits + step)
  end
  return fits, best or first
end

local function gb(bytes) return ("%.2f"):format(bytes / GB) end

local function tables(budget)
  print("| GPT-2 | options | weights | gradients | AdamW | batch x " .. CONTEXT .. " | activations | peak |")
  print("|---|---|---:|---:|---:|---:|---:|---:|")
  for _, size in ipairs(sizes) do
    for _, choice in ipairs(choices) do
      local batch, p = largest(size, choice, budget)
      local row = { size[1], choice.name, gb(p.parameters), gb(p.gradients), gb(p.optimizer),
        batch == 0 and "-" or batch, gb(p.activations), gb(p.peak) }
      print("| " .. table.concat(row, " | ") .. " |")
      io.stdout:flush()
    end
  end
  print()
  print("| 124M, bfloat16 autocast, 8 x 1024 | activations | peak |")
  print("|---|---:|---:|")
  for _, case in ipairs { { "model:loss(x, y)", false }, { "cross_entropy(model(x), y)", true } } do
    local p = plan(sizes[1], { amp = "bfloat16", logits = case[2] }, 8, CONTEXT, "meta")
    print(("| %s | %s | %s |"):format(case[1], gb(p.activations), gb(p.peak)))
  end
end

local function check()
  print("| 124M, 1 x 256, float32 | planned on meta | measured on the CPU |")
  print("|---|---:|---:|")
  local planned, real = plan(sizes[1], choices[1], 1, 256, "meta"), plan(sizes[1], choices[1], 1, 256, "cpu")
  local names = { "parameters", "gradients", "optimizer", "activations", "forward", "backward", "step", "peak" }
  for _, name in ipairs(names) do
    print(("| %s | %.0f | %.0f |"):format(name, planned[name], real[name]))
  end
end

-- Seconds of one forward and backward: the best of some, with and without checkpoints in turn.
local function times(model, ids, rounds)
  local best = { [false] = math.huge, [true] = math.huge }
  for _ = 1, rounds do
    for _, on in ipairs { false, true } do
      model:gradient_checkpointing(on):zero_grad()
      local from = os.clock() -- of the processor: on one thread
      model:loss(ids, ids):backward()
      best[on] = math.min(best[on], os.clock() - from)
    end
  end
  return best
end

local function checkpointing()
  local size = { "", { n_layer = 12, n_head = 4, n_embd = 128, vocab_size = 512, n_positions = 256 } }
  local config = { resid_pdrop = 0, embd_pdrop = 0, attn_pdrop = 0 }
  for k, v in pairs(size[2]) do config[k] = v end
  tl.set_num_threads(1)
  local best = times(tl.models.gpt2(config), tl.randint(0, 512, { 4, 256 }, { dtype = "int64" }), 4)
  print("| 12 layers of width 128, 4 x 256 tokens | kept for backward, MB | peak, MB | forward and backward, ms |")
  print("|---|---:|---:|---:|")
  for _, on in ipairs { false, true } do
    local p = plan(size, { checkpoint = on }, 4, 256, "meta")
    local name = on and "checkpoint around each layer" or "plain"
    print(("| %s | %.1f | %.1f | %.0f |"):format(name, p.activations / 2 ^ 20, p.peak / 2 ^ 20, best[on] * 1e3))
  end
end

if arg[1] == "--check" then check()
elseif arg[1] == "--checkpoint" then checkpointing()
elseif arg[1] == nil or (arg[1] == "--budget" and tonumber(arg[2])) then tables((tonumber(arg[2]) or 22.5) * GB)
else
  io.stderr:write("usage: tlua scripts/memory_table.lua [--budget GB | --check | --checkpoint]\n")
  os.exit(2)
end
