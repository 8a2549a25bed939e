-- cli.lua: the command line.
return function()
  return 0
end
