-- luacheck: the tree's Lua is LuaJIT's; nothing sets globals except the command line.
std = "luajit"
max_line_length = 120
max_string_line_length = false
self = false
ignore = { "581" } -- "not (x < y)" is how to catch nan
exclude_files = { "tests/golden/", "build*/" }

files["bindings/lua/tlua/cli.lua"] = { globals = { "arg", "tl" } }
files["bindings/lua/tlua/repl.lua"] = { globals = { "tl" } }
files["bindings/lua/tlua/sweep/page.lua"] = { max_line_length = false }
files["tests/lua"] = { std = "luajit+busted", globals = { "arg" }, ignore = { "122/os" } }
