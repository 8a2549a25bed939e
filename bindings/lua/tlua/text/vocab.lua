-- vocab.lua: bytes and characters as tokens.
local base = require "tlua.base"
local strings = require "tlua.text.strings"
local ffi, C, check, fail, wrap, out = base.ffi, base.C, base.check, base.fail, base.wrap, base.out

local vocab = {}

local function save(self, path) strings.write(path, require("tlua.json").encode(self:state_dict()) .. "\n") end

-- ---- bytes ----

local ByteVocab = { _name = "ByteVocab", save = save }
ByteVocab.__index = ByteVocab

--- ByteVocab(): the ids are the bytes themselves, 0 to 255.
function vocab.ByteVocab(extra)
  base.no_more("ByteVocab", extra)
  return setmetatable({}, ByteVocab)
end

function ByteVocab:size() return 256 end

local size = ffi.new("int64_t[1]")

function ByteVocab:encode(text)
  strings.check(text, "ByteVocab:encode")
  size[0] = #text
  check(C.tl_from_memory(1, size, base.dtype("uint8"), 0, text, out))
  return wrap(out[0]):to("int64")
end

function ByteVocab:decode(ids)
  ids = strings.ids(ids, "ByteVocab:decode"):cpu()
  if ids:numel() == 0 then return "" end
  local least, most = ids:min():item(), ids:max():item()
  if least < 0 or most > 255 then
    fail(("ByteVocab:decode: id %d is not 0 to 255"):format(least < 0 and least or most))
  end
  return strings.of(ids:to("uint8"):contiguous():clone())
end

function ByteVocab:state_dict() return { type = "ByteVocab" } end

-- ---- characters ----

local CharVocab = { _name = "CharVocab", save = save }
CharVocab.__index = CharVocab

local vocab_out = ffi.new("tl_vocab *[1]")

local function encode(self, text)
  check(C.tl_vocab_encode(self.handle, text, #text, self.unk_id, out))
  return wrap(out[0])
end

--- CharVocab(text, {unk=}): the characters (Unicode code points) of a text, sorted. unk: the character that stands for
--- those that the vocabulary does not have.
function vocab.CharVocab(text, options)
  strings.check(text, "CharVocab")
  local o = base.options("CharVocab", options, { unk = base.optional })
  local unk = o.unk
  if unk ~= nil and type(unk) ~= "string" then
    fail("CharVocab: option 'unk' must be a string of one character, got " .. base.kind(unk))
  end
  if unk then text = text .. unk end
  check(C.tl_vocab_new(text, #text, vocab_out))
  local self = setmetatable({ handle = ffi.gc(vocab_out[0], ffi.C.tl_vocab_free), unk = unk, unk_id = -1 }, CharVocab)
  if unk then
    local ids = encode(self, unk)
    if #ids ~= 1 then fail(("CharVocab: option 'unk' must be one character, got %q"):format(unk)) end
    self.unk_id = ids:item()
  end
  return self
end

function CharVocab:size() return ffi.C.tl_vocab_size(self.handle) end

function CharVocab:encode(text)
  strings.check(text, "CharVocab:encode")
  return encode(self, text)
end

function CharVocab:decode(ids)
  check(C.tl_vocab_decode(self.handle, strings.ids(ids, "CharVocab:decode"), out))
  return strings.of(wrap(out[0]))
end

--- All characters in the order of their ids.
function CharVocab:characters()
  check(C.tl_vocab_characters(self.handle, out))
  return strings.of(wrap(out[0]))
end

function CharVocab:state_dict() return { type = "CharVocab", characters = self:characters(), unk = self.unk } end

-- ---- from a state ----

-- type -> what makes one of its state
vocab.states = {
  ByteVocab = function() return vocab.ByteVocab() end,
  CharVocab = function(state)
    if type(state.characters) ~= "string" then fail "from_state_dict: a CharVocab's state has its characters" end
    return vocab.CharVocab(state.characters, { unk = state.unk })
  end,
}

-- What print shows.
for name, class in pairs { ByteVocab = ByteVocab, CharVocab = CharVocab } do
  class.__tostring = function(self) return ("%s(%d)"):format(name, self:size()) end
end

return vocab
