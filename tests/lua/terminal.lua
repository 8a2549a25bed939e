-- terminal.lua: programs on a real terminal, for tests: tmux draws the screen, and what it shows is read back.
local terminal = {}
terminal.__index = terminal

--- A word for the shell, whatever is in it.
function terminal.quote(word) return "'" .. word:gsub("'", "'\\''") .. "'" end
local quote = terminal.quote

local function output(command)
  local pipe = io.popen(command .. " 2>/dev/null")
  local text = pipe:read("*a")
  pipe:close()
  return text
end

--- Can this machine do it? Needs tmux and pseudo-terminals.
function terminal.available()
  return output("command -v tmux") ~= "" and output("script -qec true /dev/null </dev/null; echo $?") == "0\n"
end

local count = 0

--- Starts a shell command on a terminal of 100 x 40 characters, with a home of its own at `home`; "the program ended"
--- follows it.
function terminal.open(command, home)
  count = count + 1
  local unique = os.tmpname()
  os.remove(unique)
  local t = setmetatable({ name = ("tlua-test-%s-%d"):format(unique:gsub("%W", "-"), count) }, terminal)
  t.tmux = "tmux -L " .. t.name .. " -f /dev/null "
  local environment = ("env HOME=%s XDG_STATE_HOME=%s/state XDG_CONFIG_HOME=%s/config XDG_RUNTIME_DIR=%s"):format(
    home, home, home, home)
  local shell = " sh -c " .. quote(command .. "; echo the program ended; exec cat")
  output(t.tmux .. "new-session -d -x 100 -y 40 " .. quote(environment .. shell))
  return t
end

--- Types text, then the named keys ("Enter", "Tab", "C-c", "Up").
function terminal:type(text, ...)
  if text ~= "" then output(self.tmux .. "send-keys -l " .. quote(text)) end
  for _, key in ipairs { ... } do output(self.tmux .. "send-keys " .. key) end
  return self
end

--- Gives the terminal another size.
function terminal:resize(columns, lines)
  output(self.tmux .. ("resize-window -x %d -y %d"):format(columns, lines))
end

--- The screen's lines without trailing blanks.
function terminal:screen()
  return (output(self.tmux .. "capture-pane -p"):gsub("%s+$", ""))
end

--- Waits until the screen has `text` (plain), 20 s at most. Returns the screen, and whether it has.
function terminal:wait(text)
  local screen
  for _ = 1, 400 do
    screen = self:screen()
    if screen:find(text, 1, true) then return screen, true end
    os.execute("sleep 0.05")
  end
  return screen, false
end

--- Waits until the screen ends with a prompt (default ">"; its blank is not seen): what is typed now is read.
function terminal:prompt(text)
  for _ = 1, 400 do
    local last = self:screen():match("[^\n]*$")
    if last:sub(-#(text or ">")) == (text or ">") then return self end
    os.execute("sleep 0.05")
  end
  error("there is no prompt:\n" .. self:screen())
end

function terminal:close() output(self.tmux .. "kill-server") end

return terminal
