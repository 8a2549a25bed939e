-- dist_tcp_spec.lua: ranks that torchrun's variables start (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT) meet over TCP.
local program = require("tlua.system").program()
local folder = debug.getinfo(1, "S").source:match("^@(.*)lua/[^/]*$") .. "dist/"

local function shell(command)
  local pipe = io.popen(command .. " 2>&1; echo \"=$?\"")
  local text, code = pipe:read("*a"):match("^(.*)=(%d+)\n$")
  pipe:close()
  return text, tonumber(code)
end

local function has(text, part) assert.is_truthy(text:find(part, 1, true), ("%q is not in:\n%s"):format(part, text)) end

local on = { cpu = "", cuda = "TLUA_CUDA=sim TLUA_TEST_DEVICE=cuda TLUA_SIM_DEVICES=4 " }

local function ranks(n, arguments, device)
  return shell(("%stimeout 120 %sstarted.sh %d '%s' %s%s"):format(on[device or "cpu"], folder, n, program, folder,
    arguments))
end

-- One rank alone, with these variables.
local function alone(variables, timeout)
  return shell(("env %s timeout 60 '%s' -e 'tl.dist.init{timeout = %g}'"):format(variables, program, timeout or 1))
end

local devices = { "cpu" }
local _, without = shell(("TLUA_CUDA=sim '%s' -e \"tl.zeros(1, { device = 'cuda' })\""):format(program))
if without == 0 then devices[2] = "cuda" end

for _, device in ipairs(devices) do
  describe("ranks over TCP on " .. device .. " #once", function()
    it("exchange tensors of every dtype and layout", function()
      for n = 2, 4 do has(ranks(n, "collectives.lua", device), "ok collectives on " .. n) end
    end)

    it("give the gradients of one process", function()
      local text, code = ranks(3, "equal.lua", device)
      has(text, "done on 3")
      assert.equal(0, code)
    end)

    it("leave and meet again", function()
      local text, code = ranks(3, "again.lua", device)
      has(text, "ok again")
      assert.equal(0, code)
    end)
  end)
end

describe("ranks over TCP #once", function()
  local faults = {
    size = "differ at collective 1: rank 0 calls all_reduce of 3 float32 (sum), rank 1 calls all_reduce of 4 float32",
    order = "rank 0 calls all_gather of 3 float32, rank 1 calls barrier",
    absent = "rank 1 did not come to collective 1 (all_reduce of 3 float32 (sum)) within 2 s",
    later = "an earlier collective failed: all_reduce: the ranks differ",
    error = "rank 1 has ended",
    kill = "rank 1 has ended",
    exit = "rank 1 has ended",
  }
  for case, words in pairs(faults) do
    it("say what is wrong and end: " .. case, function()
      local text, code = ranks(3, "faults.lua " .. case)
      has(text, words)
      assert.is_true(code ~= 0 and code ~= 124, "exit code " .. code)
      has(text, "[rank 0]\tfalse")
      has(text, "[rank 2]\tfalse")
    end)
  end

  it("exchange more than a connection takes at once", function()
    for n = 2, 3 do has(ranks(n, "large.lua"), "ok large on " .. n) end
  end)

  it("end by Ctrl-C", function()
    for _, how in ipairs { "collective", "meeting", "alone" } do
      local text = shell(("timeout 60 '%sinterrupt.sh' %s '%sstarted.sh' 3 '%s'"):format(folder, how, folder, program))
      has(text, "exit code 130\nall gone")
      assert.is_nil(text:find("failed", 1, true))
    end
  end)

  it("meet across network namespaces", function()
    local text, code = shell(("'%snetns.sh' '%s' variables"):format(folder, program))
    if code == 77 then return pending(text) end
    has(text, "done on 2")
    assert.equal(0, code)
  end)

  it("are told what is wrong with their variables", function()
    has(alone "RANK=1 WORLD_SIZE=2", "MASTER_ADDR is not set")
    has(alone "WORLD_SIZE=2 MASTER_ADDR=localhost", "use mpirun -n 2 tlua script")
    has(alone "RANK=1 WORLD_SIZE=2 MASTER_ADDR=localhost", "MASTER_PORT (1 to 65534), got 'localhost' and ''")
    has(alone "RANK=1 WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=70000", "got 'localhost' and '70000'")
    has(alone "RANK=2 WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=29500", "RANK is 2, WORLD_SIZE is 2")
    has(alone "RANK=1 WORLD_SIZE=2 MASTER_ADDR=no.such.host.invalid MASTER_PORT=29500", "invalid' is not known")
    assert.equal(0, select(2, alone "RANK=0 WORLD_SIZE=1 MASTER_ADDR=localhost MASTER_PORT=29500"))
  end)

  it("that srun begins meet at MASTER_ADDR", function()
    local srun = "SLURM_STEP_NUM_TASKS=%d SLURM_PROCID=%d"
    has(alone(srun:format(2, 0)), "srun began 2 ranks without an MPI: use srun --mpi=pmix, or set MASTER_ADDR")
    has(alone(srun:format(2, 0) .. " MASTER_ADDR=localhost"), "got 'localhost' and ''")
    assert.equal(0, select(2, alone(srun:format(1, 0))))
    local text = shell(([[bash -c 'export MASTER_ADDR=127.0.0.1 MASTER_PORT=$((10000 + $$ %% 20000))
      for r in 0 1; do
        SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=$r timeout 60 "%s" -e "tl.dist.init() tl.dist.barrier() print(123)" &
      done
      wait']]):format(program))
    assert.equal("123\n123\n", text)
  end)

  -- rank 0 at a port of its own, and meanwhile what `others` does
  local function meeting(size, timeout, others)
    local command = [[
      export WORLD_SIZE=%d MASTER_ADDR=127.0.0.1 MASTER_PORT=$((10000 + $$ %% 20000))
      tlua() { RANK=$1 timeout 60 '%s' -e 'local d = tl.dist d.init{timeout = %g} d.barrier() print "met"'; }
      tlua 0 &
      until (: > /dev/tcp/127.0.0.1/$MASTER_PORT) 2> /dev/null; do :; done
      %s
      wait]]
    local file = os.tmpname()
    local out = assert(io.open(file, "w"))
    out:write(command:format(size, program, timeout, others))
    out:close()
    local text = shell("bash " .. file)
    os.remove(file)
    return text
  end

  it("that do not come are named", function()
    has(meeting(3, 1, "tlua 1 &"), "not all of the 3 ranks came within 1 s: missing 2")
    has(alone("RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=1", 0.5), "cannot be reached at 127.0.0.1, port 1")
  end)

  it("that cannot be are refused", function()
    has(meeting(2, 1, "WORLD_SIZE=3 tlua 1"), "rank 0 refuses rank 1: its WORLD_SIZE is 3, rank 0's is 2")
    has(meeting(3, 1, "tlua 1 & tlua 1 &"), "another process is rank 1 already")
    has(meeting(2, 1, "tlua 0"), "cannot be listened at: Address already in use")
  end)

  it("meet among strangers", function()
    local text = meeting(2, 30, [[
      for i in 1 2 3; do printf 'GET / HTTP/1.0\r\n\r\n%0100d' 0 > /dev/tcp/127.0.0.1/$MASTER_PORT; done
      tlua 1]])
    assert.equal(2, select(2, text:gsub("met\n", "")))
  end)
end)
