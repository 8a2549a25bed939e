-- hello.lua: who prints what.
local dist = require("tlua").dist
dist.init { timeout = 30 }
dist.print("hello of " .. dist.world_size())
dist.log "logged"
