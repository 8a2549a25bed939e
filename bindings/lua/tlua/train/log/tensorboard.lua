-- tensorboard.lua: metrics, texts and histograms as event files, which TensorBoard shows (tensorboard --logdir FOLDER).
-- The format is the engine's (engine/data/tensorboard.c).
local base = require "tlua.base"
local system = require "tlua.system"
local rows = require "tlua.train.log.rows"
local ffi, C, check, fail = base.ffi, base.C, base.check, base.fail

local TensorBoard = {}
TensorBoard.__index = TensorBoard

local handle_out = ffi.new("tl_events *[1]")
local files = 0 -- of this process

local function host_name()
  local file = io.open("/proc/sys/kernel/hostname")
  local name = file and file:read("*l")
  if file then file:close() end
  return name or "localhost"
end

-- Every process writes a file of its own; it is made when there is something to write.
local function handle_of(self)
  if self.handle then return self.handle end
  system.make_folders(self.directory)
  files = files + 1
  local name = ("events.out.tfevents.%010.0f.%s.%d.%03d"):format(system.time(), host_name(), system.pid(), files)
  local path = self.directory .. "/" .. name
  check(C.tl_events_new(path, system.time(), handle_out))
  self.handle = ffi.gc(handle_out[0], ffi.C.tl_events_free)
  return self.handle
end

local function check_tag(op, tag, step)
  if type(tag) ~= "string" or tag == "" then fail(op .. ": a tag is a string, got " .. base.kind(tag)) end
  base.check_integer(step, op, "the step")
end

--- tensorboard:log(step, {name = number, ...}): a point in the chart of each name; a/b is chart b of the group a.
function TensorBoard:log(step, values)
  for _, name in ipairs(rows.check("TensorBoard", step, values)) do self:scalar(name, values[name], step) end
end

--- tensorboard:scalar(tag, number, step)
function TensorBoard:scalar(tag, number, step)
  check_tag("TensorBoard:scalar", tag, step)
  if base.is_tensor(number) then number = number:item() end
  base.check_number(number, "TensorBoard:scalar", "the value")
  check(C.tl_events_scalar(handle_of(self), system.time(), step, tag, number))
end

--- tensorboard:text(tag, text, step=0): Markdown.
function TensorBoard:text(tag, text, step)
  check_tag("TensorBoard:text", tag, step or 0)
  if type(text) ~= "string" then fail("TensorBoard:text: the text must be a string, got " .. base.kind(text)) end
  check(C.tl_events_text(handle_of(self), system.time(), step or 0, tag, text))
end

--- tensorboard:histogram(tag, tensor, step): how its elements are spread.
function TensorBoard:histogram(tag, tensor, step)
  check_tag("TensorBoard:histogram", tag, step)
  base.check_tensor(tensor, "TensorBoard:histogram", 2)
  check(C.tl_events_histogram(handle_of(self), system.time(), step, tag, tensor))
end

--- tensorboard:rewind(step): what earlier files have of later steps is void.
function TensorBoard:rewind(step)
  check_tag("TensorBoard:rewind", "step", step)
  check(C.tl_events_restart(handle_of(self), system.time(), step + 1))
end

function TensorBoard:close()
  if self.handle then ffi.C.tl_events_free(ffi.gc(self.handle, nil)) end
  self.handle = nil
end

--- TensorBoard(directory): a writer of event files there; old ones stay.
local function new(directory)
  if type(directory) ~= "string" or directory == "" then
    fail("TensorBoard: argument 1 must be a folder's path, got " .. base.kind(directory))
  end
  return setmetatable({ directory = directory:match("^(.-)/*$") }, TensorBoard)
end

return { TensorBoard = new }
