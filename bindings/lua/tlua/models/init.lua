-- models: language models under Hugging Face's names: tensors as in their safetensors files, options as in config.json.
local base = require "tlua.base"

return base.namespace({}, "tl.models", { gpt2 = "tlua.models.gpt2" })
