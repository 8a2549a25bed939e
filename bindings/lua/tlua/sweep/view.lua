-- view.lua: what a running sweep shows: a table that is redrawn on a terminal, a line for each trial elsewhere.
local process = require "tlua.sweep.process"

local View = {}
View.__index = View

local view = {}

-- ---- texts ----

local function clock(seconds)
  seconds = math.floor(seconds + 0.5)
  local h, m, s = math.floor(seconds / 3600), math.floor(seconds / 60) % 60, seconds % 60
  return h > 0 and ("%d:%02d:%02d"):format(h, m, s) or ("%02d:%02d"):format(m, s)
end

local function short(x)
  if type(x) ~= "number" then return tostring(x) end
  return ("%.4g"):format(x)
end

--- "depth=2 lr=0.01"
function view.params(params)
  local names, words = {}, {}
  for name in pairs(params or {}) do names[#names + 1] = name end
  table.sort(names)
  for i, name in ipairs(names) do words[i] = name .. "=" .. short(params[name]) end
  return table.concat(words, " ")
end

local function first_line(text) return (tostring(text):match("^[^\n]*")) end

local words = { waiting = "failed, will be tried again", failed = "failed" }

--- "trial 12  complete  0.1234  lr=0.01"
local function finished_line(row, state, value)
  local number = type(value) == "number"
  return ("trial %d  %s%s  %s%s"):format(row.number, words[state] or state, number and "  " .. short(value) or "",
    view.params(row.params), not number and value and "  " .. first_line(value) or "")
end

-- Seconds until all trials are done, by the pace so far.
local function time_left(self, counts)
  local over = counts.complete + counts.pruned + counts.failed
  local goal = self.run.limit and math.min(self.run.limit, self.run.goal or math.huge) or self.run.goal
  local mine = over - self.over_before
  if not goal or mine <= 0 then return "?" end
  return clock((process.now() - self.run.began) / mine * math.max(0, goal - over))
end

--- The lines of the table.
function view.lines(self)
  local run = self.run
  local store, study = run.store, run.study
  local counts = store:counts(study)
  local over = counts.complete + counts.pruned + counts.failed
  local goal = run.limit and math.min(run.limit, run.goal or math.huge) or run.goal
  local lines = {
    ("%s  %d%s trials  %d running  %d complete  %d pruned  %d failed  %s<%s"):format(study.name, over,
      goal and "/" .. goal or "", counts.running, counts.complete, counts.pruned, counts.failed,
      clock(process.now() - run.began), time_left(self, counts)),
  }
  local best = store:best(study)
  if best then
    lines[2] = ("best  %s  trial %d  %s"):format(short(best.value), best.number, view.params(best.params))
  end
  for i, row in ipairs(store:running(study)) do
    if i > self.rows then
      lines[#lines + 1] = ("  ... %d more"):format(counts.running - self.rows)
      break
    end
    lines[#lines + 1] = ("  %-5d %s  %-16s %s"):format(row.number, clock(math.max(0, row.seconds)),
      row.step and ("step %d: %s"):format(row.step, short(row.latest or 0 / 0)) or "", view.params(row.params))
  end
  return lines
end

-- ---- drawing ----

local INTERVAL = 0.5

local function erase(self)
  if self.height > 0 then self.file:write(("\27[%dA\27[J"):format(self.height)) end
  self.height = 0
end

local function draw(self)
  local columns = process.columns(2) - 1
  erase(self)
  local lines = view.lines(self)
  for _, line in ipairs(lines) do self.file:write(line:sub(1, columns), "\n") end
  self.height = #lines
  self.file:flush()
  self.drawn = process.now()
end

local function say(self, line)
  if self.quiet then return end
  if self.terminal then erase(self) end
  self.file:write(line, "\n")
  if self.terminal then draw(self) else self.file:flush() end
end

--- A trial is over: state, and its value or the error's text.
function View:finished(row, state, value)
  if not self.terminal or state == "failed" or state == "waiting" then
    say(self, finished_line(row, state, value))
  end
end

--- A line that a trial printed.
function View:output(row, line) say(self, ("[%d] %s"):format(row.number, line)) end

--- The sweep is to end.
function View:leaving(how, running)
  if how == "wait" and running then
    say(self, "sweep: waiting for the trials that run; Ctrl-C again ends them (they will be run again)")
  end
end

--- Called often.
function View:update()
  if self.terminal and process.now() - self.drawn >= INTERVAL then draw(self) end
end

--- The last state stays.
function View:close()
  if self.closed or self.quiet then return end
  self.closed = true
  if self.terminal then
    draw(self)
    self.height = 0
  else
    for i, line in ipairs(view.lines(self)) do
      if i <= 2 then self.file:write(line, "\n") end
    end
    self.file:flush()
  end
end

--- run: of runner.lua.
function view.new(run)
  local counts = run.store:counts(run.study)
  local quiet = run.o.quiet
  return setmetatable({
    run = run, file = io.stderr, quiet = quiet, terminal = not quiet and process.is_terminal(2), height = 0, drawn = 0,
    rows = 12, over_before = counts.complete + counts.pruned + counts.failed,
  }, View)
end

return view
