"""The lecture's claim, measured: Bayes by Backprop's gradients vary less than black-box VI's.

python examples/gradient_variance.py [--draws 2000] [--steps 3000] [--out docs/pictures]
"""

import argparse
import json
from pathlib import Path

import numpy as np

import credax as cx

ESTIMATORS = {
    "black box": cx.BlackBoxVI(samples=16, control_variate=None, rao_blackwell=False),
    "+ leave-one-out": cx.BlackBoxVI(samples=16, rao_blackwell=False),
    "+ optimal control variate": cx.BlackBoxVI(
        samples=16, control_variate="optimal", rao_blackwell=False
    ),
    "+ leave-one-out, Rao-Blackwell": cx.BlackBoxVI(samples=16),
    "+ leave-one-out, antithetic": cx.BlackBoxVI(samples=16, antithetic=True, rao_blackwell=False),
    "Bayes by Backprop": cx.BayesByBackprop(),
    "antithetic": cx.BayesByBackprop(samples=2, antithetic=True),
    "flipout": cx.BayesByBackprop(estimator="flipout"),
    "local reparameterisation": cx.BayesByBackprop(estimator="local"),
}


def measure(draws: int, steps: int) -> dict[str, float]:
    """The variance of each gradient estimate for one draw of the weights, summed over coordinates."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (256, 1))
    y = np.sin(3 * x[:, 0]) + 0.1 * rng.normal(size=256)
    model = cx.Model(
        cx.networks.mlp([20], activation="tanh"),
        cx.priors.Normal(1.0),
        cx.likelihoods.Gaussian(0.1),
    )
    # All are measured at the same phi: where Bayes by Backprop ends.
    fitted = cx.fit(model, (x, y), cx.BayesByBackprop(num_steps=steps), progress=False)
    family = fitted.approximation
    result = {}
    for name, method in ESTIMATORS.items():
        found = cx.gradient_variance(model, (x, y), method, family=family, draws=draws)
        result[name] = found.total * method.samples  # so that all are judged for one draw
    return result


def draw(variances: dict[str, float], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names = list(variances)[::-1]
    colours = ["#7d9fd3" if "BlackBoxVI" in repr(ESTIMATORS[n]) else "#1f3b73" for n in names]
    figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
    axes.barh(names, [variances[n] for n in names], color=colours)
    axes.set(
        xscale="log",
        xlabel="variance of the gradient for one draw of the weights (lower is better)",
    )
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)


def main(arguments: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=2_000)
    parser.add_argument("--steps", type=int, default=3_000)
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"))
    options = parser.parse_args(arguments)
    variances = measure(options.draws, options.steps)
    options.out.mkdir(parents=True, exist_ok=True)
    draw(variances, options.out / "gradient_variance.png")
    print(json.dumps(variances, indent=2))
    return variances


if __name__ == "__main__":
    main()
