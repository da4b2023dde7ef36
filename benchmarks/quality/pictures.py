"""The pictures of ``docs/evidence.md``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.quality import published

FOLDER = Path(__file__).parent.parent.parent / "docs" / "pictures"
GREY = "#888888"
COLUMNS = dict(
    zip(published.UCI_COLUMNS, ("#c2702d", "#2f8f5b", "#9b59b6", "#c0392b"), strict=True)
)
"""The colours of the columns of the papers on the UCI tables."""


def _canvas(*shape: int, size: tuple[float, float]) -> tuple[Any, Any, Any]:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(*shape, figsize=size, squeeze=False, layout="constrained")
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
    return plt, figure, axes


def _save(plt: Any, figure: Any, name: str) -> None:
    FOLDER.mkdir(exist_ok=True)
    figure.savefig(FOLDER / f"evidence_{name}.png", dpi=110)
    plt.close(figure)


def uci(splits: dict[str, Any]) -> None:
    """The log likelihood of each method, a panel for each table, with the columns of the papers as lines."""
    names = [name for name in published.LOG_LIKELIHOOD if name in splits]
    labels = list(dict.fromkeys(label for name in names for label in splits[name]))[::-1]
    columns = min(3, len(names))
    rows = -(-len(names) // columns)
    size = (2.7 * columns + 2.2, (0.19 * len(labels) + 0.75) * rows + 0.6)
    plt, figure, axes = _canvas(rows, columns, size=size)
    for i, (axis, name) in enumerate(zip(axes.flat, names, strict=False)):
        values, shown = published.LOG_LIKELIHOOD[name], []
        for column, value in zip(published.UCI_COLUMNS, values, strict=True):
            axis.axvline(value, color=COLUMNS[column], ls="--", lw=1, label=f"paper: {column}")
        for height, label in enumerate(labels):
            found = [c["log_likelihood"] for c in splits[name].get(label, {}).values()]
            if found:
                shown.append(np.mean(found))
                axis.plot(found, [height] * len(found), ".", color="#9db4dd", ms=5, mew=0)
                axis.plot(shown[-1], height, "o", color="#1f3b73", ms=4)
        low, high = min([*values, *shown]), max([*values, *shown])
        margin = 0.06 * (high - low)
        axis.set(xlim=(low - margin, high + margin), ylim=(-0.7, len(labels) - 0.3))
        axis.set_title(name, fontsize=9)
        axis.set_yticks(range(len(labels)), labels if i % columns == 0 else [])
        axis.locator_params(axis="x", nbins=5)
        axis.tick_params(labelsize=7)
        axis.grid(axis="y", lw=0.4, color="#dddddd")
        axis.set_axisbelow(True)
    for axis in axes.flat[len(names) :]:
        axis.axis("off")
    figure.suptitle("Log likelihood per test row (further right is better)", fontsize=10)
    handles, _ = axes[0][0].get_legend_handles_labels()
    handles += axes[0][0].plot([], [], "o", color="#1f3b73", ms=4, label="mean")
    handles += axes[0][0].plot([], [], ".", color="#9db4dd", ms=6, mew=0, label="one split")
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    _save(plt, figure, "uci")


def cifar(figures: dict[str, Any]) -> None:
    """The total variation to HMC against seconds; what was measured earlier is hollow."""
    plt, figure, axes = _canvas(1, 1, size=(6, 3.6))
    axis = axes[0][0]
    for labels in figures.values():
        for label, c in labels.items():
            axis.plot(c["seconds"], c["total_variation"], "o", color="#1f3b73")
            place = (c["seconds"], c["total_variation"])
            name = f"{label.partition(',')[0]}, {c['epochs']} epochs "
            axis.annotate(name, place, fontsize=8, va="bottom", ha="right")
    for label, (_, variation, seconds) in published.CIFAR_BEFORE.items():
        if seconds is not None:
            axis.plot(seconds, variation, "o", mfc="none", color="#1f3b73")
            axis.annotate(f" {label}", (seconds, variation), fontsize=8, va="bottom")
    axis.set_title("hollow: measured earlier, 40 epochs", fontsize=9)
    for label, (_, variation) in published.CIFAR.items():
        if label in ("Deep Ensembles", "SGHMC, cyclical"):
            axis.axhline(variation, color=GREY, lw=0.8, ls="--")
            side = "bottom" if label == "Deep Ensembles" else "top"
            axis.annotate(f" paper: {label}", (1, variation), fontsize=7, color=GREY, va=side)
    axis.set(xscale="log", xlim=(1, 1_000), ylim=(0, None))
    axis.set(xlabel="seconds", ylabel="total variation to HMC")
    _save(plt, figure, "cifar")


def bandit(figures: dict[str, Any]) -> None:
    """Mean regret curves; crosses are the figures of the paper."""
    plt, figure, axes = _canvas(1, 1, size=(6.4, 3.8))
    axis = axes[0][0]
    longest = max(figures, key=lambda run: int(run.split()[0]))
    for agent, cells in figures[longest].items():
        steps = next(iter(cells.values()))["steps"]
        mean = np.mean([c["regret"] for c in cells.values()], axis=0)
        (line,) = axis.plot(steps, mean, label=agent)
        for at, value in published.BANDIT.get(agent, {}).items():
            if at <= steps[-1]:
                axis.plot(at, value, "x", color=line.get_color(), ms=8, clip_on=False)
    axis.plot([], [], "x", color=GREY, label="paper")
    axis.set(xlabel="mushrooms", ylabel="cumulative regret", ylim=(0, None))
    axis.legend(frameon=False, fontsize=8)
    _save(plt, figure, "bandit")


def reference(figures: dict[str, Any]) -> None:
    """The distance to HMC against gradients, a panel for each table."""
    plt, figure, axes = _canvas(1, len(figures), size=(4.2 * len(figures) + 0.5, 3.8))
    for axis, (name, cells) in zip(axes[0], figures.items(), strict=True):
        for label, c in cells.items():
            axis.plot(c["gradients"], c["distance"], "o", color="#1f3b73", ms=5)
            place = (c["gradients"], c["distance"])
            axis.annotate(f" {label}", place, fontsize=7, va="center")
        axis.set(xscale="log", yscale="log", title=name, xlabel="gradients")
        right = axis.get_xlim()[1]
        axis.set_xlim(None, right * 30)
    axes[0][0].set_ylabel("distance to HMC, in its predictive sd")
    _save(plt, figure, "reference")
