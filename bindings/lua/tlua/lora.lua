-- lora.lua: tl.lora: low-rank adapters (Hu et al. 2022): y = W x + (alpha / r) B A x, where only A and B are trained.
-- They become children lora_A and lora_B of the nn.Linear they adapt: names and files are those of PEFT.
local base = require "tlua.base"
local nn = require "tlua.nn"
local json = require "tlua.json"
local pretrained = require "tlua.models.pretrained"
local support = require "tlua.nn.support"
local system = require "tlua.system"

local tl, fail = base.tl, base.fail

local lora = {}

local CONFIG, WEIGHTS, PREFIX = "adapter_config.json", "adapter_model.safetensors", "base_model.model."

local defaults = { r = 8, alpha = 8, dropout = 0, target_modules = base.optional }

-- ---- which layers ----

-- A list: names of layers, or their ends behind a dot, as PEFT has it. A string: a Lua pattern for the whole name.
local function is_target(name, targets)
  if type(targets) == "string" then return name:find("^" .. targets .. "$") ~= nil end
  for _, target in ipairs(targets) do
    if name == target or name:sub(-#target - 1) == "." .. target then return true end
  end
  return false
end

-- Fails unless the targets are names or a pattern.
local function check_targets(op, targets)
  local fits = type(targets) == "string" or type(targets) == "table" and #targets > 0
  if not fits then
    fail(op .. ": option 'target_modules' must be a list of names or a pattern, got " .. base.kind(targets))
  end
  if type(targets) == "string" then
    local ok, message = pcall(string.find, "", "^" .. targets .. "$")
    if not ok then fail(("%s: option 'target_modules': %s"):format(op, message)) end
    return
  end
  for i, target in ipairs(targets) do
    if type(target) ~= "string" then
      fail(("%s: element %d of option 'target_modules' must be a name, got %s"):format(op, i, base.kind(target)))
    end
  end
end

local function linear_layers(model, op, targets)
  local names, layers, all = {}, {}, {}
  for name, m in model:named_modules() do
    if m:is_a(nn.Linear) then all[name:match "[^.]*$"] = true end
    if is_target(name, targets) then
      if not m:is_a(nn.Linear) then fail(("%s: '%s' is a %s; adapters go with nn.Linear"):format(op, name, m._name)) end
      names[#names + 1], layers[#layers + 1] = name, m
    end
  end
  if #layers > 0 then return names, layers end
  local known = {}
  for name in pairs(all) do known[#known + 1] = name end
  table.sort(known)
  fail(("%s: no layer is called '%s'; the linear ones are: %s"):format(op,
    type(targets) == "table" and table.concat(targets, "', '") or targets, table.concat(known, ", ")))
end

-- ---- the adapted layer ----

local function forward(self, x)
  local y, A = nn.Linear.forward(self, x), self.lora_A
  if x.dtype ~= A.weight.dtype then x = x:to(A.weight.dtype) end
  local change = self.lora_B(A(self.lora_dropout(x)) * self.lora_scale)
  return y + (change.dtype ~= y.dtype and change:to(y.dtype) or change)
end

local function add(layer, r, scale, dropout)
  local weight = layer.weight
  local dtype = (weight.dtype == "float16" or weight.dtype == "bfloat16") and "float32" or weight.dtype
  local options = { bias = false, dtype = dtype, device = weight.device }
  layer.lora_A = nn.Linear(weight:size(2), r, options)
  layer.lora_B = nn.Linear(r, weight:size(1), options)
  nn.init.zeros_(layer.lora_B.weight) -- at first nothing changes
  layer.lora_dropout = dropout > 0 and nn.Dropout(dropout) or nn.Identity()
  layer.lora_dropout:train(layer.training)
  rawset(layer, "lora_scale", scale)
  rawset(layer, "forward", forward)
end

local function take_away(layer)
  layer.lora_A, layer.lora_B, layer.lora_dropout = nil, nil, nil
  rawset(layer, "lora_scale", nil)
  rawset(layer, "forward", nil)
end

local function check_model(model, op)
  if not nn.is_module(model) then fail(op .. ": argument 1 must be a module, got " .. base.kind(model)) end
end

local function adapters_of(model, op)
  check_model(model, op)
  local adapters = rawget(model, "lora_adapters")
  if not adapters then fail(op .. ": the model has no adapters: lora.apply comes first") end
  return adapters
end

--- lora.apply(model, {r=8, alpha=8, dropout=0, target_modules={"c_attn", ...}}): adds adapters to the nn.Linear layers
--- of these names (or whose whole name matches a Lua pattern) and freezes everything else. Returns the model.
function lora.apply(model, options)
  local op = "lora.apply"
  check_model(model, op)
  local o = base.options(op, options, defaults)
  support.size(op, "option 'r'", o.r)
  if not (o.dropout >= 0 and o.dropout < 1) then fail(op .. ": option 'dropout' must be at least 0 and below 1") end
  local targets = o.target_modules
  check_targets(op, targets)
  if rawget(model, "lora_adapters") then fail(op .. ": the model has adapters already") end
  local names, layers = linear_layers(model, op, targets)
  local frozen = {}
  for _, p in ipairs(model:parameters()) do
    if p.requires_grad then
      frozen[#frozen + 1] = p
      p.requires_grad = false
    end
  end
  for _, layer in ipairs(layers) do add(layer, o.r, o.alpha / o.r, o.dropout) end
  rawset(model, "lora_adapters", { options = o, names = names, layers = layers, frozen = frozen })
  return model
end

--- lora.parameters(model): the list of the adapters' parameters, for an optimizer.
function lora.parameters(model)
  local list = {}
  for _, layer in ipairs(adapters_of(model, "lora.parameters").layers) do
    list[#list + 1], list[#list + 2] = layer.lora_A.weight, layer.lora_B.weight
  end
  return list
end

-- ---- the end of adapters ----

--- lora.remove(model): takes the adapters away; the model is what it was before lora.apply. Returns it.
function lora.remove(model)
  local adapters = adapters_of(model, "lora.remove")
  for _, layer in ipairs(adapters.layers) do take_away(layer) end
  for _, p in ipairs(adapters.frozen) do p.requires_grad = true end
  rawset(model, "lora_adapters", nil)
  return model
end

--- lora.merge(model): adds the adapters to the weights and takes them away: the same model, as fast as before.
function lora.merge(model)
  tl.no_grad(function()
    for _, layer in ipairs(adapters_of(model, "lora.merge").layers) do
      local change = layer.lora_B.weight:matmul(layer.lora_A.weight) * layer.lora_scale
      layer.weight:copy_(layer.weight:to(change.dtype) + change)
    end
  end)
  return lora.remove(model)
end

-- ---- files ----

-- name in PEFT's files -> tensor
local function tensors_of(adapters)
  local dict = {}
  for i, layer in ipairs(adapters.layers) do
    for _, part in ipairs { "lora_A", "lora_B" } do
      dict[PREFIX .. adapters.names[i] .. "." .. part .. ".weight"] = layer[part].weight
    end
  end
  return dict
end

--- lora.save(model, folder, {base_model=""}): adapter_config.json and adapter_model.safetensors, as PEFT reads them.
--- base_model: where it finds the model that was adapted.
function lora.save(model, folder, options)
  local op = "lora.save"
  local adapters = adapters_of(model, op)
  if type(folder) ~= "string" then fail(op .. ": argument 2 must be a path, got " .. base.kind(folder)) end
  local o, given = base.options(op, options, { base_model = "" }), adapters.options
  local class = getmetatable(model)
  system.make_folders(folder)
  pretrained.write_tensors(folder .. "/" .. WEIGHTS, tensors_of(adapters))
  pretrained.write_json(folder .. "/" .. CONFIG, {
    peft_type = "LORA", task_type = class.model_type and "CAUSAL_LM" or json.null,
    base_model_name_or_path = o.base_model,
    r = given.r, lora_alpha = given.alpha, lora_dropout = given.dropout, bias = "none",
    target_modules = type(given.target_modules) == "table" and given.target_modules or adapters.names,
    fan_in_fan_out = class.transposed ~= nil and class.transposed(adapters.names[1] .. ".weight"),
    inference_mode = true,
  })
end

-- What must not be in a configuration: key -> the value that means nothing.
local unsupported = {
  use_dora = false, use_rslora = false, use_qalora = false, bias = "none", peft_type = "LORA", modules_to_save = {},
  rank_pattern = {}, alpha_pattern = {}, layers_to_transform = {}, layer_replication = {}, exclude_modules = {},
  trainable_token_indices = {}, target_parameters = {}, lora_bias = false, use_bdlora = false, kasa_config = {},
}

local function check_config(op, path, config)
  for key, allowed in pairs(unsupported) do
    local value = config[key]
    local empty = type(allowed) == "table" and type(value) == "table" and next(value) == nil
    if value ~= nil and value ~= json.null and value ~= allowed and not empty then
      fail(("%s: %s: %s = %s is not supported"):format(op, path, key, json.encode(value)))
    end
  end
  if type(config.target_modules) ~= "table" then
    fail(("%s: %s: target_modules must be a list of names"):format(op, path))
  end
end

--- lora.load(model, folder): lora.apply as adapter_config.json says, with the adapters of adapter_model.safetensors.
function lora.load(model, folder)
  local op = "lora.load"
  check_model(model, op)
  if type(folder) ~= "string" then fail(op .. ": argument 2 must be a path, got " .. base.kind(folder)) end
  local config, path = pretrained.read_json(op, folder .. "/" .. CONFIG), folder .. "/" .. CONFIG
  check_config(op, path, config)
  lora.apply(model, {
    r = config.r, alpha = config.lora_alpha, dropout = config.lora_dropout, target_modules = config.target_modules,
  })
  local ok, message = pcall(pretrained.load_tensors, op, { folder .. "/" .. WEIGHTS }, tensors_of(model.lora_adapters),
    function(name) return name end)
  if ok then return model end
  lora.remove(model)
  error(message, 0)
end

return base.namespace(lora, "tl.lora")
