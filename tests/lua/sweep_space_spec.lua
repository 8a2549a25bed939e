-- Spaces, samplers and pruners of tl.sweep: what they draw, and that they draw it again.
local sweep = require("tlua").sweep
local json = require "tlua.json"
local random = require "tlua.sweep.random"
local sobol = require "tlua.sweep.sobol"
local space = require "tlua.sweep.space"

-- What a sampler may know, about trial `slot` of a study without history.
local function ask(s, slot, history)
  return {
    space = s, seed = 7, slot = slot, number = slot, direction = "minimize",
    history = function() return history or {} end,
  }
end

describe("sweep spaces", function()
  it("stay within their bounds and on their steps", function()
    local stream = random.stream(1)
    local dists = {
      sweep.uniform(-2, 3), sweep.loguniform(1e-5, 1e-1), sweep.quniform(0, 1, 0.25), sweep.qloguniform(2, 100, 7),
      sweep.int(-3, 4), sweep.int(0, 10, 5), sweep.logint(1, 1000),
    }
    for _, d in ipairs(dists) do
      for i = 0, 500 do
        local v = d:at(i == 0 and 0 or i == 1 and 1 - 2 ^ -53 or stream:uniform())
        assert.is_true(d:contains(v))
        if d.step then
          local k = (v - d.low) / d.step
          assert.is_true(math.abs(k - math.floor(k + 0.5)) < 1e-9)
        end
      end
    end
  end)

  it("are evenly filled", function()
    local counts, stream = {}, random.stream(2)
    for _ = 1, 6000 do
      local v = sweep.int(1, 6):at(stream:uniform())
      counts[v] = (counts[v] or 0) + 1
    end
    for v = 1, 6 do assert.is_true(math.abs(counts[v] - 1000) < 150) end
    local below = 0
    for _ = 1, 4000 do
      if sweep.loguniform(1e-4, 1):at(stream:uniform()) < 1e-2 then below = below + 1 end
    end
    assert.is_true(math.abs(below - 2000) < 200)
  end)

  it("draw conditional parameters after what they depend on", function()
    local s = {
      a = function(p) return p.b == "x" and sweep.uniform(p.c, p.c + 1) or nil end,
      b = sweep.choice { "x", "y" },
      c = function(p) return p.b == "x" and 5 or 6 end,
    }
    local seen = {}
    for slot = 0, 30 do
      local p = sweep.Random {}:suggest(ask(s, slot))
      seen[p.b] = true
      assert.equal(p.b == "x" and 5 or 6, p.c)
      assert.equal(p.b == "x", p.a ~= nil)
      if p.a then assert.is_true(p.a >= 5 and p.a <= 6) end
    end
    assert.same({ x = true, y = true }, seen)
    local circle = { a = function(p) return p.b end, b = function(p) return p.a end }
    assert.error_matches(function() space.draw(circle, error) end, "depends on itself")
    assert.error_matches(function() space.draw({ a = function(p) return p.bb end, bc = 1 }, error) end,
      "no parameter 'bb', did you mean 'bc'")
  end)

  it("refuse what makes no sense", function()
    assert.error_matches(function() sweep.uniform(2, 1) end, "least value 2 is above the largest 1")
    assert.error_matches(function() sweep.uniform(1) end, "takes the least and the largest")
    assert.error_matches(function() sweep.uniform(0, 1 / 0) end, "finite number")
    assert.error_matches(function() sweep.loguniform(0, 1) end, "starts above 0")
    assert.error_matches(function() sweep.int(0, 1.5) end, "whole numbers")
    assert.error_matches(function() sweep.quniform(0, 1, 0) end, "step must be a number above 0")
    assert.error_matches(function() sweep.choice {} end, "a list of values")
    assert.error_matches(function() sweep.choice { 1, 1 } end, "there twice")
    assert.error_matches(function() sweep.choice { {} } end, "must be a number, a string or a boolean")
    assert.error_matches(function() return sweep.TPF end, "no tl.sweep.TPF, did you mean 'TPE'")
    assert.error_matches(function() sweep.ASHA { eta = 3 } end, "needs max_steps")
    assert.error_matches(function() sweep.ASHA { max_steps = 9, eta = 1 } end, "eta is a whole number from 2")
  end)
end)

describe("sweep samplers", function()
  local s = {
    x = sweep.uniform(-1, 1), lr = sweep.loguniform(1e-5, 1), n = sweep.int(1, 9), c = sweep.choice { "a", "b", true },
  }

  it("give the same for the same seed, something else for another", function()
    for _, name in ipairs { "Random", "Sobol", "TPE" } do
      local history = {}
      for slot = 0, 25 do
        local p = sweep[name] {}:suggest(ask(s, slot, history))
        assert.same(p, sweep[name] {}:suggest(ask(s, slot, history)))
        local other = ask(s, slot, history)
        other.seed = 8
        assert.is_false(p.x == sweep[name] {}:suggest(other).x)
        for key, d in pairs(s) do assert.is_true(d:contains(p[key])) end
        history[slot + 1] = { number = slot, state = "complete", value = p.x ^ 2, params = p }
      end
    end
  end)

  it("Grid enumerates conditional spaces once each", function()
    local grid = sweep.Grid { points = { all = 3, x = 2 } }
    local cond = {
      a = sweep.choice { 1, 2 }, x = sweep.uniform(0, 1), y = sweep.loguniform(1, 100),
      z = function(p) return p.a == 2 and sweep.int(1, 4) or nil end,
    }
    assert.equal(2 * 3 + 2 * 3 * 4, grid:limit(cond))
    local seen = {}
    for slot = 0, grid:limit(cond) - 1 do seen[json.encode(grid:suggest(ask(cond, slot)))] = true end
    local n = 0
    for _ in pairs(seen) do n = n + 1 end
    assert.equal(30, n)
    assert.is_true(seen['{"a":1,"x":1,"y":10}'])
  end)

  it("Sobol fills every dyadic box with one point", function()
    for _, seed in ipairs { false, 3 } do
      for dim = 1, 64 do
        local boxes, n = {}, 0
        for i = 0, 63 do
          local box = math.floor(sobol.point(i, dim, seed or nil) * 64)
          if not boxes[box] then boxes[box], n = true, n + 1 end
        end
        assert.equal(64, n)
      end
    end
    -- the first points of dimensions 1 to 6, as in Joe and Kuo's tables
    local function point(i)
      local list = {}
      for dim = 1, 6 do list[dim] = sobol.point(i, dim) end
      return list
    end
    assert.same({ 0.5, 0.5, 0.5, 0.5, 0.5, 0.5 }, point(1))
    assert.same({ 0.125, 0.625, 0.375, 0.125, 0.125, 0.375 }, point(4))
    assert.same({ 0.875, 0.875, 0.125, 0.375, 0.875, 0.625 }, point(7))
  end)

  it("TPE finds the minimum, also of mixed and conditional spaces", function()
    local mixed = {
      kind = sweep.choice { "good", "bad" }, x = sweep.uniform(-10, 10), n = sweep.int(0, 20),
      q = sweep.logint(1, 1000),
      extra = function(p) return p.kind == "good" and sweep.uniform(0, 1) or nil end,
    }
    local history, tpe, best = {}, sweep.TPE {}, math.huge
    for slot = 0, 99 do
      local p = tpe:suggest(ask(mixed, slot, history))
      local v = (p.x - 3) ^ 2 + math.abs(p.n - 7) + math.abs(math.log(p.q / 30)) + (p.extra or 3)
      local state = ({ [7] = "pruned", [8] = "running", [9] = "failed" })[slot % 10] or "complete"
      local value = state ~= "running" and v or nil
      history[slot + 1] = { number = slot, state = state, value = value, step = 1, params = p }
      best = math.min(best, v)
    end
    assert.is_true(best < 2.5, tostring(best))
  end)

  it("TPE tries no point twice while there are others", function()
    local discrete = { a = sweep.int(1, 8), b = sweep.choice { "x", "y", "z" }, c = sweep.quniform(0, 1, 0.5), d = 7 }
    local history, seen, again, tpe = {}, {}, 0, sweep.TPE {}
    for slot = 0, 49 do
      local p = tpe:suggest(ask(discrete, slot, history))
      local point = json.encode(p)
      if seen[point] then again = again + 1 end
      seen[point] = true
      history[slot + 1] = { number = slot, state = "complete", value = p.a + p.c, params = p }
    end
    assert.is_true(again <= 6, again .. " points again") -- the start-up trials know nothing of each other
  end)

  it("TPE keeps away from what runs", function()
    local one, history = { x = sweep.uniform(0, 1) }, {}
    for i = 1, 20 do
      history[i] = { number = i - 1, state = "complete", value = math.abs(i / 20 - 0.5), params = { x = i / 20 } }
    end
    local near, far = 0, 0
    for slot = 20, 60 do
      local alone = sweep.TPE {}:suggest(ask(one, slot, history)).x
      local busy = {}
      for i = 1, 20 do busy[i] = history[i] end
      for i = 1, 8 do busy[20 + i] = { number = 19 + i, state = "running", params = { x = alone } } end
      near = near + math.abs(alone - 0.5)
      far = far + math.abs(sweep.TPE {}:suggest(ask(one, slot, busy)).x - alone)
    end
    assert.is_true(far / 41 > 0.02)
    assert.is_true(near / 41 < 0.2)
  end)
end)

describe("sweep pruners", function()
  local function view(t)
    t.sign = t.sign or 1
    t.best = t.best or t.value
    t.at_rung = function() return t.values end
    t.at_step = t.at_rung
    return t
  end

  it("Median compares the best so far with what complete trials had", function()
    local p = sweep.Median { startup = 3, warmup = 2 }
    assert.is_false(p:hopeless(view { step = 1, value = 9, values = { 1, 2, 3 } }))
    assert.is_false(p:hopeless(view { step = 2, value = 9, values = { 1, 2 } }))
    assert.is_true(p:hopeless(view { step = 2, value = 9, values = { 1, 2, 3 } }))
    assert.is_false(p:hopeless(view { step = 2, value = 9, best = 2, values = { 1, 2, 3 } }))
    assert.is_true(p:hopeless(view { step = 2, value = 1, sign = -1, values = { 1, 2, 3, 4 } }))
    assert.is_true(p:hopeless(view { step = 2, value = 0 / 0, values = { 1, 2, 3 } }))
  end)

  it("ASHA keeps the best 1/eta of a rung", function()
    local p = sweep.ASHA { grace = 1, eta = 3, max_steps = 27 }
    assert.same({ 1, 3, 9 }, p.rungs)
    assert.equal(1, p:rung(nil, 1, 0))
    assert.is_nil(p:rung(nil, 2, 1))
    assert.equal(2, p:rung(nil, 4, 1)) -- step 3 was not reported
    assert.is_false(p:hopeless(view { step = 2, value = 5, values = { 1 } })) -- between rungs
    assert.is_false(p:hopeless(view { rung = 1, step = 1, value = 5, values = { 5 } }))
    assert.is_true(p:hopeless(view { rung = 1, step = 1, value = 5, values = { 5, 4 } }))
    assert.is_false(p:hopeless(view { rung = 1, step = 1, value = 4, values = { 5, 4, 3, 9, 8, 7 } }))
    assert.is_true(p:hopeless(view { rung = 1, step = 1, value = 5, values = { 5, 4, 3, 9, 8, 7 } }))
    assert.is_true(p:hopeless(view { rung = 1, step = 1, value = 0 / 0, values = { 0 / 0, 4 } }))
  end)

  it("Hyperband deals trials to brackets that start later and later", function()
    local p = sweep.Hyperband { grace = 1, eta = 3, max_steps = 9 }
    assert.same({ { 1, 3 }, { 3 }, {} }, p.brackets)
    assert.same({ 9, 5, 3 }, p.shares)
    local firsts = {}
    for number = 0, 60 do
      local rung = p:rung({ study_seed = 1, number = number }, 1, 0)
      firsts[tostring(rung)] = true
    end
    assert.same({ ["101"] = true, ["nil"] = true }, firsts)
  end)
end)

describe("sweep's doc strings", function()
  it("exist for every name", function()
    local doc = require "tlua.doc"
    for _, name in ipairs(doc.names("^tl%.sweep%.")) do assert.is_truthy(sweep[name:sub(10)], name) end
    for _, name in ipairs { "run", "open", "uniform", "TPE", "ASHA", "none" } do
      assert.is_truthy(doc.find("tl.sweep." .. name))
    end
  end)
end)
