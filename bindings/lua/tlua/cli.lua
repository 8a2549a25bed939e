-- cli.lua: the command line: cli(argv) -> exit code. argv[0] is the program.
--
-- Exit codes: 0 fine, 1 an uncaught error, 2 a command line that makes no sense, 130 Ctrl-C.
local native = require "tlua.native"
local protect = require "tlua.protect"

local usage_text = [==[
usage: tlua [options] [script [args]]
       tlua TOOL [args]
  -e code   run this code (tl is predefined)
  -i        REPL after the script, at an error in it, and at Ctrl-C
  --control let `tlua attach` into the running script
  --ranks N run the script in N processes (mpirun)
  --restarts K  with --ranks: start all again when one fails, K times
  -j cmd    LuaJIT's own control: -joff, -jon, -jv, ...
  -l mod    require mod into a global of the same name
  -v        show versions
  -h        show this help
  -         run standard input as a script
  --        end of options]==]

-- Tools of the design; those that this program was built with run.
local tool_help = {
  attach = "join a script that runs under --control",
  bench = "time the engine (--vs-torch: against PyTorch)",
  doctor = "what this machine and this build can do, with a self-test",
  report = "pages and plots from recorded runs",
  sweep = "run and inspect hyperparameter sweeps",
  tokenize = "learn a tokenizer, or turn text into a token file",
}

local function complain(message) io.stderr:write("tlua: ", message, "\n") end

local function has(list, name)
  for _, x in ipairs(list) do
    if x == name then return true end
  end
  return false
end

-- Was the program ended from a REPL inside it?
local quit = false

-- Under -i an error in the script opens a REPL where it is.
local interactive = false

-- A REPL for an error of `thread`, nil: of the caller's callers.
local function examine(err, thread)
  io.stdout:flush()
  complain(protect.traceback(err, 3, thread))
  if err ~= "interrupted" then require("tlua.repl").post_mortem(thread) end
end

local function post_mortem(err)
  if protect.leaving() then return err end
  -- where the stack is full the REPL needs one of its own
  if type(err) == "string" and err:find("stack overflow", 1, true) then coroutine.wrap(examine)(err, native.thread())
  else examine(err) end
  return nil -- said already
end

--- Runs f(...) as the user's code. Returns nil, or the exit code after an error (which is printed).
local function call(f, ...)
  local ok, message, interrupted =
    protect.call(interactive and "pause" or "stop", interactive and post_mortem or nil, f, ...)
  if protect.leaving() then
    protect.left()
    quit = true
    return 130
  end
  if ok then return nil end
  io.stdout:flush()
  if message then complain(message) end
  return interrupted and 130 or 1
end

-- run(chunk, nil, arguments...) or run(nil, message): a chunk that did not compile is an error of the same kind.
local function run(chunk, message, ...)
  if chunk then return call(chunk, ...) end
  complain(message)
  return 1
end

local function version()
  local ffi = require "ffi"
  ffi.cdef "const char *tl_version(void);"
  return ffi.string(ffi.C.tl_version())
end

local function print_version() print(("tlua %s (%s)"):format(version(), jit.version)) end

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

local with_argument = { e = true, j = true, l = true, ranks = true, restarts = true }
local without_argument = { h = true, i = true, v = true, control = true }
local long = {
  ["--help"] = "h", ["--version"] = "v", ["--control"] = "control", ["--ranks"] = "ranks", ["--restarts"] = "restarts",
}

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
      if not rest then return nil, ("option %s needs an argument"):format(word) end
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

-- The command line without --ranks and --restarts, for the processes that mpirun starts.
local function inner_arguments(argv)
  local list, i = {}, 1
  while argv[i] do
    local word = argv[i]
    if word == "--ranks" or word == "--restarts" then
      i = i + 2
    else
      list[#list + 1] = word
      if word:sub(1, 1) ~= "-" or word == "-" then break end
      i = i + 1
    end
  end
  for k = i + 1, #argv do list[#list + 1] = argv[k] end
  return list
end

local function launch_ranks(argv, given, script)
  local n, restarts = tonumber(given.ranks), tonumber(given.restarts or 0)
  for name, value in pairs { ranks = n or 0, restarts = restarts and restarts + 1 or 0 } do
    if value < 1 or value ~= math.floor(value) or value > 4096 then
      complain(("--%s needs a number, got '%s'"):format(name, given[name]))
      return 2
    end
  end
  if not script and not given.e then
    complain("--ranks needs a script, or code (-e)")
    return 2
  end
  if script and argv[script] == "-" then
    complain("--ranks: standard input reaches one rank only: give the script as a file")
    return 2
  end
  local code, message = require("tlua.ranks").launch(n, restarts, inner_arguments(argv))
  if message then complain(message) end
  return code
end

-- The end of a process among others: a failure ends them, too; a good end waits for what is queued.
local function leave_ranks(code)
  local dist = package.loaded["tlua.dist"]
  if not dist or not dist.is_initialized() or dist.world_size() == 1 then return code end
  if code ~= 0 then
    if code ~= 130 then io.stderr:write(("tlua: rank %d failed; the others are ended\n"):format(dist.rank())) end
    require("ffi").C.tl_dist_abort(code)
  end
  local failed = call(dist.destroy)
  return failed or code
end

-- Ctrl-C under -i.
local function pause()
  require("tlua.repl").stopped("interrupted")
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

-- The REPL of this program. The exit code, where code that stopped in it ended the program.
local function open_repl()
  local greeting = native.is_terminal(0) and "tlua " .. version() .. ", :help lists commands" or nil
  local ok, message = pcall(require("tlua.repl").run, { greeting = greeting })
  if ok then return nil end
  if not protect.leaving() then error(message, 0) end
  protect.left()
  return 130
end

-- What the options and the script ask for.
local function perform(argv, actions, script, seen)
  arg = shift_arguments(argv, 0)
  interactive = seen.i or false
  if interactive then native.on_pause(pause) end
  local actors = { e = do_e, j = do_j, l = do_l }
  for _, action in ipairs(actions) do
    local failed = actors[action[1]] and actors[action[1]](action[2])
    if failed then return leave_ranks(failed) end
  end
  local code
  if seen.e and not script and not interactive then code = leave_ranks(0) end
  if script then code = leave_ranks(run_script(argv, script) or 0) end
  if quit then return code end
  local idle = not (script or seen.e or seen.v)
  if seen.i or (idle and native.is_terminal(0)) then
    local failed = open_repl()
    return failed or code or 0
  elseif idle then
    return run(loadfile()) or 0
  end
  return code or 0
end

-- Under --control a socket is open meanwhile.
local function controlled(argv, actions, script, seen)
  local control = require "tlua.repl.control"
  local opened, message = control.start(script and argv[script])
  if not opened then
    complain("--control: " .. message)
    return 1
  end
  local code = perform(argv, actions, script, seen)
  control.stop()
  return code
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
  local seen = {}
  for _, action in ipairs(actions) do seen[action[1]] = action[2] or true end
  if seen.h then
    print_usage()
    return 0
  end
  if seen.v then print_version() end
  if seen.ranks then return launch_ranks(argv, seen, script) end
  return (seen.control and controlled or perform)(argv, actions, script, seen)
end

return main
