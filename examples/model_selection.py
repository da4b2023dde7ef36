"""Model selection: the evidence finds the number of hidden units that generated the data (Occam's razor).

The data comes from a network with three hidden units. Networks of different sizes are fitted by a Laplace
approximation, which estimates the log evidence. The training data is explained best by the largest network;
the evidence and new data favour three units.

    python examples/model_selection.py [--units 1 2 3 4 5 6 8] [--restarts 5] [--steps 4000] [--out FOLDER]
"""

import argparse
import math
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import credax as cx

NOISE = 0.15


def make_data(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The sum of three tanh units, which go up, down and up again, with noise."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-4, 4, (rows, 1))
    curve = np.tanh(2 * (x + 2.5)) - np.tanh(2 * x) + np.tanh(2 * (x - 2.5))
    return x, curve[:, 0] + NOISE * rng.normal(size=rows)


def main(arguments: list[str] | None = None) -> dict[int, dict[str, float]]:
    parser = argparse.ArgumentParser(description="The evidence for the number of hidden units.")
    parser.add_argument("--units", type=int, nargs="+", default=[1, 2, 3, 4, 5, 6, 8])
    parser.add_argument("--restarts", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4_000)
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"))
    options = parser.parse_args(arguments)

    train, test = make_data(150, seed=0), make_data(1000, seed=1)
    method = cx.Laplace(structure="full", num_steps=options.steps, learning_rate=0.03)
    found = {}
    for units in options.units:
        model = cx.Model(
            cx.networks.mlp([units], activation="tanh"),
            prior=cx.priors.Normal(4.0),
            likelihood=cx.likelihoods.Gaussian(NOISE),
        )
        # The Laplace approximation describes one mode. Several starts are tried, and the best mode is kept.
        fits = [
            cx.fit(model, train, method, key=key, progress=False) for key in range(options.restarts)
        ]
        best = max(fits, key=lambda posterior: posterior.log_evidence.value)
        # Permuting the hidden units, or flipping the sign of one, gives the same function: a mode has up to
        # units! * 2^units copies. (A unit without effect has no sign to flip, so this is an upper bound.)
        copies = math.lgamma(units + 1) + units * math.log(2)
        found[units] = {
            "log evidence": best.log_evidence.value,
            "with all copies": best.log_evidence.value + copies,
            "training data": float(best.evaluate(*train).log_likelihood),
            "new data": float(best.evaluate(*test).log_likelihood),
        }
        print(units, {name: round(value, 3) for name, value in found[units].items()})

    options.out.mkdir(parents=True, exist_ok=True)
    draw(found, options.out / "model_selection.png")
    return found


def draw(found: dict[int, dict[str, float]], path: Path) -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    units = list(found)
    evidence = [each["log evidence"] for each in found.values()]
    copies = [each["with all copies"] for each in found.values()]
    best = int(np.argmax(evidence))
    left.plot(units, evidence, "o-", color="#1f3b73", label="of the best mode")
    left.plot(units, copies, "--", color="#7d9fd3", label="with all copies of the mode, at most")
    left.plot(units[best], evidence[best], "o", color="#c8502d", markersize=11, zorder=3)
    left.set(xlabel="hidden units", ylabel="log evidence", ylim=(max(copies) - 65, max(copies) + 5))
    left.legend(frameon=False, loc="lower right", fontsize=8)
    for name, colour in {"training data": "#7d9fd3", "new data": "#1f3b73"}.items():
        values = [each[name] for each in found.values()]
        right.plot(units, values, "o-", color=colour, label=name)
    top = max(each["training data"] for each in found.values())
    right.set(xlabel="hidden units", ylabel="mean log density", ylim=(top - 1, top + 0.1))
    right.legend(frameon=False, loc="lower right")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    main()
