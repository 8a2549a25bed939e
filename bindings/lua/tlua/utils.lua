-- utils.lua: tl.utils.
local base = require "tlua.base"

return base.namespace({ checkpoint = require "tlua.checkpoint" }, "tl.utils")
