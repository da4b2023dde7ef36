"""Which digits to label next: accuracy against labels, by BALD and at random.

python examples/active_learning.py [--rounds 20] [--count 10] [--keys 5] [--out docs/pictures]
"""

import argparse
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

import credax as cx
from credax.decisions.active_learning import active_learning

RULES = {"bald": ("BALD", "#1f3b73"), "random": ("random", "#c0504d")}


def split(seed: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Two labelled digits of each kind, 500 to test on, and all others to choose from."""
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(y))
    test, rest = order[:500], order[500:]
    first = np.concatenate([rest[y[rest] == digit][:2] for digit in range(10)])
    rows = {"data": first, "pool": np.setdiff1d(rest, first), "test": test}
    return {name: (x[chosen] / 16, y[chosen]) for name, chosen in rows.items()}


def accuracies(options: argparse.Namespace) -> tuple[list[int], dict[str, np.ndarray]]:
    """How many labels there were, and the accuracy of each rule with them, a row a key."""
    model = cx.Model(
        cx.networks.mlp([64]), cx.priors.Normal(1.0), cx.likelihoods.Categorical(num_classes=10)
    )
    method = cx.DeepEnsemble(members=10, num_steps=options.steps, learning_rate=1e-2)
    labels, curves = [], {}
    for rule in RULES:
        found = []
        for key in range(options.keys):
            settings = {"rounds": options.rounds, "count": options.count, "key": key}
            history = active_learning(model, method=method, rule=rule, **split(key), **settings)
            found.append([scores.accuracy for scores in history.scores])
            labels = history.labels
        curves[rule] = np.array(found)
        print(f"{rule}: accuracy {curves[rule][:, -1].mean():.3f} with {labels[-1]} labels")
    return labels, curves


def labels_needed(labels: list[int], curve: np.ndarray, accuracy: float) -> float:
    """Where a mean curve first reaches an accuracy, between its points along a line; NaN where it does not."""
    mean = np.maximum.accumulate(curve.mean(0))
    if mean[-1] < accuracy:
        return float("nan")
    at = int(np.argmax(mean >= accuracy))
    return float(
        np.interp(accuracy, mean[max(at - 1, 0) : at + 1], labels[max(at - 1, 0) : at + 1])
    )


def draw(labels: list[int], curves: dict[str, np.ndarray], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
    for rule, curve in curves.items():
        name, colour = RULES[rule]
        axes.plot(labels, curve.T, color=colour, linewidth=0.8, alpha=0.3)
        axes.plot(labels, curve.mean(0), color=colour, linewidth=2, label=name)
    axes.set(xlabel="labels", ylabel="test accuracy", xlim=(labels[0], labels[-1]))
    axes.legend(frameon=False, loc="lower right")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)


def main(arguments: list[str] | None = None) -> dict[str, np.ndarray]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--keys", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"))
    options = parser.parse_args(arguments)
    labels, curves = accuracies(options)
    reached = curves["random"].mean(0)[-1]
    needed = labels_needed(labels, curves["bald"], reached)
    print(f"BALD reaches the {reached:.3f} of {labels[-1]} random labels with {needed:.0f}")
    options.out.mkdir(parents=True, exist_ok=True)
    draw(labels, curves, options.out / "active_learning.png")
    return curves


if __name__ == "__main__":
    main()
