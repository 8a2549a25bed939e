-- text.lua: what the REPL's ?name shows of tl.text: pure data.
return {
  ["tl.text"] = [[
Text to token ids and back: ByteVocab, CharVocab, BPE. A vocabulary has encode(text): a 1-d int64 tensor of ids (0-based
data); decode(ids): a string, of a tensor of any shape or a table; size(): one more than the largest id; save(path), which
tl.text.load(path) reads; and state_dict() for checkpoints (from_state_dict).]],
  ["tl.text.ByteVocab"] = [[
ByteVocab(): ids are bytes, 0 to 255. Encodes and decodes any string.]],
  ["tl.text.CharVocab"] = [[
CharVocab(text, {unk=}): the characters (Unicode code points) of a text, sorted; the id of one is its place. The text
must be UTF-8. encode of a character that it does not have is an error that names it and its place; or with unk (one
character, added to the vocabulary) it becomes unk's id. vocab:characters(): all, in the order of their ids.]],
  ["tl.text.BPE"] = [[
Byte-level byte-pair encoding (Sennrich et al. 2016; GPT-2): BPE.load(path) reads a tokenizer.json of Hugging Face's
tokenizers, or a folder with one or with GPT-2's vocab.json and merges.txt; BPE.load(vocab, merges) these two files;
BPE.train{...} learns one. Tokenizers of GPT-2, Llama 3, Qwen and their like load and give the reference's ids; what a file
asks for beyond byte-level BPE (SentencePiece, WordPiece, normalizers but NFC) is an error that names it. tok:encode(text,
{add_special_tokens=true, allowed_special=true, dtype="int64"}): the ids of any bytes; those that are no UTF-8 are pieces of
their own. add_special_tokens: with what the file's template puts around a text. allowed_special: special tokens in the text
become their ids: true all, false none (text that users wrote), a table these. tok:decode(ids,
{skip_special_tokens=false, errors="keep"}): the bytes; errors="replace" makes U+FFFD of what is no UTF-8. tok:size() (also vocab_size()): one more than
the largest id; tok:token_to_id(bytes), tok:id_to_token(id): nil when there is none; tok:save(path): tokenizer.json.]],
  ["tl.text.BPE.train"] = [[
BPE.train{text= or files=, vocab_size=, special_tokens={}, pattern=, min_frequency=2}: the most frequent pair of neighbours
becomes a token, of equals the one with the smaller ids (the merges of Hugging Face's BpeTrainer), until there are
vocab_size tokens or no pair occurs min_frequency times. text: a string, a table of them, or a function that gives one after the other;
files: paths (gzip is read), each as one text. Ids: special_tokens, then the 256 bytes, then merges. pattern: the regular
expression (PCRE2 with Unicode) whose matches, and what lies between them, are merged each by itself; by default GPT-2's;
BPE.patterns has llama3 and qwen2.]],
  ["tl.text.load"] = [[
load(path): the vocabulary or tokenizer that save(path) wrote.]],
  ["tl.text.from_state_dict"] = [[
from_state_dict(state): the vocabulary or tokenizer whose state_dict() that was. States are tables of strings, which tl.save keeps in a
checkpoint.]],
}
