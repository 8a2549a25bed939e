-- doc.lua: what the REPL's ?name shows. The texts are data files in doc/, one an area: name -> text. Names are what a
-- script writes: "tl.matmul", "tl.nn.Linear"; a method that is no function of tl, too, is "x:view".
local doc = {}

-- The areas that this program may have; those that are not built are passed over.
local areas = {
  "tensor", "pointwise", "autograd", "nn", "optim", "amp", "data", "text", "train", "models", "prune", "dist", "cuda",
  "sweep", "repl",
}

local texts

--- Adds texts: a table name -> text.
function doc.add(more)
  texts = texts or {}
  for name, text in pairs(more) do texts[name] = text end
end

local function load()
  if texts and texts.complete then return end
  doc.add { complete = "" }
  for _, area in ipairs(areas) do
    local module = "tlua.doc." .. area
    local ok, found = pcall(require, module)
    if ok then doc.add(found)
    elseif not tostring(found):find("module '" .. module .. "' not found", 1, true) then error(found, 0) end
  end
end

-- The spellings under which a text may be filed: relu, tl.relu, x:relu, Tensor.relu; relu_ is relu in place.
local function spellings(name)
  local short = name:gsub("^tl%.", ""):gsub("^[%w_]*:", ""):gsub("^[Tt]ensor[.:]", "")
  local list = { name, "tl." .. short, "x:" .. short, "tl." .. name }
  local plain = short:match("^(.-[^_])_$")
  if plain then
    list[#list + 1] = "tl." .. plain
    list[#list + 1] = "x:" .. plain
  end
  return list, plain
end

--- The text for a name, and the name it is filed under; nil if there is none.
function doc.find(name)
  load()
  local list, plain = spellings(name)
  for i, spelling in ipairs(list) do
    local text = texts[spelling]
    if text and spelling ~= "complete" then
      if plain and i > 4 then return "In place (x changes and is returned): " .. text, spelling end
      return text, spelling
    end
  end
  return nil
end

--- All names, sorted; with a pattern those that match.
function doc.names(pattern)
  load()
  local list = {}
  for name in pairs(texts) do
    if name ~= "complete" and (not pattern or name:find(pattern)) then list[#list + 1] = name end
  end
  table.sort(list)
  return list
end

return doc
