-- 2-mixed-precision.lua: the article's second section: autocast and a gradient scaler around the plain training loop,
-- in float16. It runs on the first GPU if there is one and on the CPU otherwise.
local tl = require "tlua"
local nn, optim, amp, data = tl.nn, tl.optim, tl.amp, tl.data

tl.manual_seed(0)
local device = tl.device_count("cuda") > 0 and "cuda" or "cpu"

-- Made-up data: ten numbers in, their weighted sum plus 3 and some noise out.
local truth = tl.arange(1, 11):view(10, 1) / 10
local x = tl.randn(1024, 10)
local y = x:matmul(truth) + 3 + tl.randn(1024, 1) * 0.1
local loader = data.DataLoader(data.TensorDataset(x, y), { batch_size = 32, shuffle = true })

local model = nn.Linear(10, 1):to(device)
local criterion = nn.MSELoss()
local optimizer = optim.SGD(model:parameters(), { lr = 0.01 })
local scaler = amp.GradScaler()

local half = { device = device, dtype = "float16" }
local function forward(input, target)
  local output = model(input:to(device))
  return criterion(output, target:to(device)), output.dtype
end

local steps, dtype = 0, nil
for epoch = 1, 10 do
  local sum = 0
  for input, target in loader do
    optimizer:zero_grad()
    local loss
    loss, dtype = amp.autocast(half, forward, input, target)
    scaler:scale(loss):backward()
    scaler:step(optimizer)
    scaler:update()
    steps = steps + 1
    sum = sum + loss:item() * input:size(1)
  end
  print(("epoch %2d  mean loss %.4f"):format(epoch, sum / x:size(1)))
end

print(("products in %s, weights in %s, gradients in %s"):format(dtype, model.weight.dtype, model.weight.grad.dtype))
local skipped = steps - optimizer:state_dict().state[1].step -- a GPU decides by itself, so the optimizer is asked
print(("%d steps skipped, the scale went from 65536 to %d"):format(skipped, scaler:get_scale()))
local off = (model.weight:detach():cpu() - truth:t()):abs():max():item()
print(("largest error of a weight %.3f, bias %.3f (the truth is 3)"):format(off, model.bias:item()))
