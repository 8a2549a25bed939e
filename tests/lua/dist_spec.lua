-- dist_spec.lua: training on several ranks: collectives, DistributedDataParallel, ZeroRedundancy, faults, restarts. The
-- programs of tests/dist run under `tlua --ranks N`.
local tl = require "tlua"
local dist = tl.dist

local program = require("tlua.system").program()
local folder = debug.getinfo(1, "S").source:match("^@(.*)lua/[^/]*$") .. "dist/"

local function shell(command)
  local pipe = io.popen(command .. " 2>&1; echo \"=$?\"")
  local text, code = pipe:read("*a"):match("^(.*)=(%d+)\n$")
  pipe:close()
  return text, tonumber(code)
end

-- What the ranks' tensors live on: the CPU (MPI), or a simulated GPU each (NCCL's simulator).
local on = { cpu = "", cuda = "TLUA_CUDA=sim TLUA_TEST_DEVICE=cuda TLUA_SIM_DEVICES=4 " }

local function ranks(n, arguments, more, device)
  local launch = "%stimeout 120 '%s' --ranks %d %s %s%s"
  return shell(launch:format(on[device or "cpu"], program, n, more or "", folder, arguments))
end

local function has(text, part) assert.is_truthy(text:find(part, 1, true), ("%q is not in:\n%s"):format(part, text)) end

local function raises(part, f, ...)
  local ok, message = pcall(f, ...)
  assert.is_false(ok)
  has(tostring(message), part)
end

describe("dist in one process", function()
  after_each(function() dist.destroy() end)

  it("is rank 0 of 1, whose collectives change nothing", function()
    assert.equal(0, dist.rank())
    assert.equal(1, dist.world_size())
    assert.is_false(dist.is_initialized())
    raises("dist.init comes first", dist.all_reduce, tl.ones(2))
    dist.init()
    assert.is_true(dist.is_initialized())
    raises("met already", dist.init)
    local t = tl.arange(6):view(2, 3):t()
    assert.is_true(dist.all_reduce(t:clone()):equal(t))
    assert.is_true(dist.all_gather(t):equal(t:unsqueeze(1)))
    assert.is_true(dist.reduce_scatter(t):equal(t))
    assert.is_true(dist.broadcast(t, 0):equal(t))
    local work = dist.all_gather(t, { async = true })
    assert.is_true(work:is_completed())
    assert.is_true(work:wait():equal(t:unsqueeze(1)))
    raises("waited for already", work.wait, work)
    dist.barrier()
    assert.is_true((dist.same("text")))
  end)

  it("refuses what makes no sense", function()
    raises("timeout must be positive", dist.init, { timeout = 0 })
    raises("there is no backend 'gloo'", dist.init, { backend = "gloo" })
    raises("no option 'tiemout'", dist.init, { tiemout = 1 })
    dist.init()
    raises("there is no reduction 'avg'", dist.all_reduce, tl.ones(2), "avg")
    raises('the reduction is a name like "sum", got a table', dist.all_reduce, tl.ones(2), { async = true })
    raises("floating", dist.all_reduce, tl.ones(2, { dtype = "int64" }), "mean")
    raises("share memory", dist.all_reduce, tl.ones(1):expand(4))
    raises("rank 3 was named", dist.broadcast, tl.ones(2), 3)
    raises("must be a tensor", dist.all_reduce, 5)
    raises("argument 1 must be a module", tl.nn.parallel.DistributedDataParallel, 5)
    local ddp = tl.nn.parallel.DistributedDataParallel(tl.nn.Linear(2, 1))
    raises("no_sync: argument 1 must be a function, got nil", ddp.no_sync, ddp)
    raises("the model has no method loss()", ddp.loss, ddp, tl.ones(1, 2))
    local zero = tl.optim.ZeroRedundancy(tl.optim.SGD, tl.nn.Linear(2, 1):parameters(), { lr = 1 })
    for _, state in ipairs { {}, 5 } do
      raises("load_state_dict takes what state_dict() gave", zero.load_state_dict, zero, state)
    end
    raises("list of parameters is empty", tl.optim.ZeroRedundancy, tl.optim.SGD, {}, { lr = 1 })
  end)
end)

if shell("command -v mpirun") == "" or select(2, ranks(2, "hello.lua")) ~= 0 then
  describe("ranks #once", function() pending("need Open MPI and a build with it", function() end) end)
  return
end

describe("examples/gpt.lua on ranks #once", function()
  it("learns what it learns alone, with the optimizer's state divided, too", function()
    local out = os.tmpname()
    local text = folder .. "../../README.md"
    local arguments = "../../examples/gpt.lua --data '" .. text .. "' --layers 1 --heads 2 --width 16 --context 8 "
      .. "--batch 4 --steps 12 --eval 12 --sample 0 --out " .. out
    local losses = {}
    for i, n in ipairs { 1, 2, 2 } do
      local printed, code = ranks(n, arguments .. (i == 3 and " --zero" or ""))
      assert.equal(0, code, printed)
      losses[i] = tonumber(printed:match "validation loss ([%d.]+)")
    end
    os.remove(out)
    for i = 2, 3 do assert.is_true(math.abs(losses[i] - losses[1]) < 2e-4, losses[i] .. " and " .. losses[1]) end
  end)
end)

local devices = { "cpu" }
local _, without = shell(("TLUA_CUDA=sim '%s' -e \"tl.zeros(1, { device = 'cuda' })\""):format(program))
if without == 0 then devices[2] = "cuda" end

for _, device in ipairs(devices) do
  describe("ranks on " .. device .. " #once", function()
    it("exchange tensors of every dtype and layout", function()
      for n = 2, 4 do has(ranks(n, "collectives.lua", nil, device), "ok collectives on " .. n) end
    end)

    it("give the gradients of one process", function()
      for n = 2, 4 do
        local text, code = ranks(n, "equal.lua", nil, device)
        has(text, "done on " .. n)
        assert.equal(0, code)
      end
    end)

    it("divide rows that cannot be divided evenly", function()
      for n = 2, 4 do has(ranks(n, "uneven.lua", nil, device), "ok uneven on " .. n) end
    end)

    it("have the same masks, and train as one process with them", function()
      for n = 2, 3 do
        local text, code = ranks(n, "prune.lua", nil, device)
        has(text, "done on " .. n)
        assert.equal(0, code)
      end
    end)

    it("divide an optimizer's state", function()
      for n = 2, 3 do has(ranks(n, "zero.lua", nil, device), "ok zero on " .. n) end
    end)

    it("train a GPT-2 as one rank does, with DistributedDataParallel and ZeroRedundancy", function()
      has(ranks(2, "gpt.lua", nil, device), "ok gpt on 2")
    end)

    it("train under the Trainer as one does, with unequal counts", function()
      has(ranks(2, "trainer.lua - equal", nil, device), "ok trainer on 2")
    end)

    it("train models of every kind", function()
      local text, code = ranks(3, "models.lua", nil, device)
      has(text, "done")
      assert.equal(0, code)
    end)

    it("average once what is computed anew in backward", function()
      for n = 2, 3 do has(ranks(n, "checkpoint.lua", nil, device), "ok checkpoint on " .. n) end
    end)

    it("leave and meet again", function()
      local text, code = ranks(3, "again.lua", nil, device)
      has(text, "ok again")
      assert.equal(0, code)
    end)

    -- TLUA_TEST_KILLS=20: as often as a release asks for
    it("go on from the last checkpoint when one was killed, to the same end", function()
      local count = os.getenv "TLUA_TEST_KILLS" or 2
      local text, code = shell(("'%skill.sh' '%s' %d %s"):format(folder, program, count, device))
      has(text, ("ok kill: %d times"):format(count))
      assert.equal(0, code)
    end)
  end)
end

if devices[2] then
  describe("ranks on cuda whose exchange cannot be ended #once", function()
    it("end nevertheless", function()
      local function command(case)
        local line = "(%sTLUA_SIM_HANG=ncclCommAbort timeout 60 '%s' --ranks 2 %sfaults.lua %s; echo %s: $?)"
        return line:format(on.cuda, program, folder, case, case)
      end
      local text = shell(("{ %s & %s & wait; }"):format(command "stuck", command "leaves"))
      has(text, "rank 0: an exchange between devices did not end within 2 s, and the exchange cannot be ended")
      has(text, "rank 1 calls all_reduce of 4 float32 (sum), and the exchange cannot be ended: the process ends")
      has(text, "stuck: 1\n")
      has(text, "leaves: 1\n")
    end)
  end)
end

describe("ranks #once", function()
  it("print once, or with their number", function()
    local text = ranks(3, "hello.lua")
    assert.equal(1, select(2, text:gsub("hello of 3", "")))
    for r = 0, 2 do has(text, ("[rank %d]\tlogged"):format(r)) end
  end)

  local faults = {
    size = "differ at collective 1: rank 0 calls all_reduce of 3 float32 (sum), rank 1 calls all_reduce of 4 float32",
    dtype = "rank 1 calls all_reduce of 3 int32 (sum)",
    reduction = "rank 1 calls all_reduce of 3 float32 (max)",
    root = "rank 1 calls broadcast of 3 float32 from rank 1",
    order = "rank 0 calls all_gather of 3 float32, rank 1 calls barrier",
    absent = "rank 1 did not come to collective 1 (all_reduce of 3 float32 (sum)) within 2 s",
    later = "an earlier collective failed: all_reduce: the ranks differ",
    error = "of rank 1",
    kill = "signal 9",
    exit = "Exit code:    3",
  }
  for case, words in pairs(faults) do
    it("say what is wrong and end: " .. case, function()
      local text, code = ranks(3, "faults.lua " .. case)
      has(text, words)
      assert.is_true(code ~= 0 and code ~= 124, "exit code " .. code)
      local everybody = case ~= "absent" and case ~= "error" and case ~= "kill" and case ~= "exit"
      if everybody then
        for r = 0, 2 do has(text, ("[rank %d]\tfalse"):format(r)) end
      end
    end)
  end

  it("exchange more than one count of MPI holds", function()
    local function parts(most, file)
      return shell(("TLUA_MPI_MOST=%d timeout 120 '%s' --ranks 3 %s%s"):format(most, program, folder, file))
    end
    for _, most in ipairs { 2, 5 } do has(parts(most, "collectives.lua"), "ok collectives on 3") end
    has(parts(1000003, "large.lua"), "ok large on 3")
  end)

  it("leave no process behind", function()
    ranks(2, "faults.lua kill")
    local text = shell("pgrep -f 'dist/faults[.]lua'")
    assert.equal("", text)
  end)

  it("do not wait for ever for one that does not come", function()
    for _, how in ipairs { "exits", "sleeps" } do
      local text, code = ranks(2, "absent.lua " .. how)
      if how == "sleeps" then has(text, "not all of the 2 ranks came within 2 s") end -- else mpirun may be faster
      assert.is_true(code ~= 0 and code ~= 124, "exit code " .. code)
    end
  end)

  it("use the MPI that a program began", function()
    local text, code = ranks(2, "host_mpi.lua 3")
    has(text, "MPI was finalized in this process")
    assert.equal(1, code)
    has(ranks(2, "host_mpi.lua 0"), "without MPI_THREAD_MULTIPLE")
  end)

  it("are as many as the launcher says", function()
    local text = shell(("PMI_RANK=0 PMI_SIZE=4 timeout 60 '%s' -e 'tl.dist.init()'"):format(program))
    has(text, "there are 4 ranks, MPI knows of 1")
  end)

  it("run the code of -e, and end with its exit code", function()
    local launch = "timeout 60 '%s' --ranks 2 -e 'tl.dist.init() tl.dist.print(tl.dist.world_size()) %s'"
    local text, code = shell(launch:format(program, ""))
    has(text, "2")
    assert.equal(0, code)
    assert.equal(3, select(2, shell(launch:format(program, "os.exit(3)"))))
  end)

  it("--ranks wants a script that every rank can read", function()
    local text, code = shell(("echo x | '%s' --ranks 2 -"):format(program))
    has(text, "give the script as a file")
    assert.equal(2, code)
    text, code = shell(("'%s' --ranks 2 < /dev/null"):format(program))
    has(text, "--ranks needs a script")
    assert.equal(2, code)
  end)

  it("say that mpirun is missing, once", function()
    for _, more in ipairs { "", "--restarts 3" } do
      local text, code = shell(("PATH=/nowhere '%s' --ranks 2 %s y.lua"):format(program, more))
      assert.equal(1, select(2, text:gsub("mpirun cannot be started: install openmpi%-bin", "")))
      assert.is_nil(text:find("restart 1", 1, true))
      assert.is_true(code ~= 0)
    end
  end)

  it("end by Ctrl-C, with its exit code and without a restart", function()
    local function interrupt(how, options)
      return shell(("timeout 60 '%sinterrupt.sh' %s '%s' --ranks 3 %s"):format(folder, how, program, options or ""))
    end
    for _, how in ipairs { "collective", "meeting", "computing" } do
      assert.equal("exit code 130\nall gone\n", (interrupt(how, "--restarts 2")))
    end
    assert.equal("exit code 130\nall gone\n", (interrupt("alone")))
    assert.equal("exit code 130\nall gone\n", (interrupt "collective -INT"))
    assert.equal("exit code 143\nall gone\n", (interrupt "collective -TERM"))
  end)

  it("end when the process that restarts them is ended", function()
    local text = shell(([[
      '%s' --ranks 2 --restarts 3 %sabsent.lua stays > /dev/null 2>&1 & pid=$!
      sleep 2; kill -TERM $pid
      for i in 1 2 3 4 5 6 7 8 9 10; do
        sleep 1
        ps -C tlua -o args= | grep -q 'absent.lua stays' || { echo gone; break; }
      done]])
      :format(program, folder))
    has(text, "gone")
  end)

  it("meet across network namespaces", function()
    local text, code = shell(("'%snetns.sh' '%s'"):format(folder, program))
    if code == 77 then return pending(text) end
    has(text, "done on 2")
    assert.equal(0, code)
  end)

  it("--ranks and --restarts want numbers", function()
    local text, code = shell(("'%s' --ranks x y.lua"):format(program))
    has(text, "--ranks needs a number")
    assert.equal(2, code)
    text, code = shell(("'%s' --ranks 2 --restarts -1 y.lua"):format(program))
    has(text, "--restarts needs a number")
    assert.equal(2, code)
  end)
end)

describe("the Trainer on ranks #once", function()
  it("stops on all of them when one gets a signal, and goes on as if nothing had happened", function()
    local there = os.tmpname()
    os.remove(there)
    local arguments = "trainer.lua " .. there
    has(ranks(2, arguments .. " whole"), "ok trainer on 2")
    local text, code = ranks(2, arguments .. " signal")
    assert.equal(143, code, text)
    has(text, "SIGTERM after step 6, saved in")
    has(ranks(2, arguments .. " resume"), "ok trainer on 2")
    local compare = "cd '%s' && cmp whole/step-00000012.safetensors cut/step-00000012.safetensors && echo same"
    has(shell(compare:format(there)), "same")
    has(ranks(1, arguments .. " resume"), "was saved by 2 ranks, there are 1")
    shell("rm -r '" .. there .. "'")
  end)
end)
