"""``credax demo``: an ensemble on a real table, with a picture of how sure it is."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

import credax as cx


def run(folder: Path, console: Console) -> Path:
    """Fits, prints how good the predictions and their intervals are, and draws them.

    Returns:
      The picture.
    """
    from sklearn.datasets import load_diabetes
    from sklearn.model_selection import train_test_split

    table = load_diabetes()
    console.print(
        f"Disease progression of {len(table.target)} diabetes patients, {table.data.shape[1]} "
        "measurements each; a quarter of them held out."
    )
    # One split of so small a table proves little, so the same settings meet nine more.
    splits = [
        train_test_split(table.data, table.target, test_size=0.25, random_state=seed)
        for seed in range(10)
    ]
    first = _fit(splits[0], progress=True)
    coverages = [first.inside.mean(), *(_fit(split).inside.mean() for split in splits[1:])]
    error = np.sqrt(np.mean((first.mean - first.truth) ** 2))
    rows = {
        "RMSE": f"{error:.1f}",
        "RMSE of always saying the mean": f"{np.std(first.truth):.1f}",
        "log likelihood a patient": f"{first.log_prob.mean():.3f}",
        "90 % intervals that hold the truth": f"{100 * coverages[0]:.0f} %",
        "the same over ten splits": f"{100 * np.mean(coverages):.0f} %, "
        f"from {100 * min(coverages):.0f} to {100 * max(coverages):.0f} %",
        "seconds, compiling apart": f"{first.seconds:.1f}",
    }
    report = Table("held-out patients", "", title="DeepEnsemble(members=10)")
    for name, value in rows.items():
        report.add_row(name, value)
    console.print(report)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "predictions.png"
    _draw(path, first)
    console.print(f"Picture: {path}")
    return path


class _Result(NamedTuple):
    """Predictions for the held-out patients of a split, on the scale of the table."""

    truth: np.ndarray
    mean: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    epistemic: np.ndarray  # as a standard deviation
    log_prob: np.ndarray
    seconds: float

    @property
    def inside(self) -> np.ndarray:
        return (self.lower <= self.truth) & (self.truth <= self.upper)


def _fit(split, *, progress: bool = False) -> _Result:
    x, x_test, y, truth = split
    x_mean, x_sd, y_mean, y_sd = x.mean(0), x.std(0), y.mean(), y.std()
    model = cx.Model(
        cx.networks.mlp([50]), cx.priors.Normal(0.5), cx.likelihoods.Gaussian(scale=None)
    )
    method = cx.DeepEnsemble(members=10, num_steps=3_000)
    # A table this small and noisy is learned by heart within a few hundred steps: stop before.
    stopping = cx.EarlyStopping(fraction=0.2, every=10)
    data = ((x - x_mean) / x_sd, (y - y_mean) / y_sd)
    posterior = cx.fit(model, data, method, early_stopping=stopping, progress=progress)
    predictive = posterior.predict((x_test - x_mean) / x_sd)
    lower, upper = (y_mean + y_sd * end for end in predictive.interval(0.9))
    return _Result(
        truth,
        y_mean + y_sd * predictive.mean,
        lower,
        upper,
        y_sd * np.sqrt(predictive.epistemic),
        predictive.log_prob((truth - y_mean) / y_sd) - np.log(y_sd),
        posterior.info["seconds"],
    )


def _draw(path: Path, result: _Result) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    truth, mean, lower, upper, epistemic = result[:5]
    inside = result.inside
    order = np.argsort(mean)
    place = np.arange(len(order))
    figure, axes = plt.subplots(figsize=(10, 4.8), layout="constrained")
    axes.fill_between(
        place, lower[order], upper[order], color="#c9d7ee", label="90 % interval", linewidth=0
    )
    axes.fill_between(
        place,
        (mean - epistemic)[order],
        (mean + epistemic)[order],
        color="#7d9fd3",
        label="epistemic, ±1 sd",
        linewidth=0,
    )
    axes.plot(place, mean[order], color="#1f3b73", linewidth=1.5, label="predicted mean")
    hit, miss = inside[order], ~inside[order]
    truth = truth[order]
    axes.scatter(place[hit], truth[hit], s=14, color="#333333", label="truth, inside", zorder=3)
    axes.scatter(
        place[miss],
        truth[miss],
        s=28,
        color="#c0392b",
        marker="x",
        label="truth, outside",
        zorder=3,
    )
    axes.set(
        xlabel="held-out patients, by predicted mean",
        ylabel="disease progression after a year",
        title=f"{100 * inside.mean():.0f} % of the 90 % intervals hold the truth",
        xlim=(-1, len(order)),
    )
    axes.legend(loc="upper left", frameon=False, ncols=2)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)
    plt.close(figure)
