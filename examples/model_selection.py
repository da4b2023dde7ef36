"""Occam's razor: the evidence picks the number of hidden units that made the data.

python examples/model_selection.py [--units 1 2 3 4 5 6 8] [--restarts 5] [--steps 4000] [--out docs/pictures]
"""

import argparse
import math
from pathlib import Path

import numpy as np

import credax as cx

NOISE = 0.15


def made(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Three steps, up, down and up again: a network of three hidden units, and noise."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-4, 4, (rows, 1))
    steps = np.tanh(2 * (x + 2.5)) - np.tanh(2 * x) + np.tanh(2 * (x - 2.5))
    return x, steps[:, 0] + NOISE * rng.normal(size=rows)


def model(units: int) -> cx.Model:
    return cx.Model(
        cx.networks.mlp([units], activation="tanh"),
        cx.priors.Normal(4.0),
        cx.likelihoods.Gaussian(NOISE),
    )


def measure(units: list[int], restarts: int, steps: int) -> dict[int, dict[str, float]]:
    """For each number of units: the evidence of the best mode found, and densities of old and new rows."""
    data, new = made(150, seed=0), made(1000, seed=1)
    method = cx.Laplace(structure="full", num_steps=steps, learning_rate=0.03)
    result = {}
    for count in units:
        fits = [
            cx.fit(model(count), data, method, key=key, progress=False) for key in range(restarts)
        ]
        best = max(fits, key=lambda posterior: posterior.log_evidence[0])
        # Units in another order, or with all their signs turned, are the same function: so many modes at most
        # (a unit that does nothing has no sign to turn).
        copies = math.lgamma(count + 1) + count * math.log(2)
        result[count] = {
            "log evidence": best.log_evidence[0],
            "with all copies": best.log_evidence[0] + copies,
            "rows of the fit": float(best.evaluate(*data).log_likelihood),
            "new rows": float(best.evaluate(*new).log_likelihood),
        }
    return result


def draw(found: dict[int, dict[str, float]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    units = list(found)
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    evidence = [found[u]["log evidence"] for u in units]
    copies = [found[u]["with all copies"] for u in units]
    best = units[int(np.argmax(evidence))]
    left.plot(units, evidence, "o-", color="#1f3b73", label="of the best mode")
    left.plot(units, copies, "--", color="#7d9fd3", label="with all copies of the mode, at most")
    left.plot([best], [max(evidence)], "o", color="#c8502d", markersize=11, zorder=3)
    left.set(xlabel="hidden units", ylabel="log evidence", ylim=(max(copies) - 65, max(copies) + 5))
    left.legend(frameon=False, loc="lower right", fontsize=8)
    for name, colour in {"rows of the fit": "#7d9fd3", "new rows": "#1f3b73"}.items():
        right.plot(units, [found[u][name] for u in units], "o-", color=colour, label=name)
    top = max(found[u]["rows of the fit"] for u in units)
    right.set(xlabel="hidden units", ylabel="mean log density of a row", ylim=(top - 1, top + 0.1))
    right.legend(frameon=False, loc="lower right")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)


def main(arguments: list[str] | None = None) -> dict[int, dict[str, float]]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--units", type=int, nargs="+", default=[1, 2, 3, 4, 5, 6, 8])
    parser.add_argument("--restarts", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4_000)
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"))
    options = parser.parse_args(arguments)
    found = measure(options.units, options.restarts, options.steps)
    options.out.mkdir(parents=True, exist_ok=True)
    draw(found, options.out / "model_selection.png")
    for units, figures in found.items():
        print(units, {name: round(value, 3) for name, value in figures.items()})
    return found


if __name__ == "__main__":
    main()
