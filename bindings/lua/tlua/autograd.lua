-- autograd.lua: what a walk over the tape asks Lua for (hooks, custom functions), tl.autograd and x:register_hook.
--
-- The engine never calls Lua: a walk stops where it needs a hook or a custom function, says which (its number), and
-- goes on after the reply. Numbers of nodes that are gone come back through tl_function_dead().
local base = require "tlua.base"

local ffi, C, methods, tl = base.ffi, base.C, base.methods, base.tl
local check, fail, wrap, wrap_optional, out = base.check, base.fail, base.wrap, base.wrap_optional, base.out
local check_tensor, is_tensor = base.check_tensor, base.is_tensor
local native = ffi.C
local unpack, select = unpack, select

local autograd = {}

-- ---- the registry ----

local registry = {} -- number -> hook (a function) or record of a custom function
local unused = {} -- numbers to use again
local last = -1

-- Forgets what belongs to nodes that are gone. True if there was any.
local function forget()
  local id, any = native.tl_function_dead(), false
  while id >= 0 do
    if registry[id] ~= nil then
      registry[id] = nil
      any = true
    end
    unused[#unused + 1] = id
    id = native.tl_function_dead()
  end
  return any
end
base.forget = forget

local function register(entry)
  forget()
  local id = table.remove(unused)
  if not id then
    last = last + 1
    id = last
  end
  registry[id] = entry
  return id
end

-- ---- serving a walk ----

local event = ffi.new("tl_walk_event")

-- The gradients of the event as Lua tensors; absent ones are nil.
local function offered()
  local list = {}
  for i = 0, event.count - 1 do
    if event.grads[i] ~= nil then
      check(C.tl_tensor_retain(event.grads[i], out))
      list[i + 1] = wrap(out[0])
    end
  end
  return list
end

local function reply(walk, list, n)
  local buffer = ffi.new("tl_tensor *[?]", math.max(n, 1))
  for i = 1, n do buffer[i - 1] = list[i] end
  check(C.tl_walk_reply(walk, n, buffer))
end

local function serve_hook(walk)
  local hook = registry[event.id]
  local given = offered()[1]
  local grad = hook and hook(given)
  if grad ~= nil then
    if not is_tensor(grad) then fail("a hook must return a tensor or nothing, got " .. base.kind(grad)) end
    if grad.device ~= given.device then
      fail(("a hook returned a gradient on %s for a tensor on %s"):format(grad.device, given.device))
    end
    grad = grad:to(given.dtype)
  end
  reply(walk, { grad }, 1)
end

-- Serves events until the walk is done.
local function run(walk)
  while true do
    check(C.tl_walk_next(walk, event))
    if event.kind == 0 then return end
    if event.kind == 1 then serve_hook(walk) else
      local inputs = event.replies
      reply(walk, registry[event.id].serve(registry[event.id], walk, offered()), inputs)
    end
  end
end

-- Runs f(walk, ...) and frees the walk whatever happens. Gradients are not recorded meanwhile.
local function with_walk(walk, f, ...)
  local former = native.tl_set_grad_enabled(false)
  local ok, result = pcall(f, walk, ...)
  native.tl_set_grad_enabled(former)
  native.tl_walk_free(walk)
  if not ok then error(result, 0) end
  return result
end

--- Serves a walk that tl_backward() handed out.
function autograd.serve(walk) with_walk(walk, run) end

-- ---- hooks ----

local Handle = {}
Handle.__index = Handle

--- handle:remove(): the hook runs no more.
function Handle:remove()
  if self.tensor == nil then return end
  check(C.tl_remove_hook(self.tensor, self.id))
  registry[self.id] = nil
  self.tensor = nil
end

--- x:register_hook(f): backward calls f(grad) with x's gradient; a tensor that f returns takes its place. Returns a
--- handle with :remove(). (f lives as long as x's graph: an f that holds x itself keeps both alive until removed.)
function methods.register_hook(x, f)
  check_tensor(x, "register_hook", 1)
  if type(f) ~= "function" then fail("register_hook: argument 2 must be a function, got " .. base.kind(f)) end
  local id = register(f)
  local status = C.tl_register_hook(x, id)
  if status ~= 0 then registry[id] = nil end
  check(status)
  return setmetatable({ tensor = x, id = id }, Handle)
end

-- ---- autograd.grad ----

local function as_list(x, op, n)
  if is_tensor(x) then return { x } end
  if type(x) ~= "table" then
    fail(op .. ": argument " .. n .. " must be a tensor or a table of tensors, got " .. base.kind(x))
  end
  for i = 1, #x do
    if not is_tensor(x[i]) then
      fail(("%s: element %d of argument %d must be a tensor, got %s"):format(op, i, n, base.kind(x[i])))
    end
  end
  if #x == 0 then fail(op .. ": argument " .. n .. " is empty") end
  return x
end

-- A C array of the list's handles; nil entries are NULL.
local function array(list, n)
  local buffer = ffi.new("tl_tensor *[?]", n)
  for i = 1, n do buffer[i - 1] = list[i] end
  return buffer
end

local function read_grads(walk, n)
  run(walk)
  local buffer = ffi.new("tl_tensor *[?]", n)
  check(C.tl_walk_grads(walk, n, buffer))
  local list = {}
  for i = 1, n do list[i] = wrap_optional(buffer[i - 1]) end
  return list
end

--- autograd.grad(outputs, inputs, {grad_outputs=, retain_graph=false, allow_unused=false}): the gradients of the
--- outputs (their sum) with respect to the inputs; .grad stays as it is. A tensor or a table for each; the result is a
--- tensor if inputs is one.
function autograd.grad(outputs, inputs, options)
  local o = base.options("autograd.grad", options,
    { grad_outputs = base.optional, retain_graph = false, allow_unused = false, create_graph = false })
  if o.create_graph then fail("autograd.grad: create_graph is not built: gradients of gradients are not recorded") end
  local from, to = as_list(outputs, "autograd.grad", 1), as_list(inputs, "autograd.grad", 2)
  local grads
  if o.grad_outputs ~= nil then
    grads = is_tensor(o.grad_outputs) and { o.grad_outputs } or o.grad_outputs
    for i = 1, #from do
      if grads[i] and not is_tensor(grads[i]) then
        fail("autograd.grad: grad_outputs must hold tensors, got " .. base.kind(grads[i]))
      end
    end
    grads = array(grads, #from)
  end
  local walk = ffi.new("tl_walk *[1]")
  local retain = o.retain_graph and true or false
  check(C.tl_autograd_grad(#from, array(from, #from), grads, #to, array(to, #to), retain, walk))
  local list = with_walk(walk[0], read_grads, #to)
  for i = 1, #to do
    if list[i] == nil and not o.allow_unused then
      fail("autograd.grad: input " .. i .. " was not used for the outputs: pass {allow_unused=true} if that is meant")
    end
  end
  if is_tensor(inputs) then return list[1] end
  return list
end

-- ---- custom functions ----

local SAVED, RECORD, PLAIN = {}, {}, {} -- private keys of a ctx

local Context = {}

--- ctx:save_for_backward(a, b, ...): tensors (or nils) that backward finds in ctx.saved_tensors, versions checked.
function Context.save_for_backward(ctx, ...)
  local n = select("#", ...)
  local list = { n = n, ... }
  for i = 1, n do
    if list[i] ~= nil and not is_tensor(list[i]) then
      local kind = base.kind(list[i])
      fail(("save_for_backward: argument %d must be a tensor or nil, got %s: use a field of ctx"):format(i, kind))
    end
  end
  rawset(ctx, SAVED, list)
end

--- ctx:mark_non_differentiable(a, ...): these outputs get no gradient.
function Context.mark_non_differentiable(ctx, ...) rawset(ctx, PLAIN, { ... }) end

--- ctx:set_materialize_grads(false): gradients that did not arrive are nil in backward, not zeros.
function Context.set_materialize_grads(ctx, on) rawset(ctx, "materialize_grads", on) end

-- Saved tensors as the engine kept them, while backward runs.
local function saved_tensors(ctx)
  local saved = rawget(ctx, SAVED)
  if saved then return saved end
  local record = rawget(ctx, RECORD)
  if not record or not record.walk then fail("saved_tensors: only backward can read them") end
  local n = record.saved
  local buffer, list = ffi.new("tl_tensor *[?]", math.max(n, 1)), { n = n }
  check(C.tl_function_saved(record.walk, n, buffer))
  for i = 1, n do list[i] = wrap_optional(buffer[i - 1]) end
  rawset(ctx, SAVED, list)
  return list
end

local context_type = {
  __index = function(ctx, key)
    if key == "saved_tensors" then return saved_tensors(ctx) end
    return Context[key]
  end,
}

local function describe(t) return { shape = t.shape, dtype = t.dtype, device = t.device } end

local function shape_text(shape) return "(" .. table.concat(shape, "x") .. ")" end

local function same_shape(a, b)
  if #a ~= #b then return false end
  for d = 1, #a do
    if a[d] ~= b[d] then return false end
  end
  return true
end

-- What backward returned for argument `i`, fit for the tape.
local function check_grad(record, i, grad)
  local input = record.inputs[i]
  if not is_tensor(grad) then
    fail(("%s: backward must return a tensor or nil for argument %d, got %s"):format(record.name, i, base.kind(grad)))
  end
  if not input then
    fail(("%s: backward returned a gradient for argument %d, which is not a tensor"):format(record.name, i))
  end
  local shape, device, name = grad.shape, grad.device, record.name
  if not same_shape(shape, input.shape) then
    local have, want = shape_text(shape), shape_text(input.shape)
    fail(("%s: backward returned a gradient of %s for argument %d of %s"):format(name, have, i, want))
  end
  if device ~= input.device then
    fail(("%s: backward returned a gradient on %s for argument %d on %s"):format(name, device, i, input.device))
  end
  return grad:to(input.dtype)
end

-- Calls the user's backward. `grads` are those of the recorded outputs; returns one gradient an input tensor.
local function serve_function(record, walk, grads)
  local ctx, given = record.ctx, {}
  for i = 1, record.outputs do
    local at = record.slot[i] -- nil: not a tensor, or not differentiable
    local grad = at and grads[at]
    if at and grad == nil and rawget(ctx, "materialize_grads") ~= false then
      local like = record.made[at]
      grad = tl.zeros(like.shape, { dtype = like.dtype, device = like.device })
    end
    given[i] = grad
  end
  record.walk = walk
  local results = { pcall(record.backward, ctx, unpack(given, 1, record.outputs)) }
  record.walk = nil
  rawset(ctx, SAVED, nil)
  if not results[1] then error(results[2], 0) end
  local list, k = {}, 0
  for i = 1, math.max(record.arguments, table.maxn(results) - 1) do
    local grad = results[i + 1]
    if grad ~= nil then grad = check_grad(record, i, grad) end
    if record.inputs[i] then
      k = k + 1
      list[k] = grad
    end
  end
  return list
end

local Function = {}
Function.__index = Function

-- Tensors among the n values, and their places: tensors[k] is values[places[k]].
local function tensors_of(values, n)
  local tensors, places = {}, {}
  for i = 1, n do
    if is_tensor(values[i]) then
      tensors[#tensors + 1] = values[i]
      places[#places + 1] = i
    end
  end
  return tensors, places
end

local function contains(list, t)
  for _, other in ipairs(list or {}) do
    if other == t then return true end
  end
  return false
end

-- Ties outputs to inputs on the tape, if gradients are wanted.
local function record_call(self, ctx, n, inputs, places, results, m)
  local record = {
    name = self.name, ctx = ctx, backward = self.backward, serve = serve_function,
    arguments = n, inputs = {}, outputs = m, slot = {}, made = {},
  }
  for k = 1, #inputs do record.inputs[places[k]] = describe(inputs[k]) end
  local tied = {}
  for i = 1, m do
    local t = results[i]
    if is_tensor(t) and t:is_floating_point() and not contains(rawget(ctx, PLAIN), t) then
      if contains(inputs, t) then -- forward handed an argument back: its own history must stay
        t = tl.no_grad(t.clone, t)
        results[i] = t
      end
      tied[#tied + 1] = t
      record.slot[i] = #tied
      record.made[#tied] = describe(t)
    end
  end
  if #tied == 0 then return end
  local saved = rawget(ctx, SAVED) or { n = 0 }
  record.saved = saved.n
  local id = register(record)
  local from, to, kept = array(inputs, #inputs), array(tied, #tied), array(saved, saved.n)
  local status = C.tl_function_record(self.name, id, #inputs, from, #tied, to, saved.n, kept, base.boolean)
  if status ~= 0 or not base.boolean[0] then registry[id] = nil end
  check(status)
  rawset(ctx, SAVED, nil)
  rawset(ctx, RECORD, record)
end

local function pack(...) return { n = select("#", ...), ... } end

--- f(...) runs forward(ctx, ...) without recording; backward(ctx, ...) then gets one gradient an output and returns one
--- an argument.
function Function:__call(...)
  local n = select("#", ...)
  local arguments = { ... }
  local inputs, places = tensors_of(arguments, n)
  local needs = {}
  for i = 1, n do needs[i] = is_tensor(arguments[i]) and native.tl_requires_grad(arguments[i]) or false end
  local ctx = setmetatable({ needs_input_grad = needs }, context_type)
  local results = pack(tl.no_grad(self.forward, ctx, ...))
  if native.tl_grad_enabled() and contains(needs, true) then
    record_call(self, ctx, n, inputs, places, results, results.n)
  end
  return unpack(results, 1, results.n)
end

--- autograd.Function{forward=f(ctx, ...), backward=f(ctx, ...), name=}: an operation with a derivative of its own. Call
--- what it returns, f(x, ...) or f.apply(x, ...). ctx:save_for_backward(...) keeps tensors, any other field of ctx
--- keeps anything.
function autograd.Function(spec)
  local o = base.options("autograd.Function", spec,
    { forward = base.optional, backward = base.optional, name = "custom function" })
  if type(o.forward) ~= "function" then
    fail("autograd.Function: forward must be a function, got " .. base.kind(o.forward))
  end
  if type(o.backward) ~= "function" then
    fail("autograd.Function: backward must be a function, got " .. base.kind(o.backward))
  end
  local f = setmetatable({ forward = o.forward, backward = o.backward, name = tostring(o.name) }, Function)
  f.apply = function(...) return f(...) end
  return f
end

-- ---- the rest ----

--- autograd.detect_anomaly(on): backward stops with an error that names the operation whose derivative made the first
--- nan. Slow. Returns the former state.
function autograd.detect_anomaly(on)
  if type(on) ~= "boolean" then fail("detect_anomaly: must be true or false, got " .. base.kind(on)) end
  return native.tl_set_detect_anomaly(on)
end

--- autograd.backward(outputs, grads, {retain_graph=}): backward of several outputs in one walk.
function autograd.backward(outputs, grads, options)
  local list = as_list(outputs, "autograd.backward", 1)
  if is_tensor(grads) then grads = { grads } end
  grads = grads or {}
  if #list == 1 then return methods.backward(list[1], grads[1], options) end
  local join = autograd.Function {
    name = "backward",
    forward = function(_, first) return tl.zeros({}, { dtype = first.dtype, device = first.device }) end,
    backward = function()
      local result = {}
      for i, t in ipairs(list) do
        if grads[i] == nil and t:numel() ~= 1 then
          local shape = shape_text(t.shape)
          fail(("autograd.backward: output %d of %s needs a gradient; only one element needs none"):format(i, shape))
        end
        result[i] = grads[i] or tl.ones_like(t)
      end
      return unpack(result, 1, #list)
    end,
  }
  join(unpack(list)):backward(nil, options)
end

autograd.no_grad, autograd.enable_grad = tl.no_grad, tl.enable_grad
autograd.gradcheck = function(...) return require "tlua.gradcheck"(...) end

return base.namespace(autograd, "tl.autograd")
