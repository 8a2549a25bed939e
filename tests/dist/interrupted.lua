-- interrupted.lua meeting | collective | alone | computing: ranks that never end, for interrupt.sh. "meeting": the last
-- rank does not come to dist.init; "alone": rank 1 does not come to the collective.
local tl = require "tlua"
local dist = tl.dist
local rank = tonumber(os.getenv "OMPI_COMM_WORLD_RANK" or os.getenv "RANK")

local function come() os.execute(("touch '%s.%d'"):format(os.getenv "CAME", rank)) end
local function compute()
  local a = tl.eye(200)
  while true do a = a:mm(a) end
end

if arg[1] == "meeting" then
  come()
  if rank == 1 then compute() end
end
dist.init { timeout = 100 }
come()
if arg[1] == "computing" or (arg[1] == "alone" and rank == 1) then compute() end
while true do dist.all_reduce(tl.ones(1000)) end
