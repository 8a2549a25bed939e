-- tl.cuda on a simulated GPU: run with TLUA_CUDA=sim; pending where there is no CUDA device.
local tl = require "tlua"
local base = require "tlua.base"
local nn, optim, amp, cuda = tl.nn, tl.optim, tl.amp, tl.cuda

local there = os.getenv("TLUA_CUDA") == "sim" and cuda.is_available()

local function case(name, f)
  if there then it(name, f) else pending(name) end
end

local function raises(text, f, ...)
  local ok, message = pcall(f, ...)
  assert.is_false(ok)
  assert.is_truthy(tostring(message):find(text, 1, true), message)
end

local function close(a, b, tolerance)
  assert.is_true(math.abs(a - b) <= (tolerance or 1e-6) * math.max(1, math.abs(b)), a .. " is not " .. b)
end

describe("tl.cuda", function()
  it("says whether there is a device", function()
    local n, why = cuda.device_count()
    assert.are.equal(n > 0, cuda.is_available())
    if n == 0 then assert.is_string(why) end
    assert.is_false(cuda.allow_tf32)
    cuda.allow_tf32 = true
    assert.is_true(cuda.allow_tf32)
    cuda.allow_tf32 = false
    raises("true or false", function() cuda.allow_tf32 = 1 end)
    raises("there is no tl.cuda.Strem, did you mean 'Stream'?", function() return cuda.Strem end)
  end)

  case("chooses devices", function()
    cuda.set_device(1)
    assert.are.equal("cuda:1", tl.ones(2, { device = "cuda" }).device)
    cuda.set_device("cuda:0")
    assert.are.equal(0, cuda.current_device())
    assert.are.equal("cuda:0", tl.ones(2, { device = "cuda" }).device)
    raises("cuda:7 was asked for", cuda.set_device, 7)
    raises("'cpu' is no CUDA device", cuda.get_device_name, "cpu")
    assert.is_truthy(cuda.get_device_name():find("GPU"))
    assert.are.equal(32, cuda.get_device_properties(0).warp_size)
  end)

  case("counts memory", function()
    base.collect()
    local before = cuda.memory_allocated()
    local x = tl.ones(1000, { device = "cuda" })
    assert.are.equal(4096, cuda.memory_allocated() - before)
    assert.is_true(cuda.memory_reserved() >= cuda.memory_allocated())
    assert.is_truthy(cuda.memory_summary():find("fragmentation"))
    x:free()
    assert.are.equal(before, cuda.memory_allocated())
    cuda.empty_cache()
    cuda.reset_peak_memory_stats()
    assert.are.equal(before, cuda.max_memory_allocated())
  end)

  case("has streams and events", function()
    local s, e = cuda.Stream(), cuda.Event { timing = true }
    local x = tl.arange(100, { device = "cuda" })
    e:record()
    local y = cuda.stream(s, function(t)
      s:wait(e)
      return t:clone()
    end, x)
    x:record_stream(s)
    s:synchronize()
    assert.is_true(s:query() and e:query())
    assert.are.equal(99, y:tolist()[100])
    raises("oops", cuda.stream, s, function() error("oops") end)
    raises("argument 1 must be a stream", cuda.stream, e, function() end)
  end)

  case("copies from pinned memory", function()
    local x = tl.rand(100, 10, { device = "cpu" })
    local p = x:pin_memory()
    assert.is_true(p:is_pinned() and not x:is_pinned())
    local y = p:to("cuda", { non_blocking = true })
    assert.is_true(y:cpu():eq(x):all():item())
    assert.are.equal(p, p:pin_memory())
    assert.is_true(tl.zeros(100, 10, { device = "cuda" }):copy_(p, { non_blocking = true }):cpu():eq(x):all():item())
  end)

  case("loads batches ahead", function()
    local x, y = tl.arange(10, { device = "cpu" }):view(10, 1), tl.arange(10, { dtype = "int64", device = "cpu" })
    for _, workers in ipairs { 0, 2 } do
      local loader = tl.data.DataLoader(tl.data.TensorDataset(x, y),
        { batch_size = 4, device = "cuda", num_workers = workers })
      local seen = {}
      for a, b in loader do
        assert.are.equal("cuda:0", a.device)
        assert.is_true(a:view(-1):eq(b):all():item())
        for _, v in ipairs(b:tolist()) do seen[#seen + 1] = v end
      end
      assert.are.same({ 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 }, seen)
    end
    for a in tl.data.DataLoader(tl.data.TensorDataset(x), { batch_size = 4, pin_memory = true }) do
      assert.is_true(a:is_pinned())
    end
  end)
end)

-- A small model with everything that changes from step to step.
local function training(device, make)
  tl.manual_seed(3)
  local x, y = tl.randn(8, 4):to(device), tl.randn(8, 2):to(device)
  local model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)):to(device)
  local opt = make(model:parameters())
  local function step()
    opt:zero_grad()
    local loss = (model(x) - y):pow(2):mean()
    loss:backward()
    opt:step()
    return loss:detach()
  end
  return step, opt, model, x
end

local kinds = {
  SGD = function(p) return optim.SGD(p, { lr = 0.1, momentum = 0.9 }) end,
  Adam = function(p) return optim.Adam(p, { lr = 0.01 }) end,
  NAdam = function(p) return optim.NAdam(p, { lr = 0.01 }) end,
  RAdam = function(p) return optim.RAdam(p, { lr = 0.01 }) end,
}

describe("optimizers on a GPU", function()
  for name, make in pairs(kinds) do
    case(name .. " counts there as here", function()
      local here, opt_here = training("cpu", make)
      local there_, opt_there = training("cuda", make)
      for i = 1, 8 do
        close(there_():item(), here():item(), 1e-5)
        if i == 4 then opt_here.param_groups[1].lr, opt_there.param_groups[1].lr = 0.02, 0.02 end
      end
      assert.are.same(opt_here:state_dict().state[1].step, opt_there:state_dict().state[1].step)
    end)
  end

  case("a scaler decides there", function()
    local p = nn.Parameter(tl.ones(3, { device = "cuda" }))
    local opt = optim.Adam({ p }, { lr = 0.1 })
    local scaler = amp.GradScaler { init_scale = 4, growth_interval = 2 }
    local function step(value)
      opt:zero_grad()
      scaler:scale((p * value):sum()):backward()
      assert.is_nil(scaler:step(opt))
      scaler:update()
    end
    step(1)
    local one = p:tolist()[1]
    close(one, 0.9, 1e-5)
    step(1 / 0)
    assert.are.equal(one, p:tolist()[1])
    assert.are.equal(2, scaler:get_scale())
    step(1)
    step(1)
    assert.are.equal(4, scaler:get_scale())
    assert.are.equal(3, opt:state_dict().state[1].step)
  end)
end)

describe("recorded steps", function()
  for name, make in pairs(kinds) do
    case("replay " .. name .. " as if made anew", function()
      local eager, opt_eager = training("cuda", make)
      local f, opt = training("cuda", make)
      for _ = 1, 2 do eager() end
      local step = cuda.graph(f, { warmup = 2 })
      for i = 1, 6 do
        if i == 3 then opt.param_groups[1].lr, opt_eager.param_groups[1].lr = 0.02, 0.02 end
        assert.are.equal(eager():item(), step():item())
      end
      assert.are.equal(8, opt:state_dict().state[1].step)
      local asked = cuda.memory_stats().device_allocations
      for _ = 1, 5 do step() end
      assert.are.equal(asked, cuda.memory_stats().device_allocations)
    end)
  end

  case("take new input and new random numbers", function()
    local x = tl.zeros(64, { device = "cuda" })
    local f = function() return x + 1, nn.functional.dropout(tl.ones(64, { device = "cuda" }), { p = 0.5 }) end
    tl.manual_seed(5)
    local step = cuda.graph(f, { warmup = 1 })
    tl.manual_seed(7)
    local _, first = f()
    first = first:tolist()
    local _, second = f()
    second = second:tolist()
    tl.manual_seed(7)
    x:copy_(tl.full({ 64 }, 41, { device = "cpu" }))
    local y, mask = step()
    assert.are.equal(42, y:tolist()[64])
    assert.are.same(first, mask:tolist())
    step()
    assert.are.same(second, mask:tolist())
  end)

  case("refuse what needs the host, and lose nothing", function()
    local x = tl.ones(4, { device = "cuda" })
    raises("while a step is recorded", cuda.graph, function() return x:sum():item() end, { warmup = 1 })
    local function from_the_host() return x + tl.ones(4, { device = "cpu" }):to("cuda") end
    raises("while a step is recorded", cuda.graph, from_the_host, { warmup = 1 })
    local n = 0
    local function fails_when_recorded()
      n = n + 1
      if n == 2 then error("oops") end
      return x * 2
    end
    raises("oops", cuda.graph, fails_when_recorded, { warmup = 1 })
    local g = tl.Generator(1)
    raises("a generator of its own", cuda.graph, function() return tl.rand(4, { device = "cuda", generator = g }) end,
      { warmup = 1 })
    raises("gave the device no work", cuda.graph, function() return x:view(2, 2) end, { warmup = 1 })
    local f, opt = training("cuda", kinds.SGD)
    local step = cuda.graph(f)
    opt.param_groups[1].momentum = 0
    raises("record it anew", step)
    opt.param_groups[1].momentum = 0.9
    step()
    assert.are.equal(4, (x * 4):tolist()[1])
  end)
end)
