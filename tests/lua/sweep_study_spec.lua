-- Studies in this process: results, retries, resuming, the record. Trials in processes of their own:
-- sweep_process_spec.
local tl = require "tlua"
local sweep = tl.sweep
local json = require "tlua.json"
local storage = require "tlua.sweep.storage"

local path = os.tmpname()
local function fresh()
  for _, tail in ipairs { "", "-wal", "-shm" } do os.remove(path .. tail) end
  return path
end

local function run(options)
  local o = { storage = path, workers = 0, quiet = true, trials = 10, sampler = sweep.Random { seed = 1 },
    space = { x = sweep.uniform(-1, 1) }, objective = function(p) return p.x ^ 2 end }
  for name, v in pairs(options) do o[name] = v end
  return sweep.run(o)
end

local function column(list, name)
  local values = {}
  for i, t in ipairs(list) do values[i] = t[name] end
  return values
end

describe("sweep.run", function()
  before_each(fresh)
  teardown(fresh)

  it("finds the best and records all", function()
    local study = run { trials = 20, objective = function(p, t)
      t:set("square", p.x ^ 2)
      t:set("tensor", tl.tensor { 1, 2 })
      for step = 1, 3 do t:report(step, p.x ^ 2 / step) end
      return tl.tensor(p.x ^ 2)
    end }
    local list, best = study:trials(), study:best()
    assert.equal(20, #list)
    for i, t in ipairs(list) do
      assert.equal(i - 1, t.number)
      assert.equal("complete", t.state)
      assert.is_true(t.value >= best.value)
      assert.equal(3, #t.reports)
      assert.equal(t.params.x ^ 2, t.attributes.square)
      assert.same({ 1, 2 }, t.attributes.tensor)
    end
    assert.same({ waiting = 0, running = 0, complete = 20, pruned = 0, failed = 0 }, study:counts())
    study:close()
  end)

  it("maximizes", function()
    local study = run { trials = 60, direction = "maximize", sampler = sweep.TPE { seed = 2 },
      pruner = sweep.ASHA { max_steps = 9 }, objective = function(p, t)
        local value = -(p.x - 0.3) ^ 2
        for step = 1, 9 do
          if t:report(step, value) then return t:prune() end
        end
        return value
      end }
    local best = study:best()
    assert.is_true(math.abs(best.params.x - 0.3) < 0.05)
    for _, t in ipairs(study:trials()) do
      if t.state == "complete" then assert.is_true(t.value <= best.value) end
      if t.state == "pruned" then assert.is_true(t.value < best.value) end
    end
    study:close()
  end)

  it("is reproducible, resumed or not", function()
    local function params(first, then_)
      fresh()
      local sampler = sweep.TPE { seed = 3 }
      if first then run { trials = first, sampler = sampler }:close() end
      local study = run { trials = then_, sampler = sampler }
      local list = {}
      for i, t in ipairs(study:trials()) do list[i] = { t.params.x, t.seed } end
      study:close()
      return list
    end
    local whole = params(nil, 25)
    assert.same(whole, params(11, 25))
    assert.equal(25, #whole)
  end)

  it("seeds each trial", function()
    local drawn = {}
    local function objective(_, t)
      drawn[#drawn + 1] = { t.seed, tl.rand(1):item(), math.random() }
      return 0
    end
    run { trials = 3, objective = objective }:close()
    fresh()
    run { trials = 3, objective = objective }:close()
    for i = 1, 3 do assert.same(drawn[i], drawn[i + 3]) end
    assert.is_false(drawn[1][2] == drawn[2][2])
  end)

  it("tries failed trials again, with the same parameters, and keeps the errors", function()
    local calls = {}
    local study = run { trials = 3, retries = 2, objective = function(p, t)
      calls[#calls + 1] = { t.number, t.attempt, p.x }
      t:report(1, 5)
      if t.number == 1 and t.attempt < 3 then error("broken " .. t.attempt) end
      if t.number == 2 then return 0 / 0 end
      return 1
    end }
    assert.same({ "complete", "complete", "failed" }, column(study:trials(), "state"))
    local tries = {}
    for i, c in ipairs(calls) do tries[i] = c[1] .. "." .. c[2] end
    assert.same({ "0.1", "1.1", "1.2", "1.3", "2.1", "2.2", "2.3" }, tries)
    assert.equal(calls[2][3], calls[3][3])
    local failures = study:failures()
    assert.equal(5, #failures)
    assert.matches("sweep_study_spec.lua:%d+: broken 1\nstack traceback", failures[1].error)
    assert.equal("the objective's result is nan", failures[3].error)
    assert.equal(1, #study:trials()[2].reports)
    study:close()
  end)

  it("runs a trial again that Ctrl-C ended", function()
    local function interrupted(_, t)
      if t.number == 1 and t.claim == 1 then error("interrupted", 0) end
      return 1
    end
    assert.error_matches(function() run { trials = 3, objective = interrupted } end, "^interrupted$")
    local study = sweep.open(path)
    assert.same({ "complete", "waiting" }, column(study:trials(), "state"))
    study:close()
    study = run { trials = 3, objective = interrupted }
    assert.same({ "complete", "complete", "complete" }, column(study:trials(), "state"))
    assert.equal(0, #study:failures())
    -- between trials, too
    local drawn = 0
    local sampler = { suggest = function()
      drawn = drawn + 1
      if drawn == 2 then error("interrupted", 0) end
      return { x = 1 }
    end }
    assert.error_matches(function() run { trials = 9, objective = interrupted, sampler = sampler } end, "^interrupted$")
    assert.same({ "complete", "waiting" }, { study:trials()[4].state, study:trials()[5].state })
    study:close()
  end)

  it("prunes", function()
    local study = run { trials = 30, pruner = sweep.ASHA { max_steps = 9 }, objective = function(p, t)
      for step = 1, 9 do
        if t:report(step, p.x ^ 2 + 1 / step) then return t:prune() end
      end
      return p.x ^ 2
    end }
    local counts, steps = study:counts(), 0
    assert.is_true(counts.pruned > 15 and counts.complete >= 1)
    for _, t in ipairs(study:trials()) do
      steps = steps + #t.reports
      if t.state == "pruned" then assert.equal(t.latest, t.value) end
    end
    assert.is_true(steps < 30 * 9 / 2)
    study:close()
  end)

  it("runs every point of a grid once", function()
    local study = run { trials = false or nil, sampler = sweep.Grid { points = 3 },
      space = { x = sweep.uniform(0, 1), c = sweep.choice { "a", "b" } }, objective = function(p) return p.x end }
    local seen = {}
    for _, t in ipairs(study:trials()) do seen[json.encode(t.params)] = (seen[json.encode(t.params)] or 0) + 1 end
    local n = 0
    for _, times in pairs(seen) do
      assert.equal(1, times)
      n = n + 1
    end
    assert.equal(6, n)
    study:close()
  end)

  it("takes enqueued trials first and draws what they lack", function()
    local space = { x = sweep.uniform(-1, 1), n = sweep.int(1, 5) }
    run { trials = 1, space = space, objective = function() return 1 end }:close()
    local study = sweep.open(path, "sweep")
    assert.equal(1, study:enqueue { x = 0.25 })
    study:close()
    study = run { trials = 4, space = space, objective = function() return 1 end }
    local list = study:trials()
    assert.equal(4, #list)
    assert.equal(0.25, list[2].params.x)
    assert.is_true(list[2].params.n >= 1 and list[2].params.n <= 5)
    study:close()
  end)

  it("writes CSV", function()
    local study = run { trials = 2, space = { x = sweep.choice { 'a "b", c' }, y = 1 }, objective = function(_, t)
      if t.number == 1 then error("line one\nline two", 0) end
      return 0.1
    end }
    local text = study:to_csv()
    assert.matches('^number,state,value,step,duration,failures,seed,param_x,param_y,error\n0,complete,0.1,,', text)
    assert.is_truthy(text:find('"a ""b"", c",1,', 1, true))
    assert.is_truthy(text:find('"line one\n', 1, true))
    study:close()
  end)

  it("refuses what it cannot do", function()
    local function refused(options, pattern) assert.error_matches(function() run(options) end, pattern) end
    refused({ objective = 1 }, "needs objective")
    refused({ space = 1 }, "space is a table")
    refused({ direction = "up" }, 'direction is "minimize" or "maximize"')
    refused({ workers = -1 }, "workers is a whole number from 0")
    refused({ trails = 3 }, "no option 'trails', did you mean 'trials'")
    refused({ devices = { "gpu" } }, 'a device is "cpu" or "cuda:0"')
    refused({ sampler = {} }, "sampler is one such as sweep.TPE")
    refused({ sampler = sweep.TPE { seed = 1.5 } }, "seed")
    refused({ sampler = sweep.TPE { seed = "x" } }, "seed")
    refused({ sampler = sweep.TPE { seed = -1 } }, "whole number from 0")
    run { trials = 1 }:close()
    refused({ direction = "maximize" }, "is there to minimize, not to maximize")
    refused({ sampler = sweep.Random { seed = 2 } }, "was begun with seed 1, not 2")
    assert.error_matches(function() sweep.open(path, "other") end, "holds no study 'other', only sweep")
    assert.error_matches(function() sweep.open(path .. ".missing") end, "cannot open")
  end)

  it("gives a trial to one process only", function()
    run { trials = 1 }:close()
    local a, b = storage.open(path), storage.open(path)
    local study = a:find_study("sweep")
    study.trials = 3
    b.me = "elsewhere/pid 1 2" -- another machine
    local first, second = a:claim(study, nil, 60), b:claim(study, nil, 60)
    assert.same({ 1, 2 }, { first.number, second.number })
    assert.same({ nil, "busy" }, { a:claim(study, nil, 60) })
    -- that machine falls silent: its trial goes to us, and it may write no more
    local again = a:claim(study, nil, -1)
    assert.equal(2, again.number)
    assert.error_matches(function() b:finish(study, second, "complete", 1) end, "handed to another process")
    assert.error_matches(function() b:report(study, second, 1, 1) end, "handed to another process")
    assert.is_nil(b:fail(study, second, "text", 0))
    a:finish(study, again, "complete", 2)
    a:finish(study, first, "complete", 2)
    assert.same({ nil, "done" }, { a:claim(study, nil, 60) })
    a:close()
    b:close()
  end)
end)

describe("sweep's JSON", function()
  it("reads what it writes", function()
    local value = { list = { 1, 2.5, -3e-300, true, "a\"\\\n\1é" }, map = { x = { y = "z" } }, tenth = 0.1, empty = "" }
    assert.same(value, json.decode(json.encode(value)))
    assert.equal('{"a":0.1,"b":[1,null]}', json.encode { b = { 1, json.null }, a = 0.1 })
    assert.same({ "é", "x" }, json.decode(' [ "\\u00e9" , "x" ] '))
    for _, bad in ipairs { "", "[1", '{"a"}', '"x', "[1,]", "nul", "1 2", "{1:2}" } do
      assert.error_matches(function() json.decode(bad) end, "cannot read")
    end
  end)
end)
