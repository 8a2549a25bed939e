"""quality_estimator.py FIRST LAST: Optuna's TPE on Hartmann's function for seeds FIRST .. LAST - 1, without the study
around it: its own estimator, 200 trials, the first 10 random. Prints the lines that quality_optuna.py prints, of as many
seeds as one has patience for: what 60 seeds say by chance shows on other ones."""
import sys

import numpy as np
from optuna.distributions import FloatDistribution
from optuna.samplers._tpe.parzen_estimator import _ParzenEstimator, _ParzenEstimatorParameters
from optuna.samplers._tpe.sampler import default_gamma, default_weights

from quality_optuna import hartmann6

TRIALS, STARTUP, CANDIDATES = 200, 10, 24
parameters = _ParzenEstimatorParameters(1.0, True, False, default_weights, True)
space = {f"x{i}": FloatDistribution(0, 1) for i in range(6)}


def estimator(points):
    return _ParzenEstimator({name: points[:, i] for i, name in enumerate(space)}, space, parameters)


def suggest(rng, points, values):
    order, n = np.argsort(values, kind="stable"), default_gamma(len(values))
    good, bad = (estimator(np.array(points)[np.sort(part)]) for part in (order[:n], order[n:]))
    drawn = good.sample(rng, CANDIDATES)
    best = int(np.argmax(good.log_pdf(drawn) - bad.log_pdf(drawn)))
    return [float(drawn[name][best]) for name in space]


for seed in range(int(sys.argv[1]), int(sys.argv[2])):
    rng, points, values, curve = np.random.RandomState(seed), [], [], []
    for trial in range(TRIALS):
        x = list(rng.uniform(0, 1, 6)) if trial < STARTUP else suggest(rng, points, values)
        points.append(x)
        values.append(hartmann6(x))
        curve.append(min(curve[-1:] + values[-1:]))
    print("hartmann6", seed, *(f"{v:.6g}" for v in curve), flush=True)
