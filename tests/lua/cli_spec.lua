-- cli_spec.lua: the command line, as a user meets it: the program in a process of its own.

local program = require("tlua.system").program()

local quote = require("terminal").quote

local function write(path, text)
  local file = assert(io.open(path, "w"))
  file:write(text)
  file:close()
end

local function read(path)
  local file = assert(io.open(path))
  local text = file:read("*a")
  file:close()
  return text
end

-- Runs `tlua WORDS...` with `input` on standard input. Returns exit code, standard output, standard error.
local out, err, inp, script = os.tmpname(), os.tmpname(), os.tmpname(), os.tmpname()
local function tlua(input, ...)
  local words = { quote(program) }
  for _, word in ipairs { ... } do words[#words + 1] = quote(word) end
  write(inp, input or "")
  local pipe = io.popen(("%s <%s >%s 2>%s; echo $?"):format(table.concat(words, " "), inp, out, err))
  local code = tonumber(pipe:read("*a"))
  pipe:close()
  return code, read(out), read(err)
end

-- A script file with this source, run with these arguments.
local function run(source, ...)
  write(script, source)
  return tlua(nil, script, ...)
end

teardown(function()
  for _, path in ipairs { out, err, inp, script } do os.remove(path) end
end)

describe("a script #once", function()
  it("gets its arguments in arg and ...", function()
    local code, text = run("print(arg[0] == 'x', #arg, arg[1], arg[2], ...)", "a", "b c")
    assert.equal(0, code)
    assert.equal("false\t2\ta\tb c\ta\tb c\n", text)
  end)

  it("finds what stands before it at negative indices", function()
    write(script, "print(arg[0], arg[-1], arg[-2], arg[-3])")
    local _, text = tlua(nil, "-joff", "-e", "x = 1", script)
    assert.equal(script .. "\tx = 1\t-e\t-joff\n", text)
  end)

  it("sees no globals of the program", function()
    local _, text = run("print(tl)")
    assert.equal("nil\n", text)
  end)

  it("may start with #!", function()
    local code, text = run("#!/usr/bin/env tlua\nprint 'ran'")
    assert.equal(0, code)
    assert.equal("ran\n", text)
  end)

  it("comes from standard input as - with arguments, and without any", function()
    local code, text = tlua("print(arg[0], ...)", "-", "a")
    assert.equal(0, code)
    assert.equal("-\ta\n", text)
    code, text = tlua("print 'piped'")
    assert.equal(0, code)
    assert.equal("piped\n", text)
  end)

  it("may be named like an option after --", function()
    local code, _, message = tlua(nil, "--", "-nothere")
    assert.equal(1, code)
    assert.truthy(message:find("cannot open -nothere", 1, true))
  end)

  it("ends with the code it asks for", function()
    assert.equal(7, (run("os.exit(7)")))
  end)
end)

describe("an uncaught error #once", function()
  it("prints message and traceback, and exits 1", function()
    local code, text, message = run("local function f()\n  error('boom')\nend\nprint 'before'\nf()")
    assert.equal(1, code)
    assert.equal("before\n", text)
    local lines = {
      "tlua: SCRIPT:2: boom", "stack traceback:",
      "\t[C]: in function 'error'", "\tSCRIPT:2: in function 'f'", "\tSCRIPT:5: in main chunk", "",
    }
    assert.equal((table.concat(lines, "\n"):gsub("SCRIPT", script)), message)
  end)

  it("of the library names the user's line and keeps the lines of the library", function()
    local code, _, message = run("local tl = require 'tlua'\nlocal a = tl.ones(2, 3)\na:matmul(a)")
    assert.equal(1, code)
    assert.truthy(message:find("tlua: " .. script .. ":3: matmul: ", 1, true))
    assert.truthy(message:find("\n\ttlua/[%w_/]+%.lua:%d+: in function"))
  end)

  it("may be any value", function()
    local _, _, message = run("error(setmetatable({}, { __tostring = function() return 'described' end }))")
    assert.truthy(message:find("^tlua: described\n"))
    _, _, message = run("error({})")
    assert.truthy(message:find("^tlua: %(error object is a table value%)\n"))
    _, _, message = run("error()")
    assert.truthy(message:find("^tlua: %(error object is a nil value%)\n"))
  end)

  it("covers code that does not compile or is not there", function()
    local code, _, message = run("x = = 1")
    assert.equal(1, code)
    assert.truthy(message:find(script .. ":1:", 1, true))
    code, _, message = tlua(nil, "/nowhere/script.lua")
    assert.equal(1, code)
    assert.truthy(message:find("cannot open /nowhere/script.lua", 1, true))
  end)
end)

describe("TLUA_PATH #once", function()
  it("takes the library from a folder, and a module that is not there from the program", function()
    local folder = os.tmpname()
    os.remove(folder)
    assert(os.execute(("mkdir -p %s/tlua"):format(folder)) == 0)
    write(folder .. "/tlua/init.lua", "return { from = 'the folder', base = require 'tlua.base' }")
    write(script, "local tl = require 'tlua' print(tl.from, tl.base.C.tl_abi())")
    local pipe = io.popen(("TLUA_PATH=%s %s %s"):format(folder, quote(program), script))
    assert.equal("the folder\t1\n", pipe:read("*a"))
    pipe:close()
    os.execute("rm -r " .. folder)
  end)
end)

describe("an option #once", function()
  it("-e runs code with tl predefined, several in order", function()
    local code, text = tlua(nil, "-e", "x = (tl.ones(2) + 1):sum():item()", "-eprint(x)")
    assert.equal(0, code)
    assert.equal("4\n", text)
  end)

  it("-e stops at the first error", function()
    local code, text, message = tlua(nil, "-e", "error 'first'", "-e", "print 'second'")
    assert.equal(1, code)
    assert.equal("", text)
    assert.truthy(message:find("first"))
  end)

  it("-l requires a module into a global", function()
    local _, text = tlua(nil, "-l", "jit.bc", "-e", "print(type(_G['jit.bc'].dump))")
    assert.equal("function\n", text)
    local code, _, message = tlua(nil, "-lno_such_module", "-e", "")
    assert.equal(1, code)
    assert.truthy(message:find("module 'no_such_module' not found", 1, true))
  end)

  it("-j reaches the JIT compiler", function()
    local _, text = tlua(nil, "-joff", "-e", "print((jit.status()))")
    assert.equal("false\n", text)
    _, text = tlua(nil, "-j", "off", "-jon", "-e", "print((jit.status()))")
    assert.equal("true\n", text)
    local code, _, message = tlua(nil, "-jnonsense", "-e", "")
    assert.equal(1, code)
    assert.truthy(message:find("there is no LuaJIT module 'jit.nonsense'", 1, true))
  end)

  it("-v prints versions, -h the usage with the tools of this build", function()
    local code, text = tlua(nil, "-v")
    assert.equal(0, code)
    assert.truthy(text:find("^tlua %d+%.%d+%.%d+ %(LuaJIT [^)]+%)\n$"))
    code, text = tlua(nil, "-h")
    assert.equal(0, code)
    assert.truthy(text:find("usage: tlua", 1, true) and text:find("\n  doctor ", 1, true))
    assert.is_nil(text:find("nil", 1, true)) -- every tool has its line
    assert.truthy(text:find("\n  report ", 1, true) and text:find("\n  sweep ", 1, true))
  end)

  it("that is wrong is one line on stderr and exit code 2", function()
    for _, words in ipairs { { "-z" }, { "--nonsense" }, { "-e" }, { "-l" }, { "-ix" } } do
      local code, text, message = tlua(nil, unpack(words))
      assert.equal(2, code)
      assert.equal("", text)
      assert.truthy(message:find("^tlua: [^\n]+\n$"))
    end
  end)
end)

describe("the REPL #once", function()
  it("prints expressions, keeps globals, joins lines and survives errors", function()
    local lines = {
      "x = 2", "x + 1, 'two'", "=x", "for i = 1, 2 do", "print(i * 10)", "end", "error 'bad'", "nil", "x = = 1",
      "'end' -- comment", "",
    }
    local _, text, message = tlua(table.concat(lines, "\n"), "-i")
    local plain = text:gsub("> ", ""):gsub(">", "")
    assert.equal("3\ttwo\n2\n10\n20\nnil\nend\n\n", plain)
    assert.truthy(message:find("tlua: stdin:1: bad\n", 1, true))
    assert.truthy(message:find("tlua: stdin:1: unexpected symbol", 1, true))
  end)

  it("has tl, and follows a script after -i", function()
    write(script, "y = 5")
    local code, text = tlua("y + tl.ones(2):sum():item()\n", "-i", script)
    assert.equal(0, code)
    assert.truthy(text:find("> 7\n", 1, true))
  end)
end)

describe("Ctrl-C #once", function()
  local prelude = [[
    local ffi = require 'ffi'
    ffi.cdef 'int kill(int, int); int getpid(void);'
    local function interrupt() ffi.C.kill(ffi.C.getpid(), 2) end
    local function interrupt_later() os.execute(('(sleep 0.2; kill -INT %d) &'):format(ffi.C.getpid())) end
  ]]

  it("ends an interpreted loop with a traceback and exit code 130", function()
    write(script, prelude .. "\ninterrupt() while true do end")
    local code, _, message = tlua(nil, "-joff", script)
    assert.equal(130, code)
    assert.truthy(message:find("^tlua: interrupted\nstack traceback:"))
  end)

  it("ends a compiled loop at its next operation", function()
    local code, _, message = run(prelude .. [[
      local x = require('tlua').ones(4)
      interrupt_later()
      while true do x = x * 1 end]])
    assert.equal(130, code)
    assert.truthy(message:find("^tlua: interrupted\n"))
  end)

  it("can be caught; the next one kills", function()
    local code, text = run(prelude .. [[
      jit.off()
      print(pcall(function() interrupt() while true do end end))
      print(require('tlua').ones(1):item())
      io.stdout:flush()
      interrupt()
      print 'still here']])
    assert.equal(130, code)
    assert.equal("false\tinterrupted\n1\n", text)
  end)

  -- oneDNN's stack pointer is no stack's: a handler's frame there would overwrite the heap
  it("leaves a matrix product's memory alone", function()
    write(script, prelude .. [[
      local tl, native = require 'tlua', require 'tlua.native'
      native.arm 'note'
      os.execute(('(for i in $(seq 100); do kill -INT %d; sleep 0.003; done) > /dev/null 2>&1 &'):format(ffi.C.getpid()))
      local a, start = tl.eye(200), os.clock()
      while os.clock() - start < 0.6 do a = a:mm(a) end
      print(a:equal(tl.eye(200)), native.disarm())]])
    local command = "MALLOC_MMAP_THRESHOLD_=1000000000 OMP_NUM_THREADS=1 %s %s > %s 2>&1" -- buffers in the heap
    os.execute(command:format(quote(program), script, out))
    assert.equal("true\ttrue\n", read(out))
  end)

  it("ends a statement of the REPL, not the REPL", function()
    write(script, prelude .. "\nfunction loop() jit.off() interrupt() while true do end end")
    local code, text, message = tlua("loop()\ntl.ones(2):sum():item()\nloop()\n'alive'\n", "-i", script)
    assert.equal(0, code)
    assert.truthy(text:find("> 2\n", 1, true) and text:find("> alive\n", 1, true))
    assert.truthy(message:find("tlua: interrupted\n.*tlua: interrupted\n"))
  end)
end)

describe("a tool #once", function()
  it("doctor finds this machine in order", function()
    local code, text = tlua(nil, "doctor")
    assert.truthy(text:find("\nkernels +x86%-64%-v%d\n") or text:find("\nkernels +generic\n"))
    assert.falsy(text:find("FAILED", 1, true))
    assert.truthy(text:find("\nok  ", 1, true))
    assert.equal(0, code)
  end)

  it("doctor fails when a self-test fails", function()
    write(script, "require('tlua').nn.MSELoss = function() return nil end arg = {} package.loaders[2]('tool:doctor')()")
    local code, text = tlua(nil, script)
    assert.equal(1, code)
    assert.truthy(text:find("\nFAILED +training: "))
    assert.truthy(text:find("\nok +arithmetic\n"))
  end)

  it("bench prints a record for a case, and refuses what it does not know", function()
    local code, text = tlua(nil, "bench", "--case", "linear_step", "--seconds", "0.02", "--threads", "1", "--json")
    assert.equal(0, code)
    assert.truthy(text:find('^{"case": "linear_step", "device": "cpu", "threads": 1, "seconds": [%d.e-]+}\n$'))
    local wrong, nothing, message = tlua(nil, "bench", "--case", "nonsense")
    assert.equal(2, wrong)
    assert.equal("", nothing)
    assert.truthy(message:find("there is no case 'nonsense'", 1, true))
  end)
end)

describe("bench --vs-torch #once", function()
  it("runs the cases of both in turns", function()
    -- a PyTorch whose step takes 1000 s
    write(script, [[io.write('{"case": "linear_step", "device": "cpu", "threads": 1, "seconds": 1000}')]])
    local python = ("'%s' '%s'"):format(program, script)
    local code, text = tlua(nil, "bench", "--vs-torch", "--python", python, "--case", "linear_step", "--json",
      "--seconds", "0.01", "--rounds", "1")
    assert.equal(0, code)
    assert.equal(1000, tonumber(text:match '"torch": (%d+),'))
    assert.is_true(tonumber(text:match '"ratio": ([%d.e+]+),') > 1e5)
    assert.truthy(text:find('"verdict": "ok"', 1, true))
  end)
end)

describe("start-up #once", function()
  it("stays under its budget of 20 ms of processor time, the first operation included", function()
    local best = math.huge
    for _ = 1, 5 do
      local code, text = tlua(nil, "-e", "local x = tl.ones(2) + 1 print(os.clock())")
      assert.equal(0, code)
      best = math.min(best, tonumber(text))
    end
    assert.is_true(best <= 0.020)
  end)
end)
