-- utils.lua: tl.utils.
local base = require "tlua.base"

return base.namespace(require "tlua.checkpoint", "tl.utils")
