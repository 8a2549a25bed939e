"""bench_torch.py: the cases of `tlua bench` in PyTorch, counted by the same rules (see bindings/lua/tlua/bench.lua).

One JSON object a line. `tlua bench --vs-torch` calls it; it is no part of the build or of the tests.
"""
import argparse
import json
import math
import subprocess
import sys
import time


def finish():
    """Waits for the device: main() replaces it on a GPU."""


def measure(run, seconds):
    """The seconds of one call: warm-up of a fifth of the time, then the median of samples of at least 5 ms."""
    begin, calls = time.perf_counter(), 0
    while True:
        run(1)
        finish()
        calls += 1
        if time.perf_counter() - begin >= seconds / 5 and calls >= 3:
            break
    n = max(1, math.ceil(0.005 * calls / (time.perf_counter() - begin)))
    samples = []
    begin = time.perf_counter()
    while True:
        before = time.perf_counter()
        run(n)
        finish()
        samples.append((time.perf_counter() - before) / n)
        if time.perf_counter() - begin >= seconds and len(samples) >= 5:
            break
    samples.sort()
    middle = len(samples) // 2
    return samples[middle] if len(samples) % 2 else (samples[middle - 1] + samples[middle]) / 2


def training(model, optimizer, loss, x, y):
    def step(n):
        for _ in range(n):
            optimizer.zero_grad()
            loss(model(x), y).backward()
            optimizer.step()

    return step


def start(o):
    def run(n):
        for _ in range(n):
            subprocess.run([sys.executable, "-c", "import torch; torch.ones(2) + 1"], check=True)

    return {"seconds": measure(run, o.seconds)}


def add4(o):
    import torch

    a, b = torch.ones(4), torch.ones(4)
    count = 1000

    def run(n):
        for _ in range(n * count):
            c = a + b
        return c

    with torch.no_grad():
        return {"seconds": measure(run, o.seconds) / count}


def linear_step(o):
    import torch
    from torch import nn

    model = nn.Linear(10, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = training(model, optimizer, nn.MSELoss(), torch.randn(32, 10), torch.randn(32, 1))
    return {"seconds": measure(step, o.seconds)}


def mlp_small(o):
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    step = training(model, optimizer, nn.CrossEntropyLoss(), torch.randn(64, 784), torch.randint(0, 10, (64,)))
    return {"seconds": measure(step, o.seconds)}


def fashion_net():
    """The network of examples/fashion_net.lua."""
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.25), nn.Linear(64 * 7 * 7, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10),
    )


def cnn(o):
    import torch
    from torch import nn

    model = fashion_net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    step = training(model, optimizer, nn.CrossEntropyLoss(), torch.randn(64, 1, 28, 28), torch.randint(0, 10, (64,)))
    return {"seconds": measure(step, o.seconds)}


def layers(o):
    import torch
    import torch.nn.functional as F
    from torch import nn

    table, norm, ids = nn.Embedding(65, 128), nn.LayerNorm(128), torch.randint(0, 65, (12, 64))
    g = torch.ones(12, 64, 128)

    def run(n):
        for _ in range(n):
            F.gelu(norm(table(ids)), approximate="tanh").backward(g)
            table.zero_grad()
            norm.zero_grad()

    return {"seconds": measure(run, o.seconds)}


def vocabulary(o):
    """The better of linear with cross_entropy, and of the two in chunks where PyTorch has that."""
    import torch
    import torch.nn.functional as F

    x, w = torch.randn(256, 768, requires_grad=True), (torch.randn(50257, 768) * 0.02).requires_grad_()
    y = torch.randint(0, 50257, (256,))
    losses = [lambda: F.cross_entropy(F.linear(x, w), y)]
    if hasattr(torch.nn, "LinearCrossEntropyOptions"):
        options = torch.nn.LinearCrossEntropyOptions()
        losses.append(lambda: F.linear_cross_entropy(x, w, y, options=options))

    def steps(loss):
        def run(n):
            for _ in range(n):
                x.grad = w.grad = None
                loss().backward()

        return run

    return {"seconds": min(measure(steps(loss), o.seconds) for loss in losses)}


def scaler(o):
    import torch
    from torch import nn

    model, x, y = fashion_net(), torch.randn(64, 1, 28, 28), torch.randint(0, 10, (64,))
    optimizer, criterion = torch.optim.Adam(model.parameters(), lr=1e-3), nn.CrossEntropyLoss()
    scale = torch.amp.GradScaler(device=o.device)

    def steps(n):
        for _ in range(n):
            optimizer.zero_grad()
            scale.scale(criterion(model(x), y)).backward()
            scale.step(optimizer)
            scale.update()

    return {"seconds": measure(steps, o.seconds)}


def wide_mlp(batch, low=None):
    """A multilayer perceptron 2048-2048-2048-10, SGD: a step, and how many flop it takes."""
    import torch
    from torch import nn

    width, classes = 2048, 10
    model = nn.Sequential(
        nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, classes)
    )
    optimizer, loss = torch.optim.SGD(model.parameters(), lr=0.01), nn.CrossEntropyLoss()
    x, y = torch.randn(batch, width), torch.randint(0, classes, (batch,))
    flops = 2 * batch * (2 * (2 * width * width + width * classes) + width * width + width * classes)
    if low is None:
        return training(model, optimizer, loss, x, y), flops
    scale = torch.amp.GradScaler(device=x.device.type)

    def steps(n):
        for _ in range(n):
            optimizer.zero_grad()
            with torch.autocast(x.device.type, low):
                value = loss(model(x), y)
            scale.scale(value).backward()
            scale.step(optimizer)
            scale.update()

    return steps, flops


def timed_mlp(o, batch, low=None):
    step, flops = wide_mlp(batch, low)
    seconds = measure(step, o.seconds)
    return {"seconds": seconds, "gflops": flops / seconds / 1e9}


def mlp_big(o):
    return timed_mlp(o, 256)


def mlp_float32(o):
    return timed_mlp(o, 4096)


def mlp_tf32(o):
    import torch

    torch.backends.cuda.matmul.allow_tf32 = True
    result = timed_mlp(o, 4096)
    torch.backends.cuda.matmul.allow_tf32 = False
    return result


def mlp_float16(o):
    import torch

    return timed_mlp(o, 4096, torch.float16)


def cnn_graph(o):
    import torch
    from torch import nn

    model = fashion_net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, capturable=True)
    step = training(model, optimizer, nn.CrossEntropyLoss(), torch.randn(64, 1, 28, 28), torch.randint(0, 10, (64,)))
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        step(3)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(1)

    def replay(n):
        for _ in range(n):
            graph.replay()

    return {"seconds": measure(replay, o.seconds)}


def gpt_step(layers, heads, width, positions, vocabulary, batch, length, fused, low=None, compiled=False):
    """A GPT-2 without dropout and its AdamW step with gradient clipping, attention fused or composed."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.attn, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.fc, self.out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            parts = self.attn(self.ln_1(x)).split(width, 2)
            q, k, v = (t.view(*t.shape[:2], heads, width // heads).transpose(1, 2) for t in parts)
            if fused:
                y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            else:
                scores = q @ k.transpose(2, 3) * (width // heads) ** -0.5
                y = scores.masked_fill(later[: q.shape[2], : q.shape[2]], float("-inf")).softmax(3) @ v
            x = x + self.proj(y.transpose(1, 2).reshape(x.shape))
            return x + self.out(F.gelu(self.fc(self.ln_2(x)), approximate="tanh"))

    class GPT(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(positions, width)
            self.blocks = nn.ModuleList([Block() for _ in range(layers)])
            self.ln_f = nn.LayerNorm(width)
            for p in self.parameters():
                if p.dim() == 2:
                    nn.init.normal_(p, std=0.02)

        def forward(self, ids, targets):
            x = self.wte(ids) + self.wpe.weight[: ids.shape[1]]
            for block in self.blocks:
                x = block(x)
            logits = F.linear(self.ln_f(x), self.wte.weight)
            return F.cross_entropy(logits.view(-1, vocabulary), targets.view(-1))

    later = torch.ones(length, length, dtype=torch.bool).triu(1)
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.99), weight_decay=0.1, fused=True)
    ids, targets = (torch.randint(0, vocabulary, (batch, length)) for _ in range(2))
    forward = torch.compile(model) if compiled else model

    def steps(n):
        for _ in range(n):
            optimizer.zero_grad()
            with torch.autocast(ids.device.type, low or torch.bfloat16, enabled=low is not None):
                loss = forward(ids, targets)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

    return steps


def best_gpt(o, *sizes):
    """The better of PyTorch's attention paths."""
    return {"seconds": min(measure(gpt_step(*sizes, fused), o.seconds) for fused in (True, False))}


def gpt(o):
    return best_gpt(o, 4, 4, 128, 64, 65, 12, 64)


def gpt2(o):
    return best_gpt(o, 12, 12, 768, 1024, 50257, 4, 64)


def gpt2_bfloat16(o):
    import torch

    step = gpt_step(12, 12, 768, 1024, 50257, 8, 1024, True, torch.bfloat16, compiled=True)
    step(2)
    return {"seconds": measure(step, o.seconds)}


def status_bytes(field):
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    return 0


def memory(o):
    import torch

    x = torch.zeros(256 * 1024)
    if o.device == "cpu":
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    before, begin = status_bytes("VmRSS"), time.perf_counter()
    for _ in range(10000):
        x = x + 1
    finish()
    seconds = time.perf_counter() - begin
    held = status_bytes("VmHWM") - before if o.device == "cpu" else torch.cuda.max_memory_reserved()
    return {"seconds": seconds / 10000, "bytes": held}


def causal_attention(o, batch, heads, length, width):
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    q, k, v, g = (torch.randn(batch, length, heads, width) for _ in range(4))
    for x in (q, k, v):
        x.requires_grad_()

    def run(n):
        for _ in range(n):
            q.grad = k.grad = v.grad = None
            heads_first = (x.transpose(1, 2) for x in (q, k, v))
            scaled_dot_product_attention(*heads_first, is_causal=True).backward(g.transpose(1, 2))

    return {"seconds": measure(run, o.seconds)}


def attention(o):
    return causal_attention(o, 12, 4, 64, 32)


def attention_long(o):
    return causal_attention(o, 1, 12, 1024, 64)


def attention_one(o):
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    q, k, v = torch.randn(1, 12, 1, 64), torch.randn(1, 12, 4096, 64), torch.randn(1, 12, 4096, 64)

    def run(n):
        for _ in range(n):
            scaled_dot_product_attention(q, k, v)

    with torch.no_grad():
        return {"seconds": measure(run, o.seconds)}


CPU_ONLY = (start, mlp_big)
CUDA_ONLY = (mlp_float32, mlp_tf32, mlp_float16, cnn_graph, gpt2_bfloat16)
ATTENTION = (attention, attention_long, attention_one)
ALWAYS = (add4, linear_step, mlp_small, cnn, layers, vocabulary, scaler, *ATTENTION, memory, gpt, gpt2)
CASES = {f.__name__: f for f in (*ALWAYS, *CPU_ONLY, *CUDA_ONLY)}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", action="append", choices=list(CASES))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--json", action="store_true", help="the only format there is")
    o = parser.parse_args()
    other = CUDA_ONLY if o.device == "cpu" else CPU_ONLY
    names = o.case or [name for name, f in CASES.items() if f not in other]
    if names != ["start"]:
        import torch

        if o.threads:
            torch.set_num_threads(o.threads)
        if o.device != "cpu":
            torch.set_default_device(o.device)
            global finish
            finish = torch.cuda.synchronize
    for name in names:
        print(json.dumps({"case": name, "device": o.device, "threads": o.threads or 0, **CASES[name](o)}), flush=True)


if __name__ == "__main__":
    main()
