-- faults.lua CASE: what goes wrong between ranks is said on every rank, and nothing hangs (timeout: 2 s). Rank 1 is the
-- one that differs.
local tl = require "tlua"
local dist = tl.dist

dist.init { timeout = 2 }
local odd = dist.rank() == 1
if os.getenv "TLUA_TEST_DEVICE" == "cuda" then tl.set_default_device("cuda:" .. dist.local_rank()) end

local cases = {}

function cases.size() dist.all_reduce(tl.ones(odd and 4 or 3)) end
function cases.dtype() dist.all_reduce(tl.ones(3, { dtype = odd and "int32" or "float32" })) end
function cases.reduction() dist.all_reduce(tl.ones(3), odd and "max" or "sum") end
function cases.root() dist.broadcast(tl.ones(3), odd and 1 or 0) end
function cases.order()
  if odd then dist.barrier() else dist.all_gather(tl.ones(3)) end
end
function cases.absent()
  if odd then
    os.execute "sleep 4"
    error "too late"
  end
  dist.all_reduce(tl.ones(3))
end
function cases.error()
  if odd then error "of rank 1" end
  dist.barrier()
end
function cases.kill()
  if odd then os.execute "kill -9 $PPID" end
  dist.barrier()
end
function cases.exit()
  if odd then os.exit(3) end
  dist.barrier()
end
-- all agree on an exchange between devices, which rank 1 never starts
function cases.stuck()
  if not odd then return dist.all_reduce(tl.ones(3)):sum():item() end
  dist.all_reduce(tl.ones(3), "sum", { async = true })
  for _ = 1, 200 do os.execute "sleep 0.1" end
end
-- a failure of which the device knows nothing
function cases.leaves()
  dist.all_reduce(tl.ones(3))
  pcall(dist.all_reduce, tl.ones(odd and 4 or 3))
  dist.destroy()
end
-- what was queued after the failure fails, too, and says why
function cases.later()
  pcall(dist.all_reduce, tl.ones(odd and 4 or 3))
  dist.barrier()
end

local ok, message = pcall(cases[arg[1]])
dist.log(ok, message)
if not ok then error(message, 0) end
