-- bpe.lua: byte-level byte-pair encoding: the tokenizers of GPT-2, Llama 3, Qwen and their like, read or trained.
local base = require "tlua.base"
local strings = require "tlua.text.strings"
local ffi, C, check, fail, wrap, out = base.ffi, base.C, base.check, base.fail, base.wrap, base.out

local Tokenizer = { _name = "BPE" }
Tokenizer.__index = Tokenizer

local BPE = {}

local bpe_out, trainer_out = ffi.new("tl_bpe *[1]"), ffi.new("tl_bpe_trainer *[1]")

-- The tokenizer that C just wrote to bpe_out.
local function take()
  return setmetatable({ handle = ffi.gc(bpe_out[0], ffi.C.tl_bpe_free) }, Tokenizer)
end

-- ---- files ----

local function exists(path)
  local file = io.open(path, "rb")
  if file then file:close() end
  return file ~= nil
end

local function is_folder(path)
  local file = io.open(path, "rb")
  local _, why
  if file then _, why = file:read(1) end
  if file then file:close() end
  return why ~= nil
end

--- BPE.load(path): a tokenizer.json, or a folder with one (or with vocab.json and merges.txt).
--- BPE.load(vocab, merges): the two files of GPT-2.
function BPE.load(path, merges)
  local check_path = require("tlua.data.readers").check_path
  check_path(path, "BPE.load")
  if merges ~= nil then
    check_path(merges, "BPE.load")
    check(C.tl_bpe_load_gpt2(path, merges, bpe_out))
    return take()
  end
  if exists(path .. "/tokenizer.json") then
    path = path .. "/tokenizer.json"
  elseif exists(path .. "/vocab.json") and exists(path .. "/merges.txt") then
    return BPE.load(path .. "/vocab.json", path .. "/merges.txt")
  elseif is_folder(path) then
    fail(("BPE.load: %s: there is neither tokenizer.json nor vocab.json and merges.txt"):format(path))
  end
  check(C.tl_bpe_load(path, bpe_out))
  return take()
end

--- tok:save(path): a tokenizer.json, which Hugging Face's tokenizers load, too.
function Tokenizer:save(path)
  require("tlua.data.readers").check_path(path, "BPE:save")
  check(C.tl_bpe_save(self.handle, path))
end

function Tokenizer:state_dict()
  check(C.tl_bpe_text(self.handle, out))
  return { type = "BPE", tokenizer = strings.of(wrap(out[0])) }
end

--- BPE.from_state_dict(state): the tokenizer whose state_dict() that was.
function BPE.from_state_dict(state)
  if type(state) ~= "table" or type(state.tokenizer) ~= "string" then
    fail "from_state_dict: a BPE's state has its tokenizer"
  end
  check(C.tl_bpe_parse(state.tokenizer, #state.tokenizer, bpe_out))
  return take()
end

-- ---- training ----

local function feed_files(trainer, files)
  if type(files) == "string" then files = { files } end
  if type(files) ~= "table" then
    fail("BPE.train: option 'files' must be a table of paths, got " .. base.kind(files))
  end
  for _, path in ipairs(files) do
    require("tlua.data.readers").check_path(path, "BPE.train")
    check(C.tl_read_bytes(path, 2 ^ 40, out))
    local bytes = wrap(out[0])
    check(C.tl_bpe_trainer_feed(trainer, ffi.C.tl_data(bytes), bytes:numel()))
    bytes:free()
  end
end

local function feed_text(trainer, text)
  strings.check(text, "BPE.train: option 'text'")
  check(C.tl_bpe_trainer_feed(trainer, text, #text))
end

-- A string, a list of strings, or a function that gives one after the other until nil.
local function feed_texts(trainer, text)
  if type(text) == "function" then
    for t in text do feed_text(trainer, t) end
  elseif type(text) == "table" then
    for i = 1, #text do feed_text(trainer, text[i]) end
  else
    feed_text(trainer, text)
  end
end

local training = {
  files = base.optional, text = base.optional, vocab_size = base.optional, special_tokens = base.optional,
  pattern = base.optional, min_frequency = 2,
}

local function read_special(list)
  if list == nil then list = {} end
  if type(list) ~= "table" then
    fail("BPE.train: option 'special_tokens' must be a table of strings, got " .. base.kind(list))
  end
  for i, token in ipairs(list) do
    if type(token) ~= "string" or token:find "%z" then
      fail(("BPE.train: special token %d must be a string without NUL bytes, got %s"):format(i, base.kind(token)))
    end
  end
  local pointers = ffi.new("const char *[?]", #list + 1)
  for i, token in ipairs(list) do pointers[i - 1] = token end
  return #list, pointers, list
end

--- BPE.train{text= or files=, vocab_size=, special_tokens={}, pattern=, min_frequency=2}.
function BPE.train(options)
  local o = base.options("BPE.train", options, training)
  if (o.text == nil) == (o.files == nil) then fail "BPE.train: needs either option 'text' or option 'files'" end
  if o.vocab_size == nil then fail "BPE.train: option 'vocab_size' is missing" end
  base.check_integer(o.vocab_size, "BPE.train", "vocab_size")
  if o.vocab_size < 0 or o.vocab_size > 2 ^ 31 - 1 then fail("BPE.train: vocab_size is " .. o.vocab_size) end
  if o.pattern ~= nil and type(o.pattern) ~= "string" then
    fail("BPE.train: option 'pattern' must be a regular expression, got " .. base.kind(o.pattern))
  end
  local n, pointers, list = read_special(o.special_tokens)
  check(C.tl_bpe_trainer_new(o.pattern, trainer_out))
  local trainer = ffi.gc(trainer_out[0], ffi.C.tl_bpe_trainer_free)
  if o.text ~= nil then feed_texts(trainer, o.text) else feed_files(trainer, o.files) end
  -- Not through C's retry: a trainer is used up by its first try.
  local status = ffi.C.tl_bpe_trainer_finish(trainer, o.vocab_size, o.min_frequency, n, pointers, bpe_out)
  ffi.C.tl_bpe_trainer_free(ffi.gc(trainer, nil))
  check(status)
  return take(), list
end

--- Regular expressions that well-known tokenizers cut text with, for BPE.train's `pattern`.
local contractions = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
local rest = [[| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+]]
BPE.patterns = {
  llama3 = contractions .. [[|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}]] .. rest,
  qwen2 = contractions .. [[|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}]] .. rest,
}

-- ---- tokens ----

function Tokenizer:size() return ffi.C.tl_bpe_size(self.handle) end
Tokenizer.vocab_size = Tokenizer.size

--- The id of a token's bytes; nil if it has none.
function Tokenizer:token_to_id(token)
  strings.check(token, "BPE:token_to_id")
  local id = ffi.C.tl_bpe_find(self.handle, token, #token)
  if id >= 0 then return id end
end

local length = ffi.new("int[1]")

--- The bytes that id stands for; nil if there is no such token.
function Tokenizer:id_to_token(id)
  base.check_integer(id, "BPE:id_to_token", "the id")
  if id < 0 or id >= self:size() then return nil end
  local bytes = ffi.C.tl_bpe_token(self.handle, id, length)
  if bytes ~= nil then return ffi.string(bytes, length[0]) end
end

-- ---- encoding ----

-- allowed_special as C wants it: how many, which.
local function read_allowed(self, allowed)
  if allowed == true then return -1, nil end
  if allowed == false then return 0, nil end
  if type(allowed) ~= "table" then
    fail("BPE:encode: option 'allowed_special' must be true, false or a table of special tokens, got "
      .. base.kind(allowed))
  end
  local ids = ffi.new("int[?]", #allowed + 1)
  for i, token in ipairs(allowed) do
    local id = type(token) == "string" and ffi.C.tl_bpe_find(self.handle, token, #token) or -1
    if not ffi.C.tl_bpe_is_special(self.handle, id) then
      fail(("BPE:encode: option 'allowed_special': %q is no special token"):format(tostring(token)))
    end
    ids[i - 1] = id
  end
  return #allowed, ids
end

local encoding = { add_special_tokens = true, allowed_special = base.optional, dtype = "int64" }

--- tok:encode(text, {add_special_tokens=true, allowed_special=true, dtype="int64"}).
function Tokenizer:encode(text, options)
  strings.check(text, "BPE:encode")
  local around, count, allowed, dtype = true, -1, nil, base.C.TL_INT64
  if options ~= nil then
    local o = base.options("BPE:encode", options, encoding)
    around, dtype = o.add_special_tokens, base.dtype(o.dtype, "BPE:encode")
    if o.allowed_special ~= nil then count, allowed = read_allowed(self, o.allowed_special) end
  end
  check(C.tl_bpe_encode(self.handle, text, #text, around, count, allowed, dtype, out))
  return wrap(out[0])
end

local decoding = { skip_special_tokens = false, errors = "keep" }

--- tok:decode(ids, {skip_special_tokens=false, errors="keep"}).
function Tokenizer:decode(ids, options)
  local o = base.options("BPE:decode", options, decoding)
  if o.errors ~= "keep" and o.errors ~= "replace" then
    fail(("BPE:decode: option 'errors' must be \"keep\" or \"replace\", got %q"):format(o.errors))
  end
  ids = strings.ids(ids, "BPE:decode")
  check(C.tl_bpe_decode(self.handle, ids, o.skip_special_tokens, o.errors == "replace", out))
  return strings.of(wrap(out[0]))
end

function Tokenizer:__tostring() return ("BPE(%d)"):format(self:size()) end

return { BPE = BPE }
