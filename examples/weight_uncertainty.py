"""The regression curve of Blundell et al. (2015), section 5.2: intervals widen away from the data.

python examples/weight_uncertainty.py [--steps 10000] [--out docs/pictures]
"""

import argparse
from pathlib import Path

import numpy as np

import credax as cx


def data(rows: int = 300, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """y = x + 0.3 sin(2 pi (x + e)) + 0.3 sin(4 pi (x + e)) + e, with e of sd 0.02, x in [0, 0.5]."""
    rng = np.random.default_rng(seed)
    x, e = rng.uniform(0, 0.5, rows), 0.02 * rng.normal(size=rows)
    y = x + 0.3 * np.sin(2 * np.pi * (x + e)) + 0.3 * np.sin(4 * np.pi * (x + e)) + e
    return x[:, None], y


def fit(steps: int) -> cx.Posterior:
    model = cx.Model(
        cx.networks.mlp([50, 50]),
        prior=cx.priors.ScaleMixture(pi=0.5, sigma1=1.0, sigma2=0.1),
        likelihood=cx.likelihoods.Gaussian(0.05),
    )
    method = cx.BayesByBackprop(num_steps=steps, learning_rate=3e-3, samples=4)
    return cx.fit(model, data(), method, progress=False)


def draw(posterior: cx.Posterior, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    grid = np.linspace(-0.6, 1.4, 400)
    predictive = posterior.predict(grid[:, None], num_samples=400)
    figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
    for level, shade in ((0.95, "#dce6f5"), (0.5, "#a9c0e4")):
        lower, upper = predictive.interval(level)
        axes.fill_between(
            grid, lower, upper, color=shade, linewidth=0, label=f"{level:.0%} interval"
        )
    axes.plot(grid, predictive.mean, color="#1f3b73", label="mean")
    x, y = data()
    axes.scatter(x[:, 0], y, s=6, color="#333333", label="data", zorder=3)
    axes.set(xlabel="x", ylabel="y", xlim=(-0.6, 1.4), ylim=(-1.5, 2.5))
    axes.legend(frameon=False, loc="upper left")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)


def main(arguments: list[str] | None = None) -> cx.Posterior:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"))
    options = parser.parse_args(arguments)
    posterior = fit(options.steps)
    options.out.mkdir(parents=True, exist_ok=True)
    draw(posterior, options.out / "weight_uncertainty.png")
    print(f"ELBO {posterior.elbo[0]:.1f} +- {posterior.elbo[1]:.1f}")
    return posterior


if __name__ == "__main__":
    main()
