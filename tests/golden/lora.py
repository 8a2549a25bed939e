"""lora.py: writes lora/: adapters that PEFT made for the models of models.py, and the logits of the adapted models
(logits.safetensors). Run it after models.py, with a Python that has peft, transformers and PyTorch."""
import json
import os
import shutil

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

HERE = os.path.dirname(os.path.abspath(__file__))
ADAPTERS = {
    "gpt2": dict(r=3, lora_alpha=5, target_modules=["c_attn", "mlp.c_fc"], fan_in_fan_out=True),
    "llama": dict(r=2, lora_alpha=8, lora_dropout=0.1, target_modules=["q_proj", "v_proj", "down_proj"]),
}

shutil.rmtree(os.path.join(HERE, "lora"), ignore_errors=True)
for seed, (name, options) in enumerate(ADAPTERS.items()):
    torch.manual_seed(seed)
    base = os.path.join(HERE, "models", name)
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base), LoraConfig(task_type="CAUSAL_LM", **options))
    with torch.no_grad():
        for key, p in model.named_parameters():
            if "lora_B" in key:
                p.normal_(std=0.5)
    folder = os.path.join(HERE, "lora", name)
    model.save_pretrained(folder)
    os.remove(os.path.join(folder, "README.md"))
    path = os.path.join(folder, "adapter_config.json")
    config = json.load(open(path))
    config["base_model_name_or_path"] = ""
    config["target_modules"].sort()
    json.dump(config, open(path, "w"), indent=1)
    ids = load_file(os.path.join(base, "answers.safetensors"))["ids"]
    with torch.no_grad():
        save_file({"logits": model.eval()(ids).logits}, os.path.join(folder, "logits.safetensors"))
