-- tlua attach [PID]: joins a script that runs under `tlua --control`. Without a number: the one that runs, or a list.
local native = require "tlua.native"
local socket = require "tlua.repl.socket"

local function die(message, code)
  io.stderr:write("tlua attach: ", message, "\n")
  os.exit(code or 1)
end

local function command_of(pid)
  local file = io.open(("/proc/%d/cmdline"):format(pid))
  local text = file and file:read("*a") or ""
  if file then file:close() end
  return (text:gsub("%z", " "):gsub("%s+$", ""))
end

-- The sockets behind which somebody listens; the others are left from processes that were killed.
local function running()
  local list, message = socket.list()
  if not list then die(message) end
  local alive = {}
  for _, entry in ipairs(list) do
    local fd, _, state = socket.connect(entry.path)
    if fd then socket.close(fd) end
    if state == "dead" then socket.remove(entry.path) else alive[#alive + 1] = entry end
  end
  return alive
end

local function choose(pid)
  local alive = running()
  for _, entry in ipairs(alive) do
    if entry.pid == pid or (not pid and #alive == 1) then return entry end
  end
  if pid then die(("process %d does not run under tlua --control"):format(pid)) end
  if #alive == 0 then die("nothing runs under tlua --control (its socket would be in " .. socket.folder() .. ")") end
  for _, entry in ipairs(alive) do print(("%7d  %s"):format(entry.pid, command_of(entry.pid))) end
  os.exit(0)
end

if arg[2] or (arg[1] and not tonumber(arg[1])) then die("usage: tlua attach [PID]", 2) end
local entry = choose(tonumber(arg[1]))
local fd, message, state = socket.connect(entry.path)
if not fd then die(state == "busy" and "too many others wait for the script's next step" or message) end

local buffer = ""
-- The next answer: prompt, text. nil when the script ended. `patience`: says after a second what it waits for.
local function receive()
  local said
  while true do
    local text, rest = socket.unpack(buffer)
    if text == false then die("that is no tlua") end
    if text then
      buffer = rest
      return text:match("^(.-)\n(.*)$")
    end
    if not said and not socket.wait({ fd }, 1000) then
      io.stderr:write("waiting for the script's next step (tl.poll(), a DataLoader's batch) ...\n")
      said = true
    end
    local more = socket.receive(fd, true)
    if more == nil then return nil end
    buffer = buffer .. more
  end
end

local function send(text)
  local bytes = socket.pack(text)
  while bytes ~= "" do
    local n = socket.send(fd, bytes, true)
    if n == nil then return end
    bytes = bytes:sub(n + 1)
  end
end

local function talk()
  local reader = native.reader()
  while true do
    local prompt, text = receive()
    if not prompt then
      print("the script ended")
      return
    end
    reader:write(text)
    if prompt == "" then return end
    local line = reader:line(prompt)
    while line and line:find("^%s*$") and prompt ~= ">> " do line = reader:line(prompt) end
    if line == nil then
      reader:write("\n")
      return
    end
    if line and line:find("%S") then reader:remember(line) end
    send(line or "\n")
  end
end

local ok, err = pcall(talk)
if ok then return end
if err ~= "interrupted" then error(err, 0) end
-- Ctrl-C while a line runs: the script notices that nobody waits for it any more
io.stderr:write("left\n")
os.exit(130)
