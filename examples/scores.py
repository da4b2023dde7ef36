"""Scores and calibration: two posteriors with nearly the same error, of which only one states it correctly.

The data is a wave with noise of standard deviation 0.3. The first model assumes a noise of 0.1 and is
overconfident; the second is a deep ensemble that learns the noise. The figure shows the coverage of their
intervals and the histograms of the probability integral transform (PIT), which is flat for calibrated
predictions.

    python examples/scores.py [--steps 2000] [--rows 1000] [--out docs/pictures]
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import credax as cx


def make_data(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A wave, with noise of standard deviation 0.3."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-3, 3, (rows, 1))
    return x, np.sin(2 * x[:, 0]) + 0.3 * rng.normal(size=rows)


def main(arguments: list[str] | None = None) -> dict:
    parser = argparse.ArgumentParser(description="Scores of two posteriors.")
    parser.add_argument("--steps", type=int, default=2_000)
    parser.add_argument("--rows", type=int, default=1_000)
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"))
    options = parser.parse_args(arguments)
    train, test = make_data(200, seed=0), make_data(options.rows, seed=1)

    # A single network, with a noise scale that is given and too small.
    given = cx.Model(cx.networks.mlp([32]), likelihood=cx.likelihoods.Gaussian(0.1))
    single = cx.fit(given, train, cx.MAP(num_steps=options.steps), progress=False)

    # Five networks, with a noise scale that is learned.
    learned = cx.Model(cx.networks.mlp([32]), likelihood=cx.likelihoods.Gaussian(scale=None))
    method = cx.DeepEnsemble(members=5, num_steps=options.steps)
    ensemble = cx.fit(learned, train, method, progress=False)

    # evaluate() computes all scores that apply, each with a standard error. print() shows them as a table.
    scores = {
        "a network with the noise given as 0.1": single.evaluate(*test),
        "a deep ensemble that learns the noise": ensemble.evaluate(*test),
    }
    for name, each in scores.items():
        print(f"\n{name}\n{each}")

    options.out.mkdir(parents=True, exist_ok=True)
    draw(scores, options.out / "scores.png")
    return scores


def draw(scores: dict, path: Path) -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    left.plot([0, 1], [0, 1], color="#999999", linewidth=1)
    right.axhline(1, color="#999999", linewidth=1)
    bins = np.linspace(0, 1, 21)
    for (name, each), colour in zip(scores.items(), ("#c8502d", "#1f3b73"), strict=True):
        left.plot(each.levels, each.coverage_at, "o-", markersize=3, color=colour, label=name)
        right.hist(each.pit, bins, density=True, histtype="step", color=colour, linewidth=1.5)
    left.set(xlabel="level of the interval", ylabel="fraction of targets inside")
    left.legend(frameon=False, loc="upper left", fontsize=8)
    right.set(xlabel="P(y' ≤ y) of the target (PIT)", ylabel="density")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    main()
