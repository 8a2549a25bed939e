-- The device "meta", and tl.memory_plan: bytes by formula and as a real step has them; what stays as it was.
local tl = require "tlua"
local nn, F, optim = tl.nn, tl.F, tl.optim

local function raises(part, f, ...)
  local ok, message = pcall(f, ...)
  assert.is_false(ok)
  assert.is_truthy(tostring(message):find(part, 1, true), tostring(message))
end

local function near(expected, value, tolerance, what)
  local text = ("%s: %g, expected %g"):format(what, value, expected)
  assert.is_true(math.abs(value - expected) <= tolerance * expected, text)
end

local meta = { device = "meta" }

describe("a tensor on meta", function()
  it("has a shape and no data", function()
    collectgarbage()
    collectgarbage()
    local before = tl.memory("meta").live
    local x = tl.zeros(1e6, 1e6, meta) -- 4 TB
    assert.are.equal(4e12, tl.memory("meta").live - before)
    assert.are.same({ 1e6, 1e6 }, x.shape)
    assert.are.equal("meta", x.device)
    assert.are.equal("[float32 1000000x1000000 meta]", tostring(x))
    for _, f in ipairs { function() return x:sum():item() end, function() return x[{ {1, 2}, {1, 2} }]:tolist() end,
      function() return tl.ones(2, meta):cpu() end, function() return tl.ones(2, meta):nonzero() end,
      function() return tl.ones(3, meta):multinomial(2) end } do
      raises('on "meta" has a shape, but no data', f)
    end
    raises("devices", function() return x + tl.ones(1e6, { device = "cpu" }) end)
    x:free()
    collectgarbage()
    collectgarbage()
    assert.are.equal(before, tl.memory("meta").live)
  end)

  it("goes through operations, backward and steps as any other", function()
    local model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
      nn.Dropout(0.1), nn.Linear(4 * 13 * 13, 10)):to("meta")
    local x, y = tl.randn(8, 1, 28, 28):to("meta"), tl.zeros(8, { dtype = "int64", device = "meta" })
    local opt = optim.AdamW(model:parameters(), { state_dtype = "int8" })
    for _ = 1, 2 do
      opt:zero_grad()
      local loss = F.cross_entropy(model(x), y)
      assert.are.same({}, loss.shape)
      loss:backward()
      nn.utils.clip_grad_norm_(model:parameters(), 1)
      opt:step()
    end
    for _, p in ipairs(model:parameters()) do assert.are.same(p.shape, p.grad.shape) end
    local h = tl.randn(2, 4, 6, 8, meta)
    assert.are.same({ 2, 4, 6, 8 }, F.scaled_dot_product_attention(h, h, h, { is_causal = true }).shape)
    assert.are.same({ 2, 3 }, tl.randn(2, 9, meta):topk(3).shape)
    assert.are.equal("bfloat16", tl.amp.autocast(meta, function() return h:matmul(h:transpose(3, 4)) end).dtype)
  end)
end)

describe("backward", function()
  it("begins without garbage where much is live", function()
    local base = require "tlua.base"
    local kept = tl.zeros(2 ^ 30, meta) -- 4 GB
    local y = tl.ones(3, meta):requires_grad_():sum()
    base.collect()
    local before = tl.memory("meta").live
    tl.zeros(3e8, meta) -- below the soft limit: stays
    assert.are.equal(before + 12e8, tl.memory("meta").live)
    y:backward()
    assert.is_true(tl.memory("meta").live < before + 100)
    kept:free()
  end)
end)

describe("memory_plan", function()
  local L, W, B = 4, 64, 512

  local function mlp()
    local model = nn.Sequential()
    for _ = 1, L do model:add(nn.Linear(W, W)):add(nn.ReLU()) end
    return model
  end

  it("counts what a chain of layers needs: an activation a layer, freed as backward goes", function()
    local plan = tl.memory_plan(mlp, tl.zeros(B, W, meta), { optimizer = function(p) return optim.Adam(p) end })
    local parameters, activation = L * (W * W + W) * 4, B * W * 4
    assert.are.equal(parameters, plan.parameters)
    assert.are.equal(parameters, plan.gradients)
    assert.are.equal(2 * parameters, plan.optimizer)
    assert.are.equal(activation, plan.batch)
    assert.are.equal(0, plan.buffers)
    near(L * activation, plan.activations, 0.01, "activations")
    local always = 3 * parameters + activation
    near(always + (L + 1) * activation, plan.forward, 0.02, "forward")
    -- all activations and one gradient, before the first of them goes
    near(always + (L + 1) * activation, plan.backward, 0.02, "backward")
    near(4 * parameters + activation, plan.step, 0.01, "step")
    assert.are.equal(math.max(plan.forward, plan.backward, plan.step), plan.peak)
    assert.matches("KB  parameters\n", tostring(plan))
    assert.matches("  peak$", tostring(plan))
  end)

  local Block = nn.Module:extend("Block")
  function Block:init(width)
    self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
    self.norm2, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
  end
  function Block:forward(x)
    local n, t, c = unpack(x.shape)
    local q = self.qkv(self.norm(x)):view(n, t, 3, 4, c / 4):permute(3, 1, 4, 2, 5)
    local y = F.scaled_dot_product_attention(q[1], q[2], q[3], { is_causal = true })
    x = x + self.out(y:transpose(2, 3):reshape(n, t, c))
    return x + self.down(self.up(self.norm2(x)):gelu())
  end

  local Model = nn.Module:extend("Model")
  function Model:init(depth)
    self.embedding, self.blocks = nn.Embedding(100, 64), nn.ModuleList()
    for _ = 1, depth do self.blocks:add(Block(64)) end
    self.head = nn.Linear(64, 100)
  end
  function Model:forward(x)
    x = self.embedding(x)
    for _, block in ipairs(self.blocks) do
      if self.checkpointing then x = tl.utils.checkpoint(block, x) else x = block(x) end
    end
    return self.head(x)
  end

  local function options(more)
    local o = { loss = function(model, x, y) return F.cross_entropy(model(x):flatten(1, 2), y:flatten()) end }
    for k, v in pairs(more or {}) do o[k] = v end
    return o
  end

  local tokens = tl.get_default_device() == "cpu" and { 16, 128 } or { 2, 32 } -- the CPU counts by 64 KB
  local ids = tl.zeros(tokens, { dtype = "int64", device = "cpu" })

  it("agrees with what a real step takes", function()
    local device = tl.get_default_device()
    for _, case in ipairs { {}, { amp = "bfloat16", state_dtype = "int8", checkpointing = true } } do
      local function plan(on)
        local function make()
          local model = Model(2)
          rawset(model, "checkpointing", case.checkpointing)
          return model
        end
        return tl.memory_plan(make, { ids, ids }, options {
          device = on, amp = case.amp,
          optimizer = function(p) return optim.AdamW(p, { state_dtype = case.state_dtype }) end,
        })
      end
      local planned, real = plan "meta", plan(device)
      for _, name in ipairs { "parameters", "gradients", "batch" } do near(real[name], planned[name], 0, name) end
      for _, name in ipairs { "optimizer", "activations", "forward", "backward", "step", "peak" } do
        near(real[name], planned[name], 0.03, name)
      end
    end
  end)

  it("shows what checkpointing keeps: the input of each block", function()
    local many = tl.zeros({ 16, 128 }, { dtype = "int64", device = "meta" })
    local function plan(on)
      return tl.memory_plan(function()
        local model = Model(4)
        rawset(model, "checkpointing", on)
        return model
      end, { many, many }, options())
    end
    local all, few = plan(false), plan(true)
    local input = 16 * 128 * 64 * 4
    assert.is_true(few.activations < 5 * input + input / 64 * 100 * 3)
    assert.is_true(all.activations > 3.5 * few.activations)
    assert.is_true(few.peak < 0.7 * all.peak)
  end)

  it("leaves the model, its gradients, the generator and the default device as they were", function()
    local device = tl.get_default_device()
    local model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    model(tl.randn(3, 4)):sum():backward()
    local weights, grad = {}, model[1].weight.grad
    for key, value in pairs(model:state_dict()) do weights[key] = value:clone() end
    local rng = tl.get_rng_state()
    local x = tl.zeros(8, 4)
    local o = { optimizer = function(p) return optim.SGD(p, { lr = 1, momentum = 0.9 }) end }
    local plan = tl.memory_plan(model, x, o)
    assert.are.equal(20 * 4 + 8 * 4, plan.parameters)
    assert.are.equal(plan.parameters, plan.optimizer)
    assert.is_true(plan.buffers > 0)
    for _, on in ipairs { "meta", device } do
      o.device = on
      tl.memory_plan(model, x, o)
      for key, value in pairs(model:state_dict()) do
        assert.are.equal(device, value.device)
        assert.are.same(weights[key]:tolist(), value:tolist())
      end
      assert.is_true(grad == model[1].weight.grad or grad:eq(model[1].weight.grad):all():item())
      assert.are.same(rng, tl.get_rng_state())
      assert.are.equal(device, tl.get_default_device())
    end
    o.loss = function() error("loss", 0) end
    raises("loss", tl.memory_plan, model, x, o)
    assert.are.equal(device, model[1].weight.device)
    assert.are.equal(device, tl.get_default_device())
  end)

  it("refuses what it cannot plan", function()
    local x = tl.zeros(2, 4)
    raises("argument 1 must be a module or a function", tl.memory_plan, 3, x)
    raises("must return a module, got nil", tl.memory_plan, function() end, x)
    raises("argument 2 must be a tensor or a list", tl.memory_plan, nn.Linear(4, 4), 3)
    raises("element 2, must be a tensor", tl.memory_plan, nn.Linear(4, 4), { x, 3 })
    raises("did you mean 'optimizer'", tl.memory_plan, nn.Linear(4, 4), x, { optimiser = print })
    raises("'loss' must be a function, got a table", tl.memory_plan, nn.Linear(4, 4), x, { loss = {} })
    raises("a tensor of one element", tl.memory_plan, nn.Linear(4, 4), x, { loss = function(m, a) return m(a) end })
    raises("no data", tl.memory_plan, nn.Linear(4, 4), x, { loss = function(m, a)
      if m(a):sum():item() > 0 then return 1 end
    end })
  end)
end)
