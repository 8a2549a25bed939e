-- repl_spec.lua: the REPL as its users meet it: on a pipe, a terminal, in stopped code, attached.
local terminal = require "terminal"

local program = require("tlua.system").program()

local quote = terminal.quote

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

  it("goes on after errors whose objects cannot say what they are", function()
    local text = answer("error(setmetatable({}, { __tostring = function() error 'no' end }))\n"
      .. "error(setmetatable({}, { __tostring = function() return {} end }))\nerror()\n"
      .. "setmetatable({}, { __tostring = function() return {} end })\nlocal t = { 1 } return t, nil\n"
      .. "local function f() return 1 + f() end f()\n'alive'\n")
    has(text, "(error object is a table value whose __tostring failed)")
    has(text, "(error object is a nil value)")
    has(text, "> (table whose __tostring failed)\n")
    has(text, "> { 1 }\tnil\n")
    has(text, "stack overflow")
    has(text, "> alive\n")
    lacks(text, "error in error handling")
  end)

  it("has no arguments of its own", function()
    has(answer("print('n', select('#', ...))\n(select('#', ...))\n...\n'end'\n"), "> n\t0\n> 0\n> > end\n")
  end)

  it("is not broken by globals with the names of the standard ones", function()
    local names = "type, table, string, next, tostring, error, pairs, ipairs, select, unpack, math, debug, "
      .. "setmetatable, pcall, print, io"
    local text = answer(names .. " = 5\n{ 1 }\n:mem\n?tl.ones\ntl.ones(2) + 1\nnope.x\n"
      .. "tl.nn.Linear(2, 1)\ntl.ones(2):matmul(tl.ones(3))\n'alive'\ntype\n")
    has(text, "> { 1 }\n")
    has(text, "MB in 0 tensors")
    has(text, "[2., 2.]")
    has(text, "attempt to index global 'nope'")
    has(text, "Linear(2, 1)")
    has(text, "inner sizes 2 and 3 differ")
    has(text, "> alive\n> 5\n")
  end)

  it("prints a part of a table with very many entries", function()
    local text = answer("l = {} for i = 1, 40 do l[i] = {} for j = 1, 40 do l[i][j] = { 1, 2, { 3 } } end end\nl\n")
    assert.is_true(#text < 40000)
    has(text, "more")
  end)

  it("goes on after an error in a command", function()
    local text = answer(":time nope()\n:load " .. write("syntax.lua", "x = = 1")
      .. "\nsetmetatable(_G, { __index = error })\n:time nope()\n:mem\n?tl.ones\n'alive'\n")
    has(text, "attempt to call global 'nope'")
    has(text, "syntax.lua:1:")
    has(text, "> alive\n")
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

  it("has the arguments of a function with any number of them", function()
    local varying = write("varying.lua", [[
local tl = require "tlua"
local function f(...) local x = 1; do local x = 2; tl.breakpoint() end return x end
print("x", f(10, nil, 30))
]])
    local text = answer("...\nselect('#', ...)\nx = 5\nx\nlocal a, b, c = ... return c\n", varying)
    has(text, "debug> 10\tnil\t30\n")
    has(text, "debug> 3\n")
    has(text, "debug> 5\n")
    has(text, "debug> 30\n")
    has(text, "x\t1\n") -- the hidden one is another
  end)

  it("gives functions that are made at a frame nothing of other frames", function()
    local twice = write("twice.lua", [[
local tl = require "tlua"
local function first() local mine = "first's"; tl.breakpoint() return mine end
local function second() local mine = "second's"; tl.breakpoint() return mine end
first() mine = "global" second()
]])
    local text = answer("function peek() return mine end\npeek()\n:continue\nmine\npeek()\n", twice)
    has(text, "debug> first's\n")
    has(text, "debug> second's\ndebug> global\n")
  end)

  it("ends a program that catches errors, too; what it does to tidy up is done", function()
    local catching = write("catching.lua", [[
local tl = require "tlua"
local function tidy() print("tidied up") end
local ok = pcall(function() tl.breakpoint() end)
tidy()
for i = 1, 1e9 do pcall(function() local x = tl.ones(1) + i end) end
print("not reached")
]])
    local text, code = answer(":quit\n", catching)
    has(text, "tidied up\n")
    lacks(text, "not reached")
    assert.equal(130, code)
    local again = write("again.lua", [[
local tl = require "tlua"
for i = 1, 100 do pcall(tl.breakpoint) print("round", i) end
]])
    text, code = answer(":quit\n", again)
    lacks(text, "round\t2")
    assert.equal(130, code)
    text, code = answer("tl.breakpoint()\n:quit\n'not reached'\n")
    lacks(text, "reached")
    assert.equal(130, code)
  end)

  it("may be nested a hundred times and no more", function()
    local text, code = answer(("tl.breakpoint()\n"):rep(200) .. "'innermost'\n")
    has(text, "too many REPLs inside one another")
    has(text, "debug> innermost\n")
    assert.equal(0, code)
  end)

  it("works in collate functions, hooks, custom functions and finalisers", function()
    local everywhere = write("everywhere.lua", [[
local tl = require "tlua"
local square = tl.autograd.Function { forward = function(ctx, x) return x * x end,
  backward = function(_, g) local here = "backward" tl.breakpoint() return g end }
local x = tl.ones(3, { requires_grad = true })
local y = x * 2
y:register_hook(function(g) local here = "hook" tl.breakpoint() return g end)
square(y):sum():backward()
local data = tl.data.TensorDataset(tl.arange(2))
for _ in tl.data.DataLoader(data, { collate = function(b) local here = "collate" tl.breakpoint() return b end }) do break end
local p = newproxy(true)
getmetatable(p).__gc = function() local here = "finaliser" tl.breakpoint() end
p = nil
collectgarbage()
print("end")
]])
    local text = answer(("here\n:continue\n"):rep(4), everywhere)
    for _, name in ipairs { "backward", "hook", "collate", "finaliser" } do has(text, "debug> " .. name .. "\n") end
    has(text, "end\n")
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

  it("stops inside the coroutine.wrap that an error came out of", function()
    local script = write("wrapped.lua", [[
local function inner(n) local mine = "inner's" error("boom") end
local co = coroutine.wrap(function() local z = "body's" inner(1) z = nil end)
co()
]])
    local text = answer("mine, n\nmine = 'new'\nmine\n:up\nz\n:up\n:up\n", "-i " .. script)
    has(text, "stopped at " .. script .. ":1 in function 'inner'")
    has(text, "debug> inner's\t1\n")
    has(text, "debug> new\n")
    has(text, "debug> body's\n")
    has(text, script .. ":3 in main chunk")
    has(text, "this is the outermost frame")
  end)

  it("stops where the stack was full", function()
    local script = write("deep.lua", "jit.off()\nlocal function f(n) local v = n return 1 + f(n + 1) end\nf(0)\n")
    local text, code = answer(":up\nv == n\n:where\n", "-i " .. script)
    has(text, "stopped at " .. script .. ":2 in function 'f'")
    has(text, "debug> true\n")
    assert.is_truthy(text:find("%.%.%. %d+ outside"))
    assert.equal(1, code)
  end)

  it("stops at errors that are objects", function()
    local script = write("object.lua", "local e = { code = 7 }\nerror(setmetatable(e, { __tostring = error }))\n")
    has(answer("e.code\n", "-i " .. script), "debug> 7\n")
  end)
end)

describe("completion #once", function()
  local complete = require "tlua.repl.complete"
  local tl = require "tlua"
  local Class = {}
  Class.__index = Class
  function Class.method() end
  local environment = {
    tl = tl, name = "n", other = 1, i = 1,
    k = { kk = { deep = 1 } }, t = { list = { { leaf = 1 } }, ["a b"] = { spaced = 1 } },
    object = setmetatable({ field = 1 }, Class), model = tl.nn.Sequential(tl.nn.Linear(2, 1)), x = tl.ones(2),
    failing = setmetatable({}, { __index = function() error "no" end }),
  }

  local function offers(text, wanted, unwanted)
    local list = complete.candidates(text, environment, {})
    local set = {}
    for _, name in ipairs(list) do set[name] = true end
    for word in wanted:gmatch("%S+") do
      assert.is_true(set[word], ("%s: no %s in %s"):format(text, word, table.concat(list, " ")))
    end
    for word in (unwanted or ""):gmatch("%S+") do assert.is_nil(set[word], text .. ": " .. word) end
  end

  it("finds names after anything that may stand before them", function()
    for _, before in ipairs { "", "local y = ", "f(1, ", "t[", "print(t[", "name..", "name .. ", "{a=", "#", "-",
      "not ", "return ", "x = 'it''s' .. ", "if a then\n", ":time " } do offers(before .. "ot", "other") end
  end)

  it("follows fields, indices, and methods", function()
    offers("t[k.", "kk")
    offers("t[k.kk.", "deep")
    offers("t.list[1].", "leaf")
    offers("t.list[i].l", "leaf")
    offers('t["a b"].', "spaced")
    offers("model[1].we", "weight")
    offers("object.", "field method")
    offers("object:", "method", "field")
    offers("x:t():su", "sum")
    offers("(x + x):su", "sum")
    offers("('s'):up", "upper")
    offers("name:", "upper rep")
    offers("name..", "", "upper")
    offers("k . k", "kk")
  end)

  it("knows the options of a call", function()
    offers("tl.nn.Conv2d(1, 2, 3, {", "stride padding")
    offers("tl.nn.Conv2d(1, 2, 3, {stride = 1, pa", "padding")
    offers("tl.nn.Conv2d(1, 2, 3, {\n  stride = 1,\n  pa", "padding")
    offers("tl.nn.Conv2d(1, 2, 3, {stride = ", "other", "padding")
    offers("tl.ones(2, {dt", "dtype")
    offers("tl.optim.Adam{lr", "lr")
  end)

  it("offers topics, and nothing where nothing fits", function()
    offers("?mat", "matmul")
    offers("?tl.nn.Lin", "tl.nn.Linear")
    offers("  :he", "help")
    for _, text in ipairs { "10.", "-- comm", "--[[ a", "nope.", "failing.", "x.y.z.", "3" } do
      assert.same({}, (complete.candidates(text, environment, {})))
    end
  end)

  it("finds files inside strings", function()
    os.execute("mkdir -p '" .. home .. "/files/a folder' && cd " .. home .. "/files && touch 'with space' \"it's\""
      .. " && ln -sf 'a folder' link")
    local function files(text) return (complete.candidates(text .. home .. "/files/", environment, {})) end
    assert.same({ "a folder/", "it's", "link/", "with space" }, files('f("'))
    assert.same({ "a folder/", "it\\'s", "link/", "with space" }, files("f('"))
    assert.same({ "a folder/", "it's", "link/", "with space" }, files("g([["))
    assert.same({ "a folder/", "it's", "link/", "with space" }, files(":load "))
    assert.same({ "with space" }, (complete.candidates("f('" .. home .. "/files/with sp", environment, {})))
  end)

  it("sets later lines in", function()
    assert.equal("  ", (complete.at_cursor("if x then\n", environment, {}, 80)))
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
    start():prompt()
    t:type("x = 41 + 2", "BSpace", "1", "Left", "Left", "Right", "Right", "Enter")
    t:type("x", "Enter")
    seen("\n42")
    t:type("for i = 1, 2 do", "Enter"):type("y = i", "Enter"):type("end", "Enter")
    t:type("'marker'", "Enter")
    seen("marker\n")
    t:type("", "C-d")
    seen("the program ended")
    t:close()
    start():prompt()
    t:type("", "Up")
    seen("> 'marker'")
    t:type("", "Up")
    seen("y = i")
    t:type("", "Up", "Up", "Enter")
    seen("> x = 41 + 1")
  end)

  it("completes names, methods, option keys and files", function()
    start():prompt()
    t:type("tl.nn.Lin", "Tab")
    seen("> tl.nn.Linear")
    t:type("(2,3):state_d", "Tab")
    t:type("", "C-u"):type("tl.sig", "Tab")
    seen("sigmoid  sign")
    t:type("", "C-u"):type("tl.nn.Conv2d(1, 1, 3, {pad", "Tab")
    seen("{padding")
    t:type("", "C-u"):type("t = tl.ones(2)", "Enter"):type("t:argm", "Tab")
    seen("argmax  argmin")
    write("some file", "")
    t:type("", "C-u"):type("f = io.open('" .. home .. "/some", "Tab")
    seen(home .. "/some file")
    t:type("", "C-u"):type(":he", "Tab")
    seen("> :help")
    t:type("", "C-u"):type("somewhere = 1", "Enter"):type("somew", "Tab", "Enter")
    seen("> somewhere\n1")
  end)

  it("interrupts a running line and keeps the session", function()
    start():prompt()
    t:type("n = 0 while true do n = n + 1 local y = tl.ones(3) + 1 end", "Enter", "C-c")
    seen("tlua: interrupted")
    t:type("n > 0, 'alive'", "Enter")
    seen("alive")
    t:type("half a line", "C-c"):type("'new' .. 'line'", "Enter")
    seen("\nnewline")
  end)

  it("colours on a terminal only, and not under NO_COLOR", function()
    start():prompt()
    t:type("{ key = 12 }", "Enter")
    seen("{ key = 12 }")
    local pipe = io.popen(t.tmux .. "capture-pane -p -e")
    has(pipe:read("*a"), "\27[33m12")
    pipe:close()
    t:close()
    t = terminal.open("NO_COLOR=1 " .. quote(program), home)
    t:prompt()
    t:type("{ key = 12 }", "Enter")
    seen("{ key = 12 }")
    pipe = io.popen(t.tmux .. "capture-pane -p -e")
    lacks(pipe:read("*a"), "\27[33m")
    pipe:close()
    lacks(answer("{ key = 12 }\n"), "\27")
  end)

  it("takes UTF-8 without a locale", function()
    t = terminal.open("env -u LANG -u LC_ALL -u LC_CTYPE " .. quote(program), home)
    t:prompt()
    t:type("'é日' .. #'é日'", "Enter")
    seen("\né日5")
  end)

  it("follows the size of the terminal", function()
    start():prompt()
    t:type("x = '" .. ("a"):rep(110) .. "'")
    seen("aaa'")
    t:resize(60, 30)
    seen("> x = '" .. ("a"):rep(53) .. "\n" .. ("a"):rep(57) .. "'")
    t:type("", "C-a"):type("y, ", "C-e"):type("z")
    seen("> y, x = '" .. ("a"):rep(50) .. "\n" .. ("a"):rep(60) .. "\n'z")
  end)

  it("can be suspended in a line", function()
    t = terminal.open("PS1=here: bash --norc -i", home)
    t:prompt("here:")
    t:type(quote(program), "Enter"):prompt()
    t:type("1 + 1"):prompt("> 1 + 1")
    t:type("", "C-z")
    seen("Stopped")
    t:type("fg", "Enter"):prompt("> 1 + 1")
    t:type("", "C-a"):type("40 + ", "Enter")
    seen("\n42")
  end)

  it("runs the startup file", function()
    os.execute("mkdir -p " .. home .. "/config/tlua")
    write("config/tlua/init.lua", "started = 'from init'\n")
    start():prompt()
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

  -- Runs f while the script (or another) runs under --control; its output and exit code afterwards.
  local function training(f, other)
    local out = home .. "/train.out"
    os.remove(out)
    local command = ("XDG_RUNTIME_DIR=%s %s --control %s"):format(home, quote(program), other or script)
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
    local ok, message = pcall(f)
    if not ok then
      os.execute(("kill $(ls %s/tlua | sed 's/[.]sock//')"):format(home))
      error(message, 0)
    end
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

  it("stops a script that catches errors", function()
    local catching = write("catch.lua", "local tl = require 'tlua' print 'up' io.stdout:flush()\n"
      .. "while true do pcall(function() tl.poll() end) end\n")
    local text = training(function() has(attach(":stop\n"), "the script ended") end, catching)
    has(text, "=130\n")
  end)

  it("removes the socket however the script ends", function()
    for _, ending in ipairs { "os.exit(3)", "error 'x'", "os.exit(0, true)" } do
      local text = training(function() end, write("ending.lua", "print 'up' io.stdout:flush() " .. ending))
      has(text, "up")
      local left = io.popen("ls " .. home .. "/tlua")
      assert.equal("", left:read("*a"))
      left:close()
    end
  end)

  it("sends what was printed, long texts in part, and says good-bye", function()
    training(function()
      local said, code = attach("io.write('written', 1, '\\n')\n#('x'):rep(3e6)\n('x'):rep(3e6)\n'then'\n:quit\n")
      has(said, "> written1\n")
      has(said, "bytes more\n> then\n> ")
      lacks(said, "ended")
      assert.equal(0, code)
      attach("lr = 9\n")
    end)
  end)

  it("stops at no breakpoint for a client", function()
    training(function()
      local said = attach("tl.breakpoint()\n'on'\n")
      has(said, "> tlua: stdin:1: a line of tlua attach cannot stop at a breakpoint\n")
      has(said, "> on\n")
      attach("lr = 9\n")
    end)
  end)

  it("interrupts what a client has begun when that goes away", function()
    local text = training(function()
      for _, code in ipairs { "while true do local y = x * 1 end", "jit.off() while true do end" } do
        local input = write("endless", code .. "\n")
        local client = ("XDG_RUNTIME_DIR=%s timeout -s KILL 1 %s attach"):format(home, quote(program))
        os.execute(("((cat %s; sleep 1) | %s) >/dev/null 2>&1"):format(input, client))
      end
      has(attach("'still ' .. 'here'\nlr = 9\n"), "still here")
    end)
    has(text, "stopped at lr\t9")
  end)

  it("serves eight clients and tells others so", function()
    training(function()
      local many = write("many.lua", [[
local s = require "tlua.repl.socket"
local path, all = s.list()[1].path, {}
for i = 1, 30 do all[i] = assert(s.connect(path)) end
local served = 0
for i = 1, 30 do
  local text = s.receive(all[i], true)
  if text:find("attached to", 1, true) then served = served + 1
  else assert(text:find("there are 8 clients already", 1, true)) end
end
print("served", served)
]])
      local pipe = io.popen(("XDG_RUNTIME_DIR=%s timeout 20 %s %s 2>&1"):format(home, quote(program), many))
      assert.equal("served\t8\n", pipe:read("*a"))
      pipe:close()
      attach("lr = 9\n")
    end)
  end)

  it("refuses a folder that is not the user's alone", function()
    local shared = home .. "/shared"
    os.execute(("mkdir -p %s/tlua && chmod 777 %s/tlua"):format(shared, shared))
    local command = "XDG_RUNTIME_DIR=%s %s --control -e 'print(1)' 2>&1; echo =$?"
    local pipe = io.popen(command:format(shared, quote(program)))
    local text = pipe:read("*a")
    pipe:close()
    has(text, "is not a folder that only you can use")
    lacks(text, "traceback")
    has(text, "=1\n")
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
