-- postgres.lua: PostgreSQL (libpq, opened when first needed) behind the interface of sqlite.lua: studies that many
-- machines share.
local ffi = require "ffi"

ffi.cdef [[
typedef struct tlua_pg tlua_pg;
typedef struct tlua_pg_result tlua_pg_result;
tlua_pg *tlua_pg_connect(const char *address) __asm__("PQconnectdb");
int tlua_pg_status(const tlua_pg *) __asm__("PQstatus");
const char *tlua_pg_error(const tlua_pg *) __asm__("PQerrorMessage");
void tlua_pg_finish(tlua_pg *) __asm__("PQfinish");
tlua_pg_result *tlua_pg_exec(tlua_pg *, const char *sql, int n, const unsigned *types, const char *const *values,
                             const int *lengths, const int *formats, int result_format) __asm__("PQexecParams");
int tlua_pg_result_status(const tlua_pg_result *) __asm__("PQresultStatus");
const char *tlua_pg_result_error(const tlua_pg_result *) __asm__("PQresultErrorMessage");
const char *tlua_pg_result_field(const tlua_pg_result *, int code) __asm__("PQresultErrorField");
int tlua_pg_rows(const tlua_pg_result *) __asm__("PQntuples");
int tlua_pg_columns(const tlua_pg_result *) __asm__("PQnfields");
const char *tlua_pg_name(const tlua_pg_result *, int column) __asm__("PQfname");
unsigned tlua_pg_type(const tlua_pg_result *, int column) __asm__("PQftype");
int tlua_pg_is_null(const tlua_pg_result *, int row, int column) __asm__("PQgetisnull");
const char *tlua_pg_value(const tlua_pg_result *, int row, int column) __asm__("PQgetvalue");
const char *tlua_pg_changed(tlua_pg_result *) __asm__("PQcmdTuples");
void tlua_pg_clear(tlua_pg_result *) __asm__("PQclear");
]]

local COMMAND_OK, TUPLES_OK = 1, 2
local SQLSTATE = string.byte("C")
-- int8, int4, int2, float8, float4, numeric
local numeric = { [20] = true, [23] = true, [21] = true, [701] = true, [700] = true, [1700] = true }
-- One lock for all that must not happen twice at once (handing out trials, making studies): any number will do.
local LOCK = 7305221

local library
local function load_library()
  if library then return library end
  for _, name in ipairs { "libpq.so.5", "pq" } do
    local found, clib = pcall(ffi.load, name)
    if found then
      library = clib
      return clib
    end
  end
  error("sweep: storage in PostgreSQL needs libpq (Debian's package libpq5), which is not installed", 0)
end

local Database = {}
Database.__index = Database

local function clean(text) return (ffi.string(text):gsub("%s+$", "")) end

-- ? becomes $1, $2, ...
local function translate(db, sql)
  local text = db.translated[sql]
  if text then return text end
  local n = 0
  text = sql:gsub("@now", "extract(epoch from clock_timestamp())::double precision"):gsub("%?", function()
    n = n + 1
    return "$" .. n
  end)
  db.translated[sql] = text
  return text
end

local function text_of(x)
  if type(x) == "string" then return x end
  if x ~= x then return "NaN" end
  if math.abs(x) == math.huge then return x > 0 and "Infinity" or "-Infinity" end
  return (x == math.floor(x) and math.abs(x) < 2 ^ 53 and "%.0f" or "%.17g"):format(x)
end

local words = { NaN = 0 / 0, Infinity = math.huge, ["-Infinity"] = -math.huge }

local function read_rows(result)
  local rows, columns = {}, {}
  for c = 0, library.tlua_pg_columns(result) - 1 do
    columns[c + 1] = { ffi.string(library.tlua_pg_name(result, c)), numeric[library.tlua_pg_type(result, c)] }
  end
  for r = 0, library.tlua_pg_rows(result) - 1 do
    local row = {}
    for c, column in ipairs(columns) do
      if library.tlua_pg_is_null(result, r, c - 1) == 0 then
        local value = ffi.string(library.tlua_pg_value(result, r, c - 1))
        if column[2] then value = words[value] or tonumber(value) end
        row[column[1]] = value
      end
    end
    rows[r + 1] = row
  end
  return rows
end

-- Runs one statement. Returns its rows and how many it changed.
local function execute(db, sql, n, ...)
  local values, keep = ffi.new("const char *[?]", n + 1), {}
  for i = 1, n do
    local x = select(i, ...)
    if x ~= nil then
      keep[i] = text_of(x)
      values[i - 1] = keep[i]
    end
  end
  local result = library.tlua_pg_exec(db.handle, translate(db, sql), n, nil, values, nil, nil, 0)
  local status = library.tlua_pg_result_status(result)
  if status ~= COMMAND_OK and status ~= TUPLES_OK then
    local state = library.tlua_pg_result_field(result, SQLSTATE)
    db.state = state ~= nil and ffi.string(state) or nil
    local message = clean(result ~= nil and library.tlua_pg_result_error(result) or library.tlua_pg_error(db.handle))
    library.tlua_pg_clear(result)
    error("sweep: PostgreSQL: " .. message, 0)
  end
  local rows = read_rows(result)
  local changed = tonumber(ffi.string(library.tlua_pg_changed(result))) or 0
  library.tlua_pg_clear(result)
  return rows, changed
end

function Database:query(sql, ...) return (execute(self, sql, select("#", ...), ...)) end

function Database:run(sql, ...)
  local _, changed = execute(self, sql, select("#", ...), ...)
  return changed
end

local function finish(db, ok, ...)
  if ok then
    execute(db, "COMMIT", 0)
    return ...
  end
  local state = db.state
  pcall(execute, db, "ROLLBACK", 0)
  db.state = state
  error((...), 0)
end

local function once(db, lock, f, ...)
  db.state = nil
  execute(db, "BEGIN", 0)
  if lock then execute(db, "SELECT pg_advisory_xact_lock(" .. LOCK .. ")", 0) end
  return finish(db, pcall(f, ...))
end

-- A deadlock or a conflict of two transactions is nobody's fault: the one that was rolled back is run again.
local function transaction(db, lock, f, ...)
  for tries = 10, 1, -1 do
    local results = { pcall(once, db, lock, f, ...) }
    if results[1] then return unpack(results, 2, 4) end
    if tries == 1 or (db.state ~= "40001" and db.state ~= "40P01") then error(results[2], 0) end
  end
end

function Database:transaction(f, ...) return transaction(self, false, f, ...) end

--- A transaction that no other of this kind runs beside.
function Database:exclusive(f, ...) return transaction(self, true, f, ...) end

function Database:close()
  if self.handle == nil then return end
  library.tlua_pg_finish(self.handle)
  self.handle = nil
end

local postgres = {}

--- Connects to postgresql://user@host/database or the like.
function postgres.open(address)
  load_library()
  local handle = library.tlua_pg_connect(address)
  if handle == nil then error("sweep: no memory for a connection to PostgreSQL", 0) end
  if library.tlua_pg_status(handle) ~= 0 then
    local message = clean(library.tlua_pg_error(handle))
    library.tlua_pg_finish(handle)
    error("sweep: cannot open " .. address:gsub(":[^:@/]*@", ":***@") .. ": " .. message, 0)
  end
  local db = setmetatable({ path = "PostgreSQL", handle = handle, translated = {} }, Database)
  execute(db, "SET client_min_messages = warning", 0) -- "relation exists, skipping" is no news
  return db
end

return postgres
