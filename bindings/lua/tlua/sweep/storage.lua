-- storage.lua: the record of a study, in a database that many processes share. All SQL of the sweep is here.
--
-- A trial's state is waiting (enqueued, or to be run again), running, complete, pruned or failed. `claim` counts how
-- often a trial was handed out: only the process that has the latest claim may write to it, so a worker that was taken
-- for dead cannot overwrite what its successor found. `owner` names that process.
local json = require "tlua.json"
local process = require "tlua.sweep.process"
local random = require "tlua.sweep.random"

local schema = {
  [[CREATE TABLE IF NOT EXISTS study (id BIGINT PRIMARY KEY, name TEXT UNIQUE NOT NULL, direction TEXT NOT NULL,
      trials BIGINT, seed BIGINT NOT NULL, space TEXT, created DOUBLE PRECISION)]],
  [[CREATE TABLE IF NOT EXISTS trial (study BIGINT NOT NULL, number BIGINT NOT NULL, state TEXT NOT NULL, params TEXT,
      value DOUBLE PRECISION, slot BIGINT, seed BIGINT NOT NULL, claim BIGINT NOT NULL, failures BIGINT NOT NULL,
      owner TEXT, heartbeat DOUBLE PRECISION, step BIGINT, latest DOUBLE PRECISION, created DOUBLE PRECISION,
      started DOUBLE PRECISION, finished DOUBLE PRECISION, error TEXT, PRIMARY KEY (study, number))]],
  "CREATE INDEX IF NOT EXISTS trial_state ON trial (study, state)",
  [[CREATE TABLE IF NOT EXISTS report (study BIGINT NOT NULL, trial BIGINT NOT NULL, step BIGINT NOT NULL,
      value DOUBLE PRECISION, rung BIGINT, time DOUBLE PRECISION, PRIMARY KEY (study, trial, step))]],
  "CREATE INDEX IF NOT EXISTS report_step ON report (study, step)",
  "CREATE INDEX IF NOT EXISTS report_rung ON report (study, rung)",
  [[CREATE TABLE IF NOT EXISTS attribute (study BIGINT NOT NULL, trial BIGINT NOT NULL, name TEXT NOT NULL,
      value TEXT, PRIMARY KEY (study, trial, name))]],
  [[CREATE TABLE IF NOT EXISTS failure (study BIGINT NOT NULL, trial BIGINT NOT NULL, claim BIGINT NOT NULL,
      time DOUBLE PRECISION, error TEXT, PRIMARY KEY (study, trial, claim))]],
}

local storage = {}

local Store = {}
Store.__index = Store

local function connect(where, create)
  if type(where) ~= "string" or where == "" then
    error("sweep: storage is a file's name or a postgresql:// address", 0)
  end
  if where:find("^postgres") and where:find("://", 1, true) then return require("tlua.sweep.postgres").open(where) end
  return require("tlua.sweep.sqlite").open(where, create)
end

--- Opens a database; with `create` a missing one is made.
function storage.open(where, create)
  local db = connect(where, create)
  if create then
    db:exclusive(function()
      for _, sql in ipairs(schema) do db:run(sql) end
    end)
  else
    local ok = pcall(db.query, db, "SELECT COUNT(*) AS n FROM study")
    if not ok then
      db:close()
      error(("sweep: %s holds no sweep"):format(where), 0)
    end
  end
  return setmetatable({ db = db, where = where, me = process.identity() }, Store)
end

function Store:close() self.db:close() end

-- ---- studies ----

local function find_study(self, name) return self.db:query("SELECT * FROM study WHERE name = ?", name)[1] end
Store.find_study = find_study

--- The names of all studies, oldest first.
function Store:names()
  local names = {}
  for i, row in ipairs(self.db:query("SELECT name FROM study ORDER BY id")) do names[i] = row.name end
  return names
end

--- The study of that name, made if it is new. wanted: direction, trials, seed, space. An existing study keeps its
--- direction (another one is an error) and its seed; the others are renewed.
function Store:enter(name, wanted)
  local db = self.db
  local space = json.encode(wanted.space)
  return db:exclusive(function()
    local study = find_study(self, name)
    if not study then
      local id = (db:query("SELECT MAX(id) AS id FROM study")[1].id or 0) + 1
      db:run("INSERT INTO study (id, name, direction, trials, seed, space, created) VALUES (?, ?, ?, ?, ?, ?, @now)",
        id, name, wanted.direction, wanted.trials, wanted.seed or random.fresh_seed(), space)
      return find_study(self, name)
    end
    if study.direction ~= wanted.direction then
      error(("sweep: study '%s' in %s is there to %s, not to %s"):format(name, self.where, study.direction,
        wanted.direction), 0)
    end
    if wanted.seed and wanted.seed ~= study.seed then
      error(("sweep: study '%s' in %s was begun with seed %.0f, not %.0f"):format(name, self.where, study.seed,
        wanted.seed), 0)
    end
    db:run("UPDATE study SET trials = ?, space = ? WHERE id = ?", wanted.trials or study.trials, space, study.id)
    return find_study(self, name)
  end)
end

-- ---- handing out trials ----

-- Trials that nobody works on any more wait again: their process is gone, or (on another machine) silent for too long.
local function recover(db, study, patience)
  local running = db:query([[SELECT number, owner, claim, @now - heartbeat AS silent FROM trial
    WHERE study = ? AND state = 'running']], study)
  local left = #running
  for _, row in ipairs(running) do
    local alive = process.is_alive(row.owner)
    if alive == nil then alive = row.silent < patience end
    if not alive then
      db:run([[UPDATE trial SET state = 'waiting'
        WHERE study = ? AND number = ? AND claim = ? AND state = 'running']], study, row.number, row.claim)
      left = left - 1
    end
  end
  return left
end

local function take_waiting(self, study)
  local db = self.db
  local row = db:query("SELECT number FROM trial WHERE study = ? AND state = 'waiting' ORDER BY number LIMIT 1",
    study)[1]
  if not row then return nil end
  for _, name in ipairs { "report", "attribute" } do
    db:run(("DELETE FROM %s WHERE study = ? AND trial = ?"):format(name), study, row.number)
  end
  db:run([[UPDATE trial SET state = 'running', claim = claim + 1, owner = ?, heartbeat = @now, started = @now,
    step = NULL, latest = NULL, value = NULL WHERE study = ? AND number = ?]], self.me, study, row.number)
  return row.number
end

local function insert(db, study, seed, state, slot, params, owner)
  local number = db:query("SELECT COUNT(*) AS n FROM trial WHERE study = ?", study)[1].n
  db:run([[INSERT INTO trial
    (study, number, state, params, slot, seed, claim, failures, owner, heartbeat, created, started)
    VALUES (?, ?, ?, ?, ?, ?, ?, 0, ?, @now, @now, @now)]], study, number, state, params, slot,
    random.hash(seed, "trial", number), state == "running" and 1 or 0, owner)
  return number
end

local function decoded(row)
  if row then row.params = row.params and json.decode(row.params) end
  return row
end

local function trial_row(db, study, number)
  return decoded(db:query("SELECT * FROM trial WHERE study = ? AND number = ?", study, number)[1])
end

function Store:trial(study, number) return trial_row(self.db, study.id, number) end

--- Hands out a trial: its row, with params if they are known. Otherwise nil and "busy" (there is nothing to start now,
--- but others still work) or "done". limit: at most so many sampled trials (a grid's size), or nil.
function Store:claim(study, limit, patience)
  local db = self.db
  return db:exclusive(function()
    local running = recover(db, study.id, patience)
    local number = take_waiting(self, study.id)
    if not number then
      local count = db:query("SELECT COUNT(*) AS n, MAX(slot) AS slot FROM trial WHERE study = ?", study.id)[1]
      local slot = (count.slot or -1) + 1
      local room = (not study.trials or count.n < study.trials) and (not limit or slot < limit)
      if not room then return nil, running > 0 and "busy" or "done" end
      number = insert(db, study.id, study.seed, "running", slot, nil, self.me)
    end
    return trial_row(db, study.id, number)
  end)
end

--- Adds a trial with these parameters, to be run next.
function Store:enqueue(study, params)
  return self.db:exclusive(function()
    return insert(self.db, study.id, study.seed, "waiting", nil, json.encode(params), nil)
  end)
end

local function mine(changed, what)
  if changed == 0 then
    error(("sweep: %s: this trial was handed to another process meanwhile"):format(what), 0)
  end
end

local OURS = " WHERE study = ? AND number = ? AND claim = ? AND state = 'running'"

function Store:set_params(study, trial, params)
  mine(self.db:run("UPDATE trial SET params = ?" .. OURS, json.encode(params), study.id, trial.number, trial.claim),
    "parameters")
end

--- This process still works on what it has.
function Store:heartbeat(study)
  self.db:run("UPDATE trial SET heartbeat = @now WHERE study = ? AND state = 'running' AND owner = ?", study.id,
    self.me)
end

-- ---- what a trial writes ----

--- A value at a step; rung: see pruners.lua.
function Store:report(study, trial, step, value, rung)
  local db = self.db
  db:transaction(function()
    mine(db:run("UPDATE trial SET heartbeat = @now, step = ?, latest = ?" .. OURS, step, value, study.id, trial.number,
      trial.claim), "report")
    db:run([[INSERT INTO report (study, trial, step, value, rung, time) VALUES (?, ?, ?, ?, ?, @now)
      ON CONFLICT (study, trial, step) DO UPDATE SET value = excluded.value, time = excluded.time]], study.id,
      trial.number, step, value, rung)
  end)
end

local function values_of(rows)
  local values = {}
  for i, row in ipairs(rows) do values[i] = row.value or 0 / 0 end
  return values
end

--- The values that trials reported at a rung.
function Store:at_rung(study, rung)
  return values_of(self.db:query("SELECT value FROM report WHERE study = ? AND rung = ?", study.id, rung))
end

--- The values of complete trials at a step.
function Store:at_step(study, step)
  return values_of(self.db:query([[SELECT r.value FROM report r JOIN trial t ON t.study = r.study AND t.number = r.trial
    WHERE r.study = ? AND r.step = ? AND t.state = 'complete']], study.id, step))
end

function Store:set_attribute(study, trial, name, value)
  local db = self.db
  db:transaction(function()
    mine(db:run("UPDATE trial SET heartbeat = @now" .. OURS, study.id, trial.number, trial.claim), "attribute")
    db:run([[INSERT INTO attribute (study, trial, name, value) VALUES (?, ?, ?, ?)
      ON CONFLICT (study, trial, name) DO UPDATE SET value = excluded.value]], study.id, trial.number, name,
      json.encode(value))
  end)
end

--- The trial is over: state is complete or pruned.
function Store:finish(study, trial, state, value)
  mine(self.db:run("UPDATE trial SET state = ?, value = ?, finished = @now, error = NULL" .. OURS, state, value,
    study.id, trial.number, trial.claim), "result")
end

--- The trial broke. It waits for another try if it broke no more than `retries` times. Returns its new state, or nil if
--- it is no longer ours (or already over).
function Store:fail(study, trial, message, retries)
  local db = self.db
  return db:transaction(function()
    local changed = db:run([[UPDATE trial SET failures = failures + 1, error = ?, finished = @now,
      state = CASE WHEN failures < ? THEN 'waiting' ELSE 'failed' END]] .. OURS, message, retries, study.id,
      trial.number, trial.claim)
    if changed == 0 then return nil end
    db:run("INSERT INTO failure (study, trial, claim, time, error) VALUES (?, ?, ?, @now, ?)", study.id, trial.number,
      trial.claim, message)
    return trial_row(db, study.id, trial.number).state
  end)
end

--- Gives a trial back unfinished: it waits.
function Store:release(study, trial)
  self.db:run("UPDATE trial SET state = 'waiting'" .. OURS, study.id, trial.number, trial.claim)
end

--- Gives back all that this process still has.
function Store:release_all(study)
  self.db:run("UPDATE trial SET state = 'waiting' WHERE study = ? AND state = 'running' AND owner = ?", study.id,
    self.me)
end

-- ---- reading ----

--- All trials from `first` on, in order.
function Store:trials(study, first)
  local rows = self.db:query("SELECT * FROM trial WHERE study = ? AND number >= ? ORDER BY number", study.id,
    first or 0)
  for _, row in ipairs(rows) do decoded(row) end
  return rows
end

--- state -> how many
function Store:counts(study)
  local counts = { waiting = 0, running = 0, complete = 0, pruned = 0, failed = 0 }
  local rows = self.db:query("SELECT state, COUNT(*) AS n FROM trial WHERE study = ? GROUP BY state", study.id)
  for _, row in ipairs(rows) do counts[row.state] = row.n end
  return counts
end

--- The best complete trial; nil if there is none.
function Store:best(study)
  local order = study.direction == "minimize" and "ASC" or "DESC"
  return decoded(self.db:query("SELECT * FROM trial WHERE study = ? AND state = 'complete' ORDER BY value " .. order ..
    ", number LIMIT 1", study.id)[1])
end

function Store:running(study)
  local rows = self.db:query([[SELECT *, @now - started AS seconds FROM trial WHERE study = ? AND state = 'running'
    ORDER BY number]], study.id)
  for _, row in ipairs(rows) do decoded(row) end
  return rows
end

--- trial number -> list of { step, value }
function Store:reports(study)
  local curves = {}
  local rows = self.db:query("SELECT trial, step, value FROM report WHERE study = ? ORDER BY trial, step", study.id)
  for _, row in ipairs(rows) do
    local curve = curves[row.trial] or {}
    curves[row.trial] = curve
    curve[#curve + 1] = { row.step, row.value or 0 / 0 }
  end
  return curves
end

--- trial number -> name -> value
function Store:attributes(study)
  local all = {}
  for _, row in ipairs(self.db:query("SELECT trial, name, value FROM attribute WHERE study = ?", study.id)) do
    all[row.trial] = all[row.trial] or {}
    all[row.trial][row.name] = json.decode(row.value)
  end
  return all
end

--- List of { trial, claim, error }: every try that broke.
function Store:failures(study)
  return self.db:query("SELECT trial, claim, error FROM failure WHERE study = ? ORDER BY trial, claim", study.id)
end

return storage
