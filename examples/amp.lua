-- amp.lua: mixed precision (Micikevicius et al. 2018) on Fashion-MNIST: trains the network of fashion.lua in float32,
-- under autocast to bfloat16, and under autocast to float16 with a gradient scaler; compares accuracy, time and memory.
local usage = [[
usage: tlua examples/amp.lua [options]
  --epochs N     passes over the training images (default 3)
  --batch N      images a step (default 64)
  --lr X         Adam's learning rate (default 0.001)
  --device NAME  cpu, cuda, cuda:1 ... (default: the first GPU if there is one)
  --seed N       of weights, order and dropout (default 1)
  --limit N      only the first N training and test images (default 0: all)]]

local tl = require "tlua"
local ffi = require "ffi"
local nn, optim, amp, data = tl.nn, tl.optim, tl.amp, tl.data

local here = arg[0]:match("^(.*)/[^/]*$") or "."
package.path = here .. "/?.lua;" .. package.path
local Net = require "fashion_net"

-- ---- the command line ----

local function refuse(message)
  io.stderr:write("amp.lua: ", message, "\n", usage, "\n")
  os.exit(2)
end

local o = {
  epochs = 3, batch = 64, lr = 1e-3, seed = 1, limit = 0, device = tl.device_count("cuda") > 0 and "cuda" or "cpu",
}
local least = { epochs = 1, batch = 2, lr = 0, seed = 0, limit = 0 }
for i = 1, #arg, 2 do
  local name, value = arg[i]:match("^%-%-(%l+)$"), arg[i + 1]
  if name == "help" or arg[i] == "-h" then
    print(usage)
    os.exit(0)
  end
  if name == nil or o[name] == nil then refuse("there is no option " .. arg[i]) end
  if least[name] then value = tonumber(value) end
  if value == nil or (least[name] and value < least[name]) then
    refuse(("--%s needs a value%s"):format(name, least[name] and " of at least " .. least[name] or ""))
  end
  o[name] = value
end

-- ---- data ----

local function dataset(train)
  local images, labels = data.fashion_mnist { train = train }
  if o.limit > 0 and o.limit < #images then
    images, labels = images:narrow(1, 1, o.limit), labels:narrow(1, 1, o.limit)
  end
  return data.TensorDataset(images, labels)
end

local train_set, test_set = dataset(true), dataset(false)
if train_set:size() < o.batch then refuse(("%d images do not fill a batch"):format(train_set:size())) end

-- uint8 images (N, 28, 28) become float (N, 1, 28, 28) with the training set's mean and deviation taken out.
local function prepare(images) return ((images:to(o.device):float() - 72.94) / 90.02):unsqueeze(2) end

-- ---- one run ----

pcall(ffi.cdef, "int example_clock(int clock, int64_t *seconds_and_nanoseconds) __asm__(\"clock_gettime\");")
local timespec = ffi.new("int64_t[2]")

local function now()
  if o.device ~= "cpu" then tl.cuda.synchronize() end
  ffi.C.example_clock(1, timespec) -- CLOCK_MONOTONIC
  return tonumber(timespec[0]) + tonumber(timespec[1]) * 1e-9
end

-- The percentage of test images whose class the model names.
local function accuracy(model, autocast)
  model:eval()
  local right = 0
  for images, labels in data.DataLoader(test_set, { batch_size = 500 }) do
    local logits = amp.autocast(autocast, model, prepare(images))
    right = right + logits:argmax(2):eq(labels:to(o.device)):sum():item()
  end
  return 100 * right / test_set:size()
end

local function train(dtype)
  collectgarbage() -- the run before this one: its tensors go with what held them
  collectgarbage()
  local before = tl.memory(o.device).live
  tl.manual_seed(o.seed) -- the same weights, order and dropout every time
  local loader = data.DataLoader(train_set, { batch_size = o.batch, shuffle = true, drop_last = true })
  local model = Net():to(o.device)
  local criterion = nn.CrossEntropyLoss()
  local optimizer = optim.Adam(model:parameters(), { lr = o.lr })
  local low = dtype ~= "float32"
  local autocast = { device = o.device, dtype = low and dtype or nil, enabled = low }
  -- float16 ends at 65504 and, below, at 6e-8: gradients need the scaler. bfloat16 has float32's range.
  local scaler = amp.GradScaler { enabled = dtype == "float16" }

  local function step(images, labels)
    optimizer:zero_grad()
    local loss = amp.autocast(autocast, function()
      return criterion(model(prepare(images)), labels:to(o.device))
    end)
    scaler:scale(loss):backward()
    scaler:unscale_(optimizer) -- clipping wants the true gradients
    nn.utils.clip_grad_norm_(model:parameters(), 5)
    scaler:step(optimizer)
    scaler:update()
    return loss:item()
  end

  local times = {}
  for epoch = 1, o.epochs do
    local sum = 0
    for images, labels in tl.progress(loader, { desc = ("%s %d/%d"):format(dtype, epoch, o.epochs) }) do
      local begin = now()
      sum = sum + step(images, labels)
      times[#times + 1] = now() - begin
    end
    print(("%-8s  epoch %d  training loss %.4f"):format(dtype, epoch, sum / loader:size()))
  end
  local taken = optimizer:state_dict().state[1].step -- those of its steps that the scaler let through
  table.sort(times)
  local right = tl.no_grad(accuracy, model, autocast)

  -- What one more step holds at most beside the data: model, optimizer's state, activations, gradients.
  model:train()
  collectgarbage()
  collectgarbage()
  tl.reset_peak_memory(o.device)
  local images, labels = train_set.tensors[1], train_set.tensors[2]
  step(images:narrow(1, 1, o.batch), labels:narrow(1, 1, o.batch))
  return {
    dtype = dtype, accuracy = right, ms = 1e3 * times[math.ceil(#times / 2)],
    peak = (tl.memory(o.device).peak - before) / 2 ^ 20, skipped = #times - taken,
  }
end

io.stdout:setvbuf "line" -- epochs appear as they end, also in a file
local rows = {}
for _, dtype in ipairs { "float32", "bfloat16", "float16" } do rows[#rows + 1] = train(dtype) end

print(("\n%-8s  %10s  %10s  %12s  %8s"):format("type", "accuracy", "step", "peak memory", "skipped"))
for _, r in ipairs(rows) do
  print(("%-8s  %8.2f %%  %7.2f ms  %9.1f MB  %8d"):format(r.dtype, r.accuracy, r.ms, r.peak, r.skipped))
end
