-- resume.lua: tlua resume.lua KILL_LIBRARY [KILLS [DEVICE [SEED]]]: program.lua is killed (SIGKILL) at random points,
-- also while it writes a checkpoint, and started again until it ends: its last checkpoint must be that of a run that
-- nobody killed, byte for byte.
local system = require "tlua.system"
local library, kills, device = arg[1], tonumber(arg[2] or 20), arg[3] or "cpu"
local seed = tonumber(arg[4] or 1)
math.randomseed(seed)

local program = arg[0]:match("^(.*)/[^/]*$") .. "/program.lua"
local folder = os.tmpname()
os.remove(folder)
system.make_folders(folder)

local function read(path)
  local file = assert(io.open(path, "rb"))
  local text = file:read("*a")
  file:close()
  return text
end

local function clear(path)
  for name in pairs(system.entries(path) or {}) do os.remove(path .. "/" .. name) end
  os.remove(path)
end

-- Runs the program until its n-th call, or its end (0). Did it end?
local function run(directory, n)
  local command = "exec env LD_PRELOAD='%s' TLUA_TEST_KILL=%d TLUA_TEST_CALLS='%s/calls' OMP_NUM_THREADS=1 %s"
  local words = ("'%s' '%s' '%s' %s"):format(system.program(), program, directory, device)
  local status = os.execute(command:format(library, n, folder, words))
  if status ~= 0 and status ~= 9 and status ~= 137 * 256 then error("the program failed: status " .. status) end
  return status == 0
end

-- Has a process left a checkpoint that it had begun?
local function is_torn(directory)
  for name in pairs(system.entries(directory) or {}) do
    if name:find("%.tmp%-") then return true end
  end
end

-- What must be equal: the last checkpoint, and the logs but for the time.
local function result(directory)
  local names = {}
  for name in pairs(system.entries(directory)) do names[#names + 1] = name end
  table.sort(names)
  local csv = {}
  local lines, column = read(directory .. "/metrics.csv"), nil
  for line in lines:gmatch("[^\n]+") do
    local fields, i = {}, 0
    for value in (line .. ","):gmatch("([^,]*),") do
      i = i + 1
      if value:find("_per_second") then column = i end
      fields[i] = i == column and "" or value
    end
    csv[#csv + 1] = table.concat(fields, ",")
  end
  local jsonl = read(directory .. "/metrics.jsonl"):gsub('"train/tokens_per_second":[^,}]*,?', "")
  return {
    files = table.concat(names, "\n"), checkpoint = read(directory .. "/step-00000030.safetensors"),
    csv = table.concat(csv, "\n"), jsonl = jsonl,
  }
end

local function check(wanted, got)
  for name, text in pairs(wanted) do
    if got[name] ~= text then
      print(("%s differs (seed %d), see %s:\n%s\n-- instead of\n%s"):format(name, seed, folder,
        name == "checkpoint" and "" or got[name], name == "checkpoint" and "" or text))
      os.exit(1)
    end
  end
end

assert(run(folder .. "/whole", 0))
local wanted = result(folder .. "/whole")
local calls = tonumber(read(folder .. "/calls"))
assert(calls > 500, "the library does not see the calls")
local killed, writing, runs = 0, 0, 0
while killed < kills do
  runs = runs + 1
  local directory = ("%s/run%d"):format(folder, runs)
  while killed < kills and not run(directory, math.random(1, math.ceil(calls / 3))) do
    killed = killed + 1
    if is_torn(directory) then writing = writing + 1 end
  end
  if killed == kills then assert(run(directory, -1)) end
  check(wanted, result(directory))
  clear(directory)
end
assert(writing > 0, "no kill came while a checkpoint was being written")
local text = "killed %d times, %d of them while a checkpoint was being written, in %d runs: equal"
print(text:format(killed, writing, runs))
clear(folder .. "/whole")
clear(folder)
