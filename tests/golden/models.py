"""models.py: writes models/: tiny language models with random weights as transformers saves them, and what it computes
with them: logits, greedy continuations (answers.safetensors). Run it with a Python that has transformers (5.x) and PyTorch;
the tests only read what it wrote."""
import json
import os
import shutil

import torch
from safetensors.torch import save_file
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "models")
GPT2 = dict(vocab_size=40, n_positions=32, n_embd=16, n_layer=2, n_head=2, bos_token_id=None, eos_token_id=None,
            initializer_range=0.3)
LLAMA = dict(vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=64, bos_token_id=None, eos_token_id=None,
             initializer_range=0.3)
MODELS = {
    "gpt2": (GPT2LMHeadModel, GPT2Config(**GPT2)),
    "gpt2_untied": (GPT2LMHeadModel, GPT2Config(**{**GPT2, "n_layer": 1, "n_embd": 12, "n_inner": 20, "n_head": 3},
                                                tie_word_embeddings=False, activation_function="gelu")),
    "llama": (LlamaForCausalLM, LlamaConfig(**LLAMA, tie_word_embeddings=True, rope_theta=500.0, rope_scaling={
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16})),
    "llama_untied": (LlamaForCausalLM, LlamaConfig(**{**LLAMA, "num_hidden_layers": 1}, head_dim=6, attention_bias=True,
                                                   mlp_bias=True, rope_scaling={"rope_type": "linear", "factor": 2.0})),
}

shutil.rmtree(HERE, ignore_errors=True)
for seed, (name, (make, config)) in enumerate(MODELS.items()):
    torch.manual_seed(seed)
    model = make(config).eval()
    with torch.no_grad():
        for key, p in model.named_parameters():
            if p.dim() == 1:
                p.add_(0.2 * torch.randn_like(p))  # norms and biases that do something
    folder = os.path.join(HERE, name)
    model.save_pretrained(folder, max_shard_size="6KB" if name == "llama_untied" else "1GB")
    path = os.path.join(folder, "generation_config.json")
    if os.path.exists(path):
        os.remove(path)
    if name == "gpt2_untied":  # as older files have it: without the prefix
        from safetensors.torch import load_file
        path = os.path.join(folder, "model.safetensors")
        save_file({k.removeprefix("transformer."): v for k, v in load_file(path).items()}, path, {"format": "pt"})
    if name == "llama":  # as files of transformers 4 have it
        path = os.path.join(folder, "config.json")
        c = json.load(open(path))
        rope = c.pop("rope_parameters")
        c["rope_theta"] = rope.pop("rope_theta")
        c["rope_scaling"], c["torch_dtype"] = rope, c.pop("dtype")
        json.dump(c, open(path, "w"), indent=2, sort_keys=True)
    ids = torch.randint(0, 40, (2, 11))
    with torch.no_grad():
        logits = model(ids).logits
        greedy = model.generate(ids, max_new_tokens=16, do_sample=False, attention_mask=torch.ones_like(ids),
                                pad_token_id=0)
    save_file({"ids": ids, "logits": logits, "greedy": greedy}, os.path.join(folder, "answers.safetensors"))
