-- reduce.lua: reductions, softmax, sorting, comparisons of whole tensors.
local base = require "tlua.base"

local C, methods, tl = base.C, base.methods, base.tl
local check, fail, wrap, out, out2 = base.check, base.fail, base.wrap, base.out, base.out2
local check_tensor, check_integer, check_number = base.check_tensor, base.check_integer, base.check_number
local position, positions, flag, dims = base.position, base.positions, base.flag, base.dims

-- Is this the options table of x:sum{keepdim=true} (no dims named)?
local function is_options(d) return type(d) == "table" and d[1] == nil and next(d) ~= nil end

-- The dims of a reduction: a pointer or NULL.
local function named(n)
  if n == 0 then return nil end
  return dims
end

-- x:NAME(), x:NAME(d), x:NAME({d1, d2}), each with {keepdim=true}.
local template = [[
local C, check, wrap, out, check_tensor, positions, flag, named, is_options = ...
return function(x, d, options)
  check_tensor(x, "NAME", 1)
  if d == nil and options == nil then
    check(C.tl_NAME(x, 0, nil, false, out))
    return wrap(out[0])
  end
  if is_options(d) then d, options = nil, d end
  local keepdim = flag("NAME", options, "keepdim")
  local n = positions("NAME", d)
  check(C.tl_NAME(x, n, named(n), keepdim, out))
  return wrap(out[0])
end]]

for _, name in ipairs { "sum", "mean", "prod", "logsumexp", "amax", "amin", "all", "any" } do
  local make = assert(loadstring(template:gsub("NAME", name), "@tlua/" .. name))
  local f = make(C, check, wrap, out, check_tensor, positions, flag, named, is_options)
  methods[name], tl[name] = f, f
end

-- ---- with one more number ----

-- The correction of var and std: {correction=1}, or {unbiased=false} for 0.
local function correction_of(op, options)
  local o = base.options(op, options, { keepdim = false, correction = base.optional, unbiased = base.optional })
  local correction = o.correction
  if correction == nil then correction = o.unbiased == false and 0 or 1 end
  check_number(correction, op, "the correction")
  return correction, o.keepdim and true or false
end

local function spread(op, f)
  return function(x, d, options)
    check_tensor(x, op, 1)
    if is_options(d) then d, options = nil, d end
    local correction, keepdim = correction_of(op, options)
    local n = positions(op, d)
    check(f(x, n, named(n), correction, keepdim))
    return wrap(out[0])
  end
end

--- x:var(d, {correction=1, keepdim=false}); std likewise. {unbiased=false} means correction 0.
methods.var = spread("var", function(x, n, list, correction, keepdim)
  return C.tl_var(x, n, list, correction, keepdim, out)
end)
methods.std = spread("std", function(x, n, list, correction, keepdim)
  return C.tl_std(x, n, list, correction, keepdim, out)
end)

--- x:norm(p, d, {keepdim=false}): (sum |x|^p)^(1/p); p is 2 by default and may be math.huge, -math.huge or 0.
function methods.norm(x, p, d, options)
  check_tensor(x, "norm", 1)
  if is_options(d) then d, options = nil, d end
  if type(p) == "table" then
    local o = base.options("norm", p, { p = 2, dim = base.optional, keepdim = false })
    p, d, options = o.p, o.dim, { keepdim = o.keepdim }
  end
  if p == nil or p == "fro" then p = 2 end
  check_number(p, "norm", "p")
  local keepdim = flag("norm", options, "keepdim")
  local n = positions("norm", d)
  check(C.tl_norm(x, p, n, named(n), keepdim, out))
  return wrap(out[0])
end

-- ---- extremes ----

local function extreme(op, all, along, pair)
  return function(x, d, options)
    check_tensor(x, op, 1)
    if d == nil then
      if options ~= nil then fail(op .. ": options need a dim") end
      check(all(x))
      return wrap(out[0])
    end
    if base.is_tensor(d) then return pair(x, d) end
    local keepdim = flag(op, options, "keepdim")
    check(along(x, position(d, op), keepdim))
    return wrap(out2[0]), wrap(out2[1])
  end
end

--- x:max(): the largest element. x:max(d, {keepdim=}): the largest along d and their ids (0-based). x:max(y): maximum.
methods.max = extreme("max", function(x) return C.tl_amax(x, 0, nil, false, out) end,
  function(x, d, keepdim) return C.tl_max_dim(x, d, keepdim, out2, out2 + 1) end, methods.maximum)
methods.min = extreme("min", function(x) return C.tl_amin(x, 0, nil, false, out) end,
  function(x, d, keepdim) return C.tl_min_dim(x, d, keepdim, out2, out2 + 1) end, methods.minimum)

local function arg(op, all, along)
  return function(x, d, options)
    check_tensor(x, op, 1)
    local keepdim = flag(op, options, "keepdim")
    if d == nil then check(all(x)) else check(along(x, position(d, op), keepdim)) end
    return wrap(out[0])
  end
end

--- x:argmax(d, {keepdim=}): ids (0-based) of the largest along d; without d, of the flattened tensor.
methods.argmax = arg("argmax", function(x) return C.tl_argmax_all(x, out) end,
  function(x, d, keepdim) return C.tl_argmax(x, d, keepdim, out) end)
methods.argmin = arg("argmin", function(x) return C.tl_argmin_all(x, out) end,
  function(x, d, keepdim) return C.tl_argmin(x, d, keepdim, out) end)

-- ---- along one dim ----

--- x:cumsum(d).
function methods.cumsum(x, d)
  check_tensor(x, "cumsum", 1)
  check(C.tl_cumsum(x, position(d, "cumsum"), out))
  return wrap(out[0])
end

--- x:softmax(d), x:log_softmax(d).
function methods.softmax(x, d, extra)
  check_tensor(x, "softmax", 1)
  base.no_more("softmax", extra)
  check(C.tl_softmax(x, position(d, "softmax"), out))
  return wrap(out[0])
end

function methods.log_softmax(x, d, extra)
  check_tensor(x, "log_softmax", 1)
  base.no_more("log_softmax", extra)
  check(C.tl_log_softmax(x, position(d, "log_softmax"), out))
  return wrap(out[0])
end

--- x:sort(d, {descending=false}): sorted values and their ids (0-based); stable, nan last. d is the last dim by
--- default.
function methods.sort(x, d, options)
  check_tensor(x, "sort", 1)
  if is_options(d) then d, options = nil, d end
  local descending = flag("sort", options, "descending")
  check(C.tl_sort(x, d == nil and -1 or position(d, "sort"), descending, out2, out2 + 1))
  return wrap(out2[0]), wrap(out2[1])
end

--- x:argsort(d, {descending=false}): the ids alone.
function methods.argsort(x, d, options)
  local _, ids = methods.sort(x, d, options)
  return ids
end

--- x:topk(k, d, {largest=true, sorted=true}): the k largest (smallest) along d and their ids (0-based).
function methods.topk(x, k, d, options)
  check_tensor(x, "topk", 1)
  check_integer(k, "topk", "k")
  if is_options(d) then d, options = nil, d end
  local o = base.options("topk", options, { largest = true, sorted = true })
  local i = d == nil and -1 or position(d, "topk")
  check(C.tl_topk(x, k, i, o.largest and true or false, o.sorted and true or false, out2, out2 + 1))
  return wrap(out2[0]), wrap(out2[1])
end

-- ---- whole tensors ----

--- x:allclose(y, {rtol=1e-5, atol=1e-8, equal_nan=false}): |x - y| <= atol + rtol * |y| everywhere? A boolean.
function methods.allclose(x, y, options)
  check_tensor(x, "allclose", 1)
  check_tensor(y, "allclose", 2)
  local o = base.options("allclose", options, { rtol = 1e-5, atol = 1e-8, equal_nan = false })
  check(C.tl_allclose(x, y, o.rtol, o.atol, o.equal_nan and true or false, base.boolean))
  return base.boolean[0]
end

--- x:equal(y): the same shape and elements? A boolean.
function methods.equal(x, y)
  check_tensor(x, "equal", 1)
  check_tensor(y, "equal", 2)
  check(C.tl_equal(x, y, base.boolean))
  return base.boolean[0]
end

for _, name in ipairs {
  "var", "std", "norm", "max", "min", "argmax", "argmin", "cumsum", "softmax", "log_softmax", "sort", "argsort", "topk",
  "allclose", "equal",
} do tl[name] = methods[name] end
