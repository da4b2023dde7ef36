"""Recalibration: intervals that are too narrow are corrected with held-out rows.

A network is fitted to so few rows that it overfits, and to noise whose skewness its likelihood cannot
describe. Conformal prediction corrects its intervals with 500 held-out rows, in two ways.

    python examples/recalibration.py [--steps 2000] [--rows 2000] [--out docs/pictures]
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import credax as cx


def make_data(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A wave with noise that is skewed and grows with x."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(0, 3, (rows, 1))
    return x, np.sin(2 * x[:, 0]) + 0.2 * x[:, 0] * (rng.exponential(size=rows) - 1)


def main(arguments: list[str] | None = None) -> dict:
    parser = argparse.ArgumentParser(description="Recalibration with held-out rows.")
    parser.add_argument("--steps", type=int, default=2_000)
    parser.add_argument("--rows", type=int, default=2_000)
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"))
    options = parser.parse_args(arguments)
    train, held_out = make_data(60, seed=0), make_data(500, seed=1)
    test = make_data(options.rows, seed=2)

    # Maximum likelihood on 60 rows overfits, and is far too confident.
    model = cx.Model(cx.networks.mlp([32, 32]), likelihood=cx.likelihoods.Heteroscedastic())
    method = cx.MaximumLikelihood(num_steps=options.steps)
    posterior = cx.fit(model, train, method, progress=False)

    # A calibrated posterior predicts as the original does, with corrected intervals.
    posteriors = {
        "original": posterior,
        "quantile": posterior.calibrate(*held_out),
        "residual": posterior.calibrate(*held_out, method="residual"),
    }
    scores = {name: each.evaluate(*test) for name, each in posteriors.items()}
    for name, each in scores.items():
        print(f"{name}: coverage {each.coverage}, width {each.width}")

    options.out.mkdir(parents=True, exist_ok=True)
    draw(posteriors, scores, test, options.out / "recalibration.png")
    return scores


def draw(posteriors: dict, scores: dict, test: tuple, path: Path) -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    x, y = test
    grid = np.linspace(0, 3, 200)
    left.scatter(x[:300, 0], y[:300], s=5, color="#555555", zorder=3)
    for name, shade in (("quantile", "#dce6f5"), ("original", "#a9c0e4")):
        lower, upper = posteriors[name].predict(grid[:, None]).interval(0.5)
        left.fill_between(grid, lower, upper, color=shade, linewidth=0, label=f"50 %, {name}")
    left.set(xlabel="x", ylabel="y")
    right.plot([0, 1], [0, 1], color="#999999", linewidth=1)
    colours = ("#c8502d", "#1f3b73", "#7d9fd3")
    for (name, each), colour in zip(scores.items(), colours, strict=True):
        right.plot(each.levels, each.coverage_at, "o-", markersize=3, color=colour, label=name)
    right.set(xlabel="level of the interval", ylabel="fraction of new targets inside")
    for axes in (left, right):
        axes.legend(frameon=False, fontsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    main()
