-- gpt.lua: trains a GPT-2 on the characters of a text, writes in its style, and goes on where it was stopped.
--
--     tlua examples/gpt.lua --data input.txt                      one process
--     tlua --ranks 2 examples/gpt.lua --data input.txt --zero     two, optimizer state divided between them
--     tlua examples/gpt.lua --data input.txt --resume             goes on from the checkpoint
local usage = [[
usage: tlua examples/gpt.lua --data FILE [options]
  --layers N --heads N --width N --context N    of the model (default 4, 4, 128, 64)
  --batch N      sequences a step, of all ranks together (default 12)
  --steps N      (default 2000)
  --lr X         the largest learning rate; a tenth of it at the end (default 0.002)
  --dropout P    (default 0)
  --eval N       steps from one evaluation to the next (default 250)
  --sample N     characters to write at the end (default 500)
  --out FILE     the checkpoint (default gpt.safetensors)
  --resume       go on from the checkpoint
  --zero         with several ranks: divide the optimizer's state among them
  --device NAME  cpu, cuda, cuda:1 ... (default cpu)
  --dtype NAME   float32, bfloat16 or float16 (mixed precision; default float32)
  --seed N       (default 1337)]]

local tl = require "tlua"
local nn, optim, amp, data, dist = tl.nn, tl.optim, tl.amp, tl.data, tl.dist

-- ---- the command line ----

local function refuse(message)
  io.stderr:write("gpt.lua: ", message, "\n", usage, "\n")
  os.exit(2)
end

local o = {
  data = "", layers = 4, heads = 4, width = 128, context = 64, batch = 12, steps = 2000, lr = 2e-3, dropout = 0,
  eval = 250, sample = 500, out = "gpt.safetensors", resume = false, zero = false, device = "cpu", dtype = "float32",
  seed = 1337,
}
local i = 1
while i <= #arg do
  local name = arg[i]:match("^%-%-(%l+)$")
  if name == "help" or arg[i] == "-h" then
    print(usage)
    os.exit(0)
  end
  if name == nil or o[name] == nil then refuse("there is no option " .. arg[i]) end
  if type(o[name]) == "boolean" then
    o[name], i = true, i + 1
  else
    local value = arg[i + 1]
    if type(o[name]) == "number" then value = tonumber(value) end
    if value == nil then refuse(arg[i] .. " needs a value") end
    o[name], i = value, i + 2
  end
end
if o.data == "" then refuse "needs --data FILE" end

dist.init()
local rank, ranks = dist.rank(), dist.world_size()
local device = o.device == "cuda" and "cuda:" .. dist.local_rank() or o.device
if o.batch < 1 then refuse "a batch needs at least one sequence" end
if o.batch % ranks ~= 0 then refuse(("a batch of %d cannot be divided among %d ranks"):format(o.batch, ranks)) end
tl.manual_seed(o.seed)
local function say(...)
  if rank == 0 then print(...) end
end

-- ---- the text: every character is a token ----

local characters = data.text(o.data)
local vocab = tl.text.CharVocab(characters)
local text = vocab:encode(characters):to(device)
local split = math.floor(0.9 * #text)
local train_text, val_text = text:narrow(1, 1, split), text:narrow(1, split + 1, #text - split)
if #val_text <= o.context then refuse(("%s is too short for a context of %d"):format(o.data, o.context)) end

-- Sequences that begin at `first` (B), and what follows each of their characters: two tensors (B, context).
local steps_within = tl.arange(o.context, { dtype = "int64", device = device })
local function sequences(from, first)
  local places = (first:to(device):unsqueeze(2) + steps_within):reshape(-1)
  return from:index_select(1, places):view(-1, o.context), from:index_select(1, places + 1):view(-1, o.context)
end

-- All ranks draw the same numbers, and each takes its part: the batch does not depend on how many they are.
local draws = tl.Generator(o.seed)
local function batch()
  local first = tl.randint(0, #train_text - o.context, { o.batch }, { generator = draws, device = "cpu" })
  local mine = o.batch / ranks
  return sequences(train_text, first:narrow(1, rank * mine + 1, mine))
end

-- ---- model, optimizer, schedule ----

local model = tl.models.gpt2 {
  vocab_size = vocab:size(), n_positions = o.context, n_embd = o.width, n_layer = o.layers, n_head = o.heads,
  resid_pdrop = o.dropout, embd_pdrop = o.dropout, attn_pdrop = o.dropout, bias = false,
}
model:to(device)
tl.manual_seed(o.seed + rank) -- dropout differs from rank to rank

-- Matrices decay, gains do not.
local matrices, others = {}, {}
for _, p in ipairs(model:parameters()) do
  local list = p:dim() >= 2 and matrices or others
  list[#list + 1] = p
end
local groups = { { params = matrices, weight_decay = 0.1 }, { params = others, weight_decay = 0 } }
local adamw = { lr = o.lr, betas = { 0.9, 0.99 } }
local optimizer = o.zero and optim.ZeroRedundancy(optim.AdamW, groups, adamw) or optim.AdamW(groups, adamw)

-- 100 steps of warm-up, then half a cosine from lr to a tenth of it.
local WARMUP = 100
local function rate_at(step) -- from 0, relative to lr
  if step < WARMUP then return (step + 1) / (WARMUP + 1) end
  local part = math.min(1, (step - WARMUP) / math.max(1, o.steps - WARMUP))
  return 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * part))
end
local function set_rate(step)
  for _, group in ipairs(optimizer.param_groups) do group.lr = o.lr * rate_at(step) end
end

local autocast = { device = o.device, dtype = o.dtype ~= "float32" and o.dtype or nil, enabled = o.dtype ~= "float32" }
local scaler = amp.GradScaler { enabled = o.dtype == "float16" }
local trained = ranks > 1 and nn.parallel.DistributedDataParallel(model) or model

-- ---- evaluation, samples, checkpoints ----

-- The mean loss over the whole validation text, in sequences of `context` characters; each rank takes its part.
local function evaluate()
  model:eval()
  local n = math.floor((#val_text - 1) / o.context)
  local starts, per = tl.arange(n, { dtype = "int64" }) * o.context, 64
  local sum = tl.zeros(1)
  for k = rank, math.ceil(n / per) - 1, ranks do
    local size = math.min(per, n - k * per)
    local x, y = sequences(val_text, starts:narrow(1, k * per + 1, size))
    sum = sum + tl.no_grad(amp.autocast, autocast, model.loss, model, x, y):item() * size
  end
  model:train()
  return dist.all_reduce(sum, "sum"):item() / n
end

-- Writes on: the model sees the last `context` characters, and the next one is drawn. (model:generate does this, up to
-- the model's context.)
local function sample(length)
  model:eval()
  local written = text:narrow(1, split, 1):tolist() -- the last character before the validation text
  for _ = 1, length do
    local seen = tl.tensor({ { unpack(written, math.max(1, #written - o.context + 1)) } },
      { dtype = "int64", device = device })
    local logits = tl.no_grad(model, seen):select(2, -1)
    written[#written + 1] = logits:softmax(-1):multinomial(1):item()
  end
  model:train()
  return vocab:decode(written)
end

local state = { model = model, optimizer = optimizer, scaler = scaler, draws = draws }

local function save(step)
  local saved = { step = step, vocab = vocab:state_dict() }
  for name, object in pairs(state) do saved[name] = object end
  tl.train.save_checkpoint(o.out, saved) -- called on all ranks
end

local first = 1
if o.resume then
  first = tl.train.load_checkpoint(o.out, state).step + 1
  say(("going on with step %d"):format(first))
end

-- ---- training ----

local function step(n)
  set_rate(n - 1)
  optimizer:zero_grad()
  local x, y = batch()
  local loss = amp.autocast(autocast, trained.loss, trained, x, y)
  scaler:scale(loss):backward()
  scaler:unscale_(optimizer)
  nn.utils.clip_grad_norm_(model:parameters(), 1)
  scaler:step(optimizer)
  scaler:update()
  return loss:item()
end

io.stdout:setvbuf "line"
local parameters = 0
for _, p in ipairs(model:parameters()) do parameters = parameters + p:numel() end
say(("%d characters, %d different; %d parameters"):format(#text, vocab:size(), parameters))
local bar = tl.progress(math.max(0, o.steps - first + 1), {
  desc = "training", unit = "characters", unit_scale = o.batch * o.context,
  file = rank > 0 and assert(io.open("/dev/null", "w")) or nil, -- one bar for all ranks
})
for k in bar do
  local n = first + k - 1
  local loss = step(n)
  bar:set { loss = loss }
  if n % o.eval == 0 or n == o.steps then
    local mean = dist.all_reduce(tl.tensor({ loss }), "mean"):item()
    say(("step %d  training loss %.4f  validation loss %.4f"):format(n, mean, evaluate()))
    save(n)
  end
end
if o.sample > 0 and rank == 0 then print(sample(o.sample)) end
dist.destroy()
