-- cli.lua: the command line: cli(argv, native) -> exit code. argv[0] is the program; native comes from main.c.
--
-- Exit codes: 0 fine, 1 an uncaught error, 2 a command line that makes no sense, 130 Ctrl-C.
local usage_text = [==[
usage: tlua [options] [script [args]]
       tlua TOOL [args]
  -e code   run this code (tl is predefined)
  -i        REPL after the script
  -j cmd    LuaJIT's own control: -joff, -jon, -jv, ...
  -l mod    require mod into a global of the same name
  -v        show versions
  -h        show this help
  -         run standard input as a script
  --        end of options]==]

-- Tools of the design; those that this program was built with run.
local tool_help = {
  bench = "time the engine (--vs-torch: against PyTorch)",
  doctor = "what this machine and this build can do, with a self-test",
  report = "pages and plots from recorded runs",
  sweep = "run and inspect hyperparameter sweeps",
}

local native

local function complain(message) io.stderr:write("tlua: ", message, "\n") end

local function has(list, name)
  for _, x in ipairs(list) do
    if x == name then return true end
  end
  return false
end

-- The message as text plus the stack of the user's code: what lies below (this file) is cut off.
local function traceback(err)
  local message = err
  if type(err) ~= "string" then
    local meta = debug.getmetatable(err)
    message = meta and meta.__tostring and tostring(err) or ("(error object is a %s value)"):format(type(err))
  end
  local text = debug.traceback(message, 2)
  local cut = text:find("\n%s*%[C%]: in function 'xpcall'\n%s*%S*tlua/cli%.lua:[^\n]*")
  return cut and text:sub(1, cut - 1) or text
end

--- Runs f(...) as the user's code. Returns nil, or the exit code after an error (which is printed).
local function call(f, ...)
  native.arm()
  local ok, message = xpcall(f, traceback, ...)
  local interrupted = native.disarm()
  if ok then return nil end
  io.stdout:flush()
  complain(message)
  return interrupted and 130 or 1
end

-- run(chunk, nil, arguments...) or run(nil, message): a chunk that did not compile is an error of the same kind.
local function run(chunk, message, ...)
  if chunk then return call(chunk, ...) end
  complain(message)
  return 1
end

local function print_version()
  local ffi = require "ffi"
  ffi.cdef "const char *tl_version(void);"
  print(("tlua %s (%s)"):format(ffi.string(ffi.C.tl_version()), jit.version))
end

local function print_usage()
  print(usage_text)
  print("tools:")
  for _, name in ipairs(native.tools()) do print(("  %-8s  %s"):format(name, tool_help[name])) end
end

-- The actions of options, each with the argument that follows if it takes one.
local function do_e(code)
  if type(package.loaders[2]("tlua")) == "function" then
    local failed = call(function() tl = require "tlua" end)
    if failed then return failed end
  end
  return run(loadstring(code, "=(command line)"))
end

local function do_l(name)
  return call(function() _G[name] = require(name) end)
end

local function do_j(command)
  return call(function()
    local name, value = command:match("^([^=]+)=?(.*)$")
    if name == "on" or name == "off" or name == "flush" then
      jit[name]()
    else
      local found, module = pcall(require, "jit." .. name)
      if not found then error("there is no LuaJIT module 'jit." .. name .. "' here", 0) end
      module.start(value ~= "" and value or nil)
    end
  end)
end

local with_argument = { e = true, j = true, l = true }
local without_argument = { h = true, i = true, v = true }
local long = { ["--help"] = "h", ["--version"] = "v" }

-- argv -> list of { letter, argument }, index of the script (or nil); or nil, message.
local function parse(argv)
  local actions, i = {}, 1
  while argv[i] do
    local word = argv[i]
    if word == "--" then return actions, argv[i + 1] and i + 1 end
    if word == "-" or word:sub(1, 1) ~= "-" then return actions, i end
    local letter, rest = long[word] or word:sub(2, 2), long[word] and "" or word:sub(3)
    if with_argument[letter] then
      if rest == "" then
        i = i + 1
        rest = argv[i]
      end
      if not rest then return nil, ("option -%s needs an argument"):format(letter) end
      actions[#actions + 1] = { letter, rest }
    elseif without_argument[letter] and rest == "" then
      actions[#actions + 1] = { letter }
    else
      return nil, ("there is no option %s"):format(word)
    end
    i = i + 1
  end
  return actions
end

-- The global `arg` as in `lua`: the script is 0, its arguments follow, what stands before it has negative indices.
local function shift_arguments(argv, script)
  local shifted = {}
  for i = 0, #argv do shifted[i - script] = argv[i] end
  return shifted
end

local function run_script(argv, index)
  local name = argv[index]
  arg = shift_arguments(argv, index)
  if tool_help[name] then
    if not has(native.tools(), name) then
      complain(("the tool '%s' is not part of this build (tools: %s)"):format(name, table.concat(native.tools(), ", ")))
      return 2
    end
    return run(package.loaders[2]("tool:" .. name), nil, unpack(arg))
  end
  local chunk, message = loadfile(name ~= "-" and name or nil)
  return run(chunk, message, unpack(arg))
end

local function main(argv)
  if not require("ffi").abi("gc64") then
    complain("this LuaJIT was built without GC64 and could not hold big models: install one that has it")
    return 1
  end
  local actions, script = parse(argv)
  if not actions then
    complain(script .. " (tlua -h shows the usage)")
    return 2
  end
  arg = shift_arguments(argv, 0)
  local seen = {}
  for _, action in ipairs(actions) do seen[action[1]] = true end
  if seen.h then
    print_usage()
    return 0
  end
  if seen.v then print_version() end
  local actors = { e = do_e, j = do_j, l = do_l }
  for _, action in ipairs(actions) do
    local failed = actors[action[1]] and actors[action[1]](action[2])
    if failed then return failed end
  end
  local code
  if script then code = run_script(argv, script) end
  local idle = not (script or seen.e or seen.v)
  if seen.i or (idle and native.is_terminal(0)) then
    require "tlua.repl"(call, native)
    return 0
  elseif idle then
    return run(loadfile()) or 0
  end
  return code or 0
end

return function(argv, from_c)
  native = from_c
  return main(argv)
end
