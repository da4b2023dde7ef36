"""Active learning: which digits to label next, chosen by BALD or at random.

Both rules start from two labelled images of each digit. In every round the rule chooses some images from a
pool, their labels are revealed, and the model is fitted again. BALD reaches the same accuracy with fewer
labels.

    python examples/active_learning.py [--rounds 20] [--count 10] [--keys 5] [--out docs/pictures]
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import credax as cx
from credax.decisions.active_learning import active_learning

RULES = {"bald": ("BALD", "#1f3b73"), "random": ("random", "#c0504d")}


def split_data(seed: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Two labelled images of each digit, 500 images to test on, and all others as the pool to choose from."""
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(y))
    test, rest = order[:500], order[500:]
    first = np.concatenate([rest[y[rest] == digit][:2] for digit in range(10)])
    rows = {"data": first, "pool": np.setdiff1d(rest, first), "test": test}
    return {name: (x[chosen] / 16, y[chosen]) for name, chosen in rows.items()}


def main(arguments: list[str] | None = None) -> dict[str, np.ndarray]:
    parser = argparse.ArgumentParser(description="Active learning on digits.")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--keys", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"))
    options = parser.parse_args(arguments)

    # BALD needs a posterior whose members disagree where the data says little; an ensemble is a cheap one.
    model = cx.Model(
        cx.networks.mlp([64]),
        prior=cx.priors.Normal(1.0),
        likelihood=cx.likelihoods.Categorical(num_classes=10),
    )
    method = cx.DeepEnsemble(members=10, num_steps=options.steps, learning_rate=1e-2)

    # The accuracy after each round, one row for each key.
    curves = {}
    for rule in RULES:
        histories = [
            active_learning(
                model,
                method=method,
                rule=rule,
                rounds=options.rounds,
                count=options.count,
                key=key,
                **split_data(key),
            )
            for key in range(options.keys)
        ]
        curves[rule] = np.array(
            [[scores.accuracy for scores in history.scores] for history in histories]
        )
        labels = histories[0].labels
        print(f"{rule}: accuracy {curves[rule][:, -1].mean():.3f} with {labels[-1]} labels")

    reached = curves["random"].mean(0)[-1]
    needed = labels_needed(labels, curves["bald"].mean(0), reached)
    print(f"BALD reaches the accuracy of {labels[-1]} random labels with {needed:.0f} labels.")

    options.out.mkdir(parents=True, exist_ok=True)
    draw(labels, curves, options.out / "active_learning.png")
    return curves


def labels_needed(labels: list[int], curve: np.ndarray, accuracy: float) -> float:
    """The number of labels at which a curve first reaches an accuracy, by linear interpolation; else NaN."""
    curve = np.maximum.accumulate(curve)
    if curve[-1] < accuracy:
        return float("nan")
    at = int(np.argmax(curve >= accuracy))
    segment = slice(max(at - 1, 0), at + 1)
    return float(np.interp(accuracy, curve[segment], labels[segment]))


def draw(labels: list[int], curves: dict[str, np.ndarray], path: Path) -> None:
    figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
    for rule, curve in curves.items():
        name, colour = RULES[rule]
        axes.plot(labels, curve.T, color=colour, linewidth=0.8, alpha=0.3)
        axes.plot(labels, curve.mean(0), color=colour, linewidth=2, label=name)
    axes.set(xlabel="labels", ylabel="test accuracy", xlim=(labels[0], labels[-1]))
    axes.legend(frameon=False, loc="lower right")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)
    plt.close(figure)


if __name__ == "__main__":
    main()
