-- crash.lua: tlua tests/sweep/crash.lua [KILLS [SEED]]: two sweeps work on one study; at random moments one of them, or
-- one of their workers, is killed with SIGKILL, and a killed sweep is started again. In the end every trial must be
-- complete, what was complete before a kill must be untouched, and no trial may ever have run in two processes at once.
local process = require "tlua.sweep.process"
local random = require "tlua.sweep.random"
local sweep = require("tlua").sweep

local kills, seed = tonumber(arg[1] or 40), tonumber(arg[2] or 1)
local TRIALS = 20 + 4 * kills
local stream = random.stream(seed, "crash")
local folder = os.tmpname()
os.remove(folder)
os.execute("mkdir " .. folder)

local function write(name, text)
  local file = assert(io.open(folder .. "/" .. name, "w"))
  file:write(text)
  file:close()
end

write("script.lua", ([[
local sweep = require("tlua").sweep
local process = require "tlua.sweep.process"
local folder = %q
sweep.run { storage = folder .. "/sweep.db", trials = %d, workers = 2, retries = 1000, sampler = sweep.TPE { seed = 1 },
  space = { x = sweep.uniform(0, 1) }, objective = function(_, t)
    local path = folder .. "/runs." .. t.number
    local file = io.open(path)
    local before = file and file:read("*a")
    if file then file:close() end
    if before and process.is_alive(before) then io.open(folder .. "/twice", "a"):write(t.number, "\n") end
    file = io.open(path, "w")
    file:write(process.identity())
    file:close()
    for step = 1, 4 do
      process.sleep(0.005 + 0.02 * math.random())
      t:report(step, step)
    end
    return process.pid() + process.time() %% 1 -- another number whenever it is run
  end }
]]):format(folder, TRIALS))

local runs = {}
local function start(i)
  local pid, pipe = process.spawn({ process.program(), folder .. "/script.lua" }, {})
  runs[i] = { pid = pid, pipe = pipe, text = "" }
end

-- A sweep's output is read, so that it does not stop at a full pipe. Returns how it ended, if it did.
local function look(run)
  while run.pipe do
    local text = process.read(run.pipe)
    if text == "" then break end
    if text == nil then
      process.close(run.pipe)
      run.pipe = nil
    else
      run.text = (run.text .. text):sub(-4000)
    end
  end
  if not run.ended then
    local how, code = process.reap(run.pid)
    if how then run.ended, run.code = how, code end
  end
  return run.ended
end

local function children(pid)
  local file = io.open(("/proc/%d/task/%d/children"):format(pid, pid))
  local list = {}
  for word in (file and file:read("*a") or ""):gmatch("%d+") do list[#list + 1] = tonumber(word) end
  if file then file:close() end
  return list
end

-- number -> value and claim of the complete trials
local function snapshot()
  local found = {}
  local ok, study = pcall(sweep.open, folder .. "/sweep.db")
  if not ok then return found end
  for _, row in ipairs(study.store:trials(study.row)) do
    if row.state == "complete" then found[row.number] = { row.value, row.claim } end
  end
  study:close()
  return found
end

local problems = 0
local function problem(...)
  problems = problems + 1
  print("PROBLEM: " .. (...):format(select(2, ...)))
end

local known = {}
local function compare()
  local now = snapshot()
  for number, was in pairs(known) do
    local is = now[number]
    if not is or is[1] ~= was[1] or is[2] ~= was[2] then problem("trial %d was complete, and changed", number) end
  end
  known = now
end

start(1)
start(2)
local killed_sweeps, killed_workers = 0, 0
for _ = 1, kills do
  process.sleep(0.03 + 0.25 * stream:uniform())
  local i = stream:integer(2) + 1
  local run = runs[i]
  if not look(run) then
    local workers = children(run.pid)
    if stream:uniform() < 0.5 and #workers > 0 then
      process.kill(workers[stream:integer(#workers) + 1], process.SIGKILL)
      killed_workers = killed_workers + 1
    else
      process.kill(run.pid, process.SIGKILL)
      process.reap(run.pid, true)
      killed_sweeps = killed_sweeps + 1
      compare()
      start(i)
    end
  end
  for _, r in ipairs(runs) do look(r) end
end

local deadline = process.now() + 120
while not (look(runs[1]) and look(runs[2])) and process.now() < deadline do process.sleep(0.02) end
for _, run in ipairs(runs) do
  if run.ended ~= "exit" or run.code ~= 0 then
    problem("a sweep ended with %s %s: %s", tostring(run.ended), tostring(run.code), run.text)
    process.kill(run.pid, process.SIGKILL)
  end
end
compare()
local complete = 0
for _ in pairs(known) do complete = complete + 1 end
if complete ~= TRIALS then problem("%d of %d trials are complete", complete, TRIALS) end
if io.open(folder .. "/twice") then problem("a trial ran in two processes at once") end
print(("%d sweeps and %d workers killed, %d/%d trials complete, %d problems"):format(killed_sweeps, killed_workers,
  complete, TRIALS, problems))
os.execute("rm -rf " .. folder)
os.exit(problems == 0 and 0 or 1)
