-- session.lua: what a REPL remembers, and how it runs a line: at the top level, or in a frame of code that stopped.
local commands = require "tlua.repl.commands"
local frame = require "tlua.repl.frame"
local protect = require "tlua.protect"
local reader = require "tlua.repl.reader"
local show = require "tlua.repl.show"

local Session = {}
Session.__index = Session

--- A session. options: write(text), complain(message), paint (show.painter), redirect (print writes to the session),
--- and for code that stopped: frames (a list from frame.stack) and at (which of them).
function Session.new(options)
  local s = setmetatable({
    write_text = options.write, complain_text = options.complain, paint = options.paint or show.painter(false),
    redirect = options.redirect,
    pending = nil, -- lines of an unfinished statement
    entries = {}, -- what was entered
    environment = _G,
    ended = nil, -- "quit", "continue"
  }, Session)
  if options.frames and options.frames[1] then
    s.frames = options.frames
    s:enter(options.at or 1)
  end
  return s
end

function Session:write(text) self.write_text(text) end

function Session:complain(message) self.complain_text(self.paint("error", "tlua: " .. message) .. "\n") end

--- Makes frame `at` the one whose names are seen.
function Session:enter(at)
  self.at = at
  self.environment = frame.environment(self.frames[at])
end

--- The names that the environment has besides its keys.
function Session:visible()
  local names = {}
  if not self.frames then return names end
  local f = self.frames[self.at]
  for _, group in ipairs { frame.locals(f), frame.upvalues(f) } do
    for _, entry in ipairs(group) do names[#names + 1] = entry[1] end
  end
  for name in pairs(getfenv(f.func)) do
    if type(name) == "string" then names[#names + 1] = name end
  end
  return names
end

function Session:text(value) return show.text(value, self.paint) end

-- Shows the values of an expression.
local function printer(session)
  return function(...)
    local texts = {}
    for i = 1, select("#", ...) do texts[i] = session:text((select(i, ...))) end
    if #texts > 0 then session:write(table.concat(texts, "\t") .. "\n") end
  end
end

local function nothing() end

-- A traceback of code that the session ran itself says nothing where it has no frames but the session's line.
local function trimmed(message)
  local first, stack = message:match("^(.-)\nstack traceback:(.*)$")
  if not first then return message end
  for line in stack:gmatch("[^\n]+") do
    if not line:find("^\t%[C%]") and not line:find("^\tstdin:%d+: in main chunk")
      and not line:find("^\tstdin:%d+: in function <stdin:1>") then return message end
  end
  return first
end

-- print and io.write for code whose output belongs to the session, while it runs. Gives what ends that.
local function redirect(session)
  local print_before, write_before = print, io.write
  local function printing(...)
    local texts = {}
    for i = 1, select("#", ...) do texts[i] = tostring((select(i, ...))) end
    session:write(table.concat(texts, "\t") .. "\n")
  end
  local function writing(...)
    session:write(table.concat { ... })
    return io.output()
  end
  _G.print = printing
  rawset(io, "write", writing)
  return function() -- what the code set itself stays
    if print == printing then _G.print = print_before end
    if io.write == writing then rawset(io, "write", write_before) end
  end
end

-- The end of a run: its error is printed.
local function ended(session, restore, ok, ...)
  if restore then restore() end
  if ok then return ... end
  if protect.leaving() then error(protect.quit, 0) end
  io.stdout:flush()
  session:complain(trimmed((...)))
end

-- Runs f(...) as the user's code: its error is printed and the session goes on.
local function run(session, f, ...)
  return ended(session, session.redirect and redirect(session), protect.call("stop", nil, f, ...))
end

-- Shows what a statement returned.
local function show_returned(session, ...)
  if select("#", ...) > 0 then run(session, printer(session), ...) end
end

--- Runs a chunk of reader.compile, or of a "file".
function Session:execute(chunk, kind)
  local arguments = { n = 0 }
  if self.frames then
    setfenv(chunk, self.environment)
    arguments = frame.varargs(self.frames[self.at])
  end
  if kind == "value" or kind == "muted" then
    run(self, chunk(kind == "value" and printer(self) or nothing), unpack(arguments, 1, arguments.n))
  elseif kind == "statement" then
    show_returned(self, run(self, chunk, unpack(arguments, 1, arguments.n)))
  else
    run(self, chunk)
  end
end

--- Runs a whole text: statements or an expression, whose values are shown.
function Session:run_text(text)
  local chunk, kind = reader.compile(text)
  if not chunk then return self:complain(kind or "the code is unfinished") end
  self:execute(chunk, kind)
end

--- Takes the next line. Returns "more" where the statement needs further lines, else nil.
function Session:feed(line)
  if not self.pending then
    if line:find("^%s*$") then return end
    if line:find("^%s*[:?]") and commands.is_one(line) then
      run(self, commands.run, self, line)
      self.last = line
      return
    end
  end
  local text = self.pending and self.pending .. "\n" .. line or line
  local chunk, kind = reader.compile(text)
  if not chunk and kind == nil then
    self.pending = text
    return "more"
  end
  self.pending, self.last = nil, text
  self.entries[#self.entries + 1] = text
  if chunk then self:execute(chunk, kind) else self:complain(kind) end
end

--- Drops what was begun. The message of the unfinished text, nil if there was none.
function Session:abandon()
  local text = self.pending
  self.pending = nil
  if not text then return nil end
  local _, message = loadstring(text, "=stdin")
  return message
end

return Session
