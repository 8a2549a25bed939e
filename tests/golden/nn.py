"""nn.py: writes nn_layers.lua and nn_losses.lua: what PyTorch computes for every layer and loss; nn_model.safetensors and
nn_model.lua: a model's state dict and what it answers. Run it with a Python that
has PyTorch (2.x); the tests only read what it wrote.

Inputs, parameters and incoming gradients are not stored: both sides compute them by fill() below (numbers.lua beside it).
"""
import json
import os
import struct

import torch
from torch import nn

torch.set_default_dtype(torch.float64)


def numbers(n, seed):
    """n numbers in [-1, 1), no two of the first 2003 alike."""
    return [((i * 7919 + seed * 104729) % 2003) / 1001 - 1 for i in range(n)]


def fill(shape, seed):
    n = 1
    for s in shape:
        n *= s
    return torch.tensor(numbers(n, seed)).reshape(shape)


# Lua's constructor, PyTorch's, and the shape of the input ("ids": a table of ids)
LAYERS = [
    ("nn.Linear(4, 3)", nn.Linear(4, 3), (2, 4)),
    ("nn.Linear(4, 2, {bias=false})", nn.Linear(4, 2, bias=False), (2, 2, 4)),
    ("nn.Conv1d(2, 3, 3)", nn.Conv1d(2, 3, 3), (2, 2, 6)),
    ("nn.Conv1d(2, 4, 3, {stride=2, padding=2, dilation=2, groups=2, bias=false})",
     nn.Conv1d(2, 4, 3, stride=2, padding=2, dilation=2, groups=2, bias=False), (1, 2, 7)),
    ("nn.Conv2d(2, 3, 3)", nn.Conv2d(2, 3, 3), (1, 2, 4, 4)),
    ("nn.Conv2d(2, 2, {3, 2}, {stride={2, 1}, padding={1, 0}})",
     nn.Conv2d(2, 2, (3, 2), stride=(2, 1), padding=(1, 0)), (2, 2, 4, 3)),
    ("nn.Conv2d(4, 4, 3, {padding=2, dilation=2, groups=4})",
     nn.Conv2d(4, 4, 3, padding=2, dilation=2, groups=4), (1, 4, 4, 3)),
    ("nn.Conv2d(1, 2, 3, {padding='same'})", nn.Conv2d(1, 2, 3, padding="same"), (1, 3, 4)),
    ("nn.ConvTranspose2d(2, 3, 2, {stride=2})", nn.ConvTranspose2d(2, 3, 2, stride=2), (1, 2, 2, 3)),
    ("nn.ConvTranspose2d(2, 2, 3, {stride=2, padding=1, output_padding=1, groups=2, bias=false})",
     nn.ConvTranspose2d(2, 2, 3, stride=2, padding=1, output_padding=1, groups=2, bias=False), (1, 2, 2, 2)),
    ("nn.BatchNorm1d(3)", nn.BatchNorm1d(3), (4, 3)),
    ("nn.BatchNorm1d(2, {momentum=0.3, eps=0.01})", nn.BatchNorm1d(2, momentum=0.3, eps=0.01), (2, 2, 3)),
    ("nn.BatchNorm2d(2)", nn.BatchNorm2d(2), (2, 2, 2, 3)),
    ("nn.BatchNorm2d(2, {affine=false, momentum=false})", nn.BatchNorm2d(2, affine=False, momentum=None), (1, 2, 2, 3)),
    ("nn.BatchNorm2d(2):eval()", nn.BatchNorm2d(2).eval(), (1, 2, 2, 3)),
    ("nn.BatchNorm1d(3, {track_running_stats=false}):eval()",
     nn.BatchNorm1d(3, track_running_stats=False).eval(), (4, 3)),
    ("nn.BatchNorm3d(2)", nn.BatchNorm3d(2), (1, 2, 2, 2, 2)),
    ("nn.LayerNorm(5)", nn.LayerNorm(5), (3, 5)),
    ("nn.LayerNorm({2, 3}, {bias=false, eps=0.001})", nn.LayerNorm((2, 3), bias=False, eps=0.001), (2, 2, 3)),
    ("nn.GroupNorm(2, 4)", nn.GroupNorm(2, 4), (2, 4, 3)),
    ("nn.GroupNorm(3, 3, {affine=false})", nn.GroupNorm(3, 3, affine=False), (1, 3, 2, 2)),
    ("nn.RMSNorm(5)", nn.RMSNorm(5), (3, 5)),
    ("nn.RMSNorm({2, 3}, {eps=0.01, elementwise_affine=false})",
     nn.RMSNorm((2, 3), eps=0.01, elementwise_affine=False), (2, 2, 3)),
    ("nn.Embedding(5, 3)", nn.Embedding(5, 3), "ids"),
    ("nn.Embedding(5, 3, {padding_idx=-4})", nn.Embedding(5, 3, padding_idx=-4), "ids"),
    ("nn.MaxPool2d(2)", nn.MaxPool2d(2), (1, 2, 4, 5)),
    ("nn.MaxPool2d(3, {stride=2, padding=1})", nn.MaxPool2d(3, stride=2, padding=1), (1, 1, 5, 4)),
    ("nn.MaxPool2d({2, 1}, {stride=1, dilation=2, ceil_mode=true})",
     nn.MaxPool2d((2, 1), stride=1, dilation=2, ceil_mode=True), (1, 4, 3)),
    ("nn.AvgPool2d(2)", nn.AvgPool2d(2), (1, 2, 4, 5)),
    ("nn.AvgPool2d(3, {stride=2, padding=1, ceil_mode=true, count_include_pad=false})",
     nn.AvgPool2d(3, stride=2, padding=1, ceil_mode=True, count_include_pad=False), (1, 1, 4, 4)),
    ("nn.AvgPool2d(3, {stride=2, padding=1, ceil_mode=true})",
     nn.AvgPool2d(3, stride=2, padding=1, ceil_mode=True), (1, 1, 4, 4)),
    ("nn.AdaptiveAvgPool2d({2, 3})", nn.AdaptiveAvgPool2d((2, 3)), (1, 1, 3, 5)),
    ("nn.AdaptiveAvgPool2d(1)", nn.AdaptiveAvgPool2d(1), (1, 2, 2, 3)),
    ("nn.Flatten()", nn.Flatten(), (2, 2, 3)),
    ("nn.Flatten(1, 2)", nn.Flatten(0, 1), (2, 2, 3)),
    ("nn.Identity()", nn.Identity(), (2, 2)),
    ("nn.Dropout(0.5):eval()", nn.Dropout(0.5).eval(), (2, 2)),
    ("nn.ReLU()", nn.ReLU(), (2, 3)),
    ("nn.GELU()", nn.GELU(), (2, 3)),
    ("nn.GELU{approximate='tanh'}", nn.GELU(approximate="tanh"), (2, 3)),
    ("nn.SiLU()", nn.SiLU(), (2, 3)),
    ("nn.Tanh()", nn.Tanh(), (2, 3)),
    ("nn.Sigmoid()", nn.Sigmoid(), (2, 3)),
    ("nn.LeakyReLU()", nn.LeakyReLU(), (2, 3)),
    ("nn.LeakyReLU{negative_slope=0.2}", nn.LeakyReLU(0.2), (2, 3)),
    ("nn.ELU()", nn.ELU(), (2, 3)),
    ("nn.ELU{alpha=0.5}", nn.ELU(0.5), (2, 3)),
    ("nn.Softmax(2)", nn.Softmax(1), (2, 3)),
    ("nn.Softmax(-3)", nn.Softmax(-3), (2, 2, 2)),
    ("nn.LogSoftmax(-1)", nn.LogSoftmax(-1), (2, 3)),
    ("nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))",
     nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), (2, 4)),
]

W3 = fill((3,), 7).abs()  # in Lua: numbers.tensor({3}, 7):abs()

# input and target: "real" fill, "unit" fill moved into (0, 1), "logp" its logarithm, "labels", "ignored" labels with -100
LOSSES = [
    ("nn.MSELoss()", nn.MSELoss(), (2, 3), "real", "real"),
    ("nn.MSELoss{reduction='sum'}", nn.MSELoss(reduction="sum"), (2, 3), "real", "real"),
    ("nn.MSELoss{reduction='none'}", nn.MSELoss(reduction="none"), (2, 3), "real", "real"),
    ("nn.L1Loss()", nn.L1Loss(), (2, 3), "real", "real"),
    ("nn.L1Loss{reduction='sum'}", nn.L1Loss(reduction="sum"), (2, 3), "real", "real"),
    ("nn.SmoothL1Loss()", nn.SmoothL1Loss(), (2, 3), "real", "real"),
    ("nn.SmoothL1Loss{beta=0.3, reduction='none'}", nn.SmoothL1Loss(beta=0.3, reduction="none"), (2, 3), "real", "real"),
    ("nn.HuberLoss()", nn.HuberLoss(), (2, 3), "real", "real"),
    ("nn.HuberLoss{delta=0.3, reduction='sum'}", nn.HuberLoss(delta=0.3, reduction="sum"), (2, 3), "real", "real"),
    ("nn.BCELoss()", nn.BCELoss(), (2, 3), "unit", "unit"),
    ("nn.BCELoss{weight=W3, reduction='sum'}", nn.BCELoss(weight=W3, reduction="sum"), (2, 3), "unit", "unit"),
    ("nn.BCEWithLogitsLoss()", nn.BCEWithLogitsLoss(), (2, 3), "real", "unit"),
    ("nn.BCEWithLogitsLoss{pos_weight=W3, reduction='none'}",
     nn.BCEWithLogitsLoss(pos_weight=W3, reduction="none"), (2, 3), "real", "unit"),
    ("nn.BCEWithLogitsLoss{weight=W3}", nn.BCEWithLogitsLoss(weight=W3), (2, 3), "real", "unit"),
    ("nn.KLDivLoss()", nn.KLDivLoss(), (2, 3), "logp", "unit"),
    ("nn.KLDivLoss{reduction='batchmean'}", nn.KLDivLoss(reduction="batchmean"), (2, 3), "logp", "unit"),
    ("nn.KLDivLoss{reduction='sum', log_target=true}", nn.KLDivLoss(reduction="sum", log_target=True), (2, 3), "logp", "logp"),
    ("nn.NLLLoss()", nn.NLLLoss(), (4, 3), "logp", "labels"),
    ("nn.NLLLoss{weight=W3}", nn.NLLLoss(weight=W3), (4, 3), "logp", "ignored"),
    ("nn.NLLLoss{reduction='none', ignore_index=1}", nn.NLLLoss(reduction="none", ignore_index=1), (2, 3, 2), "logp", "labels"),
    ("nn.CrossEntropyLoss()", nn.CrossEntropyLoss(), (4, 3), "real", "labels"),
    ("nn.CrossEntropyLoss{weight=W3}", nn.CrossEntropyLoss(weight=W3), (4, 3), "real", "ignored"),
    ("nn.CrossEntropyLoss{reduction='none'}", nn.CrossEntropyLoss(reduction="none"), (2, 3, 2), "real", "ignored"),
    ("nn.CrossEntropyLoss{label_smoothing=0.2}", nn.CrossEntropyLoss(label_smoothing=0.2), (4, 3), "real", "ignored"),
    ("nn.CrossEntropyLoss{weight=W3, label_smoothing=0.1, reduction='sum'}",
     nn.CrossEntropyLoss(weight=W3, label_smoothing=0.1, reduction="sum"), (2, 3, 2), "real", "labels"),
    ("nn.CrossEntropyLoss{weight=W3, label_smoothing=0.1}",
     nn.CrossEntropyLoss(weight=W3, label_smoothing=0.1), (4, 3), "real", "ignored"),
    ("nn.CrossEntropyLoss()", nn.CrossEntropyLoss(), (4, 3), "real", "unit"),
    ("nn.CrossEntropyLoss{weight=W3, label_smoothing=0.1}",
     nn.CrossEntropyLoss(weight=W3, label_smoothing=0.1), (2, 3, 2), "real", "unit"),
    ("nn.CrossEntropyLoss()", nn.CrossEntropyLoss(), (3,), "real", "label"),
]


def spell(t):
    """A tensor as Lua: {shape}, {values}."""
    values = ",".join("%.7g" % v for v in t.detach().flatten().tolist())
    return "{{%s}, {%s}}" % (",".join(map(str, t.shape)), values)


def value_of(kind, shape, seed):
    if kind == "real":
        return fill(shape, seed)
    if kind == "unit":
        return (fill(shape, seed) + 1.05) / 2.1
    if kind == "logp":
        return ((fill(shape, seed) + 1.05) / 2.1).log()
    if kind == "label":
        return torch.tensor(1)
    labels = [(i * 2 + 1) % shape[1] for i in range(shape[0] * (shape[2] if len(shape) > 2 else 1))]
    if kind == "ignored":
        labels[1] = -100
    return torch.tensor(labels).reshape((shape[0],) + tuple(shape[2:]))


def layer(out, lua, module, shape):
    for i, p in enumerate(module.parameters()):
        p.data.copy_(fill(p.shape, 10 + i))
    if shape == "ids":
        x = torch.tensor([[0, 1, 4], [1, 2, 1]])
    else:
        x = fill(shape, 1).requires_grad_()
    y = module(x)
    y.backward(fill(y.shape, 2))
    out.append('{lua="%s", x={%s},' % (lua, "" if shape == "ids" else ",".join(map(str, shape))))
    if shape == "ids":
        out.append(" ids=true,")
    else:
        out.append(" gx=%s," % spell(x.grad))
    out.append(" y=%s," % spell(y))
    out.append(" gp={%s}," % ", ".join(spell(p.grad) for p in module.parameters()))
    buffers = [b for b in module.buffers()]
    out.append(" buffers={%s}}," % ", ".join(spell(b) for b in buffers))


def loss(out, lua, module, shape, kind, target_kind):
    x = value_of(kind, shape, 1).requires_grad_()
    y = module(x, value_of(target_kind, shape, 3))
    y.backward(fill(y.shape, 2) if y.dim() > 0 else None)
    out.append('{lua="%s", x={%s}, kind="%s", target="%s",' % (lua, ",".join(map(str, shape)), kind, target_kind))
    out.append(" y=%s, gx=%s}," % (spell(y), spell(x.grad)))


def path_of(name):
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), name)


def write(name, what, entry, cases):
    out = ["-- %s: %s, computed by PyTorch %s (nn.py)." % (name, what, torch.__version__), "return {"]
    for case in cases:
        entry(out, *case)
    out.append("}")
    with open(path_of(name), "w") as file:
        file.write("\n".join(out) + "\n")


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU())
        self.norm = nn.LayerNorm(8)
        self.fc = nn.Linear(8, 3)

    def forward(self, x):
        return self.fc(self.norm(self.features(x).flatten(1)))


def write_safetensors(name, state):
    """The format needs no library: u64 length, JSON header, data."""
    header, data = {}, b""
    for key, t in state.items():
        raw = t.contiguous().numpy().tobytes()
        dtype = {torch.float32: "F32", torch.int64: "I64"}[t.dtype]
        header[key] = {"dtype": dtype, "shape": list(t.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path_of(name), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def write_model():
    torch.manual_seed(0)
    model = Model().float()
    for seed in (1, 2):  # the running statistics move
        model(fill((4, 1, 4, 4), seed).float())
    write_safetensors("nn_model.safetensors", model.state_dict())
    model.eval()
    write("nn_model.lua", "the answer of nn_model.safetensors in eval mode to numbers.tensor({2, 1, 4, 4}, 3)",
          lambda out, y: out.append("  y=%s" % spell(y)), [(model(fill((2, 1, 4, 4), 3).float()),)])


write("nn_layers.lua", "outputs, gradients and buffers of layers", layer, LAYERS)
write("nn_losses.lua", "losses and their gradients", loss, LOSSES)
write_model()
