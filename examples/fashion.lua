-- fashion.lua: trains a small convolutional network on Fashion-MNIST (Xiao et al. 2017: 60,000 + 10,000 images of
-- clothes, 28 x 28, ten classes) with Adam and the one-cycle schedule, and keeps the best model as fashion.safetensors.
local usage = [[
usage: tlua examples/fashion.lua [options]
  --epochs N     passes over the training images (default 5)
  --batch N      images a step (default 64)
  --lr X         the largest learning rate of the cycle (default 0.003)
  --device NAME  cpu, cuda, cuda:1 ... (default cpu)
  --seed N       of weights, order and dropout: the same seed gives the same losses (default 1)
  --limit N      only the first N training and test images (default 0: all)]]

local tl = require "tlua"
local nn, optim, data = tl.nn, tl.optim, tl.data

local here = arg[0]:match("^(.*)/[^/]*$") or "."
package.path = here .. "/?.lua;" .. package.path
local Net = require "fashion_net"

-- ---- the command line ----

local function refuse(message)
  io.stderr:write("fashion.lua: ", message, "\n", usage, "\n")
  os.exit(2)
end

local function read_options(words)
  local o = { epochs = 5, batch = 64, lr = 0.003, device = "cpu", seed = 1, limit = 0 }
  local least = { epochs = 1, batch = 2, lr = 0, seed = 0, limit = 0 }
  local i = 1
  while i <= #words do
    local name = words[i]:match("^%-%-(%l+)$")
    if name == "help" or words[i] == "-h" then
      print(usage)
      os.exit(0)
    end
    if name == nil or o[name] == nil then refuse("there is no option " .. words[i]) end
    local value = words[i + 1]
    if value == nil then refuse(words[i] .. " needs a value") end
    if type(o[name]) == "number" then
      value = tonumber(value)
      if value == nil or value < least[name] or (name ~= "lr" and value ~= math.floor(value)) then
        refuse(("--%s takes a number of at least %d, got %s"):format(name, least[name], tostring(words[i + 1])))
      end
    end
    o[name] = value
    i = i + 2
  end
  return o
end

local o = read_options(arg)

-- ---- data, model, schedule ----

tl.manual_seed(o.seed)

local function dataset(train, limit)
  local images, labels = data.fashion_mnist { train = train }
  if limit > 0 and limit < #images then images, labels = images:narrow(1, 1, limit), labels:narrow(1, 1, limit) end
  return data.TensorDataset(images, labels)
end

local train_set, test_set = dataset(true, o.limit), dataset(false, o.limit)
-- A last batch of one image would leave batch norm without a variance: incomplete batches are dropped.
local train_loader = data.DataLoader(train_set,
  { batch_size = o.batch, shuffle = true, drop_last = true, num_workers = 1 })
local test_loader = data.DataLoader(test_set, { batch_size = 500 })
if train_loader:size() == 0 then refuse(("%d images do not fill a batch of %d"):format(train_set:size(), o.batch)) end

local model = Net():to(o.device)
local criterion = nn.CrossEntropyLoss()
local optimizer = optim.Adam(model:parameters(), { lr = o.lr })
local scheduler = optim.lr_scheduler.OneCycleLR(optimizer,
  { max_lr = o.lr, total_steps = o.epochs * train_loader:size() })

-- uint8 images (N, 28, 28) become float (N, 1, 28, 28) with the training set's mean and deviation taken out.
local function prepare(images) return ((images:to(o.device):float() - 72.94) / 90.02):unsqueeze(2) end

-- ---- training ----

local function train_epoch(epoch)
  model:train()
  local bar = tl.progress(train_loader,
    { desc = ("epoch %d/%d"):format(epoch, o.epochs), unit = "images", unit_scale = o.batch })
  local sum, steps = 0, 0
  for images, labels in bar do
    optimizer:zero_grad()
    local loss = criterion(model(prepare(images)), labels:to(o.device))
    loss:backward()
    optimizer:step()
    scheduler:step()
    sum, steps = sum + loss:item(), steps + 1
    bar:set { loss = sum / steps }
  end
  return sum / steps
end

-- The percentage of test images whose class the model names.
local function accuracy()
  model:eval()
  return tl.no_grad(function()
    local right = 0
    for images, labels in test_loader do
      right = right + model(prepare(images)):argmax(2):eq(labels:to(o.device)):sum():item()
    end
    return 100 * right / test_set:size()
  end)
end

io.stdout:setvbuf "line" -- epochs appear as they end, also in a file
print(model)
local best = 0
for epoch = 1, o.epochs do
  local loss = train_epoch(epoch)
  local percent = accuracy()
  print(("epoch %d  training loss %.6f  test accuracy %.2f %%"):format(epoch, loss, percent))
  if percent > best then
    best = percent
    tl.save("fashion.safetensors", model:state_dict())
  end
end
print(("best test accuracy %.2f %%, saved in fashion.safetensors"):format(best))
