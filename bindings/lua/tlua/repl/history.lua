-- history.lua: what was entered, kept between sessions: one statement a line, line breaks written as \n. Sessions that
-- run side by side append to the same file.
local system = require "tlua.system"

local history = {}

local MOST = 2000

--- $XDG_STATE_HOME/tlua/history, or the same below ~/.local/state; nil without a home.
function history.path()
  local state, home = os.getenv("XDG_STATE_HOME"), os.getenv("HOME")
  if state and state:sub(1, 1) == "/" then return state .. "/tlua/history" end
  return home and home ~= "" and home .. "/.local/state/tlua/history" or nil
end

local function encode(text) return (text:gsub("\\", "\\\\"):gsub("\n", "\\n")) end

local function decode(line)
  return (line:gsub("\\(.)", function(c) return c == "n" and "\n" or c end))
end

--- The newest entries, oldest first. A file that grew to twice as many is cut.
function history.load(path)
  local file = path and io.open(path, "r")
  if not file then return {} end
  local lines = {}
  for line in file:lines() do lines[#lines + 1] = line end
  file:close()
  local first = math.max(1, #lines - MOST + 1)
  local entries = {}
  for i = first, #lines do entries[#entries + 1] = decode(lines[i]) end
  if #lines > 2 * MOST then
    local new = io.open(path .. ".new", "w")
    if new then
      new:write(table.concat(lines, "\n", first), "\n")
      new:close()
      os.rename(path .. ".new", path)
    end
  end
  return entries
end

-- Makes the folders above a file; what fails shows when the file is opened.
local function make_folders(path)
  for folder in path:gmatch("()/") do
    if folder > 1 then system.make_folder(path:sub(1, folder - 1)) end
  end
end

--- Adds an entry. Where the file cannot be written the history ends with the session.
function history.append(path, text)
  if not path then return end
  local file = io.open(path, "a")
  if not file then
    make_folders(path)
    file = io.open(path, "a")
    if not file then return end
  end
  file:write(encode(text), "\n")
  file:close()
end

return history
