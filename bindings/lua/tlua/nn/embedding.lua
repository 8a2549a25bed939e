-- embedding.lua: nn.Embedding.
local base = require "tlua.base"
local Module = require("tlua.nn.module").Module
local support = require "tlua.nn.support"
local C, check, wrap, out, check_tensor = base.C, base.check, base.wrap, base.out, base.check_tensor

local Embedding = Module:extend("Embedding")

--- A table of num_embeddings vectors, looked up by ids 0..num_embeddings-1: (..) -> (.., embedding_dim). weight N(0,
--- 1); the row padding_idx (an id; negative from the end) starts as zeros and gets no gradient.
function Embedding:init(num_embeddings, embedding_dim, options)
  local o = base.options("Embedding", options,
    { padding_idx = base.optional, dtype = "float32", device = base.optional })
  self.num_embeddings = support.size("Embedding", "num_embeddings", num_embeddings)
  self.embedding_dim = support.size("Embedding", "embedding_dim", embedding_dim)
  local padding = o.padding_idx
  if padding ~= nil then
    support.size("Embedding", "padding_idx", padding, -num_embeddings)
    if padding >= num_embeddings then
      base.fail(("Embedding: padding_idx %d is not an id of %d embeddings"):format(padding, num_embeddings))
    end
    if padding < 0 then padding = padding + num_embeddings end
  end
  self.padding_idx = padding
  local dtype, device = support.placement("Embedding", o)
  local weight = support.full({ num_embeddings, embedding_dim }, 0, dtype, device)
  check(C.tl_normal_(weight, 0, 1, nil))
  if padding then
    check(C.tl_select(weight, 0, padding, out))
    local row = wrap(out[0])
    check(C.tl_fill_(row, 0))
  end
  self.weight = support.as_parameter(weight)
end

function Embedding:forward(ids)
  check_tensor(ids, "Embedding", 1)
  check(C.tl_embedding(support.weight(self), ids, self.padding_idx or -1, out))
  return wrap(out[0])
end

function Embedding:extra_repr()
  return ("%d, %d%s"):format(self.num_embeddings, self.embedding_dim,
    self.padding_idx and ", padding_idx=" .. self.padding_idx or "")
end

return { Embedding = Embedding }
