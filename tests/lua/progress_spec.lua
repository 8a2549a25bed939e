-- tl.progress: iteration passes through unchanged, plain lines where there is no terminal.
local tl = require "tlua"

-- What this code prints to a terminal (util-linux's script makes one).
local function on_terminal(code)
  local program = require("tlua.system").program()
  local pipe = io.popen(("script -qec %q /dev/null </dev/null"):format(("'%s' -e %q"):format(program, code)))
  local text = pipe:read("*a")
  pipe:close()
  return text
end

-- A file that remembers what is written to it.
local function sink()
  local s = { text = "" }
  function s:write(...) self.text = self.text .. table.concat { ... } end
  function s.flush() end
  return s
end

describe("tl.progress", function()
  it("counts to n", function()
    local seen, out = {}, sink()
    for i in tl.progress(3, { file = out, desc = "count" }) do seen[#seen + 1] = i end
    assert.same({ 1, 2, 3 }, seen)
    assert.matches("^count: 3/3 it, 00:00, [%d%.]+ it/s\n$", out.text)
  end)

  it("iterates over lists, functions and loaders", function()
    local out = sink()
    local seen = {}
    for i, v in tl.progress({ "a", "b" }, { file = out }) do seen[i] = v end
    assert.same({ "a", "b" }, seen)
    seen = {}
    for word in tl.progress(("x y z"):gmatch("%a"), { file = out, total = 3 }) do seen[#seen + 1] = word end
    assert.same({ "x", "y", "z" }, seen)
    local loader = tl.data.DataLoader(tl.data.TensorDataset(tl.arange(5, { device = "cpu" })), { batch_size = 2 })
    local bar = tl.progress(loader, { file = out })
    for _ = 1, 2 do -- a bar can be used for every epoch
      local n = 0
      for x in bar do n = n + #x end
      assert.equal(5, n)
    end
    assert.matches("3/3 it[^\n]+\n3/3 it[^\n]+\n$", out.text)
  end)

  it("shows what it is told, in order of mention", function()
    local out = sink()
    local bar = tl.progress(2, { file = out, unit = "img", unit_scale = 64 })
    for i in bar do
      bar:set { loss = tl.tensor(1 / i), epoch = 3 }
      bar:set { acc = "91 %" }
    end
    assert.matches("^2/2 steps, 00:00, [%d%.]+ img/s, epoch=3, loss=0.5, acc=91 %%\n$", out.text)
  end)

  it("can be led by hand", function()
    local out = sink()
    local bar = tl.progress(10, { file = out })
    bar:start(4)
    bar:update(2)
    bar:update()
    bar:write "note"
    bar:close()
    assert.matches("^note\n7/10 it, 00:00, [%d%.]+ it/s\n$", out.text)
    assert.matches("the number of steps done", select(2, pcall(bar.start, bar, 0.5)))
  end)

  it("counts from where a loader goes on", function()
    local function make()
      return tl.data.DataLoader(tl.data.TensorDataset(tl.arange(5, { device = "cpu" })), { batch_size = 1 })
    end
    local loader, other, out = make(), make(), sink()
    loader()
    other:load_state_dict(loader:state_dict())
    loader:close()
    for _ in tl.progress(other, { file = out }) do end -- luacheck: ignore
    assert.matches("^5/5 it", out.text)
  end)

  it("writes a line above the bar of a terminal", function()
    local text = on_terminal "local bar = tl.progress(3) bar:start() bar:update(1) bar:write('note') bar:close()"
    assert.matches("\r +\rnote\r?\n\r", text)
  end)

  it("writes a line now and then", function()
    local out = sink()
    for _ in tl.progress(4, { file = out, line_interval = 0 }) do end
    local _, lines = out.text:gsub("\n", "")
    assert.equal(5, lines)
    assert.matches("^1/4 it", out.text)
  end)

  it("draws a bar on a terminal", function()
    local text = on_terminal("for i in tl.progress(4, {desc = 'bar', interval = 0}) do end")
    assert.matches("\rbar:   0%%| +| 0/4 %[00:00<%?, %? it/s%]", text)
    assert.matches("\rbar:  50%%|#+ +| 2/4 %[00:00<00:00, [%d.]+ it/s%]", text)
    assert.matches("\rbar: 100%%|#+| 4/4 %[[^\r\n]*%] *\r\n$", text)
  end)

  it("ends when it is closed early", function()
    local out = sink()
    local bar = tl.progress(4, { file = out })
    for i in bar do
      if i == 2 then break end
    end
    assert.equal("", out.text)
    bar:close()
    bar:close()
    assert.matches("^1/4 it[^\n]*\n$", out.text)
  end)

  it("refuses what cannot be iterated, and unknown options", function()
    assert.error_matches(function() tl.progress("text") end, "argument 1 must be an iterator")
    assert.error_matches(function() tl.progress(3, { totl = 1 }) end,
      "there is no option 'totl', did you mean 'total'%?")
    assert.error_matches(function() tl.progress(3, { file = sink() }):set(1) end, "takes a table")
  end)
end)
