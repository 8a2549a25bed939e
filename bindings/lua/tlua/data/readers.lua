-- readers.lua: data files as tensors.
local base = require "tlua.base"
local ffi, C, check, fail, wrap, out = base.ffi, base.C, base.check, base.fail, base.wrap, base.out

local readers = {}

local archive_out = ffi.new("tl_archive *[1]")

local function check_path(path, op)
  if type(path) ~= "string" then fail(op .. ": argument 1 must be a path, got " .. base.kind(path)) end
  if path:find("%z") then fail(op .. ": the path holds a NUL byte") end
end
readers.check_path = check_path

--- The archive that C just wrote to archive_out, as a list of names and a table name -> tensor.
local function open_archive(pointer)
  local archive = ffi.gc(pointer, ffi.C.tl_archive_free)
  local names, tensors = {}, {}
  for i = 1, ffi.C.tl_archive_count(archive) do
    local name = ffi.string(ffi.C.tl_archive_name(archive, i - 1))
    check(C.tl_archive_tensor(archive, i - 1, out))
    names[i], tensors[name] = name, wrap(out[0])
  end
  return names, tensors, archive
end
readers.open_archive = open_archive

local function single(op, read)
  return function(path)
    check_path(path, op)
    check(C[read](path, out))
    return wrap(out[0])
  end
end

--- data.idx(path), data.npy(path), data.image(path): one tensor.
readers.idx = single("idx", "tl_read_idx")
readers.npy = single("npy", "tl_read_npy")
readers.image = single("image", "tl_read_image")

--- data.npz(path): a table name -> tensor.
function readers.npz(path)
  check_path(path, "npz")
  check(C.tl_read_npz(path, archive_out))
  local _, tensors = open_archive(archive_out[0])
  return tensors
end

--- data.save_npy(path, x).
function readers.save_npy(path, x)
  check_path(path, "save_npy")
  base.check_tensor(x, "save_npy", 2)
  check(C.tl_write_npy(path, x))
end

--- data.text(path, {bytes=false, limit=2^31}): a string, or with bytes a uint8 tensor.
function readers.text(path, options)
  check_path(path, "text")
  local o = base.options("text", options, { bytes = false, limit = 2 ^ 31 })
  check(C.tl_read_bytes(path, o.limit, out))
  local bytes = wrap(out[0])
  if o.bytes then return bytes end
  local text = ffi.string(ffi.C.tl_data(bytes), ffi.C.tl_numel(bytes))
  bytes:free()
  return text
end

-- ---- csv ----

local csv_options = ffi.new("tl_csv_options")

-- What csv_options points to: C sees it only as long as Lua holds it.
local selected = {}

-- Names and positions as C arrays.
local function read_columns(columns)
  local n = #columns
  if n == 0 then fail("csv: option 'columns' names no column") end
  local names, positions = ffi.new("const char *[?]", n), ffi.new("int[?]", n)
  for i, column in ipairs(columns) do
    if type(column) == "string" then names[i - 1] = column
    else positions[i - 1] = base.position(column, "csv") end
  end
  selected.columns, selected.names, selected.positions = columns, names, positions
  csv_options.columns, csv_options.names, csv_options.positions = n, selected.names, selected.positions
end

--- data.csv(path, {header=, columns=, delimiter=",", dtype="float32", missing=false}): the table (rows, columns), the
--- list of column names, and a table name -> column (rows).
function readers.csv(path, options)
  check_path(path, "csv")
  local o = base.options("csv", options,
    { header = base.optional, columns = base.optional, delimiter = ",", dtype = "float32", missing = false })
  if type(o.delimiter) ~= "string" or #o.delimiter ~= 1 then fail("csv: option 'delimiter' must be one character") end
  csv_options.delimiter = o.delimiter:byte()
  csv_options.header = o.header == nil and -1 or o.header and 1 or 0
  csv_options.allow_missing = o.missing and true or false
  csv_options.dtype = base.dtype(o.dtype, "csv")
  csv_options.columns, csv_options.names, csv_options.positions = 0, nil, nil
  if o.columns ~= nil then read_columns(type(o.columns) == "table" and o.columns or { o.columns }) end
  check(C.tl_read_csv(path, csv_options, out, archive_out))
  local x = wrap(out[0])
  local names, columns = open_archive(archive_out[0])
  return x, names, columns
end

return readers
