"""Pruning: how many weights a network needs to recognise digits (Blundell et al., 2015, section 5.1).

Weights whose posterior mean is small compared to their standard deviation are removed, more and more of them,
and the remaining network is evaluated without refitting.

    python examples/pruning.py [--steps 6000] [--out docs/pictures]
"""

import argparse
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import credax as cx
from credax.decisions.pruning import Curve, prune, pruning_curve

FRACTIONS = (0, 0.2, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.925, 0.95, 0.97, 0.98, 0.985, 0.99)


def load_data(seed: int = 0) -> tuple[tuple, tuple]:
    """Images of digits with 8 by 8 pixels: 1,297 to train on, and 500 to test on."""
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(y))
    train, test = order[500:], order[:500]
    return (x[train] / 16, y[train]), (x[test] / 16, y[test])


def main(arguments: list[str] | None = None) -> Curve:
    parser = argparse.ArgumentParser(description="Pruning of a network for digits.")
    parser.add_argument("--steps", type=int, default=6_000)
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"))
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)

    train, test = load_data()
    model = cx.Model(
        cx.networks.mlp([100, 100]),
        prior=cx.priors.ScaleMixture(pi=0.5, sigma1=1.0, sigma2=0.05),
        likelihood=cx.likelihoods.Categorical(num_classes=10),
    )
    method = cx.BayesByBackprop(
        num_steps=options.steps, batch_size=128, learning_rate=3e-3, estimator="local"
    )
    posterior = cx.fit(model, train, method, progress=False)

    # The scores on the test rows, for each fraction of weights removed.
    curve = pruning_curve(posterior, *test, FRACTIONS)
    print(curve)

    # A posterior with many zeros takes less space on disk. (info is the record of the run.)
    whole = size_on_disk(replace(posterior, info={}), options.out)
    pruned = size_on_disk(replace(prune(posterior, 0.95), info={}), options.out)
    print(f"On disk: {whole:,} bytes, and {pruned:,} bytes with 95 % of the weights removed")

    draw(curve, options.out / "pruning.png")
    return curve


def size_on_disk(posterior: cx.Posterior, folder: Path) -> int:
    path = folder / "posterior.credax"
    posterior.save(path)
    size = path.stat().st_size
    path.unlink()
    return size


def draw(curve: Curve, path: Path) -> None:
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    values = {
        "test accuracy": [scores.accuracy for scores in curve.scores],
        "mean log likelihood": [scores.log_likelihood for scores in curve.scores],
    }
    for axis, (name, scores) in zip(axes, values.items(), strict=True):
        errors = [score.standard_error for score in scores]
        axis.errorbar(curve.weights, scores, errors, color="#1f3b73", marker="o", markersize=3)
        axis.set(xscale="log", xlabel="weights left", ylabel=name)
        axis.invert_xaxis()
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)
    plt.close(figure)


if __name__ == "__main__":
    main()
