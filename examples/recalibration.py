"""Intervals that are too narrow, put right by rows that were held back.

python examples/recalibration.py [--steps 2000] [--rows 2000] [--out docs/pictures]
"""

import argparse
from pathlib import Path

import numpy as np

import credax as cx


def made(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Noise that is skewed, which the model knows nothing of, and grows with x."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(0, 3, (rows, 1))
    return x, np.sin(2 * x[:, 0]) + 0.2 * x[:, 0] * (rng.exponential(size=rows) - 1)


def measure(steps: int) -> dict[str, object]:
    """The posterior as it was, and corrected in both ways."""
    model = cx.Model(cx.networks.mlp([32, 32]), likelihood=cx.likelihoods.Heteroscedastic())
    # Fitted to few rows for long, it takes the noise for the curve, and is far too sure of it.
    method = cx.MaximumLikelihood(num_steps=steps)
    posterior = cx.fit(model, made(60, seed=0), method, progress=False)
    held_out = made(500, seed=1)
    return {
        "as it was": posterior,
        "quantile": posterior.calibrate(*held_out),
        "residual": posterior.calibrate(*held_out, method="residual"),
    }


def draw(found: dict[str, object], rows: int, path: Path) -> dict[str, object]:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    x, y = made(rows, seed=2)
    grid = np.linspace(0, 3, 200)
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    left.scatter(x[:300, 0], y[:300], s=5, color="#555555", zorder=3)
    for name, shade in (("quantile", "#dce6f5"), ("as it was", "#a9c0e4")):
        lower, upper = found[name].predict(grid[:, None]).interval(0.5)
        left.fill_between(grid, lower, upper, color=shade, linewidth=0, label=f"50 %, {name}")
    left.set(xlabel="x", ylabel="y")
    left.legend(frameon=False, fontsize=8)
    right.plot([0, 1], [0, 1], color="#999999", linewidth=1)
    scores = {name: posterior.evaluate(x, y) for name, posterior in found.items()}
    for (name, each), colour in zip(scores.items(), ("#c8502d", "#1f3b73", "#7d9fd3"), strict=True):
        right.plot(each.levels, each.coverage_at, "o-", markersize=3, color=colour, label=name)
    right.set(xlabel="level of the interval", ylabel="share of new targets inside")
    right.legend(frameon=False, fontsize=8)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)
    return scores


def main(arguments: list[str] | None = None) -> dict[str, object]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2_000)
    parser.add_argument("--rows", type=int, default=2_000)
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"))
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    found = measure(options.steps)
    scores = draw(found, options.rows, options.out / "recalibration.png")
    for name, each in scores.items():
        print(f"{name}: coverage {each.coverage}, width {each.width}")
    return scores


if __name__ == "__main__":
    main()
