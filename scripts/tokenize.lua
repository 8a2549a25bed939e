-- tlua tokenize: learns a tokenizer from files, or turns files into a token file for TokenDataset.
local tl = require "tlua"
local BPE = tl.text.BPE

local usage = [[
usage: tlua tokenize --train -o TOKENIZER.json [options] FILE...
       tlua tokenize --encode TOKENIZER -o TOKENS.bin [options] FILE...
learning:
  --vocab N        how many tokens there shall be (32000)
  --min N          how often a pair has to occur to become one (2)
  --special TOKEN  a special token; may be given several times
  --pattern P      where words end: gpt2 (default), llama3, qwen2 or a regular expression
encoding:
  --dtype D        uint16, int32, ... (uint16 where all ids fit into it)
  --end TOKEN      a special token that follows each file]]

local BLOCK = 2 ^ 23 -- bytes of a corpus that are encoded at once

local function refuse(message)
  io.stderr:write("tlua tokenize: ", message, "\n", usage, "\n")
  os.exit(2)
end

local function read_arguments(words)
  local o, files = { special = {}, vocab = "32000", min = "2", pattern = "gpt2" }, {}
  local takes = {
    encode = true, o = true, vocab = true, min = true, special = true, pattern = true, dtype = true, ["end"] = true,
  }
  local i = 1
  while words[i] do
    local name = words[i]:match("^%-%-?(%w+)$")
    if not name then
      files[#files + 1] = words[i]
    elseif name == "help" or name == "h" then
      print(usage)
      os.exit(0)
    elseif name == "train" then
      o.train = true
    elseif not takes[name] then
      refuse("there is no option " .. words[i])
    else
      i = i + 1
      local value = words[i] or refuse(words[i - 1] .. " needs a value")
      if name == "special" then o.special[#o.special + 1] = value else o[name] = value end
    end
    i = i + 1
  end
  return o, files
end

-- ---- learning ----

local function count(o, name) return tonumber(o[name]) or refuse("--" .. name .. " needs a number") end

local function train(o, files)
  local pattern = o.pattern
  if pattern == "gpt2" then pattern = nil else pattern = rawget(BPE.patterns, pattern) or pattern end
  local tokenizer = BPE.train {
    files = files, vocab_size = count(o, "vocab"), min_frequency = count(o, "min"), special_tokens = o.special,
    pattern = pattern,
  }
  tokenizer:save(o.o)
  print(("%s: %d tokens"):format(o.o, tokenizer:size()))
end

-- ---- encoding ----

-- The parts of a file, cut where a line ends and the next one starts with a character that is not white space: no
-- pattern of a language model's tokenizer has a match across that.
local function parts(path)
  local file, message = io.open(path, "rb")
  if not file then error(message, 0) end
  local rest = ""
  return function()
    while rest do
      local block, why = file:read(BLOCK)
      if why then error(path .. ": " .. why, 0) end -- a folder, for one
      if not block then
        local last = rest
        rest = nil
        file:close()
        return last
      end
      rest = rest .. block
      local cut = rest:match("^.*\n()%S")
      if cut then
        local part = rest:sub(1, cut - 1)
        rest = rest:sub(cut)
        return part
      end
    end
  end
end

local function encode(o, files)
  local tokenizer = BPE.load(o.encode)
  local last = o["end"]
  local last_id = last and (tokenizer:token_to_id(last) or refuse(("the tokenizer has no token %q"):format(last)))
  local dtype = o.dtype or (tokenizer:size() <= 2 ^ 16 and "uint16" or "int32")
  local bytes = 0
  local n = tl.data.write_tokens(o.o, coroutine.wrap(function()
    for _, path in ipairs(files) do
      for part in parts(path) do
        bytes = bytes + #part
        coroutine.yield(tokenizer:encode(part, { add_special_tokens = false }))
      end
      if last_id then coroutine.yield(tl.tensor({ last_id }, { dtype = "int64", device = "cpu" })) end
    end
  end), { dtype = dtype })
  print(("%s: %d tokens of %d bytes, %s (%.2f bytes a token)"):format(o.o, n, bytes, dtype, bytes / math.max(n, 1)))
end

local o, files = read_arguments(arg)
if (o.train ~= nil) == (o.encode ~= nil) then refuse "needs either --train or --encode" end
if not o.o then refuse "needs -o, the file to write" end
if #files == 0 then refuse "needs a file to read" end
for _, path in ipairs { o.encode or "", unpack(files) } do
  if path:gsub("^%./", "") == o.o:gsub("^%./", "") then refuse(o.o .. " is read, and cannot be what is written") end
end
if o.train then train(o, files) else encode(o, files) end
