-- finetune.lua: low-rank adapters (Hu et al. 2022): trains a small GPT-2 on a text, or takes a model from a folder of
-- Hugging Face's, then teaches it another text by training a few adapters beside its frozen weights. The adapters are
-- saved in PEFT's names, merged, and the merged model written as transformers reads it.
--
--     tlua examples/finetune.lua                                       a text of this folder, then the same in capitals
--     tlua examples/finetune.lua --model FOLDER --data other.txt       a model with its tokenizer, and your text
local usage = [[
usage: tlua examples/finetune.lua [options]
  --model FOLDER  a GPT-2 or Llama: config.json, model.safetensors, and tokenizer.json or vocab.json and merges.txt
                  (default: trains one)
  --data FILE     the text to teach (default: README.md of the examples; without --model the model learns it first,
                  and then the same in capitals)
  --targets LIST  the layers that get adapters (default c_attn,c_proj,c_fc; of a Llama q_proj,v_proj)
  --rank N        of the adapters (default 8)
  --alpha X       their weight is alpha / rank (default 16)
  --steps N       of training the adapters (default 200)
  --base N        of training the model first, without --model (default 400)
  --batch N       sequences a step (default 16)
  --context N     tokens a sequence (default 32)
  --lr X          (default 0.005)
  --device NAME   cpu, cuda, cuda:1 ... (default cpu)
  --seed N        (default 1)
  --out FOLDER    gets adapter/ and merged/, and base/ without --model (default finetuned)]]

local tl = require "tlua"
local nn, optim, data, lora = tl.nn, tl.optim, tl.data, tl.lora

local here = arg[0]:match("^(.*)/[^/]*$") or "."

-- ---- the command line ----

local function refuse(message)
  io.stderr:write("finetune.lua: ", message, "\n", usage, "\n")
  os.exit(2)
end

local o = {
  model = "", data = here .. "/README.md", targets = "", rank = 8, alpha = 16, steps = 200, base = 400, batch = 16,
  context = 32, lr = 5e-3, device = "cpu", seed = 1, out = "finetuned",
}
for i = 1, #arg, 2 do
  local name, value = arg[i]:match("^%-%-(%l+)$"), arg[i + 1]
  if name == "help" or arg[i] == "-h" then
    print(usage)
    os.exit(0)
  end
  if name == nil or o[name] == nil then refuse("there is no option " .. arg[i]) end
  if type(o[name]) == "number" then value = tonumber(value) end
  if value == nil then refuse(arg[i] .. " needs a value") end
  o[name] = value
end
if o.batch < 1 or o.context < 1 then refuse "a batch needs at least one sequence of at least one token" end
tl.manual_seed(o.seed)
io.stdout:setvbuf "line"

-- ---- training, whatever the parameters ----

local function batches_of(ids)
  ids = ids:to(o.device)
  if #ids <= o.context then refuse(("the text has %d tokens, that is too short"):format(#ids)) end
  local within = tl.arange(o.context, { dtype = "int64", device = o.device })
  return function()
    local first = tl.randint(0, #ids - o.context, { o.batch }, { device = "cpu" }):to(o.device)
    local places = (first:unsqueeze(2) + within):reshape(-1)
    return ids:index_select(1, places):view(-1, o.context), ids:index_select(1, places + 1):view(-1, o.context)
  end
end

-- The mean loss of 10 batches, of the same places each time.
local function evaluate(model, ids)
  local state = tl.get_rng_state()
  tl.manual_seed(o.seed)
  local next_batch, sum = batches_of(ids), 0
  for _ = 1, 10 do sum = sum + tl.no_grad(model.loss, model, next_batch()):item() end
  tl.set_rng_state(state)
  return sum / 10
end

local function train(model, params, ids, steps, lr, desc)
  local optimizer = optim.AdamW(params, { lr = lr, weight_decay = 0 })
  local scheduler = optim.lr_scheduler.CosineAnnealingLR(optimizer, math.max(1, steps), { eta_min = lr / 10 })
  local next_batch = batches_of(ids)
  local bar = tl.progress(steps, { desc = desc })
  for _ in bar do
    optimizer:zero_grad()
    local loss = model:loss(next_batch())
    loss:backward()
    nn.utils.clip_grad_norm_(params, 1)
    optimizer:step()
    scheduler:step()
    bar:set { loss = loss }
  end
end

local function numel(params)
  local n = 0
  for _, p in ipairs(params) do n = n + p:numel() end
  return n
end

-- ---- the model, and the text that it shall learn ----

local model, vocab, text
if o.model ~= "" then
  model = tl.models.load(o.model, { device = o.device })
  if o.context > model:limit() then refuse(("the model takes %d tokens at most"):format(model:limit())) end
  vocab = tl.text.BPE.load(o.model)
  text = data.text(o.data)
else
  local plain = data.text(o.data)
  text = plain:upper()
  vocab = tl.text.CharVocab(plain .. text)
  model = tl.models.gpt2 {
    vocab_size = vocab:size(), n_positions = math.max(64, o.context), n_embd = 64, n_layer = 2, n_head = 4,
    resid_pdrop = 0, embd_pdrop = 0, attn_pdrop = 0,
  }
  model:to(o.device)
  train(model, model:parameters(), vocab:encode(plain), o.base, 3e-3, "the model")
  o.model = o.out .. "/base"
  model:save_pretrained(o.model)
end
local ids = vocab:encode(text)

local function write_on()
  local new = math.min(48, model:limit() - 8)
  local start = ids:narrow(1, 1, 8):unsqueeze(1):to(o.device)
  local written = model:generate(start, { max_new_tokens = new, temperature = 0.7, generator = tl.Generator(o.seed) })
  return vocab:decode(written[1]):gsub("%s+", " ")
end

print(("before  loss %.4f  %s"):format(evaluate(model, ids), write_on()))

-- ---- the adapters ----

local targets = o.targets
if targets == "" then targets = model.config.n_embd and "c_attn,c_proj,c_fc" or "q_proj,v_proj" end
local names = {}
for name in targets:gmatch("[^,]+") do names[#names + 1] = name end
lora.apply(model, { r = o.rank, alpha = o.alpha, target_modules = names })
local adapters = lora.parameters(model)
print(("training %d of %d parameters"):format(numel(adapters), numel(model:parameters())))
train(model:train(), adapters, ids, o.steps, o.lr, "adapters")
model:eval()
local adapted = evaluate(model, ids)
print(("after   loss %.4f  %s"):format(adapted, write_on()))

-- ---- files ----

lora.save(model, o.out .. "/adapter", { base_model = o.model })
lora.merge(model)
model:save_pretrained(o.out .. "/merged")
print(("merged  loss %.4f  in %s/merged, the adapters in %s/adapter"):format(evaluate(model, ids), o.out, o.out))
