-- absent.lua exits | sleeps | stays: the last rank does not come to dist.init; "stays": all come, and never end.
local dist = require("tlua").dist
if os.getenv "OMPI_COMM_WORLD_RANK" == "1" and arg[1] ~= "stays" then
  if arg[1] == "exits" then os.exit(0) end
  os.execute "sleep 20"
end
dist.init { timeout = 2 }
while true do os.execute "sleep 0.1" end
