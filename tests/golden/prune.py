"""prune.py: writes prune.lua: masks as PyTorch's torch.nn.utils.prune chooses them, on weights without ties. Run it with a
Python that has PyTorch (2.x); the tests only read what it wrote."""
import os

import torch
import torch.nn.utils.prune as P
from torch import nn

HERE = os.path.dirname(os.path.abspath(__file__))


def lua(t):
    if t.dim() == 0:
        return f"{t.item():.5g}"
    return "{" + ", ".join(lua(x) for x in t) + "}"


def linear(weight):
    m = nn.Linear(weight.shape[1], weight.shape[0])
    m.weight.data = weight.clone()
    return m


def conv(weight):
    m = nn.Conv2d(weight.shape[1], weight.shape[0], weight.shape[2:])
    m.weight.data = weight.clone()
    return m


def weights(*shape):
    return torch.tensor([round(x, 5) for x in torch.randn(shape).flatten().tolist()]).reshape(shape)


torch.manual_seed(3)
W, V, K, S = weights(4, 6), weights(3, 5), weights(4, 2, 3, 3), weights(4, 6)

out = ["-- Written by prune.py: do not edit.", "return {"]
for name, t in (("w", W), ("v", V), ("k", K), ("scores", S)):
    out.append(f"  {name} = {lua(t)},")


def masks(name, *list_):
    out.append(f"  {name} = {{{', '.join(lua(m) for m in list_)}}},")


for amount in (0, 0.25, 0.35, 0.5, 1):
    m = P.l1_unstructured(linear(W), "weight", amount=float(amount))
    masks(f"l1_{int(amount * 100)}", m.weight_mask)
m = P.l1_unstructured(linear(W), "weight", amount=5, importance_scores=S)
masks("l1_scores", m.weight_mask)
m = P.l1_unstructured(linear(W), "weight", amount=0.5)
first = m.weight_mask.clone()
P.l1_unstructured(m, "weight", amount=0.5)
second = m.weight_mask.clone()
P.ln_structured(m, "weight", amount=1, n=2, dim=0)
masks("composed", first, second, m.weight_mask)
m = P.ln_structured(linear(W), "weight", amount=0.5, n=1, dim=1)
first = m.weight_mask.clone()
P.ln_structured(m, "weight", amount=0.5, n=2, dim=1)
second = m.weight_mask.clone()
P.l1_unstructured(m, "weight", amount=3)
masks("composed_structured", first, second, m.weight_mask)
for n, label in ((1, "1"), (2, "2"), (float("inf"), "inf")):
    for dim in range(4):
        m = P.ln_structured(conv(K), "weight", amount=0.5, n=n, dim=dim)
        masks(f"ln_{label}_{dim + 1}", m.weight_mask)
m = P.ln_structured(linear(W), "weight", amount=2, n=2, dim=0, importance_scores=S)
masks("ln_scores", m.weight_mask)
a, b = linear(W), linear(V)
P.l1_unstructured(a, "weight", amount=4)
P.global_unstructured([(a, "weight"), (b, "weight")], pruning_method=P.L1Unstructured, amount=0.4)
masks("global", a.weight_mask, b.weight_mask)
out.append("}")
with open(os.path.join(HERE, "prune.lua"), "w") as f:
    f.write("\n".join(out) + "\n")
