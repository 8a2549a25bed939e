-- matrix.lua: products of matrices, and their triangles.
local base = require "tlua.base"

local C, methods, tl = base.C, base.methods, base.tl
local check, fail, wrap, out = base.check, base.fail, base.wrap, base.out
local check_tensor, check_integer = base.check_tensor, base.check_integer

local template = [[
local C, check, wrap, out, check_tensor = ...
return function(a, b)
  check_tensor(a, "NAME", 1)
  check_tensor(b, "NAME", 2)
  check(C.tl_NAME(a, b, out))
  return wrap(out[0])
end]]

-- matmul: 1-d, 2-d and batched (broadcast) operands, as PyTorch. mm: 2-d. bmm: 3-d. dot, outer: 1-d.
for _, name in ipairs { "matmul", "mm", "bmm", "dot", "outer" } do
  local f = assert(loadstring(template:gsub("NAME", name), "@tlua/" .. name))(C, check, wrap, out, check_tensor)
  methods[name], tl[name] = f, f
end

--- c:addmm(a, b, {beta=1, alpha=1}): beta * c + alpha * a b.
function methods.addmm(c, a, b, options)
  check_tensor(c, "addmm", 1)
  check_tensor(a, "addmm", 2)
  check_tensor(b, "addmm", 3)
  local o = base.options("addmm", options, { beta = 1, alpha = 1 })
  check(C.tl_addmm(c, a, b, o.beta, o.alpha, out))
  return wrap(out[0])
end

--- tl.einsum("bij,bjk->bik", a, b, ...): Einstein's summation; the tensors may also come as one table.
function tl.einsum(equation, ...)
  if type(equation) ~= "string" then
    fail("einsum: argument 1 must be an equation such as \"ij,jk->ik\", got " .. base.kind(equation))
  end
  local list = { ... }
  if type(list[1]) == "table" then list = list[1] end
  local pointers, n = base.tensors(list, "einsum")
  check(C.tl_einsum(equation, n, pointers, out))
  return wrap(out[0])
end

local function triangle(name, f)
  local function op(x, diagonal)
    check_tensor(x, name, 1)
    if diagonal == nil then diagonal = 0 end
    check_integer(diagonal, name, "the diagonal")
    check(f(x, diagonal))
    return wrap(out[0])
  end
  methods[name], tl[name] = op, op
end

--- x:triu(diagonal), x:tril(diagonal): the elements on and above (below) a diagonal, zero elsewhere; 0 is the main one.
triangle("triu", function(x, diagonal) return C.tl_triu(x, diagonal, out) end)
triangle("tril", function(x, diagonal) return C.tl_tril(x, diagonal, out) end)

tl.addmm = methods.addmm
