-- prune: nn.utils.prune: PyTorch's prunings by masks, and what comes after them. The other parts (compact,
-- schedule, sensitivity ...) load when they are used.
local base = require "tlua.base"
local registry = require "tlua.nn.registry"
local support = require "tlua.nn.support"
local masks = require "tlua.nn.prune.masks"
local tl = base.tl
local C, check, wrap, out, fail = base.C, base.check, base.wrap, base.out, base.fail

local prune = {}

-- ---- how much ----

local function call_of(op, more) return ('prune.%s(module, "weight", {%s})'):format(op, more) end

-- How many of n go, by {amount=} or {count=}; `unit` names what is counted.
local function how_many(op, o, n, unit)
  local amount, count = o.amount, o.count
  if amount == nil and count == nil then
    fail(("%s: how much? %s prunes 30 %% of what is left, %s prunes 3 %s"):format(op,
      o.call or call_of(op, "amount=0.3"), o.count_call or call_of(op, "count=3"), unit))
  end
  if amount ~= nil and count ~= nil then fail(op .. ": amount and count exclude each other") end
  if count == nil then
    base.check_number(amount, op, "amount")
    if not (amount >= 0 and amount <= 1) then
      fail(("%s: amount is a fraction from 0 to 1, got %g; a number of %s is {count=%g}"):format(op, amount, unit,
        amount))
    end
    check(C.tl_prune_count(amount, n, base.number))
    return base.number[0]
  end
  base.check_integer(count, op, "count")
  if count < 0 then fail(("%s: count must not be negative, got %d"):format(op, count)) end
  if count > n then fail(("%s: %d %s cannot be pruned: there are %d left"):format(op, count, unit, n)) end
  return count
end

-- ---- scores ----

-- What the choice is made by: the importance scores, or the values as they are used; float32 at least.
local function scores_of(op, m, name, given)
  local p = masks.original(m, name)
  if given == nil then return masks.effective(m, name) end
  base.check_tensor(given, op, "importance_scores")
  if support.shape(given) ~= support.shape(p) then
    fail(("%s: importance_scores are %s, %s is %s"):format(op, support.shape(given), name, support.shape(p)))
  end
  return given:detach()
end

local function widened(t)
  local dtype = C.tl_dtype_of(t)
  return dtype == C.TL_FLOAT64 and t or t:to("float32")
end

local function shape_of(t)
  local shape = {}
  for d = 0, C.tl_ndim(t) - 1 do shape[d + 1] = C.tl_size(t, d) end
  return shape
end

local function random(shape, t, generator) -- where t is
  check(C.tl_empty(#shape, support.array(shape), C.TL_FLOAT32, C.tl_device_of(t), out))
  local r = wrap(out[0])
  check(C.tl_uniform_(r, 0, 1, generator))
  return r
end

-- The former mask without the `count` smallest scores; of the parameter's dtype.
local function without_smallest(scores, mask, count)
  check(C.tl_prune_smallest(scores, mask, count, out))
  return wrap(out[0])
end

local function left_in(mask) return mask:ne(0):sum():item() end

local function mask_of(m, name)
  local mask = masks.current(m, name)
  if mask then return mask end
  local p = masks.original(m, name)
  return support.full(shape_of(p), 1, C.tl_dtype_of(p), C.tl_device_of(p))
end

-- f(module, name, options) sets a mask; `call` is the right call if it takes no amount.
local function pruning(op, f, call)
  return function(m, name, options)
    masks.check_parameter(m, name, op, call or call_of(op, "amount=0.3"))
    masks.unrecorded(f, m, name, options)
    masks.refresh(m)
    return m
  end
end

-- ---- single weights ----

local unstructured = { amount = base.optional, count = base.optional, importance_scores = base.optional }
local random_options = { amount = base.optional, count = base.optional, generator = base.optional }

local function prune_single(op, m, name, o, scores)
  local mask = mask_of(m, name)
  local count = how_many(op, o, left_in(mask), "weights")
  masks.set(m, name, without_smallest(scores, mask:to(base.dtype_names[C.tl_dtype_of(scores)]), count)
    :to(base.dtype_names[C.tl_dtype_of(mask)]))
end

--- l1_unstructured(module, name, {amount=} or {count=}, importance_scores=): the smallest |weight| go.
prune.l1_unstructured = pruning("l1_unstructured", function(m, name, options)
  local o = base.options("l1_unstructured", options, unstructured)
  prune_single("l1_unstructured", m, name, o, widened(scores_of("l1_unstructured", m, name, o.importance_scores)))
end)

--- random_unstructured(module, name, {amount=} or {count=}, generator=): any of the weights go.
prune.random_unstructured = pruning("random_unstructured", function(m, name, options)
  local o = base.options("random_unstructured", options, random_options)
  local p = masks.original(m, name)
  prune_single("random_unstructured", m, name, o, random(shape_of(p), p, o.generator))
end)

-- ---- whole channels ----

local function checked_dim(op, t, dim)
  local n = C.tl_ndim(t)
  if n < 2 then
    fail(("%s: whole channels need a parameter of at least 2 dims, got %s"):format(op, support.shape(t)))
  end
  local d = base.position(dim, op)
  if d < 0 then d = d + n end
  if d < 0 or d >= n then fail(("%s: dim %d of a parameter of %s"):format(op, dim, support.shape(t))) end
  return d + 1
end

local function other_dims(t, dim)
  local list = {}
  for d = 1, C.tl_ndim(t) do
    if d ~= dim then list[#list + 1] = d end
  end
  return list
end

-- The channels of dim that still have a weight: 1 or 0 each.
local function standing(mask, dim) return mask:ne(0):any(other_dims(mask, dim)):to("float32") end

local function along(channels, t, dim)
  local shape = {}
  for d = 1, C.tl_ndim(t) do shape[d] = d == dim and C.tl_size(t, d - 1) or 1 end
  return channels:reshape(shape)
end

local function prune_channels(op, m, name, o, scores, dim)
  local mask = mask_of(m, name)
  local alive = standing(mask, dim)
  local count = how_many(op, o, left_in(alive), "channels")
  local dtype = base.dtype_names[C.tl_dtype_of(scores)]
  local channels = without_smallest(scores, alive:to(dtype), count):to(base.dtype_names[C.tl_dtype_of(mask)])
  masks.set(m, name, mask * along(channels, mask, dim))
end

local function channel_norms(scores, n, dim)
  local dims = base.positions("ln_structured", other_dims(scores, dim))
  check(C.tl_norm(scores, n, dims, base.dims, false, out))
  return wrap(out[0])
end

--- ln_structured(module, name, {amount= or count=, n=2, dim=1, importance_scores=}): the channels of dim with the
--- smallest n-norm go; n may be math.huge.
prune.ln_structured = pruning("ln_structured", function(m, name, options)
  local op = "ln_structured"
  local o = base.options(op, options,
    { amount = base.optional, count = base.optional, n = 2, dim = 1, importance_scores = base.optional })
  local dim = checked_dim(op, masks.original(m, name), o.dim)
  local scores = widened(scores_of(op, m, name, o.importance_scores))
  prune_channels(op, m, name, o, channel_norms(scores, o.n, dim), dim)
end)

--- random_structured(module, name, {amount= or count=, dim=1, generator=}): any of the channels go.
prune.random_structured = pruning("random_structured", function(m, name, options)
  local op = "random_structured"
  local o = base.options(op, options,
    { amount = base.optional, count = base.optional, dim = 1, generator = base.optional })
  local p = masks.original(m, name)
  local dim = checked_dim(op, p, o.dim)
  prune_channels(op, m, name, o, random({ C.tl_size(p, dim - 1) }, p, o.generator), dim)
end)

--- two_four(module, name, {dim=2}): of every four consecutive weights along dim the two largest stay, the pattern of
--- sparse tensor cores (Mishra et al. 2021). The dim's size must be a multiple of 4.
prune.two_four = pruning("two_four", function(m, name, options)
  local o = base.options("two_four", options, { dim = 2 })
  local p = masks.original(m, name)
  local dim = checked_dim("two_four", p, o.dim)
  local scores, mask = widened(masks.effective(m, name)), mask_of(m, name)
  mask = mask:to(base.dtype_names[C.tl_dtype_of(scores)])
  check(C.tl_prune_groups(scores, mask, dim - 1, 2, 4, out))
  masks.set(m, name, wrap(out[0]):to(base.dtype_names[C.tl_dtype_of(p)]))
end, 'prune.two_four(module, "weight")')

-- ---- given masks ----

--- identity(module, name): weight_orig and a mask of ones, nothing pruned.
prune.identity = pruning("identity", function(m, name) masks.set(m, name, mask_of(m, name)) end,
  'prune.identity(module, "weight")')

--- custom_from_mask(module, name, mask): what the mask (of the parameter's shape) has as 0 goes.
function prune.custom_from_mask(m, name, mask)
  local op = "custom_from_mask"
  masks.check_parameter(m, name, op, 'prune.custom_from_mask(module, "weight", mask)')
  base.check_tensor(mask, op, 3)
  local p = masks.original(m, name)
  if support.shape(mask) ~= support.shape(p) then
    fail(("%s: the mask is %s, %s is %s"):format(op, support.shape(mask), name, support.shape(p)))
  end
  masks.unrecorded(function()
    local former = mask_of(m, name)
    local given = mask:detach():ne(0):to(base.dtype_names[C.tl_dtype_of(p)], base.device_name(C.tl_device_of(p)))
    masks.set(m, name, former * given)
  end)
  masks.refresh(m)
  return m
end

-- ---- many parameters at once ----

local GLOBAL_CALL = 'prune.global_unstructured({{a, "weight"}, {b, "weight"}}, prune.l1_unstructured, {%s})'

local function checked_list(list, op)
  if type(list) ~= "table" or registry.is_module(list) then
    fail(("%s: argument 1 must be a list of {module, name}; the call is %s"):format(op,
      GLOBAL_CALL:format("amount=0.3")))
  end
  for _, pair in ipairs(list) do
    if type(pair) ~= "table" then fail(op .. ": the list holds {module, name} pairs, got " .. base.kind(pair)) end
    masks.check_parameter(pair[1], pair[2], op, GLOBAL_CALL:format("amount=0.3"))
  end
  if #list == 0 then fail(op .. ": the list of parameters is empty") end
  return list
end

local function prune_globally(list, method, o)
  local op = "global_unstructured"
  local scores, former = {}, {}
  for i, pair in ipairs(list) do
    local s = scores_of(op, pair[1], pair[2], o.importance_scores and o.importance_scores[i])
    if method == prune.random_unstructured then s = random(shape_of(s), s, o.generator) end
    scores[i] = s:to("float64"):reshape(-1)
    former[i] = mask_of(pair[1], pair[2]):to("float64"):reshape(-1)
  end
  local mask = tl.cat(former, 1)
  o.call, o.count_call = GLOBAL_CALL:format("amount=0.3"), GLOBAL_CALL:format("count=3")
  mask = without_smallest(tl.cat(scores, 1), mask, how_many(op, o, left_in(mask), "weights"))
  local first = 1
  for _, pair in ipairs(list) do
    local p = masks.original(pair[1], pair[2])
    local n = C.tl_numel(p)
    masks.set(pair[1], pair[2], mask:narrow(1, first, n):reshape(shape_of(p)):to(base.dtype_names[C.tl_dtype_of(p)]))
    first = first + n
  end
end

--- global_unstructured({{module, name}, ...}, prune.l1_unstructured, {amount= or count=, importance_scores=}): single
--- weights of all these parameters together; importance_scores is a list as long as the first. The second argument may
--- be prune.random_unstructured, or left out for L1.
function prune.global_unstructured(list, method, options)
  local op = "global_unstructured"
  if options == nil and type(method) ~= "function" then method, options = prune.l1_unstructured, method end
  checked_list(list, op)
  if method ~= prune.l1_unstructured and method ~= prune.random_unstructured then
    fail(op .. ": the method is prune.l1_unstructured or prune.random_unstructured")
  end
  local o = base.options(op, options, { amount = base.optional, count = base.optional,
    importance_scores = base.optional, generator = base.optional })
  masks.unrecorded(prune_globally, list, method, o)
  for _, pair in ipairs(list) do masks.refresh(pair[1]) end
end

-- ---- the end of it ----

--- remove(module, name): bakes the zeros in; module.weight is the Parameter again, and training may regrow it.
function prune.remove(m, name)
  masks.check_parameter(m, name, "remove", 'prune.remove(module, "weight")')
  if not masks.find(m, name) then
    fail(("remove: '%s' of %s is not pruned"):format(name, m:label()))
  end
  masks.remove(m, name)
  return m
end

--- is_pruned(module): has the module, or one below it, a pruned parameter?
function prune.is_pruned(m)
  if not registry.is_module(m) then fail("is_pruned: argument 1 must be a module, got " .. base.kind(m)) end
  local found = false
  registry.each_module(m, function(_, below) found = found or #masks.list(below) > 0 end)
  return found
end

return base.namespace(prune, "nn.utils.prune", {
  compact = "tlua.nn.prune.compact", schedule = "tlua.nn.prune.schedule", sparsity = "tlua.nn.prune.sparsity",
  sensitivity = "tlua.nn.prune.sensitivity", rewind = "tlua.nn.prune.rewind",
  sparse = "tlua.nn.prune.sparse",
})
