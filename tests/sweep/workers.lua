-- workers.lua: tlua tests/sweep/workers.lua [WORKERS [TRIALS]]: that many sweeps with one worker each on one file,
-- whose trials do nothing but write. Prints the time; fails if any process met an error ("database is locked").
local process = require "tlua.sweep.process"
local sweep = require("tlua").sweep

local workers, trials = tonumber(arg[1] or 32), tonumber(arg[2] or 256)
local folder = os.tmpname()
os.remove(folder)
os.execute("mkdir " .. folder)
local file = assert(io.open(folder .. "/script.lua", "w"))
file:write(([[
local sweep = require("tlua").sweep
sweep.run { storage = %q, trials = %d, workers = 1, sampler = sweep.Random { seed = 1 }, pruner = sweep.Median {},
  space = { x = sweep.uniform(0, 1) }, objective = function(p, t)
    for step = 1, 20 do t:report(step, p.x) end
    t:set("a", 1)
    return p.x
  end }
]]):format(folder .. "/sweep.db", trials))
file:close()

local begin = process.now()
os.execute(("cd %s; for i in $(seq %d); do '%s' script.lua >log.$i 2>&1 || echo $i >>bad & done; wait"):format(
  folder, workers, process.program()))
local seconds = process.now() - begin

local study = sweep.open(folder .. "/sweep.db")
local counts, failures = study:counts(), study:failures()
study:close()
local bad = io.open(folder .. "/bad")
for i = 1, math.min(3, #failures) do print(failures[i].error) end
print(("%d workers: %d of %d trials complete, %d failures, %.2f s"):format(workers, counts.complete, trials, #failures,
  seconds))
os.execute(bad and ("cat %s/log.*"):format(folder) or "true")
os.execute("rm -rf " .. folder)
os.exit(counts.complete == trials and #failures == 0 and not bad and 0 or 1)
