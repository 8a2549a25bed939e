-- 4-batch-norm.lua: a linear model whose ten inputs live on very different scales, without and with batch normalisation
-- in front of it. Same data, same steps, same learning rate.
local tl = require "tlua"
local nn, optim, data = tl.nn, tl.optim, tl.data

local Model = nn.Module:extend("Model")

function Model:init(normalise)
  if normalise then self.bn = nn.BatchNorm1d(10) end
  self.fc = nn.Linear(10, 1)
end

function Model:forward(x)
  if self.bn then x = self.bn(x) end
  return self.fc(x)
end

-- Input i has mean i and standard deviation 2^(2 - i): from 2 down to 1/256. All count alike in the target.
tl.manual_seed(0)
local z = tl.randn(1024, 10)
local place, spread = tl.arange(1, 11), (2 - tl.arange(1, 11)):mul(math.log(2)):exp()
local x = z * spread + place
local y = z:sum(2, { keepdim = true })

local function train(normalise)
  tl.manual_seed(1)
  local model = Model(normalise)
  local loader = data.DataLoader(data.TensorDataset(x, y), { batch_size = 64, shuffle = true })
  local criterion, optimizer = nn.MSELoss(), optim.SGD(model:parameters(), { lr = 0.002 })
  for _ = 1, 30 do
    for input, target in loader do
      optimizer:zero_grad()
      criterion(model(input), target):backward()
      optimizer:step()
    end
  end
  model:eval() -- from here on the layer uses the statistics that it has gathered
  return model, tl.no_grad(function() return criterion(model(x), y):item() end)
end

local _, plain = train(false)
local model, normalised = train(true)
print(model)
print(("loss after 30 epochs without batch norm %.4f, with it %.4f"):format(plain, normalised))
print("gathered means     " .. table.concat(model.bn.running_mean:round():tolist(), " "))
print("batches seen       " .. model.bn.num_batches_tracked:item())
