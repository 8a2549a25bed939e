-- repl.lua: the read-eval-print loop: a plain one, on standard input.

local function show(...)
  local texts = {}
  for i = 1, select("#", ...) do texts[i] = tostring((select(i, ...))) end
  if #texts > 0 then print(table.concat(texts, "\t")) end
end

-- One line. Returns true when Ctrl-C came instead; false at the end of the input.
local function read_line(native, prompt)
  io.write(prompt)
  io.flush()
  native.arm()
  -- The error of Ctrl-C is raised at the first instruction after the read: inside this function.
  local _, text = pcall(function()
    local line = io.read()
    return line
  end)
  return native.disarm() or text or false
end

-- An expression (also as "= x" and "return x") becomes a chunk that hands its values to its argument: a call of `show`
-- from the user's own line, so that the positions of errors are right. Returns nil if the text is no expression.
local function expression(text)
  text = text:gsub("^%s*=", ""):gsub("^%s*return%f[%W]", "")
  return loadstring("return " .. text, "=stdin") and loadstring("(...)(" .. text .. "\n)", "=stdin")
end

-- One whole statement or expression, over several lines where it takes them. Returns the chunk, or nil and a message,
-- or false at the end of the input.
local function read(native)
  local text = read_line(native, "> ")
  while type(text) == "string" do
    local chunk, message = expression(text), nil
    if not chunk then chunk, message = loadstring(text, "=stdin") end
    if chunk or not message:find("'<eof>'", 1, true) then return chunk, message end
    local more = read_line(native, ">> ")
    if more == false then return nil, message end
    text = more == true or text .. "\n" .. more
  end
  if text then return nil, "" end
  return false
end

--- call(f, ...) runs f as the user's code and prints its error; native: from main.c.
return function(call, native)
  local tlua = require "tlua"
  if rawget(_G, "tl") == nil then tl = tlua end
  while true do
    local chunk, message = read(native)
    if chunk then
      call(chunk, show)
    elseif chunk == false then
      break
    elseif message == "" then
      print()
    else
      io.stderr:write("tlua: ", message, "\n")
    end
  end
  print()
end
