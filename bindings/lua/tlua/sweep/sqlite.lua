-- sqlite.lua: the part of SQLite (libsqlite3, opened when first needed) that storage.lua uses.
--
-- A database, here and in postgres.lua, has
--   query(sql, ...) -> rows, each a table column -> value (NULL: absent);   run(sql, ...) -> rows changed;
--   transaction(f, ...) -> what f returns (up to three values): all of it happens or, after an error, nothing;
--   exclusive(f, ...): the same, and no other of this kind runs beside;   close().
-- In the SQL text, ? stands for the arguments (numbers, strings, nil) and @now for the time.
local ffi = require "ffi"
local process = require "tlua.sweep.process"

ffi.cdef [[
typedef struct tlua_sqlite tlua_sqlite;
typedef struct tlua_sqlite_stmt tlua_sqlite_stmt;
int tlua_sqlite_open(const char *path, tlua_sqlite **db, int flags, const char *vfs) __asm__("sqlite3_open_v2");
int tlua_sqlite_close(tlua_sqlite *) __asm__("sqlite3_close_v2");
const char *tlua_sqlite_errmsg(tlua_sqlite *) __asm__("sqlite3_errmsg");
int tlua_sqlite_busy_timeout(tlua_sqlite *, int milliseconds) __asm__("sqlite3_busy_timeout");
int tlua_sqlite_prepare(tlua_sqlite *, const char *sql, int bytes, tlua_sqlite_stmt **, const char **tail)
  __asm__("sqlite3_prepare_v2");
int tlua_sqlite_bind_double(tlua_sqlite_stmt *, int i, double) __asm__("sqlite3_bind_double");
int tlua_sqlite_bind_int64(tlua_sqlite_stmt *, int i, int64_t) __asm__("sqlite3_bind_int64");
int tlua_sqlite_bind_text(tlua_sqlite_stmt *, int i, const char *, int bytes, intptr_t destructor)
  __asm__("sqlite3_bind_text");
int tlua_sqlite_bind_null(tlua_sqlite_stmt *, int i) __asm__("sqlite3_bind_null");
int tlua_sqlite_step(tlua_sqlite_stmt *) __asm__("sqlite3_step");
int tlua_sqlite_reset(tlua_sqlite_stmt *) __asm__("sqlite3_reset");
int tlua_sqlite_finalize(tlua_sqlite_stmt *) __asm__("sqlite3_finalize");
int tlua_sqlite_changes(tlua_sqlite *) __asm__("sqlite3_changes");
int tlua_sqlite_column_count(tlua_sqlite_stmt *) __asm__("sqlite3_column_count");
const char *tlua_sqlite_column_name(tlua_sqlite_stmt *, int i) __asm__("sqlite3_column_name");
int tlua_sqlite_column_type(tlua_sqlite_stmt *, int i) __asm__("sqlite3_column_type");
double tlua_sqlite_column_double(tlua_sqlite_stmt *, int i) __asm__("sqlite3_column_double");
const char *tlua_sqlite_column_text(tlua_sqlite_stmt *, int i) __asm__("sqlite3_column_text");
int tlua_sqlite_column_bytes(tlua_sqlite_stmt *, int i) __asm__("sqlite3_column_bytes");
]]

local OK, BUSY, LOCKED, PROTOCOL, ROW, DONE = 0, 5, 6, 15, 100, 101
local READWRITE, CREATE = 2, 4
local TRANSIENT = ffi.cast("intptr_t", -1) -- SQLite copies the text
-- How long to wait for the other processes before it is an error; they hold the database for milliseconds.
local PATIENCE = 120

local library
local function load_library()
  if library then return library end
  for _, name in ipairs { "libsqlite3.so.0", "sqlite3" } do
    local found, clib = pcall(ffi.load, name)
    if found then
      library = clib
      return clib
    end
  end
  error("sweep: storage in a file needs SQLite (Debian's package libsqlite3-0), which is not installed", 0)
end

local Database = {}
Database.__index = Database

local function fail(db, sql)
  error(("sweep: %s: %s%s"):format(db.path, ffi.string(library.tlua_sqlite_errmsg(db.handle)),
    sql and " (" .. sql:gsub("%s+", " "):sub(1, 80) .. ")" or ""), 0)
end

local function prepare(db, sql)
  local entry = db.statements[sql]
  if entry then return entry end
  local text = sql:gsub("@now", "((julianday('now') - 2440587.5) * 86400.0)")
  local out = ffi.new("tlua_sqlite_stmt *[1]")
  if library.tlua_sqlite_prepare(db.handle, text, #text, out, nil) ~= OK then fail(db, sql) end
  local statement = out[0]
  entry = { statement = statement, names = {} }
  for i = 0, library.tlua_sqlite_column_count(statement) - 1 do
    entry.names[i] = ffi.string(library.tlua_sqlite_column_name(statement, i))
  end
  db.statements[sql] = entry
  return entry
end

local function bind(db, statement, i, x)
  local code
  if x == nil then
    code = library.tlua_sqlite_bind_null(statement, i)
  elseif type(x) == "string" then
    code = library.tlua_sqlite_bind_text(statement, i, x, #x, TRANSIENT)
  elseif x == math.floor(x) and math.abs(x) < 2 ^ 53 then
    code = library.tlua_sqlite_bind_int64(statement, i, x)
  else
    code = library.tlua_sqlite_bind_double(statement, i, x)
  end
  if code ~= OK then fail(db) end
end

local function read_row(statement, names)
  local row = {}
  for i = 0, #names do
    local kind = names[i] and library.tlua_sqlite_column_type(statement, i)
    if kind == 1 or kind == 2 then
      row[names[i]] = library.tlua_sqlite_column_double(statement, i)
    elseif kind == 3 then
      local text = library.tlua_sqlite_column_text(statement, i)
      row[names[i]] = ffi.string(text, library.tlua_sqlite_column_bytes(statement, i))
    end
  end
  return row
end

-- One step. SQLite waits for locks by itself (busy_timeout), except where that could deadlock or while the journal is
-- being changed or recovered: then it answers at once, and we ask again.
local function step(db, statement, sql)
  local deadline
  while true do
    local code = library.tlua_sqlite_step(statement)
    if code == ROW or code == DONE then return code end
    local low = code % 256
    if low ~= BUSY and low ~= LOCKED and low ~= PROTOCOL then
      library.tlua_sqlite_reset(statement)
      fail(db, sql)
    end
    deadline = deadline or process.now() + PATIENCE
    library.tlua_sqlite_reset(statement)
    if process.now() > deadline then fail(db, sql) end
    process.sleep(0.002 + 0.02 * (process.now() * 1e4 % 1)) -- not math.random: that is the script's
  end
end

local function execute(db, sql, n, ...)
  local entry = prepare(db, sql)
  local statement, rows = entry.statement, {}
  for i = 1, n do bind(db, statement, i, (select(i, ...))) end
  while step(db, statement, sql) == ROW do rows[#rows + 1] = read_row(statement, entry.names) end
  library.tlua_sqlite_reset(statement)
  return rows
end

function Database:query(sql, ...) return execute(self, sql, select("#", ...), ...) end

function Database:run(sql, ...)
  execute(self, sql, select("#", ...), ...)
  return library.tlua_sqlite_changes(self.handle)
end

local function finish(db, ok, ...)
  if ok then
    execute(db, "COMMIT", 0)
    return ...
  end
  pcall(execute, db, "ROLLBACK", 0)
  error((...), 0)
end

--- Immediate: the lock for writing is taken at the start, where waiting for it is safe.
function Database:transaction(f, ...)
  execute(self, "BEGIN IMMEDIATE", 0)
  return finish(self, pcall(f, ...))
end

Database.exclusive = Database.transaction

function Database:close()
  if self.handle == nil then return end
  for _, entry in pairs(self.statements) do library.tlua_sqlite_finalize(entry.statement) end
  library.tlua_sqlite_close(self.handle)
  self.handle, self.statements = nil, {}
end

local sqlite = {}

--- Opens the file (made if it is missing and `create` is true), in WAL mode.
function sqlite.open(path, create)
  load_library()
  local out = ffi.new("tlua_sqlite *[1]")
  local code = library.tlua_sqlite_open(path, out, READWRITE + (create and CREATE or 0), nil)
  local db = setmetatable({ path = path, handle = out[0], statements = {} }, Database)
  if code ~= OK then
    local message = out[0] ~= nil and ffi.string(library.tlua_sqlite_errmsg(out[0])) or "no memory"
    if out[0] ~= nil then library.tlua_sqlite_close(out[0]) end
    error(("sweep: cannot open %s: %s"):format(path, message), 0)
  end
  library.tlua_sqlite_busy_timeout(db.handle, PATIENCE * 1000)
  execute(db, "PRAGMA journal_mode = WAL", 0)
  execute(db, "PRAGMA synchronous = NORMAL", 0)
  return db
end

return sqlite
