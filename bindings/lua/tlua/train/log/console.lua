-- console.lua: metrics for people: on a terminal a progress bar, and a line for each evaluation above it; elsewhere a
-- line for each row.
local base = require "tlua.base"
local progress = require "tlua.progress"
local system = require "tlua.system"
local rows = require "tlua.train.log.rows"

local Console = {}
Console.__index = Console

local function clock(seconds)
  seconds = math.floor(seconds + 0.5)
  return ("%d:%02d:%02d"):format(math.floor(seconds / 3600), math.floor(seconds / 60) % 60, seconds % 60)
end

local function short(x)
  local whole = x == math.floor(x) or math.abs(x) >= 10000
  return (whole and math.abs(x) < 1e15 and "%.0f" or "%.5g"):format(x)
end

-- The names in the order of reading: the epoch, losses, the rest.
local function sorted_names(values)
  local function place(name)
    return name == "epoch" and 1 or name:find("loss$") and 2 or 3
  end
  local names = {}
  for name in pairs(values) do names[#names + 1] = name end
  table.sort(names, function(a, b)
    if place(a) ~= place(b) then return place(a) < place(b) end
    return a < b
  end)
  return names
end

--- console:start{done=0, total=}: so many of so many steps are done.
function Console:start(options)
  local o = base.options("Console", options, { done = 0, total = base.optional })
  self.done, self.first, self.total, self.began = o.done, o.done, o.total, system.now()
  self.bar = progress(function() end, { total = self.total, unit = "step", file = self.given })
  self.bar:start(o.done)
end

--- console:tick(): a step is done.
function Console:tick()
  self.done = self.done + 1
  if self.bar and self.bar.width then self.bar:update(1) end
end

-- The time that is left, when it can be told.
local function left(self)
  local done = self.done and self.done - self.first or 0
  if not self.total or done == 0 or self.done >= self.total then return "" end
  return "  " .. clock((system.now() - self.began) / done * (self.total - self.done)) .. " left"
end

--- console:log(step, {name = number, ...})
function Console:log(step, values)
  rows.check("Console", step, values)
  local texts, evaluated = { "step " .. step .. (self.total and "/" .. self.total or "") }, false
  for _, name in ipairs(sorted_names(values)) do
    texts[#texts + 1] = name .. " " .. short(values[name])
    evaluated = evaluated or name:find("^validation/") ~= nil
  end
  local line = table.concat(texts, "  ") .. left(self)
  if not (self.bar and self.bar.width) then
    self.file:write(line, "\n")
    self.file:flush()
    return
  end
  if evaluated then self.bar:write(line) end
  local shown = {}
  for name, value in pairs(values) do
    if name:find("loss$") or name == "lr" or name:find("_per_second$") then shown[name] = short(value) end
  end
  self.bar:set(shown)
end

--- console:write(text): a line of its own.
function Console:write(text)
  if self.bar and self.bar.width then self.bar:write(text) return end
  self.file:write(text, "\n")
  self.file:flush()
end

function Console:close()
  if self.bar and self.bar.width then self.bar:close() end
  self.bar = nil
end

--- Console{file=io.stderr}: a progress bar, where stderr is a terminal and no other file is given; lines elsewhere.
local function new(options)
  local o = base.options("Console", options, { file = base.optional })
  return setmetatable({ given = o.file, file = o.file or io.stderr }, Console)
end

return { Console = new }
