-- tl.amp on simulated GPUs: run with TLUA_CUDA=sim; pending where there is none. What the host waits for and what is
-- launched, counted by the simulator; one scaler for several devices; recorded steps.
local tl = require "tlua"
local ffi = require "ffi"
local nn, optim, amp, cuda, F = tl.nn, tl.optim, tl.amp, tl.cuda, tl.F

local there = os.getenv("TLUA_CUDA") == "sim" and cuda.is_available()

local function case(name, f)
  if there then it(name, f) else pending(name) end
end

-- How often the simulator was called by names with this part: functions of the runtime, kernels.
local simulator
local function calls(part)
  if simulator == nil then
    for line in io.lines "/proc/self/maps" do
      local path = line:match("%S*/libtlua%-cudasim%S*%.so")
      if path then simulator = ffi.load(path) end
    end
    ffi.cdef "long long tl_sim_calls(const char *part);"
  end
  return tonumber(simulator.tl_sim_calls(part))
end

local gpu = { device = "cuda" }

-- An iteration with all that the scaler knows: two optimizers, one of two groups; gradients of two batches; clipping.
local function iteration(scaler)
  tl.manual_seed(4)
  local body = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 16)):to("cuda")
  local head = nn.Linear(16, 3):to("cuda")
  local first = optim.AdamW({
    { params = body[1]:parameters(), lr = 0.01 },
    { params = { body[2].weight, body[2].bias, body[4].weight, body[4].bias }, weight_decay = 0 },
  }, { lr = 0.02 })
  local second = optim.SGD(head:parameters(), { lr = 0.05, momentum = 0.9 })
  local x, y = tl.randn(2, 12, 8, gpu), tl.randint(0, 3, { 2, 12 }, { device = "cuda", dtype = "int64" })
  local factor = tl.ones(1, gpu)
  local function run()
    first:zero_grad()
    second:zero_grad()
    local total = tl.zeros(1, gpu)
    for i = 1, 2 do
      local loss = amp.autocast({ device = "cuda" }, function() return F.cross_entropy(head(body(x[i])), y[i]) end)
      scaler:scale(loss * factor / 2):backward()
      total = total + loss:detach() / 2
    end
    scaler:unscale_(first)
    local norm = nn.utils.clip_grad_norm_(body:parameters(), 1)
    scaler:step(first)
    scaler:step(second)
    scaler:update()
    return total, norm
  end
  return run, first, second, body, factor
end

describe("mixed precision on a GPU", function()
  case("never waits for it", function()
    local scaler = amp.GradScaler()
    local run, first, _, body, factor = iteration(scaler)
    run() -- makes the optimizers' state
    local waits, unscales = calls "Synchronize", calls "span_unscale"
    local losses = {}
    for i = 1, 6 do
      factor:fill_(i == 3 and math.huge or 1) -- an overflow is no reason to wait, either
      losses[i] = run()
    end
    assert.are.equal(0, calls "Synchronize" - waits)
    assert.are.equal(6 * 2, calls "span_unscale" - unscales) -- one kernel for each optimizer
    assert.are.equal(32768, scaler:get_scale())
    assert.is_true(calls "Synchronize" > waits) -- the scale was asked for
    assert.are.equal(6, first:state_dict().state[1].step)
    assert.is_true(losses[6]:item() < losses[1]:item())
    assert.are.equal("float32", body[1].weight.grad.dtype)
  end)

  case("clips without waiting, as on the CPU", function()
    for _, type in ipairs { 1, 2, 3, math.huge } do
      for _, dtype in ipairs { "float32", "bfloat16", "float64" } do
        local g = tl.randn(40, 300, { device = "cpu", dtype = "float32" }):to(dtype)
        local here, over_there = {}, {}
        for i = 1, 2 do
          here[i] = tl.zeros(40, 300, { device = "cpu", dtype = dtype })
          here[i].grad = g * i
          over_there[i] = here[i]:detach():to("cuda")
          over_there[i].grad = (g * i):to("cuda")
        end
        for _, max in ipairs { 0.5, 1e9 } do
          local expected = nn.utils.clip_grad_norm_(here, max, { norm_type = type })
          local waits = calls "Synchronize"
          local norm = nn.utils.clip_grad_norm_(over_there, max, { norm_type = type })
          assert.are.equal(waits, calls "Synchronize")
          assert.are.equal("cuda:0", norm.device)
          assert.are.equal(0, norm:dim())
          assert.is_true(math.abs(norm:item() - expected) <= 1e-6 * expected)
          for i = 1, 2 do
            assert.is_true(over_there[i].grad:cpu():allclose(here[i].grad, { rtol = 1e-6, atol = 0 }))
          end
        end
        assert.is_number(nn.utils.clip_grad_norm_(over_there, 1, { error_if_nonfinite = true }))
      end
    end
    local p = tl.zeros(3, gpu)
    assert.are.equal(0, nn.utils.clip_grad_norm_(p, 1):item()) -- no gradient
    p.grad = tl.tensor({ 1, 0 / 0, 2 }, gpu)
    local norm = nn.utils.clip_grad_norm_(p, 1):item()
    assert.is_true(norm ~= norm)
  end)

  case("converts a parameter once in a block", function()
    local m, x = nn.Linear(8, 8):to("cuda"), tl.randn(4, 8, gpu):half()
    local function copies(f)
      local before = calls "copy"
      amp.autocast({ device = "cuda" }, f)
      return calls "copy" - before
    end
    local once = copies(function() m(x) end)
    assert.is_true(once > 0)
    assert.are.equal(once, copies(function() for _ = 1, 5 do m(x) end end))
  end)

  case("is recorded as a whole", function()
    local scaler, other = amp.GradScaler { growth_interval = 4 }, amp.GradScaler { growth_interval = 4 }
    local run, first, _, body, factor = iteration(scaler)
    local eager, first_eager, _, body_eager, factor_eager = iteration(other)
    for _ = 1, 3 do eager() end
    local step = cuda.graph(run, { warmup = 3 })
    for i = 1, 8 do
      for _, f in ipairs { factor, factor_eager } do f:fill_(i == 3 and 0 / 0 or 1) end
      local a, norm_a = eager()
      local b, norm_b = step()
      if i ~= 3 then
        assert.are.equal(a:item(), b:item())
        assert.are.equal(norm_a:item(), norm_b:item())
      end
      assert.are.equal(other:get_scale(), scaler:get_scale())
    end
    assert.are.equal(first_eager:state_dict().state[1].step, first:state_dict().state[1].step)
    assert.is_true(body[1].weight:eq(body_eager[1].weight):all():item())
  end)
end)

describe("one scaler for two GPUs", function()
  -- Two layers, the second one perhaps on another device; one optimizer for both, or one for each.
  local function train(second, optimizers, bad)
    tl.manual_seed(8)
    local a, b = nn.Linear(4, 6), nn.Linear(6, 2)
    local x, y = tl.randn(10, 4, gpu), tl.randn(10, 2, gpu):to(second)
    a:to("cuda:0")
    b:to(second)
    local opts
    if optimizers == 1 then
      opts = { optim.Adam({ a.weight, b.weight, a.bias, b.bias }, { lr = 0.05 }) } -- runs of either device
    else
      opts = { optim.Adam(a:parameters(), { lr = 0.05 }), optim.Adam(b:parameters(), { lr = 0.05 }) }
    end
    local scaler = amp.GradScaler { init_scale = 64, growth_interval = 3 }
    local losses, waits = {}, nil
    for i = 1, 8 do
      if i == 2 then waits = calls "Synchronize" end
      for _, o in ipairs(opts) do o:zero_grad() end
      local loss = F.mse_loss(b(tl.tanh(a(x)):to(second)), y)
      scaler:scale(loss):backward()
      if i == 4 then (bad == 1 and a or b).weight.grad:fill_(math.huge) end
      for _, o in ipairs(opts) do scaler:step(o) end
      scaler:update()
      losses[i] = loss
    end
    waits = calls "Synchronize" - waits
    for i = 1, 8 do losses[i] = losses[i]:item() end
    local steps = {}
    for i, o in ipairs(opts) do
      for k, s in ipairs(o:state_dict().state) do steps[#steps + 1] = i .. ":" .. k .. ":" .. s.step end
    end
    return losses, scaler:state_dict(), steps, waits
  end

  for optimizers = 1, 2 do
    for bad = 1, 2 do
      case(("goes as for one: %d optimizers, overflow on the %d. device"):format(optimizers, bad), function()
        local losses, scales, steps = train("cuda:0", optimizers, bad)
        local losses_two, scales_two, steps_two, waits = train("cuda:1", optimizers, bad)
        assert.are.same(losses, losses_two)
        assert.are.same(scales, scales_two)
        assert.are.same(steps, steps_two)
        assert.are.equal(0, waits)
        assert.are.equal(2 * 64 / 2 * 2, scales_two.scale)
      end)
    end
  end

  case("and the CPU beside one of them", function()
    local p = tl.ones(2, { requires_grad = true, device = "cpu" })
    local q = tl.ones(2, { requires_grad = true, device = "cuda" })
    local opt = optim.SGD({ p, q }, { lr = 1 })
    local scaler = amp.GradScaler { init_scale = 2 }
    for _, bad in ipairs { "none", "cpu", "cuda" } do
      p.grad = tl.tensor({ bad == "cpu" and math.huge or 2, 2 }, { device = "cpu" })
      q.grad = tl.tensor({ bad == "cuda" and math.huge or 2, 2 }, gpu)
      local before, before_q = p:tolist(), q:tolist()
      local moves = bad == "none" and scaler:get_scale() == 2
      scaler:step(opt)
      scaler:update()
      assert.are.equal(moves, p:tolist()[2] ~= before[2], bad)
      assert.are.equal(moves, q:tolist()[2] ~= before_q[2], bad)
    end
    assert.are.equal(0.5, scaler:get_scale())
  end)
end)

describe("examples on a simulated GPU", function()
  local program = require("tlua.system").program()
  local examples = debug.getinfo(1, "S").source:match("^@(.*)tests/lua/[^/]*$") .. "examples/"

  local function run(command)
    local pipe = io.popen(("TLUA_CUDA=sim '%s' %s%s 2>&1"):format(program, examples, command))
    local text = pipe:read("*a")
    pipe:close()
    return text
  end

  case("the article's loop skips what it skips on the CPU", function()
    local text = run "article/2-mixed-precision.lua"
    assert.matches("3 steps skipped, the scale went from 65536 to 8192", text)
    assert.matches("products in float16, weights in float32", text)
  end)

  case("amp.lua compares the types", function()
    local file = io.open "/usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz"
    if not file then return pending "needs dataset-fashion-mnist" end
    file:close()
    local text = run "amp.lua --device cuda --limit 32 --batch 16 --epochs 1"
    for _, dtype in ipairs { "float32", "bfloat16", "float16" } do
      local skipped = text:match("\n" .. dtype .. "%s+[%d.]+ %%%s+[%d.]+ ms%s+[%d.]+ MB%s+(%d+)")
      assert.is_truthy(skipped, text)
      assert.is_true(tonumber(skipped) < 2, text)
    end
  end)
end)
