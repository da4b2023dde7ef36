"""Regression with uncertainty: the curve of Blundell et al. (2015), section 5.2.

A Bayesian neural network is fitted to 300 points between 0 and 0.5. Its predictive intervals are narrow near
the data and widen away from it.

    python examples/weight_uncertainty.py [--steps 10000] [--out docs/pictures]
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import credax as cx


def make_data(rows: int = 300, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """y = x + 0.3 sin(2 pi (x + e)) + 0.3 sin(4 pi (x + e)) + e, with noise e of standard deviation 0.02."""
    rng = np.random.default_rng(seed)
    x, e = rng.uniform(0, 0.5, rows), 0.02 * rng.normal(size=rows)
    y = x + 0.3 * np.sin(2 * np.pi * (x + e)) + 0.3 * np.sin(4 * np.pi * (x + e)) + e
    return x[:, None], y


def main(arguments: list[str] | None = None) -> cx.Posterior:
    parser = argparse.ArgumentParser(description="Regression with Bayes by Backprop.")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"))
    options = parser.parse_args(arguments)

    # A model is a network, a prior over its weights, and a likelihood of the targets given its outputs.
    x, y = make_data()
    model = cx.Model(
        cx.networks.mlp([50, 50]),
        prior=cx.priors.ScaleMixture(pi=0.5, sigma1=1.0, sigma2=0.1),
        likelihood=cx.likelihoods.Gaussian(0.05),
    )

    # Bayes by Backprop fits a normal distribution to each weight. The ELBO is a bound on the log evidence.
    method = cx.BayesByBackprop(num_steps=options.steps, learning_rate=3e-3, samples=4)
    posterior = cx.fit(model, (x, y), method, progress=False)
    print(f"ELBO: {posterior.elbo}")

    # Predictions average over samples of the weights.
    grid = np.linspace(-0.6, 1.4, 400)
    predictive = posterior.predict(grid[:, None], num_samples=400)

    options.out.mkdir(parents=True, exist_ok=True)
    draw(x, y, grid, predictive, options.out / "weight_uncertainty.png")
    return posterior


def draw(x, y, grid, predictive, path: Path) -> None:
    figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
    for level, shade in ((0.95, "#dce6f5"), (0.5, "#a9c0e4")):
        lower, upper = predictive.interval(level)
        label = f"{level:.0%} interval"
        axes.fill_between(grid, lower, upper, color=shade, linewidth=0, label=label)
    axes.plot(grid, predictive.mean, color="#1f3b73", label="mean")
    axes.scatter(x[:, 0], y, s=6, color="#333333", label="data", zorder=3)
    axes.set(xlabel="x", ylabel="y", xlim=(-0.6, 1.4), ylim=(-1.5, 2.5))
    axes.legend(frameon=False, loc="upper left")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)
    plt.close(figure)


if __name__ == "__main__":
    main()
