-- tlua report: the page, and what a browser makes of it (pending where Chromium is not installed).
local sweep = require("tlua").sweep
local importance = require "tlua.sweep.importance"
local process = require "tlua.sweep.process"
local random = require "tlua.sweep.random"

local folder = os.tmpname()
os.remove(folder)
local db, page = folder .. "/sweep.db", folder .. "/page.html"

local function read(path)
  local file = assert(io.open(path, "rb"))
  local text = file:read("*a")
  file:close()
  return text
end

local function shell(command, ...)
  local code = os.execute(("%s >%s/out 2>%s/err"):format(command:format(...), folder, folder))
  return math.floor(code / 256), read(folder .. "/out"), read(folder .. "/err")
end

local function make_study()
  sweep.run {
    name = "a <b> & c", storage = db, workers = 0, quiet = true, trials = 60, sampler = sweep.TPE { seed = 1 },
    pruner = sweep.Median {},
    space = {
      lr = sweep.loguniform(1e-5, 1), depth = sweep.int(1, 6), act = sweep.choice { "relu", "gelu" },
      extra = function(p) return p.act == "gelu" and sweep.uniform(0, 1) or nil end, fixed = 3,
    },
    objective = function(p, t)
      if t.number == 7 then error("</script><script>document.title = 'broken'</script>", 0) end
      if t.number == 8 then t:report(1, 0 / 0) return math.huge end
      local loss = (math.log10(p.lr) + 3) ^ 2 + 0.1 * p.depth
      for step = 1, 5 do
        if t:report(step, loss + 1 / step) then return t:prune() end
      end
      t:set("accuracy", 1 / (1 + loss))
      return loss
    end,
  }:close()
end

describe("parameter importance", function()
  it("finds what matters", function()
    local stream, trials = random.stream(5), {}
    for i = 1, 120 do
      local p = { x = stream:uniform(), y = 10 ^ (-4 * stream:uniform()), c = stream:integer(2) == 0 and "a" or "b" }
      if i % 3 > 0 then p.z = stream:uniform() end
      local value = 10 * (p.x - 0.5) ^ 2 + math.abs(math.log10(p.y) + 2) + (p.c == "a" and 0.1 or 0)
      trials[i] = { number = i - 1, state = "complete", value = value, params = p }
    end
    local space = { y = { kind = "float", log = true } }
    local found = importance(trials, { "c", "x", "y", "z" }, space, "minimize")
    assert.is_true(found.x > 0.4 and found.y > 0.15 and found.x > found.y)
    assert.is_true(found.c < 0.1 and found.z < 0.1)
    assert.is_true(math.abs(found.c + found.x + found.y + found.z - 1) < 1e-9)
    assert.same(found, importance(trials, { "c", "x", "y", "z" }, space, "minimize"))
    assert.is_nil(importance({ unpack(trials, 1, 7) }, { "x" }, space, "minimize"))
  end)
end)

describe("tlua report #once", function()
  setup(function()
    os.execute("mkdir " .. folder)
    make_study()
  end)
  teardown(function() os.execute("rm -rf " .. folder) end)

  it("writes one page that needs nothing else", function()
    local code, out, err = shell("'%s' report %s -o %s", process.program(), db, page)
    assert.equal(0, code, err)
    assert.equal(page .. "\n", out)
    local text = read(page)
    assert.matches("<title>a &lt;b&gt; &amp; c</title>", text)
    assert.is_nil(text:find("https?://[^w]")) -- only the name of SVG's namespace, http://www.w3.org
    assert.is_nil(text:find("src=", 1, true))
    local _, scripts = text:gsub("</script>", "")
    assert.equal(2, scripts)
  end)

  it("refuses what it does not understand", function()
    for words, pattern in pairs {
      [""] = "names no storage", ["missing.db"] = "no file 'missing.db'", [db .. " -o"] = "needs a value",
      [db .. " --odd"] = "cannot make sense of --odd",
    } do
      local code, _, err = shell("'%s' report %s", process.program(), words)
      assert.equal(2, code)
      assert.is_truthy(err:find(pattern, 1, true), err)
    end
    local code, _, err = shell("'%s' report %s --name nothing", process.program(), db)
    assert.equal(1, code)
    assert.matches("holds no study 'nothing', only a <b> & c", err)
  end)

  it("draws all in a browser", function()
    local chromium = io.popen("command -v chromium")
    local found = chromium:read("*l")
    chromium:close()
    if not found then pending("Chromium is not installed") end
    shell("'%s' report %s -o %s", process.program(), db, page)
    local options = ("--headless --no-sandbox --disable-gpu --user-data-dir=%s/profile --window-size=1240,2400"):format(
      folder)
    local _, dom = shell("timeout 60 chromium %s --dump-dom 'file://%s#sort=value'", options, page)
    assert.matches('<body[^>]* data%-drawn="all"', dom)
    assert.is_nil(dom:find("data%-error=\""))
    assert.matches("<title>a &lt;b&gt; &amp; c</title>", dom)
    local function count(pattern)
      local _, n = dom:gsub(pattern, "")
      return n
    end
    local study = sweep.open(db)
    local counts, best = study:counts(), study:best()
    study:close()
    local valued = counts.complete - 1 + counts.pruned -- one is infinite
    assert.equal(valued, count('<path class="line"'))
    assert.equal(59, count('<path class="curve"'))
    assert.equal(1, count('<path class="best"'))
    assert.equal(2, count('<option value="[^"]*">lr'))
    assert.equal(4, count('<rect class="bar"')) -- not for what is fixed
    assert.equal(48 * 48, count('<rect class="cell"'))
    -- history, slices of lr, depth, act, and of extra where it is, contour
    assert.is_true(count('class="point"') >= 5 * valued)
    assert.equal(61, count("<tr[ >]"))
    assert.equal(tostring(best.number), dom:match("<tbody><tr[^>]*><td>(%d+)</td><td>complete</td>"))
    local code = shell("timeout 60 chromium %s --screenshot=%s/page.png file://%s", options, folder, page)
    assert.equal(0, code)
    assert.equal("\137PNG", read(folder .. "/page.png"):sub(1, 4))
    assert.is_true(#read(folder .. "/page.png") > 50000)
  end)
end)
