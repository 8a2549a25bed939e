-- fashion_net.lua: the network of fashion.lua (and of `tlua bench --case cnn`): two blocks of convolution, batch norm,
-- ReLU and max-pooling, then two linear layers with dropout. 421,834 parameters.
local nn = require("tlua").nn

local Net = nn.Module:extend("Net")

function Net:init()
  self.features = nn.Sequential(
    nn.Conv2d(1, 32, 3, { padding = 1 }), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2), -- (N, 32, 14, 14)
    nn.Conv2d(32, 64, 3, { padding = 1 }), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2) -- (N, 64, 7, 7)
  )
  self.classifier = nn.Sequential(
    nn.Flatten(), nn.Dropout(0.25), nn.Linear(64 * 7 * 7, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10)
  )
end

--- x (N, 1, 28, 28) -> logits (N, 10)
function Net:forward(x) return self.classifier(self.features(x)) end

return Net
