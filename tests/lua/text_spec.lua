-- tl.text: vocabularies of bytes and characters.
local tl = require "tlua"
local text = tl.text

local function raises(pattern, f, ...)
  local ok, message = pcall(f, ...)
  assert.is_false(ok)
  assert.matches(pattern, message)
end

local path = os.tmpname()

-- Saved and loaded, and kept in a checkpoint: the same vocabulary.
local function copies(vocab)
  vocab:save(path)
  local loaded = text.load(path)
  tl.save(path, { vocab = vocab:state_dict() })
  local restored = text.from_state_dict(tl.load(path).vocab)
  os.remove(path)
  return { vocab, loaded, restored }
end

describe("ByteVocab", function()
  it("has the bytes as ids", function()
    for _, vocab in ipairs(copies(text.ByteVocab())) do
      assert.equal(256, vocab:size())
      local ids = vocab:encode("a\0\255é")
      assert.equal("int64", ids.dtype)
      assert.same({ 97, 0, 255, 195, 169 }, ids:tolist())
      assert.equal("a\0\255é", vocab:decode(ids))
      assert.equal("ab", vocab:decode { 97, 98 })
      assert.equal("ab", vocab:decode(tl.tensor({ { 97 }, { 98 } }, { dtype = "int32" })))
      assert.equal("", vocab:decode(vocab:encode ""))
    end
    local vocab = text.ByteVocab()
    raises("id 256 is not 0 to 255", vocab.decode, vocab, { 3, 256 })
    raises("id %-1 is not", vocab.decode, vocab, -1)
    raises("ids are integers, got a tensor of float32", vocab.decode, vocab, tl.ones(2))
    raises("id 2 must be an integer, got 1.5", vocab.decode, vocab, { 1, 1.5 })
    raises("argument 1 must be a string", vocab.encode, vocab, 7)
    raises("an argument too many", text.ByteVocab, 7)
  end)
end)

describe("CharVocab", function()
  it("has the sorted characters of a text as ids", function()
    for _, vocab in ipairs(copies(text.CharVocab "hello wörld 👍🏽\n€")) do
      assert.equal("\n dehlorwö€🏽👍", vocab:characters())
      assert.equal(13, vocab:size())
      assert.equal("CharVocab(13)", tostring(vocab))
      local ids = vocab:encode "ö 👍"
      assert.equal("int64", ids.dtype)
      assert.same({ 9, 1, 12 }, ids:tolist())
      assert.equal("ö 👍", vocab:decode(ids))
      assert.equal("€", vocab:decode(10))
      assert.equal("", vocab:decode(vocab:encode ""))
    end
    assert.equal(0, text.CharVocab(""):size())
  end)

  it("names what it does not have", function()
    local vocab = text.CharVocab "ab"
    raises("'ü' %(U%+00FC, character 3%) is not in the vocabulary", vocab.encode, vocab, "abü")
    raises("'' %(U%+000A, character 1%)", vocab.encode, vocab, "\n")
    raises("not UTF%-8 at byte 2", vocab.encode, vocab, "a\195")
    raises("not UTF%-8 at byte 3", text.CharVocab, "ab\237\160\128")
    raises("id 2 at place 2 is not 0 to 1", vocab.decode, vocab, { 0, 2 })
    raises("ids are integers", vocab.decode, vocab, tl.ones(2))
    raises("argument 1 must be a string, got nil", text.CharVocab)
    raises("did you mean 'unk'", text.CharVocab, "a", { unknown = "?" })
  end)

  it("has a character for those that it does not have", function()
    for _, vocab in ipairs(copies(text.CharVocab("ab", { unk = "\u{FFFD}" }))) do
      assert.same({ 0, 2, 1, 2 }, vocab:encode("aöb\n"):tolist())
      assert.equal("a\u{FFFD}b", vocab:decode { 0, 2, 1 })
    end
    assert.same({ 0, 0, 1 }, text.CharVocab("ab", { unk = "a" }):encode("axb"):tolist())
    raises("'unk' must be one character", text.CharVocab, "ab", { unk = "xy" })
    raises("'unk' must be one character", text.CharVocab, "ab", { unk = "" })
    raises("'unk' must be a string of one character", text.CharVocab, "ab", { unk = 7 })
  end)
end)

describe("saved vocabularies", function()
  it("that are damaged are errors", function()
    local function load(content)
      local file = assert(io.open(path, "wb"))
      file:write(content)
      file:close()
      return text.load(path)
    end
    for _, content in ipairs { "", "{", "[1]", "7", '{"type":3}', '{"a":1}' } do
      raises("is not what a vocabulary saves", load, content)
    end
    raises("no vocabulary of type 'Words'", load, '{"type":"Words"}')
    raises("a CharVocab's state has its characters", load, '{"type":"CharVocab"}')
    raises("No such file", text.load, path .. "-absent")
    raises("argument 1 must be a table", text.from_state_dict, 7)
    raises("did you mean 'CharVocab'", function() return text.CharVocb end)
    os.remove(path)
  end)
end)
