-- tl.train.TensorBoard: event files.
local tl = require "tlua"
local base = require "tlua.base"
local system = require "tlua.system"
local ffi, C, check = base.ffi, base.C, base.check

local here = debug.getinfo(1, "S").source:match("^@(.*)lua/[^/]*$")

local function raises(pattern, f, ...)
  local ok, message = pcall(f, ...)
  assert.is_false(ok)
  assert.matches(pattern, message)
end

local folder
before_each(function() folder = os.tmpname() os.remove(folder) end)
after_each(function()
  for name in pairs(system.entries(folder) or {}) do os.remove(folder .. "/" .. name) end
  os.remove(folder)
end)

local function read(path)
  local file = assert(io.open(path, "rb"))
  local text = file:read("*a")
  file:close()
  return text
end

local function files()
  local list = {}
  for name in pairs(system.entries(folder) or {}) do list[#list + 1] = name end
  table.sort(list)
  return list
end

describe("TensorBoard", function()
  it("writes the bytes that TensorBoard's own writer does", function()
    local out = ffi.new("tl_events *[1]")
    check(C.tl_events_new(folder, 1.5, out))
    local e = ffi.gc(out[0], ffi.C.tl_events_free)
    check(C.tl_events_scalar(e, 2.25, 1, "train/loss", 0.1))
    check(C.tl_events_scalar(e, 3, 2 ^ 40, "lr", math.huge))
    check(C.tl_events_text(e, 4, 0, "config", "a *b* \195\164"))
    check(C.tl_events_restart(e, 5, 8))
    check(C.tl_events_histogram(e, 6, 9, "weights", tl.tensor { { -1, 2 }, { 0, 0.5 } }:t()))
    assert.is_true(read(here .. "golden/events.tfevents") == read(folder)) -- before it is closed
  end)

  it("makes a file when there is something to write, and one for each writer", function()
    local a, b = tl.train.TensorBoard(folder .. "/"), tl.train.TensorBoard(folder)
    assert.same({}, files())
    a:log(1, { lr = 0.1 })
    b:scalar("loss", tl.tensor(0.5), 2)
    b:histogram("empty", tl.zeros(0), 2)
    b:histogram("one", tl.tensor { 3, 3, 0 / 0 }, 2)
    a:close()
    a:text("note", "after close", 3)
    a:close()
    local names = files()
    assert.equal(3, #names)
    for _, name in ipairs(names) do assert.matches("^events%.out%.tfevents%.%d+%.", name) end
  end)

  it("refuses what it cannot write", function()
    raises("argument 1 must be a folder's path, got nil", tl.train.TensorBoard)
    local w = tl.train.TensorBoard(folder)
    raises("a tag is a string, got a number", w.scalar, w, 1, 1, 1)
    raises("the step", w.scalar, w, "a", 1, 0.5)
    raises("the value must be a number, got a string", w.scalar, w, "a", "b", 1)
    raises("the text must be a string, got nil", w.text, w, "a")
    raises("must be a tensor", w.histogram, w, "a", 1, 1)
    raises("'lr' must be a number", w.log, w, 1, { lr = "x" })
    raises("/proc/none/events.*: No such file", function() tl.train.TensorBoard("/proc/none"):log(1, { a = 1 }) end)
  end)
end)

describe("TensorBoard #once", function()
  it("is read back by TensorBoard's own reader", function()
    local python = os.getenv "TLUA_TEST_PYTHON" or "python3"
    if os.execute(python .. " -c 'import tensorboard' 2>/dev/null") ~= 0 then
      return pending "needs Python's tensorboard (TLUA_TEST_PYTHON names another python3)"
    end
    local w = tl.train.TensorBoard(folder)
    w:text("config", "lr 0.1")
    for step = 1, 5 do w:log(step, { ["train/loss"] = 1 / step, lr = 0.25 }) end
    w:histogram("weights", tl.tensor { -1, 0, 2 }, 3)
    local again = tl.train.TensorBoard(folder) -- a run that goes on from step 3
    again:rewind(3)
    again:log(4, { ["train/loss"] = 40 })
    local pipe = io.popen(("%s '%sgolden/events_read.py' '%s' 2>/dev/null"):format(python, here, folder))
    local text = pipe:read("*a")
    pipe:close()
    assert.equal([[
train/loss (1, 1.0) (2, 0.5) (3, 0.3333333432674408) (4, 40.0)
lr (1, 0.25) (2, 0.25) (3, 0.25)
config lr 0.1
weights 3 3.0 -1.0 2.0
]], text)
  end)
end)
