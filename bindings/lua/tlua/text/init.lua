-- text: from text to token ids and back. Files load when one of their names is first used.
--
-- A vocabulary has encode(text), which gives a 1-d int64 tensor of ids (0-based data), decode(ids), which gives a
-- string, size(), one more than the largest id, save(path) and state_dict() for a checkpoint.
local base = require "tlua.base"

-- name -> the file that defines it
local home = { ByteVocab = "vocab", CharVocab = "vocab", BPE = "bpe", load = "store", from_state_dict = "store" }

return setmetatable({}, {
  __index = function(text, name)
    local file = home[name]
    if not file then
      base.fail(("there is no tl.text.%s%s"):format(tostring(name), base.suggestion(tostring(name), home)))
    end
    local value = require("tlua.text." .. file)[name]
    text[name] = value
    return value
  end,
})
