-- Sweeps with a process for each trial: what breaks, is killed or interrupted, and what a user sees of it.
local sweep = require("tlua").sweep
local process = require "tlua.sweep.process"

local program = process.program()
local folder = os.tmpname()
os.remove(folder)
os.execute("mkdir " .. folder)
local db, script = folder .. "/sweep.db", folder .. "/script.lua"

local function fresh() os.execute(("rm -rf %s; mkdir %s"):format(folder, folder)) end

local function write(text)
  local file = assert(io.open(script, "w"))
  file:write((text:gsub("DB", ("%q"):format(db))))
  file:close()
end

local function read(path)
  local file = assert(io.open(path))
  local text = file:read("*a")
  file:close()
  return text
end

-- Runs a shell command; returns its exit code and all that it printed.
local function shell(command)
  local out = folder .. "/out"
  local code = os.execute(("cd %s && %s >%s 2>&1"):format(folder, command, out))
  return math.floor(code / 256) + code % 256, read(out)
end

local function tlua(words) return shell(("'%s' %s"):format(program, words)) end

local head = [[
local tl = require "tlua"
local sweep = tl.sweep
local function run(o)
  o.storage, o.sampler = DB, o.sampler or sweep.Random { seed = 1 }
  o.space = o.space or { x = sweep.uniform(0, 1) }
  return sweep.run(o)
end
]]

local function states()
  local study = sweep.open(db)
  local list, failures = {}, study:failures()
  local trials = study:trials()
  for i, t in ipairs(trials) do list[i] = t.state end
  study:close()
  return list, failures, trials
end

-- Waits until the storage says so.
local function wait_for(condition)
  local deadline = process.now() + 20
  while process.now() < deadline do
    local ok, yes = pcall(condition)
    if ok and yes then return true end
    process.sleep(0.02)
  end
  return false
end

local function running_count()
  local n = 0
  for _, state in ipairs((states())) do
    if state == "running" then n = n + 1 end
  end
  return n
end

describe("a sweep of processes #once", function()
  before_each(fresh)
  teardown(function() os.execute("rm -rf " .. folder) end)

  it("survives whatever its trials do", function()
    write(head .. [[
      local ffi = require "ffi"
      ffi.cdef "int raise(int); void _exit(int);"
      local study = run { trials = 6, workers = 2, retries = 1, objective = function(p, t)
        print("trial " .. t.number .. " prints")
        if t.number == 0 then error("broken") end
        if t.number == 1 then ffi.C.raise(11) end
        if t.number == 2 then ffi.C.raise(9) end
        if t.number == 3 then io.stderr:write("last words\n") ffi.C._exit(7) end
        if t.number == 4 and t.attempt == 1 then ffi.C.raise(2) while true do tl.ones(1):add(1) end end
        return p.x
      end }
      print("best", study:best().number)
    ]])
    local code, text = tlua(script)
    assert.equal(0, code, text)
    assert.matches("%[5%] trial 5 prints\n", text)
    assert.matches("best\t[45]\n$", text)
    local list, failures = states()
    assert.same({ "failed", "failed", "failed", "failed", "complete", "complete" }, list)
    assert.equal(9, #failures)
    local errors = {}
    for _, f in ipairs(failures) do errors[f.trial] = f.error end
    assert.matches("script.lua:%d+: broken", errors[0])
    assert.matches("^killed by signal 11 %(Segmentation fault%)", errors[1])
    assert.matches("^killed by signal 9 %(Killed%): .*want of memory", errors[2])
    assert.matches("^the process ended with code 7 before its trial did; its last words:\nlast words$", errors[3])
    assert.equal("interrupted", errors[4])
  end)

  it("pins workers, and shows each its device", function()
    write(head .. [[
      local process = require "tlua.sweep.process"
      run { trials = 4, workers = 2, devices = { "cuda:0", "cuda:1" }, objective = function(_, t)
        t:set("cores", process.cores())
        t:set("device", t.device .. " " .. tostring(os.getenv("CUDA_VISIBLE_DEVICES")))
        process.sleep(0.05)
        return 0
      end }
    ]])
    local code, text = shell(("env -u CUDA_VISIBLE_DEVICES '%s' %s"):format(program, script))
    assert.equal(0, code, text)
    local _, _, trials = states()
    local seen, cores = {}, process.cores()
    for _, t in ipairs(trials) do
      seen[t.attributes.device] = true
      assert.equal(math.max(1, math.floor(#cores / 2)), #t.attributes.cores)
    end
    assert.same({ ["cuda:0 0"] = true, ["cuda:0 1"] = true }, seen)
    local shares = require("tlua.sweep.runner").shares
    assert.same({ { 0, 1 }, { 2, 3 } }, shares(2, { 0, 1, 2, 3 }))
    assert.same({ { 4 }, { 6 }, { 4 } }, shares(3, { 4, 6 }))
  end)

  it("gives each worker a GPU of its own, under the simulator", function()
    local probe = "TLUA_CUDA=sim '%s' -e \"tl.zeros(1, { device = 'cuda' })\""
    if shell(probe:format(program)) ~= 0 then return pending "needs the simulator of a GPU" end
    write(head .. [[
      run { trials = 6, workers = 2, devices = { "cuda:0", "cuda:1" }, objective = function(p, t)
        local x = tl.full({ 4 }, p.x, { device = t.device })
        t:set("device", x.device .. " " .. os.getenv "CUDA_VISIBLE_DEVICES")
        return (x * x):sum():item()
      end }
    ]])
    local code, text = shell(("env -u CUDA_VISIBLE_DEVICES TLUA_CUDA=sim TLUA_SIM_DEVICES=2 '%s' %s"):format(program,
      script))
    assert.equal(0, code, text)
    local _, failures, trials = states()
    assert.same({}, failures)
    local seen = {}
    for _, t in ipairs(trials) do
      seen[t.attributes.device] = true
      assert.is_true(math.abs(t.value - 4 * t.params.x ^ 2) < 1e-5)
    end
    assert.same({ ["cuda:0 0"] = true, ["cuda:0 1"] = true }, seen)
  end)

  it("runs from the ranks of one mpirun, which share the study", function()
    write(head .. [[
      run { trials = 12, workers = 1, retries = 0, quiet = true, objective = function(p, t)
        local file = io.open("ran", "a")
        file:write(t.number, "\n")
        file:close()
        require("tlua.sweep.process").sleep(0.1)
        t:set("rank", os.getenv "OMPI_COMM_WORLD_RANK")
        return p.x
      end }
    ]])
    if shell "command -v mpirun" ~= 0 then return pending "needs Open MPI" end
    local code, text = shell(("timeout 60 '%s' --ranks 2 %s"):format(program, script))
    assert.equal(0, code, text)
    local list, failures, trials = states()
    assert.same({}, failures)
    local by, ran = { ["0"] = 0, ["1"] = 0 }, {}
    for i, t in ipairs(trials) do
      assert.equal("complete", list[i])
      by[t.attributes.rank] = by[t.attributes.rank] + 1
    end
    for number in read(folder .. "/ran"):gmatch("%d+") do ran[#ran + 1] = tonumber(number) end
    table.sort(ran)
    assert.same({ 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 }, ran)
    assert.equal(12, #trials)
    assert.is_true(by["0"] > 0 and by["1"] > 0, ("rank 0 ran %d, rank 1 %d"):format(by["0"], by["1"]))
  end)

  it("goes on after kill -9: no trial is lost, none is run twice", function()
    write(head .. [[
      run { trials = 8, workers = 2, objective = function(p, t)
        local file = io.open("ran", "a")
        file:write(t.number, "\n")
        file:close()
        require("tlua.sweep.process").sleep(t.number < 4 and 0.02 or 0.4)
        return p.x
      end }
    ]])
    os.execute(("cd %s && { '%s' %s >/dev/null 2>&1 & echo $! >pid; }"):format(folder, program, script))
    assert.is_true(wait_for(function()
      local list = states()
      return list[4] == "complete" and running_count() == 2
    end))
    os.execute(("kill -9 $(cat %s/pid)"):format(folder))
    local before = states()
    local code, text = tlua(script)
    assert.equal(0, code, text)
    local list, failures = states()
    assert.equal(8, #list)
    assert.equal(0, #failures)
    local times = {}
    for word in read(folder .. "/ran"):gmatch("%d+") do
      local number = tonumber(word)
      times[number] = (times[number] or 0) + 1
    end
    for i, state in ipairs(list) do
      assert.equal("complete", state)
      if before[i] == "complete" then assert.equal(1, times[i - 1]) end
      assert.is_true(times[i - 1] <= 2)
    end
  end)

  it("Ctrl-C ends it after the trials that run, a second one at once", function()
    local text = head .. [[
      run { trials = 20, workers = 2, objective = function(p)
        require("tlua.sweep.process").sleep(SECONDS)
        return p.x
      end }
    ]]
    local function interrupted(seconds, times)
      write((text:gsub("SECONDS", seconds)))
      os.execute(("cd %s && { '%s' %s >log 2>&1 & echo $! >pid; wait $!; echo $? >code; } &"):format(folder, program,
        script))
      assert.is_true(wait_for(function() return running_count() == 2 end))
      for _ = 1, times do
        os.execute(("kill -INT $(cat %s/pid)"):format(folder))
        process.sleep(0.2)
      end
      assert.is_true(wait_for(function() return read(folder .. "/code"):find("%d") end))
      assert.equal("130\n", read(folder .. "/code"))
      return states()
    end
    local list = interrupted("0.5", 1)
    for _, state in ipairs(list) do assert.equal("complete", state) end
    assert.is_true(#list < 20)
    fresh()
    local begin = process.now()
    assert.same({ "waiting", "waiting" }, interrupted("30", 2))
    assert.is_true(process.now() - begin < 15)
    assert.matches("Ctrl%-C again ends them", read(folder .. "/log"))
  end)

  it("shares a study with those that join", function()
    write(head .. [[
      run { name = "shared", trials = 12, workers = 1, objective = function(_, t)
        t:set("by", os.getenv("WHO"))
        require("tlua.sweep.process").sleep(0.1)
        return 1
      end }
    ]])
    local code, text = tlua("sweep --join " .. script)
    assert.equal(1, code)
    assert.matches("cannot open", text)
    os.execute(("cd %s && WHO=a '%s' %s >/dev/null 2>&1 &"):format(folder, program, script))
    assert.is_true(wait_for(function() return #(states()) > 0 end))
    code, text = shell(("WHO=b '%s' sweep --join %s"):format(program, script))
    assert.equal(0, code, text)
    local list, _, trials = states()
    assert.equal(12, #list)
    local by = { a = 0, b = 0 }
    for _, t in ipairs(trials) do by[t.attributes.by] = by[t.attributes.by] + 1 end
    assert.is_true(by.a > 0 and by.b > 0 and by.a + by.b == 12)
  end)

  it("says so when the script does not get to sweep.run", function()
    write([[
      if os.getenv("TLUA_SWEEP_TRIAL") then print("gone") os.exit(0) end
    ]] .. head .. "run { trials = 3, objective = function() return 1 end }")
    local code, text = tlua(script)
    assert.equal(1, code)
    assert.matches("script ended before it reached sweep.run.*gone", text)
  end)
end)

describe("tlua sweep #once", function()
  before_each(fresh)
  teardown(function() os.execute("rm -rf " .. folder) end)

  local text = head .. [[
    run { name = "study", trials = 4, objective = function(p, t)
      if p.fail then error("as asked", 0) end
      t:report(1, 2)
      return p.x
    end, space = { x = sweep.uniform(0, 1), fail = false, n = sweep.int(1, 3) } }
    print("arguments", ...)
  ]]

  it("overrides parameters and options, and shows what there is", function()
    write(text)
    local code, out = tlua(("sweep %s --trials 6 --workers 2 x=0.5,0.75 n='range(5, 10, 2)' -- one two"):format(script))
    assert.equal(0, code, out)
    assert.matches("arguments\tone\ttwo", out)
    local _, _, trials = states()
    assert.equal(6, #trials)
    for _, t in ipairs(trials) do
      assert.is_true(t.params.x == 0.5 or t.params.x == 0.75)
      assert.is_true(t.params.n == 5 or t.params.n == 7 or t.params.n == 9)
    end
    code, out = tlua("sweep --trials 7 fail=true " .. script)
    assert.equal(2, code) -- the script comes first
    assert.matches("usage:", out)
    code, out = tlua(("sweep --trials 7 %s fail=true"):format(script))
    assert.equal(0, code, out)
    assert.matches("trial 6  failed  .*as asked", out)
    for _, target in ipairs { script, db } do
      code, out = tlua("sweep --status --best --csv " .. target)
      assert.equal(0, code, out)
      assert.matches("^study  7/7 trials  0 running  0 waiting  6 complete  0 pruned  1 failed\n" ..
        "  failed  6 +as asked\ntrial %d  value 0.5\n  fail = false\n  n = %d\n  x = 0.5\nnumber,state,", out)
    end
    code = tlua(("sweep --csv=%s/table.csv %s"):format(folder, db))
    assert.equal(0, code)
    assert.matches("^number,state,value", read(folder .. "/table.csv"))
  end)

  it("refuses what it does not understand", function()
    write(text)
    for words, pattern in pairs {
      [""] = "names no script", ["--nothing x.lua"] = "no option %-%-nothing", [script .. " y"] = "is not NAME=VALUE",
      [script .. " x=unifrm\\(1,2\\)"] = "no unifrm%(...%), did you mean 'uniform'",
      [script .. " --trials"] = "needs a number",
      [script .. " x=1,,2"] = "cannot read", ["missing.db --status"] = "no file 'missing.db'",
    } do
      local code, out = tlua("sweep " .. words)
      assert.equal(2, code, words)
      assert.matches(pattern, out)
    end
    local code, out = tlua(("sweep %s y=1"):format(script))
    assert.equal(1, code)
    assert.matches("the space has no parameter 'y'", out)
    write("print 'nothing'")
    code, out = tlua("sweep " .. script)
    assert.equal(1, code)
    assert.matches("does not call sweep.run", out)
  end)

  it("draws a table on a terminal", function()
    write(text)
    local _, out = shell(("script -qec \"'%s' sweep %s\" /dev/null </dev/null"):format(program, script))
    assert.matches("study  4/4 trials  0 running  4 complete  0 pruned  0 failed  00:0%d<00:00", out)
    assert.matches("best  %d", out)
    assert.matches("\27%[%d+A\27%[J", out)
  end)
end)

-- The tree that these tests are part of.
local root = debug.getinfo(1, "S").source:match("^@(.*)tests/lua/[^/]*$")
if root:sub(1, 1) ~= "/" then
  local pipe = io.popen("pwd")
  root = pipe:read("*l") .. "/" .. root
  pipe:close()
end

-- Longer runs of these: tests/sweep.
describe("many sweeps on one file #once", function()
  before_each(fresh)
  teardown(function() os.execute("rm -rf " .. folder) end)

  it("survive kill -9 of any of them", function()
    local code, text = tlua(root .. "tests/sweep/crash.lua 5")
    assert.equal(0, code, text)
    assert.matches("40/40 trials complete, 0 problems", text)
  end)

  it("never find it locked: 32 at a time", function()
    local code, text = tlua(root .. "tests/sweep/workers.lua 32 40")
    assert.equal(0, code, text)
    assert.matches("40 of 40 trials complete, 0 failures", text)
  end)
end)

describe("examples/sweep.lua #once", function()
  before_each(fresh)
  teardown(function() os.execute("rm -rf " .. folder) end)

  it("finds networks that learn", function()
    local path = root .. "examples/sweep.lua"
    local code, text = tlua(("sweep %s --trials 3 lr=0.002 width=32 depth=1 optimizer=adam -- %s"):format(path,
      "--limit 2560 --epochs 2"))
    assert.equal(0, code, text)
    assert.matches("3/3 trials", text)
    assert.is_true(tonumber(text:match("best: trial %d, ([%d.]+) %% wrong")) < 50, text)
    code, text = tlua(("sweep %s -- --nonsense 1"):format(path))
    assert.equal(2, code)
    assert.matches("usage: tlua sweep examples/sweep.lua", text)
  end)
end)
