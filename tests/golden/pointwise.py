"""pointwise.py: writes pointwise.lua: what PyTorch computes for every pointwise operation, with its gradients, at ordinary
points and where formulas go wrong (zeros of both signs, halves, large numbers, infinities, nan). Run it with a Python
that has PyTorch (2.x); the tests only read what it wrote.
"""
import math
import os

import torch
import torch.nn.functional as F

inf, nan = math.inf, math.nan
POINTS = [-inf, -1e4, -30, -3.5, -2.5, -1, -0.75, -0.5, -1e-9, -0.0, 0.0, 1e-9, 0.3, 0.5, 1, 1.5, 2.5, 4, 30, 1e4, inf, nan]
PAIRS = [(-7, 3), (7, -3), (7, 3), (-7, -3), (0, 3), (3, 0), (-3, 0), (0, 0), (1, 1), (-1, 1), (0.5, 2), (-0.5, 2), (2, 0.5),
         (-2, 0.5), (-2, 3), (0, -1), (0, 0.5), (-1, 0.5), (inf, 1), (1, inf), (-inf, 2), (inf, inf), (nan, 1), (1, nan),
         (nan, 0), (6, 1.5), (-6, 1.5), (1e10, 3), (1, 0.1), (-1, 0.1), (1, -0.1)]
INTEGERS = [(-7, 3), (7, -3), (7, 3), (-7, -3), (0, 3), (1, 1), (2, 5), (-2, 3), (6, 2), (-6, -2)]
# in tlua's words, in PyTorch's
UNARY = [(name, getattr(torch, name)) for name in """neg abs sign floor ceil round trunc square relu exp expm1 log log1p log2
    log10 sqrt rsqrt reciprocal sin cos tan asin acos atan sinh cosh tanh sigmoid erf isnan isinf isfinite
    logical_not""".split()]
UNARY += [("logsigmoid", F.logsigmoid), ("gelu", F.gelu), ("gelu_tanh", lambda x: F.gelu(x, approximate="tanh")),
          ("silu", F.silu), ("mish", F.mish), ("softsign", F.softsign), ("leaky_relu", F.leaky_relu), ("elu", F.elu),
          ("softplus", F.softplus)]
BINARY = [(name, getattr(torch, name)) for name in """add sub mul div pow maximum minimum remainder fmod floor_divide atan2 eq
    ne lt le gt ge logical_and logical_or logical_xor""".split()]
BINARY += [("swiglu", lambda a, b: F.silu(a) * b)]


def spell(x):
    if x is True or x is False:
        return "1" if x else "0"
    if x != x:
        return "0/0"
    if x in (inf, -inf):
        return "1/0" if x > 0 else "-1/0"
    return "%.13g" % x


def row(values):
    return "{" + ", ".join(map(spell, values)) + "}"


def gradients(y, *inputs):
    if not y.requires_grad or "FloorDivide" in str(y.grad_fn) or "NotImplemented" in str(y.grad_fn):
        return []
    grads = torch.autograd.grad(y, inputs, torch.ones_like(y), allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for g, x in zip(grads, inputs)]


lines = ["-- Written by pointwise.py with PyTorch %s. Each: name, values, gradients of the arguments." % torch.__version__,
         "return {", "  points = %s," % row(POINTS), "  a = %s," % row(p[0] for p in PAIRS),
         "  b = %s," % row(p[1] for p in PAIRS), "  ia = %s," % row(p[0] for p in INTEGERS),
         "  ib = %s," % row(p[1] for p in INTEGERS)]
lines.append("  unary = {")
for name, f in UNARY:
    x = torch.tensor(POINTS, dtype=torch.float64, requires_grad=True)
    y = f(x)
    lines.append('    { "%s", %s },' % (name, ", ".join(row(t.tolist()) for t in [y, *gradients(y, x)])))
lines += ["  },", "  binary = {"]
for name, f in BINARY:
    a, b = (torch.tensor([p[i] for p in PAIRS], dtype=torch.float64, requires_grad=True) for i in (0, 1))
    y = f(a, b)
    lines.append('    { "%s", %s },' % (name, ", ".join(row(t.tolist()) for t in [y, *gradients(y, a, b)])))
lines += ["  },", "  integer = {"]
for name, f in BINARY:
    if name in ("pow", "swiglu"):
        continue
    a, b = (torch.tensor([p[i] for p in INTEGERS]) for i in (0, 1))
    y = f(a, b)
    lines.append('    { "%s", "%s", %s },' % (name, str(y.dtype)[6:], row(y.tolist())))
lines += ["  },", "}"]
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "pointwise.lua"), "w") as file:
    file.write("\n".join(lines) + "\n")
