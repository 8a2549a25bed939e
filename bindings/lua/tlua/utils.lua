-- utils.lua: tl.utils.
return { checkpoint = require "tlua.checkpoint" }
