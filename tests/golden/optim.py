"""optim.py: writes optim.lua (20 steps of every optimizer, with its options) and lr_scheduler.lua (30 values of every
schedule), as PyTorch computes them. Run it with a Python that has PyTorch (2.x); the tests only read what it wrote.

The optimizers start from {1, -2, 0.5} in float64 and get the gradients that optim.lua lists.
"""
import math
import os

import torch
from torch.optim import lr_scheduler as S

HERE = os.path.dirname(os.path.abspath(__file__))
STEPS = 20
START = [1.0, -2.0, 0.5]
GRADS = [[round(math.sin(1.3 * i + 2.1 * k) * (1 + 0.2 * i), 3) for k in range(3)] for i in range(STEPS)]

OPTIMIZERS = [
    ("SGD", dict(lr=0.1)),
    ("SGD", dict(lr=0.1, momentum=0.9, dampening=0.5, weight_decay=0.1)),
    ("SGD", dict(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01)),
    ("SGD", dict(lr=0.1, momentum=0.9, maximize=True, weight_decay=0.1)),
    ("Adam", dict(lr=0.1)),
    ("Adam", dict()),
    ("Adam", dict(lr=0.1, betas=(0.5, 0.9), eps=0.01, weight_decay=0.1)),
    ("Adam", dict(lr=0.1, amsgrad=True, betas=(0.9, 0.7))),
    ("Adam", dict(lr=0.1, amsgrad=True, maximize=True, weight_decay=0.1, decoupled_weight_decay=True)),
    ("AdamW", dict()),
    ("AdamW", dict(lr=0.1, weight_decay=0.1, amsgrad=True, maximize=True)),
    ("RMSprop", dict()),
    ("RMSprop", dict(lr=0.05, alpha=0.8, eps=0.01, weight_decay=0.1)),
    ("RMSprop", dict(lr=0.05, momentum=0.9)),
    ("RMSprop", dict(lr=0.05, centered=True, maximize=True)),
    ("RMSprop", dict(lr=0.05, centered=True, momentum=0.5, weight_decay=0.1)),
    ("Adagrad", dict()),
    ("Adagrad", dict(lr=0.5, lr_decay=0.1, weight_decay=0.1, initial_accumulator_value=0.3, eps=0.01, maximize=True)),
    ("NAdam", dict()),
    ("NAdam", dict(lr=0.1, betas=(0.8, 0.95), eps=0.01, weight_decay=0.1, momentum_decay=0.1, maximize=True)),
    ("NAdam", dict(lr=0.1, weight_decay=0.1, decoupled_weight_decay=True)),
    ("RAdam", dict()),
    ("RAdam", dict(lr=0.1, betas=(0.8, 0.95), eps=0.01, weight_decay=0.1, maximize=True)),
    ("RAdam", dict(lr=0.1, weight_decay=0.1, decoupled_weight_decay=True)),
]


def lua(value):
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return "'%s'" % value if '"' in value else '"%s"' % value
    if isinstance(value, (tuple, list)):
        return "{" + ", ".join(lua(v) for v in value) + "}"
    if isinstance(value, dict):
        return "{" + ", ".join("%s=%s" % (k, lua(v)) for k, v in value.items()) + "}"
    return "%.13g" % value


def optimizer_curve(name, options):
    p = torch.tensor(START, dtype=torch.float64, requires_grad=True)
    opt = getattr(torch.optim, name)([p], **options)
    values = []
    for g in GRADS:
        p.grad = torch.tensor(g, dtype=torch.float64)
        opt.step()
        values.append(p.tolist())
    return values


def write_optimizers():
    with open(os.path.join(HERE, "optim.lua"), "w") as f:
        f.write("-- Written by optim.py with PyTorch %s. steps[i] is the parameter after step i.\n" % torch.__version__)
        f.write("return {\n  start = %s,\n  grads = {\n" % lua(START))
        for g in GRADS:
            f.write("    %s,\n" % lua(g))
        f.write("  },\n")
        for name, options in OPTIMIZERS:
            f.write("  {\n    name = %s, options = %s,\n    steps = {\n" % (lua(name), lua(options)))
            for v in optimizer_curve(name, options):
                f.write("      %s,\n" % lua(v))
            f.write("    },\n  },\n")
        f.write("}\n")


# What Lua makes, and the same for PyTorch; both get an SGD with momentum over two groups (lr 0.5 and 0.1) as `opt`.
CURVES = [
    ("S.LambdaLR(opt, function(t) return 0.95 ^ t end)", lambda o: S.LambdaLR(o, lambda t: 0.95 ** t)),
    ("S.LambdaLR(opt, {function(t) return 0.95 ^ t end, function(t) return 1 / (t + 1) end})",
     lambda o: S.LambdaLR(o, [lambda t: 0.95 ** t, lambda t: 1 / (t + 1)])),
    ("S.MultiplicativeLR(opt, function(t) return t % 3 == 0 and 0.5 or 1.1 end)",
     lambda o: S.MultiplicativeLR(o, lambda t: 0.5 if t % 3 == 0 else 1.1)),
    ("S.StepLR(opt, 4)", lambda o: S.StepLR(o, 4)),
    ("S.StepLR(opt, {step_size=7, gamma=0.5})", lambda o: S.StepLR(o, step_size=7, gamma=0.5)),
    ("S.MultiStepLR(opt, {2, 8, 8, 20}, {gamma=0.3})", lambda o: S.MultiStepLR(o, [2, 8, 8, 20], gamma=0.3)),
    ("S.ConstantLR(opt)", lambda o: S.ConstantLR(o)),
    ("S.ConstantLR(opt, {factor=0.5, total_iters=9})", lambda o: S.ConstantLR(o, factor=0.5, total_iters=9)),
    ("S.LinearLR(opt)", lambda o: S.LinearLR(o)),
    ("S.LinearLR(opt, {start_factor=0.8, end_factor=0.1, total_iters=20})",
     lambda o: S.LinearLR(o, start_factor=0.8, end_factor=0.1, total_iters=20)),
    ("S.ExponentialLR(opt, 0.9)", lambda o: S.ExponentialLR(o, 0.9)),
    ("S.PolynomialLR(opt)", lambda o: S.PolynomialLR(o)),
    ("S.PolynomialLR(opt, {total_iters=25, power=2})", lambda o: S.PolynomialLR(o, total_iters=25, power=2)),
    ("S.CosineAnnealingLR(opt, 7)", lambda o: S.CosineAnnealingLR(o, 7)),
    ("S.CosineAnnealingLR(opt, {T_max=12, eta_min=0.05})", lambda o: S.CosineAnnealingLR(o, T_max=12, eta_min=0.05)),
    ("S.CosineAnnealingWarmRestarts(opt, 5)", lambda o: S.CosineAnnealingWarmRestarts(o, 5)),
    ("S.CosineAnnealingWarmRestarts(opt, {T_0=3, T_mult=2, eta_min=0.01})",
     lambda o: S.CosineAnnealingWarmRestarts(o, T_0=3, T_mult=2, eta_min=0.01)),
    ("S.CyclicLR(opt, 0.1, 1, {step_size_up=4})", lambda o: S.CyclicLR(o, 0.1, 1, step_size_up=4)),
    ("S.CyclicLR(opt, {0.1, 0.2}, {1, 2}, {step_size_up=3, step_size_down=5, mode='triangular2', base_momentum=0.7})",
     lambda o: S.CyclicLR(o, [0.1, 0.2], [1, 2], step_size_up=3, step_size_down=5, mode="triangular2",
                          base_momentum=0.7)),
    ("S.CyclicLR(opt, 0.1, 1, {step_size_up=4, mode='exp_range', gamma=0.9, cycle_momentum=false})",
     lambda o: S.CyclicLR(o, 0.1, 1, step_size_up=4, mode="exp_range", gamma=0.9, cycle_momentum=False)),
    ("S.CyclicLR(opt, 0.1, 1, {step_size_up=4, scale_fn=function(c) return 1 / (c + 1) end})",
     lambda o: S.CyclicLR(o, 0.1, 1, step_size_up=4, scale_fn=lambda c: 1 / (c + 1))),
    ("S.CyclicLR(opt, 0.1, 1, {step_size_up=4, scale_fn=function(t) return 0.9 ^ t end, scale_mode='iterations'})",
     lambda o: S.CyclicLR(o, 0.1, 1, step_size_up=4, scale_fn=lambda t: 0.9 ** t, scale_mode="iterations")),
    ("S.OneCycleLR(opt, 1, {total_steps=30})", lambda o: S.OneCycleLR(o, 1, total_steps=30)),
    ("S.OneCycleLR(opt, {max_lr={1, 2}, epochs=5, steps_per_epoch=6, anneal_strategy='linear', "
     "pct_start=0.4, div_factor=10, final_div_factor=100})",
     lambda o: S.OneCycleLR(o, [1, 2], epochs=5, steps_per_epoch=6, anneal_strategy="linear", pct_start=0.4,
                            div_factor=10, final_div_factor=100)),
    ("S.OneCycleLR(opt, 1, {total_steps=30, three_phase=true, base_momentum={0.5, 0.6}})",
     lambda o: S.OneCycleLR(o, 1, total_steps=30, three_phase=True, base_momentum=[0.5, 0.6])),
    ("S.OneCycleLR(opt, 1, {total_steps=30, cycle_momentum=false, pct_start=0.0})",
     lambda o: S.OneCycleLR(o, 1, total_steps=30, cycle_momentum=False, pct_start=0.0)),
    ("S.SequentialLR(opt, {S.ConstantLR(opt, {factor=0.1, total_iters=5}), S.ExponentialLR(opt, 0.9)}, {6})",
     lambda o: S.SequentialLR(o, [S.ConstantLR(o, factor=0.1, total_iters=5), S.ExponentialLR(o, 0.9)], [6])),
    ("S.SequentialLR(opt, {S.LinearLR(opt, 0.1, 1, 4), S.LambdaLR(opt, function(t) return 0.9 ^ t end), "
     "S.CosineAnnealingWarmRestarts(opt, 4)}, {4, 14})",
     lambda o: S.SequentialLR(o, [S.LinearLR(o, 0.1, 1, 4), S.LambdaLR(o, lambda t: 0.9 ** t),
                               S.CosineAnnealingWarmRestarts(o, 4)], [4, 14])),
    ("S.SequentialLR(opt, {S.StepLR(opt, 3), S.MultiStepLR(opt, {2, 5}), S.PolynomialLR(opt, 8)}, {5, 14})",
     lambda o: S.SequentialLR(o, [S.StepLR(o, 3), S.MultiStepLR(o, [2, 5]), S.PolynomialLR(o, 8)], [5, 14])),
    ("S.ChainedScheduler{S.ConstantLR(opt, {factor=0.1, total_iters=3}), S.ExponentialLR(opt, 0.9)}",
     lambda o: S.ChainedScheduler([S.ConstantLR(o, factor=0.1, total_iters=3), S.ExponentialLR(o, 0.9)])),
]
METRICS = [round(math.exp(-i / 5) + 0.3 * math.sin(i), 4) for i in range(30)]
PLATEAUS = [
    dict(patience=2), dict(patience=1, factor=0.5, cooldown=2, min_lr=0.01),
    dict(mode="max", patience=0, threshold=0.1),
    dict(mode="max", patience=3, threshold_mode="abs", factor=0.3),
    dict(threshold_mode="abs", threshold=0.2, patience=1),
]


def groups():
    return torch.optim.SGD([dict(params=[torch.zeros(1, requires_grad=True)], lr=0.5),
                            dict(params=[torch.zeros(1, requires_grad=True)], lr=0.1)], lr=1, momentum=0.9)


def schedule_curve(make, metrics=None):
    opt = groups()
    opt.step()
    schedule = make(opt)
    rows = []
    for i in range(30):
        rows.append([opt.param_groups[0]["lr"], opt.param_groups[1]["lr"], opt.param_groups[0]["momentum"]])
        if metrics is not None:
            schedule.step(metrics[i])
        elif i < 29:
            schedule.step()
    return rows


def write_schedules():
    with open(os.path.join(HERE, "lr_scheduler.lua"), "w") as f:
        f.write("-- Written by optim.py with PyTorch %s. Rows before each step: lr of both groups, momentum of the "
                "first.\n" % torch.__version__)
        f.write("return {\n  metrics = %s,\n" % lua(METRICS))
        cases = [(code, make, None) for code, make in CURVES]
        cases += [("S.ReduceLROnPlateau(opt, %s)" % lua(o), lambda opt, o=o: S.ReduceLROnPlateau(opt, **o), METRICS)
                  for o in PLATEAUS]
        for code, make, metrics in cases:
            f.write("  {\n    make = %s, metric = %s,\n    rows = {\n" % (lua(code), lua(metrics is not None)))
            for row in schedule_curve(make, metrics):
                f.write("      %s,\n" % lua(row))
            f.write("    },\n  },\n")
        f.write("}\n")


write_optimizers()
write_schedules()
