-- tlua bench: times the engine. A table on a terminal, one JSON object a line with --json.
--
-- Counting: after a warm-up of a fifth of the time, samples of at least 5 ms each are taken until the time is over (at
-- least five of them); a case's result is the median sample divided by the calls in it. scripts/bench_torch.py counts
-- in the same way. --vs-torch runs both in turns, case by case, each in a fresh process, at 1 and at 2 threads; in
-- each round the better thread count stands for each side, and the ratio is the median over the rounds.
local ffi = require "ffi"

ffi.cdef [[
typedef struct { long seconds, nanoseconds; } bench_timespec;
int clock_gettime(int clock, bench_timespec *t);
int posix_spawn(int *pid, const char *path, const void *actions, const void *attributes, const char *const argv[],
                char *const envp[]);
int waitpid(int pid, int *status, int options);
long readlink(const char *path, char *buffer, size_t bytes);
extern char **environ;
]]

local usage = [[
usage: tlua bench [options]
  --case NAME     only this case (may be repeated)
  --threads N     threads of the engine (default: all)
  --seconds S     time for each case (default 1)
  --json          one JSON object a line
  --markdown      with --vs-torch: a Markdown table
  --vs-torch      run scripts/bench_torch.py in turns and print the ratios
  --python CMD    the Python that has PyTorch (default: TLUA_PYTHON, or python3)
  --rounds N      rounds of --vs-torch (default 5)]]

local timespec = ffi.new "bench_timespec"

local function now()
  ffi.C.clock_gettime(1, timespec) -- CLOCK_MONOTONIC
  return tonumber(timespec.seconds) + tonumber(timespec.nanoseconds) * 1e-9
end

local function median(list)
  table.sort(list)
  local middle = math.floor(#list / 2)
  return #list % 2 == 1 and list[middle + 1] or (list[middle] + list[middle + 1]) / 2
end

-- The seconds of one call of run(n)/n by the rule above.
local function measure(run, seconds)
  local begin, calls = now(), 0
  repeat
    run(1)
    calls = calls + 1
  until now() - begin >= seconds / 5 and calls >= 3
  local n = math.max(1, math.ceil(0.005 * calls / (now() - begin)))
  local samples = {}
  begin = now()
  repeat
    local before = now()
    run(n)
    samples[#samples + 1] = (now() - before) / n
  until now() - begin >= seconds and #samples >= 5
  return median(samples)
end

local function program()
  local buffer = ffi.new("char[4096]")
  local n = tonumber(ffi.C.readlink("/proc/self/exe", buffer, 4096))
  return n > 0 and ffi.string(buffer, n) or "tlua"
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

-- ---- the cases: each gets { seconds } and returns { seconds = of one step, ... } ---------------------------------

local cases, order = {}, {}

-- budget: seconds or bytes that must not be passed, ratio: how many times PyTorch's speed, share: of oneDNN's rate,
-- overhead: what may come on top of the same step without it, as a share
local function case(name, what, budget, run)
  cases[name] = { name = name, what = what, budget = budget, run = run }
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
  local self = program()
  local seconds = measure(function(n)
    for _ = 1, n do assert(spawn(self, "-e", "local x = tl.ones(2) + 1"), "the child failed") end
  end, o.seconds)
  return { seconds = seconds }
end)

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

case("mlp_big", "MLP 2048-2048-2048-10, SGD step, batch 256", { ratio = 1, share = 0.8 }, function(o)
  local tl = require "tlua"
  local nn = tl.nn
  local batch, width, classes = 256, 2048, 10
  local model = nn.Sequential(
    nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, classes)
  )
  local optimizer = tl.optim.SGD(model:parameters(), { lr = 0.01 })
  local y = tl.randint(0, classes, { batch })
  local step = training(model, optimizer, nn.CrossEntropyLoss(), tl.randn(batch, width), y)
  -- The limit is taken before and after, and the higher one counts: another program's load must not flatter the share.
  local before = sgemm_rate(batch, width, width, o.seconds / 4)
  local seconds = measure(step, o.seconds)
  local after = sgemm_rate(batch, width, width, o.seconds / 4)
  -- forward and weight gradient of every layer; input gradient of all but the first
  local flops = 2 * batch * (2 * (2 * width * width + width * classes) + width * width + width * classes)
  local result = { seconds = seconds, gflops = flops / seconds / 1e9 }
  local rate = before and math.max(before, after)
  if rate then result.sgemm_gflops, result.share = rate / 1e9, flops / seconds / rate end
  return result
end)

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
      local b = now()
      scaled()
      without[#without + 1], with[#with + 1] = b - a, now() - b
    until now() - begin >= 1.2 * o.seconds and #with >= 8
    local seconds = median(with)
    return { seconds = seconds, overhead = seconds / median(without) - 1 }
  end)

case("memory", "peak of 10,000 chained temporaries of 1 MB", { bytes = 64 * 2 ^ 20 }, function()
  local tl, base = require "tlua", require "tlua.base"
  collectgarbage() -- what cases before this one left, and the engine's limit that has grown with them
  collectgarbage()
  base.C.tl_collected()
  base.check(base.C.tl_empty_cache(0))
  local x = tl.zeros(256 * 1024)
  local file = io.open("/proc/self/clear_refs", "w")
  if file then -- the kernel's high-water mark starts anew
    file:write("5")
    file:close()
  end
  base.check(base.C.tl_reset_peak_memory(0))
  local before, begin = status_bytes("VmRSS"), now()
  for _ = 1, 10000 do x = x + 1 end
  local seconds = now() - begin
  assert(x[1]:item() == 10000)
  local stats = base.ffi.new("tl_memory_stats")
  base.check(base.C.tl_memory(0, stats))
  return { seconds = seconds / 10000, bytes = math.max(stats.peak, status_bytes("VmHWM") - before) }
end)

-- ---- output ------------------------------------------------------------------------------------------------------

local function time_text(seconds)
  if seconds < 1e-6 then return ("%.0f ns"):format(seconds * 1e9) end
  if seconds < 1e-3 then return ("%.2f us"):format(seconds * 1e6) end
  return ("%.2f ms"):format(seconds * 1e3)
end

local function json(record, keys)
  local fields = {}
  for _, key in ipairs(keys) do
    local value = record[key]
    local form = type(value) == "number" and '"%s": %.6g' or '"%s": "%s"'
    if value ~= nil then fields[#fields + 1] = form:format(key, value) end
  end
  return "{" .. table.concat(fields, ", ") .. "}"
end

local function parse_json(line)
  local record = {}
  for key, value in line:gmatch('"([%w_]+)":%s*([^,}]+)') do
    record[key] = tonumber(value) or value:match('^"(.*)"$')
  end
  return record.case and record
end

local result_keys = { "case", "threads", "seconds", "gflops", "sgemm_gflops", "share", "overhead", "bytes" }

-- The notes of one result: rates and bytes.
local function details(r)
  local notes = {}
  if r.gflops then notes[#notes + 1] = ("%.0f GFLOP/s"):format(r.gflops) end
  if r.share then notes[#notes + 1] = ("%.0f %% of sgemm's %.0f"):format(r.share * 100, r.sgemm_gflops) end
  if r.overhead then notes[#notes + 1] = ("overhead %.1f %%"):format(r.overhead * 100) end
  if r.bytes then notes[#notes + 1] = ("peak %.1f MB"):format(r.bytes / 2 ^ 20) end
  return table.concat(notes, ", ")
end

-- Which budgets does the result miss? ratio may be nil (not compared).
local function missed(budget, r, ratio)
  local list = {}
  local function must(ok, form, value)
    if not ok then list[#list + 1] = form:format(value) end
  end
  if budget.seconds then must(r.seconds <= budget.seconds, "over %s", time_text(budget.seconds)) end
  if budget.bytes then must(r.bytes <= budget.bytes, "over %.0f MB", budget.bytes / 2 ^ 20) end
  if budget.share and r.share then must(r.share >= budget.share, "below %.0f %%", budget.share * 100) end
  if budget.overhead then must(r.overhead <= budget.overhead, "over %.0f %%", budget.overhead * 100) end
  if budget.ratio and ratio then must(ratio >= budget.ratio, "below %gx", budget.ratio) end
  return #list == 0 and "ok" or "MISSED: " .. table.concat(list, ", ")
end

-- ---- against PyTorch ---------------------------------------------------------------------------------------------

local function quote(word) return "'" .. word:gsub("'", "'\\''") .. "'" end

-- The first JSON record that a command prints.
local function child(command)
  local pipe = assert(io.popen(command))
  local record
  for line in pipe:lines() do record = record or parse_json(line) end
  pipe:close()
  return record or error("no result from: " .. command, 0)
end

local function torch_script()
  local folder = program():match("^(.*)/[^/]*$") or "."
  for _, path in ipairs { folder .. "/../scripts/bench_torch.py", folder .. "/../share/tlua/bench_torch.py" } do
    local file = io.open(path)
    if file then
      file:close()
      return path
    end
  end
  error("bench_torch.py lies neither in " .. folder .. "/../scripts nor in ../share/tlua", 0)
end

local thread_counts = { 1, 2 }

-- One round of a case: the better of the thread counts for either side, taken in turns.
local function round(name, o, torch_command)
  local ours, theirs
  for _, threads in ipairs(thread_counts) do
    local options = (" --json --case %s --seconds %g --threads %d"):format(name, o.seconds, threads)
    local a = child(quote(program()) .. " bench" .. options)
    local b = child(torch_command .. options)
    if not ours or a.seconds < ours.seconds then ours = a end
    if not theirs or b.seconds < theirs.seconds then theirs = b end
  end
  return ours, theirs
end

-- The record with the median time.
local function middle(records)
  table.sort(records, function(a, b) return a.seconds < b.seconds end)
  return records[math.ceil(#records / 2)]
end

local function compare_case(name, o, torch_command)
  local budget = cases[name].budget
  local ours, theirs, ratios = {}, {}, {}
  for i = 1, o.rounds do
    ours[i], theirs[i] = round(name, o, torch_command)
    ratios[i] = theirs[i].seconds / ours[i].seconds
  end
  local a, b, ratio = middle(ours), middle(theirs), median(ratios)
  return {
    case = name, tlua = a.seconds, torch = b.seconds, ratio = ratio, budget = budget.ratio, tlua_threads = a.threads,
    torch_threads = b.threads, share = a.share, bytes = a.bytes, torch_bytes = b.bytes,
    verdict = missed(budget, a, ratio), notes = details(a),
  }
end

local compared_keys = { "case", "tlua", "tlua_threads", "torch", "torch_threads", "ratio", "budget", "share", "bytes",
  "torch_bytes", "verdict" }

-- How --vs-torch prints: a head and a line for each record.
local formats = {
  json = { line = function(r) return json(r, compared_keys) end },
  table = { "%-12s %12s %12s %9s %8s  %s  %s" },
  markdown = { "| %s | %s | %s | %s | %s | %s | %s |", rule = "|---|---|---|---|---|---|---|" },
}

local function compare(o)
  local torch_command = o.python .. " " .. quote(torch_script())
  local format = formats[o.json and "json" or o.markdown and "markdown" or "table"]
  if format[1] then print(format[1]:format("case", "tlua", "PyTorch", "ratio", "budget", "verdict", "notes")) end
  if format.rule then print(format.rule) end
  for _, name in ipairs(o.names) do
    local r = compare_case(name, o, torch_command)
    print(format.line and format.line(r)
      or format[1]:format(o.markdown and cases[name].what or name, time_text(r.tlua), time_text(r.torch),
        ("%.2fx"):format(r.ratio), r.budget and ("%gx"):format(r.budget) or "", r.verdict, r.notes))
    io.stdout:flush()
  end
end

-- ---- the command line --------------------------------------------------------------------------------------------

local function complain(message)
  io.stderr:write("tlua bench: ", message, "\n")
  os.exit(2)
end

local function parse(words)
  local o = { names = {}, seconds = 1, rounds = 5, python = os.getenv("TLUA_PYTHON") or "python3" }
  local i = 1
  local function text()
    i = i + 1
    return words[i] or complain(words[i - 1] .. " needs an argument")
  end
  local function number()
    local n = tonumber(text())
    if not n or n <= 0 then complain(("%s: '%s' is not a positive number"):format(words[i - 1], words[i])) end
    return n
  end
  while words[i] do
    local word = words[i]
    if word == "--json" then o.json = true
    elseif word == "--markdown" then o.markdown = true
    elseif word == "--vs-torch" then o.vs_torch = true
    elseif word == "--case" then o.names[#o.names + 1] = text()
    elseif word == "--threads" then o.threads = number()
    elseif word == "--seconds" then o.seconds = number()
    elseif word == "--rounds" then o.rounds = number()
    elseif word == "--python" then o.python = text()
    elseif word == "-h" or word == "--help" then
      print(usage)
      print("cases:")
      for _, name in ipairs(order) do print(("  %-12s %s"):format(name, cases[name].what)) end
      os.exit(0)
    else complain(("there is no option %s (tlua bench -h shows the usage)"):format(word)) end
    i = i + 1
  end
  for _, name in ipairs(o.names) do
    if not cases[name] then complain(("there is no case '%s' (cases: %s)"):format(name, table.concat(order, ", "))) end
  end
  if #o.names == 0 then o.names = order end
  return o
end

local function bench(o)
  local base = require "tlua.base"
  if o.threads then base.check(base.C.tl_set_num_threads(o.threads)) end
  local threads = base.C.tl_get_num_threads()
  if not o.json then
    print(("tlua %s, %s, kernels %s, %d threads"):format(base.ffi.string(base.C.tl_version()), jit.version,
      base.ffi.string(base.C.tl_cpu_kernel_set()), threads))
  end
  for _, name in ipairs(o.names) do
    local result = cases[name].run(o)
    result.case, result.threads = name, threads
    if o.json then
      print(json(result, result_keys))
    else
      print(("%-12s %12s  %-34s  %s  (%s)"):format(name, time_text(result.seconds), details(result),
        missed(cases[name].budget, result), cases[name].what))
    end
    io.stdout:flush()
    collectgarbage()
  end
end

local o = parse({ ... })
if o.vs_torch then compare(o) else bench(o) end
