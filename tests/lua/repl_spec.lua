-- repl_spec.lua: the REPL as its users meet it: on a pipe, a terminal, in stopped code, attached.
local ffi = require "ffi"
local terminal = require "terminal"

pcall(ffi.cdef, "long readlink(const char *path, char *buffer, size_t bytes);")
local buffer = ffi.new("char[4096]")
local program = ffi.string(buffer, tonumber(ffi.C.readlink("/proc/self/exe", buffer, 4096)))

local function quote(word) return "'" .. word:gsub("'", "'\\''") .. "'" end

local home = os.tmpname()
os.remove(home)
os.execute("mkdir -m 700 " .. home)
teardown(function() os.execute("rm -rf " .. home) end)

local function write(name, text)
  local path = home .. "/" .. name
  local file = assert(io.open(path, "w"))
  file:write(text)
  file:close()
  return path
end

-- What `tlua ARGUMENTS` says to lines on a pipe: both outputs together, and the exit code.
local function answer(input, arguments)
  local inp = write("input", input)
  local pipe = io.popen(("HOME=%s XDG_RUNTIME_DIR=%s %s %s <%s 2>&1; echo \"=$?\""):format(home, home, quote(program),
    arguments or "-i -e ''", inp))
  local text = pipe:read("*a")
  pipe:close()
  local body, code = text:match("^(.*)=(%d+)\n$")
  return body, tonumber(code)
end

local function has(text, part)
  assert.is_truthy(text:find(part, 1, true), ("%q is not in:\n%s"):format(part, text))
end

local function lacks(text, part)
  assert.is_nil(text:find(part, 1, true), ("%q is in:\n%s"):format(part, text))
end

describe("the REPL on a pipe #once", function()
  it("shows expressions, mutes those that end in ;, and takes statements over several lines", function()
    local text = answer("1 + 1\n= 2 * 3\nreturn 7\n3;\nfor i = 1, 2 do\nprint('line', i)\nend\n'a', nil, 2 -- three\n")
    has(text, "> 2\n> 6\n> 7\n> > >> >> line\t1\nline\t2\n> a\tnil\t2\n")
  end)

  it("runs a failing line once and goes on", function()
    local text = answer("n = 0\nn = n + 1 error('boom')\nn\nnope.x\n1 1\n'on'\n")
    has(text, "stdin:1: boom\n")
    has(text, "> 1\n")
    has(text, "stdin:1: attempt to index global 'nope'")
    has(text, "tlua: stdin:1:")
    has(text, "> on\n")
    lacks(text, "stack traceback")
  end)

  it("keeps the traceback of what a line calls", function()
    has(answer("function f() error('deep') end\nf()\n"), "in function 'f'")
  end)

  it("lays tables out: order, nesting, cycles, limits, objects that describe themselves", function()
    local text = answer(table.concat({
      "{ 1, 'two', x = { y = true }, [3.5] = print }", "t = {} t.self = t", "t", "{ { { { { 1 } } } } }",
      "(function() local l = {} for i = 1, 100 do l[i] = i end return l end)()",
      "setmetatable({}, { __tostring = function() return 'described' end })",
      "setmetatable({}, { __tostring = function() error 'no' end })", "{ tl.ones(2, 3) }", "{ 'a\\nb\"' }",
      "tl.nn.Linear(1, 2)", "",
    }, "\n"))
    has(text, '> { 1, "two", [3.5] = function: builtin, x = { y = true } }\n')
    has(text, "{ self = {cycle} }")
    has(text, "{ { { { {...} } } } }")
    has(text, "... 60 more")
    has(text, "> described\n")
    has(text, "(table whose __tostring failed)")
    has(text, "{ [float32 2x3 cpu] }")
    has(text, [[{ "a\nb\"" }]])
    has(text, "Linear(1, 2)")
  end)

  it("has commands: a beginning is enough, a wrong one is named", function()
    local text = answer(":time 1 + 1\n:mem\n:he\n:frobnicate\n:l\n:load\n:continue\n:save\n:quit\n'not reached'\n")
    assert.is_truthy(text:find("> 2\n[%d.]+ %a+\n"))
    has(text, "MB in 0 tensors")
    has(text, "?name")
    has(text, "there is no command :frobnicate")
    has(text, ":load needs a file")
    has(text, ":continue is for code that stopped")
    has(text, ":save needs a file")
    lacks(text, "not reached")
  end)

  it("loads and saves files", function()
    local path = write("lib.lua", "loaded = 40 + 2\n")
    local text = answer((":load %s\nloaded\n:load /nowhere.lua\n:save %s/kept.lua\n"):format(path, home))
    has(text, "> 42\n")
    has(text, "/nowhere.lua")
    has(text, "1 entries written")
    local file = io.open(home .. "/kept.lua")
    assert.equal("loaded\n", file:read("*a"))
    file:close()
  end)

  it("describes functions and finds them by a word", function()
    local text = answer("?tl.matmul\n?matmul\n?tl.matmull\n??log(softmax\n??zzzz\n?\n")
    has(text, "the matrix product")
    has(text, "the nearest is ?tl.matmul")
    has(text, "tl.log_softmax")
    has(text, "no text has 'zzzz'")
  end)

  it("ends an unfinished statement with its message", function()
    has(answer("for i = 1, 2 do\n"), "'end' expected")
  end)

  it("exits with the script's code", function()
    local script = write("bad.lua", "error 'x'\n")
    local _, code = answer("", "-i " .. script)
    assert.equal(1, code)
    _, code = answer("", "-i -e 'x = 1'")
    assert.equal(0, code)
  end)
end)

describe("tl.breakpoint #once", function()
  local script = write("stop.lua", [[
local tl = require "tlua"
local up, unused = 5
local function step(n)
  local loss = n * 2 + up
  local n = n
  tl.breakpoint()
  return loss, n
end
local a, b = step(3)
print("after", a, b, up)
tl.breakpoint()
print("end")
]])

  it("shows the frame, reads and writes its locals, upvalues and globals", function()
    local text, code = answer("loss, n, up\nloss = 100\nn = 9\nup = 7\ng = 'global'\n:continue\ng\n", script)
    has(text, "breakpoint at " .. script .. ":6 in function 'step'")
    has(text, "debug> 11\t3\t5\n")
    has(text, "after\t100\t9\t7")
    has(text, "breakpoint at " .. script .. ":11 in main chunk")
    has(text, "debug> global\n")
    has(text, "end\n")
    assert.equal(0, code)
  end)

  it("moves between frames", function()
    local text = answer(":where\n:up\na, up\n:up\n:locals\n:down\nn\n:down\n:quit\n", script)
    has(text, "> " .. script .. ":6 in function 'step'")
    has(text, script .. ":9 in main chunk")
    has(text, "debug> nil\t5\n")
    has(text, "this is the outermost frame")
    has(text, "this is the innermost frame")
    has(text, "step = function: ")
  end)

  it("ends the program with :quit and goes on at the end of the input", function()
    local text, code = answer(":quit\n", script)
    lacks(text, "after")
    assert.equal(130, code)
    text, code = answer("", script)
    has(text, "end\n")
    assert.equal(0, code)
  end)

  it("survives errors of the line and of nested breakpoints", function()
    local lines = "error 'inner'\nloss.x.y\ntl.breakpoint()\n:continue\nlocal q = loss return q + 1\n:quit\n"
    local text = answer(lines, script)
    has(text, "inner")
    has(text, "attempt to index")
    has(text, "12\n")
  end)

  it("works inside a coroutine and below pcall", function()
    local other = write("co.lua", [[
local tl = require "tlua"
local co = coroutine.wrap(function(x) local y = x + 1; tl.breakpoint(); return y end)
print("co", co(1), pcall(function() local z = 5; tl.breakpoint(); return z end))
]])
    has(answer("y\ny = 50\n:continue\nz = z + 1\n:continue\n", other), "co\t50\ttrue\t6")
  end)
end)

describe("tlua -i #once", function()
  it("stops where an error was raised", function()
    local script = write("mortem.lua", "local function f(n)\n  local q = { n }\n  return q.x.y\nend\nf(3)\n")
    local text, code = answer("n, q[1]\n:up\n:quit\n'still here'\n", "-i " .. script)
    has(text, "mortem.lua:3: attempt to index field 'x'")
    has(text, "stopped at " .. script .. ":3 in function 'f'")
    has(text, "3\t3\n")
    has(text, "still here")
    assert.equal(1, code)
  end)
end)

if not terminal.available() then
  describe("the REPL on a terminal #once", function() pending("needs tmux and pseudo-terminals", function() end) end)
  return
end

describe("the REPL on a terminal #once", function()
  local t
  before_each(function() t = nil end)
  after_each(function() if t then t:close() end end)

  local function seen(text)
    local screen, found = t:wait(text)
    assert.is_true(found, ("%q is not on the screen:\n%s"):format(text, screen))
    return screen
  end

  local function start(arguments)
    t = terminal.open(quote(program) .. " " .. (arguments or ""), home)
    return t
  end

  it("edits lines and remembers them between sessions", function()
    start():wait("> ")
    t:type("x = 41 + 2", "BSpace", "1", "Left", "Left", "Right", "Right", "Enter")
    t:type("x", "Enter")
    seen("\n42")
    t:type("for i = 1, 2 do", "Enter"):type("y = i", "Enter"):type("end", "Enter")
    t:type("'marker'", "Enter")
    seen("marker\n")
    t:type("", "C-d")
    seen("the program ended")
    t:close()
    start():wait("> ")
    t:type("", "Up")
    seen("> 'marker'")
    t:type("", "Up")
    seen("y = i")
    t:type("", "Up", "Up", "Enter")
    seen("> x = 41 + 1")
  end)

  it("completes names, methods, option keys and files", function()
    start():wait("> ")
    t:type("tl.nn.Lin", "Tab")
    seen("> tl.nn.Linear")
    t:type("(2,3):state_d", "Tab")
    t:type("", "C-u"):type("tl.sig", "Tab")
    seen("sigmoid  sign")
    t:type("", "C-u"):type("tl.nn.Conv2d(1, 1, 3, {pad", "Tab")
    seen("{padding")
    t:type("", "C-u"):type("t = tl.ones(2)", "Enter"):type("t:argm", "Tab")
    seen("argmax  argmin")
    t:type("", "C-u"):type("f = io.open('" .. home .. "/inp", "Tab")
    seen(home .. "/input")
    t:type("", "C-u"):type(":he", "Tab")
    seen("> :help")
    t:type("", "C-u"):type("somewhere = 1", "Enter"):type("somew", "Tab", "Enter")
    seen("> somewhere\n1")
  end)

  it("interrupts a running line and keeps the session", function()
    start():wait("> ")
    t:type("n = 0 while true do n = n + 1 local y = tl.ones(3) + 1 end", "Enter", "C-c")
    seen("tlua: interrupted")
    t:type("n > 0, 'alive'", "Enter")
    seen("alive")
    t:type("half a line", "C-c"):type("'new' .. 'line'", "Enter")
    seen("\nnewline")
  end)

  it("colours on a terminal only, and not under NO_COLOR", function()
    start():wait("> ")
    t:type("{ key = 12 }", "Enter")
    seen("{ key = 12 }")
    local pipe = io.popen(t.tmux .. "capture-pane -p -e")
    has(pipe:read("*a"), "\27[33m12")
    pipe:close()
    t:close()
    t = terminal.open("NO_COLOR=1 " .. quote(program), home)
    t:wait("> ")
    t:type("{ key = 12 }", "Enter")
    seen("{ key = 12 }")
    pipe = io.popen(t.tmux .. "capture-pane -p -e")
    lacks(pipe:read("*a"), "\27[33m")
    pipe:close()
    lacks(answer("{ key = 12 }\n"), "\27")
  end)

  it("runs the startup file", function()
    os.execute("mkdir -p " .. home .. "/config/tlua")
    write("config/tlua/init.lua", "started = 'from init'\n")
    start():wait("> ")
    t:type("started", "Enter")
    seen("\nfrom init")
    os.remove(home .. "/config/tlua/init.lua")
  end)

  it("pauses a script at Ctrl-C and goes on", function()
    local script = write("loop.lua", [[
local tl = require "tlua"
local n, last, x = 0, 1e12, tl.ones(3)
io.write("running\n")
while n < last do n = n + 1; x = x * 1 end
print("finished", x:sum():item())
]])
    start("-i " .. script)
    seen("running")
    t:type("", "C-c")
    seen("interrupted at " .. script)
    t:type("last = n + 5", "Enter"):type(":continue", "Enter")
    seen("finished")
  end)

  it("pauses interpreted code without tensors", function()
    local script = write("plain.lua", [[
jit.off()
local n, go = 0, true
io.write('running\n')
while go do n = n + 1 end
print('finished')
]])
    start("-i " .. script)
    seen("running")
    t:type("", "C-c")
    seen("interrupted at")
    t:type("go = false", "Enter"):type(":continue", "Enter")
    seen("finished")
  end)
end)

describe("tlua attach #once", function()
  local script = write("train.lua", [[
local tl = require "tlua"
local lr, step, x = 0.1, 0, tl.ones(3)
print("up")
io.stdout:flush()
while lr < 5 do
  step = step + 1
  x = x * 1
  tl.poll()
end
print("stopped at lr", lr)
]])

  local function attach(input, arguments) return answer(input, "attach " .. (arguments or "")) end

  -- Runs f while the script runs under --control; its output and exit code afterwards.
  local function training(f)
    local out = home .. "/train.out"
    os.remove(out)
    local command = ("XDG_RUNTIME_DIR=%s %s --control %s"):format(home, quote(program), script)
    os.execute(("(%s >%s 2>&1; echo \"=$?\" >>%s) &"):format(command, out, out))
    local function text()
      local file = io.open(out)
      local all = file and file:read("*a") or ""
      if file then file:close() end
      return all
    end
    for _ = 1, 200 do
      if text():find("up", 1, true) then break end
      os.execute("sleep 0.05")
    end
    f()
    for _ = 1, 200 do
      if text():find("=%d+\n$") then return text() end
      os.execute("sleep 0.05")
    end
    error("the script did not end:\n" .. text())
  end

  it("reads and sets the loop's locals between two steps; the socket is its owner's and goes at the end", function()
    local text = training(function()
      local listing = io.popen("stat -c '%a %F' " .. home .. "/tlua/*.sock " .. home .. "/tlua")
      assert.equal("600 socket\n700 directory\n", listing:read("*a"))
      listing:close()
      local said = attach("step > 0\n:where\nlocal t = {}\nfor i = 1, 2 do\nt[i] = i\nend print(t[2])\nerror('mine')\n"
        .. "io.stdout, lr\nlr = 7\n")
      has(said, "attached to " .. script)
      has(said, "> true\n")
      has(said, "main chunk")
      has(said, ">> ")
      has(said, "> tlua: stdin:1: mine\n")
      has(said, "0.1")
    end)
    has(text, "stopped at lr\t7")
    has(text, "=0\n")
    local left = io.popen("ls " .. home .. "/tlua")
    assert.equal("", left:read("*a"))
    left:close()
    has((attach("")), "nothing runs under tlua --control")
  end)

  it("pauses, goes on and stops", function()
    local text = training(function()
      local said = attach(":pause\ns = step\nstep == s\n:continue\n")
      has(said, "paused> true\n")
      has(said, "running")
      has(attach(":stop\n"), "the script ended")
    end)
    lacks(text, "stopped at lr")
    has(text, "=130\n")
  end)

  it("drops clients that flood, that talk nonsense and that die, and is not disturbed", function()
    local text = training(function()
      -- `code` has the connection `fd` and the functions of tlua.repl.socket
      local function client(code)
        local connect = "local s = require 'tlua.repl.socket'\nlocal fd = s.connect(s.list()[1].path)\n"
        local file = write("client.lua", connect .. code)
        os.execute(("XDG_RUNTIME_DIR=%s timeout 5 %s %s >/dev/null 2>&1"):format(home, quote(program), file))
      end
      client("for i = 1, 2000 do if not s.send(fd, ('x'):rep(65536), true) then break end end")
      client("s.send(fd, '999999999\\nabc')")
      client("s.send(fd, '100\\nhalf')")
      client("for i = 1, 5000 do s.send(fd, '4\\nstep') end os.execute('kill -9 $PPID')")
      has(attach("'still ' .. 'here'\nlr = 9\n"), "still here")
    end)
    has(text, "stopped at lr\t9")
  end)

  it("says what is wrong", function()
    local said, code = attach("", "12")
    has(said, "process 12 does not run under tlua --control")
    assert.equal(1, code)
    said, code = attach("", "twelve")
    has(said, "usage")
    assert.equal(2, code)
  end)
end)
