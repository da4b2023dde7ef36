"""Two posteriors with nearly the same error, of which one knows it: coverage, PIT and the table of scores.

python examples/scores.py [--steps 2000] [--rows 1000] [--out docs/pictures]
"""

import argparse
from pathlib import Path

import numpy as np

import credax as cx

NAMES = {"a network that takes the noise to be 0.1": 0.1, "a deep ensemble that learns it": None}


def made(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A wave, with noise of standard deviation 0.3."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-3, 3, (rows, 1))
    return x, np.sin(2 * x[:, 0]) + 0.3 * rng.normal(size=rows)


def measure(steps: int, rows: int) -> dict[str, object]:
    data, new = made(200, seed=0), made(rows, seed=1)
    result = {}
    for name, noise in NAMES.items():
        model = cx.Model(cx.networks.mlp([32]), likelihood=cx.likelihoods.Gaussian(noise))
        method = cx.DeepEnsemble(members=5, num_steps=steps)
        if noise is not None:
            method = cx.MAP(num_steps=steps)
        result[name] = cx.fit(model, data, method, progress=False).evaluate(*new)
    return result


def draw(found: dict[str, object], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    left.plot([0, 1], [0, 1], color="#999999", linewidth=1)
    bins = np.linspace(0, 1, 21)
    right.axhline(1, color="#999999", linewidth=1)
    for (name, scores), colour in zip(found.items(), ("#c8502d", "#1f3b73"), strict=True):
        left.plot(scores.levels, scores.coverage_at, "o-", markersize=3, color=colour, label=name)
        right.hist(scores.pit, bins, density=True, histtype="step", color=colour, linewidth=1.5)
    left.set(xlabel="level of the interval", ylabel="share of targets inside")
    left.legend(frameon=False, loc="upper left", fontsize=8)
    right.set(xlabel="P(y' ≤ y) of the target (PIT)", ylabel="density")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)


def main(arguments: list[str] | None = None) -> dict[str, object]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2_000)
    parser.add_argument("--rows", type=int, default=1_000)
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"))
    options = parser.parse_args(arguments)
    found = measure(options.steps, options.rows)
    options.out.mkdir(parents=True, exist_ok=True)
    draw(found, options.out / "scores.png")
    for name, scores in found.items():
        print(f"\n{name}\n{scores}")
    return found


if __name__ == "__main__":
    main()
