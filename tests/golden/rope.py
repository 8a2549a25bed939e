"""rope.py: writes rope.lua: the frequencies, cosines and sines of rotary embeddings as the transformers package computes
them, and rows turned by them. Run it with a Python that has PyTorch and transformers; the tests only read what it wrote.
"""
import os

import torch
from transformers import LlamaConfig
from transformers.models.cohere import modeling_cohere
from transformers.models.llama import modeling_llama

T, FIRST = 3, 40


def numbers(n, seed):
    """n numbers in [-1, 1), as numbers.lua beside this file makes them."""
    return [((i * 7919 + seed * 104729) % 2003) / 1001 - 1 for i in range(n)]


def row(t):
    return "{ " + ", ".join("%.8g" % v for v in t.reshape(-1).tolist()) + " }"


# dim, base, scaling in tlua's words, in transformers' (the length of the positions counts for "dynamic")
CASES = [
    (8, 10000.0, "nil", {"rope_type": "default"}),
    (6, 500000.0, "nil", {"rope_type": "default"}),
    (8, 10000.0, '{ type = "linear", factor = 4 }', {"rope_type": "linear", "factor": 4.0}),
    (16, 500000.0, '{ type = "llama3", factor = 8, original_max_position_embeddings = 512 }',
     {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
      "original_max_position_embeddings": 512}),
    (16, 10000.0, '{ type = "llama3", factor = 32, low_freq_factor = 2, high_freq_factor = 3, '
     'original_max_position_embeddings = 64 }',
     {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 2.0, "high_freq_factor": 3.0,
      "original_max_position_embeddings": 64}),
    (8, 10000.0, '{ type = "dynamic", factor = 2, original_max_position_embeddings = 16 }',
     {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 16}),
]

lines = ["-- Written by rope.py. Each: dim, base, scaling, then for positions %d.. cos and sin (%d, dim/2) and what rows of" %
         (FIRST, T), "-- fill({ 1, 2, %d, dim }, 3) turn into: halves, then neighbours." % T,
         "return {", "  first = %d, count = %d," % (FIRST, T)]
for dim, base, lua, scaling in CASES:
    config = LlamaConfig(hidden_size=2 * dim, num_attention_heads=2, head_dim=dim,
                         max_position_embeddings=scaling.get("original_max_position_embeddings", 2048),
                         rope_parameters={"rope_theta": base, **scaling})
    rope = modeling_llama.LlamaRotaryEmbedding(config)
    x = torch.tensor(numbers(2 * T * dim, 3), dtype=torch.float32).reshape(1, 2, T, dim)
    positions = torch.arange(FIRST - 1, FIRST - 1 + T)[None]
    cos, sin = rope(x, positions)
    halves, _ = modeling_llama.apply_rotary_pos_emb(x, x, cos, sin)
    pairs, _ = modeling_cohere.apply_rotary_pos_emb(x, x, cos[..., : dim // 2].repeat_interleave(2, -1),
                                                    sin[..., : dim // 2].repeat_interleave(2, -1))
    lines += ["  {", "    dim = %d, base = %d, scaling = %s," % (dim, base, lua)]
    lines += ["    %s = %s," % (name, row(t)) for name, t in
              [("cos", cos[0, :, : dim // 2]), ("sin", sin[0, :, : dim // 2]), ("halves", halves), ("pairs", pairs)]]
    lines.append("  },")
lines.append("}")
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "rope.lua"), "w") as file:
    file.write("\n".join(lines) + "\n")
