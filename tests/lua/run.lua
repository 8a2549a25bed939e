-- run.lua: tlua tests/lua/run.lua [--interpreted | --collecting] [--device NAME] [file or pattern ...]: the busted
-- suite, run by tlua. --interpreted switches the JIT compiler off; --collecting lets the garbage collector run without
-- rest and collects after every test. --device runs every test on that device, but those with the tag #cpu, which each
-- give their reason. In every mode the run fails if tensors are still alive when all tests are done.
local tl = require "tlua"
local base = require "tlua.base"

local here = arg[0]:match("^(.*)/[^/]*$") or "."
package.path = here .. "/?.lua;" .. package.path

local files, collecting, device = {}, false, "cpu"
local i = 1
while i <= #arg do
  local a = arg[i]
  if a == "--interpreted" then
    jit.off()
  elseif a == "--collecting" then
    collecting = true
  elseif a == "--device" then
    i = i + 1
    device = arg[i]
  else
    files[#files + 1] = a
  end
  i = i + 1
end
if #files == 0 then files = { here } end

if collecting then collectgarbage("setpause", 0) end

-- busted's own command line would read `arg`: it is set to what busted shall see.
-- One set of modules for all files: busted would take away those that tl loads later, and load them twice.
local options = { "--output=plainTerminal", "--pattern=_spec", "--no-auto-insulate" }
-- Whole programs in processes of their own gain nothing from the other modes.
if collecting or not jit.status() then options[#options + 1] = "--exclude-tags=once" end
if device ~= "cpu" then options[#options + 1] = "--exclude-tags=once,cpu" end
if collecting then options[#options + 1] = "--helper=" .. here .. "/collect.lua" end
arg = { [0] = arg[0] }
for _, list in ipairs { options, files } do
  for _, a in ipairs(list) do arg[#arg + 1] = a end
end

local stats = base.ffi.new("tl_memory_stats")
local function live_tensors()
  local left
  jit.flush() -- compiled traces hold what they were specialised to
  repeat -- what a finaliser lets go has finalisers, too
    left = stats.tensors
    base.collect()
    base.check(base.C.tl_memory(0, stats))
  until stats.tensors == left
  return left
end

tl.set_default_device(device)
local before = live_tensors()
-- busted ends a failed run by an error without a message.
if not pcall(require "busted.runner", { standalone = false }) then os.exit(1) end
for name in pairs(package.loaded) do -- busted keeps the tests, and they their tensors
  if name:find("^busted") then package.loaded[name] = nil end
end
local left = live_tensors() - before
if left > 0 then
  io.stderr:write(("%d tensors are still alive after the last test\n"):format(left))
  os.exit(1)
end
