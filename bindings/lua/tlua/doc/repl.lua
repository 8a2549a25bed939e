-- repl.lua: what the REPL's ?name shows of itself: pure data.
return {
  ["tl.breakpoint"] = [[
breakpoint(): opens the REPL at the caller's line. Locals, upvalues and globals of the frame can be read and assigned;
:where :up :down :locals look around, :continue goes on, :quit ends the program.]],
  ["tl.poll"] = [[
poll(): a moment between two steps: lines of `tlua attach` run here, in the caller's frame (tlua --control). Loops over a
DataLoader poll by themselves. Costs next to nothing otherwise.]],
}
