-- store.lua: vocabularies from files and from checkpoints.
local base = require "tlua.base"
local fail = base.fail

local store = {}

--- from_state_dict(state): the vocabulary or tokenizer whose state_dict() that was.
function store.from_state_dict(state)
  if type(state) ~= "table" then fail("from_state_dict: argument 1 must be a table, got " .. base.kind(state)) end
  if state.type == "BPE" then return require("tlua.text.bpe").BPE.from_state_dict(state) end
  local make = require("tlua.text.vocab").states[state.type]
  if not make then fail(("from_state_dict: there is no vocabulary of type '%s'"):format(tostring(state.type))) end
  return make(state)
end

--- load(path): what a vocabulary's save(path) wrote.
function store.load(path)
  local text = base.tl.data.text(path)
  if text:find('"model"', 1, true) then return require("tlua.text.bpe").BPE.load(path) end
  local ok, state = pcall(require("tlua.json").decode, text)
  if not ok or type(state) ~= "table" or type(state.type) ~= "string" then
    fail(path .. ": is not what a vocabulary saves")
  end
  return store.from_state_dict(state)
end

return store
