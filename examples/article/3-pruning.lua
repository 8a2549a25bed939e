-- 3-pruning.lua: the article prunes a layer without saying how much, which PyTorch refuses, and so does tlua. Here: the
-- call that works, and how pruned channels leave a network for good.
local tl = require "tlua"
local nn, prune = tl.nn, tl.nn.utils.prune

tl.manual_seed(0)

local Model = nn.Module:extend("Model")
function Model:init() self.fc = nn.Linear(10, 1) end
function Model:forward(x) return self.fc(x) end

local model = Model()

local _, message = pcall(prune.l1_unstructured, model.fc, "weight") -- the article's call
print((message:gsub("^.-:%d+: ", "")))

prune.l1_unstructured(model.fc, "weight", { amount = 0.3 })
prune.remove(model.fc, "weight")
print(("%d parameters, as before; zeros in the weight %d"):format(11, model.fc.weight:eq(0):sum():item()))

-- Zeros cost as much as other numbers. What makes a network smaller and faster is to take whole neurons away.
local Net = nn.Module:extend("Net")
function Net:init() self.hidden, self.out = nn.Linear(10, 64), nn.Linear(64, 1) end
function Net:forward(x) return self.out(self.hidden(x):relu()) end

local net = Net()
prune.ln_structured(net.hidden, "weight", { amount = 0.5 })
local x = tl.randn(8, 10)
local small, report = prune.compact(net, { example = x })
print(report)
print(("the same output: %s"):format(tl.allclose(net(x), small(x), { atol = 1e-5 })))
