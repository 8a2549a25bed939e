-- collect.lua: a helper of busted (run.lua --collecting): the garbage collector runs after every test.
require("busted").subscribe({ "test", "end" }, function()
  collectgarbage()
  collectgarbage()
  return nil, true -- and the other subscribers see the event, too
end)
