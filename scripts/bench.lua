-- tlua bench: times the engine. A table on a terminal, one JSON object a line with --json. The cases and how they are
-- counted: bindings/lua/tlua/bench.lua.
--
-- --vs-torch runs them and scripts/bench_torch.py in turns, case by case, each in a fresh process, on the CPU at 1 and
-- at 2 threads; in each round the better thread count stands for each side, and the ratio is the median over the
-- rounds.
local bench_cases = require "tlua.bench"
local system = require "tlua.system"

local cases, order = bench_cases.cases, bench_cases.order
local median = bench_cases.median

local usage = [[
usage: tlua bench [options]
  --case NAME     only this case (may be repeated)
  --device NAME   cpu, cuda, cuda:1 ... (default cpu)
  --threads N     threads of the engine (default: all)
  --seconds S     time for each case (default 1)
  --json          one JSON object a line
  --markdown      with --vs-torch: a Markdown table
  --vs-torch      run scripts/bench_torch.py in turns and print the ratios
  --python CMD    the Python that has PyTorch (default: TLUA_PYTHON, or python3)
  --rounds N      rounds of --vs-torch (default 5)]]

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

local result_keys = { "case", "device", "threads", "seconds", "gflops", "sgemm_gflops", "share", "overhead", "bytes",
  "tokens", "utilisation" }

-- The notes of one result: rates and bytes.
local function details(r)
  local notes = {}
  if r.gflops then notes[#notes + 1] = ("%.0f GFLOP/s"):format(r.gflops) end
  if r.share then notes[#notes + 1] = ("%.0f %% of sgemm's %.0f"):format(r.share * 100, r.sgemm_gflops) end
  if r.tokens then notes[#notes + 1] = ("%.0f tokens/s"):format(r.tokens) end
  if r.utilisation then notes[#notes + 1] = ("%.0f %% of the card's peak"):format(r.utilisation * 100) end
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

local program = system.program() or "tlua" -- wherever PATH leads

local function torch_script()
  local folder = program:match("^(.*)/[^/]*$") or "."
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
  for _, threads in ipairs(o.device == "cpu" and thread_counts or { 1 }) do
    local options = (" --json --case %s --seconds %g --threads %d --device %s"):format(name, o.seconds, threads,
      o.device)
    local a = child(quote(program) .. " bench" .. options)
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
    case = name, device = o.device, tlua = a.seconds, torch = b.seconds, ratio = ratio, budget = budget.ratio,
    tlua_threads = a.threads, torch_threads = b.threads, share = a.share, bytes = a.bytes, torch_bytes = b.bytes,
    tokens = a.tokens, utilisation = a.utilisation,
    verdict = missed(budget, a, ratio), notes = details(a),
  }
end

local compared_keys = { "case", "device", "tlua", "tlua_threads", "torch", "torch_threads", "ratio", "budget", "share",
  "bytes", "torch_bytes", "tokens", "utilisation", "verdict" }

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
  local o = { names = {}, device = "cpu", seconds = 1, rounds = 5, python = os.getenv("TLUA_PYTHON") or "python3" }
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
    elseif word == "--device" then o.device = text()
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
  local kind = o.device:match "^%a+"
  for _, name in ipairs(#o.names == 0 and order or {}) do
    if cases[name].on == nil or cases[name].on == kind then o.names[#o.names + 1] = name end
  end
  for _, name in ipairs(o.names) do
    local on = cases[name].on or kind
    if on ~= kind then complain(("the case %s is about %s, not about %s"):format(name, on, o.device)) end
  end
  return o
end

local function bench(o)
  local base = require "tlua.base"
  if o.threads then base.check(base.C.tl_set_num_threads(o.threads)) end
  local threads = base.C.tl_get_num_threads()
  bench_cases.set_device(o.device)
  if not o.json then
    print(("tlua %s, %s, kernels %s, %d threads"):format(base.ffi.string(base.C.tl_version()), jit.version,
      base.ffi.string(base.C.tl_cpu_kernel_set()), threads))
  end
  for _, name in ipairs(o.names) do
    local result = cases[name].run(o)
    result.case, result.threads, result.device = name, threads, o.device
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
