-- A study in PostgreSQL: a real server, started for the test. Pending where PostgreSQL is not installed.
local sweep = require("tlua").sweep
local process = require "tlua.sweep.process"
local storage = require "tlua.sweep.storage"

local function output(command)
  local pipe = io.popen(command)
  local text = pipe:read("*a"):gsub("%s+$", "")
  pipe:close()
  return text
end

local bin = output("ls -d /usr/lib/postgresql/*/bin 2>/dev/null | tail -n 1")
local folder = os.tmpname()
os.remove(folder)

-- The server refuses to run as root.
local as = output("id -u") == "0" and "runuser -u postgres -- " or ""
local function quietly(command, ...)
  return os.execute(("cd / && %s >>%s/log 2>&1"):format(command:format(...), folder)) == 0
end

local address = ("postgresql:///postgres?host=%s&port=5499"):format(folder)
if as ~= "" then address = address .. "&user=postgres" end

local function start_server()
  os.execute(("mkdir -m 777 %s"):format(folder))
  return quietly("%s%s/initdb -A trust -N -D %s/data", as, bin, folder)
    and quietly("%s%s/pg_ctl -w -D %s/data -l %s/server.log -o %q start", as, bin, folder, folder,
      ("-k %s -p 5499 -c listen_addresses='' -c fsync=off"):format(folder))
end

local program = process.program()

describe("a study in PostgreSQL #once", function()
  local running

  setup(function() running = bin ~= "" and start_server() end)

  teardown(function()
    if running then quietly("%s%s/pg_ctl -w -m immediate -D %s/data stop", as, bin, folder) end
    os.execute("rm -rf " .. folder)
  end)

  it("records trials as a file does", function()
    if bin == "" then pending("PostgreSQL is not installed") end
    assert.is_true(running)
    local study = sweep.run {
      name = "here", storage = address, workers = 0, quiet = true, trials = 12, retries = 1,
      sampler = sweep.TPE { seed = 1 }, pruner = sweep.Median { startup = 2 },
      space = { x = sweep.uniform(-1, 1), name = sweep.choice { "it's", 'a "b" ?' } },
      objective = function(p, t)
        t:set("tag", { p.name })
        if t.number == 3 then error("broken") end
        if t.number == 4 then t:report(1, 0 / 0) return math.huge end
        for step = 1, 2 do
          if t:report(step, p.x ^ 2 + step) then return t:prune() end
        end
        return p.x ^ 2
      end,
    }
    local list, counts = study:trials(), study:counts()
    assert.equal(12, #list)
    assert.equal(12, counts.complete + counts.pruned + counts.failed)
    assert.equal("failed", list[4].state)
    assert.equal(math.huge, list[5].value)
    assert.is_true(list[5].reports[1][2] ~= list[5].reports[1][2])
    assert.equal(2, #study:failures())
    local least = math.huge
    for _, t in ipairs(list) do
      if t.state == "complete" then least = math.min(least, t.value) end
      assert.equal(t.params.name, t.attributes.tag[1])
      assert.is_true(t.finished >= t.started)
    end
    assert.equal(least, study:best().value)
    study:close()
    -- the same study in a file: the same trials
    local other = sweep.run {
      storage = ":memory:", workers = 0, quiet = true, trials = 3, sampler = sweep.TPE { seed = 1 },
      space = { x = sweep.uniform(-1, 1), name = sweep.choice { "it's", 'a "b" ?' } },
      objective = function() return 0 end,
    }
    for i = 1, 3 do assert.same(list[i].params, other:trials()[i].params) end
    other:close()
  end)

  it("is shared by sweeps that run at once", function()
    if bin == "" then pending("PostgreSQL is not installed") end
    local script = folder .. "/script.lua"
    local file = assert(io.open(script, "w"))
    file:write(([[
      local sweep = require("tlua").sweep
      sweep.run { name = "many", storage = %q, workers = 2, trials = 40, sampler = sweep.Grid { points = 40 },
        space = { x = sweep.uniform(0, 1) }, objective = function(p, t)
          t:report(1, p.x)
          return p.x
        end }
    ]]):format(address))
    file:close()
    assert.is_true(quietly("{ for i in 1 2 3; do '%s' %s & done; wait; }", program, script))
    local study = sweep.open(address, "many")
    local seen, list = {}, study:trials()
    assert.equal(40, #list)
    for _, t in ipairs(list) do
      assert.equal("complete", t.state)
      assert.is_nil(seen[t.params.x])
      seen[t.params.x] = true
    end
    study:close()
  end)

  it("says what is wrong", function()
    if bin == "" then pending("PostgreSQL is not installed") end
    assert.error_matches(function() sweep.open(address, "nothing") end, "holds no study 'nothing', only here, many")
    assert.error_matches(function() storage.open("postgresql://u:secret@localhost:1/x") end, "cannot open .*u:%*%*%*@")
  end)
end)
