"""The variance of gradient estimators: reparameterised gradients vary far less than score-function gradients.

Black-box variational inference needs no gradient of the model; Bayes by Backprop uses it. This example
measures the variance of both estimators, and of the techniques that reduce it, at the same variational
parameters.

    python examples/gradient_variance.py [--draws 2000] [--steps 3000] [--out docs/pictures]
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import credax as cx

BLACK_BOX = {
    "black box": cx.BlackBoxVI(samples=16, control_variate=None, rao_blackwell=False),
    "+ leave-one-out": cx.BlackBoxVI(samples=16, rao_blackwell=False),
    "+ optimal control variate": cx.BlackBoxVI(
        samples=16, control_variate="optimal", rao_blackwell=False
    ),
    "+ leave-one-out, Rao-Blackwell": cx.BlackBoxVI(samples=16),
    "+ leave-one-out, antithetic": cx.BlackBoxVI(samples=16, antithetic=True, rao_blackwell=False),
}
REPARAMETERISED = {
    "Bayes by Backprop": cx.BayesByBackprop(estimator="weight"),
    "antithetic": cx.BayesByBackprop(samples=2, antithetic=True),
    "flipout": cx.BayesByBackprop(estimator="flipout"),
    "local reparameterisation": cx.BayesByBackprop(estimator="local"),
}


def make_data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (256, 1))
    return x, np.sin(3 * x[:, 0]) + 0.1 * rng.normal(size=256)


def main(arguments: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description="The variance of gradient estimators.")
    parser.add_argument("--draws", type=int, default=2_000)
    parser.add_argument("--steps", type=int, default=3_000)
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"))
    options = parser.parse_args(arguments)

    data = make_data()
    model = cx.Model(
        cx.networks.mlp([20], activation="tanh"),
        prior=cx.priors.Normal(1.0),
        likelihood=cx.likelihoods.Gaussian(0.1),
    )

    # All estimators are measured at the same variational parameters: those that Bayes by Backprop ends with.
    method = cx.BayesByBackprop(num_steps=options.steps)
    family = cx.fit(model, data, method, progress=False).approximation

    variances = {}
    for name, method in {**BLACK_BOX, **REPARAMETERISED}.items():
        found = cx.gradient_variance(model, data, method, family=family, draws=options.draws)
        # The methods average over different numbers of weight samples; this is the variance for one sample.
        variances[name] = found.total * method.samples
        print(f"{name:<32}{variances[name]:.4g}")

    options.out.mkdir(parents=True, exist_ok=True)
    draw(variances, options.out / "gradient_variance.png")
    return variances


def draw(variances: dict[str, float], path: Path) -> None:
    names = list(variances)[::-1]
    colours = ["#7d9fd3" if name in BLACK_BOX else "#1f3b73" for name in names]
    figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
    axes.barh(names, [variances[name] for name in names], color=colours)
    axes.set(
        xscale="log",
        xlabel="variance of the gradient for one draw of the weights (lower is better)",
    )
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)
    plt.close(figure)


if __name__ == "__main__":
    main()
