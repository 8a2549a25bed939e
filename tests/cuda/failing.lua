-- failing.lua: a training step with a little of everything on "cuda", while one call of a library below fails
-- (failing.sh chooses which). It must say so, and the next try must work: nothing that failed may stay behind.
local tl = require "tlua"
local nn = tl.nn

local opened, why = pcall(tl.set_default_device, "cuda")
if not opened then
  assert(why:find("device: .*cuda"), why)
  print "not opened"
  os.exit(0)
end

local function build()
  tl.manual_seed(1)
  local model = nn.Sequential(
    nn.Conv2d(1, 4, 3, { padding = 1 }), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.1),
    nn.Linear(16, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3)
  )
  return model, tl.optim.Adam(model:parameters(), { lr = 0.01 })
end

local function steps()
  local model, optimizer = build()
  local x, y = tl.rand(6, 1, 4, 4), tl.randint(0, 3, { 6 })
  local loss
  for _ = 1, 2 do
    optimizer:zero_grad()
    loss = nn.CrossEntropyLoss()(model(x), y)
    loss:backward()
    nn.utils.clip_grad_norm_(model:parameters(), 1)
    optimizer:step()
  end
  return ("%.5f"):format(loss:item())
end

for try = 1, 3 do
  local ok, result = pcall(steps)
  if ok then
    print("loss " .. result)
    os.exit(0)
  end
  print(("try %d: %s"):format(try, result))
  assert(result:find("CUDA", 1, true) or result:find("cuda", 1, true) or result:find("cu[BD]"), result)
end
error "it never works again"
