-- reader.lua: lines become statements and expressions.
local reader = {}

-- An expression (also as "= x" and "return x") becomes a chunk that hands its values to its argument: a call from the
-- user's own line, so that the positions of errors are right. nil if the text is no expression.
local function expression(text, name)
  text = text:gsub("^%s*=", ""):gsub("^%s*return%f[%W]", "")
  if not loadstring("return " .. text, name) then return nil end
  -- on the same line where no comment is in the way: errors name the line of the closing parenthesis
  return loadstring("(...)(" .. text .. ")", name) or loadstring("(...)(" .. text .. "\n)", name)
end

-- "x;" is an expression whose values stay unshown; a comment may follow.
local function muted(text)
  local bare = text:match("^(.*);%s*$") or text:match("^(.*);%s*%-%-[^\n]*$")
  return bare and bare:find("%S") and bare
end

--- The chunk of a text, which calls its one argument with the values of an expression. Second value: "value" for an
--- expression, "muted" for one that ends in ";", "statement". When it does not compile: nil and the message, or nil and
--- nil where more lines may complete it.
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
