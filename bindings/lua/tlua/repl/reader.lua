-- reader.lua: lines become statements and expressions.
local reader = {}

-- An expression (also as "= x" and "return x") becomes a chunk that gets a function and gives another one, which calls
-- the first with the expression's values: from the user's own line, so that the positions of errors are right. nil if
-- the text is no expression.
local function expression(text, name)
  text = text:gsub("^%s*=", ""):gsub("^%s*return%f[%W]", "")
  if not loadstring("return " .. text, name) then return nil end
  -- on the same line where no comment is in the way: errors name the line of the closing parenthesis
  local head = "local __show = ... return function(...) __show("
  return loadstring(head .. text .. ") end", name) or loadstring(head .. text .. "\n) end", name)
end

-- "x;" is an expression whose values stay unshown; a comment may follow.
local function muted(text)
  local bare = text:match("^(.*);%s*$") or text:match("^(.*);%s*%-%-[^\n]*$")
  return bare and bare:find("%S") and bare
end

--- The chunk of a text and its kind: "value" for an expression, "muted" for one that ends in ";" (both: a chunk that
--- gets a function for the values and gives what is to run), "statement" (a chunk to run). When it does not compile:
--- nil and the message, or nil and nil where more lines may complete it.
function reader.compile(text, name)
  name = name or "=stdin"
  local chunk = expression(text, name)
  if chunk then return chunk, "value" end
  local bare = muted(text)
  chunk = bare and expression(bare, name)
  if chunk then return chunk, "muted" end
  local message
  chunk, message = loadstring(text, name)
  if chunk then return chunk, "statement" end
  if message:find("'<eof>'", 1, true) then return nil, nil end
  return nil, message
end

return reader
