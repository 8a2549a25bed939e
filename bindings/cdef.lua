-- cdef.lua: luajit cdef.lua PREPROCESSED OUT: the preprocessed tlua.h as the Lua module "tlua.cdef", which hands it to
-- ffi.cdef. Part of the build.
local input, output = arg[1], arg[2]

local source = assert(io.open(input)):read("*a")
source = source:gsub("#[^\n]*\n", ""):gsub("\n%s*\n+", "\n")

local file = assert(io.open(output, "w"))
file:write('require("ffi").cdef[==[\n', source, "]==]\n")
assert(file:close())
