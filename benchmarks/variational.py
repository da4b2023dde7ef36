"""What a step of variational inference costs, in steps of ``MAP`` on the same network."""

import argparse
import json

import numpy as np

import credax as cx

NETWORKS = {"784-1200-1200-10": ([1200, 1200], 784, 10)}


def methods(steps: int, batch: int) -> dict:
    shared = {"num_steps": steps, "batch_size": batch, "learning_rate": 1e-3}
    return {
        "map": cx.MAP(**shared),
        "weight": cx.BayesByBackprop(**shared),
        "weight, scale mixture": cx.BayesByBackprop(**shared),
        "local": cx.BayesByBackprop(estimator="local", **shared),
        "flipout": cx.BayesByBackprop(estimator="flipout", **shared),
        "ivon": cx.IVON(**shared),
    }


def measure(steps: int = 100, repeats: int = 5, batch: int = 128) -> dict:
    """Milliseconds a step, compiling apart, and the ratio to ``MAP``; the methods take turns."""
    hidden, features, classes = NETWORKS["784-1200-1200-10"]
    rng = np.random.default_rng(0)
    x = rng.normal(size=(10_000, features)).astype(np.float32)
    y = rng.integers(classes, size=10_000)
    priors = {"weight, scale mixture": cx.priors.ScaleMixture()}
    times: dict[str, list[float]] = {}
    for _ in range(repeats + 1):
        for name, method in methods(steps, batch).items():
            prior = priors.get(name, cx.priors.Normal(1.0))
            model = cx.Model(cx.networks.mlp(hidden), prior, cx.likelihoods.Categorical())
            posterior = cx.fit(model, (x, y), method, progress=False)
            times.setdefault(name, []).append(1e3 * posterior.info["seconds"] / steps)
    medians = {name: float(np.median(values[1:])) for name, values in times.items()}
    return {
        "milliseconds a step": medians,
        "over map": {name: value / medians["map"] for name, value in medians.items()},
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    print(json.dumps(measure(options.steps, options.repeats), indent=2))
