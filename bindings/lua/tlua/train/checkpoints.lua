-- checkpoints.lua: the checkpoints of a run: a folder of files step-00000100.safetensors, of which the newest and the
-- best are kept.
--
-- A file is written whole under another name and renamed, and only then older ones are deleted: whenever the process is
-- killed, the newest file is complete. What is kept is in the checkpoint itself.
local base = require "tlua.base"
local system = require "tlua.system"
local checkpoint = require "tlua.train.checkpoint"
local tl, fail = base.tl, base.fail

local Checkpoints = {}
Checkpoints.__index = Checkpoints

local PATTERN = "^step%-(%d+)%.safetensors$"

function Checkpoints:path(step) return ("%s/step-%08d.safetensors"):format(self.directory, step) end

-- The steps of the files there are, from the oldest.
local function steps_in(directory)
  local list = {}
  for name in pairs(system.entries(directory) or {}) do
    local step = name:match(PATTERN)
    if step then list[#list + 1] = tonumber(step) end
  end
  table.sort(list)
  return list
end

-- What a process that was killed while it wrote has left.
local function sweep_up(directory)
  for name in pairs(system.entries(directory) or {}) do
    local pid = name:match("^step%-%d+%.safetensors%.tmp%-(%d+)%-%d+$")
    if pid and not system.is_running(tonumber(pid)) then os.remove(directory .. "/" .. name) end
  end
end

local function better(self, a, b)
  if self.mode == "min" then return a < b end
  return a > b
end

-- Sorts { step=, metric= } by metric, the best first; of equal ones the older.
local function rank_entries(self, entries)
  table.sort(entries, function(a, b)
    if a.metric ~= b.metric then return better(self, a.metric, b.metric) end
    return a.step < b.step
  end)
end

--- Would a checkpoint with this metric be among the best that are kept?
function Checkpoints:wants(metric)
  if not metric or metric ~= metric or self.keep_best == 0 then return false end
  if #self.best_entries < self.keep_best then return true end
  return better(self, metric, self.best_entries[#self.best_entries].metric)
end

-- ---- saving ----

local function note_metric(self, step, metric)
  if not self:wants(metric) then return end
  local entries = { { step = step, metric = metric } }
  for _, entry in ipairs(self.best_entries) do
    if entry.step ~= step then entries[#entries + 1] = entry end
  end
  rank_entries(self, entries)
  entries[self.keep_best + 1] = nil
  self.best_entries = entries
end

-- Deletes the files up to `step` that are neither new nor good enough.
local function delete_others(self, step)
  local kept, steps = {}, {}
  for _, entry in ipairs(self.best_entries) do kept[entry.step] = true end
  for _, s in ipairs(steps_in(self.directory)) do
    if s <= step then steps[#steps + 1] = s end
  end
  for i, s in ipairs(steps) do
    if i <= #steps - self.keep_last and not kept[s] then os.remove(self:path(s)) end
  end
end

--- checkpoints:save(step, {model=, ...}, metric?): a checkpoint of save_checkpoint() after so many steps. Older ones
--- that are no longer kept are deleted when it is on disk. All ranks call it.
function Checkpoints:save(step, state, metric)
  base.check_integer(step, "Checkpoints:save", "the step")
  if step < 0 then fail("Checkpoints:save: the step must be at least 0, got " .. step) end
  if metric ~= nil then base.check_number(metric, "Checkpoints:save", "the metric") end
  if type(state) == "table" and state.checkpoints ~= nil then
    fail("Checkpoints:save: the name 'checkpoints' is taken")
  end
  local saved = checkpoint.collect(state)
  note_metric(self, step, metric)
  saved.checkpoints = { best = self.best_entries }
  if checkpoint.rank() ~= 0 then return end
  tl.save(self:path(step), saved)
  delete_others(self, step)
end

-- ---- loading ----

--- The path of the newest checkpoint; nil if there is none.
function Checkpoints:newest()
  local steps = steps_in(self.directory)
  return #steps > 0 and self:path(steps[#steps]) or nil
end

--- The path of the best checkpoint and its metric; nil if none was saved with a metric.
function Checkpoints:best()
  local entry = self.best_entries[1]
  if entry then return self:path(entry.step), entry.metric end
end

local function read_newest(self)
  local steps = steps_in(self.directory)
  for i = #steps, 1, -1 do
    local path = self:path(steps[i])
    local ok, saved = pcall(tl.load, path)
    if ok then return path, saved end
    if saved == base.interrupted then error(saved, 0) end
    saved = tostring(saved):gsub("^[^\n]-:%d+: ", "") -- whose line it is means nothing to the reader
    if i == 1 then fail(("Checkpoints: no checkpoint in %s can be read: %s"):format(self.directory, saved)) end
    io.stderr:write(("tlua: %s; the checkpoint before it is used\n"):format(saved))
  end
end

--- checkpoints:load({model=, ...}, {rng=true}): load_checkpoint() of the newest file. One that cannot be read is named
--- on stderr and the one before it is taken; none can: an error. Returns the values; nil where there is no checkpoint.
function Checkpoints:load(state, options)
  local path, saved = read_newest(self)
  if not path then return nil end
  local values = checkpoint.restore(path, saved, state, options)
  self.best_entries = values.checkpoints and values.checkpoints.best or {}
  values.checkpoints = nil
  for i = #self.best_entries, self.keep_best + 1, -1 do self.best_entries[i] = nil end
  return values
end

local function check_count(value, least, name)
  base.check_integer(value, "Checkpoints", name)
  if value < least then fail(("Checkpoints: %s must be at least %d, got %d"):format(name, least, value)) end
end

--- Checkpoints(directory, {keep_last=2, keep_best=1, mode="min"}): made if need be. keep_best: so many with the best
--- metric stay, whatever their age; mode "max" where more is better.
local function new(directory, options)
  if type(directory) ~= "string" or directory == "" then
    fail("Checkpoints: argument 1 must be a folder's path, got " .. base.kind(directory))
  end
  local o = base.options("Checkpoints", options, { keep_last = 2, keep_best = 1, mode = "min" })
  check_count(o.keep_last, 1, "keep_last")
  check_count(o.keep_best, 0, "keep_best")
  if o.mode ~= "min" and o.mode ~= "max" then fail(('Checkpoints: mode is "min" or "max", got %q'):format(o.mode)) end
  if checkpoint.rank() == 0 then
    system.make_folders(directory)
    sweep_up(directory)
    if not system.entries(directory) then fail("Checkpoints: the folder " .. directory .. " cannot be made or read") end
  end
  return setmetatable({
    directory = directory:match("^(.-)/*$"), keep_last = o.keep_last, keep_best = o.keep_best, mode = o.mode,
    best_entries = {},
  }, Checkpoints)
end

return { Checkpoints = new }
