"""``credax demo``: an ensemble on a real table, with a picture of how sure it is."""

from __future__ import annotations

from pathlib import Path

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
    x, x_test, y, y_test = train_test_split(
        table.data, table.target, test_size=0.25, random_state=0
    )
    x_mean, x_sd, y_mean, y_sd = x.mean(0), x.std(0), y.mean(), y.std()
    standard = lambda rows: (rows - x_mean) / x_sd  # noqa: E731

    console.print(
        f"Disease progression of {len(table.target)} diabetes patients, {x.shape[1]} measurements each: "
        f"{len(x)} to learn from, {len(x_test)} held out."
    )
    model = cx.Model(
        cx.networks.mlp([50]), cx.priors.Normal(0.5), cx.likelihoods.Gaussian(scale=None)
    )
    method = cx.DeepEnsemble(members=10, num_steps=3_000)
    # A table this small and noisy is learned by heart within a few hundred steps: stop before.
    stopping = cx.EarlyStopping(fraction=0.2, every=10)
    posterior = cx.fit(model, (standard(x), (y - y_mean) / y_sd), method, early_stopping=stopping)
    predictive = posterior.predict(standard(x_test))

    mean = y_mean + y_sd * predictive.mean
    lower, upper = (y_mean + y_sd * end for end in predictive.interval(0.9))
    log_prob = predictive.log_prob((y_test - y_mean) / y_sd) - np.log(y_sd)
    inside = (lower <= y_test) & (y_test <= upper)
    rows = {
        "RMSE": f"{np.sqrt(np.mean((mean - y_test) ** 2)):.1f}",
        "RMSE of always saying the mean": f"{np.sqrt(np.mean((y_mean - y_test) ** 2)):.1f}",
        "log likelihood a patient": f"{log_prob.mean():.3f}",
        "90 % intervals that hold the truth": f"{100 * inside.mean():.0f} %",
        "epistemic share of the variance": f"{100 * np.mean(predictive.epistemic / predictive.variance):.0f} %",
        "seconds, compiling apart": f"{posterior.info['seconds']:.1f}",
    }
    report = Table("held-out patients", "", title="DeepEnsemble(members=10)")
    for name, value in rows.items():
        report.add_row(name, value)
    console.print(report)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "predictions.png"
    _draw(path, y_test, mean, lower, upper, inside, np.sqrt(predictive.epistemic) * y_sd)
    console.print(f"Picture: {path}")
    return path


def _draw(path, truth, mean, lower, upper, inside, epistemic) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

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
