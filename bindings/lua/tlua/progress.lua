-- progress.lua: tl.progress, how far a loop has come.
local base = require "tlua.base"
local system = require "tlua.system"
local fail, now = base.fail, system.now

local Bar = {}
Bar.__index = Bar

-- ---- texts ----

local function clock(seconds)
  seconds = math.floor(seconds + 0.5)
  local h, m, s = math.floor(seconds / 3600), math.floor(seconds / 60) % 60, seconds % 60
  return h > 0 and ("%d:%02d:%02d"):format(h, m, s) or ("%02d:%02d"):format(m, s)
end

local function short(x)
  if base.is_tensor(x) then x = x:item() end
  if type(x) ~= "number" then return tostring(x) end
  if x == math.floor(x) and math.abs(x) < 1e15 then return ("%.0f"):format(x) end
  return ("%.4g"):format(x)
end

local function rate_text(bar, elapsed)
  if bar.n == bar.first_n or elapsed <= 0 then return "? " .. bar.unit .. "/s" end
  local rate = (bar.n - bar.first_n) * bar.unit_scale / elapsed
  return (rate >= 100 and "%.0f" or rate >= 10 and "%.1f" or "%.2f"):format(rate) .. " " .. bar.unit .. "/s"
end

-- ", loss=0.12, ..." in the order of first mention.
local function postfix(bar)
  local texts = {}
  for _, key in ipairs(bar.keys) do texts[#texts + 1] = (", %s=%s"):format(key, short(bar.values[key])) end
  return table.concat(texts)
end

--- "desc:  45%|####    | 45/100 [00:12<00:15, 3.60 it/s, loss=0.12]", cut to `width` columns.
local function bar_text(bar, elapsed, width)
  local head = bar.desc ~= "" and bar.desc .. ": " or ""
  local total = bar.total
  if not total then
    local text = ("%d [%s, %s%s]"):format(bar.n, clock(elapsed), rate_text(bar, elapsed), postfix(bar))
    return (head .. text):sub(1, width)
  end
  local share = total > 0 and math.min(bar.n / total, 1) or 1
  local done = bar.n - bar.first_n
  local left = done > 0 and clock(elapsed / done * math.max(total - bar.n, 0)) or "?"
  head = head .. ("%3d%%|"):format(math.floor(share * 100))
  local tail = ("| %d/%d [%s<%s, %s%s]"):format(bar.n, total, clock(elapsed), left, rate_text(bar, elapsed),
    postfix(bar))
  local room = math.min(width - #head - #tail, 40)
  if room < 4 then return (head .. tail):sub(1, width) end
  local filled = math.floor(room * share + 0.5)
  return head .. ("#"):rep(filled) .. (" "):rep(room - filled) .. tail
end

local function line_text(bar, elapsed)
  local head = bar.desc ~= "" and bar.desc .. ": " or ""
  local count = bar.total and ("%d/%d"):format(bar.n, bar.total) or tostring(bar.n)
  return ("%s%s %s, %s, %s%s"):format(head, count, bar.unit_scale == 1 and bar.unit or "steps", clock(elapsed),
    rate_text(bar, elapsed), postfix(bar))
end

-- ---- drawing ----

local function draw(bar, time, finished)
  bar.drawn = time
  if bar.width then
    local text = bar_text(bar, time - bar.started, bar.width - 1)
    bar.file:write("\r", text, (" "):rep(math.max(0, bar.length - #text)), finished and "\n" or "")
    bar.length = #text
  else
    bar.file:write(line_text(bar, time - bar.started), "\n")
  end
  bar.file:flush()
end

--- bar:set{loss=0.12, ...}: shown behind the rate. Numbers, strings, one-element tensors (read when the bar is drawn).
function Bar:set(values)
  if type(values) ~= "table" then fail("progress: set{...} takes a table, got " .. base.kind(values)) end
  local keys = {}
  for key, value in pairs(values) do
    if self.values[key] == nil then keys[#keys + 1] = key end
    self.values[key] = base.is_tensor(value) and value:detach() or value
  end
  table.sort(keys)
  for _, key in ipairs(keys) do self.keys[#self.keys + 1] = key end
end

--- Draws the last state and ends the line. The end of the loop does so by itself; call it when a loop is left early.
function Bar:close()
  if not self.running then return end
  self.running = false
  draw(self, now(), true)
end

local function begin(bar, n)
  bar:close()
  bar.n, bar.first_n, bar.started, bar.running, bar.length = n, n, now(), true, 0
  bar.values, bar.keys = {}, {}
  bar.width = bar.terminal and system.columns(2) or nil
  bar.drawn = bar.started
  if bar.width then draw(bar, bar.started, false) end
end

--- For loops that do not iterate over the bar: bar:start(done) begins, where `done` steps (0) were done before;
--- bar:update(n) tells of n more; bar:close() ends.
function Bar:start(done)
  done = done or 0
  base.check_integer(done, "progress", "the number of steps done")
  begin(self, done)
end

function Bar:update(n)
  self.n = self.n + (n or 1)
  local time = now()
  if time - self.drawn >= (self.width and self.interval or self.line_interval) then draw(self, time, false) end
end

--- bar:write(text): a line above the bar.
function Bar:write(text)
  if self.width and self.running then
    self.file:write("\r", (" "):rep(self.length), "\r")
    self.length = 0
  end
  self.file:write(text, "\n")
  if self.width and self.running then draw(self, now(), false) else self.file:flush() end
end

-- A loader that goes on in the middle of an epoch.
local function done_of(source)
  return type(source) == "table" and type(source.saved) == "table" and source.saved.batch or 0
end

local function pass(bar, first, ...)
  if first == nil then bar:close() end
  return first, ...
end

function Bar:__call(_, control)
  if control == nil then
    begin(self, done_of(self.source))
    control = self.first
  else
    self:update(1)
  end
  return pass(self, self.iterator(self.state, control))
end

-- ---- making one ----

local function count_to(n, i)
  i = (i or 0) + 1
  if i <= n then return i end
end

local function element_of(list, i)
  i = (i or 0) + 1
  if list[i] ~= nil then return i, list[i] end
end

-- What is iterated: the iterator, its state, the first control value, how many steps that makes (if known).
local function source(what)
  if type(what) == "number" then
    base.check_integer(what, "progress", "the number of steps")
    return count_to, what, nil, what
  end
  if type(what) == "function" then return what end
  local meta = getmetatable(what)
  if type(meta) == "table" and meta.__call then
    return what, nil, nil, type(what.size) == "function" and what:size() or nil
  end
  if type(what) == "table" then return element_of, what, nil, #what end
  fail("progress: argument 1 must be an iterator, a loader, a list or a number, got " .. base.kind(what))
end

local defaults = {
  total = base.optional, desc = "", unit = "it", unit_scale = 1, interval = 0.1, line_interval = 30,
  file = base.optional,
}

--- tl.progress(what, {total=, desc="", unit="it", unit_scale=1, interval=0.1, line_interval=30, file=io.stderr}):
--- iterates over a loader, an iterator function, a list or 1..n and shows how far it has come.
local function progress(what, options)
  local o = base.options("progress", options, defaults)
  local iterator, state, first, steps = source(what)
  return setmetatable({
    iterator = iterator, state = state, first = first, total = o.total or steps, desc = o.desc, unit = o.unit,
    unit_scale = o.unit_scale, interval = o.interval, line_interval = o.line_interval, file = o.file or io.stderr,
    terminal = o.file == nil, values = {}, keys = {}, n = 0, first_n = 0, source = what,
  }, Bar)
end

return progress
