-- pretrained.lua: models as Hugging Face keeps them: a folder with config.json and model.safetensors (or several files
-- and model.safetensors.index.json).
--
-- A class of models has: model_type and architecture, its names there; defaults, the options that it knows;
-- unsupported, keys of config.json with the only value they may have; rename(name), how a tensor of a file is called
-- here (nil: it is of no use); transposed(name), whether files have that matrix the other way round. It may have
-- from_config and to_config, where options are not simply keys.
local base = require "tlua.base"
local files = require "tlua.files"
local json = require "tlua.json"
local system = require "tlua.system"
local shape_of = require("tlua.nn.support").shape

local tl, ffi, C, check, fail = base.tl, base.ffi, base.C, base.check, base.fail

local pretrained = {}

local CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"

local classes = { gpt2 = "tlua.models.gpt2", llama = "tlua.models.llama" }

-- ---- files ----

local function read_json(op, path)
  local file, why = io.open(path, "rb")
  if not file then fail(op .. ": " .. why) end
  local text = file:read("*a")
  file:close()
  local ok, value = pcall(json.decode, text or "") -- nil: a folder
  if not ok then fail(("%s: %s: %s"):format(op, path, value)) end
  if type(value) ~= "table" then fail(("%s: %s: must hold an object"):format(op, path)) end
  return value
end
pretrained.read_json = read_json

local function exists(path)
  local file = io.open(path, "rb")
  if file then file:close() end
  return file ~= nil
end

--- Writes the table `value` to `path`, a line for each of its keys.
function pretrained.write_json(path, value)
  local keys, lines = {}, {}
  for key in pairs(value) do keys[#keys + 1] = key end
  table.sort(keys)
  for i, key in ipairs(keys) do lines[i] = ("  %s: %s"):format(json.encode(key), json.encode(value[key])) end
  local text = "{\n" .. table.concat(lines, ",\n") .. "\n}\n"
  check(C.tl_write_bytes(path, text, #text))
end

--- Writes name -> tensor with the note that tells other programs whose layout it is.
function pretrained.write_tensors(path, dict)
  local names, list = {}, {}
  for name in pairs(dict) do names[#names + 1] = name end
  table.sort(names)
  for i, name in ipairs(names) do list[i] = dict[name]:detach():cpu():contiguous() end
  local array, n = base.tensors(list, "save_pretrained")
  local name_array = ffi.new("const char *[?]", math.max(1, n), names)
  local keys, values = ffi.new("const char *[1]", { "format" }), ffi.new("const char *[1]", { "pt" })
  check(C.tl_write_safetensors(path, n, name_array, array, 1, keys, values))
  return nil -- names and list stay alive until here
end

-- The safetensors files of a model that lies in `folder`: a list of paths.
local function weight_files(op, folder)
  if exists(folder .. "/" .. WEIGHTS) then return { folder .. "/" .. WEIGHTS } end
  local index = folder .. "/" .. INDEX
  if not exists(index) then fail(("%s: %s: there is neither %s nor %s"):format(op, folder, WEIGHTS, INDEX)) end
  local map = read_json(op, index).weight_map
  if type(map) ~= "table" then fail(("%s: %s: has no weight_map"):format(op, index)) end
  local list, seen = {}, {}
  for tensor, name in pairs(map) do
    if type(name) ~= "string" or name:find("/", 1, true) or name == ".." then
      fail(("%s: %s: '%s' lies in no file of this folder"):format(op, index, tostring(tensor)))
    end
    if not seen[name] then
      seen[name] = true
      list[#list + 1] = folder .. "/" .. name
    end
  end
  table.sort(list)
  return list
end

-- ---- tensors into a model ----

local function quoted(names)
  table.sort(names)
  return "'" .. table.concat(names, "', '") .. "'"
end

-- Copies the tensors of one file to where they belong. found: keys that had a value; faults: what is wrong.
local function take_file(path, dict, place, found, faults)
  local unexpected = {}
  for name, t in pairs((files.load(path))) do
    local key, turned = place(name)
    local target = dict[key or false]
    if key and not target then
      unexpected[#unexpected + 1] = name
    elseif key then
      local wanted = turned and target:t() or target
      if shape_of(wanted) ~= shape_of(t) then
        faults[#faults + 1] = ("'%s' is %s in the file, the model's is %s"):format(name, shape_of(t), shape_of(wanted))
      else
        tl.no_grad(target.copy_, target, turned and t:t() or t)
      end
      found[key] = true
    end
  end
  if #unexpected > 0 then faults[#faults + 1] = "unexpected " .. quoted(unexpected) end
end

--- Copies the tensors of these files into those of dict (key -> tensor), each of which must be there. place(name) is
--- the key of a file's tensor (nil: it is of no use), and whether it is the other way round there.
function pretrained.load_tensors(op, paths, dict, place)
  local found, faults, missing = {}, {}, {}
  for _, path in ipairs(paths) do take_file(path, dict, place, found, faults) end
  for key in pairs(dict) do
    if not found[key] then missing[#missing + 1] = key end
  end
  if #missing > 0 then table.insert(faults, 1, "missing " .. quoted(missing)) end
  if #faults > 0 then fail(("%s: %s: %s"):format(op, table.concat(paths, ", "), table.concat(faults, "; "))) end
end

-- ---- whole models ----

local function class_of(op, path, config)
  local kind = config.model_type
  if type(kind) ~= "string" or not classes[kind] then
    local names = {}
    for name in pairs(classes) do names[#names + 1] = name end
    fail(("%s: %s: model_type %s is not supported; these are: %s"):format(op, path, json.encode(kind), quoted(names)))
  end
  return require(classes[kind])
end

-- Options out of a config.json: what the class knows; the rest is kept to be written back.
local function options_of(op, path, class, config)
  for key, allowed in pairs(class.unsupported or {}) do
    local value = config[key]
    if value ~= nil and value ~= json.null and value ~= allowed then
      fail(("%s: %s: %s = %s is not supported"):format(op, path, key, json.encode(value)))
    end
  end
  local options = {}
  for key in pairs(class.defaults) do
    if config[key] ~= json.null then options[key] = config[key] end
  end
  if class.from_config then class.from_config(op, path, config, options) end
  return options
end

--- tl.models.load(path, {device=, dtype="float32"}): the model in a folder with config.json and model.safetensors (or
--- model.safetensors.index.json), or of one .safetensors file with config.json beside it. In eval mode.
function pretrained.load(path, options)
  local op = "models.load"
  if type(path) ~= "string" then fail(op .. ": argument 1 must be a path, got " .. base.kind(path)) end
  local o = base.options(op, options, { device = base.optional, dtype = "float32" })
  base.dtype(o.dtype, op)
  path = path:gsub("(.)/+$", "%1")
  local folder = path:match("%.safetensors$") and (path:match("^(.*)/[^/]*$") or ".") or path
  local paths = folder ~= path and { path } or weight_files(op, folder)
  local config_path = folder .. "/" .. CONFIG
  local config = read_json(op, config_path)
  local class = class_of(op, config_path, config)
  local model = class(options_of(op, config_path, class, config))
  rawset(model, "source_config", config)
  model:to(o.device or base.device_name(base.default_device), o.dtype)
  pretrained.load_tensors(op, paths, model:state_dict(), function(name)
    local key = class.rename(name)
    if key == "lm_head.weight" and model.config.tie_word_embeddings then return nil end
    return key, key and class.transposed(key)
  end)
  return model:eval()
end

--- model:save_pretrained(folder): config.json and model.safetensors, as transformers reads them.
function pretrained.save(model, folder)
  local op, class = "save_pretrained", getmetatable(model)
  if type(folder) ~= "string" then fail(op .. ": argument 1 must be a path, got " .. base.kind(folder)) end
  if rawget(model, "lora_adapters") then
    fail(op .. ": the model has adapters: lora.save writes them, lora.merge makes them part of its weights")
  end
  system.make_folders(folder)
  local config = {}
  for key, value in pairs(model.source_config or {}) do config[key] = value end
  for key in pairs(class.defaults) do -- null: else transformers would take a default of its own
    local value = model.config[key]
    if value ~= nil then config[key] = value elseif config[key] == nil then config[key] = json.null end
  end
  config.model_type, config.architectures = class.model_type, { class.architecture }
  config.dtype, config.torch_dtype = model:output_weight().dtype, nil
  local dict = model:state_dict()
  for name, t in pairs(dict) do
    if class.transposed(name) then dict[name] = t:t() end
  end
  if class.to_config then class.to_config(model, config, dict) end
  pretrained.write_tensors(folder .. "/" .. WEIGHTS, dict)
  pretrained.write_json(folder .. "/" .. CONFIG, config)
end

return pretrained
