-- 5-adaptive-lr.lua: Adam with a learning rate that falls each epoch as lr / (1 + lr_decay * epoch). The article
-- imports this schedule from PyTorch, which has none of that name; here it is optim.lr_scheduler.AdamLR.
local tl = require "tlua"
local nn, optim, data = tl.nn, tl.optim, tl.data

tl.manual_seed(0)
local x = tl.randn(1024, 10)
local y = x:matmul(tl.randn(10, 1)) + tl.randn(1024, 1) * 0.1
local loader = data.DataLoader(data.TensorDataset(x, y), { batch_size = 16, shuffle = true })

local model = nn.Linear(10, 1)
local criterion = nn.MSELoss()
local optimizer = optim.Adam(model:parameters(), { lr = 0.01 })
local scheduler = optim.lr_scheduler.AdamLR(optimizer, { lr_decay = 0.01 })

for epoch = 1, 10 do
  local sum = 0
  for input, target in loader do
    optimizer:zero_grad()
    local loss = criterion(model(input), target)
    loss:backward()
    optimizer:step()
    sum = sum + loss:item() * input:size(1)
  end
  print(("epoch %2d  lr %.8f  mean loss %.4f"):format(epoch, scheduler:get_last_lr()[1], sum / x:size(1)))
  scheduler:step()
end
