-- speed.lua: tlua tests/sweep/speed.lua [TRIALS [STEPS]]: a sweep of small trainings, two at a time, each in a process
-- of its own. speed_optuna.py is the same with Optuna and PyTorch. STEPS=0 shows what a trial costs by itself.
local tl = require "tlua"
local process = require "tlua.sweep.process"
local nn, sweep = tl.nn, tl.sweep

local trials, steps = tonumber(arg[1] or 100), tonumber(arg[2] or 2000)
local path = os.getenv("TLUA_SPEED_DB") or os.tmpname()
process.setenv("TLUA_SPEED_DB", path)

local begin = process.now()
local study = sweep.run {
  storage = path, trials = trials, workers = 2, quiet = true, sampler = sweep.TPE { seed = 1 },
  space = { width = sweep.int(16, 64), lr = sweep.loguniform(1e-4, 1e-1) },
  objective = function(p)
    local x, y = tl.randn(512, 32), tl.randint(0, 10, { 512 })
    local model = nn.Sequential(nn.Linear(32, p.width), nn.ReLU(), nn.Linear(p.width, p.width), nn.ReLU(),
      nn.Linear(p.width, 10))
    local optimizer, criterion = tl.optim.Adam(model:parameters(), { lr = p.lr }), nn.CrossEntropyLoss()
    local loss
    for step = 0, steps - 1 do
      local at = step % 16 * 32 + 1
      optimizer:zero_grad()
      loss = criterion(model(x:narrow(1, at, 32)), y:narrow(1, at, 32))
      loss:backward()
      optimizer:step()
    end
    return loss and loss:item() or 0
  end,
}
local seconds, done = process.now() - begin, study:counts().complete
local words = "tlua: %d trials of %d steps: %.2f s, %.1f ms a trial and worker"
print(words:format(done, steps, seconds, 2000 * seconds / done))
study:close()
for _, tail in ipairs { "", "-wal", "-shm" } do os.remove(path .. tail) end
