"""quality_optuna.py [TRIALS [SEEDS [FUNCTION...]]]: Optuna's TPE with its defaults on the functions of quality.lua. One line for each
function and seed: name, seed, and the best value after each trial."""
import math
import os
import sys

import optuna

optuna.logging.set_verbosity(optuna.logging.ERROR)


def branin(x):
    a, b = x
    return ((b - 5.1 / (4 * math.pi**2) * a * a + 5 / math.pi * a - 6) ** 2
            + 10 * (1 - 1 / (8 * math.pi)) * math.cos(a) + 10)


A = [[10, 3, 17, 3.5, 1.7, 8], [0.05, 10, 17, 0.1, 8, 14], [3, 3.5, 1.7, 10, 17, 8], [17, 8, 0.05, 10, 0.1, 14]]
P = [[0.1312, 0.1696, 0.5569, 0.0124, 0.8283, 0.5886], [0.2329, 0.4135, 0.8307, 0.3736, 0.1004, 0.9991],
     [0.2348, 0.1451, 0.3522, 0.2883, 0.3047, 0.6650], [0.4047, 0.8828, 0.8732, 0.5743, 0.1091, 0.0381]]


def hartmann6(x):
    return -sum(c * math.exp(-sum(a * (v - p) ** 2 for a, v, p in zip(ra, x, rp)))
                for c, ra, rp in zip([1, 1.2, 3, 3.2], A, P))


with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "fashion_table.csv")) as file:
    table = {tuple(line.split(",")[:5]): float(line.split(",")[5]) for line in file.read().split()[1:]}


def fashion(t):
    point = (t.suggest_float("lr", -4, -0.5, step=0.5), t.suggest_int("width", 5, 7), t.suggest_int("depth", 1, 2),
             t.suggest_float("dropout", 0, 0.4, step=0.2), t.suggest_categorical("optimizer", ["sgd", "adam"]))
    return table[tuple(v if isinstance(v, str) else f"{v:g}" for v in point)]


def of_list(f, bounds):
    return lambda t: f([t.suggest_float(f"x{i}", a, b) for i, (a, b) in enumerate(bounds)])


functions = {"branin": of_list(branin, [(-5, 10), (0, 15)]), "hartmann6": of_list(hartmann6, [(0, 1)] * 6),
             "fashion": fashion}

if __name__ == "__main__":
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    seeds = int(sys.argv[2]) if len(sys.argv) > 2 else 20
    for name, f in functions.items():
        if sys.argv[3:] and name not in sys.argv[3:]:
            continue
        for seed in range(seeds):
            study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
            study.optimize(f, trials)
            best, curve = math.inf, []
            for t in study.trials:
                best = min(best, t.value)
                curve.append(best)
            print(name, seed, *(f"{v:.6g}" for v in curve), flush=True)
