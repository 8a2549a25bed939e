-- group.lua: parameter groups: tables whose options live in the engine's memory, so that both sides see every change.
local base = require "tlua.base"

local ffi, fail = base.ffi, base.fail

-- What each group's options are called: a number or boolean of tl_param_group, or betas.
local numbers = {
  lr = true, initial_lr = true, momentum = true, dampening = true, weight_decay = true, eps = true, alpha = true,
  lr_decay = true, initial_accumulator_value = true, momentum_decay = true,
}

-- What a state_dtype is called; the engine knows 8-bit codes as uint8.
local state_dtypes = { float32 = "float32", bfloat16 = "bfloat16", int8 = "uint8" }
local state_dtype_names = {}
for name, stored in pairs(state_dtypes) do state_dtype_names[base.dtype_numbers[stored]] = name end

-- group -> its parameters, the engine's options, the optimizer's class, and the handle that keeps them alive
local params_of = setmetatable({}, { __mode = "k" })
local options_of = setmetatable({}, { __mode = "k" })
local class_of = setmetatable({}, { __mode = "k" })
local owner_of = setmetatable({}, { __mode = "k" })

local group = {}

--- Reads option `name` of a tl_param_group.
function group.get(options, name)
  if name == "betas" then return { options.beta1, options.beta2 } end
  if name == "initial_lr" and options.initial_lr ~= options.initial_lr then return nil end
  if name == "state_dtype" then return state_dtype_names[options.state_dtype] end
  return options[name]
end

--- Writes it, after its type was checked.
function group.set(op, options, name, value)
  if name == "betas" then
    if type(value) ~= "table" or #value ~= 2 or type(value[1]) ~= "number" or type(value[2]) ~= "number" then
      fail(op .. ": option 'betas' is a table of two numbers")
    end
    options.beta1, options.beta2 = value[1], value[2]
    return
  end
  if name == "state_dtype" then
    if not state_dtypes[value] then
      fail(op .. ": option 'state_dtype' is \"float32\", \"bfloat16\" or \"int8\", got " .. tostring(value))
    end
    options.state_dtype = base.dtype_numbers[state_dtypes[value]]
    return
  end
  local kind = numbers[name] and "number" or "boolean"
  if type(value) ~= kind then fail(("%s: option '%s' must be a %s, got %s"):format(op, name, kind, type(value))) end
  options[name] = value
end

--- Is `name` one of the class's options? If not: an error that names the nearest one.
function group.check_name(class, name)
  if class.has[name] then return end
  name = tostring(name)
  fail(("%s: there is no option '%s'%s"):format(class.name, name, base.suggestion(name, class.has)))
end

local methods = {}

function methods.__index(g, name)
  if name == "params" then return params_of[g] end
  local class = class_of[g]
  if class.has[name] then return group.get(options_of[g], name) end
end

function methods.__newindex(g, name, value)
  local class = class_of[g]
  if name == "params" then fail(class.name .. ": a group's parameters stay: use add_param_group for more") end
  group.check_name(class, name)
  group.set(class.name, options_of[g], name, value)
end

--- A group's face: params is the list of Lua tensors, everything else is read from and written to the engine.
function group.new(class, owner, options, params)
  local g = {}
  params_of[g], options_of[g], class_of[g], owner_of[g] = params, options, class, owner
  return setmetatable(g, methods)
end

--- A fresh tl_param_group with what `from` says.
function group.copy(from) return ffi.new("tl_param_group", from) end

return group
