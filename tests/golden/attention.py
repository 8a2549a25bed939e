"""attention.py: writes attention.lua: scaled_dot_product_attention and its gradients as PyTorch computes them. Run it with a
Python that has PyTorch (2.x); the tests only read what it wrote. Inputs are numbers.lua's, as in nn.py.
"""
import os

import torch
from torch.nn.functional import scaled_dot_product_attention

torch.set_default_dtype(torch.float64)

# query, key and value shapes; Lua's options beside PyTorch's. BOOL (3, 5) hides where (i + j) % 3 == 0, BIAS (2, 1, 5) is added
CASES = [
    ((2, 2, 3, 4), (2, 2, 5, 4), (2, 2, 5, 2), "{}", {}),
    ((2, 3, 4), (2, 3, 4), (2, 3, 4), "{ is_causal = true }", {"is_causal": True}),
    ((1, 4, 3, 2), (1, 2, 5, 2), (1, 2, 5, 3), "{ enable_gqa = true }", {"enable_gqa": True}),
    ((1, 2, 5, 2), (1, 2, 3, 2), (1, 2, 3, 2), "{ is_causal = true, scale = 0.7 }", {"is_causal": True, "scale": 0.7}),
    ((1, 2, 3, 5), (1, 2, 5, 5), (1, 2, 5, 1), "{ is_causal = true }", {"is_causal": True}),
    ((2, 2, 3, 4), (2, 2, 5, 4), (2, 2, 5, 2), "{ attn_mask = BOOL }", {"attn_mask": "BOOL"}),
    ((2, 2, 3, 4), (2, 2, 5, 4), (2, 2, 5, 2), "{ attn_mask = BIAS, scale = 2 }", {"attn_mask": "BIAS", "scale": 2}),
]


def fill(shape, seed):
    n = torch.Size(shape).numel()
    return torch.tensor([((i * 7919 + seed * 104729) % 2003) / 1001 - 1 for i in range(n)]).reshape(shape)


MASKS = {
    "BOOL": torch.tensor([[(i + j) % 3 != 0 for j in range(5)] for i in range(3)]),
    "BIAS": fill((2, 1, 5), 9),
}


def spell(t):
    return "{%s}" % ",".join("%.9g" % v for v in t.detach().flatten().tolist())


def case(q, k, v, lua, options):
    x = [fill(shape, seed).requires_grad_() for seed, shape in enumerate((q, k, v), 1)]
    options = {key: MASKS.get(value, value) if isinstance(value, str) else value for key, value in options.items()}
    y = scaled_dot_product_attention(*x, **options)
    y.backward(fill(y.shape, 4))
    shapes = ", ".join("{%s}" % ",".join(map(str, shape)) for shape in (q, k, v))
    return "  { shapes = {%s}, options = '%s',\n    y = %s,\n    q = %s,\n    k = %s,\n    v = %s },\n" % (
        (shapes, lua) + tuple(spell(t) for t in (y, x[0].grad, x[1].grad, x[2].grad)))


here = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(here, "attention.lua"), "w") as file:
    file.write("-- attention.lua: scaled_dot_product_attention, computed by PyTorch %s (attention.py).\nreturn {\n" % torch.__version__)
    file.writelines(case(*c) for c in CASES)
    file.write("}\n")
