-- run.lua: tlua tests/lua/run.lua [--interpreted | --collecting] [file or pattern ...]: the busted suite, run by tlua.
-- --interpreted switches the JIT compiler off; --collecting lets the garbage collector run without rest and collects
-- after every test. In every mode the run fails if tensors are still alive when all tests are done.
local tl = require "tlua"
local base = require "tlua.base"

local here = arg[0]:match("^(.*)/[^/]*$") or "."
package.path = here .. "/?.lua;" .. package.path

local files, collecting = {}, false
for _, a in ipairs(arg) do
  if a == "--interpreted" then
    jit.off()
  elseif a == "--collecting" then
    collecting = true
  else
    files[#files + 1] = a
  end
end
if #files == 0 then files = { here } end

local busted = require "busted.core"()
if collecting then collectgarbage("setpause", 0) end
busted.subscribe({ "test", "end" }, function()
  if collecting then collectgarbage() end
end)

-- busted's own command line would read `arg`: it is set to what busted shall see.
arg = { [0] = arg[0], "--output=plainTerminal", "--pattern=_spec", unpack(files) }

local stats = base.ffi.new("tl_memory_stats")
local function live_tensors()
  base.collect()
  base.collect()
  base.check(base.C.tl_memory(0, stats))
  return stats.tensors
end

-- The runner ends the process itself: look for leaks on the way out.
local exit = os.exit
local before = live_tensors()
os.exit = function(code, close)
  local failed = code ~= 0 and code ~= true and code ~= nil
  if not failed then
    package.loaded["busted.core"] = nil
    local left = live_tensors() - before
    if left > 0 then
      io.stderr:write(("%d tensors are still alive after the last test\n"):format(left))
      exit(1, close)
    end
  end
  exit(code, close)
end

require "busted.runner" { standalone = false }
