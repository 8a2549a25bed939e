-- utils.lua: nn.utils: gradients and values of a list of parameters; nn.utils.prune when it is asked for.
local tl = require "tlua"
local base = require "tlua.base"

local C, check, fail = base.C, base.check, base.fail
local number, is_tensor, out, wrap = base.number, base.is_tensor, base.out, base.wrap
local native = base.ffi.C

local utils = {}

local function as_list(params, op)
  if is_tensor(params) then return { params } end
  if type(params) == "table" and params.parameters then
    fail(op .. ": parameters are a list of tensors, as model:parameters() gives, got a module")
  end
  return params
end

local norm_options = { norm_type = base.optional, error_if_nonfinite = false }

--- clip_grad_norm_(params, max_norm, {norm_type=2, error_if_nonfinite=false}): scales all gradients by min(1,
--- max_norm / (norm + 1e-6)) and returns the norm they had, as a number. norm_type may be math.huge or "inf". Where the
--- parameters are on a GPU it is a 0-d tensor, for which nothing waits (a number with error_if_nonfinite).
function utils.clip_grad_norm_(params, max_norm, given)
  local op, norm_type, strict = "clip_grad_norm_", 2, false
  if type(max_norm) ~= "number" then fail(op .. ": max_norm must be a number, got " .. type(max_norm)) end
  if given ~= nil then
    local options = base.options(op, given, norm_options)
    norm_type, strict = options.norm_type or 2, options.error_if_nonfinite
    if norm_type == "inf" then norm_type = math.huge end
    if type(norm_type) ~= "number" then fail(op .. ": norm_type must be a number or 'inf'") end
    if type(strict) ~= "boolean" then fail(op .. ": error_if_nonfinite must be a boolean, got " .. type(strict)) end
  end
  local pointers, n = base.tensors(as_list(params, op), op)
  if n > 0 and not strict and native.tl_device_of(pointers[0]) ~= 0 then
    check(C.tl_clip_grad_norm_tensor_(n, pointers, max_norm, norm_type, out))
    return wrap(out[0])
  end
  check(C.tl_clip_grad_norm_(n, pointers, max_norm, norm_type, strict, number))
  return number[0]
end

--- clip_grad_value_(params, value): every gradient element into [-value, value].
function utils.clip_grad_value_(params, value)
  local op = "clip_grad_value_"
  if type(value) ~= "number" then fail(op .. ": the value must be a number, got " .. type(value)) end
  local pointers, n = base.tensors(as_list(params, op), op)
  check(C.tl_clip_grad_value_(n, pointers, value))
end

--- All parameters, flattened, one after the other: a 1-d tensor with a gradient path to each.
function utils.parameters_to_vector(params)
  local op = "parameters_to_vector"
  params = as_list(params, op)
  base.tensors(params, op)
  if #params == 0 then fail(op .. ": the list of parameters is empty") end
  local flat = {}
  for i, p in ipairs(params) do flat[i] = p:reshape(-1) end
  return tl.cat(flat, 1)
end

--- The way back: copies slices of a 1-d tensor into the parameters.
function utils.vector_to_parameters(vector, params)
  local op = "vector_to_parameters"
  base.check_tensor(vector, op, 1)
  params = as_list(params, op)
  base.tensors(params, op)
  local total = 0
  for _, p in ipairs(params) do total = total + C.tl_numel(p) end
  if C.tl_ndim(vector) ~= 1 or C.tl_numel(vector) ~= total then
    fail(("%s: the vector must have the %d elements of the parameters in one dim"):format(op, total))
  end
  tl.no_grad(function()
    local first = 1
    for _, p in ipairs(params) do
      local n = C.tl_numel(p)
      if n > 0 then p:copy_(vector:narrow(1, first, n):reshape(p.shape)) end
      first = first + n
    end
  end)
end

return base.namespace(utils, "nn.utils", { prune = "tlua.nn.prune" })
