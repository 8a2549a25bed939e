-- prune.lua: makes the network of fashion.lua small. Trains it on Fashion-MNIST, prunes half of its channels in steps
-- with training in between, removes them with prune.compact, and compares the two networks.
local usage = [[
usage: tlua examples/prune.lua [options]
  --epochs N   passes over the training images before pruning (default 3)
  --tune N     passes after each pruning step (default 1)
  --steps N    pruning steps (default 3)
  --amount X   the share of channels that goes (default 0.5)
  --batch N    images a step (default 64)
  --seed N     of weights, order and dropout (default 1)
  --limit N    only the first N training images (default 0: all)]]

local tl = require "tlua"
local nn, optim, data, prune = tl.nn, tl.optim, tl.data, tl.nn.utils.prune

local here = arg[0]:match("^(.*)/[^/]*$") or "."
package.path = here .. "/?.lua;" .. package.path
local Net = require "fashion_net"

-- ---- the command line ----

local function refuse(message)
  io.stderr:write("prune.lua: ", message, "\n", usage, "\n")
  os.exit(2)
end

local o = { epochs = 3, tune = 1, steps = 3, amount = 0.5, batch = 64, seed = 1, limit = 0 }
for i = 1, #arg, 2 do
  local name = arg[i]:match("^%-%-(%l+)$")
  if name == "help" or arg[i] == "-h" then
    print(usage)
    os.exit(0)
  end
  if name == nil or o[name] == nil then refuse("there is no option " .. arg[i]) end
  local value = tonumber(arg[i + 1] or "")
  if value == nil or value < 0 then refuse(arg[i] .. " takes a number") end
  o[name] = value
end
if o.amount >= 1 or o.steps < 1 or o.batch < 2 then refuse("needs amount < 1, steps >= 1, batch >= 2") end

-- ---- data ----

tl.manual_seed(o.seed)

local function dataset(train, limit)
  local images, labels = data.fashion_mnist { train = train }
  if limit > 0 and limit < #images then images, labels = images:narrow(1, 1, limit), labels:narrow(1, 1, limit) end
  return data.TensorDataset(images, labels)
end

local train_set, test_set = dataset(true, o.limit), dataset(false, 0)
local train_loader = data.DataLoader(train_set,
  { batch_size = o.batch, shuffle = true, drop_last = true, num_workers = 1 })
local test_loader = data.DataLoader(test_set, { batch_size = 500 })
if train_loader:size() == 0 then refuse(("%d images do not fill a batch of %d"):format(train_set:size(), o.batch)) end

-- uint8 images (N, 28, 28) become float (N, 1, 28, 28) with the training set's mean and deviation taken out.
local function prepare(images) return ((images:float() - 72.94) / 90.02):unsqueeze(2) end

-- ---- training and testing ----

local criterion = nn.CrossEntropyLoss()

local function train(model, epochs, peak, text)
  if epochs == 0 then return end
  local optimizer = optim.Adam(model:parameters(), { lr = peak })
  local scheduler = optim.lr_scheduler.OneCycleLR(optimizer,
    { max_lr = peak, total_steps = epochs * train_loader:size() })
  model:train()
  for epoch = 1, epochs do
    local bar = tl.progress(train_loader,
      { desc = ("%s %d/%d"):format(text, epoch, epochs), unit = "images", unit_scale = o.batch })
    for images, labels in bar do
      optimizer:zero_grad()
      criterion(model(prepare(images)), labels):backward()
      optimizer:step()
      scheduler:step()
    end
  end
end

-- The percentage of test images whose class the model names.
local function accuracy(model)
  model:eval()
  return tl.no_grad(function()
    local right = 0
    for images, labels in test_loader do right = right + model(prepare(images)):argmax(2):eq(labels):sum():item() end
    return 100 * right / test_set:size()
  end)
end

local function parameters(model)
  local n = 0
  for _, p in ipairs(model:parameters()) do n = n + p:numel() end
  return n
end

local function file_bytes(model)
  local path = os.tmpname()
  tl.save(path, model:state_dict())
  local file = assert(io.open(path, "rb"))
  local bytes = file:seek "end"
  file:close()
  os.remove(path)
  return bytes
end

-- Bytes that a copy of the model and its forward pass over one batch take at most.
local function memory(model)
  local x = tl.randn(o.batch, 1, 28, 28)
  collectgarbage()
  collectgarbage()
  local before = tl.memory().live
  local copy = model:clone():eval()
  tl.reset_peak_memory()
  tl.no_grad(copy, x)
  return tl.memory().peak - before
end

-- Seconds of a forward pass over one batch on one thread, for each model: the median of runs in turns.
local function time_forward(models)
  local x, times = tl.randn(o.batch, 1, 28, 28), {}
  local threads = tl.get_num_threads()
  tl.set_num_threads(1)
  for k, model in ipairs(models) do
    model:eval()
    times[k] = {}
  end
  tl.no_grad(function()
    for run = 1, 45 do
      for k, model in ipairs(models) do
        local begin = os.clock()
        model(x)
        if run > 5 then table.insert(times[k], os.clock() - begin) end
      end
    end
  end)
  tl.set_num_threads(threads)
  for k = 1, #models do
    table.sort(times[k])
    times[k] = times[k][math.ceil(#times[k] / 2)]
  end
  return times
end

-- ---- pruning ----

-- Prunes the channels that a layer makes up to this share of them, those with the smallest norm. What else such a
-- channel has, the bias and the batch norm's scale and shift, goes with it: only a channel that is 0 throughout can
-- leave without a trace.
local function prune_channels(layer, norm, share)
  local total = layer.weight:size(1)
  local gone = prune.is_pruned(layer) and layer.weight_mask:flatten(2, -1):any(2):eq(0):sum():item() or 0
  local count = math.floor(share * total + 0.5) - gone
  prune.ln_structured(layer, "weight", { count = count, n = 2, dim = 1 })
  local channels = layer.weight_mask:flatten(2, -1):any(2)
  prune.custom_from_mask(layer, "bias", channels)
  if norm then
    prune.custom_from_mask(norm, "weight", channels)
    prune.custom_from_mask(norm, "bias", channels)
  end
end

io.stdout:setvbuf "line"
local model = Net()
train(model, o.epochs, 0.003, "train")
local dense = model:clone()
local before = accuracy(dense)
print(("trained                        test accuracy %.2f %%"):format(before))

local features, classifier = model.features, model.classifier
for step = 1, o.steps do
  local share = o.amount * step / o.steps
  prune_channels(features[1], features[2], share)
  prune_channels(features[5], features[6], share)
  prune_channels(classifier[3], nil, share)
  train(model, o.tune, 0.001, ("prune %d"):format(step))
  print(("%4.1f %% of the channels pruned  test accuracy %.2f %%"):format(100 * share, accuracy(model)))
end

local small, report = prune.compact(model, { example = prepare(data.fashion_mnist { train = false }:narrow(1, 1, 16)) })
print(report)

-- ---- before and after ----

local after = accuracy(small)
local times = time_forward { dense, small }
print ""
print "          accuracy   parameters   file bytes   memory bytes   ms a batch"
local function row(name, percent, m, seconds, bytes)
  print(("%-8s  %6.2f %%   %10d   %10d   %12d   %10.3f"):format(name, percent, parameters(m), file_bytes(m), bytes,
    1000 * seconds))
end
local bytes = { memory(dense), memory(small) }
row("before", before, dense, times[1], bytes[1])
row("after", after, small, times[2], bytes[2])
print(("%.2f points less accurate, %.2f x fewer parameters, %.2f x smaller file"):format(before - after,
  parameters(dense) / parameters(small), file_bytes(dense) / file_bytes(small)))
print(("%.2f x less memory, %.2f x faster"):format(bytes[1] / bytes[2], times[1] / times[2]))
