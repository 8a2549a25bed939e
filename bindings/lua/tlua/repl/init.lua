-- repl/init.lua: the read-eval-print loop: on a terminal, on a pipe, or where running code stopped.
local native = require "tlua.native"
local complete = require "tlua.repl.complete"
local frame = require "tlua.repl.frame"
local history = require "tlua.repl.history"
local protect = require "tlua.protect"
local Session = require "tlua.repl.session"
local show = require "tlua.repl.show"

local repl = {}

-- One reader for standard input: what it has read ahead must not be lost between two REPLs.
local standard
local function standard_reader()
  if not standard then
    standard = native.reader()
    repl.history = standard:terminal() and history.path() or nil
    for _, entry in ipairs(history.load(repl.history)) do standard:remember(entry) end
  end
  return standard
end

-- The reader of the REPL that runs: one inside it (a breakpoint) reads on from there.
local current

-- Reads and runs lines until the input ends or a command ends it.
local function loop(session, reader)
  local function completer(text)
    if session.pending then text = session.pending .. "\n" .. text end
    return complete.at_cursor(text, session.environment, session:visible(), reader:width())
  end
  while not session.ended do
    local line = reader:line(session.pending and ">> " or session.frames and "debug> " or "> ", completer)
    if line == nil then
      local message = session:abandon()
      if message then session:complain(message) end
      session:write("\n")
      break
    elseif line == false then
      session:abandon()
    elseif session:feed(line) ~= "more" and session.last then
      reader:remember(session.last)
      if reader == standard then history.append(repl.history, session.last) end
      session.last = nil
    end
  end
end

-- $XDG_CONFIG_HOME/tlua/init.lua runs before the first prompt on a terminal.
local function startup(session)
  local config, home = os.getenv("XDG_CONFIG_HOME"), os.getenv("HOME")
  local folder = config and config:sub(1, 1) == "/" and config or home and home .. "/.config"
  local file = folder and io.open(folder .. "/tlua/init.lua")
  if not file then return end
  file:close()
  local chunk, message = loadfile(folder .. "/tlua/init.lua")
  if chunk then session:execute(chunk, "file") else session:complain(message) end
end

local function ended(reader_before, ok, ...)
  native.disarm()
  current = reader_before
  if ok then return ... end
  error((...), 0)
end

--- Runs a REPL until it ends. options: reader (default: that of the REPL around, or standard input and output),
--- frames and at (code that stopped), greeting. Returns "quit", "continue", or nil at the end of the input.
function repl.run(options)
  options = options or {}
  local reader = options.reader or current or standard_reader()
  local is_standard = reader == standard
  local coloured = reader:terminal() and (os.getenv("NO_COLOR") or "") == ""
  local session = Session.new {
    frames = options.frames, at = options.at, paint = show.painter(coloured), redirect = not is_standard,
    write = function(text)
      io.stdout:flush()
      reader:write(text)
    end,
    complain = is_standard and function(text)
      io.stdout:flush()
      io.stderr:write(text)
    end or function(text) reader:write(text) end,
  }
  if rawget(_G, "tl") == nil then rawset(_G, "tl", require "tlua") end
  if options.greeting then session:write(options.greeting .. "\n") end
  if reader:terminal() and not options.frames then startup(session) end
  native.arm("note") -- Ctrl-C between two lines is no more than a new line
  local before = current
  current = reader
  ended(before, pcall(loop, session, reader))
  return session.ended
end

--- A REPL in the user's innermost frame. At its end the code goes on; ":quit" ends the program.
function repl.stopped(reason)
  if protect.leaving() then protect.leave() end
  local control = package.loaded["tlua.repl.control"]
  if control and control.serves() then error("a line of tlua attach cannot stop at a breakpoint", 3) end
  local frames = frame.stack()
  local greeting = reason
  if frames[1] then greeting = ("%s at %s"):format(reason, frame.describe(frames[1])) end
  if repl.run { frames = frames, greeting = greeting } == "quit" then protect.leave() end
end

--- For an error handler: a REPL where the error is (of `thread`, where it runs on another stack); the program ends as
--- it would have.
function repl.post_mortem(thread)
  local frames = frame.stack(thread)
  if not frames[1] then return end
  local where = frame.describe(frames[1])
  repl.run { frames = frames, greeting = "stopped at " .. where .. " (:where, :up, :locals, :help)" }
end

return repl
