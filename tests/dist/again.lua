-- again.lua: ranks leave and meet again; what was begun before is there after dist.destroy, also where nobody waited.
local tl = require "tlua"
local dist = tl.dist

for round = 1, 3 do
  dist.init { timeout = 20 }
  local device = os.getenv "TLUA_TEST_DEVICE" == "cuda" and "cuda:" .. dist.local_rank() or "cpu"
  local rank, size = dist.rank(), dist.world_size()
  local function ones() return tl.ones(4, { device = device }) end
  local mean = dist.all_reduce(ones() * rank, "mean", { async = true })
  local kept = dist.all_reduce(ones(), "sum", { async = true }) -- freed late, and never waited for
  local sum = ones()
  if rank == 1 then dist.all_reduce(sum, "sum", { async = true }) else dist.all_reduce(sum) end
  dist.destroy()
  assert(rank == 1 or sum:sum():item() == 4 * size)
  assert(mean:wait():sum():item() == 2 * (size - 1), "round " .. round)
  assert(kept:is_completed())
  kept = nil -- luacheck: ignore 311
  collectgarbage()
end
dist.init()
dist.print "ok again"
