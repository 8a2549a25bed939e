-- control.lua: `tlua --control script.lua`: a socket through which `tlua attach` looks into the running script.
--
-- What a client sends is run between two steps, at tl.poll() (which DataLoader loops call), in the frame that polls:
-- its locals can be read and set. A client that dies, floods or does not read is dropped, and what it has begun is
-- interrupted; the script never waits for one, unless it was asked to (:pause).
local base = require "tlua.base"
local frame = require "tlua.repl.frame"
local native = require "tlua.native"
local protect = require "tlua.protect"
local Session = require "tlua.repl.session"
local socket = require "tlua.repl.socket"
local system = require "tlua.system"

local control = {}

local MOST_CLIENTS = 8
local listener, path
local clients = {}
local script

-- ---- answers ----

local function drop(client)
  if client.gone then return end
  client.gone = true
  socket.close(client.fd)
  for i, c in ipairs(clients) do
    if c == client then table.remove(clients, i) break end
  end
end

local function flush(client)
  while client.out ~= "" do
    local n = socket.send(client.fd, client.out)
    if n == nil or (n == 0 and #client.out > 2 * socket.most) then return drop(client) end
    if n == 0 then return end
    client.out = client.out:sub(n + 1)
  end
end

-- An answer: what was printed, and which prompt comes next: "" for none, a farewell.
local function answer(client, text, prompt)
  local room = socket.most - 1000
  if #text > room then text = ("%s\n... %d bytes more\n"):format(text:sub(1, room), #text - room) end
  client.out = client.out .. socket.pack(prompt .. "\n" .. text)
  flush(client)
end

-- ---- commands of this place ----

local words = {}

function words.pause(client) client.paused = true return "paused; :continue goes on\n" end
function words.continue(client) client.paused = false return "running\n" end
function words.stop() protect.leave() end

--- Runs a line of a client in the frame that polls.
local function run(client, line)
  local texts = {}
  local function write(text) texts[#texts + 1] = text end
  local session = client.session
  session.write_text, session.complain_text = write, write
  session.frames = frame.stack()
  if session.frames[1] then session:enter(math.min(session.at or 1, #session.frames)) else session.frames = nil end
  local word = line:match("^%s*:(%a+)%s*$")
  if word and words[word] and not session.pending then
    write(words[word](client))
  else
    -- one that goes away meanwhile ends what it has begun
    local print_before, write_before = print, io.write
    local gone, ok, message = native.watch(client.fd, session.feed, session, line)
    if protect.leaving() then error(protect.quit, 0) end
    if gone then
      _G.print = print_before
      rawset(io, "write", write_before)
      return drop(client)
    end
    if not ok then error(message, 0) end
  end
  local gone = session.ended
  session.ended, session.last, session.frames = nil, nil, nil
  local prompt = session.pending and ">> " or client.paused and "paused> " or "> "
  answer(client, table.concat(texts), gone and "" or prompt)
  if gone then drop(client) end
end

-- ---- the socket ----

-- One line at a poll: a flood cannot stop the script. More is taken from a client when what came before is done.
local function read(client)
  local message, rest = socket.unpack(client.input)
  if message == nil then
    local text = socket.receive(client.fd)
    if text == nil then return drop(client) end
    if text == "" then return end
    message, rest = socket.unpack(client.input .. text)
  end
  if message == false then return drop(client) end
  client.input = rest
  if message == nil then return end
  if message == "\n" then -- Ctrl-C at the client: what was begun is dropped
    client.session.pending = nil
    return answer(client, "", client.paused and "paused> " or "> ")
  end
  run(client, message)
end

local function serve()
  for _, client in ipairs { unpack(clients) } do
    flush(client)
    if not client.gone then read(client) end
  end
  -- after those that are gone made room
  local fd = socket.accept(listener)
  if not fd then return end
  if #clients >= MOST_CLIENTS then
    answer({ fd = fd, out = "" }, ("there are %d clients already\n"):format(MOST_CLIENTS), "")
    socket.close(fd)
  else
    local client = { fd = fd, input = "", out = "", session = Session.new { redirect = true } }
    clients[#clients + 1] = client
    answer(client, ("attached to %s (process %d)\n"):format(script, system.pid()), "> ")
  end
end

local function paused()
  for _, client in ipairs(clients) do
    if client.paused then return true end
  end
end

local busy = false

--- Does code of a client run?
function control.serves() return busy end

local function poll()
  if busy then return end -- code of a client polls
  if protect.leaving() then protect.leave() end
  busy = true
  local ok, message = pcall(function()
    serve()
    while paused() do
      local fds, waiting = { listener }, {}
      local begun
      for i, client in ipairs(clients) do
        fds[i + 1], waiting[i + 1] = client.fd, client.out ~= ""
        begun = begun or socket.unpack(client.input)
      end
      if not begun then socket.wait(fds, 1000, waiting) end
      serve()
      base.check(base.ffi.C.tl_take_interrupt() and base.ffi.C.TL_ERR_INTERRUPT or 0)
    end
  end)
  busy = false
  if not ok then error(message, 0) end
end

--- Opens this process's socket; from now on tl.poll() serves it. `name`: of the script, for those who attach. True, or
--- nil and why not.
function control.start(name)
  local folder, message = socket.folder()
  if not folder then return nil, message end
  path = socket.path(folder, system.pid())
  script = name or "a script"
  listener, message = socket.listen(path)
  if not listener then return nil, message end
  native.remove_at_exit(path) -- os.exit() comes by no other way
  base.poll = poll
  return true
end

--- Closes it.
function control.stop()
  if not listener then return end
  base.poll = function() end
  for _, client in ipairs { unpack(clients) } do
    flush(client)
    drop(client)
  end
  socket.close(listener)
  socket.remove(path)
  native.remove_at_exit("")
  listener = nil
end

return control
