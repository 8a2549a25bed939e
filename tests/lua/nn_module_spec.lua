-- nn.Module: registration, calls, state dicts, modes, moving, copying, printing.
local tl = require "tlua"
local nn = tl.nn

local function names_of(iterator)
  local names = {}
  for name in iterator do names[#names + 1] = name end
  return names
end

local function raises(pattern, f, ...)
  local ok, message = pcall(f, ...)
  assert.is_false(ok)
  assert.matches(pattern, message)
end

local Net = nn.Module:extend("Net")
function Net:init(hidden)
  self.fc1, self.bn = nn.Linear(4, hidden), nn.BatchNorm1d(hidden)
  self.scale = nn.Parameter(tl.ones(1))
  self.fc2 = nn.Linear(hidden, 2, { bias = false })
end
function Net:forward(x) return self.fc2(self.bn(self.fc1(x)):relu()) * self.scale end

describe("registration", function()
  it("keeps the order of assignment, also inside one statement", function()
    assert.are.same({ "scale", "fc1.weight", "fc1.bias", "bn.weight", "bn.bias", "fc2.weight" },
      names_of(Net(3):named_parameters()))
  end)

  it("does not reorder what was made before the statement", function()
    local Shared = nn.Module:extend("Shared")
    function Shared:init(a, b)
      self.b = b; self.a = a; self.again = self.b
    end
    local net = Shared(nn.Linear(1, 1), nn.Linear(1, 2))
    assert.are.same({ "b", "a", "again" }, { net._names[1], net._names[2], net._names[3] })
    assert.are.same({ "", "b", "a" }, names_of(net:named_modules()))
  end)

  it("lists a shared parameter once, and saves it under each of its names", function()
    local net = nn.Module:extend("Tied")()
    net.a = nn.Linear(3, 3)
    net.b = nn.Linear(3, 3)
    net.b.weight = net.a.weight
    assert.are.same({ "a.weight", "a.bias", "b.bias" }, names_of(net:named_parameters()))
    assert.equal(3, #net:parameters())
    assert.is_not_nil(net:state_dict()["b.weight"])
  end)

  it("registers tensors that require gradients, and no others", function()
    local net = nn.Module:extend("Plain")()
    net.plain = tl.ones(2)
    net.leaf = tl.ones(2, { requires_grad = true })
    net.number, net.flag = 3, true
    assert.are.same({ "leaf" }, names_of(net:named_parameters()))
    assert.are.same({}, net:buffers())
  end)

  it("follows fields that are assigned anew or taken away", function()
    local net = Net(3)
    net.fc1 = nn.Linear(4, 3, { bias = false })
    net.bn = nil
    assert.are.same({ "scale", "fc1.weight", "fc2.weight" }, names_of(net:named_parameters()))
    net.bn = nn.Identity()
    assert.are.same({ "fc1", "fc2", "bn" }, names_of(net:named_children()))
    net.late = false
    net.late = nn.Parameter(tl.ones(1))
    assert.are.same({ "scale", "late", "fc1.weight", "fc2.weight" }, names_of(net:named_parameters()))
  end)

  it("keeps frozen parameters as parameters", function()
    local net = Net(3):requires_grad_(false)
    assert.equal(6, #net:parameters())
    for _, p in ipairs(net:parameters()) do assert.is_false(p.requires_grad) end
    net:requires_grad_()
    for _, p in ipairs(net:parameters()) do assert.is_true(p.requires_grad) end
  end)

  it("does not take a computed tensor for a parameter", function()
    local layer = nn.Linear(2, 2)
    local original = layer.weight
    layer.weight = nil
    layer:register_parameter("weight_orig", original)
    layer.weight = original * 2
    assert.are.same({ "bias", "weight_orig" }, names_of(layer:named_parameters()))
    raises("was computed by mul", layer.register_parameter, layer, "w", original * 2)
  end)

  it("registers buffers, and keeps those that are not persistent out of the state dict", function()
    local net = nn.Module:extend("Buffers")()
    net:register_buffer("kept", tl.ones(2))
    net:register_buffer("scratch", tl.ones(2), { persistent = false })
    net:register_buffer("absent", nil)
    assert.are.same({ "kept", "scratch" }, names_of(net:named_buffers()))
    assert.is_nil(net:state_dict().scratch)
    net.absent = tl.zeros(1)
    assert.are.same({ "kept", "scratch", "absent" }, names_of(net:named_buffers()))
    raises("did you mean 'persistent'", net.register_buffer, net, "x", tl.ones(1), { persistant = true })
    raises("must be a tensor or nil, got a number", net.register_buffer, net, "x", 3)
    raises("has a field 'kept' already", net.register_parameter, net, "kept", tl.ones(1))
    raises("cannot name", net.register_buffer, net, "a.b", tl.ones(1))
  end)

  it("makes parameters of computed tensors by detaching them", function()
    local x = tl.ones(2, { requires_grad = true })
    local p = nn.Parameter(x * 2)
    assert.is_true(p.is_leaf and p.requires_grad)
    raises("argument 1 must be a tensor, got", nn.Parameter, 3)
  end)
end)

describe("calls", function()
  it("call forward with all arguments and give all results", function()
    local Two = nn.Module:extend("Two")
    function Two:forward(a, b, c) return c, b, a end -- luacheck: ignore self
    assert.are.same({ 3, 2, 1 }, { Two()(1, 2, 3) })
  end)

  it("run hooks around forward until they are removed", function()
    local layer = nn.Identity()
    local seen = {}
    local before = layer:register_forward_pre_hook(function(m, inputs)
      seen[#seen + 1] = m
      return inputs[1] + 1
    end)
    local after = layer:register_forward_hook(function(_, inputs, output) return output + inputs[1] end)
    assert.equal(4, layer(1))
    assert.equal(layer, seen[1])
    before:remove()
    assert.equal(2, layer(1))
    after:remove()
    assert.equal(1, layer(1))
    assert.is_false(layer._hooks)
    raises("a hook is a function, got a number", layer.register_forward_hook, layer, 3)
  end)

  it("say so when a class has no forward", function()
    raises("Empty: the class has no forward", nn.Module:extend("Empty")())
    raises("a class needs a name", nn.Module.extend, nn.Module)
  end)

  it("inherit from other classes", function()
    local Child = Net:extend("Child")
    function Child:forward(x) return Net.forward(self, x) * 2 end
    local net = Child(3)
    assert.is_true(net:is_a(Net) and net:is_a(nn.Module) and net:is_a(Child))
    assert.is_false(net:is_a(nn.Linear))
    assert.are.same({ 5, 2 }, net(tl.ones(5, 4)).shape)
    assert.matches("^Child%(", tostring(net))
  end)

  it("name what nn does not have", function() raises("did you mean 'Linear'", function() return nn.Liner end) end)
end)

describe("state dict", function()
  it("has PyTorch's keys", function()
    local keys = {}
    for key in pairs(Net(3):state_dict()) do keys[#keys + 1] = key end
    table.sort(keys)
    assert.are.same({ "bn.bias", "bn.num_batches_tracked", "bn.running_mean", "bn.running_var", "bn.weight", "fc1.bias",
      "fc1.weight", "fc2.weight", "scale" }, keys)
    assert.equal("int64", Net(3):state_dict()["bn.num_batches_tracked"].dtype)
    assert.are.same({}, Net(3):state_dict()["bn.num_batches_tracked"].shape)
  end)

  it("numbers the elements of containers from 0", function()
    local net = nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 1))
    assert.are.same({ "0.weight", "0.bias", "2.weight", "2.bias" }, names_of(net:named_parameters()))
  end)

  it("carries one model's values to another, in place", function()
    local a, b = Net(3), Net(3)
    local weight = b.fc1.weight
    a(tl.randn(6, 4))
    local missing, unexpected = b:load_state_dict(a:state_dict())
    assert.are.same({ {}, {} }, { missing, unexpected })
    assert.is_true(b.fc1.weight == weight)
    for key, value in pairs(a:state_dict()) do assert.is_true(value:equal(b:state_dict()[key]), key) end
    assert.equal(1, b.bn.num_batches_tracked:item())
    assert.is_true(b.fc1.weight.requires_grad)
  end)

  it("shares memory with the module and has no history", function()
    local net = Net(3)
    local dict = net:state_dict()
    assert.is_false(dict.scale.requires_grad)
    dict.scale:fill_(7)
    assert.equal(7, net.scale:item())
  end)

  it("names missing and unexpected keys and wrong shapes, and copies nothing then", function()
    local net = Net(3)
    local before = net.scale:item()
    local dict = Net(3):state_dict()
    dict.scale:fill_(5)
    dict["fc1.bias"] = nil
    dict.extra = tl.ones(1)
    raises("missing keys 'fc1.bias'", net.load_state_dict, net, dict)
    raises("unexpected keys 'extra'", net.load_state_dict, net, dict)
    assert.equal(before, net.scale:item())
    local missing, unexpected = net:load_state_dict(dict, { strict = false })
    assert.are.same({ { "fc1.bias" }, { "extra" } }, { missing, unexpected })
    assert.equal(5, net.scale:item())
    raises("'fc1.weight' is %(3x4%) here and %(2x4%) in the state dict", function()
      net:load_state_dict(Net(2):state_dict(), { strict = false })
    end)
    raises("'scale' must be a tensor, got a number", function()
      net:load_state_dict({ scale = 1 }, { strict = false })
    end)
    raises("a state dict is a table", net.load_state_dict, net, 3)
  end)
end)

describe("all of a model", function()
  it("goes to training and eval mode together", function()
    local net = Net(3)
    assert.is_true(net.training and net.bn.training)
    assert.equal(net, net:eval())
    assert.is_false(net.training or net.bn.training)
    net:train()
    assert.is_true(net.bn.training)
  end)

  it("is visited children first by apply", function()
    local order = {}
    local net = nn.Sequential(nn.Linear(1, 1), nn.Sequential(nn.ReLU()))
    assert.equal(net, net:apply(function(m) order[#order + 1] = m._name end))
    assert.are.same({ "Linear", "ReLU", "Sequential", "Sequential" }, order)
  end)

  it("forgets its gradients", function()
    local net = Net(3)
    net(tl.randn(4, 4)):sum():backward()
    assert.is_not_nil(net.scale.grad)
    net:zero_grad { set_to_none = false }
    assert.equal(0, net.scale.grad:item())
    net:zero_grad()
    for _, p in ipairs(net:parameters()) do assert.is_nil(p.grad) end
  end)

  it("moves in place: parameters stay the same tensors", function()
    local net = Net(3)
    local weight, dict = net.fc1.weight, net:state_dict()
    net(tl.randn(4, 4)):sum():backward()
    assert.equal(net, net:to("float64"))
    assert.is_true(net.fc1.weight == weight)
    assert.equal("float64", weight.dtype)
    assert.equal("float64", weight.grad.dtype)
    assert.equal("float64", net.bn.running_mean.dtype)
    assert.equal("int64", net.bn.num_batches_tracked.dtype)
    assert.is_true(weight:float():equal(dict["fc1.weight"]))
    assert.equal("float64", net(tl.randn(4, 4, { dtype = "float64" })).dtype)
    net:float():to("cpu", "float64")
    assert.equal("float64", weight.dtype)
    raises("only become a floating dtype, got int64", net.to, net, "int64")
    raises("needs the name of a dtype or device, got nil", net.to, net)
  end)

  it("moves while a graph is waiting for backward", function()
    local net = nn.Linear(2, 1)
    local loss = net(tl.ones(1, 2)):sum()
    net:double()
    loss:backward()
    assert.equal("float64", net.weight.grad.dtype)
    assert.are.same({ { 1, 1 } }, net.weight.grad:tolist())
  end)

  it("leaves a tensor that was handed in as a buffer to its owner", function()
    local weight = tl.ones(2)
    local pair = nn.ModuleList { nn.CrossEntropyLoss { weight = weight }, nn.CrossEntropyLoss { weight = weight } }
    pair:double()
    assert.equal("float32", weight.dtype)
    assert.equal("float64", pair[1].weight.dtype)
    assert.is_true(pair[1].weight == pair[2].weight)
    local untouched = nn.CrossEntropyLoss { weight = weight }
    assert.is_true(untouched:float().weight == weight)
  end)

  it("keeps optimizers working after a move", function()
    local net = nn.Linear(2, 1)
    local optimizer = tl.optim.SGD(net:parameters(), { lr = 1 })
    net:double()
    net(tl.ones(1, 2, { dtype = "float64" })):sum():backward()
    local before = net.bias:item()
    optimizer:step()
    assert.equal(before - 1, net.bias:item())
  end)

  it("is copied deeply", function()
    local net = Net(3)
    net.twin = net.fc1
    net(tl.randn(4, 4)):sum():backward()
    local copy = net:eval():clone()
    assert.is_false(copy.training)
    assert.equal(copy.twin, copy.fc1)
    assert.is_true(copy.fc1.weight:equal(net.fc1.weight))
    assert.is_true(copy.fc1.weight.grad:equal(net.fc1.weight.grad))
    tl.no_grad(function() copy.fc1.weight:zero_() end)
    assert.is_true(net.fc1.weight:abs():sum():item() > 0)
    assert.are.same(names_of(net:named_parameters()), names_of(copy:named_parameters()))
    assert.is_true(copy.fc1:is_a(nn.Linear))
  end)

  it("copies a module whose weight is computed, and its hooks", function()
    local layer = nn.Linear(2, 2)
    local original = layer.weight
    layer.weight = nil
    layer:register_parameter("weight_orig", original)
    layer:register_forward_pre_hook(function(m) m.weight = m.weight_orig * 2 end)
    local x = tl.ones(1, 2)
    local y = layer(x)
    local copy = layer:clone()
    assert.is_true(copy(x):equal(y))
    tl.no_grad(function() copy.weight_orig:zero_() end)
    assert.is_true(copy(x):equal(copy.bias:unsqueeze(1)))
    assert.is_true(layer(x):equal(y))
  end)

  it("prints as a tree with the numbers of parameters", function()
    assert.equal([[
Net(                                        1
  (fc1): Linear(4, 3)                      15
  (bn): BatchNorm1d(3)                      6
  (fc2): Linear(3, 2, bias=false)           6
)
28 parameters]], tostring(Net(3)))
    local net = nn.Linear(1000, 2)
    assert.equal("Linear(1000, 2)       2,002\n2,002 parameters", tostring(net))
    net.bias.requires_grad = false
    assert.matches("2,002 parameters, 2,000 of them trained", tostring(net))
    assert.equal("ReLU()", tostring(nn.ReLU()))
  end)
end)

describe("containers", function()
  it("Sequential calls in order and grows", function()
    local net = nn.Sequential(nn.Linear(2, 3)):add(nn.ReLU()):add(nn.Linear(3, 1))
    assert.equal(3, #net)
    assert.is_true(net[3]:is_a(nn.Linear))
    assert.are.same({ 5, 1 }, net(tl.ones(5, 2)).shape)
    assert.equal(1, nn.Sequential()(1))
    raises("element 2 must be a module, got a number", nn.Sequential, nn.ReLU(), 3)
  end)

  it("ModuleList registers its modules", function()
    local Deep = nn.Module:extend("Deep")
    function Deep:init() self.layers = nn.ModuleList { nn.Linear(1, 2), nn.Linear(2, 3) } end
    function Deep:forward(x)
      for _, layer in ipairs(self.layers) do x = layer(x) end
      return x
    end
    local net = Deep()
    net.layers:add(nn.Linear(3, 4))
    assert.are.same({ 2, 4 }, net(tl.ones(2, 1)).shape)
    assert.are.same({ "layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias", "layers.2.weight",
      "layers.2.bias" }, names_of(net:named_parameters()))
    raises("needs a list of modules", nn.ModuleList, nn.ReLU())
    raises("the class has no forward", net.layers, 1)
  end)
end)
