"""The style of all plots, and what they ask of their arguments.

The colours are those of the HTML report in its light style. The settings of matplotlib stay as they are: only
the axes that a plot draws on are changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from credax.core.checks import integer, must
from credax.report.charts import some_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SERIES = ("#1668b8", "#c25100", "#00795c", "#a33c83", "#7a6200", "#4f5fc4")
"""The colours of series, in their order."""
INK, SOFT, LINE, IDEAL = "#1c2128", "#57606a", "#d5dae1", "#7b848f"
"""The colours of text, of axes, of the grid, and of what would be ideal."""
NOISE = "#b4bcc6"
"""The colour of aleatoric uncertainty, which is less interesting than epistemic uncertainty beside it."""
SIZE = (6.0, 4.0)
"""The width and height in inches of a figure that a plot makes."""
DOTS = 2_000
"""The largest number of dots in a plot; more would hide each other."""


def axes(ax: Axes | None, xlabel: str, ylabel: str) -> Axes:
    """The axes to draw on, those given or those of a new figure, in the style of all plots."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError("cx.plots needs matplotlib: pip install 'credax[plot]'.") from error
    if ax is not None and not (hasattr(ax, "plot") and hasattr(ax, "fill_between")):
        raise TypeError(must("plots", "ax", "the Axes of matplotlib, or None", ax))
    found: Any = plt.subplots(figsize=SIZE, layout="constrained")[1] if ax is None else ax
    found.spines[["top", "right"]].set_visible(False)
    found.spines[["left", "bottom"]].set_color(SOFT)
    found.tick_params(colors=SOFT, labelsize=9)
    found.grid(axis="y", color=LINE, linewidth=0.7)
    found.set_axisbelow(True)
    found.set_xlabel(xlabel, color=INK)
    found.set_ylabel(ylabel, color=INK)
    return found


def key(ax: Axes, **options: Any) -> None:
    """Add the legend, if anything on the axes has a label."""
    if ax.get_legend_handles_labels()[1]:
        ax.legend(**{"frameon": False, "fontsize": 9, "labelcolor": INK, **options})


def dots(ax: Axes, x: Any, y: Any, colour: str = INK, label: str | None = None) -> None:
    """Add a dot for each row, or for some of them, evenly spaced, if there are too many."""
    some = some_of(len(x), DOTS)
    ax.scatter(np.asarray(x)[some], np.asarray(y)[some], s=10, color=colour, lw=0, label=label)


# -- arguments ------------------------------------------------------------------------------------------


def is_classes(owner: str, predictive: Any) -> bool:
    """Whether predictions are of classes; anything else than predictions is refused."""
    if not hasattr(predictive, "log_prob"):
        allowed = "predictions, such as posterior.predict(x)"
        raise TypeError(must(owner, "predictive", allowed, predictive))
    return hasattr(predictive, "entropy")


def only(owner: str, predictive: Any, *, classes: bool) -> None:
    """Check that the predictions are of classes, or of numbers."""
    if is_classes(owner, predictive) != classes:
        wanted, got = ("classes", "numbers") if classes else ("numbers", "classes")
        raise ValueError(
            f"{owner}(predictive=...) must be predictions of {wanted}; got predictions of {got}."
        )


def probabilities_of(owner: str, predictive: Any) -> np.ndarray:
    """The probability of each class, ``(rows, classes)``."""
    only(owner, predictive, classes=True)
    if not hasattr(predictive, "probs"):
        labels = predictive.mean.shape[1]
        raise ValueError(
            must(owner, "predictive", "predictions of one label per row", f"{labels} labels")
        )
    return np.asarray(predictive.probs, float)


def one_target(values: Any, target: int | None) -> np.ndarray:
    """One number per row, of an array whose last axis may be that of several targets.

    Args:
      values: ``(..., rows)`` or ``(..., rows, targets)``;
      target: the number of the target; ``None`` if there is no axis of targets.
    """
    return np.asarray(values, float) if target is None else np.asarray(values, float)[..., target]


def which_target(owner: str, mean: np.ndarray, target: int | None) -> int | None:
    """The number of the target to draw; ``None`` if predictions have no axis of targets."""
    if mean.ndim == 1 and target in (None, 0):
        return None
    count = 1 if mean.ndim == 1 else mean.shape[1]
    if target is None and count == 1:
        return 0
    allowed = f"the number of one of the {count} targets, from 0 to {count - 1}"
    if target is None or integer(owner, "target", target, 0) >= count:
        raise ValueError(must(owner, "target", allowed, target))
    return target


def one_column(owner: str, name: str, values: Any, rows: int) -> np.ndarray:
    """Check that there is one finite number for each row; return them as an array ``(rows,)``."""
    try:
        found = np.asarray(values, float)
    except (TypeError, ValueError):
        raise TypeError(must(owner, name, f"{rows} numbers, one for each row", values)) from None
    if found.shape not in ((rows,), (rows, 1)):
        allowed = f"one number for each of the {rows} predicted rows (a column such as x[:, 0])"
        raise ValueError(must(owner, name, allowed, found))
    if not np.all(np.isfinite(found)):
        raise ValueError(must(owner, name, "finite numbers", found))
    return found.reshape(rows)


def targets(owner: str, y: Any, rows: int, target: int | None) -> np.ndarray:
    """Check the true values of one target."""
    found = np.asarray(y)
    several = target is not None and found.ndim == 2 and found.shape[1] > target
    return one_column(owner, "y", found[:, target] if several else y, rows)


def labels(owner: str, y: Any, rows: int, classes: int) -> np.ndarray:
    """Check the true classes: a whole number from 0 up for each row."""
    found = one_column(owner, "y", y, rows)
    whole = found.astype(int)
    if np.any(whole != found) or whole.min() < 0 or whole.max() >= classes:
        allowed = f"whole numbers from 0 to {classes - 1}, the numbers of the classes"
        raise ValueError(must(owner, "y", allowed, found))
    return whole
