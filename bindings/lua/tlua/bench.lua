-- bench.lua: the cases of `tlua bench` and the rule by which they are counted.
--
-- Counting: after a warm-up of a fifth of the time, samples of at least 5 ms each are taken until the time is over (at
-- least five of them); a case's result is the median sample divided by the calls in it. On a GPU a sample ends when the
-- GPU has finished. scripts/bench_torch.py counts in the same way.
local ffi = require "ffi"
local system = require "tlua.system"

local now = system.now

ffi.cdef [[
int posix_spawn(int *pid, const char *path, const void *actions, const void *attributes, const char *const argv[],
                char *const envp[]);
int waitpid(int pid, int *status, int options);
extern char **environ;
]]

local bench = { cases = {}, order = {} }

--- The median of a list of numbers, which is sorted.
function bench.median(list)
  table.sort(list)
  local middle = math.floor(#list / 2)
  return #list % 2 == 1 and list[middle + 1] or (list[middle] + list[middle + 1]) / 2
end
local median = bench.median

local function finish() end -- waits for the device

--- Where the cases run: a device's name.
function bench.set_device(name)
  local tl = require "tlua"
  tl.set_default_device(name)
  if name ~= "cpu" then finish = tl.cuda.synchronize end
end

-- The seconds of one call of run(n)/n by the rule above.
local function measure(run, seconds)
  local begin, calls = now(), 0
  repeat
    run(1)
    finish()
    calls = calls + 1
  until now() - begin >= seconds / 5 and calls >= 3
  local n = math.max(1, math.ceil(0.005 * calls / (now() - begin)))
  local samples = {}
  begin = now()
  repeat
    local before = now()
    run(n)
    finish()
    samples[#samples + 1] = (now() - before) / n
  until now() - begin >= seconds and #samples >= 5
  return median(samples)
end

-- Runs a program to its end; returns the seconds it took, or nil if it failed.
local function spawn(path, ...)
  local words = { path, ... }
  local argv = ffi.new("const char *[?]", #words + 1)
  for i, word in ipairs(words) do argv[i - 1] = word end
  local pid, status = ffi.new("int[1]"), ffi.new("int[1]")
  local begin = now()
  if ffi.C.posix_spawn(pid, path, nil, nil, argv, ffi.C.environ) ~= 0 then return nil end
  ffi.C.waitpid(pid[0], status, 0)
  return status[0] == 0 and now() - begin or nil
end

-- ---- the cases: each gets { seconds, device } and returns { seconds = of one step, ... } ----------------------------

local cases, order = bench.cases, bench.order

-- budget: seconds or bytes that must not be passed, ratio: how many times PyTorch's speed, share: of oneDNN's rate,
-- overhead: what may come on top of the same step without it, as a share; on: the one kind of device it is about
local function case(name, what, budget, run, on)
  cases[name] = { name = name, what = what, budget = budget, run = run, on = on }
  order[#order + 1] = name
end

-- A whole training step of a model on fixed data.
local function training(model, optimizer, loss, x, y)
  return function(n)
    for _ = 1, n do
      optimizer:zero_grad()
      loss(model(x), y):backward()
      optimizer:step()
    end
  end
end

case("start", "process start to first op done (to its exit)", { seconds = 0.020, ratio = 50 }, function(o)
  local self = system.program() or "tlua"
  local seconds = measure(function(n)
    for _ = 1, n do assert(spawn(self, "-e", "local x = tl.ones(2) + 1"), "the child failed") end
  end, o.seconds)
  return { seconds = seconds }
end, "cpu")

case("add4", "add of two 4-element tensors, no grad", { seconds = 0.6e-6, ratio = 2 }, function(o)
  local tl = require "tlua"
  local a, b = tl.ones(4), tl.ones(4)
  local count = 1000
  local function loop(n)
    local c
    for _ = 1, n * count do c = a + b end
    return c
  end
  return { seconds = measure(loop, o.seconds) / count }
end)

case("linear_step", "Linear(10,1) + MSE + SGD step, batch 32", { ratio = 8 }, function(o)
  local tl = require "tlua"
  local model = tl.nn.Linear(10, 1)
  local optimizer = tl.optim.SGD(model:parameters(), { lr = 0.01 })
  local step = training(model, optimizer, tl.nn.MSELoss(), tl.randn(32, 10), tl.randn(32, 1))
  return { seconds = measure(step, o.seconds) }
end)

case("mlp_small", "MLP 784-128-10, Adam step, batch 64", { ratio = 1.5 }, function(o)
  local tl = require "tlua"
  local nn = tl.nn
  local model = nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
  local optimizer = tl.optim.Adam(model:parameters(), { lr = 1e-3 })
  local y = tl.randint(0, 10, { 64 })
  local step = training(model, optimizer, nn.CrossEntropyLoss(), tl.randn(64, 784), y)
  return { seconds = measure(step, o.seconds) }
end)

case("cnn", "CNN of examples/fashion.lua, Adam step, batch 64", { ratio = 1 }, function(o)
  local tl = require "tlua"
  local model = require "example:fashion_net"()
  local optimizer = tl.optim.Adam(model:parameters(), { lr = 1e-3 })
  local y = tl.randint(0, 10, { 64 })
  local step = training(model, optimizer, tl.nn.CrossEntropyLoss(), tl.randn(64, 1, 28, 28), y)
  return { seconds = measure(step, o.seconds) }
end)

case("layers", "embedding, LayerNorm and GELU, 768 tokens of width 128, with gradients", { ratio = 1 }, function(o)
  local tl = require "tlua"
  local nn, F = tl.nn, tl.F
  local table_of, norm, ids = nn.Embedding(65, 128), nn.LayerNorm(128), tl.randint(0, 65, { 12, 64 })
  local g = tl.ones(12, 64, 128)
  return { seconds = measure(function(n)
    for _ = 1, n do
      F.gelu(norm(table_of(ids)), { approximate = "tanh" }):backward(g)
      table_of:zero_grad()
      norm:zero_grad()
    end
  end, o.seconds) }
end)

case("vocabulary", "classifier 768 to 50257 with its loss, 256 rows, with gradients", { ratio = 1 }, function(o)
  local tl = require "tlua"
  local x, w = tl.randn(256, 768):requires_grad_(), (tl.randn(50257, 768) * 0.02):requires_grad_()
  local y = tl.randint(0, 50257, { 256 })
  return { seconds = measure(function(n)
    for _ = 1, n do
      x.grad, w.grad = nil, nil
      tl.F.linear_cross_entropy(x, w, y):backward()
    end
  end, o.seconds) }
end)

-- The rate of oneDNN's own sgemm for (m, k) x (k, n), flop/s; nil when the engine does not use oneDNN 2.
local function sgemm_rate(m, n, k, seconds)
  ffi.cdef [[int dnnl_sgemm(char transa, char transb, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
                            int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc);]]
  local found, sgemm = pcall(function() return ffi.C.dnnl_sgemm end)
  if not found then return nil end
  local tl, base = require "tlua", require "tlua.base"
  local a, b, c = tl.randn(m, k), tl.randn(k, n), tl.zeros(m, n)
  local function data(t) return ffi.cast("float *", base.C.tl_data(t)) end
  local pa, pb, pc = data(a), data(b), data(c)
  local none = ("N"):byte()
  return 2 * m * n * k / measure(function(calls)
    for _ = 1, calls do assert(sgemm(none, none, m, n, k, 1, pa, k, pb, n, 0, pc, n) == 0) end
  end, seconds)
end

-- A multilayer perceptron 2048-2048-2048-10, SGD step: the step and how many flop it takes. In a low precision type the
-- step runs in autocast, with a GradScaler.
local function wide_mlp(batch, low)
  local tl = require "tlua"
  local nn, width, classes = tl.nn, 2048, 10
  local model = nn.Sequential(
    nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, classes)
  )
  local optimizer, loss = tl.optim.SGD(model:parameters(), { lr = 0.01 }), nn.CrossEntropyLoss()
  local x, y = tl.randn(batch, width), tl.randint(0, classes, { batch })
  -- forward and weight gradient of every layer; input gradient of all but the first
  local flops = 2 * batch * (2 * (2 * width * width + width * classes) + width * width + width * classes)
  if not low then return training(model, optimizer, loss, x, y), flops end
  local scaler = tl.amp.GradScaler()
  local function forward() return loss(model(x), y) end
  return function(n)
    for _ = 1, n do
      optimizer:zero_grad()
      scaler:scale(tl.amp.autocast({ device = x.device, dtype = low }, forward)):backward()
      scaler:step(optimizer)
      scaler:update()
    end
  end, flops
end

case("mlp_big", "MLP 2048-2048-2048-10, SGD step, batch 256", { ratio = 1, share = 0.8 }, function(o)
  local step, flops = wide_mlp(256)
  -- The limit is taken before and after, and the higher one counts: another program's load must not flatter the share.
  local before = sgemm_rate(256, 2048, 2048, o.seconds / 4)
  local seconds = measure(step, o.seconds)
  local after = sgemm_rate(256, 2048, 2048, o.seconds / 4)
  local result = { seconds = seconds, gflops = flops / seconds / 1e9 }
  local rate = before and math.max(before, after)
  if rate then result.sgemm_gflops, result.share = rate / 1e9, flops / seconds / rate end
  return result
end, "cpu")

local function gpu_mlp(o, low)
  local step, flops = wide_mlp(4096, low)
  local seconds = measure(step, o.seconds)
  return { seconds = seconds, gflops = flops / seconds / 1e9 }
end

case("mlp_float32", "MLP 2048-2048-2048-10, SGD step, batch 4096", { ratio = 1 }, function(o)
  return gpu_mlp(o)
end, "cuda")

case("mlp_tf32", "the same with TF32 products", { ratio = 1 }, function(o)
  local cuda = require("tlua").cuda
  cuda.allow_tf32 = true
  local result = gpu_mlp(o)
  cuda.allow_tf32 = false
  return result
end, "cuda")

case("mlp_float16", "the same in float16 autocast with GradScaler", { ratio = 1 }, function(o)
  return gpu_mlp(o, "float16")
end, "cuda")

case("cnn_graph", "CNN of examples/fashion.lua, Adam step as a CUDA graph, batch 64", { ratio = 1 }, function(o)
  local tl = require "tlua"
  local model = require "example:fashion_net"()
  local optimizer = tl.optim.Adam(model:parameters(), { lr = 1e-3 })
  local x, y = tl.randn(64, 1, 28, 28), tl.randint(0, 10, { 64 })
  local step = training(model, optimizer, tl.nn.CrossEntropyLoss(), x, y)
  local replay = tl.cuda.graph(function() step(1) end)
  return { seconds = measure(function(n) for _ = 1, n do replay() end end, o.seconds) }
end, "cuda")

local function status_bytes(field)
  local file = io.open("/proc/self/status")
  if not file then return 0 end
  local kb = file:read("*a"):match(field .. ":%s*(%d+) kB")
  file:close()
  return tonumber(kb or 0) * 1024
end

case("scaler", "CNN of examples/fashion.lua, Adam step with GradScaler, batch 64", { ratio = 1, overhead = 0.03 },
  function(o)
    local tl = require "tlua"
    local model = require "example:fashion_net"()
    local optimizer, criterion = tl.optim.Adam(model:parameters(), { lr = 1e-3 }), tl.nn.CrossEntropyLoss()
    local x, y = tl.randn(64, 1, 28, 28), tl.randint(0, 10, { 64 })
    local scaler = tl.amp.GradScaler()
    local plain = training(model, optimizer, criterion, x, y)
    local function scaled()
      optimizer:zero_grad()
      scaler:scale(criterion(model(x), y)):backward()
      scaler:step(optimizer)
      scaler:update()
    end
    -- In turns: a load that comes and goes must not look like overhead.
    local without, with, begin = {}, {}, now()
    repeat
      local a = now()
      plain(1)
      finish()
      local b = now()
      scaled()
      finish()
      without[#without + 1], with[#with + 1] = b - a, now() - b
    until now() - begin >= 1.2 * o.seconds and #with >= 8
    local seconds = median(with)
    return { seconds = seconds, overhead = seconds / median(without) - 1 }
  end)

-- Causal attention and its gradients, heads inside positions as they come out of a linear layer.
local function attention(o, batch, heads, length, width)
  local tl = require "tlua"
  local function heads_of() return tl.randn(batch, length, heads, width) end
  local q, k, v, g = heads_of(), heads_of(), heads_of(), heads_of():transpose(2, 3)
  for _, x in ipairs { q, k, v } do x:requires_grad_() end
  local opts = { is_causal = true }
  return { seconds = measure(function(n)
    for _ = 1, n do
      q.grad, k.grad, v.grad = nil, nil, nil
      tl.F.scaled_dot_product_attention(q:transpose(2, 3), k:transpose(2, 3), v:transpose(2, 3), opts):backward(g)
    end
  end, o.seconds) }
end

case("attention", "causal attention and gradients, 12 x 64, 4 heads of 32", { ratio = 1 }, function(o)
  return attention(o, 12, 4, 64, 32)
end)

case("attention_long", "causal attention and gradients, 1 x 1024, 12 heads of 64", { ratio = 1 }, function(o)
  return attention(o, 1, 12, 1024, 64)
end)

case("attention_one", "attention of one position to 4096, 12 heads of 64, no grad", { ratio = 1 }, function(o)
  local tl = require "tlua"
  local q, k, v = tl.randn(1, 12, 1, 64), tl.randn(1, 12, 4096, 64), tl.randn(1, 12, 4096, 64)
  return { seconds = measure(function(n)
    for _ = 1, n do tl.F.scaled_dot_product_attention(q, k, v) end
  end, o.seconds) }
end)

case("memory", "peak of 10,000 chained temporaries of 1 MB", { bytes = 64 * 2 ^ 20 }, function(o)
  local tl, base = require "tlua", require "tlua.base"
  collectgarbage() -- what cases before this one left, and the engine's limit that has grown with them
  collectgarbage()
  base.C.tl_collected()
  tl.empty_cache(o.device)
  local x = tl.zeros(256 * 1024)
  local file = o.device == "cpu" and io.open("/proc/self/clear_refs", "w")
  if file then -- the kernel's high-water mark starts anew
    file:write("5")
    file:close()
  end
  tl.reset_peak_memory(o.device)
  local before, begin = status_bytes("VmRSS"), now()
  for _ = 1, 10000 do x = x + 1 end
  finish()
  local seconds = now() - begin
  assert(x[1]:item() == 10000)
  local stats = tl.memory(o.device)
  local held = o.device == "cpu" and status_bytes("VmHWM") - before or stats.live + stats.cached
  return { seconds = seconds / 10000, bytes = math.max(stats.peak, held) }
end)

require "tlua.bench_language"(case, measure)

return bench
