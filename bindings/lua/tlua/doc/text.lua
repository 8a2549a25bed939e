-- text.lua: what the REPL's ?name shows of tl.text: pure data.
return {
  ["tl.text"] = [[
Text to token ids and back: ByteVocab, CharVocab. A vocabulary has encode(text): a 1-d int64 tensor of ids (0-based
data); decode(ids): a string, of a tensor of any shape or a table; size(): one more than the largest id; save(path), which
tl.text.load(path) reads; and state_dict() for checkpoints (from_state_dict).]],
  ["tl.text.ByteVocab"] = [[
ByteVocab(): ids are bytes, 0 to 255. Encodes and decodes any string.]],
  ["tl.text.CharVocab"] = [[
CharVocab(text, {unk=}): the characters (Unicode code points) of a text, sorted; the id of one is its place. The text
must be UTF-8. encode of a character that it does not have is an error that names it and its place; or with unk (one
character, added to the vocabulary) it becomes unk's id. vocab:characters(): all, in the order of their ids.]],
  ["tl.text.load"] = [[
load(path): the vocabulary that save(path) wrote.]],
  ["tl.text.from_state_dict"] = [[
from_state_dict(state): the vocabulary whose state_dict() that was. States are tables of strings, which tl.save keeps in a
checkpoint.]],
}
