-- breakpoint.lua: tl.breakpoint(): the REPL at the caller's line; its locals can be read and assigned.
return function()
  require("tlua.repl").stopped("breakpoint")
end
