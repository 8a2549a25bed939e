-- tokens.lua: files of token ids: TokenDataset, which maps one into memory, and write_tokens.
local base = require "tlua.base"
local check_path = require("tlua.data.readers").check_path
local ffi, C, check, fail, wrap, out = base.ffi, base.C, base.check, base.fail, base.wrap, base.out

local tokens = {}

local tokens_out, writer_out = ffi.new("tl_tokens *[1]"), ffi.new("tl_token_writer *[1]")

-- ---- reading ----

local TokenDataset = {}
TokenDataset.__index = TokenDataset

local function check_count(value, name)
  base.check_integer(value, "TokenDataset", name)
  if value < 1 then fail(("TokenDataset: %s must be at least 1, got %d"):format(name, value)) end
end

--- TokenDataset(path, {context=, stride=context, dtype=}): windows of a file of token ids that is mapped into memory.
function tokens.TokenDataset(path, options)
  check_path(path, "TokenDataset")
  local o = base.options("TokenDataset", options,
    { context = base.optional, stride = base.optional, dtype = base.optional })
  if o.context == nil then fail "TokenDataset: option 'context' is missing: how many tokens a window has" end
  check_count(o.context, "context")
  local stride = o.stride == nil and o.context or o.stride
  check_count(stride, "stride")
  if o.dtype ~= nil and type(o.dtype) ~= "string" then
    fail("TokenDataset: option 'dtype' must be a name such as \"uint16\", got " .. base.kind(o.dtype))
  end
  check(C.tl_tokens_open(path, o.dtype, tokens_out))
  local handle = ffi.gc(tokens_out[0], ffi.C.tl_tokens_free)
  local ds = {
    handle = handle, context = o.context, stride = stride, tokens = ffi.C.tl_tokens_count(handle),
    dtype = ffi.string(ffi.C.tl_tokens_dtype(handle)),
  }
  ds.windows = ffi.C.tl_window_count(handle, o.context, stride)
  if ds.windows == 0 then
    fail(("TokenDataset: %s: %d tokens are too few for a window of %d and the one after it"):format(path, ds.tokens,
      o.context))
  end
  return setmetatable(ds, TokenDataset)
end

--- How many windows there are.
function TokenDataset:size() return self.windows end

--- x and y of window i: int64 (context) each; y is one token further on.
function TokenDataset:get(i)
  base.check_integer(i, "TokenDataset:get", "the window's position")
  if i < 1 or i > self.windows then
    fail(("TokenDataset:get: there is no window %d, they are 1 to %d"):format(i, self.windows))
  end
  check(C.tl_tokens_read(self.handle, (i - 1) * self.stride, self.context + 1, out))
  local ids = wrap(out[0])
  return ids:narrow(1, 1, self.context), ids:narrow(1, 2, self.context)
end

--- The tokens from position `first` (from 1) on, `n` of them: int64 (n).
function TokenDataset:read(first, n)
  base.check_integer(first, "TokenDataset:read", "the first token's position")
  base.check_integer(n, "TokenDataset:read", "the number of tokens")
  if first < 1 or n < 0 or first - 1 + n > self.tokens then
    fail(("TokenDataset:read: there are no %d tokens from %d on, there are %d"):format(n, first, self.tokens))
  end
  check(C.tl_tokens_read(self.handle, first - 1, n, out))
  return wrap(out[0])
end

-- What DataLoader asks for: batches are cut from the mapping in C.
function TokenDataset:rows() return self, nil end

function TokenDataset:open(order, loader, handle)
  return C.tl_loader_windows(self.handle, self.context, self.stride, order, loader.batch_size, loader.drop_last,
    loader.num_workers, loader.prefetch, handle)
end

-- ---- writing ----

-- f(tensor) for each tensor of ids: one tensor, a list, or what an iterator function gives until nil.
local function each(ids, f)
  if base.is_tensor(ids) then return f(ids) end
  if type(ids) == "table" then
    for i = 1, #ids do f(ids[i]) end
  elseif type(ids) == "function" then
    for t in ids do f(t) end
  else
    fail("write_tokens: argument 2 must be a tensor of ids, a table of them or an iterator, got " .. base.kind(ids))
  end
end

--- write_tokens(path, ids, {dtype="uint16"}): ids (a tensor, a list of tensors, or an iterator function that gives one
--- at a time) as a token file without a header. Returns how many were written. The file appears when all are.
function tokens.write_tokens(path, ids, options)
  check_path(path, "write_tokens")
  local o = base.options("write_tokens", options, { dtype = "uint16" })
  check(C.tl_token_writer_new(path, o.dtype, writer_out))
  local writer, count = ffi.gc(writer_out[0], ffi.C.tl_token_writer_free), 0
  local ok, message = pcall(each, ids, function(t)
    base.check_tensor(t, "write_tokens", 2)
    check(C.tl_token_writer_add(writer, t))
    count = count + t:numel()
  end)
  if ok then ok, message = pcall(check, C.tl_token_writer_close(writer)) end
  ffi.C.tl_token_writer_free(ffi.gc(writer, nil)) -- what is not closed is removed
  if not ok then error(message, 0) end
  return count
end

return tokens
