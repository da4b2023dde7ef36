"""The cost of a step of variational inference, relative to a step of ``MAP`` on the same network.

All variational methods of ``cx.inference.METHODS`` run on a 784-1200-1200-10 network with batches of 128
rows, and Bayes by Backprop also with its other gradient estimators and with a scale-mixture prior.
"""

import argparse
import json

import numpy as np

import credax as cx

HIDDEN, FEATURES, CLASSES = [1200, 1200], 784, 10
VARIANTS = {
    "bayes-by-backprop, scale mixture": {"prior": cx.priors.ScaleMixture()},
    "bayes-by-backprop, local": {"estimator": "local"},
    "bayes-by-backprop, flipout": {"estimator": "flipout"},
}
"""Further runs of a method: its name, a description, and the settings or the prior that differ."""
FEWER_STEPS = {"black-box-vi": 20}
"""Methods whose steps take much longer, and the factor by which fewer steps are measured."""


def variational() -> list[str]:
    """The names of the variational methods: those that are defined in ``credax.inference.variational``."""
    return [
        name
        for name, method in cx.inference.METHODS.items()
        if method.__module__.startswith("credax.inference.variational.")
    ]


def runs(steps: int, batch: int) -> dict:
    """The method and the prior of each run, by its name."""
    shared = {"batch_size": batch, "learning_rate": 1e-3}
    found = {}
    for name in ("map", *variational(), *VARIANTS):
        settings = dict(VARIANTS.get(name, {}))
        prior = settings.pop("prior", cx.priors.Normal(1.0))
        method = cx.inference.METHODS[name.partition(",")[0]]
        settings["num_steps"] = max(1, steps // FEWER_STEPS.get(name, 1))
        found[name] = method(**shared, **settings), prior
    return found


def measure(steps: int = 100, repeats: int = 5, batch: int = 128) -> dict:
    """Milliseconds per step without compilation, and the ratio to ``MAP``; the runs alternate."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(10_000, FEATURES)).astype(np.float32)
    y = rng.integers(CLASSES, size=10_000)
    times: dict[str, list[float]] = {}
    for _ in range(repeats + 1):
        for name, (method, prior) in runs(steps, batch).items():
            model = cx.Model(cx.networks.mlp(HIDDEN), prior, cx.likelihoods.Categorical())
            posterior = cx.fit(model, (x, y), method, progress=False)
            times.setdefault(name, []).append(1e3 * posterior.info["seconds"] / method.num_steps)
    medians = {name: float(np.median(values[1:])) for name, values in times.items()}
    return {
        "milliseconds per step": medians,
        "over map": {name: value / medians["map"] for name, value in medians.items()},
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    print(json.dumps(measure(options.steps, options.repeats), indent=2))
