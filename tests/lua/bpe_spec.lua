-- tl.text.BPE against Hugging Face's tokenizers (tests/golden/bpe.py), its files, and what it refuses.
local tl = require "tlua"
local json = require "tlua.json"
local BPE = tl.text.BPE

local golden = debug.getinfo(1, "S").source:match("^@(.*)lua/[^/]*$") .. "golden/"
local texts = dofile(golden .. "bpe.lua")
local path = os.tmpname()

local function raises(pattern, f, ...)
  local ok, message = pcall(f, ...)
  assert.is_false(ok)
  assert.matches(pattern, message)
end

local function read(name) return tl.data.text(golden .. name) end
local function gpt2() return BPE.load(golden .. "bpe_gpt2.json") end
local function llama() return BPE.load(golden .. "bpe_llama.json") end

local function write(content)
  local file = assert(io.open(path, "wb"))
  file:write(content)
  file:close()
  return path
end

describe("BPE", function()
  teardown(function() os.remove(path) end)

  it("gives the reference's ids", function()
    for k, tok in ipairs { gpt2(), llama() } do
      for _, case in ipairs(texts) do
        local ids = tok:encode(case[1])
        assert.same(case[1 + k], ids:tolist(), case[1])
        assert.equal("int64", ids.dtype)
        if k == 1 then assert.equal(case[1], tok:decode(ids)) end
      end
    end
  end)

  it("encodes and decodes any bytes", function()
    local bytes = {}
    for b = 0, 255 do bytes[#bytes + 1] = string.char(b, (b * 7 + 3) % 256) end
    local mixed = table.concat(bytes)
    assert.equal(mixed, gpt2():decode(gpt2():encode(mixed))) -- (the other one composes characters)
    for _, tok in ipairs { gpt2(), llama() } do
      for _, text in ipairs { "\255", "a\195", "\237\160\128", "\240\159\145x", "\192\128 é\128" } do
        assert.equal(text, tok:decode(tok:encode(text, { add_special_tokens = false })))
      end
    end
    local tok = gpt2()
    local repaired = "a\u{FFFD}b\u{FFFD}\u{FFFD}é\u{FFFD}"
    assert.equal(repaired, tok:decode(tok:encode "a\240\159\145b\192\128é\195", { errors = "replace" }))
    raises('must be "keep" or "replace"', tok.decode, tok, { 1 }, { errors = "ignore" })
  end)

  it("takes special tokens in a text as told", function()
    local tok = llama()
    local first, last = tok:token_to_id "<|begin_of_text|>", tok:token_to_id "<|end_of_text|>"
    local text = "x<|end_of_text|><|end|>"
    assert.equal(first, tok:encode("x")[1]:item())
    assert.are_not.equal(first, tok:encode("x", { add_special_tokens = false })[1]:item())
    local function count(allowed)
      return tok:encode(text, { allowed_special = allowed }):eq(last):sum():item()
    end
    assert.same({ 1, 0, 1, 0 }, { count(true), count(false), count { "<|end_of_text|>" }, count { "<|end|>" } })
    for _, allowed in ipairs { true, false, { "<|end|>" } } do
      local ids = tok:encode(text, { allowed_special = allowed })
      assert.equal("<|begin_of_text|>" .. text, tok:decode(ids))
    end
    assert.equal("x", tok:decode(tok:encode(text), { skip_special_tokens = true }))
    assert.equal("int32", tok:encode(text, { dtype = "int32" }).dtype)
    assert.same(tok:encode(text):tolist(), tok:encode(text, { dtype = "int32" }):tolist())
    raises('"x" is no special token', tok.encode, tok, text, { allowed_special = { "x" } })
    raises("must be true, false or a table", tok.encode, tok, text, { allowed_special = 7 })
    raises("did you mean 'dtype'", tok.encode, tok, text, { dtyp = "int32" })
    raises("ids are int64 or int32", tok.encode, tok, text, { dtype = "float32" })
  end)

  it("knows its tokens", function()
    local tok = gpt2()
    assert.equal("BPE(521)", tostring(tok))
    assert.equal(521, tok:size())
    assert.equal(521, tok:vocab_size())
    assert.equal(0, tok:token_to_id "<|endoftext|>")
    local id = tok:token_to_id " the"
    assert.equal(" the", tok:id_to_token(id))
    assert.equal(" the the", tok:decode { id, id })
    assert.is_nil(tok:token_to_id "no such token")
    assert.is_nil(tok:id_to_token(521))
    assert.is_nil(tok:id_to_token(-1))
    raises("there is no token 521 %(at place 2%), they are 0 to 520", tok.decode, tok, { 1, 521 })
    raises("there is no token %-1", tok.decode, tok, -1)
    raises("argument 1 must be a string", tok.encode, tok, 7)
  end)

  it("is saved, and kept in a checkpoint", function()
    for k, tok in ipairs { gpt2(), llama() } do
      tok:save(path)
      local saved, loaded = BPE.load(path), tl.text.load(path)
      tl.save(path, { tokenizer = tok:state_dict() })
      local restored = tl.text.from_state_dict(tl.load(path).tokenizer)
      for _, copy in ipairs { saved, loaded, restored } do
        assert.equal(tok:state_dict().tokenizer, copy:state_dict().tokenizer)
        for i = 1, #texts, 5 do assert.same(texts[i][1 + k], copy:encode(texts[i][1]):tolist()) end
      end
    end
    raises("a BPE's state has its tokenizer", tl.text.from_state_dict, { type = "BPE" })
  end)

  it("reads GPT-2's two files", function()
    local root = json.decode(read "bpe_gpt2.json")
    local lines = { "#version: 0.2" }
    for _, pair in ipairs(root.model.merges) do lines[#lines + 1] = pair[1] .. " " .. pair[2] end
    local merges, folder = os.tmpname(), os.tmpname()
    local function put(name, content)
      local file = assert(io.open(name, "wb"))
      file:write(content)
      file:close()
    end
    put(merges, table.concat(lines, "\n") .. "\n")
    -- what json.decode makes of the names' letters is not asked for: the text of the vocabulary as it is
    put(path, (read "bpe_gpt2.json":match('"vocab":(%b{})')))
    os.remove(folder)
    assert(os.execute("mkdir " .. folder) == 0)
    put(folder .. "/vocab.json", tl.data.text(path))
    put(folder .. "/merges.txt", table.concat(lines, "\r\n"))
    for _, tok in ipairs { BPE.load(path, merges), BPE.load(folder) } do
      for i = 1, #texts do assert.same(texts[i][2], tok:encode(texts[i][1]):tolist()) end
    end
    put(merges, "a b c\n")
    raises("merge 0 is not a pair of tokens", BPE.load, path, merges)
    put(merges, "a \255\n")
    raises("is not UTF%-8 text", BPE.load, path, merges)
    os.execute("rm -r " .. folder)
    os.remove(merges)
  end)
end)

describe("BPE.train", function()
  local text = read "bpe.txt"

  -- Names and merges as a file has them.
  local function model(content)
    local root = json.decode(content)
    local merges = {}
    for i, pair in ipairs(root.model.merges) do merges[i] = pair[1] .. " " .. pair[2] end
    return { vocab = root.model.vocab, merges = merges, pre_tokenizer = root.pre_tokenizer }
  end

  it("learns the reference's merges", function()
    local tok = BPE.train { text = text, vocab_size = 700, special_tokens = { "<|endoftext|>" } }
    assert.same(model(read "bpe_gpt2.json"), model(tok:state_dict().tokenizer))
    for i = 1, #texts do assert.same(texts[i][2], tok:encode(texts[i][1]):tolist()) end
    local other = BPE.train { files = { golden .. "bpe.txt" }, vocab_size = 600, pattern = BPE.patterns.llama3 }
    local expected = model(read "bpe_llama.json")
    assert.same(expected, model(other:state_dict().tokenizer))
  end)

  it("stops at the size or where pairs are rare", function()
    assert.equal(300, BPE.train { text = text, vocab_size = 300 }:size())
    assert.equal(256, BPE.train { text = text, vocab_size = 256 }:size())
    assert.equal(256, BPE.train { text = "", vocab_size = 1000 }:size())
    assert.equal(257, BPE.train { text = "ababcd", vocab_size = 1000 }:size())
    assert.equal(259, BPE.train { text = "ababcd", vocab_size = 1000, min_frequency = 1 }:size() - 1)
    local parts = { "ab", " ab" }
    local i = 0
    local function pull()
      i = i + 1
      return parts[i]
    end
    local tok = BPE.train { text = pull, vocab_size = 1000 }
    assert.equal("ab", tok:id_to_token(256))
    assert.equal(tok:state_dict().tokenizer, BPE.train({ text = parts, vocab_size = 1000 }):state_dict().tokenizer)
  end)

  it("says what is wrong", function()
    local function train(o)
      o.text = o.text or (not o.files and "ab") or nil
      o.vocab_size = o.vocab_size or 300
      return BPE.train(o)
    end
    raises("either option 'text' or option 'files'", BPE.train, { vocab_size = 300 })
    raises("option 'vocab_size' is missing", BPE.train, { text = "" })
    raises("vocab_size is 256, it must be 257 %(the bytes and 1 special", train,
      { vocab_size = 256, special_tokens = { "x" } })
    raises("special token 1 is empty", train, { special_tokens = { "" } })
    raises("special token 1 must be a string", train, { special_tokens = { 7 } })
    raises("'special_tokens' must be a table", train, { special_tokens = "x" })
    raises("the pattern '%(' is no regular expression: missing closing", train, { pattern = "(" })
    for pattern, message in pairs {
      ["[a[b]]"] = "sets within sets", ["[a&&b]"] = "sets within sets", ["\\h"] = "\\h, \\H and \\X are not built",
      ["[[:alpha:]]"] = "sets within sets", ["[\\W]"] = "\\W in",
    } do
      raises(message, train, { pattern = pattern })
    end
    train { pattern = "[\\w-]|[]x]|[^]x]|\\[[^\\]]|\\W" }
    raises("did you mean 'pattern'", train, { patern = "x" })
    raises("must be a regular expression", train, { pattern = 7 })
    raises("No such file", train, { files = { path .. "-absent" } })
    raises("must be a string, got a number", train, { text = { 7 } })
  end)

  it("does not hang on a pattern that cannot be matched", function()
    local slow = ("a"):rep(100) .. "b"
    raises("the pattern gives up at byte 1 of a piece: .*limit", BPE.train,
      { text = slow, vocab_size = 300, pattern = "(a+)+$" })
    assert.equal(256, BPE.train({ text = "abc", vocab_size = 300, pattern = "x*" }):size()) -- only empty matches
  end)
end)

describe("tokenizer files", function()
  local good = read "bpe_gpt2.json"

  it("that are no byte-level BPE are named", function()
    local function with(from, to)
      local changed, n = good:gsub(from, to)
      assert.equal(1, n, from)
      return write(changed)
    end
    local cases = {
      ["the normalizer NFKC is not built"] = { '"normalizer":null', '"normalizer":{"type":"NFKC"}' },
      ["the pre_tokenizer ends with Metaspace"] = { '"pre_tokenizer":%b{}', '"pre_tokenizer":{"type":"Metaspace"}' },
      ["the pre_tokenizer ends with nothing"] = { '"pre_tokenizer":%b{}', '"pre_tokenizer":null' },
      ["the pre_tokenizer Whitespace is not built"] = { '"pre_tokenizer":%b{}',
        '"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Whitespace"},{"type":"ByteLevel"}]}' },
      ["Split's behavior 'MergedWithNext' is not built"] = { '"pre_tokenizer":%b{}',
        '"pre_tokenizer":{"type":"Sequence","pretokenizers":['
        .. '{"type":"Split","pattern":{"Regex":"a"},"behavior":"MergedWithNext"},'
        .. '{"type":"ByteLevel"}]}' },
      ["the pattern '%[' is no regular expression"] = { '"pre_tokenizer":%b{}', '"pre_tokenizer":{"type":"Sequence",'
        .. '"pretokenizers":[{"type":"Split","pattern":{"Regex":"["},"behavior":"Isolated"},{"type":"ByteLevel"}]}' },
      ["the post_processor BertProcessing is not built"] = { '"post_processor":null',
        '"post_processor":{"type":"BertProcessing"}' },
      ["the decoder is WordPiece"] = { '"decoder":%b{}', '"decoder":{"type":"WordPiece"}' },
      ["the model is Unigram"] = { '"type":"BPE"', '"type":"Unigram"' },
      ["'unk_token'"] = { '"unk_token":null', '"unk_token":"<unk>"' },
      ["'byte_fallback'"] = { '"byte_fallback":false', '"byte_fallback":true' },
      ["'<|endoftext|>' has 'lstrip'"] = { '"lstrip":false', '"lstrip":true' },
    }
    for message, case in pairs(cases) do
      raises((message:gsub("|", "%%|"):gsub("%%%%", "%%")), BPE.load, with(case[1], case[2]))
    end
  end)

  it("that are damaged are errors", function()
    local function with(from, to)
      local changed, n = good:gsub(from, to, 1)
      assert.equal(1, n, from)
      return write(changed)
    end
    raises("No such file", BPE.load, path .. "-absent")
    raises("there is neither tokenizer.json nor vocab.json", BPE.load, "/usr")
    raises("is not JSON", BPE.load, write "{")
    raises("is not JSON", BPE.load, write(good:sub(1, -2)))
    raises("is not a tokenizer", BPE.load, write "[]")
    raises("ends with nothing", BPE.load, write "{}")
    raises("the model has no vocabulary", BPE.load, with('"vocab":%b{}', '"vocab":[]'))
    raises("the model has no list of merges", BPE.load, with('"merges":', '"merge":'))
    raises("'a' %+ 'zz': the second is not in the vocabulary", BPE.load, with('"merges":%[', '"merges":[["a","zz"],'))
    raises("'a' %+ '~': what they become is not", BPE.load, with('"merges":%[', '"merges":["a ~",'))
    raises("merge 0 is not a pair", BPE.load, with('"merges":%[', '"merges":[["a"],'))
    raises("the id of token '!' is not 0 to", BPE.load, with('"!":1', '"!":-1'))
    raises("the id of token '!' is not 0 to", BPE.load, with('"!":1', '"!":1e3'))
    raises("the id of token '!' is not 0 to", BPE.load, with('"!":1', '"!":2097152'))
    raises("have the id 2", BPE.load, with('"!":1', '"!":2'))
    raises("'<|endoftext|>' has the id 5, which is another's", BPE.load, with('{"id":0', '{"id":5'))
    raises("added token 0 has no content", BPE.load, with('"content"', '"contents"'))
    raises("added_tokens is not a list", BPE.load, with('"added_tokens":%b[]', '"added_tokens":{"a":1}'))
  end)

  it("without a byte's token cannot encode it", function()
    local tok = BPE.load(write [[{"pre_tokenizer":{"type":"ByteLevel"},"decoder":{"type":"ByteLevel"},
      "model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2,"big":9},"merges":["a b"]}}]])
    assert.same({ 2, 0 }, tok:encode("aba"):tolist())
    assert.equal(10, tok:size())
    assert.is_nil(tok:id_to_token(5))
    raises("no token for byte 99", tok.encode, tok, "abc")
    raises("there is no token 5", tok.decode, tok, { 5 })
  end)

  it("with add_prefix_space, digits and templates", function()
    local tok = BPE.load(write [[{"pre_tokenizer":{"type":"Sequence","pretokenizers":[
      {"type":"ByteLevel","add_prefix_space":true}]},"decoder":{"type":"ByteLevel"},
      "added_tokens":[{"id":9,"content":"</s>","special":true,"normalized":false}],
      "post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"</s>","type_id":0}},
        {"Sequence":{"id":"A","type_id":0}},{"SpecialToken":{"id":"</s>","type_id":0}}],
        "special_tokens":{"</s>":{"id":"</s>","ids":[9],"tokens":["</s>"]}}},
      "model":{"type":"BPE","vocab":{"a":0,"b":1,"Ġ":2,"Ġa":3},"merges":["Ġ a"]}}]])
    assert.same({ 9, 3, 1, 9 }, tok:encode("ab"):tolist())
    assert.same({ 9, 3, 1, 9 }, tok:encode(" ab"):tolist())
    assert.same({ 9, 9 }, tok:encode(""):tolist())
    assert.same({ 3, 9, 2, 1 }, tok:encode("a</s>b", { add_special_tokens = false }):tolist())
    tok = BPE.load(write [[{"pre_tokenizer":{"type":"Sequence","pretokenizers":[
      {"type":"Digits","individual_digits":true},{"type":"ByteLevel","use_regex":false}]},
      "decoder":{"type":"ByteLevel"},
      "model":{"vocab":{"1":0,"2":1,"12":2,"a":3,"a1":4},"merges":["1 2","a 1"]}}]])
    assert.same({ 3, 0, 1, 3 }, tok:encode("a12a"):tolist())
    raises("the template's token '</s>' is not in the vocabulary", BPE.load,
      write [[{"pre_tokenizer":{"type":"ByteLevel"},"decoder":{"type":"ByteLevel"},
      "post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"</s>"}}],
      "special_tokens":{"</s>":{"ids":[9]}}},"model":{"vocab":{"a":0},"merges":[]}}]])
  end)
end)

describe("tlua tokenize #once", function()
  local program = require("tlua.system").program()

  -- Exit code and what it wrote.
  local function run(arguments)
    local pipe = io.popen(("'%s' tokenize %s 2>&1; echo code $?"):format(program, arguments))
    local output = pipe:read("*a")
    pipe:close()
    return tonumber(output:match("code (%d+)\n$")), output
  end

  it("learns a tokenizer and makes a token file of a corpus", function()
    local corpus, tokenizer, tokens = golden .. "bpe.txt", os.tmpname(), os.tmpname()
    local code, output =
      run(("--train --vocab 600 --special '<e>' --pattern llama3 -o %s %s"):format(tokenizer, corpus))
    assert.equal(0, code, output)
    assert.matches(": 520 tokens\n", output)
    code, output = run(("--encode %s --end '<e>' -o %s %s %s"):format(tokenizer, tokens, corpus, corpus))
    assert.equal(0, code, output)
    assert.matches("tokens of %d+ bytes, uint16 %(%d%.%d+ bytes a token%)\n", output)
    local tok, text = BPE.load(tokenizer), read "bpe.txt"
    local ds = tl.data.TokenDataset(tokens, { context = 1 })
    assert.equal(text .. "<e>" .. text .. "<e>", tok:decode(ds:read(1, ds.tokens)))
    os.remove(tokenizer)
    os.remove(tokens)
  end)

  it("says how it is used", function()
    for arguments, message in pairs {
      [""] = "needs either %-%-train or %-%-encode", ["--train x"] = "needs %-o", ["--train -o x"] = "a file to read",
      ["--train --vocb 7"] = "there is no option %-%-vocb", ["--train -o"] = "%-o needs a value",
      ["--train -o x --vocab many y"] = "%-%-vocab needs a number",
      ["--train -o x ./x"] = "x is read, and cannot be what is written",
      ["--encode x -o x y"] = "x is read, and cannot be what is written",
    } do
      local code, output = run(arguments)
      assert.equal(2, code)
      assert.matches(message .. ".*usage: tlua tokenize", output)
    end
    local code, output = run "--help"
    assert.equal(0, code)
    assert.matches("^usage: tlua tokenize", output)
  end)

  it("takes a text that is one line, and no folder for a text", function()
    local tokenizer, text, tokens = golden .. "bpe_gpt2.json", os.tmpname(), os.tmpname()
    local file = assert(io.open(text, "wb"))
    file:write((("a line without an end "):rep(50000)))
    file:close()
    local start = os.time()
    local code, output = run(("--encode %s -o %s %s"):format(tokenizer, tokens, text))
    assert.equal(0, code, output)
    assert.matches("of 1100000 bytes", output)
    assert.is_true(os.time() - start < 60) -- not with the square of its length
    code, output = run(("--encode %s -o %s %s"):format(tokenizer, tokens, golden))
    assert.equal(1, code)
    assert.matches("Is a directory", output)
    os.remove(text)
    os.remove(tokens)
  end)
end)
