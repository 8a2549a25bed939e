-- source.lua: whose a chunk is, by what debug.getinfo calls its source.
local source = {}

local development = os.getenv("TLUA_PATH")
development = development and "@" .. development:gsub("/+$", "") .. "/tlua/"

--- Is this chunk part of the library (baked, or from TLUA_PATH)?
function source.is_library(name)
  return name:sub(1, 6) == "@tlua/" or (development and name:sub(1, #development) == development) or false
end

return source
