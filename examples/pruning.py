"""How many weights a network needs: digits with ever more of them removed (Blundell et al., 2015, section 5.1).

python examples/pruning.py [--steps 6000] [--out docs/pictures]
"""

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

import credax as cx
from credax.decisions.pruning import Curve, prune, pruning_curve

FRACTIONS = (0, 0.2, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.925, 0.95, 0.97, 0.98, 0.985, 0.99)


def data(seed: int = 0) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Digits of 8 by 8 pixels: 1,297 to learn from, 500 to judge by."""
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(y))
    train, test = order[500:], order[:500]
    return (x[train] / 16, y[train]), (x[test] / 16, y[test])


def fit(steps: int) -> cx.Posterior:
    model = cx.Model(
        cx.networks.mlp([100, 100]),
        prior=cx.priors.ScaleMixture(pi=0.5, sigma1=1.0, sigma2=0.05),
        likelihood=cx.likelihoods.Categorical(num_classes=10),
    )
    method = cx.BayesByBackprop(
        num_steps=steps, batch_size=128, learning_rate=3e-3, estimator="local"
    )
    return cx.fit(model, data()[0], method, progress=False)


def draw(curve: Curve, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    scores = {
        "test accuracy": [scores.accuracy for scores in curve.scores],
        "log likelihood a row": [scores.log_likelihood for scores in curve.scores],
    }
    for axis, (name, values) in zip(axes, scores.items(), strict=True):
        errors = [value.standard_error for value in values]
        axis.errorbar(curve.weights, values, errors, color="#1f3b73", marker="o", markersize=3)
        axis.set(xscale="log", xlabel="weights left", ylabel=name)
        axis.invert_xaxis()
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)


def main(arguments: list[str] | None = None) -> Curve:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=6_000)
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"))
    options = parser.parse_args(arguments)
    posterior, test = fit(options.steps), data()[1]
    curve = pruning_curve(posterior, *test, FRACTIONS)
    for fraction, weights, scores in zip(curve.fractions, curve.weights, curve.scores, strict=True):
        print(f"{fraction:6.1%} removed, {weights:6,} left: accuracy {scores.accuracy}")
    options.out.mkdir(parents=True, exist_ok=True)
    sizes = []
    for name, each in (("whole", posterior), ("pruned", prune(posterior, 0.95))):
        path = options.out / f"{name}.credax"
        replace(each, info={}).save(path)  # without the record of the run
        sizes.append(path.stat().st_size)
        path.unlink()
    print(f"The weights take {sizes[0]:,} bytes on disk, with 95 % of them removed {sizes[1]:,}")
    draw(curve, options.out / "pruning.png")
    return curve


if __name__ == "__main__":
    main()
