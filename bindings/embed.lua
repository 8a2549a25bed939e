-- embed.lua: luajit embed.lua OUT.c LUA_ROOT SCRIPT_ROOT FILES...: bakes Lua sources into a C table. Part of the build.
-- A file below LUA_ROOT becomes a module (tlua/nn/init.lua -> "tlua.nn"), one below SCRIPT_ROOT a tool ("tool:bench"),
-- one in a folder examples/ "example:NAME", any other a module "tlua.NAME".
local out, lua_root, script_root = arg[1], arg[2], arg[3]

local function module_name(path)
  if path:sub(1, #lua_root + 1) == lua_root .. "/" then
    local name = path:sub(#lua_root + 2):gsub("%.lua$", ""):gsub("/init$", ""):gsub("/", ".")
    return name
  end
  local base = path:match("([^/]+)%.lua$")
  if path:sub(1, #script_root + 1) == script_root .. "/" then return "tool:" .. base end
  if path:find("/examples/[^/]+$") then return "example:" .. base end
  return "tlua." .. base
end

-- C string literals of at most one line of source each: compilers limit the length of one literal, not of their sum.
local function c_string(text)
  return '"' .. text:gsub('[%c"\\?]', function(c) return ("\\%03o"):format(c:byte()) end) .. '"'
end

local file = assert(io.open(out, "w"))
file:write('#include "baked.h"\n\n')
local entries = {}
for i = 4, #arg do
  local path = arg[i]
  local source = assert(io.open(path, "rb")):read("*a")
  local name = module_name(path)
  file:write(("static const char source_%d[] =\n"):format(i))
  for line in (source .. "\n"):gmatch("(.-\n)") do file:write("  ", c_string(line), "\n") end
  file:write("  ;\n\n")
  local chunk = path:match("([^/]+)$")
  if path:sub(1, #lua_root + 1) == lua_root .. "/" then chunk = path:sub(#lua_root + 2) end
  if name:find("^tool:") then chunk = "scripts/" .. chunk end
  if name:find("^example:") then chunk = "examples/" .. chunk end
  if name == "tlua.cdef" then chunk = "tlua/cdef.lua" end
  local entry = "  {%s, %s, source_%d, sizeof source_%d - 1},"
  entries[#entries + 1] = entry:format(c_string(name), c_string("@" .. chunk), i, i)
end
file:write("const tlua_baked tlua_baked_files[] = {\n", table.concat(entries, "\n"), "\n  {0, 0, 0, 0},\n};\n")
assert(file:close())
