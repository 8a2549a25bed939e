-- cdef.lua: luajit cdef.lua PREPROCESSED OPS.def OUT: the preprocessed tlua.h as the Lua module "tlua.cdef", which
-- hands it to ffi.cdef and returns what the binding needs to know about it: how many arguments each fallible function
-- takes, and the rows of the pointwise table. Part of the build.
local input, rows, output = arg[1], arg[2], arg[3]

local source = assert(io.open(input)):read("*a")
source = source:gsub("#[^\n]*\n", ""):gsub("\n%s*\n+", "\n")

-- Functions that take an array of tensors have no arity: the binding must not repeat their calls on its own (nothing
-- there says what keeps the tensors alive).
local file = assert(io.open(output, "w"))
file:write('require("ffi").cdef[==[\n', source, "]==]\nreturn {\n  arity = {\n")
for name, arguments in source:gmatch("tl_status%s+(tl_[%w_]+)%s*(%b())%s*;") do
  local _, commas = arguments:gsub(",", "")
  if not arguments:find("%*%s*const%s*%*") then
    file:write(("    %s = %d,\n"):format(name, arguments:match("^%(%s*void%s*%)$") and 0 or commas + 1))
  end
end
file:write("  },\n  ops = {\n")
for row, name in assert(io.open(rows)):read("*a"):gmatch("\nTL_(%u+%d?)%(([%w_]+),%s*%u+,") do
  file:write(("    {%q, %q},\n"):format(name, row:lower()))
end
file:write("  },\n}\n")
assert(file:close())
