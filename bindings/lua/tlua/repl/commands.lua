-- commands.lua: lines that begin with ":" or "?". A command gets the session and the rest of its line.
local base = require "tlua.base"
local doc = require "tlua.doc"
local frame = require "tlua.repl.frame"
local show = require "tlua.repl.show"
local system = require "tlua.system"

local commands = {}

-- name -> { f, arguments, what it does, needs a frame }
local list = {}
local order = {}

local function command(name, arguments, text, f, in_frame)
  list[name] = { f = f, arguments = arguments, text = text, in_frame = in_frame }
  order[#order + 1] = name
end

local function need(session, rest, what)
  if rest ~= "" then return true end
  session:complain(what)
  return false
end

local function seconds(s)
  if s < 1e-3 then return ("%.1f us"):format(s * 1e6) end
  if s < 1 then return ("%.1f ms"):format(s * 1e3) end
  return ("%.2f s"):format(s)
end

command("help", "", "this list", function(session)
  local lines = {
    "An expression is shown; a ; at its end mutes it. The tab key completes.",
    "  ?name          what a function does           ??word  names whose text has the word",
  }
  for _, name in ipairs(order) do
    local c = list[name]
    if not c.in_frame or session.frames then
      lines[#lines + 1] = ("  :%-13s %s"):format(name .. (c.arguments ~= "" and " " .. c.arguments or ""), c.text)
    end
  end
  session:write(table.concat(lines, "\n") .. "\n")
end)

command("time", "CODE", "runs it and says how long that took", function(session, rest)
  if not need(session, rest, ":time needs something to run: :time model(x)") then return end
  local begin = system.now()
  session:run_text(rest)
  session:write(seconds(system.now() - begin) .. "\n")
end)

command("mem", "", "memory in use, by device", function(session)
  collectgarbage()
  local tl = base.tl
  local mb = 2 ^ 20
  session:write(("Lua   %.1f MB\n"):format(collectgarbage("count") / 1024))
  local devices = { "cpu" }
  local cuda = rawget(tl, "cuda") -- opened by the program, or of no interest
  for i = 0, cuda and cuda.device_count() - 1 or -1 do devices[#devices + 1] = "cuda:" .. i end
  for _, device in ipairs(devices) do
    local m = tl.memory(device)
    session:write(("%-5s %.1f MB in %d tensors, peak %.1f MB, %.1f MB cached\n"):format(device, m.live / mb, m.tensors,
      m.peak / mb, m.cached / mb))
  end
end)

command("load", "FILE", "runs a Lua file", function(session, rest)
  if not need(session, rest, ":load needs a file") then return end
  local chunk, message = loadfile(rest)
  if chunk then session:execute(chunk, "file") else session:complain(message) end
end)

command("save", "FILE", "writes this session's lines to a file", function(session, rest)
  if not need(session, rest, ":save needs a file") then return end
  local file, message = io.open(rest, "w")
  if not file then return session:complain(message) end
  file:write(table.concat(session.entries, "\n"), #session.entries > 0 and "\n" or "")
  file:close()
  session:write(("%d entries written to %s\n"):format(#session.entries, rest))
end)

-- ---- where code stopped ----

local NEAR = 20 -- frames that :where shows on either side

command("where", "", "the frames, innermost first", function(session)
  local first, last = math.max(1, session.at - NEAR), math.min(#session.frames, session.at + NEAR)
  if first > 1 then session:write(("  ... %d inside\n"):format(first - 1)) end
  for i = first, last do
    session:write((i == session.at and "> " or "  ") .. frame.describe(session.frames[i]) .. "\n")
  end
  if last < #session.frames then session:write(("  ... %d outside\n"):format(#session.frames - last)) end
end, true)

local function move(session, step)
  if not session.frames[session.at + step] then
    return session:complain(step > 0 and "this is the outermost frame" or "this is the innermost frame")
  end
  session:enter(session.at + step)
  session:write(frame.describe(session.frames[session.at]) .. "\n")
end

command("up", "", "to the caller's frame", function(session) move(session, 1) end, true)
command("down", "", "back towards the innermost frame", function(session) move(session, -1) end, true)

command("locals", "", "names and values of the frame", function(session)
  local f = session.frames[session.at]
  for _, group in ipairs { frame.locals(f), frame.upvalues(f) } do
    for _, entry in ipairs(group) do
      session:write(("%s = %s\n"):format(entry[1], show.brief(entry[2], session.paint)))
    end
  end
end, true)

command("continue", "", "goes on with the program", function(session) session.ended = "continue" end, true)

command("quit", "", "leaves (as Ctrl-D; in a stopped program: ends it)", function(session) session.ended = "quit" end)

--- Names that begin so, for completion.
function commands.names(prefix)
  local names = {}
  for _, name in ipairs(order) do
    if name:sub(1, #prefix) == prefix then names[#names + 1] = name end
  end
  table.sort(names)
  return names
end

-- The one command that a name or its beginning means.
local function find(name, session)
  if list[name] then return name end
  local names = commands.names(name)
  if #names == 1 then return names[1] end
  local known = {}
  for _, n in ipairs(order) do known[n] = true end
  session:complain(#names > 1 and (":%s may be :%s"):format(name, table.concat(names, ", :"))
    or ("there is no command :%s%s"):format(name, base.suggestion(name, known)))
end

local function describe(session, name)
  local text, filed = doc.find(name)
  if text then return session:write(session.paint("key", filed) .. "\n" .. text .. "\n") end
  local near = base.nearest(name, doc.names())
  session:complain(("there is no text on '%s'%s"):format(name, near and ", the nearest is ?" .. near or ""))
end

local function search(session, word)
  local found = 0
  for _, name in ipairs(doc.names()) do
    local text = doc.find(name)
    if (name .. "\n" .. text):lower():find(word:lower(), 1, true) then
      found = found + 1
      session:write(("%s  %s\n"):format(session.paint("key", name), text:match("^[^\n]*")))
    end
  end
  if found == 0 then session:complain(("no text has '%s'"):format(word)) end
end

--- Is the line a command?
function commands.is_one(line) return line:find("^%s*%?") or line:find("^%s*:%a") end

--- Runs a command.
function commands.run(session, line)
  local word = line:match("^%s*%?%?%s*(.-)%s*$")
  if word then
    if need(session, word, "??word searches the texts for a word") then search(session, word) end
    return
  end
  local topic = line:match("^%s*%?%s*(.-)%s*$")
  if topic then
    if need(session, topic, "?name shows what a function does: ?tl.matmul") then describe(session, topic) end
    return
  end
  local name, rest = line:match("^%s*:(%a+)%s*(.-)%s*$")
  name = find(name, session)
  if not name then return end
  if list[name].in_frame and not session.frames then
    session:complain((":%s is for code that stopped: tl.breakpoint(), tlua -i"):format(name))
  else
    list[name].f(session, rest)
  end
end

return commands
