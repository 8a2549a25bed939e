-- models: language models under Hugging Face's names: tensors as in their safetensors files, options as in config.json.
local base = require "tlua.base"

local models = {}

--- tl.models.load(path, {device=, dtype="float32"}): see pretrained.lua.
function models.load(path, options) return require("tlua.models.pretrained").load(path, options) end

return base.namespace(models, "tl.models", { gpt2 = "tlua.models.gpt2", llama = "tlua.models.llama" })
