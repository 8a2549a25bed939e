"""amp.py: writes amp.lua: 30 iterations with a GradScaler and two optimizers, as PyTorch computes them in float32 on the
CPU: losses, scales, growth trackers and parameters. Run it with a Python that has PyTorch (2.x); the tests only read what
it wrote.

The loss is sum(a * ga) + sum(b * gb) + sum(a^2) / 2 + sum(b^2) / 2. Now and then gb (ga, both) is infinite or nan, and
gradients are unscaled and clipped in every other iteration.
"""
import math
import os

import torch

HERE = os.path.dirname(os.path.abspath(__file__))
STEPS = 30
BAD_A, BAD_B = {7: math.inf, 19: math.nan}, {3: math.inf, 4: -math.inf, 19: math.inf, 26: math.nan}
OPTIONS = dict(init_scale=1000.0, growth_factor=1.7, backoff_factor=0.3, growth_interval=4)


def gradients(step):
    a = [round(math.sin(1.3 * step + 2.1 * k), 3) for k in range(3)]
    b = [round(math.cos(0.7 * step + 1.1 * k), 3) for k in range(2)]
    a[1] = BAD_A.get(step, a[1])
    b[0] = BAD_B.get(step, b[0])
    return a, b


def number(x):
    if math.isnan(x):
        return "0/0"
    return ("-" if x < 0 else "") + "math.huge" if math.isinf(x) else repr(x)


def row(values):
    return "{" + ", ".join(number(v) for v in values) + "}"


def curve():
    a = torch.tensor([1.0, -2.0, 0.5], requires_grad=True)
    b = torch.tensor([0.3, -0.7], requires_grad=True)
    first = torch.optim.SGD([a], lr=0.1, momentum=0.9)
    second = torch.optim.Adam([b], lr=0.05)
    scaler = torch.amp.GradScaler(device="cpu", **OPTIONS)
    for step in range(STEPS):
        ga, gb = gradients(step)
        for opt in (first, second):
            opt.zero_grad()
        loss = (a * torch.tensor(ga)).sum() + (b * torch.tensor(gb)).sum() + (a * a).sum() / 2 + (b * b).sum() / 2
        scaler.scale(loss).backward()
        if step % 2 == 1:
            scaler.unscale_(first)
            torch.nn.utils.clip_grad_norm_([a], 0.5)
        scaler.step(first)
        scaler.step(second)
        scaler.update()
        state = scaler.state_dict()
        yield "    {ga = %s, gb = %s, loss = %s, scale = %r, tracker = %d, a = %s, b = %s}," % (
            row(ga), row(gb), number(loss.item()), state["scale"], state["_growth_tracker"],
            row(a.tolist()), row(b.tolist()))


with open(os.path.join(HERE, "amp.lua"), "w") as out:
    out.write("-- Written by amp.py (PyTorch %s): see there.\nreturn {\n  options = { %s },\n  steps = {\n" % (
        torch.__version__.split("+")[0], ", ".join("%s = %r" % item for item in OPTIONS.items())))
    out.write("\n".join(curve()) + "\n  },\n}\n")
